"""The processes of one `semel work`: the first starts the others, and they end with it.

Threads of one Python process run one at a time, so it takes a process for each processor to use them all.
Each is bound to its processor: threads that share one interpreter lose time when they wake on different ones.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Final

from semel import errors
from semel.service.runtime import Runtime

# In the environment of all but the first process: the process id of the first.
PARENT: Final = "_SEMEL_WORK_PARENT"
# How often the others look whether the first still runs.
LOOK_SECONDS: Final = 1.0


class ProcessFailed(errors.SemelError):
    """A worker process ended, though nothing had asked it to."""


class OtherProcess:
    """Another process that runs the same command as this one."""

    def __init__(self, processor: int | None) -> None:
        self._processor = processor
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self) -> None:
        """Start the process, and wait for its end."""
        self._process = process = subprocess.Popen(  # noqa: S603 - this process was started by it
            [sys.executable, *sys.orig_argv[1:]],
            env={**os.environ, PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
        )
        if self._processor is not None:
            bind(process.pid, self._processor)
        if self._stopped:  # before there was a process to stop
            process.terminate()
        code = process.wait()
        if not self._stopped:
            raise ProcessFailed(f"process {process.pid} ended with exit code {code}")

    def stop(self) -> None:
        """End the process once it has finished its messages; safe in a signal handler."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()


def other_processes(runtime: Runtime) -> list[Callable[[], OtherProcess]]:
    """Return what makes each process that this one starts, and bind this one to its processor."""
    if PARENT in os.environ:
        return []
    chosen, processors = runtime.settings.service, usable_processors()
    number = chosen.processes or (len(processors) if chosen.work_port is None else 1)
    if number > 1 and chosen.work_port is not None:
        raise runtime.configuration.wrong(
            ("service", "processes"),
            f"{number} processes cannot share port {chosen.work_port}, since each has its own metrics: start "
            "`semel work` with a port of its own for each",
        )
    if number != len(processors):
        return [lambda: OtherProcess(None)] * (number - 1)
    bind(os.getpid(), processors[0])
    return [lambda processor=processor: OtherProcess(processor) for processor in processors[1:]]  # type: ignore[misc]


def watch_parent(stop: Callable[[], object]) -> None:
    """Stop this process when the one that started it has ended."""
    if PARENT not in os.environ:
        return
    parent = int(os.environ[PARENT])

    def watch() -> None:
        while os.getppid() == parent:
            waiting.wait(LOOK_SECONDS)
        stop()

    waiting = threading.Event()
    threading.Thread(target=watch, name="semel-parent", daemon=True).start()


def usable_processors() -> list[int | None]:
    """Return the processors that this process may use; None for each that it cannot be bound to."""
    if sys.platform == "linux":
        return [*sorted(os.sched_getaffinity(0))]
    return [None] * (os.cpu_count() or 1)


def bind(process: int, processor: int | None) -> None:
    """Let a process run on one processor only, where the system can do that."""
    if sys.platform == "linux" and processor is not None:
        try:
            os.sched_setaffinity(process, {processor})
        except OSError:  # not allowed here, or the process has ended
            return
