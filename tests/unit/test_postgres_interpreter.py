"""Which round trips carry a command out on PostgreSQL, with answers made up: nothing is connected to."""

import pytest

from semel import errors
from semel.core.clock import Clock
from semel.core.commands import (
    ABSENT,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Equals,
    Found,
    Get,
    Many,
    Put,
    Refused,
    Time,
    Transact,
    Update,
    Watch,
)
from semel.stores.postgres.address import PostgresAddress
from semel.stores.postgres.errors import translated
from semel.stores.postgres.interpreter import (
    BEGIN,
    COMMIT,
    LIKELY_REFUSALS,
    MOST_COUNTS,
    ROWS,
    SNAPSHOT,
    TRIES,
    ConditionFailed,
    PostgresSteps,
    RefusalCounts,
    RoundTrip,
    TransactionConflict,
)
from semel.stores.postgres.plan import PostgresPlan
from semel.stores.postgres.statements import ASK_TIME
from semel.stores.postgres.within import StepsWithin
from semel.stores.servertime import FRESH_SECONDS, ServerTime
from semel.stores.shared import Plans
from semel.tables import Kind, Table
from semel.testing import FakeClock
from semel.testing.conformance import NOTES, THINGS

NOW = 1000.0
ITEM = {"text": "new", "gone_at": 2000.0}
MADE = (NOW, False, None)
NOT_MADE = (NOW, None, None)


@pytest.fixture
def steps():
    return PostgresSteps(Plans(PostgresPlan).of, lambda: NOW)


def row(table=THINGS, **attributes):
    return tuple(attributes.get(name) for name in table.kinds)


NOTHING = row()


def ended(round_trips, answer):
    """The value of round trips that end with this answer."""
    with pytest.raises(StopIteration) as end:
        round_trips.send(answer)
    return end.value.value


def verbs(trip):
    return [sql if values is None else b"..." for sql, values in trip.statements]


# One write


def test_a_write_is_one_statement_also_when_it_loses(steps):
    round_trips = steps.of(Put(THINGS, "a", ITEM, ABSENT))
    trip = next(round_trips)
    assert (len(trip.statements), trip.commits) == (1, True)
    assert trip.statements[0][1][:2] == [NOW, "a"]
    refused = ended(round_trips, [[(*NOT_MADE, *row(id="a", gone_at=2000.0))]])
    assert refused == Refused(NOW, {"id": "a", "gone_at": 2000})


def test_a_write_is_sent_again_when_what_was_read_is_out_of_date(steps):
    round_trips = steps.of(Put(THINGS, "a", ITEM, ABSENT))
    first = next(round_trips)
    assert round_trips.send([[(*NOT_MADE, *NOTHING)]]) == first
    assert ended(round_trips, [[(*MADE, *NOTHING)]]) == Applied(NOW)


def test_and_after_a_conflict_but_not_for_ever(steps):
    round_trips = steps.of(Put(THINGS, "a", ITEM, ABSENT))
    first = next(round_trips)
    for _ in range(TRIES - 1):
        assert round_trips.throw(TransactionConflict("deadlock")) == first
    with pytest.raises(errors.StoreThrottled, match="try again later"):
        round_trips.throw(TransactionConflict("deadlock"))


def test_a_reading_takes_no_effect(steps):
    for round_trips in (
        steps.of(Get(THINGS, "a")),
        steps.read(Watch(THINGS, "a", 1.0)),
        steps.subscribe(Watch(THINGS, "a", 1.0)),
    ):
        assert next(round_trips).commits is False
        assert ended(round_trips, [[(NOW, *NOTHING)]]).item is None


def test_another_table_of_the_same_name_is_refused(steps):
    next(steps.of(Get(THINGS, "a")))
    other = Table(name=THINGS.name, partition="id", attributes={"x": Kind.TEXT}, expires="gone_at")
    with pytest.raises(errors.UsageError, match="another table"):
        next(steps.of(Get(other, "a")))


# Batches


def test_writes_of_one_shape_share_a_statement_and_answer_in_order(steps):
    round_trips = steps.of(
        Batch(
            (
                Put(THINGS, "b", ITEM, ABSENT),
                Delete(THINGS, "x"),
                Put(THINGS, "a", ITEM, ABSENT),
                Put(THINGS, "c", ITEM, ABSENT),
            )
        )
    )
    trip = next(round_trips)
    assert [values[1] for _, values in trip.statements] == [["b", "a", "c"], ["x"]]
    puts = [
        (*NOT_MADE, *row(id="a", gone_at=2000.0)),
        (*MADE, *row(id="c")),
        (*MADE, *row(id="b")),
        (*NOT_MADE, *NOTHING),
    ]
    many = ended(round_trips, [puts, [(*NOT_MADE, *NOTHING)]])
    assert many.replies == (
        Applied(NOW),
        Refused(NOW, None),
        Refused(NOW, {"id": "a", "gone_at": 2000}),
        Applied(NOW),
    )


