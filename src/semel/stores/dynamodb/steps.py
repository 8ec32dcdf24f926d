"""Commands as steps: which requests are sent, and what follows from the responses.

Steps do no I/O themselves: the transport performs them, for threads and for tasks.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from semel import errors
from semel.aws.errors import PASSING, CancellationReason, ServiceError
from semel.aws.wire import Transport, WireRequest, WireSteps
from semel.core.commands import (
    ABSENT,
    TRIES,
    Add,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Found,
    Get,
    Item,
    Many,
    Page,
    Put,
    Query,
    Refused,
    Time,
    Transact,
    Update,
    Watch,
    Write,
    allowed,
)
from semel.core.runtime import random_token
from semel.stores.dynamodb.items import SCHEMA, ClockReading
from semel.stores.dynamodb.requests import ItemSearch, RequestBody, TableRequests, check_sizes
from semel.stores.dynamodb.service import ErrorTranslator, Timekeeper, why_no_recent
from semel.stores.shared import not_offered, place_named
from semel.tables import FOREVER, Table

ReadFirst: TypeAlias = Literal["no", "yes", "auto"]
# What came of the writes of a batch, each with its place in it.
BatchRow: TypeAlias = list[tuple[int, Any]]

# Refusals, which the steps of a command decide on.
CONDITION = "ConditionalCheckFailedException"
CANCELLED = "TransactionCanceledException"
CONDITION_REASON = "ConditionalCheckFailed"

# What was read after a refusal may allow the write by then; so often in a row that is no accident.
OVERTAKEN = 10
# A filtered page may read many items to find one: each request reads ten times as many as the one before.
FIRST_LOOK = 100
MORE = 10
# DynamoDB remembers a transaction's token for ten minutes; a resending must arrive well before that.
RESEND_SECONDS = 300.0
# At most so many transactions are remembered whose outcome is unknown; more means that the network is down.
UNSETTLED = 100

# A refused write costs as much as one that is made: one write unit, W. A consistent read first costs one
# read unit, R, and then W only if nothing was there. With a share s of refusals that is R + (1 - s) W, which
# is less than W where s > R / W. On-demand prices have R : W at 1 : 5 in every region, so reading first pays
# above one refusal in five; below, it costs more, and a claim that is won takes a second round trip.
BREAK_EVEN = 0.125 / 0.625
# How much the latest claim counts: about the last fifty decide.
WEIGHT = 0.04

# Errors that the service answered with.
ANSWERS = (ServiceError, errors.TableMissing, errors.NotPermitted, errors.WrongSchema, errors.UsageError)
# Errors after which a write may be sent again; another one is a caller's mistake.
UNCERTAIN = (errors.StoreUnavailable, errors.StoreThrottled, errors.StoreOutcomeUnknown)

# What a transaction calls each write; alone it is `PutItem` and so on.
ACTIONS: Final[dict[type, str]] = {Put: "Put", Update: "Update", Delete: "Delete", Add: "Update"}
OPERATIONS: Final[dict[type, str]] = {kind: f"{action}Item" for kind, action in ACTIONS.items()}


class Attempt:
    """A write's request. It is built before it is sent, so that a batch with a wrong one sends nothing."""

    __slots__ = ("_body", "_build", "_command", "_time", "now")

    def __init__(self, requests: TableRequests, command: Write, time: Timekeeper) -> None:
        self._build = requests.by_write[type(command)]
        self._command = command
        self._time = time
        self.now: ClockReading = time.read()
        self._body: RequestBody | None = self._build(command, self.now)

    def __call__(self) -> RequestBody:
        """Return the request; asked again, because the clock was wrong, build it with the right time."""
        body, self._body = self._body, None
        if body is None:
            self.now = self._time.read()
            body = self._build(self._command, self.now)
        return body


class SentTransaction(msgspec.Struct):
    """A transaction's request, which stays what it is, and when it was built."""

    body: RequestBody
    tables: list[TableRequests]
    now: ClockReading


