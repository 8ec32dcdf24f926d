"""What the benchmarks compare semel with does the same job on real servers: the limits, and by hand."""

from functools import partial
from typing import Any

import pytest

from bench import Contender, byhand, charge, prove, raw
from bench.network import dynamodb_client, provision_powertools
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
