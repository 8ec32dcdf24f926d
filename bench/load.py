"""What the service bears on one machine: `python -m bench.load`.

`semel serve --workers 0` takes webhooks, `semel work` handles what they bring, and this process sends them,
all on one machine and one SQLite file, with every commit on the disk. Latency is counted from the moment at
which a webhook was to be sent, whether or not it could be: a service that stalls is charged for all that it
kept waiting. In the end the ledger and the audit are counted: each event once, and none lost.
"""

import argparse
import asyncio
import base64
import contextlib
import hmac
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any

from bench import stalls
from bench.stalls import Slow, Stall
from bench.timing import Bar, versions
from semel.doors.inbox import open_inbox

PACKAGES = ("semel", "fastapi", "uvicorn", "uvloop", "httptools", "msgspec", "cryptography")
CONNECTIONS = 64
# Threads of `semel work` for each app: those that wait for the disk at the same time wait together.
WORKERS = 8
# What was accepted can wait; who sends cannot. So the ingress goes first where there are few processors.
NICE = ("nice", "-n", "10")
BATCH = 100
EVERY_TENTH = 10
# Messages of one conversation are handled one after the other.
CONVERSATION = 10
BAR_MS = 50.0
WORKER_MS = 2.5  # 400 messages a second
# So many of the slowest webhooks are shown, each with so many of what was in its way.
SLOWEST, CAUSES = 5, 4

SETTINGS = """
[semel]
url = "{url}"
env = "{env}"
secret = "a secret for a benchmark, and for nothing else"
[service]
port = 0
[apps.quill]
aloware_token = "bench-token-of-aloware"
hubspot_secret = "bench-token-of-hubspot"
[apps.quill.tables]
ledger = "quill-{env}"
[apps.support]
webhook_token = "bench-token-of-richpanel"
"""


# What is sent


def posted(path: str, body: bytes, *headers: str) -> bytes:
    """One request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def message(number: int) -> tuple[str, str]:
    """The conversation and the id of a customer's message."""
    return f"c-{number // CONVERSATION}", f"m-{number}"


def richpanel_body(number: int) -> bytes:
    """A customer's message; the rules give it a tag and a team, so it leaves two actions in the audit."""
    conversation, id = message(number)
    text = "I would like to cancel my order, please. You may call me at 555-0107."
    body = {"conversation_id": conversation, "message_id": id, "text": text, "email": "c7@example.com"}
    return json.dumps(body).encode()


def richpanel(number: int, _port: int) -> bytes:
    return posted(
        "/webhooks/richpanel", richpanel_body(number), "Authorization: Bearer bench-token-of-richpanel"
    )


def aloware(number: int, _port: int) -> bytes:
    """A call that an agent has made."""
    call = {"id": number, "user_id": number % 20 + 1, "created_at": "2026-03-02 10:00:00"}
    body = json.dumps({"event": "OutboundPhoneCall", "body": call}).encode()
    return posted("/webhooks/aloware", body, "Authorization: Bearer bench-token-of-aloware")


