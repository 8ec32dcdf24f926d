"""The gate: one decision weighs all rules, is written down with its reason, and is charged once."""

import itertools
import math
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import semel
from semel.apps.tables import MESSAGES, RESPONSE_COUNTERS
from semel.core.commands import Cancelled, Query, Time, Transact, Update
from semel.core.drive import drive
from semel.errors import (
    InvalidKey,
    InvalidOption,
    InvalidPayload,
    PayloadChanged,
    StoreUnavailable,
    TemplateError,
    UsageError,
    VersionConflict,
)
from semel.gate import (
    Allowed,
    Cap,
    Cooldown,
    FastConversation,
    KillSwitch,
    QuietHours,
    Refused,
    Shadow,
    VaryingFact,
)
from semel.periods import Day
from semel.state import switches
from semel.state.journal import BOOKS
from semel.state.switches import SwitchCache
from semel.stores.dynamodb.items import title
from semel.tables import LEDGER
from semel.testing import Faulty
from tests.places import NAMES
from tests.state.conftest import SECRET
from tests.state.crowds import (
    ENGINES,
    Meddled,
    crowd,
    everything,
    furnished,
    opened,
    persistent,
    raw,
    senders,
    workers,
)

STOCKHOLM = "Europe/Stockholm"
CAP = Cap("replies:{chat}", 3, Day(STOCKHOLM))
QUIET = QuietHours("22:00", "07:00", STOCKHOLM)
SAFE = KillSwitch("safe_mode")
FAST = FastConversation("chat:{chat}", "assistant")
COOL = Cooldown("pace:{chat}", 30)


@pytest.fixture
def place(room):
    return room


def moment(text, fold=0):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(STOCKHOLM), fold=fold).timestamp()


@pytest.fixture
def noon(clock):
    """The clock of the test at noon in Stockholm, when nothing is quiet."""
    clock.jump(moment("2024-05-14T12:00") - clock.now())
    return clock


def decide(key, *rules, method="decide", chat=42, **options):
    """What a gate of these rules decides; `trace` and `ttl` are the gate's, all else is for the question."""
    made = {name: options.pop(name) for name in ("trace", "ttl") if name in options}
    return lambda s: getattr(s.gate(*rules, **made), method)(key, chat=chat, **options)


def used(do, name="replies:42", **options):
    return do(lambda s: s.counters.look(name, **{"per": Day(STOCKHOLM)} | options)).used


def refund(decision):
    return lambda s: s.gate().refund(decision)


# Each rule


@pytest.mark.seed("H6")
def test_quiet_hours_refuse_until_they_end(do, clock):
    """From 22:00 to 07:00 in Stockholm, also in the nights in which the clocks there are changed."""
    nights = [
        ("2024-05-14", "2024-05-15", 9),
        ("2024-03-30", "2024-03-31", 8),
        ("2024-10-26", "2024-10-27", 10),
    ]
    for evening, morning, hours in nights:
        start, end = moment(f"{evening}T22:00"), moment(f"{morning}T07:00")
        assert end - start == hours * 3600
        cases = [(start - 1, None), (start, end), (end - hours * 1800, end), (end - 1, end), (end, None)]
        for at, until in cases:
            clock.jump(at - clock.now())
            decision = do(decide(f"reply:{at:.0f}", QUIET))
            assert decision.allowed is (until is None)
            assert decision.at == at
            if until is not None:
                assert (decision.reason, decision.not_before) == ("quiet_hours", until)


@pytest.mark.seed("H5")
def test_a_cap_refuses_until_its_period_ends(do, noon):
    """Three a day are allowed and counted; the fourth is told when the next day begins, and is not."""
    allowed = [do(decide(f"reply:{number}", CAP)) for number in range(3)]
    assert [decision.allowed for decision in allowed] == [True, True, True]
    refused = do(decide("reply:4", CAP))
    assert (refused.reason, refused.not_before) == ("cap:replies:42", moment("2024-05-15T00:00"))
    assert used(do) == 3
    assert do(decide("reply:5", CAP, chat=43)).allowed
    assert used(do, "replies:43") == 1


def test_a_cap_may_count_by_more_than_one_and_for_everybody_alike(do, noon):
    """A name without a field is one for all."""
    budget = Cap("tokens", 10, by=4)
    decisions = [do(decide(f"reply:{number}", budget, chat=number)).allowed for number in range(3)]
    assert decisions == [True, True, False]
    assert used(do, "tokens", per=Day()) == 8


def test_a_cooldown_refuses_until_it_is_over(do, noon):
    first = do(decide("reply:1", COOL))
    assert first.allowed
    noon.advance(10)
    refused = do(decide("reply:2", COOL))
    assert (refused.reason, refused.not_before) == ("cooldown:pace:42", first.at + 30)
    assert refused.seen[-1].saw == "20 s of 30 left"
    assert do(decide("reply:3", COOL, chat=43)).allowed
    noon.advance(20)
    assert do(decide("reply:4", COOL)).allowed
    assert not do(decide("reply:5", COOL)).allowed


