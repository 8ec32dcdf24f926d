"""What is said to PostgreSQL to carry a command out, with answers made up: nothing is connected to."""

import pytest

from semel import errors
from semel.clock import Clock
from semel.commands import (
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
from semel.stores.postgres.address import Address
from semel.stores.postgres.clerk import (
    BEGIN,
    COMMIT,
    ROWS,
    SNAPSHOT,
    TRIES,
    Clerk,
    Collision,
    Objection,
    Trip,
)
from semel.stores.postgres.errors import translated
from semel.stores.postgres.forms import ASK_TIME
from semel.stores.postgres.guest import Guest
from semel.stores.postgres.refusers import ENOUGH, MOST, Refusers
from semel.stores.servertime import FRESH_SECONDS, ServerTime
from semel.tables import Kind, Table
from semel.testing import FakeClock
from semel.testing.conformance import NOTES, THINGS

NOW = 1000.0
ITEM = {"text": "new", "gone_at": 2000.0}
MADE = (NOW, False, None)
NOT_MADE = (NOW, None, None)


@pytest.fixture
def clerk():
    return Clerk(None, lambda: NOW)


def row(table=THINGS, **attributes):
    return tuple(attributes.get(name) for name in table.kinds)


NOTHING = row()


def ended(talk, answer):
    """The value of a talk that ends with this answer."""
    with pytest.raises(StopIteration) as end:
        talk.send(answer)
    return end.value.value


def verbs(trip):
    return [sql if values is None else b"..." for sql, values in trip.statements]


# One write


def test_a_write_is_one_statement_also_when_it_loses(clerk):
    talk = clerk.talk(Put(THINGS, "a", ITEM, ABSENT))
    trip = next(talk)
    assert (len(trip.statements), trip.commits) == (1, True)
    assert trip.statements[0][1][:2] == [NOW, "a"]
    refused = ended(talk, [[(*NOT_MADE, *row(id="a", gone_at=2000.0))]])
    assert refused == Refused(NOW, {"id": "a", "gone_at": 2000})


def test_a_write_is_sent_again_when_what_was_read_is_out_of_date(clerk):
    talk = clerk.talk(Put(THINGS, "a", ITEM, ABSENT))
    first = next(talk)
    assert talk.send([[(*NOT_MADE, *NOTHING)]]) == first
    assert ended(talk, [[(*MADE, *NOTHING)]]) == Applied(NOW)


def test_and_after_a_collision_but_not_for_ever(clerk):
    talk = clerk.talk(Put(THINGS, "a", ITEM, ABSENT))
    first = next(talk)
    for _ in range(TRIES - 1):
        assert talk.throw(Collision("deadlock")) == first
    with pytest.raises(errors.StoreThrottled, match="try again later"):
        talk.throw(Collision("deadlock"))


def test_a_reading_takes_no_effect(clerk):
    for talk in (
        clerk.talk(Get(THINGS, "a")),
        clerk.look(Watch(THINGS, "a", 1.0)),
        clerk.mark(Watch(THINGS, "a", 1.0)),
    ):
        assert next(talk).commits is False
        assert ended(talk, [[(NOW, *NOTHING)]]).item is None


def test_another_table_of_the_same_name_is_refused(clerk):
    next(clerk.talk(Get(THINGS, "a")))
    other = Table(name=THINGS.name, partition="id", attributes={"x": Kind.TEXT}, expires="gone_at")
    with pytest.raises(errors.UsageError, match="another table"):
        next(clerk.talk(Get(other, "a")))


# Batches


def test_writes_of_one_shape_share_a_statement_and_answer_in_order(clerk):
    talk = clerk.talk(
        Batch(
            (
                Put(THINGS, "b", ITEM, ABSENT),
                Delete(THINGS, "x"),
                Put(THINGS, "a", ITEM, ABSENT),
                Put(THINGS, "c", ITEM, ABSENT),
            )
        )
    )
    trip = next(talk)
    assert [values[1] for _, values in trip.statements] == [["b", "a", "c"], ["x"]]
    puts = [
        (*NOT_MADE, *row(id="a", gone_at=2000.0)),
        (*MADE, *row(id="c")),
        (*MADE, *row(id="b")),
        (*NOT_MADE, *NOTHING),
    ]
    many = ended(talk, [puts, [(*NOT_MADE, *NOTHING)]])
    assert many.replies == (
        Applied(NOW),
        Refused(NOW, None),
        Refused(NOW, {"id": "a", "gone_at": 2000}),
        Applied(NOW),
    )


def test_writes_to_one_key_wait_for_each_other(clerk):
    talk = clerk.talk(
        Batch((Put(THINGS, "a", ITEM, ABSENT), Delete(THINGS, "a"), Put(THINGS, "b", ITEM, ABSENT)))
    )
    first = next(talk)
    assert [values[1] for _, values in first.statements] == [["a", "b"]]
    assert not first.partial
    second = talk.send([[(*MADE, *row(id="a")), (*MADE, *row(id="b")), (*NOT_MADE, *NOTHING)]])
    assert [values[1] for _, values in second.statements] == [["a"]]
    assert second.partial, "if this fails, the first has been made"
    assert ended(talk, [[(*MADE, *row(id="a")), (*NOT_MADE, *NOTHING)]]).replies == (Applied(NOW),) * 3


def test_only_what_was_out_of_date_is_sent_again(clerk):
    talk = clerk.talk(Batch((Put(THINGS, "a", ITEM, ABSENT), Put(THINGS, "b", ITEM, ABSENT))))
    next(talk)
    again = talk.send([[(*MADE, *row(id="a")), (*NOT_MADE, *NOTHING)]])
    assert [values[1] for _, values in again.statements] == [["b"]]


def test_a_batch_that_collided_is_sent_again_whole(clerk):
    talk = clerk.talk(Batch((Put(THINGS, "a", ITEM, ABSENT), Put(THINGS, "b", ITEM, ABSENT))))
    first = next(talk)
    assert talk.throw(Collision("deadlock")) == first


def test_a_large_batch_goes_in_parts(clerk):
    trip = next(clerk.talk(Batch(tuple(Put(THINGS, str(n), ITEM, ABSENT) for n in range(ROWS + 1)))))
    assert [len(values[1]) for _, values in trip.statements] == [ROWS, 1]


def test_a_batch_with_a_mistake_in_it_is_refused_whole(clerk):
    wrong = Batch((Put(THINGS, "a", ITEM), Put(THINGS, "a", ITEM | {"text": 1})))
    with pytest.raises(errors.UsageError):
        next(clerk.talk(wrong))


# Transactions

BOTH = Transact(
    (Put(THINGS, "b", ITEM, ABSENT), Update(NOTES, "o", {"text": "x"}, Equals("text", "old"), "2"))
)
NOTE = row(NOTES, owner="o", place="2", gone_at=2000.0, text="old")


WRITTEN = [(NOW, None, 1)]
REFUSED = Objection("a condition does not hold")


def test_a_transaction_is_one_trip_and_writes_in_one_order(clerk):
    talk = clerk.talk(BOTH)
    trip = next(talk)
    assert verbs(trip) == [BEGIN[0], b"...", b"...", COMMIT[0]]
    assert [b"semel_conformance_notes" in sql for sql, _ in trip.statements] == [False, True, False, False]
    assert (trip.commits, trip.daring) == (True, True)
    assert {values[0] for _, values in trip.statements[1:-1]} == {NOW}
    assert ended(talk, [[], WRITTEN, WRITTEN, []]) == Applied(NOW)


def test_its_time_is_that_of_its_beginning(clerk):
    """Every write of it has the same, which the server knows without being told."""
    for sql, _ in next(Clerk(None, lambda: None).talk(BOTH)).statements[1:-1]:
        assert b"transaction_timestamp()" in sql
        assert b"clock_timestamp()" not in sql


def test_who_objected_is_looked_up_in_one_more_trip(clerk):
    talk = clerk.talk(BOTH)
    next(talk)
    look = talk.throw(REFUSED)
    assert verbs(look) == [SNAPSHOT[0], b"...", b"...", b"...", COMMIT[0]]
    assert look.statements[1] == (ASK_TIME, [NOW])
    assert not any(b"FOR UPDATE" in sql for sql, _ in look.statements)
    assert (look.commits, look.daring) == (False, False)
    there, over = row(id="b", gone_at=2000.0), row(NOTES, owner="o", place="2", gone_at=500.0, text="old")
    refusals = (Refused(NOW, {"id": "b", "gone_at": 2000}), Refused(NOW, None))
    assert ended(talk, [[], [(NOW,)], [there], [over], []]) == Cancelled(NOW, refusals)


def test_a_write_that_would_have_held_has_no_refusal(clerk):
    talk = clerk.talk(BOTH)
    next(talk)
    talk.throw(REFUSED)
    assert ended(talk, [[], [(NOW,)], [], [], []]) == Cancelled(NOW, (None, Refused(NOW, None)))


def test_a_transaction_begins_anew_where_who_objected_is_gone_but_not_for_ever(clerk):
    talk = clerk.talk(BOTH)
    first = next(talk)
    for _ in range(TRIES - 1):
        talk.throw(REFUSED)
        assert talk.send([[], [(NOW,)], [], [NOTE], []]) == first
    with pytest.raises(errors.StoreThrottled, match="try again later"):
        talk.throw(REFUSED)


def test_a_transaction_begins_anew_after_a_collision_but_not_for_ever(clerk):
    talk = clerk.talk(BOTH)
    first = next(talk)
    for _ in range(TRIES - 1):
        assert talk.throw(Collision("deadlock")) == first
    with pytest.raises(errors.StoreThrottled, match="try again later"):
        talk.throw(Collision("deadlock"))


def cancelled(talk):
    """A transaction that is refused, up to its end; the trips that it took."""
    trips = [next(talk)]
    if trips[0].daring:
        trips.append(talk.throw(REFUSED))
    assert type(ended(talk, [[], [(NOW,)], [], [], []])) is Cancelled
    return len(trips)


def test_where_a_transaction_was_refused_twice_the_next_looks_first(clerk):
    """As at a cap that is full: nothing is tried in vain, and the server's log stays empty."""
    assert [cancelled(clerk.talk(BOTH)) for _ in range(4)] == [2, 2, 1, 1]
    talk = clerk.talk(BOTH)
    assert not next(talk).daring
    dare = talk.send([[], [(NOW,)], [], [NOTE], []])
    assert dare.daring, "it is allowed now"
    assert ended(talk, [[], WRITTEN, WRITTEN, []]) == Applied(NOW)
    assert next(clerk.talk(BOTH)).daring


def test_refusals_that_are_not_in_a_row_make_nobody_wary(clerk):
    for _ in range(ENOUGH + 1):
        assert cancelled(clerk.talk(BOTH)) == 2
        talk = clerk.talk(BOTH)
        next(talk)
        assert ended(talk, [[], WRITTEN, WRITTEN, []]) == Applied(NOW)


def test_only_so_many_refusers_are_remembered():
    refusers = Refusers()
    for _ in range(ENOUGH):
        refusers.note(["full"], ["refusal"])
    assert refusers.expected(["free", "full"])
    assert not refusers.expected(["free"])
    refusers.note(range(MOST), ["refusal"] * MOST)
    assert not refusers.expected(["full"])


class Answered(Exception):
    """What the driver raises where the server answers with an error."""

    def __init__(self, sqlstate):
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("code", "daring", "meaning"),
    [
        ("22P02", True, Objection),
        ("22P02", False, errors.UsageError),
        ("40P01", True, Collision),
        ("57014", True, errors.StoreUnavailable),
        ("57P01", True, errors.StoreOutcomeUnknown),
        (None, True, errors.StoreOutcomeUnknown),
    ],
)
def test_what_an_error_on_a_trip_that_dares_means(code, daring, meaning):
    address = Address.from_url("postgresql://somewhere/db")
    told = translated(Answered(code), address, Trip([], commits=True, daring=daring))
    assert type(told) is meaning


