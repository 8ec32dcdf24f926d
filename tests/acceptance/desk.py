"""An operator's desk: a folder with the `semel.toml` of a service, on any store, and a shell beside it."""

import json
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi.testclient import TestClient

from semel.apps.configuration import gather
from semel.cli import main
from semel.service import sample_data
from semel.service.app import create_app
from semel.service.runtime import Runtime
from semel.service.workers import AppWorkers
from tests.places import CREDENTIALS
from tests.servers.absence import served
from tests.servers.dynamodb import dynoxide, ministack
from tests.servers.running import until

STORES = ("sqlite", "postgres", "redis", "dynamodb")
SECRET = "a secret of the tests, 32 bytes."
TOKEN = "token-of-an-operator-x"

APPS: dict[str, dict[str, Any]] = {
    "quill": {"aloware_token": sample_data.ALOWARE},
    "support": {"webhook_token": sample_data.RICHPANEL, "automation_enabled": True},
    "household": {"secret_token": sample_data.TELEGRAM},
    "probe": {"token": sample_data.PROBE},
}


class Said(NamedTuple):
    """What a command wrote, and how it left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


class Desk:
    """A folder with a service's settings; commands are typed there, with nothing else in the environment."""

    def __init__(
        self, url: str, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.url, self.folder = url, folder
        self.env = f"t{uuid.uuid4().hex[:8]}"
        self._patch, self._capsys = patch, capsys
        patch.chdir(folder)
        for variable in ("SEMEL_URL", "SEMEL_ENV", "SEMEL_SCOPE", "SEMEL_SECRET", "SEMEL_CONFIG"):
            patch.delenv(variable, raising=False)
        patch.setenv("COLUMNS", "80")
        self.settle()

    def settle(self, *apps: str, tokens: bool = True, more: str = "") -> None:
        """Write the settings of a service with these apps, or with all four."""
        secret = [] if self.url.startswith("sqlite:") else [f'secret = "{SECRET}"']
        lines = ["[semel]", f'url = "{self.url}"', f'env = "{self.env}"', *secret]
        if tokens:
            lines += ["[tokens.ops]", f'token = "{TOKEN}"', 'scopes = ["ledger:write", "admin"]']
        for app in apps or APPS:
            chosen = APPS[app] | ({"star": str(self.folder / "quill.db")} if app == "quill" else {})
            lines += [f"[apps.{app}]", *[f"{name} = {json.dumps(value)}" for name, value in chosen.items()]]
        (self.folder / "semel.toml").write_text("\n".join(lines) + f"\n{more}\n")

    def run(self, *words: str) -> Said:
        """Type a command."""
        self._patch.setattr(sys, "argv", ["semel", *words])
        with pytest.raises(SystemExit) as end:
            main()
        captured = self._capsys.readouterr()
        return Said(int(end.value.code or 0), captured.out, captured.err)

    @contextmanager
    def runtime(self) -> Iterator[Runtime]:
        """What `semel serve` opens here."""
        runtime = Runtime(gather("semel.toml", {}))
        try:
            yield runtime
        finally:
            runtime.close()

    @contextmanager
    def serving(self) -> Iterator[tuple[Runtime, TestClient]]:
        """The service, and whoever asks it."""
        with self.runtime() as runtime, TestClient(create_app(runtime)) as client:
            yield runtime, client


def deliver(client: TestClient, *apps: str) -> list[sample_data.Paste]:
    """One delivery to each of these apps, which is accepted."""
    sent = [one for one in sample_data.pastes(time.time()) if one.app in (apps or APPS)]
    for paste in sent:
        one = paste.delivery
        answer = client.post(one.path, content=one.body, headers=one.headers)
        assert answer.status_code in (200, 201, 202), (paste.app, answer.text)
    return sent


def work_off(runtime: Runtime) -> None:
    """Have the workers handle everything that waits."""
    workers = AppWorkers(runtime)
    workers.start()
    try:
        assert until(lambda: not any(one.inbox.waiting() for one in runtime.apps if one.works))
    finally:
        workers.stop()
        assert workers.join(60)


@pytest.fixture
def own_dynamodb() -> Iterator[str]:
    """A server of its own: most of the seeds' tables have one name, whatever the environment."""
    with served(dynoxide if shutil.which("npm") else ministack) as url:
        yield url


@pytest.fixture
def lasting(redis_server: str) -> Iterator[None]:
    """The server, set to keep what it has, as `semel provision --check` asks for."""
    import redis

    with closing(redis.Redis.from_url(redis_server)) as server:
        server.config_set("appendonly", "yes")
        yield
        server.config_set("appendonly", "no")


def url_of(store: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a store where nothing was made yet."""
    unique = f"t{uuid.uuid4().hex[:8]}"
    match store:
        case "sqlite":
            return f"sqlite:///{folder / 'semel.db'}"
        case "postgres":
            return f"{request.getfixturevalue('postgres')}?schema={unique}"
        case "redis":
            return f"{request.getfixturevalue('redis_server')}?prefix={unique}"
    return f"dynamodb://us-east-1?endpoint={request.getfixturevalue('own_dynamodb')}"


def open_desk(store: str, request: pytest.FixtureRequest) -> Desk:
    """A desk for this test, on a store of this kind."""
    folder: Path = request.getfixturevalue("tmp_path")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in CREDENTIALS.items():
        patch.setenv(name, value)
    return Desk(url_of(store, request, folder), folder, patch, request.getfixturevalue("capsys"))
