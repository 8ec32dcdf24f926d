"""Run the suites on every store: `python -m proof.rivals [--json] [--stores memory,sqlite]`."""

import argparse
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import semel
from proof.rivals.suites import DIFFERS, SETTINGS, SUITES, Result, name_of, theirs
from tests.places import CREDENTIALS, Place
from tests.servers.dynamodb import dynoxide
from tests.servers.postgres import postgres
from tests.servers.redis import redis_server
from tests.servers.running import Unavailable

SERVERS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "memory": lambda: nullcontext(""),
    "sqlite": lambda: nullcontext(""),
    "postgres": postgres,
    "redis": redis_server,
    "dynoxide": dynoxide,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what came of each suite on each store; 1 where anything failed or was not to be had."""
    parser = argparse.ArgumentParser(prog="python -m proof.rivals", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print every case as JSON")
    parser.add_argument("--stores", default=",".join(SERVERS), help="which stores (default: %(default)s)")
    options = parser.parse_args(arguments)
    absent = [name for name in SUITES if find_spec(name) is None]
    if absent:
        print(f"They are not installed: pip install -c constraints.txt {' '.join(absent)}", file=sys.stderr)
        return 1
    logging.disable(logging.WARNING)  # the suites lose claims on purpose
    found = []
    for result in results(options.stores.split(",")):
        found += result
        if not options.json:
            print(line(result), flush=True)
    print(as_json(found) if options.json else "\n".join(notes(found)))
    return int(any(result.outcome in ("failed", "absent") for result in found))


def results(stores: Sequence[str]) -> Iterator[list[Result]]:
    """The results of each suite on each store, one after the other."""
    for _, found in groupby(theirs(), key=lambda result: result.suite):
        yield list(found)
    for store in stores:
        yield from on_store(store)


def on_store(store: str) -> Iterator[list[Result]]:
    """The results of each suite on a store of semel, whose server is started for it."""
    os.environ.update({name: os.environ.get(name, value) for name, value in CREDENTIALS.items()})
    try:
        with SERVERS[store]() as server, TemporaryDirectory() as folder:
            place = Place(store, server, Path(folder))
            with semel.connect(url_of(place), env=place.env) as s:
                for suite in SUITES.values():
                    yield list(suite(store, s))
    except Unavailable as absence:
        yield from ([Result(suite, store, "", "absent", str(absence))] for suite in SUITES)


def url_of(place: Place) -> str:
    """Its URL, set as the suites need it."""
    url, (setting, _) = place.url(), SETTINGS.get(place.name, ("", ""))
    return f"{url}&{setting}" if setting else url


def line(found: list[Result]) -> str:
    """One suite on one store."""
    counts = Counter(result.outcome for result in found)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return f"{name_of(found[0].suite):16}{found[0].store:12}{outcomes}"


def notes(found: list[Result]) -> Iterator[str]:
    """What is to be said of the cases that did not pass."""
    for (suite, case), reason in DIFFERS.items():
        yield f"{suite} {case} differs, because: {reason}"
    for store, (setting, reason) in SETTINGS.items():
        yield f"{store} is set to {setting}, because: {reason}"
    for result in found:
        if result.outcome in ("failed", "absent"):
            yield f"{result.suite} {result.case} on {result.store} {result.outcome}: {result.why}"


def as_json(found: list[Result]) -> str:
    """All of it, for programs."""
    versions = dict(name_of(suite).split() for suite in SUITES)
    return json.dumps({"suites": versions, "results": [result._asdict() for result in found]}, indent=2)


if __name__ == "__main__":
    sys.exit(main())
