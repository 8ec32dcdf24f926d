"""Rates over time: what is counted, what is written, and what comes back, on every store."""

import asyncio
import os
import signal
import threading
from contextlib import contextmanager

import pytest

import semel
from semel import InvalidOption, StoreUnavailable
from semel.core.commands import Page, Put, Query
from semel.core.events import Event, What, digest
from semel.core.policy import DAY
from semel.gate import Cap, KillSwitch
from semel.ops import rates
from semel.ops.rates import EDGES, HOUR, KEPT, MINUTE, Rates, together
from semel.stores.memory import MemoryStore
from semel.tables import JOURNAL
from semel.telemetry.words import outcome
from semel.testing import FakeClock, Faulty


@pytest.fixture
def keeper(s, clock):
    """What keeps the rates of a ledger, from the beginning of an hour on."""
    clock.advance(HOUR - clock.now() % HOUR)
    return s.keep_rates()


@pytest.fixture
def one():
    """A ledger in memory whose store fails on demand, its clock and what keeps its rates."""
    clock = FakeClock(now=1_700_002_800.0)
    store = Faulty(MemoryStore(clock))
    with semel.Semel(store, clock=clock) as s:
        yield s, clock, store, s.keep_rates()


def work(s, key="a"):
    s.ledger.complete(s.ledger.claim(key, lease=30, ttl=DAY), "done")


def again(s, key="a"):
    s.ledger.claim(key, lease=30, ttl=DAY)


def read(s, clock, width=MINUTE):
    return s.ops.rates(0, clock.now(), width)


def rows_of(store):
    return [command for command in store.seen if isinstance(command, Put) and command.table is JOURNAL]


# What is counted


def test_events_are_counted_by_minute_and_by_function(s, clock, keeper):
    @s.once("greet:{name}")
    def greet(name: str) -> str:
        return f"hello {name}"

    start = clock.now()
    greet("ann")
    greet("ann")
    work(s, "b")
    clock.advance(61)
    greet("ann")
    keeper.flush()
    name = f"{greet.__module__}.{greet.__qualname__}"
    first, second = read(s, clock)
    assert first.start == start
    assert second.start == start + 60
    assert first.counts == {
        name: {"claimed": 1, "completed": 1, "replayed": 1},
        "": {"claimed": 1, "completed": 1},
    }
    assert second.counts == {name: {"replayed": 1}}
    assert first.count("claimed", "replayed") == 3


def test_async_work_is_counted_and_read(s, clock, keeper):
    async def main():
        await s.aio.ledger.complete(await s.aio.ledger.claim("a", lease=30, ttl=3600), "done")
        keeper.flush()
        return await s.aio.ops.rates(clock.now() - 60, clock.now())

    [row] = asyncio.run(main())
    assert row.counts == {"": {"claimed": 1, "completed": 1}}


def test_duplicates_are_named_by_digest_and_never_by_key(s, clock, keeper):
    for key, times in (("often:ann", 3), ("seldom:bob", 1)):
        work(s, key)
        for _ in range(times):
            again(s, key)
    keeper.flush()
    [row] = read(s, clock)
    often, seldom = (digest(s.ledger.steps.name(key)) for key in ("often:ann", "seldom:bob"))
    assert list(row.duplicates.items()) == [(often, 3), (seldom, 1)]
    assert "ann" not in repr(row)


def test_a_duplicate_is_what_telemetry_calls_one():
    assert {what for what in What if outcome(what) == "duplicate"} == rates.DUPLICATES


@pytest.mark.parametrize(
    ("seconds", "place"), [(0.0, 0), (0.005, 0), (0.0051, 1), (30.0, 11), (31.0, 12)], ids=str
)
def test_work_is_counted_by_how_long_it_took(one, seconds, place):
    s, clock, _, keeper = one
    claim = s.ledger.claim("a", lease=3600, ttl=7200)
    clock.advance(seconds)
    s.ledger.complete(claim, "done")
    keeper.flush()
    buckets = together(read(s, clock, HOUR))[0].seconds[""]
    assert buckets == [int(number == place) for number in range(len(EDGES) + 1)]


