"""Accept, and no more: a delivery is verified, and its events are put where a worker finds them."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from semel.aws.errors import ServiceError
from semel.connect import Semel
from semel.doors.webhooks.opening import Answer, Opening
from semel.doors.webhooks.providers import Provider, Secrets
from semel.doors.webhooks.reading import Headers, Notice
from semel.errors import SemelError
from semel.events import What
from semel.mailbox import Message

# An inbox that takes nothing now may take it soon.
RETRY_AFTER = "10"


class Accepts(Protocol):
    """An inbox, as far as it is needed here."""

    def put(self, *messages: Message) -> None:
        """Accept messages."""
        ...

    async def aput(self, *messages: Message) -> None:
        """The same, awaitable."""
        ...


class Counts(msgspec.Struct):
    """What the sender is told of a delivery."""

    received: int
    accepted: int = 0
    duplicates: int = 0
    """Events that came twice in this very delivery."""
    ignored: int = 0
    failed: int = 0
    """Events that nothing names or nobody can read; another delivery would not help."""


class Ingress:
    """Takes whole deliveries of one sender, and puts each event into an inbox; the ledger is not asked.

    `message` makes of an event what is to be handled, or None where there is nothing to do. Duplicates across
    deliveries are dropped when they are handled.
    """

    def __init__(
        self,
        s: Semel,
        provider: Provider,
        secrets: Secrets,
        inbox: Accepts,
        message: Callable[[Notice], Message | None],
    ) -> None:
        self._s = s.through("webhook")
        self._opening = Opening(self._s, provider, secrets)
        self._inbox = inbox
        self._message = message

    def receive(self, headers: Headers, body: bytes, *, method: str = "POST", url: str = "") -> Answer:
        """Take a delivery: `body` is the bytes that came, and `url` the address as the sender was told it."""
        opened = self._open(headers, body, method, url)
        if isinstance(opened, Answer):
            return opened
        messages, counts = opened
        try:
            self._inbox.put(*messages)
        except (SemelError, ServiceError) as error:
            return self._full(error)
        return Answer.json(200, counts)

    async def areceive(self, headers: Headers, body: bytes, *, method: str = "POST", url: str = "") -> Answer:
        """The same, awaitable."""
        opened = self._open(headers, body, method, url)
        if isinstance(opened, Answer):
            return opened
        messages, counts = opened
        try:
            await self._inbox.aput(*messages)
        except (SemelError, ServiceError) as error:
            return self._full(error)
        return Answer.json(200, counts)

    def _open(
        self, headers: Headers, body: bytes, method: str, url: str
    ) -> tuple[list[Message], Counts] | Answer:
        notices = self._opening.open(headers, body, method=method, url=url)
        if isinstance(notices, Answer):
            return notices
        counts = Counts(len(notices))
        messages: dict[str, Message] = {}
        for notice in notices:
            self._sort(notice, messages, counts)
        counts.accepted = len(messages)
        return list(messages.values()), counts

    def _sort(self, notice: Notice, messages: dict[str, Message], counts: Counts) -> None:
        try:
            message = self._message(notice)
        except Exception as error:  # noqa: BLE001 - whatever it is about one event, the others are accepted
            # Without its words, which may quote the event.
            detail = f"an event cannot be read, and is not handled: {type(error).__name__}"
            self._s.events.warn(What.REFUSED, "", detail=detail)
            counts.failed += 1
            return
        if message is None:
            counts.ignored += 1
        elif message.key in messages:
            counts.duplicates += 1
        else:
            messages[message.key] = message

    def _full(self, error: Exception) -> Answer:
        detail = f"a delivery could not be accepted: {type(error).__name__}: {error}"
        self._s.events.warn(What.STORE_ERROR, "", detail=detail)
        return Answer.problem(503, {"Retry-After": RETRY_AFTER})
