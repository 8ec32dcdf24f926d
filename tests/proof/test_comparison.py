"""What docs/explanation/comparison.md says of semel and of other libraries, seen by running each of them."""

import asyncio
import random
import re
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import files, version
from pathlib import Path
from typing import Any

import boto3
import idemkit
import justonce
import pytest
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyPersistenceLayerError,
)
from dbos import DBOS, SetWorkflowID
from justonce.stores import SqliteStore

import semel
from semel.stores.dynamodb.items import title
from semel.tables.powertools import POWERTOOLS
from semel.testing import FakeClock
from tests.conformance.dynamodb_kit import ENV, REGION, engine

Protect = Callable[[Callable[[int], Any]], Callable[[int], Any]]

FALSY: list[Any] = [0, "", [], False, None]


class Context:
    """A Lambda invocation with this much time left."""

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = milliseconds

    def get_remaining_time_in_millis(self) -> int:
        return self._milliseconds


@pytest.fixture
def client(dynoxide: str) -> Any:
    """A client of boto3 with Powertools' table, which is empty."""
    engine(dynoxide).make([POWERTOOLS])
    engine(dynoxide).empty([POWERTOOLS])
    secret = {"aws_access_key_id": "anyone", "aws_secret_access_key": "anything"}
    return boto3.client("dynamodb", region_name=REGION, endpoint_url=dynoxide, **secret)


def powertools(client: Any, left: int = 30_000, layer: Any = None) -> Protect:
    """Its decorator, for functions of a number."""
    layer = layer or DynamoDBPersistenceLayer(table_name=title(POWERTOOLS, ENV), boto3_client=client)
    config = IdempotencyConfig(lambda_context=Context(left))

    def protect(work: Callable[[int], Any]) -> Callable[[int], Any]:
        def by_keyword(*, number: int) -> Any:
            return work(number)

        protected = idempotent_function(
            data_keyword_argument="number",
            persistence_store=layer,
            config=config,
            key_prefix=work.__name__,
        )(by_keyword)
        return lambda number: protected(number=number)

    return protect


def by_idemkit() -> Protect:
    config = idemkit.MethodConfig(key_fields=["number"])
    protect: Protect = idemkit.idempotent_sync(backend=idemkit.InMemoryBackend(), config=config)
    return protect


