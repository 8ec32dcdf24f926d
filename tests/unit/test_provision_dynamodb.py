"""Provisioning DynamoDB, on answers that a test writes: what is found, done about it, and waited for."""

from collections import deque
from typing import Any

import msgspec
import pytest

from semel.apps.tables import ACTIVITIES, ALCHEMISER, MESSAGES
from semel.aws.errors import ServiceError
from semel.errors import (
    InvalidOption,
    NotPermitted,
    SchemaTooNew,
    StoreThrottled,
    StoreUnavailable,
    WrongEnvironment,
    WrongSchema,
)
from semel.model import PROVISION
from semel.provision import shape
from semel.provision.dynamodb import PATIENCE, POLL, expiry_problems, problems, provision
from semel.stores.dynamodb.items import title
from semel.tables import JOURNAL, LEDGER, OWN, SUBJECT, Index, Kind, Table
from semel.tables.mapping import Column, Form, TableMapping, mapped
from semel.testing import FakeClock
from tests.conformance.dynamodb_kit import Told

ENV = "prod"
INDEXES = "GlobalSecondaryIndexes"
WAIT = "wait until it is ACTIVE, as semel provision does"
WRITES = {"CreateTable", "UpdateTable", "UpdateTimeToLive", "UpdateContinuousBackups", "TagResource"}


def refusal(code: str, message: str = "", **body: Any) -> ServiceError:
    return ServiceError(code, message, 400, body)


DENIED = refusal("AccessDeniedException", "User is not authorized")
MISSING = refusal("ResourceNotFoundException", "Requested resource not found")
FAILED = refusal("ConditionalCheckFailedException", "The conditional request failed")


class Service(Told):
    """Answers as a test says: one answer for good, or several one after the other."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(FakeClock())
        self._answers = {
            name: deque(given if isinstance(given, list) else [given]) for name, given in answers.items()
        }
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def call(self, operation: str, request: Any, *, write: bool) -> dict[str, Any]:
        assert write is False, "whatever is sent here is harmless to repeat"
        self.calls.append((operation, request))
        answers = self._answers[operation]
        answer = answers.popleft() if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def did(self) -> list[str]:
        """The operations that changed something, or would have."""
        return [
            name
            for name, request in self.calls
            if name in WRITES or (name == "PutItem" and "AND" not in request["ConditionExpression"])
        ]


def described(table: Table, status: str = "ACTIVE", **other: Any) -> dict[str, Any]:
    """DescribeTable's answer for a table that is as it should be, but for what is said otherwise."""
    made = shape.create_request(table, ENV)
    arn = f"arn:aws:dynamodb:eu-west-1:1:table/{made['TableName']}"
    description = made | {"TableStatus": status, "TableArn": arn}
    description["BillingModeSummary"] = {"BillingMode": made["BillingMode"]}
    for each in description.get("GlobalSecondaryIndexes", ()):
        each["IndexStatus"] = "ACTIVE"
    return {"Table": description | other}


def ttl(status: str, attribute: str | None = None) -> dict[str, Any]:
    named = {} if attribute is None else {"AttributeName": attribute}
    return {"TimeToLiveDescription": {"TimeToLiveStatus": status, **named}}


def pitr(status: str) -> dict[str, Any]:
    recovery = {"PointInTimeRecoveryStatus": status}
    return {"ContinuousBackupsDescription": {"PointInTimeRecoveryDescription": recovery}}


def well(table: Table = LEDGER, /, **otherwise: Any) -> Service:
    """A service that has the table as it should be, but for what is said otherwise."""
    answers = {
        "DescribeTable": described(table),
        "DescribeTimeToLive": ttl("ENABLED", table.ttl) if table.ttl else ttl("DISABLED"),
        "DescribeContinuousBackups": pitr("ENABLED" if mapped(table).recoverable else "DISABLED"),
        "ListTagsOfResource": {"Tags": [{"Key": k, "Value": v} for k, v in mapped(table).tags.items()]},
        "GetItem": {"Item": shape.stamp(table, ENV)},
        "PutItem": FAILED,
        "UpdateItem": FAILED,
        "DeleteItem": FAILED,
        "Query": {"Items": []},
    }
    return Service(**(answers | {key: {} for key in WRITES} | otherwise))


