"""`semel demo`: what semel promises, shown with real processes that are really killed."""

import json
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console

import semel
from semel.cli.demo_acts import ACTS, Act, Show
from semel.cli.demo_crew import StalledError, crew
from semel.cli.demo_stage import LiveStage, PlainStage, Stage
from semel.cli.demo_verdict import Facts, Stalled, Verdict, exit_code, judge


def demo(
    database: Annotated[
        Path | None, typer.Option(help="Keep the ledger in this file, to look at it afterwards.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the final table, as JSON.")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Make no pauses for reading.")] = False,
) -> None:
    """Watch semel keep its promises, in ten seconds.

    Worker processes share a ledger in an SQLite file. They call at the same moment, are killed, are frozen
    and come back. Every figure is counted in that very run. The exit code is 1 if a promise was broken.
    """
    stage = _stage(as_json, fast)
    with _signals_raise(), tempfile.TemporaryDirectory(prefix="semel-demo-") as folder:
        began = time.monotonic()
        stage.open()
        facts = perform(stage, Path(folder), (database or Path(folder, "semel.db")).absolute())
        verdicts = [verdict for act in facts.values() for verdict in judge(act)]
        stage.close(verdicts, time.monotonic() - began, _hint(database))
    if as_json:
        typer.echo(report(facts, verdicts))
    raise typer.Exit(exit_code(verdicts))


def perform(stage: Stage, folder: Path, database: Path) -> dict[str, Facts]:
    """Play every act; what was counted in each."""
    url = f"sqlite:///{quote(str(database))}"
    log = folder / "bank.log"
    log.touch()
    with ExitStack() as stack:
        s = stack.enter_context(semel.connect(url))
        show = Show(stage, stack.enter_context(crew(url, folder)), s.ledger, database, log)
        return {name: _play(act, number, show) for number, (name, act) in enumerate(ACTS.items(), 1)}


def _play(act: Act, number: int, show: Show) -> Facts:
    try:
        with show.stage.act(number, act.title, act.line):
            return act.play(show)
    except (StalledError, semel.SemelError) as error:
        return Stalled(act.title, str(error))
    finally:
        show.crew.dismiss()


def report(facts: dict[str, Facts], verdicts: list[Verdict]) -> str:
    """The final table as JSON, with the figures that it was made from."""
    table = {
        "version": version("semel"),
        "kept": exit_code(verdicts) == 0,
        "promises": verdicts,
        "facts": facts,
    }
    return json.dumps(msgspec.to_builtins(table), indent=2)


def _stage(as_json: bool, fast: bool) -> Stage:
    if as_json:
        return Stage()
    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf"):
        return LiveStage(console, breath=0) if fast else LiveStage(console)
    return PlainStage()


def _hint(database: Path | None) -> str:
    if database is None:
        return "Next: semel demo --database d.db && semel ledger list --url sqlite:///d.db"
    return f"Next: semel ledger list --url sqlite:///{quote(str(database))}"


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Let a signal that asks to end unwind the stack, so that no worker and no folder stays behind."""

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise typer.Exit(128 + number)

    before = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
