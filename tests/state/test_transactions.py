"""One atomic write on every store: a completion, a charge, a document and an entry, all of them or none."""

import asyncio
import sqlite3
import threading
import uuid
from contextlib import closing, suppress

import pytest

import semel
from semel import errors
from semel.apps.tables import ACTIVITIES
from semel.connect import open_store
from semel.core import heartbeat
from semel.core.commands import Time, Transact, Update
from semel.core.drive import leave
from semel.core.events import Event, What
from semel.core.lifecycle import Status
from semel.model import Claimed
from semel.stores.memory import MemoryStore
from semel.testing import FaultProxy, Faulty
from tests.places import NAMES, open_place
from tests.state.conftest import Sync
from tests.state.test_documents import DYNAMODB, LOSSES

CAP = 3


@pytest.fixture(params=NAMES)
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path, more=(ACTIVITIES,))


@pytest.fixture
def faulty(place, clock):
    return Faulty(place.open(clock))


@pytest.fixture
def spied(way, place, faulty, clock):
    """A `do` on a store that tells what it was asked, and fails on demand."""
    do = way(faulty, env=place.env, clock=clock)
    yield do
    do.close()


@pytest.fixture
def sync(place, clock):
    """A `do` for what is the same whichever way it is asked."""
    do = Sync(place.open(clock), env=place.env, clock=clock)
    yield do
    do.close()


def claim_of(do, key="m1"):
    claim = do(lambda s: s.ledger.claim(key, ttl=3600))
    assert isinstance(claim, Claimed)
    return claim


def increment(document):
    return {"n": (document or {"n": 0})["n"] + 1}


def deal(tx, claim, number=1):
    """A message is answered: it is done, counted, known to its conversation, and written down."""
    tx.ledger.complete(claim, {"sent": number})
    charged = tx.counters.charge("replies:chat", cap=CAP, token=f"m{number}")
    document = tx.documents.update("chat", increment)
    entry = tx.journal.append("chat", {"n": number}, key=f"act:{number}", actor="ann")
    return charged, document, entry


def whole(do, key="m1"):
    """What there is of it: how the claim stands, what was counted, the document, the entries."""
    record = do(lambda s: s.ledger.get(key))
    document = do(lambda s: s.documents.get("chat"))
    return (
        None if record is None else record.status,
        do(lambda s: s.counters.look("replies:chat")).used,
        None if document is None else document.value["n"],
        len(do(lambda s: s.journal.list("chat")).entries),
    )


NOTHING = (Status.IN_PROGRESS, 0, None, 0)
ALL = (Status.COMPLETED, 1, 1, 1)


# All of it


def test_all_parts_are_one_write(spied, faulty):
    claim = claim_of(spied)
    del faulty.seen[:]
    charged, document, entry = spied.transact(lambda tx: deal(tx, claim))
    writes = [command for command in faulty.seen if isinstance(command, Transact | Update)]
    assert [type(command) for command in writes] == [Transact]
    assert len(writes[0].writes) == 6  # a charge has a token beside its total, and an entry its key
    assert whole(spied) == ALL
    assert (charged.value.token, document.value.version, document.value.value) == ("m1", 1, {"n": 1})
    assert spied(lambda s: s.journal.list("chat")).entries == (entry.value,)
    assert spied(lambda s: s.ledger.claim("m1")).result == {"sent": 1}


def test_nothing_is_written_before_the_end_and_a_value_is_not_known(do):
    claim = claim_of(do)
    seen = []

    def gather(tx):
        parts = deal(tx, claim)
        for part in parts:
            with pytest.raises(errors.UsageError, match="ask after the block"):
                _ = part.value
        seen.append(do.s.documents.get("chat"))
        return parts

    [charged, *_] = do.transact(gather)
    assert seen == [None]
    assert charged.value.by == 1


def test_an_exception_in_the_block_writes_nothing(do):
    claim = claim_of(do)

    def gather(tx):
        deal(tx, claim)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        do.transact(gather)
    assert whole(do) == NOTHING


def test_an_empty_transaction_sends_nothing(spied, faulty):
    spied.transact(lambda tx: None)
    assert faulty.seen == []


def test_a_transaction_that_is_over_takes_nothing_more(do):
    tx, _ = do.transact(lambda tx: (tx, tx.documents.put("a", {"n": 1})))
    with pytest.raises(errors.UsageError, match="over"):
        tx.documents.put("b", {"n": 1})
    assert do(lambda s: s.documents.get("b")) is None