def whats(service: Service, table: Table = LEDGER) -> list[str]:
    return [problem.what for problem in problems(service, [table], ENV)]


def make(
    service: Service, table: Table = LEDGER, clock: FakeClock | None = None, env: str = ENV
) -> list[str]:
    return provision(service, [table], env, clock=clock or FakeClock())


# The requests


def test_a_table_pays_for_each_request_unless_it_says_how_many_it_needs():
    on_demand = shape.create_request(LEDGER, ENV)
    assert on_demand["BillingMode"] == "PAY_PER_REQUEST"
    assert "ProvisionedThroughput" not in on_demand
    paid = TableMapping(
        name="t",
        partition="id",
        attributes={"at": Kind.NUMBER},
        expires="end",
        capacity=(5, 7),
        indexes=(Index(name="by-at", partition="at"),),
    )
    units = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 7}
    request = shape.create_request(paid, ENV)
    assert (request["BillingMode"], request["ProvisionedThroughput"]) == ("PROVISIONED", units)
    assert request["GlobalSecondaryIndexes"][0]["ProvisionedThroughput"] == units


def test_what_cannot_be_a_key_in_dynamodb_is_refused():
    flagged = Table(name="t", partition="id", sort="done", attributes={"done": Kind.FLAG}, expires="end")
    with pytest.raises(InvalidOption, match="'done' is part of a key"):
        shape.create_request(flagged, ENV)


def test_the_stamp_is_an_item_of_every_kind_of_table_and_has_no_end():
    assert shape.stamp(LEDGER, ENV) == {
        "id": {"S": "semel:environment"},
        "environment": {"S": "prod"},
        "schema": {"N": "1"},
    }
    assert shape.stamp_key(ACTIVITIES, ENV) == {
        "chatId": {"S": "semel:environment"},
        "activityId": {"S": "semel"},
    }
    assert shape.stamp_key(MESSAGES, ENV) == {"chatId": {"S": "semel:environment"}, "messageId": {"N": "0"}}


def carrying(*carried: str, sort: str | None = None, everything: bool = False) -> dict[str, Any]:
    """The projection of an index that carries these."""
    index = Index(name="i", partition="kind", sort=sort, carries=None if everything else carried)
    attributes = {"kind": Kind.TEXT, "note": Kind.TEXT, "at": Kind.NUMBER}
    table = Table(name="t", partition="id", attributes=attributes, expires="end", indexes=(index,))
    return shape.index(table, index)["Projection"]


def test_an_index_has_at_least_the_end_of_its_items():
    assert carrying(everything=True) == {"ProjectionType": "ALL"}
    assert carrying() == {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["end"]}
    assert carrying("note", "at") == {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["end", "note", "at"]}
    assert carrying("id", "kind", "note", sort="at")["NonKeyAttributes"] == ["end", "note"], "keys are there"


def test_an_index_that_is_sorted_by_the_end_has_only_keys():
    assert carrying(sort="end") == {"ProjectionType": "KEYS_ONLY"}


def test_an_index_goes_by_the_names_and_forms_that_its_table_has():
    table = TableMapping(
        name="t",
        partition="id",
        attributes={"kind": Kind.TEXT, "at": Kind.NUMBER},
        expires="end",
        columns={"at": Column(name="seenAt", form=Form.ISO), "end": Column(name="expiresAt")},
        indexes=(Index(name="i", partition="kind", sort="at", carries=()),),
    )
    request = shape.create_request(table, ENV)
    [index] = request["GlobalSecondaryIndexes"]
    assert index["KeySchema"] == shape.key_schema("kind", "seenAt")
    assert index["Projection"]["NonKeyAttributes"] == ["expiresAt"]
    assert {"AttributeName": "seenAt", "AttributeType": "S"} in request["AttributeDefinitions"]