class DynamoOperations:
    """The steps of each command."""

    def __init__(
        self,
        transport: Transport,
        time: Timekeeper,
        requests_of: Callable[[Table], TableRequests],
        translator: ErrorTranslator,
        read_first: ReadFirst = "no",
    ) -> None:
        if read_first not in get_args(ReadFirst):
            raise errors.InvalidOption(f"read_first={read_first!r}: it is one of no, yes, auto")
        self._transport = transport
        self._time = time
        self._requests_of = requests_of
        self._translator = translator
        self._read_first = read_first
        self.refused: float = 0.0
        """The share of claims that were refused lately."""
        self._returns_items = False
        self._unsettled: OrderedDict[int, tuple[Transact, SentTransaction]] = OrderedDict()
        self.by_command: dict[type, Callable[[Any], WireSteps[Any]]] = {
            Get: self.get,
            Watch: self.get,
            Put: self.write if read_first == "no" else self.claim,
            Update: self.write,
            Delete: self.write,
            Add: self.write,
            Query: self.query,
            Transact: self.transact,
            Time: self.time,
        }

    def _send(
        self, operation: str, request: WireRequest, *tables: TableRequests, write: bool = False
    ) -> WireSteps[RequestBody]:
        """Send a request, and translate an error unless it is a refusal, which the steps decide on."""
        try:
            return (yield from self._transport.exchange(operation, request, write=write))
        except (ServiceError, UnicodeEncodeError) as error:
            raise self._translated(error, operation, *tables) from error

    def _translated(
        self, error: ServiceError | UnicodeEncodeError, operation: str, *tables: TableRequests
    ) -> errors.SemelError:
        if isinstance(error, ServiceError) and error.code in (CONDITION, CANCELLED):
            return error
        named = {requests.title: requests.format.kept for requests in tables}
        return self._translator.translated(error, operation, named)

    # Tables

    def open(self, requests: TableRequests, *, told: bool = False) -> WireSteps[bool]:
        """Read a table's stamp: is it there, may it be read, whose is it; and what time is it.

        The service's refusal tells the time as well: with `told`, return False for it.
        """
        try:
            response = yield from self._send("GetItem", requests.stamp(), requests)
        except ANSWERS:
            if told:
                return False
            raise
        stamp = response.get("Item")
        if stamp and (wrong := stamped_otherwise(stamp, requests.format.env)):
            raise wrong
        return True

    def describe(self, table: Table) -> WireSteps[RequestBody]:
        """Return what DynamoDB says of a table: its size among other things."""
        requests = self._requests_of(table)
        response = yield from self._send("DescribeTable", {"TableName": requests.title}, requests)
        return response["Table"]  # type: ignore[no-any-return]

    def reap(self, requests: TableRequests, limit: int) -> WireSteps[int]:
        """Remove what has expired, which DynamoDB does by itself and local engines do not."""
        reaped, begin = 0, RequestBody()
        while True:
            now = self._time.read()
            page = yield from self._send("Scan", requests.expired(now) | begin, requests)
            for key in page["Items"][: limit - reaped]:
                try:
                    yield from self._send("DeleteItem", requests.sweep(key, now), requests, write=True)
                    reaped += 1
                except ServiceError as error:
                    if error.code != CONDITION:
                        raise
            if "LastEvaluatedKey" not in page or reaped >= limit:
                return reaped
            begin = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    # Reading

    def time(self, _: Time) -> WireSteps[Found]:
        """Return what time it is, as far as the latest responses have told."""
        yield from ()
        return Found(self._time.read()[0], None)

    def get(self, command: Get | Watch) -> WireSteps[Found]:
        """Read one item."""
        item = yield from self._get(self._requests_of(command.table), command)
        return Found(self._time.read()[0], item)

    def _get(self, requests: TableRequests, command: Get | Watch | Write) -> WireSteps[Item | None]:
        response = yield from self._send("GetItem", requests.get(command), requests)
        item = response.get("Item")
        return None if item is None else requests.format.decode(item)

    def query(self, command: Query) -> WireSteps[Page]:
        """Read until there are as many items as were asked for, or no more."""
        if command.table.index(command.index) in command.table.optional_indexes:
            raise not_offered(command.index, why_no_recent())
        requests = self._requests_of(command.table)
        now, search = self._time.read(), ItemSearch(requests, command)
        request, start = search.request(now), search.start()
        look = max(command.limit + 1, FIRST_LOOK if search.filters else 0)
        look = min(look, command.most) if search.bounded else look
        found: list[Item] = []
        seen = 0
        while request is not None:
            begin = {} if start is None else {"ExclusiveStartKey": start}
            response = yield from self._send(search.operation, request | {"Limit": look} | begin, requests)
            seen += response.get("ScannedCount", len(response["Items"]))
            items = map(requests.format.decode, response["Items"])
            found += [item for item in items if search.wanted(item, now)]
            start = response.get("LastEvaluatedKey")
            if start is None or len(found) >= command.limit:
                break
            if search.bounded and seen >= command.most:
                return Page(now[0], search.page(found), search.cursor(requests.format.decode(start)), seen)
            look = min(look * MORE, command.most - seen) if search.bounded else look * MORE
        page = found[: command.limit]
        last = not page or (start is None and len(found) == len(page))
        return Page(now[0], search.page(page), None if last else search.cursor(page[-1]), seen)

    # One write

    def write(self, command: Write, attempt: Attempt | None = None) -> WireSteps[Applied | Refused]:
        """Send a write; a refusal comes with the item, or the item is read afterwards."""
        requests = self._requests_of(command.table)
        operation = OPERATIONS[type(command)]
        for _ in range(OVERTAKEN):
            attempt = attempt or Attempt(requests, command, self._time)
            try:
                response = yield from self._transport.exchange(operation, attempt, write=True)
            except (ServiceError, UnicodeEncodeError) as error:
                if not isinstance(error, ServiceError) or error.code != CONDITION:
                    raise self._translated(error, operation, requests) from error
                returned = error.item
            else:
                added = requests.format.decode(response["Attributes"]) if type(command) is Add else None
                return Applied(attempt.now[0], added)
            item, again = yield from self._refused(requests, command, returned)
            if again is None:
                return Refused(attempt.now[0], item)
            command, attempt = again, None
        raise errors.StoreThrottled(f"{command.key!r} was changed {OVERTAKEN} times in a row; retry later")

    def _refused(
        self, requests: TableRequests, command: Write, returned: RequestBody | None
    ) -> WireSteps[tuple[Item | None, Write | None]]:
        """Return the item that refused a write; and the write to send again, if the item allows it by now.

        A server that has returned no item yet may never return any.
        """
        if returned is not None:
            self._returns_items = True
            item = requests.format.decode(returned)
            return item, _again(requests, command, item) if type(command) is Add else None
        if self._returns_items and not allowed(command, None):
            return None, None
        found = yield from self._get(requests, command)
        return found, _again(requests, command, found)

    def claim(self, command: Put, attempt: Attempt | None = None) -> WireSteps[Applied | Refused]:
        """Write an item, and read first where claims are often refused."""
        if command.expect is not ABSENT:
            return (yield from self.write(command, attempt))
        if self.reads_first:
            found = yield from self.get(Get(command.table, command.key, command.sort))
            if found.item is not None:
                self.learn(refused=True)
                return Refused(found.now, found.item)
        reply = yield from self.write(command, attempt)
        self.learn(refused=type(reply) is Refused)
        return reply

    @property
    def reads_first(self) -> bool:
        return self._read_first == "yes" or self.refused > BREAK_EVEN

    def learn(self, *, refused: bool) -> None:
        """Note how a claim went."""
        if self._read_first == "auto":
            self.refused += WEIGHT * (refused - self.refused)

    # Several writes

    def transact(self, command: Transact) -> WireSteps[Applied | Cancelled]:
        """Make all writes or none."""
        if not command.writes:
            return Applied(self._time.read()[0])
        sent, writes = self._recall(command), command.writes
        for _ in range(OVERTAKEN):
            sent = sent or self._transaction(writes)
            reasons = yield from self._outcome(command, sent)
            if reasons is None:
                return Applied(sent.now[0])
            refusals, again = yield from self._refusals(writes, sent, reasons)
            if again is None or any(refusals):
                return Cancelled(sent.now[0], refusals)
            sent, writes = None, again
        raise errors.StoreThrottled(
            f"items were changed {OVERTAKEN} times in a row; retry the transaction later"
        )

    def _transaction(self, writes: Sequence[Write]) -> SentTransaction:
        now, tables = self._time.read(), [self._requests_of(write.table) for write in writes]
        actions = []
        for requests, write in zip(tables, writes, strict=True):
            action = requests.by_write[type(write)](write, now)
            action.pop("ReturnValues", None)
            actions.append({ACTIONS[type(write)]: action})
        check_sizes(actions)
        # The token is drawn, and not made from the content: two callers that add one to the same number at
        # the same moment send the same content, and mean two.
        body = {"TransactItems": actions, "ClientRequestToken": random_token()}
        return SentTransaction(body, tables, now)

    def _outcome(
        self, command: Transact, sent: SentTransaction
    ) -> WireSteps[list[CancellationReason] | None]:
        """Return why a transaction was cancelled, None if it was not; with its token it may be sent again."""
        unknown: errors.StoreError | None = None
        for _ in range(TRIES):
            try:
                yield from self._send("TransactWriteItems", sent.body, *sent.tables, write=True)
                return None
            except errors.StoreOutcomeUnknown as error:
                unknown = error
            except errors.StoreError as error:
                if isinstance(error, ServiceError) and error.code == CANCELLED:
                    return error.reasons
                if unknown is None:
                    raise
                unknown = error
        # A caller that sends this very transaction again sends it with the same token, so it is made once.
        if len(self._unsettled) >= UNSETTLED:
            self._unsettled.popitem(last=False)
        self._unsettled[id(command)] = (command, sent)
        raise errors.StoreOutcomeUnknown(f"tried {TRIES} times, and no reply came: {unknown}") from unknown

    def _recall(self, command: Transact) -> SentTransaction | None:
        known, sent = self._unsettled.pop(id(command), (None, None))
        if known is not command or sent is None:
            return None
        return sent if 0 <= self._time.read()[0] - sent.now[0] < RESEND_SECONDS else None

    def _refusals(
        self, writes: Sequence[Write], sent: SentTransaction, reasons: list[CancellationReason]
    ) -> WireSteps[tuple[tuple[Refused | None, ...], tuple[Write, ...] | None]]:
        """Return what refused each write; and the writes to send again, if items allow any of them by now."""
        refusals: list[Refused | None] = [None] * len(writes)
        retries = list(writes)
        for place, (write, requests, reason) in enumerate(zip(writes, sent.tables, reasons, strict=True)):
            if reason.code in PASSING:
                continue
            if reason.code != CONDITION_REASON:
                raise errors.UsageError(
                    f"DynamoDB refuses write {place + 1} of a transaction: {reason.message}"
                )
            item, again = yield from self._refused(requests, write, reason.item)
            if again is None:
                refusals[place] = Refused(sent.now[0], item)
            retries[place] = again or write
        return tuple(refusals), tuple(retries)

    def rows(self, command: Batch) -> list[WireSteps[BatchRow]]:
        """Return steps that make the writes of a batch: those of one item in order, others side by side.

        DynamoDB's batches know no conditions, and its PartiQL batches only "if it does not exist", and need
        permissions of their own. So writes are sent singly, as many side by side as the store allows itself.
        """
        # Every request is built before any is sent.
        rows: dict[Any, list[tuple[int, WireSteps[Any]]]] = {}
        for place, write in enumerate(command.writes):
            attempt = Attempt(self._requests_of(write.table), write, self._time)
            steps = self.by_command[type(write)](write, attempt)  # type: ignore[call-arg]  # as writes' do
            rows.setdefault(place_named(write), []).append((place, steps))
        return list(map(_row, rows.values()))


