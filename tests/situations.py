"""The tests of each situation in the docs: `python -m tests.situations` writes them into their page.

A test that shows a situation of docs/explanation/guarantees.md says so with `@pytest.mark.situation(8)`.
Those of the stores' contract, which others run too, carry no marks: the page names them, and keeps them.
"""

import re

from tests.seeds import ROOT, shown

PAGE = ROOT / "docs" / "explanation" / "guarantees.md"
ROW = re.compile(r"^(\| (\d+) \| .* \| .* \|) (.*?) ?\|$", re.MULTILINE)
CONTRACT = re.compile(r"`(src/semel/testing/conformance/\w+\.py::test_\w+)`")


def text() -> str:
    """The page, with the tests that carry each number."""
    marked = shown("situation")

    def row(found: re.Match[str]) -> str:
        tests = [*CONTRACT.findall(found[3]), *marked.get(int(found[2]), [])]
        return f"{found[1]} {', '.join(f'`{test}`' for test in tests)} |"

    return ROW.sub(row, PAGE.read_text("utf-8"))


if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
