"""`semel demo`: shows what semel promises, by killing real processes."""

import inspect
import json
import secrets
import signal
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console

import semel
from semel.cli import demo_worker
from semel.cli.demo_worker import StalledError, WorkerOptions, WorkerProcess

# What was counted in one scenario, by name.
ScenarioFacts: TypeAlias = dict[str, Any]


class Promise(msgspec.Struct, frozen=True):
    """One promise, what was seen of it in this run, and whether it was kept."""

    promise: str
    seen: str
    kept: bool


# A promise, the facts that are shown for it, and what has to hold for them.
PromiseRule: TypeAlias = tuple[str, str, Callable[[ScenarioFacts], bool]]


def _one_of_many(caller: str) -> list[PromiseRule]:
    return [
        (f"Many {caller}, one execution", "asked executions", lambda f: f["executions"] == 1),
        (
            f"All {caller} get the same answer",
            "answers distinct",
            lambda f: f["answers"] == f["asked"] and f["distinct"] == 1,
        ),
    ]


RULES: Final[dict[str, list[PromiseRule]]] = {
    "threads": _one_of_many("threads"),
    "killed": [
        ("A killed worker is replaced", "attempt waited", lambda f: f["attempt"] == 2),
        ("But not while its lease runs", "after_lease", lambda f: f["after_lease"] >= 0),
        ("Every attempt has the same key", "requests keys", lambda f: f["requests"] == 2 and f["keys"] == 1),
    ],
    "zombie": [
        ("A zombie's completion is refused", "refused", lambda f: f["refused"] == "ClaimLost"),
        (
            "And its result is not stored",
            "offered stored",
            lambda f: f["stored"] == f["taken"] != f["offered"],
        ),
    ],
    "later": [
        (
            "A later call replays the answer",
            "answer executions",
            lambda f: f["answer"] == f["stored"] and f["executions"] == 0,
        ),
    ],
    "changed": [
        (
            "A changed payload is refused",
            "refused executions",
            lambda f: f["refused"] == "PayloadChanged" and f["executions"] == 0,
        ),
    ],
    "tasks": _one_of_many("tasks"),
}


def judge(scenario: str, facts: ScenarioFacts) -> list[Promise]:
    """The promises of one scenario; all are broken where it did not come to its end."""
    if "stalled" in facts:
        return [Promise(promise, facts["stalled"], kept=False) for promise, _, _ in RULES[scenario]]
    return [Promise(promise, _seen(names, facts), kept(facts)) for promise, names, kept in RULES[scenario]]


def _seen(names: str, facts: ScenarioFacts) -> str:
    shown = {name: f"{fact:.3f} s" if isinstance(fact, float) else fact for name, fact in facts.items()}
    return ", ".join(f"{name.replace('_', ' ')}: {shown[name]}" for name in names.split())