SWITCHED = [
    # stops_when, unset, turned, allowed
    (True, None, None, True),
    (True, None, True, False),
    (True, None, False, True),
    (True, True, None, False),
    (False, None, None, True),
    (False, None, True, True),
    (False, None, False, False),
    (False, False, None, False),
]


@pytest.mark.seed("R8")
def test_a_kill_switch_stops_when_it_is_on_or_when_it_is_off(do, noon):
    """`safe_mode` stops while it is on, `automation_enabled` while it is off; `unset` is for neither."""
    for number, (stops_when, unset, turned, allowed) in enumerate(SWITCHED):
        name = f"switch{number}"
        if turned is not None:
            do(lambda s, name=name, on=turned: s.switches.turn(name, on=on, reason="a drill"))
            noon.advance(1)
        rule = KillSwitch(name, stops_when=stops_when, unset=unset)
        decision = do(decide(f"reply:{number}", rule))
        assert decision.allowed is allowed
        if not allowed:
            assert (decision.reason, decision.not_before) == (f"kill_switch:{name}", None)
            assert decision.seen[0].saw.endswith("a drill") is (turned is not None)


@pytest.mark.seed("H7")
def test_a_fast_conversation_refuses_until_it_calms_down(do, noon):
    """Three messages of others in the last sixty seconds; one's own, and what nobody said, do not count."""

    def say(actor):
        return do(lambda s: s.journal.append("chat:42", {"text": "..."}, actor=actor))

    start = noon.now()
    for actor in ("anna", "assistant", "anna", None, "assistant"):
        say(actor)
        noon.advance(10)
    assert do(decide("reply:1", FAST)).allowed
    say("bo")
    refused = do(decide("reply:2", FAST))
    assert refused.reason == "fast_conversation"
    assert refused.seen[-1].saw == "3 messages of others in 60 s"
    assert start + 60 < refused.not_before < start + 60.01
    noon.jump(refused.not_before - noon.now())
    assert do(decide("reply:3", FAST)).allowed


def test_a_fast_conversation_knows_its_own_name_however_it_is_written(do, noon):
    """Facts are escaped in names, and an actor's name is no name of ours."""
    rule = FastConversation("{owner}", "{me}")
    for _ in range(3):
        do(lambda s: s.journal.append("room%3A1", {}, actor="bot:7%"))
    assert do(lambda s: s.gate(rule).decide("reply:1", owner="room:1", me="bot:7%")).allowed
    assert not do(lambda s: s.gate(rule).decide("reply:2", owner="room:1", me="bot:8%")).allowed


@pytest.fixture
def household(request, way, tmp_path):
    with furnished(request, way, tmp_path, MESSAGES) as it:
        yield it


@pytest.mark.seed("H7")
@pytest.mark.parametrize("household", NAMES, indirect=True)
def test_the_household_s_own_messages_tell_a_fast_conversation(household):
    """The last ten of its table, by number: who wrote them and when, and nothing of what they say."""
    _, do, clock = household
    rule = FastConversation("{chat}", "{bot}", book=BOOKS[MESSAGES.name])
    numbers = itertools.count(100)

    def say(user, **options):
        do(
            lambda s: s.journal.on(MESSAGES).append(
                "-42", {"text": "psst"}, actor=user, id=next(numbers), **options
            )
        )

    def ask(key):
        return do(lambda s: s.gate(rule).decide(key, chat=-42, bot=1))

    for _ in range(4):
        say(7, at=clock.now() - 61)
    for _ in range(2):
        say(7)
    assert ask("reply:1").allowed
    say(8)
    for _ in range(7):
        say(1)
    refused = ask("reply:2")
    assert (refused.reason, refused.seen[-1].saw) == ("fast_conversation", "3 messages of others in 60 s")
    say(1)  # the eleventh pushes one of the others out of the last ten
    assert ask("reply:3").allowed
    queries = [command for command in do.s.store.seen if isinstance(command, Query)]
    assert {(query.limit, query.reverse, query.only) for query in queries} == {
        (10, True, ("userId", "timestamp"))
    }


@pytest.fixture
def counted(request, way, tmp_path):
    with furnished(request, way, tmp_path, RESPONSE_COUNTERS) as it:
        yield it


