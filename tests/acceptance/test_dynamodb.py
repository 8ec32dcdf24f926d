"""The whole of semel on DynamoDB engines: by URL, with wrong clocks, lost answers and large results."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import msgspec
import pytest

import semel
from semel import errors
from semel.apps.tables import QUILL
from semel.aws.time import ServiceTime
from semel.aws.wire import WireSteps
from semel.connect import Semel
from semel.core.clock import Clock
from semel.core.codecs import Codec
from semel.core.commands import (
    ABSENT,
    NOW,
    Add,
    After,
    Applied,
    Batch,
    Cancelled,
    Get,
    Put,
    Query,
    Refused,
    Transact,
)
from semel.core.drive import drive
from semel.core.ledger import LedgerSteps
from semel.core.realm import Realm
from semel.model import Busy, Claimed, Replay
from semel.provision.shape import create_request, stamp_request
from semel.stores.dynamodb import DynamoDBStore
from semel.stores.dynamodb.items import title
from semel.tables import COUNTERS, LEDGER, Kind, Table
from semel.testing import FakeClock, FaultProxy
from semel.testing.conformance import LINES, THINGS
from semel.testing.conformance.harness import AsyncRunner, Runner, claimed, one
from tests.conformance.dynamodb_kit import ANYONE, ENV, REGION, Counting, Engine, engine

OURS = (LEDGER, THINGS)


@pytest.fixture
def on(dynoxide) -> Engine:
    found = engine(dynoxide)
    found.make(OURS)
    found.empty(OURS)
    return found


@pytest.fixture
def anyone(monkeypatch) -> None:
    """Credentials as the environment has them; local engines take any."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anyone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "anything")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)


@pytest.fixture
def counted(on: Engine) -> Iterator[tuple[Semel, Counting]]:
    """semel on this engine, and what it asks."""
    wire = Counting(on.url)
    with Semel(DynamoDBStore(wire, env=ENV), env=ENV) as s:
        s.ledger.get("anything")  # the stamp is read before the first command
        wire.asked.clear()
        yield s, wire


# By URL


@pytest.mark.usefixtures("anyone")
def test_a_function_runs_once(on: Engine) -> None:
    """The main path, by nothing but a URL."""
    runs = []
    with semel.connect(f"dynamodb://{REGION}?endpoint={on.url}", env=ENV) as s:

        @s.once("charge:{order}")
        def charge(order: str) -> dict[str, Any]:
            runs.append(order)
            return {"order": order, "paid": True}

        answers = [charge("7") for _ in range(3)]
    assert answers == [{"order": "7", "paid": True}] * 3
    assert runs == ["7"]


@pytest.mark.usefixtures("anyone")
def test_an_async_function_runs_once(on: Engine) -> None:
    runs = []

    async def work() -> list[str]:
        async with semel.connect(f"dynamodb://{REGION}?endpoint={on.url}", env=ENV).aio as s:

            @s.once("greet:{name}")
            async def greet(name: str) -> str:
                runs.append(name)
                return f"hello {name}"

            return [await greet("you"), *(await asyncio.gather(*(greet("you") for _ in range(5))))]

    assert asyncio.run(work()) == ["hello you"] * 6
    assert runs == ["you"]


@pytest.mark.usefixtures("anyone")
@pytest.mark.parametrize("transport", ["wire", "botocore"])
def test_everything_may_come_from_the_environment(on: Engine, monkeypatch, transport: str) -> None:
    """Region and endpoint too; and a table of another name and layout from the URL."""
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", on.url)
    monkeypatch.setenv("DYNAMO_TABLE_NAME", "webhooks-seen")
    on.make([QUILL])
    on.empty([QUILL])
    url = f"dynamodb:///webhooks-seen?layout=quill&transport={transport}"
    with semel.connect(url, env=ENV) as s:
        assert s.ledger.check_and_set_many(["ALOWARE:1", "ALOWARE:2", "ALOWARE:1"]) == [True, True, False]
    assert sorted(item["pk"]["S"] for item in on.items(QUILL)) == ["ALOWARE:1", "ALOWARE:2"]


