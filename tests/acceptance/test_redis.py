"""Redis as it is met outside: restarted, cut off, full, forbidden, failed over; and who waits for whom."""

import asyncio
import contextlib
import itertools
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.cluster import RedisCluster
from redis.crc import key_slot

import semel
from semel import errors
from semel.core.clock import Clock
from semel.core.commands import (
    ABSENT,
    NOW,
    PRESENT,
    Add,
    After,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Get,
    Item,
    Put,
    Query,
    Refused,
    Stored,
    Time,
    Transact,
    Update,
    Watch,
    Write,
)
from semel.core.drive import leave
from semel.stores.redis import RedisStore, problems, provision
from semel.stores.redis.connection import AsyncRedisPool, RedisPool, RedisRequest
from semel.stores.redis.server import parse
from semel.stores.redis.store import LINGER_SECONDS, RedisListener, Subscription
from semel.tables import COUNTERS, DOCUMENTS, JOURNAL, LEDGER
from semel.testing import FakeClock, FaultProxy
from semel.testing.conformance import ENTRIES, LINES, NOTES, THINGS
from semel.testing.conformance.harness import claimed
from tests.servers.durable import Durable, durable_redis
from tests.servers.redis import Pair, node, url
from tests.servers.running import HOST, Failed, free_port, until

NUMBERS = itertools.count()
# Nobody would wait so long for it: what comes back was woken.
AGES = 3600.0


@pytest.fixture
def prefix() -> str:
    return f"acceptance-{os.getpid()}-{next(NUMBERS)}"


@pytest.fixture
def here(redis_server: str, prefix: str) -> str:
    """The URL of a store that nobody has used."""
    return f"{redis_server}?prefix={prefix}"


@pytest.fixture
def client(redis_server: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server) as client:
        yield client


def mark(key: str, **attributes: Any) -> Put:
    return Put(THINGS, key, {"gone_at": After(1000), **attributes}, ABSENT)


def asked(store: RedisStore, through: str, *commands: Any) -> list[Any]:
    """The replies to these, from threads' connections or from those of an event loop."""
    if through == "sync":
        return [store.execute(command) for command in commands]

    async def main() -> list[Any]:
        replies = [await store.aexecute(command) for command in commands]
        await leave(store)
        return replies

    return asyncio.run(main())


both = pytest.mark.parametrize("through", ["sync", "async"])

PLACES = {"server": "", "cluster": "cluster=yes&"}


def placed(request: pytest.FixtureRequest, where: str, prefix: str) -> str:
    """The URL of a store that nobody has used, in one of these places."""
    server = request.getfixturevalue("redis_server" if where == "server" else "redis_cluster")
    return f"{server}?{PLACES[where]}prefix={prefix}"


# The server forgets its scripts, or is started again


@both
def test_a_server_that_forgot_its_scripts_is_taught_them_again(
    here: str, client: redis.Redis, through: str
) -> None:
    with closing(RedisStore(here)) as store:
        asked(store, through, mark("a"))
        client.script_flush()
        batch = Batch(tuple(mark(str(number)) for number in range(120)))
        [many, [found]] = [asked(store, through, batch)[0], asked(store, through, Get(THINGS, "119"))]
        assert [type(reply) for reply in many.replies] == [Applied] * 120
        assert found.item is not None
        client.script_flush()
        assert type(asked(store, through, mark("a"))[0]) is Refused


def test_a_server_killed_and_started_again_has_lost_nothing_that_it_acknowledged() -> None:
    """A claim outlives it, its holder completes it over a new connection, and nobody is told of any of it."""
    with durable_redis() as (place, server), semel.connect(place) as s:
        claim = claimed(s.ledger.claim("key"))
        server.restart()
        s.ledger.complete(claim, "done")
        server.restart()
        with semel.connect(place) as other:
            assert other.ledger.claim("key", returns=str).result == "done"


def test_tasks_do_not_notice_a_restart_either() -> None:
    async def main(place: str, server: Durable) -> Any:
        async with semel.connect(place).aio as s:
            claim = claimed(await s.ledger.claim("key"))
            await asyncio.to_thread(server.restart)
            await s.ledger.complete(claim, "done")
            return await s.ledger.claim("key", returns=str)

    with durable_redis() as (place, server):
        assert asyncio.run(main(place, server)).result == "done"


# The network


@pytest.fixture
def proxy(redis_server: str) -> Iterator[FaultProxy]:
    with FaultProxy.before(redis_server) as proxy:
        yield proxy


@both
def test_a_counter_whose_answer_was_lost_is_not_counted_twice(
    proxy: FaultProxy, here: str, through: str
) -> None:
    """Nobody but the rules sends a write again, and least of all the driver."""
    add = Add(THINGS, "key", "count", 1, {"gone_at": After(1000)})
    with closing(RedisStore(proxy.url(here))) as store:
        asked(store, through, add)
        proxy.drop_answer_to(b"count")
        with pytest.raises(errors.StoreOutcomeUnknown):
            asked(store, through, add)
        assert proxy.dropped == 1
        assert asked(store, through, Get(THINGS, "key"))[0].item["count"] == 2


@both
def test_a_reading_whose_answer_was_lost_is_no_doubt(proxy: FaultProxy, here: str, through: str) -> None:
    with closing(RedisStore(proxy.url(here))) as store:
        asked(store, through, mark("key"))
        proxy.drop_answers(2)  # the second is that to the same, sent again by another connection
        with pytest.raises(errors.StoreUnavailable):
            asked(store, through, Get(THINGS, "key"))


def test_a_database_that_the_server_does_not_have_is_named_as_the_mistake(redis_server: str) -> None:
    with (
        closing(RedisStore(f"{redis_server}/99")) as store,
        pytest.raises(errors.InvalidOption, match=r"no database of the number in the URL.*databases"),
    ):
        store.execute(Get(THINGS, "key"))


@both
def test_a_completion_that_a_full_memory_refuses_is_kept_for_later(through: str) -> None:
    with (
        node("--maxmemory-policy", "noeviction") as port,
        redis.Redis(HOST, port) as client,
        semel.connect(url(port)) as s,
        ThreadPoolExecutor(1) as threads,
    ):
        claim = claimed(s.ledger.claim("key", lease=600))
        client.config_set("maxmemory", "1kb")
        said = r"memory is full.*raise maxmemory.*noeviction"
        assert isinstance(s.store, RedisStore)
        with pytest.raises(errors.StoreUnavailable, match=said):
            asked(s.store, through, mark("another"))
        completing = threads.submit(completed, s, through, claim)
        assert until(lambda: client.info("errorstats")["errorstat_OOM"]["count"] > 1)
        client.config_set("maxmemory", "0")
        completing.result()
        record = s.ledger.get("key")
        assert record is not None
        assert record.status == "COMPLETED"


def completed(s: semel.Semel, through: str, claim: semel.Claimed) -> None:
    async def complete() -> None:
        try:
            await s.aio.ledger.complete(claim, "done")
        finally:
            await leave(s.store)

    if through == "sync":
        s.ledger.complete(claim, "done")
    else:
        asyncio.run(complete())


@both
def test_work_whose_claim_was_answered_into_the_void_runs_once(
    proxy: FaultProxy, here: str, through: str
) -> None:
    runs: list[str] = []
    with semel.connect(proxy.url(here)) as s:
        s.ledger.get("key")
        proxy.drop_answer_to(b"IN_PROGRESS")

        if through == "sync":

            @s.once("charge:{order}")
            def charge(order: str) -> str:
                runs.append(order)
                return "charged"

            assert charge("o-1") == charge("o-1") == "charged"
        else:

            @s.once("charge:{order}")
            async def acharge(order: str) -> str:
                runs.append(order)
                return "charged"

            async def main() -> None:
                assert await acharge("o-1") == await acharge("o-1") == "charged"
                await leave(s.store)

            asyncio.run(main())
    assert runs == ["o-1"]
    assert proxy.dropped == 1