@pytest.mark.seed("H3", "H4", "H5")
@pytest.mark.parametrize("counted", NAMES, indirect=True)
def test_a_cap_may_count_in_the_household_s_own_table_and_gives_back_there(counted):
    """It remembers no tokens; the decision itself is what is made once, and what is given back once."""
    place, do, clock = counted
    clock.jump(moment("2024-03-31T00:30") - clock.now())
    cap = Cap("{chat}", 3, Day(STOCKHOLM), table=RESPONSE_COUNTERS)

    def look():
        return do(lambda s: s.counters.on(RESPONSE_COUNTERS).look("-42", per=Day(STOCKHOLM))).used

    made = do.together([decide(f"reply:{n}", cap, chat=-42) for n in range(9)])
    allowed = [decision for decision in made if decision.allowed]
    assert (len(allowed), look()) == (3, 3)
    assert {decision.reason for decision in made if not decision.allowed} == {"cap:-42"}
    for _ in range(2):
        assert do(lambda s: s.gate(cap).refund(allowed[0])) is True
    assert look() == 2
    with pytest.raises(UsageError, match="counts there"):
        do(lambda s: s.gate().refund(allowed[1]))
    if place.name in ENGINES:
        [item] = raw(place, title(RESPONSE_COUNTERS, place.env), chatId={"S": "-42"})
        ends = int(datetime(2024, 4, 7, tzinfo=UTC).timestamp())
        assert {**item, "updatedAt": {"S": ""}} == {
            "chatId": {"S": "-42"},
            "date": {"S": "2024-03-31"},
            "count": {"N": "2"},
            "updatedAt": {"S": ""},
            "ttl": {"N": str(ends)},
        }


# Reasons


def test_reasons_come_in_order(do, noon):
    """First what costs nothing to see, then what has to be read, then what is charged; the shadow's last."""
    lunch = QuietHours("11:00", "13:00", STOCKHOLM)
    one = Cap("replies:{chat}", 1, Day(STOCKHOLM))
    rules = [Shadow(), COOL, one, FAST, SAFE, lunch]
    assert do(decide("reply:0", COOL, one)).allowed
    do(lambda s: s.gate(Shadow(), COOL, one).decide("shadow:0", chat=42))
    for _ in range(3):
        do(lambda s: s.journal.append("chat:42", {}, actor="anna"))
    do(lambda s: s.switches.turn("safe_mode", on=True))
    noon.advance(1)
    reasons = []
    order = [SAFE, lunch, FAST, COOL, one, Shadow()]
    for number, gone in enumerate(order):
        decision = do(decide(f"reply:{number + 1}", *rules))
        reasons.append(decision.reason)
        assert decision.would_allow is (number == len(order) - 1)
        rules.remove(gone)
    assert reasons == [
        "kill_switch:safe_mode",
        "quiet_hours",
        "fast_conversation",
        "cooldown:pace:42",
        "cap:replies:42",
        "shadow",
    ]
    assert do(decide("reply:9")).allowed


def test_what_is_refused_leaves_no_charge(do, noon):
    """Where one of several counters is full, none of the others counts, and no cooldown begins."""
    full, other = Cap("full:{chat}", 1), Cap("other:{chat}", 5)
    do(decide("reply:0", full))
    for number, rules in enumerate([(other, COOL, full), (full, other, COOL), (COOL, full, other)]):
        refused = do(decide(f"reply:{number + 1}", *rules))
        assert (refused.allowed, refused.reason) == (False, "cap:full:42")
    assert [used(do, name, per=Day()) for name in ("full:42", "other:42")] == [1, 0]
    assert do(decide("reply:9", COOL)).allowed


# The same answer again


@pytest.mark.seed("H5")
def test_asked_again_it_gives_the_same_answer(do, noon):
    """Whatever the time and the counters say by then, and however many ask at once: one charge."""
    rules = (QUIET, CAP, SAFE)
    allowed = do(decide("reply:1", *rules))
    assert do.together([decide("reply:1", *rules)] * 20) == [allowed] * 20
    told = do.together([decide("reply:2", *rules)] * 20)
    assert told == [told[0]] * 20
    assert told[0].allowed
    assert used(do) == 2
    noon.jump(moment("2024-05-14T23:00") - noon.now())
    assert do(decide("reply:1", *rules)) == allowed
    refused = do(decide("reply:3", *rules))
    assert refused.reason == "quiet_hours"
    noon.jump(moment("2024-05-15T11:59") - noon.now())
    assert do(decide("reply:3", *rules)) == refused
    assert do(decide("reply:1", *rules)) == allowed
    assert used(do) == 0


