"""CONTRIBUTING.md and its kin: every program, target and file that they name is there."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.unit.test_docs import anchors, code, links, prose

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
TEXT = PAGE.read_text("utf-8")
PAGES = [PAGE, *(ROOT / name for name in ("SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md"))]


def targets() -> set[str]:
    """What make can be asked for."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m\s+([\w.]+)", TEXT))))
def test_every_program_that_it_names_can_be_run(module: str) -> None:
    found = find_spec(module)
    assert found is not None
    if found.submodule_search_locations is not None:
        assert find_spec(f"{module}.__main__") is not None
    elif found.origin is not None:
        assert '__name__ == "__main__"' in Path(found.origin).read_text("utf-8")


def test_every_target_of_make_that_it_names_is_one() -> None:
    named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", TEXT, re.MULTILINE))
    assert {"test", "slow", "proof", "bench", "release-check"} <= named
    assert {name for name in named if not name.startswith("bench-")} <= targets()


def test_every_file_that_it_names_is_there() -> None:
    named = {name for name in code(TEXT) if re.fullmatch(r"[\w.-]+(?:/[\w.-]+)+\.\w+", name)}
    assert {
        name for name in named if not (ROOT / name).exists() and not (ROOT / "src/semel" / name).exists()
    } == set()
    assert len(named) > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert prose(page)
    for target, anchor in links(page):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target)
