"""`connect`: a store by its URL, and everything that works on it."""

import functools
import os
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from semel import errors
from semel.core.clock import Clock, running_loop
from semel.core.codecs import COMPRESS_OVER, MAX_BYTES, Codec, Encryption, Overflow
from semel.core.drive import Limiting, Scanning, Store, StoreType, adrive, drive, leave
from semel.core.events import Events, Listener
from semel.core.facades import AsyncLedger, Ledger
from semel.core.flow import FlowContext
from semel.core.keys import fingerprint
from semel.core.ledger import LedgerSteps
from semel.core.policy import DAY, Seconds, seconds
from semel.core.realm import Realm, Sealing
from semel.core.runtime import Concealed, check_interpreter, masked
from semel.once import Once

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from semel.core.clock import SignalSafeEvent
    from semel.core.heartbeat import Heartbeats
    from semel.gate import AsyncGate, Gate, GateSteps, Rule
    from semel.model import ProgressCallback
    from semel.ops.facades import AsyncOps, Ops
    from semel.ops.rates import RateKeeper, Rates
    from semel.redact import Digest, Redactor
    from semel.state import (
        AsyncCounters,
        AsyncDocuments,
        AsyncJournal,
        AsyncMailbox,
        AsyncSwitches,
        Counters,
        Documents,
        Journal,
        Mailbox,
        Switches,
    )
    from semel.state.erasure import Erasure, ErasureSteps
    from semel.state.switches import SwitchCache, SwitchSteps
    from semel.state.transaction import Rules, Transaction

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
# Where other packages name the stores that they bring: the entry point's name is the URL scheme.
ENTRY_POINTS = "semel.stores"


def connect(
    url: str | os.PathLike[str] | None = None,
    *,
    store: Store | None = None,
    env: str = "dev",
    scope: str = "",
    secret: bytes | None = None,
    encryption: Encryption | None = None,
    overflow: Overflow | None = None,
    max_result_bytes: int | None = None,
    codec: Codec | None = None,
    horizon: Seconds | None = None,
    redact: "Redactor | None" = None,
    on_event: Listener | None = None,
    log_keys: bool = False,
    worker: str = "",
    clock: Clock | None = None,
) -> "Semel":
    """Open a store by its URL: `memory:`, `sqlite:///file.db`, `dynamodb:`, `postgresql:` or `redis:`.

    A path, such as `Path("file.db")`, is that of an SQLite file. Without a URL the store is in memory, or it
    is the `store` that is given instead.

    `env` and `scope` are part of every key: environments and tenants do not see each other's. `secret` makes
    fingerprints that cannot be guessed from outside. Results larger than `max_result_bytes` go to `overflow`.
    A `codec` of your own says how results are written, in place of `encryption` and `max_result_bytes`.
    `horizon` is how long whoever calls goes on retrying; a shorter `ttl` is refused. `redact` takes what is
    personal out of errors, journal entries and logged details before they are kept. With `log_keys` events
    and log lines tell keys, redacted, and not only their digests. `worker` is how records name whoever works
    here; without one it is the host and the process.
    """
    if store is not None and url is not None:
        raise errors.InvalidOption("connect takes a store's URL or a store, not both")
    check_interpreter()  # before a store starts a thread
    clock = clock or Clock()
    return Semel(
        open_store(_url_of(url), env=env, clock=clock) if store is None else store,
        env=env,
        scope=scope,
        secret=secret,
        encryption=encryption,
        overflow=overflow,
        max_result_bytes=max_result_bytes,
        codec=codec,
        horizon=horizon,
        redact=redact,
        on_event=on_event,
        log_keys=log_keys,
        worker=worker,
        clock=clock,
    )


def _codec(
    given: Codec | None, store: Store, encryption: Encryption | None, max_result_bytes: int | None
) -> Codec:
    """What writes results: the caller's own, or one by what this store can keep."""
    if given is not None:
        if encryption is not None or max_result_bytes is not None:
            raise errors.InvalidOption("a codec has its own encryption and max_bytes: give it those")
        return given
    room = _room(store, max_result_bytes)
    plain = isinstance(store, Limiting) and store.plain_results
    return Codec(max_bytes=room, compress_over=room if plain else COMPRESS_OVER, encryption=encryption)


