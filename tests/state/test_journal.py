"""The journal on every store: in the order of what is told, found by owner and by actor, once a key."""

import asyncio
import itertools
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone

import pytest
from ulid import ULID

import semel
from semel import errors
from semel.apps.tables import ACTIVITIES, MESSAGES, SUPPORT_AUDIT
from semel.core.commands import Put
from semel.core.drive import leave
from semel.state.journal import first_ulid
from semel.stores.dynamodb.items import title
from semel.tables import FOREVER
from semel.testing import Faulty
from tests.places import NAMES, open_place
from tests.state.test_documents import DYNAMODB, LOSSES, Engine

DAY = 86400


@pytest.fixture(params=NAMES)
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path, more=(ACTIVITIES, MESSAGES, SUPPORT_AUDIT))


def told(page):
    return [entry.body["n"] for entry in page.entries]


# Order


@pytest.mark.seed("H2")
@pytest.mark.seed("H8")
def test_entries_are_in_the_order_of_what_they_tell_and_not_of_their_coming(do, clock):
    for n in (3, 1, 4, 0, 2):
        do(lambda s, n=n: s.journal.append("chat", {"n": n}, at=clock.now() - 100 + n))
    assert told(do(lambda s: s.journal.list("chat"))) == [0, 1, 2, 3, 4]
    assert told(do(lambda s: s.journal.list("chat", reverse=True))) == [4, 3, 2, 1, 0]
    assert told(do(lambda s: s.journal.list("other"))) == []


@pytest.mark.seed("H2")
def test_what_falls_into_one_millisecond_stays_in_the_order_of_its_coming(do, clock):
    for n in range(100):
        do(lambda s, n=n: s.journal.append("chat", {"n": n}, at=clock.now()))
    assert told(do(lambda s: s.journal.list("chat"))) == list(range(100))
    assert told(do(lambda s: s.journal.list("chat", reverse=True, limit=3))) == [99, 98, 97]


@pytest.mark.seed("H2")
def test_an_id_is_a_ulid_of_the_events_own_time(do, clock):
    event = clock.now() - 5 * DAY + 0.123
    entry = do(lambda s: s.journal.append("chat", {"n": 1}, at=event))
    assert ULID.from_str(entry.id).timestamp == pytest.approx(event, abs=0.0005)
    assert do(lambda s: s.journal.get("chat", entry.id)) == entry
    now = do(lambda s: s.journal.append("chat", {"n": 2}))
    assert now.at == pytest.approx(clock.now(), abs=0.001)
    assert do(lambda s: s.journal.get("chat", "no such")) is None


@pytest.mark.seed("H8")
def test_a_range_includes_both_its_moments(do, clock):
    begin = clock.now()
    for n in range(10):
        do(lambda s, n=n: s.journal.append("chat", {"n": n}, at=begin + n, actor="ann"))

    def listed(s, **span):
        return s.journal.list("chat", **span)

    def acted(s, **span):
        return s.journal.by_actor("ann", **span)

    for asked in (listed, acted):
        for span, found in (
            ({"since": begin + 3, "until": begin + 6}, [3, 4, 5, 6]),
            ({"since": begin + 8}, [8, 9]),
            ({"until": begin + 1}, [0, 1]),
            ({"since": begin + 2.5, "until": begin + 3.5}, [3]),
            ({"since": begin + 5, "until": begin + 4}, []),
            ({"since": 0, "until": 2 * begin}, list(range(10))),
            ({"since": begin + 3, "until": begin + 6, "reverse": True, "limit": 2}, [6, 5]),
        ):
            assert told(do(lambda s, a=asked, s_=span: a(s, **s_))) == found