def quietly(protect: Protect, work: Callable[[int], Any]) -> Callable[[int], Any]:
    """Decorate it; idemkit warns that no scope is given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return protect(work)


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    made = SqliteStore()
    yield made
    made.close()


def by_justonce(store: SqliteStore) -> Protect:
    run = justonce.Idempotent(store)
    protect: Protect = justonce.idempotent(
        key=lambda number: justonce.operation_key("work", str(number)), engine=run
    )
    return protect


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[None]:
    """DBOS on a database of its own, with nothing registered."""
    if sys.version_info >= (3, 12) and sqlite3.sqlite_version_info < (3, 42):
        pytest.skip("on this Python, DBOS asks SQLite for fractions of a second, which it has since 3.42")
    DBOS.destroy(destroy_registry=True)
    DBOS(config={"name": "comparison", "system_database_url": f"sqlite:///{tmp_path / 'dbos.db'}"})
    yield
    DBOS.destroy(destroy_registry=True)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def s(clock: FakeClock) -> Iterator[semel.Semel]:
    with semel.connect("memory:", clock=clock) as made:
        yield made


# Lease, takeover, fencing


def test_a_late_completion_of_powertools_overwrites_the_new_holders_result(client: Any) -> None:
    work = ["first", "second"]

    def charge(number: int) -> str:
        mine = work.pop(0)
        if mine == "first":  # whose time is over, and who goes on
            assert powertools(client)(charge)(number) == "second"
        return mine

    assert powertools(client, left=-1000)(charge)(1) == "first"
    assert powertools(client)(charge)(1) == "first"


def test_a_late_failure_of_powertools_deletes_the_new_holders_result(client: Any) -> None:
    runs = []

    def charge(number: int) -> str:
        runs.append(number)
        if len(runs) == 1:
            powertools(client)(charge)(number)
            raise ConnectionError("late")
        return "done"

    with pytest.raises(ConnectionError):
        powertools(client, left=-1000)(charge)(1)
    assert powertools(client)(charge)(1) == "done"
    assert len(runs) == 3


def test_a_late_completion_of_idemkit_is_refused() -> None:
    async def late() -> list[bool]:
        now = idemkit.ManualClock()
        backend = idemkit.InMemoryBackend(clock=now)
        first = await backend.claim("k", "h", 1, 60)
        now.advance(61)
        second = await backend.claim("k", "h", 1, 60)
        tokens = (first.our_claim_token, second.our_claim_token)
        return [await backend.complete("k", token, 200, {}, b"done", 60) for token in tokens]

    assert asyncio.run(late()) == [False, True]


# A reply that is lost


class Repeating:
    """A client whose every claim is sent twice, as boto3 does when the first answer was lost."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.meta, self.exceptions = client.meta, client.exceptions

    def put_item(self, **request: Any) -> Any:
        self._client.put_item(**request)
        return self._client.put_item(**request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_a_claim_whose_answer_was_lost_locks_powertools_out(client: Any) -> None:
    runs: list[int] = []
    with pytest.raises(IdempotencyAlreadyInProgressError):
        powertools(Repeating(client))(runs.append)(1)
    assert runs == []


# Another payload


def test_dbos_gives_the_first_result_for_another_payload(durable: None) -> None:
    @DBOS.workflow()
    def charge(cents: int) -> int:
        return cents

    DBOS.launch()
    answers = []
    for cents in (100, 999):
        with SetWorkflowID("o-1"):
            answers.append(charge(cents))
    assert answers == [100, 100]


def test_idemkit_gives_the_first_result_for_another_payload_of_a_function_unless_it_is_told() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend, config = idemkit.InMemoryBackend(), idemkit.MethodConfig(key_fields=["number"])

        @idemkit.idempotent_sync(backend=backend, config=config)
        def charge(number: int, cents: int) -> int:
            return cents

    assert [charge(1, 100), charge(1, 999)] == [100, 100]


def test_semel_and_justonce_refuse_another_payload(s: semel.Semel, store: SqliteStore) -> None:
    @s.once("charge:{number}")
    def charge(number: int, cents: int) -> int:
        return cents

    charge(1, 100)
    with pytest.raises(semel.PayloadChanged):
        charge(1, 999)
    run = justonce.Idempotent(store)
    run.run("k", lambda: 100, payload=100)
    with pytest.raises(justonce.KeyReuseError):
        run.run("k", lambda: 999, payload=999)


# Results


@pytest.mark.parametrize("value", FALSY, ids=repr)
def test_a_falsy_result_is_replayed_as_it_was_and_by_powertools_as_none(
    value: Any, s: semel.Semel, store: SqliteStore, client: Any
) -> None:
    def work(number: int) -> Any:
        return value

    for protect in (s.once("work:{number}", returns=Any), by_idemkit(), by_justonce(store)):
        call = quietly(protect, work)
        assert [call(1), call(1)] == [value, value]
    call = powertools(client)(work)
    assert [call(1), call(1)] == [value, None]


def test_a_falsy_result_is_replayed_as_it_was_by_dbos(durable: None) -> None:
    @DBOS.workflow()
    def work(number: int) -> Any:
        return FALSY[number]

    DBOS.launch()
    for number, value in enumerate(FALSY):
        for _ in range(2):
            with SetWorkflowID(f"w-{number}"):
                assert work(number) == value


def test_a_result_that_is_too_large_runs_again_each_time_in_powertools_and_once_in_semel(
    client: Any, dynoxide: str
) -> None:
    runs = []

    def work(number: int) -> str:
        runs.append(number)
        return random.Random(7).randbytes(600_000).hex()  # which is too large when it is compressed too

    for _ in range(2):  # a retry that comes after the invocation's end
        with pytest.raises(IdempotencyPersistenceLayerError):
            powertools(client, left=-1000)(work)(1)
    assert runs == [1, 1]
    with semel.Semel(engine(dynoxide).store(tables=[POWERTOOLS]), env=ENV) as on_dynamodb:
        call = on_dynamodb.once("large:{number}")(work)
        call(2)
        with pytest.raises(semel.ResultNotKept):
            call(2)
    assert runs == [1, 1, 2]


# Async, nested, threads


def test_async_functions_are_protected_by_semel_and_idemkit(s: semel.Semel) -> None:
    runs = []

    async def work(number: int) -> str:
        runs.append(number)
        return "done"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = idemkit.idempotent(
            backend=idemkit.InMemoryBackend(), config=idemkit.MethodConfig(key_fields=["number"])
        )(work)
    ours = s.once("work:{number}")(work)

    async def twice(call: Any) -> list[str]:
        return [await call(1), await call(1)]

    for call in (ours, theirs):
        assert asyncio.run(twice(call)) == ["done", "done"]
    assert runs == [1, 1]


def test_an_async_function_under_powertools_fails_and_leaves_its_key_in_progress(client: Any) -> None:
    made: list[Any] = []

    async def effect() -> str:
        return "done"

    def work(number: int) -> Any:
        made.append(effect())  # what a call of an async function gives
        return made[-1]

    with pytest.raises(IdempotencyPersistenceLayerError, match="not JSON serializable"):
        powertools(client)(work)(1)
    made.pop().close()
    assert [item["status"]["S"] for item in items(client)] == ["INPROGRESS"]


def test_nested_functions_on_one_layer_of_powertools_leave_the_outer_one_in_progress(client: Any) -> None:
    layer = DynamoDBPersistenceLayer(table_name=title(POWERTOOLS, ENV), boto3_client=client)
    protect = powertools(client, layer=layer)

    def inner(number: int) -> str:
        return "inner"

    def outer(number: int) -> str:
        protect(inner)(number)
        return "outer"

    protect(outer)(1)
    ids = {item["id"]["S"].partition("#")[0]: item["status"]["S"] for item in items(client)}
    assert ids == {"outer": "INPROGRESS", "inner": "COMPLETED"}


def items(client: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.scan(TableName=title(POWERTOOLS, ENV))["Items"]
    return found


def test_nested_functions_of_semel_have_a_claim_each(s: semel.Semel) -> None:
    inner = s.once("inner:{number}")(lambda number: "inner")
    outer = s.once("outer:{number}")(lambda number: f"outer {inner(number)}")
    assert [outer(1), outer(1), inner(1)] == ["outer inner", "outer inner", "inner"]


# A crash after the effect


def test_a_crash_after_the_effect_runs_again_in_justonce_and_idemkit_and_semel_can_hold_it(
    s: semel.Semel, clock: FakeClock, store: SqliteStore
) -> None:
    assert store.claim("k", "h", -1).won  # its worker did its work, and died before it could say so
    assert store.claim("k", "h", 60).won

    async def theirs() -> Any:
        now = idemkit.ManualClock()
        backend = idemkit.InMemoryBackend(clock=now)
        await backend.claim("k", "h", 1, 60)
        now.advance(61)
        return await backend.claim("k", "h", 1, 60)

    assert asyncio.run(theirs()).result == "lease_reclaimed"
    s.ledger.claim("held:1", lease=60)
    clock.advance(61)
    held = s.once("held:{number}", on_lapsed="hold")(lambda number: "ran again")
    with pytest.raises(semel.OutcomeUnknown):
        held(1)


def test_dbos_resumes_a_workflow_after_its_last_step_and_repeats_the_step_that_was_cut_off(
    durable: None,
) -> None:
    runs: list[str] = []

    @DBOS.step()
    def first() -> None:
        runs.append("first")

    @DBOS.step()
    def second() -> None:
        runs.append("second")
        if runs.count("second") == 1:
            raise SystemExit  # as if it died after its effect

    @DBOS.workflow()
    def order() -> str:
        first()
        second()
        return "done"

    DBOS.launch()
    with SetWorkflowID("w"), pytest.raises(SystemExit):
        order()
    [handle] = DBOS._recover_pending_workflows(["local"])
    assert handle.get_result() == "done"
    assert runs == ["first", "second", "second"]


def test_dbos_protects_async_and_nested_workflows_with_an_id_each(durable: None) -> None:
    runs: list[str] = []

    @DBOS.workflow()
    async def inner() -> str:
        runs.append("inner")
        return "inner"

    @DBOS.workflow()
    async def outer() -> str:
        runs.append("outer")
        return f"outer {await inner()}"

    DBOS.launch()

    async def call() -> str:
        with SetWorkflowID("w"):
            answer: str = await outer()
            return answer

    async def twice() -> list[str]:
        return [await call(), await call()]

    assert asyncio.run(twice()) == ["outer inner", "outer inner"]
    assert runs == ["outer", "inner"]


def test_a_result_of_a_megabyte_is_replayed_where_the_store_has_no_such_limit(
    s: semel.Semel, store: SqliteStore, durable: None
) -> None:
    def work(number: int) -> str:
        return "x" * 1_000_000

    for protect in (s.once("work:{number}"), by_idemkit(), by_justonce(store)):
        call = quietly(protect, work)
        assert call(1) == call(1) == work(1)
    workflow = DBOS.workflow()(work)
    DBOS.launch()
    for _ in range(2):
        with SetWorkflowID("w"):
            assert workflow(1) == work(1)


# The page

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "comparison.md"
PACKAGES = {
    "Powertools": "aws-lambda-powertools",
    "idemkit": "idemkit",
    "justonce": "justonce",
    "DBOS": "dbos",
}
NAMED = {"semel", "Stripe", "Temporal", *PACKAGES}
SOURCE = re.compile(r"`([\w/]+\.py)`: `([^`]+)`")
TEST = re.compile(r"`[\w/]+\.py::test_\w+`")  # which another test finds
FEATURES = 14


def lines() -> list[list[str]]:
    """Every line of every table under a feature: who, what, and what shows it."""
    found = PAGE.read_text("utf-8").split("## Feature by feature")[1].split("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in found.splitlines() if row.startswith("| ")]
    return [row for row in rows if row[0] != "who"]


def test_every_line_of_the_comparison_has_its_test_or_its_source() -> None:
    for who, what, shown in lines():
        assert who in NAMED, who
        assert what
        ours = TEST.search(shown) or SOURCE.search(shown)
        assert ours if who in {"semel", *PACKAGES} else "https://docs." in shown, (who, what)


def test_every_feature_has_a_line_of_semel_and_of_somebody_else() -> None:
    features = PAGE.read_text("utf-8").split("## Feature by feature")[1].split("\n## ")[0].split("\n### ")[1:]
    assert len(features) == FEATURES
    for feature in features:
        who = re.findall(r"^\| (\w+) \|", feature, re.MULTILINE)
        assert "semel" in who
        assert len(who) > 2, feature


@pytest.mark.parametrize("package", PACKAGES.values())
def test_the_comparison_names_the_version_that_was_run(package: str) -> None:
    assert f"{package} {version(package)}" in PAGE.read_text("utf-8")


def test_every_source_that_the_comparison_quotes_has_the_words() -> None:
    installed = {
        path.as_posix(): path
        for package in PACKAGES.values()
        for path in files(package) or ()
        if path.suffix == ".py"
    }
    quoted = [source for _, _, shown in lines() for source in SOURCE.findall(shown)]
    assert quoted
    for path, words in quoted:
        assert words in installed[path].read_text("utf-8"), path
