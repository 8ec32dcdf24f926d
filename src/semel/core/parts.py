"""One atomic write, built from the writes of several calls.

Each call contributes a `Part`: its writes, and how it reads their refusal. A part that stands alone is one
write or one small transaction; several in a `with s.transaction()` are one `Transact`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar, cast

import msgspec

from semel.core.commands import (
    Applied,
    Cancelled,
    Refused,
    Steps,
    Transact,
    Write,
    as_absent,
    over_expired,
    resend,
)
from semel.errors import SemelError, StoreOutcomeUnknown, StoreThrottled

T = TypeVar("T")

# Each time somebody else's change came in between, so somebody got on; so often in a row is no accident.
TRIES = 50


class PartVerdict(Enum):
    """How a part reads a refusal, where it is no error."""

    MADE = auto()
    """It carries the mark of this very commit: the whole was made, and its answer was lost."""
    SAME = auto()
    """It is as this part would leave it, by this commit or by an earlier one."""
    STANDS = auto()
    """An earlier one did the same, once and for all: this part has nothing left to do."""
    STALE = auto()
    """What the part was made from has changed: all parts are made again."""


PartRefusals: TypeAlias = tuple[Refused | None, ...]
Judge: TypeAlias = Callable[[PartRefusals], PartVerdict | SemelError]


class Part(msgspec.Struct, Generic[T], frozen=True):
    """What one call adds to an atomic write."""

    writes: tuple[Write, ...]
    judge: Judge
    """What a refusal of some of its writes means."""
    result: Callable[[Applied | None], T]
    """What the call gives; from the reply where its only write was sent alone."""
    marked: bool = False
    """Asked for again, it finds what it wrote the first time; if it does not, it was not made."""


# A part, or what makes it for a commit with this mark. Inner functions that do so quote their annotations,
# which would else be evaluated at every call.
PartPlan: TypeAlias = Part[T] | Callable[[str], Steps[Part[T]]]


class TimedPlan(msgspec.Struct, Generic[T], frozen=True):
    """A plan that is built after the others, so that its time is later than all that they read."""

    build: Callable[[str], Steps[Part[T]]]

    def __call__(self, mark: str) -> Steps[Part[T]]:
        """Build the part for a commit with this mark."""
        return self.build(mark)


def part_of(plan: PartPlan[T], mark: str) -> Steps[Part[T]]:
    """The part of a plan, for a commit with this mark."""
    return plan if isinstance(plan, Part) else (yield from plan(mark))


def nothing(_reply: Applied | None) -> None:
    """The result of a part that gives none."""


def commit(plans: Sequence[PartPlan[Any]], mark: str) -> Steps[list[Any]]:
    """Make all parts in one write, or none of them: their results, or the error of one that is refused."""
    left = list(range(len(plans)))
    results: list[Any] = [None] * len(plans)
    for _ in range(TRIES):
        parts: dict[int, Any] = dict.fromkeys(left)  # in this order
        # All of them again at each try: an entry would else tell of a change at a time before that of the
        # change that came in between.
        for late in (False, True):
            for place in left:
                plan = plans[place]
                if isinstance(plan, TimedPlan) is late:
                    parts[place] = plan if isinstance(plan, Part) else (yield from plan(mark))
        writes: list[Write] = []
        for part in parts.values():
            writes += part.writes
        reply = (yield from _sent(tuple(writes))) if writes else None
        verdicts = _verdicts(parts, reply) if type(reply) is Cancelled else {}
        made = not verdicts or _was_made(parts, verdicts)
        left = []
        for place, part in parts.items():
            verdict = PartVerdict.MADE if made else verdicts.get(place, PartVerdict.STALE)
            if isinstance(verdict, SemelError):
                raise verdict
            if verdict is PartVerdict.STALE:
                left.append(place)
            else:
                results[place] = part.result(reply if type(reply) is Applied else None)
        if not left:
            return results
    raise StoreThrottled(f"other changes came in between {TRIES} times in a row; try again later")


def _was_made(parts: dict[int, Part[Any]], verdicts: dict[int, PartVerdict | SemelError]) -> bool:
    """Whether the refusals only say that all of it was made before, and the answer to that was lost."""
    # A claim is ended once. Where it was ended just so, these parts were made with it, whether they are sent
    # again or asked for again. But where one is missing that would be there, something else has ended it.
    marked = [place for place, part in parts.items() if part.marked]
    missing = any(not isinstance(verdicts.get(place), PartVerdict) for place in marked)
    found = verdicts.values()
    return PartVerdict.MADE in found or (PartVerdict.SAME in found and not missing)


def alone(plan: PartPlan[T], mark: str) -> Steps[T]:
    """Make one part."""
    [result] = yield from commit([plan], mark)
    return cast("T", result)


def _sent(writes: tuple[Write, ...]) -> Steps[Applied | Cancelled]:
    """Send writes that are made together, and return the reply; expired items count as absent."""
    sent = writes
    for _ in range(TRIES):
        command = sent[0] if len(sent) == 1 else Transact(sent)
        try:
            reply: Any = yield command
        except StoreOutcomeUnknown as lost:
            reply = yield from resend(command, lost)
        if type(reply) is Applied:
            return reply
        found, retries = [], []
        refusals = (reply,) if type(reply) is Refused else reply.refusals
        for write, earlier, refused in zip(writes, sent, refusals, strict=True):
            retry = refused and over_expired(write, refused)
            found.append(None if retry else refused and as_absent(write.table, refused))
            retries.append(retry or earlier)
        if any(found):
            return Cancelled(reply.now, tuple(found))
        sent = tuple(retries)
    raise StoreThrottled(f"other writers replaced expired items {TRIES} times in a row; retry later")


def _verdicts(parts: dict[int, Part[Any]], reply: Cancelled) -> dict[int, PartVerdict | SemelError]:
    """What the parts say that were refused."""
    refusals, verdicts = iter(reply.refusals), {}
    for place, part in parts.items():
        mine = tuple(islice(refusals, len(part.writes)))
        if any(mine):
            verdicts[place] = part.judge(mine)
    return verdicts


def unrefusable(_refusals: PartRefusals) -> PartVerdict:
    """The judge of a part whose writes have no condition."""
    raise AssertionError("a write without a condition was refused")
