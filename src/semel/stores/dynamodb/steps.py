"""Commands as steps: which requests are sent, and what follows from the responses. No I/O is done here.

A step is a `Trip`: a request, which is answered by its response or by an error.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from semel import errors
from semel.aws.errors import PASSING, CancellationReason, ServiceError
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
from semel.errors import InvalidOption
from semel.stores.dynamodb.items import SCHEMA, ClockReading
from semel.stores.dynamodb.requests import ItemSearch, RequestBody, TableRequests, check_count, check_sizes
from semel.stores.dynamodb.service import Timekeeper, why_no_recent
from semel.stores.shared import not_offered
from semel.tables import FOREVER, Table

T = TypeVar("T")
ReadFirst: TypeAlias = Literal["no", "yes", "auto"]

CONDITION = "ConditionalCheckFailedException"
CONDITION_REASON = "ConditionalCheckFailed"
CANCELLED = "TransactionCanceledException"

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

# What a transaction calls each write; alone it is `PutItem` and so on.
ACTIONS: Final[dict[type, str]] = {Put: "Put", Update: "Update", Delete: "Delete", Add: "Update"}
OPERATIONS: Final[dict[type, str]] = {kind: f"{action}Item" for kind, action in ACTIONS.items()}


class Trip(msgspec.Struct):
    """A request and its way to DynamoDB and back."""

    operation: str
    title: str
    """The table or tables that it is about, for messages."""
    request: RequestBody | Callable[[], RequestBody]
    write: bool = False


class Attempt(msgspec.Struct):
    """A write's request. It is built before it is sent, so that what is wrong with it shows before."""

    build: Callable[[Any, ClockReading], RequestBody]
    command: Write
    time: Timekeeper
    now: ClockReading
    body: RequestBody | None

    def __call__(self) -> RequestBody:
        """Return the request; asked again, because the clock was wrong, build it with the right time."""
        body, self.body = self.body, None
        if body is None:
            self.now = self.time.read()
            body = self.build(self.command, self.now)
        return body


class SentTransaction(msgspec.Struct):
    """A transaction's request, which stays what it is, and when it was built."""

    trip: Trip
    now: ClockReading


DynamoSteps: TypeAlias = Generator[Trip, Any, T]


