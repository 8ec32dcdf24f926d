"""What belongs to a key besides its record: decisions of gates, steps, a message, entries, actions."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from semel import errors
from semel.core.commands import Page, Query, Steps
from semel.core.keys import is_step_of, key_in_inbox, key_of
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import Status
from semel.gate import RECORD, Allowed, GateDecision
from semel.model import Missing, Record
from semel.ops.actions import OPERATORS
from semel.state.journal import USED, Entry, JournalSteps
from semel.state.mailbox import MailboxSteps
from semel.tables import JOURNAL, LEDGER, SUBJECT

T = TypeVar("T")

# So many records that belong to one key are told of, and so many entries of each journal.
MOST_LINKED = 50
MOST_ENTRIES = 20
# So many rows of a person are looked at for those that name the key, and so many of the journal are read.
MOST_NAMED = 200
MOST_READ = 50
# So far back the operators' journal is looked through: in so many pages of so many entries.
ACTION_PAGES = 3
ACTIONS_PAGE = 200


class StoryDecision(msgspec.Struct, frozen=True):
    """What a gate decided about the key, or about a step of it."""

    key: str
    """The action that it is about."""
    at: float
    allowed: bool
    reason: str = ""
    """Why it was refused; "given back", "forgotten" or "unreadable" where nothing is decided any more."""
    not_before: float | None = None
    """From when it may happen, as far as the gate could tell."""


class StoryStep(msgspec.Struct, frozen=True):
    """A part of a key's story: a step inside the work on the key."""

    key: str
    status: Status
    attempt: int
    began: float
    changed: float


class StoryMessage(msgspec.Struct, frozen=True):
    """The message that the key is about, in the inbox where it is."""

    inbox: str
    id: str
    dead: bool
    """Nobody could handle it, and it was put aside."""
    at: float
    """When it was accepted, put back, or put aside."""
    attempts: int
    not_before: float
    """It is not tried again before this moment."""
    error: str


class StoryEntry(msgspec.Struct, frozen=True):
    """An entry of the journal that names the key. What it says is not told here: it may be somebody's."""

    owner: str
    id: str
    at: float | None
    actor: str


class StoryAction(msgspec.Struct, frozen=True):
    """A part of a key's story: what an operator did to the key."""

    at: float
    by: str
    action: str
    why: str


class Related(msgspec.Struct, frozen=True):
    """All that was found to belong to a key."""

    decisions: tuple[StoryDecision, ...] = ()
    steps: tuple[StoryStep, ...] = ()
    all_steps: bool = True
    messages: tuple[StoryMessage, ...] = ()
    entries: tuple[StoryEntry, ...] = ()
    actions: tuple[StoryAction, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.decisions or self.steps or self.messages or self.actions)


