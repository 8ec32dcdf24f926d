"""Documents on every store: versions, ends, sets and classes of one's own; and no change is lost."""

import asyncio
import dataclasses
import itertools
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import msgspec
import pytest

import semel
from semel import errors
from semel.apps.tables import SUPPORT_STATE
from semel.aws.environment import Credentials
from semel.aws.wire import Wire
from semel.core.commands import Put
from semel.core.drive import leave
from semel.stores.dynamodb.items import title
from semel.tables import DOCUMENTS
from semel.testing import FakeClock, Faulty
from tests.places import NAMES, open_place

DAY = 86400
DYNAMODB = ("dynoxide", "ministack")


@pytest.fixture(params=NAMES)
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path, more=(SUPPORT_STATE,))


class Engine:
    """What stands in a table of DynamoDB, as its owner sees it."""

    def __init__(self, place, table):
        self._wire = Wire(
            "dynamodb", region="us-east-1", endpoint=place.server, credentials=Credentials("test", "test")
        )
        self._table, self._title = table, title(table, place.env)

    def item(self, **key):
        named = {name: {"S": value} for name, value in key.items()}
        request = {"TableName": self._title, "Key": named, "ConsistentRead": True}
        return self._wire.call("GetItem", request, write=False).get("Item")

    def put(self, item):
        self._wire.call("PutItem", {"TableName": self._title, "Item": item}, write=True)

    def call(self, operation, request):
        return self._wire.call(operation, request, write=False)

    def close(self):
        self._wire.close()


def body(do, key):
    """A document's fields as they lie in the store, those whose end has come included."""
    from semel.core.commands import Get
    from semel.core.drive import drive

    steps = do.s.documents.steps

    def look():
        found = yield Get(DOCUMENTS, steps.realm.name(key))
        return found.item["body"]

    return drive(look(), do.s.store)


# Versions


@pytest.mark.seed("R2")
def test_a_version_rises_by_one_with_every_write(do):
    assert do(lambda s: s.documents.get("c1")) is None
    assert do(lambda s: s.documents.put("c1", {"n": 1})) == 1
    assert do(lambda s: s.documents.put("c1", {"n": 2})) == 2
    assert do(lambda s: s.documents.update("c1", lambda d: {"n": d["n"] + 1})).version == 3
    assert do(lambda s: s.documents.change("c1", {"m": 1})).version == 4
    found = do(lambda s: s.documents.get("c1"))
    assert (found.key, found.value, found.version) == ("c1", {"n": 3, "m": 1}, 4)


@pytest.mark.seed("R2")
def test_a_put_with_a_version_writes_over_that_version_and_no_other(do):
    assert do(lambda s: s.documents.put("c1", {"n": 1}, version=0)) == 1
    with pytest.raises(errors.VersionConflict) as refused:
        do(lambda s: s.documents.put("c1", {"n": 9}, version=0))
    assert (refused.value.expected, refused.value.found) == (0, 1)
    assert do(lambda s: s.documents.put("c1", {"n": 2}, version=1)) == 2
    with pytest.raises(errors.VersionConflict) as refused:
        do(lambda s: s.documents.put("c1", {"n": 9}, version=1))
    assert (refused.value.key, refused.value.expected, refused.value.found) == ("c1", 1, 2)
    with pytest.raises(errors.VersionConflict):
        do(lambda s: s.documents.put("none", {"n": 9}, version=3))
    assert do(lambda s: s.documents.get("c1")).value == {"n": 2}
    assert do(lambda s: s.documents.get("none")) is None


@pytest.mark.seed("R2")
def test_a_change_leaves_the_other_fields_and_none_removes_one(do):
    assert do(lambda s: s.documents.change("c1", {"a": 1, "b": {"c": [1, 2]}})).version == 1
    changed = do(lambda s: s.documents.change("c1", {"a": 2, "d": None, "e": "x"}))
    assert changed.value == {"a": 2, "b": {"c": [1, 2]}, "e": "x"}
    assert do(lambda s: s.documents.change("c1", {"a": None})).value == {"b": {"c": [1, 2]}, "e": "x"}
    assert do(lambda s: s.documents.get("c1")).value == {"b": {"c": [1, 2]}, "e": "x"}


