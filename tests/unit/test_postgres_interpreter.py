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
from semel.stores.postgres.address import PostgresAddress, translated
from semel.stores.postgres.interpreter import (
    BEGIN,
    COMMIT,
    LIKELY_REFUSALS,
    MOST_COUNTS,
    SNAPSHOT,
    TRIES,
    ConditionFailed,
    PostgresSteps,
    RefusalCounts,
    RoundTrip,
    StepsWithin,
    TransactionConflict,
)
from semel.stores.postgres.statements import ASK_TIME, PostgresPlan
from semel.stores.servertime import FRESH_SECONDS, ServerTime
from semel.stores.shared import Plans
from semel.tables import Kind, Table
from semel.testing import FakeClock
from semel.testing.conformance import NOTES, THINGS

NOW = 1000.0
ITEM = {"text": "new", "gone_at": 2000.0}
MADE = (NOW, True, None)
NOT_MADE = (NOW, False, None)


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
    assert trip.statements[0][1][:3] == [NOW, False, "a"]
    refused = ended(round_trips, [[(*NOT_MADE, row(id="a", gone_at=2000.0))]])
    assert refused == Refused(NOW, {"id": "a", "gone_at": 2000})


def test_a_write_is_sent_again_when_what_was_read_is_out_of_date(steps):
    round_trips = steps.of(Put(THINGS, "a", ITEM, ABSENT))
    first = next(round_trips)
    assert round_trips.send([[(*NOT_MADE, NOTHING)]]) == first
    assert ended(round_trips, [[(*MADE, NOTHING)]]) == Applied(NOW)


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
        steps.read(Watch(THINGS, "a", 1.0), subscribes=True),
    ):
        assert next(round_trips).commits is False
        assert ended(round_trips, [[(NOW, *NOTHING)]]).item is None


def test_another_table_of_the_same_name_is_refused(steps):
    next(steps.of(Get(THINGS, "a")))
    other = Table(name=THINGS.name, partition="id", attributes={"x": Kind.TEXT}, expires="gone_at")
    with pytest.raises(errors.UsageError, match="another table"):
        next(steps.of(Get(other, "a")))


# Batches


def test_the_writes_of_a_batch_go_in_one_order_and_are_answered_in_that_of_the_caller(steps):
    round_trips = steps.of(
        Batch((Put(THINGS, "b", ITEM, ABSENT), Delete(THINGS, "x"), Put(THINGS, "a", ITEM, ABSENT)))
    )
    trip = next(round_trips)
    assert [values[:3] for _, values in trip.statements] == [[NOW, False, key] for key in "abx"]
    refused = (*NOT_MADE, row(id="a", gone_at=2000.0))
    many = ended(round_trips, [[refused], [(*MADE, NOTHING)], [(*NOT_MADE, NOTHING)]])
    assert many.replies == (
        Applied(NOW),
        Refused(NOW, None),
        Refused(NOW, {"id": "a", "gone_at": 2000}),
    )


def test_writes_to_one_key_keep_their_order(steps):
    trip = next(
        steps.of(Batch((Put(THINGS, "b", ITEM), Put(THINGS, "a", ITEM, ABSENT), Delete(THINGS, "a"))))
    )
    assert [values[2] for _, values in trip.statements] == ["a", "a", "b"]
    assert [b"DELETE" in sql for sql, _ in trip.statements] == [False, True, False]


def test_only_what_was_out_of_date_is_sent_again(steps):
    round_trips = steps.of(Batch((Put(THINGS, "a", ITEM, ABSENT), Put(THINGS, "b", ITEM, ABSENT))))
    assert not next(round_trips).partial
    again = round_trips.send([[(*MADE, NOTHING)], [(*NOT_MADE, NOTHING)]])
    assert [values[2] for _, values in again.statements] == ["b"]
    assert again.partial, "if this fails, the first has been made"
    assert ended(round_trips, [[(*MADE, NOTHING)]]).replies == (Applied(NOW),) * 2


def test_a_batch_in_conflict_is_sent_again_whole(steps):
    round_trips = steps.of(Batch((Put(THINGS, "a", ITEM, ABSENT), Put(THINGS, "b", ITEM, ABSENT))))
    first = next(round_trips)
    assert round_trips.throw(TransactionConflict("deadlock")) == first


def test_a_batch_with_a_mistake_in_it_is_refused_whole(steps):
    wrong = Batch((Put(THINGS, "a", ITEM), Put(THINGS, "a", ITEM | {"text": 1})))
    with pytest.raises(errors.UsageError):
        next(steps.of(wrong))


# Transactions

BOTH = Transact((Put(THINGS, "b", ITEM, ABSENT), Update(NOTES, "o", {"text": "x"}, {"text": "old"}, "2")))
NOTE = row(NOTES, owner="o", place="2", gone_at=2000.0, text="old")
EXPIRED = row(NOTES, owner="o", place="2", gone_at=500.0, text="new")
FOUND = {"owner": "o", "place": "2", "gone_at": 500, "text": "new"}


WRITTEN = [(*MADE, NOTHING)]
NONE = [(NOW, *NOTHING)]
REFUSED = ConditionFailed("a condition does not hold")


