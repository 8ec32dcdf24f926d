"""Per-call timing of several candidates on a machine that may be busy."""

import gc
import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import TypeAlias

Call = Callable[[], object]

# Enough for the interpreter to specialise the code and for SQLite to prepare statements and open its WAL.
WARM_UP_CALLS = 20


@dataclass(frozen=True)
class Fresh:
    """A call that needs a new store each round, opened and closed outside the clock."""

    open: Callable[[], AbstractContextManager[Call]]


Subject = Call | Fresh


@dataclass(frozen=True)
class Timing:
    """Microseconds per call, one figure for each round."""

    rounds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.rounds)

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def quartiles(self) -> tuple[float, float]:
        return quartiles(self.rounds)

    def as_dict(self) -> dict[str, object]:
        low, high = self.quartiles
        return {
            "best_us": self.best,
            "median_us": self.median,
            "quartiles_us": [low, high],
            "rounds_us": list(self.rounds),
        }


def quartiles(rounds: Sequence[float]) -> tuple[float, float]:
    """Between these lies the middle half of the rounds."""
    if len(rounds) == 1:
        return rounds[0], rounds[0]
    low, _, high = quantiles(rounds, n=4, method="inclusive")
    return low, high


@dataclass(frozen=True)
class Ratio:
    """How many times longer one candidate takes than another, round by round."""

    rounds: tuple[float, ...]

    @classmethod
    def of(cls, timing: Timing, base: Timing) -> "Ratio":
        """Divide each round by the base's round that ran beside it, so that shared noise cancels."""
        return cls(tuple(a / b for a, b in zip(timing.rounds, base.rounds, strict=True)))

    @property
    def median(self) -> float:
        return median(self.rounds)

    def as_dict(self) -> dict[str, object]:
        return {"median": self.median, "least": min(self.rounds), "most": max(self.rounds)}


Timer = Callable[[], float]


def compare(
    subjects: Mapping[str, Subject],
    number: int,
    repeat: int,
    timer: Timer = time.perf_counter,
    warm_up: int = WARM_UP_CALLS,
) -> dict[str, Timing]:
    """Time all subjects with their rounds interleaved, so that a noisy moment hits all alike."""
    rounds: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(repeat):
        for name, subject in subjects.items():
            rounds[name].append(_one_round(subject, number, timer, warm_up))
    return {name: Timing(tuple(figures)) for name, figures in rounds.items()}


def _one_round(subject: Subject, number: int, timer: Timer, warm_up: int) -> float:
    opened = subject.open() if isinstance(subject, Fresh) else nullcontext(subject)
    with opened as call:
        for _ in range(warm_up):
            call()
        gc.collect()
        # timeit keeps the garbage collector off while its clock runs.
        return timeit.Timer(call, timer=timer).timeit(number) / number * 1e6


def import_times(interpreters: Mapping[str, str], repeat: int = 7) -> dict[str, Timing]:
    """Time imports of modules, each in its interpreter, rounds interleaved; the figures are microseconds."""
    rounds: dict[str, list[float]] = {module: [] for module in interpreters}
    for module, interpreter in interpreters.items():
        _import_once(module, interpreter)  # writes the bytecode
    for _ in range(repeat):
        for module, figures in rounds.items():
            figures.append(_import_once(module, interpreters[module]))
    return {module: Timing(tuple(figures)) for module, figures in rounds.items()}


def _import_once(module: str, interpreter: str) -> float:
    code = f"from time import perf_counter as now; t = now(); import {module}; print((now() - t) * 1e6)"
    return fresh(code, interpreter)


def fresh(code: str, interpreter: str = sys.executable) -> float:
    """The figure that a program prints in a new interpreter."""
    return float(run_new(interpreter, "-W", "ignore", "-c", code).stdout)


