"""Which records a command is about: the options of `semel ls`, which the actions in bulk have too."""

import time
from contextlib import suppress
from typing import Annotated, TypeAlias

import msgspec
import typer

import semel
from semel import errors
from semel.cli import views
from semel.cli.common import number
from semel.cli.subject import person_named
from semel.model import ScanCost
from semel.ops.model import Search, SearchPage
from semel.ops.times import parse_time

ScanOption: TypeAlias = Annotated[
    bool,
    typer.Option("--scan", help="Where no index leads to them, read the whole table, whatever it costs."),
]


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that narrow a search."""

    status: Annotated[
        semel.Status | None, typer.Option(case_sensitive=False, help="Only these.", show_choices=True)
    ] = None
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="What the key begins with.")] = ""
    doubts: Annotated[
        bool, typer.Option("--doubts", help="Only what waits for somebody to find out what became of it.")
    ] = False
    error: Annotated[
        str, typer.Option(metavar="TYPE", help="The type of the kept error, such as TimeoutError.")
    ] = ""
    worker: Annotated[
        str, typer.Option(metavar="TEXT", help="Part of the worker's name: a host, a process, a function.")
    ] = ""
    subject: Annotated[
        str, typer.Option(metavar="PERSON", help="Whom it is about; - reads the name from stdin.")
    ] = ""
    digest: Annotated[
        str, typer.Option(metavar="HEX", help="The digest that a log line has in place of a key.")
    ] = ""
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Changed since: 2h ago, or 2026-10-25T08:00Z.")
    ] = None
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Changed until: 10min ago, or 2026-10-25T08:00Z.")
    ] = None

    scan: ScanOption = False

    @property
    def narrowed(self) -> bool:
        """Whether they ask for less than everything."""
        return msgspec.structs.replace(self, scan=False) != SearchOptions()

    @property
    def search(self) -> Search:
        """What they ask for."""
        return Search(
            status=self.status,
            prefix=self.prefix,
            in_doubt=self.doubts,
            error=self.error,
            worker=self.worker,
            subject=person_named(self.subject) if self.subject else "",
            digest=self.digest,
            since=when("--since", self.since),
            until=when("--until", self.until),
        )


def find(s: semel.Semel, search: Search, limit: int, after: str | None, *, scan: bool) -> SearchPage:
    """A page of a search, full if there are so many; a table that is billed is read only with `scan`.

    Whoever interrupts it gets what was found until then, and where to go on.
    """
    if not scan:
        check_scan(s, search)
    found = s.ops.search(search, limit=limit, after=after)
    if found.after is None or len(found.records) >= limit:
        return found
    with views.progress("Reading", looked_at, found.examined) as on_progress, suppress(KeyboardInterrupt):
        while found.after is not None and len(found.records) < limit:
            page = s.ops.search(search, limit=limit - len(found.records), after=found.after)
            found = msgspec.structs.replace(
                page,
                records=found.records + page.records,
                examined=found.examined + page.examined,
                unreadable=found.unreadable + page.unreadable,
            )
            on_progress(found.examined)
    return found


def looked_at(count: int) -> str:
    """How many keys were looked at, in words."""
    return number(count, "key")


def check_scan(s: semel.Semel, search: Search) -> None:
    """Refuse to read a whole table where that costs money; the refusal says how much."""
    cost = s.ops.cost_of(search)
    if cost.whole is not None and cost.whole.billed:
        raise errors.UsageError(
            f"no index leads to these: to find them all, {words_of_scan(cost.whole)}. Say --scan to do so; "
            "semel ls --doubts, --status unknown, --status failed and --subject are found by an index"
        )


def is_billed(s: semel.Semel) -> bool:
    """Whether reading this store costs money."""
    cost = s.ops.cost_of(Search()).whole
    return cost is not None and cost.billed


def words_of_scan(cost: ScanCost) -> str:
    """What a scan takes, in words."""
    if cost.dollars is None:
        return f"the whole table is read ({cost.note})"
    much = f"${cost.dollars:,.2f}" if cost.dollars >= 0.01 else "less than $0.01"
    return (
        f"the whole table is read, about {cost.items:,} items in {cost.requests:,} requests for {much} "
        f"({cost.note})"
    )


def when(option: str, text: str | None) -> float | None:
    """Parse the time that an option gives."""
    if text is None:
        return None
    try:
        return parse_time(text, time.time())
    except errors.InvalidOption as error:
        raise errors.UsageError(f"{option}: {error}") from None
