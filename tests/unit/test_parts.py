"""How an atomic write is put together, and how its refusals are read."""

import pytest

from semel.core.codecs import Codec
from semel.core.commands import ABSENT, Applied, Cancelled, Get, Put, Refused, Stash, Transact
from semel.core.ledger import LedgerSteps
from semel.core.parts import TRIES, Part, PartVerdict, TimedPlan, alone, commit, unrefusable
from semel.core.realm import Realm
from semel.errors import (
    CapReached,
    StoreOutcomeUnknown,
    StoreThrottled,
    StoreUnavailable,
    UsageError,
    VersionConflict,
)
from semel.model import Claimed
from semel.tables import DOCUMENTS

NOW = 1000.0
FULL = CapReached("c", 3, 3, NOW)


class Piece:
    """A part whose judge says what it was told to say."""

    def __init__(self, name, *verdicts, writes=1, marked=False):
        self.name, self.verdicts, self.marked = name, list(verdicts), marked
        self.planned = 0
        self.told: Applied | str | None = "not asked"
        self.writes = tuple(Put(DOCUMENTS, f"{name}{number}", {}, ABSENT) for number in range(writes))

    def __call__(self, mark):
        self.planned += 1
        yield Get(DOCUMENTS, self.name)
        return Part(self.writes, self.judge, self.result, marked=self.marked)

    def judge(self, refusals):
        assert len(refusals) == len(self.writes)
        return self.verdicts.pop(0)

    def result(self, reply):
        self.told = reply
        return self.name


def run(steps, *answers):
    """What the steps give, and the writes that they sent; each is answered in turn, by a reply or error."""
    left, sent = list(answers), []
    try:
        command = next(steps)
        while True:
            if isinstance(command, Get):
                command = steps.send(None)
                continue
            sent.append(command)
            reply = left.pop(0)
            command = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
    except StopIteration as end:
        assert not left
        return end.value, sent


def refused(*places):
    """A transaction of so many writes, of which these were refused."""
    return Cancelled(NOW, tuple(Refused(NOW, THERE) if place else None for place in places))


MADE = Applied(NOW)
THERE = {"token": "other"}
LOST = StoreOutcomeUnknown("lost")


def test_one_write_is_sent_by_itself_and_its_reply_is_told():
    piece = Piece("a")
    assert run(alone(piece, "mark"), MADE) == ("a", list(piece.writes))
    assert piece.told is MADE


def test_several_are_one_transaction_in_their_order():
    one, two = Piece("a", writes=2), Piece("b")
    results, [sent] = run(commit([one, two], "mark"), MADE)
    assert results == ["a", "b"]
    assert sent == Transact((*one.writes, *two.writes))


def test_parts_without_writes_send_nothing():
    assert run(commit([Piece("a", writes=0)], "mark")) == (["a"], [])
    assert run(commit([], "mark")) == ([], [])


def test_two_writes_to_one_item_are_refused_before_they_are_sent():
    with pytest.raises(UsageError, match="writes to an item once"):
        run(commit([Piece("a"), Piece("a")], "mark"))


def test_an_error_of_one_part_is_raised_and_nothing_more_is_sent():
    for verdicts in ([FULL], [FULL, PartVerdict.STALE], [PartVerdict.STANDS, FULL]):
        pieces = [Piece(f"p{place}", verdict) for place, verdict in enumerate(verdicts)] + [Piece("other")]
        with pytest.raises(CapReached):
            run(commit(pieces, "mark"), refused(*([True] * len(verdicts)), False))


def test_what_stands_is_left_out_and_the_rest_is_sent_again():
    done, rest, more = Piece("a", PartVerdict.STANDS), Piece("b"), Piece("c")
    results, sent = run(commit([done, rest, more], "mark"), refused(True, False, False), MADE)
    assert results == ["a", "b", "c"]
    assert sent[1] == Transact((*rest.writes, *more.writes))
    assert (done.planned, rest.planned) == (1, 2)


def test_where_one_is_stale_all_are_planned_anew():
    stale, other = Piece("a", PartVerdict.STALE, PartVerdict.STALE), Piece("b")
    results, sent = run(commit([stale, other], "mark"), refused(True, False), refused(True, False), MADE)
    assert results == ["a", "b"]
    assert (stale.planned, other.planned, len(sent)) == (3, 3, 3)


def test_what_is_timed_is_planned_after_the_others_and_written_in_its_place():
    timed, other = Piece("a"), Piece("b")
    order: list[str] = []
    steps = commit([TimedPlan(timed), other], "mark")
    results, [sent] = run(_noting(steps, order), MADE)
    assert results == ["a", "b"]
    assert order == ["b", "a"]
    assert sent == Transact((*timed.writes, *other.writes))


def _noting(steps, order):
    """These steps, with the keys that they read."""
    reply = None
    while True:
        try:
            command = steps.send(reply)
        except StopIteration as end:
            return end.value
        if isinstance(command, Get):
            order.append(command.key)
        reply = yield command


