"""An inbox on the store."""

from collections.abc import Callable
from typing import Any, Unpack

from semel.connect import Semel
from semel.doors.inbox.worker import POLL, Bell, Dead, Worker
from semel.doors.messages import doubling
from semel.errors import UsageError
from semel.ledger import Seconds
from semel.mailbox import Letter, Message
from semel.policy import Options

# A message that fails stays away for 1, 2, 4 seconds and so on, up to five minutes.
BACKOFF = doubling(300.0)


class StoreInbox:
    """Messages that wait in the store, for workers of any process."""

    def __init__(self, s: Semel, name: str, *, ttl: Seconds | None = None) -> None:
        self.name = name
        self._s = s
        self._box = s.mailbox(name, ttl=ttl)
        self._abox = s.aio.mailbox(name, ttl=ttl)
        self._bell = Bell()

    def put(self, *messages: Message) -> None:
        """Accept messages: once it returns they are safe."""
        self._box.put(messages)
        self._bell.ring()

    async def aput(self, *messages: Message) -> None:
        """The same, awaitable."""
        await self._abox.put(messages)
        self._bell.ring()

    def worker(
        self,
        handle: Callable[[Message], Any],
        *,
        workers: int = 1,
        poll: float = POLL,
        backoff: Callable[[int], float] = BACKOFF,
        **options: Unpack[Options],
    ) -> Worker:
        """What handles the messages, in so many threads; `poll` is how long it is idle at most."""
        return Worker(
            self._s,
            self._box,
            handle,
            bell=self._bell,
            workers=workers,
            poll=poll,
            backoff=backoff,
            **options,
        )

    def waiting(self) -> int:
        """How many messages wait, up to ten thousand."""
        return self._box.count()

    def dead(self, limit: int = 100) -> list[Dead]:
        """Messages that nobody could handle, the oldest first."""
        return [self._told(letter) for letter in self._box.dead(limit).letters]

    def _told(self, letter: Letter) -> Dead:
        return Dead(letter.id, letter.key, letter.group, letter.attempts, letter.error, letter.at)

    def redrive(self, id: str | None = None) -> int:
        """Put one of these back, or all of them, to be handled as if they were new; gives how many."""
        put_back, after = 0, None
        while True:
            page = self._box.dead(after=after)
            chosen = [letter for letter in page.letters if id in (None, letter.id)]
            put_back += sum(self._box.redrive(letter) for letter in chosen)
            after = page.after
            if after is None or (id is not None and chosen):
                break
        if id is not None and not put_back:
            raise UsageError(f"inbox {self.name} has no dead letter {id!r}")
        self._bell.ring()
        return put_back

    def close(self) -> None:
        """There is nothing to let go of: the store is its owner's."""
