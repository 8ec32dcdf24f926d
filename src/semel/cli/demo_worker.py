"""A worker of `semel demo`: a process that makes one protected call, or many of them at once.

    python -m semel.cli.demo_worker sqlite:///shop.db bank.log order-1 --calls 10

It tells on stdout what happens, one JSON object a line. It starts when a line comes in on stdin, and its bank
answers when another one does: so the demo decides what happens when, and nothing is left to luck.
"""

import argparse
import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import semel


def tell(what: str, **more: Any) -> None:
    """Say what happened; one write, so that threads do not write into each other's lines."""
    os.write(sys.stdout.fileno(), json.dumps({"what": what, **more}).encode() + b"\n")


def wait_for_line() -> None:
    """Wait for the demo; when it is gone, so is this worker."""
    if not sys.stdin.readline():
        os._exit(1)


class Bank:
    """The world outside: it writes down every request, and takes its time to answer."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def charge(self, order_id: str, cents: int, key: str) -> str:
        """Move the money; every request that gets here has a receipt of its own."""
        receipt = f"R-{secrets.token_hex(3)}"
        request = {"order": order_id, "cents": cents, "key": key, "receipt": receipt, "at": time.time()}
        with self._log.open("a") as log:
            log.write(json.dumps(request) + "\n")
        tell("at the bank", receipt=receipt)
        wait_for_line()
        return receipt


def call_from_threads(s: semel.Semel, bank: Bank, args: argparse.Namespace) -> None:
    """Call a protected function from as many threads as there are calls."""
    seconds = args.lease

    @s.once("charge:{order_id}", lease=seconds)
    def charge(order_id: str, cents: int) -> str:
        key = semel.current_run().key_for("bank")
        return bank.charge(order_id, cents, key)

    with ThreadPoolExecutor(args.calls) as pool:
        for _ in range(args.calls):
            pool.submit(report, lambda: charge(args.order, args.cents))


async def call_from_tasks(s: semel.Semel, bank: Bank, args: argparse.Namespace) -> None:
    """Await a protected function in as many tasks as there are calls."""

    @s.once("charge:{order_id}", lease=args.lease)
    async def charge(order_id: str, cents: int) -> str:
        key = semel.current_run().key_for("bank")
        return await asyncio.to_thread(bank.charge, order_id, cents, key)

    async def call() -> None:
        tell("answer", answer=await charge(args.order, args.cents))

    await asyncio.gather(*(call() for _ in range(args.calls)))


def report(call: Callable[[], str]) -> None:
    """Make a call, and tell what came of it."""
    try:
        tell("answer", answer=call())
    except semel.Refused as error:
        tell("refused", error=type(error).__name__)
    except BaseException as error:
        tell_broken(error)
        raise


def tell_broken(error: BaseException) -> None:
    """Say that something went wrong that should not have."""
    tell("broken", error=f"{type(error).__name__}: {error}")


def arguments() -> argparse.Namespace:
    """What the demo asks of this worker."""
    parser = argparse.ArgumentParser(prog="demo_worker", description=__doc__)
    parser.add_argument("url", help="the ledger's store")
    parser.add_argument("log", type=Path, help="where the bank writes down what it is asked")
    parser.add_argument("order")
    parser.add_argument("--cents", type=int, default=4200)
    parser.add_argument("--calls", type=int, default=1, help="how many calls at once")
    parser.add_argument("--lease", type=float, default=30.0, help="seconds")
    parser.add_argument("--tasks", action="store_true", help="call from tasks instead of threads")
    return parser.parse_args()


def main() -> None:
    """Wait for the sign, make the calls, and tell what came of them."""
    args = arguments()
    with semel.connect(args.url, on_event=lambda event: tell(event.what, attempt=event.attempt)) as s:
        tell("ready")
        wait_for_line()
        if args.tasks:
            asyncio.run(call_from_tasks(s, Bank(args.log), args))
        else:
            call_from_threads(s, Bank(args.log), args)


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        tell_broken(error)
        raise
