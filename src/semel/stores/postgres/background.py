"""Threads of a store: one listens for notifications, and one removes expired items as more is written."""

import random
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import msgspec

from semel.core.clock import BackgroundThread, SignalSafeLock
from semel.core.commands import Sort
from semel.errors import SemelError
from semel.stores.postgres.address import DRIVER_ERRORS, PostgresAddress
from semel.stores.postgres.session import SyncSession, blocking
from semel.stores.postgres.statements import channel
from semel.stores.sql import quoted

# How long after a lost connection another one is tried; waiters read the item by themselves in the meantime.
RETRY_SECONDS = 1.0
# For every row that is written up to two expired ones are removed, so a store that is only ever written to
# stays as small as what is alive in it. A batch takes a few milliseconds.
REAPED_PER_WRITE = 2
REAP_BATCH = 500
# How long a store that is closed waits for a batch: not for a server that does not answer.
STOP_SECONDS = 5.0


class BackgroundWorker:
    """Wakes the waiters for an item, on a connection of its own, and removes expired items."""

    def __init__(
        self,
        address: PostgresAddress,
        notify: Callable[[tuple[str, str, Sort]], None],
        reap: Callable[[int], object],
    ) -> None:
        self._address = address
        self._notify = notify
        self._reap = reap
        self._due = 0
        self._hears = address.keeps_sessions
        self._lock = SignalSafeLock()
        self._session: SyncSession | None = None
        self._listener = BackgroundThread("semel-postgres", self._listen)
        self._reaper = BackgroundThread("semel-postgres", self._remove, self._is_due)

    @property
    def listening(self) -> bool:
        """Whether notifications are heard."""
        return self._session is not None

    def listen(self) -> None:
        """Listen for notifications from now on, if a connection can."""
        if self._hears:
            self._listener.start()

    def count_write(self, rows: int = 1) -> None:
        """Count rows that were written."""
        self._due += rows * REAPED_PER_WRITE
        if self._due >= REAP_BATCH:
            self._reaper.start()

    def stop(self) -> None:
        """End the threads; no other is started."""
        for thread in (self._listener, self._reaper):
            thread.stop()
        with self._lock, suppress(OSError):  # the connection may be lost
            if self._session is not None:
                self._session.hang_up()
        for thread in (self._listener, self._reaper):
            thread.join(STOP_SECONDS)

    # In the threads: no caller could handle an error. Waiters read by themselves, and expired items count as
    # absent.

    def _is_due(self) -> bool:
        return self._due >= REAP_BATCH

    def _remove(self) -> None:
        self._due = 0
        with suppress(SemelError):
            self._reap(REAP_BATCH)

    def _listen(self) -> None:
        while self._hears and not self._listener.stopping.is_set():
            with suppress(*DRIVER_ERRORS, SemelError):
                session: Any = blocking(SyncSession.open(self._address))
                with closing(session.connection):
                    self._hear(session)
            self._listener.stopping.wait(RETRY_SECONDS * random.uniform(0.5, 1.0))

    def _hear(self, session: SyncSession) -> None:
        if session.pooled:
            self._hears = False
            return
        listen = f"LISTEN {quoted(channel(self._address.schema))}".encode()
        blocking(session.execute([(listen, None)]))
        self._session = session
        try:
            while not self._listener.stopping.is_set():
                for payload in session.notifications():
                    self._notified(payload)
        finally:
            with self._lock:
                self._session = None

    def _notified(self, payload: bytes) -> None:
        with suppress(msgspec.DecodeError, ValueError):  # any program may use the channel
            table, key, *sort = msgspec.json.decode(payload, type=list[str | int | float])
            self._notify((str(table), str(key), sort[0] if sort else None))  # type: ignore[arg-type]