def test_nothing_is_a_batch_and_a_transaction_too(clerk):
    talk = clerk.talk(Batch(()))
    assert next(talk).statements == []
    assert ended(talk, []).replies == ()
    talk = clerk.talk(Transact(()))
    assert next(talk).statements == [BEGIN, (ASK_TIME, [NOW]), COMMIT]
    assert ended(talk, [[], [(NOW,)], []]) == Applied(NOW)


# Transactions within one of the caller's

SAVE, RELEASE, UNDO = b"SAVEPOINT semel", b"RELEASE SAVEPOINT semel", b"ROLLBACK TO SAVEPOINT semel"


@pytest.fixture
def guest(clerk):
    return Guest(clerk)


def test_a_guest_locks_in_one_order_decides_and_writes(guest):
    """He dares nothing: an error would be the end of the caller's transaction."""
    talk = guest.talk(BOTH)
    lock = next(talk)
    assert verbs(lock) == [SAVE, b"...", b"...", b"..."]
    assert [b"semel_conformance_notes" in sql for sql, _ in lock.statements] == [False, True, False, False]
    assert lock.statements[-1] == (ASK_TIME, [NOW])
    assert all(b"FOR UPDATE" in sql for sql, _ in lock.statements[1:-1])
    write = talk.send([[], [NOTE], [], [(NOW,)]])
    assert (len(write.statements), write.commits, write.daring) == (2, False, False)
    assert verbs(talk.send([[(*MADE, *row(NOTES))], [(*MADE, *NOTHING)]])) == [RELEASE]
    assert ended(talk, [[]]) == Applied(NOW)