def _room(store: Store, asked: int | None) -> int:
    """How large a result may be in this store."""
    room = store.room if isinstance(store, Limiting) else None
    if asked is None:
        return min(MAX_BYTES, room or MAX_BYTES)
    if room is not None and asked > room:
        raise errors.InvalidOption(
            f"max_result_bytes={asked}: this store has room for {room}; what is larger goes to an overflow"
        )
    return asked


def _url_of(given: str | os.PathLike[str] | None) -> str:
    if given is None:
        return "memory:"
    if isinstance(given, str):
        return given
    if not isinstance(given, os.PathLike):
        raise errors.InvalidOption(
            f"connect takes a store's URL, or a Path, not {type(given).__name__}; "
            "a store of your own is connect(store=...)"
        )
    from urllib.parse import quote

    return f"sqlite:///{quote(os.fspath(given).replace(os.sep, '/'))}"


def open_store(url: str, *, env: str, clock: Clock) -> Store:
    """The store of a URL."""
    scheme, colon, _ = url.partition(":")
    kind = _store_type(scheme) if colon else None
    if kind is None:
        raise _no_store(url, scheme)
    return kind.from_url(url, env=env, clock=clock)


def _store_type(scheme: str) -> StoreType | None:
    """The class of store that a URL scheme names, of semel's own or of an installed package's."""
    from importlib import import_module

    if scheme in STORES:
        module, name = STORES[scheme]
        return cast("StoreType", getattr(import_module(module), name))
    found = _entry_points().get(scheme)
    return None if found is None else cast("StoreType", found.load())


def _entry_points() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points

    return {found.name: found for found in entry_points(group=ENTRY_POINTS)}


def _no_store(url: str, scheme: str) -> errors.InvalidOption:
    known = ", ".join(f"{name}:" for name in (*STORES, *sorted(_entry_points().keys() - STORES)))
    return errors.InvalidOption(
        f"{masked(url)!r} names no store; a store's URL begins with one of {known}; a file of SQLite is "
        f"sqlite:///file.db; a package brings another by an entry point {scheme!r} of {ENTRY_POINTS!r}"
    )


def _checked(secret: bytes | None) -> bytes | None:
    if secret is not None and (not isinstance(secret, bytes) or not secret):
        what = type(secret).__name__ if secret else "nothing"
        raise errors.InvalidOption(
            f"a secret is bytes that nobody can guess, such as 32 from secrets.token_bytes(32), not {what}"
        )
    return secret


def _events(on_event: Listener | None, redact: "Redactor | None", clock: Clock, *, log_keys: bool) -> Events:
    events = Events()
    if on_event is not None:
        events.listen(on_event)
    if redact is not None:
        events.scrub = redact.text
    events.shows_keys = log_keys
    events.throttle = LogThrottle(clock)
    return events


# While a store is away, every call would say so.
THROTTLE_SECONDS = 60.0
# Causes are names of errors. Should somebody make them up as he goes, they are forgotten rather than kept.
MOST_CAUSES = 1000


class LogThrottle:
    """Lets one warning a minute pass for each cause, and counts the others."""

    def __init__(self, clock: Clock) -> None:
        from semel.core.clock import SignalSafeLock

        self._monotonic = clock.monotonic
        self._passed: dict[str, tuple[float, int]] = {}
        # Not a plain lock: a signal's handler may do work of its own in the midst of a call.
        self._lock = SignalSafeLock()

    def __call__(self, cause: str) -> int | None:
        """How many were left out since the last one that passed; None where this one is left out too."""
        with self._lock:
            now = self._monotonic()
            last, count = self._passed.get(cause, (float("-inf"), 0))
            if now - last < THROTTLE_SECONDS:
                self._passed[cause] = last, count + 1
                return None
            if len(self._passed) >= MOST_CAUSES:
                self._passed.clear()
            self._passed[cause] = now, 0
            return count


