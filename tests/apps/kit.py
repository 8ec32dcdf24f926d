"""The service as a process, for tests that drive it from outside; and the places that it can run on.

    def test_it(place: Place, tmp_path: Path) -> None:            # once on "sqlite", once on "dynamodb+sqs"
        text = place.toml("support", lease=2) + '''
            [apps.support]
            richpanel_secret = "..."
        '''
        with Service(tmp_path, text, env=place.environ) as service:
            httpx.post(service.url + "/webhooks/richpanel", content=...)
            service.kill()                                        # SIGKILL
            service.restart()                                     # on the same port
        with place.connect("support") as s:                       # what is in the store, as the app sees it
            ...

Import the fixture where it is used: `from tests.apps.kit import Place, Service, place  # noqa: F401`.
An app's own API is under `/apps/<name>`, and asks for a token with the scope "apps:read".
"""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

import semel
from semel.apps.configuration import Configuration, store_of
from semel.apps.keyfile import secrets_of
from semel.apps.ledgers import binding
from semel.apps.tables import ALCHEMISER, TABLES
from semel.core.clock import Clock
from semel.provision import ProvisionTarget as Site
from semel.provision import provision
from semel.tables import OWN
from tests.doors.sqs_kit import make_queue
from tests.places import CREDENTIALS
from tests.servers.absence import served
from tests.servers.dynamodb import dynoxide, ministack
from tests.servers.running import HOST, IMPORTS, PATIENCE_SECONDS, free_port, leashed, until

ROOT = Path(__file__).parents[2]
SECRET = "a secret of the tests, which nobody else has"


