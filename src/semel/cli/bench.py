"""`semel bench`: how long calls take on a store of yours."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any

import typer

import semel
from semel.cli import views
from semel.cli.common import JsonOption, StoreOptions, bound, connected, number, on_a_store, print_json
from semel.cli.measuring import KINDS, MODES, Measured, Trial, measure

COLUMNS = ("", "", "p50", "p99", "a second", "round trips")


@on_a_store("app", "scope")
def bench(
    *,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long each kind of call is measured.")] = 1.0,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Measure a store of yours: first call, replay, check_and_set, a batch, a decision, a hot key.

    It writes records under a scope of its own and removes them at the end, also on Ctrl-C. If it is killed,
    they expire within two hours. On DynamoDB its requests are billed.

    semel bench --url postgresql://localhost/app --seconds 3
    """
    one_by_one = bound(where).url.startswith("dynamodb:")
    total = len(KINDS) * len(MODES)
    with (
        connected(where) as s,
        trial_on(s, quiet=as_json, seconds=seconds * total) as trial,
        views.progress_bar("Measuring", total) as step,
    ):
        found = list(measure(trial, seconds, one_by_one=one_by_one, step=step))
    if as_json:
        print_json({"env": s.env, "scope": trial.scope, "measured": [for_programs(one) for one in found]})
    else:
        views.print_table(COLUMNS, [_row(one) for one in found], whole=2)


@contextmanager
def trial_on(s: semel.Semel, *, quiet: bool, seconds: float) -> Iterator[Trial]:
    """A trial whose records are removed at the end, however it ends."""
    trial = Trial(s)
    previous = signal.signal(signal.SIGTERM, _unwind)
    place = f"under the scope {trial.scope} of environment {s.env}"
    _say(f"Writes records {place} for about {views.span(seconds)}, and removes them at the end.", quiet)
    try:
        yield trial
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    finally:
        _say("Removing them ...", quiet)
        removed = trial.remove()
        signal.signal(signal.SIGTERM, previous)
        _say(f"Removed {number(removed, 'record')}.", quiet)


def _unwind(signum: int, _frame: FrameType | None) -> None:
    """Let a signal that asks to end unwind the stack, past whatever handles errors, so that nothing stays."""
    raise SystemExit(128 + signum)


def _say(line: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(line, err=True)


def _row(one: Measured) -> views.TableRow:
    trips = "" if one.round_trips is None else str(one.round_trips)
    return one.what, one.mode, span_text(one.p50), span_text(one.p99), f"{one.per_second:,.0f}", trips


def span_text(seconds: float) -> str:
    """A short time, in the unit that suits it."""
    return f"{seconds * 1000:,.2f} ms" if seconds >= 0.001 else f"{seconds * 1e6:,.1f} µs"


def for_programs(one: Measured) -> dict[str, Any]:
    """What was measured, as JSON."""
    return {
        "what": one.what,
        "mode": one.mode,
        "calls": one.calls,
        "p50_ms": round(one.p50 * 1000, 4),
        "p99_ms": round(one.p99 * 1000, 4),
        "per_second": round(one.per_second, 1),
        "round_trips": one.round_trips,
    }