def test_only_the_attempt_that_ends_is_timed(one):
    s, clock, _, keeper = one
    zombie = s.ledger.claim("a", lease=30, ttl=3600)
    clock.advance(40)
    second = s.ledger.claim("a", lease=30, ttl=3600)
    with pytest.raises(semel.ClaimLost):
        s.ledger.complete(zombie, "late")
    clock.advance(2)
    s.ledger.complete(second, "done")
    keeper.flush()
    [row] = read(s, clock, HOUR)
    assert row.seconds == {"": [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]}


def test_scopes_do_not_see_each_others_rates(s, clock, keeper):
    other = s.scoped(f"{s.scope}-other")
    work(s)
    work(other)
    again(other)
    keeper.flush()
    assert read(s, clock)[0].counts == {"": {"claimed": 1, "completed": 1}}
    assert read(other, clock)[0].counts == {"": {"claimed": 1, "completed": 1, "replayed": 1}}


# Bounds


@pytest.fixture
def counter():
    return rates.RateCounter(FakeClock())


def test_attempts_that_never_end_are_forgotten_the_oldest_first(counter, monkeypatch):
    monkeypatch.setattr(rates, "MOST_RUNNING", 2)
    for key in "abc":
        counter(Event(What.CLAIMED, key, 1))
    for key in "abc":
        counter(Event(What.COMPLETED, key, 1))
    [(_, counted)] = counter.take()
    assert sum(counted.seconds[""]) == 2


def test_names_keys_and_scopes_are_bounded(counter, monkeypatch):
    for bound in ("MOST_NAMES", "MOST_KEYS", "MOST_SCOPES"):
        monkeypatch.setattr(rates, bound, 2)
    for number in range(4):
        counter(Event(What.REPLAYED, f"k{number}", name=f"f{number}"))
    counter(Event(What.REPLAYED, "k0", name="f0"))
    for scope in ("x", "y"):
        counter(Event(What.REPLAYED, "k", scope=scope))
    (_, first), (scope, _) = counter.take()
    assert first.counts == {"f0": {"replayed": 2}, "f1": {"replayed": 1}, "(others)": {"replayed": 2}}
    assert first.duplicates == {"k0": 2, "k1": 1}
    assert scope == "x"


def test_a_row_names_the_keys_with_the_most_duplicates(one, monkeypatch):
    s, clock, _, keeper = one
    monkeypatch.setattr(rates, "MOST_NAMED", {MINUTE: 1, HOUR: 2})
    for key, times in (("a", 1), ("b", 3), ("c", 2)):
        work(s, key)
        for _ in range(times):
            again(s, key)
    keeper.flush()
    assert [*read(s, clock)[0].duplicates.values()] == [3]
    assert [*read(s, clock, HOUR)[0].duplicates.values()] == [3, 2]


# What is written


def test_the_rows_of_several_processes_are_added_up(house, s, clock, keeper):
    other = semel.Semel(house.open(clock), env=house.env, scope=s.scope, clock=clock)
    kept = other.keep_rates()
    work(s)
    again(other)
    again(other)
    for each in (keeper, kept):
        each.flush()
    for width in (MINUTE, HOUR):
        [row] = read(s, clock, width)
        assert row.counts == {"": {"claimed": 1, "completed": 1, "replayed": 2}}
        assert list(row.duplicates.values()) == [2]
    if house.name != "memory":
        other.close()


def test_an_hour_has_the_sum_of_its_minutes(s, clock, keeper):
    start = clock.now()
    for number in range(3):
        work(s, f"k{number}")
        keeper.flush()
        clock.advance(25 * 60)
    keeper.flush()
    assert [(row.start - start, row.count("completed")) for row in read(s, clock)] == [
        (0, 1),
        (1500, 1),
        (3000, 1),
    ]
    assert [(row.start - start, row.count("completed")) for row in read(s, clock, HOUR)] == [(0, 3)]


