"""What an operator does to a record: with a reason, on the record that was seen, and told to a journal."""

from contextlib import suppress
from typing import Any

import msgspec

from semel import errors
from semel.core import lifecycle
from semel.core.commands import (
    NOW,
    PRESENT,
    Delete,
    Found,
    Get,
    Item,
    Steps,
    Time,
    Update,
    read,
)
from semel.core.ledger import DROPPED, LedgerSteps, is_running, kept_for
from semel.core.lifecycle import Move
from semel.core.parts import Part, PartPlan, alone, commit
from semel.core.policy import DAY
from semel.model import MISSING, Abandoned, Happened, NotHappened, ProgressCallback, Record, Settlement
from semel.ops.model import PAGE_SIZE, Action, ActionName, Done, Erased, version_of
from semel.state.erasure import Erasure, ErasureSteps, as_written
from semel.state.journal import Entries, Entry, JournalSteps
from semel.state.switches import Switch, SwitchSteps
from semel.tables import LEDGER

# Whose entries the operators' journal has.
OPERATORS = "semel:operators"
# Whose entries tell how switches were turned, from every scope of an environment.
SWITCHES = "semel:switches"
# What the journal has where nobody was asked why.
NO_REASON = "no reason was given"
# Long enough for whoever audits a year.
JOURNAL_TTL = 400 * DAY

# What each action does, and from which status. Anything can be forgotten.
STARTS: dict[ActionName, Move] = {
    "complete": lifecycle.OVERRIDE_DONE,
    "release": lifecycle.OVERRIDE_UNDONE,
    "fail": lifecycle.OVERRIDE_FAILED,
    "drop": lifecycle.DROP,
}
DONE_AS: dict[ActionName, str] = {
    "complete": "completed by hand",
    "release": "released by hand",
    "fail": "failed by hand",
    "drop": "dropped",
}
ABSENT_STATUS, UNREADABLE = "absent", "unreadable"
NO_RECORD = "there is no record of this key"


