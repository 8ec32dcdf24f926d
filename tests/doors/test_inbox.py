"""The inbox: what was accepted is never lost, is handled once, and in order within its group."""

import os
import random
import signal
import threading
from collections import Counter, defaultdict
from typing import Any

import msgspec
import pytest

import semel
from semel import errors
from semel.core.codecs import Encryption
from semel.core.commands import Batch, Put, Query, Transact
from semel.core.policy import DAY
from semel.doors.inbox import Message, StoreInbox, open_inbox
from semel.doors.inbox.worker import AHEAD, BUSY_SECONDS, HELD_SECONDS, READ, STILL_SECONDS
from semel.errors import MessageRefused, MessageUnreadable
from semel.redact import Redactor
from semel.state.mailbox import PAGE, TTL, Letter, lane_of
from semel.stores.memory import MemoryStore
from semel.tables import INBOX
from semel.testing import Faulty
from tests.amounts import amount
from tests.doors.inbox_kit import (
    Busy,
    Diary,
    InboxHarness,
    conversation,
    failing,
    failing_once,
    look_everywhere,
    nobody,
    running,
    sweep,
)
from tests.places import NAMES, open_place
from tests.servers.running import until

ANYTHING: Any = 7


def sealing(*names: str) -> semel.Codec:
    """What encrypts with the first of these keys, and decrypts what any of them encrypted."""
    keys = {name: name.encode().ljust(32) for name in names}
    return semel.Codec(encryption=Encryption(keys, names[0]))


@pytest.fixture(scope="module", params=NAMES)
def place(request, tmp_path_factory):
    return open_place(request.param, request, tmp_path_factory.mktemp("inbox"))


@pytest.fixture(params=[1, 5], ids=["", "shards"])
def desk(place, request):
    """An inbox on every store, in one shard and in several."""
    desk = InboxHarness(place, shards=request.param)
    yield desk
    desk.close()


@pytest.fixture(params=[1, 5], ids=["", "shards"])
def office(request, tmp_path):
    """An inbox on the nearest store, for what is no store's business."""
    desk = InboxHarness(open_place("memory", request, tmp_path), shards=request.param)
    yield desk
    desk.close()


# --- On every store ----------------------------------------------------------------------------------


@pytest.mark.seed("R10")
def test_what_was_put_in_is_handled_once_and_in_order_within_its_group(desk):
    """Alone and together with others, some of it twice, by a process and by another that comes later."""
    a, b, alone = conversation("a", *range(6)), conversation("b", *range(3)), Message("x", [1, None, "å"])
    desk.put(*a[:3], *b, alone)
    desk.put(a[3])
    desk.put(a[1], a[4], a[4], alone)
    desk.put(a[5])
    diary = Diary()
    sweep(desk.worker(diary), desk.clock)
    assert diary.of("a") == [f"a{n}" for n in range(6)]
    assert diary.of("b") == ["b0", "b1", "b2"]
    assert diary.of(None) == ["x"]
    assert {message.key: message.body for message in diary.messages}["x"] == [1, None, "å"]
    assert desk.waiting == 0
    desk.put(a[0], b[2], alone)
    sweep(desk.elsewhere(nobody), desk.clock)
    assert desk.waiting == 0


@pytest.mark.seed("R9")
def test_a_failure_comes_again_in_time_and_holds_up_its_group_and_nothing_else(desk):
    first, *_ = a = conversation("a", 0, 1)
    desk.put(*a, *conversation("b", 0, 1))
    diary = Diary(failing_once("a0"))
    worker, other = desk.worker(diary), desk.elsewhere(diary)
    sweep(worker, desk.clock)
    assert (diary.of("a"), diary.of("b")) == (["a0"], ["b0", "b1"])
    [letter, _] = desk.letters(first)
    assert (letter.attempts, letter.error) == (1, "ConnectionError: the bank does not answer")
    assert letter.not_before == pytest.approx(desk.clock.now() + 10)
    desk.clock.advance(9.9)
    for each in (worker, other):
        sweep(each, desk.clock)
    assert diary.of("a") == ["a0"]
    desk.clock.advance(0.2)
    sweep(other, desk.clock)
    assert diary.of("a") == ["a0", "a0", "a1"]
    assert [message.attempt for message in diary.messages if message.group == "a"] == [1, 2, 1]
    assert desk.waiting == 0


def test_the_other_side_may_say_when_to_come_again(desk):
    desk.put(message := Message("x", None))
    diary = Diary(failing("x", error=Busy(3.5)))
    sweep(desk.worker(diary), desk.clock)
    [letter] = desk.letters(message)
    assert letter.not_before == pytest.approx(desk.clock.now() + 3.5)
    diary.what = lambda _: None
    desk.clock.advance(4)
    sweep(desk.elsewhere(diary), desk.clock)
    assert diary.keys == ["x", "x"]


