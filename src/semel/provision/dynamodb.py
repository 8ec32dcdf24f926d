"""DynamoDB: compare tables with their description, and create or change what differs.

Each difference is found in one place: `problems` reports it, and `provision` fixes it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from semel import errors
from semel.aws.errors import ServiceError
from semel.aws.wire import Transport
from semel.core.clock import Clock
from semel.model import PROVISION, Problem
from semel.provision import shape
from semel.provision.shape import TableRequest
from semel.stores.dynamodb.steps import stamped_otherwise
from semel.tables import Table

Say: TypeAlias = Callable[[str], None]

# A table takes seconds to become ACTIVE; only a new index of a large table takes longer than this.
PATIENCE = 600.0
POLL = 1.0

MISSING = "ResourceNotFoundException"
DENIED = "AccessDeniedException"
REFUSED = "ConditionalCheckFailedException"
# What local engines answer to an operation that they do not have.
UNKNOWN = "UnknownOperationException"
ALLOW = "allow it, as semel provision --print iam --role operator does"
# After these a table or an index has to become ACTIVE.
SETTLING = frozenset({"CreateTable", "UpdateTable", "DescribeTable"})
# Backups start a moment after their table; one index is created at a time.
NOT_YET = frozenset({"ContinuousBackupsUnavailableException", "ResourceInUseException"})
# Another process has created the table, or turned TTL on, in the meantime.
ALREADY = frozenset({"ResourceInUseException", "ValidationException"})

INDEXES, THROUGHPUT = "GlobalSecondaryIndexes", "ProvisionedThroughput"
# A condition that never holds: a write without permission is denied, and one with permission writes nothing.
NEVER = "attribute_exists(#key) AND attribute_not_exists(#key)"
# Keys that no item has, of each type.
NOBODY = {"S": {"S": "semel:nobody"}, "N": {"N": "-1"}, "B": {"B": "AA=="}}

# What each request that creates a table does.
DID = {
    "CreateTable": "made table {title}",
    "UpdateTimeToLive": "enabled TTL on {ttl} of {title}",
    "UpdateContinuousBackups": "enabled point-in-time recovery of {title}",
    "PutItem": "stamped {title} for environment {env}",
}


class ProvisionStep(msgspec.Struct, frozen=True):
    """A request that changes a table, or waits for a change, and what it did."""

    title: str
    operation: str
    request: TableRequest
    did: str


class Finding(msgspec.Struct, frozen=True):
    """A difference, with the steps that fix it or a remedy for the operator."""

    what: str
    remedy: str = PROVISION
    steps: tuple[ProvisionStep, ...] = ()
    error: errors.SemelError | None = None
    """Why nothing may be changed here."""


def problems(client: Transport, tables: Iterable[Table], env: str) -> list[Problem]:
    """Report what is wrong with these tables and with the permissions; nothing is changed."""
    return [Problem(each.what, each.remedy) for each in _survey(client, tables, env, compare, probe)]


def expiry_problems(client: Transport, tables: Iterable[Table], env: str) -> list[Problem]:
    """Report what is wrong with the TTL of these tables, with one request for each."""
    return [Problem(each.what, each.remedy) for each in _survey(client, tables, env, _compare_ttl)]


def provision(
    client: Transport, tables: Iterable[Table], env: str, *, clock: Clock, say: Say = lambda _: None
) -> list[str]:
    """Create and change tables as described, and return what was done; a refusal comes before any change."""
    findings = _survey(client, tables, env, compare)
    for finding in findings:
        if finding.error is not None:
            raise finding.error
    for finding in findings:
        if not finding.steps:
            say(f"Left as it is: {finding.what}. To change it: {finding.remedy}")
    runner = StepRunner(client, env, clock, say)
    return [did for finding in findings for step in finding.steps if (did := runner.run(step))]


# Comparing


class TableSurvey:
    """A table as it should be and as the server shows it, and the differences found so far."""

    def __init__(self, client: Transport, table: Table, env: str) -> None:
        self.env = env
        self.requests: dict[str, TableRequest] = shape.requests(table, env)
        self.wanted: TableRequest = self.requests["CreateTable"]
        self.title: str = self.wanted["TableName"]
        self.stamp_key: TableRequest = shape.stamp_key(table, env)
        self.findings: list[Finding] = []
        self.denied: set[str] = set()
        """The operations that these credentials may not do."""
        self._client = client

    def ask(self, operation: str, **request: Any) -> dict[str, Any]:
        """Return the reply to a request that changes nothing, empty if there is none."""
        named = request if "ResourceArn" in request else {"TableName": self.title, **request}
        try:
            return self._client.call(operation, named, write=False)
        except ServiceError as error:
            if error.code == DENIED:
                self._forbid(operation)
            elif error.code not in {MISSING, REFUSED, UNKNOWN}:
                raise
            return {}

    def _forbid(self, operation: str) -> None:
        what = f"these credentials may not dynamodb:{operation}"
        ttl = operation == "DescribeTimeToLive"
        what = f"TTL of {self.title} is not known: {what}" if ttl else f"{what} on {self.title}"
        if operation not in self.denied:
            self.add_obstacle(what, ALLOW, errors.NotPermitted(f"{what}: {ALLOW}"))
        self.denied.add(operation)

    def add(self, what: str, *steps: ProvisionStep, remedy: str = PROVISION) -> None:
        """Add a difference that steps or the operator can fix."""
        self.findings.append(Finding(what, remedy, steps))

    def add_obstacle(self, what: str, remedy: str, error: errors.SemelError | None = None) -> None:
        """Add a difference that the operator has to fix before anything is changed."""
        self.findings.append(Finding(what, remedy, error=error or errors.WrongSchema(f"{what}; {remedy}")))

    def creation(self, operation: str) -> ProvisionStep:
        """Return one of the requests that create a table."""
        request = self.requests[operation]
        ttl = request.get("TimeToLiveSpecification", {}).get("AttributeName")
        did = DID[operation].format(title=self.title, env=self.env, ttl=ttl)
        return ProvisionStep(self.title, operation, request, did)

    @cached_property
    def found(self) -> dict[str, Any]:
        """The server's description, empty if there is none."""
        described: dict[str, Any] = self.ask("DescribeTable").get("Table", {})
        return described

    @property
    def keys(self) -> tuple[str, str]:
        """The table's key as it is and as it should be, in words."""
        return _key_text(self.found or self.wanted), _key_text(self.wanted)

    @property
    def indexes(self) -> dict[str, dict[str, Any]]:
        """The indexes that exist, by name, without those that are being deleted."""
        listed = self.found.get(INDEXES, ())
        return {each["IndexName"]: each for each in listed if each.get("IndexStatus") != "DELETING"}

    @property
    def billing(self) -> str:
        """The billing mode. DynamoDB returns it only for tables that have been on demand."""
        mode: str = self.found.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
        return mode


