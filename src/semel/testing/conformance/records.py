# ruff: noqa: S101, S105 - these are tests, for whoever writes a store to subclass
"""Results, payloads, settlements, marks, lists, limits: the ledger as its callers see it."""

from collections.abc import Callable, Collection
from typing import Any

import pytest

from semel import errors
from semel.core.drive import Scanning
from semel.core.lifecycle import Status
from semel.model import (
    MISSING,
    RECORD_VERSION,
    Abandoned,
    Busy,
    Claimed,
    Failed,
    Failure,
    Happened,
    Mismatch,
    NotHappened,
    Replay,
    Unknown,
)
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import (
    Harness,
    Runner,
    RunnerLedger,
    claimed,
    failure,
    keys,
    named,
    present,
    replayed,
    writes,
)
from semel.testing.conformance.moves import OPERATIONS, record
from semel.testing.faulty import Faulty

RESULTS: list[Any] = [
    None,
    False,
    True,
    0,
    -0.5,
    "",
    "caf\u00e9 cafe\u0301 \U0001f600",
    [],
    {},
    [None, 0, "", [], {}],
    {"a": None, "b": {"c": [1, 2.5, "x"]}},
    "long " * 10_000,
]


class RecordTests(Harness):
    """One record from its claim to its end."""

    def test_a_claim_is_one_write(self, ledger: RunnerLedger, store: Faulty) -> None:
        """Winning takes one round trip, and so does learning what is in the way."""
        claimed(ledger.claim("key"))
        assert len(store.seen) == writes(store.seen) == 1
        assert type(ledger.claim("key")) is Busy
        assert len(store.seen) == 2

    def test_many_are_claimed_in_one_write(self, ledger: RunnerLedger, store: Faulty) -> None:
        """Keys that nobody used take one round trip; whoever loses one learns why."""
        ledger.complete(claimed(ledger.claim("done")), 1)
        claimed(ledger.claim("busy"))
        before = len(store.seen)
        first = ledger.claim_many(["a", "b", "c"])
        assert [type(one) for one in first] == [Claimed] * 3
        assert len(store.seen) == before + 1
        second = ledger.claim_many(["a", "done", "busy", "d"])
        assert [type(one) for one in second] == [Busy, Replay, Busy, Claimed]
        assert replayed(second[1]) == 1
        assert ledger.claim_many([]) == []
        with pytest.raises(errors.UsageError, match="once in a batch"):
            ledger.claim_many(["e", "e"])
        assert ledger.get("e") is None

    def test_many_are_settled_in_one_write(
        self, ledger: RunnerLedger, store: Faulty, clock: FakeClock
    ) -> None:
        """Who lost a claim is told so, and the others' results are kept."""
        claims = [claimed(one) for one in ledger.claim_many(["a", "b", "c"], lease=10)]
        clock.advance(11)
        ledger.complete(claimed(ledger.claim("b")), "theirs")
        before = len(store.seen)
        assert ledger.complete_many(claims, "mine") == [True, False, True]
        assert len(store.seen) == before + 1
        assert [replayed(ledger.claim(key)) for key in "abc"] == ["mine", "theirs", "mine"]
        assert ledger.complete_many([]) == []

    def test_many_are_given_back_in_one_write(self, ledger: RunnerLedger) -> None:
        """They may be claimed again, as second attempts; a result that was kept stays."""
        claims = [claimed(one) for one in ledger.claim_many(["a", "b"])]
        ledger.complete(claims[1], "kept")
        assert ledger.release_many(claims, ValueError("no")) == [True, False]
        again = ledger.claim_many(["a", "b"])
        assert claimed(again[0]).attempt == 2
        assert replayed(again[1]) == "kept"

    def test_many_that_were_given_back_are_claimed_in_one_more_write(
        self, ledger: RunnerLedger, store: Faulty
    ) -> None:
        """However many they are; new ones among them and those that are done take none of it."""
        mine = [claimed(one) for one in ledger.claim_many(["a", "b", "c"])]
        ledger.release_many(mine)
        ledger.complete(claimed(ledger.claim("done")), 1)
        before = len(store.seen)
        again = ledger.claim_many(["a", "new", "b", "done", "c"])
        assert [type(one) for one in again] == [Claimed, Claimed, Claimed, Replay, Claimed]
        assert [claimed(again[number]).attempt for number in (0, 1, 2, 4)] == [2, 1, 2, 2]
        assert len(store.seen) == before + 2

    def test_an_attempt_that_was_none_has_the_number_of_the_next(self, ledger: RunnerLedger) -> None:
        """Whoever only waited for its turn gives the claim back without having it counted."""
        for _ in range(2):
            claims = [claimed(one) for one in ledger.claim_many(["a", "b"], max_attempts=1)]
            assert [claim.attempt for claim in claims] == [1, 1]
            ledger.release_many(claims, ValueError("no"), counted=False)
            claim = claimed(ledger.claim("c", max_attempts=1))
            assert claim.attempt == 1
            ledger.release(claim, counted=False)

    def test_lost_answers_lose_no_claim_of_many(self, ledger: RunnerLedger, store: Faulty) -> None:
        """A batch whose answer was lost is sent again, and finds its own claims and completions."""
        store.lose_reply()
        claims = [claimed(one) for one in ledger.claim_many(["a", "b"])]
        assert [claim.attempt for claim in claims] == [1, 1]
        store.lose_reply()
        assert ledger.complete_many(claims, 7) == [True, True]

    def test_a_record_says_what_is_known(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """Status, attempt, token, times and fingerprint, by the store's clock."""
        claim = claimed(ledger.claim("key", fingerprint="f", lease=30, ttl=600))
        found = ledger.record("key")
        assert (found.key, found.status, found.attempt) == ("key", Status.IN_PROGRESS, 1)
        assert (found.token, found.fingerprint, found.version) == (claim.token, "f", RECORD_VERSION)
        times = [found.created_at, found.updated_at, found.lease_until, found.expires_at]
        now = clock.now()
        assert times == pytest.approx([now, now, now + 30, now + 600], abs=1e-3)
        assert ledger.get("other") is None

    @pytest.mark.parametrize("result", RESULTS, ids=named)
    def test_a_result_comes_back_as_it_went_in(self, ledger: RunnerLedger, result: Any) -> None:
        """Falsy results are results: none of them is taken for a missing one, or for another."""
        ledger.complete(claimed(ledger.claim("key")), result)
        for _ in range(2):
            again = replayed(ledger.claim("key"))
            assert again == result
            assert type(again) is type(result)
        assert ledger.is_processed("key") is True

    def test_a_result_is_forgotten_after_its_time(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """The time to live counts from the completion; then the key is as new."""
        claim = claimed(ledger.claim("key", lease=30, ttl=60))
        clock.advance(29)
        ledger.complete(claim, "kept")
        clock.advance(59)
        assert type(ledger.claim("key")) is Replay
        clock.advance(1)
        again = claimed(ledger.claim("key"))
        assert (again.attempt, again.lapsed) == (1, False)

    def test_a_failure_is_kept(self, ledger: RunnerLedger) -> None:
        """It is told again and never run again."""
        ledger.fail(claimed(ledger.claim("key")), ValueError("no such card"))
        for _ in range(2):
            assert failure(ledger.claim("key")) == Failure("ValueError", "no such card")

    def test_a_released_key_runs_again(self, ledger: RunnerLedger) -> None:
        """Attempts stay counted, and the error of the last is in the record."""
        for attempt in (1, 2, 3):
            claim = claimed(ledger.claim("key"))
            assert (claim.attempt, claim.lapsed) == (attempt, False)
            ledger.release(claim, ConnectionError(f"failed at {attempt}"))
        assert ledger.record("key").failure == Failure("ConnectionError", "failed at 3")

    @pytest.mark.parametrize("status", Status)
    @pytest.mark.parametrize("lapsed", [True, False])
    def test_another_payload_is_refused_and_changes_nothing(
        self, ledger: RunnerLedger, clock: FakeClock, status: Status, lapsed: bool
    ) -> None:
        """Whatever state the record is in."""
        ledger.write("key", record(clock, status, lapsed=lapsed) | {"fingerprint": "first"})
        before = ledger.raw("key")
        outcome = ledger.claim("key", fingerprint="second")
        assert type(outcome) is Mismatch
        assert outcome.record.token == "held"
        assert ledger.raw("key") == before
        assert type(ledger.claim("key", fingerprint="first")) is not Mismatch

    def test_a_payload_stays_with_its_key_through_take_overs(
        self, ledger: RunnerLedger, clock: FakeClock
    ) -> None:
        """The first payload counts, for the second attempt's callers too."""
        ledger.claim("key", fingerprint="first", lease=30)
        clock.advance(30)
        claimed(ledger.claim("key", lease=30))
        assert type(ledger.claim("key", fingerprint="second")) is Mismatch
        assert type(ledger.claim("key", fingerprint="first")) is Busy

    def test_a_dropped_result_leaves_a_tombstone(self, ledger: RunnerLedger) -> None:
        """The fact stays, so the key does not run again; what came of it is missing, not None."""
        ledger.complete(claimed(ledger.claim("key")), "personal")
        assert ledger.drop_result("key") is True
        found = ledger.record("key")
        assert found.tombstone
        assert found.result is None
        assert replayed(ledger.claim("key")) is MISSING
        assert ledger.is_processed("key") is True

    def test_only_a_completed_record_has_a_result_to_drop(self, ledger: RunnerLedger) -> None:
        """Elsewhere nothing is dropped, and nothing changes."""
        assert ledger.drop_result("key") is False
        claimed(ledger.claim("key"))
        before = ledger.raw("key")
        assert ledger.drop_result("key") is False
        assert ledger.raw("key") == before

    def test_a_forgotten_key_is_new(self, ledger: RunnerLedger) -> None:
        """Forgetting says whether there was anything."""
        assert ledger.forget("key") is False
        ledger.complete(claimed(ledger.claim("key")), "kept")
        assert ledger.forget("key") is True
        assert ledger.get("key") is None
        assert claimed(ledger.claim("key")).attempt == 1

    @pytest.mark.parametrize(
        "damage", [{"status": "DONE"}, {"version": RECORD_VERSION + 1}, {"attempt": 1.5}]
    )
    def test_a_corrupt_record_is_never_claimed(
        self, ledger: RunnerLedger, clock: FakeClock, damage: dict[str, Any]
    ) -> None:
        """What cannot be read is reported and left alone, even when its lease is over; lists leave it out."""
        ledger.write("key", record(clock, Status.IN_PROGRESS, lapsed=True) | damage)
        before = ledger.raw("key")
        for ask in (ledger.claim, ledger.get, ledger.wait, ledger.mark_processed):
            with pytest.raises(errors.RecordCorrupt) as caught:
                ask("key")
            assert caught.value.key == "key"
        assert ledger.check_and_set("key") is False
        assert ledger.list().records == ()
        assert ledger.raw("key") == before

    def test_environments_and_scopes_do_not_meet(self, runner: Runner, ledger: RunnerLedger) -> None:
        """A key elsewhere is another record."""
        claimed(ledger.claim("key"))
        for env, scope in (("test", "tenant"), ("tes", "t"), ("other", ""), ("TEST", "")):
            other = RunnerLedger(runner, env=env, scope=scope)
            assert other.get("key") is None
            assert type(other.claim("key")) is Claimed


class LimitTests(Harness):
    """Attempts, holds, settlements and waiting."""

    def test_given_back_too_often(self, ledger: RunnerLedger) -> None:
        """At the limit the record fails for good, with the last error, and can be listed."""
        for attempt in (1, 2):
            claim = claimed(ledger.claim("key", max_attempts=2))
            ledger.release(claim, TimeoutError(f"at {attempt}"))
        for _ in range(2):
            failed = ledger.claim("key", max_attempts=2)
            assert type(failed) is Failed
            assert failed.failure == Failure("TimeoutError", "at 2")
            assert failed.record.attempt == 2
        assert keys(ledger.list, status=Status.FAILED) == ["key"]

    def test_vanished_too_often(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """A poison message is not taken over for ever."""
        for attempt in (1, 2):
            claim = claimed(ledger.claim("key", lease=30, max_attempts=2))
            assert claim.attempt == attempt
            clock.advance(30)
        assert failure(ledger.claim("key", lease=30, max_attempts=2)).type == "AttemptsExhausted"

    def test_a_lapsed_attempt_is_held(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """Under `hold` nobody runs it again, whatever policy the next caller has."""
        claimed(ledger.claim("key", lease=30))
        clock.advance(30)
        for on_lapsed in ("hold", "rerun", "resolve"):
            outcome = ledger.claim("key", on_lapsed=on_lapsed)
            assert type(outcome) is Unknown
            assert outcome.record.attempt == 1
        found = ledger.record("key")
        assert found.status is Status.UNKNOWN

    @pytest.mark.parametrize("held", [True, False])
    @pytest.mark.parametrize("result", ["found", None, 0])
    def test_settled_as_happened(
        self, ledger: RunnerLedger, clock: FakeClock, held: bool, result: Any
    ) -> None:
        """The result that somebody found out is replayed, whether the attempt was held yet or only lapsed."""
        self._vanish(ledger, clock, held)
        ledger.resolve("key", Happened(result))
        assert replayed(ledger.claim("key")) == result

    @pytest.mark.parametrize("held", [True, False])
    def test_settled_as_not_happened(self, ledger: RunnerLedger, clock: FakeClock, held: bool) -> None:
        """It runs again, and nothing is in doubt any more."""
        self._vanish(ledger, clock, held)
        ledger.resolve("key", NotHappened())
        claim = claimed(ledger.claim("key", on_lapsed="hold"))
        assert (claim.attempt, claim.lapsed) == (2, False)

    @pytest.mark.parametrize("held", [True, False])
    def test_settled_as_abandoned(self, ledger: RunnerLedger, clock: FakeClock, held: bool) -> None:
        """It stays failed, with the reason."""
        self._vanish(ledger, clock, held)
        ledger.resolve("key", Abandoned("the customer left"))
        assert failure(ledger.claim("key")) == Failure("Abandoned", "the customer left")

    @pytest.mark.parametrize(
        "status", [None, Status.IN_PROGRESS, Status.COMPLETED, Status.FAILED, Status.RELEASED]
    )
    def test_only_a_doubt_can_be_settled(
        self, ledger: RunnerLedger, clock: FakeClock, status: Status | None
    ) -> None:
        """Anything else is refused and left as it is."""
        if status is not None:
            ledger.write("key", record(clock, status))
        before = ledger.raw("key")
        with pytest.raises(errors.Refused):
            ledger.resolve("key", Happened("wrong"))
        assert ledger.raw("key") == before

    def test_waiting_for_nobody(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """Where nobody is at work the record is given at once."""
        began = clock.monotonic()
        assert ledger.wait("key") is None
        ledger.complete(claimed(ledger.claim("key")), 0)
        assert present(ledger.wait("key")).status is Status.COMPLETED
        assert clock.monotonic() == began

    @pytest.mark.parametrize("end", ["complete", "fail", "release", "forget"])
    def test_waiting_for_an_end(self, ledger: RunnerLedger, clock: FakeClock, end: str) -> None:
        """Whatever comes of the work ends the wait, long before its time is up."""
        claim = claimed(ledger.claim("key", lease=1000))
        endings = {name: operation for name, (operation, _, _) in OPERATIONS.items()}
        endings["forget"] = lambda ledger, _: ledger.forget("key")
        clock.schedule(3.0, lambda: endings[end](ledger.direct, claim))
        began = clock.monotonic()
        found = ledger.wait("key", timeout=900)
        assert (found is None) is (end == "forget")
        assert 3.0 <= clock.monotonic() - began <= 10.0

    def test_waiting_for_a_lease_to_end(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """A holder that vanished is not waited for any longer than its lease."""
        claimed(ledger.claim("key", lease=5))
        began = clock.monotonic()
        assert present(ledger.wait("key", timeout=900)).status is Status.IN_PROGRESS
        assert 4.999 <= clock.monotonic() - began <= 7.0

    def test_waiting_has_an_end(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """After the time given, the key is still busy, and the error says for how long."""
        claimed(ledger.claim("key", lease=100))
        with pytest.raises(errors.InProgress) as caught:
            ledger.wait("key", timeout=10)
        assert 80 <= caught.value.retry_after <= 90.001
        assert clock.monotonic() >= 10

    def _vanish(self, ledger: RunnerLedger, clock: FakeClock, held: bool) -> None:
        claimed(ledger.claim("key", lease=30))
        clock.advance(30)
        if held:
            assert type(ledger.claim("key", on_lapsed="hold")) is Unknown


class MarkTests(Harness):
    """Marks without work, and lists."""

    def test_new_once(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """`check_and_set` is True the first time, False until its time is up, and one write each."""
        assert ledger.check_and_set("key", ttl=60) is True
        assert ledger.check_and_set("key", ttl=60) is False
        clock.advance(59)
        assert ledger.check_and_set("key", ttl=60) is False
        clock.advance(1)
        assert ledger.check_and_set("key", ttl=60) is True

    def test_new_is_done(self, ledger: RunnerLedger) -> None:
        """A key that was set is processed, and its result is missing, not None."""
        assert ledger.is_processed("key") is False
        ledger.check_and_set("key")
        assert ledger.is_processed("key") is True
        assert replayed(ledger.claim("key")) is MISSING

    @pytest.mark.parametrize("status", Status)
    def test_new_only_where_nothing_was_done(
        self, ledger: RunnerLedger, clock: FakeClock, status: Status
    ) -> None:
        """Only what was given back counts as not seen."""
        ledger.write("key", record(clock, status))
        assert ledger.check_and_set("key") is (status is Status.RELEASED)

    def test_many_new_ones(self, ledger: RunnerLedger, store: Faulty) -> None:
        """In one command; of equal keys in a batch the first is new."""
        assert ledger.check_and_set_many([]) == []
        assert store.seen == []
        first = ["a", "b", "a", "c", "b"]
        assert ledger.check_and_set_many(first) == [True, True, False, True, False]
        assert len(store.seen) == 1
        second = ["d", "c", "d", "a"]
        assert ledger.check_and_set_many(second) == [True, False, False, False]

    def test_many_more_new_ones(self, ledger: RunnerLedger) -> None:
        """As many as a large delivery brings."""
        many = [f"key-{number}" for number in range(300)]
        assert all(ledger.check_and_set_many(many))
        assert not any(ledger.check_and_set_many(many))

    @pytest.mark.parametrize("status", [None, *Status])
    def test_marking(self, ledger: RunnerLedger, clock: FakeClock, status: Status | None) -> None:
        """Whatever became of earlier attempts the key is done afterwards; a running one is left alone."""
        if status is not None:
            ledger.write("key", record(clock, status))
        before = ledger.raw("key")
        if status is Status.IN_PROGRESS:
            with pytest.raises(errors.InProgress):
                ledger.mark_processed("key")
        else:
            ledger.mark_processed("key")
            assert ledger.is_processed("key") is True
        if status in (Status.IN_PROGRESS, Status.COMPLETED):
            assert ledger.raw("key") == before

    def test_marking_what_vanished(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """An attempt whose lease is over is not running: the key is marked, and the attempt refused."""
        claim = claimed(ledger.claim("key", lease=30))
        clock.advance(30)
        ledger.mark_processed("key")
        assert ledger.is_processed("key") is True
        with pytest.raises(errors.ClaimLost):
            ledger.complete(claim, "too late")

    @pytest.mark.parametrize("limit", [1, 3, 100])
    def test_listing(self, runner: Runner, ledger: RunnerLedger, clock: FakeClock, limit: int) -> None:
        """Pages hold this environment's and scope's records, those of one status if asked."""
        for number in range(9):
            ledger.write(f"key-{number}", record(clock, list(Status)[number % 3]))
        for env, scope in (("test", "tenant"), ("tes", ""), ("testing", "")):
            RunnerLedger(runner, env=env, scope=scope).check_and_set("key")
        # A store whose keys lie in no order may return a record on two pages while it grows or shrinks.
        found: Callable[[list[str]], Collection[str]] = set if isinstance(runner.store, Scanning) else sorted
        every = [f"key-{number}" for number in range(9)]
        assert found(keys(ledger.list, limit=limit)) == found(every)
        for start, status in enumerate(list(Status)[:3]):
            for asked in (status, status.value):
                assert found(keys(ledger.list, status=asked, limit=limit)) == found(every[start::3])
        assert keys(ledger.list, status=Status.UNKNOWN, limit=limit) == []
