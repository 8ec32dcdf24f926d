"""`semel ls`, `show`, `explain`, `stuck` and `sizes`: which records there are, why, and how many."""

import time
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

import semel
from semel import errors
from semel.cli import views
from semel.cli.asking import ByOption, WhyOption, check_why, operator_name
from semel.cli.common import (
    AfterOption,
    JsonOption,
    LimitOption,
    StoreOptions,
    absent,
    connected,
    number,
    on_a_store,
    print_json,
    print_more,
    with_options,
)
from semel.cli.elsewhere import dead_letters_of, needs_operator, place_of, print_elsewhere
from semel.cli.filters import SearchOptions, find, looked_at, words_of_scan
from semel.core.events import digest
from semel.core.ledger import in_doubt, is_running
from semel.model import COUNTED, ProgressCallback, TableSize
from semel.ops.model import PAGE_SIZE, Search, SearchPage, SortOrder, version_of

# How each way of a search is told.
WAYS = {
    "subject": "by the index of persons",
    "doubts": "by the index of doubts",
    "failures": "by the index of failures",
    "status": "by status",
    "key": "by key",
    "recent": "by the index of all records",
}


@on_a_store()
@with_options("asked", SearchOptions)
def ls(
    *,
    asked: SearchOptions,
    newest: Annotated[
        bool, typer.Option("--newest", help="Newest first; of all records, see `semel provision --with`.")
    ] = False,
    oldest: Annotated[bool, typer.Option("--oldest", help="Oldest first.")] = False,
    limit: LimitOption = PAGE_SIZE,
    after: AfterOption = None,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Search for records: by state, key, error, worker, person, digest or age. Results are not shown.

    semel ls --status failed --error TimeoutError --since 2h

    semel ls --prefix reply:42

    semel ls --newest --since 2h

    Then ask what happened to one: semel explain KEY
    """
    search = msgspec.structs.replace(asked.search, order=_order(newest, oldest))
    with connected(where) as s:
        found, place = find(s, search, limit, after, scan=asked.scan), place_of(s)
        elsewhere = [] if found.records or found.after or after else needs_operator(where, s)
    if as_json:
        print_json(
            _page(found) | {"env": s.env, "scope": s.scope, "elsewhere": msgspec.to_builtins(elsewhere)}
        )
        return
    if found.records:
        views.print_table(RECORDS, [_row(record, found.now) for record in found.records], cut=True)
    typer.echo(_way(found, whole=found.after is None and after is None))
    for key in found.unreadable:
        typer.echo(f"{key} cannot be read; semel act forget removes it for good.")
    print_more(found.after)
    if not (found.records or found.after or after or asked.narrowed):
        typer.echo(f"Nothing is kept in {place}: --app, --scope and --env name others.")
    print_elsewhere(elsewhere)


def _order(newest: bool, oldest: bool) -> SortOrder | None:
    if newest and oldest:
        raise errors.UsageError("say --newest or --oldest, not both")
    return "newest" if newest else "oldest" if oldest else None


RECORDS = ("key", "status", "attempt", "changed", "error, worker")


def _row(record: semel.Record, now: float) -> views.TableRow:
    changed = f"{views.span(now - record.updated_at)} ago"
    status = Text(record.status.value, views.STYLES[record.status])
    return record.key, status, str(record.attempt), changed, who_and_what(record)


def who_and_what(record: semel.Record) -> str:
    """The error of a record and its worker, on one line; the error first, as the end may be cut off."""
    failure = record.failure
    words = (failure and f"{failure.type}: {failure.message}", record.worker)
    return "; ".join(" ".join(word.split()) for word in words if word)


def _way(found: SearchPage, *, whole: bool) -> str:
    """By which way they were found and, where other keys had to be looked at, how many that were."""
    shown = number(len(found.records), "record") if found.records else "No records"
    if found.scan and whole:
        return f"{shown}, found by reading the whole table."
    if found.after is not None and not found.records:
        return f"No records among the {looked_at(found.examined)} looked at so far."
    others = f", of {looked_at(found.examined)} looked at" if found.examined > len(found.records) else ""
    return f"{shown}, found {'by reading the table' if found.scan else WAYS[found.how]}{others}."


def _page(found: SearchPage) -> dict[str, Any]:
    return {
        "records": [for_programs(record) for record in found.records],
        "unreadable": found.unreadable,
        "after": found.after,
        "how": found.how,
        "examined": found.examined,
        "scan": found.scan,
    }


def for_programs(record: semel.Record) -> dict[str, Any]:
    """A record for an operator's program: with its worker and the version that is acted on, no result."""
    return views.facts(record) | {
        "worker": record.worker,
        "began_at": views.moment(record.began),
        "digest": digest(record.id),
        "version": version_of(record),
    }


# One key


@on_a_store()
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key, as `ls` shows it.")],
    *,
    scan: Annotated[
        bool, typer.Option("--scan", help="On Redis and DynamoDB, read the whole table for its steps.")
    ] = False,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Tell what happened to a key, attempt by attempt, and what the next call with it gets.

    With it comes what belongs to it: decisions of gates, steps inside its work, entries of the journal that
    name it, what operators did to it and, with --app, its message in the inbox of that app.
    """
    with connected(where) as s:
        story = s.ops.explain(key, scan=scan, inboxes=[where.app] if where.app else [])
    if story is None:
        raise absent("record of", key)
    if as_json:
        print_json(views.readable(story))
    else:
        typer.echo(str(story))


@on_a_store()
def show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key, as `ls` shows it.")],
    *,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show the result too; needs --why.")] = False,
    why: WhyOption = "",
    by: ByOption = "",
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Show one record. Its result may be personal: it is shown only with a reason, which is recorded.

    semel show charge:7 --reveal --why "ticket 12"
    """
    if reveal:
        check_why(why)
    elif why or by:
        raise errors.UsageError("--why and --by go with --reveal: without it nothing is revealed")
    with connected(where) as s:
        record = s.ledger.get(key)
        if record is None:
            raise absent("record of", key)
        shown = for_programs(record) | (_result(s, key, operator_name(by), why) if reveal else {})
    if as_json:
        print_json(shown)
        return
    views.print_pairs((name, _cell(name, value)) for name, value in shown.items() if _is_told(name, value))
    if record.result is not None and not reveal:
        typer.echo("The result is hidden: it may contain personal data. Show it with --reveal --why REASON.")


def _result(s: semel.Semel, key: str, by: str, why: str) -> dict[str, Any]:
    """The result, where there is one, since null is a result too; the journal has who asked for it."""
    try:
        result = s.ops.reveal(key, by=by, why=why)
    except errors.ResultUnreadable as error:
        return {"result_problem": error.reason}
    return {} if result is semel.MISSING else {"result": result}


def _is_told(name: str, value: Any) -> bool:
    return value is not None or name == "result"


def _cell(name: str, value: Any) -> str:
    return value if isinstance(value, str) and name != "result" else views.compact(value)


# What needs somebody


class Stuck(msgspec.Struct, frozen=True):
    """A record that does not go on by itself, or has not yet."""

    record: semel.Record
    why: str
    """in doubt, or lapsed."""
    since: float


@on_a_store()
def stuck(
    *,
    limit: LimitOption = 20,
    scan: Annotated[
        bool, typer.Option("--scan", help="On DynamoDB, read the whole table for what lapsed.")
    ] = False,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """List what is in doubt and what lapsed, oldest first: since when, at whose hands, with which error.

    What is in doubt waits for a person. What lapsed runs again when its key is next called.
    For these all records that are IN_PROGRESS are looked at, on DynamoDB only with --scan.

    Without --app and --scope, the exit code is 1 if other ledgers of the store have unresolved records or
    dead letters, which are counted and not listed.
    """
    with connected(where) as s, views.progress("Looking", looked_at, 0) as on_progress:
        cost = s.ops.cost_of(RUNNING).whole
        billed = cost is not None and cost.billed and not scan
        found, examined, now = _all_stuck(s, on_progress, (DOUBTS,) if billed else (DOUBTS, RUNNING))
        elsewhere, place = needs_operator(where, s), place_of(s)
        dead = dead_letters_of(where, s)
    shown = found[:limit]
    if as_json:
        entries = [_for_scripts(each, now) for each in shown]
        lapsed = "not looked for" if billed else "looked for"
        about = {"dead_letters": dead, "env": s.env, "scope": s.scope}
        about |= {"elsewhere": msgspec.to_builtins(elsewhere)}
        print_json({"stuck": entries, "of": len(found), "examined": examined, "lapsed": lapsed} | about)
    else:
        if shown:
            views.print_table(STUCK, [_stuck_row(each, now) for each in shown], cut=True)
        _print_stuck(found, limit, f"Looked at {looked_at(examined)} in {place}.")
        for inbox, count in dead.items():
            typer.echo(f"Inbox {inbox} has {number(count, 'dead letter')}: semel inbox dead {inbox}")
        if cost is not None and billed:
            typer.echo(f"Only doubts were looked for. With --scan, {words_of_scan(cost)}.")
        print_elsewhere(elsewhere)
    if elsewhere:
        raise typer.Exit(1)


DOUBTS, RUNNING = Search(in_doubt=True), Search(status=semel.Status.IN_PROGRESS)
STUCK = ("key", "is", "for", "attempt", "error, worker")


def _all_stuck(
    s: semel.Semel, on_progress: ProgressCallback[int], searches: tuple[Search, ...]
) -> tuple[list[Stuck], int, float]:
    """What is stuck, the oldest first, how many records were looked at, and what time it is for the store."""
    stuck: dict[str, Stuck] = {}
    examined, now = 0, time.time()
    for search in searches:
        for page in pages(s, search):
            examined, now = examined + page.examined, page.now
            stuck |= {
                record.id: _stuck(record, now) for record in page.records if not is_running(record, now)
            }
            on_progress(examined)
    return sorted(stuck.values(), key=lambda each: each.since), examined, now


def pages(s: semel.Semel, search: Search) -> Iterator[SearchPage]:
    """All pages of a search, one after the other."""
    after: str | None = None
    while True:
        page = s.ops.search(search, limit=200, after=after)
        yield page
        after = page.after
        if after is None:
            return


def _stuck(record: semel.Record, now: float) -> Stuck:
    why = "in doubt" if in_doubt(record, now) else "lapsed"
    return Stuck(record, why, stuck_since(record))


def stuck_since(record: semel.Record) -> float:
    """Since when it does not go on: its lease ended, or somebody put it in doubt."""
    lapsed = record.status is semel.Status.IN_PROGRESS
    return record.lease_until if lapsed else record.updated_at


def _stuck_row(stuck: Stuck, now: float) -> views.TableRow:
    record = stuck.record
    why = Text(stuck.why, "bold yellow" if stuck.why == "in doubt" else "")
    return record.key, why, views.span(now - stuck.since), str(record.attempt), who_and_what(record)


def _for_scripts(stuck: Stuck, now: float) -> dict[str, Any]:
    about = {"why": stuck.why, "since": views.moment(stuck.since), "seconds": round(now - stuck.since, 3)}
    return about | for_programs(stuck.record)


def _print_stuck(found: list[Stuck], limit: int, looked: str) -> None:
    doubts = sum(each.why == "in doubt" for each in found)
    words = f"{doubts:,} in doubt, {len(found) - doubts:,} lapsed" if found else "Nothing is stuck"
    more = f"; the oldest {limit:,} are shown, --limit shows more" if len(found) > limit else ""
    typer.echo(f"{words}{more}. {looked}")
    if doubts:
        typer.echo("Find out whether the effect happened, then settle it: semel explain KEY")


# Sizes


@on_a_store("scope")
def sizes(*, where: StoreOptions, as_json: JsonOption = False) -> None:
    """Tell how large each table is: items, bytes, records by status, and what has expired and waits to go.

    It reads no table to its end: where the store has no figure of its own, up to ten thousand are counted.
    """
    with connected(where) as s:
        found = s.ops.sizes()
    if as_json:
        print_json({"tables": msgspec.to_builtins(found), "counted_up_to": COUNTED})
        return
    if found:
        views.print_table(
            ("table", "items", "bytes", "expired", "among them"), [_size(each) for each in found]
        )
    for how in dict.fromkeys(each.how for each in found):
        typer.echo(f"{how[0].upper()}{how[1:]}.")


def _size(size: TableSize) -> views.TableRow:
    parts = size.by_status | size.indexes
    among = ", ".join(f"{name} {_figure(count)}" for name, count in parts.items())
    expired = "" if size.expired is None else _figure(size.expired)
    size_in_bytes = "" if size.bytes is None else f"{size.bytes:,}"
    return size.table or "all", _figure(size.items), size_in_bytes, expired, among


def _figure(count: int) -> str:
    return f"{count:,}+" if count == COUNTED else f"{count:,}"