def test_a_handler_is_told_what_else_waits_and_may_be_begun(desk):
    """Not what has a group, whose order is kept, nor what is put off; what is settled is gone."""
    alone = [Message(f"m{n}", {"n": n}) for n in range(12)]
    desk.put(*alone, *conversation("a", 0, 1))
    desk.put(alone[3])
    failed = Diary(failing("m5"))
    worker = desk.worker(failed, max_attempts=2)
    scheduler = worker.lanes
    scheduler.add(alone[5].lane)
    worker.visit(scheduler.begin())
    for one in (alone[0], alone[7], conversation("a", 0)[0]):
        parts = list(desk.inbox.others(one))
        found = [other.message for part in parts for other in part]
        wanted = sorted([*(m.key for m in alone if m.key not in ("m5", one.key)), "m3"])
        assert sorted(message.key for message in found) == wanted
        assert {message.key: message.body for message in found}["m3"] == {"n": 3}
    [others] = [part for part in desk.inbox.others(alone[0]) if part][:1]
    desk.inbox.settle(others[:2])
    desk.inbox.give_back(others[2:])
    assert desk.waiting == 15 - 2


def test_waiting_for_its_turn_is_no_attempt(desk):
    """It comes again in time, after as many turns as it takes, and its group waits with it."""
    first, _ = a = conversation("a", 0, 1)
    desk.put(*a, *conversation("b", 0))
    diary, turns = Diary(), [errors.Later(20.0, "the bank is closed") for _ in range(4)]

    def work(message: Message) -> None:
        if message.key == "a0" and turns:
            raise turns.pop()

    diary.what = work
    worker = desk.worker(diary, max_attempts=2)
    for _ in range(4):
        sweep(worker, desk.clock)
        [letter, _] = desk.letters(first)
        assert (letter.attempts, letter.error) == (0, "Later: the bank is closed; again in 20.0 s")
        assert letter.not_before == pytest.approx(desk.clock.now() + 20)
        assert desk.s.ledger.get(desk.inbox.record_key("a0")).attempt == 0
        desk.clock.advance(20.1)
    sweep(worker, desk.clock)
    assert (diary.of("a"), diary.of("b")) == (["a0"] * 5 + ["a1"], ["b0"])
    assert {message.attempt for message in diary.messages} == {1}
    assert desk.inbox.dead() == []


@pytest.mark.seed("R9")
def test_what_cannot_be_handled_is_put_aside_and_redriven_in_its_place(desk):
    """The messages behind it go on; put back, it is new, and before those that wait."""
    a = conversation("a", 0, 1, 2)
    desk.put(*a[:2])
    diary = Diary(failing("a0", error=ValueError("no such order")))
    sweep(desk.worker(diary, on_error={ValueError: "keep"}), desk.clock)
    assert diary.keys == ["a0", "a1"]
    assert desk.waiting == 0
    [dead] = desk.inbox.dead()
    assert (dead.key, dead.group, dead.attempts) == ("a0", "a", 1)
    assert (dead.error, dead.at) == ("ValueError: no such order", pytest.approx(desk.clock.now()))
    assert (dead.body, [one.body for one in desk.inbox.dead(bodies=True)]) == (msgspec.UNSET, [{"n": 0}])
    desk.put(a[0])
    desk.put(a[2])
    assert desk.inbox.redrive(dead.id) == 1
    assert desk.inbox.dead() == []
    with pytest.raises(errors.UsageError, match="no dead letter"):
        desk.inbox.redrive(dead.id)
    diary.what = lambda _: None
    sweep(desk.elsewhere(diary), desk.clock)
    assert diary.keys == ["a0", "a1", "a0", "a2"]
    assert diary.messages[2].attempt == 1
    assert desk.waiting == 0


def test_what_fails_too_often_is_put_aside_and_all_of_it_is_redriven_in_order(desk):
    desk.put(*conversation("a", 0, 1), Message("x", 1))
    diary = Diary(failing("a0", "a1", "x"))
    worker = desk.worker(diary, max_attempts=2)
    for _ in range(4):
        sweep(worker, desk.clock)
        desk.clock.advance(11)
    assert Counter(diary.keys) == {"a0": 2, "a1": 2, "x": 2}
    assert {(dead.key, dead.attempts) for dead in desk.inbox.dead()} == {("a0", 2), ("a1", 2), ("x", 2)}
    assert len(desk.inbox.dead(limit=2)) == 2
    assert desk.inbox.redrive() == 3
    again = Diary()
    sweep(desk.elsewhere(again), desk.clock)
    assert again.of("a") == ["a0", "a1"]
    assert again.of(None) == ["x"]
    assert desk.inbox.redrive() == 0


def test_nobody_else_is_in_a_lane_and_what_comes_late_waits_its_turn(desk):
    """Another process with a clock that is behind puts a message before the one that is being handled."""
    a = conversation("a", 0, 1, 2)
    desk.put(a[1], a[2])
    diary = Diary()
    other = desk.elsewhere(diary)

    def look_elsewhere(message):
        if message.key == "a1":
            desk.clock.jump(-5)
            desk.put(a[0], inbox=StoreInbox(desk.process(), "in"))
            desk.clock.jump(5)
            sweep(other, desk.clock)
            assert diary.keys == ["a1"]
            desk.clock.advance(2)  # what was read is not fresh any more

    mine = Diary(look_elsewhere)
    diary.messages = mine.messages
    sweep(desk.worker(mine), desk.clock)
    sweep(other, desk.clock)
    assert mine.keys == ["a1", "a0", "a2"]
    assert desk.waiting == 0