@pytest.mark.parametrize("make", ["client", "session"])
def test_a_boto3_client_of_ones_own(on: Engine, monkeypatch, make: str) -> None:
    """Or a session; sync and async."""
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", on.url)
    session = boto3.session.Session("anyone", "anything", region_name=REGION)
    client = session if make == "session" else session.client("dynamodb")
    store = DynamoDBStore(client=client, env=ENV)
    ledger = LedgerSteps(Realm(env=ENV))
    with Semel(store, env=ENV) as s:
        s.ledger.complete(claimed(s.ledger.claim("key")), {"bytes": "kept"})
        replay = asyncio.run(s.aio.ledger.claim("key"))
        assert type(replay) is Replay
        assert replay.result == {"bytes": "kept"}
        assert asyncio.run(s.aio.ledger.check_and_set_many(["a", "b", "key"])) == [True, True, False]
        assert drive(ledger.get("key"), store).attempt == 1


# What it costs


def test_a_claim_is_one_request_won_or_lost(counted) -> None:
    """And so is its completion, and every replay."""
    s, wire = counted
    claim = s.ledger.claim("key")
    assert wire.asked == ["PutItem"]
    assert type(s.ledger.claim("key")) is Busy
    assert wire.asked == ["PutItem"] * 2
    s.ledger.complete(claim, "done")
    assert wire.asked == ["PutItem", "PutItem", "UpdateItem"]
    assert type(s.ledger.claim("key")) is Replay
    assert len(wire.asked) == 4
    asyncio.run(s.aio.ledger.claim("key"))
    assert wire.asked[4:] == ["PutItem"]


def test_reading_first_where_most_are_duplicates(on: Engine) -> None:
    """It begins by itself, and then a duplicate costs a reading and no write."""
    wire = Counting(on.url)
    with Semel(DynamoDBStore(wire, env=ENV, read_first="auto"), env=ENV) as s:
        s.ledger.check_and_set("key")
        for _ in range(20):
            assert s.ledger.check_and_set("key") is False
        assert wire.asked[-1] == "GetItem"
        wire.asked.clear()
        assert s.ledger.check_and_set("key") is False
        assert wire.asked == ["GetItem"]
        assert s.ledger.check_and_set("new") is True
        assert wire.asked == ["GetItem", "GetItem", "PutItem"]


# Whose table it is


def test_a_stamped_table_serves_its_environment_only(on: Engine) -> None:
    """As `semel provision` stamps it; and a table without a stamp serves whoever opens it."""
    stamped = Table(name="stamped", partition="id", attributes={}, expires="end", title="semel-stamped")
    on.make([stamped], "prod")
    on.empty([stamped], "prod")
    for env in ("prod", "dev"):
        with_store(on, env, stamped)
    on.wire.call("PutItem", stamp_request(stamped, "prod"), write=True)
    with_store(on, "prod", stamped)
    with pytest.raises(errors.WrongEnvironment) as caught:
        with_store(on, "dev", stamped)
    assert (caught.value.stamped, caught.value.asked) == ("prod", "dev")


def with_store(on: Engine, env: str, table: Table) -> None:
    store = on.store(FakeClock(), env=env)
    try:
        store.execute(Get(table, "key"))
    finally:
        store.close()


def test_a_stamp_is_no_item(on: Engine) -> None:
    """Lists leave it out, also in a table whose items may stay for ever."""
    clock = FakeClock()
    table = Table(
        name="stays",
        partition="id",
        attributes={},
        expires="end",
        title="semel-stays",
        forever="for the test",
    )
    on.make([table], ENV)
    on.empty([table], ENV)
    on.wire.call("PutItem", stamp_request(table, ENV), write=True)
    store = on.store(clock)
    store.execute(Put(table, "mine", {}))
    page = store.execute(Query(table))
    store.close()
    assert [item["id"] for item in page.items] == ["mine"]


def test_a_range_of_the_whole_table(on: Engine) -> None:
    """The bounds of the sort key hold across partitions too."""
    on.make([LINES])
    on.empty([LINES])
    store = on.store(FakeClock())
    for owner in ("a", "b"):
        for number in range(5):
            store.execute(Put(LINES, owner, {}, ABSENT, number))
    page = store.execute(Query(LINES, low=1, high=2))
    store.close()
    found = sorted((item["owner"], item["number"]) for item in page.items)
    assert found == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


