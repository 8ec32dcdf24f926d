"""What a webhook costs the service, and a message its workers: `python -m bench.webhooks`.

Processor time as ratios, which hold on any machine. `semel serve` and an application of FastAPI's with an
empty handler, under the same server, take the same requests by turns. A message of the support desk, from the
inbox to the ledger, stands beside a first call of a protected function on the same store.
"""

import argparse
import gc
import itertools
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import semel
from bench import new_order
from bench.bare import disk_folder
from bench.calls import desk
from bench.load import Crowd, Sent, Site, richpanel, run, used_by
from bench.servers import ENV
from bench.timing import Bar, Ratio, Table, Timing, conclude, tabulate

PACKAGES = ("semel", "fastapi", "uvicorn", "uvloop", "httptools", "msgspec", "cryptography")
EMPTY, INGRESS = "FastAPI, an empty handler", "semel serve, a webhook into the inbox"
CALL, MESSAGE = "semel, a first call", "semel work, a message handled"
WARM_UP = 50


# The ingress


@dataclass
class Server:
    """A server that runs: its port, and the seconds of processor time that it has taken."""

    port: int
    used: Callable[[], float]


@contextmanager
def empty() -> Iterator[Server]:
    """An application that answers each webhook at once."""
    with disk_folder() as folder:
        log = folder / "empty.log"
        with log.open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", "bench.webhooks", "--empty"], stdout=out)
        try:
            while not (found := re.search(rb"port (\d+)\n", log.read_bytes())):
                assert process.poll() is None
                time.sleep(0.05)
            yield Server(int(found[1]), lambda: used_by(process.pid))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def serve_empty() -> None:
    """Serve it, as `semel serve` is served."""
    import uvicorn
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/webhooks/richpanel")
    async def receive() -> dict[str, int]:
        return {"received": 1}

    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, proxy_headers=False, port=0
    )
    listening = config.bind_socket()
    listening.listen()
    print(f"port {listening.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listening])


def posted(port: int, numbers: Iterator[int], many: int) -> None:
    """Post so many webhooks over several connections."""
    requests = iter([richpanel(number, port) for number in itertools.islice(numbers, many)])

    async def go() -> Sent:
        crowd = Crowd()
        await crowd.connect(port)
        return await crowd.flood(requests, 600)

    sent: Sent = run(go())
    assert sent.statuses == {200: many}, sent.statuses


def ingress(number: int, repeat: int) -> Table:
    """Measure the two servers by turns."""
    rounds: dict[str, list[float]] = {EMPTY: [], INGRESS: []}
    with ExitStack() as stack:
        site = Site(stack.enter_context(disk_folder()), watched=False)
        stack.callback(site.kill)
        site.serve()
        servers = {
            EMPTY: stack.enter_context(empty()),
            INGRESS: Server(site.port, lambda: site.used()["serve"]),
        }
        numbers = itertools.count(1)
        for server in servers.values():
            posted(server.port, numbers, number)
        for _ in range(repeat):
            for name, server in servers.items():
                before = server.used()
                posted(server.port, numbers, number)
                rounds[name].append((server.used() - before) / number * 1e6)
    timings = {name: Timing(tuple(figures)) for name, figures in rounds.items()}
    return tabulate("a webhook at the ingress, processor time", timings, EMPTY, {})


# The workers


def handling(number: int, repeat: int) -> Table:
    """Measure messages and first calls by turns, on one store."""
    with disk_folder() as folder, desk(url := f"sqlite:///{folder / 'semel.db'}") as support:
        with semel.connect(url, env=ENV) as s:
            charge = s.once("charge:{order[id]}")(lambda order: {"paid": order["amount"]})
            orders = itertools.count()
            for visit in support.visits(WARM_UP):
                visit()
                charge(new_order(next(orders)))
            rounds: dict[str, list[float]] = {CALL: [], MESSAGE: []}
            for _ in range(repeat):
                rounds[CALL].append(took([lambda: charge(new_order(next(orders)))] * number))
                rounds[MESSAGE].append(took(support.visits(number)))
        assert support.is_done()
    timings = {name: Timing(tuple(figures)) for name, figures in rounds.items()}
    return tabulate("a message in the workers, processor time", timings, CALL, {})


def took(calls: list[Callable[[], Any]]) -> float:
    """The processor time of one of these calls, in microseconds."""
    gc.collect()
    begun = time.process_time()
    for call in calls:
        call()
    return (time.process_time() - begun) / len(calls) * 1e6


def bars(done: list[Table]) -> list[Bar]:
    """What was promised, against what was found."""
    limits = {"a webhook at the ingress, processor time": 2.5, "a message in the workers, processor time": 6}
    return [
        Bar(f"{table.title}: {row.name} to {table.base}", _ratio(row.ratio), limits[table.title])
        for table in done
        for row in table.rows
        if row.name != table.base
    ]


def _ratio(ratio: Ratio | None) -> float:
    return ratio.median if ratio else float("nan")


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.webhooks", description=__doc__)
    parser.add_argument("--number", type=int, default=4000, help="webhooks of a round, five for a message")
    parser.add_argument("--repeat", type=int, default=7, help="rounds")
    parser.add_argument("--empty", action="store_true", help="serve the empty handler instead")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    if options.empty:
        serve_empty()
        return 0
    done = [ingress(options.number, options.repeat), handling(options.number // 5, options.repeat)]
    return conclude(done, bars(done), PACKAGES, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
