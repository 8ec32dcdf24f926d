"""Tables as data: each that a seed describes is as the seed describes it."""

from math import ceil

import pytest

from semel.apps.tables import (
    ACTIVITIES,
    ALCHEMISER,
    MESSAGES,
    PROBE,
    QUILL,
    RESPONSE_COUNTERS,
    SUPPORT_AUDIT,
    SUPPORT_EVENTS,
    SUPPORT_STATE,
    TABLES,
)
from semel.errors import InvalidOption
from semel.provision.shape import create_request, description
from semel.stores.dynamodb.items import ItemFormat, title
from semel.tables import FOREVER, LEDGER, OWN, Kind, Table, known
from semel.tables.mapping import mapped
from semel.tables.powertools import POWERTOOLS

NOW = 1_790_000_000.25


def keys(table):
    """The key attributes with their types, as DynamoDB is told them."""
    request = create_request(table, "prod")
    types = {each["AttributeName"]: each["AttributeType"] for each in request["AttributeDefinitions"]}
    return {each["AttributeName"]: types[each["AttributeName"]] for each in request["KeySchema"]}


def record(table, key, **more):
    """A record of the ledger as it is written into a table that holds it."""
    item = {
        "status": "COMPLETED",
        "token": "t",
        "attempt": 1,
        "fingerprint": "f" * 64,
        "created_at": NOW,
        "updated_at": NOW,
        "lease_until": NOW,
        "expires_at": NOW + 60,
        "version": 1,
    }
    return ItemFormat(LEDGER, table, "prod").item(f"prod//{key}", None, item | more, (NOW, NOW))


# Q: the webhook ledger


@pytest.mark.seed("Q1")
def test_quill_is_named_keyed_and_expires_as_its_seed_says(monkeypatch):
    monkeypatch.delenv("DYNAMO_TABLE_NAME", raising=False)
    assert title(QUILL, "prod") == "QuillIdempotencyLedger"
    monkeypatch.setenv("DYNAMO_TABLE_NAME", "Another")
    assert create_request(QUILL, "prod")["TableName"] == "Another"
    assert keys(QUILL) == {"pk": "S"}
    assert description(QUILL, "prod")["TimeToLiveSpecification"] == {
        "Enabled": True,
        "AttributeName": "expiresAt",
    }


@pytest.mark.seed("Q2")
def test_an_item_of_quill_has_the_shape_that_its_seed_gives():
    item = record(QUILL, "ALOWARE:719285063")
    assert item["pk"] == {"S": "ALOWARE:719285063"}
    assert item["seenAt"] == {"S": "2026-09-21T14:13:20.250Z"}
    assert item["expiresAt"] == {"N": str(ceil(NOW + 60))}
    assert item["source"] == {"S": "ALOWARE"}
    assert QUILL.attributes["notes"] is Kind.TEXT


# A: the idempotency service


@pytest.mark.seed("A3")
def test_alchemiser_is_as_its_seed_says(monkeypatch):
    monkeypatch.delenv("IDEMPOTENCY_TABLE_NAME", raising=False)
    assert title(ALCHEMISER, "prod") == "alchemiser-idempotency-keys"
    assert keys(ALCHEMISER) == {"idempotency_key": "S"}
    assert ALCHEMISER.ttl == "expiry_time"
    assert create_request(ALCHEMISER, "prod")["BillingMode"] == "PAY_PER_REQUEST"
    item = record(ALCHEMISER, "k")
    assert item["created_at"] == {"N": str(ceil(NOW))}
    assert item["expiry_time"] == {"N": str(ceil(NOW + 60))}
    monkeypatch.setenv("IDEMPOTENCY_TABLE_NAME", "mine")
    assert title(ALCHEMISER, "prod") == "mine"


# R: the support middleware


@pytest.mark.seed("R1")
def test_the_events_of_support_are_as_their_seed_says():
    assert keys(SUPPORT_EVENTS) == {"event_id": "S"}
    assert SUPPORT_EVENTS.ttl == "expires_at"
    assert SUPPORT_EVENTS.attributes == {
        "created_at": Kind.TEXT,
        "last_processed_at": Kind.TEXT,
        "received_at": Kind.TEXT,
        "expires_at": Kind.NUMBER,
        "status": Kind.TEXT,
        "mode": Kind.TEXT,
        "conversation_id": Kind.TEXT,
        "safe_mode": Kind.FLAG,
        "automation_enabled": Kind.FLAG,
        "source_message_id": Kind.TEXT,
        "payload_sha256": Kind.TEXT,
        "payload_bytes": Kind.NUMBER,
        "intent": Kind.TEXT,
    }
    item = record(SUPPORT_EVENTS, "evt:rp:c:m")
    assert item["event_id"] == {"S": "evt:rp:c:m"}
    assert item["status"] == {"S": "processed"}
    assert item["payload_sha256"] == {"S": "f" * 64}
    assert item["created_at"] == item["last_processed_at"] == {"S": "2026-09-21T14:13:20.250Z"}


