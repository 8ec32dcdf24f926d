# ruff: noqa: S101 - these are tests, for whoever writes a store to subclass
"""What nobody knows the outcome of, and a store that is away when work ends."""

from typing import Any

import pytest

from semel import errors
from semel.core.lifecycle import Status
from semel.core.policy import SETTLED
from semel.model import Claimed, Happened, OnLapsed, Replay, Unknown
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import Harness, Runner, RunnerLedger, claimed, keys
from semel.testing.conformance.moves import OPERATIONS
from semel.testing.faulty import Faulty

# Less than the year after which a doubt ends in a table whose owner demands an end.
LONG_AFTER = 300 * 86400.0


class DoubtTests(Harness):
    """A doubt stays until somebody settles it, and a result that is known is not given up at once."""

    def test_a_doubt_never_ends_in_silence(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """What is held stays held, long after any other record would have ended."""
        claimed(ledger.claim("key", lease=30, ttl=60, on_lapsed="hold"))
        clock.advance(30)
        assert type(ledger.claim("key", lease=30, ttl=60, on_lapsed="hold")) is Unknown
        clock.advance(LONG_AFTER)
        assert type(ledger.claim("key", lease=30, ttl=60, on_lapsed="hold")) is Unknown
        assert type(ledger.claim("key", lease=30, ttl=60)) is Unknown

    @pytest.mark.parametrize("on_lapsed", ["hold", "resolve"])
    def test_a_lapsed_attempt_that_nobody_looked_at_stays(
        self, ledger: RunnerLedger, clock: FakeClock, on_lapsed: OnLapsed
    ) -> None:
        """Whoever comes long after a crash finds that there was an attempt."""
        claimed(ledger.claim("key", lease=30, ttl=60, on_lapsed=on_lapsed))
        clock.advance(LONG_AFTER)
        later = ledger.claim("key", lease=30, ttl=60, on_lapsed=on_lapsed)
        if on_lapsed == "hold":
            assert type(later) is Unknown
        else:
            assert claimed(later).lapsed
            assert claimed(later).attempt == 2

    def test_a_renewed_attempt_stays_too(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """A heartbeat puts no end to what may come to be in doubt."""
        claim = claimed(ledger.claim("key", lease=30, ttl=60, on_lapsed="hold"))
        ledger.renew(claim)
        ledger.lapse(claim)
        clock.advance(LONG_AFTER)
        assert type(ledger.claim("key", on_lapsed="hold")) is Unknown

    def test_a_doubt_ends_when_the_caller_said_so(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """Its end is set for doubts alone, and is none of the ordinary time to live."""
        options: Any = {"lease": 30, "ttl": 60, "on_lapsed": "hold", "doubt_ttl": 1000}
        claimed(ledger.claim("key", **options))
        clock.advance(40)
        assert type(ledger.claim("key", **options)) is Unknown
        clock.advance(990)
        assert type(ledger.claim("key", **options)) is Unknown
        clock.advance(20)
        assert claimed(ledger.claim("key", **options)).attempt == 1

    def test_what_is_settled_ends_as_any_other(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """Its time to live begins when it is done, or when somebody said what became of it."""
        done = claimed(ledger.claim("done", lease=30, ttl=60, on_lapsed="hold"))
        ledger.complete(done, 1)
        claimed(ledger.claim("held", lease=30, ttl=60, on_lapsed="hold"))
        clock.advance(59)
        ledger.resolve("held", Happened(2), ttl=60)
        assert isinstance(ledger.claim("done"), Replay)
        clock.advance(2)
        assert type(ledger.claim("done")) is Claimed
        assert isinstance(ledger.claim("held"), Replay)
        clock.advance(60)
        assert type(ledger.claim("held")) is Claimed

    def test_what_is_settled_is_kept_for_a_month(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """Forgotten early, its effect would happen again; and what had longer left keeps that."""
        ends: dict[str, float | None] = {"short": None, "long": 3 * SETTLED}
        for key, end in ends.items():
            claimed(ledger.claim(key, lease=30, ttl=60, on_lapsed="hold", doubt_ttl=end))
        clock.advance(31)
        for key in ends:
            ledger.resolve(key, Happened(2))
        clock.advance(SETTLED - 60)
        assert isinstance(ledger.claim("short"), Replay)
        clock.advance(120)
        assert type(ledger.claim("short")) is Claimed
        assert isinstance(ledger.claim("long"), Replay)

    def test_doubts_are_listed_oldest_first(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """Held ones and lapsed ones, and nothing that is running, settled, or would run again."""
        for number, key in enumerate(["b", "a", "d", "c"]):
            claimed(ledger.claim(key, lease=30, ttl=60, on_lapsed=("hold", "resolve")[number % 2]))
            clock.advance(10)
        claimed(ledger.claim("reruns", lease=1, ttl=600))
        clock.advance(30)
        claimed(ledger.claim("running", lease=30, ttl=60, on_lapsed="hold"))
        assert type(ledger.claim("d", on_lapsed="hold")) is Unknown
        listed = ledger.doubts()
        assert [one.key for one in listed.records] == ["b", "a", "d", "c"]
        assert [one.status for one in listed.records][2] is Status.UNKNOWN
        assert listed.after is None
        assert listed.now - (listed.records[0].doubt_since or 0) == pytest.approx(70, abs=3)
        ledger.resolve("a", Happened())
        assert ledger.forget("d")
        assert keys(ledger.doubts) == ["b", "c"]

    def test_doubts_come_in_pages(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """Each begins where the one before ended, and none is left out or told twice."""
        for number in range(7):
            claimed(ledger.claim(f"k{number}", lease=1, ttl=60, on_lapsed="hold"))
            clock.advance(3)
        assert keys(ledger.doubts, limit=3) == [f"k{number}" for number in range(7)]

    def test_environments_do_not_see_each_others_doubts(
        self, runner: Runner, ledger: RunnerLedger, clock: FakeClock
    ) -> None:
        """A list is of one environment and scope."""
        claimed(ledger.claim("key", lease=1, ttl=60, on_lapsed="hold"))
        clock.advance(5)
        assert RunnerLedger(runner, scope="other").doubts().records == ()
        assert len(ledger.doubts().records) == 1

    # A store that is away for a moment

    @pytest.mark.parametrize("name", ["complete", "fail", "release"])
    def test_a_short_outage_repeats_nothing(
        self, ledger: RunnerLedger, store: Faulty, clock: FakeClock, name: str
    ) -> None:
        """What became of the work is sent again, with growing pauses, until the store takes it."""
        move, _, leads_to = OPERATIONS[name]
        claim = claimed(ledger.claim("key", lease=30))
        store.refuse(6)
        begun = clock.monotonic()
        move(ledger, claim)
        assert ledger.record("key").status is leads_to
        assert 0.05 < clock.monotonic() - begun < 30

    def test_many_results_outlive_a_short_outage(self, ledger: RunnerLedger, store: Faulty) -> None:
        """Results of a batch are sent again until the store is back."""
        claims = [claimed(one) for one in ledger.claim_many(["a", "b"], lease=30)]
        store.refuse(4)
        assert ledger.complete_many(claims, 1) == [True, True]

    def test_a_result_is_given_up_at_the_leases_end(
        self, ledger: RunnerLedger, store: Faulty, clock: FakeClock
    ) -> None:
        """Nobody waits for ever for a store that does not come back."""
        claim = claimed(ledger.claim("key", lease=8))
        store.refuse(1000)
        begun = clock.monotonic()
        with pytest.raises(errors.StoreUnavailable):
            ledger.complete(claim, "done")
        assert 8 <= clock.monotonic() - begun < 10