def test_a_moment_may_be_a_datetime_of_any_zone_but_not_of_none(do):
    begin = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    entry = do(
        lambda s: s.journal.append("chat", {"n": 1}, at=begin.astimezone(timezone(timedelta(hours=2))))
    )
    assert entry.at == begin.timestamp()
    assert told(do(lambda s: s.journal.list("chat", since=begin, until=begin))) == [1]
    for wrong in (datetime(2026, 3, 29), -1, 1.7e12, float("nan"), True, "now"):  # noqa: DTZ001 - that is wrong
        with pytest.raises(errors.InvalidOption):
            do(lambda s, at=wrong: s.journal.append("chat", {"n": 2}, at=at))
    assert told(do(lambda s: s.journal.list("chat"))) == [1]


# Pages


@pytest.mark.parametrize("reverse", [False, True])
def test_pages_have_no_gaps_and_no_doubles_while_others_append(do, clock, reverse):
    """Whatever was there when reading began is on exactly one page."""
    begin = clock.now()
    for n in range(30):
        do(lambda s, n=n: s.journal.append("chat", {"n": n}, at=begin + n, actor="ann"))
    later = itertools.count(100)
    for asked in (
        lambda s, after: s.journal.list("chat", reverse=reverse, limit=7, after=after),
        lambda s, after: s.journal.by_actor("ann", reverse=reverse, limit=7, after=after),
    ):
        seen, after = [], None
        while True:
            page = do(lambda s, a=asked, after=after: a(s, after))
            assert len(page.entries) <= 7
            seen += told(page)
            for at in (begin - 1, begin + 15.5, begin + 100):
                number = next(later)
                do(lambda s, n=number, at=at: s.journal.append("chat", {"n": n}, at=at, actor="ann"))
            after = page.after
            if after is None or len(seen) > 400:
                break
        assert len(seen) == len(set(seen))
        assert [n for n in seen if n < 30] == sorted(range(30), reverse=reverse)


def test_a_page_without_room_or_of_another_place_is_refused(do):
    for wrong in ({"limit": 0}, {"after": "nonsense"}, {"after": "[1, 2, 3]"}):
        with pytest.raises(errors.UsageError):
            do(lambda s, w=wrong: s.journal.list("chat", **w))


# Who did it


@pytest.mark.seed("H1")
@pytest.mark.seed("H8")
def test_what_an_actor_did_is_found_whoever_owns_it(do, clock):
    begin = clock.now()
    for n, (owner, actor) in enumerate(
        [("c1", "ann"), ("c2", "bob"), ("c2", "ann"), ("c1", None), ("c3", 7)]
    ):
        do(lambda s, n=n, o=owner, a=actor: s.journal.append(o, {"n": n}, at=begin + n, actor=a))
    entries = do(lambda s: s.journal.by_actor("ann")).entries
    assert [(entry.owner, entry.body["n"], entry.actor) for entry in entries] == [
        ("c1", 0, "ann"),
        ("c2", 2, "ann"),
    ]
    assert [entry.owner for entry in do(lambda s: s.journal.by_actor("bob")).entries] == ["c2"]
    assert do(lambda s: s.journal.by_actor(7)).entries == do(lambda s: s.journal.list("c3")).entries
    assert do(lambda s: s.journal.by_actor("nobody")).entries == ()


def test_scopes_do_not_see_each_others_entries_and_actors(do, clock):
    do(lambda s: s.journal.append("chat", {"n": 1}, actor="ann", key="k"))
    do(lambda s: s.scoped("acme").journal.append("chat", {"n": 2}, actor="ann", key="k"))
    do(lambda s: s.scoped("acm").journal.append("e/chat", {"n": 3}, actor="ann"))
    for ask in (lambda s: s.journal.list("chat"), lambda s: s.journal.by_actor("ann")):
        assert told(do(ask)) == [1]
        assert told(do(lambda s, ask=ask: ask(s.scoped("acme")))) == [2]


# Once a key


def test_the_same_key_again_is_one_entry_whatever_its_time(do, clock):
    first = do(lambda s: s.journal.append("chat", {"n": 1}, key="act:1", actor="ann", at=clock.now() - 50))
    clock.advance(DAY)
    again = do(lambda s: s.journal.append("chat", {"n": 2, "x": 1}, key="act:1", at=clock.now()))
    assert again == first
    assert do(lambda s: s.journal.list("chat")).entries == (first,)
    assert do(lambda s: s.journal.by_actor("ann")).entries == (first,)
    do(lambda s: s.journal.append("other chat", {"n": 3}, key="act:1"))
    assert told(do(lambda s: s.journal.list("other chat"))) == [3]
    assert do(lambda s: s.journal.get("chat", "key:act:1")) is None


