"""Who carries out a consumer's rounds: threads, or the tasks of an event loop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from semel import errors
from semel.doors.queues.messages import Handler
from semel.doors.sqs.hands import Hands
from semel.doors.sqs.message import Message
from semel.doors.sqs.rounds import Ask, Rounds, Step, Steps, Take, Wait


class Shift(msgspec.Struct, frozen=True):
    """One run of a consumer: what it has in hand, what it does, and who handles the messages."""

    hands: Hands
    rounds: Rounds
    handler: Handler[Message]

    def alongside(self) -> list[Steps[None]]:
        """What is done beside polling and tending."""
        return [self.rounds.working() for _ in range(self.hands.terms.workers)]


class Threads:
    """A thread for each worker, one that tends what is in hand, and the caller's own, which polls."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._hands = shift.hands
        # Re-entrant, as a signal may call `stop` in the middle of whatever this thread does under it.
        self._bell = threading.Condition(threading.RLock())

    def run(self) -> None:
        """Work until it is over."""
        rounds = [self._shift.rounds.tending(), *self._shift.alongside()]
        threads = [
            threading.Thread(target=self._drive, args=(steps,), name=f"semel-sqs-{number}")
            for number, steps in enumerate(rounds)
        ]
        self._hands.polling = True
        try:
            for thread in threads:
                thread.start()
            self._drive(self._shift.rounds.polling())
        finally:
            self._hands.polling = False
            self.stop()
            for thread in threads:
                if thread.ident is not None:  # there may be no more threads to be had
                    thread.join()
        if self._hands.failure is not None:
            raise self._hands.failure

    def stop(self) -> None:
        """Begin nothing new."""
        self._hands.stopping = True
        with self._bell:
            self._bell.notify_all()

    def _drive(self, steps: Steps[None]) -> None:
        try:
            self._carry_out(steps)
        except BaseException as error:  # noqa: BLE001 - it is raised where the consumer was started
            with self._bell:
                self._hands.fail(error)
                self._tell()

    def _carry_out(self, steps: Steps[None]) -> None:
        go_on: Callable[[], Step] = partial(next, steps)
        while True:
            with self._bell:
                try:
                    step = go_on()
                except StopIteration:
                    return
                finally:
                    self._tell()
                if type(step) is Wait:
                    self._bell.wait(step.seconds)
                    go_on = partial(next, steps)
                    continue
            try:
                go_on = partial(steps.send, self._do(step))
            except BaseException as error:  # noqa: BLE001 - for the steps to judge
                go_on = partial(steps.throw, error)

    def _tell(self) -> None:
        if self._hands.changed:
            self._hands.changed = False
            self._bell.notify_all()

    def _do(self, step: Step) -> Any:
        if isinstance(step, Take):
            return self._shift.handler.take(step.message)
        assert isinstance(step, Ask)  # noqa: S101 - there is nothing else
        try:
            return step.queue.call(step.operation, step.request, write=step.write)
        except errors.SemelError as error:
            return error


class Tasks:
    """The same as tasks."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._hands = shift.hands
        self._loop = asyncio.get_running_loop()
        self._bell = asyncio.Event()

    async def run(self) -> None:
        """Work until it is over; a cancellation gives everything back first."""
        self._hands.polling = True
        tending = self._loop.create_task(self._drive(self._shift.rounds.tending()))
        rounds = [self._shift.rounds.polling(), *self._shift.alongside()]
        tasks = [self._loop.create_task(self._drive(steps)) for steps in rounds]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        finally:
            self._hands.polling = False
            self._hands.stopping = True
            self._ring()
            await tending
        if self._hands.failure is not None:
            raise self._hands.failure

    def stop(self) -> None:
        """Begin nothing new; any thread may say so."""
        self._hands.stopping = True
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._ring)

    async def _drive(self, steps: Steps[None]) -> None:
        try:
            await self._carry_out(steps)
        except BaseException as error:  # noqa: BLE001 - it is raised where the consumer was started
            self._hands.fail(error)
            self._tell()

    async def _carry_out(self, steps: Steps[None]) -> None:
        go_on: Callable[[], Step] = partial(next, steps)
        while True:
            try:
                step = go_on()
            except StopIteration:
                return
            finally:
                self._tell()
            try:
                go_on = partial(steps.send, await self._do(step))
            except BaseException as error:  # noqa: BLE001 - for the steps to judge
                go_on = partial(steps.throw, error)

    def _tell(self) -> None:
        if self._hands.changed:
            self._hands.changed = False
            self._ring()

    def _ring(self) -> None:
        self._bell.set()
        self._bell = asyncio.Event()

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Take):
            return await self._shift.handler.atake(step.message)
        if isinstance(step, Wait):
            with suppress(TimeoutError):
                async with asyncio.timeout(step.seconds):
                    await self._bell.wait()
            return None
        try:
            return await step.queue.acall(step.operation, step.request, write=step.write)
        except errors.SemelError as error:
            return error