@pytest.mark.situation(29)
@pytest.mark.parametrize("method", ["decide", "reconsider"])
def test_changed_facts_are_refused_and_nothing_changes(do, noon, method):
    """A permission for one amount is none for another, also after a refusal and after a refund."""
    first = do(decide("pay:1", CAP, cents=1))
    assert first.allowed
    changed: tuple[dict[str, Any], ...] = (
        {"cents": 1_000_000},
        {"cents": "1"},
        {"cents": 1, "to": "ann"},
        {},
        {"cents": 1, "chat": 7},
    )
    for facts in changed:
        with pytest.raises(PayloadChanged, match="pay:1"):
            do(decide("pay:1", CAP, method=method, **facts))
    assert do(decide("pay:1", CAP, method=method, cents=1.0)) == first
    noon.jump(moment("2024-05-14T22:00") - noon.now())
    refused = do(decide("pay:2", QUIET, CAP, cents=1_000_000))
    noon.jump(moment("2024-05-15T07:00") - noon.now())
    with pytest.raises(PayloadChanged):
        do(decide("pay:2", QUIET, CAP, method=method, cents=1))
    assert do(lambda s: s.gate().recorded("pay:2")) == refused
    do(refund(first))
    with pytest.raises(PayloadChanged):
        do(decide("pay:1", CAP, method=method, cents=2))
    assert used(do) == 0
    assert do(decide("pay:1", CAP, method=method, cents=1)).allowed


@pytest.mark.situation(29)
def test_of_a_crowd_with_changed_facts_one_is_decided_about(do, noon):
    """Whoever was not the first is refused, and the cap is charged once."""
    made = do.together([decide("pay:1", CAP, cents=number) for number in range(10)])
    assert sorted(type(one).__name__ for one in made) == ["Allowed", *["PayloadChanged"] * 9]
    assert used(do) == 1


def test_a_fact_may_change_where_a_rule_says_so(do, noon):
    rules = (CAP, VaryingFact("tries"))
    first = do(decide("pay:1", *rules, cents=1, tries=1))
    assert do(decide("pay:1", *rules, cents=1, tries=2)) == first
    assert do(decide("pay:1", *rules, cents=1)) == first
    assert do(decide("pay:1", *rules, cents=1, tries=object())) == first
    with pytest.raises(PayloadChanged):
        do(decide("pay:1", *rules, cents=2, tries=1))
    assert [result.rule for result in first.seen] == ["varying_fact:tries", "cap:replies:42"]


def test_a_decision_without_facts_of_its_own_is_kept(do, noon):
    """One that an earlier version recorded, which did not bind facts to it."""
    first = do(decide("pay:1", CAP))
    id = do(lambda s: s.ledger.get("pay:1>>gate")).id
    do.s.store.execute(Update(LEDGER, id, {"fingerprint": None}, {"token": first.token}))
    assert do(decide("pay:1", CAP, cents=5)) == first


def test_a_decision_is_remembered_as_long_as_the_gate_says(do, noon):
    first = do(decide("reply:1", CAP, ttl=3600))
    noon.advance(3599)
    assert do(decide("reply:1", CAP, ttl=3600)) == first
    noon.advance(1)
    assert do(decide("reply:1", CAP, ttl=3600)) != first
    assert used(do) == 2


def test_a_refusal_is_reconsidered_once_its_time_has_come(do, noon):
    """Before that it stands; after that it is decided anew, by one of however many ask."""
    noon.jump(moment("2024-05-14T23:00") - noon.now())
    refused = do(decide("reply:1", QUIET, CAP))
    noon.jump(moment("2024-05-15T06:59") - noon.now())
    assert do(decide("reply:1", QUIET, CAP, method="reconsider")) == refused
    noon.advance(60)
    assert do(decide("reply:1", QUIET, CAP)) == refused
    told = do.together([decide("reply:1", QUIET, CAP, method="reconsider")] * 20)
    assert told == [told[0]] * 20
    assert told[0].allowed
    assert used(do) == 1
    assert do(decide("reply:1", QUIET, CAP)) == told[0]
    noon.jump(moment("2024-05-15T23:00") - noon.now())
    assert do(decide("reply:1", QUIET, CAP, method="reconsider")) == told[0]


def test_what_nobody_has_decided_is_decided_when_it_is_reconsidered(do, noon):
    assert do(decide("reply:1", CAP, method="reconsider")).allowed
    assert used(do) == 1


def test_a_reconsidered_action_may_be_refused_again_for_another_reason(do, noon):
    for number in range(3):
        do(decide(f"reply:{number}", CAP))
    refused = do(decide("reply:4", CAP, COOL))
    noon.jump(refused.not_before - noon.now())
    again = do(decide("reply:4", CAP, COOL, QUIET, method="reconsider"))
    assert (again.reason, again.not_before) == ("quiet_hours", moment("2024-05-15T07:00"))


