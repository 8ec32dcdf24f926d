"""Commands as scripts with keys and arguments, and what scripts answer as items."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from semel.core.commands import (
    ABSENT,
    Add,
    After,
    AllOf,
    AtMost,
    Begins,
    Delete,
    Equals,
    OneOf,
    Past,
    Put,
    Query,
    Update,
)
from semel.errors import UsageError
from semel.stores.redis.keys import globbed
from semel.stores.redis.plan import PlannedWrite, RedisPlan, number
from semel.stores.redis.protocol import RedisCommand, pack
from semel.stores.redis.scan import parse_cursor
from semel.stores.redis.scripts import READ, WRITE, WriteSettings, outcomes
from semel.stores.redis.writes import write_command
from semel.testing.conformance import LINES, NOTES, THINGS

THING, NOTE, LINE = (RedisPlan(table, "p") for table in (THINGS, NOTES, LINES))
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
PLAIN = WriteSettings()
braces = st.text("{}%a:", min_size=1)


# Names


@given(texts | braces, texts | braces)
def test_a_name_is_found_again_and_no_two_items_share_one(partition, sort):
    note = Delete(NOTES, partition, sort=sort)
    name, index = NOTE.keys(note)
    assert NOTE.place(name.decode()) == (partition, sort)
    assert THING.place(THING.partition(partition).decode()) == (partition, None)
    assert NOTE.place(index.decode()) is None


@given(texts | braces, texts | braces)
def test_items_of_a_partition_lie_in_one_slot(partition, sort):
    """Those of other tables too, whatever is in the text."""
    name, index = NOTE.keys(Delete(NOTES, partition, sort=sort))
    assert key_slot(name) == key_slot(index) == key_slot(THING.partition(partition))


def test_a_name_is_readable():
    assert THING.partition("dev//charge:1") == b"p:conformance_things:{dev//charge:1}"
    assert LINE.keys(Delete(LINES, "a}b", sort=7))[0] == b"p:conformance_lines:{a%7Db}:7"


@pytest.mark.parametrize(
    ("plan", "sort"), [(NOTE, None), (NOTE, 1), (LINE, "1"), (LINE, 1.5), (LINE, True), (LINE, 2**60)]
)
def test_a_sort_key_of_another_kind_is_refused(plan, sort):
    with pytest.raises(UsageError, match="sort key"):
        plan.keys(Delete(plan.table, "a", sort=sort))


def test_an_empty_key_is_refused():
    with pytest.raises(UsageError, match="empty"):
        THING.partition("")


def test_names_of_others_are_no_items():
    for name in ("p:conformance_things", "q:conformance_things:{a}", "p:conformance_things:{a}:b"):
        assert THING.place(name) is None
    assert LINE.place("p:conformance_lines:{a}:word") is None


@given(texts)
def test_a_pattern_matches_nothing_but_its_text(text):
    """By Redis' rules, of which these are all that there are."""
    pattern = globbed(text)
    plain = []
    signs = iter(pattern)
    for sign in signs:
        assert sign not in "*?["
        plain.append(next(signs) if sign == "\\" else sign)
    assert "".join(plain) == text


def test_a_list_by_prefix_looks_only_there():
    where = AllOf((Begins("id", "dev/a*/"), Equals("text", "x")))
    assert THING.pattern(Query(THINGS, where=where)) == rb"p:conformance_things:{dev/a\*/*"
    assert THING.pattern(Query(THINGS)) == b"p:conformance_things:{*"


# Values


def orders(write, manner=PLAIN):
    ask = write_command([PlannedWrite(RedisPlan(write.table, "p"), write)], None, manner)
    count = int(ask.rest[0])
    return msgspec.msgpack.decode(ask.rest[1 + count]), ask.rest[2 + count :]