def test_what_was_settled_by_another_since_it_was_seen_is_not_begun(desk):
    """Both have seen the same letters; what one did with them, the other finds when its turn comes."""
    desk.put(*conversation("a", 0, 1), *(Message(key, 0) for key in "xyz"))
    first = Diary(
        lambda message: failing("a1", "y")(message) or failing("z", error=ValueError("no"))(message)
    )
    worker, other = desk.worker(first, on_error={ValueError: "keep"}), desk.elsewhere(nobody)
    look_everywhere(other)
    sweep(worker, desk.clock)
    assert sorted(first.keys) == ["a0", "a1", "x", "y", "z"]
    sweep(other, desk.clock)
    assert (desk.waiting, len(desk.inbox.dead())) == (2, 1)


def test_whoever_died_in_a_lane_is_out_of_it_when_his_lease_is_over(desk):
    desk.put(*(a := conversation("a", 0, 1)))
    lane = a[0].lane
    assert desk.box.enter(lane, "somebody who died", 30) == 0
    assert desk.box.enter(lane, "another", 30) == pytest.approx(30)
    assert desk.inbox.survey().entered == 1
    diary = Diary()
    worker = desk.worker(diary, lease=30)
    for _ in range(3):
        sweep(worker, desk.clock)
        assert diary.keys == []
        desk.clock.advance(11)
    sweep(worker, desk.clock)
    assert diary.keys == ["a0", "a1"]


def test_being_in_a_lane_ends_with_its_token_and_nobody_elses(desk):
    desk.put(*(a := conversation("a", 0)))
    lane = a[0].lane
    assert desk.box.enter(lane, "one", 30) == 0
    assert desk.box.enter(lane, "one", 30) == 0, "its own mark is in nobody's way"
    empty = lane_of("b0", "b")
    assert desk.box.stay({lane: "one", empty: "one"}, 30) == (empty,)
    desk.box.leave([], lane, "two")
    assert desk.box.stay({lane: "one"}, 30) == ()
    desk.box.leave([], lane, "one")
    assert desk.box.stay({lane: "one"}, 30) == (lane,), "what is over does not begin again by itself"
    assert desk.box.enter(lane, "two", 30) == 0


def test_what_waits_is_told_in_numbers(desk):
    desk.put(Message("old", 0))
    accepted = desk.clock.now()
    desk.clock.advance(60)
    desk.put(*conversation("a", 0, 1), *conversation("b", 0), Message("new", 0))
    sweep(desk.worker(failing("a0", "b0", "old", "new")), desk.clock)
    desk.clock.advance(1)
    told = desk.inbox.survey()
    assert (told.waiting, told.lanes, told.resting, told.entered, told.more) == (5, 4, 4, 0, False)
    assert told.oldest == pytest.approx(accepted)
    some = desk.box.survey(most=2)
    assert (some.waiting, some.more) == (2, True)


def test_every_list_goes_on_where_its_last_page_ended(desk):
    keys = [f"x{n}" for n in range(7)]
    for key in keys:
        desk.put(Message(key, 0), Message(f"{key}y", 0), *conversation("a", int(key[1:])))
        desk.clock.advance(1)
    sweep(desk.worker(failing(*keys, error=ValueError("no")), on_error={ValueError: "keep"}), desk.clock)
    desk.put(*(Message(f"{key}z", 0) for key in keys), *(a := conversation("a", *range(7, 12))))
    for limit in (1, 3, 7):
        dead = _read(lambda after, limit=limit: desk.box.dead(limit, after))
        assert [letter.key for letter in dead] == keys
        lane = _read(lambda after, limit=limit: desk.box.letters(a[0].lane, limit, after))
        assert [letter.key for letter in lane] == [message.key for message in a]
        alone = _read(lambda after, limit=limit: desk.box.alone(limit=limit, after=after))
        assert sorted(letter.key for letter in alone) == [f"{key}z" for key in keys]
        counted, part = 0, desk.box.count(most=limit)
        while part.after is not None:
            counted, part = counted + part.number, desk.box.count(after=part.after, most=limit)
        assert counted + part.number == 12


def _read(page: Any) -> list[Letter]:
    """What all pages have."""
    found = [page(None)]
    while found[-1].after is not None:
        found.append(page(found[-1].after))
    return [letter for each in found for letter in each.letters]


def test_an_inbox_is_nobody_elses(desk):
    desk.put(Message("x", 1))
    for other in (StoreInbox(desk.s, "other"), StoreInbox(desk.s.scoped("elsewhere"), "in")):
        sweep(other.worker(nobody), desk.clock)
        assert (other.waiting(), other.dead()) == (0, [])
    assert desk.waiting == 1


# --- What is accepted --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("", 1), errors.InvalidKey),
        (Message("a\nb", 1), errors.InvalidKey),
        (Message("x" * 2000, 1), errors.InvalidKey),
        (Message(ANYTHING, 1), errors.InvalidKey),
        (Message("x", 1, ""), errors.InvalidKey),
        (Message("x", 1, "\ud800"), errors.InvalidKey),
        (Message("x", object()), MessageRefused),
        (Message("x", float("nan")), MessageRefused),
        (Message("x", random.Random(1).randbytes(2_000_000).hex()), MessageRefused),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_kept_is_refused_and_nothing_of_it_is_written(office, message, error):
    with pytest.raises(error):
        office.put(Message("good", 1), message)
    assert office.waiting == 0


def test_a_key_made_of_parts_is_a_key(office):
    office.put(Message(semel.Key("evt", "a:b"), 1, semel.Key("c", 1)))
    diary = Diary()
    sweep(office.worker(diary), office.clock)
    assert diary.keys == ["evt:a%3Ab"]
    assert office.s.ledger.is_processed(office.inbox.record_key("evt:a%3Ab"))


