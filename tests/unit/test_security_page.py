"""The page about security: every threat names tests, and every test that it names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text("utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
THREATS = [line for line in PAGE.splitlines() if re.match(r"\| (?!threat |---)", line)]


def defined(path: str) -> set[str]:
    """The functions of a file, those of its classes too."""
    nodes = ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("threat", THREATS, ids=lambda line: line.split(" | ")[0].strip("| "))
def test_a_threat_names_its_tests_and_they_exist(threat: str) -> None:
    cells = threat.strip("| ").split(" | ")
    assert len(cells) == 3
    named = TEST.findall(cells[2])
    assert ", ".join(f"`{path}::{test}`" if test else f"`{path}`" for path, test in named) == cells[2]
    assert named
    for path, test in named:
        assert test in defined(path) if test else (ROOT / path).exists(), f"{path}::{test}"


def test_every_adversary_has_threats() -> None:
    sections = re.findall(r"^## From (.+?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    assert len(sections) == 8
    assert all(section.count("\n| ") > 2 for section in sections)
