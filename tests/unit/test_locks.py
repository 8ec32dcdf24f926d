"""What threads share: nothing of it is left locked by whoever is torn away."""

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from semel.core.clock import BackgroundThread, FairSemaphore, SignalSafeEvent, SignalSafeLock, Waiter
from semel.stores.workers import WorkerThreads
from tests.interrupts import Interrupt, Interrupted
from tests.servers.running import until

pytestmark = pytest.mark.situation(48)

LONG = 60.0


def test_places_are_given_in_the_order_of_coming() -> None:
    semaphore, order = FairSemaphore(1), list[int]()
    first = Waiter()

    def acquire(number: int) -> None:
        waiter = Waiter()
        with waiter.held:
            assert semaphore.acquire(waiter, LONG)
            order.append(number)
            semaphore.release(waiter)

    with ThreadPoolExecutor(5) as threads, first.held:
        assert semaphore.acquire(first, LONG)
        waiting = []
        for number in range(5):
            waiting.append(threads.submit(acquire, number))
            assert until(lambda: len(semaphore._waiters) == len(waiting) + 1)
        semaphore.release(first)
        for each in waiting:
            each.result()
    assert order == [0, 1, 2, 3, 4]
    assert len(semaphore._waiters) == 0


def test_a_place_whose_holder_was_torn_away_is_free() -> None:
    semaphore, gone, waiter = FairSemaphore(1), Waiter(), Waiter()
    with gone.held:
        assert semaphore.acquire(gone, LONG)
        with waiter.held:
            assert not semaphore.acquire(waiter, 0)
    with waiter.held:
        assert semaphore.acquire(waiter, 0)


def test_there_are_never_more_holders_than_places_though_every_third_is_torn_away() -> None:
    semaphore, inside, most = FairSemaphore(3), list[int](), list[int]()

    def visit(number: int) -> None:
        waiter = Waiter()
        with waiter.held:
            assert semaphore.acquire(waiter, LONG)
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)
            if number % 3:
                semaphore.release(waiter)

    with ThreadPoolExecutor(16) as threads:
        assert len(list(threads.map(visit, range(200)))) == 200
    assert max(most) <= 3


def test_an_event_wakes_all_who_wait_and_nobody_after_it_was_cleared() -> None:
    event = SignalSafeEvent()
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(event.wait, LONG) for _ in range(4)]
        assert until(lambda: len(event._wakeups) == 4)
        event.set()
        assert [each.result() for each in waiting] == [True] * 4
    assert event.is_set()
    event.happened = False
    assert not event.wait(0)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="there a trace misses the steps of a first call")
def test_an_event_that_was_being_set_when_a_signal_came_can_be_set_and_waited_for() -> None:
    for moment in range(1, 30):
        event, interrupted = SignalSafeEvent(), Interrupted(Interrupt, moment)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(event.wait, LONG)
            assert until(lambda event=event: len(event._wakeups) == 1)  # type: ignore[misc]
            try:
                interrupted.call(event.set)
            except Interrupt:
                event.set()
            assert waiting.result()
        if not interrupted.came:
            break
    assert moment > 3


@pytest.mark.skipif(
    not hasattr(signal, "SIGVTALRM"), reason="there is no timer here that counts the process's time"
)
def test_a_lock_is_given_back_wherever_a_signal_tears_its_block() -> None:
    def tear(_number: int, _frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGVTALRM, tear)
    try:
        for _ in range(50):
            lock = SignalSafeLock()
            with suppress(Interrupt):
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
                while True:
                    with lock:
                        pass
            assert not lock._is_owned()  # type: ignore[attr-defined]  # as Condition asks it
    finally:
        signal.signal(signal.SIGVTALRM, before)


def test_workers_do_side_by_side_what_they_are_given_and_raise_what_fails() -> None:
    workers, together = WorkerThreads(3, "test"), threading.Barrier(3)

    def meet(number: int) -> int:
        together.wait(LONG)
        return number * 2

    assert workers.map(meet, range(9)) == [number * 2 for number in range(9)]
    with pytest.raises(ZeroDivisionError):
        workers.map(lambda number: 1 // number, [1, 0])
    workers.stop()


def test_a_background_thread_runs_once_whoever_starts_it_and_ends_for_good_when_stopped() -> None:
    runs: list[threading.Thread] = []

    def work() -> None:
        runs.append(threading.current_thread())
        background.stopping.wait(LONG)

    background = BackgroundThread("test", work)
    with ThreadPoolExecutor(5) as threads:
        assert all(threads.map(lambda _: background.start(), range(50)))
    assert until(lambda: len(runs) == 1)
    background.stop()
    background.join(LONG)
    assert background.start()
    assert [thread.daemon for thread in runs] == [True]
    assert until(lambda: background.thread is None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_background_thread_that_failed_starts_again_when_it_is_needed() -> None:
    runs: list[threading.Thread] = []

    def work() -> None:
        runs.append(threading.current_thread())
        if len(runs) == 1:
            raise MemoryError

    background = BackgroundThread("test", work)
    for number in (1, 2):
        assert background.start()
        assert until(lambda number=number: len(runs) == number)  # type: ignore[misc]
        runs[-1].join(LONG)


def test_work_that_is_added_as_a_background_thread_ends_is_done() -> None:
    left = [1, 2]

    def work() -> None:
        left.pop()

    background = BackgroundThread("test", work, lambda: bool(left))
    assert background.start()
    assert until(lambda: not left and background.thread is None)
