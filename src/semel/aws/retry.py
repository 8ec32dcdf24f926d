"""Which requests are retried, how often and when; it depends on what was certainly not applied."""

import math
import random
from collections import Counter

import msgspec

from semel.aws.errors import ErrorKind, NoResponse, ServiceError, contended, kind
from semel.core.clock import Clock
from semel.errors import StoreOutcomeUnknown, StoreThrottled, StoreUnavailable

ADVICE = (
    "Is that the right endpoint and region, is the server up, and does a firewall, a proxy or a missing VPC "
    "endpoint stand between?"
)


class RetryPolicy(msgspec.Struct, frozen=True):
    """How much is tried; times are in seconds."""

    # DynamoDB's own advice is to begin with 25 ms and to double. Eight tries take two and a half seconds at
    # most, and half of that as a rule: less than callers wait and leases last.
    tries: int = 8
    base: float = 0.025
    longest: float = 1.0
    # A server that is not there is seldom there a moment later.
    connects: int = 3
    # A transaction that its coordinator lost is finished when it is asked for again after five seconds.
    pending_base: float = 0.5
    pending_longest: float = 2.0
    # From the first trouble on, time-outs included; no try is begun after that.
    patience: float = 10.0


def limits(policy: RetryPolicy, *, write: bool) -> dict[ErrorKind, float]:
    """How often each may happen: the last time is for the caller."""
    return {
        ErrorKind.UNREACHED: policy.connects,
        ErrorKind.BUSY: policy.tries,
        ErrorKind.PENDING: math.inf,
        # Whoever writes has to look first whether it was applied.
        ErrorKind.FAILED: 1 if write else policy.tries,
        # One is for a clock that is wrong, one for a Date that was; then it is not the clock.
        ErrorKind.CLOCK: 3,
        ErrorKind.EXPIRED: 2,
        ErrorKind.REFUSED: 1,
    }


# What the service itself has put best.
CALLERS = frozenset({ErrorKind.CLOCK, ErrorKind.EXPIRED, ErrorKind.REFUSED})


class RetryState:
    """What one call has met with so far."""

    def __init__(self, policy: RetryPolicy, clock: Clock, place: str, *, write: bool) -> None:
        self._policy = policy
        self._clock = clock
        self._place = place
        self._limits = limits(policy, write=write)
        self._write = write
        self._end = clock.monotonic() + policy.patience
        self._met: Counter[ErrorKind] = Counter()
        self._contended = 0

    @property
    def _made(self) -> int:
        return self._met.total() + self._contended

    def after(self, failure: ServiceError | NoResponse) -> float:
        """How long to wait before the next try; raises what the caller is to know where there is none."""
        what = kind(failure)
        if contended(failure):
            # Somebody wins every round, so that all of a herd get through in time; in eight rounds few do.
            self._contended += 1
        else:
            self._met[what] += 1
        wait = self._wait(what)
        # Who was silent for the whole of his time is not given the same again.
        silent = isinstance(failure, NoResponse) and isinstance(failure.error, TimeoutError)
        over = silent or self._met[what] >= self._limits[what]
        if over or self._clock.monotonic() + wait > self._end:
            if isinstance(failure, ServiceError) and what in CALLERS:
                raise failure
            raise self._error(what, failure) from (
                failure.error if isinstance(failure, NoResponse) else failure
            )
        return wait

    def _wait(self, what: ErrorKind) -> float:
        """Full jitter, which spreads callers best; a pending transaction needs its time."""
        policy, doublings = self._policy, self._made - 1
        chance = random.random()
        if what in (ErrorKind.CLOCK, ErrorKind.EXPIRED):
            return 0.0
        if what is ErrorKind.PENDING:
            return _step(policy.pending_base, doublings, policy.pending_longest) * (1 + chance) / 2
        return _step(policy.base, doublings, policy.longest) * chance

    def _error(self, what: ErrorKind, failure: ServiceError | NoResponse) -> Exception:
        why = failure.why if isinstance(failure, NoResponse) else str(failure)
        tries = self._made
        if what is ErrorKind.UNREACHED:
            return StoreUnavailable(f"{self._place} cannot be reached: {why}. {ADVICE}")
        if what is ErrorKind.BUSY:
            return StoreThrottled(f"{self._place} was still too busy at try {tries}: {why}")
        if what is ErrorKind.PENDING or (what is ErrorKind.FAILED and self._write):
            return StoreOutcomeUnknown(f"{self._place}: the write may or may not have been applied: {why}")
        often = f" in {tries} tries" if tries > 1 else ""
        return StoreUnavailable(f"{self._place} gave no usable answer{often}: {why}")


def _step(base: float, doublings: int, longest: float) -> float:
    return min(longest, base * float(2**doublings))
