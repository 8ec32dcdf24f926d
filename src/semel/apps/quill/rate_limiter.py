"""Keeping another system's limits: who comes too early waits, and those who wait go out together."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from semel.connect import Semel
from semel.core.events import What
from semel.core.keys import Key
from semel.core.policy import DAY
from semel.core.runtime import random_token
from semel.errors import Later, NotPermitted, SemelError, TableMissing

T = TypeVar("T")
E = TypeVar("E")

# While as many are under way as may be, it is looked so often whether one has come back.
LOOK_SECONDS: Final = 0.1
# Clocks that differ by more were set, and do not merely differ.
JUMP_SECONDS: Final = 60.0
# Whatever is asked for, it is asked again after an hour.
LONGEST_AWAY: Final = 3600.0
# The store of whoever has not provisioned it since has no documents, or none for this function.
NOWHERE: Final = (TableMissing, NotPermitted)


class Rate(NamedTuple):
    """At most so much in any span of that many seconds, with a share of it at once and the rest evenly.

    A bucket of `burst` that is filled up at an even rate lets through `burst` and what the rate brings in a
    span: together that is the limit, wherever the span begins.
    """

    most: float
    span: float
    burst: float

    @property
    def _a_second(self) -> float:
        return (self.most - self.burst) / self.span

    def filled(self, left: float, seconds: float) -> float:
        """What is left in the bucket after so many seconds more."""
        return min(self.burst, left + max(0.0, seconds) * self._a_second)

    def wait(self, left: float, amount: float = 0.0) -> float:
        """How many seconds there are until so much may go."""
        return max(0.0, (amount - left) / self._a_second)


class RemoteLimits(NamedTuple):
    """What another system takes from all of its callers together."""

    requests: Rate
    rows: Rate
    pending: int
    """So many requests may be under way."""
    lease: float
    """For how long a request may be, before whoever sent it is taken for dead."""
    patience: float
    """Whoever would have to wait for longer is better told to come back."""
    pause: float
    """After a failure it is left alone for so long, twice as long after the next, and so on."""
    longest_pause: float


class RateState(msgspec.Struct, frozen=True):
    """How a pace stands."""

    at: float
    """When it was so."""
    requests: float
    rows: float
    under_way: dict[str, float] = {}
    """Requests, and until when they are believed to be."""
    away_until: float = 0.0
    failures: int = 0


class Full(Exception):
    """As many requests are under way as may be."""


class RateLimiter:
    """The pace at which another system is asked: kept in the store, and so by all processes together.

    It goes by the clocks of those who ask: where these differ by a second, a second's requests more may go.
    """

    def __init__(self, s: Semel, name: str, key: Key, limits: RemoteLimits) -> None:
        self._name, self._key, self._limits = name, key, limits
        self._clock, self._events = s.clock, s.events
        self._documents = s.documents.of(RateState)
        # Threads of one process take turns at the document, and do not get into each other's way there.
        self._lock, self._places = threading.Lock(), threading.BoundedSemaphore(limits.pending)
        self._own: RateState | None = None
        """The state, where the store has no place for it."""

    def check(self) -> None:
        """Raise `Later` where nothing would be let through for a while."""
        with self._lock:
            self._allowed(self._fresh(self._read()))

    @contextmanager
    def turn(self) -> Iterator["AdmittedRequest"]:
        """Wait until a request may go; `Later` where that would take long. It is under way meanwhile."""
        turn = AdmittedRequest(random_token())
        if not self._places.acquire(timeout=self._limits.patience):
            raise self._full()
        try:
            wait = self._enter(turn.token)
            try:
                self._clock.wait(threading.Event(), wait)
                yield turn
            finally:
                self._leave(turn)
        finally:
            self._places.release()

    def _full(self) -> Later:
        why = f"{self._name} has {self._limits.pending} requests to answer already"
        return Later(self._limits.patience, why, everyone=True)

    def _enter(self, token: str) -> float:
        """Be among those under way; for how many seconds still to wait."""
        given_up = self._clock.monotonic() + self._limits.patience
        while True:
            try:
                state = self._change(lambda state: self._entered(state, token))
            except Full:
                if self._clock.monotonic() >= given_up:
                    raise self._full() from None
                self._clock.wait(threading.Event(), LOOK_SECONDS)
            else:
                return max(self._limits.requests.wait(state.requests), self._limits.rows.wait(state.rows))

    def _entered(self, state: RateState, token: str) -> RateState:
        self._allowed(state)
        if len(state.under_way) >= self._limits.pending:
            raise Full
        until = state.at + self._limits.lease
        return replace(state, requests=state.requests - 1, under_way=state.under_way | {token: until})

    def _allowed(self, state: RateState) -> None:
        away = state.away_until - state.at
        if away > 0:
            raise Later(away, f"{self._name} has failed just now, and is left alone", everyone=True)
        wait = max(self._limits.requests.wait(state.requests, 1), self._limits.rows.wait(state.rows))
        if wait > self._limits.patience:
            raise Later(wait, f"{self._name} takes no more just now, by its limits", everyone=True)

    def _leave(self, turn: "AdmittedRequest") -> None:
        """It is answered, or given up; what became of it is said above, whatever the store says to this."""
        try:
            self._change(lambda state: self._left(state, turn))
        except SemelError as error:
            self._warn(f"the pace of {self._name} is not kept", error)

    def _warn(self, what: str, error: SemelError) -> None:
        self._events.warn(What.STORE_ERROR, "", detail=f"{what}: {type(error).__name__}: {error}")

    def _left(self, state: RateState, turn: "AdmittedRequest") -> RateState:
        under_way = {token: until for token, until in state.under_way.items() if token != turn.token}
        state = replace(state, rows=state.rows - turn.rows, under_way=under_way)
        if not turn.failed:
            return replace(state, failures=0)
        pause = min(self._limits.longest_pause, self._limits.pause * 2.0 ** min(state.failures, 20))
        until = state.at + (pause if turn.asked is None else turn.asked)
        return replace(state, away_until=max(state.away_until, until), failures=state.failures + 1)

    # The document

    def _change(self, change: Callable[[RateState], RateState]) -> RateState:
        with self._lock:
            if self._own is None:
                try:
                    kept = self._documents.update(
                        self._key, lambda state: change(self._fresh(state)), ttl=DAY
                    )
                    return kept.value
                except NOWHERE as error:
                    self._alone(error)
            self._own = change(self._fresh(self._own))
            return self._own

    def _read(self) -> RateState | None:
        if self._own is None:
            try:
                found = self._documents.get(self._key)
                return None if found is None else found.value
            except NOWHERE as error:
                self._alone(error)
        return self._own

    def _alone(self, error: SemelError) -> None:
        self._warn(f"each process keeps the pace of {self._name} by itself", error)
        self._own = self._fresh(None)

    def _fresh(self, state: RateState | None) -> RateState:
        """The state as it is by now."""
        now, (requests, rows, *_) = self._clock.now(), self._limits
        if state is None:
            return RateState(now, requests.burst, rows.burst)
        # Whose clock is behind adds nothing, and takes nothing back; one that was set back begins anew.
        now = max(now, state.at) if state.at - now < JUMP_SECONDS else now
        passed = now - state.at
        return replace(
            state,
            at=now,
            requests=requests.filled(state.requests, passed),
            rows=rows.filled(state.rows, passed),
            under_way={token: until for token, until in state.under_way.items() if until > now},
            away_until=min(state.away_until, now + LONGEST_AWAY),
        )


@dataclass
class AdmittedRequest:
    """One request that may go now."""

    token: str
    rows: int = 0
    failed: bool = False
    asked: float | None = None
    """After how many seconds the other side asks to be asked again."""


@dataclass(eq=False)
class CombinedRequest(Generic[T]):
    """What several callers send in one request."""

    error: Exception | None
    """Until it is known to have gone well."""
    items: list[T] = field(default_factory=list)
    callers: int = 0
    done: threading.Event = field(default_factory=threading.Event)


class RequestCombiner(Generic[T, E]):
    """Sends what callers bring; those who come while a request waits for its turn send theirs with it.

    `turn` is entered before a request, and waits until it may go. Each caller is told what became of its own:
    all that went out together went well, or ended in the same error; `lost` where a request was broken off.
    `apart` is what may be the doing of one of them: then nothing went, and each sends its own alone.
    """

    def __init__(
        self,
        send: Callable[[Sequence[T], E], Any],
        turn: Callable[[], AbstractContextManager[E]],
        most: int,
        lost: Callable[[], Exception],
        apart: tuple[type[Exception], ...] = (),
    ) -> None:
        self._send, self._turn, self._most, self._lost, self._apart = send, turn, most, lost, apart
        self._lock = threading.Lock()
        self._open: CombinedRequest[T] | None = None

    def send(self, items: Sequence[T]) -> None:
        """Send these, with others or alone; at most as many as one request takes."""
        with self._lock:
            group = self._open
            leads = group is None or len(group.items) + len(items) > self._most
            if group is None or leads:
                group = self._open = CombinedRequest(self._lost())
            group.items += items
            group.callers += 1
        if leads:
            self._lead(group)
        else:
            group.done.wait()
        if group.callers > 1 and isinstance(group.error, self._apart):
            with self._turn() as turn:
                self._send(items, turn)
        elif group.error is not None:
            raise group.error

    def _lead(self, group: CombinedRequest[T]) -> None:
        try:
            with self._turn() as turn:
                self._close(group)
                self._send(group.items, turn)
            group.error = None
        except Exception as error:  # noqa: BLE001 - whatever it is, everybody in the group is told
            group.error = error
        finally:
            self._close(group)
            group.done.set()

    def _close(self, group: CombinedRequest[T]) -> None:
        """Nobody joins it any more."""
        with self._lock:
            if self._open is group:
                self._open = None
