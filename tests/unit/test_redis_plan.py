"""Names of keys, arguments and replies of scripts, and the order of entries."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from semel.apps.tables import ACTIVITIES
from semel.core.commands import ABSENT, Add, After, Delete, Get, Put, Query, Update, alive, cursor
from semel.core.keys import prefix
from semel.errors import UsageError
from semel.stores.redis.connection import pack
from semel.stores.redis.interpreter import parse_cursor
from semel.stores.redis.plan import REPLY, RedisPlan, globbed, number, number_text, sortable
from semel.stores.redis.router import WRITE, RedisCommand
from semel.tables import JOURNAL, LEDGER, Index
from semel.testing.conformance import ENTRIES, LINES, NOTES, THINGS

THING, NOTE, LINE, ENTRY = (RedisPlan(table, "p") for table in (THINGS, NOTES, LINES, ENTRIES))
CLUSTERED = RedisPlan(ENTRIES, "p", cluster=True)
INDEXES = {index.name: index for index in ENTRIES.indexes}
BY_TIME, BY_TEXT = INDEXES["text-due"], INDEXES["count-text"]
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.text("{}%a:/", min_size=1)
names = st.text("ab%}", max_size=3)


# Names


@given(texts, texts)
def test_a_name_is_found_again_and_no_two_items_share_one(partition, sort):
    name, order = NOTE.item_key(Get(NOTES, partition, sort)), NOTE.key(partition)
    assert NOTE.place(name.decode()) == (partition, sort)
    assert NOTE.place(order.decode()) is None
    assert THING.place(THING.key(partition).decode()) == (partition, None)


@given(st.sampled_from(["dev", "%}"]), names, texts, texts, texts)
def test_everything_of_a_scope_lies_in_one_slot(env, scope, one, other, sort):
    """Whatever the table, the key and what is in them; and indexes, in a cluster."""
    name = NOTE.item_key(Get(NOTES, prefix(env, scope) + one, sort))
    key = prefix(env, scope) + other
    assert key_slot(name) == key_slot(NOTE.key(prefix(env, scope) + one)) == key_slot(THING.key(key))
    index, is_pattern = CLUSTERED.index_key(BY_TIME, key)
    assert (key_slot(index), is_pattern) == (key_slot(name), False)


def test_names_are_readable():
    assert THING.key("prod/acme/charge:o-1") == b"p:conformance_things:{prod/acme/}{charge:o-1}"
    assert NOTE.item_key(Get(NOTES, "dev//a/b", "s")) == b"p:conformance_notes:{dev//}{a/b}:s"
    assert LINE.item_key(Get(LINES, "dev//a}b", 7)) == b"p:conformance_lines:{dev//}{a%7Db}:7"
    assert THING.key("no scope") == b"p:conformance_things:{/}{no scope}"
    assert ENTRY.index_key(BY_TIME, "dev//ann") == (b"p:conformance_entries/text-due:dev//ann", False)
    in_cluster = CLUSTERED.index_key(BY_TIME, "dev//ann")
    assert in_cluster == (b"p:conformance_entries/text-due:{dev//}dev//ann", False)


def test_a_value_without_a_scope_may_be_in_any_slot_of_a_cluster():
    pattern, is_pattern = CLUSTERED.index_key(BY_TIME, "7f3a*")
    assert (pattern, is_pattern) == (rb"p:conformance_entries/text\-due:{*}7f3a\*", True)
    assert ENTRY.index_key(BY_TEXT, 7.0) == ENTRY.index_key(BY_TEXT, 7)


@pytest.mark.parametrize(
    ("plan", "sort"), [(NOTE, None), (NOTE, 1), (LINE, "1"), (LINE, 1.5), (LINE, True), (LINE, 2**60)]
)
def test_a_sort_key_of_another_kind_is_refused(plan, sort):
    with pytest.raises(UsageError, match="sort key"):
        plan.item_key(Get(plan.table, "a", sort))


def test_an_empty_key_is_refused():
    with pytest.raises(UsageError, match="empty"):
        THING.key("")


def test_names_of_others_are_no_items():
    for name in (
        "p:conformance_things",
        "q:conformance_things:{/}{a}",
        "p:conformance_things:{a}",
        "p:conformance_things:{a}b}{c}",
        "p:conformance_things:{a}{b}:c",
    ):
        assert THING.place(name) is None
    assert LINE.place("p:conformance_lines:{/}{a}:word") is None


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


def test_a_list_of_a_scope_looks_only_there():
    assert THING.pattern("dev/a*/") == rb"p:conformance_things:{dev/a\*/}{*"
    assert THING.pattern("dev/a/charge:") == rb"p:conformance_things:{dev/a/}{charge:*"
    assert THING.pattern("dev/") == THING.pattern("") == rb"p:conformance_things:{*"


# Values


def sent(write):
    """What write.lua is sent of a write, decoded."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(RedisPlan(write.table, "p").write(write)))


