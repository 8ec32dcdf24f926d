# ruff: noqa: S101, S105 - these are tests, for whoever writes a store to subclass
"""Results, payloads, settlements, marks, lists, limits: the ledger as its callers see it."""

from collections.abc import Callable
from typing import Any

import pytest

from semel import errors
from semel.core.commands import Put, Steps
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import Status
from semel.core.realm import Realm
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
    Record,
    Replay,
    Unknown,
)
from semel.tables import LEDGER
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import Harness, Runner, claimed, raw, replayed, writes
from semel.testing.conformance.moves import record
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

    def test_a_claim_is_one_write(self, runner: Runner, ledger: LedgerSteps, store: Faulty) -> None:
        """Winning takes one round trip, and so does learning what is in the way."""
        claimed(runner.run(ledger.claim("key")))
        assert len(store.seen) == writes(store.seen) == 1
        assert type(runner.run(ledger.claim("key"))) is Busy
        assert len(store.seen) == 2

    def test_many_are_claimed_in_one_write(self, runner: Runner, ledger: LedgerSteps, store: Faulty) -> None:
        """Keys that nobody used take one round trip; whoever loses one learns why."""
        runner.run(ledger.complete(claimed(runner.run(ledger.claim("done"))), 1))
        claimed(runner.run(ledger.claim("busy")))
        before = len(store.seen)
        first = runner.run(ledger.claim_many(["a", "b", "c"]))
        assert [type(one) for one in first] == [Claimed] * 3
        assert len(store.seen) == before + 1
        second = runner.run(ledger.claim_many(["a", "done", "busy", "d"]))
        assert [type(one) for one in second] == [Busy, Replay, Busy, Claimed]
        assert replayed(second[1]) == 1
        assert runner.run(ledger.claim_many([])) == []
        with pytest.raises(errors.UsageError, match="once in a batch"):
            runner.run(ledger.claim_many(["e", "e"]))
        assert runner.run(ledger.get("e")) is None

    def test_many_are_settled_in_one_write(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty, clock: FakeClock
    ) -> None:
        """Who lost a claim is told so, and the others' results are kept."""
        claims = [claimed(one) for one in runner.run(ledger.claim_many(["a", "b", "c"], lease=10))]
        clock.advance(11)
        runner.run(ledger.complete(claimed(runner.run(ledger.claim("b"))), "theirs"))
        before = len(store.seen)
        assert runner.run(ledger.complete_many(claims, "mine")) == [True, False, True]
        assert len(store.seen) == before + 1
        assert [replayed(runner.run(ledger.claim(key))) for key in "abc"] == ["mine", "theirs", "mine"]
        assert runner.run(ledger.complete_many([])) == []

    def test_many_are_given_back_in_one_write(self, runner: Runner, ledger: LedgerSteps) -> None:
        """They may be claimed again, as second attempts; a result that was kept stays."""
        claims = [claimed(one) for one in runner.run(ledger.claim_many(["a", "b"]))]
        runner.run(ledger.complete(claims[1], "kept"))
        assert runner.run(ledger.release_many(claims, ValueError("no"))) == [True, False]
        again = runner.run(ledger.claim_many(["a", "b"]))
        assert claimed(again[0]).attempt == 2
        assert replayed(again[1]) == "kept"

    def test_many_that_were_given_back_are_claimed_in_one_more_write(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty
    ) -> None:
        """However many they are; new ones among them and those that are done take none of it."""
        mine = [claimed(one) for one in runner.run(ledger.claim_many(["a", "b", "c"]))]
        runner.run(ledger.release_many(mine))
        runner.run(ledger.complete(claimed(runner.run(ledger.claim("done"))), 1))
        before = len(store.seen)
        again = runner.run(ledger.claim_many(["a", "new", "b", "done", "c"]))
        assert [type(one) for one in again] == [Claimed, Claimed, Claimed, Replay, Claimed]
        assert [claimed(again[number]).attempt for number in (0, 1, 2, 4)] == [2, 1, 2, 2]
        assert len(store.seen) == before + 2

    def test_an_attempt_that_was_none_has_the_number_of_the_next(
        self, runner: Runner, ledger: LedgerSteps
    ) -> None:
        """Whoever only waited for its turn gives the claim back without having it counted."""
        for _ in range(2):
            claims = [claimed(one) for one in runner.run(ledger.claim_many(["a", "b"], max_attempts=1))]
            assert [claim.attempt for claim in claims] == [1, 1]
            runner.run(ledger.release_many(claims, ValueError("no"), counted=False))
            claim = claimed(runner.run(ledger.claim("c", max_attempts=1)))
            assert claim.attempt == 1
            runner.run(ledger.release(claim, counted=False))

    def test_lost_answers_lose_no_claim_of_many(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty
    ) -> None:
        """A batch whose answer was lost is sent again, and finds its own claims and completions."""
        store.lose_reply()
        claims = [claimed(one) for one in runner.run(ledger.claim_many(["a", "b"]))]
        assert [claim.attempt for claim in claims] == [1, 1]
        store.lose_reply()
        assert runner.run(ledger.complete_many(claims, 7)) == [True, True]

    def test_a_record_says_what_is_known(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock) -> None:
        """Status, attempt, token, times and fingerprint, by the store's clock."""
        claim = claimed(runner.run(ledger.claim("key", fingerprint="f", lease=30, ttl=600)))
        found = runner.run(ledger.get("key"))
        assert found is not None
        assert (found.key, found.status, found.attempt) == ("key", Status.IN_PROGRESS, 1)
        assert (found.token, found.fingerprint, found.version) == (claim.token, "f", RECORD_VERSION)
        times = [found.created_at, found.updated_at, found.lease_until, found.expires_at]
        now = clock.now()
        assert times == pytest.approx([now, now, now + 30, now + 600], abs=1e-3)
        assert runner.run(ledger.get("other")) is None

    @pytest.mark.parametrize("result", RESULTS, ids=lambda value: ascii(value)[:20])
    def test_a_result_comes_back_as_it_went_in(
        self, runner: Runner, ledger: LedgerSteps, result: Any
    ) -> None:
        """Falsy results are results: none of them is taken for a missing one, or for another."""
        runner.run(ledger.complete(claimed(runner.run(ledger.claim("key"))), result))
        for _ in range(2):
            replay = runner.run(ledger.claim("key"))
            assert type(replay) is Replay
            assert replay.result == result
            assert type(replay.result) is type(result)
        assert runner.run(ledger.is_processed("key")) is True

    def test_a_result_is_forgotten_after_its_time(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock
    ) -> None:
        """The time to live counts from the completion; then the key is as new."""
        claim = claimed(runner.run(ledger.claim("key", lease=30, ttl=60)))
        clock.advance(29)
        runner.run(ledger.complete(claim, "kept"))
        clock.advance(59)
        assert type(runner.run(ledger.claim("key"))) is Replay
        clock.advance(1)
        again = claimed(runner.run(ledger.claim("key")))
        assert (again.attempt, again.lapsed) == (1, False)

    def test_a_failure_is_kept(self, runner: Runner, ledger: LedgerSteps) -> None:
        """It is told again and never run again."""
        runner.run(ledger.fail(claimed(runner.run(ledger.claim("key"))), ValueError("no such card")))
        for _ in range(2):
            failed = runner.run(ledger.claim("key"))
            assert type(failed) is Failed
            assert failed.failure == Failure("ValueError", "no such card")

    def test_a_released_key_runs_again(self, runner: Runner, ledger: LedgerSteps) -> None:
        """Attempts stay counted, and the error of the last is in the record."""
        for attempt in (1, 2, 3):
            claim = claimed(runner.run(ledger.claim("key")))
            assert (claim.attempt, claim.lapsed) == (attempt, False)
            runner.run(ledger.release(claim, ConnectionError(f"failed at {attempt}")))
        found = runner.run(ledger.get("key"))
        assert found is not None
        assert found.failure == Failure("ConnectionError", "failed at 3")

    @pytest.mark.parametrize("status", Status)
    @pytest.mark.parametrize("lapsed", [True, False])
    def test_another_payload_is_refused_and_changes_nothing(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, status: Status, lapsed: bool
    ) -> None:
        """Whatever state the record is in."""
        item = record(clock, status, lapsed=lapsed) | {"fingerprint": "first"}
        runner.ask(Put(LEDGER, ledger.name("key"), item))
        before = raw(runner, ledger, "key")
        outcome = runner.run(ledger.claim("key", fingerprint="second"))
        assert type(outcome) is Mismatch
        assert outcome.record.token == "held"
        assert raw(runner, ledger, "key") == before
        assert type(runner.run(ledger.claim("key", fingerprint="first"))) is not Mismatch

    def test_a_payload_stays_with_its_key_through_take_overs(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock
    ) -> None:
        """The first payload counts, for the second attempt's callers too."""
        runner.run(ledger.claim("key", fingerprint="first", lease=30))
        clock.advance(30)
        claimed(runner.run(ledger.claim("key", lease=30)))
        assert type(runner.run(ledger.claim("key", fingerprint="second"))) is Mismatch
        assert type(runner.run(ledger.claim("key", fingerprint="first"))) is Busy

    def test_a_dropped_result_leaves_a_tombstone(self, runner: Runner, ledger: LedgerSteps) -> None:
        """The fact stays, so the key does not run again; what came of it is missing, not None."""
        runner.run(ledger.complete(claimed(runner.run(ledger.claim("key"))), "personal"))
        assert runner.run(ledger.drop_result("key")) is True
        found = runner.run(ledger.get("key"))
        assert found is not None
        assert found.tombstone
        assert found.result is None
        replay = runner.run(ledger.claim("key"))
        assert type(replay) is Replay
        assert replay.result is MISSING
        assert runner.run(ledger.is_processed("key")) is True

    def test_only_a_completed_record_has_a_result_to_drop(self, runner: Runner, ledger: LedgerSteps) -> None:
        """Elsewhere nothing is dropped, and nothing changes."""
        assert runner.run(ledger.drop_result("key")) is False
        claimed(runner.run(ledger.claim("key")))
        before = raw(runner, ledger, "key")
        assert runner.run(ledger.drop_result("key")) is False
        assert raw(runner, ledger, "key") == before

    def test_a_forgotten_key_is_new(self, runner: Runner, ledger: LedgerSteps) -> None:
        """Forgetting says whether there was anything."""
        assert runner.run(ledger.forget("key")) is False
        runner.run(ledger.complete(claimed(runner.run(ledger.claim("key"))), "kept"))
        assert runner.run(ledger.forget("key")) is True
        assert runner.run(ledger.get("key")) is None
        assert claimed(runner.run(ledger.claim("key"))).attempt == 1

    @pytest.mark.parametrize(
        "damage", [{"status": "DONE"}, {"version": RECORD_VERSION + 1}, {"attempt": 1.5}]
    )
    def test_a_corrupt_record_is_never_claimed(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, damage: dict[str, Any]
    ) -> None:
        """What cannot be read is reported and left alone, even when its lease is over; lists leave it out."""
        item = record(clock, Status.IN_PROGRESS, lapsed=True) | damage
        runner.ask(Put(LEDGER, ledger.name("key"), item))
        before = raw(runner, ledger, "key")
        for steps in (
            ledger.claim("key"),
            ledger.get("key"),
            ledger.wait("key"),
            ledger.mark_processed("key"),
        ):
            with pytest.raises(errors.RecordCorrupt) as caught:
                runner.run(steps)
            assert caught.value.key == "key"
        assert runner.run(ledger.check_and_set("key")) is False
        assert runner.run(ledger.list()).records == ()
        assert raw(runner, ledger, "key") == before

    def test_environments_and_scopes_do_not_meet(self, runner: Runner, ledger: LedgerSteps) -> None:
        """A key elsewhere is another record."""
        claimed(runner.run(ledger.claim("key")))
        for env, scope in (("test", "tenant"), ("tes", "t"), ("other", ""), ("TEST", "")):
            other = LedgerSteps(Realm(env=env, scope=scope))
            assert runner.run(other.get("key")) is None
            assert type(runner.run(other.claim("key"))) is Claimed