@pytest.mark.seed("R2")
def test_the_state_of_a_conversation_is_as_its_seed_says():
    assert keys(SUPPORT_STATE) == {"conversation_id": "S"}
    assert SUPPORT_STATE.ttl == "expires_at"
    # What semel needs besides stands under names of its own.
    own = {"token", "ends", "subject"}
    attributes = {name: kind for name, kind in SUPPORT_STATE.attributes.items() if name not in own}
    assert attributes == {
        "updated_at": Kind.NUMBER,
        "expires_at": Kind.NUMBER,
        "last_processed_at": Kind.TEXT,
        "last_processed_message_id": Kind.TEXT,
        "last_routed_team": Kind.TEXT,
        "last_routing_confidence": Kind.NUMBER,
        "last_intent": Kind.TEXT,
        "risk_flags": Kind.SET,
        "pending_flow": Kind.OBJECT,
        "last_auto_reply": Kind.OBJECT,
        "version": Kind.NUMBER,
    }
    item = ItemFormat(SUPPORT_STATE, SUPPORT_STATE, "prod").item(
        "prod//talk", None, {"updated_at": NOW, "expires_at": NOW}, (NOW, NOW)
    )
    assert item == {
        "conversation_id": {"S": "talk"},
        "updated_at": {"S": "2026-09-21T14:13:20.250Z"},
        "expires_at": {"N": str(ceil(NOW))},
    }


@pytest.mark.seed("R3")
def test_the_audit_of_actions_is_as_its_seed_says():
    assert keys(SUPPORT_AUDIT) == {"conversation_id": "S", "ts_action_id": "S"}
    assert SUPPORT_AUDIT.ttl == "expires_at"
    assert SUPPORT_AUDIT.attributes.keys() - {"subject"} == {
        "action_type",
        "action_payload_redacted",
        "idempotency_key",
        "result",
        "expires_at",
    }


@pytest.mark.seed("R6")
def test_a_table_without_ttl_and_without_a_reason_is_refused():
    with pytest.raises(InvalidOption, match="nothing in it would ever go"):
        Table(name="t", partition="id", attributes={}, expires="expires_at", ttl="")


@pytest.mark.seed("R6")
def test_every_table_has_a_ttl_or_says_why_its_items_stay():
    for table in known():
        assert table.ttl or table.forever, table.name
        assert not (table.ttl and table.forever) or table is LEDGER, table.name


@pytest.mark.seed("R6")
def test_the_names_of_the_support_tables_carry_the_environment():
    for table, name in (
        (SUPPORT_EVENTS, "rp_mw_idempotency"),
        (SUPPORT_STATE, "rp_mw_conversation_state"),
        (SUPPORT_AUDIT, "rp_mw_audit_actions"),
    ):
        assert title(table, "prod") == f"{name}_prod"
        assert title(table, "dev") == f"{name}_dev"


# H: the household