def test_a_large_result_is_stored_once_however_often_the_parts_are_made():
    ledger, claim = LedgerSteps(Realm(), Codec(max_bytes=10)), Claimed("dev//key", "token", 1, 30, 60)
    stale, large = Piece("a", PartVerdict.STALE), ledger.part(claim, ledger.completion(claim, "x" * 100))
    results, sent = run(commit([stale, large], "mark"), "reference", refused(True, False), MADE)
    assert results == ["a", None]
    assert [type(command) for command in sent] == [Stash, Transact, Transact]
    assert (stale.planned, sent[1].writes[1]) == (2, sent[2].writes[1])


def test_an_expired_item_is_replaced_and_no_part_hears_of_it():
    expired = {"token": "old", "expires_at": NOW - 1}
    one, two = Piece("a"), Piece("b")
    found = Cancelled(NOW, (Refused(NOW, expired), None))
    results, sent = run(commit([one, two], "mark"), found, MADE)
    assert (results, one.planned) == (["a", "b"], 1)
    assert [write.expect for write in sent[1].writes] == [{"expires_at": NOW - 1}, ABSENT]


def test_an_expired_item_that_was_removed_meanwhile_is_absent_again():
    expired = Refused(NOW, {"token": "old", "expires_at": NOW})
    result, sent = run(alone(Piece("a"), "mark"), expired, Refused(NOW, None), MADE)
    assert (result, [put.expect for put in sent]) == ("a", [ABSENT, {"expires_at": NOW}, ABSENT])


def test_an_expired_item_is_no_refusal_beside_one_that_is():
    expired, there = Refused(NOW, {"expires_at": NOW}), Refused(NOW, THERE)
    one, two = Piece("a"), Piece("b", FULL)
    with pytest.raises(CapReached):
        run(commit([one, two], "mark"), Cancelled(NOW, (expired, there)))


def test_what_is_overtaken_over_and_over_gives_up():
    stale = Piece("a", *[PartVerdict.STALE] * TRIES)
    with pytest.raises(StoreThrottled, match="try again later"):
        run(alone(stale, "mark"), *[Refused(NOW, THERE)] * TRIES)
    assert stale.planned == TRIES


def test_a_lost_answer_is_asked_for_again_and_its_own_mark_says_that_it_was_made():
    mine, other = Piece("a", PartVerdict.MADE), Piece("b", FULL)
    results, sent = run(commit([mine, other], "mark"), LOST, refused(True, True))
    assert results == ["a", "b"]
    assert sent[0] is sent[1]
    assert mine.told is None


def test_whatever_a_second_try_says_the_first_may_have_been_made():
    for second in (LOST, StoreUnavailable("down"), StoreThrottled("busy")):
        with pytest.raises(StoreOutcomeUnknown, match="tried 3 times"):
            run(alone(Piece("a"), "mark"), LOST, second, second)
    with pytest.raises(StoreUnavailable):
        run(alone(Piece("a"), "mark"), StoreUnavailable("down"))


def test_a_claim_that_was_ended_just_so_says_that_all_of_it_was_made():
    """Sent again, or asked for again after nobody could tell: both look alike, and neither makes it twice."""
    for answers in ([refused(True, False)], [LOST, refused(True, False)]):
        ended, drawn = Piece("claim", PartVerdict.SAME, marked=True), Piece("drawn anew")
        results, sent = run(commit([ended, drawn], "mark"), *answers)
        assert results == ["claim", "drawn anew"]
        assert len(sent) == len(answers)


def test_unless_a_part_is_missing_that_would_be_there():
    """Then something else has ended it, and the rest is still to be made."""
    for answers in ([], [LOST]):
        ended, charge = Piece("claim", PartVerdict.SAME, marked=True), Piece("charge", marked=True)
        results, sent = run(commit([ended, charge], "mark"), *answers, refused(True, False), MADE)
        assert results == ["claim", "charge"]
        assert sent[-1] == charge.writes[0]


def test_what_stood_before_is_not_missing():
    ended, charge = (
        Piece("claim", PartVerdict.SAME, marked=True),
        Piece("charge", PartVerdict.STANDS, marked=True),
    )
    _, sent = run(commit([ended, charge, Piece("drawn anew")], "mark"), refused(True, True, False))
    assert len(sent) == 1


def test_what_others_changed_since_is_not_missing_and_what_was_refused_is():
    ended = Piece("claim", PartVerdict.SAME, marked=True)
    changed = Piece("document", VersionConflict("d", 1, 2))
    assert run(commit([ended, changed], "mark"), refused(True, True))[0] == ["claim", "document"]
    ended, full = Piece("claim", PartVerdict.SAME, marked=True), Piece("charge", FULL, marked=True)
    with pytest.raises(CapReached):
        run(commit([ended, full], "mark"), refused(True, True))


def test_a_write_without_a_condition_is_never_refused():
    with pytest.raises(AssertionError):
        unrefusable((Refused(NOW, None),))
