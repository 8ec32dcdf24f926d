"""`semel doctor`: whether a store is as it should be, and what mends it where it is not."""

import platform
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.text import Text

import semel
from semel import errors
from semel.cli.common import (
    JsonOption,
    StoreOptions,
    bound,
    configuration_for,
    connected,
    on_a_store,
    print_json,
)
from semel.cli.provision import tables_wanted
from semel.core.clock import Clock
from semel.core.commands import Found, Get, read
from semel.core.drive import drive
from semel.model import PROVISION, Problem
from semel.provision import SCHEMES, ProvisionTarget, problems
from semel.service.settings import settings
from semel.tables import LEDGER

CheckState: TypeAlias = Literal["ok", "warn", "fail"]

STATE_STYLES = {"ok": "green", "warn": "bold yellow", "fail": "bold red"}

# No caller's key begins so; what is looked for is never there.
KEY = "semel:doctor"
# DynamoDB tells its time to the second, and an answer takes its time.
MOST_SKEW = 2.0
# A copy of a file needs as much room as the file; with less than this even a small one is soon full.
LITTLE_ROOM = 100 * 1024 * 1024

# What a store of each kind is spoken to with.
DRIVERS = {"postgres": "psycopg", "postgresql": "psycopg", "redis": "redis", "rediss": "redis"}

MADE_BY_OPENING = ("sqlite:", "redis:", "rediss:")
MAKE = "run semel provision"
REACH = "see that the store runs, and that its URL, the network and the credentials are right"


class CheckResult(msgspec.Struct, frozen=True):
    """What was looked at, how it was found, and what mends it."""

    check: str
    state: CheckState
    what: str
    remedy: str = ""


@on_a_store()
def doctor(*, where: StoreOptions, as_json: JsonOption = False) -> None:
    """Look whether the store answers, has its tables, keeps time and has room; say what mends what is wrong.

    Nothing is changed. The exit code is 1 if anything has failed; a warning is no failure.
    """
    results: list[CheckResult] = []
    console = Console(highlight=False)
    for result in examine(where):
        results.append(result)
        if not as_json:
            _print(console, result)
    if as_json:
        print_json({"checks": [msgspec.to_builtins(result) for result in results]})
    if any(result.state == "fail" for result in results):
        raise typer.Exit(1)


def _print(console: Console, result: CheckResult) -> None:
    state = Text(f"{result.state:6}", STATE_STYLES[result.state])
    console.print(Text.assemble(state, f"{result.check:10}", result.what), soft_wrap=True)
    if result.remedy:
        console.print(Text(f"{'':16}{result.remedy}", "dim"), soft_wrap=True)


def examine(where: StoreOptions) -> Iterator[CheckResult]:
    """What there is to say of a store, one thing after the other."""
    url = bound(where).url
    yield _versions(url)
    try:
        tables = list(_tables(where))
    except errors.StoreError as error:
        yield CheckResult("store", "fail", _one_line(error), REACH)
        return
    yield from tables
    # Opening one of these makes what is missing, and nothing is to be changed here.
    if not (url.startswith(MADE_BY_OPENING) and any(MAKE in result.remedy for result in tables)):
        yield from _reached(where)
    if url.startswith("sqlite:"):
        yield from _room(url)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


# Each


def _versions(url: str) -> CheckResult:
    words = [f"semel {semel.__version__}", f"Python {platform.python_version()}"]
    driver = DRIVERS.get(url.partition(":")[0])
    if url.startswith("sqlite:"):
        from sqlite3 import sqlite_version

        words.append(f"SQLite {sqlite_version}")
    elif driver is not None:
        words.append(f"{driver} {_version(driver)}")
    return CheckResult("versions", "ok", ", ".join(words))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of no known version"


def _reached(where: StoreOptions) -> Iterator[CheckResult]:
    """Whether the store answers, how fast, and what time it is there."""
    try:
        with connected(where) as s:
            _ask(s)  # the first request may have to connect
            before = time.time()
            found = _ask(s)
            after = time.time()
    except errors.StoreError as error:
        remedy = (
            REACH if isinstance(error, errors.StoreUnavailable) else "mend what is said of the tables first"
        )
        yield CheckResult("store", "fail", _one_line(error), remedy)
        return
    yield CheckResult("store", "ok", f"answers in {(after - before) * 1000:.1f} ms")
    yield skew(found.now, before, after)


def _ask(s: semel.Semel) -> Found:
    return drive(read(Get(LEDGER, s.ledger.steps.name(KEY))), s.store, s.events.failed)


def skew(there: float, before: float, after: float) -> CheckResult:
    """How far this machine's clock is from the store's, whose answer came between two moments here."""
    apart = max(there - after, before - there, 0.0)
    if apart <= MOST_SKEW:
        return CheckResult("clock", "ok", f"this machine's is within {MOST_SKEW:g} s of the store's")
    word = "behind" if there > after else "ahead of"
    remedy = (
        "set it by NTP: semel goes by the store's time, but logs, --since and signed requests by this one"
    )
    return CheckResult("clock", "warn", f"this machine's is {apart:.0f} s {word} the store's", remedy)


def _tables(where: StoreOptions) -> Iterator[CheckResult]:
    """What `semel provision --check` finds; in DynamoDB, TTL by itself."""
    target = _target(where)
    if target.scheme not in SCHEMES:
        yield CheckResult("tables", "ok", "this kind of store has none that semel makes")
        return
    found = problems(target)
    expiry = [problem for problem in found if problem.what.startswith("TTL ")]
    others = [problem for problem in found if problem not in expiry]
    names = ", ".join(table.name for table in target.tables)
    yield from _found("tables", "fail", others, f"environment {target.env} has {names}")
    if target.scheme == "dynamodb":
        # What has expired is not there for anybody, deleted or not: it only costs.
        yield from _found("ttl", "warn", expiry, "what has expired is deleted")


def _found(check: str, state: CheckState, problems: list[Problem], well: str) -> Iterator[CheckResult]:
    for problem in problems:
        remedy = problem.remedy.replace(PROVISION, MAKE)
        yield CheckResult(check, state, problem.what, remedy)
    if not problems:
        yield CheckResult(check, "ok", well)


def _target(where: StoreOptions) -> ProvisionTarget:
    configuration = configuration_for(where)
    chosen = settings(configuration)
    apps = [] if where.app is None else [where.app]
    tables = tables_wanted(chosen, configuration, [], apps)
    return ProvisionTarget(url=chosen.semel.url, env=chosen.semel.env, tables=tables, clock=Clock())


def _room(url: str) -> Iterator[CheckResult]:
    """How much room there is beside an SQLite file; where it is full, the look at the tables says so."""
    from semel.stores.sqlite.file import LEAST_ROOM, SQLiteFile

    file = SQLiteFile.from_url(url)
    path = Path(file.path)
    if not path.is_file() or (room := file.room()) < LEAST_ROOM:
        return
    size = path.stat().st_size
    what = f"{_megabytes(room)} are left beside a file of {_megabytes(size)}"
    if room < max(size, LITTLE_ROOM):
        yield CheckResult("disk", "warn", what, "make room there: a backup needs as much as the file")
    else:
        yield CheckResult("disk", "ok", what)


def _megabytes(size: int) -> str:
    return f"{size / 1024 / 1024:,.1f} MB"
