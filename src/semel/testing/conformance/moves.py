# ruff: noqa: S101, S105 - these are tests, for whoever writes a store to subclass
"""The life cycle: every move of the table, from every status, with the right token and with a stale one."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from semel import errors
from semel.core.commands import Applied, Item, Put, Refused, Update
from semel.core.facades import Ledger
from semel.core.lifecycle import MOVES, Move, Status
from semel.model import RECORD_VERSION, Busy, Claimed, Failed, Failure, Replay, Unknown
from semel.tables import LEDGER
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import LONG, Harness, Runner, RunnerLedger, claimed, replayed

ClaimOperation: TypeAlias = Callable[[Ledger, Claimed], Any]

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
# What a claimant learns of a record whose lease is not over.
FOUND = dict(zip(Status, (Busy, Replay, Failed, Unknown, Claimed), strict=True))


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
        self, runner: Runner, ledger: RunnerLedger, clock: FakeClock, move: Move, status: Status
    ) -> None:
        """A move expects one of its states, and the token that the record has."""
        id = ledger.steps.name("key")
        for token in ("held", "stale"):
            for start in move.start:
                before = record(clock, status, lapsed=move.lapsed)
                runner.ask(Put(LEDGER, id, before))
                change = {"status": str(move.to), "error": "moved"}
                reply = runner.ask(Update(LEDGER, id, change, move.expects(token, start)))
                allowed = status is start and token == "held"
                assert type(reply) is (Applied if allowed else Refused)
                after = before | change if allowed else before
                assert ledger.raw("key") == after | {"id": id}

    @pytest.mark.parametrize("status", Status)
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_holder_may_only_do_this(
        self, ledger: RunnerLedger, clock: FakeClock, name: str, status: Status
    ) -> None:
        """A holder's write is made from some statuses; from any other it is told that the claim is lost."""
        operation, allowed, leads_to = OPERATIONS[name]
        ledger.write("key", record(clock, status))
        before = ledger.raw("key")
        claim = Claimed(ledger.steps.name("key"), "held", 1, 30, LONG)
        if status in allowed:
            operation(ledger, claim)
            assert ledger.raw("key")["status"] == leads_to.value
        elif (name, status) in DONE:
            operation(ledger, claim)
            assert ledger.raw("key") == before
        else:
            with pytest.raises(errors.ClaimLost):
                operation(ledger, claim)
            assert ledger.raw("key") == before

    @pytest.mark.parametrize("status", Status)
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_stale_token_changes_nothing(
        self, ledger: RunnerLedger, clock: FakeClock, name: str, status: Status
    ) -> None:
        """A zombie is refused and told so, whatever it wants and whatever has become of the record."""
        operation, _, _ = OPERATIONS[name]
        ledger.write("key", record(clock, status))
        before = ledger.raw("key")
        with pytest.raises(errors.ClaimLost) as caught:
            operation(ledger, Claimed(ledger.steps.name("key"), "stale", 1, 30, LONG))
        assert (caught.value.key, caught.value.attempt) == ("key", 1)
        assert ledger.raw("key") == before

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_deleted_record_is_not_brought_back(self, ledger: RunnerLedger, name: str) -> None:
        """Whoever held a record that is gone is refused, and there is no record afterwards."""
        claim = claimed(ledger.claim("key"))
        assert ledger.forget("key") is True
        with pytest.raises(errors.ClaimLost):
            OPERATIONS[name][0](ledger, claim)
        assert ledger.raw("key") is None

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_record_born_again_knows_no_old_token(self, ledger: RunnerLedger, name: str) -> None:
        """After deletion the key is claimed anew; the first holder's claim fits nothing any more."""
        old = claimed(ledger.claim("key"))
        ledger.forget("key")
        new = claimed(ledger.claim("key"))
        assert (new.attempt, old.attempt) == (1, 1)
        before = ledger.raw("key")
        with pytest.raises(errors.ClaimLost):
            OPERATIONS[name][0](ledger, old)
        assert ledger.raw("key") == before
        ledger.complete(new, "new")

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_zombie_is_refused_after_a_take_over(
        self, ledger: RunnerLedger, clock: FakeClock, name: str
    ) -> None:
        """The one who took over keeps the claim, and its result is the one that counts."""
        zombie = claimed(ledger.claim("key", lease=30))
        clock.advance(30)
        owner = claimed(ledger.claim("key", lease=30))
        assert (owner.attempt, owner.lapsed) == (2, True)
        with pytest.raises(errors.ClaimLost):
            OPERATIONS[name][0](ledger, zombie)
        ledger.complete(owner, "the owner's")
        with pytest.raises(errors.ClaimLost):
            OPERATIONS[name][0](ledger, zombie)
        assert replayed(ledger.claim("key")) == "the owner's"

    @pytest.mark.parametrize("status", Status)
    @pytest.mark.parametrize("lapsed", [True, False])
    @pytest.mark.parametrize("on_lapsed", ["rerun", "hold", "resolve"])
    def test_what_a_claimant_finds(
        self, ledger: RunnerLedger, clock: FakeClock, status: Status, lapsed: bool, on_lapsed: Any
    ) -> None:
        """A claimant runs what was given back or has lapsed, and else learns what is there."""
        ledger.write("key", record(clock, status, lapsed=lapsed))
        outcome = ledger.claim("key", on_lapsed=on_lapsed)
        if status is IN_PROGRESS and lapsed:
            assert type(outcome) is (Unknown if on_lapsed == "hold" else Claimed)
        else:
            assert type(outcome) is FOUND[status]
        if type(outcome) is Claimed:
            assert (outcome.attempt, outcome.lapsed) == (2, status is IN_PROGRESS)

    def test_a_renewed_lease_is_not_taken_over(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """Renewals keep others out for a whole lease each, and keep the record alive."""
        claim = claimed(ledger.claim("key", lease=30, ttl=40))
        for _ in range(4):
            clock.advance(29)
            busy = ledger.claim("key", lease=30, ttl=40)
            assert type(busy) is Busy
            assert busy.retry_after == pytest.approx(1, abs=1e-3)
            ledger.renew(claim)
        clock.advance(30)
        assert type(ledger.claim("key", lease=30, ttl=40)) is Claimed

    def test_a_renewal_between_look_and_take_over_wins(
        self, runner: Runner, ledger: RunnerLedger, clock: FakeClock
    ) -> None:
        """The lease is compared in the write itself, and not only in what was read before."""
        claim = claimed(ledger.claim("key", lease=30))
        clock.advance(31)
        steps = ledger.steps.claim("key", lease=30)
        take_over = steps.send(runner.ask(next(steps)))
        ledger.renew(claim)
        assert type(runner.ask(take_over)) is Refused

    def test_an_interrupted_attempt_lapses_at_once(self, ledger: RunnerLedger) -> None:
        """`lapse` ends the lease now, and the next claimant decides as after a crash."""
        claim = claimed(ledger.claim("key"))
        ledger.lapse(claim)
        assert type(ledger.claim("key", on_lapsed="hold")) is Unknown

    def test_a_holder_that_was_given_up_may_still_tell(self, ledger: RunnerLedger, clock: FakeClock) -> None:
        """UNKNOWN ends when the lost holder comes back with its token."""
        claim = claimed(ledger.claim("key", lease=30))
        clock.advance(30)
        assert type(ledger.claim("key", on_lapsed="hold")) is Unknown
        ledger.complete(claim, "after all")
        assert replayed(ledger.claim("key")) == "after all"