def test_of_twenty_callers_with_one_key_all_get_the_same_entry(do, clock):
    def appending(number):
        return lambda s: s.journal.append("chat", {"n": number}, key="k", at=clock.now() + number)

    made = do.together([appending(number) for number in range(20)])
    [entry] = do(lambda s: s.journal.list("chat")).entries
    assert set(map(repr, made)) == {repr(entry)}


def test_a_key_is_forgotten_with_its_entry(do, clock):
    first = do(lambda s: s.journal.append("chat", {"n": 1}, key="k", ttl=60))
    clock.advance(59)
    assert do(lambda s: s.journal.append("chat", {"n": 2}, key="k")) == first
    clock.advance(2)
    assert do(lambda s: s.journal.list("chat")).entries == ()
    assert do(lambda s: s.journal.get("chat", first.id)) is None
    assert do(lambda s: s.journal.append("chat", {"n": 3}, key="k", ttl=60)).body == {"n": 3}
    assert told(do(lambda s: s.journal.list("chat"))) == [3]


def test_an_entry_whose_answer_is_lost_is_there_once(way, place, clock):
    faulty = Faulty(place.open(clock))
    do = way(faulty, env=place.env, clock=clock)
    for what, lose in LOSSES.items():
        check_lost(do, clock, f"chat, {what}", lambda append, lose=lose: lose(faulty) or do(append))
    do.close()


def check_lost(do, clock, chat, losing):
    keyed = losing(lambda s: s.journal.append(chat, {"n": 1}, key="k"))
    drawn = losing(lambda s: s.journal.append(chat, {"n": 2}))
    assert do(lambda s: s.journal.list(chat)).entries == (keyed, drawn)
    acted = losing(lambda s: s.journal.on(ACTIVITIES).append(chat, {"n": 3}, actor=7))
    assert do(lambda s: s.journal.on(ACTIVITIES).list(chat)).entries == (acted,)
    audited = losing(
        lambda s: s.journal.on(SUPPORT_AUDIT).append(chat, {"result": "ok"}, key="a1", at=clock.now())
    )
    assert do(lambda s: s.journal.on(SUPPORT_AUDIT).list(chat)).entries == (audited,)
    said = losing(
        lambda s: s.journal.on(MESSAGES).append(chat, {"text": "hi"}, id=5, actor=7, at=clock.now())
    )
    assert do(lambda s: s.journal.on(MESSAGES).list(chat)).entries == (said,)


def test_answers_that_a_network_loses_add_nothing(place):
    """The first answer to every write is lost on its way, sync and async."""
    with place.forgetful() as ([store], lost):
        s = semel.Semel(store, env=place.env)

        async def more():
            for n in range(10, 20):
                await s.aio.journal.append("chat", {"n": n}, key=f"k{n}" if n % 2 else None)
            await leave(store)

        for n in range(10):
            s.journal.append("chat", {"n": n}, key=f"k{n}" if n % 2 else None)
        asyncio.run(more())
        entries = s.journal.list("chat")
        assert lost() >= 18
    assert told(entries) == list(range(20))


# What cannot be kept


