"""The household's helper, with a clock that the test moves and a Telegram that does as it is told."""

import logging
import re
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from ulid import ULID

import semel
from semel.apps.client import AnswerLost, Unavailable
from semel.apps.household import Household, Settings
from semel.apps.household.classify import Classification, classify
from semel.apps.household.rate_limiter import PATIENCE, TooFast
from semel.apps.household.replies import reply
from semel.doors.queues.messages import Verdict
from semel.testing import FakeClock, Faulty
from tests.apps.household_kit import ANN, BO, CHAT, SECRET_TOKEN, ZONE, Box, Home, update
from tests.places import Forgetful
from tests.standins.telegram import TOKEN, Telegram

STOCKHOLM = ZoneInfo(ZONE)
DONE = "Jag har diskat"


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=STOCKHOLM).timestamp()


@pytest.fixture
def clock():
    return FakeClock(at("2026-02-17T12:00"))


@pytest.fixture
def telegram(clock):
    with Telegram(clock=clock.monotonic) as side:
        yield side


@pytest.fixture
def make(clock, telegram, tmp_path):
    """Households, each on a store of its own unless one is given."""
    homes: list[Home] = []

    def open_home(s=None, **settings):
        s = s or semel.connect(f"sqlite:///{tmp_path / f'{len(homes)}.db'}", clock=clock)
        homes.append(Home(s, clock, telegram, **settings))
        return homes[-1]

    yield open_home
    for home in homes:
        home.close()


@pytest.fixture
def home(make):
    return make()


# What comes in


@pytest.mark.parametrize("secret", ["", "wrong", SECRET_TOKEN + "x"])
def test_only_telegram_is_listened_to(home, secret):
    assert home.post(update(1, DONE), secret).status == 401
    assert home.box.messages == []


NO_TEXTS = {
    "a photo": update(1, photo=[{"file_id": "x"}]),
    "a join": update(1, new_chat_members=[{"id": 13, "is_bot": False}]),
    "a bot's own": update(1, DONE, **{"from": {"id": 13, "is_bot": True}}),
    "a channel's": update(1, DONE, kind="channel_post"),
    "a poll": {"update_id": 1, "poll": {"id": "1"}},
    "a place that moves": update(1, kind="edited_message", location={"latitude": 1.0}),
}


@pytest.mark.parametrize("body", NO_TEXTS.values(), ids=NO_TEXTS)
def test_what_is_no_text_of_a_person_is_ignored(home, body):
    answer = home.post(body)
    assert (answer.status, b'"ignored":1' in answer.body) == (200, True)
    assert home.box.messages == []


def test_other_chats_than_those_that_are_named_are_ignored(make):
    home = make(chats=(CHAT, 7))
    home.say(DONE, chat=8)
    assert home.box.messages == []
    home.say(DONE, chat=7)
    assert [message.group for message in home.box.messages] == ["7"]


def test_an_update_that_cannot_be_read_is_counted_and_not_asked_for_again(home):
    answer = home.post(update(1, DONE, message="seven"))
    assert (answer.status, b'"failed":1' in answer.body) == (200, True)


def test_a_message_waits_under_its_updates_key_in_the_group_of_its_chat(home):
    home.say(DONE)
    [message] = home.box.messages
    assert (message.key, message.group) == ("TELEGRAM:900001", "-42")


# What is kept


@pytest.mark.seed("H8")
def test_a_message_is_kept_as_it_came_under_its_own_number(home, clock):
    home.tell("Hej på er", message=77, user=BO)
    entry = home.app.messages.get(str(CHAT), 77)
    assert (entry.body, entry.actor, entry.at) == ({"text": "Hej på er"}, BO, clock.now())
    assert home.activities() == []
    assert home.telegram.sent == []


@pytest.mark.parametrize("days", [90, 2])
def test_a_message_is_kept_for_so_many_days_and_what_was_noted_of_it_for_longer(make, clock, days):
    home = make(**({} if days == 90 else {"message_days": days}))
    home.tell(DONE, message=77)
    clock.advance(days * 86400 - 1)
    assert home.app.messages.get(str(CHAT), 77) is not None
    clock.advance(2)
    assert home.app.messages.get(str(CHAT), 77) is None
    assert len(home.activities()) == 1


