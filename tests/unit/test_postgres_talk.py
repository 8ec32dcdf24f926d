"""What is said to PostgreSQL to carry a command out, with answers made up: nothing is connected to."""

import pytest

from semel import errors
from semel.commands import (
    ABSENT,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Equals,
    Get,
    Put,
    Refused,
    Transact,
    Update,
    Watch,
)
from semel.stores.postgres.clerk import ROWS, SAVEPOINT, TRANSACTION, TRIES, Clerk, Collision, Trip
from semel.stores.postgres.forms import ASK_TIME
from semel.tables import Kind, Table
from semel.testing.conformance import NOTES, THINGS

NOW = 1000.0
ITEM = {"text": "new", "gone_at": 2000.0}
MADE = (NOW, False, None)
NOT_MADE = (NOW, None, None)


@pytest.fixture
def clerk():
    return Clerk(None, lambda: NOW, TRANSACTION)


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


def test_a_transaction_locks_in_one_order_decides_and_writes(clerk):
    talk = clerk.talk(BOTH)
    lock = next(talk)
    assert verbs(lock) == [b"BEGIN", b"...", b"...", b"..."]
    assert [b"semel_conformance_notes" in sql for sql, _ in lock.statements] == [False, True, False, False]
    assert lock.statements[-1] == (ASK_TIME, [NOW])
    assert not lock.commits
    write = talk.send([[], [NOTE], [], [(NOW,)]])
    assert (len(write.statements), write.commits) == (2, False)
    commit = talk.send([[(*MADE, *row(NOTES))], [(*MADE, *NOTHING)]])
    assert commit == Trip([(b"COMMIT", None)], commits=True)
    assert ended(talk, [[]]) == Applied(NOW)


def test_a_transaction_that_is_refused_writes_nothing_and_says_why(clerk):
    talk = clerk.talk(BOTH)
    next(talk)
    there = row(id="b", gone_at=2000.0)
    over = talk.send([[], [row(NOTES, owner="o", place="2", gone_at=500.0, text="old")], [there], [(NOW,)]])
    assert over == Trip([(b"COMMIT", None)], commits=False)
    refusals = (Refused(NOW, {"id": "b", "gone_at": 2000}), Refused(NOW, None))
    assert ended(talk, [[]]) == Cancelled(NOW, refusals)


def test_a_transaction_begins_anew_where_an_item_has_come_to_be(clerk):
    """What was not there could not be locked."""
    talk = clerk.talk(BOTH)
    first = next(talk)
    talk.send([[], [NOTE], [], [(NOW,)]])
    undo = talk.send([[(*MADE, *row(NOTES))], [(*NOT_MADE, *NOTHING)]])
    assert undo == Trip([(b"ROLLBACK", None)], commits=False)
    assert talk.send([[]]) == first


def test_a_transaction_begins_anew_after_a_collision(clerk):
    talk = clerk.talk(BOTH)
    first = next(talk)
    assert talk.throw(Collision("deadlock")) == Trip([(b"ROLLBACK", None)], commits=False)
    assert talk.send([[]]) == first


def test_inside_a_transaction_of_the_callers_none_is_begun_or_ended(clerk):
    talk = clerk.within(SAVEPOINT).talk(BOTH)
    assert verbs(next(talk))[0] == b"SAVEPOINT semel"
    talk.send([[], [NOTE], [], [(NOW,)]])
    assert verbs(talk.send([[(*MADE, *row(NOTES))], [(*MADE, *NOTHING)]])) == [b"RELEASE SAVEPOINT semel"]


def test_nothing_is_a_batch_and_a_transaction_too(clerk):
    talk = clerk.talk(Batch(()))
    assert next(talk).statements == []
    assert ended(talk, []).replies == ()
    talk = clerk.talk(Transact(()))
    next(talk)
    talk.send([[], [(NOW,)]])
    talk.send([])
    assert ended(talk, [[]]) == Applied(NOW)