class ActionSteps:
    """The actions, as generators of commands."""

    def __init__(
        self, ledger: LedgerSteps, journal: JournalSteps, switches: SwitchSteps, erasure: ErasureSteps
    ) -> None:
        self._ledger = ledger
        self._journal = journal
        self._switches = switches
        self._switch_journal = JournalSteps(switches.realm)
        self._erasure = erasure

    def perform(self, action: Action, *, preview: bool = False) -> Steps[Done]:
        """Do it, or say why not; with `preview`, say what it would do."""
        check_named(action.by, action.why)
        try:
            record = yield from self._ledger.get(action.key)
        except errors.RecordCorrupt:
            if action.name != "forget":
                raise
            return (yield from self._forget_unreadable(action, preview=preview))
        if record is None:
            return Done(action.key, action.name, ABSENT_STATUS, ABSENT_STATUS, False, NO_RECORD)
        found: Found = yield Time()
        before = record.status.value
        refused = "" if (again := _done_before(record, action)) else _refusal(record, action, found.now)
        if again or refused:
            return Done(action.key, action.name, before, before, False, refused)
        done = Done(action.key, action.name, before, _target(action.name), True)
        return done if preview else (yield from self._performed(record, action, found.now, done))

    def _forget_unreadable(self, action: Action, *, preview: bool) -> Steps[Done]:
        """Forget a record that this version cannot read, unless it changes meanwhile."""
        id = self._ledger.name(action.key)
        found = yield from read(Get(LEDGER, id))
        item = found.item or {}
        unchanged = {"token": item["token"]} if isinstance(item.get("token"), str) else PRESENT
        refused = CHANGED if action.seen or found.item is None else ""
        if not refused and not preview:
            lost = errors.ClaimLost(action.key, 0, "act on")
            part = Part((Delete(LEDGER, id, unchanged),), lambda _: lost, lambda _: None)
            about = self.noted(action.by, action.why, action.name, action.key, {"status": UNREADABLE})
            try:
                yield from commit([part, about], self._ledger.token())
            except errors.ClaimLost:
                refused = CHANGED
            else:
                yield from self._ledger.discard(item.get("result"), item.get("encoding"))
        after = UNREADABLE if refused else ABSENT_STATUS
        return Done(action.key, action.name, UNREADABLE, after, not refused, refused)

    def reveal(self, key: str, *, by: str, why: str) -> Steps[Any]:
        """The result of a key, once the journal has who looked at it; `MISSING` where there is none."""
        check_named(by, why)
        record = yield from self._ledger.get(key)
        if record is None:
            return MISSING
        about = self.noted(by, why, "reveal", key, _summary(record))
        yield from commit([about], self._ledger.token())
        return (yield from self._ledger.result(record))

    def turn(self, name: str, *, on: bool, by: str, why: str) -> Steps[Switch]:
        """Turn a switch on or off everywhere, and tell it to the journal."""
        check_named(by, why)
        before = (yield from self._switches.read()).get(name)
        what = "turn on" if on else "turn off"
        body = _entry(what, name, why, None if before is None else {"on": before.on})
        # A switch is the whole environment's: its history is found from every scope.
        entries = [
            self._journal.append(OPERATORS, body, actor=by, ttl=JOURNAL_TTL),
            self._switch_journal.append(SWITCHES, body, actor=by, ttl=JOURNAL_TTL),
        ]
        plan = self._switches.turn(name, on=on, reason=why, by=by)
        try:
            [document, *_] = yield from commit([plan, *entries], self._ledger.token())
        except UNJOURNALLED:
            # A journal that is not there, or in another slot of a cluster, keeps nobody from stopping work.
            document = yield from alone(plan, self._ledger.token())
            for entry in entries:
                with suppress(*UNJOURNALLED):
                    yield from alone(entry, self._ledger.token())
        return msgspec.convert(document.value[name], Switch)

    def erase(
        self,
        person: str,
        *,
        by: str,
        why: str,
        preview: bool = False,
        on_progress: ProgressCallback[Erasure] | None = None,
    ) -> Steps[Erased]:
        """Erase a person, or say what that would be; what was done once is still known to be done.

        The journal has the hash, and never the name. Done again, it goes on with what is left.
        """
        check_named(by, why)
        erased = yield from self._erased(person, None if not preview else on_progress, preview=True)
        if preview:
            return erased
        for subject in erased.subjects:
            # Before it is done: a trace of what was then interrupted does less harm than none.
            yield from self.note(by, why, "erase", f"person {subject}", erased.tables)
            yield from self._erasure.mark(subject)
        return (yield from self._erased(person, on_progress, preview=False))

    def _erased(
        self, person: str, on_progress: ProgressCallback[Erasure] | None, *, preview: bool
    ) -> Steps[Erased]:
        """Under each spelling of the name."""
        subjects = dict.fromkeys(map(self._erasure.realm.subject, (person, as_written(person))))
        tables: dict[str, int] = {}
        whole = yield from self._erasure.erase(
            subjects, on_progress=on_progress, preview=preview, tables=tables
        )
        return Erased(tuple(subjects), tables, whole.running, whole.more, whole.skipped, preview)

    def journal(self, *, limit: int = PAGE_SIZE, after: str | None = None) -> Steps[Entries]:
        """What operators did, newest first."""
        return self._journal.list(OPERATORS, reverse=True, limit=limit, after=after)

    def noted(self, by: str, why: str, what: str, about: str, before: Any = None) -> PartPlan[Entry]:
        """An entry of the operators' journal, as a part of what it tells of."""
        return self._journal.append(OPERATORS, _entry(what, about, why, before), actor=by, ttl=JOURNAL_TTL)

    def note(self, by: str, why: str, what: str, about: str, before: Any = None) -> Steps[Entry]:
        """Write an entry of the operators' journal by itself, for what has no write to stand in."""
        return alone(self.noted(by, why, what, about, before), self._ledger.token())

    def _performed(self, record: Record, action: Action, now: float, done: Done) -> Steps[Done]:
        plan = self._plan(record, action, now)
        about = self.noted(action.by, action.why, action.name, action.key, _summary(record))
        try:
            yield from commit([plan, about], self._ledger.token())
        except errors.ClaimLost:
            return Done(done.key, done.name, done.before, done.before, False, CHANGED)
        if action.name in ("drop", "forget"):
            yield from self._ledger.discard(record.result, record.encoding)
        return done

    def _plan(self, record: Record, action: Action, now: float) -> PartPlan[None]:
        if action.name in ("drop", "forget"):
            return lambda _mark: self._removing(record, action, now)
        return self._ledger.override(
            record, _settlement(action), now=now, ttl=_kept(record, action, now), by=action.by, why=action.why
        )

    def _removing(self, record: Record, action: Action, now: float) -> Steps[Part[None]]:
        yield from ()
        seen = {"token": record.token, "status": record.status.value}
        if action.name == "forget":
            return Part((Delete(LEDGER, record.id, seen),), lambda _: _lost(record), lambda _: None)
        history = self._ledger.acted(record, "dropped", now, action.by, action.why)
        change: Item = {"result": None, "encoding": DROPPED.encoding, "updated_at": NOW, "history": history}
        return Part((Update(LEDGER, record.id, change, seen),), lambda _: _lost(record), lambda _: None)


