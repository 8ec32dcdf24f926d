"""`semel counter`: how much of a period is used up."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from semel.cli import views
from semel.cli.common import JsonOption, StoreOptions, connected, on_a_store, print_json
from semel.periods import Day, Hour, Month, Period, Week
from semel.state.counters import Tally

app = typer.Typer(no_args_is_help=True, help="Look at how much of a period is used up.")


class PeriodName(StrEnum):
    """In what a counter counts."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


PERIODS: dict[PeriodName, type[Period]] = {
    PeriodName.HOUR: Hour,
    PeriodName.DAY: Day,
    PeriodName.WEEK: Week,
    PeriodName.MONTH: Month,
}


@app.command()
@on_a_store()
def show(
    counter: Annotated[str, typer.Argument(metavar="COUNTER", help="The counter, such as replies:42.")],
    *,
    per: Annotated[PeriodName, typer.Option(help="In what it counts.")] = PeriodName.DAY,
    zone: Annotated[str, typer.Option(help="Whose calendar, such as Europe/Stockholm.")] = "UTC",
    cap: Annotated[int | None, typer.Option(min=1, help="Up to where, to see what is left.")] = None,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Show how a counter stands in the present period.

    Ask as its program counts: the period, the zone and the cap are the program's, and are not stored.

    semel counter show replies:42 --per day --zone Europe/Stockholm --cap 3
    """
    period = PERIODS[per](zone)
    with connected(where) as s:
        tally = s.counters.look(counter, per=period, cap=cap)
    if as_json:
        print_json(for_programs(tally))
    else:
        typer.echo(for_people(tally, zone))


def for_people(tally: Tally, zone: str) -> str:
    """A counter in one line."""
    used = f"{tally.used:,}" if tally.cap is None else f"{tally.used:,} of {tally.cap:,}"
    left = "" if tally.remaining is None else f", {tally.remaining:,} left"
    end = views.moment(tally.resets_at)
    return f"{tally.counter}: {used} used in {tally.period} ({zone}){left}; counts anew from {end}."


def for_programs(tally: Tally) -> dict[str, Any]:
    """A counter as JSON."""
    return {
        "counter": tally.counter,
        "period": tally.period,
        "used": tally.used,
        "cap": tally.cap,
        "remaining": tally.remaining,
        "resets_at": views.moment(tally.resets_at),
    }