def test_a_deletion_removes_one_version_or_any(do):
    assert do(lambda s: s.documents.delete("c1")) is False
    do(lambda s: s.documents.put("c1", {"n": 1}))
    with pytest.raises(errors.VersionConflict):
        do(lambda s: s.documents.delete("c1", version=2))
    assert do(lambda s: s.documents.delete("c1", version=1)) is True
    do(lambda s: s.documents.put("c1", {"n": 1}))
    assert do(lambda s: s.documents.delete("c1")) is True
    assert do(lambda s: s.documents.get("c1")) is None


def test_a_document_goes_when_its_time_is_up_and_begins_anew(do, clock):
    do(lambda s: s.documents.put("c1", {"n": 1}, ttl=60))
    clock.advance(59)
    assert do(lambda s: s.documents.get("c1")).value == {"n": 1}
    do(lambda s: s.documents.change("c1", {"m": 1}, ttl=60))
    clock.advance(59)
    assert do(lambda s: s.documents.get("c1")).version == 2
    clock.advance(2)
    assert do(lambda s: s.documents.get("c1")) is None
    assert do(lambda s: s.documents.update("c1", lambda d: {"was": d is not None})).value == {"was": False}
    assert do(lambda s: s.documents.get("c1")).version == 1


def test_scopes_do_not_see_each_others_documents(do):
    do(lambda s: s.documents.put("c1", {"n": 1}))
    assert do(lambda s: s.scoped("acme").documents.get("c1")) is None
    do(lambda s: s.scoped("acme").documents.put("c1", {"n": 2}))
    assert do(lambda s: s.documents.get("c1")).value == {"n": 1}


# Nothing is lost


@pytest.mark.seed("R2")
def test_fifty_increments_at_once_count_fifty(do):
    def increment(s):
        return s.documents.update("c1", lambda d: {"n": (d or {"n": 0})["n"] + 1})

    made = do.together([increment] * 50)
    assert sorted(document.version for document in made) == list(range(1, 51))
    assert do(lambda s: s.documents.get("c1")).value == {"n": 50}


def test_different_fields_changed_at_once_are_all_there(do):
    def changing(number):
        return lambda s: s.documents.change("c1", {f"f{number}": number})

    do.together([changing(number) for number in range(12)])
    found = do(lambda s: s.documents.get("c1"))
    assert (found.value, found.version) == ({f"f{number}": number for number in range(12)}, 12)


def test_a_document_that_was_born_again_is_not_taken_for_the_one_before(do):
    """Deleted and made anew while somebody thinks, it may have the same version, and not the same fields."""
    do(lambda s: s.documents.put("c1", {"text": "old"}))
    seen: list[str] = []

    def think(document):
        if not seen:
            do.s.documents.delete("c1")
            do.s.documents.put("c1", {"text": "new"})
        seen.append(document["text"])
        return {"text": document["text"] + "+"}

    assert do.s.documents.update("c1", think).value == {"text": "new+"}
    assert seen == ["old", "new"]


def test_whoever_changes_what_he_read_changes_nothing_else(do):
    """What is given belongs to its reader: nested or not, only a write changes the document."""
    do(lambda s: s.documents.put("c1", {"flags": ["a"], "deep": {"n": 1}}))
    mine = do(lambda s: s.documents.get("c1")).value
    mine["flags"].append("mine")
    mine["deep"]["n"] = 9
    assert do(lambda s: s.documents.get("c1")).value == {"flags": ["a"], "deep": {"n": 1}}

    def in_place(document):
        document["flags"].append("b")
        if len(tries) == 0:
            tries.append(1)
            do.s.documents.change("c1", {"other": 1})
        return document

    tries = []
    made = do.s.documents.update("c1", in_place).value
    made["flags"].append("mine")
    assert do(lambda s: s.documents.get("c1")).value == {"flags": ["a", "b"], "deep": {"n": 1}, "other": 1}


