"""`connect`: a store by its URL, and everything that works on it."""

import threading
from typing import Any, Self

from semel import errors
from semel.clock import Clock
from semel.codecs import COMPRESS_OVER, MAX_BYTES, Codec, Encryption, Overflow
from semel.drive import Store, leave
from semel.events import Events, Listener
from semel.facades import AsyncLedger, Ledger
from semel.flow import Service
from semel.heartbeat import Heart
from semel.keys import fingerprint
from semel.ledger import LedgerSteps, Seconds
from semel.once import Once

# The store of each URL scheme: the module is imported when it is asked for, and no sooner.
STORES = {
    "memory": ("semel.stores.memory", "MemoryStore"),
    "sqlite": ("semel.stores.sqlite", "SQLiteStore"),
    "dynamodb": ("semel.stores.dynamodb", "DynamoDBStore"),
    "postgresql": ("semel.stores.postgres", "PostgresStore"),
    "postgres": ("semel.stores.postgres", "PostgresStore"),
    "redis": ("semel.stores.redis", "RedisStore"),
    "rediss": ("semel.stores.redis", "RedisStore"),
}


def connect(
    url: str = "memory:",
    *,
    env: str = "dev",
    scope: str = "",
    secret: bytes | None = None,
    encryption: Encryption | None = None,
    overflow: Overflow | None = None,
    max_result_bytes: int | None = None,
    horizon: Seconds | None = None,
    on_event: Listener | None = None,
    clock: Clock | None = None,
) -> "Semel":
    """Open a store by its URL: `memory:`, `sqlite:///file.db`, `dynamodb:`, `postgresql:` or `redis:`.

    `env` and `scope` are part of every key: environments and tenants do not see each other's. `secret` makes
    fingerprints that cannot be guessed from outside. Results larger than `max_result_bytes` go to `overflow`.
    `horizon` is how long whoever calls goes on retrying; a shorter `ttl` is refused.
    """
    clock = clock or Clock()
    store = open_store(url, env=env, clock=clock)
    if overflow is not None:
        store.overflow = overflow
    events = Events()
    if on_event is not None:
        events.listen(on_event)
    room = _room(store, max_result_bytes)
    compress_over = room if getattr(store, "plain_results", False) else COMPRESS_OVER
    codec = Codec(max_bytes=room, compress_over=compress_over, encryption=encryption)
    return Semel(
        store, env=env, scope=scope, codec=codec, events=events, secret=secret, clock=clock, horizon=horizon
    )


def _room(store: Store, asked: int | None) -> int:
    """How large a result may be in this store."""
    room: int | None = getattr(store, "room", None)
    if asked is None:
        return min(MAX_BYTES, room or MAX_BYTES)
    if room is not None and asked > room:
        raise errors.InvalidOption(
            f"max_result_bytes={asked}: this store has room for {room}; what is larger goes to an overflow"
        )
    return asked


def open_store(url: str, *, env: str, clock: Clock) -> Store:
    """The store of a URL."""
    from importlib import import_module

    scheme, colon, _ = url.partition(":")
    if scheme not in STORES or not colon:
        known = ", ".join(f"{name}:" for name in STORES)
        raise errors.InvalidOption(f"{url!r} names no store; a store's URL begins with one of {known}")
    module, name = STORES[scheme]
    store: Store = getattr(import_module(module), name).from_url(url, env=env, clock=clock)
    return store


class Semel:
    """A ledger and what stands on it."""

    def __init__(
        self,
        store: Store,
        *,
        env: str = "dev",
        scope: str = "",
        codec: Codec | None = None,
        events: Events | None = None,
        secret: bytes | None = None,
        clock: Clock | None = None,
        horizon: Seconds | None = None,
        heart: Heart | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self.store = store
        self.events = events or Events()
        self.env = env
        self._codec = codec or Codec()
        self._secret = secret
        self._clock = clock or Clock()
        self._heart = heart or Heart(store, self._clock)
        self._stopping = stopping or threading.Event()
        self._horizon = horizon
        steps = LedgerSteps(env=env, scope=scope, codec=self._codec, events=self.events, horizon=horizon)
        self.ledger = Ledger(steps, store)
        self.once = Once(Service(steps, store, self._clock, self._heart, secret, self._stopping.is_set))
        self.aio = AsyncSemel(self)

    def scoped(self, scope: str) -> "Semel":
        """The same store for another tenant, whose keys are its own."""
        return Semel(
            self.store,
            env=self.env,
            scope=scope,
            codec=self._codec,
            events=self.events,
            secret=self._secret,
            clock=self._clock,
            horizon=self._horizon,
            heart=self._heart,
            stopping=self._stopping,
        )

    def fingerprint(self, payload: Any) -> str:
        """The fingerprint of a payload, for `ledger.claim` and `once.running`."""
        return fingerprint(payload, self._secret)

    def drain(self) -> None:
        """Begin nothing new, in any scope: what runs may finish, what has not begun is given back."""
        self._stopping.set()

    def close(self) -> None:
        """Let go of the store."""
        self.drain()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncSemel:
    """The same, awaitable, on the same store."""

    def __init__(self, sync: Semel) -> None:
        self._sync = sync
        self.ledger = AsyncLedger(sync.ledger.steps, sync.store)
        self.once = sync.once

    def scoped(self, scope: str) -> "AsyncSemel":
        """The same store for another tenant, whose keys are its own."""
        return self._sync.scoped(scope).aio

    async def close(self) -> None:
        """Let go of the store; writes under way are waited for, without holding up the loop."""
        import asyncio

        await leave(self._sync.store)
        await asyncio.to_thread(self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
