"""The program in processes of its own, since Django can be set up only once in one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

PROGRAM = Path(__file__).with_name("invoices.py")


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """A database of the example's own, with semel's tables in it."""
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS invoices_example")
        admin.execute("CREATE DATABASE invoices_example")
        url = postgres.rpartition("/")[0] + "/invoices_example"
        semel = [sys.executable, "-m", "semel"]
        subprocess.run([*semel, "provision", "--url", url], cwd="/", check=True, capture_output=True)
        yield url
        admin.execute("DROP DATABASE invoices_example WITH (FORCE)")


def write(database: str, number: str, cents: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, number, str(cents)],
        env=os.environ | {"DATABASE_URL": database},
        capture_output=True,
        text=True,
        check=False,
    )


def rows(database: str) -> list[tuple[str, int]]:
    with psycopg.connect(database) as connection:
        return [(number, cents) for number, cents in connection.execute("SELECT number, cents FROM invoices")]


def test_an_invoice_that_is_asked_for_twice_is_one_row(database: str) -> None:
    first, second = (write(database, "2026-1", 4200) for _ in range(2))
    assert first.stdout == second.stdout == "row 1\n", first.stderr
    assert rows(database) == [("2026-1", 4200)]


def test_an_error_leaves_neither_the_row_nor_the_record(database: str) -> None:
    # A record that was left would answer the second one.
    for _ in range(2):
        assert "ValueError: that much needs a signature" in write(database, "2026-2", 2_000_000).stderr
    assert rows(database) == []