def _row(writes: list[tuple[int, WireSteps[Any]]]) -> WireSteps[BatchRow]:
    """Return what came of each write, by its place, up to the first error."""
    replies: BatchRow = []
    for place, steps in writes:
        try:
            replies.append((place, (yield from steps)))
        except errors.SemelError as error:
            return [*replies, (place, error)]
    return replies


def stamped_otherwise(stamp: RequestBody, env: str) -> errors.SemelError | None:
    """Return the error for a stamp of another environment or of a newer version."""
    environment = stamp.get("environment", {}).get("S", "")
    if environment != env:
        return errors.WrongEnvironment(environment, env)
    schema = int(stamp.get("schema", {}).get("N", SCHEMA))
    return errors.SchemaTooNew(schema, SCHEMA) if schema > SCHEMA else None


def _again(requests: TableRequests, command: Write, item: Item | None) -> Write | None:
    """Return the write to send again, if the item that is there allows it: what refused it may have gone."""
    if not allowed(command, item):
        return None
    if type(command) is not Add:
        return command
    if item is None and not requests.creates(command):
        raise requests.format.endless()
    expires = command.table.expires
    if item is not None and command.table.forever and item[expires] == FOREVER:
        # An item that stays for ever gets no end.
        lasting = {name: value for name, value in command.set.items() if name != expires}
        return msgspec.structs.replace(command, set=lasting)
    return command


def batch_reply(rows: Sequence[BatchRow]) -> Many:
    """Return the replies of a batch in its order, or raise what kept writes from being made.

    That nothing was made is said only if nothing was.
    """
    replies = [reply for _, reply in sorted(chain(*rows), key=itemgetter(0))]
    failed = [reply for reply in replies if isinstance(reply, Exception)]
    if not failed:
        return Many(tuple(replies))
    certain = [error for error in failed if not isinstance(error, UNCERTAIN)]
    unknown = [error for error in failed if isinstance(error, errors.StoreOutcomeUnknown)]
    if certain or (not unknown and len(failed) == len(replies)):
        raise (certain or failed)[0]
    cause = (unknown or failed)[0]
    raise errors.StoreOutcomeUnknown(f"some writes of a batch may not have been made: {cause}") from cause
