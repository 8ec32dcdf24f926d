"""PostgreSQL's URLs, and what its driver's errors mean."""

import subprocess
import sys

import psycopg
import pytest

from semel import errors
from semel.core.clock import Clock
from semel.stores.postgres import PostgresStore, ddl
from semel.stores.postgres.address import MEANINGS, PostgresAddress, translated, unreachable
from semel.stores.postgres.interpreter import RoundTrip, TransactionConflict
from semel.stores.postgres.statements import QUERIES, channel
from semel.tables import LEDGER
from semel.testing.conformance import TABLES

URL = "postgresql://user:s3cret@db.example:6543/shop"
READING = RoundTrip([], commits=False)
WRITING = RoundTrip([], commits=True)


def test_an_address_is_read_from_a_url():
    address = PostgresAddress.from_url(f"{URL}?schema=semel&pool_size=3&sslmode=require&connect_timeout=2")
    assert (address.schema, address.pool_size, address.prepare_threshold) == ("semel", 3, 5)
    given = psycopg.conninfo.conninfo_to_dict(address.conninfo)
    assert (given["host"], given["port"], given["dbname"], given["password"]) == (
        "db.example",
        "6543",
        "shop",
        "s3cret",
    )
    assert (given["sslmode"], given["connect_timeout"]) == ("require", "2")
    assert "statement_timeout" in str(given["options"])


def test_both_schemes_are_the_same():
    assert PostgresAddress.from_url(URL) == PostgresAddress.from_url(URL.replace("postgresql:", "postgres:"))


def test_what_libpq_decodes_is_decoded_once():
    address = PostgresAddress.from_url("postgresql://u:p%40ss%25@h/d?application_name=a%26b")
    given = psycopg.conninfo.conninfo_to_dict(address.conninfo)
    assert (given["password"], given["application_name"]) == ("p@ss%", "a&b")


def test_behind_a_pooler_nothing_is_asked_of_a_session():
    address = PostgresAddress.from_url(f"{URL}?prepare_threshold=none")
    assert address.prepare_threshold is None
    assert not address.keeps_sessions
    assert "options" not in psycopg.conninfo.conninfo_to_dict(address.conninfo)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:shop",
        "postgresql://h/d?nonsense=1",
        "postgresql://h/d?pool_size=0",
        "postgresql://h/d?pool_size=many",
        "postgresql://h/d?schema=",
        "postgresql://h/d?prepare_threshold=-1",
        "postgresql://[::1/d",
        "mysql://user:s3cret@h/d",
    ],
)
def test_a_url_that_is_wrong_is_refused_with_a_right_one(url):
    with pytest.raises(
        errors.InvalidOption, match=r"postgresql://user:password@host:5432/database"
    ) as caught:
        PostgresStore.from_url(url, env="test", clock=Clock())
    assert "s3cret" not in str(caught.value)


def test_no_password_is_shown():
    address = PostgresAddress.from_url(f"{URL}?schema=semel")
    assert "s3cret" not in repr(address)
    assert address.shown == "postgresql://user@db.example:6543/shop?schema=semel"
    assert "s3cret" not in str(unreachable(psycopg.OperationalError("refused"), address))


def test_making_a_store_connects_to_nothing():
    PostgresStore.from_url("postgresql://127.0.0.1:1/nowhere", env="test", clock=Clock()).close()


def server_said(code):
    """An error with a code of the server's."""
    return type("Answered", (psycopg.Error,), {"sqlstate": code})("it said so")


@pytest.mark.parametrize(
    ("code", "trip", "kind"),
    [
        (None, READING, errors.StoreUnavailable),
        (None, WRITING, errors.StoreOutcomeUnknown),
        ("57P01", READING, errors.StoreUnavailable),
        ("57P01", WRITING, errors.StoreOutcomeUnknown),
        ("08006", WRITING, errors.StoreOutcomeUnknown),
        ("25P03", WRITING, errors.StoreOutcomeUnknown),
        ("57014", WRITING, errors.StoreUnavailable),
        ("57014", RoundTrip([], commits=True, partial=True), errors.StoreOutcomeUnknown),
        ("40P01", WRITING, TransactionConflict),
        ("40001", RoundTrip([], commits=True, partial=True), TransactionConflict),
        ("53100", WRITING, errors.StoreUnavailable),
        ("25006", WRITING, errors.StoreUnavailable),
        ("42P01", WRITING, errors.TableMissing),
        ("3D000", READING, errors.TableMissing),
        ("42703", WRITING, errors.WrongSchema),
        ("42501", WRITING, errors.NotPermitted),
        ("26000", WRITING, errors.StoreError),
        ("22001", WRITING, errors.UsageError),
        ("54000", WRITING, errors.UsageError),
        ("XX000", WRITING, errors.StoreError),
    ],
)
def test_what_an_error_means(code, trip, kind):
    """A write is in doubt only where nobody can know: the server said nothing, or something went before."""
    told = translated(server_said(code), PostgresAddress.from_url(URL), trip)
    assert type(told) is kind
    assert "db.example:6543/shop" in str(told)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ('FATAL:  password authentication failed for user "u"', errors.NotPermitted),
        ("fe_sendauth: no password supplied", errors.NotPermitted),
        ('FATAL:  role "u" does not exist', errors.NotPermitted),
        (
            'FATAL:  no pg_hba.conf entry for host "h", user "u", database "d", no encryption',
            errors.NotPermitted,
        ),
        ('FATAL:  database "d" does not exist', errors.TableMissing),
        ('FATAL:  too many connections for role "u"', errors.StoreUnavailable),
        ("FATAL:  the database system is starting up", errors.StoreUnavailable),
        ("connection refused", errors.StoreUnavailable),
    ],
)
def test_why_there_is_no_connection(words, kind):
    told = unreachable(psycopg.OperationalError(words), PostgresAddress.from_url(URL))
    assert type(told) is kind
    assert "db.example:6543/shop" in str(told)


def test_every_advice_is_for_a_code_of_the_server():
    assert all(len(code) == 5 for code in MEANINGS)


def test_a_channel_is_the_schemas_own():
    assert channel(None) == "semel"
    assert channel("shop") == "semel_shop"
    assert len(channel("ü" * 60).encode()) <= 63


# The text


def test_the_text_is_one_transaction():
    text = ddl(TABLES, "prod")
    assert text.startswith("BEGIN;")
    assert text.endswith("COMMIT;\n")
    assert "('schema', '1'::text), ('environment', 'prod'::text)" in text
    for name in (LEDGER.name, "documents", "journal", *(table.name for table in TABLES)):
        assert f'CREATE TABLE IF NOT EXISTS "semel_{name}"' in text


def test_the_text_names_its_schema_where_it_has_one():
    assert "search_path" not in ddl((), "prod")
    assert 'SET LOCAL search_path = "shop";' in ddl((), "prod", schema="shop")


def test_every_query_is_described():
    assert all(text.startswith("-- ") and text.count("-- ") == 1 for text in QUERIES.values())


def test_without_the_driver_the_extra_is_named():
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import semel\n"
        "try:\n    semel.connect('postgresql://h/d')\n"
        "except semel.MissingExtra as error:\n    print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert 'pip install "semel[postgres]"' in said
