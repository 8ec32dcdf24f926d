"""What operators do: with a reason, on the record that they saw, once, and told to their journal."""

import pytest

from semel import MISSING, Replay, Status
from semel.core.commands import Update, write
from semel.core.drive import drive
from semel.errors import ClaimLost, InvalidOption, RecordCorrupt, TableMissing, UsageError
from semel.model import RECORD_VERSION
from semel.ops.model import Action, version_of
from semel.tables import LEDGER

KEY = "charge:order-7"


def act(s, name, *, preview=False, **more):
    wish = {"key": KEY, "by": "ann", "why": "ticket 12"} | more
    return s.ops.perform(Action(name=name, **wish), preview=preview)


def journal(s):
    return s.ops.journal().entries


def claim(s):
    return s.ledger.claim(KEY, lease=30, ttl=3600)


def failed(s):
    s.ledger.fail(claim(s), ValueError("no such account"))


def test_a_failed_key_is_let_run_again(s):
    failed(s)
    done = act(s, "release")
    assert (done.before, done.after, done.changed) == ("FAILED", "RELEASED", True)
    assert claim(s).attempt == 2


def test_a_key_is_completed_with_the_result_that_is_known_from_elsewhere(s):
    failed(s)
    act(s, "complete", result={"paid": "by wire"})
    outcome = claim(s)
    assert isinstance(outcome, Replay)
    assert outcome.result == {"paid": "by wire"}


def test_what_was_put_right_is_not_forgotten_early(s, clock):
    for key, ttl, least in (("short", 3600, 30), ("long", 90 * 86400, 90)):
        s.ledger.fail(s.ledger.claim(key, ttl=ttl), ValueError("no"))
        act(s, "complete", key=key)
        assert s.ledger.get(key).expires_at >= clock.now() + least * 86400 - 2


def test_what_an_operator_gives_up_stays_failed(s):
    s.ledger.release(claim(s))
    act(s, "fail")
    record = s.ledger.get(KEY)
    assert (record.status, record.failure.message) == (Status.FAILED, "ticket 12")


def test_the_result_goes_and_the_fact_stays(s):
    s.ledger.complete(claim(s), "personal")
    act(s, "drop")
    assert s.ledger.get(KEY).tombstone


def test_a_forgotten_key_runs_as_the_first(s):
    s.ledger.complete(claim(s), "paid")
    assert act(s, "forget").after == "absent"
    assert claim(s).attempt == 1


def test_every_action_is_told_with_who_why_and_what_was_before(s):
    failed(s)
    act(s, "release")
    [entry] = journal(s)
    assert (entry.actor, entry.body["action"], entry.body["about"]) == ("ann", "release", KEY)
    assert entry.body["why"] == "ticket 12"
    assert entry.body["before"]["status"] == "FAILED"
    assert entry.body["before"]["error"] == "ValueError"


def test_a_form_that_is_sent_twice_does_it_once(s):
    failed(s)
    assert act(s, "release").changed
    again = act(s, "release")
    assert (again.changed, again.refused) == (False, "")
    assert len(journal(s)) == 1


def test_a_record_that_has_changed_since_it_was_seen_is_left_alone(s):
    failed(s)
    seen = version_of(s.ledger.get(KEY))
    act(s, "release", by="bob")
    running = claim(s)
    done = act(s, "complete", seen=seen, force=True)
    assert "changed" in done.refused
    s.ledger.complete(running, "by its worker")
    assert len(journal(s)) == 1


def test_work_under_way_is_ended_only_by_force_and_its_worker_is_told(s):
    mine = claim(s)
    assert "at work" in act(s, "release").refused
    assert act(s, "release", force=True).changed
    with pytest.raises(ClaimLost):
        s.ledger.complete(mine, "too late")


@pytest.mark.parametrize("name", ["release", "complete", "fail"])
def test_what_is_done_is_not_undone(s, name):
    s.ledger.complete(claim(s), "paid")
    assert "COMPLETED" in act(s, name).refused
    assert s.ledger.result(s.ledger.get(KEY)) == "paid"


def test_a_key_that_nobody_knows(s):
    for name in ("release", "complete", "fail", "drop", "forget"):
        done = act(s, name)
        assert (done.before, done.changed, done.refused) == (
            "absent",
            False,
            "there is no record of this key",
        )
    assert journal(s) == ()