class Program:
    """A command of semel's that runs until it is told to stop."""

    command = "work"
    module = "semel.cli"

    def __init__(self, folder: Path, toml: str, env: Mapping[str, str] | None = None, *options: str) -> None:
        self.folder = folder
        self._config = folder / f"{self.command}-{uuid.uuid4().hex[:6]}.toml"
        self._config.write_text(toml)
        self._log = self._config.with_suffix(".log")
        self._env = dict(env or {})
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Run it, and come back when it is ready."""
        words = [self.command, "--config", str(self._config), *self._options]
        program = [sys.executable, "-m", self.module, *words]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                leashed(program, signal=signal.SIGKILL),
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if not until(self.is_ready, still=self.is_running):
            self.kill()
            raise AssertionError(f"semel {self.command} did not come up:\n{self.log}")
        return self

    def _environment(self) -> dict[str, str]:
        own = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder), "PYTHONPATH": IMPORTS}
        return own | self._env

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_ready(self) -> bool:
        return "working for" in self.log

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """All that it wrote so far, over restarts."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def kill(self) -> None:
        """SIGKILL: it gets to do nothing more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> Self:
        """The same again; killed first, where it still runs."""
        self.kill()
        return self.start()

    def stop(self) -> None:
        """SIGTERM: it finishes what it does, and leaves with 0."""
        assert self._process is not None
        self._process.terminate()
        try:
            code = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"semel {self.command} does not stop:\n{self.log[-4000:]}") from None
        assert code == 0, f"semel {self.command} left with {code}:\n{self.log[-4000:]}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, *_: object) -> None:
        if self.is_running() and kind is None:
            self.stop()
        else:
            self.kill()


class Work(Program):
    """`semel work`: the workers alone, in one process unless the environment says otherwise."""

    def __init__(self, folder: Path, toml: str, env: Mapping[str, str] | None = None, *options: str) -> None:
        super().__init__(folder, toml, {"SEMEL_SERVICE__PROCESSES": "1", **(env or {})}, *options)


class Service(Program):
    """`semel serve`, on a port of its own."""

    command = "serve"

    def __init__(self, folder: Path, toml: str, env: Mapping[str, str] | None = None, *options: str) -> None:
        self.port = free_port()
        super().__init__(folder, toml, {"SEMEL_SERVICE__PORT": str(self.port), **(env or {})}, *options)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def is_ready(self) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            direct.open(f"{self.url}/health/ready", timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False
        return True


class Place:
    """Where a service keeps its things: what its settings say of that, and a look into it."""

    def __init__(
        self, name: str, folder: Path, dynamodb: str = "", sqs: Callable[[], str] | None = None
    ) -> None:
        self.name = name
        self.folder = folder
        self._dynamodb, self._sqs = dynamodb, sqs
        self._queues: dict[str, tuple[str, str]] = {}
        self.env = f"t{uuid.uuid4().hex[:8]}"
        # So that tests may share a server whose tables have names of their own.
        self._titles = {"DYNAMO_TABLE_NAME": f"Quill-{self.env}"} if dynamodb else {}
        if dynamodb:
            for variable, value in CREDENTIALS.items():
                os.environ.setdefault(variable, value)
            self._provision()

    @property
    def url(self) -> str:
        if self._dynamodb:
            return f"dynamodb://us-east-1?endpoint={self._dynamodb}"
        return f"sqlite:///{self.folder / 'semel.db'}"

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that a program needs here."""
        return CREDENTIALS | self._titles if self._dynamodb else {}

    def toml(self, *apps: str, **inbox: float) -> str:
        """The first sections: the store, its secret, and the inboxes of these apps, such as `lease=1`."""
        lines = ["[semel]", f'url = "{self.url}"', f'env = "{self.env}"', f'secret = "{SECRET}"']
        for app in apps:
            lines += [f"[inbox.{app}]", *[f"{name} = {value}" for name, value in inbox.items()]]
            if self._sqs is None:
                continue
            queue, dead = self.queues(app)
            # A receive that is under way is waited for at the end: not for twenty seconds here.
            lines += [f'queue = "{queue}"', f'dead_letters = "{dead}"', "poll = 1"]
        return "\n".join(lines) + "\n"

    def queues(self, app: str) -> tuple[str, str]:
        """The FIFO queue of an app and its dead letters, made when first asked for."""
        assert self._sqs is not None
        if app not in self._queues:
            server = self._sqs()
            names = f"{app}-{self.env}.fifo", f"{app}-{self.env}-dead.fifo"
            # What a killed worker had in hand is delivered again after so many seconds.
            queue = make_queue(server, names[0], VisibilityTimeout=2)
            self._queues[app] = queue, make_queue(server, names[1])
        return self._queues[app]

    def connect(self, app: str = "") -> semel.Semel:
        """The store as this app has it open, or as the service itself has."""
        configuration = Configuration({"semel": {"url": self.url, "env": self.env, "secret": SECRET}})
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in self.environ.items():
                patch.setenv(variable, value)
            store = store_of(configuration)
            return binding(app, store, secrets_of(store, configuration)).open()

    def files(self) -> Iterator[tuple[str, bytes]]:
        """The files of an SQLite store, to search them for what must not be there."""
        if not self._dynamodb:
            for file in self.folder.glob("semel.db*"):
                yield file.name, file.read_bytes()

    def _provision(self) -> None:
        tables = (*OWN, *[table for table in TABLES if table is not ALCHEMISER])
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in self.environ.items():
                patch.setenv(variable, value)
            site = Site(url=self.url, env=self.env, tables=tables, clock=Clock())
            provision(site)


@pytest.fixture(params=["sqlite", "dynamodb+sqs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each place in turn: SQLite alone, and DynamoDB with queues of SQS."""
    if request.param == "sqlite":
        yield Place("sqlite", tmp_path)
        return
    # A server of its own: some of the seeds' tables have one name, whatever the environment.
    with served(dynoxide if shutil.which("npm") else ministack) as dynamodb:
        # Asked for only by those that have an inbox: it takes seconds to start.
        yield Place("dynamodb+sqs", tmp_path, dynamodb, lambda: request.getfixturevalue("sqs"))


class Awaited:
    """Things that are waited for, each asked for until it is there: asking again would slow down the rest."""

    def __init__(self, done: Callable[[str], bool]) -> None:
        self._done = done
        self._missing: list[str] = []

    def add(self, *names: str) -> None:
        self._missing += names

    def __call__(self) -> bool:
        """Whether all of them are."""
        while self._missing and self._done(self._missing[0]):
            del self._missing[0]
        return not self._missing


def plain(text: str) -> str:
    """A text of several lines without the indentation of the code around it."""
    return textwrap.dedent(text)


def found(needles: Mapping[str, str], haystacks: Mapping[str, bytes | str]) -> list[tuple[str, str]]:
    """Which of these texts stand in which of those."""
    texts: dict[str, Any] = {
        name: stack.encode() if isinstance(stack, str) else stack for name, stack in haystacks.items()
    }
    return [(what, name) for what, one in needles.items() for name, t in texts.items() if one.encode() in t]
