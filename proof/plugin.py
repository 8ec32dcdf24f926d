"""The part of pytest that keeps the score: what each test of a line has tried, and what came of it.

It is loaded by `python -m proof` alone, in the workers and in the process that collects what they report.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

REPORT = "SEMEL_PROOF_REPORT"

ROWS: list[dict[str, Any]] = []
PREPARED: dict[str, float] = {}
"""How long the fixtures of a test took, in which some do all of their work."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell which line of the scoreboard a test belongs to, and on which store it was."""
    report = yield
    mark = item.get_closest_marker("proof")
    if mark is not None:
        line, *tries = mark.args
        report.user_properties += [("line", line), ("where", where(item)), *[("tried", one) for one in tries]]
    return report


def where(item: pytest.Item) -> str:
    """The store that a test runs on, by its parameters."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return str(params.get("place", ""))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what was tried; what failed before or after its work is noted too."""
    properties = dict(report.user_properties)
    if report.when == "setup":
        PREPARED[report.nodeid] = report.duration
    if "line" not in properties or (report.when != "call" and not report.failed):
        return
    ROWS.append(
        {
            "line": properties["line"],
            "where": properties["where"],
            "test": report.nodeid,
            "tried": properties.get("tried", 0),
            "seed": properties.get("seed", ""),
            "found": properties.get("found", ""),
            "held": report.passed,
            "seconds": round(report.duration + PREPARED.pop(report.nodeid, 0.0), 1),
            "skipped": report.skipped,
        }
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the rows down, once: in the process that the workers report to."""
    if not hasattr(session.config, "workerinput"):
        Path(os.environ[REPORT]).write_text(json.dumps(ROWS), "utf-8")
