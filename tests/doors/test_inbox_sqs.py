"""The inbox on a FIFO queue of SQS: the same application, the same promises."""

import asyncio
import json
import threading
from collections import Counter
from contextlib import ExitStack, closing

import msgspec
import pytest

import semel
from semel import errors
from semel.aws.sqs import MAX_BYTES, Queue
from semel.core.codecs import Encryption
from semel.doors.inbox import DeadFilter, Message, open_inbox
from semel.doors.inbox.redriving import redrive
from semel.doors.inbox.sqs import SQSInbox
from semel.errors import MessageRefused
from semel.ops.model import Search
from semel.testing import FakeClock
from tests.doors.inbox_kit import Diary, conversation, failing, failing_once, running
from tests.doors.sqs_kit import counts, make_queue
from tests.servers.running import until


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def s(stack):
    return stack.enter_context(semel.connect("memory:"))


@pytest.fixture
def urls(sqs):
    """A queue, and where its dead letters go."""
    return make_queue(sqs, VisibilityTimeout=5), make_queue(sqs, VisibilityTimeout=5)


@pytest.fixture
def inbox(s, urls, stack, monkeypatch):
    monkeypatch.setattr("semel.doors.inbox.sqs.WAIT_SECONDS", 0)  # here it is one server
    return stack.enter_context(closing(open_inbox(s, "in", queue=urls[0], dead_letters=urls[1])))


@pytest.fixture
def dead(urls, stack):
    """The queue of dead letters itself."""
    return stack.enter_context(closing(Queue(urls[1])))


def work_off(inbox, diary, many, **options):
    """Handle so many messages, and whatever is found to be done besides, until nothing is left."""
    worker = inbox.worker(diary, **{"workers": 2, "poll": 0, "backoff": lambda _: 0, **options})
    with running(worker):
        diary.wait_for(many)
        assert until(lambda: inbox.waiting() == 0)


@pytest.mark.seed("R8")
@pytest.mark.seed("R10")
def test_the_same_application_works_on_a_queue(inbox):
    """Order within groups, a failure that comes again, duplicates, and messages of no group."""
    a = conversation("a", *range(12))
    inbox.put(*a[:5], Message("x", {"å": [1]}), *conversation("b", 0, 1))
    asyncio.run(_aput(inbox, *a[5:], Message("x", {"å": [1]})))
    diary = Diary(failing_once("a3"))
    work_off(inbox, diary, 16)
    assert diary.of("a") == ["a0", "a1", "a2", "a3", *(f"a{n}" for n in range(3, 12))]
    assert diary.of("b") == ["b0", "b1"]
    assert diary.of(None) == ["x"]
    [x] = [message for message in diary.messages if message.key == "x"]
    assert (x.body, x.attempt) == ({"å": [1]}, 1)


async def _aput(inbox, *messages):
    await inbox.aput(*messages)
    await inbox._queue.leave()


def test_names_that_sqs_would_refuse_are_keys_and_groups_like_any_other(inbox):
    odd = ["evt rp:c 1:å", "x" * 500, "naïve/群", "tab%09"]
    inbox.put(*(Message(key, None, group) for key in odd for group in ("a group with blanks", "g" * 300)))
    inbox.put(*(Message(f"alone {key}", None) for key in odd))
    made = semel.Key("made", "of:parts")
    inbox.put(Message(made, None, made))
    diary = Diary()
    work_off(inbox, diary, 9)
    assert Counter(diary.keys) == Counter([*odd, *(f"alone {key}" for key in odd), "made:of%3Aparts"])
    assert {message.group for message in diary.messages} <= {
        "a group with blanks",
        "g" * 300,
        str(made),
        None,
    }


def test_a_handler_is_told_what_else_can_be_received(inbox, s):
    """Not what has a group, which others receive at once; what is settled is gone, the rest comes back."""
    inbox.put(*(Message(f"m{n}", n) for n in range(25)), *conversation("a", 0, 1))
    others = [other for part in inbox.others(Message("x", 0), seconds=600) for other in part]
    assert sorted(other.message.body for other in others) == list(range(25))
    inbox.settle(others[:12])
    inbox.give_back(others[12:])
    assert inbox.waiting() == 13 + 2
    diary = Diary()
    work_off(inbox, diary, 15)
    assert sorted(diary.of(None)) == sorted(other.message.key for other in others[12:])
    assert diary.of("a") == ["a0", "a1"]