def _survey(
    client: Transport, tables: Iterable[Table], env: str, *looks: Callable[[TableSurvey], None]
) -> list[Finding]:
    """Return what is found in each table, with the permissions that are missing."""
    surveys = [TableSurvey(client, table, env) for table in tables]
    for survey in surveys:
        for look in looks:
            look(survey)
    return [finding for survey in surveys for finding in survey.findings]


def compare(survey: TableSurvey) -> None:
    """Find every difference between a table and its description."""
    if not survey.found and not survey.denied:
        survey.add(f"there is no table {survey.title}", *map(survey.creation, survey.requests))
        return
    if survey.keys[0] == survey.keys[1]:
        _compare_stamp(survey)
    if survey.found:
        _compare_key(survey)
        _compare_indexes(survey)
        _compare_billing(survey)
    _compare_ttl(survey)
    _compare_recovery(survey)
    _compare_tags(survey)


def _compare_stamp(survey: TableSurvey) -> None:
    stamp = survey.ask("GetItem", Key=survey.stamp_key, ConsistentRead=True).get("Item")
    if stamp is None and "GetItem" not in survey.denied:
        survey.add(f"{survey.title} is not stamped for any environment", survey.creation("PutItem"))
    error = None if stamp is None else stamped_otherwise(stamp, survey.env)
    if isinstance(error, errors.WrongEnvironment):
        remedy = f"use --env {error.stamped}, or name another table for {survey.env}"
        survey.add_obstacle(f"{survey.title} belongs to environment {error.stamped!r}", remedy, error)
    elif error is not None:
        survey.add_obstacle(f"{survey.title}: {error}", "upgrade semel", error)


def _types(described: dict[str, Any]) -> dict[str, str]:
    return {each["AttributeName"]: each["AttributeType"] for each in described["AttributeDefinitions"]}


def _key_text(described: dict[str, Any], index: dict[str, Any] | None = None) -> str:
    """Write the key of a table, or of an index of it, in words, such as `id (S), at (N)`."""
    types, schema = _types(described), (index or described)["KeySchema"]
    return ", ".join(f"{each['AttributeName']} ({types.get(each['AttributeName'], '?')})" for each in schema)


def _compare_key(survey: TableSurvey) -> None:
    is_now, should = survey.keys
    if is_now != should:
        what = f"{survey.title} has the key {is_now} and should have {should}"
        remedy = "a key cannot be changed: move this table away, or have semel use another name"
        survey.add_obstacle(what, remedy)


