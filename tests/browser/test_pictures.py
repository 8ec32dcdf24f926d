"""The pictures of the docs: all that pages show are there, and no others."""

import re
from pathlib import Path

import pytest

from tests.browser.pictures import FOLDER, PICTURES, THEMES

DOCS = FOLDER.parent
# Those of the benchmarks are drawn from their report, which has tests of its own.
THERE = {path.name for path in FOLDER.iterdir() if not path.name.startswith("bench-")}
# Whoever reads the docs on the road loads them all.
MOST_BYTES = 120_000


def referenced() -> set[str]:
    found = set()
    for page in DOCS.rglob("*.md"):
        for path in re.findall(r"""["(]([^"()\s]*pictures/[^"()\s]+)""", page.read_text("utf-8")):
            assert (page.parent / path).resolve().parent == FOLDER, (page, path)
            found.add(Path(path).name)
    return {name for name in found if not name.startswith("bench-")}


def test_every_picture_is_shown_by_a_page_and_made_by_the_script() -> None:
    assert referenced() == THERE == {f"{name}-{theme}.png" for name in PICTURES for theme in THEMES}


def test_every_picture_says_what_it_shows_to_who_does_not_see_it() -> None:
    for page in DOCS.rglob("*.md"):
        for tag in re.findall(r"<img [^>]*>", page.read_text("utf-8")):
            assert re.search(r'alt="[^"]{20,}"', tag), tag


@pytest.mark.parametrize("name", sorted(THERE))
def test_a_picture_is_small(name: str) -> None:
    assert (FOLDER / name).stat().st_size < MOST_BYTES