WRITES = {
    "put": lambda s, key: s.documents.put(key, {"n": 2}),
    "put over a version": lambda s, key: s.documents.put(key, {"n": 2}, version=1),
    "update": lambda s, key: s.documents.update(key, lambda d: {"n": d["n"] + 1}),
    "change": lambda s, key: s.documents.change(key, {"n": 2}),
}


LOSSES = {
    "the answer": lambda faulty: faulty.lose_reply(),
    "two answers": lambda faulty: faulty.lose_reply(2),
    "the request": lambda faulty: faulty.lose_request(),
}


def test_a_write_whose_answer_is_lost_is_made_once(way, place, clock):
    faulty = Faulty(place.open(clock))
    do = way(faulty, env=place.env, clock=clock)
    for (name, write), (what, lose) in itertools.product(WRITES.items(), LOSSES.items()):
        key = f"{name}, {what}"
        do(lambda s, key=key: s.documents.put(key, {"n": 1}))
        lose(faulty)
        made = do(lambda s, key=key, write=write: write(s, key))
        assert getattr(made, "version", made) == 2
        found = do(lambda s, key=key: s.documents.get(key))
        assert (found.value, found.version) == ({"n": 2}, 2)
    do.close()


def test_a_change_is_made_once_though_others_write_before_it_is_sent_again(way, place, clock):
    """Its author finds his mark among those of the latest changes."""
    store = place.open(clock)

    class Meanwhile(Faulty):
        def _begin(self, command):
            if self.seen and self.seen[-1] is command:  # it is sent again
                others = semel.Semel(store, env=place.env, clock=clock)
                for _ in range(3):
                    others.documents.update("c1", lambda d: {"n": (d or {})["n"] + 10})
            return super()._begin(command)

        def at_once(self, command):
            return None

    faulty = Meanwhile(store)
    do = way(faulty, env=place.env, clock=clock)
    do(lambda s: s.documents.put("c1", {"n": 1}))
    faulty.lose_reply()
    assert do(lambda s: WRITES["update"](s, "c1")).value == {"n": 2}
    assert do(lambda s: s.documents.get("c1")).value == {"n": 32}
    do.close()


def test_answers_that_a_network_loses_change_nothing(place):
    """The first answer to every write is lost on its way, sync and async: every increment counts once."""

    def increment(document):
        return {"n": (document or {"n": 0})["n"] + 1}

    with place.forgetful() as ([store], lost):
        s = semel.Semel(store, env=place.env)

        async def more():
            for _ in range(10):
                await s.aio.documents.update("c1", increment)
            await leave(store)

        for _ in range(10):
            s.documents.update("c1", increment)
        asyncio.run(more())
        found = s.documents.get("c1")
        assert lost() >= 18
    assert (found.value, found.version) == ({"n": 20}, 20)


# Fields with an end of their own


@pytest.mark.seed("R2")
def test_a_field_goes_at_its_own_end(do, clock):
    """For readers at once, from the store with the next write."""
    changed = do(
        lambda s: s.documents.change(
            "c1", {"order": "o-1", "team": "blue", "phone": "123"}, ends={"order": 60, "phone": 3600}
        )
    )
    assert changed.ends == {"order": clock.now() + 60, "phone": clock.now() + 3600}
    clock.advance(59)
    assert do(lambda s: s.documents.get("c1")).value == {"order": "o-1", "team": "blue", "phone": "123"}
    clock.advance(1)
    found = do(lambda s: s.documents.get("c1"))
    assert (found.value, set(found.ends)) == ({"team": "blue", "phone": "123"}, {"phone"})
    assert body(do, "c1")["order"] == "o-1"
    do(lambda s: s.documents.change("c1", {"team": "red"}))
    assert body(do, "c1") == {"team": "red", "phone": "123"}
    assert do(lambda s: s.documents.get("c1")).ends == found.ends