@pytest.mark.seed("H11")
def test_what_a_classifier_does_not_say_is_not_made_up(make):
    home = make(classifier="tests.apps.household_own:classify")
    home.tell("Hej", message=77)
    [entry] = home.activities()
    assert entry.body == {"messageId": 77, "type": "recovery", "activity": "juggling"}


@pytest.mark.seed("H1", "H2", "H11")
def test_an_activity_has_the_time_of_its_message_however_late_it_is_handled(home, clock):
    begun = clock.now()
    home.say(DONE, message=77)
    clock.advance(3600)
    home.work()
    [entry] = home.activities()
    assert ULID.from_str(entry.id).milliseconds / 1000 == entry.at == begun
    assert entry.actor == ANN
    assert entry.body == {
        "messageId": 77,
        "type": "chore",
        "activity": "dishes",
        "effort": "low",
        "confidence": 0.8,
    }
    assert home.app.messages.get(entry.owner, entry.body["messageId"]).body == {"text": DONE}


@pytest.mark.seed("H2")
def test_activities_of_one_second_stay_in_the_order_in_which_they_were_told(home):
    told = ["Jag har diskat", "I vacuumed", "Har handlat", "Took out the trash"]
    for text in told:
        home.say(text)
    home.work()
    assert [entry.body["activity"] for entry in home.activities()] == [
        "dishes",
        "cleaning",
        "shopping",
        "trash",
    ]


def test_an_update_that_is_delivered_again_does_nothing_more(home):
    for _ in range(3):
        home.post(update(1, DONE, at=home.clock.now()))
    verdicts = [taken.verdict for taken in home.work()]
    assert verdicts == [Verdict.DONE, Verdict.DUPLICATE, Verdict.DUPLICATE]
    assert (len(home.activities()), len(home.telegram.sent), home.charged()) == (1, 1, 1)


def test_an_edited_message_is_an_event_of_its_own_and_no_second_activity(home):
    number = home.say(DONE)
    home.say("Jag har diskat och dammsugit", message=number, kind="edited_message")
    taken = home.work()
    assert [one.verdict for one in taken] == [Verdict.DONE, Verdict.DONE]
    assert taken[1].result == {"edited": number}
    assert len(home.activities()) == len(home.telegram.sent) == 1
    assert home.app.messages.get(str(CHAT), number).body == {"text": DONE}


def test_an_attempt_that_fails_after_the_activity_was_kept_keeps_no_second_one(home, monkeypatch):
    """Nor is it found out anew: what a classifier says twice may differ."""
    home.say(DONE)
    with monkeypatch.context() as patch:
        patch.setattr(home.app, "_reply", lambda *_: 1 / 0)
        assert home.work()[0].verdict is Verdict.FAILED
    monkeypatch.setattr(home.app, "_classify", lambda _text: Classification("chore", "something else"))
    assert home.work()[0].verdict is Verdict.DONE
    assert [entry.body["activity"] for entry in home.activities()] == ["dishes"]
    assert len(home.telegram.sent) == 1


def test_a_classifier_and_a_responder_of_ones_own_are_named_in_the_settings(make):
    home = make(classifier="tests.apps.household_own:classify", responder="tests.apps.household_own:respond")
    home.tell("spelar ingen roll")
    assert [entry.body["activity"] for entry in home.activities()] == ["juggling"]
    assert [sent["text"] for sent in home.telegram.sent] == ["juggling? spelar ingen roll"]


# Whether there may be a reply


@pytest.mark.seed("H5")
def test_a_reply_goes_to_the_chat_as_an_answer_to_its_message(home):
    taken = home.tell(DONE, message=77)
    assert taken.result == {"found": "chore", "sent": 1}
    assert home.telegram.sent == [
        {"message_id": 1, "chat_id": CHAT, "text": "Noterat: disk. Tack!", "reply_to": 77}
    ]
    assert home.trace() == [
        {"action": "TELEGRAM:900001>reply", "allowed": True},
        {"action": "TELEGRAM:900001>send", "sent": 1},
    ]