def test_what_comes_later_in_a_minute_that_was_written_is_added_to_it(s, clock, keeper):
    work(s)
    keeper.flush()
    clock.advance(30)
    again(s)
    keeper.flush()
    [row] = read(s, clock)
    assert row.counts == {"": {"claimed": 1, "completed": 1, "replayed": 1}}


def test_a_process_that_begins_anew_under_its_old_name_takes_no_row_away(one):
    s, clock, store, keeper = one
    work(s)
    keeper.stop()
    with semel.Semel(store, clock=clock) as second:
        kept = second.keep_rates()
        again(second)
        kept.flush()
        for width in (MINUTE, HOUR):
            assert read(second, clock, width)[0].counts == {"": {"claimed": 1, "completed": 1, "replayed": 1}}


def test_a_clock_that_goes_back_takes_no_row_away(one):
    s, clock, _, keeper = one
    start = clock.now()
    work(s)
    keeper.flush()
    clock.advance(120)
    keeper.flush()  # the first minute is over, and forgotten here
    clock.jump(-120)
    again(s)
    keeper.flush()
    [row] = s.ops.rates(start, start)
    assert row.counts == {"": {"claimed": 1, "completed": 1, "replayed": 1}}


def test_rows_are_kept_for_days_and_expire(s, clock, keeper):
    work(s)
    keeper.flush()
    clock.advance(KEPT[MINUTE] - 1)
    assert len(read(s, clock)) == 1
    clock.advance(2)
    assert (len(read(s, clock)), len(read(s, clock, HOUR))) == (0, 1)
    clock.advance(KEPT[HOUR] - KEPT[MINUTE])
    assert read(s, clock, HOUR) == []


def test_what_could_not_be_written_is_written_later(one):
    s, clock, store, keeper = one
    work(s)
    store.refuse(1)
    keeper.flush()
    clock.advance(300)
    again(s)
    assert read(s, clock) == []
    keeper.flush()
    first, *_, last = read(s, clock)
    assert first.counts == {"": {"claimed": 1, "completed": 1, "store_error": 1}}
    assert last.counts == {"": {"replayed": 1}}
    assert read(s, clock, HOUR)[0].count("completed", "replayed") == 2


def test_a_row_whose_reply_is_lost_is_counted_once(one):
    s, clock, store, keeper = one
    work(s)
    store.lose_reply()
    keeper.flush()
    keeper.flush()
    for width in (MINUTE, HOUR):
        assert read(s, clock, width)[0].count("completed") == 1


def test_while_a_store_is_away_the_oldest_minutes_go_and_the_hours_stay(one, monkeypatch):
    s, clock, store, keeper = one
    monkeypatch.setattr(rates, "MOST_ROWS", 3)
    for number in range(5):
        work(s, f"k{number}")
        store.refuse(1)
        keeper.flush()
        clock.advance(60)
    store.recover()
    keeper.flush()
    assert len([row for row in read(s, clock) if row.count("completed")]) == 2
    assert read(s, clock, HOUR)[0].count("completed") == 5


def test_an_error_that_is_no_stores_is_logged_and_stops_nothing(one, monkeypatch, caplog):
    s, clock, _, keeper = one
    work(s)
    with monkeypatch.context() as broken:
        broken.setattr(rates, "drive", lambda *_: 1 / 0)
        keeper.flush()
    assert "rates could not be written" in caplog.text
    keeper.flush()
    assert read(s, clock)[0].count("completed") == 1


# What it costs


def test_counting_costs_no_request_and_a_minute_costs_two(one):
    s, _, store, keeper = one
    work(s)
    before = len(store.seen)
    for _ in range(100):
        keeper(Event(What.REPLAYED, "0123456789abcdef"))
    assert len(store.seen) == before
    keeper.flush()
    assert len(rows_of(store)) == 2
    keeper.flush()
    assert len(rows_of(store)) == 2  # nothing came since


def test_nothing_is_counted_unless_it_is_asked_for():
    clock = FakeClock()
    store = Faulty(MemoryStore(clock))
    with semel.Semel(store, clock=clock) as s:
        work(s)
        assert s.events.listeners == []
    assert rows_of(store) == []


