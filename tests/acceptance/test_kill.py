"""Hundreds of times `kill -9`: nothing that was acknowledged is lost, and nothing is accepted twice.

And twenty times within a transaction of the caller's: his row and his completion are both there, or neither.
"""

import json
import queue
import random
import sqlite3
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

import semel
from semel.core.lifecycle import Status
from tests.acceptance.kill_worker import sell
from tests.amounts import ALL, amount
from tests.places import open_place

WORKER = Path(__file__).with_name("kill_worker.py")
STORES = ("sqlite", "postgres", "redis", "dynoxide") if ALL else ("sqlite",)
KILLS = amount(200, 40, 1_000)
AT_WORK = 4
# Started before they are needed, as a process takes longer to start than to be killed.
SPARE = 3
# Few enough for the workers to be in each other's way.
WINDOW = 10
# A worker is killed after one to so many lines: early and late in a claim, an effect, a completion, a replay.
LIFE = 12
# So that none of these is missed by chance, some stop before their effect, or after it, to be killed there.
STOPS = ("begun", "", "happened", "")


class Worker:
    """A process, and the thread that passes on its lines."""

    def __init__(self, url, folder, lines, *more):
        command = [sys.executable, str(WORKER), url, *map(str, more)]
        with (folder / "complaints.txt").open("a") as complaints:
            self.process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=complaints, text=True)
        self.life = float("inf")
        self.stop_at = ""
        self.lines = lines
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self):
        for line in self.process.stdout:
            self.lines.put((self, json.loads(line)))
        self.process.wait()
        self.lines.put((self, ["gone"]))

    def assign(self, *window):
        self.process.stdin.write(json.dumps(window) + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.listener.join()
        self.process.stdout.close()


class Parent:
    """Keeps workers at work, kills them, and writes down what they were told."""

    def __init__(self, place, folder):
        self.place, self.folder = place, folder
        self.effects = folder / "effects.txt"
        self.chance = random.Random(1)
        self.lines: queue.SimpleQueue = queue.SimpleQueue()
        self.told = defaultdict(set)
        self.kills = 0
        self.first = 0
        self.waiting: list[Worker] = []
        self.alive: set[Worker] = set()
        self.workers: list[Worker] = []

    def run(self):
        for _ in range(AT_WORK + SPARE):
            self._start()
        at_work: set[Worker] = set()
        while self.kills < KILLS:
            while len(at_work) < AT_WORK and self.waiting:
                at_work.add(self._send(self.waiting.pop()))
            worker, (what, *facts) = self.lines.get()
            self._hear(worker, what, facts)
            if what in ("idle", "gone"):
                at_work.discard(worker)
            elif worker in at_work:
                worker.life -= 1
                if worker.life <= 0 or what == worker.stop_at:
                    at_work.discard(worker)
                    self._kill(worker)

    def finish(self):
        """Let those who are left do every job, in peace, and go."""
        self.everything = range(self.first + WINDOW)
        for worker in [worker for worker in self.alive if worker.stop_at]:
            self._kill(worker)
        left = set(self.alive)
        self.alive.clear()
        for worker in left:
            worker.assign(0, self.first + WINDOW, "")
            worker.process.stdin.close()
        while left:
            worker, (what, *facts) = self.lines.get()
            self._hear(worker, what, facts)
            if what == "gone" and worker in left:
                assert worker.process.returncode == 0
                left.discard(worker)

    def _start(self):
        url, env = self.place.url(), self.place.env
        worker = Worker(url, self.folder, self.lines, env, self.effects, self.chance.random())
        self.workers.append(worker)
        self.alive.add(worker)

    def _send(self, worker):
        while all(n in self.told for n in range(self.first, self.first + WINDOW)):
            self.first += WINDOW
        worker.life = min(worker.life, self.chance.randint(1, LIFE))
        worker.stop_at = STOPS[self.kills % len(STOPS)]
        worker.assign(self.first, self.first + WINDOW, worker.stop_at)
        return worker

    def _kill(self, worker):
        assert worker.process.poll() is None
        worker.process.kill()
        self.kills += 1
        self.alive.discard(worker)
        self._start()

    def _hear(self, worker, what, facts):
        if what == "told":
            n, value = facts
            self.told[n].add(value)
        elif what == "idle" and worker in self.alive:
            self.waiting.append(worker)
        elif what == "gone":
            assert worker not in self.alive, (self.folder / "complaints.txt").read_text()


@pytest.fixture(scope="module", params=STORES)
def place(request, tmp_path_factory):
    return open_place(request.param, request, tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def after(place, tmp_path_factory):
    parent = Parent(place, tmp_path_factory.mktemp("kill"))
    try:
        parent.run()
        parent.finish()
    finally:
        for worker in parent.workers:
            worker.end()
    return parent


@pytest.fixture(scope="module")
def effects(after):
    """What happened: the attempt and the value of every line, by key."""
    happened = defaultdict(list)
    for line in after.effects.read_text().splitlines():
        n, attempt, value = json.loads(line)
        happened[n].append((attempt, value))
    return happened


@pytest.fixture(scope="module")
def kept(after):
    """What the ledger has in the end: the record and the result of every key."""
    with semel.connect(after.place.url(), env=after.place.env) as s:
        records = {n: s.ledger.get(f"job:{n}") for n in after.everything}
        return {n: (record, record and s.ledger.result(record)) for n, record in records.items()}


@pytest.mark.proof("kills")
def test_as_many_processes_were_killed_as_should_be(after, tried):
    assert after.kills >= KILLS
    tried(after.kills, seed="1")


@pytest.mark.proof("kills")
def test_every_key_is_completed(kept):
    assert {record.status for record, _ in kept.values()} == {Status.COMPLETED}


@pytest.mark.proof("kills")
def test_what_was_acknowledged_is_what_is_kept(after, kept):
    assert after.told == {n: {value} for n, (_, value) in kept.items()}


@pytest.mark.proof("kills")
def test_what_is_kept_did_happen_at_the_attempt_that_the_record_names(effects, kept):
    for n, (record, value) in kept.items():
        assert (record.attempt, value) in effects[n]


@pytest.mark.proof("kills")
def test_no_attempt_happened_twice(effects):
    for happened in effects.values():
        attempts = [attempt for attempt, _ in happened]
        assert len(attempts) == len(set(attempts))


def test_the_kills_came_at_moments_that_matter(effects, kept):
    """Some before the effect, some between the effect and its record: there are takeovers of both kinds."""
    taken_over = {n: record.attempt for n, (record, _) in kept.items() if record.attempt > 1}
    assert any(len(effects[n]) < attempt for n, attempt in taken_over.items())
    assert any(len(effects[n]) > 1 for n in taken_over)


def test_the_file_is_sound(after):
    if after.place.name != "sqlite":
        pytest.skip("this store has no file of its own")
    with closing(sqlite3.connect(after.place.url().removeprefix("sqlite:///"))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# Within a transaction of the caller's

# How far it gets before it is killed, and how many rows there may be then: only a commit makes one.
STEPS = {"begun": {0}, "row": {0}, "completed": {0}, "committing": {0, 1}, "committed": {1}}
ORDERS = 20


def kill_at(step, worker, n):
    """Let it sell, word by word, and kill it there."""
    try:
        worker.assign(n)
        for reached in ("begun", "row", "completed", "committed"):
            assert worker.lines.get()[1] == [reached]
            if reached == step:
                return
            worker.assign()
            if (reached, step) == ("completed", "committing"):
                return
    finally:
        worker.end()


def rows_and_results(s, connection, n):
    """The rows of an order, and the result of its record if that is completed."""
    rows = [value for (value,) in connection.execute("SELECT value FROM orders WHERE n = ?", (n,))]
    record = s.ledger.get(f"order:{n}")
    return rows, [s.ledger.result(record)] if record.status is Status.COMPLETED else []


def test_a_row_and_its_completion_are_both_there_or_neither(tmp_path):
    """Wherever the caller was killed in his transaction; and whoever comes next sells each order once."""
    path = tmp_path / "semel.db"
    with (
        semel.connect(f"sqlite:///{path}", env="kill") as s,
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
    ):
        connection.execute("CREATE TABLE orders (n, value)")
        for n in range(ORDERS):
            step, expected = list(STEPS.items())[n % len(STEPS)]
            kill_at(step, Worker(f"sqlite:///{path}", tmp_path, queue.SimpleQueue()), n)
            rows, results = rows_and_results(s, connection, n)
            assert rows == results
            assert len(rows) in expected
        for n in range(ORDERS):
            sell(s, connection, n)
            rows, results = rows_and_results(s, connection, n)
            assert rows == results
            assert len(rows) == 1
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
