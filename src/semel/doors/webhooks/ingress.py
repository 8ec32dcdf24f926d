"""Accept, and no more: a delivery is verified, and its events are put where a worker finds them."""

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from semel.connect import Semel
from semel.core.drive import run_async, run_sync
from semel.core.events import What
from semel.core.keys import check
from semel.doors.http.problems import retry_after
from semel.doors.webhooks.delivery_reader import DeliveryReader, WebhookResponse
from semel.doors.webhooks.providers import Provider, Secrets
from semel.doors.webhooks.reading import Headers, Notice, values
from semel.errors import InvalidKey, MessageRefused, SemelError
from semel.state.mailbox import Message

T = TypeVar("T")

# An inbox that takes nothing now may take it soon.
RETRY_AFTER = 10

# What a sender says who wants to know what became of it (RFC 7240).
PREFERENCE = "return=representation"

# Errors of a message that no inbox will ever take.
UNFIT = (InvalidKey, MessageRefused)


class Accepts(Protocol):
    """An inbox, as far as it is needed here."""

    def put(self, *messages: Message) -> None:
        """Accept messages."""
        ...

    async def aput(self, *messages: Message) -> None:
        """Accept messages, awaiting whatever keeps them."""
        ...


class EventRefused(InvalidKey):
    """An event that is not accepted; the words say why, and quote nothing of it."""


@runtime_checkable
class Remembers(Protocol):
    """An inbox that can tell what it has had before; a queue cannot."""

    def known(self, *messages: Message) -> int:
        """How many of these it has, or has had."""
        ...

    async def aknown(self, *messages: Message) -> int:
        """How many of these it has, or has had."""
        ...


class Known(msgspec.Struct, frozen=True):
    """A question to an inbox: how many of these are known?"""

    inbox: Remembers
    messages: list[Message]


class IngressSummary(msgspec.Struct):
    """What the sender is told of a delivery."""

    received: int
    accepted: int = 0
    duplicates: int = 0
    """Events that came twice in this very delivery."""
    ignored: int = 0
    failed: int = 0
    """Events that nothing names or nobody can read; another delivery would not help."""
    known: int | msgspec.UnsetType = msgspec.UNSET
    """Events that came by another delivery before; told to who asks for it, where the inbox can tell."""


IngressSteps: TypeAlias = Generator[list[Message] | Known, Any, T]


class Ingress:
    """Takes whole deliveries of one sender, and puts each event into an inbox; the ledger is not asked.

    `message` makes of an event what is to be handled, or None where there is nothing to do. Duplicates across
    deliveries are dropped when they are handled. Who sends `Prefer: return=representation` is told how many
    there are, which costs a look; where the inbox is a queue, nobody knows, and nothing is said.
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
        self._reader = DeliveryReader(self._s, provider, secrets)
        self._inbox = inbox
        self._message = message

    def receive(
        self, headers: Headers, body: bytes, *, method: str = "POST", url: str = ""
    ) -> WebhookResponse:
        """Take a delivery: `body` is the bytes that came, and `url` the address as the sender was told it."""
        return run_sync(self._steps(headers, body, method, url), self._do)

    async def areceive(
        self, headers: Headers, body: bytes, *, method: str = "POST", url: str = ""
    ) -> WebhookResponse:
        """Take a delivery, awaiting the inbox; `body` and `url` are as the sender sent them."""
        return await run_async(self._steps(headers, body, method, url), self._ado)

    def _do(self, step: list[Message] | Known) -> int | None:
        if isinstance(step, Known):
            return step.inbox.known(*step.messages)
        self._inbox.put(*step)
        return None

    async def _ado(self, step: list[Message] | Known) -> int | None:
        if isinstance(step, Known):
            return await step.inbox.aknown(*step.messages)
        await self._inbox.aput(*step)
        return None

    def _steps(self, headers: Headers, body: bytes, method: str, url: str) -> IngressSteps[WebhookResponse]:
        """A delivery's course: it yields what the inbox is asked, and gives the answer to the sender."""
        opened = self._open(headers, body, method, url)
        if isinstance(opened, WebhookResponse):
            return opened
        messages, counts = opened
        applied: dict[str, str] = {}
        try:
            if _is_asked(headers) and isinstance(self._inbox, Remembers):
                # Before they are put in: afterwards all of them are known.
                counts.known = yield Known(self._inbox, messages)
                applied = {"Preference-Applied": PREFERENCE}
            yield from self._put(messages, counts)
        except SemelError as error:
            return self._full(error)
        return WebhookResponse.json(200, counts, applied)

    def _put(self, messages: list[Message], counts: IngressSummary) -> IngressSteps[None]:
        try:
            if messages:
                yield messages
        except UNFIT:
            yield from self._one_by_one(messages, counts)

    def _one_by_one(self, messages: list[Message], counts: IngressSummary) -> IngressSteps[None]:
        """One of them is not fit to be put in; whichever it is, the others are accepted."""
        for message in messages:
            try:
                yield [message]
            except UNFIT as error:
                counts.accepted -= 1
                self._fail(counts, error)

    def _open(
        self, headers: Headers, body: bytes, method: str, url: str
    ) -> tuple[list[Message], IngressSummary] | WebhookResponse:
        notices = self._reader.open(headers, body, method=method, url=url)
        if isinstance(notices, WebhookResponse):
            return notices
        counts = IngressSummary(len(notices))
        messages: dict[str, Message] = {}
        for notice in notices:
            self._sort(notice, messages, counts)
        counts.accepted = len(messages)
        return list(messages.values()), counts

    def _sort(self, notice: Notice, messages: dict[str, Message], counts: IngressSummary) -> None:
        try:
            message = self._message(notice)
            key = None if message is None else check(message.key)
        except Exception as error:  # noqa: BLE001 - whatever it is about one event, the others are accepted
            self._fail(counts, error)
            return
        if message is None or key is None:
            counts.ignored += 1
        elif key in messages:
            counts.duplicates += 1
        else:
            messages[key] = message

    def _fail(self, counts: IngressSummary, error: Exception) -> None:
        counts.failed += 1
        # Without other words than these, which may quote the event.
        why = str(error) if isinstance(error, EventRefused) else type(error).__name__
        detail = f"an event cannot be accepted, and is not handled: {why}"
        self._s.events.warn(What.REFUSED, "", detail=detail)

    def _full(self, error: Exception) -> WebhookResponse:
        name = type(error).__name__
        detail = f"a delivery could not be accepted: {name}: {error}"
        self._s.events.warn(What.STORE_ERROR, "", detail=detail, cause=name)
        return WebhookResponse.problem(503, dict([retry_after(RETRY_AFTER)]))


def _is_asked(headers: Headers) -> bool:
    """Whether the sender wants to be told more than that it was accepted."""
    words = [word for value in values(headers, "Prefer") for word in value.split(",")]
    return any(word.partition(";")[0].strip().lower() == PREFERENCE for word in words)