DAYS = {
    "in winter": ("2026-02-17T12:00", "2026-02-18T00:00"),
    "the day of 23 hours": ("2026-03-29T12:00", "2026-03-30T00:00"),
    "the day of 25 hours": ("2026-10-25T12:00", "2026-10-26T00:00"),
}


@pytest.mark.seed("H3", "H4", "H5")
@pytest.mark.parametrize(("noon", "midnight"), DAYS.values(), ids=DAYS)
def test_there_are_three_replies_a_day_in_a_chat_and_the_fourth_is_refused_until_midnight(
    home, clock, noon, midnight
):
    clock.jump(at(noon) - clock.now())
    results = [home.tell(DONE).result for _ in range(4)]
    assert [("sent" in one) for one in results] == [True, True, True, False]
    assert results[3] == {"found": "chore", "refused": "cap:-42", "not_before": at(midnight)}
    assert home.trace()[-1] == {
        "action": "TELEGRAM:900004>reply",
        "allowed": False,
        "reason": "cap:-42",
        "not_before": at(midnight),
    }
    assert "sent" in home.tell(DONE, chat=-43).result
    assert (len(home.activities()), home.charged(), home.charged(-43)) == (4, 3, 1)
    clock.jump(at(midnight) + 8 * 3600 - clock.now())
    assert "sent" in home.tell(DONE).result


@pytest.mark.seed("H6")
def test_nothing_is_replied_in_quiet_hours_and_everything_is_noted(home, clock):
    for hour, allowed in (("21:59", True), ("22:00", False), ("06:59", False), ("07:00", True)):
        day = "2026-02-18" if hour < "12" else "2026-02-17"
        clock.jump(at(f"{day}T{hour}") - clock.now())
        taken = home.tell(DONE)
        assert ("sent" in taken.result) is allowed
        if not allowed:
            assert taken.result["refused"] == "quiet_hours"
            assert taken.result["not_before"] == at("2026-02-18T07:00")
    assert (len(home.activities()), len(home.telegram.sent)) == (4, 2)


@pytest.mark.seed("H7")
def test_nothing_is_replied_while_others_talk(home, clock):
    """Three messages of others in the last minute, among the last ten; the writer's own do not count."""
    for _ in range(3):
        home.tell("mm", user=ANN)
    assert "sent" in home.tell(DONE, user=ANN).result
    begun = clock.now()
    refused = home.tell(DONE, user=BO).result
    assert refused["refused"] == "fast_conversation"
    assert begun + 59 < refused["not_before"] <= begun + 60.01
    clock.advance(61)
    assert "sent" in home.tell(DONE, user=BO).result


@pytest.mark.seed("H7")
def test_how_fast_a_conversation_may_be_is_a_setting(make, clock):
    """So many messages of others, in so many seconds, among so many."""
    home = make(fast_messages=2, fast_seconds=10, fast_look=4)
    home.tell("mm", user=ANN)
    assert "sent" in home.tell(DONE, user=BO).result
    home.tell("mm", user=ANN)
    refused = home.tell(DONE, user=BO).result
    assert refused["refused"] == "fast_conversation"
    assert refused["not_before"] <= clock.now() + 10.01
    for _ in range(4):
        home.tell("mm", user=BO)
    assert "sent" in home.tell(DONE, user=BO).result, "of the last four all are his own"
    home.tell("mm", user=ANN)
    clock.advance(11)
    home.tell("mm", user=ANN)
    assert "sent" in home.tell(DONE, user=BO).result, "only one is of the last ten seconds"


@pytest.mark.parametrize("switch", ["safe_mode", "household_off"])
def test_a_switch_stops_replies_and_nothing_else(home, clock, switch):
    home.s.switches.turn(switch, on=True, reason="a drill")
    clock.advance(1)
    assert home.tell(DONE).result["refused"] == f"kill_switch:{switch}"
    assert (len(home.activities()), home.telegram.sent, home.charged()) == (1, [], 0)


# Sending


