"""The acts of the demo. Each shows one situation and gives back what was counted in it."""

import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import semel
from semel.cli.demo_crew import Crew, StalledError, Told, Worker
from semel.cli.demo_stage import Stage
from semel.cli.demo_verdict import Facts, Herd, Later, Takeover, Zombie, counted

PROCESSES = 5
THREADS = 10
TASKS = 50
# Long enough to be watched, short enough not to bore.
LEASE = 1.5
CENTS = 4200


class Show:
    """What every act needs: the stage, the workers, the ledger and the bank's log."""

    def __init__(self, stage: Stage, crew: Crew, ledger: semel.Ledger, database: Path, log: Path) -> None:
        self.stage = stage
        self.crew = crew
        self.ledger = ledger
        self.database = database
        self._log = log
        # A database that is kept may hold the orders of an earlier demo.
        self._run = secrets.token_hex(2)

    def order(self, number: int) -> str:
        """An order that no other act, and no earlier demo, has."""
        return f"{self._run}-{number}"

    def record(self, order: str) -> semel.Record:
        """What the ledger knows about an order."""
        record = self.ledger.get(semel.Key("charge", order))
        if record is None:
            raise StalledError(f"the ledger has no record of {order}")
        return record

    def result(self, order: str) -> str:
        """The result that the ledger holds for an order."""
        record = self.record(order)
        if record.status is not semel.Status.COMPLETED:
            raise StalledError(f"{record.key} is {record.status.value}, not COMPLETED")
        return str(self.ledger.result(record))

    def requests(self, order: str) -> list[dict[str, Any]]:
        """What the bank was asked for an order: each entry is one execution."""
        entries = map(json.loads, self._log.read_text().splitlines())
        return [entry for entry in entries if entry["order"] == order]


class Act(msgspec.Struct, frozen=True):
    """One act: its name, what it shows, and how."""

    title: str
    line: str
    play: Callable[[Show], Facts]


def from_threads(show: Show) -> Facts:
    """Equal calls from the threads of several processes."""
    names = [f"process {number + 1}" for number in range(PROCESSES)]
    workers = show.crew.hire_many(names, show.order(1), "--calls", str(THREADS))
    return _herd(show, workers, "threads", show.order(1), PROCESSES * THREADS)


def from_tasks(show: Show) -> Facts:
    """Equal calls from the tasks of one event loop."""
    worker = show.crew.hire("event loop", show.order(5), "--calls", str(TASKS), "--tasks")
    return _herd(show, [worker], "tasks", show.order(5), TASKS)


def _herd(show: Show, workers: list[Worker], caller: str, order: str, asked: int) -> Herd:
    tally = Tally(show.stage, workers, asked)
    for worker in workers:
        worker.go()
    # The bank answers nobody until every call has either claimed the key or found it taken.
    show.crew.until(tally.all_called, "every call", tally.draw)
    tally.draw()
    show.stage.breathe()
    for worker in workers:
        for _ in worker.heard("at the bank"):
            worker.go()
    show.crew.until(tally.all_done, "every answer", tally.draw)
    answers = [told.answer for worker in workers for told in worker.heard("answer")]
    herd = Herd(
        caller=caller,
        asked=asked,
        processes=len(workers),
        busy=tally.count("busy"),
        executions=len(show.requests(order)),
        answers=len(answers),
        distinct=len(set(answers)),
    )
    tally.finish(herd, answers[0] if answers else "none")
    return herd


class Tally:
    """How far a herd of calls has come, as gauges."""

    def __init__(self, stage: Stage, workers: list[Worker], asked: int) -> None:
        self._stage = stage
        self._workers = workers
        self._asked = asked

    def count(self, *kinds: str) -> int:
        """How often the workers told of these."""
        return sum(len(worker.heard(kind)) for worker in self._workers for kind in kinds)

    def all_called(self) -> bool:
        """Whether every call has claimed the key or found it taken, and the claimants are at the bank."""
        called = self.count("claimed", "busy", "replayed", "refused")
        return called >= self._asked and self.count("at the bank") >= self.count("claimed")

    def all_done(self) -> bool:
        """Whether every call has come back."""
        return self.count("answer", "refused") >= self._asked

    def draw(self) -> None:
        """Show the counts as they are now."""
        for label, kind in (
            ("at the bank", "at the bank"),
            ("found it busy", "busy"),
            ("answered", "answer"),
        ):
            self._stage.gauge(label, self.count(kind) / self._asked, str(self.count(kind)))

    def finish(self, herd: Herd, answer: str) -> None:
        """Show what was counted in the end."""
        asked, settle = self._asked, self._stage.settle
        alike = f"all with {answer}" if herd.distinct == 1 else f"with {herd.distinct} different answers"
        settle("at the bank", herd.executions / asked, f"{herd.executions} of {asked} calls")
        settle("found it busy", herd.busy / asked, f"{herd.busy}, and waited")
        settle("answered", herd.answers / asked, f"{herd.answers}, {alike}")