def test_messages_of_one_group_are_written_one_after_the_other_and_others_at_once(office):
    """A store makes the writes of a batch in any order, and whoever looks in between must not see a gap."""
    store = Faulty(MemoryStore(office.clock))
    with semel.Semel(store, clock=office.clock) as s:
        StoreInbox(s, "in").put(*conversation("a", 0, 1, 2), *conversation("b", 0), Message("x", 0))
    batch, *more = [command for command in store.seen if isinstance(command, Batch | Put)]
    assert len(batch.writes) == 3
    assert [type(command) for command in more] == [Put, Put]


@pytest.mark.parametrize("fault", ["lose_reply", "lose_request"])
def test_a_put_whose_answer_is_lost_is_made_and_what_came_twice_is_handled_once(office, fault):
    store = Faulty(MemoryStore(office.clock))
    diary = Diary()
    with semel.Semel(store, clock=office.clock) as s:
        inbox = StoreInbox(s, "in")
        getattr(store, fault)()
        inbox.put(Message("x", 0))
        getattr(store, fault)(3)
        with pytest.raises(errors.StoreOutcomeUnknown):
            inbox.put(Message("y", 0))
        inbox.put(Message("y", 0))
        sweep(inbox.worker(diary), office.clock)
        assert inbox.waiting() == 0
    assert sorted(diary.keys) == ["x", "y"]


def test_messages_stay_in_order_though_the_clock_is_set_back(office):
    a = conversation("a", 0, 1, 2)
    office.put(a[0])
    office.clock.jump(-3600)
    office.put(a[1])
    office.clock.jump(7200)
    office.put(a[2])
    diary = Diary()
    sweep(office.worker(diary), office.clock)
    assert diary.keys == ["a0", "a1", "a2"]


def test_threads_and_tasks_of_a_process_put_in_one_order(request, tmp_path):
    """In one millisecond, by turns."""
    desk = InboxHarness(open_place("sqlite", request, tmp_path))
    for message in conversation("a", *range(20)):
        desk.put(message)
    diary = Diary()
    sweep(desk.worker(diary), desk.clock)
    desk.close()
    assert diary.keys == [f"a{n}" for n in range(20)]


def test_a_message_is_gone_when_its_time_is_over(office):
    inbox = StoreInbox(office.s, "short", ttl=DAY)
    inbox.put(Message("x", 0), Message("y", 0))
    worker = inbox.worker(failing("x", error=ValueError("no")), on_error="keep")
    office.clock.advance(DAY - 1)
    lane = lane_of("x", None)
    worker.lanes.add(lane)
    assert worker.lanes.begin() == lane
    worker.visit(lane)
    office.clock.advance(1)
    assert (inbox.waiting(), len(inbox.dead())) == (0, 1)
    office.clock.advance(DAY)
    assert inbox.dead() == []


def test_what_is_done_is_remembered_for_as_long_as_a_message_can_wait(office):
    office.put(Message("x", 0))
    sweep(office.worker(Diary()), office.clock)
    assert office.s.ledger.get(office.inbox.record_key("x")).expires_at >= office.clock.now() + TTL
    with pytest.raises(errors.InvalidOption, match="shorter than horizon"):
        office.worker(Diary(), ttl=DAY)


# --- Secrets -----------------------------------------------------------------------------------------


def test_bodies_are_encrypted_where_the_ledger_encrypts(request, tmp_path):
    desk = InboxHarness(open_place("sqlite", request, tmp_path), codec=sealing("old"))
    desk.put(Message("x", {"text": "call +46 70 123 45 67"}), Message("y", "call +46 70 123 45 67", "g"))
    sweep(desk.worker(failing("y", error=ValueError("no")), on_error="keep"), desk.clock)
    assert len(desk.inbox.dead()) == 1
    desk.close()
    assert b"+46" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_a_message_that_cannot_be_read_any_more_is_put_aside_at_once_and_holds_nobody_up(office):
    a = conversation("a", 0, 1)
    old = StoreInbox(office.process(codec=sealing("old")), "in")
    new = StoreInbox(office.process(codec=sealing("new")), "in")
    old.put(a[0])
    new.put(a[1])
    diary = Diary()
    sweep(new.worker(diary), office.clock)
    assert diary.keys == ["a1"]
    [dead] = new.dead()
    assert dead.error.startswith(
        "MessageUnreadable: message 'a0' cannot be read (it is encrypted with the key"
    )
    assert [one.body for one in new.dead(bodies=True)] == [msgspec.UNSET]
    assert office.s.ledger.get(office.inbox.record_key("a0")) is None, "it was never begun"
    assert new.redrive() == 1
    sweep(old.worker(diary), office.clock)
    assert diary.keys == ["a1", "a0"]


def test_a_body_that_was_moved_to_another_message_is_not_believed(office):
    s = office.process(codec=sealing("old"))
    box = s.mailbox("in")
    body = box.steps.sealed(Message("x", "the words of x"))
    assert box.steps.unsealed("x", body) == "the words of x"
    with pytest.raises(MessageUnreadable, match="it was changed, moved from another record"):
        box.steps.unsealed("y", body)


