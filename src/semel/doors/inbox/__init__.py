"""Accept now, handle later: each message once, those of a group in order.

`open_inbox` gives one on the store, or on a FIFO queue of SQS; what puts messages in and what handles them is
the same for both.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, Unpack

from semel.connect import Semel
from semel.core.policy import Options
from semel.doors.inbox.others import WaitingMessage
from semel.doors.inbox.redriving import DeadFilter, Redriven
from semel.doors.inbox.store import StoreInbox
from semel.doors.inbox.worker import Backoff, Dead, Worker
from semel.errors import InvalidOption, Later
from semel.model import ProgressCallback
from semel.state.mailbox import Counted, Message, Survey

__all__ = [
    "Counted",
    "Dead",
    "DeadFilter",
    "Inbox",
    "Later",
    "Message",
    "Redriven",
    "Runs",
    "StoreInbox",
    "Survey",
    "WaitingMessage",
    "Worker",
    "open_inbox",
]


class Runs(Protocol):
    """A worker, which handles messages until it is stopped."""

    def run(self) -> None:
        """Handle messages until `stop` is called."""
        ...

    def stop(self) -> None:
        """Begin nothing new; it may be called from anywhere."""
        ...


class Inbox(Protocol):
    """Where messages wait until a worker handles them."""

    name: str

    def record_key(self, key: str) -> str:
        """The key under which the ledger knows the message that has this key."""
        ...

    def put(self, *messages: Message) -> None:
        """Accept messages: once it returns they are safe."""
        ...

    async def aput(self, *messages: Message) -> None:
        """Accept messages: once it is awaited they are safe."""
        ...

    def worker(
        self,
        handle: Callable[[Message], Any],
        *,
        workers: int = 1,
        poll: float | None = None,
        backoff: Backoff | None = None,
        **options: Unpack[Options],
    ) -> Runs:
        """What handles the messages, in so many threads.

        `poll` is how many seconds it is idle at most before it looks for what others put in. `backoff` says
        for how many seconds a message stays away that was tried so often and failed.
        """
        ...

    def others(self, message: Message, *, seconds: float = 60.0) -> Iterator[list[WaitingMessage]]:
        """What else waits while this message is handled, has no group, and may be begun now; in parts.

        For a handler that can do many as easily as one: it claims their keys in the ledger (`record_key`,
        `ledger.claim_many`), does what it has claimed, completes it, and says here what became of each, by
        `settle` or `give_back`. Nobody else is given them for so many seconds, where a queue promises that.
        """
        ...

    def settle(self, others: Iterable[WaitingMessage]) -> None:
        """These are done, and nobody has to look at them again."""
        ...

    def give_back(self, others: Iterable[WaitingMessage], seconds: float = 0.0) -> None:
        """These are not; they may be begun again after so many seconds."""
        ...

    def waiting(self) -> int:
        """About how many messages wait."""
        ...

    def survey(self) -> Survey:
        """What waits, in numbers, as far as they can be told."""
        ...

    def count(self, *, dead: bool = False, after: str | None = None) -> Counted:
        """How many messages wait, or could be handled by nobody, from this place on: a part of the whole."""
        ...

    def dead(self, limit: int = 100, *, bodies: bool = False) -> Sequence[Dead]:
        """Messages that nobody could handle, the oldest first; with `bodies`, what they say."""
        ...

    def redrive(self, id: str | None = None, *, on_progress: ProgressCallback[int] | None = None) -> int:
        """Put one of these back, or all of them, to be handled as if they were new; gives how many.

        `on_progress` is called with how many were put back so far.
        """
        ...

    def redrive_where(
        self, which: DeadFilter, *, preview: bool = False, on_progress: ProgressCallback[int] | None = None
    ) -> Redriven:
        """Put those of them back that are meant, or tell which these are; both by name."""
        ...

    def close(self) -> None:
        """Let go of connections of its own."""
        ...


def open_inbox(
    s: Semel,
    name: str,
    *,
    queue: str = "",
    dead_letters: str = "",
    shards: int = 1,
    shared: bool = False,
) -> Inbox:
    """The inbox of a name: on the store, or on a FIFO queue of SQS where the URL of one is given.

    On the store it has so many shards or more: once raised, the number holds for every process. `shared` says
    that the key of a message is a key of the ledger as it is: work under the same key counts as its handling.
    """
    if not queue:
        return StoreInbox(s, name, shards=shards, shared=shared)
    if shards != 1:
        raise InvalidOption(
            "an inbox on SQS has no shards, as a queue has them of its own: leave the number out"
        )
    from semel.doors.inbox.sqs import SQSInbox

    return SQSInbox(s, name, queue, dead_letters, shared=shared)
