"""semel beside the bare operations and the other libraries, all in one run: `make bench`.

Every figure is microseconds per call; every ratio compares rounds that ran side by side.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench import Contender, bare, decisions, ours, prove, rivals
from bench.timing import Bar, Ratio, Table, conclude

PACKAGES = ("semel", "msgspec", *rivals.PACKAGES)
POWERTOOLS = "Powertools, payload validated"


def tables(number: int, repeat: int, keys: int, progress: Callable[[int], None]) -> list[Table]:
    """Prove every contender, then time them all."""
    memory = (bare.MEMORY, ours.MEMORY, ours.MEMORY_FLAT, rivals.STUB, *rivals.IN_MEMORY)
    disk = (bare.SQLITE, ours.SQLITE, ours.SQLITE_FLAT, *rivals.ON_DISK)
    for contender in (*memory[1:3], *disk[1:3], *rivals.IN_MEMORY, *rivals.ON_DISK):
        if not rivals.absent(contender.needs):
            prove(contender)
    rivals.MODULES = {"semel": ()} | rivals.MODULES
    return [
        rivals.table("first, in memory", "first", memory, number, repeat),
        rivals.table("replay, in memory", "replay", memory, number, repeat),
        rivals.table("first, on disk", "first", disk, number, repeat),
        rivals.table("replay, on disk", "replay", (*_replays(), *rivals.ON_DISK), number, repeat),
        decisions.on_sqlite(number, repeat, time.perf_counter),
        ours.batch_table(max(3, repeat // 5)),
        ours.scale_table(10_000, keys, number, repeat, progress),
        rivals.import_table(repeat),
    ]


def _replays() -> tuple[Contender, ...]:
    return bare.SQLITE, bare.SQLITE_BY_HAND, ours.SQLITE, ours.SQLITE_FLAT


def bars(done: list[Table]) -> list[Bar]:
    """What was promised, against what was found."""

    def ratio(title: str, name: str, base: str) -> float:
        timing, beside = ours.row(done, title, name).timing, ours.row(done, title, base).timing
        return Ratio.of(timing, beside).median if timing and beside else float("nan")

    def median(title: str, name: str) -> float:
        timing = ours.row(done, title, name).timing
        return timing.median if timing else float("nan")

    many, few = done[-2].rows[1].name, done[-2].rows[0].name
    batch, singles = done[-3].rows[0].name, done[-3].rows[1].name
    found = [
        Bar("replay in memory", median("replay, in memory", ours.MEMORY.name), 10, "us"),
        Bar(
            "first call on SQLite to the bare statements",
            ratio("first, on disk", ours.SQLITE.name, bare.SQLITE.name),
            1.3,
        ),
        Bar(
            "replay on SQLite to the bare select",
            ratio("replay, on disk", ours.SQLITE.name, bare.SQLITE.name),
            1.3,
        ),
        Bar(
            "replay on SQLite to the same by hand",
            ratio("replay, on disk", ours.SQLITE.name, bare.SQLITE_BY_HAND.name),
            1.0,
        ),
        Bar("a batch of 1,000 to 1,000 single calls", ratio("a batch on SQLite", batch, singles), 1 / 20),
        Bar(f"{many} to {few}", ratio("a claim on SQLite", many, few), 1.3),
    ]
    if ours.row(done, "first, in memory", POWERTOOLS).timing:
        found += [
            Bar(
                f"{which} to Powertools over a client that answers at once",
                ratio(f"{which}, in memory", ours.MEMORY.name, POWERTOOLS),
                limit,
            )
            for which, limit in (("first", 0.7), ("replay", 0.2))
        ]
        found.append(
            Bar(
                "import to Powertools'",
                ratio("import", "semel", "aws_lambda_powertools.utilities.idempotency"),
                0.25,
            )
        )
    return found


@contextmanager
def filling(keys: int) -> Iterator[Callable[[int], None]]:
    """A progress bar for the keys that are written beforehand, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring, then writing keys", total=keys + 10_000)
        yield lambda written: progress.advance(task, written)


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--number", type=int, default=500, help="calls in a round")
    parser.add_argument("--repeat", type=int, default=15, help="rounds")
    parser.add_argument("--keys", type=int, default=10_000_000, help="keys in the large SQLite store")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    with filling(options.keys) as progress:
        done = tables(options.number, options.repeat, options.keys, progress)
    return conclude(done, bars(done), PACKAGES, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