def test_a_record_that_cannot_be_read_is_forgotten_with_a_journal_entry(s):
    s.ledger.complete(claim(s), "paid")
    drive(write(Update(LEDGER, s.ledger.get(KEY).id, {"version": RECORD_VERSION + 1})), s.store)
    with pytest.raises(RecordCorrupt):
        act(s, "release")
    assert act(s, "forget", seen="another version").refused
    assert act(s, "forget", preview=True).changed
    assert journal(s) == ()
    done = act(s, "forget")
    assert (done.before, done.after, done.changed) == ("unreadable", "absent", True)
    assert [entry.body["action"] for entry in journal(s)] == ["forget"]
    assert claim(s).attempt == 1


def test_a_preview_changes_nothing(s):
    failed(s)
    done = act(s, "release", preview=True)
    assert (done.before, done.after, done.changed) == ("FAILED", "RELEASED", True)
    assert s.ledger.get(KEY).status is Status.FAILED
    assert journal(s) == ()


@pytest.mark.parametrize("missing", ["by", "why"])
def test_nobody_acts_without_a_name_and_a_reason(s, missing):
    failed(s)
    with pytest.raises(InvalidOption, match="why"):
        act(s, "release", **{missing: " "})
    assert s.ledger.get(KEY).status is Status.FAILED


def test_what_is_told_to_the_journal_by_itself_is_found_there(s):
    s.ops.note("ann", "ticket 12", "redrive", "inbox support")
    [entry] = journal(s)
    assert entry.actor == "ann"
    assert entry.body == {"action": "redrive", "about": "inbox support", "why": "ticket 12", "before": None}


def test_the_version_that_a_story_names_is_the_one_an_action_is_meant_for(s):
    failed(s)
    version = s.ops.explain(KEY).version
    assert act(s, "release", seen=version).changed
    assert "has changed" in act(s, "fail", seen=version).refused


def test_what_was_looked_at_is_what_an_action_names(s):
    failed(s)
    seen = s.ops.look(KEY)
    assert (seen.record, seen.story) == (s.ledger.get(KEY), s.ops.explain(KEY))
    assert act(s, "release", seen=seen.version).changed
    assert s.ops.look("charge:order-8") is None


def test_a_result_is_shown_to_whoever_is_then_in_the_journal(s):
    s.ledger.complete(claim(s), {"to": "ann@example.org"})
    assert s.ops.reveal(KEY, by="bob", why="ticket 13") == {"to": "ann@example.org"}
    [entry] = journal(s)
    assert (entry.actor, entry.body["action"], entry.body["about"]) == ("bob", "reveal", KEY)
    assert "example.org" not in str(entry.body)


def test_nothing_is_revealed_where_nothing_is_kept(s):
    assert s.ops.reveal(KEY, by="bob", why="ticket 13") is MISSING
    assert journal(s) == ()
    s.ledger.complete(claim(s), "paid")
    with pytest.raises(InvalidOption, match="why"):
        s.ops.reveal(KEY, by="bob", why="")
    assert journal(s) == ()


def test_who_turned_a_switch_and_why_is_in_the_journal(s):
    name = f"mail-{s.scope}"  # switches are everywhere, and the store is other tests' too
    assert s.ops.turn(name, on=True, by="ann", why="the provider is down").on
    switch = s.ops.turn(name, on=False, by="bob", why="it is back")
    assert (switch.on, switch.reason) == (False, "it is back")
    assert s.switches.list()[name] == switch
    last, first = journal(s)
    assert (first.actor, first.body["action"], first.body["before"]) == ("ann", "turn on", None)
    assert (last.actor, last.body["action"], last.body["before"]) == ("bob", "turn off", {"on": True})
    with pytest.raises(InvalidOption, match="why"):
        s.ops.turn(name, on=True, by="", why="for no reason")
    assert not s.switches.list()[name].on


def test_a_switch_is_turned_though_the_journal_is_not_there(s, monkeypatch):
    def missing(*_, **__):
        raise TableMissing("the table of the journal is not there")

    monkeypatch.setattr("semel.ops.actions.commit", missing)
    assert s.ops.turn("sending", on=True, by="ann", why="wrong prices").on
    assert s.switches.list()["sending"].reason == "wrong prices"


def test_a_switch_is_in_the_journal_though_the_two_cannot_be_written_together(s, monkeypatch):
    def refused(*_, **__):
        raise UsageError("the keys are in different slots")

    name = f"mail-{s.scope}"
    monkeypatch.setattr("semel.ops.actions.commit", refused)
    assert s.ops.turn(name, on=True, by="ann", why="wrong prices").on
    assert [(entry.actor, entry.body["about"]) for entry in journal(s)] == [("ann", name)]
    assert [turn.by for turn in s.ops.switch_history(name)] == ["ann"]
