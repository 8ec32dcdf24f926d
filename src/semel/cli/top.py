"""`semel top`: how much is done at this time, function by function."""

import time
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

import semel
from semel import errors
from semel.cli import views
from semel.cli.common import JsonOption, StoreOptions, connected, number, on_a_store, print_json
from semel.cli.elsewhere import place_of
from semel.core.clock import SignalSafeEvent
from semel.core.events import What
from semel.ops.rates import BEGINS, DUPLICATES, EDGES, MINUTE, Rates, together

# So many of the keys that are asked for again most often are shown.
MOST_REPEATED = 5


class FunctionRates(msgspec.Struct, frozen=True, kw_only=True):
    """What was done of one function or door in some minutes."""

    name: str
    began: int
    completed: int
    failed: int
    released: int
    held: int
    duplicates: int
    p50: float | None
    """Half of them took no longer than so many seconds; None where it is more than the longest edge."""
    p95: float | None


@on_a_store()
def top(
    *,
    minutes: Annotated[int, typer.Option(min=1, max=4320, help="Of how many minutes.")] = 5,
    every: Annotated[float, typer.Option(min=0.1, help="How many seconds there are between two looks.")] = 5,
    once: Annotated[bool, typer.Option("--once", help="Look once, and leave.")] = False,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Show how much is done, by function: begun, done, failed, given back, duplicates, and how long it took.

    It is what the processes write about themselves once a minute. Without a terminal, and with --json, it
    looks once.

    semel top --once --json
    """
    console = Console(highlight=False)
    with connected(where) as s:
        if as_json:
            print_json(_for_programs(_read(s, minutes), minutes))
        elif once or not console.is_terminal:
            for line in _lines(console, _read(s, minutes), minutes, place_of(s)):
                console.print(line, soft_wrap=True)
        else:
            _redraw(console, s, minutes, every)


def _redraw(console: Console, s: semel.Semel, minutes: int, every: float) -> None:
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(_screen(console, s, minutes), refresh=True)
                s.clock.wait(SignalSafeEvent(), every)
        except KeyboardInterrupt:
            return


def _screen(console: Console, s: semel.Semel, minutes: int) -> Text:
    """What is shown until the next look, which may find the store again if it is away."""
    try:
        return Text("\n").join(_lines(console, _read(s, minutes), minutes, place_of(s)))
    except errors.StoreError as error:
        return Text(f"semel: {error}")


def _read(s: semel.Semel, minutes: int) -> Rates:
    """The rates of the last minutes in one."""
    now = time.time()
    rows = s.ops.rates(now - minutes * MINUTE, now)
    merged = together([msgspec.structs.replace(row, start=0) for row in rows])
    return merged[0] if merged else Rates(0)


def by_function(rates: Rates) -> list[FunctionRates]:
    """What was done of each function, the busiest first."""
    rows = [_function(name, counts, rates.seconds.get(name, [])) for name, counts in rates.counts.items()]
    return sorted(rows, key=lambda row: (-row.began - row.duplicates, row.name))


def _function(name: str, counts: dict[str, int], seconds: list[int]) -> FunctionRates:
    return FunctionRates(
        name=name,
        began=sum(counts.get(what, 0) for what in BEGINS),
        completed=counts.get(What.COMPLETED, 0),
        failed=counts.get(What.FAILED, 0),
        released=counts.get(What.RELEASED, 0),
        held=counts.get(What.HELD, 0),
        duplicates=sum(counts.get(what, 0) for what in DUPLICATES),
        p50=quantile(seconds, 0.5),
        p95=quantile(seconds, 0.95),
    )


def quantile(buckets: list[int], share: float) -> float | None:
    """The edge below which so large a share of the counted spans lies; None beyond the last, or for none."""
    total, counted = sum(buckets), 0
    for edge, count in zip(EDGES, buckets, strict=False):
        counted += count
        if total and counted >= share * total:
            return edge
    return None


# Telling it

COLUMNS = ("function", "began", "done", "failed", "back", "doubt", "again", "half in", "95% in")


def _lines(console: Console, rates: Rates, minutes: int, place: str) -> list[Text]:
    span = "minute" if minutes == 1 else f"{minutes} minutes"
    rows = by_function(rates)
    if not rows:
        return [Text(f"No process has reported anything for {place} in the last {span}.")]
    began = rates.count(*BEGINS)
    head = f"{number(began, 'attempt')} began in the last {span}, {began / minutes:,.1f} a minute."
    table = views.table_lines(console, COLUMNS, [_row(row, rates) for row in rows])
    return [Text(head), *table, *_repeated(rates)]


def _row(row: FunctionRates, rates: Rates) -> views.TableRow:
    counts = (row.began, row.completed, row.failed, row.released, row.held, row.duplicates)
    timed = sum(rates.seconds.get(row.name, []))
    times = [_span(each) if timed else "" for each in (row.p50, row.p95)]
    return (row.name or "(no name)", *[f"{count:,}" for count in counts], *times)


def _span(seconds: float | None) -> str:
    if seconds is None:
        return f"> {EDGES[-1]:g} s"
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def _repeated(rates: Rates) -> list[Text]:
    """The keys that were asked for again most often, and how each is found."""
    most = sorted(rates.duplicates.items(), key=lambda pair: -pair[1])[:MOST_REPEATED]
    return [Text(f"{number(count, 'time')} again: semel ls --digest {digest}") for digest, count in most]


def _for_programs(rates: Rates, minutes: int) -> dict[str, Any]:
    functions = [msgspec.to_builtins(row) for row in by_function(rates)]
    return {"minutes": minutes, "functions": functions, "duplicates": rates.duplicates}