def hubspot(number: int, port: int) -> bytes:
    """A batch, as large as HubSpot makes them."""
    events = [
        {
            "objectId": number * BATCH + place,
            "objectTypeId": "0-49",
            "subscriptionType": "object.creation",
            "occurredAt": 1_772_445_600_000 + place,
            "sourceId": f"userId:{place % 20 + 1}",
            "eventId": place,
            "attemptNumber": 0,
        }
        for place in range(BATCH)
    ]
    body, sent = json.dumps(events).encode(), str(time.time_ns() // 1_000_000)
    signed = f"POSThttp://127.0.0.1:{port}/webhooks/hubspot".encode() + body + sent.encode()
    signature = base64.b64encode(hmac.digest(b"bench-token-of-hubspot", signed, "sha256")).decode()
    return posted(
        "/webhooks/hubspot",
        body,
        f"X-HubSpot-Signature-v3: {signature}",
        f"X-HubSpot-Request-Timestamp: {sent}",
    )


def numbers_with_duplicates(total: int) -> Iterator[int]:
    """So many numbers, of which every tenth is one that came a little before."""
    new = 0
    for place in range(total):
        if place % EVERY_TENTH == EVERY_TENTH - 1:
            yield new - 1 - place % 7
        else:
            yield new
            new += 1


# Sending


@dataclass
class Sent:
    """What came of a stretch of sending."""

    latencies: list[float] = field(default_factory=list)
    moments: list[tuple[float, float]] = field(default_factory=list)
    """When each was to be sent, and when it was answered."""
    statuses: Counter[int] = field(default_factory=Counter)
    begun: float = 0.0
    ended: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.latencies) / (self.ended - self.begun)

    def ms(self, share: float) -> float:
        """So many milliseconds were enough for this share of all."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


class Line(asyncio.Protocol):
    """A connection that has one request under way at most."""

    def __init__(self, free: Callable[["Line"], None], sent: Sent) -> None:
        self._free, self._sent = free, sent
        self._answer, self._due = b"", 0.0
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def ask(self, request: bytes, due: float) -> None:
        self._due = due
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, blank, body = self._answer.partition(b"\r\n\r\n")
        if not blank or len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return
        self._sent.statuses[int(head[9:12])] += 1
        now = time.perf_counter()
        self._sent.latencies.append(now - self._due)
        self._sent.moments.append((self._due, now))
        self._answer = b""
        self._free(self)

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._sent.statuses[0] += 1


class Crowd:
    """Connections; what finds none that is free waits, and that is counted against the service."""

    def __init__(self) -> None:
        self.sent = Sent()
        self._idle: deque[Line] = deque()
        self._queue: deque[tuple[bytes, float]] = deque()
        self._more: Iterator[bytes] = iter(())
        self._lines: list[Line] = []
        self._quiet = asyncio.Event()

    async def connect(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(CONNECTIONS):
            _, line = await loop.create_connection(lambda: Line(self._free, self.sent), "127.0.0.1", port)
            self._lines.append(line)
        self._idle.extend(self._lines)

    def _free(self, line: Line) -> None:
        if self._queue:
            line.ask(*self._queue.popleft())
        elif request := next(self._more, b""):
            line.ask(request, time.perf_counter())
        else:
            self._idle.append(line)
            if len(self._idle) == len(self._lines):
                self._quiet.set()

    def ask(self, request: bytes, due: float) -> None:
        if self._idle:
            self._idle.popleft().ask(request, due)
        else:
            self._queue.append((request, due))

    async def pace(self, requests: Iterable[bytes], rate: float) -> Sent:
        """Send each at its moment, whatever became of those before it."""
        begun = self.sent.begun = time.perf_counter()
        for place, request in enumerate(requests):
            due = begun + place / rate
            while (early := due - time.perf_counter()) > 0:  # noqa: ASYNC110 - it is the time that is waited for
                await asyncio.sleep(early)
            self.ask(request, due)
        return await self._over()

    async def flood(self, requests: Iterator[bytes], seconds: float) -> Sent:
        """Send the next whenever an answer has come."""
        begun = self.sent.begun = time.perf_counter()

        self._more = takewhile(lambda _: time.perf_counter() < begun + seconds, requests)
        for line in [self._idle.popleft() for _ in self._lines]:
            self._free(line)
        return await self._over()

    async def _over(self) -> Sent:
        while len(self._idle) < len(self._lines):
            self._quiet.clear()
            await self._quiet.wait()
        self.sent.ended = time.perf_counter()
        for line in self._lines:
            line.transport.close()
        return self.sent


def run(steps: Any) -> Any:
    """Run a coroutine on the quickest loop that there is: it shares the processors with what it measures."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(steps)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(steps)


def paced(port: int, requests: Iterable[bytes], rate: float) -> Sent:
    async def go() -> Sent:
        crowd = Crowd()
        await crowd.connect(port)
        return await crowd.pace(requests, rate)

    sent: Sent = run(go())
    return sent


def flooded(port: int, requests: Iterator[bytes], seconds: float) -> Sent:
    async def go() -> Sent:
        crowd = Crowd()
        await crowd.connect(port)
        return await crowd.flood(requests, seconds)

    sent: Sent = run(go())
    return sent


# The service