@pytest.mark.seed("A4")
def test_a_missing_table_says_how_to_make_it(on: Engine) -> None:
    nowhere = Table(name="nowhere", partition="id", attributes={}, expires="end")
    with pytest.raises(errors.TableMissing, match=f"semel-{ENV}-nowhere.*semel provision"):
        with_store(on, ENV, nowhere)


@pytest.mark.parametrize("server", ["dynoxide", "ministack"])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_person_is_found_in_a_table_that_has_no_index_of_persons(request, server: str, limit: int) -> None:
    """The table is looked through, page by page, beside what its owner wrote there."""
    on = engine(request.getfixturevalue(server))
    on.make([QUILL])
    on.empty([QUILL])
    clock = FakeClock()
    store, ledger = on.store(clock, [QUILL]), LedgerSteps(Realm(env=ENV, secret=bytes(32)))
    for each in range(12):
        drive(ledger.claim(f"ALOWARE:{each}", subject="you" if each % 3 else "me"), store)
    on.put(QUILL, {"pk": {"S": "HUBSPOT:1"}, "seenAt": {"S": "2023-11-14T22:00:00Z"}})
    on.wire.call("PutItem", stamp_request(QUILL, ENV), write=True)
    query, found = Query(LEDGER, ledger.subject("you"), index="subject", limit=limit), []
    while True:
        page = store.execute(query)
        assert len(page.items) <= limit
        assert [item["id"] for item in page.items] == sorted(item["id"] for item in page.items)
        found += [item["id"] for item in page.items]
        if page.after is None:
            break
        query = msgspec.structs.replace(query, after=page.after)
    assert sorted(found) == sorted(f"{ENV}//ALOWARE:{each}" for each in range(12) if each % 3)
    clock.advance(1e6)
    assert store.execute(msgspec.structs.replace(query, after=None)).items == ()
    store.close()


@pytest.mark.parametrize("server", ["dynoxide", "ministack"])
@pytest.mark.seed("Q2")
def test_what_the_owner_of_a_table_reads_in_it_is_not_encrypted(request, server: str) -> None:
    """Notes have an attribute of their own there; what only semel reads is sealed, as everywhere."""
    on = engine(request.getfixturevalue(server))
    on.make([QUILL])
    on.empty([QUILL])
    codec = semel.Codec(encryption=semel.Encryption({"k": b"1" * 32}, "k"))
    with Semel(on.store(FakeClock(), [QUILL]), env=ENV, codec=codec) as s:
        claims = [s.ledger.claim(key) for key in ("ALOWARE:1", "ALOWARE:2")]
        assert isinstance(claims[0], semel.Claimed)
        assert isinstance(claims[1], semel.Claimed)
        s.ledger.complete(claims[0], "secret words", details={"notes": "seen twice"})
        s.ledger.fail(claims[1], LookupError("secret words"))
        done, failed = s.ledger.get("ALOWARE:1"), s.ledger.get("ALOWARE:2")
        assert done is not None
        assert done.details == {"notes": "seen twice"}
        assert failed is not None
        assert failed.failure == semel.Failure("LookupError", "secret words")
    items = {item["pk"]["S"]: item for item in on.items(QUILL)}
    assert items["ALOWARE:1"]["notes"] == {"S": "seen twice"}
    assert "secret" not in str(items)


@pytest.mark.parametrize("server", ["dynoxide", "ministack"])
@pytest.mark.parametrize("changed", ["name", "type", "sort"])
def test_another_key_is_another_schema(request, server: str, changed: str) -> None:
    """A key of another name or type, or one more of them."""
    on = engine(request.getfixturevalue(server))
    there = Table(
        name=f"keys-{changed}",
        partition="other" if changed == "name" else "id",
        sort="more" if changed == "sort" else None,
        attributes={"id": Kind.NUMBER} if changed == "type" else {},
        expires="end",
    )
    on.make([there])
    asked = Table(name=there.name, partition="id", attributes={}, expires="end")
    with pytest.raises(errors.WrongSchema, match="another key"):
        with_store(on, ENV, asked)