# Beginning and ending


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "semel-rates"]


@contextmanager
def kept(clock):
    store = Faulty(MemoryStore(clock))
    s = semel.Semel(store, clock=clock)
    yield s, store, s.keep_rates()
    s.close()


def test_closing_writes_the_rest_and_ends_the_thread():
    clock, before = FakeClock(), threads()
    with kept(clock) as (s, store, keeper):
        assert s.scoped("other").keep_rates() is keeper
        work(s)
        assert len(s.events.listeners) == 1
    assert len(rows_of(store)) == 2
    assert threads() == before
    s.close()
    keeper(Event(What.REPLAYED, "late"))
    keeper.flush()
    assert len(rows_of(store)) == 2
    assert threads() == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_failed_starts_again_with_the_next_event():
    failed = threading.Event()

    class Failing(FakeClock):
        def now(self):
            if threading.current_thread().name == "semel-rates" and not failed.is_set():
                failed.set()
                raise MemoryError
            return super().now()

    before = threads()
    with kept(Failing()) as (_, _, keeper):
        keeper(Event(What.REPLAYED, "k"))
        assert failed.wait(60)
        for thread in threads():
            if thread not in before:
                thread.join(60)
        keeper(Event(What.REPLAYED, "k"))
        assert [thread for thread in threads() if thread not in before]


def test_closing_an_async_ledger_writes_the_rest(house, s, clock):
    if house.name == "memory":
        pytest.skip("it forgets everything as it is closed")

    async def main():
        async with semel.Semel(house.open(clock), env=house.env, scope=s.scope, clock=clock).aio as aio:
            aio._sync.keep_rates()
            await aio.ledger.claim("a", lease=30, ttl=3600)

    asyncio.run(main())
    assert read(s, clock)[0].counts == {"": {"claimed": 1}}


def test_closing_with_a_store_that_is_away_ends_all_the_same():
    clock, before = FakeClock(), threads()
    with kept(clock) as (s, store, _):
        work(s)
        store.refuse(10)
    assert threads() == before


def test_the_thread_writes_when_a_minute_is_over():
    written = threading.Event()

    class Told(Faulty):
        def execute(self, command):
            reply = super().execute(command)
            if isinstance(command, Put) and command.table is JOURNAL:
                written.set()
            return reply

        def at_once(self, command):
            reply = super().at_once(command)
            if isinstance(command, Put) and command.table is JOURNAL:
                written.set()
            return reply

    clock = FakeClock(now=1_700_000_039.99)
    with semel.Semel(Told(MemoryStore(clock)), clock=clock) as s:
        s.keep_rates()
        work(s)
        assert written.wait(60)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_counts_its_own_and_nothing_of_its_parents(tmp_path):
    clock = FakeClock(now=1_700_002_800.0)
    s = semel.connect(f"sqlite:///{tmp_path / 'semel.db'}", clock=clock)
    keeper = s.keep_rates()
    work(s)
    with keeper._counter._lock, keeper._flushing:  # as another thread may hold them at that moment
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            again(s)
            running = len(threads()) == 1
            s.close()
            os._exit(0 if running else 1)
    assert os.waitpid(child, 0)[1] == 0
    keeper.flush()
    [row] = read(s, clock)
    assert row.counts == {"": {"claimed": 1, "completed": 1, "replayed": 1}}
    s.close()


def test_a_signals_handler_may_count_in_the_midst_of_counting(counter):
    class Interrupting(FakeClock):
        def monotonic(self):
            if not interrupted:
                interrupted.append(True)
                counter(Event(What.REPLAYED, "b"))
            return super().monotonic()

    interrupted = []
    counter._clock = Interrupting()
    counter(Event(What.CLAIMED, "a", 1))
    assert counter.take()[0][1].counts == {"": {"replayed": 1, "claimed": 1}}


# Reading


@pytest.mark.parametrize("width", [0, 61, "minute"])
def test_a_width_that_is_not_kept_is_refused(one, width):
    with pytest.raises(InvalidOption, match="60 or 3600"):
        one[0].ops.rates(0, 1, width)