@pytest.mark.seed("R8")
def test_a_refusal_by_a_kill_switch_is_reconsidered_whenever_it_is_asked_for(do, noon):
    """Nobody knows beforehand when a switch will be turned off, so there is no time to wait for."""
    do(lambda s: s.switches.turn("safe_mode", on=True))
    refused = do(decide("reply:1", CAP, SAFE))
    assert (refused.allowed, refused.not_before) == (False, None)
    assert not do(decide("reply:1", CAP, SAFE, method="reconsider")).allowed
    do(lambda s: s.switches.turn("safe_mode", on=False))
    assert do(decide("reply:1", CAP, SAFE)) == do(lambda s: s.gate().recorded("reply:1"))
    assert not do(decide("reply:1", CAP, SAFE)).allowed
    allowed = do(decide("reply:1", CAP, SAFE, method="reconsider"))
    assert allowed.allowed
    assert do(lambda s: s.gate().recorded("reply:1")) == allowed
    assert used(do) == 1
    do(lambda s: s.gate().refund(allowed))
    assert do(lambda s: s.gate().recorded("reply:1")) is None


@pytest.mark.seed("R8")
def test_a_kill_switch_beats_what_was_allowed_and_gives_it_back_when_it_is_off(do, noon):
    """No action that was allowed a moment ago slips through, and none is charged twice for it."""
    allowed = do(decide("reply:1", CAP, SAFE))
    do(lambda s: s.switches.turn("safe_mode", on=True, reason="they complain"))
    noon.advance(1)
    stopped = do(decide("reply:1", CAP, SAFE))
    assert (stopped.allowed, stopped.reason) == (False, "kill_switch:safe_mode")
    assert stopped.seen[0].saw == "safe_mode is on: they complain"
    assert not do(decide("reply:2", CAP, SAFE)).allowed
    assert used(do) == 1
    do(lambda s: s.switches.turn("safe_mode", on=False))
    noon.advance(1)
    assert do(decide("reply:1", CAP, SAFE)) == allowed
    assert used(do) == 1


# Giving back


@pytest.mark.seed("H5")
def test_what_was_allowed_and_did_not_happen_is_given_back_once(do, noon):
    """Again, and by twenty at a time; it is then decided anew, and the old refund does not touch that."""
    do(decide("reply:0", CAP))
    old = do(decide("reply:1", CAP, COOL))
    assert do(refund(old)) is True
    assert do.together([refund(old)] * 20) == [True] * 20
    assert used(do) == 1
    told = do.together([decide("reply:1", CAP, COOL)] * 20)
    assert told == [told[0]] * 20
    assert (told[0].allowed, told[0].token == old.token) == (True, False)
    assert do(refund(old)) is False
    assert used(do) == 2
    assert do(decide("reply:1", CAP, COOL)) == told[0]


def test_what_is_given_back_may_be_refused_the_next_time(do, noon):
    allowed = do(decide("reply:1", QUIET, CAP))
    do(refund(allowed))
    noon.jump(moment("2024-05-14T22:00") - noon.now())
    assert do(decide("reply:1", QUIET, CAP)).reason == "quiet_hours"
    assert used(do, at=moment("2024-05-14T22:00")) == 0


def test_a_cooldown_that_ran_out_meanwhile_is_not_in_the_way_of_a_refund(do, noon):
    """What another action has taken since is not given back with it."""
    old = do(decide("reply:1", CAP, COOL))
    noon.advance(30)
    do(decide("reply:2", CAP, COOL))
    assert do(refund(old)) is True
    assert used(do) == 1
    assert do(decide("reply:3", CAP, COOL)).reason == "cooldown:pace:42"


def test_only_what_was_allowed_can_be_given_back(do, noon):
    noon.jump(moment("2024-05-14T22:00") - noon.now())
    with pytest.raises(UsageError, match="only what was allowed"):
        do(refund(do(decide("reply:1", QUIET))))
    assert do(refund(Allowed("reply:unheard", 0.0, "token"))) is False


# Trying it out


def test_a_shadow_decides_and_records_and_counts_beside_and_never_allows(do, noon):
    """It would have allowed three; the counters of what is really sent know nothing of it."""
    rules = (Shadow(), CAP)
    told = [do(decide(f"reply:{number}", *rules, trace="chat:{chat}")) for number in range(4)]
    assert [decision.allowed for decision in told] == [False] * 4
    assert [decision.would_allow for decision in told] == [True, True, True, False]
    assert [decision.reason for decision in told] == ["shadow"] * 3 + ["cap:replies:42"]
    assert do(decide("reply:0", *rules)) == told[0]
    assert (used(do), used(do, "replies:42>>shadow")) == (0, 3)
    entries = do(lambda s: s.journal.list("chat:42")).entries
    assert [entry.body["reason"] for entry in entries] == [decision.reason for decision in told]


# Saying why