@pytest.mark.seed("H5")
def test_a_telegram_that_is_away_costs_nothing_and_is_tried_again(home):
    home.telegram.stop()
    home.say(DONE)
    for _ in range(2):
        [taken] = home.work()
        assert taken.verdict is Verdict.FAILED
        assert isinstance(taken.error, Unavailable)
        assert home.charged() == 0
    home.telegram.start()
    assert home.work()[0].result == {"found": "chore", "sent": 1}
    assert (len(home.telegram.sent), home.charged(), len(home.activities())) == (1, 1, 1)


def test_after_too_many_the_message_is_put_off_for_as_long_as_telegram_says(home):
    home.telegram.fail(status=429, retry_after=17)
    home.say(DONE)
    [taken] = home.work()
    assert (taken.verdict, taken.retry_after, home.charged()) == (Verdict.FAILED, 17, 0)
    assert home.work()[0].verdict is Verdict.DONE
    assert (len(home.telegram.sent), home.charged()) == (1, 1)


def test_what_telegram_refuses_for_good_is_laid_aside_at_once_and_costs_nothing(home):
    home.telegram.kicked.add(CHAT)
    assert home.tell(DONE).verdict is Verdict.DEAD
    home.telegram.unknown.add(-43)
    assert home.tell(DONE, chat=-43).verdict is Verdict.DEAD
    assert (home.charged(), home.charged(-43), home.telegram.sent) == (0, 0, [])
    assert len(home.activities()) == 1
    assert home.trace()[-1] == {"action": "TELEGRAM:900001>reply", "given_back": "telegram refuses: 403"}


def test_a_dead_letter_that_is_put_back_is_sent_once_its_cause_is_mended(home):
    """As the inbox puts it back: its own record is forgotten, and those of its steps are not."""
    home.telegram.kicked.add(CHAT)
    home.say(DONE)
    [message] = home.box.messages
    assert home.work()[0].verdict is Verdict.DEAD
    home.telegram.kicked.clear()
    home.s.ledger.forget(message.key)
    home.box.put(message)
    assert home.work()[0].verdict is Verdict.DONE
    assert (len(home.telegram.sent), home.charged(), len(home.activities())) == (1, 1, 1)


def test_what_was_allowed_before_the_night_is_not_sent_in_it(home, clock):
    clock.jump(at("2026-02-17T21:59:50") - clock.now())
    home.telegram.fail(status=429)
    home.say(DONE)
    home.work()
    clock.advance(20)
    assert home.work()[0].result["refused"] == "quiet_hours"
    assert (home.telegram.sent, home.charged()) == ([], 0)


@pytest.mark.parametrize("stop", [True, False])
def test_a_worker_that_dies_before_it_sends_is_charged_for_nothing(home, clock, monkeypatch, stop):
    """Its permission is given back by the next one, who may be told otherwise meanwhile."""

    def die(_run):
        raise KeyboardInterrupt

    home.say(DONE)
    waiting = list(home.box.messages)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(home.app, "_sending", die)
        home.work()
    assert home.charged() == 1
    home.s.switches.turn("safe_mode", on=stop)
    clock.advance(1)
    home.box.put(*waiting)
    assert ("refused" in home.work()[0].result) is stop
    assert len(home.telegram.sent) == home.charged() == (0 if stop else 1)


def test_a_worker_that_dies_after_it_has_sent_stays_charged_whatever_the_gate_would_say_now(
    home, clock, monkeypatch
):
    reply = home.app._reply

    def die(*args):
        reply(*args)
        raise KeyboardInterrupt

    home.say(DONE)
    waiting = list(home.box.messages)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(home.app, "_reply", die)
        home.work()
    home.s.switches.turn("safe_mode", on=True)
    clock.advance(1)
    home.box.put(*waiting)
    assert home.work()[0].result == {"found": "chore", "sent": 1}
    assert len(home.telegram.sent) == home.charged() == 1


def test_a_worker_whose_lease_is_over_sends_nothing(home, clock, monkeypatch):
    """Somebody else may be at work on the message by then, and may have been refused."""
    decide = home.app._gate.decide

    def dawdle(*args, **facts):
        decision = decide(*args, **facts)
        clock.advance(31)
        return decision

    monkeypatch.setattr(home.app._gate, "decide", dawdle)
    home.say(DONE)
    [message] = home.box.messages
    done = home.s.once.block(heartbeat=False, lease=30).run(message.key, None, home.app.handle, message)
    assert isinstance(done.error, semel.ClaimLost)
    assert home.telegram.received == []


