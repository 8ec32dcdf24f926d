# ruff: noqa: S101 - these are tests, for whoever writes a store to subclass
"""`Flow.steps` on this store: the work runs once, and never where nobody can tell."""

from collections.abc import Callable
from typing import Any

import pytest

from semel import errors
from semel.core.clock import SignalSafeEvent
from semel.core.codecs import decoder_for
from semel.core.commands import TRIES, Raised, Returned, Steps
from semel.core.flow import Flow, FlowContext
from semel.core.heartbeat import Heartbeats
from semel.core.policy import policy_of
from semel.model import Happened, NotHappened
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import AGES, Harness, Runner, RunnerLedger, claimed
from semel.testing.faulty import Faulty


class Effect:
    """Work that counts how often it was done; it gives this value, or raises it if it is an error."""

    def __init__(self, value: Any = None) -> None:
        self.runs: int = 0
        self._value = value

    def __call__(self) -> Any:
        """Do it once."""
        self.runs += 1
        if isinstance(self._value, Exception):
            raise self._value
        return self._value() if callable(self._value) else self._value


class FlowTests(Harness):
    """Calls, with their policy."""

    @pytest.fixture
    def call(
        self, runner: Runner, store: Faulty, ledger: RunnerLedger, clock: FakeClock
    ) -> Callable[..., Steps[Any]]:
        """Makes the steps of a call on the key."""
        service = FlowContext(ledger.steps, store, clock, Heartbeats(store, clock), None, SignalSafeEvent())

        def make(effect: Effect, **options: Any) -> Steps[Returned | Raised]:
            flow = Flow(service, policy_of(options), decoder_for(Any))  # type: ignore[arg-type]
            return flow.steps(ledger.steps.name("key"), None, runner.work(effect))

        return make

    @pytest.mark.parametrize("result", [None, 0, "", False, [], {}, "x"])
    def test_work_runs_once(self, runner: Runner, call: Any, result: Any) -> None:
        """Every later call gives the first one's result, falsy or not."""
        effect = Effect(result)
        answers = [runner.run(call(effect)) for _ in range(3)]
        assert [answer.value for answer in answers] == [result] * 3
        assert effect.runs == 1

    def test_callers_at_once_run_once(self, runner: Runner, call: Any) -> None:
        """The others wait, and all get the one answer."""
        effect = Effect("once")
        answers = runner.together([call(effect, lease=2 * AGES, ttl=3 * AGES, wait=AGES) for _ in range(8)])
        assert [answer.value for answer in answers] == ["once"] * 8
        assert effect.runs == 1

    def test_nothing_runs_when_nobody_can_tell(self, runner: Runner, call: Any, store: Faulty) -> None:
        """A claim whose outcome stays unknown is not acted on."""
        effect = Effect()
        store.lose_reply(TRIES)
        with pytest.raises(errors.StoreOutcomeUnknown):
            runner.run(call(effect))
        assert effect.runs == 0

    def test_nothing_runs_when_the_store_is_down(self, runner: Runner, call: Any, store: Faulty) -> None:
        """Unless the policy says so."""
        effect = Effect("ran")
        store.refuse()
        with pytest.raises(errors.StoreUnavailable):
            runner.run(call(effect))
        assert effect.runs == 0
        store.refuse()
        assert runner.run(call(effect, on_store_error="open")) == Returned("ran")
        assert effect.runs == 1

    def test_a_lost_completion_is_a_completion(self, runner: Runner, call: Any, store: Faulty) -> None:
        """Its caller gets the result, and so do later ones."""
        effect = Effect(lambda: store.lose_reply(TRIES - 1))
        assert [runner.run(call(effect)).value for _ in range(2)] == [None] * 2
        assert effect.runs == 1

    def test_a_waiter_takes_over_when_the_winner_fails(
        self, runner: Runner, call: Any, ledger: RunnerLedger, clock: FakeClock
    ) -> None:
        """Whoever waits for an attempt that is given back runs the next one."""
        claim = claimed(ledger.claim("key", lease=1000))
        clock.schedule(5.0, lambda: ledger.direct.release(claim))
        effect = Effect("second")
        assert runner.run(call(effect, wait=900)) == Returned("second")
        assert effect.runs == 1
        assert clock.monotonic() < 20

    def test_a_waiter_takes_over_when_the_winner_vanishes(
        self, runner: Runner, call: Any, ledger: RunnerLedger, clock: FakeClock
    ) -> None:
        """And so it does once a lease has run out."""
        claimed(ledger.claim("key", lease=50))
        effect = Effect("second")
        assert runner.run(call(effect, wait=900)) == Returned("second")
        assert 49.999 <= clock.monotonic() < 60

    def test_a_kept_error_is_raised_again(self, runner: Runner, call: Any) -> None:
        """By type: one is kept and does not run again, another is released and does."""
        on_error = {ValueError: "keep"}
        effect = Effect(KeyError("flaky"))
        for _ in range(2):
            assert type(runner.run(call(effect, on_error=on_error)).error) is KeyError
        assert effect.runs == 2
        effect = Effect(ValueError("declined"))
        first, second = (runner.run(call(effect, on_error=on_error)).error for _ in range(2))
        assert type(first) is ValueError
        assert isinstance(second, ValueError)
        assert isinstance(second, errors.FailedBefore)
        assert effect.runs == 1

    @pytest.mark.parametrize("found", [Happened("found"), NotHappened()])
    def test_the_other_side_is_asked(
        self, runner: Runner, call: Any, ledger: RunnerLedger, clock: FakeClock, found: Any
    ) -> None:
        """Under `resolve` a vanished attempt is asked after before anything runs again."""
        claimed(ledger.claim("key", lease=30))
        clock.advance(30)
        effect, resolver = Effect("ran"), Effect(found)
        steps = call(effect, on_lapsed="resolve", resolver=resolver)
        happened = isinstance(found, Happened)
        assert runner.run(steps) == Returned("found" if happened else "ran")
        assert (effect.runs, resolver.runs) == (0 if happened else 1, 1)
