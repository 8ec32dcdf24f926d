"""Commands as steps: which requests are sent, and what follows from the responses. No I/O is done here.

Steps are those of the transport on the way to a response, and `Concurrently`, several pieces of work at once.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from semel import errors
from semel.aws.errors import PASSING, CancellationReason, ServiceError
from semel.aws.transport import Transport, WireStep
from semel.core.commands import (
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
    holds,
)
from semel.core.runtime import random_token
from semel.stores.dynamodb.layout import SCHEMA
from semel.stores.dynamodb.plan import DynamoPlan, RequestBody, afresh, check_count, check_sizes
from semel.stores.dynamodb.read_first import RefusalRate
from semel.stores.dynamodb.time import ClockReading, Timekeeper
from semel.stores.shared import not_offered
from semel.tables import Table

T = TypeVar("T")

CONDITION = "ConditionalCheckFailedException"
CONDITION_REASON = "ConditionalCheckFailed"
CANCELLED = "TransactionCanceledException"

# Whoever is refused by an expired item and then by a new one was overtaken; so often in a row is no accident.
OVERTAKEN = 10
# A filtered page may look at many items to find one: each look takes in ten times as many as the one before.
FIRST_LOOK = 100
MORE = 10
# DynamoDB remembers a transaction's token for ten minutes; a resending must arrive well before that.
RESEND_SECONDS = 300.0
# So many transactions are remembered whose outcome nobody knows; more at once is a network that is down.
UNSETTLED = 100

Make: TypeAlias = Callable[[ClockReading], RequestBody]

# What a transaction calls each write, and how its request is made.
ACTIONS: dict[type, tuple[str, Callable[[DynamoPlan, Any, ClockReading], RequestBody]]] = {
    Put: ("Put", DynamoPlan.put),
    Update: ("Update", DynamoPlan.update),
    Delete: ("Delete", DynamoPlan.delete),
    Add: ("Update", DynamoPlan.add),
}


class DynamoRequest:
    """A command's request, made at once, so that what is wrong with it shows before anything is sent."""

    __slots__ = ("_make", "_read", "_taken", "body", "operation", "reading", "title", "write")

    def __init__(
        self, operation: str, title: str, make: Make, read: Callable[[], ClockReading], *, write: bool
    ) -> None:
        self.operation: str = operation
        self.title: str = title
        self.write: bool = write
        self._make = make
        self._read = read
        self._taken = False
        self.reading: ClockReading = read()
        self.body: RequestBody = make(self.reading)

    def __call__(self) -> RequestBody:
        """The request; asked for once more, it is made anew, as the clock was wrong."""
        if self._taken:
            self.reading = self._read()
            self.body = self._make(self.reading)
        self._taken = True
        return self.body


class FixedRequest(DynamoRequest):
    """A request that stays what it is, however often it is sent."""

    __slots__ = ()

    def __call__(self) -> RequestBody:
        """The request."""
        return self.body