# Without a status the connection closes, and nobody has answered.
LOST = {
    "never read": {},
    "sent": {"after_applying": True},
    "truncated": {"status": 200, "body": {"ok": True, "result": {"message_id": 1}}, "cut": True},
    "gateway": {"status": 504},
    **{f"sent, {status}": {"status": status, "after_applying": True} for status in (500, 502, 503, 504)},
}


@pytest.fixture(params=LOST.values(), ids=list(LOST))
def lost(request, home):
    """A reply that nobody knows of whether it was sent; and its message."""
    home.telegram.fail(**request.param)
    home.say(DONE)
    [message] = home.box.messages
    [taken] = home.work()
    assert taken.verdict is Verdict.FAILED
    assert isinstance(taken.error, AnswerLost)
    assert home.work()[0].verdict is Verdict.DEAD
    return message


def test_telegram_is_waited_for_no_longer_than_the_settings_say(make):
    home = make(telegram_timeout=0.5)
    home.telegram.fail(hang=60)
    home.say(DONE)
    [taken] = home.work()
    assert isinstance(taken.error, AnswerLost)
    assert "ReadTimeout" in str(taken.error)


def again(home, message):
    home.s.ledger.forget(message.key)
    home.box.put(message)
    return home.work()[0]


@pytest.mark.situation(56)
def test_a_reply_whose_answer_was_lost_is_held_and_stays_charged(home, lost):
    [held] = home.s.ledger.list(status=semel.Status.UNKNOWN).records
    assert held.key == "TELEGRAM:900001>send"
    sent = len(home.telegram.sent)
    home.box.put(lost)
    assert home.work()[0].verdict is Verdict.DEAD  # delivered once more
    assert again(home, lost).verdict is Verdict.DEAD  # put back before it was settled
    assert (len(home.telegram.sent), home.charged()) == (sent, 1)


def test_a_held_reply_that_was_sent_is_settled_and_not_sent_again(home, lost):
    sent = len(home.telegram.sent)
    home.s.ledger.resolve("TELEGRAM:900001>send", semel.Happened(5))
    assert again(home, lost).result == {"found": "chore", "sent": 5}
    assert (len(home.telegram.sent), home.charged()) == (sent, 1)


def test_a_held_reply_that_was_not_sent_is_sent_then(home, lost):
    home.telegram.sent.clear()
    home.clock.advance(1)
    home.s.ledger.resolve("TELEGRAM:900001>send", semel.NotHappened())
    assert again(home, lost).verdict is Verdict.DONE
    assert len(home.telegram.sent) == home.charged() == 1


def test_a_held_reply_that_is_given_up_costs_nothing(home, lost):
    home.s.ledger.resolve("TELEGRAM:900001>send", semel.Abandoned("too late by now"))
    assert again(home, lost).result == {"found": "chore", "abandoned": True}
    assert home.charged() == 0


@pytest.mark.situation(56)
def test_an_answer_that_cannot_be_read_leaves_the_reply_held_and_charged(make):
    """It was sent, and its answer is no JSON: a cap of one is used up, and no second reply goes out."""
    home = make(cap=1)
    garbage = msgspec.Raw(b'{"ok": tru')
    home.telegram.fail(status=200, after_applying=True, body=garbage)
    home.say(DONE)
    assert [home.work()[0].verdict for _ in range(2)] == [Verdict.FAILED, Verdict.DEAD]
    [held] = home.s.ledger.list(status=semel.Status.UNKNOWN).records
    assert held.key == "TELEGRAM:900001>send"
    assert home.tell(DONE).result["refused"].startswith("cap:")
    assert len(home.telegram.sent) == home.charged() == 1


def test_lost_replies_are_repeated_where_the_settings_say_so(make):
    home = make(lost_sends="repeat")
    home.telegram.fail()
    home.say(DONE)
    assert home.work()[0].verdict is Verdict.FAILED
    assert home.work()[0].verdict is Verdict.DONE
    assert len(home.telegram.sent) == home.charged() == 1


