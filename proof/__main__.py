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
from proof.page import PAGE, REPORT, Rows, as_json, page, scoreboard
from proof.plugin import REPORT as VARIABLE

PACKAGES = ("semel", "psycopg", "redis", "hypothesis")


def tried(only: str | None, jobs: int) -> Rows:
    """What the tests of the lines have tried."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        environment = os.environ | {"SEMEL_TEST_PROOF": "1", VARIABLE: str(rows)}
        words = ["-m", "proof", "-n", str(jobs), "-p", "proof.plugin", "--dist", "worksteal", "-q"]
        more = [] if only is None else [only]
        subprocess.run([sys.executable, "-m", "pytest", *words, *more], env=environment, check=False)
        found: Rows = json.loads(rows.read_text("utf-8")) if rows.exists() else []
        return found


def output_of(module: str) -> Any:
    """What another part of the proof tells, which is a program of its own; None where it cannot be run."""
    program = [sys.executable, "-m", module, "--json"]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout) if done.stdout.startswith(("[", "{")) else None


def report(rows: Rows, begun: float) -> dict[str, Any]:
    """The report of a run, with the parts that are programs of their own."""
    model, rivals = output_of("proof.model") or [], output_of("proof.rivals") or {"suites": {}, "results": []}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(time.monotonic() - begun),
        "versions": versions(PACKAGES),
        "rows": rows,
        "model": model,
        "rivals": rivals,
    }


def problems(report: dict[str, Any]) -> list[str]:
    """What does not hold: a test that failed, a line that nothing was tried of, a part that did not run."""
    rows, results = report["rows"], report["rivals"]["results"]
    broken = [f"{row['test']} has failed" for row in rows if not row["held"] and not row["skipped"]]
    empty = [name for name in LINES if not sum(row["tried"] for row in rows if row["line"] == name)]
    wrong = [one["name"] for one in report["model"] if not one["good"]]
    failed = [f"{one['suite']} {one['case']}" for one in results if one["outcome"] in ("failed", "absent")]
    return [
        *broken,
        *[f"nothing was tried of {name!r}" for name in empty],
        *[f"the model is not as expected: {name}" for name in wrong],
        *[f"another library's case has failed: {name}" for name in failed],
        *(["the model was not searched"] if not report["model"] else []),
        *(["the other libraries' suites did not run"] if not results else []),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("--only", metavar="TESTS", help="some tests alone; the report is not written")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes try (2)")
    arguments = parser.parse_args()
    begun = time.monotonic()
    rows = tried(arguments.only, arguments.jobs)
    print(scoreboard(rows))
    if arguments.only is not None:
        return 0 if all(row["held"] or row["skipped"] for row in rows) else 1
    done = report(rows, begun)
    REPORT.write_text(as_json(done), "utf-8")
    PAGE.write_text(page(done), "utf-8")
    for problem in problems(done):
        print(problem, file=sys.stderr)
    return 1 if problems(done) else 0


if __name__ == "__main__":
    sys.exit(main())
