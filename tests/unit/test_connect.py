"""Stores of one's own: by themselves, by an entry point, and what is said where one answers wrongly."""

import asyncio
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import semel
from semel import errors
from semel.core.commands import (
    ABSENT,
    PRESENT,
    REPLIES,
    Add,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Found,
    Get,
    Many,
    Page,
    Put,
    Query,
    Refused,
    Stored,
    Time,
    Transact,
    Update,
    Watch,
    check_reply,
)
from semel.core.drive import (
    FileBacked,
    Glancing,
    Joining,
    Leaving,
    Limiting,
    Reaping,
    adrive,
    drive,
)
from semel.core.ledger import LedgerSteps
from semel.core.realm import Realm
from semel.stores.memory import MemoryStore
from semel.tables import COUNTERS, LEDGER
from tests.service.kit import opened

# Options


def test_semel_and_connect_have_the_same_options() -> None:
    def options(function: Callable[..., Any]) -> list[inspect.Parameter]:
        parameters = inspect.signature(function).parameters.values()
        return [one for one in parameters if one.name not in ("self", "url", "store")]

    assert options(semel.Semel.__init__) == options(semel.connect)


def test_a_store_of_ones_own_is_connected_with_every_option() -> None:
    store, heard, large = MemoryStore(), list[semel.Event](), "a result that is too large for that"
    s = semel.connect(store=store, env="prod", scope="t", max_result_bytes=10, on_event=heard.append)
    assert s.store is store
    assert s.once("k")(lambda: large)() == large
    assert semel.What.RESULT_NOT_KEPT in [event.what for event in heard]
    assert [record.id for record in s.ledger.list().records] == ["prod/t/k"]


def test_a_url_and_a_store_are_one_too_many() -> None:
    with pytest.raises(errors.InvalidOption, match="not both"):
        semel.connect("memory:", store=MemoryStore())


def test_a_codec_and_what_it_has_itself_are_one_too_many() -> None:
    with pytest.raises(errors.InvalidOption, match="a codec has its own"):
        semel.connect(codec=semel.Codec(), max_result_bytes=5)


def test_a_store_that_is_given_in_place_of_a_url_is_told_where_it_goes() -> None:
    with pytest.raises(errors.InvalidOption, match=r"connect\(store=\.\.\.\)"):
        semel.connect(MemoryStore())  # type: ignore[arg-type]


# Capabilities


class Bare:
    """What every store has, and nothing else."""

    def __init__(self) -> None:
        self.overflow: semel.Overflow | None = None
        self._inner = MemoryStore()

    def __repr__(self) -> str:
        return "<Bare>"

    def execute(self, command: Stored) -> Any:
        return self._inner.execute(command)

    def at_once(self, command: Stored) -> Any | None:
        return None

    async def aexecute(self, command: Stored) -> Any:
        return await self._inner.aexecute(command)

    def close(self) -> None:
        self._inner.close()


def test_what_a_store_can_do_besides_is_seen_by_what_it_has(tmp_path: Path) -> None:
    bare = Bare()
    assert not isinstance(bare, Leaving | Reaping | Joining | Glancing | Limiting | FileBacked)
    sqlite = semel.connect(tmp_path / "ledger.db").store
    assert isinstance(sqlite, Reaping)
    assert isinstance(sqlite, Joining)
    assert isinstance(sqlite, Glancing)
    assert isinstance(sqlite, FileBacked)
    assert not isinstance(sqlite, Limiting)
    dynamodb = semel.connect("dynamodb://eu-north-1").store
    assert isinstance(dynamodb, Limiting)
    assert isinstance(dynamodb, Leaving)


def test_a_store_without_any_of_it_works_and_says_what_it_lacks() -> None:
    with semel.connect(store=Bare()) as s:
        greet = s.once("greet:{name}")(lambda name: f"hello {name}")
        assert greet("you") == greet("you") == "hello you"
        with pytest.raises(errors.UsageError, match="<Bare> has no transaction to share"):
            s.ledger.within(object())

    async def leaves() -> None:
        async with semel.connect(store=Bare()).aio:
            pass

    asyncio.run(leaves())


# Entry points

MODULE = """
from semel.stores.memory import MemoryStore

class Mine(MemoryStore):
    opened = []

    @classmethod
    def from_url(cls, url, *, env, clock):
        cls.opened.append((url, env))
        return cls(clock)

    def __repr__(self):
        return "<Mine>"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that brings a store, as an installer would leave it."""
    (tmp_path / "their_store.py").write_text(MODULE)
    told = tmp_path / "their_store-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: their-store\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[semel.stores]\nmystore = their_store:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_connect_opens_the_store_that_an_entry_point_names(installed: Path) -> None:
    s = semel.connect("mystore://somewhere", env="prod")
    assert repr(s.store) == "<Mine>"
    assert type(s.store).opened == [("mystore://somewhere", "prod")]  # type: ignore[attr-defined]
    assert s.once("k")(lambda: 1)() == 1


def test_the_command_line_opens_it_too(installed: Path) -> None:
    command = [sys.executable, "-m", "semel", "ls", "--url", "mystore://somewhere", "--json"]
    known = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=known, cwd=installed)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == []


def test_the_service_opens_it_too(installed: Path) -> None:
    with opened('[semel]\nurl = "mystore://somewhere"\n', installed) as house:
        assert repr(house.s.store) == "<Mine>"


