"""The tutorial: whoever types what stands there sees what stands there."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pages import blocks
from tests.reading import Reader, Typed, fits, typed
from tests.unit.test_docs import DOCS, name_of


def does_something(page: Path) -> bool:
    commands = [one.command for block in blocks(page) for one in typed(block.text, block.line)]
    return any(not command.startswith("pip install ") for command in commands)


@pytest.mark.parametrize(
    "page", [page for page in sorted((DOCS / "tutorial").glob("*.md")) if does_something(page)], ids=name_of
)
def test_whoever_does_as_a_page_says_sees_what_it_says(page: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        reader = Reader(tmp_path, stack)
        for block in blocks(page):
            reader.read(block)


def test_an_output_fits_only_what_it_says() -> None:
    assert fits("a  \nb 1 c\nlast\n", "a\nb ... c\n...\n")
    assert not fits("a\nb 1 d\n", "a\nb ... c\n")
    assert fits("a\n", "a\n...\n")
    assert not fits("ab\n", "a\n...\n")
    assert not fits("", "a\n")
    assert not fits("a\n", "")
    assert fits("./shell: line 1: 17 Killed  python x.py\na\n", "a\n")


def test_commands_are_told_from_what_they_print() -> None:
    text = "$ one \\\n    two\nprinted\n$ three\n"
    assert list(typed(text, 10)) == [Typed(11, "one \\\n    two", "printed\n"), Typed(14, "three", "")]
