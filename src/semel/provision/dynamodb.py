"""DynamoDB: existing tables, how they differ from their definition, and how to fix that.

Differences are found once, in `findings`: `problems` reports them and `provision` mends them.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

import msgspec

from semel.aws.errors import ServiceError
from semel.core.clock import Clock
from semel.errors import (
    NotPermitted,
    SchemaTooNew,
    SemelError,
    StoreThrottled,
    StoreUnavailable,
    WrongEnvironment,
    WrongSchema,
)
from semel.model import PROVISION, Problem
from semel.provision import shape
from semel.provision.shape import TableRequest
from semel.stores.dynamodb.layout import SCHEMA, title
from semel.tables import Index, Table

Say: TypeAlias = Callable[[str], None]

# A table takes seconds to become ACTIVE; only a new index of a large table takes longer than this.
PATIENCE = 600.0
POLL = 1.0

MISSING = "ResourceNotFoundException"
DENIED = "AccessDeniedException"
ASK_TTL = "DescribeTimeToLive"
ALLOW = "allow it, as semel provision --print iam --role operator does"
# What local engines answer to an operation that they do not have.
UNKNOWN = "UnknownOperationException"
# Tables and indexes take their time.
SETTLING = frozenset({"CreateTable", "UpdateTable", "DescribeTable"})
# A new table's backups come a moment after the table; an index is made while no other one is.
NOT_YET = frozenset({"ContinuousBackupsUnavailableException", "ResourceInUseException"})
# How it says that somebody else has made the table, or turned TTL on, in the meantime.
ALREADY = frozenset({"ResourceInUseException", "ValidationException"})

PROVISIONED = "PROVISIONED"
UNITS = ("ReadCapacityUnits", "WriteCapacityUnits")

# A condition that never holds: whoever may not write is told so, and whoever may writes nothing.
NEVER = "attribute_exists(#key) AND attribute_not_exists(#key)"
# Keys that nobody uses, of each type.
NOBODY = {"S": {"S": "semel:nobody"}, "N": {"N": "-1"}, "B": {"B": "AA=="}}


class ServiceClient(Protocol):
    """What is asked of a transport here."""

    def call(self, operation: str, request: TableRequest, *, write: bool) -> dict[str, Any]:
        """The answer to an operation."""
        ...


class ProvisionStep(msgspec.Struct, frozen=True):
    """A request that changes something or waits for what does, and what it did."""

    operation: str
    request: TableRequest
    did: str


class Finding(msgspec.Struct, frozen=True):
    """How a table differs, and what mends it: steps of ours, or somebody else."""

    what: str
    remedy: str = PROVISION
    steps: tuple[ProvisionStep, ...] = ()
    error: SemelError | None = None
    """Why nothing may be changed here."""


class TableSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """A table as it was found."""

    table: Table
    env: str
    missing: bool = False
    description: dict[str, Any] = {}
    """Empty where nobody tells."""
    ttl: dict[str, Any] | None = None
    recoverable: bool | None = None
    """None where the server does not know the word, or does not tell."""
    tags: dict[str, str] = {}
    stamp: dict[str, Any] | None = None
    denied: tuple[str, ...] = ()
    """The operations that these credentials may not do."""

    @property
    def title(self) -> str:
        """The table's name in DynamoDB."""
        return title(self.table, self.env)

    @property
    def keys(self) -> tuple[str, str]:
        """The table's key as it is and as it should be, in words."""
        wanted = shape.create_request(self.table, self.env)
        found = self.description or wanted
        return _key_text(found["KeySchema"], _types(found)), _key_text(wanted["KeySchema"], _types(wanted))

    @property
    def indexes(self) -> dict[str, dict[str, Any]]:
        """The indexes that are there, by name; one that is being deleted is as good as gone."""
        listed = self.description.get("GlobalSecondaryIndexes", ())
        return {each["IndexName"]: each for each in listed if each.get("IndexStatus") != "DELETING"}

    @property
    def filling(self) -> set[str]:
        """The indexes that cannot be asked yet, as they are still being made."""
        return {name for name, each in self.indexes.items() if each.get("IndexStatus") == "CREATING"}

    @property
    def billing(self) -> str:
        """How the table is paid for; DynamoDB says so only of tables that were on demand at some time."""
        mode: str = self.description.get("BillingModeSummary", {}).get("BillingMode", PROVISIONED)
        return mode

    @property
    def keyed(self) -> bool:
        """Whether items can be looked for; they are, too, where nobody tells what the key is."""
        return self.keys[0] == self.keys[1]


