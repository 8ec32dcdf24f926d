# ruff: noqa: S101 - these are tests, for whoever writes a store to subclass
"""What goes in comes out; and what has expired is not there."""

from typing import Any

import pytest

from semel.core.commands import (
    ABSENT,
    Add,
    After,
    Applied,
    Delete,
    Get,
    Put,
    Query,
    Refused,
    Update,
    Watch,
    read,
    write,
    write_each,
)
from semel.core.drive import Glancing
from semel.core.keys import MAX_KEY_BYTES, MAX_NAME_BYTES
from semel.model import Claimed
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import (
    LINES,
    LONG,
    NOTES,
    THINGS,
    Harness,
    Runner,
    RunnerLedger,
    claimed,
    get,
    named,
    put,
    replayed,
    shown,
    there,
    thing,
)
from semel.testing.faulty import Faulty

VALUES: list[tuple[str, Any]] = [
    ("text", ""),
    ("text", " "),
    ("text", "0"),
    ("text", "caf\u00e9"),
    ("text", "cafe\u0301"),
    ("text", "\U0001f600 \u4f60\u597d \u0645\u0631\u062d\u0628\u0627"),
    ("text", "a'b\"c\\d%e_f;--{}[]$1?:x"),
    ("text", "line\nline\ttab\r\n"),
    ("text", "x" * 100_000),
    ("count", 0),
    ("count", -1),
    ("count", 2**53 - 1),
    ("count", -(2**53) + 1),
    ("count", 0.1),
    ("count", 1e-9),
    ("count", 1_700_000_000.123456),
    ("data", b""),
    ("data", b"\x00"),
    ("data", bytes(range(256))),
    ("data", b"\xff" * 100_000),
    ("flag", True),
    ("flag", False),
    ("object", {}),
    (
        "object",
        {
            "text": "caf\u00e9",
            "none": None,
            "list": [1, -2.5, "three", [], {}],
            "deep": {"yes": True, "no": False, "": {"x": ""}},
        },
    ),
    ("tags", {"one"}),
    ("tags", {"caf\u00e9", "'", "a,b"}),
]


