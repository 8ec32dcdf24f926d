"""The docstring of a package of several modules is a map of it: every one is named there, and no other."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from tests import modules


@pytest.mark.parametrize("name", ["dynamodb", "postgres", "redis", "sqlite"])
def test_the_map_of_a_store_names_its_modules_and_no_others(name: str) -> None:
    package = importlib.import_module(f"semel.stores.{name}")
    modules = {path.stem for path in Path(package.__path__[0]).glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`(\w+)`", package.__doc__ or "")) == modules


def test_the_map_of_the_service_names_its_modules_and_no_others() -> None:
    package = importlib.import_module("semel.service")
    modules = {name for _, name, _ in pkgutil.iter_modules(package.__path__)}
    assert set(re.findall(r"`(\w+)`", package.__doc__ or "")) == modules


def test_the_map_of_the_source_names_every_module_and_no_other() -> None:
    """It is two levels deep, and made of the modules' first sentences: `python -m tests.modules`."""
    assert modules.PAGE.read_text("utf-8") == modules.text()
    assert "| `core/` |" in modules.text()
    assert not [row for row in modules.made().splitlines() if row.endswith("|  |")], "they say what they hold"