def test_a_decision_is_explained_by_what_its_rules_saw(do, noon):
    """Before it is made by what they see now, changing nothing; after it by what they saw; then anew."""
    rules = (QUIET, SAFE, FAST, CAP, COOL)

    def explain():
        return do(decide("reply:1", *rules, method="explain"))

    before = explain()
    assert [(result.rule, result.passed) for result in before] == [
        ("quiet_hours", True),
        ("kill_switch:safe_mode", True),
        ("fast_conversation", True),
        ("cap:replies:42", True),
        ("cooldown:pace:42", True),
    ]
    assert before[3].saw == "0 of 3 in 2024-05-14"
    assert explain() == before
    assert used(do) == 0
    allowed = do(decide("reply:1", *rules))
    assert explain() == allowed.seen
    assert {result.rule for result in allowed.seen} == {result.rule for result in before}
    noon.jump(moment("2024-05-14T23:00") - noon.now())
    assert explain() == allowed.seen
    do(refund(allowed))
    assert [result.rule for result in explain() if not result.passed] == ["quiet_hours"]


def test_an_explanation_tells_from_when_each_rule_would_pass(do, noon):
    one = Cap("replies:{chat}", 1, Day(STOCKHOLM))
    do(decide("reply:0", one, COOL))
    results = do(decide("reply:1", one, COOL, QUIET, method="explain"))
    assert [(result.passed, result.not_before) for result in results] == [
        (False, moment("2024-05-15T00:00")),
        (False, noon.now() + 30),
        (True, None),
    ]
    assert do(decide("reply:1", one, COOL, QUIET)).seen == (results[2], results[0])


def test_every_decision_is_told_to_the_journal_once(do, noon):
    """What was asked, what was answered, why, and from when it might be allowed."""
    one = Cap("replies:{chat}", 1, Day(STOCKHOLM))
    for key in ("reply:1", "reply:2", "reply:1", "reply:2"):
        do(decide(key, one, trace="chat:{chat}"))
    entries = do(lambda s: s.journal.list("chat:42")).entries
    assert [entry.body for entry in entries] == [
        {"action": "reply:1", "allowed": True},
        {
            "action": "reply:2",
            "allowed": False,
            "reason": "cap:replies:42",
            "not_before": moment("2024-05-15T00:00"),
        },
    ]
    assert {entry.at for entry in entries} == {noon.now()}


# In one write with other things


def test_what_is_written_along_is_written_with_the_decision_or_not_at_all(do, noon):
    """A document whose version has changed refuses the whole: no decision, no charge, no entry."""
    options = {"trace": "chat:{chat}"}

    def along(version):
        def also(tx, decision):
            value = {"last": decision.key, "allowed": decision.allowed}
            tx.documents.put("state:42", value, version=version)
            tx.journal.append("chat:42", {"sent": decision.allowed}, key=f"sent:{decision.key}")
            tx.counters.charge("budget", token=decision.key, cap=100)

        return also

    before = everything(do)
    with pytest.raises(VersionConflict):
        do(decide("reply:1", CAP, also=along(7), **options))
    assert everything(do) == before
    assert do(decide("reply:1", CAP, also=along(0), **options)).allowed
    assert do(lambda s: s.documents.get("state:42")).value == {"last": "reply:1", "allowed": True}
    assert len(do(lambda s: s.journal.list("chat:42")).entries) == 2
    assert (used(do), used(do, "budget", per=Day())) == (1, 1)
    # What stands already is not written again.
    assert do(decide("reply:1", CAP, also=along(0), **options)).allowed
    assert do(lambda s: s.documents.get("state:42")).version == 1


def test_what_is_written_along_hears_what_the_decision_becomes(do, noon):
    """It is asked again where a counter turns out to be full, and may then write something else."""
    one, heard = Cap("replies:{chat}", 1, Day(STOCKHOLM)), []
    do(decide("reply:0", one))

    def also(tx, decision):
        heard.append(decision.allowed)
        tx.documents.put("state:42", {"allowed": decision.allowed})

    assert not do(decide("reply:1", one, also=also)).allowed
    assert heard == [True, False]
    assert do(lambda s: s.documents.get("state:42")).value == {"allowed": False}


def test_an_error_of_what_is_written_along_leaves_nothing(do, noon):
    def also(tx, decision):
        raise LookupError("no such customer")

    before = everything(do)
    with pytest.raises(LookupError, match="no such customer"):
        do(decide("reply:1", CAP, also=also, trace="chat:{chat}"))
    assert everything(do) == before


def test_a_decision_is_one_write_and_no_reading(place, way, monkeypatch):
    """With a cap, quiet hours, a kill switch, a trace and a document: one command reaches the store."""
    monkeypatch.setattr(SwitchCache, "watch", lambda *_: None)  # the thread would look in between
    monkeypatch.setattr(switches, "FRESH_SECONDS", math.inf)  # and the machine may be busy for longer
    store = Faulty(place.open())
    # A decision about a moment that is long over looks whether its total has expired.
    at = moment(f"{(datetime.now(UTC) + timedelta(days=1)).date()}T12:00")
    with opened(way, store, place) as do:

        def ask(key):
            def also(tx, _decision):
                tx.documents.put(key, {"last": key}, version=0)

            return do(decide(key, CAP, QUIET, SAFE, COOL, at=at, also=also, trace="chat:{chat}", chat=key))

        assert ask("reply:1").allowed
        store.seen.clear()
        assert ask("reply:2").allowed
        assert [type(command) for command in store.seen if not isinstance(command, Time)] == [Transact]
        # Nor does it take a round trip to know the time, once the store has answered anything.
        assert store.inner.at_once(Time()) is not None