class Shared(Concealed, msgspec.Struct, frozen=True):
    """What all scopes of one store have in common."""

    store: Store
    env: str
    codec: Codec
    events: Events
    secret: bytes | None
    redact: "Redactor | None"
    clock: Clock
    horizon: Seconds | None
    heartbeats: "Heartbeats"
    stopping: "SignalSafeEvent"
    switch_caches: "list[SwitchCache]"
    """The switches as this process sees them, once it has asked for them."""
    worker: str
    rates: "list[RateKeeper]"
    """What counts the rates of all scopes, once that is asked for."""
    latest: dict[str, float]
    """When each mailbox was last written to, by its qualified name."""


class Semel:
    """A ledger and what stands on it; its options are those of `connect`."""

    _is_view = False
    """Whether it is made from another, which the store belongs to."""

    def __init__(
        self,
        store: Store,
        *,
        env: str = "dev",
        scope: str = "",
        secret: bytes | None = None,
        encryption: Encryption | None = None,
        overflow: Overflow | None = None,
        max_result_bytes: int | None = None,
        codec: Codec | None = None,
        horizon: Seconds | None = None,
        redact: "Redactor | None" = None,
        on_event: Listener | None = None,
        log_keys: bool = False,
        worker: str = "",
        clock: Clock | None = None,
    ) -> None:
        # Threads, which whoever only imports semel does not need.
        from semel.core.clock import SignalSafeEvent
        from semel.core.heartbeat import Heartbeats

        check_interpreter()
        clock = clock or Clock()
        events = _events(on_event, redact, clock, log_keys=log_keys)
        if overflow is not None:
            store.overflow = overflow
        self._open(
            Shared(
                store,
                env,
                _codec(codec, store, encryption, max_result_bytes),
                events,
                _checked(secret),
                redact,
                clock,
                horizon,
                Heartbeats(store, clock),
                SignalSafeEvent(),
                [],
                worker,
                [],
                {},
            ),
            scope,
        )

    def _open(self, shared: Shared, scope: str) -> None:
        self._shared = shared
        store = shared.store
        self.store: Store = store
        self.events: Events = shared.events.within(scope)
        self.env: str = shared.env
        self.clock: Clock = shared.clock
        self.scope = scope
        realm = Realm(
            env=shared.env,
            scope=scope,
            events=self.events,
            horizon=0.0 if shared.horizon is None else seconds(shared.horizon),
            secret=shared.secret,
            redactor=shared.redact,
            sealing=Sealing(shared.codec.encryption),
            worker=shared.worker,
        )
        steps = LedgerSteps(
            realm,
            shared.codec,
            clock=shared.clock,
            clear_details=isinstance(store, Limiting) and store.spreads_details,
            rescue=shared.heartbeats.rescue,
        )
        self._realm = realm
        self.ledger: Ledger = Ledger(steps, store)
        context = FlowContext(steps, store, shared.clock, shared.heartbeats, shared.secret, shared.stopping)
        self.once: Once = Once(context)
        self.aio: AsyncSemel = AsyncSemel(self)

    def __repr__(self) -> str:  # neither its secret nor what its store's URL tells besides
        return f"<Semel on {self.store!r}, env {self.env!r}, scope {self.scope!r}>"

    def scoped(self, scope: str) -> "Semel":
        """Return a view of this store for another tenant; closing it leaves the store open."""
        return self._view(self._shared, scope)

    def through(self, door: str) -> "Semel":
        """Return a view of this ledger for a door: its events name that door."""
        return self._view(msgspec.structs.replace(self._shared, events=self.events.through(door)), self.scope)

    def _view(self, shared: Shared, scope: str) -> "Semel":
        other = object.__new__(Semel)
        other._is_view = True
        other._open(shared, scope)
        return other

    # The state that decides: imported when it is asked for, as many programs only ever ask for `once`.

    @functools.cached_property
    def documents(self) -> "Documents[dict[str, Any]]":
        """Versioned state."""
        from semel.state import Documents

        return Documents(self._rules.documents, self.store)

    @functools.cached_property
    def journal(self) -> "Journal":
        """Entries in the order of time."""
        from semel.state import Journal

        return Journal(self._rules.journal, self.store)

    @functools.cached_property
    def counters(self) -> "Counters":
        """So many in a period."""
        from semel.state import Counters

        return Counters(self._rules.counters, self.store)

    @functools.cached_property
    def switches(self) -> "Switches":
        """What stops work at once, everywhere."""
        from semel.state import Switches

        return Switches(self._switch_steps, self.store)

    @functools.cached_property
    def ops(self) -> "Ops":
        """Questions and actions of whoever runs it."""
        from semel.ops.facades import Ops, OpsSteps

        unordered = isinstance(self.store, Scanning)
        steps = OpsSteps(
            self.ledger.steps, self.journal.steps, self._switch_steps, self._eraser_steps, unordered=unordered
        )
        return Ops(steps, self.store)

    def mailbox(
        self, name: str, *, ttl: Seconds | None = None, shards: int = 1, shared: bool = False
    ) -> "Mailbox":
        """Messages that wait under this name, for `ttl` at most: 14 days; in so many shards or more.

        `shared` says that the key of a message is a key of the ledger as it is.
        """
        from semel.state import Mailbox
        from semel.state.mailbox import TTL, MailboxSteps

        # For all objects of a name: the order of messages does not depend on who puts them in.
        latest, span = self._shared.latest, TTL if ttl is None else ttl
        steps = MailboxSteps(self.ledger.steps, name, ttl=span, shards=shards, shared=shared, latest=latest)
        return Mailbox(steps, self.store)

    def gate(self, *rules: "Rule", ttl: Seconds = DAY, trace: str | None = None) -> "Gate":
        """A gate that weighs these rules.

        A decision is remembered for `ttl`, and told to the journal of the owner that `trace` names.
        """
        from semel.gate import Gate

        return Gate(self._gate_steps(rules, ttl, trace), self.store)

    def transaction(self, within: Any = None) -> "Transaction":
        """What a `with` block asks for is written at its end, all of it or nothing.

        `within` is a connection of yours to the same database: it is then part of your own transaction.
        """
        from semel.state.transaction import Transaction

        return Transaction(self._rules, self.store, within)

    def forget_subject(
        self, person: str, *, on_progress: "ProgressCallback[Erasure] | None" = None
    ) -> "Erasure":
        """Drop everything kept about a person; what was done once is still known to be done.

        After a crash the same call goes on with what is left.
        """
        steps = self._eraser_steps.forget_subject(person, on_progress=on_progress)
        return drive(steps, self.store, self.events.failed)

    @functools.cached_property
    def _rules(self) -> "Rules":
        from semel.state.counters import CounterSteps
        from semel.state.documents import DocumentSteps
        from semel.state.journal import JournalSteps
        from semel.state.transaction import Rules

        realm = self._realm
        return Rules(self.ledger.steps, DocumentSteps(realm), JournalSteps(realm), CounterSteps(realm))

    @functools.cached_property
    def _switch_steps(self) -> "SwitchSteps":
        from semel.state.switches import SwitchCache, SwitchSteps

        shared = self._shared
        if not shared.switch_caches:
            shared.switch_caches.append(SwitchCache(self.store, shared.clock))
        return SwitchSteps(self._realm, shared.switch_caches[0], shared.clock)

    def _gate_steps(self, rules: "tuple[Rule, ...]", ttl: Seconds, trace: str | None) -> "GateSteps":
        from semel.gate import GateSteps

        return GateSteps(self._rules, self._switch_steps, rules, ttl=ttl, trace=trace)

    @functools.cached_property
    def _eraser_steps(self) -> "ErasureSteps":
        from semel.state.erasure import ErasureSteps

        return ErasureSteps(self._realm, self.ledger.steps, lambda: self.store.overflow is not None)

    # Persons and payloads

    def fingerprint(self, payload: Any) -> str:
        """The fingerprint of a payload, for `ledger.claim` and `once.running`."""
        return fingerprint(payload, self._shared.secret)

    def digest(self, payload: Any) -> "Digest":
        """The hash and the size of a payload, to be kept instead of it."""
        from semel.redact import digest

        return digest(payload, self._shared.secret)

    def pseudonym(self, text: str) -> str:
        """A keyed hash in place of a text that tells too much, as a part of a key for instance."""
        return self._realm.pseudonym(text)

    def keep_rates(self) -> "RateKeeper":
        """Count what this process does, in every scope, for `ops.rates`: a row a minute, until `close`.

        Counting costs no request; what was counted is written once a minute, to the table of the journal.
        """
        from semel.ops.rates import RateKeeper

        kept = self._shared.rates
        if not kept:
            kept.append(RateKeeper(self.env, self.store, self.clock, self.events.failed))
        self.events.listen(kept[0])
        return kept[0]

    def counted_rates(self) -> "list[Rates]":
        """What this process has counted of this scope and not written yet; none where it keeps no rates."""
        return [rates for keeper in self._shared.rates for rates in keeper.counted(self.scope)]

    def drain(self) -> None:
        """Begin nothing new, in any scope: what runs may finish, what has not begun is given back."""
        self._shared.stopping.set()

    def close(self) -> None:
        """Close the store; a view leaves it open, for its parent and the parent's other views."""
        if self._is_view:
            return
        self.drain()
        for rates in self._shared.rates:
            rates.stop()
        for switch_caches in self._shared.switch_caches:
            switch_caches.stop()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncSemel:
    """A ledger and what stands on it, for `await`: what `Semel.aio` is, on the same store."""

    def __init__(self, sync: Semel) -> None:
        self._sync = sync
        self.ledger: AsyncLedger = AsyncLedger(sync.ledger.steps, sync.store)
        self.once: Once = sync.once

    def __repr__(self) -> str:
        return f"<aio of {self._sync!r}>"

    @functools.cached_property
    def documents(self) -> "AsyncDocuments[dict[str, Any]]":
        """Versioned state."""
        from semel.state import AsyncDocuments

        return AsyncDocuments(self._sync.documents.steps, self._sync.store)

    @functools.cached_property
    def journal(self) -> "AsyncJournal":
        """Entries in the order of time."""
        from semel.state import AsyncJournal

        return AsyncJournal(self._sync.journal.steps, self._sync.store)

    @functools.cached_property
    def counters(self) -> "AsyncCounters":
        """So many in a period."""
        from semel.state import AsyncCounters

        return AsyncCounters(self._sync.counters.steps, self._sync.store)

    @functools.cached_property
    def switches(self) -> "AsyncSwitches":
        """What stops work at once, everywhere."""
        from semel.state import AsyncSwitches

        return AsyncSwitches(self._sync.switches.steps, self._sync.store)

    @functools.cached_property
    def ops(self) -> "AsyncOps":
        """Questions and actions of whoever runs it."""
        from semel.ops.facades import AsyncOps

        return AsyncOps(self._sync.ops.steps, self._sync.store)

    def mailbox(
        self, name: str, *, ttl: Seconds | None = None, shards: int = 1, shared: bool = False
    ) -> "AsyncMailbox":
        """Messages that wait under this name; in so many shards or more."""
        from semel.state import AsyncMailbox

        steps = self._sync.mailbox(name, ttl=ttl, shards=shards, shared=shared).steps
        return AsyncMailbox(steps, self._sync.store)

    def gate(self, *rules: "Rule", ttl: Seconds = DAY, trace: str | None = None) -> "AsyncGate":
        """A gate that weighs these rules."""
        from semel.gate import AsyncGate

        return AsyncGate(self._sync._gate_steps(rules, ttl, trace), self._sync.store)

    def transaction(self, within: Any = None) -> "Transaction":
        """What an `async with` block asks for is written at its end, all of it or nothing."""
        return self._sync.transaction(within)

    async def forget_subject(
        self, person: str, *, on_progress: "ProgressCallback[Erasure] | None" = None
    ) -> "Erasure":
        """Drop everything kept about a person; what was done once is still known to be done."""
        steps = self._sync._eraser_steps.forget_subject(person, on_progress=on_progress)
        return await adrive(steps, self._sync.store, self._sync.events.failed)

    def scoped(self, scope: str) -> "AsyncSemel":
        """This store for another tenant, whose keys are its own."""
        return self._sync.scoped(scope).aio

    async def close(self) -> None:
        """Let go of the store; writes under way are waited for, without holding up the loop."""
        import asyncio

        if self._sync._is_view:
            return
        running_loop()
        await leave(self._sync.store)
        await asyncio.to_thread(self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