# Looking


def survey(client: ServiceClient, table: Table, env: str) -> TableSurvey:
    """Look at a table."""
    reader = TableReader(client, title(table, env))
    description = reader.ask("DescribeTable").get("Table", {})
    if not description and not reader.denied:
        return TableSurvey(table=table, env=env, missing=True)
    found = TableSurvey(
        table=table,
        env=env,
        description=description,
        ttl=reader.ask(ASK_TTL).get("TimeToLiveDescription"),
        recoverable=_recoverable(reader) if table.recoverable else None,
        tags=_tags(reader, description) if table.tags else {},
    )
    stamp = {"Key": shape.stamp_key(table, env), "ConsistentRead": True}
    item = reader.ask("GetItem", stamp).get("Item") if found.keyed else None
    return msgspec.structs.replace(found, stamp=item, denied=tuple(reader.denied))


class TableReader:
    """Asks about one table, and keeps what it may not ask."""

    def __init__(self, client: ServiceClient, title: str) -> None:
        self._client = client
        self._table = {"TableName": title}
        self.denied: list[str] = []

    def ask(self, operation: str, more: TableRequest | None = None, *, named: bool = True) -> dict[str, Any]:
        """An answer, empty where there is none to be had."""
        try:
            return self._client.call(operation, (self._table if named else {}) | (more or {}), write=False)
        except ServiceError as error:
            if error.code == DENIED:
                self.denied.append(operation)
            elif error.code not in {MISSING, "ConditionalCheckFailedException", UNKNOWN}:
                raise
            return {}


def _recoverable(reader: TableReader) -> bool | None:
    backups = reader.ask("DescribeContinuousBackups").get("ContinuousBackupsDescription")
    if backups is None:
        return None
    recovery: dict[str, Any] = backups.get("PointInTimeRecoveryDescription", {})
    return recovery.get("PointInTimeRecoveryStatus") == "ENABLED"


def _tags(reader: TableReader, description: dict[str, Any]) -> dict[str, str]:
    if "TableArn" not in description:
        return {}
    found = reader.ask("ListTagsOfResource", {"ResourceArn": description["TableArn"]}, named=False)
    return {tag["Key"]: tag["Value"] for tag in found.get("Tags", ())}


def probe(client: ServiceClient, found: TableSurvey) -> tuple[str, ...]:
    """The operations of a worker that these credentials may not do; nothing is written to find out."""
    table, reader = found.table, TableReader(client, found.title)
    never = {"ConditionExpression": NEVER, "ExpressionAttributeNames": {"#key": table.partition}}
    key = {"Key": shape.stamp_key(table, found.env)}
    reader.ask("PutItem", never | {"Item": shape.stamp(table, found.env)})
    reader.ask("UpdateItem", never | key | {"UpdateExpression": "REMOVE semel_probe"})
    reader.ask("DeleteItem", never | key)
    for query in _queries(found):
        reader.ask("Query", query)
    return tuple(dict.fromkeys(reader.denied))


def _queries(found: TableSurvey) -> Iterator[TableRequest]:
    """Queries of the table and of those indexes that can be asked, for something that is not there."""
    table = found.table
    if table.sort is not None:
        yield _query(table, table.partition)
    for index in table.indexes:
        if index.name in found.indexes and index.name not in found.filling:
            yield _query(table, index.partition) | {"IndexName": index.name}


def _query(table: Table, partition: str) -> TableRequest:
    return {
        "KeyConditionExpression": "#key = :key",
        "ExpressionAttributeNames": {"#key": shape.column(table, partition).name},
        "ExpressionAttributeValues": {":key": NOBODY[shape.scalar(table, partition)]},
        "Limit": 1,
    }


# Comparing


def findings(found: TableSurvey) -> Iterator[Finding]:
    """Everything in which a table is not as it should be."""
    for operation in found.denied:
        yield _forbidden(found, operation)
    if found.missing:
        yield Finding(f"there is no table {found.title}", steps=tuple(_making(found)))
        return
    yield from _ownership(found)
    if found.description:
        yield from _keys(found)
        yield from _indexes(found)
        yield from _paid(found)
    yield from _expiry(found)
    if found.recoverable is False:
        what = f"{found.title} has no point-in-time recovery"
        yield Finding(what, steps=(_pitr(found.table, found.env),))
    yield from _labels(found)


