"""semel: a ledger for things that must happen once."""

import typing as _typing

from semel.connect import AsyncSemel, Semel, connect
from semel.core.clock import Clock
from semel.core.codecs import Codec, Encryption, Overflow
from semel.core.events import Event, Events, What
from semel.core.facades import AsyncLedger, Ledger
from semel.core.flow import SKIPPED
from semel.core.keys import Key
from semel.core.lifecycle import Status
from semel.core.overflow import FileOverflow
from semel.core.policy import Options
from semel.core.running import Run, current_run
from semel.core.spans import DAY, HOUR
from semel.errors import (
    AddressRefused,
    AlreadyDone,
    BadSignature,
    BrokerError,
    BrokerUnavailable,
    CapReached,
    ClaimLost,
    FailedBefore,
    InProgress,
    InvalidKey,
    InvalidOption,
    InvalidPayload,
    Later,
    LazyResult,
    MessageRefused,
    MessageUnreadable,
    MissingExtra,
    NotBegun,
    NotPermitted,
    NotProvisioned,
    OutcomeUnknown,
    PayloadChanged,
    QueueMissing,
    RecordCorrupt,
    Reentered,
    Refused,
    ResultNotKept,
    ResultUnreadable,
    SchemaTooNew,
    SemelError,
    SendOutcomeUnknown,
    SendRefused,
    ShuttingDown,
    StoreClosed,
    StoreError,
    StoreOutcomeUnknown,
    StoreThrottled,
    StoreUnavailable,
    TableMissing,
    TemplateError,
    UsageError,
    VersionConflict,
    WriteUnderWay,
    WrongEnvironment,
    WrongReply,
    WrongSchema,
)
from semel.model import (
    MISSING,
    Abandoned,
    Busy,
    Claimed,
    Failed,
    Failure,
    Happened,
    Listing,
    Mismatch,
    NotHappened,
    Outcome,
    Record,
    Replay,
    Settlement,
    Undecided,
    Unknown,
)
from semel.once import ALL, Answer, Once

__all__ = [
    "ALL",
    "DAY",
    "HOUR",
    "MISSING",
    "SKIPPED",
    "Abandoned",
    "AddressRefused",
    "AlreadyDone",
    "Answer",
    "AsyncLedger",
    "AsyncSemel",
    "BadSignature",
    "BrokerError",
    "BrokerUnavailable",
    "Busy",
    "CapReached",
    "ClaimLost",
    "Claimed",
    "Clock",
    "Codec",
    "Encryption",
    "Event",
    "Events",
    "Failed",
    "FailedBefore",
    "Failure",
    "FileOverflow",
    "Happened",
    "InProgress",
    "InvalidKey",
    "InvalidOption",
    "InvalidPayload",
    "Key",
    "Later",
    "LazyResult",
    "Ledger",
    "Listing",
    "MessageRefused",
    "MessageUnreadable",
    "Mismatch",
    "MissingExtra",
    "NotBegun",
    "NotHappened",
    "NotPermitted",
    "NotProvisioned",
    "Once",
    "Options",
    "Outcome",
    "OutcomeUnknown",
    "Overflow",
    "PayloadChanged",
    "QueueMissing",
    "Record",
    "RecordCorrupt",
    "Reentered",
    "Refused",
    "Replay",
    "ResultNotKept",
    "ResultUnreadable",
    "Run",
    "SchemaTooNew",
    "Semel",
    "SemelError",
    "SendOutcomeUnknown",
    "SendRefused",
    "Settlement",
    "ShuttingDown",
    "Status",
    "StoreClosed",
    "StoreError",
    "StoreOutcomeUnknown",
    "StoreThrottled",
    "StoreUnavailable",
    "TableMissing",
    "TemplateError",
    "Undecided",
    "Unknown",
    "UsageError",
    "VersionConflict",
    "What",
    "WriteUnderWay",
    "WrongEnvironment",
    "WrongReply",
    "WrongSchema",
    "connect",
    "current_run",
]

__version__: str

if not _typing.TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> str:
        """The version, which takes a while to find, for whoever asks."""
        if name == "__version__":
            from importlib.metadata import version

            return version("semel")
        raise AttributeError(f"module 'semel' has no attribute {name!r}")