def run_new(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run a new interpreter to its end; its imports may write their bytecode."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True)


def installed(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions(packages: Iterable[str]) -> dict[str, str]:
    """What ran: Python, SQLite, the machine, and each package compared."""
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "machine": f"{platform.platform()}, {os.cpu_count()} CPUs{_processor()}",
    }
    return found | {package: installed(package) or "not installed" for package in packages}


def _processor() -> str:
    """The name of the processor, where the system tells it."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return f", {names[0]}" if names else ""


@dataclass(frozen=True)
class Row:
    """One line of a table; a row without a timing says in its note why there is none."""

    name: str
    timing: Timing | None = None
    ratio: Ratio | None = None
    note: str = ""

    def cells(self) -> tuple[str, str, str, str, str]:
        best, middle = (figure(self.timing.best), figure(self.timing.median)) if self.timing else ("-", "-")
        return self.name, best, middle, f"{self.ratio.median:.2f}x" if self.ratio else "-", self.note

    def as_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "timing": self.timing.as_dict() if self.timing else None,
            "ratio": self.ratio.as_dict() if self.ratio else None,
            "note": self.note,
        }


@dataclass(frozen=True)
class Table:
    """Rows measured side by side; every ratio is to the row called `base`."""

    title: str
    base: str
    rows: tuple[Row, ...]

    @property
    def heads(self) -> tuple[str, str, str, str, str]:
        return self.title, "best us", "median us", f"x {self.base}" if self.base else "ratio", "note"

    def as_dict(self) -> dict[str, object]:
        return {"title": self.title, "base": self.base, "rows": [row.as_dict() for row in self.rows]}


Cell: TypeAlias = str | float | None


@dataclass(frozen=True)
class Listing:
    """Rows of figures that are no timings beside each other: counts, sizes, rates, percentiles."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def as_dict(self) -> dict[str, object]:
        return {"title": self.title, "columns": list(self.columns), "rows": [list(row) for row in self.rows]}


def figure(microseconds: float) -> str:
    """Three digits that mean something: more would be noise."""
    digits = 3 if microseconds < 1 else 2 if microseconds < 10 else 1 if microseconds < 100 else 0
    return f"{microseconds:,.{digits}f}"


def tabulate(title: str, timings: Mapping[str, Timing], base: str, notes: Mapping[str, str]) -> Table:
    """A table of timings and their ratios to `base`, then the notes of what was not timed."""
    timed = [
        Row(n, t, Ratio.of(t, timings[base]) if base else None, notes.get(n, "")) for n, t in timings.items()
    ]
    absent = [Row(name, note=note) for name, note in notes.items() if name not in timings]
    return Table(title, base, (*timed, *absent))


def as_dict(tables: Sequence[Table], packages: Iterable[str]) -> dict[str, object]:
    """Everything as plain dicts, for `--json`."""
    return {"versions": versions(packages), "tables": [table.as_dict() for table in tables]}


def show(tables: Sequence[Table], packages: Iterable[str]) -> None:
    """Print the tables and the versions that they hold for."""
    # Rich folds cells to 80 columns when there is no terminal, which no file wants.
    draw = _draw_rich if find_spec("rich") and sys.stdout.isatty() else _draw_plain
    for table in tables:
        draw(table)
    print("\n".join(f"{name}: {version}" for name, version in versions(packages).items()))


def _draw_rich(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    drawn = RichTable()
    for place, head in enumerate(table.heads):
        drawn.add_column(head, justify="right" if 0 < place < 4 else "left")
    for row in table.rows:
        drawn.add_row(*row.cells())
    Console().print(drawn)


def _draw_plain(table: Table) -> None:
    lines = [table.heads, *(row.cells() for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *figures, note in lines:
        middle = "  ".join(cell.rjust(width) for cell, width in zip(figures, widths[1:4], strict=True))
        print(f"{name.ljust(widths[0])}  {middle}  {note}".rstrip())
    print()


@dataclass(frozen=True)
class Bar:
    """A promise about speed, and what this run found."""

    what: str
    found: float
    limit: float
    unit: str = "x"

    @property
    def kept(self) -> bool:
        return self.found <= self.limit

    def __str__(self) -> str:
        verdict = "kept  " if self.kept else "MISSED"
        return f"{verdict}  {self.what}: {self.found:.2f} {self.unit}, at most {self.limit:g}"


def conclude(
    done: Sequence[Table],
    bars: Sequence[Bar],
    packages: Iterable[str],
    as_json: bool,
    *,
    listings: Sequence[Listing] = (),
    absent: Sequence[str] = (),
) -> int:
    """Print everything, and say which bars were kept; the exit code of the program."""
    if as_json:
        report = as_dict(done, packages)
        report["listings"] = [listing.as_dict() for listing in listings]
        report["bars"] = [asdict(bar) | {"kept": bar.kept} for bar in bars]
        report["absent"] = list(absent)
        print(json.dumps(report, indent=2))
    else:
        show(done, packages)
        for listing in listings:
            _list_plain(listing)
        print("\n" + "\n".join([*map(str, bars), *(f"absent: {each}" for each in absent)]))
    return 0 if all(bar.kept for bar in bars) else 1


def _list_plain(listing: Listing) -> None:
    print(f"\n{listing.title}: {', '.join(listing.columns[1:])}")
    for name, *cells in listing.rows:
        print(f"  {name}: {', '.join(cell_text(cell) for cell in cells)}")


def cell_text(cell: Cell) -> str:
    """A cell as people read it."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if float(cell).is_integer() else figure(cell)
