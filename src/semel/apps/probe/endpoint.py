"""The requests of one operation: admitted, carried out once, answered."""

import asyncio
import contextvars
import hmac
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec

from semel.apps.probe.orders import BadOrder, ConsumeRequest, ProbeJob, ProbeReport, ProduceRequest, read
from semel.apps.probe.replies import ANSWERS, BASE, answer_to, as_reply, own_problem
from semel.apps.probe.settings import Settings
from semel.connect import Semel
from semel.core.commands import Raised
from semel.core.events import What
from semel.core.policy import Options
from semel.doors.http import field
from semel.doors.http.responses import HTTPResponse, Pairs, ProblemType, problem
from semel.doors.webhooks import WebhookResponse
from semel.doors.webhooks.reading import Headers, values
from semel.once import Block

LONGEST_KEY: Final = 255


class ProbeOperation(msgspec.Struct, frozen=True):
    """One of the two things that the probe does."""

    name: Literal["PRODUCE", "CONSUME"]
    """What the ledger's keys of it begin with."""
    order: type[ProduceRequest] | type[ConsumeRequest]
    carry_out: Callable[[ProbeJob], ProbeReport]
    options: Options


class RequestTurnedAway(Exception):
    """A request that is turned away before anything is claimed."""

    def __init__(self, answer: HTTPResponse) -> None:
        super().__init__()
        self.answer = answer


class ProbeEndpoint:
    """Takes the requests of one operation."""

    answers: Final = ANSWERS

    def __init__(self, s: Semel, settings: Settings, operation: ProbeOperation, pool: Executor) -> None:
        self._s, self._settings, self._operation, self._pool = s, settings, operation, pool
        self._options: Options = {"lease": settings.lease, "on_busy": "raise", **operation.options}
        self._block(settings.record_ttl)  # what cannot work is said at the start

    def receive(
        self, headers: Headers, body: bytes, *, method: str = "POST", url: str = ""
    ) -> WebhookResponse:
        """Carry out a request, or give the answer that the same one has had."""
        try:
            key, ttl, order = self._admit(headers, body, method)
        except RequestTurnedAway as turned:
            self._s.events.emit(What.REFUSED, "", detail=str(turned.answer.status))
            return as_reply(turned.answer)
        job = ProbeJob(order, self._s.clock)
        block, print_ = self._block(ttl), sha256(body).hexdigest()
        done = block.run(f"{self._operation.name}#{key}", print_, self._operation.carry_out, job)
        # Only now is it sure who answers for what is in hand: the ledger, or whoever had it before.
        job.settle(not isinstance(done, Raised))
        return as_reply(answer_to(done, repeats=self._options["on_lapsed"] == "rerun"))

    async def areceive(
        self, headers: Headers, body: bytes, *, method: str = "POST", url: str = ""
    ) -> WebhookResponse:
        """Carry out a request in a thread, where brokers and their answers are waited for."""
        receive = partial(self.receive, headers, body, method=method, url=url)
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, receive)

    def _block(self, ttl: float) -> Block:
        options: Options = {**self._options, "ttl": ttl}
        return self._s.once.block(**options)

    def _admit(self, headers: Headers, body: bytes, method: str) -> tuple[str, float, Any]:
        """The key of a request, how long it is to be remembered, and what it asks for."""
        if method.upper() != "POST":
            raise RequestTurnedAway(own_problem("method-not-allowed", "Send a POST.", [("Allow", "POST")]))
        if not self._is_known(_header(headers, "Authorization") or ""):
            challenge = [("WWW-Authenticate", 'Bearer realm="probe"')]
            raise _turned("not-authenticated", "Send the token: Authorization: Bearer ...", challenge)
        if len(body) > self._settings.max_body:
            raise _turned("body-too-large", f"It may have {self._settings.max_body} bytes.")
        key, ttl = _key(_header(headers, field.KEY)), self._ttl(_header(headers, field.EXPIRY))
        try:
            return key, ttl, read(body, self._operation.order, self._settings)
        except BadOrder as bad:
            raise RequestTurnedAway(own_problem("request-malformed", f"It cannot be used: {bad}.")) from None

    def _is_known(self, authorization: str) -> bool:
        if self._settings.open:
            return True
        scheme, _, shown = authorization.partition(" ")
        same = hmac.compare_digest(shown.strip().encode(), self._settings.token.encode())
        return same and scheme.lower() == "bearer"

    def _ttl(self, text: str | None) -> float:
        settings = self._settings
        if text is None:
            return settings.record_ttl
        try:
            return field.read_seconds(text, settings.shortest_ttl, settings.longest_ttl)
        except field.BadField as bad:
            raise _turned("expiry-malformed", f"It cannot be used unless {bad}.") from None


def _header(headers: Headers, name: str) -> str | None:
    """A header; a repeated one is joined, as any server would."""
    found = values(headers, name)
    return ", ".join(found) if found else None


def _key(text: str | None) -> str:
    if text is None:
        raise _turned("key-missing", "Messages are moved under an Idempotency-Key, new for each request.")
    try:
        return field.read_key(text, strict=False, longest=LONGEST_KEY)
    except field.BadField as bad:
        raise _turned("key-malformed", f"An Idempotency-Key cannot be used unless {bad}.") from None


def _turned(kind: ProblemType, detail: str, headers: Pairs | None = None) -> RequestTurnedAway:
    return RequestTurnedAway(problem(kind, BASE, detail, headers))
