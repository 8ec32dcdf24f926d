"""Where the time goes of what misses its bar: `python -m bench.profiles`.

A job runs under cProfile, and the time of its functions is added up by where they are. The profiler takes
about as long for each call that it sees; that much is taken out, so that the rows add up to the job without a
profiler.
"""

import argparse
import asyncio
import cProfile
import io
import itertools
import re
import sys
import sysconfig
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import semel
from bench import bare, batches, charge, decisions, http, network
from bench.calls import TOKEN, desk
from bench.load import Site, richpanel_body
from bench.page import PROFILE
from bench.rivals import alone
from bench.servers import provision, servers, url_of
from bench.timing import Call, Listing, Timer, conclude, run_new
from semel.apps.configuration import gather
from semel.apps.support.app import PATH
from semel.service.app import create_app
from semel.service.runtime import Runtime

PACKAGES = ("semel", "psycopg", "redis", "fastapi", "starlette", "pydantic", "flask", "django")
HOME = Path(semel.__file__).parent
LIBRARY = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))

ROOMS = {
    "aws": "semel: the HTTP client",
    "apps": "semel: the application",
    "doors": "semel: the door",
    "gate": "semel: state and gate",
    "redact": "semel: redaction",
    "state": "semel: state and gate",
    "stores": "semel: the store",
}
CALL = "semel: the path of a call"
STANDARD, BENCH = "the standard library", "the benchmark"
BUILT_IN = {
    "socket": "the socket",
    "sqlite3": "SQLite",
    "hashlib": "hashing",
    "hmac": "hashing",
    "msgspec": "msgspec",
    "psycopg": "psycopg",
    "pydantic": "pydantic",
}
"""What is written in C, by a word in its name; the rest counts as part of who calls it."""


def home_of(code: CodeType) -> str:
    """Where a function is: a room of semel's, another package, or the standard library."""
    file = Path(code.co_filename)
    if file.is_relative_to(HOME):
        return ROOMS.get(file.relative_to(HOME).parts[0], CALL)
    if "site-packages" in file.parts:
        package = file.parts[file.parts.index("site-packages") + 1]
        return "psycopg" if package.startswith("psycopg") else package.removesuffix(".py")
    return STANDARD if str(file).startswith((*LIBRARY, "<")) else BENCH


def built_in(name: str) -> str | None:
    return next((home for word, home in BUILT_IN.items() if word in name), None)


@dataclass
class Totals:
    """Calls and seconds by where they were spent."""

    calls: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, home: str, calls: int, seconds: float) -> None:
        self.calls[home] += calls
        self.seconds[home] += seconds

    def corrected(self, real: float) -> dict[str, float]:
        """The seconds without those of the profiler, which add up to what the job really takes."""
        each = max(0.0, sum(self.seconds.values()) - real) / self.calls.total()
        left = {home: max(0.0, took - each * self.calls[home]) for home, took in self.seconds.items()}
        return {home: took * real / sum(left.values()) for home, took in left.items()}


def totals(profile: cProfile.Profile) -> Totals:
    found = Totals()
    for entry in profile.getstats():
        if isinstance(entry.code, str):
            continue  # who calls it lists it
        home = home_of(entry.code)
        found.add(home, entry.callcount, entry.inlinetime)
        for called in entry.calls or ():
            if isinstance(called.code, str):
                found.add(built_in(called.code) or home, called.callcount, called.inlinetime)
    return found


@dataclass(frozen=True)
class Job:
    """Something to do over and over: `open` gives it, and each time it does `units` of it."""

    name: str
    open: Callable[[], AbstractContextManager[Call]]
    units: int = 1
    timer: Timer = time.process_time


def profiled(job: Job, number: int) -> Listing:
    """Where the time of a job goes, in microseconds for one of its units."""
    with job.open() as call:
        for _ in range(number):
            call()
        real = min(took(call, number, job.timer) for _ in range(5))
        profile = cProfile.Profile(job.timer)
        profile.enable()
        for _ in range(number):
            call()
        profile.disable()
    return listed(job.name, totals(profile), real, number * job.units)


def took(call: Call, number: int, timer: Timer) -> float:
    begun = timer()
    for _ in range(number):
        call()
    return timer() - begun


def listed(name: str, found: Totals, real: float, units: int) -> Listing:
    """The totals as rows, those that take longest first."""
    corrected = found.corrected(real)
    rows = [
        (home, found.calls[home] / units, seconds / units * 1e6, 100 * seconds / real)
        for home, seconds in sorted(corrected.items(), key=lambda one: -one[1])
        if seconds >= real / 200
    ]
    whole = ("all of it", found.calls.total() / units, real / units * 1e6, 100.0)
    return Listing(f"{PROFILE}{name}", ("where", "calls", "µs", "%"), (*rows, whole))


# --- Calls and decisions ----------------------------------------------------------------------------


@contextmanager
def calling(url: str, which: str) -> Iterator[Call]:
    with network.open_semel(charge, url) as pair:
        yield getattr(pair, which)


@contextmanager
def on_disk(opened: Callable[[str], AbstractContextManager[Call]]) -> Iterator[Call]:
    with bare.disk_folder() as folder, opened(f"sqlite:///{folder / 'semel.db'}") as call:
        yield call


def calls(urls: Mapping[str, str]) -> Iterator[Job]:
    yield Job("first call in memory", partial(calling, "memory:", "first"))
    yield Job("first call on SQLite", partial(on_disk, partial(calling, which="first")))
    batch = partial(on_disk, partial(batches.by_semel, one_by_one=False))
    yield Job(f"a batch of {batches.BATCH} on SQLite", batch)
    for name, url in urls.items():
        provision(url)
        for which in network.WHICH:
            yield Job(f"{which} on {name}", partial(calling, url, which))
        yield Job(f"decision on {name}", partial(decisions.open_semel, url))
    yield Job("decision on SQLite", decisions.open_semel_on_sqlite, timer=time.perf_counter)


