"""The picture of a key's time line: each attempt in its place, with how it ended, in words too."""

import re

import pytest

import semel
from semel.dashboard.timelines import timeline_of
from semel.ops.model import Action
from tests.dashboard.kit import browser_of


def claim(s, key="k", lease=30):
    claimed = s.ledger.claim(key, lease=lease, ttl=86_400)
    assert isinstance(claimed, semel.Claimed)
    return claimed


def drawn(s, key="k"):
    timeline = timeline_of(s.ops.explain(key))
    assert timeline is not None
    return timeline


def test_attempts_stand_where_they_began_are_as_wide_as_they_took_and_say_how_they_ended(s, clock):
    claim(s)
    clock.advance(60)
    again = claim(s)
    clock.advance(30)
    s.ledger.release(again, TimeoutError("slow"))
    clock.advance(10)
    s.ledger.complete(claim(s), 1)
    timeline = drawn(s)
    assert [row.words for row in timeline.rows] == [
        "attempt 1: its lease expired after 30 s",
        "attempt 2: gave the key back after 30 s",
        "attempt 3: completed",
    ]
    assert [(row.kind, row.x, row.end) for row in timeline.rows] == [
        ("lapsed", 0, 30),
        ("released", 60, 90),
        ("completed", 99.2, 100),
    ]
    assert timeline.end - timeline.start == 100
    assert [row.anchor for row in timeline.rows] == ["start", "end", "end"]


def test_work_under_way_is_drawn_up_to_now(s, clock):
    claim(s)
    clock.advance(12)
    [row] = drawn(s).rows
    assert (row.kind, row.words, row.x, row.width) == ("running", "attempt 1: at work for 12 s", 0, 100)


def test_what_was_over_at_once_is_seen_all_the_same(s):
    s.ledger.complete(claim(s), 1)
    [row] = drawn(s).rows
    assert (row.x, row.width > 0) == (0, True)


def test_what_somebody_did_by_hand_has_a_place_and_no_length(s, clock):
    s.ledger.doubt(claim(s))
    clock.advance(100)
    s.ops.perform(Action(name="complete", key="k", by="ann", why="the bank has it", result=1))
    row = drawn(s).rows[-1]
    assert (row.kind, row.words, row.x, row.width) == (
        "completed-by-hand",
        "completed by hand by ann",
        100,
        0,
    )


def test_attempts_that_are_not_kept_any_more_are_one_row(s, clock):
    for _ in range(40):
        s.ledger.release(claim(s), TimeoutError("slow"))
        clock.advance(1)
    rows = drawn(s).rows
    assert (rows[0].words, rows[-1].words) == ("earlier attempts", "attempt 40: gave the key back")
    assert len(rows) < 40


def test_what_was_erased_since_does_not_last_until_then(clock):
    with semel.connect("memory:", clock=clock, secret=b"a secret of the tests, for persons") as s:
        claimed = s.ledger.claim("k", ttl=86_400, subject="ann")
        assert isinstance(claimed, semel.Claimed)
        s.ledger.complete(claimed, "Dear Ann")
        clock.advance(500)
        s.forget_subject("ann")
        timeline = drawn(s)
    assert [row.words for row in timeline.rows] == ["attempt 1: completed, and erased since"]
    assert timeline.start == timeline.end


@pytest.mark.parametrize("who", ["<script>alert(1)</script>", "\u202egpj"])
def test_the_page_draws_it_tells_it_in_words_and_escapes_names(s, who):
    s.ledger.release(claim(s), TimeoutError("slow"))
    s.ops.perform(Action(name="fail", key="k", by=who, why="no"))
    text = browser_of(s).sign_in("vic").get("/key?key=k").text
    [picture] = re.findall(r'<svg class="timeline".*?</svg>', text, re.DOTALL)
    assert 'aria-label="Attempts over time: attempt 1: gave the key back; failed by hand by ' in picture
    assert (picture.count("<text"), picture.count("<rect"), picture.count("<circle")) == (2, 1, 2)
    assert who not in picture
    assert "style=" not in picture