@pytest.mark.seed("R2")
def test_pruning_removes_ended_fields_from_documents_that_nobody_writes(do, clock):
    for number in range(120):
        ends = {"phone": 60 if number % 3 else 600}
        do(lambda s, n=number, e=ends: s.documents.change(f"c{n}", {"phone": "123", "n": n}, ends=e))
    do(lambda s: s.scoped("acme").documents.change("c", {"phone": "1"}, ends={"phone": 60}))
    clock.advance(61)
    assert body(do, "c1")["phone"] == "123"
    assert do(lambda s: s.documents.prune()) == 80
    assert body(do, "c1") == {"n": 1}
    assert do(lambda s: s.documents.get("c1")).version == 1
    assert do(lambda s: s.documents.get("c3")).value == {"phone": "123", "n": 3}
    assert do(lambda s: s.documents.prune()) == 0
    assert do(lambda s: s.scoped("acme").documents.prune()) == 1


@dataclasses.dataclass
class Talk:
    """A conversation, as an app may see it."""

    team: str = ""
    flags: set[str] = dataclasses.field(default_factory=set)
    pending: dict[str, str] | None = None
    since: datetime | None = None


@pytest.mark.seed("R2")
def test_an_unchanged_field_keeps_its_end_and_a_changed_one_gets_a_new_one(do, clock):
    def talks(s):
        return s.documents.of(Talk, ends={"pending": 60, "flags": 600})

    begin = clock.now()
    do(lambda s: talks(s).put("c1", Talk(pending={"order": "o-1"}, flags={"b", "a"})))
    clock.advance(10)
    kept = do(lambda s: talks(s).update("c1", lambda t: dataclasses.replace(t, team="blue")))
    assert kept.ends == {"pending": begin + 60, "flags": begin + 600}
    clock.advance(10)

    def in_place(talk):
        talk.pending["order"] = "o-2"
        return talk

    changed = do(lambda s: talks(s).update("c1", in_place))
    assert changed.ends == {"pending": begin + 80, "flags": begin + 600}
    clock.advance(60)
    found = do(lambda s: talks(s).get("c1"))
    assert (found.value.pending, found.value.flags) == (None, {"a", "b"})
    again = do(lambda s: talks(s).change("c1", {"pending": {"order": "o-3"}}))
    assert again.ends["pending"] == clock.now() + 60
    gone = do(lambda s: talks(s).update("c1", lambda t: dataclasses.replace(t, pending=None)))
    assert "pending" not in gone.ends


def test_an_end_is_only_for_a_field_that_there_is(do):
    with pytest.raises(errors.InvalidOption, match="which is not being changed"):
        do(lambda s: s.documents.change("c1", {"a": 1}, ends={"b": 60}))
    with pytest.raises(errors.UsageError, match="Talk has no field 'pendign'"):
        do(lambda s: s.documents.of(Talk, ends={"pendign": 60}))


# Classes of one's own


class Camel(msgspec.Struct, rename="camel"):
    """Kept under other names than it is used by."""

    last_intent: str
    risk_flags: set[str]
    asked_at: datetime | None
    raw_bytes: bytes = b""
    by_day: dict[int, int] = {}


def test_an_object_comes_back_as_it_was(do):
    asked = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    talk = Talk("blue", {"vip", "late"}, {"order": "o-1"}, asked)
    camel = Camel("refund", {"x"}, asked, b"\x00\xff", {1: 2})
    empty = Camel("", set(), None)
    do(lambda s: s.documents.of(Talk).put("talk", talk))
    do(lambda s: s.documents.of(Camel).put("camel", camel))
    do(lambda s: s.documents.of(Camel).put("empty", empty))
    assert do(lambda s: s.documents.of(Talk).get("talk")).value == talk
    assert do(lambda s: s.documents.of(Camel).get("camel")).value == camel
    assert do(lambda s: s.documents.of(Camel).get("empty")).value == empty
    assert set(do(lambda s: s.documents.get("camel")).value) >= {"lastIntent", "riskFlags", "askedAt"}


def test_a_renamed_field_is_changed_and_ends_under_either_name(do, clock):
    def camels(s):
        return s.documents.of(Camel, ends={"last_intent": 60})

    do(lambda s: camels(s).put("c1", Camel("a", set(), None)))
    assert set(do(lambda s: camels(s).get("c1")).ends) == {"lastIntent"}
    for number, name in enumerate(("last_intent", "lastIntent")):
        changed = do(lambda s, n=name, v=f"v{number}": camels(s).change("c1", {n: v}))
        assert changed.value.last_intent == f"v{number}"
    assert set(do(lambda s: s.documents.get("c1")).value) >= {"lastIntent"}
    assert "last_intent" not in do(lambda s: s.documents.get("c1")).value


