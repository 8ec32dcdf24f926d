"""A page's fenced blocks, and its examples run in order.

As a program it runs the examples of one page, and needs nothing installed but what they need:
`python -I tests/pages.py docs/how-to/choose-a-key.md`.
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

# A block that begins so is a file of that name.
FILE = re.compile(r"# ([\w.]+\.\w+)\n")


class Block(NamedTuple):
    """A fenced block: its language, the number of its first line, and its text."""

    language: str
    line: int
    text: str

    @property
    def file(self) -> str:
        """The name of the file that it is, or nothing."""
        named = FILE.match(self.text)
        return named[1] if named else ""


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for fence in re.finditer(r"^```(\S*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        yield Block(fence[1], fence.string[: fence.start()].count("\n") + 1, fence[2])


def run(page: Path, module: ModuleType) -> None:
    """Run a page's examples in order; an `output` block is what the example before it printed."""
    printed = ""
    for block in blocks(page):
        if block.language == "output":
            assert printed == block.text, f"{page.name}:{block.line} prints something else: {printed}"
        elif block.language == "python":
            # The empty lines make a traceback show the line of the page.
            source = compile("\n" * block.line + block.text, str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(source, vars(module))
            printed = out.getvalue()


if __name__ == "__main__":
    # As a module that can be imported: examples pickle, and look for their own annotations.
    sys.modules["page"] = ModuleType("page")
    run(Path(sys.argv[1]), sys.modules["page"])