def test_what_a_script_is_sent():
    item = {
        "text": "t",
        "count": 1.5,
        "data": b"ab",
        "due": After(3),
        "flag": True,
        "gone_at": 9,
        "tags": None,
    }
    write = sent(Put(THINGS, "k", item, ABSENT))
    values = item | {"due": {"seconds": 3.0}, "flag": "1", "data": "ab", "tags": False}
    assert write == {"expires": "gone_at", "whole": True, "absent": True, "set": values}


def test_bytes_are_sent_as_text_whatever_they_are():
    """Redis' MessagePack has no bytes."""
    encoded = msgspec.msgpack.encode(THING.write(Update(THINGS, "k", {"data": b"\xff"})))
    assert b"\xa4data\xdb\x00\x00\x00\x01\xff" in encoded


def test_what_is_expected_is_sent_as_it_is_stored():
    write = sent(Delete(THINGS, "k", {"text": "a", "flag": False, "count": 7, "due": None}))
    assert write["expect"] == {"text": "a", "flag": "0", "count": 7, "due": False}
    assert sent(Update(THINGS, "k", {"text": "a"}))["expect"] == {}
    assert "expect" not in sent(Put(THINGS, "k", {"gone_at": 9}))


def test_what_is_set_to_nothing_is_removed():
    write = sent(Update(THINGS, "k", {"text": None, "tags": set(), "id": "k"}))
    assert write["set"] == {"text": False, "tags": False, "id": False}


@pytest.mark.parametrize("large", [2**53 + 1, -(2**60) - 1, 2**80 + 1])
def test_whole_numbers_that_lua_has_not_travel_as_text(large):
    write = sent(Update(THINGS, "k", {"count": large, "due": 1}))
    assert write["set"] == {"count": str(large), "due": 1}
    assert THING.item([b"count", str(large).encode()], "k", None)["count"] == large


def test_equal_numbers_are_equal_texts():
    for one, other in ((1, 1.0), (0, -0.0), (10**17, 1e17), (2**80, float(2**80)), (True, 1)):
        assert number_text(one) == number_text(other)


@pytest.mark.parametrize(
    "write",
    [
        Put(THINGS, "k", {"gone_at": 9, "colour": "red"}),
        Put(THINGS, "k", {"gone_at": 9, "text": 1}),
        Put(THINGS, "k", {"gone_at": 9, "count": "1"}),
        Put(THINGS, "k", {"gone_at": 9, "count": 10**400}),
        Put(THINGS, "k", {"gone_at": 9, "data": "text"}),
        Put(THINGS, "k", {"gone_at": 9, "flag": 1}),
        Put(THINGS, "k", {"gone_at": 9, "text": After(1)}),
        Put(THINGS, "k", {"gone_at": float("nan")}),
        Put(THINGS, "k", {"text": "no end"}),
        Update(THINGS, "k", {"gone_at": None}),
        Add(THINGS, "k", "count", float("nan"), {}),
        Delete(THINGS, "k", {"text": 1}),
        Delete(THINGS, "k", {"colour": "red"}),
        Delete(THINGS, "k", {"id": "other"}),
    ],
)
def test_what_no_table_could_hold_or_compare_is_refused(write):
    with pytest.raises(UsageError):
        sent(write)


