"""Take any one guard away, and the simulation finds out; put it back, and the same world is fine again."""

import msgspec
import pytest

from semel.core import flow, ledger, lifecycle, running
from semel.core.commands import AllOf, Past
from semel.stores import memory
from semel.testing import simulate

# Most are missed within a hundred worlds, the rarest within two thousand; `pytest -rP` shows where. More are
# allowed here, since every change to the code gives every seed another world.
ENOUGH = 20_000


class Hasty(lifecycle.Move, frozen=True, kw_only=True):
    """A move that does not look at the lease."""

    def condition(self, token):
        clauses = super().condition(token).conditions
        return AllOf(tuple(clause for clause in clauses if type(clause) is not Past))


class Tokenless(lifecycle.Move, frozen=True, kw_only=True):
    """A move that does not look at the token."""

    def condition(self, token):
        return AllOf(self.fixed)


def without_token(name):
    def remove(patch):
        patch.setattr(lifecycle, name, Tokenless(**msgspec.structs.asdict(getattr(lifecycle, name))))

    return remove


def without_lease(*names):
    def remove(patch):
        for name in names:
            patch.setattr(lifecycle, name, Hasty(**msgspec.structs.asdict(getattr(lifecycle, name))))

    return remove


def replaced(where, name, stand_in):
    return lambda patch: patch.setattr(where, name, stand_in)


def all_of(*removals):
    def remove(patch):
        for each in removals:
            each(patch)

    return remove


def never(*_):
    return False


def give_up_waiting(self, id, terms, busy, pending):
    yield from self._ledger.settled(id, self.policy.patience)
    return busy, 0.0


def give_back_as_if_not_begun(self, run, done, final):
    yield from self._ledger.release(run.claim)


def renewed_when_answered(self, sent):
    sent = self._clock.monotonic()
    self.deadline = sent + self.claim.lease
    self.due = sent + self.claim.lease / running.RENEWALS_PER_LEASE


def sent_once(command):
    return (yield command)


# Each: what is taken away, and the invariants of which one is then broken.
GUARDS = {
    "token on complete": (without_token("COMPLETE"), {"one holder", "one result", "unknown"}),
    "token on fail": (without_token("FAIL"), {"one holder"}),
    "token on release": (without_token("RELEASE"), {"one holder", "unknown"}),
    "token on renew": (without_token("RENEW"), {"one holder"}),
    "token on lapse": (without_token("LAPSE"), {"one holder"}),
    "token on doubt": (without_token("DOUBT"), {"one holder"}),
    "token on reclaim": (without_token("RECLAIM"), {"attempts", "one holder"}),
    "token on take-over": (without_token("TAKE_OVER"), {"attempts"}),
    "own token of a claim": (replaced(ledger, "_owned", never), {"own token"}),
    "own work of a holder": (replaced(ledger, "was_made", never), {"own token"}),
    "lease in what was read": (replaced(ledger, "is_running", never), {"progress"}),
    "lease in the take-over": (without_lease("TAKE_OVER"), {"one holder"}),
    "lease in the hold": (without_lease("HOLD"), {"one holder"}),
    "lease everywhere": (
        all_of(replaced(ledger, "is_running", never), without_lease("TAKE_OVER", "HOLD", "EXHAUST_LAPSED")),
        {"one holder"},
    ),
    "expiry": (replaced(memory, "alive", lambda table, item, now: item), {"expired"}),
    "payload": (replaced(ledger, "_differs", never), {"payload"}),
    "waiters take over": (replaced(flow.Flow, "_claim_next", give_up_waiting), {"waiter"}),
    "doubt after an interruption": (
        replaced(flow.Flow, "_give_back", give_back_as_if_not_begun),
        {"no silent rerun"},
    ),
    "deadline before work": (replaced(flow.Flow, "_stopped", never), {"one holder"}),
    "deadline from before the request": (
        replaced(running.Run, "renewed", renewed_when_answered),
        {"one holder"},
    ),
    "writes are sent again": (replaced(ledger, "write", sent_once), {"no surprise"}),
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