def _forbidden(found: TableSurvey, operation: str) -> Finding:
    action = f"dynamodb:{operation}"
    what = f"these credentials may not {action} on {found.title}"
    if operation == ASK_TTL:
        what = f"TTL of {found.title} is not known: these credentials may not {action}"
    return Finding(what, ALLOW, error=NotPermitted(f"{what}: {ALLOW}"))


def _making(found: TableSurvey) -> Iterator[ProvisionStep]:
    table, env = found.table, found.env
    yield ProvisionStep("CreateTable", shape.create_request(table, env), f"made table {found.title}")
    if table.ttl:
        yield _ttl(table, env)
    if table.recoverable:
        yield _pitr(table, env)
    yield _stamping(table, env)


def _ttl(table: Table, env: str) -> ProvisionStep:
    did = f"enabled TTL on {table.ttl} of {title(table, env)}"
    return ProvisionStep("UpdateTimeToLive", shape.ttl_request(table, env), did)


def _pitr(table: Table, env: str) -> ProvisionStep:
    did = f"enabled point-in-time recovery of {title(table, env)}"
    return ProvisionStep("UpdateContinuousBackups", shape.pitr_request(table, env), did)


def _stamping(table: Table, env: str) -> ProvisionStep:
    did = f"stamped {title(table, env)} for environment {env}"
    return ProvisionStep("PutItem", shape.stamp_request(table, env), did)


def _ownership(found: TableSurvey) -> Iterator[Finding]:
    if found.stamp is None:
        if found.keyed and "GetItem" not in found.denied:
            what = f"{found.title} is not stamped for any environment"
            yield Finding(what, steps=(_stamping(found.table, found.env),))
        return
    error = stamped_otherwise(found.stamp, found.env)
    if isinstance(error, WrongEnvironment):
        remedy = f"use --env {error.stamped}, or name another table for {found.env}"
        yield Finding(f"{found.title} belongs to environment {error.stamped!r}", remedy, error=error)
    elif error is not None:
        yield Finding(f"{found.title}: {error}", "upgrade semel", error=error)


def stamped_otherwise(stamp: dict[str, Any], env: str) -> SemelError | None:
    """Why a table with this stamp is not for this environment, or not for this version."""
    environment = stamp.get("environment", {}).get("S", "")
    if environment != env:
        return WrongEnvironment(environment, env)
    schema = int(stamp.get("schema", {}).get("N", SCHEMA))
    return SchemaTooNew(schema, SCHEMA) if schema > SCHEMA else None


def _types(description: dict[str, Any]) -> dict[str, str]:
    return {each["AttributeName"]: each["AttributeType"] for each in description["AttributeDefinitions"]}


def _key_text(schema: list[TableRequest], types: dict[str, str]) -> str:
    """A key in words, such as `id (S), at (N)`."""
    return ", ".join(f"{each['AttributeName']} ({types.get(each['AttributeName'], '?')})" for each in schema)


def _keys(found: TableSurvey) -> Iterator[Finding]:
    is_now, should = found.keys
    if is_now != should:
        what = f"{found.title} has the key {is_now} and should have {should}"
        remedy = "a key cannot be changed: move this table away, or have semel use another name"
        yield Finding(what, remedy, error=WrongSchema(f"{what}; {remedy}"))


def _indexes(found: TableSurvey) -> Iterator[Finding]:
    types = {each["AttributeName"]: each["AttributeType"] for each in shape.attributes(found.table)}
    for each in found.table.indexes:
        wanted, is_now = shape.index(found.table, each), found.indexes.get(each.name)
        if is_now is None:
            yield Finding(f"{found.title} has no index {each.name}", steps=(_adding(found, each),))
            continue
        should, but_is = (
            _key_text(wanted["KeySchema"], types),
            _key_text(is_now["KeySchema"], _types(found.description)),
        )
        if should != but_is or not _covers(is_now["Projection"], wanted["Projection"]):
            yield _another(found, each, _index_text(but_is, is_now), _index_text(should, wanted))
        elif each.name in found.filling:
            yield _unfinished(found, each)


def _covers(there: TableRequest, wanted: TableRequest) -> bool:
    """Whether an index has what it should have of its items; more is its owner's choice."""
    if "ALL" in (there["ProjectionType"], wanted["ProjectionType"]):
        return bool(there["ProjectionType"] == "ALL")
    return {*wanted.get("NonKeyAttributes", ())} <= {*there.get("NonKeyAttributes", ())}