def test_two_writes_to_one_item_are_refused(do):
    claim = claim_of(do)

    def twice(tx):
        deal(tx, claim)
        tx.documents.put("chat", {"n": 9})

    def same_key(tx):
        deal(tx, claim)
        tx.journal.append("chat", {"n": 2}, key="act:1")

    for gather in (twice, same_key):
        with pytest.raises(errors.UsageError, match="writes to an item once"):
            do.transact(gather)
        assert whole(do) == NOTHING


# Or none


def test_a_lost_claim_refuses_all_of_it(do, clock):
    claim = claim_of(do)
    clock.advance(31)
    heir = claim_of(do)
    with pytest.raises(errors.ClaimLost) as refused:
        do.transact(lambda tx: deal(tx, claim))
    assert (refused.value.key, refused.value.attempt, refused.value.move) == ("m1", 1, "complete")
    assert whole(do) == NOTHING
    do.transact(lambda tx: deal(tx, heir))
    assert whole(do) == ALL


def test_a_full_counter_refuses_all_of_it(do):
    for number in range(CAP):
        do(lambda s, n=number: s.counters.charge("replies:chat", cap=CAP, token=f"x{n}"))
    claim = claim_of(do)
    with pytest.raises(errors.CapReached) as refused:
        do.transact(lambda tx: deal(tx, claim))
    assert (refused.value.key, refused.value.used, refused.value.cap) == ("replies:chat", CAP, CAP)
    assert whole(do) == (Status.IN_PROGRESS, CAP, None, 0)


def test_another_version_refuses_all_of_it(do):
    claim = claim_of(do)
    do(lambda s: s.documents.put("state", {"n": 1}))

    def gather(tx):
        deal(tx, claim)
        tx.documents.put("state", {"n": 2}, version=7)

    with pytest.raises(errors.VersionConflict) as refused:
        do.transact(gather)
    assert (refused.value.key, refused.value.expected, refused.value.found) == ("state", 7, 1)
    assert whole(do) == NOTHING
    assert do(lambda s: s.documents.get("state")).value == {"n": 1}


def test_bad_input_to_a_part_refuses_all_of_it(do):
    claim = claim_of(do)

    def gather(tx):
        deal(tx, claim)
        tx.documents.put("state", {"n": float("nan")})

    with pytest.raises(errors.UsageError):
        do.transact(gather)
    assert whole(do) == NOTHING


# What others did meanwhile


def test_a_stale_update_is_made_again_from_what_is_there(do):
    claim = claim_of(do)
    seen = []

    def overtaken(document):
        seen.append(document)
        if len(seen) <= 2:
            do.s.documents.put("chat", {"n": 10 * len(seen)})
        return increment(document)

    def gather(tx):
        tx.ledger.complete(claim, "done")
        tx.counters.charge("replies:chat", cap=CAP, token="m1")
        return tx.documents.update("chat", overtaken)

    assert do.transact(gather).value.value == {"n": 21}
    assert seen == [None, {"n": 10}, {"n": 20}]
    assert whole(do) == (Status.COMPLETED, 1, 21, 0)


def test_a_journal_is_in_the_order_of_versions_though_a_transaction_was_overtaken(do, clock):
    """An entry of one that lost and was made again has its time from then, and not from its first try."""
    overtaking = [1, 2]

    def overtaken(document):
        if overtaking:
            n = overtaking.pop(0)
            clock.advance(1)
            with do.s.transaction() as tx:
                tx.journal.append("chat", {"version": n})
                tx.documents.change("chat", {"n": n})
            clock.advance(1)
        return increment(document)

    def gather(tx):
        tx.journal.append("chat", {"version": 3})
        return tx.documents.update("chat", overtaken)

    assert do.transact(gather).value.version == 3
    assert [entry.body["version"] for entry in do(lambda s: s.journal.list("chat")).entries] == [1, 2, 3]


class Overtaken(Faulty):
    """A store in which another transaction is made after the first answer about the time."""

    def __init__(self, store, overtake):
        super().__init__(store)
        self.overtake = overtake

    def at_once(self, command):
        return None

    def execute(self, command):
        reply = super().execute(command)
        self._answered(command)
        return reply

    async def aexecute(self, command):
        reply = await super().aexecute(command)
        self._answered(command)
        return reply

    def _answered(self, command):
        if isinstance(command, Time) and self.overtake is not None:
            overtake, self.overtake = self.overtake, None
            overtake()