def test_why_a_message_failed_is_told_without_what_is_personal(office):
    inbox = StoreInbox(office.process(redact=Redactor()), "in")
    inbox.put(Message("x", 0))
    work = failing("x", error=ValueError("no order of anna@example.com"))
    sweep(inbox.worker(work, on_error="keep"), office.clock)
    [dead] = inbox.dead()
    assert dead.error.startswith("ValueError: no order of ")
    assert "anna" not in dead.error


# --- What the ledger says ----------------------------------------------------------------------------


def test_who_waits_for_everyone_lets_no_other_begin_and_leaves_them_as_they_are(office):
    """The limits of another system hold for all of them: none is tried in vain, and none is put off."""
    messages = [Message(f"m{n}", n) for n in range(5)]
    office.put(*messages)
    diary, closed = Diary(), [errors.Later(20.0, "the bank is closed", everyone=True)]

    def work(message: Message) -> None:
        if closed:
            raise closed.pop()

    diary.what = work
    worker = office.worker(diary)
    sweep(worker, office.clock)
    assert len(diary.keys) == 1
    office.clock.advance(19.9)
    sweep(worker, office.clock)
    assert len(diary.keys) == 1
    assert worker.lanes.next_wake == pytest.approx(office.clock.monotonic() + 0.1)
    assert {letter.not_before for one in messages for letter in office.letters(one)} == {0.0}
    office.clock.advance(0.1)
    sweep(worker, office.clock)
    assert sorted(diary.keys[1:]) == [one.key for one in messages]


def test_nobody_stands_still_for_longer_than_a_minute(office):
    """What is waited for may be over sooner than was said."""
    office.put(Message("m", 1))
    diary = Diary(failing("m", error=errors.Later(3600.0, everyone=True)))
    worker = office.worker(diary)
    for _ in range(3):
        sweep(worker, office.clock)
        office.clock.advance(STILL_SECONDS)
    assert diary.keys == ["m"] * 3


def test_what_is_in_doubt_waits_for_a_person_and_then_goes_on(office):
    """The attempt before vanished, and the policy is to hold: the group waits until somebody settles it."""
    office.put(*conversation("a", 0, 1))
    office.s.ledger.claim(office.inbox.record_key("a0"), lease=1, ttl=TTL)
    office.clock.advance(2)
    diary = Diary()
    worker = office.worker(diary, on_lapsed="hold")
    sweep(worker, office.clock)
    assert office.s.ledger.get(office.inbox.record_key("a0")).status is semel.Status.UNKNOWN
    office.clock.advance(HELD_SECONDS - 1)
    assert not worker.lanes.wake(office.clock.monotonic()), "nobody is in that much of a hurry"
    office.clock.advance(1)
    sweep(worker, office.clock)
    assert diary.keys == []
    office.s.ledger.resolve(office.inbox.record_key("a0"), semel.Happened("sent"), ttl=TTL)
    office.clock.advance(HELD_SECONDS)
    sweep(worker, office.clock)
    assert diary.keys == ["a1"]


def test_what_waits_for_a_person_is_looked_at_the_less_often_the_longer_it_has(office):
    """Thousands that nobody has settled do not keep a worker from the rest."""
    office.put(Message("m", 1))
    office.s.ledger.doubt(office.s.ledger.claim(office.inbox.record_key("m"), ttl=TTL))
    office.clock.advance(1000)
    worker = office.worker(nobody, on_lapsed="hold")
    sweep(worker, office.clock)
    assert worker.lanes.next_wake == pytest.approx(office.clock.monotonic() + 100)
    office.clock.advance(DAY)
    sweep(worker, office.clock)
    assert worker.lanes.next_wake == pytest.approx(office.clock.monotonic() + 300)


def test_a_message_that_cannot_be_read_is_not_among_what_else_waits(office):
    office.put(Message("m", 1), Message("n", 2))
    [letter] = office.letters(Message("m", 1))
    office.s.store.execute(
        Put(
            INBOX,
            letter.partition,
            {"key": "m", "body": b"?", "encoding": "json+zip", "expires_at": 2e9, "at": 0, "attempts": 0},
            sort=letter.place,
        )
    )
    found = [other.message.key for part in office.inbox.others(Message("x", 0)) for other in part]
    assert found == ["n"]


def test_what_somebody_else_has_claimed_is_left_alone_until_his_lease_is_over(office):
    office.put(*conversation("a", 0, 1))
    office.s.ledger.claim(office.inbox.record_key("a0"), lease=20, ttl=TTL)
    diary = Diary()
    worker = office.worker(diary)
    for _ in range(20):
        sweep(worker, office.clock)
        assert diary.keys == []
        office.clock.advance(BUSY_SECONDS)
    sweep(worker, office.clock)
    assert diary.keys == ["a0", "a1"]
    assert office.letters(conversation("a", 0)[0]) == ()


def test_what_vanished_as_often_as_the_limit_allows_is_put_aside(office):
    """A message that kills whoever handles it."""
    office.put(*conversation("a", 0, 1))
    for _ in range(3):
        office.s.ledger.claim(office.inbox.record_key("a0"), lease=1, ttl=TTL)
        office.clock.advance(2)
    diary = Diary()
    sweep(office.worker(diary, max_attempts=3), office.clock)
    assert diary.keys == ["a1"]
    [dead] = office.inbox.dead()
    assert "AttemptsExhausted" in dead.error


