"""The story of a key: what happened to it, in order, in words and as data, and what the next call gets."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from semel.core.ledger import BY_HAND, is_running
from semel.core.lifecycle import Status
from semel.model import HistoryEntry, Record
from semel.ops.model import version_of
from semel.ops.related import (
    Related,
    StoryAction,
    StoryDecision,
    StoryEntry,
    StoryMessage,
    StoryStep,
)
from semel.state.erasure import ERASED


class StoryLine(msgspec.Struct, frozen=True):
    """A line of a key's story: one thing that happened, and when."""

    at: float
    kind: str
    """claimed, running, an ending (lapsed, released, held, interrupted, failed, completed), or an action."""
    text: str
    attempt: int
    who: str = ""


class Story(msgspec.Struct, frozen=True):
    """What happened to a key, how it stands, and what the next call with it gets."""

    key: str
    status: Status | None
    """How its record stands; None where it has none, and something else is known of it."""
    headline: str
    lines: tuple[StoryLine, ...]
    next_call: str
    until: float | None
    """Until when that holds; None where nothing ends it."""
    version: str = ""
    """The name of the record as it is told of here, for an action that is meant for no other."""
    duplicates: int | None = None
    """How many later calls were given what it came to, instead of running it again, in the last day.

    It is read from the rates of all processes, which are a minute behind and name the keys with the most
    duplicates of each hour: so many at least. None where no rates are kept.
    """

    decisions: tuple[StoryDecision, ...] = ()
    """What gates decided about it and about its steps."""
    steps: tuple[StoryStep, ...] = ()
    all_steps: bool = True
    """False where there may be other steps: to find them all, this store has to read the whole table."""
    messages: tuple[StoryMessage, ...] = ()
    """Where its message is, of the inboxes that were named."""
    entries: tuple[StoryEntry, ...] = ()
    """Entries of the journal that name it, of those about the same person."""
    actions: tuple[StoryAction, ...] = ()
    """What operators did to it, as far as the latest entries of their journal tell."""

    def __str__(self) -> str:
        status = "has no record" if self.status is None else f"is {self.status.value}"
        lines = [f"{self.key} {status}: {self.headline}", *_below("", map(_line_text, self.lines))]
        if self.duplicates is not None:
            lines.append(f"Duplicates that were answered in the last day: {self.duplicates}.")
        lines += _below("What gates decided:", map(_decision_text, self.decisions))
        lines += _below("Steps inside its work:", map(_step_text, self.steps))
        if not self.all_steps:
            lines.append("It may have other steps: to find them all, this store reads the whole table.")
        lines += _below("Its message:", map(_message_text, self.messages))
        lines += _below("Entries of the journal that name it:", map(_entry_text, self.entries))
        lines += _below("What operators did to it:", map(_action_text, self.actions))
        return "\n".join((*lines, f"The next call with this key {self.next_call}{_until(self.until)}."))


def _below(title: str, lines: Iterable[str]) -> list[str]:
    """Lines below their title, each set in; nothing where there are none."""
    indented = [f"  {line}" for line in lines]
    return [title, *indented] if title and indented else indented


def _line_text(line: StoryLine) -> str:
    return f"{moment(line.at)}  {line.text}"


def _decision_text(decision: StoryDecision) -> str:
    verdict = "allowed" if decision.allowed else f"refused ({decision.reason})"
    later = "" if decision.not_before is None else f"; it may happen from {moment(decision.not_before)} on"
    return f"{moment(decision.at)}  {decision.key} was {verdict}{later}"


def _step_text(step: StoryStep) -> str:
    return f"{moment(step.changed)}  {step.key} is {step.status.value}, attempt {step.attempt}"


def _message_text(message: StoryMessage) -> str:
    stands = "was put aside in" if message.dead else "waits in"
    failed = f", failed {message.attempts} times" if message.attempts else ""
    error = f": {message.error}" if message.error else ""
    return f"{moment(message.at)}  {message.id} {stands} inbox {message.inbox}{failed}{error}"


def _entry_text(entry: StoryEntry) -> str:
    at = "" if entry.at is None else f"{moment(entry.at)}  "
    return f"{at}{entry.owner}{f', by {entry.actor}' if entry.actor else ''}"


def _action_text(action: StoryAction) -> str:
    return f"{moment(action.at)}  {action.action} by {action.by}: {action.why}"


class Inspection(msgspec.Struct, frozen=True):
    """A record as somebody looked at it, and all that is told of it then."""

    record: Record
    story: Story
    version: str
    """What an action on just this record names as `Action.seen`."""
    now: float


def story_of(record: Record, now: float) -> Story:
    """The story of a record, as far as itself tells it."""
    next_call, until = _next(record, now)
    lines = tuple(_lines(record, now))
    headline, version = _headline(record, now), version_of(record)
    return Story(record.key, record.status, headline, lines, next_call, until, version)


def story_without_record(key: str) -> Story:
    """The story of a key that has no record."""
    headline = "nothing was done under this key, or that was forgotten"
    return Story(key, None, headline, (), "runs it", None)


def completed(story: Story, related: Related, duplicates: int | None) -> Story:
    """A story with what belongs to its key, and with so many duplicates, where they are known."""
    return msgspec.structs.replace(story, duplicates=duplicates, **msgspec.structs.asdict(related))