def test_a_reply_that_was_sent_and_could_not_be_written_down_is_not_sent_again(make, clock, tmp_path):
    faulty = Faulty(semel.connect(f"sqlite:///{tmp_path / 'faulty.db'}", clock=clock).store)
    home = make(semel.Semel(faulty, clock=clock))
    send = home.app._bot.send

    def send_and_lose_the_store(*args):
        number = send(*args)
        faulty.refuse()
        return number

    home.app._bot.send = send_and_lose_the_store
    home.say(DONE)
    assert home.work()[0].verdict is Verdict.FAILED
    home.app._bot.send = send
    assert home.work()[0].verdict is Verdict.DEAD
    assert len(home.telegram.sent) == home.charged() == 1


@pytest.mark.seed("H5")
def test_everything_happens_once_though_the_answer_to_every_write_is_lost_once(make, clock, tmp_path):
    store = Forgetful(semel.connect(f"sqlite:///{tmp_path / 'forgetful.db'}", clock=clock).store)
    home = make(semel.Semel(store, clock=clock))
    home.telegram.fail(status=429)
    for _ in range(5):
        home.say(DONE)
    for _ in range(3):
        home.work()
    assert len(store.known) > 20
    assert (len(home.activities()), len(home.telegram.sent), home.charged()) == (5, 3, 3)


@pytest.mark.seed("H5")
def test_charges_are_as_many_as_sends_however_telegram_says_that_it_sent_nothing(make):
    home = make(cap=100)
    for number, failure in enumerate(
        [
            {"status": 408},
            {"status": 425},
            {"status": 429, "retry_after": 1},
            {"status": 403},
            {"status": 401},
        ]
    ):
        home.telegram.fail(**failure)
        home.say(DONE, chat=-number - 1)
        for _ in range(3):
            home.clock.advance(2)
            home.work()
        here = [sent for sent in home.telegram.sent if sent["chat_id"] == -number - 1]
        assert len(here) == home.charged(-number - 1)
    assert len(home.telegram.sent) == 3


def test_without_a_bot_replies_go_to_the_outbox(make):
    home = make(bot_token="")
    assert home.tell(DONE, message=77).result == {"found": "chore", "sent": None}
    [entry] = home.s.journal.list("outbox:household").entries
    assert entry.body == {"chat": CHAT, "reply_to": 77, "text": "Noterat: disk. Tack!"}
    assert home.charged() == 1
    assert home.telegram.received == []


def test_what_was_not_written_to_the_outbox_is_written_by_the_next_attempt(make, monkeypatch):
    """It is written with the fact that it is, so there is nothing to be in doubt about."""
    home = make(bot_token="")
    home.say(DONE)
    waiting = list(home.box.messages)

    def die():
        raise KeyboardInterrupt

    step = home.s.once.step

    def dying(name, *work):
        if name == "send":
            monkeypatch.setattr(home.s, "transaction", die)
        return step(name, *work)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(home.s.once, "step", dying)
        home.work()
    monkeypatch.undo()
    home.box.put(*waiting)
    assert home.work()[0].verdict is Verdict.DONE
    assert len(home.s.journal.list("outbox:household").entries) == home.charged() == 1


# Telegram's limits


def test_telegrams_limits_are_kept_on_our_side(make):
    """In one chat one a second; forty chats at once are more than thirty a second; nothing is refused."""
    home = make(cap=100)
    for _ in range(4):
        home.say(DONE)
    for chat in range(1, 41):
        home.say(DONE, chat=chat)
    begun = home.clock.monotonic()
    assert {taken.verdict for taken in home.work()} == {Verdict.DONE}
    assert (len(home.telegram.sent), home.telegram.flooded) == (44, 0)
    assert 4 <= home.clock.monotonic() - begun < 6