def test_duplicates_of_one_message_wait_for_it_also_without_a_group(office):
    """Else the second would be tried while the first is to stay away."""
    office.put(Message("x", 0))
    office.put(Message("x", 0))
    diary = Diary(failing_once("x"))
    worker = office.worker(diary, workers=2)
    sweep(worker, office.clock)
    assert diary.keys == ["x"]
    office.clock.advance(11)
    sweep(worker, office.clock)
    assert diary.keys == ["x", "x"]
    assert office.waiting == 0


# --- The store goes away, and answers get lost -------------------------------------------------------


def faulty(office):
    store = Faulty(MemoryStore(office.clock))
    s = semel.Semel(store, clock=office.clock)
    return store, s, StoreInbox(s, "in")


@pytest.mark.parametrize("fault", ["refuse", "lose_reply", "lose_request"])
def test_wherever_the_store_fails_nothing_is_lost_and_nothing_done_twice(office, fault):
    """Each write of a run fails in turn: entering, claiming, the effect, putting off, burying, leaving."""
    for skipped in range(amount(40, 30)):
        store, s, inbox = faulty(office)
        fail = failing_once("a1")

        def work(message, s=s, fail=fail):
            failing("x", error=ValueError("no"))(message)
            fail(message)
            with s.transaction() as tx:
                tx.journal.append("effects", {"key": message.key})
                tx.ledger.complete(semel.current_run(), None)

        inbox.put(*conversation("a", 0, 1, 2), Message("x", 0), Message("y", 0))
        store._faults.extend(["none"] * skipped)
        getattr(store, fault)()
        worker = inbox.worker(work, on_error={ValueError: "keep"}, backoff=lambda _: 1, lease=5)
        for _ in range(8):
            sweep(worker, office.clock)
            office.clock.advance(3)
        effects = [entry.body["key"] for entry in s.journal.list("effects").entries]
        assert (inbox.waiting(), [dead.key for dead in inbox.dead()]) == (0, ["x"]), skipped
        assert [key for key in effects if key != "y"] == ["a0", "a1", "a2"], skipped
        assert effects.count("y") == 1, skipped
        s.close()


def test_a_store_that_is_away_is_asked_again_and_the_worker_lives(office):
    class Away(Faulty):
        away = threading.Event()

        def _begin(self, command):
            if self.away.is_set():
                refused.set()
                raise errors.StoreUnavailable("it is away")
            return super()._begin(command)

    refused = threading.Event()
    store = Away(MemoryStore())
    told: list[semel.Event] = []
    with semel.Semel(store) as s:
        s.events.listen(told.append)
        inbox = StoreInbox(s, "in")
        diary = Diary()
        worker = inbox.worker(diary, poll=0.01)
        with running(worker):
            inbox.put(Message("x", 0))
            diary.wait_for(1)
            store.away.set()
            assert refused.wait(60)
            store.away.clear()
            inbox.put(Message("y", 0))
            diary.wait_for(2)
    assert diary.keys == ["x", "y"]
    assert any(event.what is semel.What.STORE_ERROR and event.door == "inbox" for event in told)


def test_what_waiting_cannot_mend_ends_the_worker(office):
    s = semel.connect("memory:")
    worker = StoreInbox(s, "in").worker(Diary())
    s.close()
    with pytest.raises(errors.StoreClosed):
        worker.run()


@pytest.mark.parametrize("move", ["bury", "redrive"])
@pytest.mark.parametrize("fault", ["lose_reply", "lose_request"])
def test_a_letter_is_moved_once_though_the_answer_is_lost(office, move, fault):
    store, s, inbox = faulty(office)
    inbox.put(Message("x", 0))
    box = s.mailbox("in")
    [letter] = box.letters(lane_of("x", None)).letters
    if move == "redrive":
        box.bury(letter, "no")
        [letter] = box.dead().letters
    getattr(store, fault)()
    assert (box.bury(letter, "no") if move == "bury" else box.redrive(letter)) is True
    assert (inbox.waiting(), len(inbox.dead())) == ((0, 1) if move == "bury" else (1, 0))
    assert (box.bury(letter, "no") if move == "bury" else box.redrive(letter)) is False
    moves = [command for command in store.seen if isinstance(command, Transact)]
    assert len(moves) >= 3
    # So that a cluster of Redis, which keeps a partition together, can make the move.
    assert all(len({write.key for write in move.writes}) == 1 for move in moves)
    s.close()


# --- How much is looked at ---------------------------------------------------------------------------


def test_thousands_of_letters_of_a_stuck_group_cost_a_worker_one_page(office):
    """However long the lane of a group that waits, it is passed over as a whole."""
    store, s, inbox = faulty(office)
    box = s.mailbox("in")
    for message in conversation("stuck", *range(3000)):
        box.put([message])
    inbox.put(*(Message(f"x{n}", 0) for n in range(60)))
    diary = Diary(failing("stuck0"))
    worker = inbox.worker(diary, backoff=lambda _: 3600)
    store.seen.clear()
    for _ in range(3):
        sweep(worker, office.clock)
    assert (diary.of("stuck"), len(diary.of(None)), inbox.waiting()) == (["stuck0"], 60, 3000)
    lanes = 61
    assert len(queries(store)) <= lanes + 3 * 3, "each lane once, and a few pages to find them"
    s.close()


