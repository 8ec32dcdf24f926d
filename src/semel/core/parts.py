"""One atomic write, built from the writes of several calls.

Each call contributes a `Part`: its writes, and how it reads their refusal. A part that stands alone is one
write or one small transaction; several in a `with s.transaction()` are one `Transact`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
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
    send,
)
from semel.errors import SemelError, StoreThrottled

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


def built_once(build: Callable[[], Steps[PartPlan[T]]]) -> PartPlan[T]:
    """Plan a part whose plan a retry does not make again, as making it stores a large result."""
    built: list[PartPlan[T]] = []

    def plan(mark: str) -> Steps[Part[T]]:
        if not built:
            built.append((yield from build()))
        return (yield from part_of(built[0], mark))

    return plan


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
        # All of them again at each try: an entry would else tell of a change at a time before that of the
        # change that came in between.
        built: dict[int, Part[Any]] = {}
        for place in sorted(left, key=lambda place: isinstance(plans[place], TimedPlan)):
            built[place] = yield from part_of(plans[place], mark)
        chosen = {place: built[place] for place in left}
        reply = yield from _sent(tuple([write for part in chosen.values() for write in part.writes]))
        verdicts = _verdicts(chosen, reply)
        if not verdicts or _was_made(chosen, verdicts):
            for place, part in chosen.items():
                results[place] = part.result(reply if type(reply) is Applied else None)
            return results
        left = []
        for place, part in chosen.items():
            verdict = verdicts.get(place)
            if isinstance(verdict, SemelError):
                raise verdict
            if verdict is None or verdict is PartVerdict.STALE:
                left.append(place)
            else:
                results[place] = part.result(None)
    raise StoreThrottled(f"other changes came in between {TRIES} times in a row; try again later")


def _was_made(chosen: dict[int, Part[Any]], verdicts: dict[int, PartVerdict | SemelError]) -> bool:
    """Whether the refusals only say that all of it was made before, and the answer to that was lost."""
    # A claim is ended once. Where it was ended just so, these parts were made with it, whether they are sent
    # again or asked for again. But where one is missing that would be there, something else has ended it.
    marked = [place for place, part in chosen.items() if part.marked]
    missing = any(not isinstance(verdicts.get(place), PartVerdict) for place in marked)
    found = verdicts.values()
    return PartVerdict.MADE in found or (PartVerdict.SAME in found and not missing)


def alone(plan: PartPlan[T], mark: str) -> Steps[T]:
    """Make one part."""
    [result] = yield from commit([plan], mark)
    return cast("T", result)


def _sent(writes: tuple[Write, ...]) -> Steps[Applied | Cancelled | None]:
    """Send writes that are made together, and return the reply; expired items count as absent."""
    if not writes:
        return None
    sent = writes
    for _ in range(TRIES):
        reply: Any = yield from send(sent[0] if len(sent) == 1 else Transact(sent))
        if type(reply) is Applied:
            return reply
        refusals = (reply,) if type(reply) is Refused else reply.refusals
        found, retries = [], []
        for write, earlier, refused in zip(writes, sent, refusals, strict=True):
            retry = None if refused is None else over_expired(write, refused)
            found.append(None if refused is None or retry else as_absent(write.table, refused))
            retries.append(retry or earlier)
        if any(found):
            return Cancelled(reply.now, tuple(found))
        sent = tuple(retries)
    raise StoreThrottled(f"other writers replaced expired items {TRIES} times in a row; retry later")


def _verdicts(
    chosen: dict[int, Part[Any]], reply: Applied | Cancelled | None
) -> dict[int, PartVerdict | SemelError]:
    """What the parts say that were refused."""
    if not isinstance(reply, Cancelled):
        return {}
    refusals, verdicts, start = reply.refusals, {}, 0
    for place, part in chosen.items():
        mine = refusals[start : start + len(part.writes)]
        start += len(part.writes)
        if any(mine):
            verdicts[place] = part.judge(mine)
    return verdicts


def unrefusable(_refusals: PartRefusals) -> PartVerdict:
    """The judge of a part whose writes have no condition."""
    raise AssertionError("a write without a condition was refused")
