"""The demo's worker processes: hired, listened to, killed, frozen, and never left behind."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from semel.cli import demo_worker

# No step of the demo takes a second; a machine that needs this long for one is broken, or semel is.
PATIENCE = 30.0
# How often a wait looks up, so that what it shows moves.
TICK = 0.05


class StalledError(Exception):
    """An act cannot go on; the message says why."""


class Told(msgspec.Struct, frozen=True):
    """One line of a worker's."""

    what: str
    attempt: int = 0
    answer: str = ""
    receipt: str = ""
    error: str = ""


class Worker:
    """One worker process, and what it has told so far."""

    def __init__(self, name: str, process: "subprocess.Popen[str]", errors: Path, news: threading.Condition):
        self.name = name
        self.pid = process.pid
        self.told: list[Told] = []
        self.silent = False
        self._process = process
        self._errors = errors
        self._news = news
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def heard(self, what: str) -> list[Told]:
        """What it told of this kind."""
        return [told for told in self.told if told.what == what]

    def go(self) -> None:
        """Give the sign that it waits for."""
        with suppress(BrokenPipeError):  # it is dead, which its silence tells
            _pipe(self._process.stdin).write("go\n")
            _pipe(self._process.stdin).flush()

    def kill(self) -> None:
        """Kill it with -9; it gets no chance to clean up."""
        self._process.kill()
        self._process.wait()

    def freeze(self, database: Path) -> None:
        """Stop it in its tracks, as a paused machine would be, but not in the middle of a write.

        SQLite has one writer at a time, so a writer that is frozen would hold up everybody else.
        """
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self._process.send_signal(signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)
            if _writable(database):
                return
            self.thaw()
        raise StalledError(f"{database} is locked by somebody else")

    def thaw(self) -> None:
        """Let it go on, as if no time had passed."""
        self._process.send_signal(signal.SIGCONT)

    def last_words(self) -> str:
        """The last line that it wrote on stderr."""
        lines = self._errors.read_text().splitlines()
        return lines[-1] if lines else "it said nothing"

    def dismiss(self) -> None:
        """End it, if it is still there, and let go of what belongs to it."""
        self.kill()
        self._listener.join()
        with suppress(BrokenPipeError):
            _pipe(self._process.stdin).close()
        _pipe(self._process.stdout).close()

    def _listen(self) -> None:
        for line in _pipe(self._process.stdout):
            with self._news:
                self.told.append(msgspec.json.decode(line, type=Told))
                self._news.notify_all()
        with self._news:
            self.silent = True
            self._news.notify_all()


class Crew:
    """All workers of one demo."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._news = threading.Condition()
        self._workers: list[Worker] = []

    def hire(self, name: str, order: str, *options: str) -> Worker:
        """Start a worker; it is ready when this returns, and waits for the sign to go."""
        worker = self._start(name, order, *options)
        self.hear(worker, "ready")
        return worker

    def hire_many(self, names: list[str], order: str, *options: str) -> list[Worker]:
        """Start several at once."""
        workers = [self._start(name, order, *options) for name in names]
        for worker in workers:
            self.hear(worker, "ready")
        return workers

    def hear(self, worker: Worker, what: str, tick: Callable[[], None] | None = None) -> Told:
        """Wait until the worker tells this."""

        def told() -> bool:
            if worker.silent and not worker.heard(what):
                raise StalledError(f"{worker.name} ended before {what!r}: {worker.last_words()}")
            return bool(worker.heard(what))

        self.until(told, f"{worker.name}: {what}", tick)
        return worker.heard(what)[0]

    def until(self, reached: Callable[[], bool], hoped: str, tick: Callable[[], None] | None = None) -> None:
        """Wait for news until this is reached, with a deadline; meanwhile call `tick` now and then."""
        deadline = time.monotonic() + PATIENCE
        with self._news:
            while not reached():
                self._check_health()
                if time.monotonic() > deadline:
                    raise StalledError(f"waited {PATIENCE:.0f} s for {hoped}")
                self._news.wait(TICK)
                if tick is not None:
                    tick()

    def dismiss(self) -> None:
        """End every worker that is left; one is off the list only when it is gone."""
        while self._workers:
            self._workers[-1].dismiss()
            self._workers.pop()

    def _check_health(self) -> None:
        for worker in self._workers:
            for told in worker.heard("broken"):
                raise StalledError(f"{worker.name}: {told.error}")

    def _start(self, name: str, order: str, *options: str) -> Worker:
        errors = self._folder / f"{name} of {order}.err".replace(" ", "-")
        command = [sys.executable, "-P", "-m", demo_worker.__name__]
        command += [self._url, str(self._folder / "bank.log"), order, *options]
        with errors.open("w") as stderr:
            process = subprocess.Popen(  # noqa: S603 - our own module, under the Python that runs this one
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                process_group=0,  # Ctrl-C is for the demo, which then sees to its workers
            )
        worker = Worker(name, process, errors, self._news)
        self._workers.append(worker)
        return worker


@contextmanager
def crew(url: str, folder: Path) -> Iterator[Crew]:
    """A crew that is gone when the block ends, however it ends."""
    hired = Crew(url, folder)
    try:
        yield hired
    finally:
        hired.dismiss()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise AssertionError("every worker is started with pipes")
    return pipe


def _writable(database: Path) -> bool:
    connection = sqlite3.connect(database, timeout=0.5, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True
