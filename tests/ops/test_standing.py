"""Counters are listed with the ends of their periods, and switches tell who turned them."""

import pytest

from semel.core.drive import Scanning
from semel.gate import Cap
from semel.periods import Day, Hour, Month, Week
from semel.state.mailbox import Message

PERIODS = [Hour("Asia/Kolkata"), Day("Europe/Stockholm"), Day("Pacific/Kiritimati"), Week(), Month()]


def listed(s, *given, **more):
    """All counters, page by page."""
    found, after = [], None
    while True:
        page = s.ops.counters(*given, after=after, **more)
        assert page.scan is isinstance(s.store, Scanning)
        found += page.counters
        after = page.after
        if after is None:
            return found


@pytest.mark.parametrize("per", PERIODS, ids=repr)
def test_a_counter_tells_when_its_period_ends(s, clock, per):
    tally = s.counters.add("replies:42", 2, per=per)
    [counter] = listed(s)
    assert (counter.counter, counter.period, counter.used) == ("replies:42", tally.period, 2)
    assert (counter.resets_at, counter.cap, counter.remaining) == (tally.resets_at, None, None)


def test_where_a_row_is_kept_for_another_span_its_end_is_not_told_unless_a_cap_tells_it(s):
    tally = s.counters.add("replies:42", per=Day("Europe/Stockholm"), keep=90 * 86400)
    assert [one.resets_at for one in listed(s)] == [None]
    caps = [Cap("mails", 9), Cap("replies:{chat}", 3, Day("Europe/Stockholm"))]
    [counter] = listed(s, caps=caps)
    assert (counter.resets_at, counter.cap, counter.remaining) == (tally.resets_at, 3, 2)


def test_counters_are_listed_by_prefix_in_pages_without_what_was_charged(s, clock):
    for number in range(3):
        for token in range(4):
            s.counters.charge(f"replies:{number}", cap=10, token=f"t{token}")
    clock.advance(86400)
    s.counters.add("replies:1")
    s.counters.add("mails:1")
    whole = [(one.counter, one.used) for one in listed(s, "replies:", limit=1)]
    assert sorted(whole) == [("replies:0", 4), ("replies:1", 1), ("replies:1", 4), ("replies:2", 4)]
    assert len(listed(s)) == 5
    assert listed(s, "nothing:") == []


def test_a_switch_tells_who_turned_it_now_and_before(s, clock):
    name = f"sending-{s.scope}"
    assert s.ops.switch_history(name) == ()
    for on, by in ((True, "ann"), (False, "bob")):
        clock.advance(60)
        s.ops.turn(name, on=on, by=by, why=f"{by} wants it")
    s.ops.turn(f"other-{s.scope}", on=True, by="eve", why="x")
    assert s.switches.list()[name].by == "bob"
    turns = s.ops.switch_history(name)
    assert [(one.on, one.by, one.why) for one in turns] == [
        (False, "bob", "bob wants it"),
        (True, "ann", "ann wants it"),
    ]
    clock.advance(60)
    s.switches.turn(name, on=True, reason="from a script")
    assert [one.by for one in s.ops.switch_history(name)] == ["", "bob", "ann"]
    assert len(s.ops.switch_history(name, limit=2)) == 2


def test_a_switch_tells_of_turns_from_every_scope(s, clock):
    name, other = f"sending-{s.scope}", s.scoped(f"{s.scope}-app")
    for place, on, by in ((s, True, "ann"), (other, False, "bob"), (s, True, "eve")):
        clock.advance(60)
        place.ops.turn(name, on=on, by=by, why=f"{by} wants it")
    told = [(one.on, one.by, one.why) for one in s.ops.switch_history(name)]
    assert told == [
        (True, "eve", "eve wants it"),
        (False, "bob", "bob wants it"),
        (True, "ann", "ann wants it"),
    ]
    assert other.ops.switch_history(name) == s.ops.switch_history(name)
    assert [entry.actor for entry in other.ops.journal().entries] == ["bob"]
    assert [entry.actor for entry in s.ops.journal().entries] == ["eve", "ann"]


def test_inboxes_with_messages_are_told_in_every_scope_of_the_environment(s):
    other = s.scoped(f"{s.scope}/100%")
    for place, name in ((s, "mails"), (s, "orders"), (other, "mails")):
        place.mailbox(name, shards=3).put([Message(f"m-{number}", "a") for number in range(5)])
    scopes = (s.scope, other.scope)

    def found(**options):
        return [(one.scope, one.name) for one in s.ops.inboxes(**options) if one.scope in scopes]

    assert sorted(found()) == sorted([(s.scope, "mails"), (s.scope, "orders"), (other.scope, "mails")])
    assert len(s.ops.inboxes(limit=1)) == 1