class LimitTests(Harness):
    """Attempts, holds, settlements and waiting."""

    def test_given_back_too_often(self, runner: Runner, ledger: LedgerSteps) -> None:
        """At the limit the record fails for good, with the last error, and can be listed."""
        for attempt in (1, 2):
            claim = claimed(runner.run(ledger.claim("key", max_attempts=2)))
            runner.run(ledger.release(claim, TimeoutError(f"at {attempt}")))
        for _ in range(2):
            failed = runner.run(ledger.claim("key", max_attempts=2))
            assert type(failed) is Failed
            assert failed.failure == Failure("TimeoutError", "at 2")
            assert failed.record.attempt == 2
        listed = runner.run(ledger.list(status=Status.FAILED)).records
        assert [found.key for found in listed] == ["key"]

    def test_vanished_too_often(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock) -> None:
        """A poison message is not taken over for ever."""
        for attempt in (1, 2):
            claim = claimed(runner.run(ledger.claim("key", lease=30, max_attempts=2)))
            assert claim.attempt == attempt
            clock.advance(30)
        failed = runner.run(ledger.claim("key", lease=30, max_attempts=2))
        assert type(failed) is Failed
        assert failed.failure.type == "AttemptsExhausted"

    def test_a_lapsed_attempt_is_held(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock) -> None:
        """Under `hold` nobody runs it again, whatever policy the next caller has."""
        claimed(runner.run(ledger.claim("key", lease=30)))
        clock.advance(30)
        for on_lapsed in ("hold", "rerun", "resolve"):
            outcome = runner.run(ledger.claim("key", on_lapsed=on_lapsed))
            assert type(outcome) is Unknown
            assert outcome.record.attempt == 1
        found = runner.run(ledger.get("key"))
        assert found is not None
        assert found.status is Status.UNKNOWN

    @pytest.mark.parametrize("held", [True, False])
    @pytest.mark.parametrize("result", ["found", None, 0])
    def test_settled_as_happened(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, held: bool, result: Any
    ) -> None:
        """The result that somebody found out is replayed, whether the attempt was held yet or only lapsed."""
        self._vanish(runner, ledger, clock, held)
        runner.run(ledger.resolve("key", Happened(result)))
        replay = runner.run(ledger.claim("key"))
        assert type(replay) is Replay
        assert replay.result == result

    @pytest.mark.parametrize("held", [True, False])
    def test_settled_as_not_happened(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, held: bool
    ) -> None:
        """It runs again, and nothing is in doubt any more."""
        self._vanish(runner, ledger, clock, held)
        runner.run(ledger.resolve("key", NotHappened()))
        claim = claimed(runner.run(ledger.claim("key", on_lapsed="hold")))
        assert (claim.attempt, claim.lapsed) == (2, False)

    @pytest.mark.parametrize("held", [True, False])
    def test_settled_as_abandoned(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, held: bool
    ) -> None:
        """It stays failed, with the reason."""
        self._vanish(runner, ledger, clock, held)
        runner.run(ledger.resolve("key", Abandoned("the customer left")))
        failed = runner.run(ledger.claim("key"))
        assert type(failed) is Failed
        assert failed.failure == Failure("Abandoned", "the customer left")

    @pytest.mark.parametrize(
        "status", [None, Status.IN_PROGRESS, Status.COMPLETED, Status.FAILED, Status.RELEASED]
    )
    def test_only_a_doubt_can_be_settled(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, status: Status | None
    ) -> None:
        """Anything else is refused and left as it is."""
        if status is not None:
            runner.ask(Put(LEDGER, ledger.name("key"), record(clock, status)))
        before = raw(runner, ledger, "key")
        with pytest.raises(errors.Refused):
            runner.run(ledger.resolve("key", Happened("wrong")))
        assert raw(runner, ledger, "key") == before

    def test_waiting_for_nobody(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock) -> None:
        """Where nobody is at work the record is given at once."""
        began = clock.monotonic()
        assert runner.run(ledger.wait("key")) is None
        runner.run(ledger.complete(claimed(runner.run(ledger.claim("key"))), 0))
        found = runner.run(ledger.wait("key"))
        assert found is not None
        assert found.status is Status.COMPLETED
        assert clock.monotonic() == began

    @pytest.mark.parametrize("end", ["complete", "fail", "release", "forget"])
    def test_waiting_for_an_end(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, end: str
    ) -> None:
        """Whatever comes of the work ends the wait, long before its time is up."""
        claim = claimed(runner.run(ledger.claim("key", lease=1000)))
        endings: dict[str, Callable[[], Steps[Any]]] = {
            "complete": lambda: ledger.complete(claim, "done"),
            "fail": lambda: ledger.fail(claim, Failure("E", "")),
            "release": lambda: ledger.release(claim),
            "forget": lambda: ledger.forget("key"),
        }
        clock.schedule(3.0, lambda: Runner(runner.store).run(endings[end]()))
        began = clock.monotonic()
        found: Record | None = runner.run(ledger.wait("key", timeout=900))
        assert (found is None) is (end == "forget")
        assert 3.0 <= clock.monotonic() - began <= 10.0

    def test_waiting_for_a_lease_to_end(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock) -> None:
        """A holder that vanished is not waited for any longer than its lease."""
        claimed(runner.run(ledger.claim("key", lease=5)))
        began = clock.monotonic()
        found = runner.run(ledger.wait("key", timeout=900))
        assert found is not None
        assert found.status is Status.IN_PROGRESS
        assert 4.999 <= clock.monotonic() - began <= 7.0

    def test_waiting_has_an_end(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock) -> None:
        """After the time given, the key is still busy, and the error says for how long."""
        claimed(runner.run(ledger.claim("key", lease=100)))
        with pytest.raises(errors.InProgress) as caught:
            runner.run(ledger.wait("key", timeout=10))
        assert 80 <= caught.value.retry_after <= 90.001
        assert clock.monotonic() >= 10

    def _vanish(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, held: bool) -> None:
        claimed(runner.run(ledger.claim("key", lease=30)))
        clock.advance(30)
        if held:
            assert type(runner.run(ledger.claim("key", on_lapsed="hold"))) is Unknown


