"""The housekeeper: a thread with a connection of its own, which hears of writes and removes what has expired.

It is started by the first who waits for an item, or once so much was written that some may have expired.
"""

import random
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import msgspec
import psycopg

from semel.clock import Clock
from semel.commands import Sort
from semel.errors import SemelError
from semel.locks import Event
from semel.stores.postgres.address import Address
from semel.stores.postgres.clerk import Talk
from semel.stores.postgres.errors import DRIVER_ERRORS
from semel.stores.postgres.forms import channel
from semel.stores.postgres.pool import Line, converse
from semel.stores.postgres.values import quoted

# How long after a lost connection another one is tried; whoever waits looks by himself meanwhile.
RETRY_SECONDS = 1.0
# For every row that is written up to two expired ones are removed, so that a store that is only ever written
# stays as small as what is alive in it; so many at a time, which takes a few milliseconds.
REAPED_PER_WRITE = 2
BITE = 500
# A store that is closed waits for a bite to be finished, and not for a server that does not answer.
FAREWELL_SECONDS = 5.0


class Housekeeper:
    """Rings for those who wait, and reaps."""

    def __init__(
        self,
        address: Address,
        clock: Clock,
        ring: Callable[[tuple[str, str, Sort]], None],
        reap: Callable[[int], Talk[int]],
    ) -> None:
        self.listening = False
        self._address = address
        self._clock = clock
        self._ring = ring
        self._reap = reap
        self._owed = 0
        self._hiring = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopping = Event()
        self._bell: socket.socket | None = None

    def listen(self) -> None:
        """Hear of writes from now on, where a connection can."""
        if self._thread is None and self._address.keeps_sessions:
            self._hire()

    def owe(self) -> None:
        """A row was written."""
        self._owed += REAPED_PER_WRITE
        if self._owed >= BITE:
            self._hire()
            self._wake()

    def stop(self) -> None:
        """End the thread; no other is started."""
        with self._hiring:
            self._stopping.set()
        self._wake()
        if self._thread is not None:
            self._thread.join(FAREWELL_SECONDS)
        if self._bell is not None:
            self._bell.close()

    def _hire(self) -> None:
        if self._thread is None and not self._stopping.is_set():
            threading.Thread(target=self._run, name="semel-postgres", daemon=True).start()

    def _wake(self) -> None:
        if self._bell is not None:
            with suppress(OSError):  # a bell that can take no more rings has been rung often enough
                self._bell.send(b"!")

    # In the thread

    def _run(self) -> None:
        # Here, and not where it is started: a signal may come between any two lines there.
        with self._hiring:
            if self._thread is not None or self._stopping.is_set():
                return
            self._thread = threading.current_thread()
            self._bell, ear = socket.socketpair()
            self._bell.setblocking(False)
        self._keep_house(ear)

    def _keep_house(self, ear: socket.socket) -> None:
        with ear:
            while not self._stopping.is_set():
                # There is nobody to be told. Who waits looks by himself, and what has expired is not there.
                with suppress(*DRIVER_ERRORS, SemelError):
                    self._serve(ear)
                self._stopping.wait(RETRY_SECONDS * random.uniform(0.5, 1.0))

    def _serve(self, ear: socket.socket) -> None:
        with closing(self._address.connect()) as connection, selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(ear, selectors.EVENT_READ)
            try:
                if self._address.keeps_sessions:
                    connection.execute(f"LISTEN {quoted(channel(self._address.schema))}".encode())
                    self.listening = True
                while not self._stopping.is_set():
                    self._look_after(connection)
                    if any(key.fileobj is ear for key, _ in selector.select()):
                        ear.recv(4096)
            finally:
                self.listening = False

    def _look_after(self, connection: "psycopg.Connection[Any]") -> None:
        self._tidy(connection)
        for notify in connection.notifies(timeout=0):
            self._hear(notify.payload)

    def _hear(self, note: str) -> None:
        with suppress(msgspec.DecodeError, ValueError):  # anybody may use the channel
            table, key, *sort = msgspec.json.decode(note, type=list[str | int | float])
            self._ring((str(table), str(key), sort[0] if sort else None))  # type: ignore[arg-type]

    def _tidy(self, connection: "psycopg.Connection[Any]") -> None:
        if self._owed < BITE:
            return
        self._owed = 0
        talk = self._reap(BITE)
        converse(Line(connection, self._clock), talk, next(talk), self._address)