UNJOURNALLED = (errors.TableMissing, errors.UsageError)
CHANGED = "the record has changed since it was looked at: look again"


def _entry(what: str, about: str, why: str, before: Any) -> dict[str, Any]:
    return {"action": what, "about": about, "why": why, "before": before}


def check_named(by: str, why: str) -> None:
    """Refuse an action of nobody, or for no reason."""
    if not by.strip() or not why.strip():
        raise errors.InvalidOption("an action names who wants it and why: give by=... and why=...")


def left_in_queue(inbox: str) -> str:
    """What erasing a person leaves to do where an inbox is on SQS."""
    return (
        f"Inbox {inbox} is on SQS, which cannot be searched for a person. What waits there about this person "
        "is deleted when its turn comes, and not handled. Its dead letters are left to you, and SQS keeps "
        f"them for up to 14 days: list them with semel inbox dead {inbox}, and put those about this person "
        f"back with semel inbox redrive {inbox} ID. Then these, too, are deleted and not handled."
    )


def _lost(record: Record) -> errors.ClaimLost:
    return errors.ClaimLost(record.key, record.attempt, "act on")


def _kept(record: Record, action: Action, now: float) -> float:
    """For how long a record is kept from then on."""
    return kept_for(record, now) if action.ttl is None else action.ttl


def _settlement(action: Action) -> Settlement:
    if action.name == "complete":
        return Happened(action.result)
    return NotHappened() if action.name == "release" else Abandoned(action.why)


def _target(name: ActionName) -> str:
    return ABSENT_STATUS if name == "forget" else STARTS[name].to.value


def _done_before(record: Record, action: Action) -> bool:
    """Whether this very action is what the record tells of last."""
    if action.name == "forget" or record.status is not STARTS[action.name].to or not record.past:
        return False
    last = record.past[-1]
    return (last.how, last.who, last.attempt) == (DONE_AS[action.name], action.by, record.attempt)


def _refusal(record: Record, action: Action, now: float) -> str:
    if action.seen and version_of(record) != action.seen:
        return CHANGED
    if is_running(record, now) and not action.force:
        return "somebody is at work on it: wait until the lease ends, or force it"
    if action.name != "forget" and record.status not in STARTS[action.name].start:
        return f"it is {record.status.value}, and that is nothing to {action.name}"
    return ""


def _summary(record: Record) -> dict[str, Any]:
    """How a record stood, for whoever looks back; without its result."""
    return {
        "status": record.status.value,
        "attempt": record.attempt,
        "worker": record.worker,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "error": None if record.failure is None else record.failure.type,
    }
