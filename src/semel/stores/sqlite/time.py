"""The time of a file: one that all processes of the machine share, and that no change of its clock moves.

What the clock said when the file was first opened since the machine started is written into the file. From
then on only what has passed is counted. So a clock that is set forward ends no lease before its time.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from semel.core.clock import Clock

BOOT = Path("/proc/sys/kernel/random/boot_id")


def this_boot() -> str | None:
    """What tells one run of the machine from the next; None where it cannot be told."""
    try:
        return BOOT.read_text().strip() if hasattr(time, "CLOCK_BOOTTIME") else None
    except OSError:
        return None


def since_boot() -> float:
    """Seconds since the machine started, its sleep included: the same for all of its processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def file_time(connection: sqlite3.Connection, clock: Clock) -> Callable[[], float]:
    """What tells the file's time; the clock itself, where it is imposed or no better one is to be had."""
    boot = this_boot()
    if clock.imposed() is not None or boot is None:
        return clock.now
    started = _started(connection, boot, clock.now() - since_boot())
    return lambda: since_boot() + started


def _started(connection: sqlite3.Connection, boot: str, started: float) -> float:
    """When the machine started, as the first to open the file since then has it."""
    name = f"started {boot}"
    found = connection.execute("SELECT value FROM semel_meta WHERE name = ?", (name,)).fetchone()
    if found is None:
        connection.execute("INSERT INTO semel_meta VALUES (?, ?) ON CONFLICT DO NOTHING", (name, started))
        connection.execute("DELETE FROM semel_meta WHERE name LIKE 'started %' AND name <> ?", (name,))
        return _started(connection, boot, started)
    return float(found[0])
