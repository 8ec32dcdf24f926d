"""Try every promise thousands of times, and write the scoreboard: `make proof`.

The report is docs/reports/proof.json, and docs/explanation/reliability.md is made from it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.timing import versions
from proof.lines import LINES
from proof.page import PAGE, REPORT, page, scoreboard
from proof.plugin import REPORT as VARIABLE

PACKAGES = ("semel", "psycopg", "redis", "hypothesis")


def tried(only: str | None, jobs: int) -> list[dict[str, Any]]:
    """What the tests of the lines have tried."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        environment = os.environ | {"SEMEL_TEST_PROOF": "1", VARIABLE: str(rows)}
        words = ["-m", "proof", "-n", str(jobs), "-p", "proof.plugin", "--dist", "worksteal", "-q"]
        more = [] if only is None else [only]
        subprocess.run([sys.executable, "-m", "pytest", *words, *more], env=environment, check=False)
        found: list[dict[str, Any]] = json.loads(rows.read_text("utf-8")) if rows.exists() else []
        return found


def checked(module: str) -> list[dict[str, Any]]:
    """What another part of the proof tells, which is a program of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--json"], capture_output=True, text=True, check=False
    )
    if not done.stdout.startswith(("[", "{")):
        print(done.stderr or done.stdout, file=sys.stderr)
        return [{"name": module, "held": False, "what": "it could not be run"}]
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def report(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The report of a run."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(seconds),
        "versions": versions(PACKAGES),
        "rows": rows,
    }


def problems(rows: list[dict[str, Any]]) -> list[str]:
    """What does not hold: a test that failed, or a line that nothing was tried of."""
    broken = [f"{row['test']} has failed" for row in rows if not row["held"] and not row["skipped"]]
    empty = [name for name in LINES if not sum(row["tried"] for row in rows if row["line"] == name)]
    return broken + [f"nothing was tried of {name!r}" for name in empty]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("--only", metavar="TESTS", help="some tests alone; the report is not written")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes try (2)")
    arguments = parser.parse_args()
    begun = time.monotonic()
    rows = tried(arguments.only, arguments.jobs)
    done = report(rows, time.monotonic() - begun)
    print(scoreboard(done))
    if arguments.only is not None:
        return 0 if all(row["held"] or row["skipped"] for row in rows) else 1
    REPORT.write_text(json.dumps(done, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(done), "utf-8")
    for problem in problems(rows):
        print(problem, file=sys.stderr)
    return 1 if problems(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