def test_a_server_that_is_not_there() -> None:
    """Host and port are named, and what to check."""
    with FaultProxy("127.0.0.1", 1) as nobody:
        port = nobody.port
    store = DynamoDBStore(Counting(f"http://127.0.0.1:{port}"), env=ENV)
    with pytest.raises(errors.StoreUnavailable, match=f"127.0.0.1:{port}"):
        store.execute(Get(LEDGER, "key"))
    store.close()


# NoResponse answers


@pytest.fixture
def proxied(on: Engine) -> Iterator[tuple[Semel, FaultProxy]]:
    """semel behind a proxy that loses answers."""
    with FaultProxy.before(on.url) as proxy:
        store = DynamoDBStore(Counting(proxy.url(on.url)), env=ENV)
        with Semel(store, env=ENV) as s:
            s.ledger.get("anything")
            yield s, proxy


def lose(proxy: FaultProxy, operation: str, times: int = 1) -> None:
    proxy.drop_answer_to(f"DynamoDB_20120810.{operation}\r".encode(), times)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_claim_whose_answer_was_lost_is_the_callers(proxied, lost: int) -> None:
    """It was made; the resending finds its own token there."""
    s, proxy = proxied
    lose(proxy, "PutItem", lost)
    claim = s.ledger.claim("key")
    assert type(claim) is Claimed
    assert (claim.attempt, proxy.dropped) == (1, lost)
    assert type(s.ledger.claim("key")) is Busy
    lose(proxy, "UpdateItem", lost)
    s.ledger.complete(claim, "done")
    assert s.ledger.claim("key").result == "done"


def test_what_nobody_can_tell_is_said_so(proxied) -> None:
    """After every try the claim is not acted on."""
    s, proxy = proxied
    lose(proxy, "PutItem", 3)
    with pytest.raises(errors.StoreOutcomeUnknown):
        s.ledger.claim("key")
    assert proxy.dropped == 3


def test_a_lost_batch_is_recognised(proxied) -> None:
    """Every key is new to the caller whose mark it is."""
    s, proxy = proxied
    lose(proxy, "PutItem", 2)
    assert s.ledger.check_and_set_many([f"key-{each}" for each in range(10)]) == [True] * 10
    assert proxy.dropped == 2


def test_a_lost_transaction_is_made_once(proxied) -> None:
    """DynamoDB knows its token again: one added is one, however often it was sent."""
    s, proxy = proxied
    add = Transact((Add(THINGS, "count", "count", 1, {"gone_at": After(60)}),))
    for lost in (0, 1, 2):
        lose(proxy, "TransactWriteItems", lost)
        assert type(s.store.execute(add)) is Applied
    lose(proxy, "TransactWriteItems", 3)
    with pytest.raises(errors.StoreOutcomeUnknown):
        s.store.execute(add)
    assert type(s.store.execute(add)) is Applied
    assert proxy.dropped == 6
    assert s.store.execute(Get(THINGS, "count")).item["count"] == 4


def test_a_broken_connection_is_replaced_before_anything_is_sent(proxied) -> None:
    s, proxy = proxied
    proxy.cut()
    assert type(s.ledger.claim("key")) is Claimed


# Wrong clocks


class Off(Clock):
    """A machine's clock that is wrong by so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return super().now() + self._seconds


@pytest.mark.parametrize(("mine", "theirs"), [(3600, -3600), (-3600, 3600), (240, -240)])
def test_a_wrong_clock_does_not_get_into_records(on: Engine, mine: float, theirs: float) -> None:
    """A lease of a minute is a minute, whoever reads it, give or take the margins."""
    stores = [DynamoDBStore(Counting(on.url, Off(off)), env=ENV, clock=Off(off)) for off in (mine, theirs)]
    ledger = LedgerSteps(Realm(env=ENV))
    assert type(drive(ledger.claim("key", lease=60), stores[0])) is Claimed
    busy = drive(ledger.claim("key", lease=60), stores[1])
    for store in stores:
        store.close()
    assert type(busy) is Busy
    assert 50 < busy.retry_after < 70


class World:
    """A time that only the test moves, and machines that show it wrongly."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0


