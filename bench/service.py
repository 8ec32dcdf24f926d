"""What the service bears on each store: `bench.load` with each of them, and what it found as tables."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from bench.bare import DISK
from bench.servers import servers, url_of
from bench.timing import Bar, Listing, conclude

PACKAGES = ("semel", "fastapi", "uvicorn", "uvloop", "httptools", "msgspec", "cryptography")
RATES = {"SQLite": 1000, "PostgreSQL": 300, "Redis": 300, "DynamoDB": 100}
"""Webhooks a second that are held; on DynamoDB the engine beside them takes most of the machine."""
MOST = ("store", "webhook", "a second", "events a second", "p50 ms", "p99 ms")
HELD = ("store", "a second", "seconds", "p50 ms", "p99 ms", "p99.9 ms", "longest ms")
COUNTED = (
    "store",
    "sent",
    "answered 200",
    "events",
    "completed",
    "actions twice",
    "actions missing",
    "dead",
    "handled after, s",
    "messages a second then",
)


def load_of(name: str, url: str, seconds: float, most_seconds: float) -> dict[str, Any]:
    """What `bench.load` says of a store."""
    words = ["--seconds", str(seconds), "--most-seconds", str(most_seconds), "--rate", str(RATES[name])]
    where = ["--folder", DISK] if name == "SQLite" else ["--url", url]
    program = [sys.executable, "-m", "bench.load", *words, *where, "--json"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        return {"problem": done.stderr.strip().rpartition("\n")[2]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def listings(found: dict[str, dict[str, Any]]) -> list[Listing]:
    """The reports of all stores as three tables."""
    most = [
        (name, row["what"], row["most"], row["most"] * row["events"], row["p50"], row["p99"])
        for name, one in found.items()
        for row in one["most"]
    ]
    held = {name: one["held"] for name, one in found.items()}
    paced = [
        (name, *(one[field] for field in ("rate", "seconds", "p50", "p99", "p999", "longest")))
        for name, one in held.items()
    ]
    fields = (
        "unique",
        "completed",
        "actions_twice",
        "actions_missing",
        "dead",
        "handled_after",
        "alone_rate",
    )
    counted = [
        (name, one["sent"], one["answers"].get("200", 0), *(one[field] for field in fields))
        for name, one in held.items()
    ]
    made = [
        Listing("the highest rate of the service", MOST, tuple(most)),
        Listing("a rate that is held", HELD, tuple(paced)),
        Listing("what was counted afterwards", COUNTED, tuple(counted)),
    ]
    return [listing for listing in made if listing.rows]


def bars(found: dict[str, dict[str, Any]]) -> Iterator[Bar]:
    """What was promised for SQLite about time, and for every store about events."""
    for name, one in found.items():
        for bar in one["bars"]:
            if bar["unit"] != "ms" or name == "SQLite":
                yield Bar(f"{name}: {bar['what']}", bar["found"], bar["limit"], bar["unit"])


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.service", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="for how long a rate is held")
    parser.add_argument("--most-seconds", type=float, default=3, help="for how long the most is looked for")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    with servers() as started:
        urls = {"SQLite": ""} | {name: url_of(name, at, "{env}") for name, at in started.addresses.items()}
        found = {
            name: load_of(name, url, options.seconds, options.most_seconds) for name, url in urls.items()
        }
    failed = [f"{name}: {one['problem']}" for name, one in found.items() if "problem" in one]
    found = {name: one for name, one in found.items() if "problem" not in one}
    return conclude(
        [],
        list(bars(found)),
        PACKAGES,
        options.json,
        listings=listings(found),
        absent=[*started.absent, *failed],
    )


if __name__ == "__main__":
    raise SystemExit(main())
