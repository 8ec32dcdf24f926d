"""A worker to be killed: it does each job once, and tells its parent of every step."""

import json
import os
import random
import signal
import sqlite3
import sys
from contextlib import closing

import semel


def say(*words):
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def sell(s, connection, n, step=lambda word: None):
    """A row and the completion of its key in one transaction; the row says what the result does."""
    while not isinstance(claim := s.ledger.claim(f"order:{n}", lease=0.2, ttl=3600), semel.Claimed):
        if isinstance(claim, semel.Replay):
            return
        s.ledger.wait(f"order:{n}", timeout=60)
    value = os.urandom(8).hex()
    connection.execute("BEGIN IMMEDIATE")
    step("begun")
    connection.execute("INSERT INTO orders VALUES (?, ?)", (n, value))
    step("row")
    s.ledger.within(connection).complete(claim, value)
    step("completed")
    connection.execute("COMMIT")
    step("committed")


def clerk(url):
    """Sell one order after the other, and after each step wait for a word."""

    def step(word):
        say(word)
        sys.stdin.readline()

    with (
        semel.connect(url, env="kill") as s,
        closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection,
    ):
        for line in sys.stdin:
            sell(s, connection, json.loads(line)[0], step)


def main(url, env, effects, seed):
    order = random.Random(seed)
    s = semel.connect(url, env=env)
    out = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    stop_at = ""

    def step(word, n, attempt):
        say(word, n, attempt)
        while word == stop_at:  # until it is killed
            signal.pause()

    @s.once("job:{n}", lease=0.2, ttl=3600, wait=60)
    def job(n: int) -> str:
        attempt = semel.current_run().attempt
        value = f"{n}:{attempt}:{os.urandom(8).hex()}"
        step("begun", n, attempt)
        os.write(out, (json.dumps([n, attempt, value]) + "\n").encode())
        os.fsync(out)
        step("happened", n, attempt)
        return value

    def insist(n):
        while True:
            try:
                return job(n)
            except semel.errors.ClaimLost:
                # This machine stood still for longer than the lease, and somebody else took over: ask again.
                say("lost", n)

    say("idle")
    for line in sys.stdin:
        first, end, stop_at = json.loads(line)
        window = list(range(first, end))
        order.shuffle(window)
        for n in window:
            say("told", n, insist(n))
        say("idle")
    s.close()


if __name__ == "__main__":
    clerk(sys.argv[1]) if len(sys.argv) == 2 else main(*sys.argv[1:])
