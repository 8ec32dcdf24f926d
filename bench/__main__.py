"""Measure everything, and write the report: `make bench`.

The report is docs/reports/bench.json; docs/explanation/performance.md and its pictures are made from it. Each
part is a program of its own (`python -m bench.network`), and a part that fails is said in the report.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from bench.page import REPORT, Report, write
from bench.parts import PARTS, Part
from bench.servers import engines
from bench.timing import versions
from proof.page import as_json

KINDS = ("tables", "listings", "bars")
PATIENCE = 900
"""A part that takes longer, in seconds, hangs."""


def ran(part: Part, quick: bool) -> dict[str, Any]:
    """What a part has measured; or, under `problem`, why it has not."""
    words = (part.quick if quick else part.whole).split()
    program = [sys.executable, "-m", part.module, *words, "--json"]
    begun = time.monotonic()
    try:
        done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=PATIENCE)
        output, problem = done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        output, problem = "", f"it took longer than {PATIENCE} s"
    found: dict[str, Any] = json.loads(output) if output.startswith("{") else {"problem": last_line(problem)}
    return found | {"seconds": round(time.monotonic() - begun)}


def last_line(text: str) -> str:
    """What a program said last, which is the error where it ended with one."""
    return text.strip().rpartition("\n")[2] or "it printed nothing"


def measured(parts: Sequence[Part], quick: bool, step: Callable[[str], None]) -> Report:
    """Run the parts one after the other, and put what they found together."""
    report: Report = {
        "seconds": 0,
        "versions": versions(()) | engines(),
    }
    report |= {"parts": [], **{kind: [] for kind in KINDS}}
    for part in parts:
        step(part.name)
        add(report, part, quick, ran(part, quick))
    return report


def add(report: Report, part: Part, quick: bool, found: dict[str, Any]) -> None:
    """Put what a part found into the report."""
    report["seconds"] += found["seconds"]
    report["versions"] |= found.get("versions", {})
    date = datetime.now(UTC).date().isoformat()
    entry = {"name": part.name, "date": date, "seconds": found["seconds"], "quick": quick}
    report["parts"].append(entry | {"problem": found.get("problem", ""), "absent": found.get("absent", [])})
    for kind in KINDS:
        report[kind] += [{"part": part.name} | rounded(one) for one in found.get(kind, [])]


def rounded(value: Any) -> Any:
    """Five digits that mean something, so that a report is not all noise."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def combined(old: Report, new: Report) -> Report:
    """An older report with the parts that were measured again; its other parts stay as they are."""
    again = {part["name"] for part in new["parts"]}
    kept = {
        kind: [one for one in old[kind] if one.get("part", one.get("name")) not in again]
        for kind in ("parts", *KINDS)
    }
    order = [part.name for part in PARTS]
    joined = {
        kind: sorted(kept[kind] + new[kind], key=lambda one: order.index(one.get("part", one.get("name"))))
        for kind in ("parts", *KINDS)
    }
    seconds = sum(part["seconds"] for part in joined["parts"])
    return old | new | joined | {"seconds": seconds, "versions": old["versions"] | new["versions"]}


@contextmanager
def progress(parts: Sequence[Part]) -> Iterator[Callable[[str], None]]:
    """Says which part runs: a bar on a terminal, and lines elsewhere."""
    if not sys.stderr.isatty():
        begun = time.monotonic()
        yield lambda name: print(f"{time.monotonic() - begun:6.0f} s  {name}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as drawn:
        task = drawn.add_task("", total=len(parts), completed=-1)
        yield lambda name: drawn.update(task, description=f"{name:10}", advance=1)


def main() -> int:
    """Measure, write the report, and say which bars were missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a try of a minute or two, marked as such")
    names = [part.name for part in PARTS]
    parser.add_argument("--only", choices=names, action="append", help="measure this part again; repeatable")
    options = parser.parse_args()
    parts = [part for part in PARTS if options.only is None or part.name in options.only]
    with progress(parts) as step:
        report = measured(parts, options.quick, step)
    if options.only and REPORT.exists():
        report = combined(json.loads(REPORT.read_text("utf-8")), report)
    REPORT.write_text(as_json(report), "utf-8")
    write(report)
    return concluded(report)


def concluded(report: Report) -> int:
    """Say what was missed or did not run; the exit code of the program."""
    wrong = [f"{part['name']}: {part['problem']}" for part in report["parts"] if part["problem"]]
    wrong += [
        f"MISSED  {bar['what']}: {bar['found']:.2f}, at most {bar['limit']:g}"
        for bar in report["bars"]
        if not bar["kept"]
    ]
    print("\n".join([*wrong, f"{REPORT.name}, performance.md and its pictures are written."]))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