# Persons and scopes


def test_a_decision_that_was_erased_is_no_permission(do, noon):
    """Who asks about it when its person was forgotten is refused, and not charged; its trace is gone too."""
    do(decide("reply:1", CAP, subject="anna", trace="chat:{chat}"))
    do(decide("reply:2", CAP))
    erasure = do(lambda s: s.forget_subject("anna"))
    assert (erasure.records, erasure.entries) == (1, 1)
    assert do(lambda s: s.journal.list("chat:42")).entries == ()
    refused = do(decide("reply:1", CAP, subject="anna"))
    assert (refused.allowed, refused.reason) == (False, "forgotten")
    assert do(decide("reply:1", CAP, method="reconsider")).reason == "forgotten"
    assert do(decide("reply:1", CAP, method="explain")) == ()
    assert do(decide("reply:2", CAP)).allowed
    assert used(do) == 2


def test_gates_of_two_scopes_share_nothing(do, place, noon):
    def in_scope(name):
        return do(lambda s: s.scoped(f"{place.scope}{name}").gate(one, COOL).decide("reply:1", chat=42))

    one = Cap("replies:{chat}", 1, Day(STOCKHOLM))
    first, second = in_scope("a"), in_scope("b")
    assert (first.allowed, second.allowed) == (True, True)
    assert first.token != second.token
    assert used(do) == 0


def test_a_step_that_is_called_gate_is_not_taken_for_a_decision(do, noon):
    """Whoever asks from inside a step of the very action it is about gets an answer."""

    @do.s.once("evt:{n}")
    def event(n: int) -> bool:
        key = semel.current_run().key
        return do.s.once.step("gate", lambda: do.s.gate(CAP).decide(key, chat=42).allowed)

    assert event(1) is True
    assert do(decide("evt:1", CAP)).allowed
    assert used(do) == 1


# What is wrong


def test_what_a_rule_does_not_find_is_said_before_anything_is_written(do, noon):
    """A name that lacks a fact, a rule that is none, an action without a name."""
    before = everything(do)
    wrong = [
        (lambda s: s.gate(CAP).decide("reply:1"), TemplateError, r"\{chat\} of 'replies:\{chat\}' was not"),
        (lambda s: s.gate(COOL).decide("reply:1"), TemplateError, "was not found"),
        (lambda s: s.gate(FAST).decide("reply:1"), TemplateError, "was not found"),
        (lambda s: s.gate(CAP, trace="chat:{room}").decide("reply:1", chat=4), TemplateError, r"\{room\}"),
        (lambda s: s.gate(CAP).decide("reply:1", chat=None), InvalidKey, "cannot be part of a key"),
        (lambda s: s.gate(CAP).decide("", chat=4), InvalidKey, "must not be empty"),
        (lambda s: s.gate(CAP).decide("x" * 1024, chat=4), InvalidKey, "at most 1024 bytes"),
        (
            lambda s: s.gate(CAP).decide("reply:1", chat=4, at=datetime(2024, 5, 14)),  # noqa: DTZ001
            InvalidOption,
            "time zone",
        ),
        (lambda s: s.gate("no rule").decide("reply:1"), InvalidOption, "is no rule of a gate"),
        (lambda s: s.gate(CAP, ttl=0).decide("reply:1"), InvalidOption, "positive"),
        (lambda s: s.gate().decide("reply:1", due=object()), InvalidPayload, r"(?s)'due'.*VaryingFact"),
    ]
    for ask, error, words in wrong:
        with pytest.raises(error, match=words):
            do(ask)
    assert everything(do) == before


def test_two_rules_for_one_counter_are_refused(do, noon):
    with pytest.raises(UsageError, match="writes to an item once"):
        do(decide("reply:1", CAP, Cap("replies:{chat}", 5, Day(STOCKHOLM))))
    assert used(do) == 0


def test_a_store_that_is_down_allows_nothing(place, way, noon):
    store = Faulty(place.open(noon))
    with opened(way, store, place, clock=noon) as do:
        store.refuse()
        with pytest.raises(StoreUnavailable):
            do(decide("reply:1", CAP))
        assert used(do) == 0
        assert do(decide("reply:1", CAP)).allowed


