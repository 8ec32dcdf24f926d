"""What keeps a process of semel's waiting: `python -m bench.stalls FILE serve ...` runs `semel serve ...`.

Whatever takes longer than `LONG_SECONDS` is kept with its cause, and written to the file at the end: the turn
of another process at the database, the statements of a transaction, its commit, in which SQLite syncs the log
and makes checkpoints, garbage collection, an event loop that is late. The moments are those of the system's
monotonic clock, which all processes share. All of it is measured from outside: semel itself does nothing for
it. `python -m bench.stalls FILE disk OTHER` watches the disk by small synced writes to a file of its own.
"""

import asyncio
import atexit
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semel.service.processes import PARENT

# What is shorter than this nobody notices.
LONG_SECONDS = 0.005
# How often the event loop is asked whether it is late.
BEAT_SECONDS = 0.005
# How often the disk is asked.
SYNC_SECONDS = 0.02


@dataclass(frozen=True)
class Stall:
    """A stretch in which something waited."""

    process: str
    cause: str
    begun: float
    ended: float
    busy: float = 0.0
    """Seconds for which the waiting thread itself was at work."""

    @property
    def ms(self) -> float:
        return (self.ended - self.begun) * 1000


@dataclass(frozen=True)
class Slow:
    """A webhook that took long, and what was in its way."""

    due: float
    ended: float

    @property
    def ms(self) -> float:
        return (self.ended - self.due) * 1000

    def causes(self, stalls: Iterable[Stall]) -> list[Stall]:
        """The stalls meanwhile, the longest first."""
        mine = [stall for stall in stalls if stall.begun < self.ended and stall.ended > self.due]
        return sorted(mine, key=lambda stall: -stall.ms)


def read(file: Path) -> list[Stall]:
    """What a process has written, and those that it has started."""
    written = file.parent.glob(f"{file.name}*")
    return [Stall(**stall) for one in sorted(written) for stall in json.loads(one.read_text())]


def slowest(webhooks: Iterable[tuple[float, float]], count: int) -> list[Slow]:
    """The slowest webhooks, but one alone of those that were late at the same time."""
    chosen: list[Slow] = []
    for due, ended in sorted(webhooks, key=lambda one: one[0] - one[1]):
        if len(chosen) == count:
            break
        if not any(due < other.ended and ended > other.due for other in chosen):
            chosen.append(Slow(due, ended))
    return chosen


def totals(stalls: Iterable[Stall]) -> dict[str, str]:
    """What each cause comes to."""
    by_cause: dict[str, list[Stall]] = {}
    for stall in sorted(stalls, key=lambda stall: (stall.process, stall.cause)):
        by_cause.setdefault(f"{stall.process}: {stall.cause}", []).append(stall)
    return {cause: _total(found) for cause, found in by_cause.items()}


def _total(stalls: list[Stall]) -> str:
    whole, busy = sum(stall.ms for stall in stalls), sum(stall.busy for stall in stalls) * 1000
    longest = max(stall.ms for stall in stalls)
    return (
        f"{len(stalls):5,} times, {whole:7,.0f} ms, {busy:5,.0f} of them at work; longest {longest:5,.0f} ms"
    )


class Watch:
    """Keeps what took long in this process."""

    def __init__(self, process: str) -> None:
        self.stalls: list[Stall] = []
        self._process = process

    def note(self, cause: str, begun: float, busy: float = 0.0) -> None:
        ended = time.perf_counter()
        if ended - begun > LONG_SECONDS:
            self.stalls.append(Stall(self._process, cause, begun, ended, busy))

    def timed(self, owner: Any, name: str, cause: str) -> None:
        """Time every call of a method."""
        method = getattr(owner, name)

        def called(*args: Any) -> Any:
            begun, before = time.perf_counter(), time.thread_time()
            try:
                return method(*args)
            finally:
                self.note(cause, begun, time.thread_time() - before)

        setattr(owner, name, called)

    def command(self) -> None:
        """Run the command of semel's that was given, and watch all of it."""
        from semel.cli import main as semel

        self.collections()
        self.commits()
        self.loops()
        semel()

    def collections(self) -> None:
        """Time the garbage collector."""
        begun = 0.0

        def collected(phase: str, about: dict[str, int]) -> None:
            nonlocal begun
            if phase == "start":
                begun = time.perf_counter()
            else:
                self.note(f"collection of generation {about['generation']}", begun)

        gc.callbacks.append(collected)

    def commits(self) -> None:
        """Time writes: each by itself, and transactions of several."""
        from semel.stores.sqlite.writer import Writer

        self.timed(Writer, "_write_alone", "write")
        self.timed(Writer, "_write_together", "transaction")

    async def beat(self) -> None:
        """Time the event loop."""
        while True:
            due = time.perf_counter() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            self.note("event loop", due)

    def loops(self) -> None:
        """Time the event loop of the server that will run here."""
        import uvicorn

        serve: Callable[..., Any] = uvicorn.Server.serve

        async def watched(server: uvicorn.Server, *args: Any, **kwargs: Any) -> None:
            beating = asyncio.create_task(self.beat())
            try:
                await serve(server, *args, **kwargs)
            finally:
                beating.cancel()

        uvicorn.Server.serve = watched  # type: ignore[assignment,method-assign]

    def disk(self, file: Path) -> None:
        """Time the disk, until a signal says to stop."""
        stopping = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        with file.open("wb", buffering=0) as opened:
            while not stopping.wait(SYNC_SECONDS):
                begun = time.perf_counter()
                os.pwrite(opened.fileno(), b"x" * 4096, 0)
                os.fsync(opened.fileno())
                self.note("synced write", begun)

    def write(self, file: Path) -> None:
        file.write_text(json.dumps([asdict(stall) for stall in self.stalls]))


def main() -> None:
    """Run the command, and watch it."""
    file = Path(sys.argv.pop(1))
    watch = Watch(sys.argv[1])
    own = f"-{os.getpid()}" if PARENT in os.environ else ""
    atexit.register(watch.write, file.with_name(file.name + own))
    if sys.argv[1] == "disk":
        watch.disk(Path(sys.argv[2]))
    else:
        watch.command()


if __name__ == "__main__":
    main()