def demo(
    database: Annotated[
        Path | None, typer.Option(help="Keep the ledger in this file, to inspect it afterwards.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the final table, as JSON.")] = False,
) -> None:
    """Watch semel keep its promises, in a few seconds.

    Worker processes share a ledger in an SQLite file. They call at the same moment, are killed, are frozen
    and come back. Every figure is counted in that run. The exit code is 1 if a promise was broken.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True, quiet=as_json)
    with tempfile.TemporaryDirectory(prefix="semel-demo-") as folder:
        facts = run(console, Path(folder), (database or Path(folder, "semel.db")).absolute())
    promises = [promise for scenario in facts for promise in judge(scenario, facts[scenario])]
    kept = bool(promises) and all(promise.kept for promise in promises)
    if as_json:
        table = {"version": version("semel"), "kept": kept, "promises": promises, "facts": facts}
        typer.echo(json.dumps(msgspec.to_builtins(table), indent=2))
    print_promises(console, promises)
    if database is not None:
        console.print(f"Look at it: semel ls --url sqlite:///{quote(str(database))}")
    raise typer.Exit(0 if kept else 1)


def _unwind(number: int, _frame: FrameType | None) -> None:
    """Let a signal that asks to end unwind the stack, so that no worker and no folder stays behind."""
    raise typer.Exit(128 + number)


def print_promises(console: Console, promises: list[Promise]) -> None:
    """Print every promise with what was seen of it, one a line."""
    console.print("\nEach promise, and what was seen of it in this run:\n")
    for promise in promises:
        word, style = ("kept", "green") if promise.kept else ("BROKEN", "bold red")
        console.print(f"{word:<6}  {promise.promise:<32}  {promise.seen}", style=style)
    kept = sum(promise.kept for promise in promises)
    console.print(f"\n{kept} of {len(promises)} promises kept", style="bold")


@dataclass
class Demo:
    """What every scenario needs: worker processes, the ledger, the bank's log, and somewhere to print."""

    console: Console
    ledger: semel.Ledger
    url: str
    log: Path
    workers: list[WorkerProcess] = field(default_factory=list)
    # A database that is kept may hold the orders of an earlier demo.
    id: str = field(default_factory=lambda: secrets.token_hex(2))

    def say(self, who: str, text: str, style: str = "") -> None:
        """Print the next thing that happens."""
        self.console.print(f"   {who:<13}  {text}", style=style)

    def start(self, *names: str, order: str, **options: Any) -> list[WorkerProcess]:
        """Start workers; they are ready when this returns, and wait for the sign to go."""
        first = len(self.workers)
        for name in names:
            given = WorkerOptions(url=self.url, log=str(self.log), order=f"{self.id}-{order}", **options)
            self.workers.append(WorkerProcess(name, given))
        for worker in self.workers[first:]:
            worker.wait_for("ready")
        return self.workers[first:]

    def record(self, order: str) -> semel.Record:
        """What the ledger knows about an order."""
        record = self.ledger.get(semel.Key("charge", f"{self.id}-{order}"))
        if record is None:
            raise StalledError(f"the ledger has no record of {order}")
        return record

    def result(self, order: str) -> str:
        """The result that the ledger holds for an order."""
        return str(self.ledger.result(self.record(order)))

    def requests(self, order: str) -> list[dict[str, Any]]:
        """What the bank was asked for an order: each entry is one execution."""
        entries = map(json.loads, self.log.read_text().splitlines())
        return [entry for entry in entries if entry["order"] == f"{self.id}-{order}"]


