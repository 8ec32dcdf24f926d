"""Records are found by status, prefix, error, worker, person, digest and age, a page at a time."""

import pytest

from semel import Status
from semel.core.drive import Scanning
from semel.core.events import digest
from semel.errors import UsageError
from semel.ops.model import Action, Search
from semel.ops.questions import BITE
from semel.stores.dynamodb import DynamoDBStore

ERRORS = {"order:2": ValueError("no such account"), "order:3": TimeoutError("slow")}


@pytest.fixture
def filled(s, clock):
    for number in range(6):
        clock.advance(10)
        key = f"order:{number}"
        claim = s.ledger.claim(key, ttl=3600)
        if key in ERRORS:
            s.ledger.fail(claim, ERRORS[key])
        elif number < 5:
            s.ledger.complete(claim, number)
    s.ledger.complete(s.ledger.claim("mail:1", ttl=3600), "sent")
    return s


def keys(s, **search):
    return {record.key for record in s.ops.search(Search(**search)).records}


@pytest.mark.parametrize(
    ("search", "wanted"),
    [
        ({}, {f"order:{number}" for number in range(6)} | {"mail:1"}),
        ({"prefix": "order:"}, {f"order:{number}" for number in range(6)}),
        ({"status": Status.FAILED}, {"order:2", "order:3"}),
        ({"status": Status.IN_PROGRESS}, {"order:5"}),
        ({"status": Status.FAILED, "error": "TimeoutError"}, {"order:3"}),
        ({"error": "ValueError"}, {"order:2"}),
        ({"worker": "worker-1", "prefix": "mail"}, {"mail:1"}),
        ({"worker": "another"}, set()),
    ],
    ids=["all", "prefix", "failed", "running", "failed so", "error", "worker", "no worker"],
)
def test_what_is_asked_for_is_found_and_nothing_else(filled, search, wanted):
    assert keys(filled, **search) == wanted


def test_the_digest_of_a_log_line_leads_to_its_key(filled):
    id = filled.ledger.get("order:4").id
    assert keys(filled, digest=digest(id)) == keys(filled, digest=digest(id)[:8]) == {"order:4"}


def test_records_are_found_by_when_they_changed(filled, clock):
    assert keys(filled, since=clock.now() - 15) == {"order:4", "order:5", "mail:1"}
    assert keys(filled, until=clock.now() - 45) == {"order:0"}


def test_what_failed_comes_newest_first_until_it_is_let_run_again(filled):
    failed = filled.ops.search(Search(status=Status.FAILED))
    assert ([record.key for record in failed.records], failed.how) == (["order:3", "order:2"], "failures")
    filled.ops.perform(Action(name="release", key="order:3", by="ann", why="the bank is back"))
    filled.ledger.mark_processed("order:2", ttl=3600)
    assert filled.ledger.failures().records == ()
    filled.ledger.fail(filled.ledger.claim("order:3"), ValueError("again"))
    assert keys(filled, status=Status.FAILED) == {"order:3"}


def test_what_is_in_doubt_comes_oldest_first(s, clock):
    for number in range(3):
        clock.advance(1)
        s.ledger.doubt(s.ledger.claim(f"order:{number}", ttl=3600))
    found = s.ops.search(Search(in_doubt=True))
    assert [record.key for record in found.records] == ["order:0", "order:1", "order:2"]
    assert found.how == "doubts"


def test_what_is_unknown_is_found_by_the_index_of_doubts(s, clock):
    s.ledger.claim("held", lease=30, on_lapsed="hold")
    s.ledger.check_and_set("done")
    for key in ("order:1", "order:2"):
        clock.advance(60)
        s.ledger.doubt(s.ledger.claim(key, ttl=3600))
    found = s.ops.search(Search(status=Status.UNKNOWN))
    assert [record.key for record in found.records] == ["order:1", "order:2"]
    assert (found.how, found.scan, found.examined) == ("doubts", False, 3)
    assert s.ops.cost_of(Search(status=Status.UNKNOWN)).how == "index"