def test_writes_to_one_key_wait_for_each_other(steps):
    round_trips = steps.of(
        Batch((Put(THINGS, "a", ITEM, ABSENT), Delete(THINGS, "a"), Put(THINGS, "b", ITEM, ABSENT)))
    )
    first = next(round_trips)
    assert [values[1] for _, values in first.statements] == [["a", "b"]]
    assert not first.partial
    second = round_trips.send([[(*MADE, *row(id="a")), (*MADE, *row(id="b")), (*NOT_MADE, *NOTHING)]])
    assert [values[1] for _, values in second.statements] == [["a"]]
    assert second.partial, "if this fails, the first has been made"
    assert ended(round_trips, [[(*MADE, *row(id="a")), (*NOT_MADE, *NOTHING)]]).replies == (Applied(NOW),) * 3


def test_only_what_was_out_of_date_is_sent_again(steps):
    round_trips = steps.of(Batch((Put(THINGS, "a", ITEM, ABSENT), Put(THINGS, "b", ITEM, ABSENT))))
    next(round_trips)
    again = round_trips.send([[(*MADE, *row(id="a")), (*NOT_MADE, *NOTHING)]])
    assert [values[1] for _, values in again.statements] == [["b"]]


def test_a_batch_in_conflict_is_sent_again_whole(steps):
    round_trips = steps.of(Batch((Put(THINGS, "a", ITEM, ABSENT), Put(THINGS, "b", ITEM, ABSENT))))
    first = next(round_trips)
    assert round_trips.throw(TransactionConflict("deadlock")) == first


def test_a_large_batch_goes_in_parts(steps):
    trip = next(steps.of(Batch(tuple(Put(THINGS, str(n), ITEM, ABSENT) for n in range(ROWS + 1)))))
    assert [len(values[1]) for _, values in trip.statements] == [ROWS, 1]


def test_a_batch_with_a_mistake_in_it_is_refused_whole(steps):
    wrong = Batch((Put(THINGS, "a", ITEM), Put(THINGS, "a", ITEM | {"text": 1})))
    with pytest.raises(errors.UsageError):
        next(steps.of(wrong))


# Transactions

BOTH = Transact(
    (Put(THINGS, "b", ITEM, ABSENT), Update(NOTES, "o", {"text": "x"}, Equals("text", "old"), "2"))
)
NOTE = row(NOTES, owner="o", place="2", gone_at=2000.0, text="old")


WRITTEN = [(NOW, None, 1)]
REFUSED = ConditionFailed("a condition does not hold")


def test_a_transaction_is_one_trip_and_writes_in_one_order(steps):
    round_trips = steps.of(BOTH)
    trip = next(round_trips)
    assert verbs(trip) == [BEGIN[0], b"...", b"...", COMMIT[0]]
    assert [b"semel_conformance_notes" in sql for sql, _ in trip.statements] == [False, True, False, False]
    assert (trip.commits, trip.undone_if_refused) == (True, True)
    assert {values[0] for _, values in trip.statements[1:-1]} == {NOW}
    assert ended(round_trips, [[], WRITTEN, WRITTEN, []]) == Applied(NOW)


def test_its_time_is_that_of_its_beginning(steps):
    """Every write of it has the same, which the server knows without being told."""
    for sql, _ in next(PostgresSteps(Plans(PostgresPlan).of, lambda: None).of(BOTH)).statements[1:-1]:
        assert b"transaction_timestamp()" in sql
        assert b"clock_timestamp()" not in sql


def test_what_refused_is_looked_up_in_one_more_trip(steps):
    round_trips = steps.of(BOTH)
    next(round_trips)
    look = round_trips.throw(REFUSED)
    assert verbs(look) == [SNAPSHOT[0], b"...", b"...", b"...", COMMIT[0]]
    assert look.statements[1] == (ASK_TIME, [NOW])
    assert not any(b"FOR UPDATE" in sql for sql, _ in look.statements)
    assert (look.commits, look.undone_if_refused) == (False, False)
    there, over = row(id="b", gone_at=2000.0), row(NOTES, owner="o", place="2", gone_at=500.0, text="old")
    refusals = (Refused(NOW, {"id": "b", "gone_at": 2000}), Refused(NOW, None))
    assert ended(round_trips, [[], [(NOW,)], [there], [over], []]) == Cancelled(NOW, refusals)