class MarkTests(Harness):
    """Marks without work, and lists."""

    def test_new_once(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock) -> None:
        """`check_and_set` is True the first time, False until its time is up, and one write each."""
        assert runner.run(ledger.check_and_set("key", ttl=60)) is True
        assert runner.run(ledger.check_and_set("key", ttl=60)) is False
        clock.advance(59)
        assert runner.run(ledger.check_and_set("key", ttl=60)) is False
        clock.advance(1)
        assert runner.run(ledger.check_and_set("key", ttl=60)) is True

    def test_new_is_done(self, runner: Runner, ledger: LedgerSteps) -> None:
        """A key that was set is processed, and its result is missing, not None."""
        assert runner.run(ledger.is_processed("key")) is False
        runner.run(ledger.check_and_set("key"))
        assert runner.run(ledger.is_processed("key")) is True
        replay = runner.run(ledger.claim("key"))
        assert type(replay) is Replay
        assert replay.result is MISSING

    @pytest.mark.parametrize("status", Status)
    def test_new_only_where_nothing_was_done(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, status: Status
    ) -> None:
        """Only what was given back counts as not seen."""
        runner.ask(Put(LEDGER, ledger.name("key"), record(clock, status)))
        assert runner.run(ledger.check_and_set("key")) is (status is Status.RELEASED)

    def test_many_new_ones(self, runner: Runner, ledger: LedgerSteps, store: Faulty) -> None:
        """In one command; of equal keys in a batch the first is new."""
        assert runner.run(ledger.check_and_set_many([])) == []
        assert store.seen == []
        first = ["a", "b", "a", "c", "b"]
        assert runner.run(ledger.check_and_set_many(first)) == [True, True, False, True, False]
        assert len(store.seen) == 1
        second = ["d", "c", "d", "a"]
        assert runner.run(ledger.check_and_set_many(second)) == [True, False, False, False]

    def test_many_more_new_ones(self, runner: Runner, ledger: LedgerSteps) -> None:
        """As many as a large delivery brings."""
        keys = [f"key-{number}" for number in range(300)]
        assert all(runner.run(ledger.check_and_set_many(keys)))
        assert not any(runner.run(ledger.check_and_set_many(keys)))

    @pytest.mark.parametrize("status", [None, *Status])
    def test_marking(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, status: Status | None
    ) -> None:
        """Whatever became of earlier attempts the key is done afterwards; a running one is left alone."""
        if status is not None:
            runner.ask(Put(LEDGER, ledger.name("key"), record(clock, status)))
        before = raw(runner, ledger, "key")
        if status is Status.IN_PROGRESS:
            with pytest.raises(errors.InProgress):
                runner.run(ledger.mark_processed("key"))
        else:
            runner.run(ledger.mark_processed("key"))
            assert runner.run(ledger.is_processed("key")) is True
        if status in (Status.IN_PROGRESS, Status.COMPLETED):
            assert raw(runner, ledger, "key") == before

    def test_marking_what_vanished(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock) -> None:
        """An attempt whose lease is over is not running: the key is marked, and the attempt refused."""
        claim = claimed(runner.run(ledger.claim("key", lease=30)))
        clock.advance(30)
        runner.run(ledger.mark_processed("key"))
        assert runner.run(ledger.is_processed("key")) is True
        with pytest.raises(errors.ClaimLost):
            runner.run(ledger.complete(claim, "too late"))

    @pytest.mark.parametrize("limit", [1, 3, 100])
    def test_listing(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, limit: int) -> None:
        """Pages hold this environment's and scope's records, those of one status if asked."""
        for number in range(9):
            item = record(clock, list(Status)[number % 3])
            runner.ask(Put(LEDGER, ledger.name(f"key-{number}"), item))
        for env, scope in (("test", "tenant"), ("tes", ""), ("testing", "")):
            runner.run(LedgerSteps(Realm(env=env, scope=scope)).check_and_set("key"))
        assert self._listed(runner, ledger, limit) == [f"key-{number}" for number in range(9)]
        for start, status in enumerate(list(Status)[:3]):
            expected = [f"key-{number}" for number in range(start, 9, 3)]
            assert self._listed(runner, ledger, limit, status) == expected
            assert self._listed(runner, ledger, limit, status.value) == expected
        assert self._listed(runner, ledger, limit, Status.UNKNOWN) == []

    def _listed(
        self, runner: Runner, ledger: LedgerSteps, limit: int, status: Status | str | None = None
    ) -> list[str]:
        keys: list[str] = []
        after = None
        for _ in range(50):
            listing = runner.run(ledger.list(status=status, limit=limit, after=after))
            keys += [found.key for found in listing.records]
            after = listing.after
            if after is None:
                return sorted(keys)
        raise AssertionError("the pages have no end")