def _index_text(key: str, index: TableRequest) -> str:
    projection = index["Projection"]
    return (
        f"{key}, projecting {', '.join(projection.get('NonKeyAttributes', [projection['ProjectionType']]))}"
    )


def _another(found: TableSurvey, index: Index, but_is: str, should: str) -> Finding:
    what = f"index {index.name} of {found.title} has the key {but_is} and should have {should}"
    remedy = "delete the index, and semel provision makes it anew"
    return Finding(what, remedy, error=WrongSchema(f"{what}; {remedy}"))


def _unfinished(found: TableSurvey, index: Index) -> Finding:
    """Whoever began to make it did not wait: a large table takes hours."""
    did = f"waited until index {index.name} of {found.title} was made"
    step = ProvisionStep("DescribeTable", {"TableName": found.title}, did)
    what = f"index {index.name} of {found.title} is still being made"
    return Finding(what, "wait until it is ACTIVE, as semel provision does", (step,))


def _adding(found: TableSurvey, index: Index) -> ProvisionStep:
    """A request of its own, as DynamoDB makes one index at a time; it is paid for as its table is."""
    wanted = shape.index(found.table, index)
    wanted.pop("ProvisionedThroughput", None)
    if found.billing == PROVISIONED:
        units = found.description["ProvisionedThroughput"]
        wanted["ProvisionedThroughput"] = {name: units[name] for name in UNITS}
    request = {
        "TableName": found.title,
        "AttributeDefinitions": shape.index_attributes(found.table, index),
        "GlobalSecondaryIndexUpdates": [{"Create": wanted}],
    }
    return ProvisionStep("UpdateTable", request, f"made index {index.name} of {found.title}")


def _paid(found: TableSurvey) -> Iterator[Finding]:
    """How a table is paid for is its owner's to change: it is reported, and left alone."""
    is_now, should = found.billing, shape.billing(found.table)["BillingMode"]
    if is_now != should:
        remedy = f"aws dynamodb update-table --table-name {found.title} --billing-mode {should}"
        if found.table.capacity is not None:
            read, write = found.table.capacity
            remedy += f" --provisioned-throughput ReadCapacityUnits={read},WriteCapacityUnits={write}"
        yield Finding(f"{found.title} is billed {is_now} and should be {should}", remedy)


def _expiry(found: TableSurvey) -> Iterator[Finding]:
    if not found.table.ttl or found.ttl is None:
        return
    wanted, status = found.table.ttl, found.ttl.get("TimeToLiveStatus", "DISABLED")
    attribute = found.ttl.get("AttributeName")
    if status == "DISABLED":
        what = f"TTL is off for {found.title}, so nothing in it ever goes"
        yield Finding(what, steps=(_ttl(found.table, found.env),))
    elif status == "DISABLING":
        what = f"TTL of {found.title} is just being turned off"
        remedy = f"wait until that is done, which takes up to an hour, then {PROVISION}"
        yield Finding(what, remedy, error=WrongSchema(f"{what}: {remedy}"))
    elif attribute != wanted:
        what = f"TTL of {found.title} is on {attribute} and should be on {wanted}"
        remedy = (
            f"aws dynamodb update-time-to-live --table-name {found.title} --time-to-live-specification "
            f"Enabled=false,AttributeName={attribute}; an hour later {PROVISION}"
        )
        yield Finding(what, remedy, error=WrongSchema(f"{what}: {remedy}"))


def _labels(found: TableSurvey) -> Iterator[Finding]:
    missing = {key: value for key, value in found.table.tags.items() if found.tags.get(key) != value}
    if not missing or not found.description or "ListTagsOfResource" in found.denied:
        return
    words = ", ".join(f"{key}={value}" for key, value in missing.items())
    tags = [{"Key": key, "Value": value} for key, value in missing.items()]
    request = {"ResourceArn": found.description["TableArn"], "Tags": tags}
    step = ProvisionStep("TagResource", request, f"tagged {found.title} with {words}")
    yield Finding(f"{found.title} lacks the tag {words}", steps=(step,))


# Doing