class Machine(Clock):
    """One of them: it is off, and its other clock began at another moment."""

    def __init__(self, world: World, off: float, began: float) -> None:
        self._world = world
        self._off = off
        self._began = began

    def now(self) -> float:
        return self._world.time + self._off

    def monotonic(self) -> float:
        return self._world.time - self._began


class Dated(Counting):
    """A wire whose answers are dated by the world's clock, to the second."""

    def __init__(self, url: str, world: World, machine: Machine, *wrong: float) -> None:
        super().__init__(url)
        self._world = world
        self._real, self.time = self.time, ServiceTime(machine)
        self.wrong: list[float] = list(wrong)
        """How far off the next dates are."""

    def exchange(self, operation: str, request: Any, *, write: bool) -> WireSteps[dict[str, Any]]:
        told, self.time = self.time, self._real  # which dates the signatures
        sent = told.monotonic()
        try:
            return (yield from super().exchange(operation, request, write=write))
        finally:
            self.time = told
            self._world.time += 0.02
            date = formatdate(self._world.time + (self.wrong.pop(0) if self.wrong else 0), usegmt=True)
            self.time.observe(date, sent, self.time.monotonic())


# An hour off, and off by so little that the first answer does not tell.
OFF = (3600.0, -3600.0, 0.9, 0.5, 0.0, -0.5, -0.9)


@pytest.mark.situation(11)
@pytest.mark.parametrize("wrong", [3600.0, -3600.0])
@pytest.mark.parametrize("answers", [0, 1, 10])
def test_an_answer_with_a_wrong_date_takes_over_no_live_lease(on: Engine, answers: int, wrong: float) -> None:
    """Be it the first that a worker hears or a later one; and the lease it writes is as long as asked."""
    world, ledger = World(), LedgerSteps(Realm(env=ENV))
    machines = [Machine(world, 0.0, began) for began in (5.0, 1e6)]
    wires = [Dated(on.url, world, machine) for machine in machines]
    stores = [
        DynamoDBStore(wire, env=ENV, clock=machine) for wire, machine in zip(wires, machines, strict=True)
    ]
    held = drive(ledger.claim("held", lease=30, ttl=60), stores[0])
    assert type(held) is Claimed
    for _ in range(answers):
        drive(ledger.get("held"), stores[1])
    wires[1].wrong = [wrong]
    assert type(drive(ledger.claim("held", lease=30), stores[1])) is Busy
    wires[1].wrong = [wrong]
    drive(ledger.get("held"), stores[1])
    assert type(drive(ledger.claim("held", lease=30), stores[1])) is Busy
    drive(ledger.claim("mine", lease=30), stores[1])
    mine = drive(ledger.get("mine"), stores[1])
    assert world.time + 29 < mine.lease_until < world.time + 33
    drive(ledger.complete(held, None), stores[0])
    for store in stores:
        store.close()


@pytest.mark.situation(11)
@pytest.mark.parametrize("wrong", [0.0, 1800.0])
@pytest.mark.parametrize("seed", range(5))
def test_never_two_live_holders_whatever_the_clocks_show(on: Engine, seed: int, wrong: float) -> None:
    """Workers begin, claim and vanish; at no moment do two of them hold the key.

    Each counts its lease by its own monotonic clock from before it sent its claim, as a run does. One that
    has just begun knows the server's time to the second only. Some answers have a wrong date.
    """
    rng = random.Random(seed)
    world, ledger = World(), LedgerSteps(Realm(env=ENV))
    stores: dict[float, DynamoDBStore] = {}
    wires: dict[float, Dated] = {}
    lease, held_until, claims = 1.0, 0.0, 0
    for _ in range(400):
        world.time += rng.uniform(0, 0.5)
        off = rng.choice(OFF)
        if off not in stores or rng.random() < 0.5:
            machine = Machine(world, off, rng.uniform(0, 1e6))
            if off in stores:
                stores[off].close()
            wires[off] = Dated(on.url, world, machine)
            stores[off] = DynamoDBStore(wires[off], env=ENV, clock=machine)
        if wrong and not wires[off].wrong and rng.random() < 0.3:
            wires[off].wrong = [0.0] * rng.randrange(3) + [rng.choice([wrong, -wrong]), 0.0]
        sent = world.time
        outcome = drive(ledger.claim(f"seed-{seed}-{wrong}", lease=lease, ttl=1000), stores[off])
        if type(outcome) is Claimed:
            assert world.time >= held_until, f"it came {held_until - world.time} s too soon"
            held_until = sent + lease
            claims += 1
    for store in stores.values():
        store.close()
    assert claims > 20