def test_a_moment_of_long_ago_is_decided_by_its_own_day(do, noon):
    """Late messages are held against the day they are of, and are not forgotten at once."""
    late = noon.now() - 30 * 86400
    allowed = [do(decide(f"reply:{number}", CAP, at=late)).allowed for number in range(4)]
    assert allowed == [True, True, True, False]
    assert used(do) == 0


# Lost answers, late copies, and the bar


@pytest.mark.seed("H5")
def test_lost_answers_decide_and_charge_nothing_twice(place, way):
    """Every write's first answer is lost: that of a decision, a refusal, a refund, a new decision."""
    one, at = Cap("replies:{chat}", 1, Day(STOCKHOLM)), moment("2026-05-14T12:00")
    with place.forgetful() as (stores, lost), opened(way, stores[0], place) as do:
        allowed = do(decide("reply:1", one, at=at, trace="chat:{chat}"))
        assert allowed.allowed
        assert do(decide("reply:1", one, at=at, trace="chat:{chat}")) == allowed
        assert not do(decide("reply:2", one, at=at, trace="chat:{chat}")).allowed
        assert used(do, at=at) == 1
        assert len(do(lambda s: s.journal.list("chat:42")).entries) == 2
        assert do(refund(allowed)) is True
        assert do(refund(allowed)) is True
        assert used(do, at=at) == 0
        assert do(decide("reply:1", one, at=at)).token != allowed.token
        assert used(do, at=at) == 1
        assert lost() >= 4


def test_a_decision_that_somebody_gave_back_before_i_heard_of_it_is_made_anew(place, way, noon):
    """Whoever is told that he may send has been charged, and no refund of another's takes that from him."""
    with closing(place.open(noon)) as elsewhere:
        ours = {"env": place.env, "scope": place.scope, "secret": SECRET}
        other = semel.Semel(elsewhere, clock=noon, **ours).gate(CAP)
        held: list[Allowed] = []

        def meddle():
            decision = other.decide("reply:1", chat=42)
            assert isinstance(decision, Allowed)
            held.append(decision)
            other.refund(held[0])

        with opened(way, Meddled(place.open(noon), meddle), place, clock=noon) as do:
            mine = do(decide("reply:1", CAP))
            assert (mine.allowed, mine.token == held[0].token) == (True, False)
            assert used(do) == 1
            assert do(refund(held[0])) is False
            assert used(do) == 1


def test_a_copy_of_a_decision_that_comes_through_late_charges_nothing(place, way, noon):
    """A request that was sent again may itself arrive after all, when what it decided was given back."""
    store = Faulty(place.open(noon))
    with opened(way, store, place, clock=noon) as do:
        for _ in range(2):
            do(refund(do(decide("reply:1", CAP, COOL))))
        copies = [command for command in store.seen if isinstance(command, Transact)]
        assert len(copies) >= 4
        assert all(isinstance(store.execute(copy), Cancelled) for copy in copies)
        assert used(do) == 0


@pytest.mark.seed("H5")
def test_of_two_hundred_senders_the_gate_lets_as_many_pass_as_the_cap_says(place, way):
    """Three of two hundred at once, from several workers; everybody else is told why not."""
    with workers(place, way, 4) as ways:
        at = drive(ways[0].s.counters.steps.realm.now(), ways[0].s.store)
        told = crowd(ways, [decide(f"reply:{number}", CAP, at=at) for number in range(senders(place))])
        assert [type(decision) for decision in told].count(Allowed) == 3
        assert {decision.reason for decision in told if isinstance(decision, Refused)} == {"cap:replies:42"}
        assert len(told) == senders(place)
        assert used(ways[0], at=at) == 3


@pytest.mark.seed("H5")
def test_charges_of_the_gate_are_as_many_as_sends_that_succeeded_though_every_answer_is_lost(place, way):
    """Two hundred senders, of which every third fails to send and gives back what it was allowed."""
    sent = itertools.count()

    def sender(number, at):
        def send(s):
            gate = s.gate(CAP)
            decision = yield lambda: gate.decide(f"reply:{number}", at=at, chat=42)
            if not decision.allowed:
                return decision
            return (yield lambda: gate.refund(decision)) if number % 3 == 0 else next(sent)

        return persistent(way, send)

    with place.forgetful(3) as (stores, lost), workers(place, way, 3, stores=stores) as ways:
        at = drive(ways[0].s.counters.steps.realm.now(), ways[0].s.store)
        told = crowd(ways, [sender(number, at) for number in range(senders(place))])
        assert [one for one in told if isinstance(one, Exception)] == []
        succeeded = next(sent)
        assert used(ways[0], at=at) == succeeded <= 3
        late = crowd(ways, [sender(1000 + 3 * number + 1, at) for number in range(4)])
        assert [isinstance(one, Refused) for one in late].count(False) == 3 - succeeded
        assert used(ways[0], at=at) == 3
        assert lost() >= senders(place)
