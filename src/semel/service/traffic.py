"""Sample traffic: generated deliveries to the service itself, and their outcomes."""

import errno
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx

from semel import errors
from semel.apps.configuration import Configuration
from semel.core.clock import Clock
from semel.core.events import Event, What, digest
from semel.service import sample_data
from semel.service.runtime import Runtime
from semel.service.settings import ServiceSection
from semel.stores.sqlite.file import SQLiteFile

PAUSE_SECONDS: Final = 0.4
STATUS_SECONDS: Final = 5.0
# A service that answers at all answers within this.
TIMEOUT_SECONDS: Final = 5.0

# Through these an event comes in; what has none is a step of its handling.
DOORS: Final = frozenset({"inbox", "quill", "probe"})


@contextmanager
def sampled(options: dict[tuple[str, ...], Any], say: Callable[[str], None]) -> Iterator[Configuration]:
    """Settings for the sample, and nothing of the environment: made-up traffic is for a file of its own."""
    url = options.pop(("semel", "url"), None)
    if url is not None and not url.startswith("sqlite:"):
        raise errors.UsageError("sample traffic goes to a file only: --url sqlite:///sample.db, or none")
    with tempfile.TemporaryDirectory(prefix="semel-sample-") as folder:
        configuration = Configuration(
            sample_data.settings(url or f"sqlite:///{folder}/semel.db"), "the sample"
        )
        for path, value in options.items():
            configuration.put(path, value, f"the option --{path[-1]}")
        if ("service", "port") not in options:
            configuration.put(("service", "port"), _port(options, say), "the sample")
        yield configuration


def _port(options: dict[tuple[str, ...], Any], say: Callable[[str], None]) -> int:
    """The usual port, or any other where that is in use."""
    usual = ServiceSection()
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((options.get(("service", "host"), usual.host), usual.port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return usual.port  # the service says what is wrong with it
            say(f"semel: port {usual.port} is in use, so another one is taken")
            return 0
    return usual.port


# What becomes of a delivery that a person watches.
WORDS: Final = {
    What.COMPLETED: "has handled yours",
    What.REPLAYED: "had yours before: a duplicate, and dropped",
    What.RELEASED: "failed on yours, and tries again",
    What.FAILED: "gave yours up: it is a dead letter",
}


class DeliveryCounts:
    """Counts what becomes of deliveries, by what the ledger tells."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: set[str] = set()
        self._watched: dict[str, Callable[[str], None]] = {}
        self.received = 0
        self.counts: dict[What, int] = dict.fromkeys(WORDS, 0)

    def watch(self, key_digest: str, say: Callable[[str], None]) -> None:
        """Tell also in words what becomes of this one."""
        self._watched[key_digest] = say

    def __call__(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            what = self._sorted(event)
            if what is not None:
                self.counts[what] += 1
        if what is not None and event.key_digest in self._watched:
            self._watched[event.key_digest](WORDS[what])

    def _sorted(self, event: Event) -> What | None:
        """What it says about a whole delivery; None where it is one of many steps."""
        comes_in, begun = event.door in DOORS, event.key_digest in self._begun
        match event.what:
            case What.CLAIMED | What.TAKEN_OVER if comes_in:
                self._begun.add(event.key_digest)
                return None
            case What.REPLAYED | What.FAILED_BEFORE if comes_in:
                return What.REPLAYED
            case What.COMPLETED | What.FAILED if begun:
                self._begun.discard(event.key_digest)
                return event.what
            case What.RELEASED if begun:
                return What.RELEASED
        return None


class Traffic:
    """The stream, which goes on while it is `running`."""

    def __init__(self, runtime: Runtime, address: str, say: Callable[[str], None]) -> None:
        self._runtime, self._address, self._say = runtime, address, say
        self._clock, self._tally = Clock(), DeliveryCounts()
        self._stopping = threading.Event()
        self._refused: set[int] = set()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._send, self._report)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Say what it is, and send until the end of the block."""
        self._introduce()
        for one in self._runtime.apps:
            sample_data.begin(one.s)
        self._runtime.s.events.listen(self._tally)
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in self._threads:
                thread.join(TIMEOUT_SECONDS)

    # What is said

    def _introduce(self) -> None:
        database = Path(SQLiteFile.from_url(self._runtime.settings.semel.url).path)
        kept = f"in {database}"
        if database.parent.name.startswith("semel-sample-"):
            kept += ", and gone when this stops; --url sqlite:///sample.db keeps it"
        self._say("semel: the traffic is made up, and nothing of it leaves this machine")
        self._say("semel: to be without it, leave --traffic away and write a semel.toml of your own")
        self._say(f"semel: everything is {kept}")
        self._say("semel: paste one of these twice, and see that it happens once:")
        for paste in sample_data.pastes(self._clock.now()):
            self._say(f"\n  # {paste.app}: {paste.what}\n  {sample_data.curl(self._address, paste.delivery)}")
            self._watch(paste)
        self._say("\n  # what came of it")
        for line in sample_data.looks(self._address, self._clock.now()):
            self._say(f"  {line}")
        self._say("\nsemel: Ctrl-C stops it")

    def _watch(self, paste: sample_data.Paste) -> None:
        name = self._runtime.s.scoped(paste.app).ledger.steps.prefix + paste.key
        self._tally.watch(digest(name), lambda words: self._say(f"semel: {paste.app} {words}"))

    def _report(self) -> None:
        while not self._stopping.wait(STATUS_SECONDS):
            self._say(self.status())

    def status(self) -> str:
        """All figures in one line."""
        handled, duplicates, failed, dead = self._tally.counts.values()
        waiting = sum(each.inbox.waiting() for each in self._runtime.apps)
        return (
            f"semel: {self._tally.received} received, {handled} handled once, "
            f"{duplicates} duplicates dropped, {failed} failed and retried, {dead} dead, {waiting} waiting"
        )

    # What is sent

    def _send(self) -> None:
        rng = Random()  # noqa: S311 - nothing depends on it
        with httpx.Client(base_url=self._address, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            for delivery in sample_data.SampleSenders(rng, self._clock.now):
                if self._stopping.wait(PAUSE_SECONDS):
                    return
                try:
                    self._deliver(client, delivery)
                except httpx.HTTPError:
                    continue  # it is not there yet, or not any more

    def _deliver(self, client: httpx.Client, delivery: sample_data.SampleDelivery) -> None:
        headers = delivery.signed(self._address, self._clock.now())
        self._tally.received += delivery.size
        answer = client.post(delivery.path, content=delivery.body, headers=headers)
        if not answer.is_success and answer.status_code not in self._refused:
            self._refused.add(answer.status_code)
            self._say(f"semel: {delivery.path} answers {answer.status_code} to the traffic: {answer.text}")
