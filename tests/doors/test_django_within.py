"""A transaction of Django's, its rows and what semel writes within it: all of it stands, or none."""

# mypy: disable-error-code="import-untyped"

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import DatabaseError, connections, transaction
from django.db.utils import ConnectionHandler

import semel
import tests.doors.django_site  # noqa: F401 - the settings come before anything of Django's
from semel.stores.postgres import migrate
from tests.servers.postgres import drop

SHOP = "shop"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The URL of a store, and the same database as Django's settings have it."""
    if request.param == "sqlite":
        path = tmp_path / "shop.db"
        yield f"sqlite:///{path}", {"ENGINE": "django.db.backends.sqlite3", "NAME": path}
        return
    url: str = request.getfixturevalue("postgres")
    parts, schema = urlsplit(url), f"w{uuid.uuid4().hex[:12]}"
    joined = f"{url}{'&' if parts.query else '?'}schema={schema}"
    migrate(joined, env="dev")
    yield (
        joined,
        {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.strip("/"),
            "USER": parts.username,
            "PASSWORD": parts.password or "",
            "HOST": parts.hostname,
            "PORT": parts.port,
        },
    )
    with psycopg.connect(url, autocommit=True) as admin:
        drop(admin, schema)


@pytest.fixture
def s(database: tuple[str, dict[str, Any]]) -> Iterator[semel.Semel]:
    with semel.connect(database[0]) as opened:
        opened.ledger.get("anything")  # a file is laid out by the first who asks
        yield opened


@pytest.fixture
def shop(
    s: semel.Semel, database: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A connection of Django's to the store's own database, with a table of orders."""
    made = ConnectionHandler({"default": database[1]}).settings["default"]
    monkeypatch.setitem(connections.settings, SHOP, made)
    connection = connections[SHOP]
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS django_within_orders")
        cursor.execute("CREATE TABLE django_within_orders (id TEXT PRIMARY KEY)")
    yield connection
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE django_within_orders")
    connection.close()
    del connections[SHOP]


def insert(shop: Any, order: str) -> None:
    with shop.cursor() as cursor:
        cursor.execute("INSERT INTO django_within_orders VALUES (%s)", [order])


def orders(shop: Any) -> int:
    with shop.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_within_orders")
        return int(cursor.fetchone()[0])


def seller(s: semel.Semel, shop: Any, fails: list[Exception]) -> Any:
    @s.once("sell:{order}")
    def sell(order: str) -> str:
        with transaction.atomic(using=SHOP):
            insert(shop, order)
            with s.transaction(within=shop.connection) as tx:
                tx.journal.append("shop", {"sold": order})
                tx.documents.put("last", {"order": order})
                tx.ledger.complete(semel.current_run(), f"sold {order}")
            if fails:
                raise fails.pop()
        return "not what is kept"

    return sell


def test_a_commit_of_djangos_keeps_the_rows_and_the_completion(s: semel.Semel, shop: Any) -> None:
    sell = seller(s, shop, [])
    assert [sell("o-1"), sell("o-1")] == ["sold o-1", "sold o-1"]
    assert orders(shop) == 1
    assert [entry.body for entry in s.journal.list("shop").entries] == [{"sold": "o-1"}]
    assert s.ledger.is_processed("sell:o-1")


def test_a_rollback_of_djangos_takes_both_back_and_the_next_call_runs(s: semel.Semel, shop: Any) -> None:
    sell = seller(s, shop, [ValueError("no")])
    with pytest.raises(ValueError, match="no"):
        sell("o-1")
    assert orders(shop) == 0
    assert s.journal.list("shop").entries == ()
    assert s.documents.get("last") is None
    assert not s.ledger.is_processed("sell:o-1")
    assert sell("o-1") == "sold o-1"
    assert orders(shop) == 1


def test_a_row_that_django_refuses_completes_nothing(s: semel.Semel, shop: Any) -> None:
    insert(shop, "o-1")
    sell = seller(s, shop, [])
    with pytest.raises(DatabaseError):
        sell("o-1")
    assert not s.ledger.is_processed("sell:o-1")
    assert s.journal.list("shop").entries == ()


def test_a_savepoint_of_djangos_that_is_rolled_back_takes_what_was_written_in_it(
    s: semel.Semel, shop: Any
) -> None:
    with transaction.atomic(using=SHOP):
        insert(shop, "kept")
        try:
            with transaction.atomic(using=SHOP):
                insert(shop, "dropped")
                s.documents.within(shop.connection).put("state", {"of": "dropped"})
                raise ValueError
        except ValueError:
            pass
        s.journal.within(shop.connection).append("shop", {"kept": True})
    assert orders(shop) == 1
    assert s.documents.get("state") is None
    assert len(s.journal.list("shop").entries) == 1


def test_outside_of_atomic_there_is_no_transaction_to_join(s: semel.Semel, shop: Any) -> None:
    shop.ensure_connection()
    with pytest.raises(semel.UsageError, match="transaction"):
        s.documents.within(shop.connection).put("state", {})