def test_a_guest_who_is_refused_writes_nothing_and_says_why(guest):
    talk = guest.talk(BOTH)
    next(talk)
    there = row(id="b", gone_at=2000.0)
    over = talk.send([[], [row(NOTES, owner="o", place="2", gone_at=500.0, text="old")], [there], [(NOW,)]])
    assert verbs(over) == [RELEASE]
    refusals = (Refused(NOW, {"id": "b", "gone_at": 2000}), Refused(NOW, None))
    assert ended(talk, [[]]) == Cancelled(NOW, refusals)


def test_a_guest_begins_anew_where_an_item_has_come_to_be_but_not_for_ever(guest):
    """What was not there could not be locked."""
    talk = guest.talk(BOTH)
    first = next(talk)
    for left in reversed(range(TRIES)):
        talk.send([[], [NOTE], [], [(NOW,)]])
        assert verbs(talk.send([[(*MADE, *row(NOTES))], [(*NOT_MADE, *NOTHING)]])) == [UNDO]
        if left:
            assert talk.send([[]]) == first
    with pytest.raises(errors.StoreThrottled, match="try again later"):
        talk.send([[]])


def test_a_guest_knows_the_tables_of_his_host(clerk, guest):
    assert guest.plan(THINGS) is clerk.plan(THINGS)


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