def test_a_write_that_would_have_held_has_no_refusal(steps):
    round_trips = steps.of(BOTH)
    next(round_trips)
    round_trips.throw(REFUSED)
    assert ended(round_trips, [[], [(NOW,)], [], [], []]) == Cancelled(NOW, (None, Refused(NOW, None)))


def test_a_transaction_begins_anew_where_what_refused_is_gone_but_not_for_ever(steps):
    round_trips = steps.of(BOTH)
    first = next(round_trips)
    for _ in range(TRIES - 1):
        round_trips.throw(REFUSED)
        assert round_trips.send([[], [(NOW,)], [], [NOTE], []]) == first
    with pytest.raises(errors.StoreThrottled, match="try again later"):
        round_trips.throw(REFUSED)


def test_a_transaction_begins_anew_after_a_conflict_but_not_for_ever(steps):
    round_trips = steps.of(BOTH)
    first = next(round_trips)
    for _ in range(TRIES - 1):
        assert round_trips.throw(TransactionConflict("deadlock")) == first
    with pytest.raises(errors.StoreThrottled, match="try again later"):
        round_trips.throw(TransactionConflict("deadlock"))


def cancelled(round_trips):
    """A transaction that is refused, up to its end; the trips that it took."""
    trips = [next(round_trips)]
    if trips[0].undone_if_refused:
        trips.append(round_trips.throw(REFUSED))
    assert type(ended(round_trips, [[], [(NOW,)], [], [], []])) is Cancelled
    return len(trips)


def test_where_a_transaction_was_refused_twice_the_next_looks_first(steps):
    """As at a cap that is full: nothing is tried in vain, and the server's log stays empty."""
    assert [cancelled(steps.of(BOTH)) for _ in range(4)] == [2, 2, 1, 1]
    round_trips = steps.of(BOTH)
    assert not next(round_trips).undone_if_refused
    dare = round_trips.send([[], [(NOW,)], [], [NOTE], []])
    assert dare.undone_if_refused, "it is allowed now"
    assert ended(round_trips, [[], WRITTEN, WRITTEN, []]) == Applied(NOW)
    assert next(steps.of(BOTH)).undone_if_refused


def test_refusals_that_are_not_in_a_row_make_nobody_wary(steps):
    for _ in range(LIKELY_REFUSALS + 1):
        assert cancelled(steps.of(BOTH)) == 2
        round_trips = steps.of(BOTH)
        next(round_trips)
        assert ended(round_trips, [[], WRITTEN, WRITTEN, []]) == Applied(NOW)


def test_only_so_many_counts_are_kept():
    counts = RefusalCounts()
    for _ in range(LIKELY_REFUSALS):
        counts.add(["full"], ["refusal"])
    assert counts.likely(["free", "full"])
    assert not counts.likely(["free"])
    counts.add(range(MOST_COUNTS), ["refusal"] * MOST_COUNTS)
    assert not counts.likely(["full"])


class Answered(Exception):
    """What the driver raises where the server answers with an error."""

    def __init__(self, sqlstate):
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("code", "undone", "meaning"),
    [
        ("22P02", True, ConditionFailed),
        ("22P02", False, errors.UsageError),
        ("40P01", True, TransactionConflict),
        ("57014", True, errors.StoreUnavailable),
        ("57P01", True, errors.StoreOutcomeUnknown),
        (None, True, errors.StoreOutcomeUnknown),
    ],
)
def test_what_an_error_means_on_a_trip_that_is_undone_if_refused(code, undone, meaning):
    address = PostgresAddress.from_url("postgresql://somewhere/db")
    told = translated(Answered(code), address, RoundTrip([], commits=True, undone_if_refused=undone))
    assert type(told) is meaning


def test_nothing_is_a_batch_and_a_transaction_too(steps):
    round_trips = steps.of(Batch(()))
    assert next(round_trips).statements == []
    assert ended(round_trips, []).replies == ()
    round_trips = steps.of(Transact(()))
    assert next(round_trips).statements == [BEGIN, (ASK_TIME, [NOW]), COMMIT]
    assert ended(round_trips, [[], [(NOW,)], []]) == Applied(NOW)


# Transactions within one of the caller's

SAVE, RELEASE, UNDO = b"SAVEPOINT semel", b"RELEASE SAVEPOINT semel", b"ROLLBACK TO SAVEPOINT semel"