def test_a_journal_is_in_the_order_of_versions_though_another_came_in_between(way, place, clock):
    """After the time of its entry was read, or its document was: whichever is read first."""
    with closing(place.open(clock)) as elsewhere:
        other = semel.Semel(elsewhere, env=place.env, clock=clock)

        def overtake():
            clock.advance(1)
            with other.transaction() as tx:
                tx.journal.append("chat", {"version": 1})
                tx.documents.change("chat", {"n": 1})
            clock.advance(1)

        do = way(Overtaken(place.open(clock), overtake), env=place.env, clock=clock)
        with closing(do):

            def gather(tx):
                tx.journal.append("chat", {"version": 2})
                return tx.documents.change("chat", {"n": 2})

            assert do.transact(gather).value.version == 2
            entries = do(lambda s: s.journal.list("chat")).entries
            assert [entry.body["version"] for entry in entries] == [1, 2]


def test_what_was_done_before_counts_as_done_and_the_rest_goes_through(do):
    entry = do(lambda s: s.journal.append("chat", {"n": "first"}, key="act:1"))
    charged = do(lambda s: s.counters.charge("replies:chat", cap=CAP, token="m1"))
    claim = claim_of(do)
    parts = do.transact(lambda tx: deal(tx, claim))
    assert (parts[0].value, parts[2].value) == (charged, entry)
    assert whole(do) == ALL


def test_a_refund_and_its_document_go_together(do):
    charged = do(lambda s: s.counters.charge("replies:chat", cap=CAP, token="m1"))
    for _ in range(2):
        given = do.transact(lambda tx: (tx.counters.refund(charged), tx.documents.put("chat", {"n": 0})))
        assert given[0].value is True
    assert do(lambda s: s.counters.look("replies:chat")).used == 0
    assert do(lambda s: s.documents.get("chat")).version == 2


@pytest.mark.parametrize("end", ["run", "claim", "fail"])
def test_the_end_of_a_claim_in_a_transaction_is_told_of_its_function(end):
    told: list[Event] = []
    with semel.connect("memory:") as s:
        s.events.listen(told.append)

        @s.once("act:{n}")
        def act(n):
            run = semel.current_run()
            with s.transaction() as tx:
                if end == "fail":
                    tx.ledger.fail(run.claim, ValueError("no"))
                else:
                    tx.ledger.complete(run if end == "run" else run.claim, n)
            return n

        with suppress(errors.ClaimLost):
            act(1)
    ended = [event for event in told if event.what in (What.COMPLETED, What.FAILED)]
    assert [event.name.rpartition(".")[2] for event in ended] == ["act"]


def test_a_claim_is_failed_or_released_together_with_the_rest(do):
    failed, released = claim_of(do, "f"), claim_of(do, "r")
    do.transact(lambda tx: (tx.ledger.fail(failed, ValueError("no")), tx.documents.put("a", {"n": 1})))
    do.transact(lambda tx: (tx.ledger.release(released), tx.documents.change("a", {"m": 1})))
    assert do(lambda s: s.ledger.get("f")).failure.message == "no"
    assert do(lambda s: s.ledger.get("r")).status is Status.RELEASED
    assert do(lambda s: s.documents.get("a")).value == {"n": 1, "m": 1}


def test_a_dozen_transactions_at_once_are_each_made_or_refused(way, place, clock):
    """Each has its own claim; they share a counter, a document and a journal; the cap lets three through."""
    do = way(place.open(clock), env=place.env, clock=clock)
    claims = [claim_of(do, f"m{number}") for number in range(12)]

    def dealing(number):
        def run(s):
            if way.__name__ == "Sync":
                with s.transaction() as tx:
                    deal(tx, claims[number], number)
                return "made"
            return arun(s)

        async def arun(s):
            async with s.transaction() as tx:
                deal(tx, claims[number], number)
            return "made"

        return run

    made = do.together([dealing(number) for number in range(12)])
    assert made.count("made") == CAP
    assert {type(each) for each in made if each != "made"} == {errors.CapReached}
    done = [do(lambda s, n=n: s.ledger.get(f"m{n}")).status for n in range(12)]
    assert [each == "made" for each in made] == [status is Status.COMPLETED for status in done]
    assert whole(do, "m0")[1:] == (CAP, CAP, CAP)
    do.close()