@both
def test_a_server_that_does_not_answer_is_waited_for_no_longer_than_said(
    proxy: FaultProxy, here: str, through: str
) -> None:
    with closing(RedisStore(proxy.url(f"{here}&timeout=0.2"))) as store:
        asked(store, through, mark("a"))
        proxy.black_hole()
        with pytest.raises(errors.StoreOutcomeUnknown, match="lost"):
            asked(store, through, mark("b"))
        with pytest.raises(errors.StoreUnavailable, match="did not answer"):
            asked(store, through, Get(THINGS, "a"))
        proxy.heal()
        assert asked(store, through, Get(THINGS, "a"))[0].item is not None


def test_a_connection_that_died_while_idle_is_replaced_and_nobody_is_told(
    proxy: FaultProxy, here: str
) -> None:
    with closing(RedisStore(proxy.url(here))) as store:
        store.execute(mark("a"))
        for number in range(20):
            proxy.cut()
            assert until(lambda: not store._pool._free[store._address.home][0].is_quiet())
            assert type(store.execute(mark(f"b{number}"))) is Applied


def test_a_thread_that_is_interrupted_while_it_reads_leaves_no_answer_for_the_next(
    here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with closing(RedisStore(here)) as store:
        for text in "ab":
            store.execute(mark(text, text=text))
        [connection] = store._pool._free[store._address.home]
        with monkeypatch.context() as patch:
            patch.setattr("semel.stores.redis.connection.gather", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.execute(Get(THINGS, "a"))
        assert connection.socket.fileno() == -1
        assert store.execute(Get(THINGS, "b")).item["text"] == "b"


def test_a_task_that_is_cancelled_while_it_reads_leaves_no_answer_for_the_next(
    proxy: FaultProxy, here: str
) -> None:
    """The connection on which an answer is still to come is not used again."""

    async def main(store: RedisStore) -> Any:
        await store.aexecute(mark("a", text="a"))
        await store.aexecute(mark("b", text="b"))
        proxy.delay(0.2)
        reading = asyncio.ensure_future(store.aexecute(Get(THINGS, "a")))
        while not store._per_loop.here()._used:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        proxy.delay(0)
        found = await store.aexecute(Get(THINGS, "b"))
        await leave(store)
        return found.item["text"]

    with closing(RedisStore(proxy.url(here))) as store:
        assert asyncio.run(main(store)) == "b"


def test_a_loop_that_is_closed_during_an_exchange_leaves_no_error_behind(
    proxy: FaultProxy, here: str
) -> None:
    """At the end of a process, say: what was under way is closed then."""
    with closing(RedisStore(proxy.url(here))) as store, closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(store.aexecute(mark("a")))
        [pool] = store._per_loop._made.values()
        proxy.black_hole()
        reading = store.aexecute(Get(THINGS, "a"))
        task = loop.create_task(reading)
        while not pool._used:
            loop.run_until_complete(asyncio.sleep(0))
        [connection] = pool._used
        loop.close()
        reading.close()
        assert connection.writer.transport.get_extra_info("socket").fileno() == -1
        del task
        proxy.heal()


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    port = free_port()
    with closing(RedisStore(f"redis://user:sesame@{HOST}:{port}")) as store:
        for through in ("sync", "async"):
            with pytest.raises(
                errors.StoreUnavailable, match=rf"{HOST}:{port}.*check that it runs"
            ) as caught:
                asked(store, through, mark("a"))
            assert "sesame" not in str(caught.value)


def test_a_store_that_was_closed_says_so(here: str) -> None:
    store = RedisStore(here)
    store.execute(mark("a"))
    store.close()
    for through in ("sync", "async"):
        with pytest.raises(errors.StoreClosed):
            asked(store, through, mark("b"))


def test_what_a_loop_has_left_open_is_closed_with_the_store(here: str) -> None:
    """No warning comes of it, and the server is rid of the connections."""
    store = RedisStore(here)
    asyncio.run(store.aexecute(mark("a")))
    [pool] = store._per_loop._made.values()
    [connection] = pool._free[store._address.home]
    transport = connection.writer.transport
    store.close()
    assert transport.get_extra_info("socket").fileno() == -1


# What the server refuses


def test_a_wrong_password_and_a_missing_one_are_told_apart(redis_server: str, client: redis.Redis) -> None:
    client.acl_setuser("guarded", enabled=True, passwords=["+sesame"], categories=["+@all"], keys=["*"])
    try:
        host = redis_server.removeprefix("redis://")
        for through in ("sync", "async"):
            with closing(RedisStore(f"redis://guarded:wrong@{host}")) as store:
                with pytest.raises(errors.NotPermitted, match="password in the URL is wrong") as caught:
                    asked(store, through, mark("a"))
                assert "wrong@" not in str(caught.value)
    finally:
        client.acl_deluser("guarded")
    with node() as port, closing(RedisStore(url(port))) as store, redis.Redis(port=port) as owner:
        owner.config_set("requirepass", "sesame")
        for through in ("sync", "async"):
            with pytest.raises(errors.NotPermitted, match="wants a password"):
                asked(store, through, mark("a"))


def test_what_a_user_may_not_do_is_refused_and_named(
    redis_server: str, client: redis.Redis, prefix: str
) -> None:
    options: dict[str, Any] = {"enabled": True, "nopass": True, "categories": ["+@all"], "reset": True}
    client.acl_setuser("elsewhere", keys=["other:*"], **options)
    client.acl_setuser("reader", keys=[f"{prefix}:*"], commands=["-hset"], **options)
    host = redis_server.removeprefix("redis://")
    try:
        for user in ("elsewhere", "reader"):
            with (
                closing(RedisStore(f"redis://{user}:x@{host}?prefix={prefix}")) as store,
                pytest.raises(errors.NotPermitted, match="may not do that"),
            ):
                store.execute(mark("a"))
    finally:
        client.acl_deluser("elsewhere", "reader")


def permissions() -> list[str]:
    """The user that the docs describe, as words for ACL SETUSER."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "use-redis.md").read_text("utf-8")
    [block] = re.findall(r"^ACL SETUSER (.*?)^```", page, re.DOTALL | re.MULTILINE)
    return block.split()


@pytest.mark.parametrize("where", ["server", "cluster"])
def test_the_permissions_in_the_docs_are_enough(
    request: pytest.FixtureRequest, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every command, and for waiting; and they end at the prefix."""
    monkeypatch.setattr("semel.stores.redis.store.LINGER_SECONDS", 0.01)
    server = request.getfixturevalue(f"redis_{where}")
    words = permissions()
    with ExitStack() as stack:
        nodes = [stack.enter_context(redis.Redis.from_url(server))]
        if where == "cluster":
            cluster = stack.enter_context(RedisCluster.from_url(server))
            nodes = [
                stack.enter_context(redis.Redis(each.host, each.port)) for each in cluster.get_primaries()
            ]
        old = nodes[0].info("server")["redis_version"] < "7"
        if old:
            words = [word for word in words if word not in ("+spublish", "+ssubscribe", "+sunsubscribe")]
        for each in nodes:
            each.execute_command("ACL", "SETUSER", *words)
            stack.callback(each.acl_deluser, "semel")
        name = f"semel:{os.getpid()}-{next(NUMBERS)}"
        option = "cluster=yes&" if where == "cluster" else ""
        place = f"{server.replace('://', '://semel:password@')}?{option}prefix={name}"
        store = stack.enter_context(closing(RedisStore(place)))
        for command in EVERYTHING:
            store.execute(command)
        channel = f"{name}:{THINGS.name}:{{/}}{{a}}".encode()
        with store._listener.subscribed(channel, "a") as heard_of:
            assert (old and where == "cluster") or until(lambda: heard_of.news)
        assert until(lambda: not store._listener._channels)
        stranger = stack.enter_context(closing(RedisStore(place.replace("semel:", "other-", 2))))
        with pytest.raises(errors.NotPermitted):
            stranger.execute(mark("a"))


EVERYTHING: list[Stored] = [
    mark("a"),
    Update(THINGS, "a", {"text": None, "gone_at": 1e12}),
    Add(NOTES, "a", "count", 1, {"gone_at": After(100)}, sort="1"),
    Put(NOTES, "a", {"gone_at": After(200)}, sort="2"),
    Put(LINES, "a", {}, sort=1),
    *(Query(table, "a", reverse=reverse) for table in (THINGS, NOTES, LINES) for reverse in (False, True)),
    Query(NOTES),
    Transact((Delete(NOTES, "a", sort="1"), Delete(LINES, "a", sort=1))),
    Batch((mark("b"), mark("c"))),
    Delete(THINGS, "a"),
    Put(ENTRIES, "a", {"text": "x", "due": 1, "gone_at": After(9)}, sort="1"),
    Update(ENTRIES, "a", {"due": 2}, sort="1"),
    Update(ENTRIES, "a", {"gone_at": 1e12}, sort="1"),
    *(Query(ENTRIES, "x", index="text-due", reverse=reverse) for reverse in (False, True)),
    Time(),
]


def test_a_user_who_may_not_publish_still_writes(redis_server: str, client: redis.Redis, prefix: str) -> None:
    client.acl_setuser("mute", enabled=True, nopass=True, categories=["+@all"], keys=["*"], reset=True)
    host = redis_server.removeprefix("redis://")
    try:
        with closing(RedisStore(f"redis://mute:x@{host}?prefix={prefix}")) as store:
            assert type(store.execute(mark("a"))) is Applied
            assert store.execute(Watch(THINGS, "a", 0.05)).item is not None
    finally:
        client.acl_deluser("mute")


def test_a_full_server_refuses_and_writes_nothing() -> None:
    with node() as port, closing(RedisStore(url(port))) as store, redis.Redis(port=port) as client:
        store.execute(mark("a"))
        client.config_set("maxmemory", 1)
        with pytest.raises(errors.StoreUnavailable, match="raise maxmemory"):
            store.execute(mark("b"))
        client.config_set("maxmemory", 0)
        assert store.execute(Get(THINGS, "b")).item is None


@pytest.mark.situation(22)
def test_no_replica_is_ever_read(redis_pair: Pair) -> None:
    """Neither one that the URL names nor a primary that has become one."""
    with (
        closing(RedisStore(redis_pair.replica)) as store,
        pytest.raises(errors.StoreUnavailable, match="replica"),
    ):
        store.execute(Get(THINGS, "a"))
    with node() as port, closing(RedisStore(url(port))) as store, redis.Redis(port=port) as client:
        store.execute(mark("a"))
        store.execute(Put(NOTES, "a", {"gone_at": After(1000)}, ABSENT, "1"))
        client.replicaof(HOST, int(redis_pair.primary.rpartition(":")[2]))
        for command in (Get(THINGS, "a"), Query(NOTES, "a"), Query(ENTRIES, "a", index="text"), mark("b")):
            with pytest.raises(errors.StoreUnavailable, match="it is a replica"):
                store.execute(command)


def test_somebody_elses_key_is_not_taken_for_an_item(here: str, prefix: str, client: redis.Redis) -> None:
    client.set(f"{prefix}:{THINGS.name}:{{/}}{{a}}", "theirs")
    with closing(RedisStore(here)) as store:
        for command in (mark("a"), Get(THINGS, "a")):
            with pytest.raises(errors.WrongSchema, match="prefix="):
                store.execute(command)


def test_a_record_that_somebody_has_damaged_is_reported_and_left_alone(
    here: str, prefix: str, client: redis.Redis
) -> None:
    with semel.connect(here) as s:
        s.ledger.claim("key")
        name = f"{prefix}:ledger:{{dev//}}{{key}}"
        client.hset(name, mapping={"attempt": "many", "status": b"\xff", "added": "by a newer one"})
        before = client.hgetall(name)
        with pytest.raises(errors.RecordCorrupt):
            s.ledger.claim("key")
        assert s.ledger.list().unreadable == ("key",)
        assert client.hgetall(name) == before


# Replicas that confirm


def test_a_claim_is_acted_on_once_as_many_replicas_as_asked_have_it(redis_pair: Pair, prefix: str) -> None:
    with (
        semel.connect(f"{redis_pair.primary}?prefix={prefix}&wait_replicas=1") as s,
        redis.Redis.from_url(redis_pair.replica) as replica,
    ):
        seen: list[bytes | None] = []
        work = s.once("work:{n}")(
            lambda n: seen.append(replica.hget(f"{prefix}:ledger:{{dev//}}{{work:1}}", "status"))
        )
        work(1)
        assert seen == [b"IN_PROGRESS"]


@pytest.mark.situation(21)
@both
def test_a_claim_that_too_few_replicas_have_is_not_acted_on(
    redis_pair: Pair, prefix: str, through: str
) -> None:
    """Also when it is sent again and finds itself."""
    place = f"{redis_pair.primary}?prefix={prefix}&wait_replicas=2&wait_timeout=0.02"
    with semel.connect(place) as s:
        runs: list[int] = []
        with pytest.raises(errors.StoreOutcomeUnknown, match="wait_replicas asks for 2"):
            _once(s, through, runs)
        assert runs == []


def test_a_refusal_is_confirmed_as_a_write_is(redis_pair: Pair, prefix: str) -> None:
    """It may show the caller's own claim. Only writes are confirmed, so it writes what is there already."""
    place = f"{redis_pair.primary}?prefix={prefix}&wait_replicas=1"
    with redis.Redis.from_url(redis_pair.primary) as client, closing(RedisStore(place)) as store:

        def written() -> int:
            return int(client.info("commandstats")["cmdstat_hset"]["calls"])

        store.execute(mark("a"))
        before, kept = written(), client.hgetall(f"{prefix}:{THINGS.name}:{{/}}{{a}}")
        assert type(store.execute(mark("a"))) is Refused
        assert written() == before + 1
        assert client.hgetall(f"{prefix}:{THINGS.name}:{{/}}{{a}}") == kept


@both
def test_a_replica_that_hangs_confirms_nothing(redis_pair: Pair, prefix: str, through: str) -> None:
    """A claim that finds itself over another connection is in doubt as it was over the first."""
    place = f"{redis_pair.primary}?prefix={prefix}&wait_replicas=1&wait_timeout=0.1"
    with redis.Redis.from_url(redis_pair.replica) as replica, semel.connect(place) as s:
        s.ledger.get("opened")
        process = int(replica.info("server")["process_id"])
        os.kill(process, signal.SIGSTOP)
        try:
            runs: list[int] = []
            with pytest.raises(errors.StoreOutcomeUnknown, match="0 replicas"):
                _once(s, through, runs)
            mine = s.store.execute(Get(LEDGER, "dev//work:1")).item
            again = Put(LEDGER, "dev//work:1", mine | {"expires_at": After(1000)}, ABSENT)
            with (
                closing(RedisStore(place)) as elsewhere,
                pytest.raises(errors.StoreOutcomeUnknown, match="0 replicas"),
            ):
                elsewhere.execute(again)
            assert runs == []
        finally:
            os.kill(process, signal.SIGCONT)
        assert until(lambda: _confirmed(s, again))


def _confirmed(s: semel.Semel, write: Put) -> bool:
    try:
        return type(s.store.execute(write)) is Refused
    except errors.StoreOutcomeUnknown:
        return False


def _once(s: semel.Semel, through: str, runs: list[int]) -> None:
    @s.once("work:{n}")
    def work(n: int) -> None:
        runs.append(n)

    @s.once("work:{n}", shared=True)
    async def awork(n: int) -> None:
        runs.append(n)

    async def main() -> None:
        try:
            await awork(1)
        finally:
            await leave(s.store)

    work(1) if through == "sync" else asyncio.run(main())


# Waiting


def settled(store: RedisStore, id: str) -> tuple[str, int]:
    """Wait, looking once in an age, until nobody is at work; its status, and how often it was looked at."""
    looks, status = 0, "IN_PROGRESS"
    while status == "IN_PROGRESS":
        status, looks = store.execute(Watch(LEDGER, id, AGES)).item["status"], looks + 1
    return status, looks


async def asettled(store: RedisStore, id: str) -> tuple[str, int]:
    looks, status = 0, "IN_PROGRESS"
    while status == "IN_PROGRESS":
        status, looks = (await store.aexecute(Watch(LEDGER, id, AGES))).item["status"], looks + 1
    await leave(store)
    return status, looks


def heard(client: redis.Redis, channel: str) -> bool:
    """Whether somebody listens on it, on a single server or on the node that has it."""
    for word in ("NUMSUB", "SHARDNUMSUB"):
        with contextlib.suppress(redis.ResponseError):
            if client.execute_command("PUBSUB", word, channel)[1]:
                return True
    return False


@both
@pytest.mark.parametrize("where", PLACES)
def test_a_waiter_is_woken_by_what_others_write(
    request: pytest.FixtureRequest, prefix: str, through: str, where: str
) -> None:
    """The waiter would not look again for an hour, and the writer is another store: only Redis tells it."""
    place = placed(request, where, prefix)
    server = place.partition("?")[0]
    channel = f"{prefix}:ledger:{{dev//}}{{key}}"
    owner = redis.Redis.from_url(server)
    if where != "server":
        with RedisCluster.from_url(server) as cluster:
            found = cluster.get_node_from_key(channel)
            owner = redis.Redis(host=found.host, port=found.port)
    with owner, semel.connect(place) as s, closing(RedisStore(place)) as waiting:
        if where != "server" and owner.info("server")["redis_version"] < "7":
            pytest.skip("in a cluster only Redis 7 tells those alone who listen")
        claim = claimed(s.ledger.claim("key"))
        waiting.execute(Get(LEDGER, claim.id))
        told: list[tuple[str, int]] = []
        wait = settled if through == "sync" else lambda *args: asyncio.run(asettled(*args))
        waiter = threading.Thread(target=lambda: told.append(wait(waiting, claim.id)), daemon=True)
        waiter.start()
        assert until(lambda: heard(owner, channel))
        s.ledger.complete(claim, "done")
        waiter.join()
        [(status, looks)] = told
        assert status == "COMPLETED"
        assert looks <= 3


@both
def test_a_waiter_of_the_same_store_is_woken_by_nobody_else(
    here: str, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisListener, "subscribed", lambda *_: contextlib.nullcontext(Subscription(None)))
    with semel.connect(here) as s:
        assert isinstance(s.store, RedisStore)
        store = s.store
        claims = [claimed(s.ledger.claim(f"key-{number}")) for number in range(3)]
        told: list[tuple[str, int]] = []
        wait = settled if through == "sync" else lambda *args: asyncio.run(asettled(*args))
        for claim in claims:
            waiter = threading.Thread(target=lambda id=claim.id: told.append(wait(store, id)), daemon=True)
            waiter.start()
            assert until(lambda: len(store._watchers) == 1)
            change = Update(LEDGER, claim.id, {"status": "FAILED"})
            ways: list[Stored] = [change, Batch((change,)), Transact((change,))]
            store.execute(ways[len(told)])
            waiter.join()
        assert told == [("FAILED", 1)] * 3


WAITER = """
import sys
import semel
from semel.core.commands import Watch
from semel.tables import LEDGER

s = semel.connect(sys.argv[1])
while (item := s.store.execute(Watch(LEDGER, "dev//key", 3600.0)).item)["status"] == "IN_PROGRESS":
    pass
print(item["status"], s.ledger.claim("key").result)
s.close()
"""


def test_a_waiter_in_another_process_is_woken(here: str, prefix: str, client: redis.Redis) -> None:
    with semel.connect(here) as s:
        claim = claimed(s.ledger.claim("key"))
        with subprocess.Popen([sys.executable, "-c", WAITER, here], stdout=-1, text=True) as process:
            assert until(lambda: heard(client, f"{prefix}:ledger:{{dev//}}{{key}}"))
            s.ledger.complete(claim, "done")
            assert process.communicate()[0] == "COMPLETED done\n"


def test_a_waiter_is_still_woken_after_the_connection_it_was_heard_on_broke(
    here: str, prefix: str, client: redis.Redis
) -> None:
    def listeners() -> set[str]:
        return {each["id"] for each in client.client_list(_type="pubsub")}

    channel = f"{prefix}:ledger:{{dev//}}{{key}}"
    with semel.connect(here) as s, closing(RedisStore(here)) as waiting:
        claim = claimed(s.ledger.claim("key"))
        told: list[tuple[str, int]] = []
        waiter = threading.Thread(target=lambda: told.append(settled(waiting, claim.id)), daemon=True)
        waiter.start()
        assert until(lambda: heard(client, channel))
        first = listeners()
        client.client_kill_filter(_type="pubsub")
        assert until(lambda: heard(client, channel) and not listeners() & first)
        s.ledger.complete(claim, "done")
        waiter.join()
    assert told[0][0] == "COMPLETED"


def test_who_was_rung_for_between_two_looks_is_rung_for_until_it_looks(redis_server: str) -> None:
    address, rings = parse(redis_server), queue.SimpleQueue[Any]()
    with (
        closing(RedisListener(address, lambda _: address.home, rings.put)) as listener,
        listener.subscribed(b"a channel", "a place") as heard_of,
    ):
        assert [rings.get() for _ in range(5)] == ["a place"] * 5
        heard_of.news = False
        assert listener._next_timeout() == LINGER_SECONDS


def test_what_nobody_waits_for_is_no_longer_listened_for(
    here: str, prefix: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.stores.redis.store.LINGER_SECONDS", 0.01)
    with closing(RedisStore(here)) as store:
        store.execute(mark("a"))
        channel = f"{prefix}:{THINGS.name}:{{/}}{{a}}"
        store.execute(Watch(THINGS, "a", 0.05))
        assert until(lambda: not heard(client, channel) and not store._listener._channels)


# Time, expiry, listing


@pytest.mark.seed("A1")
def test_the_time_is_the_servers(here: str, client: redis.Redis) -> None:
    class Wrong(Clock):
        def now(self) -> float:
            return 0.0

    def server_time() -> float:
        seconds, microseconds = client.time()
        return seconds + microseconds / 1e6

    with semel.connect(here, clock=Wrong()) as s:
        before = server_time()
        s.ledger.claim("key", lease=30)
        after = server_time()
        record = s.ledger.get("key")
        assert before <= record.created_at <= after
        assert before + 30 <= record.lease_until <= after + 30


def test_the_time_is_told_without_asking_once_something_was_heard(
    here: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(RedisStore(here)) as store:
        assert store.at_once(Time()) is None
        assert store.at_once(Get(THINGS, "a")) is None
        store.execute(mark("a"))
        sent = recorded(monkeypatch)
        seconds, _ = client.time()
        told, later = store.execute(Time()).now, store.at_once(Time())
        assert later is not None
        assert seconds - 1 <= told <= later.now <= client.time()[0] + 1
        assert [reply.now >= later.now for reply in asked(store, "async", Time())] == [True]
        assert sent == []
    assert store.at_once(Time()) is None
    with pytest.raises(errors.StoreClosed):
        asked(store, "async", Time())


def test_redis_removes_an_item_only_after_its_time(here: str, prefix: str, client: redis.Redis) -> None:
    with closing(RedisStore(here)) as store:
        store.execute(mark("a"))
        assert 1000_000 < client.pttl(f"{prefix}:{THINGS.name}:{{/}}{{a}}") <= 1060_000
        store.execute(Update(THINGS, "a", {"gone_at": After(5000)}))
        assert 5000_000 < client.pttl(f"{prefix}:{THINGS.name}:{{/}}{{a}}") <= 5060_000
        store.execute(Update(THINGS, "a", {"gone_at": 1e12}))
        assert client.pttl(f"{prefix}:{THINGS.name}:{{/}}{{a}}") == -1
        for place, life in (("1", 100), ("2", 2000), ("3", 10)):
            store.execute(Put(NOTES, "a", {"gone_at": After(life)}, sort=place))
        assert 2000_000 < client.pttl(f"{prefix}:{NOTES.name}:{{/}}{{a}}") <= 2060_000
        store.execute(Put(LINES, "a", {"gone_at": After(100)}, sort=1))
        store.execute(Put(LINES, "a", {}, sort=2))
        assert client.pttl(f"{prefix}:{LINES.name}:{{/}}{{a}}") == -1
        store.execute(Put(LINES, "a", {"gone_at": After(100)}, sort=3))
        assert client.pttl(f"{prefix}:{LINES.name}:{{/}}{{a}}") == -1


def test_an_order_forgets_what_redis_has_removed(here: str, prefix: str, client: redis.Redis) -> None:
    order = f"{prefix}:{NOTES.name}:{{/}}{{a}}"
    with closing(RedisStore(here)) as store:
        for place in "123456":
            store.execute(Put(NOTES, "a", {"gone_at": After(100)}, sort=place))
        client.delete(f"{order}:1", f"{order}:4")  # as after their end
        store.execute(Put(NOTES, "a", {"gone_at": After(100)}, sort="7"))
        assert b"1" not in client.zrange(order, 0, -1)
        page = store.execute(Query(NOTES, "a", limit=3))
        assert [item["place"] for item in page.items] == ["2", "3", "5"]
        assert client.zrange(order, 0, -1) == [b"2", b"3", b"5", b"6", b"7"]
        store.execute(Delete(NOTES, "a", sort="3"))
        assert client.zrange(order, 0, -1) == [b"2", b"5", b"6", b"7"]


@pytest.mark.parametrize("where", ["server", "cluster"])
def test_a_ledger_lists_thousands_of_records_page_by_page(
    request: pytest.FixtureRequest, prefix: str, where: str
) -> None:
    """Each once, though they lie on several nodes in no order, and others' keys between them."""
    server = request.getfixturevalue(f"redis_{where}")
    option = "cluster=yes&" if where == "cluster" else ""
    with semel.connect(f"{server}?{option}prefix={prefix}") as s:
        s.ledger.check_and_set_many([f"key-{number}" for number in range(2000)])
        s.scoped("other").ledger.check_and_set_many([f"key-{number}" for number in range(500)])
        keys: list[str] = []
        after = None
        while True:
            listing = s.ledger.list(limit=70, after=after)
            keys += [record.key for record in listing.records]
            after = listing.after
            if after is None:
                break
            assert len(listing.records) == 70
            assert len(after) < 40_000
        assert sorted(keys) == sorted(f"key-{number}" for number in range(2000))
        assert s.ledger.list(status="FAILED").records == ()


# Indexes


def entry(key: str, sort: str, life: float = 1000, **attributes: Any) -> Put:
    return Put(ENTRIES, key, {"gone_at": After(life), **attributes}, sort=sort)


def found(store: RedisStore, text: str, index: str = "text") -> list[str]:
    return [item["place"] for item in store.execute(Query(ENTRIES, text, index=index)).items]


def stopped(store: RedisStore, command: Stored, exchanges: int) -> bool:
    """Whether a command came to its end in so many exchanges; after them its process is no more."""
    dialogue = store.interpreter.perform(command)
    answers: Any = None
    try:
        for _ in range(exchanges):
            answers = store._pool.exchange(dialogue.send(answers))
        dialogue.send(answers)
    except StopIteration:
        return True
    dialogue.close()
    return False


def unfound(store: RedisStore) -> list[Item]:
    """Items that an index should lead to, and does not."""
    lost = []
    for item in store.execute(Query(ENTRIES)).items:
        for index in ENTRIES.indexes:
            if {index.partition, index.sort or index.partition} <= item.keys():
                query = Query(ENTRIES, item[index.partition], index=index.name)
                lost += [] if item in store.execute(query).items else [item]
    return lost


MOVES: list[Stored] = [
    entry("a", "1", text="y", due=2, count=3),
    entry("b", "1", text="y", due=2, count=3),
    Update(ENTRIES, "a", {"due": 2}, sort="1"),
    Update(ENTRIES, "a", {"text": "y", "due": 2, "count": 3, "gone_at": After(5)}, sort="1"),
    Update(ENTRIES, "a", {"gone_at": After(1e6)}, sort="1"),
    Add(ENTRIES, "a", "count", 1, {"gone_at": After(1000)}, sort="1"),
    Add(ENTRIES, "b", "count", 1, {"text": "y", "due": NOW, "gone_at": After(1000)}, sort="1"),
    Transact((Update(ENTRIES, "a", {"text": "y"}, sort="1"), entry("a", "2", text="y"))),
    Batch((Update(ENTRIES, "a", {"text": "y"}, sort="1"), entry("b", "2", text="y"))),
]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("move", MOVES, ids=lambda move: type(move).__name__)
def test_whoever_dies_whenever_no_index_lacks_an_item(
    request: pytest.FixtureRequest, prefix: str, where: str, move: Stored
) -> None:
    """An item and its entries are written together."""
    with ExitStack() as stack:
        for exchanges in itertools.count():
            place = placed(request, where, f"{prefix}-{exchanges}")
            store = stack.enter_context(closing(RedisStore(place, clock=FakeClock())))
            store.execute(entry("a", "1", text="x", due=1, count=1))
            over = stopped(store, move, exchanges)
            assert unfound(store) == []
            if over:
                break
    assert exchanges >= 1


@pytest.mark.parametrize("where", ["server", "cluster"])
def test_a_crowd_that_moves_one_item_leaves_it_where_its_indexes_lead(
    request: pytest.FixtureRequest, prefix: str, where: str
) -> None:
    """Each names one attribute of an index and leaves the other as it is."""
    with closing(RedisStore(placed(request, where, prefix))) as store:
        store.execute(entry("a", "1", text="0", due=0, count=0))
        changes: list[Write] = []
        for number in range(8):
            changes += [
                Update(ENTRIES, "a", {"due": number}, sort="1"),
                Update(ENTRIES, "a", {"text": str(number)}, sort="1"),
                Add(ENTRIES, "a", "count", 1, {"gone_at": After(1000)}, sort="1"),
            ]
        with ThreadPoolExecutor(len(changes)) as pool:
            assert {type(reply) for reply in pool.map(store.execute, changes)} == {Applied}
        assert unfound(store) == []
        [item] = store.execute(Query(ENTRIES)).items
        assert item["count"] == 8


def test_an_item_that_changes_its_place_leaves_no_entry_behind(
    here: str, prefix: str, client: redis.Redis
) -> None:
    """Whatever writes it: an update, another item in its place, an addition, or its deletion."""
    base = f"{prefix}:{ENTRIES.name}"
    moves: list[Write] = [
        Update(ENTRIES, "a", {"text": "y", "due": NOW}, sort="1"),
        entry("a", "1", text="z", count=7),
        Add(ENTRIES, "a", "count", 1, {"due": 5}, sort="1"),
        Update(ENTRIES, "a", {"text": None}, sort="1"),
        entry("a", "1"),
        entry("a", "1", text="x", due=1, count=1),
        Delete(ENTRIES, "a", sort="1"),
    ]
    left = [
        {"text:y", "text-due:y"},
        {"text:z", "count-text:7"},
        {"text:z", "text-due:z", "count-text:8"},
        set(),
        set(),
        {"text:x", "text-due:x", "count-text:1"},
        set(),
    ]
    with closing(RedisStore(here)) as store:
        store.execute(entry("a", "1", text="x", due=1))
        for move, indexes in zip(moves, left, strict=True):
            assert type(store.execute(move)) is Applied
            found = {
                key.decode().removeprefix(f"{base}/") for key in client.scan_iter(f"{base}/*", count=1000)
            }
            assert found == indexes


def test_an_entry_that_leads_nowhere_is_removed_by_its_reader(
    here: str, prefix: str, client: redis.Redis
) -> None:
    """Its item was removed by Redis, as after its end; or was, and another one has its key."""
    index = f"{prefix}:{ENTRIES.name}/text:x"
    with closing(RedisStore(here)) as store:
        store.execute(Batch(tuple(entry("a", place, text="x") for place in "123")))
        client.delete(*(f"{prefix}:{ENTRIES.name}:{{/}}{{a}}:{place}" for place in "12"))
        store.execute(entry("a", "1", text="y"))
        assert client.zcard(index) == 3
        assert found(store, "x") == ["3"]
        assert client.zcard(index) == 1
        assert found(store, "y") == ["1"]


def test_an_index_ends_with_the_last_of_its_items(here: str, prefix: str, client: redis.Redis) -> None:
    index = f"{prefix}:{ENTRIES.name}/text:x"

    def lives(seconds: float) -> bool:
        return seconds * 1000 < int(client.pttl(index)) <= (seconds + 60) * 1000

    with closing(RedisStore(here)) as store:
        store.execute(entry("a", "1", 100, text="x"))
        assert lives(100)
        store.execute(entry("a", "2", 2000, text="x"))
        store.execute(entry("a", "3", 50, text="x"))
        assert lives(2000)
        store.execute(Put(ENTRIES, "a", {"gone_at": 1e12, "text": "x"}, sort="4"))
        assert client.pttl(index) == -1


def test_an_index_that_is_only_written_forgets_what_has_ended(
    here: str, prefix: str, client: redis.Redis
) -> None:
    """Nobody ever reads it, and somebody always writes to it."""
    clock, index = FakeClock(), f"{prefix}:{ENTRIES.name}/text:x"
    with closing(RedisStore(here, clock=clock)) as store:
        for number in range(30):
            store.execute(entry("a", str(number), 3600, text="x"))
            clock.advance(24 * 3600)
        assert client.zcard(index) <= 3


def test_an_item_that_lives_on_takes_its_entries_along(here: str, prefix: str, client: redis.Redis) -> None:
    """Though what lets it live on says nothing of an index."""
    index = f"{prefix}:{ENTRIES.name}/text:x"
    with closing(RedisStore(here)) as store:
        store.execute(entry("a", "1", 100, text="x"))
        for life in (3000, 30_000, 3000):
            store.execute(Update(ENTRIES, "a", {"gone_at": After(life)}, sort="1"))
            assert client.pttl(index) > life * 1000
        store.execute(entry("b", "2", text="x"))
        assert found(store, "x") == ["1", "2"]


def test_an_item_that_nothing_leads_to_any_more_is_written_as_any_other(
    here: str, prefix: str, client: redis.Redis
) -> None:
    with closing(RedisStore(here)) as store:
        store.execute(entry("a", "1", text="x"))
        store.execute(Update(ENTRIES, "a", {"text": None}, sort="1"))
        store.execute(Update(ENTRIES, "a", {"gone_at": After(1e6)}, sort="1"))
        assert client.hexists(f"{prefix}:{ENTRIES.name}:{{/}}{{a}}:1", "@") is False
        assert found(store, "x") == []


def test_a_claim_without_a_subject_leaves_one_key_and_one_with_a_subject_is_found_by_it(
    here: str, prefix: str, client: redis.Redis
) -> None:
    opening = {"status": "IN_PROGRESS", "token": "t", "expires_at": After(100)}
    with closing(RedisStore(here)) as store:
        store.execute(Put(LEDGER, "dev//a", opening, ABSENT))
        assert {*client.scan_iter(f"{prefix}:ledger*")} == {f"{prefix}:ledger:{{dev//}}{{a}}".encode()}
        assert client.hexists(f"{prefix}:ledger:{{dev//}}{{a}}", "@") is False
        store.execute(Put(LEDGER, "dev//b", opening | {"subject": "7f3a"}, ABSENT))
        store.execute(Update(LEDGER, "dev//b", {"status": "COMPLETED", "expires_at": After(500)}))
        [item] = store.execute(Query(LEDGER, "7f3a", index="subject")).items
        assert (item["id"], item["status"]) == ("dev//b", "COMPLETED")
        assert store.execute(Query(LEDGER, "7f3b", index="subject")).items == ()


def test_a_page_of_an_index_reads_no_more_than_it_shows(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand entries, those of one page and one more."""
    with closing(RedisStore(here)) as store:
        store.execute(Batch(tuple(entry("a", f"{n:04}", text="x", due=n) for n in range(1000))))
        sent = recorded(monkeypatch)
        page = store.execute(Query(ENTRIES, "x", low=500, limit=10, index="text-due"))
        assert [item["due"] for item in page.items] == [*range(500, 510)]
        assert [exchange.count for exchange in sent] == [1]
        assert b"\r\n11\r\n" in sent[0].data


# Transactions


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[RedisRequest]:
    """What is sent from now on, by threads and by tasks."""
    sent: list[RedisRequest] = []
    pool, apool = RedisPool.exchange, AsyncRedisPool.exchange

    def exchange(self: RedisPool, asked: RedisRequest) -> list[Any]:
        sent.append(asked)
        return pool(self, asked)

    async def aexchange(self: AsyncRedisPool, asked: RedisRequest) -> list[Any]:
        sent.append(asked)
        return await apool(self, asked)

    monkeypatch.setattr(RedisPool, "exchange", exchange)
    monkeypatch.setattr(AsyncRedisPool, "exchange", aexchange)
    return sent


def dealing(number: int, cap: int = 3, **entry: Any) -> Transact:
    """One completion, one charge within a cap, one document and one entry of what a person did."""
    token, end = f"t{number}", {"expires_at": After(1000)}
    return Transact(
        (
            Put(LEDGER, f"dev/acme/reply:{number}", {"status": "COMPLETED", "token": token, **end}, ABSENT),
            Add(COUNTERS, "dev/acme/replies", "count", 1, {"updated_at": NOW} | end, cap, "2026-01-01"),
            Put(COUNTERS, "dev/acme/replies", {"by": 1, "token": token, **end}, ABSENT, f"~{token}"),
            Put(DOCUMENTS, f"dev/acme/chat:{number}", {"body": {"n": 1}, "token": token, **end}, ABSENT),
            Put(
                JOURNAL,
                "dev/acme/chat",
                {"actor": "dev/acme/ann", "at": float(number), "token": token, **end, **entry},
                ABSENT,
                f"e{number:04}",
            ),
        )
    )


def done(store: RedisStore) -> list[float]:
    """When the person did something, by the index of that."""
    page = store.execute(Query(JOURNAL, "dev/acme/ann", index="actor-at", limit=500))
    return [item["at"] for item in page.items]


@both
@pytest.mark.parametrize("where", ["server", "cluster"])
@pytest.mark.seed("H5")
def test_a_transaction_over_all_tables_is_one_round_trip(
    request: pytest.FixtureRequest, prefix: str, where: str, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completion, charge, document and journal, with what leads to the journal's entry; refused ones too."""
    with closing(RedisStore(placed(request, where, prefix))) as store:
        asked(store, through, Get(THINGS, "opened"), dealing(0))
        sent = recorded(monkeypatch)
        made, cancelled = asked(store, through, dealing(1), dealing(0))
        assert (type(made), type(cancelled)) == (Applied, Cancelled)
        assert [exchange.count for exchange in sent] == [1, 1]
        assert done(store) == [0.0, 1.0]
        sent.clear()
        asked(store, through, dealing(2, subject="7f3a"))
        assert [exchange.count for exchange in sent] == [1]


@both
@pytest.mark.parametrize("where", ["server", "cluster"])
def test_a_crowd_of_transactions_stays_within_a_cap(
    request: pytest.FixtureRequest, prefix: str, where: str, through: str
) -> None:
    """200 at once, three may: three have everything, and the others nothing."""
    with closing(RedisStore(placed(request, where, prefix))) as store:
        if through == "sync":
            with ThreadPoolExecutor(200) as pool:
                replies = list(pool.map(store.execute, map(dealing, range(200))))
        else:

            async def main() -> list[Any]:
                replies = await asyncio.gather(*(store.aexecute(dealing(each)) for each in range(200)))
                await leave(store)
                return replies

            replies = asyncio.run(main())
        winners = [number for number, reply in enumerate(replies) if type(reply) is Applied]
        assert len(winners) == 3
        assert {type(reply) for reply in replies} == {Applied, Cancelled}
        counted = store.execute(Get(COUNTERS, "dev/acme/replies", "2026-01-01")).item
        assert counted["count"] == 3
        assert done(store) == winners
        for table in (LEDGER, DOCUMENTS):
            assert len(store.execute(Query(table, limit=500)).items) == 3


@both
def test_a_transaction_whose_answer_was_lost_is_known_by_its_tokens(
    proxy: FaultProxy, here: str, through: str
) -> None:
    """Sent again as it is, it finds its own marks, and nothing was counted or entered twice."""
    with closing(RedisStore(proxy.url(here))) as store:
        asked(store, through, Get(THINGS, "opened"))
        proxy.drop_answer_to(b"dev/acme/ann")
        command = dealing(1)
        with pytest.raises(errors.StoreOutcomeUnknown):
            asked(store, through, command)
        [again] = asked(store, through, command)
        assert proxy.dropped == 1
        tokens = [refusal and refusal.item["token"] for refusal in again.refusals]
        assert tokens == ["t1", None, "t1", "t1", "t1"]
        assert asked(store, through, Get(COUNTERS, "dev/acme/replies", "2026-01-01"))[0].item["count"] == 1
        assert done(store) == [1.0]


# A cluster


def test_what_was_made_on_a_server_is_not_opened_in_a_cluster(
    here: str, redis_cluster: str, prefix: str
) -> None:
    """Nor the other way: an index has other names there, and would lack what is in it."""
    provision(here, "dev")
    in_cluster = f"{redis_cluster}?cluster=yes&prefix={prefix}"
    provision(in_cluster, "dev")
    with (
        redis.Redis.from_url(here.partition("?")[0]) as client,
        RedisCluster.from_url(redis_cluster) as cluster,
    ):
        client.hset(f"{prefix}:meta", "layout", "cluster")
        cluster.hset(f"{prefix}:meta", "layout", "server")
    for place, made in ((here, "in a cluster"), (in_cluster, "on a single server")):
        for through in ("sync", "async"):
            with (
                closing(RedisStore(place)) as store,
                pytest.raises(errors.WrongSchema, match=f"was made {made}"),
            ):
                asked(store, through, mark("a"))
        [problem] = [each for each in problems(place, "dev") if "was made" in each.what]
        assert "open it as it was made" in problem.remedy


def test_each_scope_of_a_cluster_is_in_one_slot_and_claims_lists_and_forgets(
    redis_cluster: str, prefix: str
) -> None:
    place = f"{redis_cluster}?cluster=yes&prefix={prefix}"
    with (
        semel.connect(place, secret=b"a secret of sixteen") as s,
        RedisCluster.from_url(redis_cluster) as cluster,
    ):
        tenants = [s.scoped(name) for name in ("acme", "bolt")]
        for tenant in tenants:
            assert tenant.ledger.check_and_set_many([f"key:{n}" for n in range(50)]) == [True] * 50
            assert len(tenant.ledger.list(limit=100).records) == 50
        names = [*cluster.scan_iter(f"{prefix}:ledger:*", count=1000)]
        assert len(names) == 100
        assert len({key_slot(name) for name in names}) == 2
        assert s.ledger.list().records == ()
        work = tenants[0].once("charge:{order}", subject="{order}")(lambda order: f"charged {order}")
        assert [work("o-1"), work("o-1")] == ["charged o-1"] * 2
        assert [tenant.forget_subject("o-1").records for tenant in tenants] == [1, 0]


@both
def test_a_slot_that_moves_takes_its_claims_along(redis_cluster: str, prefix: str, through: str) -> None:
    """While it moves, a new key is made on the new node; afterwards everybody is sent there."""
    with RedisCluster.from_url(redis_cluster) as cluster, ExitStack() as stack:
        names = (f"moving-{number}" for number in itertools.count())
        # One whose slot is empty, as a slot with keys in it is not given away so simply.
        moving = next(n for n in names if not cluster.cluster_countkeysinslot(key_slot(f"dev/{n}/".encode())))
        key, slot = f"{prefix}:{THINGS.name}:{{dev/{moving}/}}{{k}}", key_slot(f"dev/{moving}/".encode())
        source = cluster.get_node_from_key(key)
        target = next(each for each in cluster.get_primaries() if each.name != source.name)
        ends = [stack.enter_context(redis.Redis(host=each.host, port=each.port)) for each in (source, target)]
        ids = [end.execute_command("CLUSTER", "MYID").decode() for end in ends]
        store = stack.enter_context(closing(RedisStore(f"{redis_cluster}?cluster=yes&prefix={prefix}")))
        moved = f"dev/{moving}/k"
        asked(store, through, Get(THINGS, moved))
        ends[1].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
        ends[0].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
        assert type(asked(store, through, mark(moved))[0]) is Applied
        for end in ends:
            end.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
        assert ends[1].exists(key) == 1
        assert type(asked(store, through, mark(moved))[0]) is Refused
        [many] = asked(store, through, Batch((mark(moved), mark("another"))))
        assert [type(reply) for reply in many.replies] == [Refused, Applied]


def test_while_a_slot_moves_nothing_is_written_half(redis_cluster: str, prefix: str) -> None:
    """Orders, indexes and their items are on two nodes meanwhile, whichever of them were moved."""
    with RedisCluster.from_url(redis_cluster) as cluster, ExitStack() as stack:
        scope = next(
            f"dev/{n}/"
            for n in itertools.count()
            if not cluster.cluster_countkeysinslot(key_slot(b"dev/%d/" % n))
        )
        slot = key_slot(scope.encode())
        source = cluster.get_node_from_key(f"{{{scope}}}")
        target = next(each for each in cluster.get_primaries() if each.name != source.name)
        ends = [stack.enter_context(redis.Redis(host=each.host, port=each.port)) for each in (source, target)]
        ids = [end.execute_command("CLUSTER", "MYID").decode() for end in ends]
        store = stack.enter_context(closing(RedisStore(f"{redis_cluster}?cluster=yes&prefix={prefix}")))
        key = f"{scope}k"
        store.execute(entry(key, "1", text=key))
        store.execute(Put(LEDGER, key, {"subject": key, "expires_at": After(1000)}, ABSENT))
        query, by_subject = Query(ENTRIES, key, index="text"), Query(LEDGER, key, index="subject")
        commands: list[Stored] = [
            entry(key, "1", text="other"),
            entry(key, "2", text=key),
            Delete(ENTRIES, key, sort="1"),
            Update(LEDGER, key, {"expires_at": After(5000)}),
            Query(ENTRIES, key),
            query,
            by_subject,
        ]
        ends[1].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
        ends[0].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
        while names := ends[0].execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
            for command in commands:
                with pytest.raises(errors.StoreUnavailable):
                    store.execute(command)
            ends[0].migrate(target.host, target.port, names, 0, 1000)
        for end in ends:
            end.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
        assert [item["place"] for item in store.execute(query).items] == ["1"]
        assert [item["id"] for item in store.execute(by_subject).items] == [key]
        assert type(store.execute(entry(key, "2", text=key))) is Applied


def test_a_cluster_and_a_single_server_are_not_confused(
    redis_cluster: str, redis_server: str, prefix: str
) -> None:
    alone, many = f"{redis_cluster}?prefix={prefix}", f"{redis_server}?prefix={prefix}&cluster=yes"
    with closing(RedisStore(alone)) as store, pytest.raises(errors.InvalidOption, match="add cluster=yes"):
        for number in range(20):
            store.execute(mark(f"dev/{number}/k"))
    with (
        closing(RedisStore(many)) as store,
        pytest.raises(errors.InvalidOption, match="leave cluster=yes out"),
    ):
        store.execute(mark("a"))


# Processes


HOLDER = """
import sys
import semel

s = semel.connect(sys.argv[1])

@s.once("work")
def work():
    print("at work", flush=True)
    sys.stdin.read()

work()
"""


def test_a_killed_worker_holds_its_key_no_longer_than_its_lease(here: str, client: redis.Redis) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, here], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.kill()
    clock = FakeClock(now=float(client.time()[0]))
    with semel.connect(here, clock=clock) as s:
        work = s.once("work", on_busy="raise")(lambda: semel.current_run().attempt)
        with pytest.raises(semel.InProgress):
            work()
        clock.advance(31)
        assert work() == 2


FORK = """
import asyncio, os, sys
import semel
from semel.core.commands import Add, After, Get
from semel.testing.conformance import THINGS

s = semel.connect(sys.argv[1])
add = Add(THINGS, "key", "count", 1, {"gone_at": After(1000)})
s.ledger.get("key")

async def main():
    await s.store.aexecute(add)
    if os.fork() == 0:
        for _ in range(100):
            s.store.execute(add)
        s.close()
        os._exit(0)
    for _ in range(100):
        await s.store.aexecute(add)
        s.store.execute(add)
    os.wait()
    await s.aio.close()

asyncio.run(main())
print(semel.connect(sys.argv[1]).store.execute(Get(THINGS, "key")).item["count"])
"""


def test_a_forked_child_has_connections_of_its_own(here: str) -> None:
    program = [sys.executable, "-W", "ignore", "-c", FORK, here]
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("301\n", "")


# Stamps and settings


def test_a_prefix_belongs_to_one_environment(here: str) -> None:
    with closing(RedisStore(here, env="prod")) as store:
        store.execute(mark("a"))
    for through in ("sync", "async"):
        with closing(RedisStore(here, env="dev")) as store:
            with pytest.raises(errors.WrongEnvironment) as caught:
                asked(store, through, Get(THINGS, "a"))
            assert (caught.value.stamped, caught.value.asked) == ("prod", "dev")


def test_what_a_newer_semel_has_stamped_is_left_alone(here: str, prefix: str, client: redis.Redis) -> None:
    client.hset(f"{prefix}:meta", mapping={"environment": "dev", "schema": 2})
    with closing(RedisStore(here)) as store, pytest.raises(errors.SchemaTooNew):
        store.execute(mark("a"))


def test_a_redis_is_stamped_once(here: str, prefix: str, client: redis.Redis) -> None:
    assert provision(here, "prod") == [f"stamped prefix {prefix!r} for environment 'prod'"]
    assert provision(here, "prod") == []
    assert client.hgetall(f"{prefix}:meta") == {
        b"environment": b"prod",
        b"schema": b"1",
        b"layout": b"server",
    }
    with pytest.raises(errors.WrongEnvironment):
        provision(here, "dev")


def test_the_check_finds_what_would_lose_records() -> None:
    with node("--maxmemory-policy", "allkeys-lru") as port, redis.Redis(port=port) as client:
        found = [problem.what for problem in problems(url(port), "prod")]
        assert ["not stamped" in found[0], "allkeys-lru" in found[1], "on disk" in found[2]] == [True] * 3
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("appendonly", "yes")
        provision(url(port), "prod")
        assert problems(url(port), "prod") == []
        [problem] = problems(url(port), "dev")
        assert "belongs to environment 'prod'" in problem.what
        client.acl_setuser("default", enabled=True, nopass=True, commands=["-config"], keys=["*"])
        [problem] = problems(url(port), "prod")
        assert "could not be checked" in problem.what


def test_every_node_of_a_cluster_is_checked(redis_cluster: str, prefix: str) -> None:
    place = f"{redis_cluster}?cluster=yes&prefix={prefix}"
    provision(place, "prod")
    assert [problem.remedy for problem in problems(place, "prod")] == ["set appendonly to yes"] * 3


# TLS


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for this machine, and its key beside it."""
    pytest.importorskip("cryptography")
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - datetime.timedelta(1))
    builder = builder.not_valid_after(now + datetime.timedelta(1))
    address = x509.IPAddress(ipaddress.ip_address(HOST))
    builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    path = tmp_path / "cert.pem"
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return path


@both
def test_tls(certificate: Path, through: str) -> None:
    """Encrypted and verified, for threads and for tasks, and let go of without a warning."""
    port = free_port()
    options = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-auth-clients", "no"]
    with ExitStack() as stack:
        try:
            stack.enter_context(node(*options, "--tls-key-file", str(certificate.with_name("key.pem"))))
        except Failed:
            pytest.skip("this redis-server was built without TLS")
        trusted = f"rediss://{HOST}:{port}?ssl_ca_certs={certificate}"
        with closing(RedisStore(trusted)) as store:
            assert type(asked(store, through, mark("a"))[0]) is Applied
            assert [type(each) for each in asked(store, through, mark("a"), mark("b"))] == [Refused, Applied]
            asyncio.run(store.aexecute(Update(THINGS, "a", {"text": "left open"}, PRESENT)))
        with (
            closing(RedisStore(f"rediss://{HOST}:{port}")) as store,
            pytest.raises(errors.StoreUnavailable, match="certificate"),
        ):
            asked(store, through, mark("c"))


def test_a_page_ends_however_many_keys_of_others_it_goes_over(
    here: str, client: redis.Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells over how many, and the pages after it find what is there."""
    monkeypatch.setattr("semel.stores.redis.interpreter.LAST_STEP", 100)
    client.mset({f"{prefix}-other:{number}": "x" for number in range(3000)})
    with closing(RedisStore(here)) as store:
        store.execute(mark("mine"))
        after, pages = None, 0
        found: list[Item] = []
        while pages == 0 or after is not None:
            page = store.execute(Query(THINGS, after=after, most=20))
            pages, after, found = pages + 1, page.after, [*found, *page.items]
            assert page.read == 20 or after is None
    assert [item[THINGS.partition] for item in found] == ["mine"]
    assert pages > 3000 / 20
    client.delete(*client.scan_iter(f"{prefix}-other:*", count=1000))
