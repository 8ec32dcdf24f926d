"""A store's own threads.

An executor's locks could be left behind by what a signal handler raises, and whoever gives it work after that
would wait for ever. A `SimpleQueue` has none.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from semel.core.clock import join_thread, start_thread
from semel.errors import StoreUnavailable

T = TypeVar("T")
R = TypeVar("R")


class WorkerThreads:
    """Up to so many threads, which are started as they are needed."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: dict[threading.Thread, None] = {}
        self._stopped = False

    @property
    def has_work(self) -> bool:
        return not self._work.empty()

    def do(self, work: Callable[[], None]) -> None:
        """Have this done, which raises nothing."""
        started = len(self._threads) < self._count and start_thread(
            threading.Thread(target=self._run, name=self._name)
        )
        if sys.is_finalizing() or not (started or self._threads):
            raise StoreUnavailable(
                "no thread can be started: the limit of threads is reached, or Python is ending"
            )
        self._work.put(work)

    def map(self, function: Callable[[T], R], given: Sequence[T]) -> list[R]:
        """What a function makes of each, side by side; the first error, where one raises it."""
        done: SimpleQueue[BaseException | None] = SimpleQueue()
        results: list[Any] = [None] * len(given)

        def work(place: int) -> None:
            try:
                results[place] = function(given[place])
                done.put(None)
            except BaseException as error:  # noqa: BLE001 - it is raised to whoever asked
                done.put(error)

        for place in range(len(given)):
            self.do(partial(work, place))
        for _ in given:
            if (error := done.get()) is not None:
                raise error
        return results

    def stop(self, wait: bool = True) -> None:
        """End when all is done."""
        self._stopped = True
        threads = list(self._threads)
        for _ in threads:
            self._work.put(None)
        for thread in threads if wait else ():
            join_thread(thread)

    def _run(self) -> None:
        # Here, and not where it is started: a signal may come between any two lines there.
        me = threading.current_thread()
        self._threads[me] = None
        if self._stopped or me not in list(self._threads)[: self._count]:
            self._threads.pop(me, None)
            return
        while (work := self._work.get()) is not None:
            work()