def test_what_cannot_be_handled_is_listed_and_redriven_as_new(inbox):
    inbox.put(*conversation("a", 0, 1, 2))
    diary = Diary(failing("a0", error=ValueError("no such order")))
    work_off(inbox, diary, 3, on_error={ValueError: "keep"})
    assert diary.keys == ["a0", "a1", "a2"]
    [dead] = inbox.dead()
    assert (dead.key, dead.group, dead.attempts) == ("a0", "a", 1)
    assert dead.error == "ValueError: no such order"
    [again] = inbox.dead()
    assert (inbox.count().number, inbox.count(dead=True).number) == (0, 1)
    assert again == dead, "looking hides nothing"
    assert [(one.body, one.id) for one in inbox.dead(bodies=True)] == [({"n": 0}, dead.id)]
    assert dead.body is msgspec.UNSET
    assert inbox.redrive(dead.id) == 1
    diary.what = lambda _: None
    work_off(inbox, diary, 4)
    assert diary.keys == ["a0", "a1", "a2", "a0"]
    with pytest.raises(errors.UsageError, match="no dead letter"):
        inbox.redrive(dead.id)


def test_all_of_them_are_redriven_in_order(inbox):
    inbox.put(*conversation("a", *range(13)), Message("x", 0))
    diary = Diary(failing(*(f"a{n}" for n in range(13)), "x"))
    work_off(inbox, diary, 28, max_attempts=2)
    assert len(inbox.dead(limit=5)) == 5
    assert 10 <= len(inbox.dead()) <= 11, "of one group ten at a time"
    assert inbox.redrive() == 14
    again = Diary()
    work_off(inbox, again, 14)
    assert again.of("a") == [f"a{n}" for n in range(13)]
    assert again.of(None) == ["x"]


def test_those_that_fit_are_redriven_and_a_preview_says_which(s, inbox):
    inbox.put(Message("a0", 0, "a"), Message("b0", 0, "b"), Message("x", 0))
    work_off(inbox, Diary(failing("a0", "x", "b0", error=TimeoutError("late"))), 3, max_attempts=1)
    for which, keys in (
        (DeadFilter(group="a"), ["a0"]),
        (DeadFilter(prefix="b"), ["b0"]),
        (DeadFilter(error="OSError"), []),
        (DeadFilter(until=1.0), []),
        (DeadFilter(error="TimeoutError", since=1.0), ["a0", "b0", "x"]),
    ):
        seen = redrive(s, inbox, which, by="ann", why="it is back", preview=True)
        assert sorted(dead.key for dead in seen.letters) == keys
    assert s.ops.journal().entries == ()
    done = redrive(s, inbox, DeadFilter(group="a"), by="ann", why="it is back")
    assert [dead.key for dead in done.letters] == ["a0"]
    assert sorted(dead.key for dead in inbox.dead()) == ["b0", "x"]
    assert [entry.body["about"] for entry in s.ops.journal().entries] == ["inbox in: group a"]


def test_what_waits_about_somebody_who_was_erased_is_never_handled(urls, stack, inbox):
    """A queue cannot be searched, so a mark in the ledger tells; what comes after it is handled."""
    clock = FakeClock()
    s = stack.enter_context(semel.connect("memory:", clock=clock, secret=b"of the tests"))
    sealed = stack.enter_context(closing(SQSInbox(s, "in", *urls)))
    sealed.put(
        Message("a0", "Ann", "a", subject="Ann@example.com"), Message("x", 0, subject="bo@example.com")
    )
    clock.advance(1)
    s.ops.erase("ann@example.com", by="ops", why="request no. 17")
    s.ops.erase("Ann@example.com", by="ops", why="request no. 17")
    clock.advance(1)
    sealed.put(Message("a1", "Ann again", "a", subject="Ann@example.com"))
    diary = Diary()
    work_off(sealed, diary, 2)
    assert sorted(diary.keys) == ["a1", "x"]
    assert s.ledger.get(sealed.record_key("a0")).status == "COMPLETED"
    assert s.ops.search(Search(subject="bo@example.com")).records[0].key == sealed.record_key("x")


def test_a_dead_letter_about_somebody_who_was_erased_is_put_back_and_deleted(urls, stack):
    s = stack.enter_context(semel.connect("memory:", secret=b"of the tests"))
    about_ann = stack.enter_context(closing(SQSInbox(s, "in", *urls)))
    about_ann.put(Message("a0", "Ann", "a", subject="ann@example.com"))
    work_off(about_ann, Diary(failing("a0")), 1, max_attempts=1)
    assert [letter.key for letter in about_ann.dead()] == ["a0"]
    s.ops.erase("ann@example.com", by="ops", why="request no. 17")
    assert about_ann.redrive(about_ann.dead()[0].id) == 1
    about_ann.put(Message("a1", "of somebody else", "a"))
    diary = Diary()
    work_off(about_ann, diary, 1)
    assert (diary.keys, about_ann.dead()) == (["a1"], [])


