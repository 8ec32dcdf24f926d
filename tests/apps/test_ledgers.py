"""One meaning of a URL: the service, a function on Lambda and a command open the same ledger of an app."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import semel
from semel import errors
from semel.apps import sections
from semel.apps.keyfile import StoreSecrets
from semel.apps.ledgers import binding, tables_of
from semel.apps.registry import APPS, deployment, find
from semel.apps.sections import StoreSection
from semel.apps.tables import ACTIVITIES, MESSAGES, PROBE, QUILL, RESPONSE_COUNTERS
from semel.core.codecs import Encryption
from semel.service.runtime import Runtime
from semel.stores.dynamodb.items import title
from semel.tables import DOCUMENTS, INBOX, JOURNAL, LEDGER, OWN
from tests.places import CREDENTIALS
from tests.service.echo import Echo
from tests.service.kit import told

SECRET = "a secret of the tests, 32 bytes."
SETTINGS = {
    "quill": {"aloware_token": "token-of-aloware-x"},
    "support": {"webhook_token": "token-of-richpanel-x"},
    "household": {"secret_token": "token-of-telegram-x"},
    "probe": {"token": "token-of-the-probe-x"},
}
URLS = [
    "dynamodb://eu-north-1",
    "dynamodb://eu-north-1?layout=quill",
    "dynamodb://eu-north-1/mine?layout=quill",
    "dynamodb:",
    "memory:",
]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DYNAMO_TABLE_NAME", raising=False)


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of an app's function, but for the URL."""
    found = {"SEMEL_ENV": "prod", "SEMEL_SECRET": SECRET}
    for app, settings in SETTINGS.items():
        found |= {f"SEMEL_APPS__{app}__{name}".upper(): value for name, value in settings.items()}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def shown(s: semel.Semel) -> tuple[Any, ...]:
    """What tells one ledger from another: the table, the scope, the secret and the key of encryption."""
    codec, store = s._shared.codec, s.store
    table = title(store._plan(LEDGER).layout.kept, s.env) if hasattr(store, "_plan") else ""
    active = None if codec.encryption is None else codec.encryption.active
    return type(store).__name__, table, s.env, s.scope, s.fingerprint("payload"), active


@pytest.fixture
def functions(app: str) -> Iterator[Any]:
    found = import_module(f"semel.apps.{app}.aws_lambda").FUNCTIONS
    yield found
    found.close()


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("app", APPS)
def test_a_url_gives_an_apps_function_the_ledger_that_it_gives_the_service(
    app: str, url: str, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, functions: Any
) -> None:
    monkeypatch.setenv("SEMEL_URL", url)
    runtime = Runtime(told("", environ | {"SEMEL_URL": url}), (app,))
    [mounted] = runtime.apps
    try:
        assert shown(functions.s) == shown(mounted.s)
    finally:
        runtime.close()


def test_in_dynamodb_each_app_of_the_seeds_has_its_own_ledger_and_others_have_a_scope() -> None:
    store = StoreSection(url="dynamodb://eu-north-1/mine?endpoint=http://127.0.0.1:8000", env="prod")
    bound = {app: binding(app, store, StoreSecrets()) for app in (*APPS, "mine", "")}
    at = "dynamodb://eu-north-1?endpoint=http%3A%2F%2F127.0.0.1%3A8000"
    assert {app: (one.url, one.scope) for app, one in bound.items()} == {
        "quill": (f"{at}&layout=quill", ""),
        "support": (f"{at}&layout=support-events", ""),
        "household": (store.url, ""),
        "probe": (f"{at}&layout=probe", ""),
        "mine": (store.url, "mine"),
        "": (store.url, ""),
    }
    assert (
        binding("household", StoreSection(url="dynamodb://x?layout=quill"), StoreSecrets()).url
        == "dynamodb://x"
    )


class Mine(Echo):
    ledger_table = PROBE


def test_an_app_of_ones_own_has_the_ledger_that_its_class_names() -> None:
    for url, named in (("dynamodb:", ("dynamodb://?layout=probe", "")), ("memory:", ("memory:", "mine"))):
        bound = binding("mine", StoreSection(url=url), StoreSecrets(), {"at": f"{__name__}:Mine"})
        assert (bound.url, bound.scope) == named


def test_only_in_dynamodb_an_app_is_imported_and_what_it_lacks_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lacking.py").write_text("raise ModuleNotFoundError(name='httpx')")
    monkeypatch.syspath_prepend(tmp_path)
    section = {"at": "lacking:Lacking"}
    assert binding("mine", StoreSection(url="sqlite:///x.db"), StoreSecrets(), section).scope == "mine"
    with pytest.raises(errors.InvalidOption, match=r'httpx is not installed: pip install "semel\[apps\]"'):
        binding("mine", StoreSection(url="dynamodb:"), StoreSecrets(), section)


def test_elsewhere_apps_share_the_store_and_each_has_its_scope() -> None:
    for url in ("sqlite:///semel.db", "postgresql://localhost/shop", "redis://localhost"):
        assert [binding(app, StoreSection(url=url), StoreSecrets()).scope for app in (*APPS, "mine", "")] == [
            *APPS,
            "mine",
            "",
        ]


def test_what_others_read_as_json_is_not_encrypted_and_everything_else_is() -> None:
    secrets = StoreSecrets(SECRET.encode(), Encryption.from_secret(SECRET.encode()))
    for app in (*APPS, "mine"):
        sealed = binding(app, StoreSection(url="dynamodb:"), secrets).encryption
        assert (sealed is None) == (app == "probe"), app
        assert binding(app, StoreSection(url="memory:"), secrets).encryption is not None
    powertools = StoreSection(url="dynamodb://?layout=powertools")
    assert binding("", powertools, secrets).encryption is None


# Tables


@pytest.mark.parametrize("app", APPS)
def test_in_dynamodb_the_tables_of_an_app_are_those_of_its_deployment(app: str) -> None:
    assert find(app).facts.ledger_table is deployment(app).ledger
    told = deployment(app)
    assert tables_of(app, "dynamodb:", queued=True) == told.tables
    waiting = (INBOX,) if told.queue else ()
    assert tables_of(app, "dynamodb:", queued=False) == (*told.tables, *waiting)


def test_elsewhere_no_table_is_made_for_a_ledger_that_is_the_stores_own() -> None:
    assert tables_of("quill", "postgresql://x", queued=False) == (LEDGER, DOCUMENTS, INBOX)
    household = (LEDGER, DOCUMENTS, JOURNAL, ACTIVITIES, MESSAGES, RESPONSE_COUNTERS)
    assert tables_of("household", "postgresql://x", queued=True) == household
    assert tables_of("mine", "postgresql://x", queued=True) == OWN


def test_a_url_that_names_the_table_of_an_app_says_which_one_is_made() -> None:
    table, _ = tables_of("quill", "dynamodb:///mine?layout=quill", queued=True)
    assert (table.name, table.title) == (QUILL.name, "mine")


def test_nothing_that_is_kept_about_a_store_shows_its_secrets() -> None:
    url = "postgresql://app:hunter2@db.example/shop"
    keys = {"k": "hunter2"}
    store = StoreSection(
        url=url, secret="hunter2", encryption=sections.EncryptionSection(active="k", keys=keys)
    )
    secrets = StoreSecrets(b"hunter2", Encryption.from_secret(b"hunter2 is too short, but for here"))
    assert "hunter2" not in repr((store, secrets, binding("quill", store, secrets)))
