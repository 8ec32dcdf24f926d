"""The page about the model has every step, mutant and promise of it, and names functions that exist."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from proof.model import check
from proof.model.check import Finding, Instance

ROOT = Path(__file__).parents[2]
CORE = ROOT / "src" / "semel" / "core"
PAGE = (ROOT / "docs" / "explanation" / "model.md").read_text("utf-8")
MODEL = check.MODEL.read_text("utf-8")

STEP = re.compile(r"^/\* as ([^:]+): [^\n]+ \*/\ninline (\w+)\(", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \| (`[^|]+`) \|", re.MULTILINE)
GUARD = re.compile(r"^\| `([A-Z_]+)` \| [^|]+ \| `(\w+)` \|", re.MULTILINE)
SETTING = {"WORKERS", "LEASE", "ON_LAPSED", "STRAYS", "OVERRIDES", "PROGRESS", "UNREDUCED"}

STEPS = {name: set(code.split(", ")) for code, name in STEP.findall(MODEL)}


def defined(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def core() -> set[str]:
    """Every function and class of the core as `module.name`, and every method as `Class.name`."""
    found = set()
    for path in CORE.glob("*.py"):
        for name, node in defined(ast.parse(path.read_text("utf-8")).body).items():
            found.add(f"{path.stem}.{name}")
            if isinstance(node, ast.ClassDef):
                found |= {f"{name}.{method}" for method in defined(node.body)}
    return found


def test_the_table_has_every_step_and_the_functions_that_it_stands_for() -> None:
    assert STEPS
    assert {name: set(re.findall(r"`([^`]+)`", code)) for name, code in ROW.findall(PAGE)} == STEPS


def test_every_function_that_a_step_stands_for_exists() -> None:
    assert {one for named in STEPS.values() for one in named} <= core()


def test_every_inline_that_says_what_it_stands_for_is_a_step() -> None:
    assert len(re.findall(r"/\* as ", MODEL)) == len(STEPS)


def test_every_switch_of_the_model_is_a_mutant_and_every_mutant_is_on_the_page() -> None:
    switches = set(re.findall(r"(?:#ifn?def |defined\()(\w+)", MODEL)) - SETTING
    assert switches == {mutant.name for mutant in check.MUTANTS}
    assert dict(GUARD.findall(PAGE)) == {mutant.name: mutant.breaks for mutant in check.MUTANTS}


def test_every_promise_of_the_model_is_on_the_page_and_broken_by_some_mutant() -> None:
    promises = set(re.findall(r"^bool (\w+) = true;", MODEL, re.MULTILINE)) | {"in_the_end"}
    assert promises == {mutant.breaks for mutant in check.MUTANTS}
    assert promises <= set(re.findall(r"^\| `(\w+)` \| [^`]", PAGE, re.MULTILINE))


@pytest.mark.parametrize(
    ("output", "broken", "states"),
    [
        ("State-vector 76 byte, errors: 0\n 350112 states, stored", None, 350_112),
        ("errors: 0\n 1.6e+08 states, stored", None, 160_000_000),
        ("assertion violated one_holder (at depth 3)\nerrors: 1\n 7 states, stored", "one_holder", 7),
        ("pan:1: acceptance cycle (at depth 3)\nerrors: 1\n 7 states, stored", "in_the_end", 7),
    ],
)
def test_what_a_search_says_is_understood(output: str, broken: str | None, states: int) -> None:
    assert check.verdict(output) == (broken, states)


@pytest.mark.parametrize(
    "output",
    [
        "",
        "error: max search depth too small\nerrors: 0\n 7 states, stored",
        "pan:1: invalid end state (at depth 3)\nerrors: 1\n 7 states, stored",
    ],
)
def test_anything_else_is_no_verdict(output: str) -> None:
    with pytest.raises(check.NotSearched):
        check.verdict(output)


@pytest.mark.parametrize(("broken", "code"), [(None, 0), ("one_holder", 1)])
def test_one_finding_that_was_not_expected_fails_the_run(
    broken: str | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: Callable[[Instance], Finding] = lambda one: Finding(one.name, None, broken, 7, 0.1)  # noqa: E731
    monkeypatch.setattr(check, "MUTANTS", [])
    monkeypatch.setattr(check, "WHOLE", check.EVERYDAY)
    monkeypatch.setattr(check, "check", found)
    assert check.checked(as_json=False) == code
    assert ("BAD" in capsys.readouterr().out) == bool(code)


def test_without_spin_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["proof.model"])
    monkeypatch.setenv("PATH", "")
    assert check.main() == 1
    assert capsys.readouterr().err == "spin and gcc cannot be found: apt install spin gcc\n"