def test_a_class_that_knows_fewer_fields_loses_none_of_the_others(do, clock):
    """Somebody else's fields, and those of a newer class, stay where they are, with their ends."""
    do(lambda s: s.documents.change("c1", {"team": "blue", "newer": [1], "pin": "1"}, ends={"pin": 60}))
    do(lambda s: s.documents.of(Talk).update("c1", lambda t: dataclasses.replace(t, team="red")))
    do(lambda s: s.documents.of(Talk).change("c1", {"team": "green"}))
    found = do(lambda s: s.documents.get("c1"))
    assert (found.value["team"], found.value["newer"], found.value["pin"]) == ("green", [1], "1")
    assert found.ends == {"pin": clock.now() + 60}


class Strict(msgspec.Struct):
    count: int


def test_a_document_of_another_shape_is_reported_and_left_as_it_is(do):
    do(lambda s: s.documents.put("c1", {"count": "many"}))
    for attempt in (
        lambda s: s.documents.of(Strict).get("c1"),
        lambda s: s.documents.of(Strict).update("c1", lambda d: Strict(1)),
    ):
        with pytest.raises(errors.RecordCorrupt, match="it is no Strict"):
            do(attempt)
    found = do(lambda s: s.documents.get("c1"))
    assert (found.value, found.version) == ({"count": "many"}, 1)


def test_what_could_not_be_read_again_is_not_written(do):
    wrong = {
        "change": lambda s: s.documents.of(Strict).change("c1", {"count": "x"}),
        "put": lambda s: s.documents.of(Strict).put("c1", {"count": "x"}),
        "a field that it has not": lambda s: s.documents.of(Strict).put("c1", {"count": 1, "typo": 1}),
        "update": lambda s: s.documents.of(Talk).update("c1", lambda _: Talk(team=5)),  # type: ignore[arg-type]
        "nothing": lambda s: s.documents.of(Strict).update("c1", lambda _: None),
        "another class": lambda s: s.documents.of(Strict).put("c1", Talk()),
        "no class for documents": lambda s: s.documents.of(int),
    }
    for write in wrong.values():
        with pytest.raises(errors.UsageError):
            do(write)
        assert do(lambda s: s.documents.get("c1")) is None


# What cannot be kept

BAD = {
    "not a number": {"n": {"deep": [1.0, float("nan")]}},
    "not a number in a tuple": {"n": ({"deep": float("nan")},)},
    "infinity": {"n": float("inf")},
    "bytes": {"n": [b"x"]},
    "a huge number": {"n": 2**70},
    "half a character": {"n": "\ud800"},
    "half a character in a name": {"n": {"\ud800": 1}},
    "an object of nobody's": {"n": object()},
    "a field without a name": {5: 1},
    "two names that are one in JSON": {"n": {1: "a", "1": "b"}},
    "no document": [("n", 1)],
    "a text": "n",
    "None": None,
}


def test_what_cannot_be_kept_is_refused_and_nothing_is_written(do):
    do(lambda s: s.documents.put("c1", {"n": 1}))
    for bad in BAD.values():
        for write in (
            lambda s, bad=bad: s.documents.put("c1", bad),
            lambda s, bad=bad: s.documents.change("c1", bad),
            lambda s, bad=bad: s.documents.update("c1", lambda _: bad),
        ):
            with pytest.raises(errors.UsageError):
                do(write)
    found = do(lambda s: s.documents.get("c1"))
    assert (found.value, found.version) == ({"n": 1}, 1)


# What is kept

NUMBERS = {
    "one": 1,
    "one.": 1.0,
    "a/b~c": [0.0, 0, 2.5, {"x": -3.0, "y": [10**15, 1e15, 1e16, 2.0**60]}],
    "deep": {"": {"~1": 7.0, "0": 7}, "many": [1.0, 1, True]},
    "huge": 1e100,
}