@pytest.mark.parametrize("table", OWN, ids=lambda table: table.name)
def test_what_names_nobody_is_in_no_index_of_persons(table):
    """The index has only items with a subject, so that a claim without one costs one write."""
    indexes = {each["IndexName"]: each for each in shape.create_request(table, ENV).get(INDEXES, ())}
    if SUBJECT in table.indexes:
        assert indexes["subject"]["KeySchema"] == shape.key_schema("subject", None)
        assert indexes["subject"]["Projection"]["NonKeyAttributes"] == ["expires_at"]
    else:
        assert indexes == {}


# Checking


@pytest.mark.parametrize("table", [LEDGER, ACTIVITIES, ALCHEMISER, MESSAGES], ids=lambda table: table.name)
def test_a_table_that_is_as_it_should_be_has_no_problem(table):
    service = well(table)
    assert problems(service, [table], ENV) == []
    assert service.did() == []
    asked = dict(service.calls)
    assert asked["DescribeTable"] == {"TableName": title(table, ENV)}
    assert asked["GetItem"] == asked["DescribeTable"] | {
        "Key": shape.stamp_key(table, ENV),
        "ConsistentRead": True,
    }
    if mapped(table).tags:
        assert asked["ListTagsOfResource"].keys() == {"ResourceArn"}


def test_a_missing_table_is_one_problem_and_nothing_more_is_asked():
    service = well(DescribeTable=MISSING)
    [problem] = problems(service, [LEDGER], ENV)
    assert (problem.what, problem.remedy) == ("there is no table semel-prod-ledger", PROVISION)
    assert [name for name, _ in service.calls] == ["DescribeTable"]