class DynamoOperations:
    """The steps of each command."""

    def __init__(
        self, time: Timekeeper, requests_of: Callable[[Table], TableRequests], read_first: ReadFirst = "no"
    ) -> None:
        if read_first not in ("no", "yes", "auto"):
            raise InvalidOption(f"read_first={read_first!r}: it is one of no, yes, auto")
        self._time = time
        self._requests_of = requests_of
        self._read_first = read_first
        self.refused: float = 0.0
        """The share of claims that were refused lately."""
        self._returns_items = False
        self._unsettled: OrderedDict[int, tuple[Transact, SentTransaction]] = OrderedDict()
        self.by_command: dict[type, Callable[[Any], DynamoSteps[Any]]] = {
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

    # Tables

    def open(self, requests: TableRequests, env: str) -> DynamoSteps[bool]:
        """Read a table's stamp: is it there, may it be read, whose is it; and what time is it."""
        response = yield Trip("GetItem", requests.title, requests.stamp())
        stamp: RequestBody = response.get("Item") or {}
        stamped = stamp.get("environment", {}).get("S", env)
        if stamped != env:
            raise errors.WrongEnvironment(stamped, env)
        schema = int(stamp.get("schema", {}).get("N", SCHEMA))
        if schema > SCHEMA:
            raise errors.SchemaTooNew(schema, SCHEMA)
        return True

    def ask_time(self, requests: TableRequests, env: str) -> DynamoSteps[bool]:
        """Read a table's stamp for the time, which an error tells as well; return whether it was read."""
        try:
            return (yield from self.open(requests, env))
        except ServiceError:
            return False

    def describe(self, requests: TableRequests) -> DynamoSteps[RequestBody]:
        """Return what DynamoDB says of a table: its size among other things."""
        response: RequestBody = yield Trip("DescribeTable", requests.title, {"TableName": requests.title})
        return response

    def reap(self, requests: TableRequests, limit: int) -> DynamoSteps[int]:
        """Remove what has expired, which DynamoDB does by itself and local engines do not."""
        reaped, begin = 0, RequestBody()
        while True:
            now = self._time.read()
            page = yield Trip("Scan", requests.title, requests.expired(now) | begin)
            for key in page["Items"][: limit - reaped]:
                try:
                    yield Trip("DeleteItem", requests.title, requests.sweep(key, now), True)
                    reaped += 1
                except ServiceError as error:
                    if error.code != CONDITION:
                        raise
            if "LastEvaluatedKey" not in page or reaped >= limit:
                return reaped
            begin = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    # Reading

    def time(self, _: Time) -> DynamoSteps[Found]:
        """Return what time it is, as far as the latest responses have told."""
        yield from ()
        return Found(self._time.read()[0], None)

    def get(self, command: Get | Watch) -> DynamoSteps[Found]:
        """Read one item."""
        requests = self._requests_of(command.table)
        item = yield from self._get(requests, command)
        return Found(self._time.read()[0], item)

    def _get(self, requests: TableRequests, command: Get | Watch | Write) -> DynamoSteps[Item | None]:
        response = yield Trip("GetItem", requests.title, requests.get(command))
        item = response.get("Item")
        return None if item is None else requests.format.decode(item)

    def query(self, command: Query) -> DynamoSteps[Page]:
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
            response = yield Trip(search.operation, requests.title, request | {"Limit": look} | begin)
            seen += response.get("ScannedCount", len(response["Items"]))
            items = map(requests.format.decode, response["Items"])
            found += [item for item in items if search.wanted(item, now)]
            start = response.get("LastEvaluatedKey")
            if start is None or len(found) >= command.limit:
                break
            if search.bounded and seen >= command.most:
                return Page(now[0], search.page(found), search.after(start), seen)
            look = min(look * MORE, command.most - seen) if search.bounded else look * MORE
        page = found[: command.limit]
        last = not page or (start is None and len(found) == len(page))
        return Page(now[0], search.page(page), None if last else search.cursor(page[-1]), seen)

    # One write

    def attempt(self, command: Write) -> Attempt:
        """Build the request of a write."""
        build, now = self._requests_of(command.table).by_write[type(command)], self._time.read()
        return Attempt(build, command, self._time, now, build(command, now))

    def write(self, command: Write, attempt: Attempt | None = None) -> DynamoSteps[Applied | Refused]:
        """Send a write; a refusal comes with the item, or the item is read afterwards."""
        requests = self._requests_of(command.table)
        for _ in range(OVERTAKEN):
            attempt = attempt or self.attempt(command)
            try:
                response = yield Trip(OPERATIONS[type(command)], requests.title, attempt, True)
            except ServiceError as error:
                if error.code != CONDITION:
                    raise
                returned = error.item
            else:
                added = type(command) is Add
                return Applied(
                    attempt.now[0], requests.format.decode(response["Attributes"]) if added else None
                )
            item = yield from self._in_the_way(requests, command, returned)
            again = _again(requests, command, item, returned)
            if again is None:
                return Refused(attempt.now[0], item)
            command, attempt = again, None
        raise errors.StoreThrottled(f"{command.key!r} was changed {OVERTAKEN} times in a row; retry later")

    def _in_the_way(
        self, requests: TableRequests, command: Write, item: RequestBody | None
    ) -> DynamoSteps[Item | None]:
        """Return the item that refused a write; a server that has returned none yet may never return any."""
        if item is not None:
            self._returns_items = True
            return requests.format.decode(item)
        if self._returns_items and not allowed(command, None):
            return None
        return (yield from self._get(requests, command))

    def claim(self, command: Put, attempt: Attempt | None = None) -> DynamoSteps[Applied | Refused]:
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
        """Whether to read before a claim."""
        return self._read_first == "yes" or self.refused > BREAK_EVEN

    def learn(self, *, refused: bool) -> None:
        """Note how a claim went."""
        if self._read_first == "auto":
            self.refused += WEIGHT * (refused - self.refused)

    # Several writes

    def transact(self, command: Transact) -> DynamoSteps[Applied | Cancelled]:
        """Make all writes or none."""
        check_count(command)
        if not command.writes:
            return Applied(self._time.read()[0])
        sent, writes = self._recall(command), command.writes
        for _ in range(OVERTAKEN):
            sent = sent or self._transaction(writes)
            reasons = yield from self._outcome(command, sent)
            if reasons is None:
                return Applied(sent.now[0])
            refusals, again = yield from self._refusals(writes, sent.now, reasons)
            if again is None or any(refusals):
                return Cancelled(sent.now[0], refusals)
            sent, writes = None, again
        raise errors.StoreThrottled(
            f"items were changed {OVERTAKEN} times in a row; retry the transaction later"
        )

    def _transaction(self, writes: Sequence[Write]) -> SentTransaction:
        now, all_of_it = self._time.read(), [self._requests_of(write.table) for write in writes]
        actions = []
        for requests, write in zip(all_of_it, writes, strict=True):
            action = requests.by_write[type(write)](write, now)
            action.pop("ReturnValues", None)
            actions.append({ACTIONS[type(write)]: action})
        check_sizes(actions)
        # The token is drawn, and not made from the content: two callers that add one to the same number at
        # the same moment send the same content, and mean two.
        body = {"TransactItems": actions, "ClientRequestToken": random_token()}
        title = ", ".join(dict.fromkeys(requests.title for requests in all_of_it))
        return SentTransaction(Trip("TransactWriteItems", title, body, True), now)

    def _outcome(
        self, command: Transact, sent: SentTransaction
    ) -> DynamoSteps[list[CancellationReason] | None]:
        """Return why a transaction was cancelled, None if it was not; with its token it may be sent again."""
        unknown: errors.StoreError | None = None
        for _ in range(TRIES):
            try:
                yield sent.trip
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
        self, writes: Sequence[Write], now: ClockReading, reasons: list[CancellationReason]
    ) -> DynamoSteps[tuple[tuple[Refused | None, ...], tuple[Write, ...] | None]]:
        """Return what refused each write; and the writes to send again, if items allow any of them by now."""
        refusals: list[Refused | None] = [None] * len(writes)
        retries, retry = list(writes), False
        for place, (write, reason) in enumerate(zip(writes, reasons, strict=True)):
            if reason.code in PASSING:
                continue
            if reason.code != CONDITION_REASON:
                raise errors.UsageError(
                    f"DynamoDB refuses write {place + 1} of a transaction: {reason.message}"
                )
            requests = self._requests_of(write.table)
            item = yield from self._in_the_way(requests, write, reason.item)
            again = _again(requests, write, item, reason.item)
            if again is None:
                refusals[place] = Refused(now[0], item)
            else:
                retries[place], retry = again, True
        return tuple(refusals), tuple(retries) if retry else None

    def rows(self, command: Batch) -> list[list[tuple[int, DynamoSteps[Applied | Refused]]]]:
        """Return the steps of each write of a batch with its place; those of one item are one row, in order.

        DynamoDB's batches know no conditions, and its PartiQL batches only "if it does not exist", and need
        permissions of their own. So writes are sent singly, as many side by side as the store allows itself.
        """
        # Every request is built before any is sent.
        attempts = [self.attempt(write) for write in command.writes]
        rows: dict[Any, list[tuple[int, DynamoSteps[Any]]]] = {}
        for place, (write, attempt) in enumerate(zip(command.writes, attempts, strict=True)):
            send: Any = self.by_command[type(write)]
            rows.setdefault((write.table.name, write.key, write.sort), []).append(
                (place, send(write, attempt))
            )
        return list(rows.values())


