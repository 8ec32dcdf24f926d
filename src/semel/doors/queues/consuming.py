"""A consumer of any broker: it receives, has each message handled once, settles it, and stops in good order.

What a broker's door adds is its protocol: a `Broker` that receives messages, settles them, and keeps them
from others for as long as they are handled.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from logging import getLogger
from typing import Any, Final, Generic, TypeVar

import msgspec

from semel import errors
from semel.doors.queues.dispatcher import Dispatcher, InFlight, QueueSettlement
from semel.doors.queues.messages import Handler
from semel.doors.queues.runners import ConsumerTasks, ConsumerThreads
from semel.doors.queues.steps import ConsumerLoop, ConsumerSteps, Wait

M = TypeVar("M")
R = TypeVar("R", ConsumerThreads, ConsumerTasks)

logger: Final = getLogger("semel")


class Broker(ABC, Generic[M]):
    """A queue in its own protocol; whatever takes time is a step that is yielded."""

    name: str
    """What it is called in logs."""
    passing: tuple[type[Exception], ...] = ()
    """Errors of receiving that pass by themselves: it is tried again after a pause, which grows."""

    @abstractmethod
    def receive(self, many: int) -> ConsumerSteps[list[InFlight[M]] | None]:
        """So many messages at most, perhaps after a wait; None where the broker has not answered yet."""

    @abstractmethod
    def settle(self, settlements: list[QueueSettlement]) -> ConsumerSteps[list[QueueSettlement]]:
        """Tell the queue what became of messages; what it has to be told again is given back."""

    def renew(self, due: list[InFlight[M]]) -> ConsumerSteps[dict[InFlight[M], bool]]:
        """Keep messages from others; gives those that failed, and whether they are lost for good."""
        return {}
        yield

    def wake(self) -> None:
        """Return from a `receive` that only waits, where there is a way; from any thread."""

    def close(self) -> ConsumerLoop:
        """Say goodbye: all is settled."""
        return
        yield


class Handling(msgspec.Struct, frozen=True):
    """A step: have a message handled; what became of it is sent into the loop."""

    handler: Handler[Any]
    message: Any

    def call(self) -> Any:
        """Handle it in this thread."""
        return self.handler.take(self.message)

    async def acall(self) -> Any:
        """Handle it in this event loop."""
        return await self.handler.atake(self.message)


class Consuming(Generic[M]):
    """The three loops of a consumer: receiving, handling, and settling."""

    def __init__(
        self, broker: Broker[M], dispatcher: Dispatcher[M], handler: Handler[M], now: Callable[[], float]
    ) -> None:
        self.broker = broker
        self.dispatcher = dispatcher
        self.handler = handler
        self._now = now

    def receiving(self) -> ConsumerLoop:
        """Ask for messages whenever somebody is free to handle them."""
        dispatcher = self.dispatcher
        while not self._has_received():
            many = dispatcher.wanted(self._now())
            if many is None:
                yield Wait(dispatcher.pause(self._now()))
                continue
            try:
                received = yield from self.broker.receive(many)
            except Exception as error:
                if not isinstance(error, self.broker.passing):
                    raise
                self._away(error)
                continue
            if received is not None:
                dispatcher.receive(received, self._now())
        yield from self.broker.close()

    def _has_received(self) -> bool:
        # What a broker sends over a connection is settled over it, too.
        return self.dispatcher.drained if self.dispatcher.settings.pushes else self.dispatcher.stopping

    def _away(self, error: Exception) -> None:
        if self.dispatcher.settings.pushes:
            self.dispatcher.forget()
        seconds = self.dispatcher.queue_backoff.failed(self._now())
        logger.warning("%s gives no messages; next try in %.1f s. %s", self.broker.name, seconds, error)

    def handling(self) -> ConsumerLoop:
        """Have one message handled after the other."""
        dispatcher = self.dispatcher
        while not dispatcher.stopping:
            one = dispatcher.begin()
            if one is None:
                yield Wait(None)
                continue
            try:
                taken = yield Handling(self.handler, one.message)
            except BaseException as error:
                dispatcher.interrupt(one, error, self._now())
                raise
            dispatcher.end(one, taken, self._now())

    def settling(self) -> ConsumerLoop:
        """Settle what is done with, and keep everybody else from what is in flight."""
        try:
            yield from self._settle_until_over()
        except Exception:
            self.dispatcher.forget()  # nobody settles it any more, so that it comes again
            raise

    def _settle_until_over(self) -> ConsumerLoop:
        dispatcher = self.dispatcher
        while True:
            if dispatcher.stopping:
                dispatcher.clear()
            if dispatcher.over:
                return
            dispatcher.wake(self._now())
            # Renewing first: what is settled late costs nothing, what is renewed late is delivered again.
            if due := dispatcher.due(self._now()):
                yield from self._renew(due)
            elif dispatcher.settlements:
                again = yield from self.broker.settle(dispatcher.take_settlements())
                dispatcher.settled(again)
            else:
                if dispatcher.stopping:
                    self.broker.wake()
                yield Wait(dispatcher.until_due(self._now()))

    def _renew(self, due: list[InFlight[M]]) -> ConsumerLoop:
        before = self._now()
        failed = yield from self.broker.renew(due)
        self.dispatcher.renewed(due, failed, before, self._now())

    def loops(self) -> tuple[ConsumerLoop, ConsumerLoop, list[ConsumerLoop]]:
        """What receives, what settles, and as many as there are workers that handle."""
        handling = [self.handling() for _ in range(self.dispatcher.settings.workers)]
        return self.receiving(), self.settling(), handling


class QueueConsumer(Generic[M]):
    """What runs a consumer's loops, once, until it is stopped."""

    def __init__(self) -> None:
        self._runner: ConsumerThreads | ConsumerTasks | None = None
        self._begun = self._stopped = False

    def stop(self) -> None:
        """Begin nothing new: what runs is finished, what has not begun is given back, and `run` returns.

        It may be called from anywhere, a signal handler included.
        """
        self._stopped = True
        if self._runner is not None:
            self._runner.stop()

    def _begin(self) -> None:
        if self._begun:
            raise errors.UsageError("a consumer runs once: make another")
        self._begun = True

    def _run(self, consuming: Consuming[M]) -> None:
        runner = ConsumerThreads(consuming.dispatcher, f"semel-{consuming.broker.name}")
        self._attach(runner).run(*consuming.loops())

    async def _arun(self, consuming: Consuming[M]) -> None:
        await self._attach(ConsumerTasks(consuming.dispatcher)).run(*consuming.loops())

    def _attach(self, runner: R) -> R:
        self._runner = runner
        if self._stopped:
            runner.stop()
        return runner