class Site:
    """The service in a folder and an environment of its own."""

    url = "sqlite:///{folder}/semel.db?synchronous=full"

    def __init__(self, folder: Path, watched: bool = True) -> None:
        self.folder, self._watched = folder, watched
        self.settings = folder / "semel.toml"
        env = f"load{os.urandom(4).hex()}"
        self.settings.write_text(SETTINGS.format(url=self.url.format(folder=folder, env=env), env=env))
        self.port = 0
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *command: str, priority: tuple[str, ...] = ()) -> None:
        self._run(*command, "--config", str(self.settings), priority=priority)

    def watch_disk(self) -> None:
        self._run("disk", str(self.folder / "disk"))

    def _run(self, *command: str, priority: tuple[str, ...] = ()) -> None:
        watching = ["bench.stalls", str(self._stalls(command[0]))] if self._watched else ["semel.cli"]
        program = [*priority, sys.executable, "-m", *watching, *command]
        with (self.folder / f"{command[0]}.log").open("wb") as log:
            self._running[command[0]] = subprocess.Popen(program, stdout=log, stderr=log)

    def provision(self) -> None:
        """Make the tables, where opening the store does not."""
        program = [sys.executable, "-m", "semel.cli", "provision", "--config", str(self.settings)]
        subprocess.run(program, check=True, capture_output=True)

    def serve(self) -> None:
        self.provision()
        self.start("serve", "--workers", "0")
        log = self.folder / "serve.log"
        while not (found := re.search(rb"http://127\.0\.0\.1:(\d+)", text := log.read_bytes())):
            assert self._running["serve"].poll() is None, text.decode()
            time.sleep(0.05)
        self.port = int(found[1])
        while not self._is_ready():
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            direct.open(f"http://127.0.0.1:{self.port}/health/ready", timeout=5).close()
        except urllib.error.URLError:
            return False
        return True

    def work(self) -> None:
        self.start("work", "--workers", str(WORKERS), "--app", "support", priority=NICE)

    def used(self) -> dict[str, float]:
        """Seconds of processor time that each has taken, as far as this system tells."""
        if not Path("/proc/stat").exists():
            return {}
        own = os.times()
        used = {name: used_by(one.pid) for name, one in self._running.items()}
        used["sending"] = own.user + own.system
        return used | {"others": _busy() - sum(used.values())}

    def stop(self) -> list[Stall]:
        """Stop all, and learn what kept them waiting."""
        for name, process in self._running.items():
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, (self.folder / f"{name}.log").read_text()[-2000:]
        names, self._running = list(self._running), {}
        return [stall for name in names for stall in stalls.read(self._stalls(name))]

    def _stalls(self, name: str) -> Path:
        return self.folder / f"{name}.stalls"

    def kill(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


TICKS = os.sysconf("SC_CLK_TCK")


def used_by(process: int) -> float:
    """Seconds of processor time that a process has taken, with those that it has started."""
    home = Path(f"/proc/{process}")
    # What stands before the bracket is the program's name, and may be anything.
    fields = (home / "stat").read_text().rpartition(")")[2].split()
    started = [child for task in home.glob("task/*/children") for child in task.read_text().split()]
    return (int(fields[11]) + int(fields[12])) / TICKS + sum(used_by(int(child)) for child in started)


def _busy() -> float:
    """Seconds of processor time that this machine has spent on anything."""
    line = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _idle, _waiting, *more = map(int, line.split()[1:])
    return (user + nice + system + sum(more[:2])) / TICKS


@contextlib.contextmanager
def served(within: str | None) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="semel-load-", dir=within) as folder:
        site = Site(Path(folder))
        try:
            site.serve()
            yield site
        finally:
            site.kill()


# What is measured


@dataclass
class Row:
    """One kind of webhook: how many a second at most, and how long they take at half of that."""

    what: str
    events: int
    most: float
    p50: float
    p99: float
    statuses: dict[int, int]


def row(what: str, make: Callable[[int, int], bytes], events: int, seconds: float, within: str | None) -> Row:
    """Measure one kind on a service of its own."""
    with served(within) as site:
        requests = (make(number, site.port) for number in count())
        flooded(site.port, requests, 1.0)  # what is imported and prepared at the first use
        most = flooded(site.port, requests, seconds)
        rate = most.rate / 2
        half = paced(site.port, islice(requests, int(rate * seconds)), rate)
        site.stop()
    statuses = dict(most.statuses + half.statuses)
    return Row(what, events, most.rate, half.ms(0.5), half.ms(0.99), statuses)