class Concurrently:
    """Pieces of work that may be done at the same time, each a row of steps to be taken one after another.

    The answer has a list for each: what came of its steps, with the error last where one ended it.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: "list[list[DynamoSteps[Any]]]") -> None:
        self.rows: list[list[DynamoSteps[Any]]] = rows


DynamoStep: TypeAlias = WireStep | Concurrently
DynamoSteps: TypeAlias = Generator[DynamoStep, Any, T]


class DynamoOperations:
    """Where commands become steps."""

    def __init__(
        self,
        transport: Transport,
        time: Timekeeper,
        plan_of: Callable[[Table], DynamoPlan],
        refusals: RefusalRate,
    ) -> None:
        self._transport = transport
        self._time = time
        self._plan_of = plan_of
        self._refusal_rate = refusals
        self._returns_items = False
        self._unsettled: OrderedDict[int, tuple[Transact, DynamoRequest, set[int]]] = OrderedDict()
        self.by_command: dict[type, Callable[[Any], DynamoSteps[Any]]] = {
            Get: self.get,
            Watch: self.get,
            Put: self.put,
            Update: self.change,
            Delete: self.change,
            Add: self.add,
            Query: self.query,
            Transact: self.transact,
            Batch: self.batch,
            Time: self.time,
        }

    def _read(self, operation: str, plan: DynamoPlan, body: RequestBody) -> DynamoSteps[RequestBody]:
        """The response to a request that writes nothing."""
        return self._send(FixedRequest(operation, plan.title, lambda _: body, self._time.read, write=False))

    def _write_request(self, operation: str, plan: DynamoPlan, make: Make) -> DynamoRequest:
        return DynamoRequest(operation, plan.title, make, self._time.read, write=True)

    def _request(self, plan: DynamoPlan, command: Put | Update | Delete) -> DynamoRequest:
        action, make = ACTIONS[type(command)]
        return self._write_request(f"{action}Item", plan, lambda reading: make(plan, command, reading))

    def _send(self, request: DynamoRequest) -> DynamoSteps[RequestBody]:
        """The response to a request; an error says which request it is about."""
        try:
            steps = self._transport.exchange(request.operation, request, write=request.write)
            return (yield from steps)
        except ServiceError as error:
            error.request = request
            raise

    def open(self, plan: DynamoPlan, env: str) -> DynamoSteps[bool]:
        """Look at a table's stamp: is it there, may it be read, whose is it; and what time is it."""
        answer = yield from self._read("GetItem", plan, plan.stamp())
        stamp: RequestBody = answer.get("Item") or {}
        stamped = stamp.get("environment", {}).get("S", env)
        if stamped != env:
            raise errors.WrongEnvironment(stamped, env)
        schema = int(stamp.get("schema", {}).get("N", SCHEMA))
        if schema > SCHEMA:
            raise errors.SchemaTooNew(schema, SCHEMA)
        return True

    def ask_time(self, plan: DynamoPlan, env: str) -> DynamoSteps[bool]:
        """Look at a table's stamp to learn the time, which a refusal tells as well; whether it was seen."""
        try:
            yield from self.open(plan, env)
        except ServiceError:
            return False
        return True

    # One item

    def get(self, command: Get | Watch) -> DynamoSteps[Found]:
        """Read one item."""
        plan = self._plan_of(command.table)
        answer = yield from self._read("GetItem", plan, plan.get(command))
        reading = self._time.read()
        return Found(reading.earliest, plan.layout.living(answer.get("Item"), reading))

    def put(self, command: Put) -> DynamoSteps[Applied | Refused]:
        """Write an item; where refusals are many, look first."""
        plan = self._plan_of(command.table)
        request = self._request(plan, command)
        if not self._refusal_rate.counts(command.when):
            return self._write(plan, command, request)
        return self._claimed(plan, command, request)

    def _claimed(
        self, plan: DynamoPlan, command: Put, request: DynamoRequest
    ) -> DynamoSteps[Applied | Refused]:
        rate = self._refusal_rate
        refusal = (yield from self._foreseen(command)) if rate.reads_first else None
        reply = refusal or (yield from self._write(plan, command, request))
        rate.learn(refused=type(reply) is Refused)
        return reply

    def _foreseen(self, command: Put) -> DynamoSteps[Refused | None]:
        found = yield from self.get(Get(command.table, command.key, command.sort))
        if found.item is None or command.when is None or holds(command.when, found.item, found.now):
            return None
        return Refused(found.now, found.item)

    def change(self, command: Update | Delete) -> DynamoSteps[Applied | Refused]:
        """Change or remove an item that is there."""
        plan = self._plan_of(command.table)
        return self._write(plan, command, self._request(plan, command))

    def _write(
        self, plan: DynamoPlan, command: Write, request: DynamoRequest
    ) -> DynamoSteps[Applied | Refused]:
        for _ in range(OVERTAKEN):
            try:
                yield from self._send(request)
            except ServiceError as error:
                if error.code != CONDITION:
                    raise
                returned = error.item
            else:
                return Applied(request.reading.earliest)
            item = yield from self._in_the_way(plan, command, request.reading, returned)
            # What was read afterwards may not be what refused it; if it would not have, it is tried again.
            if returned is not None or not allowed(command, item, request.reading.earliest):
                return Refused(request.reading.earliest, item)
        raise _overtaken(f"{command.key!r} was written to")

    def _in_the_way(
        self, plan: DynamoPlan, command: Write, reading: ClockReading, item: RequestBody | None
    ) -> DynamoSteps[Item | None]:
        """What a condition failed on; a server that has returned no item yet may be one that never does."""
        if item is not None:
            self._returns_items = True
        elif not self._returns_items or allowed(command, None, reading.earliest):
            answer = yield from self._read("GetItem", plan, plan.get(command))
            item = answer.get("Item")
        return plan.layout.living(item, reading)

    def add(self, command: Add) -> DynamoSteps[Applied | Refused]:
        """Count on from what is alive, or begin anew where that is over.

        One request cannot say both. So the first is refused by an item whose time is up, and a second one
        replaces it, unless somebody else was quicker: then there is something alive to count on from.
        """
        plan = self._plan_of(command.table)
        return self._added(plan, command, self._addition(plan, command))

    def _addition(self, plan: DynamoPlan, command: Add) -> DynamoRequest:
        return self._write_request(
            "UpdateItem", plan, lambda reading: plan.add(command, reading) | {"ReturnValues": "ALL_NEW"}
        )

    def _added(
        self, plan: DynamoPlan, command: Add, request: DynamoRequest
    ) -> DynamoSteps[Applied | Refused]:
        anew = afresh(command)
        for _ in range(OVERTAKEN):
            try:
                response = yield from self._send(request)
                return Applied(request.reading.earliest, plan.layout.read(response["Attributes"]))
            except ServiceError as error:
                if error.code != CONDITION:
                    raise
                returned = error.item
            item = yield from self._in_the_way(plan, command, request.reading, returned)
            come_since = item is not None and allowed(command, item, request.reading.earliest)
            if returned is not None or not come_since:
                if not _begins_anew(plan, command, item, request.reading):
                    return Refused(request.reading.earliest, item)
                first = self._request(plan, anew)
                if type((yield from self._write(plan, anew, first))) is Applied:
                    return Applied(first.reading.earliest, plan.layout.read(first.body["Item"]))
            request = self._addition(plan, command)
        raise _overtaken(f"{command.key!r} was added to")

    # Several items

    def query(self, command: Query) -> DynamoSteps[Page]:
        """Look until there are as many as were asked for, or no more."""
        plan = self._plan_of(command.table)
        if command.table.index(command.index) in command.table.optional_indexes:
            from semel.stores.dynamodb.prices import why_no_recent

            raise not_offered(command.index, why_no_recent())
        reading, search = self._time.read(), plan.search(command)
        request, start = search.request(reading), search.start()
        look = max(command.limit + 1, FIRST_LOOK if search.filters else 0)
        look = min(look, command.most) if search.bounded else look
        found: list[Item] = []
        seen = 0
        while request is not None:
            begin = {} if start is None else {"ExclusiveStartKey": start}
            answer = yield from self._read(search.operation, plan, request | {"Limit": look} | begin)
            seen += answer.get("ScannedCount", len(answer["Items"]))
            living = [plan.layout.living(item, reading) for item in answer["Items"]]
            found += [item for item in living if item is not None and search.wants(item, reading)]
            start = answer.get("LastEvaluatedKey")
            if start is None or len(found) >= command.limit:
                break
            if search.bounded and seen >= command.most:
                return Page(reading.earliest, search.page(found), search.after(start), seen)
            look = min(look * MORE, command.most - seen) if search.bounded else look * MORE
        page = found[: command.limit]
        last = not page or (start is None and len(found) == len(page))
        return Page(reading.earliest, search.page(page), None if last else search.cursor(page[-1]), seen)

    def time(self, _: Time) -> DynamoSteps[Found]:
        """What time it is, as far as the latest answers have told."""
        yield from ()
        return Found(self._time.read().earliest, None)

    def described(self, plan: DynamoPlan) -> DynamoSteps[RequestBody]:
        """What DynamoDB tells of a table: its size among other things."""
        return self._read("DescribeTable", plan, {"TableName": plan.title})

    def reap(self, plan: DynamoPlan, limit: int) -> DynamoSteps[int]:
        """Remove what has expired, which DynamoDB does by itself and local engines do not."""
        reaped, begin = 0, RequestBody()
        while True:
            answer = yield from self._read("Scan", plan, plan.over(self._time.read()) | begin)
            for key in answer["Items"][: limit - reaped]:
                reaped += yield from self._swept(plan, key)
            if "LastEvaluatedKey" not in answer or reaped >= limit:
                return reaped
            begin = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def _swept(self, plan: DynamoPlan, key: dict[str, Any]) -> DynamoSteps[bool]:
        try:
            request = self._write_request("DeleteItem", plan, lambda reading: plan.sweep(key, reading))
            yield from self._send(request)
        except ServiceError as error:
            if error.code != CONDITION:
                raise
            return False
        return True

    def batch(self, command: Batch) -> DynamoSteps[Many]:
        """Each write by itself, those of one item in their order.

        DynamoDB's batches know no conditions, and its PartiQL batches only "if it does not exist", which an
        expired item refutes, and they need permissions of their own. So the writes are sent singly, as many
        at a time as the store allows itself.
        """
        rows: dict[Any, list[int]] = {}
        for place, write in enumerate(command.writes):
            rows.setdefault((write.table.name, write.key, write.sort), []).append(place)
        # Every request is made here, so that what is wrong with one shows before any is sent.
        steps = [self.by_command[type(write)](write) for write in command.writes]
        answers = yield Concurrently([[steps[place] for place in row] for row in rows.values()])
        failed = [row[-1] for row in answers if isinstance(row[-1], Exception)]
        if failed:
            raise _of_a_batch(failed, any(len(row) > 1 or row[-1] not in failed for row in answers))
        replies = dict(zip(chain(*rows.values()), chain(*answers), strict=True))
        return Many(tuple(replies[place] for place in range(len(command.writes))))

    # Transactions

    def transact(self, command: Transact) -> DynamoSteps[Applied | Cancelled]:
        """All of it or nothing.

        An addition that meets an expired item cancels the transaction; it is then sent once more, with that
        item written anew.
        """
        check_count(command)
        if not command.writes:
            return Applied(self._time.read().earliest)
        request, anew = self._recalled(command) or (None, set[int]())
        for _ in range(OVERTAKEN):
            request = request or self._transaction(command, anew)
            reasons = yield from self._outcome(command, request, anew)
            if reasons is None:
                return Applied(request.reading.earliest)
            refusals, next_anew = yield from self._refusals(command, request.reading, reasons, anew)
            if next_anew is None or any(refusals):
                return Cancelled(request.reading.earliest, refusals)
            request, anew = None, next_anew
        raise _overtaken("a transaction was made")

    def _transaction(self, command: Transact, anew: set[int]) -> DynamoRequest:
        plans = [self._plan_of(write.table) for write in command.writes]

        def make(reading: ClockReading) -> RequestBody:
            actions = [
                _action(plan, write, reading, anew=place in anew)
                for place, (plan, write) in enumerate(zip(plans, command.writes, strict=True))
            ]
            check_sizes(actions)
            # The token is drawn, and not made from the content: two callers that add one to the same number
            # at the same moment send the same content, and mean two.
            return {"TransactItems": actions, "ClientRequestToken": random_token()}

        title = ", ".join(dict.fromkeys(plan.title for plan in plans))
        return FixedRequest("TransactWriteItems", title, make, self._time.read, write=True)

    def _outcome(
        self, command: Transact, request: DynamoRequest, anew: set[int]
    ) -> DynamoSteps[list[CancellationReason] | None]:
        """Why a transaction was cancelled, None if it was not; with its token it may be sent again."""
        unknown: errors.StoreError | None = None
        for _ in range(TRIES):
            try:
                yield from self._send(request)
                return None
            except errors.StoreOutcomeUnknown as error:
                unknown = error
            except errors.StoreError as error:
                if isinstance(error, ServiceError) and error.code == CANCELLED:
                    return error.reasons
                if unknown is None:
                    raise
                unknown = error
        self._remember(command, request, anew)
        raise errors.StoreOutcomeUnknown(f"tried {TRIES} times, and no answer came: {unknown}") from unknown

    def _remember(self, command: Transact, request: DynamoRequest, anew: set[int]) -> None:
        """Whoever sends this very transaction again sends it with the same token: it is made at most once."""
        if len(self._unsettled) >= UNSETTLED:
            self._unsettled.popitem(last=False)
        self._unsettled[id(command)] = (command, request, anew)

    def _recalled(self, command: Transact) -> tuple[DynamoRequest, set[int]] | None:
        known, request, anew = self._unsettled.pop(id(command), (None, None, None))
        if known is not command or request is None or anew is None:
            return None
        age = self._time.read().earliest - request.reading.earliest
        return (request, anew) if 0 <= age < RESEND_SECONDS else None

    def _refusals(
        self, command: Transact, reading: ClockReading, reasons: list[CancellationReason], anew: set[int]
    ) -> DynamoSteps[tuple[tuple[Refused | None, ...], set[int] | None]]:
        """What refused each write; and, if any is to be tried again, which additions then begin anew."""
        refusals: list[Refused | None] = [None] * len(command.writes)
        next_anew, again = set(anew), False
        for place, (write, reason) in enumerate(zip(command.writes, reasons, strict=True)):
            if reason.code in PASSING:
                continue
            if reason.code != CONDITION_REASON:
                raise errors.UsageError(
                    f"DynamoDB refuses write {place + 1} of a transaction: {reason.message}"
                )
            plan = self._plan_of(write.table)
            item = yield from self._in_the_way(plan, write, reading, reason.item)
            if isinstance(write, Add) and _begins_anew(plan, write, item, reading):
                next_anew.add(place)
                again = True
            elif place in anew or (reason.item is None and allowed(write, item, reading.earliest)):
                next_anew.discard(place)
                again = True
            else:
                refusals[place] = Refused(reading.earliest, item)
        return tuple(refusals), next_anew if again else None


def _overtaken(what: str) -> errors.StoreThrottled:
    return errors.StoreThrottled(f"items came and went {OVERTAKEN} times while {what}; try again later")


def _begins_anew(plan: DynamoPlan, command: Add, item: Item | None, reading: ClockReading) -> bool:
    """Whether an addition that was refused makes an item, as there is none alive."""
    if item is not None or not (command.when is None or holds(command.when, None, reading.earliest)):
        return False
    if not plan.lasting(command):
        raise plan.layout.endless()
    return True


def _action(plan: DynamoPlan, command: Write, reading: ClockReading, *, anew: bool) -> RequestBody:
    """One write of a transaction."""
    write = afresh(command) if anew and isinstance(command, Add) else command
    action, make = ACTIONS[type(write)]
    return {action: make(plan, write, reading)}


def _of_a_batch(failed: list[Exception], some_made: bool) -> Exception:
    """What is said of a batch of which some failed: that nothing was made only where that is so."""
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
