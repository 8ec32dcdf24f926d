"""Settings, clients and errors hold secrets, and show none of them: in no text, no log line and no pickle."""

import gc
import io
import logging
import os
import pickle
import sys
import traceback
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.inspect import type_info
from rich.console import Console

import semel
from semel import errors
from semel.apps.configuration import Configuration
from semel.apps.quill.settings import POWERBI
from semel.apps.registry import APPS, find
from semel.aws.environment import Credentials
from semel.cli.common import StoreOptions
from semel.core.codecs import Encryption
from semel.dashboard.passwords import PasswordHash, hash_password
from semel.doors.amqp1.endpoint import endpoint_of
from semel.doors.webhooks import HubSpotV3, StandardWebhooks, Verifier
from semel.service import logs, sample_data
from semel.service.app import create_app
from semel.service.runtime import Runtime
from semel.stores.postgres.address import PostgresAddress
from semel.stores.redis.server import parse as redis_address
from tests.service.kit import told

MARK = "hunter2-nobody-may-read"
KEY = MARK.ljust(32, "!").encode()
HASH = hash_password("correct horse battery")
# What would give a secret away: as it is, as a setting has a key, and a hash that could be guessed at.
SHOWN = (MARK, b64encode(KEY).decode()[:28], HASH)
STORES = {
    "postgresql": f"postgresql://ann:{MARK}@127.0.0.1:1/shop?timeout=1",
    "redis": f"redis://ann:{MARK}@127.0.0.1:1/0?timeout=1",
    "unknown": f"oracle://ann:{MARK}@127.0.0.1/shop",
    "dynamodb": f"dynamodb://eu-north-1?endpoint=http://ann:{MARK}@127.0.0.1:1",
    "memory": f"memory://ann:{MARK}@127.0.0.1",
    "sqlite": f"sqlite://ann:{MARK}@127.0.0.1",
}


def secrets_of(app: str) -> dict[str, Any]:
    """A marked value for every setting of an application that is a secret."""
    fields = type_info(find(app).kind.settings_type).fields  # type: ignore[attr-defined]
    names = [field.name for field in fields if "secret" in (getattr(field.type, "extra", None) or {})]
    assert names, app
    return {name: f"{MARK}-{name}" for name in names}


def settings(folder: Path) -> dict[str, Any]:
    """Settings in which everything that may be secret is."""
    apps = {app: secrets_of(app) for app in APPS}
    apps["quill"] |= dict.fromkeys({*POWERBI} - apps["quill"].keys(), "shop")
    apps["support"]["shopify_url"] = "https://shop.example.com"
    apps["household"]["bot_token"] = f"123456:{MARK}"
    apps["probe"]["broker"] = f"amqp://ann:{MARK}@127.0.0.1:1"
    encryption = {"active": "k1", "keys": {"k1": b64encode(KEY).decode()}}
    return {
        "semel": {"url": f"sqlite:///{folder}/semel.db", "secret": MARK, "encryption": encryption},
        "tokens": {"ops": {"token": MARK, "scopes": ["ops:read", "admin"]}},
        "users": {"bea": {"password": HASH}},
        "apps": apps,
    }


def texts(value: Any) -> Iterator[str]:
    """Everything by which a value could be shown."""
    yield from (repr(value), str(value), f"{value}")
    yield from (repr([value]), repr({"it": value}))
    stream = io.StringIO()
    Console(file=stream, width=10_000).print(value)
    yield stream.getvalue()
    record = logging.makeLogRecord({"msg": "%s", "args": (value,), "it": value})
    yield from (logs.JsonLines().format(record), logs.TextLines().format(record))
    if isinstance(value, Verifier):
        return  # a value that may be sent to another process, with its secret
    try:
        yield pickle.dumps(value, protocol=0).decode("latin-1")
        yield pickle.dumps(value).decode("latin-1")
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing was pickled
        yield str(error)


