"""A service inside the test's own process, and an app of the tests' own."""

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from semel.apps.reading import Given
from semel.service import house as houses
from semel.service.house import Entry, House
from semel.service.site import site

TOKENS = {
    "north": "token-of-north-which-nobody-guesses",
    "south": "token-of-south-which-nobody-guesses",
    "reader": "token-of-a-reader-nobody-guesses",
    "chief": "token-of-the-chief-nobody-guesses",
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


def told(text: str, env: Mapping[str, str] | None = None) -> Given:
    """Settings as they are read from a file of this text, and an environment."""
    given = Given(tomllib.loads(text), "semel.toml")
    given.take(env or {})
    return given


@contextmanager
def opened(text: str, folder: Path) -> Iterator[House]:
    """A house with these settings, on a database in this folder unless they say otherwise."""
    given = told(text)
    given.tree.setdefault("semel", {}).setdefault("url", f"sqlite:///{folder / 'semel.db'}")
    house = House(given)
    try:
        yield house
    finally:
        house.close()


@contextmanager
def client_of(house: House) -> Iterator[TestClient]:
    with TestClient(site(house)) as client:
        yield client


@contextmanager
def served(text: str, folder: Path) -> Iterator[TestClient]:
    """A client of a service with these settings."""
    with opened(text, folder) as house, client_of(house) as client:
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
    patch.setitem(houses.APPS, "echo", Entry("tests.service.echo:Echo"))