def test_a_look_is_bounded_and_the_next_one_goes_on_from_there(office, monkeypatch):
    """So that what waits behind thousands of groups that rest is found, a little at a time."""
    store, s, inbox = faulty(office)
    monkeypatch.setattr("semel.doors.inbox.worker.PAGES", 2)
    lanes = 3 * PAGE
    inbox.put(*(Message(f"x{n}", 0) for n in range(lanes)))
    resting = inbox.worker(failing(*(f"x{n}" for n in range(lanes))), backoff=lambda _: 3600)
    while len(resting.lanes) < lanes:
        sweep(resting, office.clock)
    worker = inbox.worker(Diary())
    store.seen.clear()
    worker.look()
    assert len(queries(store)) == 2
    last = max(lane_of(f"x{n}", None) for n in range(lanes))
    assert not worker.lanes.knows(last)
    worker.look()
    assert worker.lanes.knows(last)
    assert len(queries(store)) <= 4
    s.close()


def queries(store: Faulty) -> list[Query]:
    return [command for command in store.seen if isinstance(command, Query)]


def test_a_long_lane_does_not_keep_a_worker_from_the_others(office):
    """After so many letters it lines up again behind them."""
    office.put(*conversation("a", *range(3 * READ)))
    diary = Diary()
    worker = office.worker(diary)
    worker.look()
    office.put(*conversation("b", 0))
    worker.lanes.add(lane_of("b0", "b"))
    while (lane := worker.lanes.begin()) is not None:
        worker.visit(lane)
    assert diary.keys.index("b0") == READ
    assert len(diary.of("a")) == 3 * READ


def test_a_worker_forgets_the_lanes_that_it_is_done_with(office):
    worker = office.worker(failing_once(*(f"x{n}" for n in range(0, 120, 3))))
    office.put(*(Message(f"x{n}", 0, f"g{n}" if n % 2 else None) for n in range(120)))
    while office.waiting:
        sweep(worker, office.clock)
        office.clock.advance(11)
    assert len(worker.lanes) == 0
    assert worker.lanes.next_wake == float("inf")


def test_no_more_lanes_are_taken_in_than_can_be_begun_soon(office):
    worker = office.worker(Diary())
    worker._notified([f"l{n}" for n in range(AHEAD + 50)])
    assert len(worker.lanes) == worker.lanes.ready == AHEAD


# --- Running -----------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def inbox(request, tmp_path):
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'semel.db'}"
    with semel.connect(url) as s:
        yield open_inbox(s, "in")


# So long that whoever waits for it instead of being woken fails the test.
NEVER = 3600.0


def test_what_is_put_in_by_the_same_process_is_begun_at_once(inbox):
    """Nobody looks by himself in this test: it is the bell that wakes."""
    diary = Diary()
    with running(inbox.worker(diary, workers=2, poll=NEVER)):
        for n in range(20):
            inbox.put(*conversation("a", n))
            diary.wait_for(n + 1)
    assert diary.keys == [f"a{n}" for n in range(20)]


def test_what_is_put_in_while_its_group_is_being_handled_is_begun_afterwards(inbox):
    def work(message):
        if message.key == "a0":
            inbox.put(*conversation("a", 1, 2))

    diary = Diary(work)
    with running(inbox.worker(diary, poll=NEVER)):
        inbox.put(*conversation("a", 0))
        diary.wait_for(3)
    assert diary.keys == ["a0", "a1", "a2"]


def test_what_another_process_puts_in_is_found(tmp_path):
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    with semel.connect(url) as s, semel.connect(url) as other:
        diary = Diary()
        with running(open_inbox(s, "in").worker(diary, poll=0.01)):
            open_inbox(other, "in").put(Message("x", 0))
            diary.wait_for(1)


def test_messages_of_no_group_and_of_several_groups_are_handled_side_by_side(inbox):
    together = threading.Barrier(4, timeout=60)
    inbox.put(Message("x", 0), Message("y", 0), *conversation("a", 0), *conversation("b", 0))
    diary = Diary(lambda _: together.wait())
    with running(inbox.worker(diary, workers=4)):
        diary.wait_for(4)
    assert inbox.waiting() == 0


def test_stop_finishes_what_runs_and_begins_nothing_more(inbox):
    inbox.put(*conversation("a", 0, 1), *conversation("b", 0))

    def work(_message):
        worker.stop()

    diary = Diary(work)
    worker = inbox.worker(diary, poll=NEVER)
    worker.run()
    assert len(diary.keys) == 1
    assert inbox.waiting() == 2
    assert inbox.survey().entered == 0, "the lane is left"


def test_stop_ends_a_worker_that_is_idle(inbox):
    with running(*(inbox.worker(Diary(), workers=3, poll=NEVER) for _ in range(3))):
        pass


def test_stop_while_it_looks_ends_a_worker_that_finds_nothing(inbox, monkeypatch):
    """It would wait for the next look, and nobody notifies it a second time."""
    worker = inbox.worker(Diary(), poll=NEVER)
    look = worker.look
    monkeypatch.setattr(worker, "look", lambda: (look(), worker.stop()))
    worker.run()
    assert inbox.survey().waiting == 0


def test_stop_before_run_begins_nothing(inbox):
    inbox.put(Message("x", 0))
    worker = inbox.worker(nobody)
    worker.stop()
    worker.run()
    with pytest.raises(errors.UsageError, match="runs once"):
        worker.run()