# Lost answers


def test_a_lost_answer_makes_nothing_twice(spied, faulty):
    for number, lose in enumerate(LOSSES.values(), 1):
        claim = claim_of(spied, f"m{number}")
        lose(faulty)
        charged, document, entry = spied.transact(lambda tx, c=claim, n=number: deal(tx, c, n))
        assert whole(spied, f"m{number}") == (Status.COMPLETED, number, number, number)
        assert (charged.value.token, document.value.version) == (f"m{number}", number)
        assert entry.value.body == {"n": number}


def test_answers_that_a_network_loses_make_nothing_twice(place):
    """The first answer to every write is lost on its way, sync and async."""
    with place.forgetful() as ([store], lost):
        s = semel.Semel(store, env=place.env)

        async def more():
            for number in range(10, 20):
                claim = await s.aio.ledger.claim(f"m{number}")
                async with s.aio.transaction() as tx:
                    dealt(tx, claim, number)
            await leave(store)

        def dealt(tx, claim, number):
            tx.ledger.complete(claim, number)
            tx.counters.charge("all", cap=100, token=f"m{number}")
            tx.documents.update("chat", increment)
            tx.journal.append("chat", {"n": number})

        for number in range(10):
            claim = s.ledger.claim(f"m{number}")
            with s.transaction() as tx:
                dealt(tx, claim, number)
        asyncio.run(more())
        assert s.documents.get("chat").value == {"n": 20}
        assert s.counters.look("all").used == 20
        assert [entry.body["n"] for entry in s.journal.list("chat").entries] == list(range(20))
        assert lost() >= 36


BLOCKS = {
    "complete": lambda tx, claim: tx.ledger.complete(claim, "done"),
    "fail": lambda tx, claim: tx.ledger.fail(claim, ValueError("no")),
    "release": lambda tx, claim: tx.ledger.release(claim),
}


@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
def test_a_block_that_is_tried_again_with_its_claim_is_recognised(spied, faulty, made):
    """Nobody can tell whether it was made; tried again as a whole, it is made once, whatever is in it."""
    for end, settle in BLOCKS.items():
        claim = claim_of(spied, end)

        def block(tx, claim=claim, end=end, settle=settle):
            settle(tx, claim)
            tx.journal.append(end, {"drawn": True})
            tx.journal.on(ACTIVITIES).append(end, {"what": "told"}, actor=7)
            tx.documents.put(f"{end}-put", {"n": 1})
            return tx.documents.update(end, increment)

        faulty.lose_reply(3) if made else faulty.lose_request(3)
        with pytest.raises(errors.StoreOutcomeUnknown):
            spied.transact(block)
        document = spied.transact(block).value
        assert (document.value, document.version) == ({"n": 1}, 1)
        assert spied(lambda s, e=end: s.documents.get(e)).value == {"n": 1}
        assert spied(lambda s, e=end: s.documents.get(f"{e}-put")).version == 1
        assert len(spied(lambda s, e=end: s.journal.list(e)).entries) == 1
        assert len(spied(lambda s, e=end: s.journal.on(ACTIVITIES).list(e)).entries) == 1


def test_a_block_is_recognised_though_others_have_changed_everything_since(spied, faulty):
    claim = claim_of(spied)
    faulty.lose_reply(3)
    with pytest.raises(errors.StoreOutcomeUnknown):
        spied.transact(lambda tx: deal(tx, claim))
    for _ in range(12):
        spied(lambda s: s.documents.update("chat", increment))
    spied.transact(lambda tx: deal(tx, claim))
    assert whole(spied) == (Status.COMPLETED, 1, 13, 1)


def test_what_was_completed_by_itself_does_not_swallow_a_charge(do):
    """Then the parts that are missing are made, as nothing of them is there."""
    claim = claim_of(do)
    do(lambda s: s.ledger.complete(claim, {"sent": 1}))
    do.transact(lambda tx: deal(tx, claim))
    assert whole(do) == ALL
    other = claim_of(do, "m2")
    do.transact(lambda tx: (tx.ledger.complete(claim, {"sent": 1}), tx.ledger.complete(other, 2)))
    assert do(lambda s: s.ledger.get("m2")).status is Status.COMPLETED


