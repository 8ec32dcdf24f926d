"""The worker threads, which handle the messages in the inboxes."""

import logging
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from semel import errors
from semel.apps.application import worker_options
from semel.core.clock import Clock
from semel.service.runtime import MountedApp, Runtime

logger: Final = logging.getLogger("semel.service")

# A worker that failed as a whole begins anew after the first figure, then ever later, up to the second.
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
# What an inbox's settings may say instead of the app.
OPTIONS: Final = ("workers", "max_attempts", "lease", "ttl", "poll")


class AppWorkers:
    """A worker for each app that handles messages."""

    def __init__(self, runtime: Runtime, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._stopping = threading.Event()
        self._stopped: float | None = None
        makers = {mounted.name: _maker(runtime, mounted) for mounted in runtime.apps}
        self._threads = [
            WorkerThread(name, make, self._stopping) for name, make in makers.items() if make is not None
        ]
        self.names: list[str] = [thread.app for thread in self._threads]
        """The apps that it works for."""

    def add_processes(self, makers: Iterable[Callable[[], Any]]) -> None:
        """Add processes that work for the same apps, each with a thread that starts it again if it fails."""
        for number, make in enumerate(makers, 2):
            self._threads.append(WorkerThread(f"process {number}", make, self._stopping))

    def failing(self) -> str:
        """Which workers have failed as a whole and have not begun anew, and why; "" where all are at work."""
        return "; ".join(thread.failure for thread in self._threads if thread.failure)

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin nothing more; safe in a signal handler."""
        if self._stopped is None:
            self._stopped = self._clock.monotonic()
        self._stopping.set()
        for thread in self._threads:
            thread.stop()

    def join(self, timeout: float) -> bool:
        """Whether everything that ran has ended within this time since it was asked to stop."""
        begun = self._clock.monotonic() if self._stopped is None else self._stopped
        deadline = begun + timeout
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - self._clock.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


class WorkerThread(threading.Thread):
    """One app's worker, begun anew when it fails as a whole."""

    def __init__(self, app: str, make: Callable[[], Any], stopping: threading.Event) -> None:
        # What still runs when the time is up is left as after a crash, and ends with the process.
        super().__init__(name=f"semel-{app}", daemon=True)
        self.app = app
        self._make = make
        self._worker = make()  # options that cannot work are refused before anything begins
        self._stopping = stopping
        self.failure: str = ""
        """Why it is not at work."""

    def run(self) -> None:
        """Work, until told to stop."""
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                self._worker.run()
            except Exception as error:
                trace = None if isinstance(error, errors.SemelError) else error
                # Without the words of an error that is none of semel's: they may quote a message.
                words = "" if trace is not None else f": {error}"
                self.failure = f"the worker of {self.app} failed: {type(error).__name__}{words}"
                logger.error("the worker of %s failed: %s", self.app, error, exc_info=trace)
            if self._stopping.wait(pause):
                return
            pause = min(pause * 2, LONGEST_PAUSE)
            self._worker = self._make()  # one runs once
            self.failure = ""
            logger.warning("the worker of %s begins anew", self.app)

    def stop(self) -> None:
        """Begin nothing more."""
        self._worker.stop()


def _maker(runtime: Runtime, mounted: MountedApp) -> Callable[[], Any] | None:
    """What makes an app's workers; None where it has none, or nothing to do for them."""
    chosen = mounted.settings
    count = runtime.settings.service.workers if chosen.workers is None else chosen.workers
    if not count or not mounted.works:
        return None
    options = _options(mounted)

    def make() -> Any:
        try:
            return mounted.inbox.worker(mounted.app.handle, workers=count, **options)
        except errors.InvalidOption as error:
            raise runtime.configuration.wrong(_blamed(mounted, str(error)), str(error)) from error

    return make


def _blamed(mounted: MountedApp, problem: str) -> tuple[str, ...]:
    """The setting that is at fault; where the app has chosen it, that is one of the app's."""
    for name in re.findall(r"\w+", problem):
        if name in OPTIONS and getattr(mounted.settings, name) is not None:
            return "inbox", mounted.name, name
        if name == "workers":
            return "service", name
    return "apps", mounted.name


def _options(mounted: MountedApp) -> dict[str, Any]:
    """The app's own options, and the settings over them."""
    chosen = {name: getattr(mounted.settings, name) for name in OPTIONS[1:]}
    options: dict[str, Any] = {**worker_options(mounted.app)}
    options |= {name: value for name, value in chosen.items() if value is not None}
    if mounted.settings.queue and "poll" in options:
        options["poll"] = round(options["poll"])
    return options