def test_a_message_that_nobody_can_read_is_dead_at_once_and_holds_nobody_up(urls, stack, inbox):
    """Neither one whose key is lost, nor one that somebody else has sent."""
    keys = Encryption({"k": b"k" * 32}, "k")
    s = stack.enter_context(semel.connect("memory:", encryption=keys))
    sealed = stack.enter_context(closing(SQSInbox(s, "in", *urls)))
    sealed.put(Message("a0", "call +46 70 123 45 67", "a"))
    queue = stack.enter_context(closing(Queue(urls[0])))
    queue.send("hello", group="a", dedup="hello")
    sealed.put(Message("a1", None, "a"))
    inbox.put(Message("a2", None, "a"))
    diary = Diary()
    work_off(inbox, diary, 1)
    assert diary.keys == ["a2"]
    told = {dead.key: dead.error for dead in inbox.dead()}
    assert told == {"a0": "MessageUnreadable", "a1": "MessageUnreadable", "": "DecodeError"}
    assert {dead.body for dead in inbox.dead(bodies=True)} == {msgspec.UNSET}
    assert inbox.redrive() == 3
    both = Diary()
    work_off(sealed, both, 2)
    assert both.keys == ["a0", "a1"]


def test_bodies_are_encrypted_on_their_way(urls, stack, dead):
    keys = Encryption({"k": b"k" * 32}, "k")
    s = stack.enter_context(semel.connect("memory:", encryption=keys))
    inbox = stack.enter_context(closing(SQSInbox(s, "in", *urls)))
    inbox.put(Message("x", {"text": "call +46 70 123 45 67"}))
    queue = stack.enter_context(closing(Queue(urls[0])))
    [told] = queue.call("ReceiveMessage", {"VisibilityTimeout": 0})["Messages"]
    assert set(json.loads(told["Body"])) == {"key", "body", "encoding", "at"}
    assert "aesgcm" in told["Body"]
    diary = Diary(failing("x", error=ValueError("no")))
    work_off(inbox, diary, 1, on_error="keep")
    assert diary.messages[0].body == {"text": "call +46 70 123 45 67"}
    assert counts(dead) == (1, 0)


def test_stop_gives_back_what_has_not_begun(inbox):
    inbox.put(*conversation("a", 0, 1, 2))
    worker = inbox.worker(diary := Diary(lambda _: worker.stop()), poll=1)
    finished = threading.Thread(target=worker.run)
    finished.start()
    finished.join(60)
    assert diary.keys == ["a0"]
    assert inbox.waiting() == 2


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("", 1), errors.InvalidKey),
        (Message("x", 1, "\ud800"), errors.InvalidKey),
        (Message("x", object()), MessageRefused),
        (Message("x", "x" * MAX_BYTES), MessageRefused),
    ],
    ids=["no key", "half a character", "no JSON", "too large"],
)
def test_what_sqs_cannot_take_is_refused_before_anything_is_sent(stack, urls, message, error):
    codec = semel.Codec(compress_over=10 * MAX_BYTES, max_bytes=10 * MAX_BYTES)
    s = stack.enter_context(semel.Semel(semel.connect("memory:").store, codec=codec))
    inbox = stack.enter_context(closing(SQSInbox(s, "in", *urls)))
    with pytest.raises(error):
        inbox.put(*(Message(f"good{n}", 1) for n in range(11)), message)
    assert inbox.waiting() == 0


def test_an_inbox_wants_a_queue_with_an_order_and_keys_as_they_are(s, sqs, inbox):
    with pytest.raises(errors.InvalidOption, match=r"ends in \.fifo"):
        SQSInbox(s, "in", make_queue(sqs, fifo=False))
    with pytest.raises(errors.InvalidOption, match="pseudonym"):
        inbox.worker(Diary(), hide_key=True)


def test_an_inbox_that_was_not_told_of_dead_letters_says_so(s, urls, stack):
    inbox = stack.enter_context(closing(open_inbox(s, "in", queue=urls[0])))
    for ask in (inbox.dead, inbox.redrive):
        with pytest.raises(errors.UsageError, match="was not told where its dead letters are"):
            ask()


def test_a_queue_that_is_not_there_is_named(s, sqs, stack):
    inbox = stack.enter_context(closing(SQSInbox(s, "in", f"{sqs}/000000000000/nowhere.fifo")))
    with pytest.raises(errors.QueueMissing, match=r"nowhere\.fifo"):
        inbox.put(Message("x", 0))
