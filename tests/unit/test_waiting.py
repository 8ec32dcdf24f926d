"""Who waits for a key in one process shares one look at it."""

import asyncio
import threading

import pytest

from semel.core.clock import Clock
from semel.core.commands import Found
from semel.stores.waiting import KeyWatchers


class Watched:
    """Something to look at, that counts how often it is looked at."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> Found:
        self.looks += 1
        return Found(1.0, {"looks": self.looks})

    async def alook(self) -> Found:
        return self.look()


@pytest.mark.situation(41)
def test_threads_that_wait_together_share_one_look() -> None:
    watchers, watched = KeyWatchers(Clock()), Watched()
    seen: list[Found] = []
    threads = [
        threading.Thread(target=lambda: seen.append(watchers.watch("k", 60, watched.look))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    while len(watchers) < 20:
        threading.Event().wait(0.001)
    watchers.notify("k")
    for thread in threads:
        thread.join()
    assert watched.looks == 1
    assert [found.item for found in seen] == [{"looks": 1}] * 20


def test_tasks_that_wait_together_share_one_look() -> None:
    watchers, watched = KeyWatchers(Clock()), Watched()

    async def main() -> list[Found]:
        tasks = [asyncio.create_task(watchers.awatch("k", 60, watched.alook)) for _ in range(20)]
        await asyncio.sleep(0)
        threading.Thread(target=watchers.notify, args=("k",)).start()
        return list(await asyncio.gather(*tasks))

    assert [found.item for found in asyncio.run(main())] == [{"looks": 1}] * 20
    assert watched.looks == 1


def test_a_bell_for_another_key_wakes_nobody() -> None:
    watchers, watched = KeyWatchers(Clock()), Watched()
    thread = threading.Thread(target=watchers.watch, args=("k", 60, watched.look))
    thread.start()
    while len(watchers) < 1:
        threading.Event().wait(0.001)
    watchers.notify("other")
    assert watched.looks == 0
    watchers.notify("k")
    thread.join()
    assert watched.looks == 1


def test_when_the_one_who_looks_fails_the_others_look_for_themselves() -> None:
    watchers, watched = KeyWatchers(Clock()), Watched()
    fail = [True]

    async def look() -> Found:
        if fail.pop() if fail else False:
            raise ConnectionError
        return watched.look()

    async def main() -> list[Found | BaseException]:
        tasks = [asyncio.create_task(watchers.awatch("k", 60, look)) for _ in range(3)]
        await asyncio.sleep(0)
        watchers.notify("k")
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    answers = asyncio.run(main())
    assert sum(isinstance(answer, ConnectionError) for answer in answers) == 1
    assert sum(isinstance(answer, Found) for answer in answers) == 2


def test_a_cancelled_waiter_leaves_no_trace() -> None:
    watchers, watched = KeyWatchers(Clock()), Watched()

    async def main() -> None:
        task = asyncio.create_task(watchers.awatch("k", 60, watched.alook))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(watchers) == 0