def killed(show: Show) -> Facts:
    """A worker dies with a key in its hands."""
    order = show.order(2)
    first, second = _pair(show, order)
    first.kill()
    at = time.time()
    show.stage.say(first.name, "is killed with -9", "yellow")
    lease_until = _take_over(show, order, second)
    requests = show.requests(order)
    keys = {request["key"] for request in requests}
    show.stage.say(
        "the bank", f"was asked {len(requests)} times, under {counted(len(keys), 'idempotency key')}"
    )
    return Takeover(
        attempt=show.record(order).attempt,
        waited=requests[-1]["at"] - at,
        after_lease=requests[-1]["at"] - lease_until,
        requests=len(requests),
        keys=len(keys),
    )


def zombie(show: Show) -> Facts:
    """A worker is frozen past its lease, and wakes up when the work is done."""
    order = show.order(3)
    first, second = _pair(show, order)
    first.freeze(show.database)
    show.stage.say(first.name, "is frozen with SIGSTOP", "yellow")
    _take_over(show, order, second)
    show.stage.breathe()
    first.thaw()
    first.go()
    offered = first.heard("at the bank")[0].receipt
    show.stage.say(first.name, f"wakes, and wants to store {offered}")
    refused = _outcome(show, first).error
    show.stage.say(first.name, _refusal(refused), "yellow")
    taken, stored = second.heard("answer")[0].answer, show.result(order)
    show.stage.say("the ledger", f"holds {stored}")
    return Zombie(refused=refused, offered=offered, taken=taken, stored=stored)


def _pair(show: Show, order: str) -> tuple[Worker, Worker]:
    """A worker that is at the bank, and one that stands by."""
    first, second = show.crew.hire_many(["worker A", "worker B"], order, "--lease", str(LEASE))
    first.go()
    show.crew.hear(first, "at the bank")
    attempt = first.heard("claimed")[0].attempt
    show.stage.say(first.name, f"pid {first.pid}, attempt {attempt}, is at the bank")
    show.stage.breathe()
    return first, second


def _take_over(show: Show, order: str, worker: Worker) -> float:
    """Let a worker call, wait for the lease of the one before, and finish; when that lease ended."""
    lease_until = show.record(order).lease_until

    def draw() -> None:
        left = max(0.0, lease_until - time.time())
        show.stage.gauge("lease of A", left / LEASE, f"{left:.1f} s left")

    show.stage.say(worker.name, f"pid {worker.pid}, makes the same call, and has to wait")
    worker.go()
    show.crew.hear(worker, "at the bank", draw)
    show.stage.settle("lease of A", 0, "lapsed")
    show.stage.say(worker.name, f"takes over: attempt {show.crew.hear(worker, 'taken_over').attempt}")
    show.stage.breathe()
    worker.go()
    show.stage.say(worker.name, f"is done: {show.crew.hear(worker, 'answer').answer}")
    return lease_until


def later(show: Show) -> Facts:
    """The call of the first act again, and then with another amount."""
    order = show.order(1)
    stored = show.result(order)
    replay, replay_executions = _call_again(show, "same call", order, CENTS)
    show.stage.say("same call", f"gets the stored answer: {replay.answer}" if replay.answer else replay.error)
    show.stage.breathe()
    changed, changed_executions = _call_again(show, "other amount", order, 2 * CENTS)
    show.stage.say("other amount", _refusal(changed.error), "yellow")
    return Later(
        stored=stored,
        answer=replay.answer,
        replay_executions=replay_executions,
        refused=changed.error,
        changed_executions=changed_executions,
    )


def _call_again(show: Show, name: str, order: str, cents: int) -> tuple[Told, int]:
    """One more call in a new process: what came of it, and how many executions."""
    before = len(show.requests(order))
    worker = show.crew.hire(name, order, "--cents", str(cents))
    show.stage.say(name, f'pid {worker.pid}, charge("{order}", {cents})')
    worker.go()
    # The second sign is for the bank. It should not be asked; if it is, that is to be counted, not to hang.
    worker.go()
    outcome = _outcome(show, worker)
    return outcome, len(show.requests(order)) - before


def _outcome(show: Show, worker: Worker) -> Told:
    """What came of a worker's call."""

    def outcomes() -> list[Told]:
        return worker.heard("answer") + worker.heard("refused")

    show.crew.until(lambda: bool(outcomes()) or worker.silent, f"{worker.name}'s call")
    if not outcomes():
        raise StalledError(f"{worker.name} ended without an answer: {worker.last_words()}")
    return outcomes()[0]


def _refusal(error: str) -> str:
    return f"is refused: {error}" if error else "was let in"


ACTS = {
    "threads": Act(
        "Many calls at once",
        f"{PROCESSES} processes with {THREADS} threads each make one and the same call.",
        from_threads,
    ),
    "killed": Act(
        "Killed half-way",
        "A worker is killed at work. When its lease has lapsed, another takes over.",
        killed,
    ),
    "zombie": Act(
        "Back from the dead",
        "A worker is frozen, outsleeps its lease, and wakes when it is too late.",
        zombie,
    ),
    "later": Act(
        "The day after",
        "A new process makes the first call again, and then with another amount.",
        later,
    ),
    "tasks": Act(
        "The same with async def",
        f"{TASKS} tasks of one event loop make one and the same call.",
        from_tasks,
    ),
}
