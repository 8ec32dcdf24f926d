"""The things of the domain, as frozen values: a record, what a claim can find, how a doubt is settled."""

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from semel import errors
from semel.core.keys import key_of
from semel.core.lifecycle import Status


class Missing(msgspec.Struct, frozen=True):
    """The type of `MISSING`: no value at all, where `None` is a value."""

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing()
"""No value at all, where `None` is a value: what a record without a result has."""

OnLapsed: TypeAlias = Literal["rerun", "hold", "resolve"]
OnBusy: TypeAlias = Literal["wait", "raise", "skip"]
OnStoreError: TypeAlias = Literal["closed", "open"]

T = TypeVar("T")

ProgressCallback: TypeAlias = Callable[[T], object]
"""Is called with what is done so far, as it goes on."""

# Records carry the version of this layout, so that an older semel leaves newer ones alone.
RECORD_VERSION = 1


class Failure(msgspec.Struct, frozen=True):
    """An error as it is kept: its type's name and its message."""

    type: str
    message: str
    kept_as: str = ""
    """The type that the policy named, so that the same `except` clause catches it on replay."""


class HistoryEntry(msgspec.Struct, frozen=True, array_like=True):
    """Something that ended on a key before what its record now says: an attempt, or what somebody did."""

    attempt: int
    who: str
    """The worker that was at it, or whoever acted."""
    began: float
    ended: float
    how: str
    """How it ended: released, lapsed, held, interrupted, failed, completed; or an action, such as settled."""
    note: str = ""
    """The error that ended it, or the reason that was given."""


class Record(msgspec.Struct, frozen=True):
    """What the ledger knows about one key. Moments are seconds since the epoch, by the store's clock."""

    id: str
    """The qualified name: environment, scope and key."""
    status: Status
    token: str
    attempt: int
    created_at: float
    updated_at: float
    lease_until: float
    expires_at: float
    fingerprint: str | None = None
    result: bytes | None = None
    encoding: str | None = None
    error: str | None = None
    version: int = RECORD_VERSION
    subject: str | None = None
    """What stands for the person it is about: a keyed hash."""
    details: dict[str, Any] | None = None
    """What the work noted about itself."""
    doubt_since: float | None = None
    """When the attempt began of which nobody may know what became of it; None where that is known."""
    worker: str | None = None
    """Who holds it, or held it last: the host and process, and the function; None where it is not kept."""
    began_at: float | None = None
    """When the present attempt began; None for the first, which began when the record was made."""
    history: str | None = None
    """What came before, as JSON; see `past`."""

    def __repr__(self) -> str:  # the token is its holder's, and a result may be personal
        return f"Record({self.id!r}, {self.status.value}, attempt={self.attempt})"

    @property
    def key(self) -> str:
        """The key as its caller wrote it."""
        return key_of(self.id)

    @property
    def failure(self) -> Failure | None:
        """The kept error."""
        if self.error is None:
            return None
        try:
            return msgspec.json.decode(self.error, type=Failure)
        except msgspec.DecodeError:
            return Failure("Unreadable", self.error)

    @property
    def past(self) -> tuple[HistoryEntry, ...]:
        """The last few of what came before what the record now says, oldest first."""
        try:
            return msgspec.json.decode(self.history or "[]", type=tuple[HistoryEntry, ...])
        except msgspec.DecodeError:
            return ()

    @property
    def began(self) -> float:
        """When the present attempt began."""
        return self.created_at if self.began_at is None else self.began_at

    @property
    def tombstone(self) -> bool:
        """Done, with the fact kept and the result not."""
        return self.status is Status.COMPLETED and self.result is None


class Listing(msgspec.Struct, frozen=True):
    """Some records, and where the next page begins; None when this is the last."""

    records: tuple[Record, ...]
    after: str | None
    unreadable: tuple[str, ...] = ()
    """The keys of records that cannot be read; `forget` removes one for good."""
    now: float = 0.0
    """What time it was for the store."""
    read: int = 0
    """How many keys the store has gone over to find these."""


