"""Keeping it running: what the service and its workers alone have in common, and the workers."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final

from semel import errors
from semel.apps.reading import Given
from semel.redact import Redactor
from semel.service import logs
from semel.service.crew import Crew
from semel.service.house import House
from semel.service.settings import settings

logger: Final = logging.getLogger("semel.service")

STOP: Final = (signal.SIGTERM, signal.SIGINT)


def begin(given: Given, only: tuple[str, ...] = ()) -> House:
    """Open the house, with logs as its settings say."""
    chosen = settings(given).service
    redactor = Redactor()
    redactor.text("the first text takes a while")  # and the first warning is no time for that
    logs.set_up(chosen.log_format, chosen.log_level, redactor)
    return House(given, only)


def work(house: House, say: Callable[[str], None]) -> None:
    """Work on what waits, until a signal says to stop."""
    stopping = threading.Event()
    with working(house) as crew:

        def stop(*_: object) -> None:
            crew.stop()
            stopping.set()

        for one in STOP:
            signal.signal(one, stop)
        say(f"semel: working for {', '.join(crew.names)}")
        crew.start()
        stopping.wait()


@contextmanager
def working(house: House) -> Iterator[Crew]:
    """The crew of a house, if there is anything to do for it."""
    with kept(house) as crew:
        if not crew.names:
            raise errors.InvalidOption("there is nothing to work on: enable an app, and let it have workers")
        yield crew


@contextmanager
def kept(house: House) -> Iterator[Crew]:
    """The crew of a house; at the end what runs is finished, and the house is closed."""
    with closing(house):
        crew = Crew(house)
        try:
            yield crew
        finally:
            crew.stop()
            if not crew.join(house.settings.service.stop_timeout):
                logger.error("work is still running and is left as after a crash: its lease will lapse")
