"""A ledger with something of everything in it, and what two stores have."""

import semel
from semel.core.drive import Store
from semel.ops.transfer import content, item_place, pages
from semel.state.mailbox import Message
from semel.tables import OWN
from tests.places import NAMES

# Of the two engines of DynamoDB, one is enough to move from and to.
MOVED = tuple(name for name in NAMES if name != "ministack")


def claimed(s: semel.Semel, key: str, **terms):
    claim = s.ledger.claim(key, **terms)
    assert isinstance(claim, semel.Claimed)
    return claim


def fill(s: semel.Semel) -> semel.Claimed:
    """Put in records of every status, documents, entries, counts and messages; the claim that is running."""
    s.ledger.complete(claimed(s, "done", fingerprint="f", subject="ann"), {"cents": 4200, "text": "é\n☃"})
    s.ledger.complete(claimed(s, "packed"), "x" * 20_000)
    s.ledger.complete(claimed(s, "nothing"), None)
    s.ledger.check_and_set("seen", ttl=3600)
    s.ledger.fail(claimed(s, "failed"), ValueError("no such card"))
    s.ledger.release(claimed(s, "released"))
    s.ledger.release(claimed(s, "released"))
    s.ledger.doubt(claimed(s, "unknown", on_lapsed="hold"))
    running = claimed(s, "running", lease=600)
    s.documents.put("doc", {"n": 2**53, "half": 0.5, "list": [None, True, "a"]}, subject="ann")
    s.documents.change("doc", {"more": {"deep": []}})
    s.journal.append("owner", {"did": "this"}, actor="bob", key="k-1", subject="ann")
    s.journal.append("owner", {"did": "that"})
    s.counters.charge("calls", 3, cap=10, token="t-1")
    s.counters.refund(s.counters.charge("calls", 2, cap=10, token="t-2"))
    s.counters.add("plain", 7)
    s.mailbox("in").put([Message("m-1", {"a": 1}, "g"), Message("m-2", {"a": 2}, "g"), Message("m-3", "b")])
    s.switches.turn("sending", on=True, reason="wrong prices")
    return running


def items_of(store: Store, env: str) -> dict:
    """Everything that an environment has, by its place."""
    return {
        item_place(table, item): content(table, item)
        for table in OWN
        for page in pages(store, table, env)
        for item in page.items
    }