def _compare_indexes(survey: TableSurvey) -> None:
    for wanted in survey.wanted.get(INDEXES, ()):
        name = f"index {wanted['IndexName']}"
        index = survey.indexes.get(wanted["IndexName"])
        if index is None:
            did, request = f"made {name} of {survey.title}", _index_request(survey, wanted)
            step = ProvisionStep(survey.title, "UpdateTable", request, did)
            survey.add(f"{survey.title} has no {name}", step)
            continue
        is_now, should = _key_text(survey.found, index), _key_text(survey.wanted, wanted)
        if is_now != should or not _covers(index["Projection"], wanted["Projection"]):
            what = f"{name} of {survey.title} has the key {is_now}, {_projecting(index)}"
            what += f" and should have {should}, {_projecting(wanted)}"
            survey.add_obstacle(what, "delete the index; semel provision then creates it")
        elif index.get("IndexStatus") == "CREATING":  # an earlier run did not wait: a large table takes hours
            did = f"waited until {name} of {survey.title} was made"
            step = ProvisionStep(survey.title, "DescribeTable", {"TableName": survey.title}, did)
            remedy = "wait until it is ACTIVE, as semel provision does"
            survey.add(f"{name} of {survey.title} is still being made", step, remedy=remedy)


def _covers(there: TableRequest, wanted: TableRequest) -> bool:
    """Return whether an index has the attributes that it should have; it may have more."""
    if "ALL" in (there["ProjectionType"], wanted["ProjectionType"]):
        return bool(there["ProjectionType"] == "ALL")
    return {*wanted.get("NonKeyAttributes", ())} <= {*there.get("NonKeyAttributes", ())}


def _projecting(index: TableRequest) -> str:
    projection = index["Projection"]
    return f"projecting {', '.join(projection.get('NonKeyAttributes', [projection['ProjectionType']]))}"


def _index_request(survey: TableSurvey, wanted: TableRequest) -> TableRequest:
    """Return the request for one index: DynamoDB creates one at a time, billed as its table is."""
    types, names = _types(survey.wanted), [each["AttributeName"] for each in wanted["KeySchema"]]
    index = {name: value for name, value in wanted.items() if name != THROUGHPUT}
    if survey.billing == "PROVISIONED":
        units = survey.found[THROUGHPUT]
        index[THROUGHPUT] = {name: units[name] for name in ("ReadCapacityUnits", "WriteCapacityUnits")}
    return {
        "TableName": survey.title,
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": types[name]} for name in names],
        "GlobalSecondaryIndexUpdates": [{"Create": index}],
    }


def _compare_billing(survey: TableSurvey) -> None:
    """Report another billing mode; changing it is the operator's decision."""
    is_now, should = survey.billing, survey.wanted["BillingMode"]
    if is_now != should:
        remedy = f"aws dynamodb update-table --table-name {survey.title} --billing-mode {should}"
        if units := survey.wanted.get(THROUGHPUT):
            remedy += f" --provisioned-throughput {','.join(f'{name}={units[name]}' for name in units)}"
        survey.add(f"{survey.title} is billed {is_now} and should be {should}", remedy=remedy)


def _compare_ttl(survey: TableSurvey) -> None:
    operation, title = "UpdateTimeToLive", survey.title
    reply = survey.ask("DescribeTimeToLive") if operation in survey.requests else {}
    if "TimeToLiveDescription" not in reply:
        return
    wanted = survey.requests[operation]["TimeToLiveSpecification"]["AttributeName"]
    found = reply["TimeToLiveDescription"]
    status, is_now = found.get("TimeToLiveStatus", "DISABLED"), found.get("AttributeName")
    if status == "DISABLED":
        survey.add(f"TTL is off for {title}, so nothing in it ever goes", survey.creation(operation))
    elif status == "DISABLING":
        remedy = f"wait until that is done, which takes up to an hour, then {PROVISION}"
        survey.add_obstacle(f"TTL of {title} is just being turned off", remedy)
    elif is_now != wanted:
        remedy = (
            f"aws dynamodb update-time-to-live --table-name {title} --time-to-live-specification "
            f"Enabled=false,AttributeName={is_now}; an hour later {PROVISION}"
        )
        survey.add_obstacle(f"TTL of {title} is on {is_now} and should be on {wanted}", remedy)


