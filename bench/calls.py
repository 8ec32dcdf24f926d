"""How many calls of Python functions it takes: `python -m bench.calls`.

Unlike times, these are the same on every machine. Each figure is the least of some tries, as now and then a
call does what another needs once a second.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import semel
from bench import new_order
from bench.load import CONVERSATION, richpanel_body
from bench.servers import ENV, STORES, stores
from bench.timing import Bar, Call, Listing, conclude
from semel.apps.support import Settings, Support
from semel.apps.support.app import PATH
from semel.core.codecs import Encryption
from semel.doors.inbox import StoreInbox

PACKAGES = ("semel", "msgspec")
SECRET = b"a secret for a benchmark, and for nothing else"
TOKEN = "bench-token-of-richpanel"  # noqa: S105
TRIES, WARM_UP = 10, 20
FIRST = {"memory": 60, "SQLite": 95, "PostgreSQL": 115, "Redis": 105, "DynamoDB": 175}
REPLAY = {"PostgreSQL": 65, "Redis": 55, "DynamoDB": 110}
MESSAGE = 1200


def counted(call: Call) -> int:
    """Count the calls of Python functions, and each time a generator goes on, in one call."""
    calls = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls - 1  # the call itself


def least(calls: Iterable[Call]) -> int:
    """Count each of these calls, and return the least."""
    return min(counted(call) for call in calls)


def of_once(url: str) -> tuple[int, int]:
    """Count a first call of a protected function, and a replay."""
    with semel.connect(url, env=ENV) as s:
        charge = s.once("charge:{order[id]}")(lambda order: {"paid": order["amount"]})
        orders = (new_order(number) for number in itertools.count())
        for _ in range(WARM_UP):
            charge(next(orders))
        done = next(orders)
        charge(done)
        first = least(lambda order=order: charge(order) for order in itertools.islice(orders, TRIES))  # type: ignore[misc]
        return first, least(lambda: charge(done) for _ in range(TRIES))


class Desk:
    """The support desk: the worker of its inbox, and messages for it that came by its webhook."""

    def __init__(self, s: semel.Semel) -> None:
        self._inbox = StoreInbox(s, "support", shared=True)
        app = Support(s, self._inbox, Settings(webhook_token=TOKEN))
        self._hook = app.hooks[PATH]
        self._worker = self._inbox.worker(app.handle, **app.worker_options)
        self._numbers = itertools.count(1)

    def visits(self, many: int) -> list[Call]:
        """Take in so many messages, each of a conversation of its own, and return what handles each."""
        for number in itertools.islice(self._numbers, many):
            body = richpanel_body(number * CONVERSATION)
            assert self._hook.receive({"authorization": f"Bearer {TOKEN}"}, body).status == 200
        lanes: list[str] = []
        while len(lanes) < many:
            self._worker.look()
            while (lane := self._worker.lanes.begin()) is not None:
                lanes.append(lane)
        return [lambda lane=lane: self._worker.visit(lane) for lane in lanes]  # type: ignore[misc]

    def is_done(self) -> bool:
        """Whether every message was handled."""
        return not self._inbox.waiting() and not self._inbox.dead()


@contextmanager
def desk(url: str) -> Iterator[Desk]:
    """Open the support desk on a store."""
    sealing = {"secret": SECRET, "encryption": Encryption.from_secret(SECRET)}
    with semel.connect(url, env=ENV, scope="support", **sealing) as s:  # type: ignore[arg-type]
        yield Desk(s)


def of_message(url: str) -> int:
    """Count what it takes to handle one message of a customer, from the inbox to the ledger."""
    with desk(url) as support:
        visits = support.visits(WARM_UP + TRIES)
        for visit in visits[:WARM_UP]:
            visit()
        calls = least(visits[WARM_UP:])
        assert support.is_done()
        return calls


def main() -> int:
    """Count, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.calls", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    with ExitStack() as stack:
        urls, absent = stack.enter_context(stores(STORES))
        found = {name: of_once(url) for name, url in urls.items()}
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        message = of_message(f"sqlite:///{Path(folder) / 'semel.db'}")
    bars = [
        Bar(f"{which} on {name}", calls, limits[name], "calls")
        for place, (which, limits) in enumerate((("first call", FIRST), ("replay", REPLAY)))
        for name, calls in ((name, both[place]) for name, both in found.items())
        if name in limits
    ]
    bars.append(Bar("a message of the support desk on SQLite", message, MESSAGE, "calls"))
    rows = tuple((name, *both) for name, both in found.items())
    listing = Listing("calls of Python functions", ("store", "first call", "replay"), rows)
    return conclude([], bars, PACKAGES, options.json, listings=[listing], absent=absent)


if __name__ == "__main__":
    raise SystemExit(main())
