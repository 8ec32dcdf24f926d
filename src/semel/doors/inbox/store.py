"""An inbox on the store."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Unpack

from semel.connect import Semel
from semel.core.commands import Steps
from semel.core.drive import adrive, drive
from semel.core.policy import Options
from semel.core.spans import Seconds
from semel.doors.inbox.others import Other
from semel.doors.inbox.worker import POLL, Backoff, Dead, LaneNotifier, ProgressCallback, Worker, nobody
from semel.doors.queues.pauses import doubling
from semel.errors import InvalidKey, MessageUnreadable, UsageError
from semel.state.facades import AsyncMailbox
from semel.state.mailbox import Counted, Letter, Message, Survey, checked, lane_of

# A message that fails stays away for 1, 2, 4 seconds and so on, up to five minutes.
BACKOFF = doubling(300.0)

# So many messages are read at once for whoever handles many together.
TOGETHER = 1000


class StoreInbox:
    """Messages that wait in the store, for workers of any process."""

    def __init__(self, s: Semel, name: str, *, ttl: Seconds | None = None) -> None:
        self.name = name
        self._s = s
        self._box = s.mailbox(name, ttl=ttl)
        # One set of steps: what is put in by threads and by tasks is in one order.
        self._abox = AsyncMailbox(self._box.steps, s.store)
        self._notifier = LaneNotifier()

    def put(self, *messages: Message) -> None:
        """Accept messages: once it returns they are safe."""
        self._box.put(messages)
        self._notifier.notify(message.lane for message in messages)

    async def aput(self, *messages: Message) -> None:
        """Accept messages: once it is awaited they are safe."""
        await self._abox.put(messages)
        self._notifier.notify(message.lane for message in messages)

    def known(self, *messages: Message) -> int:
        """How many of these are in the inbox already, or have been taken from it and are remembered."""
        return drive(self._known(messages), self._s.store)

    async def aknown(self, *messages: Message) -> int:
        """How many of these are in the inbox already, or have been taken from it and are remembered."""
        return await adrive(self._known(messages), self._s.store)

    def _known(self, messages: Sequence[Message]) -> Steps[int]:
        count = 0
        for message in messages:
            count += yield from self._is_known(message)
        return count

    def _is_known(self, message: Message) -> Steps[bool]:
        try:
            message = checked(message)
        except InvalidKey:
            return False  # no inbox takes it, so none has had it
        record = yield from self._s.ledger.steps.get(message.key)
        after: str | None = None
        while record is None:
            page = yield from self._box.steps.letters(message.lane, after=after)
            if any(letter.key == message.key for letter in page.letters):
                return True
            if page.after is None:
                return False
            after = page.after
        return True

    def worker(
        self,
        handle: Callable[[Message], Any],
        *,
        workers: int = 1,
        poll: float | None = None,
        backoff: Backoff | None = None,
        **options: Unpack[Options],
    ) -> Worker:
        """What handles the messages, in so many threads; `poll` is half a second."""
        return Worker(
            self._s,
            self._box,
            handle,
            notifier=self._notifier,
            workers=workers,
            poll=POLL if poll is None else poll,
            backoff=backoff or BACKOFF,
            **options,
        )

    def others(self, message: Message, *, seconds: float = 60.0) -> Iterator[list[Other]]:
        """What else waits, has no group, and may be begun now; in parts."""
        lane = lane_of(message.key, None)
        # From its own place on, and around: whoever handles another at the same time begins elsewhere.
        for start, stop in ((lane, ""), ("", lane)):
            after: str | None = None
            while True:
                page = self._box.alone(start, stop, TOGETHER, after)
                yield [
                    other for letter in page.letters if (other := self._other(letter, page.now)) is not None
                ]
                if page.after is None:
                    break
                after = page.after

    def _other(self, letter: Letter, now: float) -> Other | None:
        if letter.not_before > now:
            return None
        try:
            return Other(self._box.steps.open(letter), letter)
        except MessageUnreadable:
            return None  # whoever comes to it puts it aside

    def settle(self, others: Iterable[Other]) -> None:
        """These are done."""
        self._box.leave([other.held for other in others])

    def give_back(self, others: Iterable[Other], seconds: float = 0.0) -> None:
        """These are not: they wait as before, where they have been all the time."""

    def survey(self) -> Survey:
        """What waits, in numbers, up to ten thousand."""
        return self._box.survey()

    def waiting(self) -> int:
        """How many messages wait, up to ten thousand."""
        return self.survey().waiting

    def count(self, *, dead: bool = False, after: str | None = None) -> Counted:
        """How many messages wait, or could be handled by nobody, from this place on: a part of the whole."""
        return self._box.count(dead=dead, after=after)

    def dead(self, limit: int = 100) -> list[Dead]:
        """Messages that nobody could handle, the oldest first."""
        return [_dead(letter) for letter in self._box.dead(limit).letters]

    def redrive(self, id: str | None = None, *, told: ProgressCallback = nobody) -> int:
        """Put one of these back, or all of them, to be handled as if they were new; gives how many."""
        letters = self._dead_letters() if id is None else [self._dead_letter(id)]
        put_back = 0
        for letter in letters:
            put_back += self._box.redrive(letter)
            self._notifier.notify([letter.lane])
            told(put_back)
        return put_back

    def _dead_letter(self, id: str) -> Letter:
        letter = self._box.dead_letter(id)
        if letter is None:
            raise UsageError(f"inbox {self.name} has no dead letter {id!r}")
        return letter

    def _dead_letters(self) -> Iterator[Letter]:
        after: str | None = None
        while True:
            page = self._box.dead(after=after)
            yield from page.letters
            if page.after is None:
                return
            after = page.after

    def close(self) -> None:
        """There is nothing to let go of: the store is its owner's."""


def _dead(letter: Letter) -> Dead:
    return Dead(letter.id, letter.key, letter.group, letter.attempts, letter.error, letter.at)