def test_pages_have_each_record_once_whatever_their_size(filled):
    for limit in (1, 2, 3, 7, 50):
        seen, after = [], None
        while True:
            page = filled.ops.search(Search(prefix="order:"), limit=limit, after=after)
            assert len(page.records) <= limit
            seen += [record.key for record in page.records]
            after = page.after
            if after is None:
                break
        assert sorted(seen) == [f"order:{number}" for number in range(6)]


def test_a_page_ends_though_little_of_what_it_looked_at_was_wanted(s, monkeypatch):
    monkeypatch.setattr("semel.ops.questions.EXAMINED", BITE)
    s.ledger.check_and_set_many([f"order:{number}" for number in range(BITE + 1)], ttl=3600)
    page = s.ops.search(Search(error="ValueError"))
    assert page.records == ()
    # On Redis keys of others are gone over too, the last of them in one step.
    assert BITE <= page.examined < 2 * BITE


def test_a_search_tells_beforehand_whether_an_index_leads_to_it(s):
    unordered = isinstance(s.store, Scanning)
    for search in (Search(in_doubt=True), Search(status=Status.FAILED), Search(subject="ann")):
        assert (s.ops.cost_of(search).how, s.ops.cost_of(search).whole) == ("index", None)
    by_prefix, by_worker = s.ops.cost_of(Search(prefix="order:")), s.ops.cost_of(Search(worker="w"))
    assert (by_prefix.how, by_worker.how) == ("scan" if unordered else "index", "scan")
    assert (by_prefix.whole is None) is not unordered
    if by_prefix.whole is not None:
        billed = isinstance(s.store, DynamoDBStore)
        assert by_prefix.whole.requests >= 1
        assert (by_prefix.whole.billed, by_prefix.whole.dollars is not None) == (billed, billed)


def test_what_the_store_read_is_counted_and_bounded(s, monkeypatch):
    monkeypatch.setattr("semel.ops.questions.EXAMINED", 50)
    s.ledger.check_and_set_many([f"order:{number}" for number in range(120)], ttl=3600)
    pages, after = [], None
    while True:
        page = s.ops.search(Search(status=Status.RELEASED), after=after)
        assert page.records == ()
        pages.append(page)
        after = page.after
        if after is None:
            break
    unordered = isinstance(s.store, Scanning)
    assert {page.scan for page in pages} == {unordered}
    assert sum(page.examined for page in pages) >= (120 if unordered else 0)
    if isinstance(s.store, DynamoDBStore):
        assert {page.examined for page in pages[:-1]} == {50}


def test_a_page_that_ended_early_goes_on_where_it_ended(s, monkeypatch):
    monkeypatch.setattr("semel.ops.questions.EXAMINED", 30)
    s.ledger.check_and_set_many([f"order:{number}" for number in range(100)], ttl=3600)
    for number in range(7):
        s.ledger.release(s.ledger.claim(f"late:{number}", ttl=3600))
    seen, after = [], None
    while True:
        page = s.ops.search(Search(status=Status.RELEASED), limit=2, after=after)
        seen += [record.key for record in page.records]
        after = page.after
        if after is None:
            break
    assert sorted(seen) == [f"late:{number}" for number in range(7)]


def test_a_cursor_of_something_else_is_refused(s):
    with pytest.raises(UsageError, match="cursor"):
        s.ops.search(Search(), after="nonsense")


def test_what_of_a_person_is_in_doubt_is_not_all_of_the_persons(s):
    s.ledger.complete(s.ledger.claim("mail:1", ttl=3600, subject="ann@example.com"), "sent")
    s.ledger.doubt(s.ledger.claim("mail:2", ttl=3600, subject="ann@example.com"))
    assert keys(s, subject="ann@example.com") == {"mail:1", "mail:2"}
    assert keys(s, subject="ann@example.com", in_doubt=True) == {"mail:2"}
