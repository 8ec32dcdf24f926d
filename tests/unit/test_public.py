"""The public surface: what is exported, how stores are named, how errors travel."""

import inspect
import pickle
from pathlib import Path

import pytest

import semel
from semel import errors, lifecycle
from semel.facades import AsyncLedger, Ledger
from semel.ledger import LedgerSteps


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
    assert methods(Ledger) <= methods(LedgerSteps)


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
