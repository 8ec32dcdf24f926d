"""Ids that sort by the time of their event, and within a millisecond as they were made."""

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

import semel
from semel.doors.inbox import Message, open_inbox
from semel.state.journal import (
    LATEST,
    REMEMBERED,
    Ulids,
    first_ulid,
    last_ulid,
    milliseconds,
    ulid_of,
)
from semel.testing import FakeClock

NOW = 1_700_000_000.123


@pytest.mark.seed("H2")
def test_a_thousand_of_one_millisecond_are_in_order():
    maker = Ulids()
    made = [maker.make(NOW) for _ in range(1000)]
    assert made == sorted(made)
    assert len(set(made)) == 1000
    assert {ULID.from_str(id).milliseconds for id in made} == {1_700_000_000_123}


@pytest.mark.seed("H2")
def test_a_thousand_entries_of_one_millisecond_are_listed_in_order():
    with semel.connect("memory:") as s:
        for number in range(1000):
            s.journal.append("chat", {"n": number}, at=NOW)
        entries = s.journal.list("chat", limit=1000).entries
    assert [entry.body["n"] for entry in entries] == list(range(1000))


def test_threads_that_make_ids_at_once_make_different_ones():
    maker, made, start = Ulids(), [], threading.Barrier(8)

    def work():
        start.wait()
        mine = [maker.make(NOW) for _ in range(500)]
        assert mine == sorted(mine)
        made.extend(mine)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 4000


def test_the_order_of_messages_does_not_depend_on_the_object_that_puts_them_in():
    clock = FakeClock()
    with semel.connect("memory:", clock=clock) as s, s.scoped("tenant") as tenant:
        for one in (s, tenant):
            boxes = [one.mailbox("jobs"), one.through("door").mailbox("jobs")]
            inbox = open_inbox(one, "jobs")
            for number in range(60):
                message = Message(f"m{number}", number, group="g")
                inbox.put(message) if number % 3 == 2 else boxes[number % 3].put([message])
                if number == 30:
                    clock.jump(-60)  # what comes later stays later
            found = one.mailbox("jobs").letters(message.lane, 100).letters
            assert [letter.key for letter in found] == [f"m{number}" for number in range(60)]


def test_the_order_of_entries_does_not_depend_on_the_object_that_appends_them():
    with semel.connect("memory:") as s:
        journals = [s.journal, s.scoped(s.scope).journal, s.through("door").journal]
        for number in range(60):
            journals[number % 3].append("chat", {"n": number}, at=NOW)
        entries = s.journal.list("chat", limit=100).entries
    assert [entry.body["n"] for entry in entries] == list(range(60))


@pytest.mark.situation(35)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_other_ids_than_its_parent():
    maker = Ulids()
    maker.make(NOW)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, maker.make(NOW).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 26).decode() != maker.make(NOW)
    os.close(reading)
    os.close(writing)


def test_two_makers_make_different_ids():
    assert Ulids().make(NOW) != Ulids().make(NOW)


MOMENTS = st.floats(0, LATEST / 1000, allow_nan=False)


@given(MOMENTS, MOMENTS)
def test_ids_sort_as_their_moments_do(one, other):
    maker = Ulids()
    earlier, later = sorted((one, other))
    assert milliseconds(earlier) == milliseconds(later) or maker.make(earlier) < maker.make(later)


@given(MOMENTS)
def test_an_id_tells_its_moment_and_lies_within_its_bounds(at):
    id = Ulids().make(at)
    moment, *bounds = [ULID.from_str(one).milliseconds / 1000 for one in (id, first_ulid(at), last_ulid(at))]
    assert abs(moment - at) <= 0.0005 + at * 1e-15
    assert first_ulid(at) <= id <= last_ulid(at)
    assert bounds == [moment, moment]


@given(st.integers(0, LATEST), st.integers(0, 2**80 - 1))
def test_an_id_is_written_as_another_library_writes_it(moment, number):
    assert ulid_of(moment, number) == str(ULID(moment.to_bytes(6) + number.to_bytes(10)))


def test_what_no_id_can_hold_is_the_first_or_the_last():
    assert first_ulid(-5) == first_ulid(0) == "0" * 26
    assert last_ulid(1e18) == "7" + "Z" * 25


def test_counting_on_never_runs_over(monkeypatch):
    """Even the largest number that is drawn has room for more ids than anyone makes in a millisecond."""
    monkeypatch.setattr("os.urandom", lambda count: b"\xff" * count)
    maker = Ulids()
    made = [maker.make(NOW) for _ in range(100)]
    assert made == sorted(set(made))
    assert made[-1] < last_ulid(NOW)


def test_few_milliseconds_are_remembered():
    maker = Ulids()
    for number in range(REMEMBERED + 10):
        maker.make(NOW + number / 1000)
    assert len(maker._last) == REMEMBERED
