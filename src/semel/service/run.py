"""Starts and stops: what the service and `semel work` share, and the workers."""

import gc
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final

from semel import errors
from semel.apps.configuration import Configuration
from semel.redact import Redactor
from semel.service import logs
from semel.service.processes import other_processes, watch_parent
from semel.service.runtime import Runtime
from semel.service.settings import settings
from semel.service.workers import AppWorkers

logger: Final = logging.getLogger("semel.service")

STOP: Final = (signal.SIGTERM, signal.SIGINT)

# A thread has its turn for so long. With Python's own 5 ms a webhook would wait for its answer, and so would
# a transaction between two statements, with other processes behind it.
TURN_SECONDS: Final = 0.001


def begin(configuration: Configuration, only: tuple[str, ...] = ()) -> Runtime:
    """Open the runtime, with logs as its settings say."""
    chosen = settings(configuration).service
    redactor = Redactor()
    redactor.text("the first number, +1 202 555 0123, takes a while")  # and a warning is no time for that
    logs.set_up(chosen.log_format, chosen.log_level, redactor)
    return Runtime(configuration, only)


def tune_interpreter() -> None:
    """Let no thread of this process keep the others waiting for long."""
    sys.setswitchinterval(TURN_SECONDS)
    # What was loaded stays. To go through all of it takes 20 ms, several times a minute.
    gc.collect()
    gc.freeze()


def work(runtime: Runtime, say: Callable[[str], None]) -> None:
    """Work on what waits, until a signal says to stop."""
    stopping = threading.Event()
    with working(runtime) as workers:

        def stop(*_: object) -> None:
            workers.stop()
            stopping.set()

        for one in STOP:
            signal.signal(one, stop)
        watch_parent(stop)
        say(f"semel: working for {', '.join(workers.names)}")
        tune_interpreter()
        workers.start()
        stopping.wait()


@contextmanager
def working(runtime: Runtime) -> Iterator[AppWorkers]:
    """The worker threads of a runtime, if there is anything for them to do."""
    with running_workers(runtime) as workers:
        if not workers.names:
            raise errors.InvalidOption("there is nothing to work on: enable an app, and let it have workers")
        workers.add_processes(other_processes(runtime))
        yield workers


@contextmanager
def running_workers(runtime: Runtime) -> Iterator[AppWorkers]:
    """The worker threads of a runtime; at the end what runs is finished, and the runtime is closed."""
    with closing(runtime):
        workers = AppWorkers(runtime)
        try:
            yield workers
        finally:
            workers.stop()
            if not workers.join(runtime.settings.service.stop_timeout):
                logger.error("work is still running and is left as after a crash: its lease will lapse")
