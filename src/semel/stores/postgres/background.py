"""A thread with a connection of its own, which listens for notifications and removes expired items.

The first waiter for an item starts it, or the write after which some items may have expired.
"""

import random
import selectors
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import msgspec

from semel.core.commands import Sort
from semel.core.threads import BackgroundThread
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
    """Wakes the waiters for an item, and removes expired items."""

    def __init__(
        self,
        address: PostgresAddress,
        notify: Callable[[tuple[str, str, Sort]], None],
        reap: Callable[[int], object],
    ) -> None:
        self.listening: bool = False
        self._address = address
        self._notify = notify
        self._reap = reap
        self._due = 0
        self._background = BackgroundThread("semel-postgres", self._serve)
        self._stopping = self._background.stopping
        self._wakeup: socket.socket | None = None

    def listen(self) -> None:
        """Listen for notifications from now on, if a connection can."""
        if self._address.keeps_sessions:
            self._background.start()

    def count_write(self, rows: int = 1) -> None:
        """Count rows that were written."""
        self._due += rows * REAPED_PER_WRITE
        if self._due >= REAP_BATCH:
            self._background.start()
            self._wake()

    def stop(self) -> None:
        """End the thread; no other is started."""
        self._background.stop()
        self._wake()
        self._background.join(STOP_SECONDS)

    def _wake(self) -> None:
        if self._wakeup is not None:
            with suppress(OSError):  # one that can take no more bytes has been sent enough
                self._wakeup.send(b"!")

    # In the thread

    def _serve(self) -> None:
        wakeup, woken = socket.socketpair()
        with wakeup, woken:
            wakeup.setblocking(False)
            self._wakeup = wakeup
            while not self._stopping.is_set():
                # No caller could handle it. Waiters read by themselves, and expired items count as absent.
                with suppress(*DRIVER_ERRORS, SemelError):
                    self._listen(woken)
                self._stopping.wait(RETRY_SECONDS * random.uniform(0.5, 1.0))

    def _listen(self, woken: socket.socket) -> None:
        session: Any = blocking(SyncSession.open(self._address))
        with closing(session.connection) as connection, selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            try:
                if self._address.keeps_sessions and not session.pooled:
                    listen = f"LISTEN {quoted(channel(self._address.schema))}".encode()
                    blocking(session.execute([(listen, None)]))
                    self.listening = True
                while not self._stopping.is_set():
                    if self._due >= REAP_BATCH:
                        self._due = 0
                        self._reap(REAP_BATCH)
                    for notify in connection.notifies(timeout=0):
                        self._notified(notify.payload)
                    if any(key.fileobj is woken for key, _ in selector.select()):
                        woken.recv(4096)
            finally:
                self.listening = False

    def _notified(self, payload: str) -> None:
        with suppress(msgspec.DecodeError, ValueError):  # any program may use the channel
            table, key, *sort = msgspec.json.decode(payload, type=list[str | int | float])
            self._notify((str(table), str(key), sort[0] if sort else None))  # type: ignore[arg-type]