class ScanCost(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to read all of a table, where keys lie in no order."""

    items: int
    """How many items it has, as far as the store tells: it may be some hours behind, and count others too."""
    requests: int
    bytes: int | None = None
    billed: bool = False
    """Reading costs money."""
    dollars: float | None = None
    """How much it costs; None where nothing is billed, or where that is not known."""
    note: str = ""
    """How that is known."""


# So many are counted one by one at most: that takes a few milliseconds, however many there are.
COUNTED = 10_000


class TableSize(msgspec.Struct, frozen=True, kw_only=True):
    """How large a table is, as far as its store tells without reading all of it.

    A number that is `COUNTED` may be larger: no more are counted, where the store has no figure of its own.
    """

    table: str
    """Its name; "" where the figures are those of all tables together."""
    items: int
    bytes: int | None = None
    by_status: dict[str, int] = {}
    """How many records have each status, of all environments and scopes in the table."""
    indexes: dict[str, int] = {}
    """How many items are in each index, such as `doubts` and `failures`."""
    expired: int | None = None
    """How many have expired and wait to be removed; None where the store removes them by itself, unseen."""
    how: str
    """How that is known, and as of when."""


# What is said of whatever `semel provision` makes.
PROVISION = "run semel provision with the same options, without --check"


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a store as it was found, and what mends it."""

    what: str
    remedy: str


# What a claim can find.


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """The key is the caller's until the lease ends; every later write names this claim."""

    id: str
    token: str
    attempt: int
    lease: float
    ttl: float
    lapsed: bool = False
    """An earlier attempt vanished, so its effect may have happened."""
    on_lapsed: OnLapsed = "rerun"
    doubt_ttl: float | None = None
    """How long it stays in doubt where it is not to be run again; None for ever."""

    def __repr__(self) -> str:  # without the token, by which anybody could end it
        lapsed = ", lapsed=True" if self.lapsed else ""
        return f"Claimed({self.id!r}, attempt={self.attempt}, lease={self.lease:g}{lapsed})"

    @property
    def key(self) -> str:
        """The key as its caller wrote it."""
        return key_of(self.id)


class Replay(msgspec.Struct, frozen=True):
    """Done before; `result` is what came of it, `MISSING` when only the fact was kept."""

    record: Record
    result: Any


class Busy(msgspec.Struct, frozen=True):
    """Another attempt holds the key; its lease ends in `retry_after` seconds."""

    record: Record
    retry_after: float


class Failed(msgspec.Struct, frozen=True):
    """What a claim gives for a key whose work failed for good."""

    record: Record
    failure: Failure


class Mismatch(msgspec.Struct, frozen=True):
    """What a claim gives for a key that was first used with another payload."""

    record: Record


class Unknown(msgspec.Struct, frozen=True):
    """An attempt vanished, and somebody has to settle what became of it."""

    record: Record


Outcome: TypeAlias = Claimed | Replay | Busy | Failed | Mismatch | Unknown
"""What a claim gives: the key, or what is in the way."""

UNCLAIMED: Final[dict[type, str]] = {
    Replay: "it is done already, and `result` is what came of it",
    Busy: "another attempt holds it; claim it again after `retry_after` seconds",
    Failed: "it failed for good, and `failure` says how",
    Mismatch: "it was first used with another payload",
    Unknown: "an attempt vanished; settle what became of it with `ledger.resolve`",
}


def check_claim(given: Any) -> None:
    """Refuse whatever else was given in place of a claim."""
    if isinstance(given, Claimed):
        return
    kind = type(given)
    if kind in UNCLAIMED:
        raise errors.UsageError(
            f"{given.record.key!r} was not claimed: the answer was {kind.__name__}, {UNCLAIMED[kind]}. "
            "Go on only with what isinstance(outcome, semel.Claimed)"
        )
    raise errors.UsageError(f"a claim is the Claimed that ledger.claim answered, not {kind.__name__}")


# How a doubt is settled, by a person or by a resolver that asked the other side.


class Happened(msgspec.Struct, frozen=True):
    """Settles a doubt: the effect happened, and this came of it."""

    result: Any = None


class NotHappened(msgspec.Struct, frozen=True):
    """Settles a doubt: the effect did not happen, and may run again."""


class Abandoned(msgspec.Struct, frozen=True):
    """Settles a doubt: the work is to stay failed, for this reason."""

    reason: str


class Undecided(msgspec.Struct, frozen=True):
    """The other side does not know either; the record stays, or becomes, UNKNOWN."""


Settlement: TypeAlias = Happened | NotHappened | Abandoned
"""What somebody who settles a doubt can say of it."""