def _again(
    requests: TableRequests, command: Write, item: Item | None, returned: RequestBody | None
) -> Write | None:
    """Return the write to send again, if the item that is there allows it: what refused it may have gone."""
    if (returned is not None and type(command) is not Add) or not allowed(command, item):
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


def batch_reply(answers: Sequence[Sequence[tuple[int, Any]]]) -> Many:
    """Return the replies of a batch in its order, or raise what kept writes from being made."""
    failed = [row[-1][1] for row in answers if isinstance(row[-1][1], Exception)]
    if failed:
        raise _of_a_batch(failed, any(len(row) > 1 or row[-1][1] not in failed for row in answers))
    return Many(tuple(reply for _, reply in sorted(chain(*answers), key=itemgetter(0))))


def _of_a_batch(failed: list[Exception], some_made: bool) -> Exception:
    """Return the error of a batch of which writes failed: that nothing was made only if nothing was."""
    for error in failed:
        if not isinstance(
            error, errors.StoreUnavailable | errors.StoreThrottled | errors.StoreOutcomeUnknown
        ):
            return error
    unknown = next((error for error in failed if isinstance(error, errors.StoreOutcomeUnknown)), None)
    if unknown is None and not some_made:
        return failed[0]
    cause = unknown or failed[0]
    unsure = errors.StoreOutcomeUnknown(f"some writes of a batch may not have been made: {cause}")
    unsure.__cause__ = cause
    return unsure
