"""A thread with a connection of its own, which listens for notifications and reaps what has expired.

It is started by the first who waits for an item, or once so much was written that some may have expired.
"""

import random
import selectors
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import msgspec
import psycopg

from semel.core.clock import Clock
from semel.core.commands import Sort
from semel.core.threads import BackgroundThread
from semel.errors import SemelError
from semel.stores.postgres.address import PostgresAddress
from semel.stores.postgres.errors import DRIVER_ERRORS
from semel.stores.postgres.interpreter import RoundTrips
from semel.stores.postgres.pool import PostgresSession, run
from semel.stores.postgres.statements import channel
from semel.stores.sql import quoted

# How long after a lost connection another one is tried; whoever waits looks by himself meanwhile.
RETRY_SECONDS = 1.0
# For every row that is written up to two expired ones are removed, so that a store that is only ever written
# stays as small as what is alive in it; so many at a time, which takes a few milliseconds.
REAPED_PER_WRITE = 2
REAP_BATCH = 500
# A store that is closed waits for a batch to be finished, and not for a server that does not answer.
STOP_SECONDS = 5.0


class BackgroundWorker:
    """Wakes those who wait for an item, and reaps."""

    def __init__(
        self,
        address: PostgresAddress,
        clock: Clock,
        notify: Callable[[tuple[str, str, Sort]], None],
        reap: Callable[[int], RoundTrips[int]],
    ) -> None:
        self.listening: bool = False
        self._address = address
        self._clock = clock
        self._notify = notify
        self._reap = reap
        self._due = 0
        self._background = BackgroundThread("semel-postgres", self._serve)
        self._stopping = self._background.stopping
        self._wakeup: socket.socket | None = None

    def listen(self) -> None:
        """Listen for notifications from now on, where a connection can."""
        if self._address.keeps_sessions:
            self._background.start()

    def count_write(self) -> None:
        """A row was written."""
        self._due += REAPED_PER_WRITE
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
                # There is nobody to raise it to. Who waits looks by himself, and what has expired is dead.
                with suppress(*DRIVER_ERRORS, SemelError):
                    self._listen(woken)
                self._stopping.wait(RETRY_SECONDS * random.uniform(0.5, 1.0))

    def _listen(self, woken: socket.socket) -> None:
        with closing(self._address.connect()) as connection, selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            try:
                if self._address.keeps_sessions and not connection.pooled:
                    connection.execute(f"LISTEN {quoted(channel(self._address.schema))}".encode())
                    self.listening = True
                while not self._stopping.is_set():
                    self._poll(connection)
                    if any(key.fileobj is woken for key, _ in selector.select()):
                        woken.recv(4096)
            finally:
                self.listening = False

    def _poll(self, connection: "psycopg.Connection[Any]") -> None:
        self._reap_if_due(connection)
        for notify in connection.notifies(timeout=0):
            self._notified(notify.payload)

    def _notified(self, payload: str) -> None:
        with suppress(msgspec.DecodeError, ValueError):  # anybody may use the channel
            table, key, *sort = msgspec.json.decode(payload, type=list[str | int | float])
            self._notify((str(table), str(key), sort[0] if sort else None))  # type: ignore[arg-type]

    def _reap_if_due(self, connection: "psycopg.Connection[Any]") -> None:
        if self._due < REAP_BATCH:
            return
        self._due = 0
        run(PostgresSession(connection, self._clock), self._reap(REAP_BATCH), self._address)