def test_a_signal_handler_may_stop_a_worker(inbox):
    inbox.put(*conversation("a", 0, 1))
    stopped = threading.Event()

    def stop(*_):
        worker.stop()
        stopped.set()

    def work(_message):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stopped.wait(60)

    diary = Diary(work)
    worker = inbox.worker(diary, poll=NEVER)
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        worker.run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert diary.keys == ["a0"]
    assert inbox.waiting() == 1


def test_draining_the_ledger_stops_the_worker_too(inbox):
    inbox.put(*conversation("a", 0, 1), Message("x", 0))
    diary = Diary(lambda _: inbox._s.drain())
    inbox.worker(diary, poll=NEVER).run()
    assert len(diary.keys) == 1
    assert inbox.waiting() == 2


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_what_ends_a_thread_ends_the_worker_and_its_message_is_handled_by_the_next(inbox, error):
    inbox.put(*conversation("a", 0, 1))

    def work(_message):
        raise error

    with pytest.raises(type(error)):
        inbox.worker(work, poll=NEVER).run()
    diary = Diary()
    with running(inbox.worker(diary)):
        diary.wait_for(2)
    assert diary.keys == ["a0", "a1"]


def test_a_lane_is_kept_for_as_long_as_its_message_takes(office):
    """Longer than its lease, which is renewed meanwhile."""
    office.put(*conversation("a", 0, 1))
    renewed = threading.Semaphore(0)

    def work(message):
        if message.key == "a0":
            for _ in range(4):
                office.clock.advance(10)
                with worker._threads.changing():
                    """Wake the thread that renews: the clock of this test wakes nobody."""
                assert renewed.acquire(timeout=60)
                assert office.box.enter(lane_of("", "a"), "another", 30) > 0

    diary = Diary(work)
    worker = office.worker(diary, lease=30, heartbeat=False, poll=NEVER)
    renew = worker.renew

    def noted():
        renew()
        renewed.release()

    worker.renew = noted
    with running(worker):
        diary.wait_for(2)
    assert diary.keys == ["a0", "a1"]


def test_who_has_lost_his_lane_begins_nothing_more_in_it(office):
    office.put(*conversation("a", 0, 1))

    def lose(_message):
        office.clock.advance(0.6)
        assert office.box.enter(lane_of("", "a"), "another", 30) == 0

    diary = Diary(lose)
    sweep(office.worker(diary, lease=0.5, heartbeat=False), office.clock)
    assert diary.keys == ["a0"]


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": True},
        {"workers": 1.5},
        {"poll": 0},
        {"poll": float("inf")},
        {"hide_key": True},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(inbox, options):
    with pytest.raises(errors.InvalidOption):
        inbox.worker(Diary(), **options)


def test_a_handler_that_is_async_is_refused(inbox):
    async def handle(_message):
        pass

    with pytest.raises(errors.InvalidOption, match="plain def"):
        inbox.worker(handle)


@pytest.mark.parametrize("name", ["", "a:b", "a\nb"])
def test_an_inbox_has_a_plain_name(inbox, name):
    with pytest.raises(errors.UsageError):
        StoreInbox(inbox._s, name)


class Crowd:
    """Handles messages, fails now and then, and notes who was in a group when somebody else was."""

    def __init__(self) -> None:
        self.done: dict[str, list[int]] = defaultdict(list)
        self.crowded: list[str] = []
        self._inside: Counter[str] = Counter()
        self._rng, self._lock = random.Random(5), threading.Lock()

    def __call__(self, message):
        with self._lock:
            self._inside[message.group] += 1
            if self._inside[message.group] > 1:
                self.crowded.append(message.key)
        try:
            with self._lock:
                if self._rng.random() < 0.15:
                    raise ConnectionError
                self.done[message.group].append(message.body["n"])
        finally:
            with self._lock:
                self._inside[message.group] -= 1


@pytest.mark.seed("R10")
@pytest.mark.proof("inbox")
@pytest.mark.parametrize("shards", [1, 4])
def test_many_workers_that_fail_now_and_then_keep_every_promise(place, tried, monkeypatch, shards):
    """Several stores in one place, several threads each, and messages that come twice."""
    # Nobody is at work yet, who would have to know of the number of shards first.
    monkeypatch.setattr("semel.state.shards.NOTICE_SECONDS", 0.0)
    groups, each = 5, amount(40, 8, 100)
    place.forget()
    opened = [
        semel.Semel(place.open(), env=place.env, scope=f"crowd{shards}") for _ in range(place.workers(3))
    ]
    inboxes = [open_inbox(s, "in", shards=shards) for s in opened]
    inboxes[0].waiting()
    crowd = Crowd()
    terms: Any = {"workers": 2, "poll": 0.02, "backoff": lambda _: 0.01, "max_attempts": None}
    with running(*(inbox.worker(crowd, **terms) for inbox in inboxes)):
        for n in range(each):
            messages = [Message(f"g{group}-{n}", {"n": n}, f"g{group}") for group in range(groups)]
            inboxes[0].put(*messages)
            inboxes[0].put(messages[n % groups])
        assert until(lambda: inboxes[0].waiting() == 0)
    for s in opened:
        s.close()
    assert crowd.crowded == []
    assert crowd.done == {f"g{group}": list(range(each)) for group in range(groups)}
    tried(groups * each)
