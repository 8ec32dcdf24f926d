"""Older items are brought into an index that was added later, while others write."""

from contextlib import closing

from semel.core.commands import Batch, Delete, Get, Put, Query, Update
from semel.core.drive import drive, run_sync
from semel.stores.backfill import backfill
from semel.stores.memory import MemoryStore
from semel.tables import LEDGER
from semel.testing import FakeClock

DOUBTS, *_ = LEDGER.later


def record(status, token="t", **more):
    return {"status": status, "token": token, "updated_at": 5, "expires_at": 9e9} | more


def filled(before, meanwhile):
    """Back-fill records, of which some are changed after they were looked at; what each is found by then."""
    with closing(MemoryStore(FakeClock())) as store:
        for key, item in before.items():
            store.execute(Put(LEDGER, f"dev/a/{key}", item))

        def answer(command):
            if isinstance(command, Batch):
                while meanwhile:
                    store.execute(meanwhile.pop())
            return store.execute(command)

        number = run_sync(backfill(LEDGER, DOUBTS, lambda _looked, _filled: None), answer)
        items = [store.execute(Get(LEDGER, f"dev/a/{key}")).item for key in before]
        found = store.execute(Query(LEDGER, "dev/a/", index="doubts")).items
        return number, [None if item is None else item.get("doubt_since") for item in items], len(found)


def test_what_is_in_doubt_is_found_by_when_it_was_last_written():
    records = {
        "unknown": record("UNKNOWN"),
        "held": record("IN_PROGRESS", expires_at=None, updated_at=6),
        "runs": record("IN_PROGRESS"),
        "known": record("UNKNOWN", doubt="dev/a/", doubt_since=3),
        "unreadable": record("UNKNOWN", updated_at=None),
        "done": record("COMPLETED"),
    }
    assert filled(records, []) == (3, [5, 6, None, 3, 0, None], 4)


def test_a_key_that_no_rule_of_the_ledger_made_is_left_alone():
    with closing(MemoryStore(FakeClock())) as store:
        store.execute(Put(LEDGER, "plain", record("UNKNOWN")))
        assert drive(backfill(LEDGER, DOUBTS, lambda _looked, _filled: None), store) == 0


def test_what_changes_meanwhile_is_judged_by_what_it_has_become():
    names = ["settled", "gone", "held", "taken"]
    before = {name: record("UNKNOWN") for name in names[:2]} | {
        "held": record("IN_PROGRESS", expires_at=None),
        "taken": record("IN_PROGRESS", expires_at=None),
    }
    meanwhile = [
        Update(LEDGER, "dev/a/settled", {"status": "COMPLETED"}),
        Delete(LEDGER, "dev/a/gone"),
        Update(LEDGER, "dev/a/held", {"status": "UNKNOWN", "updated_at": 8}),
        Put(LEDGER, "dev/a/taken", record("IN_PROGRESS", token="another")),
    ]
    assert filled(before, meanwhile) == (1, [None, None, 8, None], 1)