def run(console: Console, folder: Path, database: Path) -> dict[str, ScenarioFacts]:
    """Play every scenario; what was counted in each."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _unwind)
    console.print("semel demo: a ledger for things that must happen once. Every worker runs this:\n")
    console.print(textwrap.indent(inspect.getsource(demo_worker.protected), "    ").rstrip())
    url, log = f"sqlite:///{quote(str(database))}", folder / "bank.log"
    log.touch()
    with semel.connect(url) as s:
        demo = Demo(console, s.ledger, url, log)
        scenarios = (threads, killed, zombie, later, changed, tasks)
        return {each.__name__: _played(demo, each) for each in scenarios}


def _played(demo: Demo, scenario: Callable[[Demo], ScenarioFacts]) -> ScenarioFacts:
    demo.console.print(f"\n{inspect.getdoc(scenario)}", style="bold")
    try:
        return scenario(demo)
    except (StalledError, semel.SemelError) as error:
        return {"stalled": f"did not finish: {error}"}
    finally:
        while demo.workers:  # one is off the list only when it is gone
            demo.workers[-1].end()
            demo.workers.pop()


def threads(demo: Demo) -> ScenarioFacts:
    """Five processes with ten threads each make one and the same call at once."""
    names = [f"process {number}" for number in range(1, 6)]
    return _call_at_once(demo, names, "threads", calls=10)


def tasks(demo: Demo) -> ScenarioFacts:
    """Fifty tasks of one event loop make one and the same call at once."""
    return _call_at_once(demo, ["event loop"], "tasks", calls=50, tasks=True)


def _call_at_once(demo: Demo, names: list[str], order: str, calls: int, tasks: bool = False) -> ScenarioFacts:
    workers = demo.start(*names, order=order, calls=calls, tasks=tasks)
    for worker in workers:
        worker.go()
    # The bank answers nobody until every call has either claimed the key or found it taken.
    for worker in workers:
        worker.wait_for("claimed", "busy", "replayed", "refused", count=calls)
        worker.wait_for("at the bank", count=len(worker.heard("claimed")))
    for worker in workers:
        for _ in worker.heard("at the bank"):
            worker.go()
    for worker in workers:
        worker.wait_for("answer", "refused", count=calls)
    answers = [message.answer for worker in workers for message in worker.heard("answer")]
    facts = {
        "asked": calls * len(workers),
        "processes": len(workers),
        "busy": sum(len(worker.heard("busy")) for worker in workers),
        "executions": len(demo.requests(order)),
        "answers": len(answers),
        "distinct": len(set(answers)),
    }
    demo.say("at the bank", f"{facts['executions']} of {facts['asked']} calls")
    demo.say("found it busy", f"{facts['busy']}, and waited")
    demo.say("answered", f"{len(answers)}, with {' and '.join(sorted(set(answers)))}")
    return facts


def killed(demo: Demo) -> ScenarioFacts:
    """A worker is killed at work, and another takes over when its lease has lapsed."""
    order = "killed"
    first, second = _start_pair(demo, order)
    first.end()
    at = time.time()
    demo.say(first.name, "is killed with -9", "yellow")
    lease_until = _take_over(demo, order, second)
    requests = demo.requests(order)
    keys = {request["key"] for request in requests}
    demo.say("the bank", f"was asked {len(requests)} times; different idempotency keys: {len(keys)}")
    return {
        "attempt": demo.record(order).attempt,
        "waited": requests[-1]["at"] - at,
        "after_lease": requests[-1]["at"] - lease_until,
        "requests": len(requests),
        "keys": len(keys),
    }


def zombie(demo: Demo) -> ScenarioFacts:
    """A worker is frozen past its lease, and wakes when another has done the work."""
    order = "zombie"
    first, second = _start_pair(demo, order)
    # It has no heartbeat: frozen in the middle of a write, it would keep SQLite's one lock from all others.
    first.send_signal(signal.SIGSTOP)
    demo.say(first.name, "is frozen with SIGSTOP", "yellow")
    _take_over(demo, order, second)
    first.send_signal(signal.SIGCONT)
    first.go()
    offered = first.heard("at the bank")[0].answer
    demo.say(first.name, f"wakes, and wants to store {offered}")
    refused = first.wait_for("answer", "refused")[0].error
    demo.say(first.name, f"gets {refused or 'no error'}", "yellow")
    taken, stored = second.heard("answer")[0].answer, demo.result(order)
    demo.say("the ledger", f"holds {stored}")
    return {"refused": refused, "offered": offered, "taken": taken, "stored": stored}


def _start_pair(demo: Demo, order: str) -> list[WorkerProcess]:
    """A worker that is at the bank, and one that stands by."""
    first, second = demo.start("worker A", "worker B", order=order, lease=1.5)
    first.go()
    first.wait_for("at the bank")
    demo.say(first.name, f"pid {first.pid}, is at the bank, with a lease of 1.5 s")
    return [first, second]


def _take_over(demo: Demo, order: str, worker: WorkerProcess) -> float:
    """Let a worker call, wait for the lease of the one before, and finish; when that lease ended."""
    lease_until = demo.record(order).lease_until
    demo.say(worker.name, f"pid {worker.pid}, makes the same call, and has to wait")
    worker.go()
    worker.wait_for("at the bank")
    taken_over = worker.wait_for("taken_over")[0]
    demo.say(worker.name, f"takes over when the lease has lapsed: attempt {taken_over.attempt}")
    worker.go()
    demo.say(worker.name, f"is done: {worker.wait_for('answer')[0].answer}")
    return lease_until


def later(demo: Demo) -> ScenarioFacts:
    """A new process makes the first call again."""
    return _call_again(demo, "threads", 4200)


def changed(demo: Demo) -> ScenarioFacts:
    """A new process makes the first call again, with another amount."""
    return _call_again(demo, "threads", 8400)


def _call_again(demo: Demo, order: str, cents: int) -> ScenarioFacts:
    stored, before = demo.result(order), len(demo.requests(order))
    [worker] = demo.start("new process", order=order, cents=cents)
    worker.go()
    # The second sign is for the bank. It should not be asked; if it is, that is to be counted, not to hang.
    worker.go()
    outcome = worker.wait_for("answer", "refused")[0]
    executions = len(demo.requests(order)) - before
    demo.say(worker.name, f"pid {worker.pid}, gets {outcome.answer or outcome.error}")
    return {"stored": stored, "answer": outcome.answer, "refused": outcome.error, "executions": executions}