@pytest.mark.parametrize(
    ("otherwise", "what"),
    [
        ({"GetItem": {}}, "semel-prod-ledger is not stamped for any environment"),
        (
            {"GetItem": {"Item": shape.stamp(LEDGER, "dev")}},
            "semel-prod-ledger belongs to environment 'dev'",
        ),
        (
            {"GetItem": {"Item": shape.stamp(LEDGER, ENV) | {"schema": {"N": "9"}}}},
            "semel-prod-ledger: schema 9 is newer than 1, the newest this version reads; upgrade semel",
        ),
        (
            {"DescribeTimeToLive": ttl("DISABLED")},
            "TTL is off for semel-prod-ledger, so nothing in it ever goes",
        ),
        (
            {"DescribeTimeToLive": ttl("ENABLED", "other")},
            "TTL of semel-prod-ledger is on other and should be on ttl",
        ),
        (
            {"DescribeTimeToLive": ttl("DISABLING", "ttl")},
            "TTL of semel-prod-ledger is just being turned off",
        ),
        (
            {"DescribeTable": described(LEDGER, BillingModeSummary={"BillingMode": "PROVISIONED"})},
            "semel-prod-ledger is billed PROVISIONED and should be PAY_PER_REQUEST",
        ),
        (
            {
                "DescribeTable": described(
                    LEDGER,
                    AttributeDefinitions=[
                        {"AttributeName": "id", "AttributeType": "N"},
                        {"AttributeName": "subject", "AttributeType": "S"},
                        {"AttributeName": "doubt", "AttributeType": "S"},
                        {"AttributeName": "doubt_since", "AttributeType": "N"},
                        {"AttributeName": "failed", "AttributeType": "S"},
                        {"AttributeName": "failed_at", "AttributeType": "N"},
                    ],
                )
            },
            "semel-prod-ledger has the key id (N) and should have id (S)",
        ),
        (
            {"DescribeTable": described(LEDGER, KeySchema=shape.key_schema("id", "at"))},
            "semel-prod-ledger has the key id (S), at (?) and should have id (S)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_difference_is_found(otherwise, what):
    service = well(**otherwise)
    assert whats(service) == [what]
    assert service.did() == []


@pytest.mark.parametrize(
    ("otherwise", "what"),
    [
        (
            {"DescribeContinuousBackups": pitr("DISABLED")},
            "homeops-activities-prod has no point-in-time recovery",
        ),
        (
            {"DescribeTable": described(ACTIVITIES, GlobalSecondaryIndexes=[])},
            "homeops-activities-prod has no index userId-timestamp-index",
        ),
        (
            {
                "DescribeTable": described(
                    ACTIVITIES,
                    GlobalSecondaryIndexes=[
                        shape.index(ACTIVITIES, ACTIVITIES.indexes[0])
                        | {"Projection": {"ProjectionType": "KEYS_ONLY"}}
                    ],
                )
            },
            (
                "index userId-timestamp-index of homeops-activities-prod has the key userId (N), "
                "timestamp (N), projecting KEYS_ONLY and should have userId (N), timestamp (N), "
                "projecting ALL"
            ),
        ),
    ],
    ids=["recovery", "no index", "another index"],
)
def test_every_difference_of_a_table_with_more_to_it_is_found(otherwise, what):
    assert whats(well(ACTIVITIES, **otherwise), ACTIVITIES) == [what]


def test_an_index_that_has_more_than_it_should_is_its_owners_choice():
    richer = described(LEDGER)
    index = richer["Table"][INDEXES][0]
    for projection in (
        {"ProjectionType": "ALL"},
        {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["status", "expires_at"]},
    ):
        index["Projection"] = projection
        assert whats(well(DescribeTable=richer)) == []
    index["Projection"] = {"ProjectionType": "KEYS_ONLY"}
    [what] = whats(well(DescribeTable=richer))
    assert what == (
        "index subject of semel-prod-ledger has the key subject (S), projecting KEYS_ONLY "
        "and should have subject (S), projecting expires_at"
    )


def test_an_index_that_is_missing_or_still_being_made_is_not_asked_anything():
    """DynamoDB would call that a wrong question; the check goes on to the rest."""
    filling = described(JOURNAL)
    del filling["Table"][INDEXES][1]
    filling["Table"][INDEXES][0]["IndexStatus"] = "CREATING"
    service = well(JOURNAL, DescribeTable=filling)
    found = problems(service, [JOURNAL], ENV)
    assert [(problem.what, problem.remedy) for problem in found] == [
        ("index actor-at of semel-prod-journal is still being made", WAIT),
        ("semel-prod-journal has no index subject", PROVISION),
    ]
    assert [request.get("IndexName") for name, request in service.calls if name == "Query"] == [None]


def test_a_missing_tag_is_found():
    service = well(ALCHEMISER, ListTagsOfResource={"Tags": []})
    assert whats(service, ALCHEMISER) == ["alchemiser-idempotency-keys lacks the tag Purpose=Idempotency"]


def test_a_server_that_knows_no_backups_has_no_problem_with_them():
    service = well(ACTIVITIES, DescribeContinuousBackups=refusal("UnknownOperationException"))
    assert whats(service, ACTIVITIES) == []


@pytest.mark.parametrize("operation", ["DescribeTable", "GetItem", "PutItem", "UpdateItem", "DeleteItem"])
def test_what_these_credentials_may_not_do_is_a_problem_that_names_the_action(operation):
    found = problems(well(LEDGER, **{operation: DENIED}), [LEDGER], ENV)
    assert [problem.what for problem in found] == [
        f"these credentials may not dynamodb:{operation} on semel-prod-ledger"
    ]
    assert "--print iam" in found[0].remedy


@pytest.mark.parametrize(
    ("operation", "table"),
    [("DescribeContinuousBackups", ACTIVITIES), ("Query", ACTIVITIES), ("ListTagsOfResource", ALCHEMISER)],
)
def test_so_is_what_only_some_tables_need(operation, table):
    [what] = whats(well(table, **{operation: DENIED}), table)
    assert f"dynamodb:{operation}" in what


@pytest.mark.seed("R6")
@pytest.mark.parametrize("look", [problems, expiry_problems])
def test_where_ttl_may_not_be_asked_for_it_is_not_known(look):
    [problem] = look(well(LEDGER, DescribeTimeToLive=DENIED), [LEDGER], ENV)
    assert problem.what == (
        "TTL of semel-prod-ledger is not known: these credentials may not dynamodb:DescribeTimeToLive"
    )
    assert "--print iam" in problem.remedy


@pytest.mark.seed("R6")
def test_ttl_alone_is_asked_for_with_one_request_a_table():
    service = well(ALCHEMISER, DescribeTimeToLive=ttl("DISABLED"))
    found = expiry_problems(service, [ALCHEMISER, ACTIVITIES], ENV)
    assert [problem.what for problem in found] == [
        "TTL is off for alchemiser-idempotency-keys, so nothing in it ever goes"
    ]
    assert [name for name, _ in service.calls] == ["DescribeTimeToLive"]


def test_where_a_table_may_not_be_described_the_rest_is_still_looked_at():
    service = well(ALCHEMISER, DescribeTable=DENIED, DescribeTimeToLive=ttl("DISABLED"))
    assert whats(service, ALCHEMISER) == [
        "these credentials may not dynamodb:DescribeTable on alchemiser-idempotency-keys",
        "TTL is off for alchemiser-idempotency-keys, so nothing in it ever goes",
    ]
    assert "ListTagsOfResource" not in [name for name, _ in service.calls], "nobody told the table's address"


def test_finding_out_what_may_be_written_writes_nothing():
    service = well()
    problems(service, [LEDGER], ENV)
    probes = [request for name, request in service.calls if name in {"PutItem", "UpdateItem", "DeleteItem"}]
    assert len(probes) == 3
    for request in probes:
        assert request["ConditionExpression"] == "attribute_exists(#key) AND attribute_not_exists(#key)"


def test_pages_and_indexes_are_asked_for_what_is_not_there():
    service = well(ACTIVITIES)
    problems(service, [ACTIVITIES], ENV)
    queries = [request for name, request in service.calls if name == "Query"]
    assert [query.get("IndexName") for query in queries] == [None, "userId-timestamp-index"]
    assert [query["ExpressionAttributeValues"][":key"] for query in queries] == [
        {"S": "semel:nobody"},
        {"N": "-1"},
    ]


def test_an_error_that_says_nothing_about_the_table_is_no_finding():
    with pytest.raises(ServiceError, match="ValidationException"):
        whats(well(DescribeTimeToLive=refusal("ValidationException", "no")))


# Making


def test_a_missing_table_is_made_given_its_ttl_and_stamped():
    service = well(DescribeTable=[MISSING, described(LEDGER)], PutItem={})
    assert make(service) == [
        "made table semel-prod-ledger",
        "enabled TTL on ttl of semel-prod-ledger",
        "stamped semel-prod-ledger for environment prod",
    ]
    assert service.did() == ["CreateTable", "UpdateTimeToLive", "PutItem"]
    requests = dict(service.calls)
    assert requests["CreateTable"] == shape.create_request(LEDGER, ENV)
    assert requests["PutItem"]["Item"] == shape.stamp(LEDGER, ENV)
    assert requests["PutItem"]["ConditionExpression"] == "attribute_not_exists(#key)"


def test_a_table_that_may_be_recovered_is_made_so():
    service = well(ACTIVITIES, DescribeTable=[MISSING, described(ACTIVITIES)], PutItem={})
    assert "enabled point-in-time recovery of homeops-activities-prod" in make(service, ACTIVITIES)
    assert service.did() == ["CreateTable", "UpdateContinuousBackups", "PutItem"]


@pytest.mark.parametrize("table", [LEDGER, ACTIVITIES, ALCHEMISER], ids=lambda table: table.name)
def test_a_second_run_does_nothing(table):
    service = well(table)
    assert make(service, table) == []
    assert service.did() == []


def test_a_new_table_is_waited_for_on_the_clock():
    clock = FakeClock()
    began = clock.monotonic()
    states = [MISSING, MISSING, *[described(LEDGER, "CREATING")] * 3, described(LEDGER)]
    said: list[str] = []
    service = well(DescribeTable=states, PutItem={})
    provision(service, [LEDGER], ENV, clock=clock, say=said.append)
    assert clock.monotonic() - began == pytest.approx(4 * POLL)
    assert said[0] == "Waiting until semel-prod-ledger is ACTIVE; it is CREATING ..."
    assert said[-3:] == [
        "Made table semel-prod-ledger.",
        "Enabled TTL on ttl of semel-prod-ledger.",
        "Stamped semel-prod-ledger for environment prod.",
    ]


def test_a_new_index_is_waited_for_too():
    bare = described(ACTIVITIES, GlobalSecondaryIndexes=[])
    building = described(ACTIVITIES)
    building["Table"]["GlobalSecondaryIndexes"][0]["IndexStatus"] = "CREATING"
    service = well(ACTIVITIES, DescribeTable=[bare, building, described(ACTIVITIES)])
    assert make(service, ACTIVITIES) == ["made index userId-timestamp-index of homeops-activities-prod"]
    request = dict(service.calls)["UpdateTable"]
    assert request["GlobalSecondaryIndexUpdates"] == [
        {"Create": shape.index(ACTIVITIES, ACTIVITIES.indexes[0])}
    ]
    assert [name for name, _ in service.calls].count("DescribeTable") == 3


def test_a_table_that_was_made_before_it_had_indexes_gets_them_one_at_a_time():
    """Each is waited for before the next is begun, and is asked for with its own attributes only."""
    bare = described(JOURNAL, GlobalSecondaryIndexes=[])
    first, both = described(JOURNAL), described(JOURNAL)
    first["Table"][INDEXES][0]["IndexStatus"] = "CREATING"
    service = well(JOURNAL, DescribeTable=[bare, first, both, first, both])
    assert make(service, JOURNAL) == [
        "made index actor-at of semel-prod-journal",
        "made index subject of semel-prod-journal",
    ]
    names = [name for name, _ in service.calls if name in {"UpdateTable", "DescribeTable"}]
    assert names == ["DescribeTable", *["UpdateTable", "DescribeTable", "DescribeTable"] * 2]
    requests = [request for name, request in service.calls if name == "UpdateTable"]
    defined = [[each["AttributeName"] for each in request["AttributeDefinitions"]] for request in requests]
    assert defined == [["actor", "at"], ["subject"]]
    assert [len(request["GlobalSecondaryIndexUpdates"]) for request in requests] == [1, 1]


def test_an_index_that_somebody_else_is_making_is_waited_for():
    """As an earlier run did, which ran out of patience."""
    filling = described(LEDGER)
    filling["Table"][INDEXES][0]["IndexStatus"] = "CREATING"
    service = well(DescribeTable=[filling, filling, filling, described(LEDGER)])
    assert make(service) == ["waited until index subject of semel-prod-ledger was made"]
    assert service.did() == []


def test_an_index_is_made_when_no_other_one_is_and_when_an_old_one_is_gone():
    """DynamoDB makes one at a time for each table, and says it is too busy for another."""
    deleting = described(LEDGER)
    deleting["Table"][INDEXES][0]["IndexStatus"] = "DELETING"
    said: list[str] = []
    busy = StoreThrottled("Only 1 online index can be created or deleted simultaneously per table")
    service = well(DescribeTable=[deleting, described(LEDGER)], UpdateTable=[busy, busy, {}])
    clock = FakeClock()
    assert provision(service, [LEDGER], ENV, clock=clock, say=said.append) == [
        "made index subject of semel-prod-ledger"
    ]
    assert said[0] == "Waiting until semel-prod-ledger is ready for UpdateTable ..."
    assert service.did() == ["UpdateTable"] * 3


@pytest.mark.parametrize("capacity", [None, (1, 1)])
def test_a_new_index_is_paid_for_as_its_table_is(capacity):
    """Whatever the table should be paid for: DynamoDB takes no other."""
    table = msgspec.structs.replace(mapped(LEDGER), capacity=capacity)
    units = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 7}
    for mode, expected in (("PROVISIONED", units), ("PAY_PER_REQUEST", None)):
        bare = described(
            table,
            GlobalSecondaryIndexes=[],
            BillingModeSummary={"BillingMode": mode},
            ProvisionedThroughput=units | {"NumberOfDecreasesToday": 0},
        )
        service = well(table, DescribeTable=[bare, described(table)])
        make(service, table)
        [update] = dict(service.calls)["UpdateTable"]["GlobalSecondaryIndexUpdates"]
        assert update["Create"].get("ProvisionedThroughput") == expected


def test_a_table_that_never_becomes_active_is_given_up_with_what_to_do():
    clock = FakeClock()
    began = clock.monotonic()
    service = well(DescribeTable=[MISSING, described(LEDGER, "CREATING")])
    with pytest.raises(StoreUnavailable, match="run semel provision again, and it goes on from here"):
        make(service, clock=clock)
    assert clock.monotonic() - began == pytest.approx(PATIENCE)


def test_backups_that_come_a_moment_after_their_table_are_waited_for():
    early = refusal("ContinuousBackupsUnavailableException", "Backups are being enabled for the table")
    service = well(
        ACTIVITIES, DescribeContinuousBackups=pitr("DISABLED"), UpdateContinuousBackups=[early, early, {}]
    )
    assert make(service, ACTIVITIES) == ["enabled point-in-time recovery of homeops-activities-prod"]


def test_what_is_missing_of_a_table_that_is_there_is_added():
    service = well(
        ALCHEMISER,
        DescribeTimeToLive=ttl("DISABLED"),
        ListTagsOfResource={"Tags": []},
        GetItem={},
        PutItem={},
    )
    assert make(service, ALCHEMISER) == [
        "stamped alchemiser-idempotency-keys for environment prod",
        "enabled TTL on expiry_time of alchemiser-idempotency-keys",
        "tagged alchemiser-idempotency-keys with Purpose=Idempotency",
    ]
    assert "CreateTable" not in service.did()


def test_tags_that_are_throttled_are_sent_again():
    said: list[str] = []
    service = well(
        ALCHEMISER, ListTagsOfResource={"Tags": []}, TagResource=[StoreThrottled("Rate exceeded"), {}]
    )
    done = provision(service, [ALCHEMISER], ENV, clock=FakeClock(), say=said.append)
    assert done == ["tagged alchemiser-idempotency-keys with Purpose=Idempotency"]
    assert said[0] == "Waiting until alchemiser-idempotency-keys is ready for TagResource ..."


def test_how_a_table_is_paid_for_is_left_to_its_owner_and_said():
    said: list[str] = []
    service = well(DescribeTable=described(LEDGER, BillingModeSummary={"BillingMode": "PROVISIONED"}))
    assert provision(service, [LEDGER], ENV, clock=FakeClock(), say=said.append) == []
    assert service.did() == []
    assert said == [
        (
            "Left as it is: semel-prod-ledger is billed PROVISIONED and should be PAY_PER_REQUEST. "
            "To change it: aws dynamodb update-table "
            "--table-name semel-prod-ledger --billing-mode PAY_PER_REQUEST"
        )
    ]


def test_a_table_that_should_have_units_is_told_how_to_get_them():
    paid = TableMapping(name="paid", partition="id", attributes={}, expires="end", capacity=(5, 7))
    on_demand = described(paid, BillingModeSummary={"BillingMode": "PAY_PER_REQUEST"})
    [problem] = problems(well(paid, DescribeTable=on_demand), [paid], ENV)
    assert problem.what == "semel-prod-paid is billed PAY_PER_REQUEST and should be PROVISIONED"
    assert problem.remedy.endswith(
        "--billing-mode PROVISIONED --provisioned-throughput ReadCapacityUnits=5,WriteCapacityUnits=7"
    )


def test_a_table_that_never_said_how_it_is_paid_for_has_units():
    """DynamoDB says so only of tables that were on demand at some time."""
    silent = described(LEDGER)
    del silent["Table"]["BillingModeSummary"]
    assert whats(well(DescribeTable=silent)) == [
        "semel-prod-ledger is billed PROVISIONED and should be PAY_PER_REQUEST"
    ]


# Refusing


@pytest.mark.parametrize(
    ("otherwise", "error"),
    [
        ({"GetItem": {"Item": shape.stamp(LEDGER, "dev")}}, WrongEnvironment),
        ({"GetItem": {"Item": shape.stamp(LEDGER, ENV) | {"schema": {"N": "2"}}}}, SchemaTooNew),
        ({"DescribeTable": described(LEDGER, KeySchema=shape.key_schema("key", None))}, WrongSchema),
        ({"DescribeTimeToLive": ttl("ENABLED", "other")}, WrongSchema),
        ({"DescribeTable": DENIED}, NotPermitted),
        ({"GetItem": DENIED}, NotPermitted),
    ],
    ids=["environment", "schema", "key", "ttl", "describe", "read"],
)
def test_what_would_be_refused_is_not_begun(otherwise, error):
    service = well(**otherwise)
    with pytest.raises(error):
        make(service)
    assert service.did() == []


def test_one_table_that_is_refused_keeps_the_others_from_being_begun():
    service = Service(
        DescribeTable=[MISSING, described(ALCHEMISER)],
        DescribeTimeToLive=ttl("ENABLED", ALCHEMISER.ttl),
        ListTagsOfResource={"Tags": []},
        GetItem={"Item": shape.stamp(ALCHEMISER, "dev")},
    )
    with pytest.raises(WrongEnvironment):
        provision(service, [LEDGER, ALCHEMISER], ENV, clock=FakeClock())
    assert service.did() == []


def test_a_stamp_that_somebody_else_sets_meanwhile_decides():
    theirs = refusal("ConditionalCheckFailedException", "no", Item=shape.stamp(LEDGER, "dev"))
    with pytest.raises(WrongEnvironment, match="'dev'"):
        make(well(GetItem={}, PutItem=theirs))
    ours = refusal("ConditionalCheckFailedException", "no", Item=shape.stamp(LEDGER, ENV))
    assert make(well(GetItem={}, PutItem=ours)) == []


def test_a_table_that_somebody_else_makes_meanwhile_is_theirs_and_is_finished():
    exists = refusal("ResourceInUseException", "Table already exists: semel-prod-ledger")
    on = refusal("ValidationException", "TimeToLive is already enabled")
    service = well(
        DescribeTable=[MISSING, described(LEDGER)], CreateTable=exists, UpdateTimeToLive=on, PutItem={}
    )
    assert make(service) == ["stamped semel-prod-ledger for environment prod"]


def test_a_write_that_is_not_permitted_is_named():
    service = well(DescribeTable=MISSING, CreateTable=DENIED)
    with pytest.raises(NotPermitted, match="dynamodb:CreateTable: allow it, as semel provision --print iam"):
        make(service)


def test_any_other_refusal_of_a_write_is_raised_as_it_is():
    service = well(DescribeTimeToLive=ttl("DISABLED"), UpdateTimeToLive=refusal("ValidationException", "no"))
    with pytest.raises(ServiceError, match="ValidationException: no"):
        make(service)


def test_a_server_without_backups_is_told_of_and_not_said_to_have_them():
    said: list[str] = []
    service = well(
        ACTIVITIES,
        DescribeTable=[MISSING, described(ACTIVITIES)],
        UpdateContinuousBackups=refusal("UnknownOperationException"),
        PutItem={},
    )
    done = provision(service, [ACTIVITIES], ENV, clock=FakeClock(), say=said.append)
    assert done == [
        "made table homeops-activities-prod",
        "stamped homeops-activities-prod for environment prod",
    ]
    assert "This server has no UpdateContinuousBackups; a local engine may do without." in said