def test_an_item_that_may_stay_has_no_end():
    endless = {"gone_at": float("inf")}
    assert sent(Put(LINES, "k", {"text": "t"}, sort=1))["set"] == {"text": "t", **endless}
    assert sent(Update(LINES, "k", {"gone_at": None}, sort=1))["set"] == endless
    assert sent(Add(LINES, "k", "count", 1, {}, sort=1))["set"] == endless
    assert sent(Update(LINES, "k", {}, sort=1))["set"] == {}


@given(st.integers() | st.floats(allow_nan=False))
def test_a_number_comes_back_as_it_was_written(value):
    assert number((str(value) if isinstance(value, int) else f"{value:.17g}").encode()) == value


def test_what_cannot_be_read_stays_as_it_is():
    """For the rules to find, which report it; an end that cannot be read is none."""
    unreadable = {"count": b"many", "text": b"\xff", "flag": b"?", "object": b"{", "gone_at": b"soon"}
    flat = [word for name, value in unreadable.items() for word in (name.encode(), value)]
    item = THING.item([*flat, b"new", b"x", b"@", b"\xff"], "k", None)
    assert item == {"id": "k", **unreadable}
    assert alive(THINGS, item, 1e12) is item


# The wire


def test_a_command_is_packed_as_redis_reads_it():
    assert pack((b"GET", b"k\r\n")) == b"*2\r\n$3\r\nGET\r\n$3\r\nk\r\n\r\n"
    command = RedisCommand(b"k", WRITE.call(b"1", b"k", b""))
    assert command.data == pack((b"EVALSHA", WRITE.digest, b"1", b"k", b""))
    assert command.with_text() == pack((b"EVAL", WRITE.text, b"1", b"k", b""))


def test_a_reply_has_the_time_and_the_fields_of_items():
    fields = [b"text", b"\xff", b"due", b"7"]
    now, found = REPLY.decode(msgspec.msgpack.encode([5, [[1, []], [0, fields]]]))
    assert (now, found) == (5.0, [(1, []), (0, fields)])


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
        (Query(LINES, "a", 2, 9, after='["a",1]'), (b"ZRANGEBYSCORE", b"2", b"9")),
        (Query(LINES, "a", 2, 9, True, after='["a",3]'), (b"ZREVRANGEBYSCORE", b"(3", b"2")),
    ],
)
def test_a_page_begins_where_the_one_before_ended(query, bounds):
    assert RedisPlan(query.table, "p").bounds(query) == bounds


def test_a_cursor_of_another_partition_is_refused():
    with pytest.raises(UsageError, match="partition"):
        NOTE.bounds(Query(NOTES, "a", after='["b","c"]'))


@pytest.mark.parametrize(
    "after", ["", "[]", '["n",1]', '["n",-1.5,"",[]]', '["n",1,"",[2]]', '["n",1,"",[],0]']
)
def test_a_made_up_spot_is_refused(after):
    with pytest.raises(UsageError):
        parse_cursor(after)


# Indexes

values = st.text(st.sampled_from("\0\1\2ab\u00e9\U0001f600"))
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.sampled_from([0, -0.0, 0.0, 7, 7.0])


@given(numbers, numbers)
def test_numbers_sort_as_text_as_they_do(one, other):
    assert (sortable(one) < sortable(other)) is (one < other)
    assert (sortable(one) == sortable(other)) is (one == other)
    assert (number_text(one) == number_text(other)) is (one == other)


def entry(index, item):
    """The entry of an item: the place of the cursor after it."""
    return ENTRY.index_bounds(
        Query(ENTRIES, "x", index=index.name, after=cursor(ENTRIES, item, index)), index
    ).first[1:]


def read(bounds, members):
    """What Redis would read, by its rules."""
    low, high = (bounds.last, bounds.first) if bounds.command == b"ZREVRANGEBYLEX" else bounds[1:]

    def within(member):
        above = low == b"-" or (member >= low[1:] if low[:1] == b"[" else member > low[1:])
        return above and (high == b"+" or (member <= high[1:] if high[:1] == b"[" else member < high[1:]))

    return sorted(filter(within, members), reverse=bounds.command == b"ZREVRANGEBYLEX")


