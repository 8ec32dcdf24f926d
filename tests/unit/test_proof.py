"""The scoreboard of the proof: its page is made from its report, its lines from the tests that try them."""

import json
from typing import Any

import pytest

from proof import page
from proof.__main__ import problems
from proof.lines import LINES
from tests.seeds import shown


@pytest.fixture
def report() -> Any:
    return json.loads(page.REPORT.read_text("utf-8"))


def test_the_page_is_made_from_the_report(report: Any) -> None:
    assert page.PAGE.read_text("utf-8") == page.page(report), "python -m proof.page"


def test_every_line_is_tried_by_tests_and_every_mark_names_a_line() -> None:
    assert {name for name in shown("proof") if isinstance(name, str)} == LINES.keys()


def test_the_report_has_every_line_and_no_violation(report: Any) -> None:
    assert problems(report) == []


def test_a_failure_and_a_line_that_nothing_was_tried_of_are_problems() -> None:
    rows = [
        {"line": name, "where": "", "test": f"test_{name}", "tried": 1, "held": True, "skipped": False}
        for name in LINES
    ]
    case = {"suite": "theirs", "case": "one", "outcome": "passed"}
    report = {"rows": rows, "model": [{"name": "all", "good": True}], "rivals": {"results": [case]}}
    assert problems(report) == []
    rows[0]["held"] = False
    rows[1]["tried"] = 0
    report["model"] = [{"name": "all", "good": False}]
    case["outcome"] = "failed"
    first, second = list(LINES)[:2]
    assert problems(report) == [
        f"test_{first} has failed",
        f"nothing was tried of {second!r}",
        "the model is not as expected: all",
        "another library's case has failed: theirs one",
    ]
    assert problems(report | {"model": [], "rivals": {"results": []}})[2:] == [
        "the model was not searched",
        "the other libraries' suites did not run",
    ]
