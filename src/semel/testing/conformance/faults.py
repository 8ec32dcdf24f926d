# ruff: noqa: PLR0917, S101 - these are tests, for whoever writes a store to subclass
"""Lost replies: whoever finds its own token has won, and what nobody can tell does not run."""

import pytest

from semel import errors
from semel.core.commands import TRIES, Refused
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import Status
from semel.model import Busy, Claimed, Failure, Replay
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import Harness, Runner, claimed, raw
from semel.testing.conformance.moves import OPERATIONS
from semel.testing.faulty import Faulty

LOST = list(range(1, TRIES))


class FaultTests(Harness):
    """A write whose reply was lost is sent again, and its author knows its own work."""

    @pytest.mark.parametrize("lost", LOST)
    def test_a_claim_is_recognised(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty, lost: int
    ) -> None:
        """The stored token is mine, so I won; nobody else is let in."""
        store.lose_reply(lost)
        claim = claimed(runner.run(ledger.claim("key")))
        assert (claim.attempt, claim.lapsed) == (1, False)
        assert raw(runner, ledger, "key")["token"] == claim.token  # type: ignore[index]
        assert type(runner.run(ledger.claim("key"))) is Busy
        runner.run(ledger.complete(claim, "done"))

    @pytest.mark.parametrize("lost", LOST)
    @pytest.mark.parametrize("vanished", [True, False])
    def test_a_take_over_is_recognised(
        self,
        runner: Runner,
        ledger: LedgerSteps,
        store: Faulty,
        clock: FakeClock,
        lost: int,
        vanished: bool,
    ) -> None:
        """Taking over and reclaiming are recognised as a first claim is, with the right attempt."""
        first = claimed(runner.run(ledger.claim("key", lease=30)))
        if vanished:
            clock.advance(30)
        else:
            runner.run(ledger.release(first))
        steps = ledger.claim("key", lease=30)
        refusal = runner.ask(next(steps))
        store.lose_reply(lost)
        reply = self._resend(runner, steps.send(refusal), lost)
        with pytest.raises(StopIteration) as end:
            steps.send(reply)
        claim = claimed(end.value.value)
        assert (claim.attempt, claim.lapsed) == (2, vanished)
        assert raw(runner, ledger, "key")["token"] == claim.token  # type: ignore[index]

    @pytest.mark.parametrize("lost", LOST)
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_holders_write_is_recognised(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty, name: str, lost: int
    ) -> None:
        """With its token and its outcome there, it was made, and that is success."""
        operation, _, leads_to = OPERATIONS[name]
        claim = claimed(runner.run(ledger.claim("key")))
        store.lose_reply(lost)
        runner.run(operation(ledger, claim))
        assert raw(runner, ledger, "key")["status"] == leads_to.value  # type: ignore[index]

    @pytest.mark.parametrize("lost", LOST)
    def test_a_mark_is_recognised(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty, lost: int
    ) -> None:
        """A key is new to the caller whose mark it is, alone and in a batch."""
        store.lose_reply(lost)
        assert runner.run(ledger.check_and_set("key")) is True
        assert runner.run(ledger.check_and_set("key")) is False
        store.lose_reply(lost)
        assert runner.run(ledger.check_and_set_many(["key", "other", "other"])) == [False, True, False]
        store.lose_reply(lost)
        runner.run(ledger.mark_processed("third"))
        assert runner.run(ledger.is_processed("third")) is True

    def test_another_result_is_not_mine(self, runner: Runner, ledger: LedgerSteps) -> None:
        """A second completion with another result is refused: the first one counts."""
        claim = claimed(runner.run(ledger.claim("key")))
        runner.run(ledger.complete(claim, "first"))
        runner.run(ledger.complete(claim, "first"))
        with pytest.raises(errors.ClaimLost):
            runner.run(ledger.complete(claim, "second"))
        with pytest.raises(errors.ClaimLost):
            runner.run(ledger.fail(claim, Failure("E", "")))
        replay = runner.run(ledger.claim("key"))
        assert type(replay) is Replay
        assert replay.result == "first"

    @pytest.mark.parametrize("applied", [True, False])
    def test_what_nobody_can_tell_is_said_so(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty, clock: FakeClock, applied: bool
    ) -> None:
        """After every try the claim is not given out; if it was made all the same, it ends with its lease."""
        if applied:
            store.lose_reply(TRIES)
        else:
            store.lose_request(TRIES)
        with pytest.raises(errors.StoreOutcomeUnknown):
            runner.run(ledger.claim("key", lease=30))
        assert len(store.seen) == TRIES
        clock.advance(30)
        claim = claimed(runner.run(ledger.claim("key", lease=30)))
        assert claim.attempt == (2 if applied else 1)

    def test_a_lost_request_is_sent_again(self, runner: Runner, ledger: LedgerSteps, store: Faulty) -> None:
        """What did not arrive is made by the next try."""
        store.lose_request(TRIES - 1)
        claim = claimed(runner.run(ledger.claim("key")))
        store.lose_request(TRIES - 1)
        runner.run(ledger.complete(claim, 0))
        found = runner.run(ledger.get("key"))
        assert found is not None
        assert found.status is Status.COMPLETED

    def test_a_store_that_is_down_writes_nothing(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty
    ) -> None:
        """The error is raised at once, and the key is free when the store is back."""
        store.refuse()
        with pytest.raises(errors.StoreUnavailable):
            runner.run(ledger.claim("key"))
        assert raw(runner, ledger, "key") is None
        assert type(runner.run(ledger.claim("key"))) is Claimed

    def test_forgetting_takes_only_the_record_that_was_meant(
        self, runner: Runner, ledger: LedgerSteps, store: Faulty
    ) -> None:
        """What was born since is left alone, though the reply to the deletion was lost."""
        runner.run(ledger.complete(claimed(runner.run(ledger.claim("key"))), "old"))
        steps = ledger.forget("key")
        delete = steps.send(runner.ask(next(steps)))
        store.lose_reply()
        with pytest.raises(errors.StoreOutcomeUnknown) as lost:
            runner.ask(delete)
        born = claimed(runner.run(ledger.claim("key")))
        again = steps.throw(lost.value)
        refusal = runner.ask(again)
        assert type(refusal) is Refused
        with pytest.raises(StopIteration) as end:
            steps.send(refusal)
        assert end.value.value is True
        runner.run(ledger.complete(born, "new"))

    def _resend(self, runner: Runner, command: object, lost: int) -> object:
        """Send a command until its reply arrives, as `commands.write` does."""
        for _ in range(lost):
            with pytest.raises(errors.StoreOutcomeUnknown):
                runner.ask(command)  # type: ignore[arg-type]
        return runner.ask(command)  # type: ignore[arg-type]
