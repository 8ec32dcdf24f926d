# ruff: noqa: PLR0917, S101 - these are tests, for whoever writes a store to subclass
"""Lost replies: whoever finds its own token has won, and what nobody can tell does not run."""

from typing import Any

import pytest

from semel import errors
from semel.core.commands import TRIES, Refused
from semel.core.lifecycle import Status
from semel.model import Busy, Claimed, Failure
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import Harness, Runner, RunnerLedger, claimed, replayed
from semel.testing.conformance.moves import OPERATIONS
from semel.testing.faulty import Faulty

LOST = list(range(1, TRIES))


class FaultTests(Harness):
    """A write whose reply was lost is sent again, and its author knows its own work."""

    @pytest.mark.parametrize("lost", LOST)
    def test_a_claim_is_recognised(self, ledger: RunnerLedger, store: Faulty, lost: int) -> None:
        """The stored token is mine, so I won; nobody else is let in."""
        store.lose_reply(lost)
        claim = claimed(ledger.claim("key"))
        assert (claim.attempt, claim.lapsed) == (1, False)
        assert ledger.raw("key")["token"] == claim.token
        assert type(ledger.claim("key")) is Busy
        ledger.complete(claim, "done")

    @pytest.mark.parametrize("lost", LOST)
    @pytest.mark.parametrize("vanished", [True, False])
    def test_a_take_over_is_recognised(
        self, runner: Runner, ledger: RunnerLedger, store: Faulty, clock: FakeClock, lost: int, vanished: bool
    ) -> None:
        """Taking over and reclaiming are recognised as a first claim is, with the right attempt."""
        first = claimed(ledger.claim("key", lease=30))
        if vanished:
            clock.advance(30)
        else:
            ledger.release(first)
        steps = ledger.steps.claim("key", lease=30)
        refusal = runner.ask(next(steps))
        store.lose_reply(lost)
        reply = self._resend(runner, steps.send(refusal), lost)
        with pytest.raises(StopIteration) as end:
            steps.send(reply)
        claim = claimed(end.value.value)
        assert (claim.attempt, claim.lapsed) == (2, vanished)
        assert ledger.raw("key")["token"] == claim.token

    @pytest.mark.parametrize("lost", LOST)
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_holders_write_is_recognised(
        self, ledger: RunnerLedger, store: Faulty, name: str, lost: int
    ) -> None:
        """With its token and its outcome there, it was made, and that is success."""
        operation, _, leads_to = OPERATIONS[name]
        claim = claimed(ledger.claim("key"))
        store.lose_reply(lost)
        operation(ledger, claim)
        assert ledger.raw("key")["status"] == leads_to.value

    @pytest.mark.parametrize("lost", LOST)
    def test_a_mark_is_recognised(self, ledger: RunnerLedger, store: Faulty, lost: int) -> None:
        """A key is new to the caller whose mark it is, alone and in a batch."""
        store.lose_reply(lost)
        assert ledger.check_and_set("key") is True
        assert ledger.check_and_set("key") is False
        store.lose_reply(lost)
        assert ledger.check_and_set_many(["key", "other", "other"]) == [False, True, False]
        store.lose_reply(lost)
        ledger.mark_processed("third")
        assert ledger.is_processed("third") is True

    def test_another_result_is_not_mine(self, ledger: RunnerLedger) -> None:
        """A second completion with another result is refused: the first one counts."""
        claim = claimed(ledger.claim("key"))
        ledger.complete(claim, "first")
        ledger.complete(claim, "first")
        with pytest.raises(errors.ClaimLost):
            ledger.complete(claim, "second")
        with pytest.raises(errors.ClaimLost):
            ledger.fail(claim, Failure("E", ""))
        assert replayed(ledger.claim("key")) == "first"

    @pytest.mark.parametrize("applied", [True, False])
    def test_what_nobody_can_tell_is_said_so(
        self, ledger: RunnerLedger, store: Faulty, clock: FakeClock, applied: bool
    ) -> None:
        """After every try the claim is not given out; if it was made all the same, it ends with its lease."""
        if applied:
            store.lose_reply(TRIES)
        else:
            store.lose_request(TRIES)
        with pytest.raises(errors.StoreOutcomeUnknown):
            ledger.claim("key", lease=30)
        assert len(store.seen) == TRIES
        clock.advance(30)
        claim = claimed(ledger.claim("key", lease=30))
        assert claim.attempt == (2 if applied else 1)

    def test_a_lost_request_is_sent_again(self, ledger: RunnerLedger, store: Faulty) -> None:
        """What did not arrive is made by the next try."""
        store.lose_request(TRIES - 1)
        claim = claimed(ledger.claim("key"))
        store.lose_request(TRIES - 1)
        ledger.complete(claim, 0)
        assert ledger.record("key").status is Status.COMPLETED

    def test_a_store_that_is_down_writes_nothing(self, ledger: RunnerLedger, store: Faulty) -> None:
        """The error is raised at once, and the key is free when the store is back."""
        store.refuse()
        with pytest.raises(errors.StoreUnavailable):
            ledger.claim("key")
        assert ledger.raw("key") is None
        assert type(ledger.claim("key")) is Claimed

    def test_forgetting_takes_only_the_record_that_was_meant(
        self, runner: Runner, ledger: RunnerLedger, store: Faulty
    ) -> None:
        """What was born since is left alone, though the reply to the deletion was lost."""
        ledger.complete(claimed(ledger.claim("key")), "old")
        steps = ledger.steps.forget("key")
        delete = steps.send(runner.ask(next(steps)))
        store.lose_reply()
        with pytest.raises(errors.StoreOutcomeUnknown) as lost:
            runner.ask(delete)
        born = claimed(ledger.claim("key"))
        again = steps.throw(lost.value)
        refusal = runner.ask(again)
        assert type(refusal) is Refused
        with pytest.raises(StopIteration) as end:
            steps.send(refusal)
        assert end.value.value is True
        ledger.complete(born, "new")

    def _resend(self, runner: Runner, command: Any, lost: int) -> Any:
        """Send a command until its reply arrives, as `commands.write` does."""
        for _ in range(lost):
            with pytest.raises(errors.StoreOutcomeUnknown):
                runner.ask(command)
        return runner.ask(command)