# Many at once, and large results


def test_many_tasks_on_few_keys(on: Engine) -> None:
    """One winner for each key."""

    async def race() -> Counter[tuple[str, type]]:
        async with Semel(DynamoDBStore(Counting(on.url), env=ENV), env=ENV).aio as s:
            keys = [f"key-{each % 20}" for each in range(200)]
            outcomes = await asyncio.gather(*(s.ledger.claim(key) for key in keys))
            return Counter((key, type(outcome)) for key, outcome in zip(keys, outcomes, strict=True))

    found = asyncio.run(race())
    assert {count for (_, kind), count in found.items() if kind is Claimed} == {1}
    assert sum(count for (_, kind), count in found.items() if kind is Busy) == 180


CROWD = 200
CAP = 3


@pytest.mark.seed("H5")
@pytest.mark.parametrize("server", ["dynoxide", "ministack"])
@pytest.mark.parametrize("kind", [Runner, AsyncRunner], ids=["threads", "tasks"])
def test_of_two_hundred_transactions_on_one_counter_three_get_through(
    request, server: str, kind: type[Runner]
) -> None:
    """Each marks its own message and counts it if there is room; the others leave no mark, and no error."""
    on = engine(request.getfixturevalue(server))
    on.make([LEDGER, COUNTERS])
    on.empty([LEDGER, COUNTERS])
    end = {"expires_at": After(60)}

    def reply_to(message: str) -> Transact:
        count = Add(COUNTERS, f"{ENV}//chat", "count", 1, {"updated_at": NOW} | end, CAP, "2026-02-17")
        mark = {"status": "COMPLETED", "token": message} | end
        return Transact((Put(LEDGER, f"{ENV}//{message}", mark, ABSENT), count))

    wire = Counting(on.url)
    runner = kind(DynamoDBStore(wire, env=ENV))
    for look in (Get(LEDGER, "nobody"), Get(COUNTERS, "nobody", "nothing")):
        runner.ask(look)  # the stamps are read before
    wire.asked.clear()
    replies = runner.together([one(reply_to(f"message-{each}")) for each in range(CROWD)])
    assert Counter(type(reply) for reply in replies) == {Applied: CAP, Cancelled: CROWD - CAP}
    assert wire.asked == ["TransactWriteItems"] * CROWD
    for reply in replies:
        if type(reply) is Cancelled:
            mark, total = reply.refusals
            assert mark is None
            assert total is not None
            assert total.item is not None
            assert total.item["count"] == CAP
    runner.close()
    runner.store.close()
    assert len(on.items(LEDGER)) == CAP
    assert on.item(COUNTERS, f"{ENV}//chat", "2026-02-17")["count"] == {"N": str(CAP)}


def test_a_batch_of_hundreds_is_in_order(on: Engine) -> None:
    """Duplicates in it behave as if the writes were made one after another."""
    clock = FakeClock()
    store = on.store(clock)
    end = clock.now() + 60
    writes = tuple(
        Put(THINGS, f"key-{each % 150}", {"gone_at": end, "count": each}, ABSENT) for each in range(300)
    )
    replies = store.execute(Batch(writes)).replies
    store.close()
    assert [type(reply) for reply in replies] == [Applied] * 150 + [Refused] * 150
    assert [reply.item["count"] for reply in replies[150:]] == list(range(150))