# The function that runs


def test_a_function_may_complete_itself_in_its_transaction(do):
    """What the transaction kept is what every call gives, and nothing is completed a second time."""
    runs = []

    @do.s.once("answer:{n}")
    def answer(n: int) -> dict[str, int]:
        runs.append(n)
        with do.s.transaction() as tx:
            deal(tx, semel.current_run(), n)
        return {"ignored": n}

    @do.s.once("answer:{n}", shared=True)
    async def aanswer(n: int) -> dict[str, int]:
        runs.append(n)
        async with do.s.aio.transaction() as tx:
            deal(tx, semel.current_run().claim, n)
        return {"ignored": n}

    function = answer if type(do).__name__ == "Sync" else aanswer
    assert do(lambda _: function(1)) == {"sent": 1}
    assert do(lambda _: function(1)) == {"sent": 1}
    assert runs == [1]
    assert whole(do, "answer:1") == ALL


def test_an_exception_after_the_commit_changes_nothing_of_it(sync):
    @sync.s.once("answer:{n}")
    def answer(n: int) -> dict[str, int]:
        with sync.s.transaction() as tx:
            deal(tx, semel.current_run(), n)
        raise KeyError("afterwards")

    with pytest.raises(KeyError, match="afterwards"):
        answer(1)
    assert whole(sync, "answer:1") == ALL
    assert answer(1) == {"sent": 1}


def test_a_refused_transaction_leaves_the_run_to_its_policy(sync):
    runs = []

    @sync.s.once("answer:{n}")
    def answer(n: int) -> str:
        runs.append(n)
        with sync.s.transaction() as tx:
            tx.ledger.complete(semel.current_run(), "done")
            tx.counters.charge("replies:chat", cap=1, token=f"m{n}")
        return "not reached the second time"

    assert answer(1) == "done"
    with pytest.raises(errors.CapReached):
        answer(2)
    assert sync(lambda s: s.ledger.get("answer:2")).status is Status.RELEASED
    with pytest.raises(errors.CapReached):
        answer(2)
    assert runs == [1, 2, 2]


def test_a_with_block_may_be_completed_from_another_thread(sync):
    """The run itself is given, and told, wherever the transaction is made."""
    with sync.s.once.running("answer", 1) as run:

        def elsewhere():
            with sync.s.transaction() as tx:
                deal(tx, run)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    with pytest.raises(errors.AlreadyDone) as done, sync.s.once.running("answer", 1):
        raise AssertionError("it does not run")
    assert done.value.result == {"sent": 1}


class Beats:
    """Counts heartbeats, and lets somebody wait for the next ones."""

    def __init__(self, monkeypatch, event):
        self.event, self.left = event, 3
        beat = heartbeat.beat

        def counted(*args):
            yield from beat(*args)
            self.left -= 1
            if self.left == 0:
                self.event.set()

        monkeypatch.setattr(heartbeat, "beat", counted)


# A short lease, as a heart beats in real time: nothing here depends on how long that takes.
LEASE = 0.03


def test_a_heart_that_beats_on_after_the_commit_loses_nothing(monkeypatch, clock):
    beats = Beats(monkeypatch, threading.Event())
    with semel.Semel(MemoryStore(clock), clock=clock) as s:

        @s.once("work", lease=LEASE)
        def work() -> str:
            run = semel.current_run()
            with s.transaction() as tx:
                tx.ledger.complete(run, "kept")
            while beats.left > 0:
                run.due = 0  # it is due, and the store would refuse it
                beats.event.wait(LEASE)
            clock.advance(60)
            run.check()
            return "returned"

        assert work() == "kept"


def test_a_task_is_not_cancelled_after_its_commit(monkeypatch, clock):
    with semel.Semel(MemoryStore(clock), clock=clock) as s:

        async def main():
            beats = Beats(monkeypatch, asyncio.Event())

            @s.once("work", lease=LEASE)
            async def work() -> str:
                async with s.aio.transaction() as tx:
                    tx.ledger.complete(semel.current_run(), "kept")
                await beats.event.wait()
                semel.current_run().check()
                return "returned"

            return await work()

        assert asyncio.run(main()) == "kept"


# Limits


