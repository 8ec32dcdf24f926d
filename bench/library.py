"""semel in memory and on SQLite, beside the limit, the same by hand, and others: `python -m bench.library`.

Every figure is microseconds per call; every ratio compares rounds that ran side by side.
"""

import argparse
import time
from functools import partial

from bench import Contender, apart, bare, byhand, decisions, ours, prove, rivals
from bench.timing import Bar, Ratio, Table, conclude

PACKAGES = ("semel", "msgspec", *rivals.PACKAGES)
POWERTOOLS, JUSTONCE = "Powertools", "justonce"
BY_HAND = Contender("by hand", byhand.open_sqlite, note="a claim, a completion, a hash, JSON")


def tables(number: int, repeat: int) -> list[Table]:
    """Prove every contender, then time them all."""
    memory = (bare.MEMORY, ours.MEMORY, ours.MEMORY_FLAT, rivals.STUB, *rivals.IN_MEMORY)
    disk = (bare.SQLITE, BY_HAND, ours.SQLITE, ours.SQLITE_FLAT, *rivals.ON_DISK)
    for contender in (*memory, *disk):
        if contender.whole and not rivals.absent(contender.needs):
            prove(contender)
    timed = partial(rivals.table, number=number, repeat=repeat)
    return [
        timed("first, in memory", "first", memory),
        timed("replay, in memory", "replay", memory),
        *apart.joined(
            [timed("first, on disk", "first", disk), timed("replay, on disk", "replay", disk)],
            apart.measured("DBOS", "SQLite", "", number // 5, repeat),
        ),
        timed("first, processor time on disk", "first", disk[:4], timer=time.process_time),
        decisions.on_sqlite(number, repeat, time.perf_counter),
        rivals.import_table(repeat),
    ]


def bars(done: list[Table]) -> list[Bar]:
    """What was promised, against what was found."""

    def ratio(title: str, name: str, base: str) -> float:
        timing, beside = ours.row(done, title, name).timing, ours.row(done, title, base).timing
        return Ratio.of(timing, beside).median if timing and beside else float("nan")

    found = [
        Bar(
            f"{what} to {base}",
            ratio(title, ours.SQLITE.name, base),
            limit,
        )
        for what, title, base, limit in (
            ("first call on SQLite, processor time", "first, processor time on disk", bare.SQLITE.name, 2.2),
            ("first call on SQLite", "first, on disk", BY_HAND.name, 1.2),
            ("first call on SQLite", "first, on disk", JUSTONCE, 1.0),
            ("replay on SQLite", "replay, on disk", bare.SQLITE.name, 1.5),
            ("replay on SQLite", "replay, on disk", BY_HAND.name, 1.0),
        )
        if ours.row(done, title, base).timing
    ]
    rows = "four rows in one transaction"
    found.append(Bar(f"decision on SQLite to {rows}", ratio("decision, SQLite", "semel", rows), 1.5))
    replay = ours.row(done, "replay, in memory", ours.MEMORY.name).timing
    found.append(Bar("replay in memory", replay.median if replay else float("nan"), 10, "µs"))
    if ours.row(done, "first, in memory", POWERTOOLS).timing:
        found += [
            Bar(
                f"{which} call in memory to Powertools over a client that answers at once",
                ratio(f"{title}, in memory", ours.MEMORY.name, POWERTOOLS),
                limit,
            )
            for which, title, limit in (("first", "first", 0.4), ("replayed", "replay", 0.2))
        ]
        theirs = "aws_lambda_powertools.utilities.idempotency"
        found.append(Bar("import to Powertools'", ratio("import", "semel", theirs), 0.25))
    return found


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.library", description=__doc__)
    parser.add_argument("--number", type=int, default=500, help="calls in a round")
    parser.add_argument("--repeat", type=int, default=15, help="rounds")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    done = tables(options.number, options.repeat)
    return conclude(done, bars(done), PACKAGES, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
