"""Messages of any queue: each is handled once, and what became of it says how to settle it.

A queue's own door (SQS, AMQP, Kafka, Lambda) fetches messages, hands them over here, and turns each verdict
into its queue's words.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import StrEnum
from math import isnan
from typing import Any, Generic, TypeVar, Unpack

import msgspec

from semel import errors
from semel.connect import Semel
from semel.core.commands import Raised
from semel.core.events import What, name_of
from semel.core.functions import check_function
from semel.core.policy import DAY, Options, Policy
from semel.once import WorkResult

M = TypeVar("M")


class Verdict(StrEnum):
    """What became of a delivery, in one word."""

    DONE = "done"
    """Handled, just now."""
    DUPLICATE = "duplicate"
    """Handled before: what it asks for has happened."""
    BUSY = "busy"
    """Somebody else is at work on it, or has to settle it: deliver it again later."""
    FAILED = "failed"
    """It did not happen: deliver it again."""
    LATER = "later"
    """It is not its turn, as its handler says by `Later`: deliver it again, and count nothing."""
    DEAD = "dead"
    """It will not happen however often it is delivered."""
    BEHIND = "behind"
    """Not begun, because one before it in its group has to be delivered again first."""


class DeliveryResult(msgspec.Struct, frozen=True):
    """One delivery, and what became of it."""

    verdict: Verdict
    result: Any = None
    error: BaseException | None = None
    """What stood in the way."""
    retry_after: float | None = None
    """After how many seconds another delivery may do better, where that is known."""
    stops: bool = False
    """No new work is begun here: `s.drain` was called, and whoever brings messages is to stop."""

    @property
    def why(self) -> str:
        """What stood in the way, in words that every store and log can keep."""
        text = f"{type(self.error).__name__}: {errors.words_of(self.error)}"
        # No encoding has half a character, and PostgreSQL's texts have no zero.
        return text.encode(errors="replace").decode().replace("\0", "?")

    @property
    def error_type(self) -> str:
        """The type of what stood in the way, when it failed for good; its words may tell too much."""
        error = self.error
        kept = error.error_type if isinstance(error, errors.FailedBefore) else type(error).__name__
        return kept or "Unknown"

    @property
    def settled(self) -> bool:
        """Whether its effect has happened, so that the queue may forget it."""
        return self.verdict in (Verdict.DONE, Verdict.DUPLICATE)

    @property
    def returns(self) -> bool:
        """Whether it has to be delivered again."""
        return self.verdict in (Verdict.BUSY, Verdict.FAILED, Verdict.LATER, Verdict.BEHIND)


BEHIND = DeliveryResult(Verdict.BEHIND)


# For ever, where that is what an error asks for: ten years.
LONGEST_RETRY = 3650 * DAY

# Errors of a message that no further delivery can mend. What is done but cannot be shown again is done.
DEAD = (errors.FailedBefore, errors.PayloadChanged, errors.InvalidKey, errors.InvalidPayload)
DONE_BEFORE = (errors.ResultNotKept, errors.ResultUnreadable)


class Handler(Generic[M]):
    """A function that handles each message once.

    `key` names a message: the same for every delivery of it. `fingerprint` gives the part of it that must not
    change under one key; without it nothing is compared. `person` gives whom it is about.
    `handle` may be `def` (with `take`) or `async def` (with `atake`).
    """

    def __init__(
        self,
        s: Semel,
        handle: Callable[[M], Any],
        *,
        key: Callable[[M], str],
        fingerprint: Callable[[M], Any] | None = None,
        person: Callable[[M], str | None] = lambda _: None,
        door: str,
        **options: Unpack[Options],
    ) -> None:
        check_function(handle)
        self.s: Semel = s.through(door)
        self._handle = handle
        self._key = key
        self._payload = fingerprint
        self._person = person
        # A worker that waited for another would hold up the messages behind it.
        self._block = self.s.once.about(name_of(handle)).block(**({"on_busy": "raise"} | options))
        self.policy: Policy = self._block.policy

    def take(self, message: M) -> DeliveryResult:
        """Handle a message, unless that was done before; whatever goes wrong with it is told, not raised."""
        named = self._named(message)
        if isinstance(named, DeliveryResult):
            return named
        try:
            done = self._block.run(*named, self._handle, message, subject=self._person(message))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this message, and no worker's end
            done = Raised(error, begun=False)
        return self._taken(done)

    async def atake(self, message: M) -> DeliveryResult:
        """Handle a message by an `async def`, unless that was done before; no error of it is raised."""
        named = self._named(message)
        if isinstance(named, DeliveryResult):
            return named
        try:
            done = await self._block.arun(*named, self._handle, message, subject=self._person(message))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this message, and no worker's end
            done = Raised(error, begun=False)
        return self._taken(done)

    def take_all(
        self, messages: Iterable[M], group: Callable[[M], Hashable] = lambda _: None
    ) -> Iterator[tuple[M, DeliveryResult]]:
        """Handle messages one after the other; a group stops at its first that has to come again.

        Messages whose group is None stand alone.
        """
        stopped: set[Hashable] = set()
        for message in messages:
            of = group(message)
            taken = BEHIND if of in stopped else self.take(message)
            if taken.returns and of is not None:
                stopped.add(of)
            yield message, taken

    def _named(self, message: M) -> tuple[str, str | None] | DeliveryResult:
        """The key and the fingerprint of a message; one that has none can never be handled."""
        try:
            payload = None if self._payload is None else self.s.fingerprint(self._payload(message))
            return self._key(message), payload
        except Exception as error:  # noqa: BLE001 - it is somebody else's code, and may do anything
            # Without the error's own words, which may quote the message.
            self.s.events.warn(What.REFUSED, "", detail=f"a message without a key: {type(error).__name__}")
            return DeliveryResult(Verdict.DEAD, error=error)

    def _taken(self, done: WorkResult) -> DeliveryResult:
        if not isinstance(done, Raised):
            return DeliveryResult(Verdict.DONE if done.record is None else Verdict.DUPLICATE, done.value)
        error = done.error
        if not isinstance(error, Exception):
            raise error
        stops = isinstance(error, errors.ShuttingDown) and not done.begun
        return DeliveryResult(_verdict(done), None, error, _retry_after(error), stops)


def _retry_after(error: Exception) -> float | None:
    """After how many seconds an error asks to come again, as a number that can be counted with."""
    try:
        seconds = error.retry_after  # type: ignore[attr-defined]  # where it is not there, that is the answer
    except Exception:  # noqa: BLE001 - it is somebody else's code, and may do anything
        return None
    if not isinstance(seconds, int | float):
        return None
    return 0.0 if isnan(seconds) else float(min(max(0.0, seconds), LONGEST_RETRY))


def _verdict(done: Raised) -> Verdict:
    error = done.error
    if done.begun:
        failed = Verdict.LATER if isinstance(error, errors.Later) else Verdict.FAILED
        return Verdict.DEAD if done.final else failed
    if isinstance(error, DONE_BEFORE):
        return Verdict.DUPLICATE
    # First, as a kept error is raised again as one of its own kind too, whatever that is.
    if isinstance(error, DEAD):
        return Verdict.DEAD
    if isinstance(error, errors.InProgress | errors.OutcomeUnknown):
        return Verdict.BUSY
    return Verdict.FAILED
