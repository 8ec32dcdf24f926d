# ruff: noqa: PLR0917, S101, S105 - these are tests, for whoever writes a store to subclass
"""The life cycle: every move of the table, from every status, with the right token and with a stale one."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from semel import errors
from semel.core.commands import Applied, Item, Put, Refused, Steps, Update
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import MOVES, Move, Status
from semel.model import RECORD_VERSION, Busy, Claimed, Failed, Failure, Replay, Unknown
from semel.tables import LEDGER
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import LONG, Harness, Runner, claimed, raw

ClaimOperation: TypeAlias = Callable[[LedgerSteps, Claimed], Steps[Any]]

IN_PROGRESS, COMPLETED, FAILED, UNKNOWN, RELEASED = Status

# Written out here once more, and not taken from the table: what a holder may do, and where that leads.
OPERATIONS: dict[str, tuple[ClaimOperation, set[Status], Status]] = {
    "complete": (lambda ledger, claim: ledger.complete(claim, "mine"), {IN_PROGRESS, UNKNOWN}, COMPLETED),
    "fail": (lambda ledger, claim: ledger.fail(claim, Failure("E", "mine")), {IN_PROGRESS, UNKNOWN}, FAILED),
    "release": (lambda ledger, claim: ledger.release(claim), {IN_PROGRESS, UNKNOWN}, RELEASED),
    "renew": (lambda ledger, claim: ledger.renew(claim), {IN_PROGRESS}, IN_PROGRESS),
    "lapse": (lambda ledger, claim: ledger.lapse(claim), {IN_PROGRESS}, IN_PROGRESS),
    "doubt": (lambda ledger, claim: ledger.doubt(claim), {IN_PROGRESS}, UNKNOWN),
}
# What is done already is not refused: it may be the holder's own write, whose answer was lost.
DONE = {("release", RELEASED), ("doubt", UNKNOWN)}


def record(clock: FakeClock, status: Status, *, lapsed: bool = False) -> Item:
    """A record in this status, as another process may have left it."""
    return {
        "status": status.value,
        "token": "held",
        "attempt": 1,
        "created_at": clock.now(),
        "updated_at": clock.now(),
        "lease_until": clock.now() + (0 if lapsed else 30),
        "expires_at": clock.now() + LONG,
        "version": RECORD_VERSION,
    } | _body(status)


def _body(status: Status) -> Item:
    if status is COMPLETED:
        return {"result": b'"theirs"', "encoding": "json"}
    return {"error": '{"type":"E","message":"theirs"}'} if status is FAILED else {}


class MoveTests(Harness):
    """What may become of a record, and at whose hand."""

    @pytest.mark.parametrize("status", Status)
    @pytest.mark.parametrize("move", MOVES, ids=lambda move: f"{move.name}-{move.to}")
    def test_every_arrow_of_the_table(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, move: Move, status: Status
    ) -> None:
        """A move asks for its statuses, for the token that the record has, some for a lease that is over."""
        id = ledger.name("key")
        for token in ("held", "stale"):
            for lapsed in (True, False):
                before = record(clock, status, lapsed=lapsed)
                runner.ask(Put(LEDGER, id, before))
                change = {"status": str(move.to), "error": "moved"}
                reply = runner.ask(Update(LEDGER, id, change, move.condition(token)))
                right_token = token == "held" or not move.token
                allowed = status in move.start and right_token and (lapsed or not move.lapsed)
                assert type(reply) is (Applied if allowed else Refused)
                after = before | change if allowed else before
                assert raw(runner, ledger, "key") == after | {"id": id}

    @pytest.mark.parametrize("status", Status)
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_holder_may_only_do_this(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, name: str, status: Status
    ) -> None:
        """A holder's write is made from some statuses; from any other it is told that the claim is lost."""
        operation, allowed, leads_to = OPERATIONS[name]
        runner.ask(Put(LEDGER, ledger.name("key"), record(clock, status)))
        before = raw(runner, ledger, "key")
        claim = Claimed(ledger.name("key"), "held", 1, 30, LONG)
        if status in allowed:
            runner.run(operation(ledger, claim))
            assert raw(runner, ledger, "key")["status"] == leads_to.value  # type: ignore[index]
        elif (name, status) in DONE:
            runner.run(operation(ledger, claim))
            assert raw(runner, ledger, "key") == before
        else:
            with pytest.raises(errors.ClaimLost):
                runner.run(operation(ledger, claim))
            assert raw(runner, ledger, "key") == before

    @pytest.mark.parametrize("status", Status)
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_stale_token_changes_nothing(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, name: str, status: Status
    ) -> None:
        """A zombie is refused and told so, whatever it wants and whatever has become of the record."""
        operation, _, _ = OPERATIONS[name]
        runner.ask(Put(LEDGER, ledger.name("key"), record(clock, status)))
        before = raw(runner, ledger, "key")
        with pytest.raises(errors.ClaimLost) as caught:
            runner.run(operation(ledger, Claimed(ledger.name("key"), "stale", 1, 30, LONG)))
        assert (caught.value.key, caught.value.attempt) == ("key", 1)
        assert raw(runner, ledger, "key") == before

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_deleted_record_is_not_brought_back(
        self, runner: Runner, ledger: LedgerSteps, name: str
    ) -> None:
        """Whoever held a record that is gone is refused, and there is no record afterwards."""
        claim = claimed(runner.run(ledger.claim("key")))
        assert runner.run(ledger.forget("key")) is True
        with pytest.raises(errors.ClaimLost):
            runner.run(OPERATIONS[name][0](ledger, claim))
        assert raw(runner, ledger, "key") is None

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_record_born_again_knows_no_old_token(
        self, runner: Runner, ledger: LedgerSteps, name: str
    ) -> None:
        """After deletion the key is claimed anew; the first holder's claim fits nothing any more."""
        old = claimed(runner.run(ledger.claim("key")))
        runner.run(ledger.forget("key"))
        new = claimed(runner.run(ledger.claim("key")))
        assert (new.attempt, old.attempt) == (1, 1)
        before = raw(runner, ledger, "key")
        with pytest.raises(errors.ClaimLost):
            runner.run(OPERATIONS[name][0](ledger, old))
        assert raw(runner, ledger, "key") == before
        runner.run(ledger.complete(new, "new"))

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_zombie_is_refused_after_a_take_over(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock, name: str
    ) -> None:
        """The one who took over keeps the claim, and its result is the one that counts."""
        zombie = claimed(runner.run(ledger.claim("key", lease=30)))
        clock.advance(30)
        owner = claimed(runner.run(ledger.claim("key", lease=30)))
        assert (owner.attempt, owner.lapsed) == (2, True)
        with pytest.raises(errors.ClaimLost):
            runner.run(OPERATIONS[name][0](ledger, zombie))
        runner.run(ledger.complete(owner, "the owner's"))
        with pytest.raises(errors.ClaimLost):
            runner.run(OPERATIONS[name][0](ledger, zombie))
        replay = runner.run(ledger.claim("key"))
        assert type(replay) is Replay
        assert replay.result == "the owner's"

    @pytest.mark.parametrize("status", Status)
    @pytest.mark.parametrize("lapsed", [True, False])
    @pytest.mark.parametrize("on_lapsed", ["rerun", "hold", "resolve"])
    def test_what_a_claimant_finds(
        self,
        runner: Runner,
        ledger: LedgerSteps,
        clock: FakeClock,
        status: Status,
        lapsed: bool,
        on_lapsed: Any,
    ) -> None:
        """A claimant runs what was given back or has lapsed, and else learns what is there."""
        runner.ask(Put(LEDGER, ledger.name("key"), record(clock, status, lapsed=lapsed)))
        outcome = runner.run(ledger.claim("key", on_lapsed=on_lapsed))
        if status is IN_PROGRESS and lapsed:
            expected: type = Unknown if on_lapsed == "hold" else Claimed
        else:
            expected = {
                IN_PROGRESS: Busy,
                COMPLETED: Replay,
                FAILED: Failed,
                UNKNOWN: Unknown,
                RELEASED: Claimed,
            }[status]
        assert type(outcome) is expected
        if type(outcome) is Claimed:
            assert (outcome.attempt, outcome.lapsed) == (2, status is IN_PROGRESS)

    def test_a_renewed_lease_is_not_taken_over(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock
    ) -> None:
        """Renewals keep others out for a whole lease each, and keep the record alive."""
        claim = claimed(runner.run(ledger.claim("key", lease=30, ttl=40)))
        for _ in range(4):
            clock.advance(29)
            busy = runner.run(ledger.claim("key", lease=30, ttl=40))
            assert type(busy) is Busy
            assert busy.retry_after == pytest.approx(1, abs=1e-3)
            runner.run(ledger.renew(claim))
        clock.advance(30)
        assert type(runner.run(ledger.claim("key", lease=30, ttl=40))) is Claimed

    def test_a_renewal_between_look_and_take_over_wins(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock
    ) -> None:
        """The lease is compared in the write itself, and not only in what was read before."""
        claim = claimed(runner.run(ledger.claim("key", lease=30)))
        clock.advance(31)
        steps = ledger.claim("key", lease=30)
        refusal = runner.ask(next(steps))
        take_over = steps.send(refusal)
        runner.run(ledger.renew(claim))
        assert type(runner.ask(take_over)) is Refused

    def test_an_interrupted_attempt_lapses_at_once(self, runner: Runner, ledger: LedgerSteps) -> None:
        """`lapse` ends the lease now, and the next claimant decides as after a crash."""
        claim = claimed(runner.run(ledger.claim("key")))
        runner.run(ledger.lapse(claim))
        outcome = runner.run(ledger.claim("key", on_lapsed="hold"))
        assert type(outcome) is Unknown

    def test_a_holder_that_was_given_up_may_still_tell(
        self, runner: Runner, ledger: LedgerSteps, clock: FakeClock
    ) -> None:
        """UNKNOWN ends when the lost holder comes back with its token."""
        claim = claimed(runner.run(ledger.claim("key", lease=30)))
        clock.advance(30)
        assert type(runner.run(ledger.claim("key", on_lapsed="hold"))) is Unknown
        runner.run(ledger.complete(claim, "after all"))
        replay = runner.run(ledger.claim("key"))
        assert type(replay) is Replay
        assert replay.result == "after all"
