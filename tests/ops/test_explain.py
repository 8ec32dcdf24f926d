"""`explain` tells what happened to a key, on every store: twenty histories, each made as it comes about."""

import pytest

from semel import Abandoned, ClaimLost, Failure, Happened, NotHappened
from semel.core.commands import Query
from semel.core.drive import Scanning
from semel.errors import TableMissing
from semel.gate import KillSwitch, QuietHours
from semel.ops.model import Action
from semel.state.mailbox import Message
from semel.tables import LEDGER

KEY = "charge:order-7"


def claim(s, **options):
    return s.ledger.claim(KEY, lease=30, ttl=3600, **options)


def act(s, name, **more):
    done = s.ops.perform(Action(name=name, key=KEY, by="ann", why="ticket 12", **more))
    assert done.changed, done
    return done


def running(s, clock):
    claim(s)


def done_at_once(s, clock):
    s.ledger.complete(claim(s), "paid")


def crashed(s, clock):
    claim(s)
    clock.advance(40)


def taken_over(s, clock):
    crashed(s, clock)
    claim(s)


def taken_over_and_done(s, clock):
    crashed(s, clock)
    s.ledger.complete(claim(s), "paid")


def given_back(s, clock):
    s.ledger.release(claim(s), TimeoutError("the bank was slow"))


def retried(s, clock):
    given_back(s, clock)
    clock.advance(5)
    s.ledger.complete(claim(s), "paid")


def failed(s, clock):
    s.ledger.fail(claim(s), ValueError("no such account"))


def failed_after_a_retry(s, clock):
    given_back(s, clock)
    failed(s, clock)


def held(s, clock):
    claim(s, on_lapsed="hold")
    clock.advance(40)
    claim(s, on_lapsed="hold")


def doubted(s, clock):
    s.ledger.doubt(claim(s))


def settled_done(s, clock):
    held(s, clock)
    clock.advance(60)
    s.ledger.resolve(KEY, Happened("paid"), by="ann", why="the bank says so")


def doubted_and_settled(s, clock):
    doubted(s, clock)
    clock.advance(60)
    s.ledger.resolve(KEY, Happened("paid"), by="ann", why="the bank says so")


def settled_undone(s, clock):
    held(s, clock)
    s.ledger.resolve(KEY, NotHappened(), by="ann", why="the bank knows nothing")


def settled_and_run_again(s, clock):
    settled_undone(s, clock)
    clock.advance(1)
    s.ledger.complete(claim(s), "paid")


def abandoned(s, clock):
    held(s, clock)
    s.ledger.resolve(KEY, Abandoned("too old"), by="ann", why="nobody waits for it")


def dropped(s, clock):
    done_at_once(s, clock)
    clock.advance(1)
    assert s.ledger.drop_result(KEY)


def zombie(s, clock):
    mine = claim(s)
    clock.advance(40)
    s.ledger.complete(claim(s), "paid by the second")
    with pytest.raises(ClaimLost):
        s.ledger.complete(mine, "paid by the first")


def released_by_hand(s, clock):
    failed(s, clock)
    act(s, "release")


def completed_by_hand(s, clock):
    failed(s, clock)
    act(s, "complete", result="paid by wire")


def failed_by_force(s, clock):
    claim(s)
    act(s, "fail", force=True)


def many_attempts(s, clock):
    for number in range(12):
        clock.advance(1)
        s.ledger.release(claim(s), Failure("TimeoutError", f"slow {number}"))


# What is told of each: how it stands, the kinds of its lines, and a word of what the next call gets.
HISTORIES = [
    (running, "IN_PROGRESS", "claimed running", "busy"),
    (done_at_once, "COMPLETED", "claimed completed", "kept result"),
    (crashed, "IN_PROGRESS", "claimed lapsed", "takes it over"),
    (taken_over, "IN_PROGRESS", "claimed lapsed claimed running", "busy"),
    (taken_over_and_done, "COMPLETED", "claimed lapsed claimed completed", "kept result"),
    (given_back, "RELEASED", "claimed released", "runs it"),
    (retried, "COMPLETED", "claimed released claimed completed", "kept result"),
    (failed, "FAILED", "claimed failed", "kept failure"),
    (failed_after_a_retry, "FAILED", "claimed released claimed failed", "kept failure"),
    (held, "UNKNOWN", "claimed held", "settles"),
    (doubted, "UNKNOWN", "claimed held", "settles"),
    (settled_done, "COMPLETED", "claimed lapsed settled", "kept result"),
    (doubted_and_settled, "COMPLETED", "claimed held settled", "kept result"),
    (settled_undone, "RELEASED", "claimed lapsed settled", "runs it"),
    (settled_and_run_again, "COMPLETED", "claimed lapsed settled claimed completed", "kept result"),
    (abandoned, "FAILED", "claimed lapsed settled", "kept failure"),
    (dropped, "COMPLETED", "claimed completed dropped", "without its result"),
    (zombie, "COMPLETED", "claimed lapsed claimed completed", "kept result"),
    (released_by_hand, "RELEASED", "claimed failed released by hand", "runs it"),
    (completed_by_hand, "COMPLETED", "claimed failed completed by hand", "kept result"),
    (failed_by_force, "FAILED", "claimed interrupted failed by hand", "kept failure"),
    (many_attempts, "RELEASED", "claimed" + " claimed released" * 9, "runs it"),
]