def counting(proxy, word):
    """How many requests with a word in them have passed a proxy."""
    seen: list[bytes] = []

    def look(request):
        if word in request:
            seen.append(request)
        return False

    proxy.drop_answer_to(look)
    return seen


@pytest.mark.parametrize("place", DYNAMODB, indirect=True)
def test_more_than_dynamodb_takes_is_refused_before_anything_is_sent(way, place, clock):
    with FaultProxy.before(place.server) as proxy:
        do = way(place.open(clock, server=proxy.url(place.server)), env=place.env, clock=clock)
        claim = claim_of(do)
        sent = counting(proxy, b"TransactWriteItems")

        def many(tx, count):
            tx.ledger.complete(claim, "done")
            for number in range(count):
                tx.journal.append("chat", {"n": number}, at=clock.now())

        def large(tx):
            tx.ledger.complete(claim, "done")
            for number in range(11):
                tx.journal.append("chat", {"text": "x" * 390_000, "n": number}, at=clock.now())

        with pytest.raises(errors.UsageError, match="101 writes is more than the 100"):
            do.transact(lambda tx: many(tx, 100))
        with pytest.raises(errors.UsageError, match="more than the 4 MB"):
            do.transact(large)
        assert sent == []
        assert whole(do) == NOTHING
        do.transact(lambda tx: many(tx, 99))
        assert whole(do) == (Status.COMPLETED, 0, None, 99)
        assert sent
        do.close()


def test_a_cluster_makes_all_of_a_scope_s_transaction(way, clock, redis_cluster):
    prefix = f"t{uuid.uuid4().hex[:12]}"
    store = open_store(f"{redis_cluster}?cluster=yes&prefix={prefix}", env="test", clock=clock)
    do = way(store, env="test", clock=clock)
    claim = claim_of(do)
    do.transact(lambda tx: deal(tx, claim))
    assert whole(do) == ALL
    assert len(do(lambda s: s.journal.by_actor("ann")).entries) == 1
    do.close()


# Together with the caller's own rows


class Rows:
    """A table of the caller's own, in the store's database."""

    def __init__(self, place):
        self.place = place
        self.table = f"{place.env}.orders" if place.name == "postgres" else "orders"
        with closing(self.connect()) as connection:
            connection.execute(f"CREATE TABLE {self.table} (id text PRIMARY KEY)")
            connection.commit()

    def connect(self):
        if self.place.name == "postgres":
            import psycopg

            return psycopg.connect(self.place.server)
        return sqlite3.connect(self.place.url().removeprefix("sqlite:///"))

    def insert(self, connection, id):
        if self.place.name == "sqlite" and not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")
        return connection.execute(f"INSERT INTO {self.table} VALUES ('{id}')")

    def there(self):
        with closing(self.connect()) as connection:
            return {id for (id,) in connection.execute(f"SELECT id FROM {self.table}").fetchall()}


@pytest.fixture
def rows(place, sync):
    sync(lambda s: s.documents.get("chat"))  # so that the file is there
    return Rows(place)


SQL = pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)


@SQL
def test_a_transaction_stands_or_falls_with_the_callers_rows(sync, rows):
    for end, row in (("rollback", "o-1"), ("commit", "o-2")):
        claim = claim_of(sync, row)
        with closing(rows.connect()) as connection:
            rows.insert(connection, row)
            with sync.s.transaction(within=connection) as tx:
                _, document, _ = deal(tx, claim)
            assert document.value.value == {"n": 1}
            getattr(connection, end)()
        made = end == "commit"
        assert rows.there() == ({row} if made else set())
        assert whole(sync, row) == (ALL if made else NOTHING)


@SQL
def test_a_refusal_leaves_the_callers_transaction_to_him(sync, rows):
    claim = claim_of(sync)
    for number in range(CAP):
        sync(lambda s, n=number: s.counters.charge("replies:chat", cap=CAP, token=f"x{n}"))
    with closing(rows.connect()) as connection:
        rows.insert(connection, "o-1")
        with pytest.raises(errors.CapReached), sync.s.transaction(within=connection) as tx:
            deal(tx, claim)
        rows.insert(connection, "o-2")
        connection.commit()
    assert rows.there() == {"o-1", "o-2"}
    assert whole(sync) == (Status.IN_PROGRESS, CAP, None, 0)


