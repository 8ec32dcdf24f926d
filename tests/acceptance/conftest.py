"""What several tests of PostgreSQL need: a connection that sees everything, and a schema of their own."""

import uuid

import psycopg
import pytest

from tests.servers import postgres as servers


@pytest.fixture
def admin(postgres):
    """A connection that sees everything."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        yield connection


@pytest.fixture
def name(admin):
    """A name for a schema of the test's own."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    servers.drop(admin, name)
