"""What a scenario does to its record, worked out from the life-cycle table."""

from collections.abc import Iterator

import msgspec

from semel.core.lifecycle import MOVES, Move, Status, diagram
from tests.diagrams.scenarios import Asked, Local, Scenario, Step

LEASE = 30.0

# What a claim finds that does not get the key.
FINDS = {Status.COMPLETED: "Replay", Status.FAILED: "Failed", Status.UNKNOWN: "Unknown"}


class Impossible(ValueError):
    """A step that the life-cycle table does not have."""


class Standing(msgspec.Struct, frozen=True):
    """How the record stands; a status of None means that there is none."""

    status: Status | None = None
    attempt: int = 0
    holder: str = ""
    """Whose token the record has."""
    lease_until: float = 0.0
    payload: str = ""

    def running(self, at: float) -> bool:
        return self.status is Status.IN_PROGRESS and at < self.lease_until


class Played(msgspec.Struct, frozen=True):
    """A step, the answer to it, and how the record stands afterwards."""

    step: Step
    answer: str
    standing: Standing


def play(scenario: Scenario) -> Iterator[Played]:
    """The steps of a scenario, with what each comes to; `Impossible` where the table says otherwise."""
    standing, gone, before = Standing(), set[str](), 0.0
    for step in scenario.steps:
        if step.who in gone or step.at < before:
            raise Impossible(f"{step}: {step.who} is dead, or time went back")
        before, answer = step.at, ""
        if isinstance(step, Asked):
            standing, answer = WAYS[step.verb](standing, step) if step.verb in WAYS else _end(standing, step)
        elif step.mark == "crash":
            gone.add(step.who)
        yield Played(step, answer, standing)


def moved(standing: Standing, move: Move, at: float) -> Standing:
    """The record after a move of the table."""
    if move not in MOVES:
        raise Impossible(f"the table has no move {move.name!r}")
    if standing.status not in move.start:
        raise Impossible(f"{move.name!r} does not start at {standing.status}")
    if move.lapsed and standing.running(at):
        raise Impossible(f"{move.name!r} has to wait for the end of the lease")
    return msgspec.structs.replace(standing, status=move.to)


def _claim(standing: Standing, call: Asked) -> tuple[Standing, str]:
    if standing.status is None:
        if call.moves or "[*] --> IN_PROGRESS: claim" not in diagram():
            raise Impossible("a record begins as the table says")
        return _held(call, 1, call.payload)
    if standing.payload != call.payload:
        return _unmoved(standing, call, "Mismatch")
    for move in call.moves:
        standing = moved(standing, move, call.at)
        if move.to is Status.IN_PROGRESS:
            return _held(call, standing.attempt + 1, standing.payload)
    if standing.running(call.at):
        return _unmoved(standing, call, f"Busy for {standing.lease_until - call.at:.0f} s")
    if standing.status not in FINDS:
        raise Impossible(f"{call}: a claim makes a move at {standing.status}")
    return standing, FINDS[standing.status]


def _held(call: Asked, attempt: int, payload: str) -> tuple[Standing, str]:
    standing = Standing(Status.IN_PROGRESS, attempt, call.who, call.at + LEASE, payload)
    return standing, f"Claimed, attempt {attempt}"


def _unmoved(standing: Standing, call: Asked, answer: str) -> tuple[Standing, str]:
    if call.moves:
        raise Impossible(f"{call}: it is {answer}, and makes no move")
    return standing, answer


def _end(standing: Standing, call: Asked) -> tuple[Standing, str]:
    """Complete, fail or release: by whoever has the token, and as the table allows; refused otherwise."""
    allowed = [move for move in MOVES if move.name == call.verb and standing.status in move.start]
    mine = standing.holder == call.who
    if list(call.moves) != (allowed if mine else []):
        raise Impossible(
            f"{call}: the table has {[move.name for move in allowed]} here, by {standing.holder}"
        )
    if not call.moves:
        return standing, "ClaimLost"
    return moved(standing, call.moves[0], call.at), "done"


def _settle(standing: Standing, call: Asked) -> tuple[Standing, str]:
    [move] = call.moves
    return moved(standing, move, call.at), "done"


def _forget(standing: Standing, call: Asked) -> tuple[Standing, str]:
    if f"{standing.status} --> [*]: expires, or is forgotten" not in diagram() or call.moves:
        raise Impossible(f"{call}: nothing is forgotten at {standing.status}")
    return Standing(), "done"


WAYS = {"claim": _claim, "settle": _settle, "forget": _forget}


def in_words(scenario: Scenario) -> str:
    """A scenario as a text, for whoever cannot see its picture."""
    return " ".join(_sentence(played) for played in play(scenario))


def _sentence(played: Played) -> str:
    step, at = played.step, f"At {played.step.at:g} s"
    if isinstance(step, Local):
        return f"{at}, {step.who} {VERBS[step.mark]}{step.text}."
    lost = f", whose {step.lost} is lost, and again" if step.lost else ""
    made = "".join(f" ({move.name})" for move in step.moves if move.name != step.verb)
    status = played.standing.status or "absent"
    return f"{at}, {step.who} sends {step.verb}{made}{lost}: {played.answer}; the record is {status}."


VERBS = {"crash": "", "effect": "has an effect: ", "note": ""}