def types_of(value):
    """The numbers of a value by their types."""
    if isinstance(value, dict):
        return {name: types_of(one) for name, one in value.items()}
    return [types_of(one) for one in value] if isinstance(value, list) else (type(value), value)


def test_a_float_stays_a_float_and_an_int_an_int(do):
    def keep(s):
        return s.documents.put("c1", NUMBERS)

    do(keep)
    assert types_of(do(lambda s: s.documents.get("c1")).value) == types_of(NUMBERS)
    do(lambda s: s.documents.change("c1", {"one": 1.0}))
    assert types_of(do(lambda s: s.documents.get("c1")).value) == types_of(NUMBERS | {"one": 1.0})
    do(lambda s: s.documents.change("c1", {"one.": 1}))
    assert types_of(do(lambda s: s.documents.get("c1")).value["one."]) == (int, 1)
    do(lambda s: s.journal.append("chat", NUMBERS, key="k"))
    [entry] = do(lambda s: s.journal.list("chat")).entries
    assert types_of(entry.body) == types_of(NUMBERS)
    claim = do(lambda s: s.ledger.claim("evt:1"))
    do(lambda s: s.ledger.complete(claim, NUMBERS, details=NUMBERS))
    assert types_of(do(lambda s: s.ledger.get("evt:1")).details) == types_of(NUMBERS)
    assert types_of(do(lambda s: s.ledger.claim("evt:1")).result) == types_of(NUMBERS)


def test_for_everybody_else_a_number_in_dynamodb_is_a_number(place, do):
    if place.name not in DYNAMODB:
        pytest.skip("other stores keep text")
    do(lambda s: s.documents.put("c1", {"n": 1.0, "m": 1}))
    engine = Engine(place, DOCUMENTS)
    lying = engine.item(id=f"{place.env}//c1")["body"]["M"]
    engine.close()
    assert lying["n"] == lying["m"] == {"N": "1"}
    assert lying["semel:floats"] == {"L": [{"S": "/n"}]}
    with pytest.raises(errors.UsageError, match="semel:floats"):
        do(lambda s: s.documents.put("c2", {"semel:floats": []}))


def test_a_document_without_an_end_or_a_name_is_refused(do):
    for write in (
        lambda s: s.documents.put("c1\n", {"n": 1}),
        lambda s: s.documents.put("", {"n": 1}),
        lambda s: s.documents.put("x" * 1025, {"n": 1}),
        lambda s: s.documents.put("c1", {"n": 1}, ttl=0),
        lambda s: s.documents.put("c1", {"n": 1}, ttl=float("inf")),
        lambda s: s.documents.change("c1", {"n": 1}, ends={"n": -1}),
    ):
        with pytest.raises(errors.UsageError):
            do(write)
    assert do(lambda s: s.documents.get("c1")) is None


def test_what_can_be_kept_comes_back_as_it_was(do):
    values = [2**63, -(2**63), 0, 0.1, 1e-9, -1.5, "", "ä\0b", [], {}, [None, {"x": None}], True, False]
    do(lambda s: s.documents.put("c1", {"values": values, "in": {"ä": {"": 1}}}))
    found = do(lambda s: s.documents.get("c1")).value
    assert found == {"values": values, "in": {"ä": {"": 1}}}
    assert [type(value) for value in found["values"]] == [type(value) for value in values]


@pytest.mark.parametrize("place", DYNAMODB, indirect=True)
def test_half_a_megabyte_is_more_than_dynamodb_keeps(do):
    do(lambda s: s.documents.put("c1", {"n": 1}))
    for write in (
        lambda s: s.documents.put("c1", {"text": "x" * 500_000}),
        lambda s: s.documents.change("c1", {"text": "x" * 500_000}),
        lambda s: s.documents.put("c2", {"text": "x" * 500_000}),
    ):
        with pytest.raises(errors.UsageError, match="400 KB"):
            do(write)
    assert do(lambda s: s.documents.get("c1")).value == {"n": 1}
    assert do(lambda s: s.documents.get("c2")) is None


# A damaged row is not an absent one