def problems(client: ServiceClient, tables: Iterable[Table], env: str) -> list[Problem]:
    """What is wrong with these tables, and with what these credentials may do; nothing is changed."""
    reported: list[Problem] = []
    for table in tables:
        found = survey(client, table, env)
        listed = list(findings(found))
        if found.description and found.keyed:
            listed += [_forbidden(found, operation) for operation in probe(client, found)]
        reported += [Problem(each.what, each.remedy) for each in listed]
    return reported


def expiry_problems(client: ServiceClient, tables: Iterable[Table], env: str) -> list[Problem]:
    """What is wrong with the TTL of these tables; also that these credentials may not ask for it."""
    reported: list[Problem] = []
    for table in tables:
        reader = TableReader(client, title(table, env))
        ttl = reader.ask(ASK_TTL).get("TimeToLiveDescription") if table.ttl else None
        found = TableSurvey(table=table, env=env, ttl=ttl)
        listed = [*(_forbidden(found, operation) for operation in reader.denied), *_expiry(found)]
        reported += [Problem(each.what, each.remedy) for each in listed]
    return reported


def provision(
    client: ServiceClient, tables: Iterable[Table], env: str, *, clock: Clock, say: Say = lambda _: None
) -> list[str]:
    """Make tables as they should be, and tell what was done; nothing is begun that would be refused."""
    found = [finding for table in tables for finding in findings(survey(client, table, env))]
    for finding in found:
        if finding.error is not None:
            raise finding.error
    builder = TableBuilder(client, env, clock, say)
    for finding in found:
        if not finding.steps:
            say(f"Left as it is: {finding.what}. To change it: {finding.remedy}")
    return [did for finding in found for step in finding.steps if (did := builder.take(step))]


class TableBuilder:
    """Takes steps, and waits for what takes its time."""

    def __init__(self, client: ServiceClient, env: str, clock: Clock, say: Say) -> None:
        self._client = client
        self._env = env
        self._clock = clock
        self._say = say

    def take(self, step: ProvisionStep) -> str:
        """Take a step and wait until it has come into force: what it did, or nothing."""
        deadline = self._clock.monotonic() + PATIENCE
        while (did := self._try(step)) is None:
            self._pause(deadline, f"Waiting until {step.request['TableName']} is ready for {step.operation}")
        if step.operation in SETTLING:
            self._settle(step.request["TableName"], deadline)
        if did:
            self._say(f"{did[0].upper()}{did[1:]}.")
        return did

    def _try(self, step: ProvisionStep) -> str | None:
        """What the step did; "" where there was nothing left to do, None where it is too early."""
        try:
            # Each of them may be sent twice: the second is refused as done, which is fine.
            self._client.call(step.operation, step.request, write=False)
        except StoreThrottled:  # as many tables or indexes are being made as may be
            return None
        except ServiceError as error:
            return self._refused(step, error)
        return step.did

    def _refused(self, step: ProvisionStep, error: ServiceError) -> str | None:
        if error.code == DENIED:
            raise NotPermitted(f"these credentials may not dynamodb:{step.operation}: {ALLOW}") from error
        if error.code == "ConditionalCheckFailedException":
            other = stamped_otherwise(error.item or {}, self._env)
            if other is not None:
                raise other from error
            return ""
        if error.code == UNKNOWN:
            self._say(f"This server has no {step.operation}; a local engine may do without.")
            return ""
        if "already" in error.message and error.code in ALREADY:
            return ""
        if error.code in NOT_YET:
            return None
        raise error

    def _settle(self, title: str, deadline: float) -> None:
        while (status := _unsettled(self._client, title)) is not None:
            self._pause(deadline, f"Waiting until {title} is ACTIVE; it is {status}")

    def _pause(self, deadline: float, why: str) -> None:
        if self._clock.monotonic() >= deadline:
            raise StoreUnavailable(
                f"{why} took more than {PATIENCE:.0f} s; run semel provision again, and it goes on from here"
            )
        self._say(f"{why} ...")
        self._clock.wait(threading.Event(), POLL)


def _unsettled(client: ServiceClient, title: str) -> str | None:
    """What a table is that is not ACTIVE yet, with all its indexes."""
    try:
        described = client.call("DescribeTable", {"TableName": title}, write=False)["Table"]
    except ServiceError as error:
        if error.code == MISSING:  # news of a table spreads for a moment
            return "CREATING"
        raise
    states = [described["TableStatus"]]
    states += [each.get("IndexStatus", "ACTIVE") for each in described.get("GlobalSecondaryIndexes", ())]
    return next((state for state in states if state != "ACTIVE"), None)
