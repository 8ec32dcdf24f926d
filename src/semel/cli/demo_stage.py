"""Where the demo is seen: a live terminal, plain lines where there is none, or nowhere at all."""

import inspect
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from semel.cli import demo_worker
from semel.cli.demo_verdict import Verdict, exit_code
from semel.clock import Clock

# Time to read a line before the next thing happens.
BREATH = 0.3
BAR = 25
WHO = 13


def code() -> str:
    """The lines that every worker runs, from its own source."""
    lines = inspect.getsource(demo_worker.call_from_threads).splitlines()
    first = next(number for number, line in enumerate(lines) if "@s.once" in line)
    last = next(number for number, line in enumerate(lines) if "return bank.charge" in line)
    protected = textwrap.dedent("\n".join(lines[first : last + 1]))
    return f's = semel.connect("sqlite:///semel.db")\n\n{protected}'


class Stage:
    """Nowhere: for --json, which wants only what comes of it."""

    def open(self) -> None:
        """Say what is going to happen."""

    @contextmanager
    def act(self, number: int, title: str, line: str) -> Iterator[None]:
        """Show one act."""
        yield

    def say(self, who: str, text: str, style: str = "") -> None:
        """The next thing that somebody does."""

    def gauge(self, who: str, share: float, figure: str) -> None:
        """How much of something there is just now."""

    def settle(self, who: str, share: float, figure: str) -> None:
        """How much there is of it in the end."""

    def breathe(self) -> None:
        """Give the viewer time to read."""

    def close(self, verdicts: Sequence[Verdict], seconds: float, hint: str) -> None:
        """Show the table of promises."""


class PlainStage(Stage):
    """Lines without any redrawing, for pipes and CI."""

    def open(self) -> None:
        """Print the code."""
        print("semel demo: a ledger for things that must happen once. Every worker runs this:\n")
        print(textwrap.indent(code(), "    "), flush=True)

    @contextmanager
    def act(self, number: int, title: str, line: str) -> Iterator[None]:
        """Print the heading."""
        print(f"\n{number}. {title}\n   {line}", flush=True)
        yield

    def say(self, who: str, text: str, style: str = "") -> None:
        """Print a line."""
        print(f"   {who:<{WHO}}  {text}", flush=True)

    def settle(self, who: str, share: float, figure: str) -> None:
        """Print the figure."""
        self.say(who, figure)

    def close(self, verdicts: Sequence[Verdict], seconds: float, hint: str) -> None:
        """Print the promises, one a line."""
        print("\nEach promise, and what was seen of it in this run:\n")
        width = max((len(verdict.promise) for verdict in verdicts), default=0)
        for verdict in verdicts:
            print(f"{word(verdict):<6}  {verdict.promise:<{width}}  {verdict.seen}")
        print(f"\n{summary(verdicts, seconds)}\n{hint}", flush=True)


class LiveStage(Stage):
    """A terminal: each act is redrawn while it runs, and stays when it is over."""

    def __init__(self, console: Console, breath: float = BREATH) -> None:
        self._console = console
        self._breath = breath
        self._lines: list[tuple[str, Text]] = []
        self._gauges: dict[str, Text] = {}

    def open(self) -> None:
        """Show the code in a panel."""
        listing = Syntax(code(), "python", theme="ansi_dark", background_color="default")
        title = "[bold]semel[/bold]  a ledger for things that must happen once"
        self._console.print()
        self._console.print(
            Panel(listing, title=title, title_align="left", border_style="dim", padding=(1, 2))
        )
        self.breathe()

    @contextmanager
    def act(self, number: int, title: str, line: str) -> Iterator[None]:
        """Draw the act again and again while it runs."""
        self._lines, self._gauges = [], {}
        heading = Text.assemble((f"\n {number}  ", "cyan"), (title, "bold"))
        self._console.print(heading, Padding(Text(line, "dim"), (0, 0, 1, 4)))
        with Live(get_renderable=self._draw, console=self._console, refresh_per_second=20):
            yield
        self.breathe()

    def say(self, who: str, text: str, style: str = "") -> None:
        """Add a line."""
        self._lines.append((who, Text(text, style)))

    def gauge(self, who: str, share: float, figure: str) -> None:
        """Redraw a bar where it stands; a new one is a new line."""
        if who not in self._gauges:
            self._gauges[who] = Text()
            self._lines.append((who, self._gauges[who]))
        # What there is of a little is seen too.
        filled = round(share * BAR) or int(share > 0)
        bar = Text.assemble(("\u2501" * filled, "cyan"), ("\u00b7" * (BAR - filled), "dim"), f"  {figure}")
        self._gauges[who].plain = ""
        self._gauges[who].append(bar)

    settle = gauge

    def breathe(self) -> None:
        """Wait a moment."""
        Clock().wait(threading.Event(), self._breath)

    def close(self, verdicts: Sequence[Verdict], seconds: float, hint: str) -> None:
        """Show the promises as a table."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for name in ("promise", "seen in this run", ""):
            table.add_column(name)
        for verdict in verdicts:
            style = "green" if verdict.kept else "bold red"
            table.add_row(verdict.promise, verdict.seen, Text(word(verdict), style))
        style = "bold red" if exit_code(verdicts) else "bold green"
        self._console.print()
        self._console.print(Padding(table, (0, 0, 1, 1)))
        self._console.print(Text(f" {summary(verdicts, seconds)}", style))
        self._console.print(Text(f" {hint}", "dim"), soft_wrap=True)

    def _draw(self) -> Padding:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="cyan", min_width=WHO, no_wrap=True)
        grid.add_column()
        for who, text in list(self._lines):
            grid.add_row(who, text)
        return Padding(grid, (0, 0, 0, 4))


def word(verdict: Verdict) -> str:
    """A verdict in one word."""
    return "kept" if verdict.kept else "BROKEN"


def summary(verdicts: Sequence[Verdict], seconds: float) -> str:
    """All verdicts in one line."""
    kept = sum(verdict.kept for verdict in verdicts)
    return f"{kept} of {len(verdicts)} promises kept, in {seconds:.1f} s"
