# ruff: noqa: S101 - these are tests, for whoever writes a store to subclass
"""What nobody knows the outcome of, and a store that is away when work ends."""

import pytest

from semel import errors
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import Status
from semel.core.realm import Realm
from semel.model import Claimed, Happened, OnLapsed, Replay, Unknown
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import Harness, Runner, claimed
from semel.testing.faulty import Faulty

# Less than the year after which a doubt ends in a table whose owner demands an end.
LONG_AFTER = 300 * 86400.0


class DoubtTests(Harness):
    """A doubt stays until somebody settles it, and a result that is known is not given up at once."""

    def test_a_doubt_never_ends_in_silence(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock
    ) -> None:
        """What is held stays held, long after any other record would have ended."""
        claimed(runner.run(ledger.claim("key", lease=30, ttl=60, on_lapsed="hold")))
        clock.advance(30)
        assert type(runner.run(ledger.claim("key", lease=30, ttl=60, on_lapsed="hold"))) is Unknown
        clock.advance(LONG_AFTER)
        assert type(runner.run(ledger.claim("key", lease=30, ttl=60, on_lapsed="hold"))) is Unknown
        assert type(runner.run(ledger.claim("key", lease=30, ttl=60))) is Unknown

    @pytest.mark.parametrize("on_lapsed", ["hold", "resolve"])
    def test_a_lapsed_attempt_that_nobody_looked_at_stays(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, on_lapsed: OnLapsed
    ) -> None:
        """Whoever comes long after a crash finds that there was an attempt."""
        claimed(runner.run(ledger.claim("key", lease=30, ttl=60, on_lapsed=on_lapsed)))
        clock.advance(LONG_AFTER)
        later = runner.run(ledger.claim("key", lease=30, ttl=60, on_lapsed=on_lapsed))
        if on_lapsed == "hold":
            assert type(later) is Unknown
        else:
            assert claimed(later).lapsed
            assert claimed(later).attempt == 2

    def test_a_renewed_attempt_stays_too(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock) -> None:
        """A heartbeat puts no end to what may come to be in doubt."""
        claim = claimed(runner.run(ledger.claim("key", lease=30, ttl=60, on_lapsed="hold")))
        runner.run(ledger.renew(claim))
        runner.run(ledger.lapse(claim))
        clock.advance(LONG_AFTER)
        assert type(runner.run(ledger.claim("key", on_lapsed="hold"))) is Unknown

    def test_a_doubt_ends_when_the_caller_said_so(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock
    ) -> None:
        """Its end is set for doubts alone, and is none of the ordinary time to live."""
        options = {"lease": 30, "ttl": 60, "on_lapsed": "hold", "doubt_ttl": 1000}
        claimed(runner.run(ledger.claim("key", **options)))  # type: ignore[arg-type]
        clock.advance(40)
        assert type(runner.run(ledger.claim("key", **options))) is Unknown  # type: ignore[arg-type]
        clock.advance(990)
        assert type(runner.run(ledger.claim("key", **options))) is Unknown  # type: ignore[arg-type]
        clock.advance(20)
        assert claimed(runner.run(ledger.claim("key", **options))).attempt == 1  # type: ignore[arg-type]

    def test_what_is_settled_ends_as_any_other(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock
    ) -> None:
        """Its time to live begins when it is done, or when somebody said what became of it."""
        done = claimed(runner.run(ledger.claim("done", lease=30, ttl=60, on_lapsed="hold")))
        runner.run(ledger.complete(done, 1))
        claimed(runner.run(ledger.claim("held", lease=30, ttl=60, on_lapsed="hold")))
        clock.advance(59)
        runner.run(ledger.resolve("held", Happened(2), ttl=60))
        assert isinstance(runner.run(ledger.claim("done")), Replay)
        clock.advance(2)
        assert type(runner.run(ledger.claim("done"))) is Claimed
        assert isinstance(runner.run(ledger.claim("held")), Replay)
        clock.advance(60)
        assert type(runner.run(ledger.claim("held"))) is Claimed

    def test_doubts_are_listed_oldest_first(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock
    ) -> None:
        """Held ones and lapsed ones, and nothing that is running, settled, or would run again."""
        for number, key in enumerate(["b", "a", "d", "c"]):
            claimed(
                runner.run(ledger.claim(key, lease=30, ttl=60, on_lapsed=("hold", "resolve")[number % 2]))
            )
            clock.advance(10)
        claimed(runner.run(ledger.claim("reruns", lease=1, ttl=600)))
        clock.advance(30)
        claimed(runner.run(ledger.claim("running", lease=30, ttl=60, on_lapsed="hold")))
        assert type(runner.run(ledger.claim("d", on_lapsed="hold"))) is Unknown
        listed = runner.run(ledger.doubts())
        assert [one.key for one in listed.records] == ["b", "a", "d", "c"]
        assert [one.status for one in listed.records][2] is Status.UNKNOWN
        assert listed.after is None
        assert listed.now - (listed.records[0].doubt_since or 0) == pytest.approx(70, abs=3)
        runner.run(ledger.resolve("a", Happened()))
        assert runner.run(ledger.forget("d"))
        assert [one.key for one in runner.run(ledger.doubts()).records] == ["b", "c"]

    def test_doubts_come_in_pages(self, runner: Runner, ledger: LedgerSteps, clock: FakeClock) -> None:
        """Each begins where the one before ended, and none is left out or told twice."""
        for number in range(7):
            claimed(runner.run(ledger.claim(f"k{number}", lease=1, ttl=60, on_lapsed="hold")))
            clock.advance(3)
        keys, after = [], None
        while True:
            page = runner.run(ledger.doubts(limit=3, after=after))
            keys += [one.key for one in page.records]
            after = page.after
            if after is None:
                break
        assert keys == [f"k{number}" for number in range(7)]

    def test_environments_do_not_see_each_others_doubts(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock
    ) -> None:
        """A list is of one environment and scope."""
        claimed(runner.run(ledger.claim("key", lease=1, ttl=60, on_lapsed="hold")))
        clock.advance(5)
        assert runner.run(LedgerSteps(Realm(env="test", scope="other")).doubts()).records == ()
        assert len(runner.run(ledger.doubts()).records) == 1

    # A store that is away for a moment

    @pytest.mark.parametrize("move", ["complete", "fail", "release"])
    def test_a_short_outage_repeats_nothing(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty, clock: FakeClock, move: str
    ) -> None:
        """What became of the work is sent again, with growing pauses, until the store takes it."""
        claim = claimed(runner.run(ledger.claim("key", lease=30)))
        store.refuse(6)
        begun = clock.monotonic()
        steps = {
            "complete": lambda: ledger.complete(claim, "done"),
            "fail": lambda: ledger.fail(claim, ValueError("no")),
            "release": lambda: ledger.release(claim),
        }[move]()
        runner.run(steps)
        wanted = {"complete": Status.COMPLETED, "fail": Status.FAILED, "release": Status.RELEASED}
        kept = runner.run(ledger.get("key"))
        assert kept is not None
        assert kept.status is wanted[move]
        assert 0.05 < clock.monotonic() - begun < 30

    def test_many_results_outlive_a_short_outage(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty
    ) -> None:
        """Results of a batch are sent again until the store is back."""
        claims = [claimed(one) for one in runner.run(ledger.claim_many(["a", "b"], lease=30))]
        store.refuse(4)
        assert runner.run(ledger.complete_many(claims, 1)) == [True, True]

    def test_a_result_is_given_up_at_the_leases_end(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty, clock: FakeClock
    ) -> None:
        """Nobody waits for ever for a store that does not come back."""
        claim = claimed(runner.run(ledger.claim("key", lease=8)))
        store.refuse(1000)
        begun = clock.monotonic()
        with pytest.raises(errors.StoreUnavailable):
            runner.run(ledger.complete(claim, "done"))
        assert 8 <= clock.monotonic() - begun < 10