def test_no_time_has_no_rates(s, clock, keeper):
    work(s)
    keeper.flush()
    assert s.ops.rates(clock.now(), clock.now() - 120) == []
    assert s.ops.rates(-1e9, -1e8) == []


def test_only_the_minutes_asked_for_are_read(s, clock, keeper):
    start = clock.now()
    for number in range(4):
        work(s, f"k{number}")
        clock.advance(60)
    keeper.flush()
    assert [row.start for row in s.ops.rates(start + 60, start + 179)] == [start + 60, start + 120]


def test_rows_of_another_release_with_other_buckets_are_added_up_too():
    [row] = together([Rates(0, seconds={"f": [1, 2]}), Rates(0, seconds={"f": [1, 2, 3]})])
    assert row.seconds == {"f": [2, 4, 3]}


# In the story of a key


def test_a_story_tells_how_many_duplicates_were_answered(s, clock, keeper):
    work(s, "a")
    assert s.ops.explain("a").duplicates is None
    for _ in range(3):
        again(s)
        clock.advance(HOUR)
        keeper.flush()
    work(s, "b")
    story = s.ops.explain("a")
    assert story.duplicates == 3
    assert "Duplicates that were answered in the last day: 3." in str(story)
    assert s.ops.explain("b").duplicates == 0
    clock.advance(KEPT[HOUR] + HOUR)
    work(s, "c")
    story = s.ops.explain("c")
    assert story.duplicates is None
    assert "Duplicates" not in str(story)


def test_a_story_is_told_where_rates_cannot_be_read(one, monkeypatch):
    s, *_ = one
    work(s)

    def away(*_):
        raise StoreUnavailable("no such table")
        yield

    monkeypatch.setattr(rates.RateSteps, "duplicates", away)
    story = s.ops.explain("a")
    assert story.status == "COMPLETED"
    assert story.duplicates is None


def test_looking_for_duplicates_reads_so_many_pages_at_most(one, monkeypatch):
    s, _, store, _ = one
    work(s)
    monkeypatch.setattr(rates, "MOST_PAGES", 2)
    inner = store.execute
    asked = []

    def many(command):
        if isinstance(command, Query) and str(command.key).endswith(rates.OWNER):
            asked.append(command)
            return Page(0.0, (), "more")
        return inner(command)

    monkeypatch.setattr(store, "execute", many)
    monkeypatch.setattr(store, "at_once", lambda _: None)
    assert s.ops.explain("a").duplicates is None
    assert len(asked) == 2


def test_refusals_of_a_gate_are_counted_by_the_kind_of_their_reason(s, clock, keeper):
    s.switches.turn("mail", on=True)
    gate = s.gate(KillSwitch("mail"), Cap("bea@example.org", 1))
    gate.decide("send:1")
    s.switches.turn("mail", on=False)
    gate.decide("send:2")
    gate.decide("send:3")
    [counted] = s.counted_rates()
    keeper.flush()
    [written] = s.ops.rates(clock.now() - HOUR, clock.now())
    assert counted.reasons == written.reasons == {"kill_switch": 1, "cap": 1}
    assert s.counted_rates() == []


def test_what_a_door_refuses_is_no_reason_of_a_gate(one):
    s, _, _, keeper = one
    keeper(Event(What.REFUSED, "d1", detail="put aside", warned=True))
    keeper(Event(What.REFUSED, "", detail="413"))
    [counted] = s.counted_rates()
    assert (counted.count("refused"), counted.reasons) == (2, {})


def test_reasons_without_end_take_no_memory_without_end(one):
    s, _, _, keeper = one
    for number in range(rates.MOST_REASONS + 20):
        keeper(Event(What.REFUSED, "d1", detail=f"reason{number}: bea"))
    [counted] = s.counted_rates()
    assert (len(counted.reasons), counted.reasons[rates.OTHER_NAMES]) == (rates.MOST_REASONS + 1, 20)
