"""What the benchmarks compare semel with does the same job on real servers: the limits, and by hand."""

from functools import partial
from typing import Any

import pytest

from bench import Contender, byhand, charge, decisions, prove, raw
from bench.network import dynamodb_client, provision_powertools
from bench.recorded import watch_dynamodb, watch_postgres, watch_redis
from bench.servers import ENVIRONMENT, provision, url_of

CHARGED = {"id": "ch_1", "amount": 4200}


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def proven(opened):
    prove(Contender("by hand", opened))


def test_by_hand_on_dynamodb_runs_the_effect_once(dynoxide):
    table = provision_powertools(url_of("DynamoDB", dynoxide))
    proven(partial(byhand.open_dynamodb, table=table, client=partial(dynamodb_client, dynoxide)))


def test_by_hand_on_redis_runs_the_effect_once(redis_server):
    proven(partial(byhand.open_redis, server=redis_server))


def test_by_hand_on_postgresql_runs_the_effect_once(postgres):
    pytest.importorskip("psycopg_pool")
    proven(partial(byhand.open_postgres, server=postgres))


def test_a_raw_socket_is_signed_well_enough_to_claim_complete_and_be_refused(dynoxide):
    url = url_of("DynamoDB", dynoxide)
    provision(url)
    with raw.open_dynamodb(charge, url=url, endpoint=dynoxide) as pair:
        assert pair.first() == CHARGED
        assert "COMPLETED" in str(pair.replay())


def test_a_raw_socket_gets_the_record_from_redis(redis_server):
    url = url_of("Redis", redis_server)
    provision(url)
    with raw.open_redis(charge, url=url) as pair:
        assert pair.first() == CHARGED
        assert "COMPLETED" in str(pair.replay())


def test_libpq_alone_gets_the_record_from_postgresql(postgres):
    url = url_of("PostgreSQL", postgres)
    provision(url)
    with raw.open_postgres(charge, url=url) as pair:
        assert pair.first() == CHARGED
        refused: Any = pair.replay()
        assert refused.ntuples == 1


# Decisions of the gate: four rows each


def test_a_raw_decision_on_postgresql_is_four_rows(postgres):
    import psycopg

    url = url_of("PostgreSQL", postgres)
    provision(url)
    tables = ("ledger", "documents", "counters", "journal")
    with (
        psycopg.connect(postgres, autocommit=True) as admin,
        decisions.open_raw_postgres(url, watch_postgres) as decide,
    ):

        def counted():
            return [
                admin.execute(f"SELECT count(*) FROM bench.semel_{table}").fetchall()[0][0]
                for table in tables
            ]

        before = counted()
        decide()
        decide()
        assert counted() == [count + 2 for count in before]


def test_a_raw_decision_on_redis_leaves_as_much_each_time(redis_server):
    import redis

    url = url_of("Redis", redis_server)
    provision(url)
    with redis.Redis.from_url(redis_server) as admin, decisions.open_raw_redis(url, watch_redis) as decide:
        sizes = [admin.dbsize()]
        for _ in range(2):
            decide()
            sizes.append(admin.dbsize())
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    assert first == second >= 4


def test_a_raw_decision_on_dynamodb_is_a_record_and_a_document(dynoxide):
    url = url_of("DynamoDB", dynoxide)
    provision(url)
    client = dynamodb_client(dynoxide)
    with decisions.open_raw_dynamodb(url, dynoxide, watch_dynamodb) as decide:

        def counted():
            names = ("semel-bench-ledger", "semel-bench-documents")
            return [client.scan(TableName=name, Select="COUNT")["Count"] for name in names]

        before = counted()
        decide()
        assert counted() == [count + 1 for count in before]
    client.close()