@pytest.mark.parametrize(
    ("history", "status", "kinds", "next_call"), HISTORIES, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_key_tells_what_happened_to_it(s, clock, history, status, kinds, next_call):
    history(s, clock)
    story = s.ops.explain(KEY)
    assert (story.status, " ".join(line.kind for line in story.lines)) == (status, kinds), str(story)
    assert next_call in story.next_call
    moments = [line.at for line in story.lines]
    assert moments == sorted(moments)
    assert {line.who for line in story.lines if line.kind == "claimed"} <= {"worker-1", ""}


def test_the_story_names_errors_workers_and_who_settled(s, clock):
    given_back(s, clock)
    settled = held
    clock.advance(1)
    settled(s, clock)
    s.ledger.resolve(KEY, Happened("paid"), by="ann", why="the bank says so")
    told = str(s.ops.explain(KEY))
    assert "TimeoutError: the bank was slow" in told
    assert "attempt 2 began by worker-1" in told
    assert "settled by ann: the bank says so" in told


def lapsed_lines(s):
    return [(line.at, line.attempt) for line in s.ops.explain(KEY).lines if line.kind == "lapsed"]


BY_ACTION = [
    lambda s: act(s, "release"),
    lambda s: act(s, "complete", result="paid"),
    lambda s: act(s, "fail"),
    lambda s: s.ledger.resolve(KEY, NotHappened(), by="ann", why="ticket 12"),
]


@pytest.mark.parametrize("settle", BY_ACTION, ids=["release", "complete", "fail", "resolve"])
@pytest.mark.parametrize("on_lapsed", ["rerun", "hold"])
def test_the_time_at_which_a_lease_expired_stays_the_same_when_an_operator_acts(s, clock, settle, on_lapsed):
    held = claim(s, on_lapsed=on_lapsed)
    clock.advance(20)
    s.ledger.renew(held)
    expired = s.ledger.get(KEY).lease_until
    clock.advance(500)
    assert lapsed_lines(s) == [(expired, 1)]
    settle(s)
    assert lapsed_lines(s) == [(expired, 1)]


@pytest.mark.parametrize(
    ("name", "said"), [("release", "released"), ("complete", "completed"), ("fail", "failed")]
)
def test_running_work_that_an_operator_ends_is_not_told_as_an_expired_lease(s, clock, name, said):
    running(s, clock)
    clock.advance(10)
    now = clock.now()
    act(s, name, force=True)
    story = s.ops.explain(KEY)
    assert [line.kind for line in story.lines] == ["claimed", "interrupted", f"{said} by hand"]
    assert [line.at for line in story.lines[1:]] == [pytest.approx(now, abs=1)] * 2
    assert story.lines[-1].who == "ann"
    assert f"{said} by an operator, ann: ticket 12" in str(story)
    assert "expired" not in str(story)
    assert "not heard of again" not in str(story)


# What belongs to a key


def test_a_gate_that_refused_a_step_says_why_and_from_when_it_may_happen(s, clock):
    s.ledger.complete(claim(s), "answered")
    gate = s.gate(QuietHours("00:00", "23:59"))
    gate.decide(f"{KEY}>reply")
    story = s.ops.explain(KEY, scan=True)
    [decision] = story.decisions
    assert (decision.key, decision.allowed, decision.reason) == (f"{KEY}>reply", False, "quiet_hours")
    assert decision.not_before > clock.now()
    assert f"{KEY}>reply was refused (quiet_hours); it may happen from" in str(story)
    assert story.steps == ()


def test_what_a_gate_decided_is_told_though_nothing_was_done(s):
    switched = s.gate(KillSwitch("sending", unset=True))
    switched.decide(KEY)
    story = s.ops.explain(KEY)
    assert (story.status, story.version) == (None, "")
    assert [(one.allowed, one.reason) for one in story.decisions] == [(False, "kill_switch:sending")]
    assert str(story).startswith(f"{KEY} has no record: nothing was done under this key")
    gate = s.gate(ttl=3600)
    gate.refund(gate.decide("charge:order-8"))
    assert [one.reason for one in s.ops.explain("charge:order-8").decisions] == ["given back"]
    assert s.ops.explain("charge:order-9") is None


def test_the_steps_inside_the_work_are_told_in_their_order(s, clock):
    claim(s)
    s.ledger.complete(s.ledger.claim(f"{KEY}>debit", ttl=3600), "debited")
    clock.advance(1)
    s.ledger.claim(f"{KEY}>a-receipt", lease=30, ttl=3600)
    s.ledger.claim(f"{KEY}0>debit", lease=30, ttl=3600)
    story = s.ops.explain(KEY, scan=True)
    assert [(one.key, one.status) for one in story.steps] == [
        (f"{KEY}>debit", "COMPLETED"),
        (f"{KEY}>a-receipt", "IN_PROGRESS"),
    ]
    assert story.all_steps
    assert f"{KEY}>debit is COMPLETED, attempt 1" in str(story)


def test_steps_about_a_person_are_found_without_reading_the_table(s):
    s.ledger.claim(KEY, ttl=3600, subject="ann")
    s.ledger.claim(f"{KEY}>debit", ttl=3600, subject="ann")
    s.ledger.claim("another:1", ttl=3600, subject="ann")
    s.gate().decide(f"{KEY}>mail", subject="ann")
    story = s.ops.explain(KEY)
    assert [one.key for one in story.steps] == [f"{KEY}>debit"]
    assert [one.key for one in story.decisions] == [f"{KEY}>mail"]
    assert story.all_steps


def test_where_steps_would_take_a_scan_the_story_says_so(s, house):
    claim(s)
    s.ledger.claim(f"{KEY}>debit", ttl=3600)
    story = s.ops.explain(KEY)
    unordered = house.name not in ("memory", "sqlite", "postgres")
    assert (story.all_steps, len(story.steps)) == ((False, 0) if unordered else (True, 1))
    assert ("It may have other steps" in str(story)) is unordered


def test_a_dead_letter_and_what_became_of_it_are_told(s):
    box = s.mailbox("orders", shared=True)
    box.put([Message(KEY, {"order": 7}, group="g"), Message("another", 1)])
    s.ledger.fail(claim(s), ValueError("no such account"))
    [waiting] = s.ops.explain(KEY, inboxes=["orders"]).messages
    assert (waiting.inbox, waiting.dead, waiting.attempts) == ("orders", False, 0)
    [letter] = box.letters(Message(KEY, 1, group="g").lane).letters
    box.bury(letter, "no such account")
    story = s.ops.explain(f"{KEY}>mail", inboxes=["elsewhere", "orders"])
    assert [(one.dead, one.error) for one in story.messages] == [(True, "no such account")]
    story = s.ops.explain(KEY, inboxes=["orders"])
    assert "was put aside in inbox orders, failed 1 times: no such account" in str(story)

    s.ops.note("ann", "the account is there now", "redrive", "inbox orders", {"key": KEY})
    assert box.redrive(letter)
    story = s.ops.explain(KEY, inboxes=["orders"])
    assert (story.status, [one.dead for one in story.messages]) == (None, [False])
    assert [(one.by, one.action) for one in story.actions] == [("ann", "redrive")]
    assert "redrive by ann: the account is there now" in str(story)


def test_entries_about_the_person_that_name_the_key_are_told(s, clock):
    s.ledger.complete(s.ledger.claim(KEY, ttl=3600, subject="ann"), "paid")
    with s.transaction() as tx:
        tx.journal.append("house", {"action": KEY, "sent": 1}, subject="ann", actor="bot")
    clock.advance(1)
    s.journal.append("house", {"x": 1}, key=f"{KEY}>mail", subject="ann")
    s.journal.append("house", {"action": "another"}, subject="ann")
    s.journal.append("house", {"action": KEY})
    story = s.ops.explain(KEY)
    assert [(one.owner, one.actor) for one in story.entries] == [("house", "bot"), ("house", "")]
    assert "house, by bot" in str(story)


def test_what_operators_did_is_told_even_of_what_they_forgot(s, clock):
    failed(s, clock)
    act(s, "release")
    clock.advance(1)
    act(s, "forget")
    s.ops.perform(Action(name="forget", key="another", by="bob", why="x"))
    story = s.ops.explain(KEY)
    assert (story.status, story.next_call) == (None, "runs it")
    assert [(one.action, one.by, one.why) for one in story.actions] == [
        ("release", "ann", "ticket 12"),
        ("forget", "ann", "ticket 12"),
    ]


def test_of_an_erased_person_the_fact_is_told_and_nothing_else(s, clock):
    s.ledger.complete(s.ledger.claim(KEY, ttl=3600, subject="ann"), "sent to ann")
    clock.advance(1)
    s.forget_subject("ann")
    story = s.ops.explain(KEY)
    assert [line.kind for line in story.lines] == ["claimed", "erased"]
    assert "without its result" in story.next_call


def test_a_story_takes_a_bounded_number_of_requests_and_no_scan(s, monkeypatch):
    s.ledger.claim(KEY, ttl=3600)
    commands = []
    inner = s.store.execute

    def execute(command):
        commands.append(command)
        return inner(command)

    monkeypatch.setattr(s.store, "execute", execute)
    s.ops.explain(KEY)
    assert len(commands) <= 12
    if isinstance(s.store, Scanning):
        assert not [one for one in commands if isinstance(one, Query) and one.key is None]


def test_a_story_is_told_where_other_tables_are_missing(s, monkeypatch):
    claim(s)
    inner = s.store.execute

    def execute(command):
        if getattr(command, "table", LEDGER) is not LEDGER:
            raise TableMissing("no such table")
        return inner(command)

    monkeypatch.setattr(s.store, "execute", execute)
    story = s.ops.explain(KEY, inboxes=["orders"])
    assert (story.status, story.actions, story.messages) == ("IN_PROGRESS", (), ())