@pytest.mark.seed("H1")
def test_the_activities_of_a_household_are_as_their_seed_says():
    request = create_request(ACTIVITIES, "prod")
    assert keys(ACTIVITIES) == {"chatId": "S", "activityId": "S"}
    assert request["GlobalSecondaryIndexes"] == [
        {
            "IndexName": "userId-timestamp-index",
            "KeySchema": [
                {"AttributeName": "userId", "KeyType": "HASH"},
                {"AttributeName": "timestamp", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
        }
    ]
    types = {each["AttributeName"]: each["AttributeType"] for each in request["AttributeDefinitions"]}
    assert (types["userId"], types["timestamp"]) == ("N", "N")
    assert ACTIVITIES.recoverable


@pytest.mark.seed("H3")
def test_the_counters_of_a_household_are_as_their_seed_says():
    assert keys(RESPONSE_COUNTERS) == {"chatId": "S", "date": "S"}
    assert RESPONSE_COUNTERS.ttl == "ttl"
    assert RESPONSE_COUNTERS.attributes == {
        "count": Kind.NUMBER,
        "updatedAt": Kind.NUMBER,
        "ttl": Kind.NUMBER,
    }
    changes = ItemFormat(RESPONSE_COUNTERS, RESPONSE_COUNTERS, "prod").encode(
        {"updatedAt": NOW, "ttl": NOW}, [], (NOW, NOW)
    )
    assert changes == {"updatedAt": {"S": "2026-09-21T14:13:20.250Z"}, "ttl": {"N": str(ceil(NOW))}}


@pytest.mark.seed("H7")
def test_the_messages_of_a_household_are_sorted_by_a_number():
    assert keys(MESSAGES) == {"chatId": "S", "messageId": "N"}
    assert {"userId", "timestamp"} <= MESSAGES.attributes.keys()


@pytest.mark.seed("H10")
def test_the_names_of_the_household_s_tables_carry_the_environment_or_are_those_of_its_variables(monkeypatch):
    for table, name, variable in (
        (ACTIVITIES, "homeops-activities", "ACTIVITIES_TABLE_NAME"),
        (MESSAGES, "homeops-messages", "MESSAGES_TABLE_NAME"),
        (RESPONSE_COUNTERS, "homeops-response-counters", "RESPONSE_COUNTERS_TABLE_NAME"),
    ):
        monkeypatch.delenv(variable, raising=False)
        assert (title(table, "prod"), title(table, "dev")) == (f"{name}-prod", f"{name}-dev")
        monkeypatch.setenv(variable, name)
        assert create_request(table, "prod")["TableName"] == name
        assert title(table.titled("mine-{env}"), "prod") == "mine-prod"


def test_a_message_of_a_household_has_an_end_in_whole_seconds():
    message = {"userId": 1, "timestamp": 2, "expires_at": NOW}
    written = ItemFormat(MESSAGES, MESSAGES, "prod").item("prod//chat", 7, message, (NOW, NOW))
    assert written["ttl"] == {"N": str(ceil(NOW))}
    assert "expires_at" not in written
    assert description(MESSAGES, "prod")["TimeToLiveSpecification"]["AttributeName"] == "ttl"


def test_only_items_that_may_stay_for_ever_are_written_without_an_end():
    activity = {"userId": 1, "timestamp": 2, "expires_at": FOREVER}
    written = ItemFormat(ACTIVITIES, ACTIVITIES, "prod").item("prod//chat", "01H", activity, (NOW, NOW))
    assert "expires_at" not in written


# M: the message probe


@pytest.mark.seed("M1")
def test_an_item_of_the_probe_has_the_shape_that_its_seed_gives():
    result = b'{"processedMessages":100,"elapsed":"PT2.5S"}'
    item = record(PROBE, "PRODUCE#5c1e0a56", result=result, encoding="json")
    assert title(PROBE, "prod") == "mq-probe-idempotency"
    assert item["pk"] == {"S": "PRODUCE#5c1e0a56"}
    assert item["operationType"] == {"S": "PRODUCE"}
    assert item["idempotencyKey"] == {"S": "5c1e0a56"}
    assert item["status"] == {"S": "COMPLETED"}
    assert item["requestHash"] == {"S": "f" * 64}
    assert item["responsePayload"] == {"S": result.decode()}
    assert item["createdAt"] == item["updatedAt"] == {"S": "2026-09-21T14:13:20.250Z"}
    assert item["expiresAt"] == {"S": "2026-09-21T14:14:20.250Z"}
    assert item["ttl"] == {"N": str(ceil(NOW + 60))}


@pytest.mark.seed("M6")
def test_the_table_of_the_probe_is_as_its_seed_says():
    request = create_request(PROBE, "prod")
    assert request["BillingMode"] == "PAY_PER_REQUEST"
    assert PROBE.ttl == "ttl"
    assert "GlobalSecondaryIndexes" not in request
    assert keys(PROBE) == {"pk": "S"}


# All of them


def test_every_table_of_the_seeds_and_powertools_own_is_known_by_its_name():
    assert [*known()] == [*OWN, POWERTOOLS, *TABLES]


@pytest.mark.parametrize("table", [*known()], ids=lambda table: table.name)
def test_two_tables_never_share_a_name_in_dynamodb(table, monkeypatch):
    for variable in filter(None, (mapped(other).titled_by for other in known())):
        monkeypatch.delenv(variable, raising=False)
    assert [title(other, "prod") for other in known()].count(title(table, "prod")) == 1


@pytest.mark.parametrize("env", ["a b", "prod/eu", "é"])
def test_an_environment_that_cannot_be_part_of_a_name_is_refused(env):
    with pytest.raises(InvalidOption, match="choose another environment"):
        title(LEDGER, env)
