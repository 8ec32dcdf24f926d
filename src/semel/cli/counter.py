"""`semel counter`: how much of a period is used up."""

from contextlib import suppress
from typing import Annotated, Final

import msgspec
import typer

import semel
from semel.cli import views
from semel.cli.common import (
    AfterOption,
    JsonOption,
    LimitOption,
    StoreOptions,
    connected,
    on_a_store,
    print_json,
    print_more,
)
from semel.cli.elsewhere import place_of
from semel.cli.filters import is_billed, looked_at
from semel.ops.model import PAGE_SIZE
from semel.ops.standing import CounterStates
from semel.periods import PERIODS, PeriodName
from semel.state.counters import Tally

app: Final = typer.Typer(no_args_is_help=True, help="Show how much of a period is used up.")


@app.command()
@on_a_store()
def show(
    counter: Annotated[str, typer.Argument(metavar="COUNTER", help="The counter, such as replies:42.")],
    *,
    per: Annotated[PeriodName, typer.Option(help="The period.")] = "day",
    zone: Annotated[str, typer.Option(help="The time zone, such as Europe/Stockholm.")] = "UTC",
    cap: Annotated[int | None, typer.Option(min=1, help="The cap, to see how much is left.")] = None,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Show a counter in the current period.

    Pass the period, the zone and the cap that the program uses: they are not stored.

    semel counter show replies:42 --per day --zone Europe/Stockholm --cap 3
    """
    period = PERIODS[per](zone)
    with connected(where) as s:
        tally = s.counters.look(counter, per=period, cap=cap)
    if as_json:
        print_json(views.readable(tally) | {"remaining": tally.remaining})
    else:
        typer.echo(for_people(tally, zone))


@app.command("list")
@on_a_store()
def list_counters(
    *,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="What the names begin with.")] = "",
    limit: LimitOption = PAGE_SIZE,
    after: AfterOption = None,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """List the counters that are remembered: how much was counted in each period, and when that ends.

    Caps are not stored; semel counter show tells what is left of one.
    """
    with connected(where) as s:
        found, place = _found(s, prefix, limit, after), place_of(s)
    if as_json:
        print_json({"counters": views.readable(found.counters), "after": found.after})
        return
    if found.counters:
        rows = [
            (each.counter, each.period, f"{each.used:,}", views.moment_or_none(each.resets_at) or "")
            for each in found.counters
        ]
        views.print_table(("counter", "period", "used", "ends"), rows)
    else:
        so_far = f" among the {looked_at(found.examined)} looked at so far" if found.after else ""
        typer.echo(f"No counters{so_far} in {place}.")
    print_more(found.after)


def _found(s: semel.Semel, prefix: str, limit: int, after: str | None) -> CounterStates:
    """A page of counters, full if there are so many; where reading is billed, only what one page reads."""
    found = s.ops.counters(prefix, limit=limit, after=after)
    if found.after is None or len(found.counters) >= limit or not found.scan or is_billed(s):
        return found
    with views.progress("Reading", looked_at, found.examined) as on_progress, suppress(KeyboardInterrupt):
        while found.after is not None and len(found.counters) < limit:
            page = s.ops.counters(prefix, limit=limit - len(found.counters), after=found.after)
            found = msgspec.structs.replace(
                page, counters=found.counters + page.counters, examined=found.examined + page.examined
            )
            on_progress(found.examined)
    return found


def for_people(tally: Tally, zone: str) -> str:
    """A counter in one line."""
    used = f"{tally.used:,}" if tally.cap is None else f"{tally.used:,} of {tally.cap:,}"
    left = "" if tally.remaining is None else f", {tally.remaining:,} left"
    end = views.moment(tally.resets_at)
    return f"{tally.counter}: {used} used in {tally.period} ({zone}){left}; counts anew from {end}."
