"""A process that is hit by signals, whose handler raises: one somewhere in each call, and then a storm."""

import faulthandler
import json
import random
import signal
import sys
import threading
import time

import semel
from semel.core.commands import Time
from tests.interrupts import Interrupt, TimeLimit

# Work takes milliseconds. Who waits for so long waits for ever, and shows where.
PATIENCE_SECONDS = 90
LEASE = 600


class Worker:
    def __init__(self, s, seed):
        self.s = s
        self.rng = random.Random(seed)
        self.armed = None
        self.hits = 0
        self.runs = {}
        self.wrong = []
        self.work = s.once("work:{key}", lease=LEASE, on_busy="raise")(self._work)
        self.beside = s.once("beside:{key}", lease=LEASE)(lambda key: key)
        signal.signal(signal.SIGALRM, self._alarm)

    def _work(self, key: str) -> str:
        self.runs[key] = self.runs.get(key, 0) + 1
        return f"{key}, run {self.runs[key]}"

    def _alarm(self, _number, frame):
        error, within = self.armed, frame
        while within is not None and within.f_code is not Worker.attempt.__code__:
            within = within.f_back
        if error is not None and within is not None:
            self.hits += 1
            raise error

    def attempt(self, key):
        return self.work(key)

    def usual(self):
        """How long a call takes."""
        began = time.perf_counter()
        for number in range(20):
            self.work(f"usual-{number}")
        return (time.perf_counter() - began) / 20

    def hit(self, key, delay):
        """A call that is interrupted once, or not at all; what it gave."""
        given = None
        try:
            self.armed = self.rng.choice((Interrupt, TimeLimit))
            signal.setitimer(signal.ITIMER_REAL, delay)
            given = self.attempt(key)
        except (Interrupt, TimeLimit):
            pass
        self.armed = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        return given

    def check(self, key, given):
        """The key is held by nobody, and what a caller was given is what every other gets."""
        end = time.monotonic() + PATIENCE_SECONDS / 3
        while self._held(key):
            if time.monotonic() > end:
                self.wrong.append(["held", key, self.runs.get(key, 0)])
                return
            threading.Event().wait(0.001)
        after = self.attempt(key)
        if given not in (None, after):
            self.wrong.append(["lost", given, after])

    def _held(self, key):
        record = self.s.ledger.get(f"work:{key}")
        now = self.s.store.execute(Time()).now
        return record is not None and record.status == "IN_PROGRESS" and record.lease_until > now

    def storm(self, seconds, usual):
        """Hit again and again, also where the last one is being dealt with."""
        self.armed = Interrupt
        end, number = time.monotonic() + seconds, 0
        signal.setitimer(signal.ITIMER_REAL, usual / 3, usual / 3)
        while time.monotonic() < end:
            number += 1
            try:
                self.attempt(f"storm-{number}")
            except Interrupt:
                continue
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.armed = None
        return number

    def write_beside(self, stop):
        """Another thread's writes, which none of this concerns."""
        number = 0
        while not stop.is_set():
            number += 1
            if self.beside(f"{number}") != f"{number}":
                self.wrong.append(["beside", number])


def main(url, env, seed, signals):
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
    with semel.connect(url, env=env) as s:
        worker, stop = Worker(s, seed), threading.Event()
        usual = worker.usual()
        thread = threading.Thread(target=worker.write_beside, args=(stop,), daemon=True)
        thread.start()
        rounds = 0
        while worker.hits < signals:
            rounds += 1
            faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
            key = f"{seed}-{rounds}"
            worker.check(key, worker.hit(key, max(1e-6, worker.rng.uniform(0, 1.5 * usual))))
        stormy = worker.storm(min(2.0, 300 * usual), max(usual, 1e-4))
        assert worker.attempt("after the storm") == "after the storm, run 1"
        stop.set()
        thread.join()
        beating = len(s._shared.heartbeats._live)
        said = {"hits": worker.hits, "stormy": stormy, "wrong": worker.wrong, "beating": beating}
        sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
