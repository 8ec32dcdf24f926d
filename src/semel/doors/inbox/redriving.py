"""Putting dead letters back: which are meant, what came of it, and the journal of who wanted it."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from semel.connect import Semel
from semel.doors.inbox.worker import Dead
from semel.errors import StoreError, UsageError
from semel.model import ProgressCallback
from semel.ops.actions import check_named

if TYPE_CHECKING:
    from semel.doors.inbox import Inbox

GONE = "it is gone: somebody else has put it back, or its time is over"


class DeadFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which dead letters are meant. What is left out does not narrow it."""

    id: str = ""
    """The only one that is meant."""
    error: str = ""
    """The type of the error, such as "TimeoutError"."""
    prefix: str = ""
    """What the key begins with."""
    group: str | None = None
    """Those of one group, such as a conversation."""
    since: float | None = None
    """Put aside at this moment or later."""
    until: float | None = None
    """Put aside at this moment or earlier."""

    def fits(self, dead: Dead) -> bool:
        """Whether a dead letter is one of those."""
        return (
            self.id in ("", dead.id)
            and self.error in ("", dead.error_type)
            and dead.key.startswith(self.prefix)
            and self.group in (None, dead.group)
            and (self.since is None or dead.at >= self.since)
            and (self.until is None or dead.at <= self.until)
        )

    @property
    def words(self) -> str:
        """What it asks for, for whoever reads the journal."""
        asked: dict[str, Any] = msgspec.to_builtins(self)
        asked |= {name: _iso(asked[name]) for name in ("since", "until") if name in asked}
        return self.id or ", ".join(f"{name} {value}" for name, value in asked.items()) or "all"


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


class Redriven(msgspec.Struct, frozen=True):
    """Which dead letters were put back, or would be."""

    letters: tuple[Dead, ...] = ()
    refused: Mapping[str, str] = {}
    """Ids of those that were not put back, each with why."""

    def narrowed(self, which: DeadFilter) -> DeadFilter:
        """What was asked for, without those that were put aside later than these."""
        return msgspec.structs.replace(which, until=max(letter.at for letter in self.letters))


def redrive(
    s: Semel,
    inbox: "Inbox",
    which: DeadFilter,
    *,
    by: str,
    why: str,
    preview: bool = False,
    on_progress: ProgressCallback[int] | None = None,
) -> Redriven:
    """Put dead letters back as an operator, who is named in the journal of `s`; or tell which that would be.

    One that is named by its id and is not there is an error.
    """
    check_named(by, why)
    if not preview:
        # Before it is done: a trace of what was then not there does less harm than none of what was done.
        s.ops.note(by, why, "redrive", f"inbox {inbox.name}: {which.words}", _named(s, inbox, which.id))
    done = inbox.redrive_where(which, preview=preview, on_progress=on_progress)
    if which.id and not done.letters:
        raise no_letter(inbox.name, which.id)
    return done


def _named(s: Semel, inbox: "Inbox", id: str) -> dict[str, str] | None:
    """The key of the one letter that is meant, where it is in the store: the story of the key tells of it."""
    with suppress(StoreError):
        letter = s.mailbox(inbox.name).dead_letter(id) if id else None
        return None if letter is None else {"key": inbox.record_key(letter.key)}
    return None


def no_letter(inbox: str, id: str) -> UsageError:
    """That a dead letter is not there."""
    return UsageError(f"inbox {inbox} has no dead letter {id!r}, or not among the first ten of its group")