class ValueTests(Harness):
    """Values and keys of every kind."""

    @pytest.mark.parametrize(("attribute", "value"), VALUES, ids=named)
    def test_value_comes_back_as_it_went_in(
        self, runner: Runner, clock: FakeClock, attribute: str, value: Any
    ) -> None:
        """By Put and by Update; an empty value is not a missing one."""
        put(runner, "put", thing(clock) | {attribute: value})
        put(runner, "updated", thing(clock))
        runner.ask(Update(THINGS, "updated", {attribute: value}))
        for key in ("put", "updated"):
            item = there(runner, key)
            assert item[attribute] == value
            assert isinstance(item[attribute], str | bytes) is isinstance(value, str | bytes)
            assert isinstance(item[attribute], bool) is isinstance(value, bool)

    def test_an_empty_set_is_no_attribute(self, runner: Runner, clock: FakeClock) -> None:
        """By Put and by Update."""
        put(runner, "key", thing(clock, tags=set()))
        assert not there(runner, "key").get("tags")
        runner.ask(Update(THINGS, "key", {"tags": {"a"}}))
        assert there(runner, "key")["tags"] == {"a"}
        runner.ask(Update(THINGS, "key", {"tags": set()}))
        assert not there(runner, "key").get("tags")

    def test_a_flag_is_compared(self, runner: Runner, clock: FakeClock) -> None:
        """As other values are; a missing flag is neither."""
        put(runner, "key", thing(clock, flag=True))
        put(runner, "without", thing(clock))
        assert type(runner.ask(Update(THINGS, "key", {"due": 1}, {"flag": False}))) is Refused
        assert type(runner.ask(Update(THINGS, "key", {"due": 1}, {"flag": True}))) is Applied
        assert type(runner.ask(Update(THINGS, "without", {"due": 1}, {"flag": False}))) is Refused

    def test_an_item_may_stay_where_its_table_says_so(self, runner: Runner, clock: FakeClock) -> None:
        """Without an end it lives for ever, and with one it does not."""
        put(runner, "mine", {"text": "stays"}, LINES, 1)
        put(runner, "mine", {"text": "goes", "gone_at": clock.now() + 5}, LINES, 2)
        runner.ask(Add(LINES, "mine", "count", 1, {}, sort=3))
        clock.advance(1e9)
        assert there(runner, "mine", LINES, 1)["text"] == "stays"
        assert get(runner, "mine", LINES, 2) is None
        assert there(runner, "mine", LINES, 3)["count"] == 1
        assert [item["number"] for item in runner.ask(Query(LINES, "mine")).items] == [1, 3]
        assert type(runner.ask(Put(LINES, "mine", {"text": "new"}, ABSENT, 1))) is Refused
        assert type(runner.run(write(Put(LINES, "mine", {"text": "new"}, ABSENT, 2)))) is Applied

    @pytest.mark.parametrize("attribute", ["text", "count", "data"])
    def test_none_is_no_value(self, runner: Runner, clock: FakeClock, attribute: str) -> None:
        """An attribute put as None is missing: it equals nothing."""
        put(runner, "key", thing(clock) | {attribute: None})
        item = there(runner, "key")
        assert item.get(attribute) is None
        empty: Any = {"text": "", "count": 0, "data": b""}[attribute]
        assert type(runner.ask(Update(THINGS, "key", {"due": 1}, {attribute: empty}))) is Refused

    @pytest.mark.parametrize(
        "key",
        [
            "a",
            "A",
            " a ",
            "a/b",
            "a:b%3A",
            "'; DROP TABLE conformance_things; --",
            "{braces}",
            "*?[a-z]",
            "caf\u00e9",
            "cafe\u0301",
            "\U0001f600" * (MAX_KEY_BYTES // 4),
            "k" * MAX_KEY_BYTES,
        ],
        ids=named,
    )
    def test_key_names_one_item(self, runner: Runner, clock: FakeClock, key: str) -> None:
        """A key is bytes: no case, no normal form, no pattern, and none is too long that a ledger allows."""
        others = [key + "x", "x" + key, key.upper() + "x", key.lower() + "x"]
        put(runner, key, thing(clock, text="this"))
        for other in others:
            assert get(runner, other) is None
        item = there(runner, key)
        assert item["id"] == key
        assert item["text"] == "this"

    def test_normal_forms_are_different_keys(self, runner: Runner, clock: FakeClock) -> None:
        """NFC and NFD look alike and are two items; so are two cases."""
        for key in ("caf\u00e9", "cafe\u0301", "CAFE\u0301"):
            assert type(runner.ask(Put(THINGS, key, thing(clock, text=key), ABSENT))) is Applied
        for key in ("caf\u00e9", "cafe\u0301", "CAFE\u0301"):
            assert there(runner, key)["text"] == key

    def test_longest_name_a_ledger_makes(self, runner: Runner) -> None:
        """Environment, scope and key of full length, all escaped, fit."""
        ledger = RunnerLedger(runner, env="/" * MAX_NAME_BYTES, scope="%" * MAX_NAME_BYTES)
        key = "k" * MAX_KEY_BYTES
        claim = claimed(ledger.claim(key))
        ledger.complete(claim, "kept")
        assert replayed(ledger.claim(key)) == "kept"
        assert type(ledger.claim(key[:-1] + "l")) is Claimed

    def test_a_reply_is_a_snapshot(self, runner: Runner, clock: FakeClock) -> None:
        """What was read does not change under its reader."""
        put(runner, "key", thing(clock, text="old"))
        item = there(runner, "key")
        runner.ask(Update(THINGS, "key", {"text": "new"}))
        assert item["text"] == "old"


class GlanceTests(Harness):
    """The short cut of some stores: a few attributes of an item, without a command."""

    def test_a_glance_sees_what_a_reading_sees(self, runner: Runner, store: Faulty, clock: FakeClock) -> None:
        """The attributes asked for, in order, of an item that is there and has not expired."""
        if not isinstance(store.inner, Glancing):
            pytest.skip("this store has no short cut")
        look = store.inner.glance(THINGS, ("count", "data", "text"), {})
        assert look("key") is None
        put(runner, "key", {"text": "here", "count": 0, "gone_at": clock.now() + 5})
        assert look("key") == (0, None, "here")
        runner.ask(Update(THINGS, "key", {"text": "new"}))
        assert look("key") == (0, None, "new")
        clock.advance(5)
        assert look("key") is None
        put(runner, "key", thing(clock, text="deleted"))
        runner.ask(Delete(THINGS, "key"))
        assert look("key") is None

    def test_a_glance_passes_over_what_is_not_as_asked(
        self, runner: Runner, store: Faulty, clock: FakeClock
    ) -> None:
        """Only an item whose attributes are as they should be is seen."""
        if not isinstance(store.inner, Glancing):
            pytest.skip("this store has no short cut")
        look = store.inner.glance(THINGS, ("due",), {"text": "it's", "count": 2})
        put(runner, "key", thing(clock, text="it's", count=1))
        assert look("key") is None
        runner.ask(Update(THINGS, "key", {"count": 2, "due": 5}))
        assert look("key") == (5,)
        runner.ask(Update(THINGS, "key", {"text": None}))
        assert look("key") is None


class ExpiryTests(Harness):
    """An expired item stays until the store removes it. The rules treat it as absent, removed or not."""

    @pytest.fixture
    def expired(self, runner: Runner, clock: FakeClock) -> str:
        """The key of an item that has just expired, to the second."""
        put(runner, "key", {"text": "old", "count": 7, "due": 1, "gone_at": clock.now() + 5})
        clock.advance(4)
        assert get(runner, "key") is not None
        clock.advance(1)
        return "key"

    def test_reading_does_not_find_it(self, runner: Runner, expired: str) -> None:
        """By Get and by Watch."""
        assert runner.run(read(Get(THINGS, expired))).item is None
        assert runner.run(read(Watch(THINGS, expired, 1.0))).item is None

    def test_watch_sees_the_end(self, runner: Runner, clock: FakeClock) -> None:
        """An item that expires while it is watched is not there afterwards."""
        put(runner, "key", {"gone_at": clock.now() + 1})
        assert runner.run(read(Watch(THINGS, "key", 10.0))).item is None

    def test_put_replaces_it(self, runner: Runner, clock: FakeClock, expired: str) -> None:
        """A Put that expects no item is made, and nothing of the old item remains."""
        assert type(runner.run(write(Put(THINGS, expired, thing(clock, text="new"), ABSENT)))) is Applied
        assert shown(get(runner, expired)) == thing(clock, text="new") | {"id": expired}

    def test_one_of_many_replaces_it(self, runner: Runner, clock: FakeClock, expired: str) -> None:
        """The others find the item of the one that did."""
        puts = [Put(THINGS, expired, thing(clock, text=str(each)), ABSENT) for each in range(8)]
        replies = runner.together([write(each) for each in puts])
        winners = [each for each, reply in enumerate(replies) if type(reply) is Applied]
        assert len(winners) == 1
        assert {reply.item["text"] for reply in replies if reply.item is not None} == {str(winners[0])}

    def test_batch_replaces_it(self, runner: Runner, clock: FakeClock, expired: str) -> None:
        """In a batch as alone."""
        puts = [Put(THINGS, key, thing(clock, text="new"), ABSENT) for key in ("other", expired)]
        assert [type(reply) for reply in runner.run(write_each(puts))] == [Applied, Applied]
        assert there(runner, expired)["text"] == "new"

    def test_query_leaves_it_out(self, runner: Runner, clock: FakeClock) -> None:
        """From a partition and from the whole table."""
        for place, life in (("1", LONG), ("2", 5.0), ("3", LONG)):
            put(runner, "owner", {"gone_at": clock.now() + life}, NOTES, place)
        clock.advance(5)
        assert [item["place"] for item in runner.ask(Query(NOTES, "owner")).items] == ["1", "3"]
        assert sorted(item["place"] for item in runner.ask(Query(NOTES)).items) == ["1", "3"]

    def test_a_new_end_is_a_new_life(self, runner: Runner, clock: FakeClock) -> None:
        """An Update in time moves the end."""
        put(runner, "key", {"text": "old", "gone_at": clock.now() + 5})
        clock.advance(4)
        runner.ask(Update(THINGS, "key", {"gone_at": After(5)}))
        clock.advance(4)
        assert get(runner, "key") is not None
        clock.advance(1)
        assert get(runner, "key") is None

    def test_the_clock_may_be_set_back(self, runner: Runner, clock: FakeClock) -> None:
        """Expiry is a comparison with the store's now: an item that was not written over is there again."""
        put(runner, "key", {"text": "old", "gone_at": clock.now() + 5})
        clock.jump(10)
        assert get(runner, "key") is None
        clock.jump(-10)
        assert get(runner, "key") is not None
