"""A process to be killed between two actions of an event: it asks before each whether it may go on."""

import sys
from pathlib import Path

import semel

ACTIONS = ("reply", "tag", "assign")


def main(url, done):
    s = semel.connect(url)

    def act(name):
        with Path(done).open("a") as file:
            file.write(f"{name}\n")
        return name

    @s.once("evt:{n}", lease=0.5, ttl=3600, wait=60)
    def event(n: int) -> list[str]:
        told = []
        for name in ACTIONS:
            sys.stdout.write(f"{name}\n")
            sys.stdout.flush()
            sys.stdin.readline()
            told.append(s.once.step(name, act, name))
        return told

    sys.stdout.write(f"{event(1)}\n")
    s.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
