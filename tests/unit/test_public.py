"""The public surface: what is exported, how stores are named, how errors travel."""

import ast
import builtins
import inspect
import pickle
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import semel
from semel import errors
from semel.connect import open_store
from semel.core import lifecycle
from semel.core.facades import AsyncLedger, Ledger
from semel.core.ledger import LedgerSteps
from semel.testing import FakeClock


def every_error() -> list[type[Exception]]:
    return [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]


def test_every_exported_name_exists_and_no_public_one_is_forgotten() -> None:
    assert sorted(semel.__all__, key=str.casefold) == sorted(set(semel.__all__), key=str.casefold)
    public = {
        name
        for name, value in vars(semel).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(semel.__all__)


def test_every_error_is_in_the_tree_that_the_docstring_draws_and_is_exported() -> None:
    drawn = {
        line.strip("│├└─ ").split()[0] for line in (errors.__doc__ or "").splitlines()[2:] if line.strip()
    }
    assert drawn == {kind.__name__ for kind in every_error()}
    assert drawn <= set(semel.__all__)
    assert all(issubclass(kind, semel.SemelError) for kind in every_error())


@pytest.mark.parametrize(
    "error",
    [
        semel.InProgress("k", 1.5, 2),
        semel.FailedBefore("k", "ValueError", "no", 3),
        semel.ClaimLost("k", 1, "complete"),
        semel.WrongEnvironment("prod", "dev"),
        semel.StoreUnavailable("down"),
        semel.MissingExtra("redis", "redis"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling_with_their_fields(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_the_two_ledgers_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name, value in vars(kind).items() if not name.startswith("_") and callable(value)}

    assert methods(Ledger) == methods(AsyncLedger)
    assert all(callable(getattr(LedgerSteps, name)) for name in methods(Ledger))


@pytest.mark.parametrize("url", ["", "memory", "mysql://x", "memory://x", "sqlite"])
def test_a_url_that_names_no_store_says_what_would(url: str) -> None:
    with pytest.raises(semel.InvalidOption, match="memory:"):
        semel.connect(url)


def test_a_path_is_an_sqlite_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path("relative.db"), tmp_path / "a folder" / "50% off?#1.db"):
        path.parent.mkdir(exist_ok=True)
        with semel.connect(path) as s:
            assert s.ledger.check_and_set("k")
        assert path.is_file()


def test_what_is_neither_a_url_nor_a_path_is_refused_by_what_it_is() -> None:
    with pytest.raises(semel.InvalidOption, match="a store's URL, or a Path, not int"):
        semel.connect(5)  # type: ignore[arg-type]
    with pytest.raises(semel.InvalidOption, match="a file of SQLite is sqlite:///"):
        semel.connect("shop.db")


@pytest.mark.parametrize(("env", "scope"), [("", ""), ("a\n", ""), ("e" * 200, ""), ("dev", "s" * 200)])
def test_environment_and_scope_are_checked(env: str, scope: str) -> None:
    with pytest.raises(semel.InvalidKey):
        semel.connect("memory:", env=env, scope=scope)


def test_a_closed_ledger_begins_nothing() -> None:
    with semel.connect("memory:") as s:
        work = s.once("k")(lambda: 1)
    with pytest.raises(semel.StoreClosed):
        work()


def test_an_event_names_its_key_by_a_digest() -> None:
    heard: list[semel.Event] = []
    s = semel.connect("memory:", on_event=heard.append)
    s.once("mail:{address}")(lambda address: None)("ada@example.org")
    assert [event.what for event in heard] == [semel.What.CLAIMED, semel.What.COMPLETED]
    assert "ada" not in repr(heard)
    assert heard[0].key_digest == heard[1].key_digest


def test_a_listener_that_fails_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: semel.Event) -> None:
        raise RuntimeError("listener")

    s = semel.connect("memory:", on_event=broken)
    assert s.once("k")(lambda: 1)() == 1
    assert "a listener failed on claimed" in caplog.text


def test_what_somebody_should_look_at_is_logged_without_the_key(caplog: pytest.LogCaptureFixture) -> None:
    s = semel.connect("memory:")
    claim = s.ledger.claim("mail:ada@example.org")
    assert isinstance(claim, semel.Claimed)
    s.ledger.forget("mail:ada@example.org")
    with pytest.raises(semel.ClaimLost):
        s.ledger.complete(claim)
    assert "claim_lost" in caplog.text
    assert "ada" not in caplog.text


def test_the_diagram_in_the_docs_is_drawn_from_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "lifecycle.md"
    assert f"```mermaid\n{lifecycle.diagram()}\n```" in page.read_text()


def test_the_version_is_that_of_the_package_and_a_name_that_is_not_there_is_not_there() -> None:
    assert semel.__version__ == version("semel")
    with pytest.raises(AttributeError, match="module 'semel' has no attribute 'verison'"):
        _ = semel.verison  # type: ignore[attr-defined]


def test_importing_semel_does_not_look_for_its_version() -> None:
    program = "import sys, semel; print('importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# How things look in a log or a debugger


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory:", "<MemoryStore>"),
        ("sqlite:////tmp/ledger.db", "<SQLiteStore /tmp/ledger.db>"),
        ("dynamodb://eu-north-1/payments?layout=powertools", "<DynamoDBStore payments>"),
        ("postgresql://app:hunter2@db.example/shop", "<PostgresStore postgresql://app@db.example:5432/shop>"),
        ("redis://:hunter2@cache.example/3?prefix=shop", "<RedisStore cache.example:6379/3, prefix 'shop'>"),
    ],
)
def test_a_store_shows_where_it_is_and_no_password(url: str, shown: str) -> None:
    store = open_store(url, env="prod", clock=FakeClock())
    s = semel.Semel(store, env="prod", scope="tenant", secret=b"hunter2 too", clock=FakeClock())
    assert repr(store) == shown
    assert repr(s) == f"<Semel on {shown}, env 'prod', scope 'tenant'>"
    assert repr(s.aio) == f"<aio of {s!r}>"
    assert repr(s.ledger) == f"<Ledger on {shown}>"
    assert repr(s.once) == f"<Once on {shown}>"
    assert repr(s.documents) == f"<Documents on {shown}>"
    assert "hunter2" not in repr((s, s.aio, s.ledger, s.aio.ledger, s.once, s.journal, store))