def test_an_unknown_scheme_names_those_that_are_known_and_the_entry_point(installed: Path) -> None:
    with pytest.raises(errors.InvalidOption) as refusal:
        semel.connect("yourstore://user:hunter2@somewhere")
    told = str(refusal.value)
    assert "memory:, sqlite:, dynamodb:" in told
    assert "mystore:" in told
    assert "entry point 'yourstore' of 'semel.stores'" in told
    assert "hunter2" not in told


def test_no_entry_point_takes_the_place_of_a_store_of_semels_own(installed: Path) -> None:
    (installed / "their_store-1.0.dist-info" / "entry_points.txt").write_text(
        "[semel.stores]\nmemory = their_store:Mine\n"
    )
    assert type(semel.connect("memory:").store) is MemoryStore


# Wrong answers


class Wrong(Bare):
    """A store that gives one answer, whatever it is asked."""

    def __init__(self, reply: Any) -> None:
        super().__init__()
        self.reply = reply

    def execute(self, command: Stored) -> Any:
        return self.reply

    async def aexecute(self, command: Stored) -> Any:
        return self.reply


NOTHING = Refused(0.0, None)


@pytest.mark.parametrize("reply", [NOTHING, None, Found(0.0, None), "applied"])
def test_a_claim_on_a_store_that_answers_wrongly_names_the_store_and_the_command(reply: Any) -> None:
    s = semel.connect(store=Wrong(reply))
    message = "<Bare> answered Put on ledger with "
    with pytest.raises(errors.WrongReply, match=message):
        s.ledger.claim("k")
    with pytest.raises(errors.WrongReply, match=message):
        asyncio.run(s.aio.ledger.claim("k"))
    with pytest.raises(errors.WrongReply, match="<Bare> answered Batch on ledger with "):
        s.ledger.claim_many(["a", "b"])
    with pytest.raises(errors.WrongReply, match=message):
        s.once("k")(lambda: 1)()


PUT = Put(LEDGER, "k", {}, ABSENT)
ADD = Add(COUNTERS, "k", "count", 1, {}, sort="s")
ALIVE = {"id": "k"}


@pytest.mark.parametrize(
    ("command", "reply", "problem"),
    [
        (Get(LEDGER, "k"), None, "Get on ledger with NoneType, which is none of its replies"),
        (Watch(LEDGER, "k", 1), Applied(0), "Watch on ledger with Applied"),
        (Time(), Applied(0), "answered Time with Applied"),
        (PUT, Found(0, None), "Put on ledger with Found"),
        (PUT, NOTHING, "nothing stands in the way"),
        (Update(LEDGER, "k", {}), Found(0, None), "Update"),
        (Delete(LEDGER, "k", PRESENT), Cancelled(0, ()), "Delete"),
        (ADD, Applied(0), "no item"),
        (ADD, NOTHING, "nothing stands in the way"),
        (Query(LEDGER), Found(0, None), "Query on ledger with Found"),
        (Query(LEDGER, after='["k"]'), Page(0, (ALIVE,), '["k"]'), "begins where the one before it began"),
        (Batch((PUT, PUT)), Many((Applied(0),)), "1 replies to 2 writes"),
        (Batch((PUT, PUT)), Many((Applied(0), NOTHING)), "Batch on ledger with a refusal in which nothing"),
        (Transact((PUT, ADD)), Cancelled(0, (None, None)), "counters, ledger with a cancellation that"),
        (Transact((PUT, ADD)), Cancelled(0, (Refused(0, ALIVE),)), "which of the writes"),
        (Transact((PUT, ADD)), Cancelled(0, (None, NOTHING)), "nothing stands in the way"),
        (Transact((PUT, ADD)), Many(()), "Transact"),
    ],
)
def test_every_wrong_answer_is_told(command: Stored, reply: Any, problem: str) -> None:
    def steps() -> Any:
        return (yield command)

    with pytest.raises(errors.WrongReply, match=problem):
        drive(steps(), Wrong(reply))
    with pytest.raises(errors.WrongReply, match=problem):
        asyncio.run(adrive(steps(), Wrong(reply)))


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (Get(LEDGER, "k"), Found(0, None)),
        (PUT, Refused(0, ALIVE)),
        (Put(LEDGER, "k", {}, PRESENT), NOTHING),
        (Update(LEDGER, "k", {}, {"token": "t"}), NOTHING),
        (Delete(LEDGER, "k"), NOTHING),
        (ADD, Applied(0, ALIVE)),
        (Query(LEDGER), Page(0, (), None)),
        (Query(LEDGER, after='["j"]'), Page(0, (ALIVE,), '["k"]')),
        (Batch((PUT, Update(LEDGER, "k", {}))), Many((Applied(0), NOTHING))),
        (Transact((PUT, ADD)), Cancelled(0, (Refused(0, ALIVE), None))),
        (Transact((PUT, ADD)), Applied(0)),
    ],
)
def test_no_right_answer_is_refused(command: Stored, reply: Any) -> None:
    check_reply(Bare(), command, reply)


def test_every_command_of_a_store_has_its_replies() -> None:
    assert set(REPLIES) == set(get_args(Stored))


def test_a_key_that_is_refused_by_nothing_does_not_hang_its_claim() -> None:
    """As a store does whose refusals forget what stood in the way."""

    class Forgetful(Bare):
        def execute(self, command: Stored) -> Any:
            reply = super().execute(command)
            return Refused(reply.now, None) if isinstance(reply, Refused) else reply

    store = Forgetful()
    drive(LedgerSteps(Realm(env="test")).claim("k"), store)
    with pytest.raises(errors.WrongReply, match="Put on ledger"):
        drive(LedgerSteps(Realm(env="test")).claim("k"), store)