def test_what_cannot_be_kept_is_refused_and_nothing_is_written(do):
    for wrong in (
        lambda s: s.journal.append("chat", {"n": float("nan")}),
        lambda s: s.journal.append("chat", {"n": b"x"}),
        lambda s: s.journal.append("chat", {"n": 2**70}),
        lambda s: s.journal.append("chat", ["n"]),
        lambda s: s.journal.append("chat", {"n": object()}),
        lambda s: s.journal.append("chat", {"n": {1: "a", "1": "b"}}),
        lambda s: s.journal.append("chat\n", {"n": 1}),
        lambda s: s.journal.append("chat", {"n": 1}, key=""),
        lambda s: s.journal.append("chat", {"n": 1}, actor="\0"),
        lambda s: s.journal.append("chat", {"n": 1}, id=5),
        lambda s: s.journal.append("chat", {"n": 1}, ttl=0),
        lambda s: s.journal.on(ACTIVITIES).append("chat", {"n": 1}, key="k"),
        lambda s: s.journal.on(MESSAGES).append("chat", {"text": "hi"}),
        lambda s: s.journal.on(MESSAGES).append("chat", {"mood": "hi"}, id=1),
        lambda s: s.journal.on(MESSAGES).list("chat", since=1),
        lambda s: s.journal.on(MESSAGES).by_actor(7),
        lambda s: s.journal.on(SUPPORT_AUDIT).append("c-1", {"result": "ok"}),
        lambda s: s.journal.on(SUPPORT_AUDIT).append("c-1", {"result": "ok"}, key="k", actor="ann"),
    ):
        with pytest.raises(errors.UsageError):
            do(wrong)
    for owner, book in (("chat", None), ("chat", ACTIVITIES), ("chat", MESSAGES), ("c-1", SUPPORT_AUDIT)):
        assert do(lambda s, o=owner, b=book: (s.journal.on(b) if b else s.journal).list(o)).entries == ()


def test_whoever_changes_what_he_read_changes_no_entry(do):
    do(lambda s: s.journal.append("chat", {"deep": {"n": [1]}}))
    do(lambda s: s.journal.list("chat")).entries[0].body["deep"]["n"].append(2)
    assert do(lambda s: s.journal.list("chat")).entries[0].body == {"deep": {"n": [1]}}


# The seeds' tables


@pytest.mark.seed("R3")
def test_an_action_is_audited_in_the_order_of_time_and_once_at_its_time(do, clock):
    begin = clock.now()

    def audit(s):
        return s.journal.on(SUPPORT_AUDIT)

    for n in (2, 0, 1):
        body = {"action_type": "reply", "result": f"r{n}", "action_payload_redacted": "***@***"}
        for _ in range(2):
            do(lambda s, n=n, b=body: audit(s).append("c-1", b, key=f"act:rp_reply:{n}", at=begin + n / 1000))
    entries = do(lambda s: audit(s).list("c-1")).entries
    assert [entry.key for entry in entries] == [f"act:rp_reply:{n}" for n in range(3)]
    assert [entry.at for entry in entries] == [pytest.approx(begin + n / 1000, abs=1e-6) for n in range(3)]
    ranged = do(lambda s: audit(s).list("c-1", since=begin + 0.001, until=begin + 0.002)).entries
    assert [entry.body["result"] for entry in ranged] == ["r1", "r2"]
    assert do(lambda s: audit(s).list("c-1", since=-5, until=9e15)).entries == entries
    clock.advance(60 * DAY + 1)
    assert do(lambda s: audit(s).list("c-1")).entries == ()


@pytest.mark.seed("R3")
@pytest.mark.parametrize("place", DYNAMODB, indirect=True)
def test_the_audit_looks_as_the_seed_has_it(do, place, clock):
    do(
        lambda s: s.journal.on(SUPPORT_AUDIT).append(
            "c-1", {"action_type": "reply", "result": "sent"}, key="act:rp_reply:m1", at=clock.now() + 0.25
        )
    )
    stamp = datetime.fromtimestamp(clock.now() + 0.25, UTC).isoformat(timespec="milliseconds")
    name = f"{stamp.removesuffix('+00:00')}Z#act:rp_reply:m1"
    with closing(Engine(place, SUPPORT_AUDIT)) as engine:
        item = engine.item(conversation_id="c-1", ts_action_id=name)
    assert item.pop("expires_at")["N"] == str(int(clock.now()) + 60 * DAY)
    assert item == {
        "conversation_id": {"S": "c-1"},
        "ts_action_id": {"S": name},
        "action_type": {"S": "reply"},
        "result": {"S": "sent"},
        "idempotency_key": {"S": "act:rp_reply:m1"},
    }