def test_a_damaged_document_is_reported_and_never_written_over(do, place):
    do(lambda s: s.documents.put("c1", {"n": 1}))
    id = do.s.documents.steps.realm.name("c1")
    damage(place, do.s.store, id)
    for attempt in (
        lambda s: s.documents.get("c1"),
        lambda s: s.documents.put("c1", {"n": 2}),
        lambda s: s.documents.change("c1", {"n": 2}),
        lambda s: s.documents.update("c1", lambda d: {"n": 2}),
    ):
        with pytest.raises(errors.SemelError) as refused:
            do(attempt)
        assert not isinstance(refused.value, errors.Refused)
    do(lambda s: s.documents.change("c2", {"phone": 1, "n": 1}, ends={"phone": 0.001}))
    assert do(lambda s: s.documents.delete("c1")) is True
    assert do(lambda s: s.documents.put("c1", {"n": 3})) == 1


def damage(place, store, id):
    """Do to a row what no writer of documents does."""
    match place.name:
        case "memory":
            store.execute(Put(DOCUMENTS, id, {"body": "no dict", "version": 1, "expires_at": 9e9}))
        case "sqlite":
            with closing(sqlite3.connect(place.url().removeprefix("sqlite:///"))) as file, file:
                file.execute("UPDATE semel_documents SET body = '[1]' WHERE id = ?", (id,))
        case "postgres":
            import psycopg

            with psycopg.connect(place.server) as connection:
                sql = f"UPDATE {place.env}.semel_documents SET body = '[1]' WHERE id = %s"
                connection.execute(sql, (id,))
        case "redis":
            import redis

            with redis.Redis.from_url(place.server) as client:
                [key] = client.keys(f"{place.env}:documents:*c1*")
                client.hset(key, "body", "[1]")
        case _:
            engine = Engine(place, DOCUMENTS)
            engine.put(engine.item(id=id) | {"body": {"S": "no map"}})
            engine.close()


# The seed's table


@pytest.mark.seed("R2")
def test_the_fields_of_a_document_are_the_attributes_of_its_table(do, clock):
    def state(s):
        return s.documents.on(SUPPORT_STATE)

    fields = {
        "last_intent": "refund",
        "last_routing_confidence": 0.75,
        "risk_flags": {"vip", "late"},
        "pending_flow": {"name": "order", "ids": [1, 2]},
    }
    assert do(lambda s: state(s).put("c-1", fields)) == 1
    assert do(lambda s: state(s).get("c-1")).value == fields
    changed = do(lambda s: state(s).change("c-1", {"risk_flags": set(), "last_routed_team": "blue"}))
    assert changed.value == {name: value for name, value in fields.items() if name != "risk_flags"} | {
        "last_routed_team": "blue"
    }
    assert do(lambda s: state(s).get("c-1")).value == changed.value
    assert do(lambda s: state(s).put("c-1", {"last_intent": "other"})) == 3
    assert do(lambda s: state(s).get("c-1")).value == {"last_intent": "other"}


@pytest.mark.seed("R2")
def test_what_the_seeds_table_has_no_attribute_for_is_refused(do):
    for fields in ({"mood": "good"}, {"risk_flags": "vip"}, {"risk_flags": {1, 2}}):
        with pytest.raises(errors.UsageError):
            do(lambda s, f=fields: s.documents.on(SUPPORT_STATE).put("c-1", f))
    assert do(lambda s: s.documents.on(SUPPORT_STATE).get("c-1")) is None


@dataclasses.dataclass
class State:
    """The seed's conversation state, as far as one worker cares."""

    last_intent: str
    risk_flags: set[str]
    pending_flow: dict[str, str] | None = None


@pytest.mark.seed("R2")
def test_a_pending_flow_ends_before_its_conversation(do, clock):
    def states(s):
        return s.documents.on(SUPPORT_STATE).of(State, ends={"pending_flow": 900})

    do(lambda s: s.documents.on(SUPPORT_STATE).put("c-1", {"last_routed_team": "blue", "last_intent": "x"}))
    do(lambda s: states(s).update("c-1", lambda t: State("refund", {"vip"}, {"order": "o-1"})))
    found = do(lambda s: states(s).get("c-1"))
    assert found.value == State("refund", {"vip"}, {"order": "o-1"})
    assert found.ends == {"pending_flow": clock.now() + 900}
    clock.advance(901)
    assert do(lambda s: states(s).get("c-1")).value == State("refund", {"vip"})
    assert do(lambda s: s.documents.on(SUPPORT_STATE).prune()) == 1
    whole = do(lambda s: s.documents.on(SUPPORT_STATE).get("c-1"))
    assert (whole.value["last_routed_team"], whole.ends, whole.version) == ("blue", {}, 2)


