"""`semel cost`: estimates what a month of events costs on DynamoDB."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from semel.cli.common import JsonOption, print_json
from semel.core.policy import DAY
from semel.provision.cost import CostLine, Estimate, Workload, estimate


def cost(
    *,
    events: Annotated[int, typer.Option(min=1, help="The number of events a month.")] = 1_000_000,
    duplicates: Annotated[
        float, typer.Option(min=0, max=1, help="The share of them that are duplicates.")
    ] = 0.0,
    key_bytes: Annotated[int, typer.Option(min=1, help="The length of a key.")] = 60,
    result_bytes: Annotated[int, typer.Option(min=2, help="The size of a result as it is stored.")] = 500,
    ttl_days: Annotated[float, typer.Option(help="How long a record is kept.")] = 1.0,
    work_seconds: Annotated[float, typer.Option(min=0, help="How long the work takes.")] = 1.0,
    read_first: Annotated[
        bool, typer.Option("--read-first", help="Look for a duplicate before claiming its key.")
    ] = False,
    subjects: Annotated[
        bool,
        typer.Option("--subjects", help="Records name a person, and so are in an index too."),
    ] = False,
    region: Annotated[str, typer.Option(help="The region whose prices are used.")] = "us-east-1",
    as_json: JsonOption = False,
) -> None:
    """Estimate what a month of events costs on DynamoDB, on demand.

    It counts the requests that the ledger really makes; the prices are AWS's own, with their date.

    semel cost --events 10000000 --duplicates 0.2
    """
    workload = Workload(
        events=events,
        duplicates=duplicates,
        key_bytes=key_bytes,
        result_bytes=result_bytes,
        ttl=ttl_days * DAY,
        seconds=work_seconds,
        read_first=read_first,
        subjects=subjects,
    )
    found = estimate(workload, region)
    if as_json:
        print_json(for_programs(found))
        return
    console = Console(highlight=False)
    console.print(for_people(found))
    console.print(notes(found))
    day = found.prices.published
    console.print(
        f"DynamoDB on demand in {region}, by the prices of {day}, without free tiers.", soft_wrap=True
    )


def for_people(found: Estimate) -> Table:
    """The estimate as a table."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for name in ("requests", "write units", "read units", "$ a month", "$ a million"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in found.lines:
        table.add_row(line.what, *_figures(found, line))
    per_million = f"{found.per_million(found.dollars):,.3f}"
    table.add_row("total", "", "", "", f"{found.dollars:,.2f}", per_million, style="bold")
    return table


def notes(found: Estimate) -> Table:
    """What each line is about."""
    grid = Table.grid(padding=(0, 2))
    for line in found.lines:
        grid.add_row(line.what, line.note, style="dim")
    return grid


def _figures(found: Estimate, line: CostLine) -> list[str]:
    counts = (line.requests, line.requests * line.each.writes, line.requests * line.each.reads)
    return [f"{count:,.0f}" if count else "" for count in counts] + [
        f"{line.dollars:,.2f}",
        f"{found.per_million(line.dollars):,.3f}",
    ]


def for_programs(found: Estimate) -> dict[str, Any]:
    """The estimate as JSON."""
    return {
        "region": found.prices.region,
        "prices": {
            "writes_per_million": found.prices.writes,
            "reads_per_million": found.prices.reads,
            "storage_per_gigabyte_month": found.prices.storage,
            "published": found.prices.published.isoformat(),
            "source": found.prices.source,
        },
        "events": found.workload.events,
        "record_bytes": found.record_bytes,
        "operations": [
            {
                "operation": line.what,
                "requests": round(line.requests),
                "write_units": round(line.requests * line.each.writes),
                "read_units": round(line.requests * line.each.reads),
                "dollars": round(line.dollars, 4),
                "dollars_per_million_events": round(found.per_million(line.dollars), 4),
            }
            for line in found.lines
        ],
        "dollars": round(found.dollars, 4),
        "dollars_per_million_events": round(found.per_million(found.dollars), 4),
    }