def test_a_claim_a_record_and_a_run_tell_their_key_and_neither_token_nor_result() -> None:
    s = semel.connect()
    seen: list[str] = []

    @s.once("charge:{order_id}")
    def charge(order_id: str) -> str:
        seen.append(repr(semel.current_run()))
        return "a result that is nobody's business"

    charge("o-1")
    assert seen == ["<Run of 'charge:o-1', attempt 1, running>"]
    protected = charge.__semel__  # type: ignore[attr-defined]
    assert repr(protected).endswith(".charge, once for 'charge:{order_id}'>")
    claim = s.ledger.claim("wire:1", lease=30)
    assert isinstance(claim, semel.Claimed)
    assert repr(claim) == "Claimed('dev//wire:1', attempt=1, lease=30)"
    record = s.ledger.get("charge:o-1")
    assert repr(record) == "Record('dev//charge:o-1', COMPLETED, attempt=1)"


# Names that others gave: of AWS, AMQP, Python, and in examples.
FOREIGN = {
    *("DescribeTable", "PutItem", "Hits", "TakenOver", "BasicProperties", "Basic", "ForwardRef"),
    *("OutboundPhoneCall", "OrderNotices"),
}


def test_a_class_that_a_docstring_names_exists() -> None:
    known, named = set(dir(builtins)), set[tuple[str, str]]()
    for path in Path(semel.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                    known.add(name.rpartition(".")[2])
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    known.add(name)
                case ast.Constant(value=str(text)):
                    named |= {(path.name, name) for name in re.findall(r"`([A-Z]\w*[a-z]\w*)`", text)}
    assert len(named) > 100
    assert {each for each in named if each[1] not in known | FOREIGN} == set()