def test_in_a_group_there_are_twenty_a_minute_and_the_next_one_is_put_off(make):
    home = make(cap=100)
    for _ in range(21):
        home.say(DONE)
    *first, last = home.work()
    assert {taken.verdict for taken in first} == {Verdict.DONE}
    assert last.verdict is Verdict.FAILED
    assert isinstance(last.error, TooFast)
    assert PATIENCE < last.retry_after <= 60
    assert (len(home.telegram.sent), home.charged(), home.telegram.flooded) == (20, 20, 0)
    home.clock.advance(last.retry_after)
    assert home.work()[0].verdict is Verdict.DONE
    assert home.telegram.flooded == 0


@pytest.mark.parametrize("text", ["a" * 5000, "🧹" * 3000])
def test_a_reply_is_cut_to_what_a_message_holds(home, text, monkeypatch):
    monkeypatch.setattr(home.app, "_respond", lambda *_: text)
    assert "sent" in home.tell(DONE).result
    [sent] = home.telegram.sent
    assert sent["text"].endswith("…")
    assert len(sent["text"].encode("utf-16-le")) // 2 in (4095, 4096)


# What nobody is to read


def test_neither_the_token_nor_a_text_is_logged(home, caplog):
    caplog.set_level(logging.DEBUG)
    told = "Jag har diskat hos farmor Greta"
    home.telegram.fail(next=1, status=429)
    home.telegram.fail(next=1)
    home.say(told)
    for _ in range(3):
        home.work()
    home.telegram.kicked.add(-43)
    home.tell(told, chat=-43)
    home.tell(told, chat=-44)
    assert "/bot***/sendMessage" in caplog.text
    logged = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    logged += "".join(one.error for one in home.s.ledger.list(limit=100).records if one.error)
    assert TOKEN not in logged
    assert TOKEN.partition(":")[2] not in logged
    assert "Greta" not in logged
    assert SECRET_TOKEN not in logged
    assert TOKEN not in repr(home.app.settings)
    assert SECRET_TOKEN not in repr(home.app.settings)


# Settings


WRONG: dict[str, list[Any]] = {
    "secret_token": [{"secret_token": ""}, {"secret_token": "with a blank"}],
    "bot_token": [{"bot_token": "no token"}],
    "zone": [{"zone": "Europe/Atlantis"}],
    "quiet_from": [{"quiet_from": "22"}, {"quiet_to": "22:00"}],
    "cap": [{"cap": 0}],
    "fast_messages": [{"fast_messages": 0}, {"fast_messages": 11}, {"fast_messages": 3, "fast_look": 2}],
    "fast_seconds": [{"fast_seconds": 0}, {"fast_seconds": float("nan")}, {"fast_seconds": float("inf")}],
    "fast_look": [{"fast_look": 0}, {"fast_look": 101}],
    "message_days": [{"message_days": 0}, {"message_days": 3651}, {"message_days": float("nan")}],
    "classifier": [{"classifier": "nowhere:classify"}, {"classifier": "semel:nothing"}, {"classifier": ""}],
    "responder": [{"responder": "semel:DAY"}],
    "telegram_url": [{"telegram_url": "api.telegram.org"}],
    "telegram_timeout": [{"telegram_timeout": 0}],
}


@pytest.mark.parametrize(
    ("setting", "values"), [(name, values) for name, several in WRONG.items() for values in several]
)
def test_a_setting_that_cannot_work_is_named_and_no_secret_is(setting, values):
    chosen = Settings(**({"secret_token": SECRET_TOKEN, "bot_token": TOKEN} | values))
    box: Any = Box()
    with (
        semel.connect("memory:") as s,
        pytest.raises(semel.InvalidOption) as caught,
        closing(Household(s, box, chosen)) as app,
    ):
        assert app.hooks
    assert str(caught.value).startswith(f"apps.household.{setting}: ")
    assert not any(secret in str(caught.value) for secret in (TOKEN, SECRET_TOKEN, "no token", "a blank"))


def test_every_setting_is_on_the_page_about_it():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "run-household.md").read_text("utf-8")
    table = page.partition("## Settings")[2].partition("\n\n## ")[0]
    told = {
        word
        for row in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
        for word in re.findall(r"\w+", row)
    }
    assert told == set(Settings.__struct_fields__)


# What messages tell