@pytest.mark.seed("R2")
@pytest.mark.parametrize("place", DYNAMODB, indirect=True)
def test_the_seeds_table_looks_as_the_seed_has_it(do, place, clock):
    with closing(Engine(place, SUPPORT_STATE)) as engine:
        state = {"last_intent": "refund", "risk_flags": {"vip", "late"}, "last_routing_confidence": 0.75}
        do(lambda s: s.documents.on(SUPPORT_STATE).put("c-1", state))
        do(
            lambda s: s.documents.on(SUPPORT_STATE).change(
                "c-1", {"pending_flow": {"order": "o-1"}}, ends={"pending_flow": 900}
            )
        )
        item = engine.item(conversation_id="c-1")
        assert item["conversation_id"] == {"S": "c-1"}
        assert item["last_intent"] == {"S": "refund"}
        assert sorted(item["risk_flags"]["SS"]) == ["late", "vip"]
        assert float(item["last_routing_confidence"]["N"]) == 0.75
        assert item["pending_flow"] == {"M": {"order": {"S": "o-1"}}}
        assert item["version"] == {"N": "2"}
        assert datetime.fromisoformat(item["updated_at"]["S"]).timestamp() == clock.now()
        assert item["updated_at"]["S"].endswith("Z")
        days = (int(item["expires_at"]["N"]) - clock.now()) / DAY
        assert 90 <= days < 90.01
        assert item.keys() <= {*SUPPORT_STATE.kinds}
        clock.advance(901)
        do(lambda s: s.documents.on(SUPPORT_STATE).prune())
        item = engine.item(conversation_id="c-1")
        assert not {"pending_flow", "ends"} & item.keys()


@pytest.mark.seed("R2")
@pytest.mark.parametrize("place", DYNAMODB, indirect=True)
def test_what_somebody_else_wrote_without_a_version_can_be_changed(do, place, clock):
    def state(s):
        return s.documents.on(SUPPORT_STATE)

    with closing(Engine(place, SUPPORT_STATE)) as engine:
        engine.put(
            {
                "conversation_id": {"S": "c-1"},
                "last_intent": {"S": "theirs"},
                "risk_flags": {"SS": ["a"]},
                "their_own": {"S": "kept"},
                "expires_at": {"N": str(int(clock.now()) + 500)},
            }
        )
        found = do(lambda s: state(s).get("c-1"))
        assert (found.version, found.value) == (0, {"last_intent": "theirs", "risk_flags": {"a"}})
        changed = do(lambda s: state(s).update("c-1", lambda d: d | {"last_intent": "ours"}))
        assert changed.version == 1
        item = engine.item(conversation_id="c-1")
        assert (item["last_intent"], item["version"]) == ({"S": "ours"}, {"N": "1"})
        assert item["their_own"] == {"S": "kept"}


def test_a_document_with_a_subject_needs_a_secret_and_is_found_by_it(do, place):
    do(lambda s: s.documents.put("c1", {"n": 1}, subject="ann@example.com"))
    do(lambda s: s.documents.change("c1", {"n": 2}))
    assert do(lambda s: s.forget_subject("ann@example.com")).documents == 1
    assert do(lambda s: s.documents.get("c1")) is None
    anonymous = semel.Semel(do.s.store, env=place.env)
    with pytest.raises(errors.UsageError, match="needs a secret"):
        anonymous.documents.put("c1", {"n": 1}, subject="ann@example.com")


def test_an_expired_document_is_not_there_to_be_deleted():
    clock = FakeClock()
    with semel.connect("memory:", clock=clock) as s:
        s.documents.put("d", {"n": 1}, ttl=60)
        clock.advance(61)
        assert not s.documents.delete("d")
