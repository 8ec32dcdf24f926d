# ruff: noqa: S101 - these are tests, for whoever writes a store to subclass
"""Many at once: one winner, whichever way they run."""

from collections import Counter

import pytest

from semel.core.commands import ABSENT, Add, Applied, Cancelled, Put, Refused, Transact, Update
from semel.model import Busy, Claimed
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import (
    AGES,
    THINGS,
    Harness,
    Runner,
    RunnerLedger,
    claimed,
    one,
    put,
    replayed,
    there,
    thing,
)

CROWD = 12
ROUNDS = 5


class RaceTests(Harness):
    """Threads and tasks that want the same thing at the same moment."""

    def test_one_of_many_puts_wins(self, runner: Runner, clock: FakeClock) -> None:
        """The others are refused with the winner's item."""
        for number in range(ROUNDS):
            key = f"key-{number}"
            items = [thing(clock, text=f"from {each}") for each in range(CROWD)]
            replies = runner.together([one(Put(THINGS, key, item, ABSENT)) for item in items])
            winners = [each for each, reply in enumerate(replies) if type(reply) is Applied]
            assert len(winners) == 1
            texts = {reply.item["text"] for reply in replies if isinstance(reply, Refused) and reply.item}
            assert texts == {f"from {winners[0]}"}
            assert there(runner, key)["text"] == f"from {winners[0]}"

    def test_one_of_many_updates_wins(self, runner: Runner, clock: FakeClock) -> None:
        """A condition and its change are one step."""
        for number in range(ROUNDS):
            put(runner, "key", thing(clock, count=number))
            change = Update(THINGS, "key", {"count": number + 100}, {"count": number})
            replies = runner.together([one(change) for _ in range(CROWD)])
            assert Counter(type(reply) for reply in replies) == {Applied: 1, Refused: CROWD - 1}

    def test_no_addition_is_lost(self, runner: Runner, clock: FakeClock) -> None:
        """Every reply has a count of its own, and the last is their sum."""
        add = Add(THINGS, "key", "count", 1, thing(clock))
        replies = runner.together([one(add) for _ in range(CROWD)])
        assert sorted(reply.item["count"] for reply in replies) == list(range(1, CROWD + 1))

    def test_one_of_many_transactions_wins(self, runner: Runner, clock: FakeClock) -> None:
        """Whoever gets one of two items gets both, whatever order they were named in."""
        for number in range(ROUNDS):
            keys = (f"a-{number}", f"b-{number}")

            def both(each: int, keys: tuple[str, str] = keys) -> Transact:
                order = keys if each % 2 else keys[::-1]
                return Transact(
                    tuple(Put(THINGS, key, thing(clock, text=str(each)), ABSENT) for key in order)
                )

            replies = runner.together([one(both(each)) for each in range(CROWD)])
            assert Counter(type(reply) for reply in replies) == {Applied: 1, Cancelled: CROWD - 1}
            first, second = (there(runner, key) for key in keys)
            assert first["text"] == second["text"]

    def test_one_of_many_claims_wins(self, runner: Runner, ledger: RunnerLedger) -> None:
        """The key is one caller's, and busy for the others."""
        for number in range(ROUNDS):
            outcomes = runner.together([ledger.steps.claim(f"key-{number}") for _ in range(CROWD)])
            assert Counter(type(outcome) for outcome in outcomes) == {Claimed: 1, Busy: CROWD - 1}
            winner = next(outcome for outcome in outcomes if type(outcome) is Claimed)
            seen = {outcome.record.token for outcome in outcomes if type(outcome) is Busy}
            assert seen == {winner.token}

    @pytest.mark.parametrize("vanished", [True, False])
    def test_one_of_many_takes_over(
        self, runner: Runner, ledger: RunnerLedger, clock: FakeClock, vanished: bool
    ) -> None:
        """When a lease has lapsed, or a claim was given back, exactly one caller runs the next attempt."""
        for number in range(ROUNDS):
            key = f"key-{number}"
            first = claimed(ledger.claim(key, lease=30))
            if vanished:
                clock.advance(30)
            else:
                ledger.release(first)
            outcomes = runner.together([ledger.steps.claim(key, lease=30) for _ in range(CROWD)])
            winners = [outcome for outcome in outcomes if type(outcome) is Claimed]
            assert [(winner.attempt, winner.lapsed) for winner in winners] == [(2, vanished)]
            assert sum(type(outcome) is Busy for outcome in outcomes) == CROWD - 1

    def test_one_of_many_is_new(self, runner: Runner, ledger: RunnerLedger) -> None:
        """`check_and_set` says True once."""
        for number in range(ROUNDS):
            answers = runner.together([ledger.steps.check_and_set(f"key-{number}") for _ in range(CROWD)])
            assert answers.count(True) == 1

    def test_keys_of_overlapping_batches_are_new_once_each(
        self, runner: Runner, ledger: RunnerLedger
    ) -> None:
        """However the batches overlap, each key is new in one of them."""
        batches = [[f"key-{(start + each) % 20}" for each in range(10)] for start in range(CROWD)]
        answers = runner.together([ledger.steps.check_and_set_many(batch) for batch in batches])
        new = Counter(
            key
            for batch, answer in zip(batches, answers, strict=True)
            for key, is_new in zip(batch, answer, strict=True)
            if is_new
        )
        assert set(new) == {key for batch in batches for key in batch}
        assert set(new.values()) == {1}

    def test_waiters_all_see_the_end(self, runner: Runner, ledger: RunnerLedger, clock: FakeClock) -> None:
        """A crowd that waits for one key is told, all of it, once the work is done."""
        claim = claimed(ledger.claim("key", lease=2 * AGES, ttl=3 * AGES))
        clock.schedule(5.0, lambda: ledger.direct.complete(claim, "done"))
        records = runner.together([ledger.steps.wait("key", timeout=AGES) for _ in range(CROWD)])
        assert {record.status.value for record in records if record is not None} == {"COMPLETED"}
        assert len(records) == CROWD
        assert replayed(ledger.claim("key")) == "done"
