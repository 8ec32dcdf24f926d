"""A worker process of `semel demo`: what runs in it, and how the demo holds it.

It writes what happens to stdout, one JSON object a line. It starts when a line comes in on stdin, and its
bank answers when another one does: so the demo decides what happens when, and nothing is left to luck.
"""

import asyncio
import json
import logging
import os
import secrets
import select
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Any, cast

import msgspec

import semel

# No step of the demo takes a second; a machine that needs this long for one is broken, or semel is.
PATIENCE = 30.0


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to do: how many equal calls, on which ledger, with which bank's log."""

    url: str
    log: str
    order: str
    cents: int = 4200
    calls: int = 1
    lease: float = 30.0
    tasks: bool = False


class WorkerMessage(msgspec.Struct, frozen=True):
    """One line that a worker wrote."""

    what: str
    attempt: int = 0
    answer: str = ""
    error: str = ""


class StalledError(Exception):
    """The demo cannot go on; the message says why."""


class WorkerProcess(Popen[bytes]):
    """A worker that was started, and what it has written so far."""

    def __init__(self, name: str, options: WorkerOptions) -> None:
        self.name = name
        self._messages: list[WorkerMessage] = []
        command = [sys.executable, "-P", "-m", __name__, msgspec.json.encode(options).decode()]
        # Ctrl-C is for the demo, which then sees to its workers: they are in a group of their own.
        super().__init__(command, bufsize=0, stdin=PIPE, stdout=PIPE, process_group=0)
        self._pipes = cast(IO[bytes], self.stdin), cast(IO[bytes], self.stdout)

    def heard(self, *kinds: str) -> list[WorkerMessage]:
        """The messages of these kinds, so far."""
        return [message for message in self._messages if message.what in kinds]

    def wait_for(self, *kinds: str, count: int = 1) -> list[WorkerMessage]:
        """The messages of these kinds, once there are so many."""
        while len(self.heard(*kinds)) < count:
            ready, _, _ = select.select([self._pipes[1]], [], [], PATIENCE)
            if not (line := self._pipes[1].readline() if ready else b""):
                raise StalledError(f"{self.name} ended, or wrote nothing for {PATIENCE:.0f} s")
            message = msgspec.json.decode(line, type=WorkerMessage)
            if message.what == "broken":
                raise StalledError(f"{self.name}: {message.error}")
            self._messages.append(message)
        return self.heard(*kinds)

    def go(self) -> None:
        """Give the sign that it waits for."""
        with suppress(BrokenPipeError):  # it has died, and the next wait for it says so
            self._pipes[0].write(b"go\n")

    def end(self) -> None:
        """Kill it with -9, if it is still there; it gets no chance to clean up."""
        with self:  # which closes its pipes, and waits for its end
            self.kill()


def write_event(what: str, **more: Any) -> None:
    """Write what happened; in one write, so that threads do not write into each other's lines."""
    os.write(sys.stdout.fileno(), json.dumps({"what": what, **more}).encode() + b"\n")


def wait_for_line() -> None:
    """Wait for the demo; when it is gone, so is this worker."""
    if not sys.stdin.readline():
        os._exit(1)


def ask_bank(log: str, order_id: str, cents: int, key: str) -> str:
    """Move money in the world outside, which writes down every request, each with a receipt of its own."""
    receipt = f"R-{secrets.token_hex(3)}"
    request = {"order": order_id, "cents": cents, "key": key, "receipt": receipt, "at": time.time()}
    with Path(log).open("a") as entries:
        entries.write(json.dumps(request) + "\n")
    write_event("at the bank", answer=receipt)
    wait_for_line()
    return receipt


def protected(s: semel.Semel, log: str, lease: float) -> Callable[..., str]:
    """Make the function that must run once for each order."""

    @s.once("charge:{order_id}", lease=lease, heartbeat=False)
    def charge(order_id: str, cents: int) -> str:
        key = semel.current_run().key_for("bank")
        return ask_bank(log, order_id, cents, key)

    return charge


def call_from_threads(s: semel.Semel, options: WorkerOptions) -> None:
    """Call the protected function from as many threads as there are calls."""
    charge = protected(s, options.log, options.lease)
    with ThreadPoolExecutor(options.calls) as pool:
        for _ in range(options.calls):
            pool.submit(report, lambda: charge(options.order, options.cents))


async def call_from_tasks(s: semel.Semel, options: WorkerOptions) -> None:
    """Await a protected function in as many tasks as there are calls."""

    @s.once("charge:{order_id}", lease=options.lease)
    async def charge(order_id: str, cents: int) -> str:
        key = semel.current_run().key_for("bank")
        return await asyncio.to_thread(ask_bank, options.log, order_id, cents, key)

    calls = [charge(options.order, options.cents) for _ in range(options.calls)]
    for answer in await asyncio.gather(*calls):
        write_event("answer", answer=answer)


def report(call: Callable[[], str | None]) -> None:
    """Make a call, and tell what came of it."""
    try:
        if (answer := call()) is not None:
            write_event("answer", answer=answer)
    except semel.Refused as error:
        write_event("refused", error=type(error).__name__)
    except BaseException as error:
        write_event("broken", error=f"{type(error).__name__}: {error}")
        raise


def main() -> None:
    """Wait for the sign, make the calls, and tell what came of them."""
    options = msgspec.json.decode(sys.argv[1], type=WorkerOptions)
    logging.getLogger("semel").addHandler(logging.NullHandler())  # the demo shows what would be logged
    with semel.connect(
        options.url, on_event=lambda event: write_event(event.what, attempt=event.attempt)
    ) as s:
        write_event("ready")
        wait_for_line()
        if options.tasks:
            asyncio.run(call_from_tasks(s, options))
        else:
            call_from_threads(s, options)


if __name__ == "__main__":
    report(main)