def test_what_a_script_is_told():
    item = {
        "text": "t",
        "count": 1.5,
        "data": b"\xff",
        "due": After(3),
        "flag": True,
        "gone_at": 9,
        "tags": None,
    }
    told, binary = orders(Put(THINGS, "k", item, ABSENT), WriteSettings("SPUBLISH", confirm=True))
    [write] = told.pop("writes")
    assert told == {"publish": "SPUBLISH", "confirm": True}
    assert (write["make"], write["expires"], write["when"]) == ("put", "gone_at", ["absent"])
    assert write["set"] == item | {"data": {"at": 2}, "due": {"seconds": 3.0}, "flag": "1"}
    assert binary == (b"\xff",)


def test_what_is_set_to_nothing_is_removed():
    told, _ = orders(Update(THINGS, "k", {"text": None, "tags": set(), "id": "k"}))
    assert sorted(told["writes"][0]["gone"]) == ["id", "tags", "text"]


@pytest.mark.parametrize("large", [2**53 + 1, -(2**60), 2**80])
def test_whole_numbers_that_lua_has_not_travel_as_text(large):
    told, _ = orders(Update(THINGS, "k", {"count": large, "due": 1}))
    assert told["writes"][0]["set"] == {"count": str(large), "due": 1}
    assert THING.item([b"count", str(large).encode()], "k", None)["count"] == large


@pytest.mark.parametrize(
    "write",
    [
        Put(THINGS, "k", {"gone_at": 9, "colour": "red"}),
        Put(THINGS, "k", {"gone_at": 9, "text": 1}),
        Put(THINGS, "k", {"gone_at": 9, "count": "1"}),
        Put(THINGS, "k", {"gone_at": 9, "data": "text"}),
        Put(THINGS, "k", {"gone_at": 9, "flag": 1}),
        Put(THINGS, "k", {"gone_at": 9, "text": After(1)}),
        Put(THINGS, "k", {"gone_at": float("nan")}),
        Put(THINGS, "k", {"text": "no end"}),
        Update(THINGS, "k", {"gone_at": None}),
        Add(THINGS, "k", "count", float("nan"), {}, {}),
        Delete(THINGS, "k", Equals("text", 1)),
        Delete(THINGS, "k", Equals("colour", "red")),
        Delete(THINGS, "k", OneOf("count", ("1",))),
        Delete(THINGS, "k", Equals("object", "{}")),
        Delete(THINGS, "k", Past("id")),
    ],
)
def test_what_no_table_could_hold_or_compare_is_refused(write):
    with pytest.raises(UsageError):
        orders(write)


def test_what_a_condition_says_of_the_key_is_decided_at_once():
    for condition, clause in (
        (Equals("id", "k"), "present"),
        (Equals("id", "other"), "never"),
        (Begins("id", "k"), "present"),
        (OneOf("id", ("a", "b")), "never"),
    ):
        assert orders(Delete(THINGS, "k", condition))[0]["writes"][0]["when"] == [clause]
    assert orders(Delete(LINES, "k", AtMost("number", 3), 4))[0]["writes"][0]["when"] == ["never"]


def test_an_item_that_may_stay_has_no_end():
    told, _ = orders(Put(LINES, "k", {"text": "t"}, None, 1))
    assert told["writes"][0]["set"] == {"text": "t", "gone_at": float("inf")}
    assert orders(Update(LINES, "k", {"gone_at": None}, sort=1))[0]["writes"][0]["set"]["gone_at"] == float(
        "inf"
    )
    assert orders(Add(LINES, "k", "count", 1, {}, {}, None, 1))[0]["writes"][0]["once"]["gone_at"] == float(
        "inf"
    )


@given(st.integers() | st.floats(allow_nan=False))
def test_a_number_comes_back_as_it_was_written(value):
    assert number((str(value) if isinstance(value, int) else f"{value:.17g}").encode()) == value


def test_what_cannot_be_read_stays_as_it_is():
    """For the rules to find, which report it; an end that cannot be read is none."""
    flat = [
        b"count",
        b"many",
        b"text",
        b"\xff",
        b"flag",
        b"?",
        b"object",
        b"{",
        b"new",
        b"x",
        b"gone_at",
        b"soon",
    ]
    item = THING.item(flat, "k", None)
    assert item == {
        "id": "k",
        "count": b"many",
        "text": b"\xff",
        "flag": b"?",
        "object": b"{",
        "gone_at": b"soon",
    }
    assert THING.alive(item, 1e12)


