"""The pictures of the failure modes: as the generator makes them, and as a store really behaves."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import semel
from semel import Busy, Claimed
from semel.core.lifecycle import COMPLETE, RELEASE, SETTLE_DONE, TAKE_OVER, Move, Status
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty
from tests.diagrams.drawing import MARGIN, Picture
from tests.diagrams.page import PICTURES, files
from tests.diagrams.playing import LEASE, Impossible, Standing, play
from tests.diagrams.scenarios import ONE, SCENARIOS, TWO, Asked, Scenario, Step

KEY = "charge:o-1"


class Stage:
    """A ledger on which the calls of a scenario are really made."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = FakeClock()
        self.began = self.clock.now()
        self.store = Faulty(MemoryStore(clock=self.clock))
        self.ledger = semel.Semel(self.store, clock=self.clock).ledger
        self.claims: dict[str, Claimed] = {}

    def make(self, call: Asked) -> str:
        """Make a call at its moment, and say what came of it."""
        self.clock.advance(max(0.0, self.began + call.at - self.clock.now()))
        if call.lost:
            {"reply": self.store.lose_reply, "request": self.store.refuse}[call.lost]()
        if call.verb == "claim":
            return self._claim(call)
        try:
            self._ways(call)[call.verb]()
        except semel.ClaimLost:
            return "ClaimLost"
        return "done"

    def _claim(self, call: Asked) -> str:
        limit = self.scenario.max_attempts
        outcome = self.ledger.claim(
            KEY,
            lease=LEASE,
            fingerprint=call.payload,
            on_lapsed=self.scenario.on_lapsed,
            max_attempts=limit,
        )
        if isinstance(outcome, Busy):
            return f"Busy for {outcome.retry_after:.0f} s"
        if not isinstance(outcome, Claimed):
            return type(outcome).__name__
        self.claims[call.who] = outcome
        return f"Claimed, attempt {outcome.attempt}"

    def _ways(self, call: Asked) -> dict[str, Callable[[], Any]]:
        who = call.who
        return {
            "complete": lambda: self.ledger.complete(self.claims[who], f"of {who}"),
            "fail": lambda: self.ledger.fail(self.claims[who], ValueError("declined")),
            "release": lambda: self.ledger.release(self.claims[who]),
            "settle": lambda: self.ledger.resolve(KEY, semel.Happened("found")),
            "forget": lambda: self.ledger.forget(KEY),
        }

    def standing(self) -> Standing:
        """How the record really stands."""
        record = self.ledger.get(KEY)
        if record is None:
            return Standing()
        [holder] = [who for who, claim in self.claims.items() if claim.token == record.token]
        lease = round(record.lease_until - self.began, 3)
        return Standing(record.status, record.attempt, holder, lease, record.fingerprint or "")


def without_lease(standing: Standing) -> Standing:
    """A standing whose lease is of no account any more."""
    running = standing.status is Status.IN_PROGRESS
    return standing if running else msgspec.structs.replace(standing, lease_until=0.0)


def named(scenario: Scenario) -> str:
    return scenario.name


@pytest.mark.parametrize("scenario", SCENARIOS, ids=named)
def test_a_store_does_what_the_picture_shows(scenario: Scenario) -> None:
    stage = Stage(scenario)
    for played in play(scenario):
        if isinstance(played.step, Asked):
            assert stage.make(played.step) == played.answer, played.step
            assert without_lease(stage.standing()) == without_lease(played.standing), played.step


@pytest.mark.parametrize("scenario", SCENARIOS, ids=named)
def test_no_more_than_one_caller_is_given_the_key_at_a_time(scenario: Scenario) -> None:
    """What the pictures are to show: a claim is given only where no lease runs."""
    before = Standing()
    for played in play(scenario):
        if played.answer.startswith("Claimed"):
            assert not before.running(played.step.at)
        before = played.standing


def test_the_files_are_what_the_generator_makes() -> None:
    made = files()
    assert set(PICTURES.iterdir()) == {path for path in made if path.parent == PICTURES}
    for path, text in made.items():
        assert path.read_text("utf-8") == text, "python -m tests.diagrams"


SEIZE = Move("seize", (Status.IN_PROGRESS,), Status.IN_PROGRESS, "whatever the lease says")


def scenario_of(*steps: Step) -> Scenario:
    return Scenario("name", "title", (), "", "", steps)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([Asked(31, TWO, "claim", (SEIZE,))], id="no such move"),
        pytest.param([Asked(10, TWO, "claim", (TAKE_OVER,))], id="the lease runs"),
        pytest.param([Asked(31, TWO, "claim", (SETTLE_DONE,))], id="from another state"),
        pytest.param([Asked(31, TWO, "claim")], id="a move is left out"),
        pytest.param([Asked(1, TWO, "complete", (COMPLETE,))], id="another's token"),
        pytest.param([Asked(1, ONE, "complete")], id="refused though it is allowed"),
        pytest.param([Asked(2, ONE, "release", (RELEASE,)), Asked(1, ONE, "claim")], id="time goes back"),
    ],
)
def test_what_the_table_does_not_have_cannot_be_drawn(steps: list[Step]) -> None:
    with pytest.raises(Impossible):
        Picture(scenario_of(Asked(0, ONE, "claim"), *steps)).draw()


def test_pictures_fit_a_page_and_bring_both_themes() -> None:
    for scenario in SCENARIOS:
        drawn = Picture(scenario).draw()
        assert max(Picture(scenario).lanes.values()) + MARGIN <= 760
        assert "prefers-color-scheme: dark" in drawn
        assert "href" not in drawn
        assert "<script" not in drawn
