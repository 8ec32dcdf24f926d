"""A delivery before anything is done with it: verified on its raw bytes, and split into events."""

import json
from http import HTTPStatus
from typing import Any

import msgspec

from semel.connect import Semel
from semel.core.events import What
from semel.core.keys import check
from semel.doors.http.problems import MEDIA_TYPE, ProblemDetails
from semel.doors.webhooks.providers import Provider, Secrets
from semel.doors.webhooks.reading import Headers, Notice
from semel.errors import BadSignature, InvalidKey


class WebhookResponse(msgspec.Struct, frozen=True):
    """What to answer to a delivery, in whatever framework."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def json(cls, status: int, content: Any, headers: dict[str, str] | None = None) -> "WebhookResponse":
        """An answer in JSON."""
        fields = {"Content-Type": "application/json"} | (headers or {})
        return cls(status, fields, msgspec.json.encode(content))

    @classmethod
    def problem(cls, status: int, headers: dict[str, str] | None = None) -> "WebhookResponse":
        """An answer that says no more than its status."""
        problem = ProblemDetails(title=HTTPStatus(status).phrase, status=status)
        return cls(status, {"Content-Type": MEDIA_TYPE} | (headers or {}), problem.body())


class DeliveryReader:
    """Opens the deliveries of one sender; one that is not genuine leaves no trace but a warning."""

    def __init__(self, s: Semel, provider: Provider, secrets: Secrets) -> None:
        self.provider = provider
        self._verifier = provider.verifier(secrets)
        self._events, self._clock = s.events, s.clock

    def open(self, headers: Headers, body: bytes, *, method: str, url: str) -> list[Notice] | WebhookResponse:
        """The events of a genuine delivery; else the answer to what came."""
        if len(body) > self.provider.max_bytes:
            return self.refuse(
                413, f"it has {len(body)} bytes, and at most {self.provider.max_bytes} are read"
            )
        try:
            self._verifier.verify(headers, body, self._clock.now(), method=method, url=url)
        except BadSignature as error:
            return self.refuse(401, error.reason)
        try:
            whole = Notice(json.loads(body), headers)
            greeting = self.provider.greeting(whole)
            if greeting is not None:
                return WebhookResponse.json(200, greeting)
            return [Notice(one, headers) for one in self.provider.events(whole.payload)]
        except (ValueError, RecursionError) as error:
            # Never the error's own words, which may quote the body.
            return self.refuse(400, f"it is genuine, and cannot be read: {type(error).__name__}")

    def refuse(self, status: int, reason: str) -> WebhookResponse:
        """Refuse a delivery. The reason is for us: a forger is not told how far this one got."""
        self._events.warn(What.REFUSED, "", detail=f"a delivery by {self.provider.name} is refused: {reason}")
        return WebhookResponse.problem(status)

    def key(self, notice: Notice) -> str:
        """What names an event; `InvalidKey` where nothing does."""
        try:
            return check(self.provider.key(notice))
        except InvalidKey:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is about the event, others have a key
            # Without its words, which may quote the event.
            raise InvalidKey(f"naming it failed: {type(error).__name__}") from None
