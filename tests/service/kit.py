"""A service inside the test's own process, and an app of the tests' own."""

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from semel.apps import registry
from semel.apps.configuration import Configuration
from semel.service.app import create_app
from semel.service.middleware import RequestMiddleware, Routes
from semel.service.openapi import routes_of
from semel.service.runtime import Runtime

TOKENS = {
    "north": "token-of-north-which-nobody-guesses",
    "south": "token-of-south-which-nobody-guesses",
    "reader": "token-of-a-reader-nobody-guesses",
    "chief": "token-of-the-chief-nobody-guesses",
    "oncall": "token-of-who-is-on-call-nobody-guesses",
    "watcher": "token-of-who-only-watches-nobody-guesses",
    "deputy": "token-of-who-acts-for-north-nobody-guesses",
}
ALL_TOKENS = f"""
[tokens.north]
token = "{TOKENS["north"]}"
scopes = ["ledger:read", "ledger:write"]
[tokens.south]
token = "{TOKENS["south"]}"
scopes = ["ledger:read", "ledger:write"]
[tokens.reader]
token = "{TOKENS["reader"]}"
scopes = ["ledger:read"]
scope = "north"
[tokens.chief]
token = "{TOKENS["chief"]}"
scopes = ["admin", "metrics", "apps:read"]
"""
OPS_TOKENS = f"""
[tokens.oncall]
token = "{TOKENS["oncall"]}"
scopes = ["ops:read", "ops:write", "apps:read"]
scope = "north"
[tokens.watcher]
token = "{TOKENS["watcher"]}"
scopes = ["ops:read", "apps:read"]
scope = "north"
[tokens.deputy]
token = "{TOKENS["deputy"]}"
scopes = ["ops:read", "ops:write"]
scope = "north"
"""


def told(text: str, env: Mapping[str, str] | None = None) -> Configuration:
    """Settings as they are read from a file of this text, and an environment."""
    configuration = Configuration(tomllib.loads(text), "semel.toml")
    configuration.take(env or {})
    return configuration


@contextmanager
def opened(text: str, folder: Path) -> Iterator[Runtime]:
    """A runtime with these settings, on a database in this folder unless they say otherwise."""
    configuration = told(text)
    configuration.tree.setdefault("semel", {}).setdefault("url", f"sqlite:///{folder / 'semel.db'}")
    runtime = Runtime(configuration)
    try:
        yield runtime
    finally:
        runtime.close()


_documents: dict[frozenset[Any], dict[str, Any]] = {}


def _document_of(middleware: RequestMiddleware) -> dict[str, Any]:
    """The document of a service, made once for all services that have the same operations."""
    app: Any = middleware._app
    described = frozenset(map(_operation, routes_of(app))) | frozenset(map(_hook, middleware._hooks.items()))
    if described not in _documents:
        _documents[described] = app.openapi()
    return _documents[described]


def _operation(route: Any) -> Any:
    dependencies = getattr(route, "dependencies", ())
    return route.path_format, frozenset(route.methods), route.endpoint.__code__, len(dependencies)


def _hook(hook: tuple[str, Any]) -> Any:
    return hook[0], frozenset(getattr(hook[1], "answers", {}).items())


class Reader(TestClient):
    """A client that has read the document: whatever it is answered stands there."""

    def __init__(self, middleware: RequestMiddleware) -> None:
        super().__init__(middleware)
        self.document = _document_of(middleware)
        self._routes = Routes(self.document["paths"])
        self.seen: set[tuple[str, str, int]] = set()

    def request(self, method: str, url: Any, **options: Any) -> Any:
        """Ask, and compare the answer with what is published."""
        answer = super().request(method, url, **options)
        route = self._routes.of(answer.request.url.path)
        operation = self.document["paths"].get(route, {}).get(method.lower())
        if operation is None:
            assert answer.status_code in (200, 404, 405) or route == Routes.NOWHERE
            return answer
        self.seen.add((method, route, answer.status_code))
        published = operation["responses"]
        assert str(answer.status_code) in published, (method, route, answer.status_code, answer.text)
        kind = answer.headers.get("content-type", "").partition(";")[0]
        content = published[str(answer.status_code)].get("content", {kind: {}})
        assert kind in content, (route, kind)
        if kind == "application/problem+json":
            self._check_problem(content[kind]["schema"]["$ref"], answer.json())
        return answer

    def _check_problem(self, schema: str, told: dict[str, Any]) -> None:
        known = self.document["components"]["schemas"][schema.rpartition("/")[2]]
        assert set(known["required"]) <= told.keys() <= known["properties"].keys(), told


@contextmanager
def client_of(runtime: Runtime) -> Iterator[Reader]:
    with Reader(create_app(runtime)) as client:
        yield client


@contextmanager
def served(text: str, folder: Path) -> Iterator[Reader]:
    """A client of a service with these settings."""
    with opened(text, folder) as runtime, client_of(runtime) as client:
        yield client


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


def problem_of(response: Any) -> str:
    """The kind of a problem, whose form is checked."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    told = response.json()
    assert {"type", "title", "status", "detail"} <= told.keys(), told
    assert told["status"] == response.status_code
    home, _, kind = told["type"].partition("#")
    assert home == "/problems"
    return str(kind)


def register(patch: pytest.MonkeyPatch) -> None:
    """Let the service know the app of the tests."""
    patch.setitem(registry.APPS, "echo", "tests.service.echo:Echo")
