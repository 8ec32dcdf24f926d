"""One action on all records of a page of a search."""

import json

import pytest

from semel import Status
from semel.ops.model import Action
from tests.dashboard.kit import claimed, completed, failed, hidden, journal

KEYS = ("charge:1", "charge:2", "charge:3")


@pytest.fixture
def found(s):
    for key in KEYS:
        failed(s, key)


def preview(operator, action="release", search="status=FAILED"):
    page = operator.get(f"/ledger?{search}").text
    fields = {name: hidden(page, name) for name in ("records", "back")}
    return operator.submit("/bulk", f"/ledger?{search}", action=action, **fields)


def confirm(operator, page, why="ticket 12", **more):
    fields = {name: hidden(page.text, name) for name in ("records", "back", "action")}
    return operator.submit("/bulk", "/ledger", confirmed="yes", why=why, **fields, **more)


def statuses(s):
    return [s.ledger.get(key).status for key in KEYS]


def test_what_would_change_is_shown_before_anything_does(s, found, operator):
    page = preview(operator)
    assert "3 would change" in page.text
    assert (statuses(s), journal(s)) == ([Status.FAILED] * 3, [])
    done = confirm(operator, page)
    assert "3 done, 0 left alone" in done.text
    assert (statuses(s), journal(s)) == ([Status.RELEASED] * 3, [("ann", "release")] * 3)


def test_a_record_that_changed_since_is_left_alone(s, found, operator):
    page = preview(operator)
    s.ops.perform(Action(name="drop", key=KEYS[0], by="bob", why="x"))
    s.ops.perform(Action(name="complete", key=KEYS[1], by="bob", why="x"))
    done = confirm(operator, page)
    assert "has changed since" in done.text
    assert statuses(s)[1:] == [Status.COMPLETED, Status.RELEASED]


def test_what_cannot_be_done_to_a_record_is_told_beforehand(s, operator):
    completed(s, "charge:1")
    claimed(s, "charge:2")
    failed(s, "charge:3")
    page = preview(operator, search="prefix=charge")
    assert "1 would change, and 2 would be left alone" in page.text
    assert "somebody is at work on it" in page.text


def test_no_reason_nothing_done(s, found, operator):
    page = confirm(operator, preview(operator), why=" ")
    assert (page.status_code, statuses(s), journal(s)) == (400, [Status.FAILED] * 3, [])


def test_all_of_them_are_given_the_result_that_is_typed(s, found, operator):
    confirm(operator, preview(operator, "complete"), result='{"id": 7}', days="2")
    assert [s.ledger.result(s.ledger.get(key)) for key in KEYS] == [{"id": 7}] * 3


TOO_MANY = json.dumps([["a", "b"]] * 51)


@pytest.mark.parametrize("records", ["", "[]", '["a"]', '[["a", ""]]', TOO_MANY], ids=len)
def test_records_that_no_page_has_are_refused(s, found, operator, records):
    answer = operator.submit("/bulk", "/ledger", action="release", records=records, confirmed="yes", why="x")
    assert (answer.status_code, statuses(s)) == (400, [Status.FAILED] * 3)