def moment(at: float) -> str:
    """A moment for people to read, to the second, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S") + "Z"


def span(seconds: float) -> str:
    """A length of time in its two largest units."""
    left, words = max(0, round(seconds)), list[str]()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words[:2]) or "0 s"


def _until(until: float | None) -> str:
    return "" if until is None else f", until {moment(until)}"


def _lines(record: Record, now: float) -> Iterator[StoryLine]:
    first = record.past[0].attempt if record.past else record.attempt
    if first > 1:
        text = f"attempts 1 to {first - 1} came before; a record keeps the last few"
        yield StoryLine(record.created_at, "claimed", text, 1)
    for entry in record.past:
        yield from _past(entry)
    if not (record.past and _by_hand(record.past[-1], record)):
        yield StoryLine(
            record.began,
            "claimed",
            f"{_begun(record)} by {_who(record.worker)}",
            record.attempt,
            record.worker or "",
        )
    yield from _present(record, now)


def _past(entry: HistoryEntry) -> Iterator[StoryLine]:
    who = _who(entry.who)
    note = f": {entry.note}" if entry.note else ""
    if entry.how not in BY_HAND:
        yield StoryLine(
            entry.began, "claimed", f"attempt {entry.attempt} began by {who}", entry.attempt, entry.who
        )
    text = {
        "lapsed": f"the lease of attempt {entry.attempt} expired; {who} did not report again",
        "interrupted": f"attempt {entry.attempt} was still running and lost its claim to an operator",
        "held": f"attempt {entry.attempt} could not tell whether its effect happened",
        "released": f"attempt {entry.attempt} gave the key back{note}",
        "failed": f"attempt {entry.attempt} failed for good{note}",
        "completed": f"attempt {entry.attempt} completed",
        "dropped": f"{who} dropped the result{note}",
        "completed by hand": f"completed by an operator, {who}{note}",
        "released by hand": f"released by an operator, {who}{note}",
        "failed by hand": f"failed by an operator, {who}{note}",
    }.get(entry.how, f"{entry.how} by {who}{note}")
    yield StoryLine(entry.ended, entry.how, text, entry.attempt, entry.who)


def _present(record: Record, now: float) -> Iterator[StoryLine]:
    number, who = record.attempt, record.worker or ""
    match record.status:
        case Status.IN_PROGRESS if is_running(record, now):
            text = f"the lease of attempt {number} runs for another {span(record.lease_until - now)}"
            yield StoryLine(now, "running", text, number, who)
        case Status.IN_PROGRESS:
            text = f"the lease of attempt {number} expired {span(now - record.lease_until)} ago"
            yield StoryLine(record.lease_until, "lapsed", text, number, who)
        case Status.UNKNOWN:
            text = f"attempt {number} is held: nobody knows whether its effect happened"
            yield StoryLine(record.updated_at, "held", text, number, who)
        case Status.RELEASED if not _ended_by_hand(record):
            yield StoryLine(
                record.updated_at,
                "released",
                f"attempt {number} gave the key back{_why(record)}",
                number,
                who,
            )
        case Status.FAILED if not _ended_by_hand(record):
            yield StoryLine(
                record.updated_at, "failed", f"attempt {number} failed for good{_why(record)}", number, who
            )
        case Status.COMPLETED if record.encoding == ERASED.encoding:
            text = f"what attempt {number} came to was erased with a person's data; that it was done is kept"
            yield StoryLine(record.updated_at, "erased", text, number, who)
        case Status.COMPLETED if not _ended_by_hand(record):
            yield StoryLine(record.updated_at, "completed", f"attempt {number} completed", number, who)


def _by_hand(entry: HistoryEntry, record: Record) -> bool:
    return entry.how in BY_HAND and entry.attempt == record.attempt


def _ended_by_hand(record: Record) -> bool:
    """Whether what the record now says was done by hand, which its history tells."""
    return bool(record.past) and _by_hand(record.past[-1], record)


def _begun(record: Record) -> str:
    takes_over = bool(record.past) and record.past[-1].how == "lapsed"
    return f"attempt {record.attempt} {'took over' if takes_over else 'began'}"


def _why(record: Record) -> str:
    failure = record.failure
    return "" if failure is None else f": {failure.type}: {failure.message}"


def _who(name: str | None) -> str:
    return name or "a worker whose name was not kept"


def _headline(record: Record, now: float) -> str:
    number = "1 attempt" if record.attempt == 1 else f"{record.attempt} attempts"
    match record.status:
        case Status.IN_PROGRESS if is_running(record, now):
            return f"{_who(record.worker)} has been at work for {span(now - record.began)}"
        case Status.IN_PROGRESS:
            return f"its worker vanished {span(now - record.lease_until)} ago"
        case Status.UNKNOWN:
            return f"nobody has found out for {span(now - record.updated_at)} whether its effect happened"
        case Status.RELEASED:
            return f"it did not happen, after {number}; the next call tries again"
        case Status.FAILED:
            return f"it failed for good, after {number}"
        case Status.COMPLETED:
            return f"it was done, in {number}"


def _next(record: Record, now: float) -> tuple[str, float | None]:
    """What the next call with the key gets, and until when."""
    ends = record.expires_at if record.expires_at != float("inf") else None
    match record.status:
        case Status.IN_PROGRESS if is_running(record, now):
            return "finds it busy, and waits or is refused as its policy says", record.lease_until
        case Status.IN_PROGRESS if record.doubt_since is not None:
            return "is refused or asks the resolver: its policy is not to run it again unasked", ends
        case Status.IN_PROGRESS:
            return "takes it over and runs it again", ends
        case Status.UNKNOWN:
            return "is refused with OutcomeUnknown, until somebody settles it", ends
        case Status.RELEASED:
            return "runs it", ends
        case Status.FAILED:
            return "is given the kept failure, and nothing runs", ends
        case Status.COMPLETED if record.tombstone:
            return "is told that it was done, without its result, and nothing runs", ends
        case Status.COMPLETED:
            return "is given the kept result, and nothing runs", ends
