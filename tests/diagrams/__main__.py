"""The pictures of docs/explanation/failures.md: `python -m tests.diagrams` draws them and writes the page.

A scenario is a list of calls, each with the moves of the life-cycle table that it makes. The states of the
record are worked out from the table; a test runs every scenario on a store and compares.
"""

from tests.diagrams.page import files

if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
