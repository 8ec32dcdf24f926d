"""What tests of DynamoDB have in common: a wire that is told what to say, and engines with tables in them."""

from collections.abc import Iterable
from typing import Any, TypeAlias

from semel.aws.environment import Credentials
from semel.aws.errors import ServiceError
from semel.aws.time import ServiceTime
from semel.aws.wire import Transport, Wire, WireStep, WireSteps
from semel.core.clock import Clock
from semel.provision.shape import create_request
from semel.stores.dynamodb import DynamoDBStore
from semel.stores.dynamodb.items import title
from semel.tables import Table

REGION = "eu-north-1"
ENV = "test"
ANYONE = Credentials("anyone", "anything")


Answer: TypeAlias = dict[str, Any] | Exception


class Told(Transport):
    """A transport that answers as it was told to, and with nothing where it was not."""

    def __init__(self, clock: Clock, *answers: Answer) -> None:
        self.time = ServiceTime(clock)
        self.answers = [{}, *answers]  # the first is for the stamp
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.closed = False

    def call(self, operation: str, request: Any, *, write: bool) -> dict[str, Any]:
        self.asked.append((operation, request() if callable(request) else request))
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return answer

    def exchange(self, operation: str, request: Any, *, write: bool) -> WireSteps[dict[str, Any]]:
        yield from ()  # there is nothing to be done on the way
        return self.call(operation, request, write=write)

    def perform(self, step: WireStep) -> Any:
        raise AssertionError(step)

    async def aperform(self, step: WireStep) -> Any:
        raise AssertionError(step)

    async def leave(self) -> None:
        """Nothing to leave."""

    def close(self) -> None:
        self.closed = True

    @property
    def operations(self) -> list[str]:
        """What was asked, the stamp aside."""
        return [operation for operation, _ in self.asked[1:]]


class Counting(Wire):
    """A wire that keeps count of what was asked."""

    def __init__(self, url: str, clock: Clock | None = None, credentials: Credentials = ANYONE) -> None:
        super().__init__("dynamodb", region=REGION, endpoint=url, credentials=credentials, clock=clock)
        self.asked: list[str] = []

    def exchange(self, operation: str, request: Any, *, write: bool) -> WireSteps[dict[str, Any]]:
        self.asked.append(operation)
        return super().exchange(operation, request, write=write)


class Engine:
    """A DynamoDB engine with tables in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.wire = Wire("dynamodb", region=REGION, endpoint=url, credentials=ANYONE)
        self._made: set[str] = set()

    def call(self, operation: str, **request: Any) -> dict[str, Any]:
        return self.wire.call(operation, request, write=False)

    def make(self, tables: Iterable[Table], env: str = ENV) -> None:
        """Make the tables where they are missing."""
        for table in tables:
            name = title(table, env)
            if name in self._made:
                continue
            try:
                self.wire.call("CreateTable", create_request(table, env), write=True)
            except ServiceError as error:
                if error.code != "ResourceInUseException":
                    raise
            self._made.add(name)

    def empty(self, tables: Iterable[Table], env: str = ENV) -> None:
        """Remove every item of these tables."""
        for table in tables:
            name = title(table, env)
            for item in self.items(table, env):
                key = {attribute: item[attribute] for attribute in table.key}
                self.call("DeleteItem", TableName=name, Key=key)

    def items(self, table: Table, env: str = ENV) -> list[dict[str, Any]]:
        """The items of a table as they are."""
        found: list[dict[str, Any]] = []
        start: dict[str, Any] = {}
        while True:
            page = self.call("Scan", TableName=title(table, env), ConsistentRead=True, **start)
            found += page["Items"]
            if "LastEvaluatedKey" not in page:
                return found
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def item(self, table: Table, key: str, sort: Any = None, env: str = ENV) -> dict[str, Any]:
        """One item as it is; it has to be there."""
        named: dict[str, Any] = {table.partition: {"S": key}}
        if table.sort is not None:
            named[table.sort] = {"N": str(sort)} if isinstance(sort, int) else {"S": sort}
        found = self.call("GetItem", TableName=title(table, env), Key=named, ConsistentRead=True)
        item: dict[str, Any] = found["Item"]
        return item

    def put(self, table: Table, item: dict[str, Any], env: str = ENV) -> None:
        """Write an item as somebody else would."""
        self.call("PutItem", TableName=title(table, env), Item=item)

    def store(
        self, clock: Clock | None = None, tables: Iterable[Table] = (), **options: Any
    ) -> DynamoDBStore:
        """A store on this engine."""
        options.setdefault("env", ENV)
        return DynamoDBStore(Counting(self.url, clock), tables=tables, clock=clock, **options)


# One for each server: its tables are made once.
ENGINES: dict[str, Engine] = {}


def engine(url: str) -> Engine:
    """The engine at a URL."""
    if url not in ENGINES:
        ENGINES[url] = Engine(url)
    return ENGINES[url]