class RelatedSteps:
    """How that is found, as generators of commands; each part is left out where its table is absent."""

    def __init__(self, ledger: LedgerSteps, journal: JournalSteps, *, unordered: bool) -> None:
        self._ledger = ledger
        self._journal = journal
        self._unordered = unordered

    def of(
        self, key: str, record: Record | None, *, scan: bool = False, inboxes: Sequence[str] = ()
    ) -> Steps[Related]:
        """What belongs to a key."""
        subject = None if record is None else record.subject
        linked, complete = yield from self._linked(key, subject, scan)
        decisions: list[StoryDecision] = []
        for each in linked:
            if each.key.endswith(RECORD):
                decisions.append((yield from self._decision(each)))  # noqa: PERF401 - no comprehension can yield from
        messages: list[StoryMessage] = []
        for name in inboxes:
            messages += yield from _if_there(self._message(name, key_in_inbox(name, key)), ())
        return Related(
            tuple(sorted(decisions, key=lambda one: one.at)),
            tuple(_steps(linked)),
            complete,
            tuple(messages),
            (yield from _if_there(self._entries(key, subject), ())),
            (yield from _if_there(self._actions(key), ())),
        )

    # Records

    def _linked(self, key: str, subject: str | None, scan: bool) -> Steps[tuple[list[Record], bool]]:
        """The records of what belongs to a key, and whether all were looked for."""
        if scan or not self._unordered:
            page = yield from self._ledger.list(prefix=f"{key}>", limit=MOST_LINKED)
            return list(page.records), page.after is None
        names, complete = [key + RECORD], False
        if subject is not None:
            named, complete = yield from _if_there(self._of_person(key, subject), ([], False))
            names += [name for name in named if name not in names]
        records: list[Record] = []
        for name in names[:MOST_LINKED]:
            record = yield from _if_there(self._ledger.get(name), None)
            records += [] if record is None else [record]
        return records, complete

    def _of_person(self, key: str, subject: str) -> Steps[tuple[list[str], bool]]:
        """The keys of steps, which are about the same person as their work."""
        page: Page = yield Query(LEDGER, subject, index=SUBJECT.name, limit=MOST_NAMED)
        names = [key_of(item[LEDGER.partition]) for item in page.items]
        return [name for name in names if is_step_of(name, key)], page.after is None

    def _decision(self, record: Record) -> Steps[StoryDecision]:
        key = record.key.removesuffix(RECORD)
        if record.status is Status.RELEASED:
            return StoryDecision(key, record.updated_at, False, "given back")
        try:
            decision: GateDecision | Missing = yield from self._ledger.result(record, GateDecision)
        except (errors.Refused, errors.StoreError):
            return StoryDecision(key, record.updated_at, False, "unreadable")
        if isinstance(decision, Missing):
            return StoryDecision(key, record.updated_at, False, "forgotten")
        if isinstance(decision, Allowed):
            return StoryDecision(key, decision.at, True)
        return StoryDecision(key, decision.at, False, decision.reason, decision.not_before)

    # The inbox, and the journals

    def _message(self, name: str, key: str) -> Steps[tuple[StoryMessage, ...]]:
        box = MailboxSteps(self._ledger, name)
        found = yield from box.find(key)
        if found is None:
            return ()
        letter, dead = found
        return (
            StoryMessage(name, letter.id, dead, letter.at, letter.attempts, letter.not_before, letter.error),
        )

    def _entries(self, key: str, subject: str | None) -> Steps[tuple[StoryEntry, ...]]:
        """The entries about the same person that name the key: an index leads to them, and to no others."""
        if subject is None:
            return ()
        page: Page = yield Query(JOURNAL, subject, index=SUBJECT.name, limit=MOST_NAMED)
        places = [(item["owner"], item["entry"]) for item in page.items if not item["entry"].startswith(USED)]
        entries: list[StoryEntry] = []
        # The latest first, where the owner is the same: an entry's name begins with its time.
        for owner, id in sorted(places, key=lambda place: place[1], reverse=True)[:MOST_READ]:
            entry = yield from self._journal.get(key_of(owner), id)
            if entry is not None and _names(entry, key) and len(entries) < MOST_ENTRIES:
                entries.append(StoryEntry(entry.owner, str(entry.id), entry.at, str(entry.actor or "")))
        return tuple(reversed(entries))

    def _actions(self, key: str) -> Steps[tuple[StoryAction, ...]]:
        """What operators did to the key, as far as the latest entries of their journal tell."""
        actions: list[StoryAction] = []
        after: str | None = None
        for _ in range(ACTION_PAGES):
            page = yield from self._journal.list(OPERATORS, reverse=True, limit=ACTIONS_PAGE, after=after)
            actions += [_action(entry) for entry in page.entries if _is_about(entry, key)]
            after = page.after
            if after is None or len(actions) >= MOST_ENTRIES:
                break
        return tuple(reversed(actions[:MOST_ENTRIES]))


def _if_there(steps: Steps[T], otherwise: T) -> Steps[T]:
    """What steps come to, or this where the store cannot tell: it may have no table for that."""
    try:
        return (yield from steps)
    except errors.StoreError:
        return otherwise


def _steps(linked: Sequence[Record]) -> Iterator[StoryStep]:
    for record in sorted(linked, key=lambda each: (each.created_at, each.key)):
        if not record.key.endswith(RECORD):
            yield StoryStep(record.key, record.status, record.attempt, record.began, record.updated_at)


def _names(entry: Entry, key: str) -> bool:
    """Whether an entry is about the key, or about a step of it: by its own key, or as a gate's trace does."""
    named = (entry.key or "", str(entry.body.get("action") or ""))
    return any(name == key or is_step_of(name, key) for name in named)


def _is_about(entry: Entry, key: str) -> bool:
    before = entry.body.get("before")
    return entry.body.get("about") == key or (isinstance(before, dict) and before.get("key") == key)


def _action(entry: Entry) -> StoryAction:
    body = entry.body
    return StoryAction(
        entry.at or 0.0, str(entry.actor or ""), str(body.get("action", "")), str(body.get("why", ""))
    )
