"""The project's address: every file that names it names the same, and one program changes them all."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import address

ROOT = Path(__file__).parents[2]
HERE = address.address()
THERE = "https://forge.example.com/people/semel"
# What is built, cached or fetched, and what is about addresses.
ELSEWHERE = {".git", ".venv", "build", "dist", "tests", "tools", "__pycache__"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that name the address, in a folder of their own."""
    for path in address.PLACES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    readme = tmp_path / "README.md"
    readme.write_text(
        f"[Docs]({HERE}/blob/main/docs/index.md), [more]({HERE}).\n{readme.read_text('utf-8')}", "utf-8"
    )
    return tmp_path


def files() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ELSEWHERE and not name.endswith("_cache")]
        yield from (Path(folder, name) for name in names)


def test_all_that_names_the_address_names_the_same() -> None:
    assert list(address.strays()) == []


def test_no_other_file_names_it() -> None:
    naming = {path.relative_to(ROOT).as_posix() for path in files() if HERE.encode() in path.read_bytes()}
    assert naming - {*address.PLACES} == set()
    assert naming >= {*address.PLACES} - {"README.md"}  # whose links may be relative


def test_it_is_changed_everywhere_and_back_again(copy: Path) -> None:
    before = {path: (copy / path).read_bytes() for path in address.PLACES}
    assert address.set_address(THERE, copy) == [*address.PLACES]
    assert address.address(copy) == THERE
    assert list(address.strays(copy)) == []
    assert [path for path in address.PLACES if HERE.encode() in (copy / path).read_bytes()] == []
    assert address.set_address(THERE, copy) == []
    address.set_address(HERE, copy)
    assert {path: (copy / path).read_bytes() for path in address.PLACES} == before


@pytest.mark.parametrize(
    ("path", "stray"),
    [
        ("README.md", "https://other.example/semel/blob/main/docs/index.md"),
        ("SECURITY.md", "https://other.example/semel/security/advisories/new"),
        ("CHANGELOG.md", "https://other.example/semel/compare/v0.1.0...v0.2.0"),
    ],
)
def test_a_link_to_another_repository_is_found(copy: Path, path: str, stray: str) -> None:
    with (copy / path).open("a", encoding="utf-8") as file:
        file.write(f"\n[it]({stray})\n")
    assert list(address.strays(copy)) == [f"{path}: https://other.example/semel"]


def test_other_settings_than_the_packages_are_found(copy: Path) -> None:
    settings, project = copy / address.SETTINGS, copy / "pyproject.toml"
    settings.write_text(settings.read_text("utf-8").replace(HERE, "https://other.example/semel"), "utf-8")
    project.write_text(
        project.read_text("utf-8").replace(f"{HERE}/issues", "https://tracker.example"), "utf-8"
    )
    assert list(address.strays(copy)) == [
        "pyproject.toml: Issues = https://tracker.example",
        f"{address.SETTINGS}: https://other.example/semel",
    ]


def test_a_longer_address_that_begins_alike_is_left_alone() -> None:
    text = f"{HERE} {HERE}-more {HERE}s/x {HERE}/x ({HERE})."
    assert address.moved(text, HERE, "NEW") == f"NEW {HERE}-more {HERE}s/x NEW/x (NEW)."


@pytest.mark.parametrize("given", [f"{THERE}/", f"{THERE}.git", THERE])
def test_an_address_is_taken_as_people_copy_it(given: str) -> None:
    assert address.checked(given) == THERE


@pytest.mark.parametrize(
    "given",
    [
        "",
        "semel",
        "http://forge.example.com/semel",
        "git@forge.example.com:people/semel.git",
        "https://forge.example.com",
        f"{THERE}?tab=readme",
        f"{THERE}#readme",
        f"https://{THERE}",
    ],
)
def test_what_is_no_address_is_refused_with_the_form_of_one(given: str) -> None:
    with pytest.raises(address.BadAddress, match="write https://HOST/OWNER/semel"):
        address.checked(given)


@pytest.mark.parametrize(
    ("given", "reserved"),
    [
        ("https://git.example.org/semel", True),
        ("https://example.com/semel", True),
        ("https://forge.invalid/semel", True),
        ("https://github.com/example/semel", False),
        ("https://notexample.org/semel", False),
    ],
)
def test_a_placeholder_is_known_by_its_host(given: str, reserved: bool) -> None:
    assert address.is_placeholder(given) is reserved