@given(st.data(), st.booleans(), st.booleans())
def test_a_range_has_what_lies_between_its_bounds_and_after_its_cursor(data, by_number, reverse):
    """Whatever is in the texts, and however many are equal."""
    index, kind = (BY_TIME, numbers) if by_number else (BY_TEXT, values)
    sort = str(index.sort)
    finite = kind.filter(lambda value: not isinstance(value, float) or abs(value) < 1e300)
    sorts = data.draw(st.lists(finite, min_size=1))
    items = [{"owner": "o", "place": f"p{place}", sort: value} for place, value in enumerate(sorts)]
    there = {entry(index, item): item for item in items}
    low, high = data.draw(st.none() | kind), data.draw(st.none() | kind)
    after = data.draw(st.none() | st.sampled_from(sorted(there)))
    start = None if after is None else cursor(ENTRIES, there[after], index)
    query = Query(ENTRIES, 7, low, high, reverse, after=start, index=index.name)

    def wanted(member):
        value = there[member][sort]
        later = after is None or (member < after if reverse else member > after)
        return (low is None or value >= low) and (high is None or value <= high) and later

    found = read(ENTRY.index_bounds(query, index), there)
    assert found == sorted(filter(wanted, there), reverse=reverse)
    order = [there[member][sort] for member in found]
    assert order == sorted(order, reverse=reverse)


@given(values, texts, texts)
def test_an_entry_says_which_item_it_leads_to(sort, owner, place):
    member = entry(BY_TEXT, {"owner": owner, "place": place, "text": sort, "count": 1})
    assert ENTRY.place_of_entry(member, None) == (owner, place)


@pytest.mark.parametrize(
    ("index", "key", "low"),
    [("text-due", 7, None), ("text-due", "x", "1"), ("count-text", "7", None), ("count-text", 7, 1)],
)
def test_a_value_of_another_kind_is_refused(index, key, low):
    named = INDEXES[index]
    with pytest.raises(UsageError, match=f"index '{index}' is by"):
        ENTRY.index_key(named, key)
        ENTRY.index_bounds(Query(ENTRIES, key, low, index=index), named)


@pytest.mark.parametrize("by", ["flag", "owner"])
def test_an_index_is_by_what_sorts_and_changes(by):
    table = msgspec.structs.replace(ENTRIES, indexes=(Index(name="other", partition=by),))
    with pytest.raises(UsageError, match=f"by '{by}', which holds"):
        RedisPlan(table, "p")


def test_a_claim_without_a_subject_costs_no_byte_more():
    """Nor does its completion: as if the ledger had no index."""
    bare = msgspec.structs.replace(LEDGER, indexes=())
    opening = {"status": "IN_PROGRESS", "token": "t", "expires_at": After(9)}
    closing = {"status": "COMPLETED", "result": b"1", "expires_at": After(9)}

    def commands(table):
        return Put(table, "k", opening, ABSENT), Update(table, "k", closing), Delete(table, "k")

    assert [sent(one) for one in commands(LEDGER)] == [sent(one) for one in commands(bare)]
    assert "indexes" in sent(Put(LEDGER, "k", opening | {"subject": "7f3a"}, ABSENT))
    assert "indexes" in sent(Update(LEDGER, "k", {"subject": None}))


@pytest.mark.seed("H1")
@pytest.mark.seed("H8")
def test_the_indexes_of_the_seeds_can_be_kept():
    activity = Put(ACTIVITIES, "dev//chat", {"userId": 7, "timestamp": 1.5}, sort="01J")
    assert sent(activity)["indexes"] == [
        {
            "key": "p:household-activities/userId-timestamp-index:",
            "by": "userId",
            "sort": "timestamp",
            "number": True,
        }
    ]
    journal = Put(JOURNAL, "dev//chat", {"actor": "dev//ann", "at": 1.5, "expires_at": 9}, sort="01J")
    assert [index["by"] for index in sent(journal)["indexes"]] == ["actor", "subject"]
