"""Take any one guard away, and the simulation finds out; put it back, and the same world is fine again."""

import msgspec
import pytest

from semel.core import flow, ledger, lifecycle, running
from semel.core.commands import ABSENT
from semel.testing import simulate

# Most are missed within a hundred worlds, the rarest within two thousand; `pytest -rP` shows where. More are
# allowed here, since every change to the code gives every seed another world.
ENOUGH = 20_000


class Tokenless(lifecycle.Move, frozen=True, kw_only=True):
    """A move that does not look at the token."""

    def expects(self, token, status=None):
        return {"status": super().expects(token, status)["status"]}


class Stateless(lifecycle.Move, frozen=True, kw_only=True):
    """A move that does not look at the status."""

    def expects(self, token, status=None):
        return {"token": token}


def without_token(name):
    return lambda patch: patch.setattr(
        lifecycle, name, Tokenless(**msgspec.structs.asdict(getattr(lifecycle, name)))
    )


def without_status(name):
    return lambda patch: patch.setattr(
        lifecycle, name, Stateless(**msgspec.structs.asdict(getattr(lifecycle, name)))
    )


def reading_without(attribute):
    """A take-over, or another move on what was read, that does not look at this attribute."""
    as_read = ledger.as_read

    def blind(record):
        return {name: value for name, value in as_read(record).items() if name != attribute}

    return lambda patch: patch.setattr(ledger, "as_read", blind)


def replaced(where, name, stand_in):
    return lambda patch: patch.setattr(where, name, stand_in)


def never(*_):
    return False


def give_up_waiting(self, id, busy, pending):
    yield from self._ledger.settled(id, self.policy.patience)
    return busy, 0.0


def released_whatever_was_raised(self, run, done):
    return self._ledger.releasing(run.claim)


def renewed_when_answered(self, sent):
    sent = self.clock.monotonic()
    self.deadline = sent + self.claim.lease
    self.due = sent + self.claim.lease / running.RENEWALS_PER_LEASE


def start_over_anything(self, expired=None):
    self.attempt, self.lapsed, self.before = 1, False, None
    self.expect = ABSENT if expired is None else {}


def not_sent_again(command, unknown):
    yield from ()
    raise unknown


# Each: what is taken away, and the invariants of which one is then broken.
GUARDS = {
    "token on complete": (without_token("COMPLETE"), {"one holder", "one result", "unknown"}),
    "token on fail": (without_token("FAIL"), {"one holder"}),
    "token on release": (without_token("RELEASE"), {"one holder", "unknown"}),
    "token on renew": (without_token("RENEW"), {"one holder"}),
    "token on lapse": (without_token("LAPSE"), {"one holder"}),
    "token on doubt": (without_token("DOUBT"), {"one holder"}),
    "status on complete": (without_status("COMPLETE"), {"one result", "kept failure", "one holder"}),
    "status on release": (without_status("RELEASE"), {"one result", "kept failure", "one holder"}),
    "token on take-over": (reading_without("token"), {"attempts", "one holder"}),
    "status on take-over": (
        reading_without("status"),
        {"one result", "kept failure", "unknown", "one holder", "attempts"},
    ),
    "lease on take-over": (reading_without("lease_until"), {"one holder"}),
    "own token of a claim": (replaced(ledger.PendingClaim, "is_mine", never), {"own token"}),
    "own work of a holder": (replaced(ledger, "already_applied", never), {"own token"}),
    "lease in what was read": (replaced(ledger, "is_running", never), {"one holder"}),
    "expiry": (replaced(ledger, "alive", lambda table, item, now: item), {"expired"}),
    "end of what expired": (
        replaced(ledger.PendingClaim, "start", start_over_anything),
        {"nothing lost", "one holder", "one result"},
    ),
    "payload": (replaced(ledger, "_differs", never), {"payload"}),
    "waiters take over": (replaced(flow.Flow, "_claim_next", give_up_waiting), {"waiter"}),
    "doubt after an interruption": (
        replaced(flow.Flow, "_ending", released_whatever_was_raised),
        {"no silent rerun"},
    ),
    "deadline before work": (replaced(flow.Flow, "_obstacle", never), {"one holder"}),
    "deadline from before the request": (
        replaced(running.Run, "renewed", renewed_when_answered),
        {"one holder"},
    ),
    "writes are sent again": (replaced(ledger, "resend", not_sent_again), {"no surprise"}),
}


def first_broken(seeds):
    for seed in seeds:
        try:
            simulate.run(seed)
        except simulate.InvariantViolation as violation:
            return violation
    return None


@pytest.mark.proof("guards")
@pytest.mark.parametrize("name", GUARDS)
def test_every_guard_is_needed(name, monkeypatch, tried):
    remove, invariants = GUARDS[name]
    with monkeypatch.context() as patch:
        remove(patch)
        violation = first_broken(range(ENOUGH))
    assert violation is not None, f"nobody misses it in {ENOUGH} worlds"
    print(f"{name}: seed {violation.seed}, {violation.invariant}: {violation.what}")  # noqa: T201 - for -rP
    assert violation.invariant in invariants
    assert simulate.run(violation.seed)["steps"] > 0
    tried(1, seed=str(violation.seed))
