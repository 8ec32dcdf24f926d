"""The store in memory lets go of what has expired, a little at a time; a query looks at what is its own."""

import threading

from semel.core.commands import ABSENT, Delete, Get, Put, Query, Transact, Update
from semel.stores.memory import BUCKET_SECONDS, SWEEP, MemoryStore
from semel.tables import JOURNAL, LEDGER
from semel.testing import FakeClock


def put(store: MemoryStore, key: str, expires_at: float) -> None:
    store.execute(Put(LEDGER, key, {"expires_at": expires_at}, ABSENT))


def test_expired_items_go_with_later_writes_and_none_goes_early() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    for n in range(1000):
        put(store, f"old{n}", clock.now() + 10)
    put(store, "lasting", clock.now() + 10_000)
    clock.advance(10 + BUCKET_SECONDS)
    for n in range(1000 // SWEEP + 1):
        put(store, f"new{n}", clock.now() + 10_000)
    assert len(store) == 1000 // SWEEP + 2
    assert store.execute(Get(LEDGER, "lasting")).item is not None


def test_no_write_removes_more_than_a_few() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    for n in range(1000):
        put(store, f"old{n}", clock.now() + 10)
    clock.advance(10 + BUCKET_SECONDS)
    put(store, "one more", clock.now() + 10)
    assert len(store) == 1000 - SWEEP + 1


def test_an_item_that_was_given_more_time_is_kept_until_then() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    put(store, "k", clock.now() + 10)
    store.execute(Update(LEDGER, "k", {"expires_at": clock.now() + 1000}))
    clock.advance(10 + BUCKET_SECONDS)
    put(store, "sweeps", clock.now() + 10)
    assert store.execute(Get(LEDGER, "k")).item is not None
    clock.advance(1000 + BUCKET_SECONDS)
    put(store, "sweeps again", clock.now() + 10)
    put(store, "and again", clock.now() + 10)
    assert store.execute(Get(LEDGER, "k")).item is None
    assert len(store) == 2


def test_a_store_that_is_written_for_ever_stays_bounded() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    sizes = []
    for n in range(20_000):
        put(store, f"k{n}", clock.now() + 60)
        clock.advance(1)
        sizes.append(len(store))
    assert max(sizes) <= 60 + 2 * BUCKET_SECONDS


def say(store: MemoryStore, owner: str, entry: str, expires_at: float) -> None:
    store.execute(Put(JOURNAL, owner, {"expires_at": expires_at, "actor": owner, "at": 1.0}, sort=entry))


def test_a_query_looks_at_no_more_than_its_partition_or_its_table() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    for n in range(100):
        put(store, f"k{n}", clock.now() + 10)
        say(store, f"owner{n % 4}", f"{n:02}", clock.now() + 10)
    looked_at = [
        (Query(JOURNAL, "owner1"), 25),
        (Query(JOURNAL, "nobody"), 0),
        (Query(JOURNAL, "owner1", index="actor-at"), 100),
        (Query(JOURNAL), 100),
        (Query(LEDGER, "k7"), 1),
        (Query(LEDGER, "k100"), 0),
        (Query(LEDGER), 100),
    ]
    assert [len(store._among(query)) for query, _ in looked_at] == [count for _, count in looked_at]
    assert len(store.execute(Query(JOURNAL, "owner1", index="actor-at")).items) == 25
    assert len(store) == 200


def test_a_partition_that_is_empty_is_forgotten() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    say(store, "deleted", "1", clock.now() + 10_000)
    store.execute(Delete(JOURNAL, "deleted", sort="1"))
    say(store, "expired", "1", clock.now() + 10)
    clock.advance(10 + BUCKET_SECONDS)
    put(store, "sweeps", clock.now() + 10)
    assert store._partitions == {}
    assert len(store) == 1


def test_a_later_version_of_an_item_is_what_a_query_finds() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    say(store, "o", "1", clock.now() + 10)
    store.execute(Update(JOURNAL, "o", {"key": "new"}, sort="1"))
    assert [item["key"] for item in store.execute(Query(JOURNAL, "o")).items] == ["new"]


def test_a_thread_that_reads_meets_all_of_a_transaction_or_nothing_of_it() -> None:
    store = MemoryStore()
    seen: list[list[int]] = []

    def attempt(key: str) -> int:
        number: int = store.execute(Get(LEDGER, key)).item["attempt"]
        return number

    reader = threading.Thread(target=lambda: seen.append([attempt("first"), attempt("last")]))

    class Last(str):
        """A key whose hash is asked for in the midst of the transaction, and then gives way to the reader."""

        __slots__ = ()

        def __hash__(self) -> int:
            if attempt("first") == 2 and reader.ident is None:
                reader.start()
                reader.join(0.2)  # which waits for the transaction
            return super().__hash__()

    for number, last in ((1, "last"), (2, Last("last"))):
        item = {"attempt": number, "expires_at": float("inf")}
        store.execute(Transact((Put(LEDGER, "first", item), Put(LEDGER, last, item))))
    reader.join()
    assert seen == [[2, 2]]