# The wire


def test_a_command_is_packed_as_redis_reads_it():
    assert pack((b"GET", b"k\r\n")) == b"*2\r\n$3\r\nGET\r\n$3\r\nk\r\n\r\n"
    ask = RedisCommand(b"k", (b"1", b"k", b""), READ)
    assert ask.encode().startswith(b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + READ.digest)
    assert READ.text in ask.encode(script_known=False)


def test_answers_are_cut_to_measure():
    head = msgspec.msgpack.encode([5, [1, 0, [0, 1, 2, 3], [1, 0]]])
    now, found = outcomes([head, b"abbccc"])
    assert now == 5.0
    assert [each[:2] for each in found] == [
        (True, None),
        (False, None),
        (False, [b"a", b"bb", b"ccc"]),
        (True, [b""]),
    ]
    assert not any(each.again for each in found)
    assert outcomes(msgspec.msgpack.encode([5, [1, 2]])) == (5.0, [(True, None, False), (False, None, True)])


def test_writes_of_one_run_have_their_keys_in_order():
    ask = write_command(
        [
            PlannedWrite(THING, Put(THINGS, "a", {"gone_at": 9, "data": b"1"})),
            PlannedWrite(NOTE, Delete(NOTES, "a", Equals("data", b"2"), "s")),
        ],
        7.0,
        WriteSettings(),
        together=True,
    )
    assert ask.script is WRITE
    assert ask.rest[:4] == (
        b"3",
        b"p:conformance_things:{a}",
        b"p:conformance_notes:{a}:s",
        b"p:conformance_notes:{a}",
    )
    told = msgspec.msgpack.decode(ask.rest[4])
    assert (told["now"], told["together"]) == (7.0, True)
    assert told["writes"][0]["set"]["data"] == {"at": 2}
    assert told["writes"][1]["when"] == ["equals", "data", {"at": 3}]
    assert ask.rest[5:] == (b"1", b"2")


# Pages


@pytest.mark.parametrize(
    ("query", "bounds"),
    [
        (Query(NOTES, "a"), (b"ZRANGEBYLEX", b"-", b"+")),
        (Query(NOTES, "a", reverse=True), (b"ZREVRANGEBYLEX", b"+", b"-")),
        (Query(NOTES, "a", "b", "d"), (b"ZRANGEBYLEX", b"[b", b"[d")),
        (Query(NOTES, "a", "b", "d", after='["a","c"]'), (b"ZRANGEBYLEX", b"(c", b"[d")),
        (Query(NOTES, "a", "b", "d", after='["a","a"]'), (b"ZRANGEBYLEX", b"[b", b"[d")),
        (Query(NOTES, "a", "b", "d", True, after='["a","c"]'), (b"ZREVRANGEBYLEX", b"(c", b"[b")),
        (Query(NOTES, "a", "b", "d", True, after='["a","e"]'), (b"ZREVRANGEBYLEX", b"[d", b"[b")),
        (Query(LINES, "a"), (b"ZRANGEBYSCORE", b"-inf", b"+inf")),
        (Query(LINES, "a", 2, 9, after='["a",3]'), (b"ZRANGEBYSCORE", b"(3", b"9")),
    ],
)
def test_a_page_begins_where_the_one_before_ended(query, bounds):
    assert RedisPlan(query.table, "p").bounds(query) == bounds


def test_a_cursor_of_another_partition_is_refused():
    with pytest.raises(UsageError, match="partition"):
        NOTE.bounds(Query(NOTES, "a", after='["b","c"]'))


@pytest.mark.parametrize("after", ["", "[]", '["n",1]', '["n",-1.5,[]]', '["n",1,[2]]', '["n",1,[],0]'])
def test_a_made_up_spot_is_refused(after):
    with pytest.raises(UsageError):
        parse_cursor(after)
