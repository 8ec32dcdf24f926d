"""An inbox on the store."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack

from msgspec import UNSET

from semel.connect import Semel
from semel.core.commands import Steps
from semel.core.drive import adrive, drive
from semel.core.policy import Options, Seconds
from semel.doors.inbox.others import WaitingMessage
from semel.doors.inbox.redriving import GONE, DeadFilter, Redriven, no_letter
from semel.doors.inbox.worker import POLL, Backoff, Dead, LaneNotifier, Worker
from semel.doors.queues.backoff import doubling
from semel.errors import InvalidKey, MessageUnreadable
from semel.model import ProgressCallback
from semel.state import AsyncMailbox
from semel.state.mailbox import Counted, Letter, Letters, Message, Survey, checked, lane_of

# A message that fails stays away for 1, 2, 4 seconds and so on, up to five minutes.
BACKOFF = doubling(300.0)

# So many messages are read at once for whoever handles many together.
TOGETHER = 1000


class StoreInbox:
    """Messages that wait in the store, for workers of any process."""

    def __init__(
        self, s: Semel, name: str, *, ttl: Seconds | None = None, shards: int = 1, shared: bool = False
    ) -> None:
        self.name = name
        self._s = s
        self._box = s.mailbox(name, ttl=ttl, shards=shards, shared=shared)
        # One set of steps: what is put in by threads and by tasks is in one order.
        self._abox = AsyncMailbox(self._box.steps, s.store)
        self._notifier = LaneNotifier()

    def record_key(self, key: str) -> str:
        """The key under which the ledger knows a message."""
        return self._box.steps.record_key(key)

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
        return drive(self._known(messages), self._s.store, self._s.events.failed)

    async def aknown(self, *messages: Message) -> int:
        """How many of these are in the inbox already, or have been taken from it and are remembered."""
        return await adrive(self._known(messages), self._s.store, self._s.events.failed)

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
        record = yield from self._s.ledger.steps.get(self.record_key(message.key))
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

    def others(self, message: Message, *, seconds: float = 60.0) -> Iterator[list[WaitingMessage]]:
        """What else waits, has no group, and may be begun now; in parts."""
        lane = lane_of(message.key, None)
        # From its own place on, and around: whoever handles another at the same time begins elsewhere.
        for start, stop in ((lane, ""), ("", lane)):
            for page in _pages(partial(self._box.alone, start, stop, TOGETHER)):
                others = (self._other(letter, page.now) for letter in page.letters)
                yield [other for other in others if other is not None]

    def _other(self, letter: Letter, now: float) -> WaitingMessage | None:
        if letter.not_before > now:
            return None
        try:
            return WaitingMessage(self._box.steps.open(letter), letter)
        except MessageUnreadable:
            return None  # whoever comes to it puts it aside

    def settle(self, others: Iterable[WaitingMessage]) -> None:
        """These are done."""
        self._box.leave([other.held for other in others])

    def give_back(self, others: Iterable[WaitingMessage], seconds: float = 0.0) -> None:
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

    def dead(self, limit: int = 100, *, bodies: bool = False) -> list[Dead]:
        """Messages that nobody could handle, the oldest first; with `bodies`, what they say."""
        found = self._box.dead(limit).letters
        return [_dead(letter, self._body(letter) if bodies else UNSET) for letter in found]

    def _body(self, letter: Letter) -> Any:
        try:
            return self._box.steps.open(letter).body
        except MessageUnreadable:
            return UNSET

    def redrive(self, id: str | None = None, *, on_progress: ProgressCallback[int] | None = None) -> int:
        """Put one of these back, or all of them, to be handled as if they were new; gives how many."""
        done = self.redrive_where(DeadFilter(id=id or ""), on_progress=on_progress)
        if id is not None and not done.letters:
            raise no_letter(self.name, id)
        return len(done.letters)

    def redrive_where(
        self, which: DeadFilter, *, preview: bool = False, on_progress: ProgressCallback[int] | None = None
    ) -> Redriven:
        """Put those of them back that are meant, or tell which these are; both by name."""
        put_back: list[Dead] = []
        refused: dict[str, str] = {}
        for letter in self._dead_letters(which.id):
            dead = _dead(letter, UNSET)
            if not which.fits(dead):
                continue
            if preview or self._box.redrive(letter):
                put_back.append(dead)
                if on_progress is not None:
                    on_progress(len(put_back))
            else:
                refused[dead.id] = GONE
            if not preview:
                self._notifier.notify([letter.lane])
        return Redriven(tuple(put_back), refused)

    def _dead_letters(self, id: str = "") -> Iterator[Letter]:
        if id:
            letter = self._box.dead_letter(id)
            yield from () if letter is None else (letter,)
            return
        for page in _pages(lambda after: self._box.dead(after=after)):
            yield from page.letters

    def close(self) -> None:
        """There is nothing to let go of: the store is its owner's."""


def _pages(read: Callable[[str | None], Letters]) -> Iterator[Letters]:
    page = read(None)
    yield page
    while page.after is not None:
        page = read(page.after)
        yield page


def _dead(letter: Letter, body: Any) -> Dead:
    return Dead(letter.id, letter.key, letter.group, letter.attempts, letter.error, letter.at, body)