def test_a_transaction_is_one_trip_and_writes_in_one_order(steps):
    round_trips = steps.of(BOTH)
    trip = next(round_trips)
    assert verbs(trip) == [BEGIN[0], b"...", b"...", COMMIT[0]]
    assert [b"semel_conformance_notes" in sql for sql, _ in trip.statements] == [False, True, False, False]
    assert (trip.commits, trip.undone_if_refused) == (True, True)
    assert {values[0] for _, values in trip.statements[1:-1]} == {NOW}
    assert ended(round_trips, [[], WRITTEN, WRITTEN, []]) == Applied(NOW)


def test_its_writes_have_its_time_and_fail_with_it(steps):
    """They are told that they are several, and have the texts of single writes."""
    single = next(steps.of(BOTH.writes[0])).statements[0]
    first, second = next(steps.of(BOTH)).statements[1:-1]
    assert second == (single[0], [NOW, True, *single[1][2:]])
    assert first[1][:2] == [NOW, True]


def test_what_refused_is_looked_up_in_one_more_trip(steps):
    """An expired item refuses as it is: the rule decides what that means."""
    round_trips = steps.of(BOTH)
    next(round_trips)
    look = round_trips.throw(REFUSED)
    assert verbs(look) == [SNAPSHOT[0], b"...", b"...", COMMIT[0]]
    assert not any(b"FOR UPDATE" in sql for sql, _ in look.statements)
    assert (look.commits, look.undone_if_refused) == (False, False)
    answers = [[], [(NOW, *row(id="b", gone_at=2000.0))], [(NOW, *EXPIRED)], []]
    refusals = (Refused(NOW, {"id": "b", "gone_at": 2000}), Refused(NOW, FOUND))
    assert ended(round_trips, answers) == Cancelled(NOW, refusals)


def test_a_write_that_would_have_held_has_no_refusal(steps):
    round_trips = steps.of(BOTH)
    next(round_trips)
    round_trips.throw(REFUSED)
    assert ended(round_trips, [[], NONE, NONE, []]) == Cancelled(NOW, (None, Refused(NOW, None)))


def test_a_transaction_begins_anew_where_what_refused_is_gone_but_not_for_ever(steps):
    round_trips = steps.of(BOTH)
    first = next(round_trips)
    for _ in range(TRIES - 1):
        round_trips.throw(REFUSED)
        assert round_trips.send([[], NONE, [(NOW, *NOTE)], []]) == first
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
    assert type(ended(round_trips, [[], NONE, NONE, []])) is Cancelled
    return len(trips)


def test_where_a_transaction_was_refused_twice_the_next_looks_first(steps):
    """As at a cap that is full: nothing is tried in vain, and the server's log stays empty."""
    assert [cancelled(steps.of(BOTH)) for _ in range(4)] == [2, 2, 1, 1]
    round_trips = steps.of(BOTH)
    assert not next(round_trips).undone_if_refused
    dare = round_trips.send([[], NONE, [(NOW, *NOTE)], []])
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
    assert next(round_trips).statements == [BEGIN, (ASK_TIME, [NOW, True]), COMMIT]
    assert ended(round_trips, [[], [(NOW,)], []]) == Applied(NOW)


# Transactions within one of the caller's

SAVE, RELEASE, UNDO = b"SAVEPOINT semel", b"RELEASE SAVEPOINT semel", b"ROLLBACK TO SAVEPOINT semel"


@pytest.fixture
def within(steps):
    return StepsWithin(steps)


def test_inside_a_transaction_it_writes_in_one_order_after_a_savepoint(within):
    """No write of it fails: an error would be the end of the caller's transaction."""
    round_trips = within.of(BOTH)
    assert next(round_trips).statements == [(SAVE, None), (ASK_TIME, [NOW, False])]
    write = round_trips.send([[], [(NOW,)]])
    assert [b"semel_conformance_notes" in sql for sql, _ in write.statements] == [True, False]
    assert [values[:2] for _, values in write.statements] == [[NOW, False]] * 2
    assert (write.commits, write.undone_if_refused) == (False, False)
    assert verbs(round_trips.send([[(*MADE, row(NOTES))], WRITTEN])) == [RELEASE]
    assert ended(round_trips, [[]]) == Applied(NOW)


def test_what_is_refused_inside_a_transaction_is_undone_and_says_why(within):
    round_trips = within.of(BOTH)
    next(round_trips)
    round_trips.send([[], [(NOW,)]])
    there = row(id="b", gone_at=2000.0)
    assert verbs(round_trips.send([[(*NOT_MADE, EXPIRED)], [(*NOT_MADE, there)]])) == [UNDO]
    refusals = (Refused(NOW, {"id": "b", "gone_at": 2000}), Refused(NOW, FOUND))
    assert ended(round_trips, [[]]) == Cancelled(NOW, refusals)


def test_it_begins_anew_where_what_was_read_is_out_of_date_but_not_for_ever(within):
    round_trips = within.of(BOTH)
    first = next(round_trips)
    for left in reversed(range(TRIES)):
        round_trips.send([[], [(NOW,)]])
        assert verbs(round_trips.send([[(*MADE, row(NOTES))], [(*NOT_MADE, NOTHING)]])) == [UNDO]
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
    assert next(round_trips) == RoundTrip([(ASK_TIME, [NOW, False])], commits=False)
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