# --- Requests ---------------------------------------------------------------------------------------

BATCH = 20


@contextmanager
def asgi_requests(url: str) -> Iterator[Call]:
    """Requests through the middleware to FastAPI, without a server around them."""
    app, keys = http.protected(http.SEMEL, http.EMPTY, url), itertools.count()

    async def batch() -> None:
        for _ in range(BATCH):
            key = f'"{time.monotonic_ns()}-{next(keys)}"'
            assert await posted(app, "/charges", http.BODY, {"idempotency-key": key}) == 201

    with asyncio.Runner() as runner:
        yield lambda: runner.run(batch())


@contextmanager
def webhooks() -> Iterator[Call]:
    """Webhooks through the service into the inbox, without a server around it."""
    with bare.disk_folder() as folder, ExitStack() as stack:
        site = Site(folder)
        site.provision()
        runtime = Runtime(gather(str(site.settings), {}))
        stack.callback(runtime.close)
        app, numbers = create_app(runtime), itertools.count(1)
        bearer = {"authorization": f"Bearer {TOKEN}"}

        async def batch() -> None:
            bodies = [richpanel_body(next(numbers)) for _ in range(BATCH)]
            answers = [posted(app, PATH, body, bearer) for body in bodies]
            assert set(await asyncio.gather(*answers)) == {200}

        with asyncio.Runner() as runner:
            yield lambda: runner.run(batch())


async def posted(app: Any, path: str, body: bytes, headers: Mapping[str, str]) -> int:
    """Post this to an ASGI application, and return the status of its answer."""
    fixed = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in (fixed | dict(headers)).items()],
    }
    received: Any = iter([{"type": "http.request", "body": body, "more_body": False}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status


@contextmanager
def wsgi_requests(case: str) -> Iterator[Call]:
    """Requests through the middleware to Flask or Django, without a server around them."""
    app, keys = http.protected(http.SEMEL, case, "memory:"), itertools.count()
    fixed = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/charges",
        "SCRIPT_NAME": "",
        "QUERY_STRING": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "localhost",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(http.BODY)),
        "wsgi.url_scheme": "http",
    }

    def request() -> None:
        body, answers = io.BytesIO(http.BODY), []
        more = {"HTTP_IDEMPOTENCY_KEY": f'"{next(keys)}"', "wsgi.input": body, "wsgi.errors": sys.stderr}

        def start_response(status: str, *_: Any) -> None:
            answers.append(status)

        found = app(fixed | more, start_response)
        assert b"".join(found), answers
        assert answers[0].startswith("201"), answers
        if hasattr(found, "close"):
            found.close()

    yield request


def requests(urls: Mapping[str, str]) -> Iterator[Job]:
    for place, url in {"in memory": "memory:", **{f"on {name}": url for name, url in urls.items()}}.items():
        if not url.startswith("dynamodb"):
            yield Job(f"{http.EMPTY}, {place}", partial(asgi_requests, url), units=BATCH)
    for case in (http.FLASK, http.DJANGO):
        yield Job(f"{case}, in memory", partial(wsgi_requests, case))


# --- A message in the workers -----------------------------------------------------------------------

CONVERSATIONS = 7 * 25
"""As many as are handled: to warm up, five times by the clock, and under the profiler."""


@contextmanager
def messages() -> Iterator[Call]:
    """Messages to support that wait in the inbox, each handled to the end."""
    with bare.disk_folder() as folder, desk(f"sqlite:///{folder / 'semel.db'}") as support:
        visits = iter(support.visits(CONVERSATIONS))
        yield lambda: next(visits)()  # noqa: PLW0108 - each time the next


# --- An import --------------------------------------------------------------------------------------


def imported() -> Listing:
    """What `import semel` takes, by package: the best of several new interpreters for each module."""
    python, best = alone("semel") or sys.executable, dict[str, int]()
    for _ in range(9):
        report = run_new(python, "-X", "importtime", "-c", "import semel").stderr
        for took, module in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", report):
            best[module] = min(int(took), best.get(module, int(took)))
    # What every interpreter imports by itself.
    at_start = set(run_new(python, "-c", "import sys; print(*sys.modules)").stdout.split())
    totals = Totals()
    for module, microseconds in best.items():
        if module not in at_start:
            totals.add(package_of(module), 1, microseconds / 1e6)
    return listed("import", totals, sum(totals.seconds.values()), 1)


def package_of(module: str) -> str:
    package = module.partition(".")[0].removeprefix("_")
    return package if package in ("semel", "msgspec", "rfc8785") else STANDARD


# --- All of it ----------------------------------------------------------------------------------------


def jobs(urls: Mapping[str, str]) -> Iterator[Job]:
    yield from calls(urls)
    yield from requests(urls)


def main() -> int:
    """Profile everything, and print where the time goes."""
    parser = argparse.ArgumentParser(prog="python -m bench.profiles", description=__doc__)
    parser.add_argument("--number", type=int, default=500, help="calls in a round")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    with servers() as started:
        urls = {name: url_of(name, address) for name, address in started.addresses.items()}
        found = [profiled(job, max(1, options.number // job.units)) for job in jobs(urls)]
    worker = Job("a message in the workers", messages)
    ingress = Job("a webhook at the ingress", webhooks, units=BATCH)
    found += [profiled(worker, CONVERSATIONS // 7), profiled(ingress, 20), imported()]
    return conclude([], [], PACKAGES, options.json, listings=found, absent=started.absent)


if __name__ == "__main__":
    raise SystemExit(main())
