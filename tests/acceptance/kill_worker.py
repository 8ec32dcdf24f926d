"""A worker to be killed: it does each job of a window once, and tells its parent of every step."""

import json
import os
import random
import sys

import semel


def say(*words):
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def main(path, effects, seed):
    order = random.Random(seed)
    s = semel.connect(f"sqlite:///{path}", env="kill")
    out = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @s.once("job:{n}", lease=0.2, ttl=3600, wait=60)
    def job(n: int) -> str:
        attempt = semel.current_run().attempt
        value = f"{n}:{attempt}:{os.urandom(8).hex()}"
        say("begun", n, attempt)
        os.write(out, (json.dumps([n, attempt, value]) + "\n").encode())
        os.fsync(out)
        say("happened", n, attempt)
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
        window = list(range(*json.loads(line)))
        order.shuffle(window)
        for n in window:
            say("told", n, insist(n))
        say("idle")
    s.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
