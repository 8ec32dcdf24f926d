"""Connections that threads share: two return, take and close them at the same moment, at every moment."""

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest

from semel.aws import pool as aws_pool
from semel.core.commands import ABSENT, Get, Put
from semel.errors import StoreClosed
from semel.stores.postgres import pool as postgres_pool
from semel.stores.redis import connection as redis_pool
from semel.stores.redis.connection import RedisRequest, pack
from semel.stores.redis.server import Node, parse
from semel.stores.sqlite import file as sqlite_pool
from semel.tables import DOCUMENTS
from tests.places import open_place

ITEM = {"body": {"n": 1}, "version": 1, "token": "t", "created_at": 0, "updated_at": 0, "expires_at": 1e11}
GET = Get(DOCUMENTS, "one")
MODULES = {"sqlite": sqlite_pool, "postgres": postgres_pool, "redis": redis_pool, "dynoxide": aws_pool}


class Overtaken:
    """Calls a function, and has another thread do something at one moment of it: before an instruction."""

    def __init__(self, module: Any, moment: int, other: Callable[[], Any]) -> None:
        self._file, self._left, self._other = module.__file__, moment, other
        self.errors: list[BaseException] = []

    @property
    def came(self) -> bool:
        """Whether there was such a moment."""
        return self._left <= 0

    def call(self, function: Callable[[], Any]) -> Any:
        sys.settrace(self._enter)
        try:
            return function()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _value: Any) -> Any:
        if frame.f_code.co_filename != self._file:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, _frame: FrameType, event: str, _value: Any) -> Any:
        if event == "opcode":
            self._left -= 1
            if self._left == 0:
                thread = threading.Thread(target=self._run)
                thread.start()
                thread.join()
        return self._step

    def _run(self) -> None:
        try:
            self._other()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.errors.append(error)


class Pool:
    """The pool of a store, and how its idle connections are taken as another thread would."""

    def __init__(self, name: str, store: Any) -> None:
        self._name = name
        self.module: Any = MODULES[name]
        match name:
            case "sqlite":
                self.own = store._readers
            case "redis" | "postgres":
                self.own = store._pool
            case _:
                self.own = store._transport.pool

    def take(self, until: ExitStack) -> None:
        """Take an idle connection, and hold it until the end."""
        match self._name:
            case "sqlite":
                reader = self.own._idle.pop() if self.own._idle else self.own._another()
                until.callback(self.own._trim)
                until.callback(self.own._idle.append, reader)
            case "redis":
                # As a thread does that has seen the pool open.
                taken = [free.pop() for free in list(self.own._free.values()) if free]
                until.callback(lambda: [one.close() for one in taken])
            case "postgres":
                session = self.own.pop(self.own.callers)
                if session is not None:
                    until.callback(session.drop)
            case _:
                connection = self.own.take(self.own.monotonic())
                if connection is not None:
                    until.callback(connection.close)

    def idle(self) -> int:
        match self._name:
            case "redis":
                return sum(map(len, self.own._free.values()))
            case "postgres":
                return len(self.own.callers.idle)
        return len(self.own._idle)


@pytest.fixture(params=MODULES)
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path)


def opened(place: Any) -> tuple[Any, Pool]:
    """A store with one idle connection."""
    store = place.open()
    store.execute(GET)
    pool = Pool(place.name, store)
    assert pool.idle() == 1
    return store, pool


@pytest.mark.situation(65)
def test_a_connection_that_another_thread_takes_at_any_moment_is_no_error_to_the_one_that_returns_it(place):
    store, pool = opened(place)
    store.execute(Put(DOCUMENTS, "one", ITEM, ABSENT))
    moment = 0
    while moment := moment + 1:
        with ExitStack() as held:
            overtaken = Overtaken(pool.module, moment, partial(pool.take, held))
            found = overtaken.call(lambda: store.execute(GET))
        assert overtaken.errors == []
        assert found.item["body"] == {"n": 1}
        if not overtaken.came:
            break
    assert moment > 20
    store.close()


@pytest.mark.situation(65)
def test_a_store_that_another_thread_closes_at_any_moment_answers_or_says_so_and_keeps_no_connection(place):
    moment = 0
    while moment := moment + 1:
        store, pool = opened(place)
        overtaken = Overtaken(pool.module, moment, store.close)
        with suppress(StoreClosed):
            overtaken.call(partial(store.execute, GET))
        assert overtaken.errors == []
        if not overtaken.came:
            store.close()
            break
        assert pool.idle() == 0
    assert moment > 20


@pytest.mark.situation(65)
def test_a_connection_that_another_thread_takes_at_any_moment_is_no_error_to_the_one_that_closes(place):
    moment = 0
    while moment := moment + 1:
        store, pool = opened(place)
        with ExitStack() as held:
            overtaken = Overtaken(pool.module, moment, partial(pool.take, held))
            overtaken.call(store.close)
        assert all(isinstance(error, StoreClosed) for error in overtaken.errors)
        assert pool.idle() == 0
        if not overtaken.came:
            break
    assert moment > 5


@pytest.mark.situation(65)
def test_a_loop_that_uses_another_node_at_any_moment_is_no_error_to_the_thread_that_closes(redis_server):
    address = parse(redis_server)
    ping = RedisRequest(address.home, pack([b"PING"]), 1)
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()

    def there(steps: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(steps, loop).result(30)

    async def idle(pool: redis_pool.AsyncRedisPool, node: Node) -> None:
        pool._idle(node)  # as every exchange does first

    def look(pool: redis_pool.AsyncRedisPool, node: Node) -> None:
        there(idle(pool, node))

    async def made() -> redis_pool.AsyncRedisPool:
        return redis_pool.AsyncRedisPool(address)

    moment = 0
    while moment := moment + 1:
        pool = there(made())
        there(pool.exchange(ping))
        other = Node(f"127.0.0.{moment % 200 + 2}", address.home.port)
        overtaken = Overtaken(redis_pool, moment, partial(look, pool, other))
        overtaken.call(pool.drop)
        assert overtaken.errors == []
        if not overtaken.came:
            break
    assert moment > 20
    for _ in range(2):  # what was dropped is closed in one turn of the loop, and gone after the next
        there(asyncio.sleep(0))
    loop.call_soon_threadsafe(loop.stop)
    running.join()
    loop.close()


@pytest.mark.situation(65)
def test_a_crowd_of_threads_on_few_connections_sees_no_error(place):
    store, _ = opened(place)
    store.execute(Put(DOCUMENTS, "one", ITEM, ABSENT))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as crowd:
            found = list(crowd.map(lambda _: store.execute(GET).item["version"], range(2000)))
    finally:
        sys.setswitchinterval(before)
    assert found == [1] * 2000
    store.close()