def test_a_result_that_does_not_fit_is_not_kept_and_does_not_run_again(on: Engine) -> None:
    """400 KB are DynamoDB's limit; the fact is kept, and the caller is told."""
    noise = random.Random(1).randbytes(400_000).hex()
    runs = []
    store = DynamoDBStore(Counting(on.url), env=ENV)
    with Semel(store, env=ENV, codec=Codec(max_bytes=store.room)) as s:

        @s.once("large")
        def large() -> str:
            runs.append(1)
            return noise

        assert large() == noise
        with pytest.raises(errors.ResultNotKept):
            large()
    assert len(runs) == 1


@pytest.mark.usefixtures("anyone")
def test_a_large_result_goes_to_s3(ministack, monkeypatch) -> None:
    """Where the URL names a bucket; the record has its name."""
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", ministack)
    boto3.client("s3", region_name=REGION, endpoint_url=ministack).create_bucket(
        Bucket="large-results", CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    on = engine(ministack)
    on.make([LEDGER])
    noise = random.Random(1).randbytes(400_000).hex()
    url = f"dynamodb://{REGION}?endpoint={ministack}&overflow=s3://large-results/there/"
    runs = []
    with semel.connect(url, env=ENV) as s:

        @s.once("large")
        def large() -> str:
            runs.append(1)
            return noise

        assert [large(), large()] == [noise, noise]
        assert s.ledger.get("large").encoding.endswith("+overflow")
    assert len(runs) == 1


def test_results_up_to_the_room_fit(on: Engine) -> None:
    """With the longest key and error beside them."""
    store = DynamoDBStore(Counting(on.url), env=ENV)
    item = {
        "status": "COMPLETED",
        "token": "t" * 32,
        "attempt": 1,
        "created_at": 1.5,
        "updated_at": 1.5,
        "lease_until": 1.5,
        "expires_at": After(60),
        "version": 1,
        "fingerprint": "f" * 64,
        "encoding": "json+zlib+aesgcm=" + "k" * 64,
        "error": "e" * 4000,
        "result": b"x" * store.room,
    }
    reply = store.execute(Put(LEDGER, "k" * 2048, item))
    with pytest.raises(errors.UsageError, match="overflow"):
        store.execute(Put(LEDGER, "k" * 2048, item | {"result": b"x" * 420_000}))
    store.close()
    assert type(reply) is Applied


# Ends


@pytest.mark.seed("Q4")
def test_a_janitor_removes_what_no_engine_does(on: Engine) -> None:
    """Only what has expired, and no more than it is told to."""
    clock = FakeClock()
    store = on.store(clock)
    for each in range(30):
        life = 5 if each < 20 else 500
        store.execute(Put(THINGS, f"key-{each}", {"gone_at": clock.now() + life}))
    assert store.reap() == 0
    clock.advance(5)
    assert store.reap(7) == 7
    assert len(on.items(THINGS)) == 23
    assert store.reap() == 13
    store.close()
    assert sorted(item["id"]["S"] for item in on.items(THINGS)) == [f"key-{each}" for each in range(20, 30)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_has_connections_of_its_own(counted) -> None:
    """Parent and child claim with the same store, and each gets its own answers."""
    s, _ = counted
    s.ledger.claim("before")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            mine = all(type(s.ledger.claim(f"child-{each}")) is Claimed for each in range(20))
            status = 0 if mine and s.ledger.check_and_set_many(["x", "y"]) == [True, True] else 2
        finally:
            os._exit(status)
    assert all(type(s.ledger.claim(f"parent-{each}")) is Claimed for each in range(20))
    assert os.waitpid(child, 0)[1] == 0
    assert type(s.ledger.claim("child-7")) is Busy


def test_what_a_table_is_called(on: Engine) -> None:
    """By environment and name; what DynamoDB would not take is refused at once."""
    assert title(LEDGER, "prod") == "semel-prod-ledger"
    assert create_request(LEDGER, ENV)["TableName"] == title(LEDGER, ENV)
    with pytest.raises(errors.InvalidOption, match="cannot name a table"):
        DynamoDBStore(Counting(on.url, credentials=ANYONE), env="a/b")