def given_away(value: Any) -> list[str]:
    return [text[:300] for text in texts(value) if any(secret in text for secret in SHOWN)]


def ours(*roots: Any) -> list[Any]:
    """Every object of a class of semel's that these lead to, one of each class and place."""
    modules = {id(vars(module)) for module in list(sys.modules.values()) if hasattr(module, "__dict__")}
    seen, found, left = set(modules), list[Any](), list(roots)
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type) or type(one).__name__ == "module":
            continue
        seen.add(id(one))
        if type(one).__module__.startswith("semel"):
            found.append(one)
        left += gc.get_referents(one)
    return found


@pytest.mark.situation(62)
def test_nothing_that_the_service_is_made_of_shows_a_secret(tmp_path: Path) -> None:
    configuration = told("")
    configuration.tree.update(settings(tmp_path))
    runtime = Runtime(configuration)
    try:
        made = ours(configuration, runtime, create_app(runtime))
        shown = {type(one).__qualname__: leaks for one in made if (leaks := given_away(one))}
    finally:
        runtime.close()
    kinds = {type(one).__name__ for one in made}
    assert {"ServiceSettings", "TokenSection", "StoreSection", "Realm", "Sessions", "Tokens"} <= kinds
    assert shown == {}


@pytest.mark.situation(62)
@pytest.mark.parametrize(
    "value",
    [
        Credentials("id", MARK, MARK),
        PostgresAddress.from_url(STORES["postgresql"]),
        redis_address(STORES["redis"]),
        endpoint_of(f"amqps://ann:{MARK}@broker"),
        Encryption({"k1": KEY}, "k1"),
        HubSpotV3(MARK),
        StandardWebhooks(b64encode(KEY).decode()),
        PasswordHash(HASH),
        StoreOptions(url=STORES["postgresql"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_nothing_that_holds_a_secret_shows_it(value: Any) -> None:
    assert given_away(value) == []


@pytest.mark.situation(62)
@pytest.mark.parametrize("name", STORES)
def test_no_error_of_a_store_shows_the_password_of_its_url(name: str) -> None:
    with pytest.raises(errors.SemelError) as caught, semel.connect(STORES[name], secret=KEY) as s:
        assert given_away(s) == given_away(s.store) == []
        s.ledger.claim("k", ttl=60)
    error = caught.value
    assert given_away(error) == []
    assert not any(secret in line for line in traceback.format_exception(error) for secret in SHOWN)


@pytest.mark.situation(62)
@pytest.mark.parametrize(
    "path",
    [
        ("semel", "url"),
        ("tokens", "ops", "token"),
        ("users", "bea", "password"),
        ("semel", "encryption", "keys"),
    ],
    ids=".".join,
)
@pytest.mark.parametrize("wrong", [f"oracle://ann:{MARK}@h\n", [MARK], {"a": MARK}], ids=str)
def test_no_error_about_settings_shows_a_secret(tmp_path: Path, path: tuple[str, ...], wrong: Any) -> None:
    configuration = told("")
    configuration.tree.update(settings(tmp_path))
    configuration.put(path, wrong, "the test")
    with pytest.raises(errors.SemelError) as caught:
        runtime = Runtime(configuration)
        try:
            create_app(runtime)
        finally:
            runtime.close()
    assert given_away(caught.value) == []
    assert not any(secret in line for line in traceback.format_exception(caught.value) for secret in SHOWN)


def test_every_file_that_the_service_makes_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    before = os.umask(0o022)
    try:
        runtime = Runtime(Configuration(sample_data.settings(f"sqlite:///{folder}/semel.db"), "the sample"))
        try:
            runtime.s.ledger.claim("k", ttl=60)
            modes = {file.name: file.stat().st_mode & 0o777 for file in folder.rglob("*")}
        finally:
            runtime.close()
    finally:
        os.umask(before)
    assert {"semel.db", "semel.db.key", "quill.db"} <= modes.keys()
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
