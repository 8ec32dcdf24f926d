"""The ledger where the conformance suite does not reach: what it refuses, and what cannot be read."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import semel
from semel.core.commands import Delete, Put, Query, Refused, Transact
from semel.core.drive import drive
from semel.core.ledger import LedgerSteps
from semel.core.realm import Realm
from semel.stores.memory import MemoryStore
from semel.tables import LEDGER
from semel.testing import FakeClock, Faulty


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def s(clock: FakeClock) -> semel.Semel:
    return semel.connect("memory:", clock=clock)


@pytest.mark.parametrize(
    "options",
    [
        {"on_lapsed": "bogus"},
        {"max_attempts": 0},
        {"lease": 0},
        {"lease": 5, "ttl": 5},
        {"ttl": float("nan")},
    ],
    ids=str,
)
def test_terms_that_cannot_work_are_refused(s: semel.Semel, options: dict[str, Any]) -> None:
    with pytest.raises(semel.InvalidOption):
        s.ledger.claim("k", **options)
    assert s.ledger.get("k") is None


@pytest.mark.parametrize("options", [{"status": "bogus"}, {"limit": 0}, {"after": "nonsense"}], ids=str)
def test_a_page_that_cannot_be_is_refused(s: semel.Semel, options: dict[str, Any]) -> None:
    s.ledger.check_and_set("k")
    with pytest.raises(semel.UsageError):
        s.ledger.list(**options)


def test_an_attempt_that_was_none_does_not_count(s: semel.Semel) -> None:
    """The next one has its number, so that a limit is never used up by waiting."""
    for counted, attempt in ((False, 1), (False, 1), (True, 1), (False, 2), (True, 2)):
        claims = [s.ledger.claim("a", max_attempts=2), *s.ledger.claim_many(["b", "c"], max_attempts=2)]
        assert [claim.attempt for claim in claims if isinstance(claim, semel.Claimed)] == [attempt] * 3
        s.ledger.release(claims[0], counted=counted)  # type: ignore[arg-type]
        s.ledger.release_many(claims[1:], ValueError("no"), counted=counted)  # type: ignore[arg-type]
    assert isinstance(s.ledger.claim("a", max_attempts=2), semel.Failed)


def test_several_claims_are_in_doubt_at_once_but_for_those_that_were_lost(
    s: semel.Semel, clock: FakeClock
) -> None:
    held: list[semel.Event] = []
    s.events.listen(lambda event: held.append(event) if event.what is semel.What.HELD else None)
    mine = s.ledger.claim_many(["a", "b"])
    clock.advance(60)
    s.ledger.claim("b")
    assert s.ledger.doubt_many(mine) == [True, False]  # type: ignore[arg-type]
    assert [record and record.status for record in map(s.ledger.get, ["a", "b"])] == [
        semel.Status.UNKNOWN,
        semel.Status.IN_PROGRESS,
    ]
    assert [(event.attempt, event.warned) for event in held] == [(1, True)]


def test_where_one_of_many_cannot_be_read_none_is_claimed(s: semel.Semel) -> None:
    s.ledger.check_and_set("b")
    item = s.store.execute(Put(LEDGER, "dev//b", {}, semel.core.commands.ABSENT)).item
    s.store.execute(Put(LEDGER, "dev//b", item | {"status": "NONSENSE"}))
    with pytest.raises(semel.RecordCorrupt):
        s.ledger.claim_many(["a", "b", "c"])
    mine = s.ledger.claim_many(["a", "c"])
    assert [claim.attempt for claim in mine if isinstance(claim, semel.Claimed)] == [1, 1]


def test_what_is_told_about_many_is_kept_with_each(s: semel.Semel) -> None:
    claims = s.ledger.claim_many(["a", "b"])
    s.ledger.complete_many(claims, details={"notes": "together"})  # type: ignore[arg-type]
    assert [record and record.details for record in map(s.ledger.get, ["a", "b"])] == [
        {"notes": "together"}
    ] * 2


@pytest.mark.parametrize("settlement", [semel.Undecided(), "nonsense", None], ids=repr)
def test_what_settles_nothing_is_refused_and_changes_nothing(
    s: semel.Semel, clock: FakeClock, settlement: Any
) -> None:
    s.ledger.claim("k")
    clock.advance(60)
    before = s.ledger.get("k")
    with pytest.raises(semel.InvalidOption, match="settles nothing"):
        s.ledger.resolve("k", settlement)
    assert s.ledger.get("k") == before


def test_a_vanished_attempt_can_be_marked_as_processed(s: semel.Semel, clock: FakeClock) -> None:
    s.ledger.claim("k")
    with pytest.raises(semel.InProgress):
        s.ledger.mark_processed("k")
    clock.advance(60)
    s.ledger.mark_processed("k")
    assert s.ledger.is_processed("k")


@pytest.mark.parametrize(
    "wrong", [{"status": "bogus"}, {"version": 2}, {"token": None}, {"attempt": "x"}], ids=str
)
def test_a_record_that_cannot_be_read_is_named_and_can_be_forgotten(
    s: semel.Semel, clock: FakeClock, wrong: dict[str, Any]
) -> None:
    s.ledger.check_and_set("k")
    item = s.store.execute(Put(LEDGER, "dev//k", {}, semel.core.commands.ABSENT)).item
    s.store.execute(Put(LEDGER, "dev//k", item | wrong))
    ran = []
    with pytest.raises(semel.RecordCorrupt):
        s.once("k")(lambda: ran.append(1))()
    listing = s.ledger.list()
    assert (ran, listing.records, listing.unreadable) == ([], (), ("k",))
    assert s.ledger.forget("k") is True
    assert s.ledger.check_and_set("k") is True


def test_an_unreadable_result_names_the_key_as_its_caller_wrote_it(s: semel.Semel) -> None:
    s.once("k")(lambda: "text")()
    with pytest.raises(semel.ResultUnreadable) as caught:
        s.ledger.claim("k", returns=int)
    assert caught.value.key == "k"


def test_a_file_that_its_overflow_did_not_make_is_unreadable(s: semel.Semel, tmp_path: Any) -> None:
    s.store.overflow = semel.FileOverflow(tmp_path)
    s.ledger.check_and_set("k")
    item = s.store.execute(Put(LEDGER, "dev//k", {}, semel.core.commands.ABSENT)).item
    s.store.execute(Put(LEDGER, "dev//k", item | {"result": b"../../etc", "encoding": "json+overflow"}))
    with pytest.raises(semel.ResultUnreadable):
        s.ledger.claim("k")


def test_a_page_of_nothing_and_a_transaction_that_contradicts_itself_are_refused() -> None:
    with pytest.raises(semel.UsageError, match="at least one"):
        Query(LEDGER, limit=0)
    with pytest.raises(semel.UsageError, match="once"):
        Transact((Put(LEDGER, "k", {}), Delete(LEDGER, "k")))


def test_a_closed_store_says_so() -> None:
    s = semel.connect("memory:")
    s.close()
    with pytest.raises(semel.StoreClosed):
        s.ledger.get("k")


def test_every_attempt_has_a_token_of_its_own(clock: FakeClock) -> None:
    """A claim was made, its answer lost, and somebody settled it: the next attempt is not the same one."""
    store, ledger = MemoryStore(clock), LedgerSteps(Realm())
    steps = ledger.claim("k", lease=30)
    store.execute(next(steps))
    clock.advance(30)
    first = drive(ledger.get("k"), store)
    drive(ledger.resolve("k", semel.NotHappened()), store)
    again = steps.throw(semel.StoreOutcomeUnknown("lost"))
    reclaim = steps.send(store.execute(again))
    store.execute(reclaim)
    second = drive(ledger.get("k"), store)
    assert first is not None
    assert second is not None
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.token != second.token


def test_a_resolution_is_refused_if_the_lease_was_renewed_after_it_was_read(clock: FakeClock) -> None:
    """What is marked as unresolved later is another matter, even if the attempt is the same."""
    store, ledger = MemoryStore(clock), LedgerSteps(Realm())
    claim: Any = drive(ledger.claim("k", lease=30), store)
    clock.advance(30)
    resolving: Any = ledger.resolve("k", semel.NotHappened())
    hold = resolving.send(store.execute(next(resolving)))
    drive(ledger.renew(claim), store)
    settle = resolving.send(store.execute(hold))
    drive(ledger.doubt(claim), store)
    with pytest.raises(semel.ClaimLost):
        resolving.send(store.execute(settle))
    record = drive(ledger.get("k"), store)
    assert record is not None
    assert record.status is semel.Status.UNKNOWN


def test_a_resolution_counts_if_the_attempt_was_marked_as_unresolved_meanwhile(clock: FakeClock) -> None:
    store, ledger = MemoryStore(clock), LedgerSteps(Realm())
    drive(ledger.claim("k", lease=30), store)
    clock.advance(30)
    resolving: Any = ledger.resolve("k", semel.NotHappened())
    hold = resolving.send(store.execute(next(resolving)))
    drive(ledger.claim("k", lease=30, on_lapsed="hold"), store)
    settle = resolving.send(store.execute(hold))
    with pytest.raises(StopIteration):
        resolving.send(store.execute(settle))
    record = drive(ledger.get("k"), store)
    assert record is not None
    assert record.status is semel.Status.RELEASED


def test_a_claim_that_came_through_late_knows_which_attempt_it_is(clock: FakeClock) -> None:
    """The first write was held up, the record it met was forgotten meanwhile, and then it arrived."""
    store, ledger = MemoryStore(clock), LedgerSteps(Realm())
    earlier = drive(ledger.claim("k"), store)
    assert isinstance(earlier, semel.Claimed)
    drive(ledger.release(earlier), store)
    steps: Any = ledger.claim("k")
    held_up = next(steps)
    again = steps.throw(semel.StoreOutcomeUnknown("held up"))
    second_attempt = steps.send(store.execute(again))
    drive(ledger.forget("k"), store)
    store.execute(held_up)
    with pytest.raises(StopIteration) as end:
        steps.send(store.execute(second_attempt))
    record = drive(ledger.get("k"), store)
    assert record is not None
    assert (end.value.value.attempt, end.value.value.lapsed) == (record.attempt, False) == (1, False)


def test_a_take_over_that_comes_through_late_is_refused_once_the_record_has_moved(clock: FakeClock) -> None:
    """Also if the attempt that it was meant for has come back with the same token, and vanished again."""
    store, ledger = MemoryStore(clock), LedgerSteps(Realm())
    options: Any = {"lease": 30, "on_lapsed": "resolve"}
    returning: Any = ledger.claim("k", **options)
    store.execute(next(returning))
    its_claim = returning.throw(semel.StoreOutcomeUnknown("lost"))
    clock.advance(31)
    late: Any = ledger.claim("k", **options)
    held_up = late.send(store.execute(next(late)))
    again = late.throw(semel.StoreOutcomeUnknown("held up"))
    drive(ledger.resolve("k", semel.NotHappened()), store)
    between = drive(ledger.claim("k", **options), store)
    assert isinstance(between, semel.Claimed)
    drive(ledger.release(between), store)
    reclaim = late.send(store.execute(again))
    begun = drive(ledger.claim("k", **options), store)
    assert isinstance(begun, semel.Claimed)
    clock.advance(31)
    store.execute(returning.send(store.execute(its_claim)))
    clock.advance(31)
    assert isinstance(store.execute(held_up), Refused)
    taking_over = late.send(store.execute(reclaim))
    with pytest.raises(StopIteration) as end:
        late.send(store.execute(taking_over))
    assert end.value.value.lapsed


def test_a_take_over_whose_caller_is_interrupted_leaves_the_policy_to_decide(clock: FakeClock) -> None:
    store, ledger = MemoryStore(clock), LedgerSteps(Realm())
    drive(ledger.claim("k", lease=30, on_lapsed="resolve"), store)
    clock.advance(31)
    taking: Any = ledger.claim("k", lease=30, on_lapsed="resolve")
    take_over = taking.send(store.execute(next(taking)))
    store.execute(take_over)
    first = taking.throw(KeyboardInterrupt())
    store.execute(taking.send(store.execute(first)))
    record = drive(ledger.get("k"), store)
    assert record is not None
    assert record.status is semel.Status.IN_PROGRESS
    assert record.lease_until <= clock.now()


HORIZON = timedelta(hours=75)


@pytest.mark.seed("A7")
def test_a_ttl_shorter_than_the_others_retries_is_refused_with_both_numbers(
    clock: FakeClock,
) -> None:
    s = semel.connect(horizon=HORIZON, clock=clock)
    both = r"ttl \(86400 s\).* horizon \(270000 s\)"
    with pytest.raises(semel.InvalidOption, match=both):
        s.once("k", ttl=semel.DAY)
    with pytest.raises(semel.InvalidOption, match=both):
        s.once.running("k", ttl=semel.DAY)
    with pytest.raises(semel.InvalidOption, match=both):
        s.ledger.claim("k", ttl=semel.DAY)
    for ask in (s.ledger.check_and_set, s.ledger.mark_processed):
        with pytest.raises(semel.InvalidOption, match=both):
            ask("k", semel.DAY)
    with pytest.raises(semel.InvalidOption, match=both):
        s.scoped("tenant").ledger.check_and_set_many(["k"], semel.DAY)
    assert s.ledger.get("k") is None


@pytest.mark.seed("A7")
def test_a_function_remembers_as_long_as_the_other_side_retries(clock: FakeClock) -> None:
    s = semel.connect(horizon=HORIZON, clock=clock)
    runs: list[str] = []
    handle = s.once("k")(lambda: runs.append("ran"))
    brief = s.once("brief", horizon=60, ttl=90)(lambda: runs.append("brief"))
    for _ in range(2):
        handle()
        brief()
        clock.advance(HORIZON.total_seconds() - 1)
    assert runs == ["ran", "brief", "brief"]


def not_claimed(s: semel.Semel, clock: FakeClock) -> dict[str, Any]:
    """What a claim can answer, and what else may be given by mistake."""
    s.ledger.mark_processed("done")
    s.ledger.claim("busy", fingerprint="one")
    failed, vanished = s.ledger.claim("failed"), s.ledger.claim("vanished", lease=1)
    assert isinstance(failed, semel.Claimed)
    s.ledger.fail(failed, ValueError("no"))
    assert isinstance(vanished, semel.Claimed)
    clock.advance(2)
    found: dict[str, Any] = {
        key: s.ledger.claim(key, on_lapsed="hold") for key in ("done", "failed", "vanished")
    }
    found["busy"] = s.ledger.claim("busy", fingerprint="one")
    found["changed"] = s.ledger.claim("busy", fingerprint="another")
    return found


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("done", "'done' was not claimed: the answer was Replay, it is done already"),
        ("busy", "'busy' was not claimed: the answer was Busy, another attempt holds it"),
        ("failed", "'failed' was not claimed: the answer was Failed, it failed for good"),
        ("changed", "'busy' was not claimed: the answer was Mismatch, it was first used with another"),
        ("vanished", "'vanished' was not claimed: the answer was Unknown, an attempt vanished"),
    ],
)
def test_another_outcome_in_place_of_a_claim_is_refused_by_what_it_is(
    s: semel.Semel, clock: FakeClock, key: str, told: str
) -> None:
    outcome = not_claimed(s, clock)[key]
    ledger, aio = s.ledger, s.aio.ledger
    calls: list[Callable[[], Any]] = [
        lambda: ledger.complete(outcome, 1),
        lambda: ledger.fail(outcome, ValueError("x")),
        lambda: ledger.release(outcome),
        lambda: ledger.renew(outcome),
        lambda: ledger.lapse(outcome),
        lambda: ledger.doubt(outcome),
        lambda: ledger.complete_many([outcome], 1),
        lambda: ledger.release_many(iter([outcome])),
        lambda: asyncio.run(aio.complete(outcome, 1)),
        lambda: s.transaction().ledger.complete(outcome, 1),
        lambda: s.transaction().ledger.fail(outcome, ValueError("x")),
        lambda: s.transaction().ledger.release(outcome),
    ]
    for call in calls:
        with pytest.raises(semel.UsageError) as error:
            call()
        assert str(error.value).startswith(told)


def test_what_is_no_outcome_at_all_is_no_claim(s: semel.Semel) -> None:
    with pytest.raises(semel.UsageError, match=r"a claim is the Claimed that .* answered, not str"):
        s.ledger.complete("order:1")  # type: ignore[arg-type]


@pytest.mark.parametrize("horizon", [0, -1, float("inf")])
def test_a_horizon_is_a_span_of_time(horizon: float) -> None:
    with pytest.raises(semel.InvalidOption):
        semel.connect(horizon=horizon)


@pytest.mark.situation(13)
@pytest.mark.seed("A2")
@pytest.mark.seed("A7")
def test_a_key_is_new_once_and_processed_until_its_time_is_up(s: semel.Semel, clock: FakeClock) -> None:
    assert s.ledger.is_processed("k") is False
    assert [s.ledger.check_and_set("k", semel.HOUR) for _ in range(3)] == [True, False, False]
    assert s.ledger.is_processed("k") is True
    clock.advance(semel.HOUR)
    assert s.ledger.is_processed("k") is False
    s.ledger.mark_processed("k", semel.DAY)
    clock.advance(semel.HOUR)
    assert s.ledger.check_and_set("k") is False
    clock.advance(semel.DAY)
    assert s.ledger.check_and_set("k") is True


@pytest.mark.situation(1)
def test_a_crash_before_the_claim_leaves_no_record_and_the_retry_runs(clock: FakeClock) -> None:
    store = Faulty(MemoryStore(clock))
    s = semel.Semel(store, clock=clock)
    ran: list[int] = []
    work = s.once("k")(lambda: ran.append(semel.current_run().attempt))
    store.refuse()
    with pytest.raises(semel.StoreUnavailable):
        work()
    assert (s.ledger.get("k"), ran) == (None, [])
    work()
    assert ran == [1]


@pytest.mark.situation(15)
def test_a_record_that_is_born_again_fits_no_old_claim(s: semel.Semel) -> None:
    old = s.ledger.claim("k")
    assert isinstance(old, semel.Claimed)
    s.ledger.forget("k")
    new = s.ledger.claim("k")
    assert isinstance(new, semel.Claimed)
    assert new.attempt == old.attempt
    with pytest.raises(semel.ClaimLost):
        s.ledger.complete(old, "old")
    s.ledger.complete(new, "new")
    assert s.ledger.claim("k").result == "new"


def test_only_a_store_with_transactions_can_be_joined(s: semel.Semel) -> None:
    with pytest.raises(semel.UsageError, match="PostgreSQL"):
        s.ledger.within(object())