@pytest.mark.seed("H8")
def test_activities_are_found_by_chat_and_by_user_with_the_message_they_came_from(do, clock):
    begin = clock.now()

    def house(s):
        return s.journal.on(ACTIVITIES)

    def chat(s):
        return s.journal.on(MESSAGES)

    for n in range(6):
        user, owner = 7 + n % 2, f"chat-{n % 3}"
        message = {"text": f"text {n}"}
        do(lambda s, n=n, u=user, o=owner, m=message: chat(s).append(o, m, id=n, actor=u, at=begin + n))
        told_of = {"type": "chore", "messageId": n, "points": n}
        do(lambda s, n=n, u=user, o=owner, b=told_of: house(s).append(o, b, actor=u, at=begin + n))
    [first, second] = do(lambda s: house(s).list("chat-1")).entries
    assert (first.body, second.body["messageId"]) == ({"type": "chore", "messageId": 1, "points": 1}, 4)
    found = do(lambda s: house(s).by_actor(8, since=begin + 2, until=begin + 5)).entries
    assert [(entry.owner, entry.body["messageId"], entry.actor, entry.at) for entry in found] == [
        ("chat-0", 3, 8, begin + 3),
        ("chat-2", 5, 8, begin + 5),
    ]
    origin = do(lambda s: chat(s).get(found[0].owner, found[0].body["messageId"]))
    assert (origin.body, origin.actor) == ({"text": "text 3"}, 8)
    clock.advance(1000 * DAY)
    assert len(do(lambda s: house(s).by_actor(8)).entries) == 3


WHAT = {"type": "chore", "activity": "dishes", "effort": "low", "confidence": 0.8}