TOLD = {
    "Jag har diskat": "dishes",
    "Diskmaskinen är tömd": "dishes",
    "emptied the dishwasher": "dishes",
    "Lagat mat till alla": "cooking",
    "Har bakat bullar": "cooking",
    "I cooked dinner": "cooking",
    "Lagat kranen i badrummet": "repair",
    "Fixed the bike": "repair",
    "Tvättat och strukit": "laundry",
    "Did the laundry!": "laundry",
    "Gick ut med soporna": "trash",
    "took out the trash": "trash",
    "Handlade på vägen hem": "shopping",
    "Bought groceries": "shopping",
    "Hämtat på förskolan": "childcare",
    "Picked up the kids": "childcare",
    "Rastat Bosse": "pets",
    "Fed the cat": "pets",
    "Klippte gräset": "garden",
    "mowed the lawn": "garden",
    "STÄDAT HELA KÖKET": "cleaning",
    "Vacuumed upstairs": "cleaning",
    "Tog en tupplur": "rest",
    "Went for a run": "rest",
}


@pytest.mark.parametrize(("text", "activity"), TOLD.items())
def test_what_was_done_is_recognised_in_swedish_and_in_english(text, activity):
    found = classify(text)
    assert found is not None
    assert found.done
    assert (found.activity, found.confidence) == (activity, 0.8)
    assert found.type == ("recovery" if activity == "rest" else "chore")


NOTHING = [
    "Hej!",
    "Vi ska handla sen",
    "You should clean",
    "Har inte diskat",
    "I haven't vacuumed",
    "",
    "?",
    "ok?",
]


@pytest.mark.parametrize("text", NOTHING)
def test_what_is_meant_or_left_undone_is_nothing_that_was_done(text):
    assert classify(text) is None


@pytest.mark.parametrize(("text", "language"), [("Vem har diskat?", "sv"), ("Who did the dishes?", "en")])
def test_a_question_is_replied_to_and_is_no_activity(home, text, language):
    assert classify(text) == Classification("question", language=language)
    assert home.tell(text).result == {"found": "question", "sent": 1}
    assert home.activities() == []


def test_of_several_things_the_first_counts_and_it_is_less_sure():
    assert classify("Dammsugit och diskat") == Classification("chore", "cleaning", "medium", 0.5, "sv")


@pytest.mark.parametrize("text", TOLD)
def test_every_activity_has_a_reply_in_its_language(text):
    found = classify(text)
    words = reply(text, found)
    assert words is not None
    assert "{" not in words
    assert words.startswith("Noterat" if found.language == "sv" else "Noted")


def test_half_of_a_character_is_replaced_and_the_rest_is_kept(home):
    assert home.tell(DONE + " \ud83d").verdict is Verdict.DONE
    [activity] = home.activities()
    assert home.app.messages.get(str(CHAT), activity.body["messageId"]).body["text"] == DONE + " \ufffd"


def quotes(text):
    raise ValueError(f"cannot make sense of {text!r}")


def test_what_a_classifier_of_ones_own_quotes_is_not_kept(make, caplog):
    home = make(classifier=f"{__name__}:quotes")
    taken = home.tell("the blue sofa is for granny")
    assert taken.verdict is Verdict.FAILED
    told = [str(taken.error), *(str(vars(one)) for one in caplog.records)]
    told += [str(record) for record in home.s.ledger.list().records]
    assert not [one for one in told if "granny" in one]
    assert "ValueError" in str(taken.error)


def test_what_was_allowed_before_the_night_is_not_sent_in_it_though_it_was_put_back(home, clock, monkeypatch):
    """As a dead letter that is put back begins anew, and the gate's decision is from before."""
    clock.advance(at("2026-02-17T21:59") - clock.now())
    home.say(DONE)
    [message] = home.box.messages
    with monkeypatch.context() as patch:
        patch.setattr(home.app, "_sending", lambda _run: 1 / 0)
        while home.box.messages:
            clock.advance(1)
            home.work()
    home.s.ledger.forget(message.key)
    clock.advance(3600)
    home.box.put(message)
    [taken] = home.work()
    assert taken.result["refused"] == "quiet_hours"
    assert (home.telegram.sent, home.charged()) == ([], 0)