@SQL
def test_a_function_that_completes_itself_with_the_callers_rows_runs_once(sync, rows):
    runs = []

    @sync.s.once("order:{id}")
    def order(id: str) -> dict[str, int]:
        runs.append(id)
        with closing(rows.connect()) as connection:
            rows.insert(connection, id)
            with sync.s.transaction(within=connection) as tx:
                deal(tx, semel.current_run())
            connection.commit()
        return {"ignored": 1}

    assert order("o-1") == order("o-1") == {"sent": 1}
    assert runs == ["o-1"]
    assert rows.there() == {"o-1"}
    assert whole(sync, "order:o-1") == ALL


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_function_inside_the_callers_transaction_leaves_its_end_to_him(sync, rows, end):
    """It does not wait for a row that its own caller has locked; what he takes back runs again later."""

    @sync.s.once("order:{id}", fingerprint="id")
    def order(id: str, connection) -> dict[str, int]:
        rows.insert(connection, id)
        with sync.s.transaction(within=connection) as tx:
            deal(tx, semel.current_run())
        return {"ignored": 1}

    with closing(rows.connect()) as connection:
        assert sync.s.once.call("order:o-1", order, "o-1", connection) == {"sent": 1}
        getattr(connection, end)()
    made = end == "commit"
    assert rows.there() == ({"o-1"} if made else set())
    assert whole(sync, "order:o-1") == (ALL if made else NOTHING)


@SQL
def test_a_function_that_takes_its_rows_back_and_fails_gives_its_key_back(sync, rows):
    @sync.s.once("order:{id}")
    def order(id: str) -> None:
        with closing(rows.connect()) as connection:
            rows.insert(connection, id)
            with sync.s.transaction(within=connection) as tx:
                deal(tx, semel.current_run())
            connection.rollback()
        raise ValueError("no such article")

    with pytest.raises(ValueError, match="no such article"):
        order("o-1")
    assert rows.there() == set()
    assert whole(sync, "order:o-1") == (Status.RELEASED, 0, None, 0)


@SQL
def test_single_writes_stand_or_fall_with_the_callers_rows_too(sync, rows):
    for end in ("rollback", "commit"):
        with closing(rows.connect()) as connection:
            rows.insert(connection, "o-1")
            sync.s.documents.within(connection).update("chat", increment)
            sync.s.documents.within(connection).update("chat", increment)
            sync.s.journal.within(connection).append("chat", {"n": 1}, key="k", actor="ann")
            sync.s.counters.within(connection).charge("replies:chat", cap=CAP, token="m1")
            getattr(connection, end)()
        assert rows.there() == ({"o-1"} if end == "commit" else set())
        assert whole(sync) == ((None, 1, 2, 1) if end == "commit" else (None, 0, None, 0))


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_task_may_use_its_connection_to_the_file(sync, rows):
    claim = claim_of(sync)

    async def main():
        with closing(rows.connect()) as connection:
            rows.insert(connection, "o-1")
            async with sync.s.aio.transaction(within=connection) as tx:
                deal(tx, claim)
            connection.commit()

    asyncio.run(main())
    assert (rows.there(), whole(sync)) == ({"o-1"}, ALL)


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_async_connection_serves_as_well(sync, rows, end):
    import psycopg

    claim = claim_of(sync)

    async def main():
        async with await psycopg.AsyncConnection.connect(rows.place.server) as connection:
            await rows.insert(connection, "o-1")
            async with sync.s.aio.transaction(within=connection) as tx:
                deal(tx, claim)
            await getattr(connection, end)()

    asyncio.run(main())
    made = end == "commit"
    assert rows.there() == ({"o-1"} if made else set())
    assert whole(sync) == (ALL if made else NOTHING)


@pytest.mark.parametrize("place", ["memory", "dynoxide", "redis"], indirect=True)
def test_a_store_that_shares_no_transaction_says_so(sync):
    with pytest.raises(errors.UsageError, match="no transaction to share"):
        sync.s.transaction(within=object())


def test_a_record_that_was_forgotten_is_not_brought_back(do):
    """A completion is of a record that is there: nothing else is written either."""
    claim = claim_of(do)
    do(lambda s: s.ledger.forget("m1"))
    with pytest.raises(errors.ClaimLost):
        do.transact(lambda tx: deal(tx, claim))
    assert whole(do) == (None, 0, None, 0)