@pytest.mark.seed("H1", "H2", "H11")
@pytest.mark.parametrize("place", DYNAMODB, indirect=True)
def test_activities_look_as_the_seed_has_them(do, place, clock):
    event = clock.now() - 3600.5
    entry = do(
        lambda s: s.journal.on(ACTIVITIES).append(
            "chat-1", WHAT | {"messageId": 42, "mood": {"proud": True}}, actor=7, at=event
        )
    )
    with closing(Engine(place, ACTIVITIES)) as engine:
        item = engine.item(chatId="chat-1", activityId=entry.id)
        assert item == {
            "chatId": {"S": "chat-1"},
            "activityId": {"S": entry.id},
            "userId": {"N": "7"},
            "timestamp": {"N": str(int(event * 1000))},
            "messageId": {"N": "42"},
            "type": {"S": "chore"},
            "activity": {"S": "dishes"},
            "effort": {"S": "low"},
            "confidence": {"N": "0.8"},
            "body": {"M": {"mood": {"M": {"proud": {"BOOL": True}}}}},
        }
        assert ULID.from_str(entry.id).milliseconds == int(event * 1000)
        query = {
            "TableName": title(ACTIVITIES, place.env),
            "IndexName": "userId-timestamp-index",
            "KeyConditionExpression": "userId = :u AND #t BETWEEN :a AND :b",
            "ExpressionAttributeNames": {"#t": "timestamp"},
            "ExpressionAttributeValues": {
                ":u": {"N": "7"},
                ":a": {"N": str(int(event * 1000) - 1)},
                ":b": {"N": str(int(event * 1000))},
            },
        }
        assert engine.call("Query", query)["Items"] == [item]
        if place.name == "ministack":  # the other one has no backups
            backups = engine.call("DescribeContinuousBackups", {"TableName": query["TableName"]})
            described = backups["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
            assert described["PointInTimeRecoveryStatus"] == "ENABLED"


LACKING = ((), ("confidence",), ("type", "activity", "effort", "confidence"), ("messageId",))


def own_item(number, told):
    """An activity as the household's own writer puts it, in the second of its number."""
    ulid, begun = f"01HQJZ7B4{number}0J5M3RGT8X4K6N9P", 1_708_960_000_000
    return {
        "chatId": {"S": "-42"},
        "activityId": {"S": ulid},
        "userId": {"N": "7"},
        "timestamp": {"N": str(begun + 1000 * number)},
        **{name: {"S" if isinstance(value, str) else "N": str(value)} for name, value in told.items()},
    }


@pytest.mark.seed("H8", "H11")
@pytest.mark.parametrize("place", DYNAMODB, indirect=True)
def test_an_item_of_the_household_s_own_writer_reads_back_as_it_is(do, place):
    """Nothing is made up for what it lacks: a confidence that nobody told is none."""
    whole = WHAT | {"messageId": 42}
    told = [{name: whole[name] for name in whole if name not in lacking} for lacking in LACKING]
    items = [own_item(number, one) for number, one in enumerate(told)]
    with closing(Engine(place, ACTIVITIES)) as engine:
        for item in items:
            engine.put(item)
    entries = do(lambda s: s.journal.on(ACTIVITIES).list("-42")).entries
    assert [(entry.body, entry.actor) for entry in entries] == [(one, 7) for one in told]
    assert [entry.at for entry in entries] == [1_708_960_000 + number for number in range(len(told))]
    assert do(lambda s: s.journal.on(ACTIVITIES).get("-42", items[1]["activityId"]["S"])) == entries[1]
    mine = do(lambda s: s.journal.on(ACTIVITIES).append("-43", WHAT, actor=7, at=1_708_960_010))
    found = do(lambda s: s.journal.on(ACTIVITIES).by_actor(7, since=1_708_960_001)).entries
    assert found == (*entries[1:], mine)


@pytest.mark.seed("H11")
def test_an_activity_that_an_earlier_semel_wrote_reads_back(do, clock):
    """It kept what was classified in the body, and only the type beside it."""
    body = {name: value for name, value in WHAT.items() if name != "type"}
    item = {"userId": 7, "timestamp": clock.now() * 1000, "messageId": 42, "type": "chore", "body": body}
    do.s.store.execute(
        Put(ACTIVITIES, do.s.journal.steps.realm.name("-42"), item, sort=first_ulid(clock.now()))
    )
    [entry] = do(lambda s: s.journal.on(ACTIVITIES).list("-42")).entries
    assert entry.body == WHAT | {"messageId": 42}
    assert do(lambda s: s.journal.on(ACTIVITIES).by_actor(7)).entries == (entry,)


def test_messages_end_and_those_without_an_end_stay(do, place, clock):
    """Such as those that the household's own writer made."""
    if place.name in DYNAMODB:
        with closing(Engine(place, MESSAGES)) as engine:
            engine.put({"chatId": {"S": "-42"}, "messageId": {"N": "1"}, "userId": {"N": "7"}})
    else:
        chat = do.s.journal.steps.realm.name("-42")
        do.s.store.execute(Put(MESSAGES, chat, {"userId": 7, "expires_at": FOREVER}, sort=1))
    do(lambda s: s.journal.on(MESSAGES).append("-42", {"text": "hi"}, id=2, actor=7, ttl=90 * DAY))
    clock.advance(90 * DAY - 1)
    assert [entry.id for entry in do(lambda s: s.journal.on(MESSAGES).list("-42")).entries] == [1, 2]
    clock.advance(2)
    assert [entry.id for entry in do(lambda s: s.journal.on(MESSAGES).list("-42")).entries] == [1]


def test_a_subject_is_kept_as_a_hash_and_his_entries_are_forgotten(do):
    do(lambda s: s.journal.append("chat", {"n": 1}, key="k", subject="ann@example.com"))
    do(lambda s: s.journal.append("chat", {"n": 2}, subject="bob@example.com"))
    assert do(lambda s: s.forget_subject("ann@example.com")).entries == 1
    assert told(do(lambda s: s.journal.list("chat"))) == [2]
    assert do(lambda s: s.journal.append("chat", {"n": 3}, key="k")).key == "k"
    assert told(do(lambda s: s.journal.list("chat"))) == [2]