@pytest.fixture
def within(steps):
    return StepsWithin(steps)


def test_inside_a_transaction_it_locks_in_one_order_decides_and_writes(within):
    """He dares nothing: an error would be the end of the caller's transaction."""
    round_trips = within.of(BOTH)
    lock = next(round_trips)
    assert verbs(lock) == [SAVE, b"...", b"...", b"..."]
    assert [b"semel_conformance_notes" in sql for sql, _ in lock.statements] == [False, True, False, False]
    assert lock.statements[-1] == (ASK_TIME, [NOW])
    assert all(b"FOR UPDATE" in sql for sql, _ in lock.statements[1:-1])
    write = round_trips.send([[], [NOTE], [], [(NOW,)]])
    assert (len(write.statements), write.commits, write.undone_if_refused) == (2, False, False)
    assert verbs(round_trips.send([[(*MADE, *row(NOTES))], [(*MADE, *NOTHING)]])) == [RELEASE]
    assert ended(round_trips, [[]]) == Applied(NOW)


def test_what_is_refused_inside_a_transaction_writes_nothing_and_says_why(within):
    round_trips = within.of(BOTH)
    next(round_trips)
    there = row(id="b", gone_at=2000.0)
    over = round_trips.send(
        [[], [row(NOTES, owner="o", place="2", gone_at=500.0, text="old")], [there], [(NOW,)]]
    )
    assert verbs(over) == [RELEASE]
    refusals = (Refused(NOW, {"id": "b", "gone_at": 2000}), Refused(NOW, None))
    assert ended(round_trips, [[]]) == Cancelled(NOW, refusals)


def test_it_begins_anew_where_an_item_has_come_to_be_but_not_for_ever(within):
    """What was not there could not be locked."""
    round_trips = within.of(BOTH)
    first = next(round_trips)
    for left in reversed(range(TRIES)):
        round_trips.send([[], [NOTE], [], [(NOW,)]])
        assert verbs(round_trips.send([[(*MADE, *row(NOTES))], [(*NOT_MADE, *NOTHING)]])) == [UNDO]
        if left:
            assert round_trips.send([[]]) == first
    with pytest.raises(errors.StoreThrottled, match="try again later"):
        round_trips.send([[]])


def test_inside_a_transaction_the_tables_are_the_same(steps, within):
    assert within.plan(THINGS) is steps.plan(THINGS)


# Time


class Ours(Clock):
    """A machine's clock that the test moves."""

    passed = 0.0

    def monotonic(self):
        return self.passed


@pytest.fixture
def ours():
    return Ours()


@pytest.fixture
def time(ours):
    return ServerTime(ours)


def test_the_time_is_asked_for_where_nothing_was_heard(steps, time):
    assert time.known() is None
    round_trips = steps.of(Time())
    assert next(round_trips) == RoundTrip([(ASK_TIME, [NOW])], commits=False)
    assert ended(round_trips, [[(NOW,)]]) == Found(NOW, None)


@pytest.mark.parametrize(
    "reply", [Applied(NOW), Refused(NOW, None), Found(NOW, {"id": "a"}), Many((Applied(1.0), Applied(NOW)))]
)
def test_the_time_goes_on_from_the_latest_answer(ours, time, reply):
    ours.passed = 5.0
    time.observe(reply)
    ours.passed = 12.5
    assert time.known() == Found(NOW + 7.5, None)


def test_an_answer_that_was_late_does_not_set_the_time_back(ours, time):
    """Its statement had waited for a lock; the one before had not."""
    time.observe(Applied(NOW))
    ours.passed = 20.0
    time.observe(Applied(NOW + 11.0))
    assert time.known() == Found(NOW + 20.0, None)
    time.observe(Applied(NOW + 20.25))
    assert time.known() == Found(NOW + 20.25, None)


def test_what_was_heard_too_long_ago_does_not_count(ours, time):
    time.observe(Applied(NOW))
    ours.passed = FRESH_SECONDS
    assert time.known() == Found(NOW + FRESH_SECONDS, None)
    ours.passed = FRESH_SECONDS + 1
    assert time.known() is None
    time.observe(Applied(NOW + 10))  # whatever the old one would say: the server's clock was set back
    assert time.known() == Found(NOW + 10, None)


def test_an_empty_batch_tells_no_time(time):
    time.observe(Many(()))
    assert time.known() is None


def test_a_time_that_is_imposed_is_the_time():
    clock = FakeClock()
    time = ServerTime(clock)
    time.observe(Applied(NOW))
    clock.advance(5)
    assert time.known() == Found(clock.now(), None)
