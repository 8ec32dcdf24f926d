"""What the demo counted, and whether it keeps what semel promises: values and pure functions."""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec


class Verdict(msgspec.Struct, frozen=True):
    """One promise, what was seen of it in this run, and whether it was kept."""

    promise: str
    seen: str
    kept: bool


class Herd(msgspec.Struct, frozen=True):
    """Many equal calls at the same moment."""

    caller: str
    """What made the calls: threads or tasks."""
    asked: int
    """How many calls there were to be."""
    processes: int
    busy: int
    """How many found another at work, and waited."""
    executions: int
    answers: int
    distinct: int


class Takeover(msgspec.Struct, frozen=True):
    """A worker was killed while it held a key, and another took over."""

    attempt: int
    """The attempt that the ledger says completed."""
    waited: float
    """Seconds from the kill to the next attempt."""
    after_lease: float
    """Seconds from the end of the dead worker's lease to the next attempt."""
    requests: int
    keys: int
    """How many different idempotency keys the bank was shown."""


class Zombie(msgspec.Struct, frozen=True):
    """A worker slept past its lease, and woke to complete what another had completed."""

    refused: str
    """The error that the sleeper got; empty if it got none."""
    offered: str
    """The result that it wanted to store."""
    taken: str
    """The result of the one that took over."""
    stored: str
    """What the ledger holds in the end."""


class Later(msgspec.Struct, frozen=True):
    """The same call when all is over, and the same key with another payload."""

    stored: str
    answer: str
    replay_executions: int
    refused: str
    """The error that the changed payload got; empty if it got none."""
    changed_executions: int


class Stalled(msgspec.Struct, frozen=True):
    """An act that did not come to its end, so that nothing is known about its promises."""

    act: str
    reason: str


Facts: TypeAlias = Herd | Takeover | Zombie | Later | Stalled


def judge(facts: Facts) -> list[Verdict]:
    """The verdicts on one act."""
    match facts:
        case Herd():
            return _judge_herd(facts)
        case Takeover():
            return _judge_takeover(facts)
        case Zombie():
            return _judge_zombie(facts)
        case Later():
            return _judge_later(facts)
        case Stalled(act, reason):
            return [Verdict(act, f"did not finish: {reason}", kept=False)]


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """0 when every promise was kept, and there were any."""
    kept = [verdict.kept for verdict in verdicts]
    return 0 if kept and all(kept) else 1


def _judge_herd(herd: Herd) -> list[Verdict]:
    where = f" in {herd.processes} processes" if herd.processes > 1 else ""
    return [
        Verdict(
            f"Many {herd.caller}, one execution",
            f"{herd.asked} calls{where}, {counted(herd.executions, 'execution')}",
            herd.executions == 1,
        ),
        Verdict(
            f"All {herd.caller} get the same answer",
            f"{herd.answers} answers, {herd.distinct} distinct",
            herd.answers == herd.asked and herd.distinct == 1,
        ),
    ]


def _judge_takeover(takeover: Takeover) -> list[Verdict]:
    early = takeover.after_lease < 0
    return [
        Verdict(
            "A killed worker is replaced",
            f"attempt {takeover.attempt} completed, {takeover.waited:.1f} s later",
            takeover.attempt == 2,
        ),
        Verdict(
            "But not while its lease runs",
            f"{abs(takeover.after_lease):.2f} s {'BEFORE' if early else 'after'} it lapsed",
            not early,
        ),
        Verdict(
            "Every attempt has the same key",
            f"{takeover.requests} requests, {counted(takeover.keys, 'idempotency key')}",
            takeover.requests == 2 and takeover.keys == 1,
        ),
    ]


def _judge_zombie(zombie: Zombie) -> list[Verdict]:
    return [
        Verdict(
            "A zombie's completion is refused",
            zombie.refused or "it was let in",
            zombie.refused == "ClaimLost",
        ),
        Verdict(
            "And its result is not stored",
            f"it had {zombie.offered}, stored is {zombie.stored}",
            zombie.stored == zombie.taken != zombie.offered,
        ),
    ]


def _judge_later(later: Later) -> list[Verdict]:
    same = later.answer == later.stored
    return [
        Verdict(
            "A later call replays the answer",
            f"{'the same' if same else 'another'} answer, {counted(later.replay_executions, 'execution')}",
            same and later.replay_executions == 0,
        ),
        Verdict(
            "A changed payload is refused",
            f"{later.refused or 'it was let in'}, {counted(later.changed_executions, 'execution')}",
            later.refused == "PayloadChanged" and later.changed_executions == 0,
        ),
    ]


def counted(number: int, noun: str) -> str:
    """So many of something, in words."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
