"""A whole delivery, from the raw bytes to the answer: verified, split into events, each handled once.

What becomes of each event is decided by `semel.doors.queues.messages`; here it is only put together:

    every event is new or a duplicate     200
    one has to be delivered again         503 with Retry-After; those that are done will be duplicates
    one is beyond help by any delivery    told as failed, and warned of; without one of the others still 200
"""

import inspect
from collections.abc import Callable, Generator
from typing import Any, Final, Literal, TypeAlias, Unpack

import msgspec

from semel.connect import Semel
from semel.core.drive import run_async, run_sync
from semel.core.events import What, digest
from semel.core.functions import check_function
from semel.core.policy import Options
from semel.doors.http.problems import retry_after
from semel.doors.queues.messages import DeliveryResult, Handler, Verdict
from semel.doors.webhooks.delivery_reader import DeliveryReader, WebhookResponse
from semel.doors.webhooks.providers import Provider, Secrets
from semel.doors.webhooks.reading import Headers, Notice
from semel.errors import InvalidKey, InvalidOption

# So much of the sender's patience may be used up before the next event is begun: the answer has to get there
# too, and an event that was begun is finished.
SHARE: Final = 0.8

# For what failed nobody knows when it will do better: soon enough for a sender that does as told, and late
# enough for a server to be back.
RETRY_AFTER: Final = 10.0
LONGEST_RETRY_AFTER: Final = 3600.0

EventOutcome: TypeAlias = Literal["new", "duplicate", "busy", "failed", "deferred"]

OUTCOMES: Final[dict[Verdict, EventOutcome]] = {
    Verdict.DONE: "new",
    Verdict.DUPLICATE: "duplicate",
    Verdict.BUSY: "busy",
    Verdict.FAILED: "failed",
    Verdict.LATER: "deferred",
    Verdict.DEAD: "failed",
}


class EventResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the sender is told of one event; neither its key nor anything that is in it."""

    outcome: EventOutcome
    key_digest: str | None = None
    """The name that its key has in events and logs."""
    reason: str | None = None
    redeliver: bool | None = None
    """Whether another delivery can help; None where none is needed."""


class Summary(msgspec.Struct, frozen=True):
    """What the sender is told of a delivery."""

    received: int
    new: int
    duplicates: int
    busy: int
    failed: int
    deferred: int
    events: list[EventResult]


class KeyedNotice(msgspec.Struct, frozen=True):
    """An event and its key, or why it has none."""

    notice: Notice
    key: str = ""
    error: Exception | None = None

    def name(self) -> str:
        """The key, as a handler of messages asks for it."""
        if self.error is not None:
            raise self.error
        return self.key


ReceiverSteps: TypeAlias = Generator[KeyedNotice, DeliveryResult, WebhookResponse]


class Receiver:
    """Takes whole deliveries of one sender, and hands each event to `handle` once.

    A delivery that is not genuine leaves no trace in the ledger. Records are kept at least as long as the
    sender goes on delivering. `fingerprint` gives the part of an event that must not change under one key;
    without it nothing is compared.
    """

    def __init__(
        self,
        s: Semel,
        provider: Provider,
        secrets: Secrets,
        handle: Callable[[Notice], Any],
        *,
        fingerprint: Callable[[Notice], Any] | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_function(handle)
        self.provider = provider
        self._reader = DeliveryReader(s.through("webhook"), provider, secrets)
        self._clock = s.clock
        self._is_async = any(map(inspect.iscoroutinefunction, (handle, type(handle).__call__)))
        self._fingerprint = fingerprint
        horizon = max(provider.retry_horizon or 0.0, s.ledger.steps.horizon)
        if horizon and "horizon" not in options:
            options["horizon"] = horizon
        self._handler: Handler[KeyedNotice] = Handler(
            s,
            lambda event: handle(event.notice),
            key=KeyedNotice.name,
            fingerprint=None if fingerprint is None else lambda event: fingerprint(event.notice),
            door="webhook",
            **options,
        )

    def receive(
        self, headers: Headers, body: bytes, *, method: str = "POST", url: str = ""
    ) -> WebhookResponse:
        """Take a delivery: `body` is the bytes that came, and `url` the address as the sender was told it."""
        if self._is_async:
            raise InvalidOption("the handler is async: await receiver.areceive(...)")
        return run_sync(self._steps(headers, body, method, url), self._handler.take)

    async def areceive(
        self, headers: Headers, body: bytes, *, method: str = "POST", url: str = ""
    ) -> WebhookResponse:
        """Take a delivery, awaiting the handler of each event, which may be async."""
        return await run_async(self._steps(headers, body, method, url), self._handler.atake)

    def _steps(self, headers: Headers, body: bytes, method: str, url: str) -> ReceiverSteps:
        """A delivery's course: it yields each event that is to be handled, and is sent what became of it."""
        begun = self._clock.monotonic()
        opened = self._reader.open(headers, body, method=method, url=url)
        if isinstance(opened, WebhookResponse):
            return opened
        results: list[EventResult] = []
        waits: list[float] = []
        seen: dict[tuple[str, str | None], EventResult] = {}
        for event in map(self._named, opened):
            mark = self._mark(event)
            if mark in seen:
                results.append(_again(seen[mark]))
                continue
            if self._is_late(begun):
                results.append(
                    EventResult("deferred", self._digest(event), "no time was left", redeliver=True)
                )
            else:
                taken = yield event
                results.append(self._result(event, taken))
                waits.append(_wait(taken))
            if event.error is None:
                seen[mark] = results[-1]
        return _summed_up(results, waits)

    # Each event

    def _named(self, notice: Notice) -> KeyedNotice:
        try:
            return KeyedNotice(notice, self._reader.key(notice))
        except InvalidKey as error:
            return KeyedNotice(notice, error=error)

    def _mark(self, event: KeyedNotice) -> tuple[str, str | None]:
        """What two events have in common that are the same one."""
        if self._fingerprint is None or event.error is not None:
            return event.key, None
        try:
            return event.key, self._handler.s.fingerprint(self._fingerprint(event.notice))
        except Exception:  # noqa: BLE001 - the handler meets it too, and says what it means
            return event.key, None

    def _is_late(self, begun: float) -> bool:
        within = self.provider.answer_within
        return within is not None and self._clock.monotonic() - begun >= SHARE * within

    def _result(self, event: KeyedNotice, taken: DeliveryResult) -> EventResult:
        outcome, name = OUTCOMES[taken.verdict], self._digest(event)
        if taken.settled:
            return EventResult(outcome, name)
        reason = type(taken.error).__name__
        if taken.verdict is Verdict.DEAD and event.error is None:
            detail = f"{reason}: it is not done, and no further delivery of it is asked for"
            self._handler.s.events.warn(What.REFUSED, self._id(event), detail=detail)
        return EventResult(outcome, name, reason, redeliver=taken.returns)

    def _digest(self, event: KeyedNotice) -> str | None:
        return None if event.error is not None else digest(self._id(event))

    def _id(self, event: KeyedNotice) -> str:
        steps = self._handler.s.ledger.steps
        return steps.name(steps.subject(event.key) if self._handler.policy.hide_key else event.key)


def _again(first: EventResult) -> EventResult:
    """What is told of an event that a delivery holds twice: done with the first, or as little as that."""
    return msgspec.structs.replace(first, outcome="duplicate") if first.outcome == "new" else first


def _summed_up(results: list[EventResult], waits: list[float]) -> WebhookResponse:
    counts = dict.fromkeys(("new", "duplicate", "busy", "failed", "deferred"), 0)
    for one in results:
        counts[one.outcome] += 1
    duplicates = counts.pop("duplicate")
    summary = Summary(received=len(results), duplicates=duplicates, events=results, **counts)
    if any(one.redeliver for one in results):
        # What was merely deferred may come at once.
        return WebhookResponse.json(503, summary, dict([retry_after(max([1, *waits]))]))
    return WebhookResponse.json(200, summary)


def _wait(taken: DeliveryResult) -> float:
    """After how many seconds another delivery may do better."""
    if not taken.returns:
        return 0
    wait = RETRY_AFTER if taken.retry_after is None else taken.retry_after
    # The time may come from an error of the handler's own; one that is no number is taken for none.
    return min(wait, LONGEST_RETRY_AFTER) if wait > 0 else 0