def test_the_time_is_asked_for_where_nothing_was_heard(clerk, time):
    assert time.tell() is None
    talk = clerk.talk(Time())
    assert next(talk) == Trip([(ASK_TIME, [NOW])], commits=False)
    assert ended(talk, [[(NOW,)]]) == Found(NOW, None)


@pytest.mark.parametrize(
    "reply", [Applied(NOW), Refused(NOW, None), Found(NOW, {"id": "a"}), Many((Applied(1.0), Applied(NOW)))]
)
def test_the_time_goes_on_from_the_latest_answer(ours, time, reply):
    ours.passed = 5.0
    time.hear(reply)
    ours.passed = 12.5
    assert time.tell() == Found(NOW + 7.5, None)


def test_an_answer_that_was_late_does_not_set_the_time_back(ours, time):
    """Its statement had waited for a lock; the one before had not."""
    time.hear(Applied(NOW))
    ours.passed = 20.0
    time.hear(Applied(NOW + 11.0))
    assert time.tell() == Found(NOW + 20.0, None)
    time.hear(Applied(NOW + 20.25))
    assert time.tell() == Found(NOW + 20.25, None)


def test_what_was_heard_too_long_ago_does_not_count(ours, time):
    time.hear(Applied(NOW))
    ours.passed = FRESH_SECONDS
    assert time.tell() == Found(NOW + FRESH_SECONDS, None)
    ours.passed = FRESH_SECONDS + 1
    assert time.tell() is None
    time.hear(Applied(NOW + 10))  # whatever the old one would say: the server's clock was set back
    assert time.tell() == Found(NOW + 10, None)


def test_an_empty_batch_tells_no_time(time):
    time.hear(Many(()))
    assert time.tell() is None


def test_a_time_that_is_imposed_is_the_time():
    clock = FakeClock()
    time = ServerTime(clock)
    time.hear(Applied(NOW))
    clock.advance(5)
    assert time.tell() == Found(clock.now(), None)