@dataclass
class Held:
    """A rate that was held for a while, and what the ledger says afterwards."""

    rate: float
    seconds: float
    sent: int
    unique: int
    answers: dict[int, int]
    p50: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    longest: float = 0.0
    sending_took: float = 0.0
    handled_after: float = 0.0
    """How many seconds after the last webhook the inbox was empty."""
    handled_rate: float = 0.0
    """How many messages a second were handled, from the first webhook on."""
    alone_rate: float = 0.0
    """How many messages a second were handled of those that waited after the last webhook."""
    completed: int = 0
    otherwise: int = 0
    """Events whose record has another status, or that nobody sent."""
    actions: int = 0
    actions_twice: int = 0
    actions_missing: int = 0
    dead: int = 0
    processors: dict[str, float] = field(default_factory=dict)
    """Seconds of processor time that each program took meanwhile, and what all others took beside them."""


@dataclass
class Waits:
    """What kept webhooks waiting while a rate was held."""

    totals: dict[str, str]
    slowest: list[tuple[Slow, list[Stall]]]


def held(rate: float, seconds: float, within: str | None) -> tuple[Held, Waits]:
    """Send so many a second, every tenth a duplicate, wait until all is handled, and count."""
    total = int(rate * seconds)
    numbers = list(numbers_with_duplicates(total))
    unique = sorted(set(numbers))
    with served(within) as site:
        site.work()
        flooded(site.port, iter(richpanel(-number, site.port) for number in range(1, 500)), 2.0)
        _until_empty(site)
        requests = [richpanel(number, site.port) for number in numbers]
        site.watch_disk()
        before = site.used()
        sent = paced(site.port, requests, rate)
        done = Held(rate, seconds, total, len(unique), dict(sent.statuses))
        done.processors = {name: max(0.0, used - before[name]) for name, used in site.used().items()}
        done.p50, done.p99, done.p999, done.longest = map(sent.ms, (0.5, 0.99, 0.999, 1.0))
        done.sending_took = sent.ended - sent.begun
        begun, waiting = time.perf_counter(), _waiting(site)
        _until_empty(site)
        done.handled_after = time.perf_counter() - begun
        done.alone_rate = waiting / done.handled_after
        done.handled_rate = done.unique / (done.sending_took + done.handled_after)
        waits = _waits(sent, site.stop())
        _count(site, unique, done)
    return done, waits


def _waits(sent: Sent, found: list[Stall]) -> Waits:
    meanwhile = [stall for stall in found if stall.begun < sent.ended and stall.ended > sent.begun]
    slow = stalls.slowest(sent.moments, SLOWEST)
    return Waits(stalls.totals(meanwhile), [(one, one.causes(meanwhile)[:CAUSES]) for one in slow])


def _ledger(site: Site) -> Any:
    from semel.apps.configuration import gather, store_of
    from semel.apps.keyfile import secrets_of
    from semel.apps.ledgers import binding

    given = gather(str(site.settings), {})
    store = store_of(given)
    return binding("support", store, secrets_of(store, given)).open()


def _waiting(site: Site) -> int:
    with _ledger(site) as s:
        inbox = open_inbox(s, "support", shared=True)
        counted = inbox.count()
        total = counted.number
        while counted.after is not None:
            counted = inbox.count(after=counted.after)
            total += counted.number
        return total


def _until_empty(site: Site) -> None:
    with _ledger(site) as s:
        inbox = open_inbox(s, "support", shared=True)
        while inbox.waiting():
            time.sleep(0.2)


def _count(site: Site, unique: list[int], done: Held) -> None:
    """Hold the ledger and the audit against what was sent."""
    expected = {":".join(("evt", "rp", *message(number))) for number in unique}
    with _ledger(site) as s:
        done.completed, done.otherwise = _events(s, expected)
        done.dead = len(open_inbox(s, "support", shared=True).dead())
        done.actions, done.actions_twice, done.actions_missing = _actions(s, unique)


def _events(s: Any, expected: set[str]) -> tuple[int, int]:
    completed = otherwise = 0
    after = None
    while True:
        page = s.ledger.list(limit=1000, after=after)
        for record in page.records:
            if record.key in expected:
                is_done = record.status == "COMPLETED"
                completed, otherwise = completed + is_done, otherwise + (not is_done)
        after = page.after
        if after is None:
            return completed, otherwise + len(expected) - completed - otherwise


