"""What carries out a consumer's loops: threads, or the tasks of an event loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from semel import errors
from semel.doors.queues.steps import ConsumerLoop, ConsumerStep, RunState, Wait


class ConsumerThreads:
    """A thread for each worker, one that settles what is in flight, and the caller's own, which receives."""

    def __init__(self, state: RunState, name: str) -> None:
        self._state = state
        self._name = name
        # Re-entrant, as a signal may call `stop` in the middle of whatever this thread does under it.
        self._condition = threading.Condition(threading.RLock())

    def run(self, receiving: ConsumerLoop, settling: ConsumerLoop, handling: Sequence[ConsumerLoop]) -> None:
        """Work until it is over."""
        threads = [
            threading.Thread(target=self._drive, args=(loop,), name=f"{self._name}-{number}", daemon=True)
            for number, loop in enumerate([settling, *handling])
        ]
        self._state.receiving = True
        try:
            for thread in threads:
                thread.start()
            self._drive(receiving)
        finally:
            self._state.receiving = False
            self.stop()
            for thread in threads:
                if thread.ident is not None:  # there may be no more threads to be had
                    thread.join()
        if self._state.failure is not None:
            raise self._state.failure

    def stop(self) -> None:
        """Begin nothing new."""
        self._state.stopping = True
        with self._condition:
            self._condition.notify_all()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change what the loops go by, from a thread of any kind."""
        with self._condition:
            yield
            self._condition.notify_all()

    def _drive(self, loop: ConsumerLoop) -> None:
        try:
            self._carry_out(loop)
        except BaseException as error:  # noqa: BLE001 - it is raised where the consumer was started
            with self._condition:
                self._state.fail(error)
                self._notify_if_changed()

    def _carry_out(self, loop: ConsumerLoop) -> None:
        go_on: Callable[[], Wait | ConsumerStep] = partial(next, loop)
        while True:
            with self._condition:
                stopping = self._state.stopping
                try:
                    step = go_on()
                except StopIteration:
                    return
                finally:
                    self._notify_if_changed()
                if isinstance(step, Wait):
                    # A signal may have stopped it in between, and nobody was waiting yet to be notified.
                    if stopping == self._state.stopping:
                        self._condition.wait(step.seconds)
                    go_on = partial(next, loop)
                    continue
            try:
                go_on = partial(loop.send, step.call())
            except BaseException as error:  # noqa: BLE001 - for the loop to judge
                go_on = partial(loop.throw, error)

    def _notify_if_changed(self) -> None:
        if self._state.changed:
            self._state.changed = False
            self._condition.notify_all()


class ConsumerTasks:
    """A task of the running event loop for each worker, one that settles, and one that receives."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._change = asyncio.Event()

    async def run(
        self, receiving: ConsumerLoop, settling: ConsumerLoop, handling: Sequence[ConsumerLoop]
    ) -> None:
        """Work until it is over; a cancellation gives everything back first."""
        self._state.receiving = True
        last = self._loop.create_task(self._drive(settling))
        tasks = [self._loop.create_task(self._drive(loop)) for loop in (receiving, *handling)]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        finally:
            self._state.receiving = False
            self._state.stopping = True
            self._notify()
            await last
        if self._state.failure is not None:
            raise self._state.failure

    def stop(self) -> None:
        """Begin nothing new; any thread may say so."""
        self._state.stopping = True
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._notify)

    async def _drive(self, loop: ConsumerLoop) -> None:
        try:
            await self._carry_out(loop)
        except BaseException as error:  # noqa: BLE001 - it is raised where the consumer was started
            self._state.fail(error)
            self._notify_if_changed()

    async def _carry_out(self, loop: ConsumerLoop) -> None:
        go_on: Callable[[], Wait | ConsumerStep] = partial(next, loop)
        while True:
            try:
                step = go_on()
            except StopIteration:
                return
            finally:
                self._notify_if_changed()
            try:
                go_on = partial(loop.send, await self._do(step))
            except BaseException as error:  # noqa: BLE001 - for the loop to judge
                go_on = partial(loop.throw, error)

    async def _do(self, step: Wait | ConsumerStep) -> object:
        if not isinstance(step, Wait):
            return await step.acall()
        with suppress(TimeoutError):
            async with asyncio.timeout(step.seconds):
                await self._change.wait()
        return None

    def _notify_if_changed(self) -> None:
        if self._state.changed:
            self._state.changed = False
            self._notify()

    def _notify(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


def check_whole(option: str, value: object, least: int, most: int) -> None:
    """Refuse an option that is no whole number, or not within these bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise errors.InvalidOption(f"{option} is a whole number from {least} to {most}, not {value!r}")
