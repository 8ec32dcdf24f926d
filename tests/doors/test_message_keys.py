"""Keys of messages: what a message is called never makes it a duplicate of other work."""

import asyncio
from typing import Any

import pytest

import semel
from semel.core.keys import key_in_inbox, message_key, own_key
from semel.doors.inbox import Message, StoreInbox, open_inbox
from semel.doors.queues.rabbitmq_names import key_of
from semel.doors.queues.sqs_names import sqs_key
from semel.testing import FakeClock


@pytest.fixture
def s() -> semel.Semel:
    return semel.connect("memory:", clock=FakeClock())


def work_off(inbox: Any, **options: Any) -> list[str]:
    """Handle what waits, and return the keys of what was handled."""
    handled: list[str] = []
    worker = inbox.worker(lambda message: handled.append(message.key), **options)
    worker.look()
    while (lane := worker.lanes.begin()) is not None:
        worker.visit(lane)
    return handled


def test_a_message_that_is_named_like_a_key_of_once_is_handled(s: semel.Semel) -> None:
    charge = s.once("charge:{order}")(lambda order: f"charged {order}")
    assert charge("o-1") == "charged o-1"
    inbox = open_inbox(s, "jobs")
    inbox.put(Message("charge:o-1", {}), Message("charge:o-2", {}))
    assert sorted(work_off(inbox)) == ["charge:o-1", "charge:o-2"]
    # And the other way around: the message is no call of the function.
    assert charge("o-2") == "charged o-2"


def test_two_inboxes_may_have_messages_of_one_name(s: semel.Semel) -> None:
    first, second = open_inbox(s, "mails"), open_inbox(s, "bills")
    for inbox in (first, second):
        inbox.put(Message("m", 1))
        assert work_off(inbox) == ["m"]
        inbox.put(Message("m", 1))
        assert work_off(inbox) == [], "it is a duplicate within its inbox"


def test_no_key_and_no_template_makes_the_key_of_a_message(s: semel.Semel) -> None:
    key = message_key("jobs", "m:1")
    assert key == "inbox::jobs:m:1"
    assert message_key("a%3Ab", "c") != message_key("a", "b:c")
    with pytest.raises(semel.InvalidKey, match="must not be empty"):
        semel.Key("inbox", "", "jobs", "m:1")
    assert semel.Key("inbox:", "jobs") == "inbox%3A:jobs"
    for template in ("inbox::jobs:{m}", "inbox::{m}", "sqs::{m}", "::{m}"):
        with pytest.raises(semel.TemplateError, match="empty part"):
            s.once(template)(lambda m: m)
    with pytest.raises(semel.InvalidKey, match="a message in an inbox"):
        s.once(key=lambda m: f"inbox::jobs:{m}")(lambda m: m)("m:1")
    with pytest.raises(semel.InvalidKey, match="a message in an inbox"):
        s.once.call(key, lambda: 1)


def test_a_step_of_a_message_is_remembered_under_the_messages_own_key(s: semel.Semel) -> None:
    inbox, sent = open_inbox(s, "jobs"), list[str]()

    def handle(message: Message) -> None:
        run = semel.current_run()
        s.once.step("reply", sent.append, message.key)
        s.once.call(run.step("note"), sent.append, "note")
        assert run.key == inbox.record_key(message.key)

    inbox.put(Message("m", 1))
    worker: Any = inbox.worker(handle)
    worker.look()
    worker.visit(worker.lanes.begin())
    assert sent == ["m", "note"]
    assert s.ledger.get("inbox::jobs:m>reply") is not None


def test_an_inbox_whose_keys_are_shared_takes_work_under_the_same_key_for_its_handling(
    s: semel.Semel,
) -> None:
    assert s.once.call("evt:1", lambda: 1) == 1
    inbox = open_inbox(s, "jobs", shared=True)
    inbox.put(Message("evt:1", {}), Message("evt:2", {}))
    assert work_off(inbox) == ["evt:2"]
    assert s.ledger.is_processed("evt:2")


@pytest.mark.parametrize("shared", [False, True])
def test_a_dead_letter_is_redriven_under_its_own_key(s: semel.Semel, shared: bool) -> None:
    inbox = StoreInbox(s, "jobs", shared=shared)
    inbox.put(Message("m", 1))

    def fail(_message: Message) -> None:
        raise ValueError("no")

    worker: Any = inbox.worker(fail, max_attempts=1)
    worker.look()
    worker.visit(worker.lanes.begin())
    (dead,) = inbox.dead()
    record = s.ledger.get(inbox.record_key(dead.key))
    assert record is not None
    assert record.status is semel.Status.FAILED
    assert inbox.known(Message("m", 1)) == 1
    assert inbox.redrive(dead.id) == 1
    assert work_off(inbox) == ["m"]


def test_the_story_of_a_record_finds_its_message(s: semel.Semel) -> None:
    inbox = open_inbox(s, "jobs")
    inbox.put(Message("m", 1))
    for key in ("m", inbox.record_key("m"), f"{inbox.record_key('m')}>reply"):
        story = s.ops.explain(key, inboxes=["jobs"])
        assert "inbox jobs" in str(story)
    assert key_in_inbox("jobs", "inbox::other:m") == "inbox::other:m"


def test_a_message_whose_key_in_the_ledger_would_be_too_long_is_refused_when_it_is_put(
    s: semel.Semel,
) -> None:
    inbox = open_inbox(s, "jobs")
    inbox.put(Message("x" * 1012, 1))
    with pytest.raises(semel.InvalidKey, match="1024"):
        inbox.put(Message("x" * 1013, 1))
    with pytest.raises(semel.InvalidKey, match="1024"):
        asyncio.run(inbox.aput(Message("x" * 1013, 1)))


def test_a_queue_that_is_named_like_a_template_has_other_keys(s: semel.Semel) -> None:
    charge = s.once("charge:{order}")(lambda order: order)
    charge("o-1")
    assert s.ledger.get("charge:o-1") is not None
    names = [
        sqs_key("charge", "id", "body", "o-1", None),
        key_of("charge", "o-1"),
        own_key("kafka", "charge"),
    ]
    assert [s.ledger.get(name) for name in names] == [None, None, None]
    assert all("::" in name for name in names)


def test_an_application_whose_records_have_fixed_keys_refuses_an_inbox_with_others(s: semel.Semel) -> None:
    from semel.apps.quill import Quill, Settings

    with pytest.raises(semel.InvalidOption, match="shared=True"):
        Quill(s, open_inbox(s, "quill"), Settings(aloware_token="a-token-of-aloware"))
