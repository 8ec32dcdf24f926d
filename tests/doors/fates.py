"""Processes that are killed in the middle of their work: at a moment that was drawn for them, or at any."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from tests.servers.running import leashed

ROOT = Path(__file__).parents[2]
MOMENTS = ("claimed", "written", "committed")


class Fate:
    """At which moment of which message this process is killed."""

    def __init__(self, after: int, moment: str) -> None:
        self._left = after
        self._moment = moment
        self._lock = threading.Lock()

    def at(self, moment: str) -> None:
        if moment != self._moment:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class WorkerProcesses:
    """Processes of one program, which is given its words and its fate; whoever is killed is replaced."""

    def __init__(
        self,
        stack: ExitStack,
        words: Iterable[str],
        fates: list[tuple[int, str]],
        rng: random.Random,
        size: int,
    ) -> None:
        self._stack, self._words, self._fates, self._rng = stack, tuple(words), fates, rng
        self.killed = 0
        self._live = [self._hire() for _ in range(size)]

    def _hire(self) -> subprocess.Popen[bytes]:
        after, moment = self._fates.pop(0) if self._fates else (0, "never")
        program = leashed([sys.executable, "-m", *self._words, str(after), moment], signal=signal.SIGKILL)
        process = subprocess.Popen(program, cwd=ROOT)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def replace_the_dead(self) -> None:
        for number, process in enumerate(self._live):
            if process.poll() is not None:
                assert process.returncode == -signal.SIGKILL, process.returncode
                self.killed += 1
                self._live[number] = self._hire()

    def kill_one(self) -> None:
        self._rng.choice(self._live).kill()

    def dismiss(self) -> list[int]:
        """Ask all of them to end; how each did."""
        for process in self._live:
            process.send_signal(signal.SIGTERM)
        return [process.wait(60) for process in self._live]
