"""The page about failures, and the pictures on it, as files."""

from pathlib import Path
from textwrap import fill

from tests.diagrams.drawing import Picture
from tests.diagrams.scenarios import SCENARIOS, Scenario
from tests.seeds import ROOT

PAGE = ROOT / "docs" / "explanation" / "failures.md"
PICTURES = ROOT / "docs" / "explanation" / "failures"
# As wide as the lines of the other pages.
WIDTH = 125

OPENING = """
Each picture shows one thing that goes wrong, and what becomes of the record. Time goes down; calls are solid
arrows, replies dashed ones, a dot is an effect outside the store, and the bar in the middle is
[the state of the record](lifecycle.md). The lease is 30 seconds, and nobody renews it, so that it
can be seen to end.

The states are not typed: `python -m tests.diagrams` works them out from the table of moves, and a test runs
each of these stories on a store and compares. The numbers are those of
[the situations](guarantees.md#the-situations), where further tests are named.
"""


def files() -> dict[Path, str]:
    """Every file that is made here, and its text."""
    pictures = {PICTURES / f"{one.name}.svg": Picture(one).draw() for one in SCENARIOS}
    opening = ("# Failures, one by one\n", *(f"{wrapped(text)}\n" for text in OPENING.strip().split("\n\n")))
    return {PAGE: "\n".join((*opening, *map(section, SCENARIOS))), **pictures}


def wrapped(text: str) -> str:
    return fill(text, WIDTH, break_on_hyphens=False)


def section(scenario: Scenario) -> str:
    """A failure mode on the page: two sentences and the picture."""
    numbers = " and ".join(f"[{number}](guarantees.md#the-situations)" for number in scenario.situations)
    situations = f"Situation {numbers}" if len(scenario.situations) == 1 else f"Situations {numbers}"
    alt = scenario.title.replace("`", "")
    told = wrapped(f"{scenario.happens} {scenario.does} {situations}.")
    return f"## {scenario.title}\n\n{told}\n\n![{alt}, as a sequence diagram](failures/{scenario.name}.svg)\n"
