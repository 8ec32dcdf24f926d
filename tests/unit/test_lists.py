"""Lists that must agree, and cannot be made from one another: each is held against the one that counts."""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from semel import gate
from semel.connect import STORES
from semel.provision import SCHEMES
from tests.doors.test_extras import DOORS as WITHOUT_THEIR_PACKAGE
from tests.unit.test_docs_doors import DOORS as IN_THE_REFERENCE

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "semel"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
CONTRACTS = {one["id"]: one for one in PROJECT["tool"]["importlinter"]["contracts"]}


def text(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def modules(folder: str) -> set[str]:
    """What can be imported from a folder of the source, by name."""
    found = (SOURCE / folder).iterdir()
    names = {path.stem for path in found if path.suffix == ".py" or (path / "__init__.py").is_file()}
    return names - {"__init__", "__main__"}


def required(path: Path) -> Iterator[tuple[str, str]]:
    """Each package that a module asks `require` for, with the extra that is to bring it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
            [package, extra] = [ast.literal_eval(argument) for argument in node.args]
            yield package, extra


# Extras


def test_the_makefile_installs_every_extra_that_brings_something() -> None:
    [line] = re.findall(r"^EXTRAS := (.+)$", text("Makefile"), re.MULTILINE)
    # amqp may have to be compiled, and has a way of its own.
    assert line.split(",") == sorted(extra for extra, brings in EXTRAS.items() if brings and extra != "amqp")


def test_the_readme_names_every_extra_that_brings_something() -> None:
    named = {name for group in re.findall(r"\[([a-z,]+)\]`", text("README.md")) for name in group.split(",")}
    assert named >= {extra for extra, brings in EXTRAS.items() if brings} - {"apps"}  # which service brings


def test_every_extra_that_an_error_names_is_one() -> None:
    asked = {extra for path in SOURCE.rglob("*.py") for _, extra in required(path)}
    assert asked <= EXTRAS.keys()
    libraries = {extra for extra, brings in EXTRAS.items() if brings} - {"apps", "pydantic", "zones"}
    assert asked == libraries  # those three are never missed: nothing of semel's own imports them by name


# Doors

# What doors have in common, and is no door by itself.
SHARED = {"tasks", "sqs_names"}


def test_every_door_is_in_the_list_of_the_reference() -> None:
    listed = {door.partition(".")[0] for door in IN_THE_REFERENCE}
    assert listed == modules("doors") - SHARED - {"drf"}  # which works by being named in Django's settings
    assert "semel.doors.drf" in text("docs/reference/doors.md")


def test_every_door_with_a_package_is_tried_without_it() -> None:
    asking: dict[str, set[str]] = {}
    for door in modules("doors"):
        paths = [SOURCE / "doors" / f"{door}.py", *(SOURCE / "doors" / door).rglob("*.py")]
        asked = {extra for path in paths if path.is_file() for _, extra in required(path)}
        asking |= {door: asked} if asked else {}
    tried: dict[str, set[str]] = {}
    for name, (_, _, extra) in WITHOUT_THEIR_PACKAGE.items():
        tried.setdefault(name.partition(" ")[0], set()).add(extra)
    assert tried == asking


def test_ruff_lets_imports_stand_late_where_a_door_looks_for_its_package_first() -> None:
    [pattern] = [path for path in PROJECT["tool"]["ruff"]["lint"]["per-file-ignores"] if "/doors/" in path]
    late = set()
    for path in (SOURCE / "doors").glob("*.py"):
        body = ast.parse(path.read_text("utf-8")).body
        calls = [
            place
            for place, node in enumerate(body)
            if isinstance(node, ast.Expr) and "require" in ast.dump(node)
        ]
        if calls and any(isinstance(node, ast.Import | ast.ImportFrom) for node in body[calls[0] :]):
            late.add(path.stem)
    assert set(re.findall(r"\w+", pattern.partition("doors/")[2])) - {"py"} == late


# Stores


def test_every_store_has_a_scheme_a_page_and_what_makes_its_tables() -> None:
    homes = {module.rpartition(".")[2] for module, _ in STORES.values()}
    stores = {name for name in modules("stores") if name == "memory" or (SOURCE / "stores" / name).is_dir()}
    assert homes == stores
    page = text("docs/reference/stores.md")
    assert [scheme for scheme in STORES if f"`{scheme}:" not in page] == [
        "postgres"
    ]  # another way to write it
    assert SCHEMES.keys() == STORES.keys() - {"memory"}


# Gate rules


def test_the_rules_of_a_gate_are_those_of_its_registry() -> None:
    exported = {
        kind for kind in vars(gate).values() if isinstance(kind, type) and issubclass(kind, gate.Rule)
    }
    assert exported - {gate.Rule, gate.Charging} == set(gate.RULES.values())
    assert {kind.__name__ for kind in gate.RULES.values()} <= set(gate.__all__)
    assert [word for word, kind in gate.RULES.items() if kind.word != word] == []
    page = text("docs/how-to/ask-the-gate.md")
    assert [kind.__name__ for kind in gate.RULES.values() if f"{kind.__name__}(" not in page] == []


@pytest.mark.parametrize("kind", [kind for kind in gate.RULES.values() if issubclass(kind, gate.Charging)])
def test_a_rule_that_takes_something_says_how_it_is_given_back(kind: type[gate.Charging]) -> None:
    for name in ("title", "take", "refused", "give_back"):
        assert name in vars(kind)


# What decides

# These start threads or run event loops, each for its own reason, or only run what others decide.
DRIVING = {"connect", "once", "core.codecs", "core.drive", "core.heartbeat", "state.switches"}
DRIVING |= {"core.facades", "state.__init__"}


def test_every_module_that_decides_is_held_to_do_nothing_else() -> None:
    """What has steps decides; a new module of steps has its place in a contract, or a reason here."""
    held = set(chain(CONTRACTS["pure"]["source_modules"], CONTRACTS["given"]["source_modules"]))
    paths = chain(*((SOURCE / folder).glob("*.py") for folder in ("", "core", "gate", "state")))
    deciding = {path for path in paths if re.search(r"\bSteps\b", path.read_text("utf-8"))}
    names = {".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in deciding} - DRIVING
    assert {"semel.gate" if name.startswith("gate.") else f"semel.{name}" for name in names} <= held
    assert all(find_spec(name) for name in held)
