"""The time of a file: one that all processes of the machine share, and that no change of its clock moves.

What the clock said when the file was first opened since the machine started is written into the file. From
then on only what has passed is counted. So a clock that is set forward ends no lease before its time.

The file also knows the second in which it was last written. If the clock is behind that when the machine has
started, the file's time goes on from there. So a clock that is set back, or starts behind, revives nothing.
"""

import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from semel.core.clock import Clock

BOOT = Path("/proc/sys/kernel/random/boot_id")

# The end of the second in which the file was last written. The first transaction of a second writes it.
NOTE = (
    "INSERT INTO semel_meta VALUES ('written until', ?) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE value < excluded.value"
)

since_boot: Callable[[], float] = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", 0))
"""Seconds since the machine started, its sleep included: the same for all of its processes."""


def this_boot() -> str | None:
    """What tells one run of the machine from the next; None where it cannot be told."""
    try:
        return BOOT.read_text().strip() if hasattr(time, "CLOCK_BOOTTIME") else None
    except OSError:
        return None


def file_time(connection: sqlite3.Connection, clock: Clock) -> Callable[[], float] | None:
    """What tells the file's time; None where the clock is imposed, or no better one is to be had."""
    boot = this_boot()
    if clock.imposed() is not None or boot is None:
        return None
    started, elapsed = _started(connection, f"started {boot}", clock), since_boot
    return lambda: elapsed() + started


def note_time(cursor: sqlite3.Cursor, now: float) -> None:
    """Write the file's time into it, in the transaction that is open."""
    cursor.execute(NOTE, (int(now) + 1,))


def _started(connection: sqlite3.Connection, name: str, clock: Clock) -> float:
    """When the machine started, as the first to open the file since then has it."""
    found = _meta(connection, name)
    if found is None:
        now = max(clock.now(), _meta(connection, "written until") or 0.0)
        started = now - since_boot()
        connection.execute("INSERT INTO semel_meta VALUES (?, ?) ON CONFLICT DO NOTHING", (name, started))
        connection.execute("DELETE FROM semel_meta WHERE name LIKE 'started %' AND name <> ?", (name,))
        return _started(connection, name, clock)
    return found


def _meta(connection: sqlite3.Connection, name: str) -> float | None:
    found = connection.execute("SELECT value FROM semel_meta WHERE name = ?", (name,)).fetchone()
    return None if found is None else float(found[0])
