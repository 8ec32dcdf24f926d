"""The receiver of pushed messages: verified, handled once, and answered so that Pub/Sub knows what to do."""

import asyncio
import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Unpack

import msgspec

from semel import errors
from semel.connect import Semel
from semel.core.events import What
from semel.core.policy import Options
from semel.doors.http.problems import retry_after
from semel.doors.pubsub.message import Message, by_message_id, remembered
from semel.doors.pubsub.tokens import PushToken
from semel.doors.queues.messages import DeliveryResult, Handler, Verdict
from semel.doors.webhooks.delivery_reader import WebhookResponse
from semel.doors.webhooks.reading import Headers, pairs, values

# A message has 10 MB at most; base64 makes a third more of them, and the rest is its attributes.
MAX_BYTES: Final = 15 * 10**6
UNWRAPPED: Final = "x-goog-pubsub-message-id"
# Pub/Sub acknowledges a message that is answered with one of a few statuses, of which this is one.
ACKNOWLEDGED: Final = WebhookResponse(204, {}, b"")


class PushReceiver:
    """Takes the messages that a subscription pushes, and has each handled once.

    `token` is what a request has to prove; None where something before you checks that, as Cloud Run does.
    `key` names a message, `fingerprint` what must not change under that name, and `person` whom it is about.
    """

    def __init__(
        self,
        s: Semel,
        handle: Callable[[Message], Any],
        *,
        token: PushToken | None,
        key: Callable[[Message], str] = by_message_id,
        fingerprint: Callable[[Message], Any] | None = None,
        person: Callable[[Message], str | None] = lambda _: None,
        max_bytes: int = MAX_BYTES,
        **options: Unpack[Options],
    ) -> None:
        self._is_async = inspect.iscoroutinefunction(handle)
        self._token, self._max_bytes, self._events = token, max_bytes, s.events
        self._handler = Handler(
            s,
            handle,
            key=key,
            fingerprint=fingerprint,
            person=person,
            door="pubsub",
            **remembered(options, s.ledger.steps.horizon),
        )

    def receive(self, headers: Headers, body: bytes) -> WebhookResponse:
        """Take a push request: `body` is the bytes that came. Answer with what this returns."""
        if self._is_async:
            raise errors.UsageError("the handler is an async function: await receiver.areceive(...)")
        opened = self._open(headers, body)
        return opened if isinstance(opened, WebhookResponse) else _answer(self._handler.take(opened))

    async def areceive(self, headers: Headers, body: bytes) -> WebhookResponse:
        """Take a push request, awaiting the handler."""
        # Google's certificates may have to be fetched.
        opened = await asyncio.to_thread(self._open, headers, body)
        return opened if isinstance(opened, WebhookResponse) else _answer(await self._handler.atake(opened))

    def _open(self, headers: Headers, body: bytes) -> Message | WebhookResponse:
        if len(body) > self._max_bytes:
            return self._refuse(413, f"it has {len(body)} bytes, and at most {self._max_bytes} are read")
        try:
            if self._token is not None:
                self._token.verify(headers)
            return read(headers, body)
        except errors.BadSignature as error:
            return self._refuse(401, error.reason)
        except OSError as error:
            return self._refuse(503, f"Google's certificates cannot be had: {type(error).__name__}")
        except ValueError as error:
            # Never the error's own words, which may quote the message.
            return self._refuse(400, f"it cannot be read: {type(error).__name__}")

    def _refuse(self, status: int, reason: str) -> WebhookResponse:
        self._events.warn(What.REFUSED, "", detail=f"a push by Pub/Sub is refused: {reason}")
        return WebhookResponse.problem(status)


class PushedMessage(msgspec.Struct, rename="camel"):
    """The message of an envelope; msgspec reads the data, which is base64."""

    message_id: str = ""
    data: bytes = b""
    attributes: dict[str, str] | None = None
    ordering_key: str = ""
    publish_time: datetime | None = None


class PushEnvelope(msgspec.Struct, rename="camel"):
    """What Pub/Sub pushes, unless it was told to send the data alone."""

    message: PushedMessage
    subscription: str = ""
    delivery_attempt: int = 1


def read(headers: Headers, body: bytes) -> Message:
    """The message of a request, in its envelope or without; a ValueError says that it is none."""
    if values(headers, UNWRAPPED):
        return _unwrapped(headers, body)
    envelope = msgspec.json.decode(body, type=PushEnvelope)
    pushed = envelope.message
    return Message(
        data=pushed.data,
        id=pushed.message_id,
        subscription=envelope.subscription,
        attributes=pushed.attributes or {},
        ordering_key=pushed.ordering_key,
        published=pushed.publish_time,
        deliveries=max(1, envelope.delivery_attempt),
    )


def _unwrapped(headers: Headers, body: bytes) -> Message:
    """A message whose data is the body; what else is known of it, its attributes too, is in the headers."""
    fields = {name.lower(): value for name, value in pairs(headers)}
    moment = fields.get("x-goog-pubsub-publish-time")
    return Message(
        data=body,
        id=fields[UNWRAPPED],
        subscription=fields.get("x-goog-pubsub-subscription-name", ""),
        attributes={name: value for name, value in fields.items() if name != "authorization"},
        published=None if moment is None else msgspec.convert(moment, datetime, strict=False),
    )


def _answer(taken: DeliveryResult) -> WebhookResponse:
    """Success acknowledges a message; after anything else Pub/Sub delivers it again, or puts it aside."""
    if taken.settled:
        return ACKNOWLEDGED
    if taken.verdict is Verdict.DEAD:
        return WebhookResponse.problem(422)
    return WebhookResponse.problem(503, dict([retry_after(taken.retry_after or 1)]))