def _actions(s: Any, unique: list[int]) -> tuple[int, int, int]:
    """How many actions there are of these messages, how many are there again, and how many are not there."""
    from semel.apps.tables import SUPPORT_AUDIT

    audit, found = s.journal.on(SUPPORT_AUDIT), Counter[str]()
    for conversation in sorted({message(number)[0] for number in unique}):
        found.update(entry.key for entry in audit.list(conversation, limit=1000).entries)
    expected = {
        key
        for number in unique
        for conversation, id in [message(number)]
        for key in (
            f"act:rp_tag:{conversation}:intent-cancellation:{id}",
            f"act:rp_assign:{conversation}:orders:{id}",
        )
    }
    return sum(found.values()), sum(found.values()) - len(found), len(expected - found.keys())


def synced(within: str | None) -> float:
    """How many milliseconds a small write to this disk takes, at the median."""
    with tempfile.TemporaryFile(dir=within) as file:
        took = []
        for _ in range(100):
            file.write(b"x" * 4096)
            file.flush()
            begun = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begun)
    return sorted(took)[50] * 1000


# The report


def show(rows: list[Row], hold: Held, waits: Waits, disk: float) -> None:
    heads = f"{'a second':>10}{'events/s':>10}{'p50 ms':>9}{'p99 ms':>9}"
    print(f"{Site.url.partition(':')[0]:44}{heads}")
    for one in rows:
        print(
            f"{one.what:44}{one.most:10,.0f}{one.most * one.events:10,.0f}{one.p50:9.1f}{one.p99:9.1f}"
            + ("" if set(one.statuses) == {200} else f"  answers: {one.statuses}")
        )
    print(
        f"\n{hold.rate:,.0f} webhooks a second for {hold.seconds:g} s, every tenth a duplicate, workers busy:"
    )
    for name, value in asdict(hold).items():
        print(f"  {name.replace('_', ' '):18}{_text(value)}")
    print(f"\nWhat took longer than {stalls.LONG_SECONDS * 1000:g} ms meanwhile:")
    for cause, total in waits.totals.items():
        print(f"  {cause:34}{total}")
    for slow, causes in waits.slowest:
        words = ", ".join(f"{one.process}: {one.cause} {one.ms:.0f}" for one in causes)
        print(f"  a webhook that took {slow.ms:.0f} ms: {words}")
    print(f"\nA synced write of 4 KiB takes {disk:.2f} ms here, at the median.")
    print("\n".join(f"{name}: {version}" for name, version in versions(PACKAGES).items()))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(one)}" for name, one in value.items())
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}"


def bars(hold: Held) -> list[Bar]:
    """What was promised, against what was found."""
    unanswered = hold.sent - hold.answers.get(200, 0)
    return [
        Bar(f"{hold.rate:,.0f} webhooks a second: p99 at the ingress", hold.p99, BAR_MS, "ms"),
        Bar("a message in the workers, once nobody sends", 1000 / hold.alone_rate, WORKER_MS, "ms"),
        Bar("webhooks that were not answered with 200", unanswered, 0, "of them"),
        Bar("events that are not COMPLETED", hold.unique - hold.completed, 0, "of them"),
        Bar("actions in the audit that are there twice", hold.actions_twice, 0, "of them"),
        Bar("actions that are not in the audit", hold.actions_missing, 0, "of them"),
        Bar("dead letters", hold.dead, 0, "of them"),
    ]


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for how long the rate is held")
    parser.add_argument("--rate", type=float, default=1000, help="webhooks a second that are held")
    parser.add_argument("--most-seconds", type=float, default=5, help="for how long the most is looked for")
    parser.add_argument("--folder", help="a folder on the disk that is to be measured")
    parser.add_argument("--url", default=Site.url, help="another store, with {env} where it differs")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    Site.url, within = options.url, options.folder
    disk = synced(within)
    rows = (
        [
            row("support: a message, into the inbox", richpanel, 1, options.most_seconds, within),
            row("quill: a call of Aloware's, as a fact", aloware, 1, options.most_seconds, within),
            row("quill: a batch of 100 of HubSpot's, as facts", hubspot, BATCH, options.most_seconds, within),
        ]
        if options.most_seconds
        else []
    )
    hold, waits = held(options.rate, options.seconds, within)
    found = bars(hold)
    if options.json:
        report = {
            "versions": versions(PACKAGES),
            "synced_ms": disk,
            "most": rows,
            "held": hold,
            "waits": waits,
            "bars": [asdict(bar) | {"kept": bar.kept} for bar in found],
        }
        print(json.dumps(report, indent=2, default=asdict))
    else:
        show(rows, hold, waits, disk)
        print("\n" + "\n".join(map(str, found)))
    return 0 if all(bar.kept for bar in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