def _compare_recovery(survey: TableSurvey) -> None:
    """Find missing backups, where the server has backups at all."""
    operation = "UpdateContinuousBackups"
    reply = survey.ask("DescribeContinuousBackups") if operation in survey.requests else {}
    if "ContinuousBackupsDescription" not in reply:
        return
    recovery = reply["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    if recovery.get("PointInTimeRecoveryStatus") != "ENABLED":
        survey.add(f"{survey.title} has no point-in-time recovery", survey.creation(operation))


def _compare_tags(survey: TableSurvey) -> None:
    if "Tags" not in survey.wanted or "TableArn" not in survey.found:
        return
    arn = survey.found["TableArn"]
    found = survey.ask("ListTagsOfResource", ResourceArn=arn).get("Tags", ())
    missing = [tag for tag in survey.wanted["Tags"] if tag not in found]
    if missing and "ListTagsOfResource" not in survey.denied:
        words = ", ".join(f"{tag['Key']}={tag['Value']}" for tag in missing)
        request, did = {"ResourceArn": arn, "Tags": missing}, f"tagged {survey.title} with {words}"
        step = ProvisionStep(survey.title, "TagResource", request, did)
        survey.add(f"{survey.title} lacks the tag {words}", step)


def probe(survey: TableSurvey) -> None:
    """Find out what a worker with these credentials may not do. Nothing is written."""
    if not survey.found or survey.keys[0] != survey.keys[1]:
        return
    stamp, key = survey.requests["PutItem"], survey.stamp_key
    never = {"ConditionExpression": NEVER, "ExpressionAttributeNames": stamp["ExpressionAttributeNames"]}
    survey.ask("PutItem", **never, Item=stamp["Item"])
    survey.ask("UpdateItem", **never, Key=key, UpdateExpression="REMOVE semel_probe")
    survey.ask("DeleteItem", **never, Key=key)
    for index in _queryable(survey):
        name = index.pop("KeySchema")[0]["AttributeName"]
        survey.ask(
            "Query",
            **index,
            KeyConditionExpression="#key = :key",
            ExpressionAttributeNames={"#key": name},
            ExpressionAttributeValues={":key": NOBODY[_types(survey.wanted)[name]]},
            Limit=1,
        )


def _queryable(survey: TableSurvey) -> Iterator[TableRequest]:
    """Return the key of the table, if it has pages, and of each index that is ready."""
    if len(survey.wanted["KeySchema"]) > 1:
        yield {"KeySchema": survey.wanted["KeySchema"]}
    for index in survey.wanted.get(INDEXES, ()):
        found = survey.indexes.get(index["IndexName"])
        if found and found.get("IndexStatus") != "CREATING":
            yield {name: index[name] for name in ("IndexName", "KeySchema")}


# Changing


class StepRunner:
    """Sends the requests of steps, and waits until they have taken effect."""

    def __init__(self, client: Transport, env: str, clock: Clock, say: Say) -> None:
        self._client, self._env = client, env
        self._clock, self._say = clock, say

    def run(self, step: ProvisionStep) -> str:
        """Run a step, wait until it has taken effect, and return what it did, or ""."""
        deadline = self._clock.monotonic() + PATIENCE
        while (did := self._send(step)) is None:
            self._pause(deadline, f"Waiting until {step.title} is ready for {step.operation}")
        while step.operation in SETTLING and (status := self._status(step.title)) != "ACTIVE":
            self._pause(deadline, f"Waiting until {step.title} is ACTIVE; it is {status}")
        if did:
            self._say(f"{did[0].upper()}{did[1:]}.")
        return did

    def _send(self, step: ProvisionStep) -> str | None:
        """Return what the step did, "" if there was nothing left to do, or None if it is too early."""
        try:
            # Each of them may be sent twice: the second is refused as done.
            self._client.call(step.operation, step.request, write=False)
        except errors.StoreThrottled:  # too many tables or indexes are being created
            return None
        except ServiceError as error:
            return self._on_refused(step, error)
        return step.did

    def _on_refused(self, step: ProvisionStep, error: ServiceError) -> str | None:
        if error.code == DENIED:
            raise errors.NotPermitted(
                f"these credentials may not dynamodb:{step.operation}: {ALLOW}"
            ) from error
        if error.code == REFUSED and (other := stamped_otherwise(error.item or {}, self._env)):
            raise other from error
        if error.code == UNKNOWN:
            self._say(f"This server has no {step.operation}; a local engine may do without.")
        if error.code in {REFUSED, UNKNOWN} or ("already" in error.message and error.code in ALREADY):
            return ""
        if error.code in NOT_YET:
            return None
        raise error

    def _status(self, title: str) -> str:
        """Return the status of a table and its indexes: ACTIVE only when all of them are."""
        try:
            described = self._client.call("DescribeTable", {"TableName": title}, write=False)["Table"]
        except ServiceError as error:
            if error.code == MISSING:  # a new table is not visible immediately
                return "CREATING"
            raise
        indexes = [each.get("IndexStatus", "ACTIVE") for each in described.get(INDEXES, ())]
        return next((each for each in (described["TableStatus"], *indexes) if each != "ACTIVE"), "ACTIVE")

    def _pause(self, deadline: float, why: str) -> None:
        if self._clock.monotonic() >= deadline:
            raise errors.StoreUnavailable(
                f"{why} took more than {PATIENCE:.0f} s; run semel provision again, and it goes on from here"
            )
        self._say(f"{why} ...")
        self._clock.wait(threading.Event(), POLL)
