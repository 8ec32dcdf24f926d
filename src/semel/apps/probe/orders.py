"""What is asked of the probe, and what it reports."""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from semel.apps.probe.settings import Settings
from semel.core.clock import Clock
from semel.core.running import Run, current_run

ProbeReport: TypeAlias = dict[str, Any]


class BadOrder(ValueError):
    """A request that cannot be carried out; its text says why."""


class OrderFailed(Exception):
    """An order that was begun and cannot be carried out, however often it is tried; its text says why."""


class ProbeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What both requests have."""

    address: str

    def check(self, settings: Settings) -> None:
        """Refuse what is more than is allowed."""
        if not self.address or not self.address.isprintable():
            raise BadOrder("address names a queue, in printable characters")


class ProduceRequest(ProbeRequest, frozen=True, forbid_unknown_fields=True):
    """Messages to be sent: `messages` as they are, or `count` times the same `body`."""

    messages: list[Any] | None = None
    count: int | None = None
    body: Any = "probe"

    def check(self, settings: Settings) -> None:
        """Refuse what is more than is allowed."""
        super().check(settings)
        if (self.messages is None) == (self.count is None):
            raise BadOrder("give either messages, or count and the body that each of them has")
        number = len(self.messages) if self.messages is not None else self.count
        _between("messages, or count,", number, settings.max_messages)

    @property
    def bodies(self) -> list[Any]:
        """The messages one by one."""
        return self.messages if self.messages is not None else [self.body] * (self.count or 0)


class ConsumeRequest(ProbeRequest, frozen=True, forbid_unknown_fields=True):
    """Up to `max` messages to be received within so many `seconds`."""

    max: int = 1
    seconds: float = 1.0

    def check(self, settings: Settings) -> None:
        """Refuse what is more than is allowed."""
        super().check(settings)
        _between("max", self.max, settings.max_messages)
        if not 0 <= self.seconds <= settings.max_seconds:
            raise BadOrder(f"seconds lies between 0 and {settings.max_seconds:g}")


def read(
    body: bytes, kind: type[ProduceRequest] | type[ConsumeRequest], settings: Settings
) -> ProduceRequest | ConsumeRequest:
    """The order in a request's body."""
    try:
        order = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        # What is wrong with its form; a validation error quotes no value.
        raise BadOrder(
            str(error) if isinstance(error, msgspec.ValidationError) else "it is no JSON"
        ) from None
    order.check(settings)
    return order


def _between(what: str, number: int | None, most: int) -> None:
    if number is None or not 1 <= number <= most:
        raise BadOrder(f"{what} lies between 1 and {most}")


class ReportedMessage(msgspec.Struct, frozen=True):
    """A message as it is reported."""

    id: str | None
    body: Any


class ProbeJob:
    """An order while it is carried out."""

    def __init__(self, order: Any, clock: Clock) -> None:
        self.order = order
        self._clock = clock
        self._begun = clock.monotonic()
        self.settle: Callable[[bool], None] = lambda _kept: None
        """Called when the ledger knows what came of it (True), or will not: what is in hand is let go of."""

    @property
    def run(self) -> Run:
        """The attempt that carries it out."""
        return current_run()

    def name(self, number: int) -> str:
        """The id of its so-many-th message: the same at every attempt."""
        return f"{self.run.key_for('probe')}-{number}"

    def report(self, processed: int, messages: list[ReportedMessage] | None = None) -> ProbeReport:
        """What came of it."""
        report: ProbeReport = {
            "processedMessages": processed,
            "elapsed": duration(self._clock.monotonic() - self._begun),
        }
        if messages is not None:
            report["messages"] = [{"id": message.id, "body": message.body} for message in messages]
        return report


def duration(seconds: float) -> str:
    """A time as ISO 8601 writes it, to the millisecond: PT2.5S."""
    return f"PT{f'{max(0.0, seconds):.3f}'.rstrip('0').rstrip('.')}S"


def fitting(messages: list[ReportedMessage], room: int) -> list[ReportedMessage]:
    """As many of the first ones as a response has room for."""
    taken: list[ReportedMessage] = []
    for message in messages:
        room -= len(msgspec.json.encode(message)) + 1
        if room < 0:
            break
        taken.append(message)
    if messages and not taken:
        raise OrderFailed("the first message is larger than a response may be, and was left where it is")
    return taken
