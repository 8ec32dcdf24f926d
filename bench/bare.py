"""The bare operations: what the work costs with no library around it."""

import hashlib
import itertools
import json
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from bench import CHARGE, Contender, Effect, Order, Pair, new_order

# /tmp may be memory; the first one has to outlive a reboot. Where a synced write to it takes longer than this
# many seconds, the disk would hide what a library costs, and a RAM disk is used instead.
DISK, RAM_DISK = "/var/tmp", "/dev/shm"  # noqa: S108  # the folder made inside has a random name
FAST_WRITE = 0.00015

LEASE = 60.0
KEEP = 86_400.0

SCHEMA = """
CREATE TABLE bare (
    pk TEXT PRIMARY KEY, status, token, attempt, fingerprint,
    created_at, updated_at, lease_until, expires_at, result BLOB, encoding
) WITHOUT ROWID
"""
CLAIM = "INSERT INTO bare VALUES (?, 'running', ?, 1, ?, ?, ?, ?, ?, NULL, NULL) ON CONFLICT DO NOTHING"
COMPLETE = (
    "UPDATE bare SET status = 'done', updated_at = ?, expires_at = ?, result = ?, encoding = 'json' "
    "WHERE pk = ? AND token = ?"
)
LOOK_UP = "SELECT * FROM bare WHERE pk = ?"


class DictAndLock:
    """A claim, a completion and a look-up, in a dict behind a lock."""

    def __init__(self, effect: Effect) -> None:
        self._effect = effect
        self._lock = threading.Lock()
        self._records: dict[str, list[Any]] = {}
        self._numbers = itertools.count(1)
        self._done = new_order(0)
        self.once(self._done)

    def once(self, order: Order) -> Any:
        key, token = order["id"], object()
        with self._lock:
            held = self._records.setdefault(key, [token, None])
        if held[0] is not token:
            return held[1]
        result = self._effect(order)
        with self._lock:
            if self._records[key][0] is token:
                self._records[key][1] = result
        return result

    def first(self) -> Any:
        return self.once(new_order(next(self._numbers)))

    def replay(self) -> Any:
        return self.once(self._done)


@lru_cache
def fast_disk() -> str | None:
    """The disk on which benchmarks write: one whose synced writes are quick."""
    disks = [disk for disk in (DISK, RAM_DISK) if os.access(disk, os.W_OK)]
    return next((disk for disk in disks if synced_write(disk) <= FAST_WRITE), disks[-1] if disks else None)


def synced_write(disk: str) -> float:
    """How long a small write takes until it is on the disk, in seconds: the median of twenty."""
    times = []
    with tempfile.TemporaryFile(dir=disk) as file:
        for _ in range(20):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


@contextmanager
def disk_folder() -> Iterator[Path]:
    """A temporary folder on that disk."""
    parent = fast_disk()
    with tempfile.TemporaryDirectory(prefix="semel-bench-", dir=parent) as folder:
        yield Path(folder)


@contextmanager
def connection() -> Iterator[sqlite3.Connection]:
    """A new database on disk: write-ahead log, every commit synced, no transaction but SQLite's own."""
    with disk_folder() as folder, closing(sqlite3.connect(folder / "bare.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(SCHEMA)
        yield db


def fingerprint_of(order: Order) -> bytes:
    """What tells two payloads apart: SHA-256 of the canonical JSON."""
    return hashlib.sha256(json.dumps(order, sort_keys=True, separators=(",", ":")).encode()).digest()


class BareSqlite:
    """The statements alone."""

    def __init__(self, db: sqlite3.Connection, effect: Effect) -> None:
        self._db = db
        self._effect = effect
        self._numbers = itertools.count(1)
        self._result = json.dumps(CHARGE).encode()
        self._done = new_order(0)
        self._fingerprint = fingerprint_of(self._done)
        self._write(self._done)

    def _write(self, order: Order) -> Any:
        """Claim, run and complete, in two commits; the values bound are made beforehand where they can be."""
        key, now = f"charge:{order['id']}", time.time()
        self._db.execute(CLAIM, (key, key, self._fingerprint, now, now, now + LEASE, now + KEEP))
        answer = self._effect(order)
        self._db.execute(COMPLETE, (now, now + KEEP, self._result, key, key))
        return answer

    def first(self) -> Any:
        return self._write(new_order(next(self._numbers)))

    def replay(self) -> Any:
        return self._db.execute(LOOK_UP, ("charge:order-0",)).fetchone()


@contextmanager
def open_memory(effect: Effect) -> Iterator[Pair]:
    bare = DictAndLock(effect)
    yield Pair(bare.first, bare.replay)


@contextmanager
def open_sqlite(effect: Effect) -> Iterator[Pair]:
    with connection() as db:
        bare = BareSqlite(db, effect)
        yield Pair(bare.first, bare.replay)


MEMORY = Contender("a dictionary and a lock", open_memory, note="the limit")
SQLITE = Contender(
    "the bare statements, synced",
    open_sqlite,
    note="the limit: an insert and an update; a select",
    whole=False,
)
