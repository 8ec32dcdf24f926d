"""A process is killed at every point of its work in turn: all of a transaction is there, or none of it."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import semel
from semel.testing import FakeClock, FaultProxy
from tests.acceptance.crash_worker import check
from tests.places import CREDENTIALS, open_place

WORKER = Path(__file__).with_name("crash_worker.py")
# Nothing here takes a second; this is for a machine that stands still.
PATIENCE = 60
# More than there are points in the work: the last one is found by its end.
POINTS = 100_000
# At every statement of SQL; and within them at one instruction of so many, as there are thousands.
STEPS = {"statement": 1, "instruction": 29}


class Worker:
    """A process whose children are killed, and the thread that hears of them."""

    def __init__(self, complaints):
        environment = os.environ | CREDENTIALS
        with complaints.open("a") as file:
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER)], stdin=-1, stdout=-1, stderr=file, text=True, env=environment
            )
        self._lines: queue.SimpleQueue = queue.SimpleQueue()
        self.dead = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        assert self._hear() == ["ready"]

    def _listen(self):
        for line in self._process.stdout:
            words = json.loads(line)
            if words[0] == "ended":
                self.dead.set()
            self._lines.put(words)

    def _hear(self):
        return self._lines.get(timeout=PATIENCE)

    def _tell(self, words):
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def order(self, **order):
        """Have a child made for this; it waits to be let go."""
        self.dead.clear()
        self._tell(order)
        word, pid = self._hear()
        assert word == "begins"
        return pid

    def go(self):
        """Let it go, and hear how it ended."""
        self._tell("go")
        word, code = self._hear()
        assert word == "ended"
        return code

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0
        self._listener.join()
        self._process.stdout.close()


class Killer(FaultProxy):
    """A proxy that kills a process when a certain request of its comes by, or the answer to it."""

    def __init__(self, host, port, *, clock=None):
        self.passed = self.at = 0
        self.how = ""
        self.kill = lambda: None
        super().__init__(host, port, clock=clock)

    def aim(self, kill, how, at):
        """Kill at the request of this number: before it is passed on, after that, or when it is answered."""
        self.passed, self.at, self.how, self.kill = 0, at, how, kill

    def _dooms(self, request):
        with self._lock:
            self.passed += 1
            mine = self.passed == self.at
        if not mine or self.how == "answer":
            return mine
        self.kill()
        if self.how == "before":
            self.cut()  # so that it cannot be passed on
        return False

    def _drop(self):
        self.kill()
        super()._drop()

    def settle(self):
        """Wait until the server has done what it was asked, and hung up."""
        for link in self._open_links():
            link.thread.join(PATIENCE)
        assert not self._open_links()


class Scene:
    """A store, a worker to be killed, and somebody who looks what became of it and then does it again."""

    def __init__(self, place, worker):
        self.place, self.worker = place, worker
        self.clock = FakeClock()
        self.s = semel.Semel(place.open(self.clock), env=place.env, clock=self.clock)
        self.runs: Counter = Counter()

    def run(self, name, url, doom=()):
        """The pid of a child that is about to do it."""
        return self.worker.order(run=name, url=url, env=self.place.env, now=self.clock.now(), doom=doom)

    def killer(self, pid):
        def kill():
            os.kill(pid, signal.SIGKILL)
            assert self.worker.dead.wait(PATIENCE)

        return kill

    def check(self, name):
        """All or none of it is there, and all of it once it has been done again."""
        self.runs[check(self.s, self.clock, name)] += 1

    def close(self):
        self.s.close()


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    complaints = tmp_path_factory.mktemp("crash") / "complaints.txt"
    worker = Worker(complaints)
    yield worker
    worker.close()
    assert complaints.read_text() == ""


@pytest.fixture
def scene(request, tmp_path, worker):
    scene = Scene(open_place(request.param, request, tmp_path), worker)
    yield scene
    scene.close()


def check_that_it_was_worth_it(scene, at_least):
    """Some were killed before the first write, some between the two, and some after the second."""
    assert set(scene.runs) == {(False, False), (True, False), (True, True)}
    assert scene.runs.total() >= at_least


@pytest.mark.parametrize("how", ["before", "after", "answer"])
@pytest.mark.parametrize("scene", ["dynoxide", "postgres", "redis"], indirect=True)
def test_killed_at_any_request_it_leaves_all_or_none(scene, how):
    """Before a request is passed on, once it is on its way, or when its answer comes back."""
    server = scene.place.server
    parts = urlsplit(server)
    with Killer(parts.hostname, parts.port) as proxy:
        for at in range(1, POINTS):
            name = f"{how}-{at}"
            pid = scene.run(name, scene.place.url(proxy.url(server)))
            proxy.aim(scene.killer(pid), how, at)
            code = scene.worker.go()
            proxy.settle()
            scene.check(name)
            if proxy.passed < at:
                assert code == 0
                break
    check_that_it_was_worth_it(scene, 6)


@pytest.mark.parametrize("what", STEPS)
@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
def test_killed_at_any_statement_it_leaves_all_or_none(scene, what):
    """When it begins its first statement of SQL, its second, and so on; and in the middle of statements."""
    for at in range(1, POINTS, STEPS[what]):
        scene.run(f"{what}-{at}", scene.place.url(), (what, at))
        code = scene.worker.go()
        scene.check(f"{what}-{at}")
        if code == 0:
            break
        assert code == -signal.SIGKILL
    check_that_it_was_worth_it(scene, 20)
