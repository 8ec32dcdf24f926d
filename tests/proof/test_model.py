"""The ledger's model: Spin finds no broken promise in it, and finds the one that a missing guard breaks."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from proof.model import check
from proof.model.check import Instance
from tests.amounts import ALL
from tests.servers.absence import served
from tests.servers.spin import spin

HOLDING = check.WHOLE if ALL else check.EVERYDAY
EVERY_DAY = {"DEADLINE_FROM_REPLY", "RESENT_WITHOUT_TOKEN"}
MUTANTS = [one for one in check.MUTANTS if ALL or one.name in EVERY_DAY]


@pytest.fixture(autouse=True)
def searchable() -> Iterator[None]:
    with served(spin):
        yield


@pytest.mark.parametrize("instance", HOLDING, ids=lambda one: one.name)
def test_every_promise_holds_in_every_state(instance: Instance, tmp_path: Path) -> None:
    finding = check.check(instance, tmp_path)
    assert finding.broken is None
    assert finding.states > 1_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_without_a_guard_its_promise_breaks_and_the_trail_tells_how(mutant: Instance, tmp_path: Path) -> None:
    finding = check.check(mutant, tmp_path)
    assert finding.broken == mutant.breaks
    story = list(check.story(mutant, tmp_path))
    assert any(re.fullmatch(r"worker \d calls", line) for line in story)
    if not mutant.lasting:
        # The step in which it breaks may still tell what it wrote, and break another promise after that.
        failed = [line for line in story if "text of failed assertion" in line]
        assert failed[0].endswith(f"assert({mutant.breaks})")
