"""Entries of indexes: how they sort, what is entered when, and what costs nothing."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.commands import (
    ABSENT,
    NOW,
    PRESENT,
    Add,
    After,
    Delete,
    Put,
    Query,
    Update,
    cursor,
)
from semel.errors import RecordCorrupt, UsageError
from semel.stores.redis.indexes import IndexEntry, in_order, whole
from semel.stores.redis.plan import NEVER, PlannedWrite, RedisPlan
from semel.stores.redis.scripts import WriteSettings
from semel.stores.redis.writes import index_commands, write_command
from semel.tables import JOURNAL, LEDGER, Index, Kind
from semel.tables.seeds import ACTIVITIES
from semel.testing.conformance import ENTRIES, NOTES

PLAN = RedisPlan(ENTRIES, "p")
BY_TIME, BY_TEXT = PLAN.indexes.named("text-due"), PLAN.indexes.named("count-text")
END = {"gone_at": After(9)}

texts = st.text(st.sampled_from("\0\1\2ab\u00e9\U0001f600"))
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.sampled_from([0, -0.0, 0.0, 7, 7.0])


# Order


@given(numbers, numbers)
def test_numbers_sort_as_text_as_they_do(one, other):
    assert (in_order(one) < in_order(other)) is (one < other)
    assert (in_order(one) == in_order(other)) is (one == other)
    assert (whole(one) == whole(other)) is (one == other)


def entries(way, values, **item):
    """An item for each value, with the entry that leads there."""
    found = []
    for place, value in enumerate(values):
        each = {"owner": "o", "place": f"p{place}", way.index.sort: value} | item
        found.append((way.entry(each).member.encode(), each))
    return found


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
    way, kind = (BY_TIME, numbers) if by_number else (BY_TEXT, texts)
    finite = kind.filter(lambda value: not isinstance(value, float) or abs(value) < 1e300)
    there = dict(entries(way, data.draw(st.lists(finite, min_size=1)), text="x", count=7))
    low, high = data.draw(st.none() | kind), data.draw(st.none() | kind)
    after = data.draw(st.none() | st.sampled_from(sorted(there)))
    key = 7 if way is BY_TEXT else "x"
    start = None if after is None else cursor(ENTRIES, there[after], way.index)
    query = Query(ENTRIES, key, low, high, reverse, after=start, index=way.index.name)

    def wanted(member):
        value = there[member][way.index.sort]
        later = after is None or (member < after if reverse else member > after)
        return (low is None or value >= low) and (high is None or value <= high) and later

    found = read(way.bounds(query), there)
    assert found == sorted(filter(wanted, there), reverse=reverse)
    values = [there[member][way.index.sort] for member in found]
    assert values == sorted(values, reverse=reverse)


@given(texts, texts.filter(bool))
def test_an_entry_says_which_item_it_leads_to(sort, owner):
    entry = BY_TEXT.entry({"owner": owner, "place": sort, "text": sort, "count": 1})
    assert BY_TEXT.target(entry.member) == (owner, sort)


@pytest.mark.parametrize(
    ("index", "key", "low"),
    [("text-due", 7, None), ("text-due", "x", "1"), ("count-text", "7", None), ("count-text", 7, 1)],
)
def test_a_value_of_another_kind_is_refused(index, key, low):
    way = PLAN.indexes.named(index)
    with pytest.raises(UsageError, match=f"index '{index}' is by"):
        way.key(key)
        way.bounds(Query(ENTRIES, key, low, index=index))


@pytest.mark.parametrize("item", [{"count": 2**53 + 1}, {"text": "x", "due": 10**400}])
def test_a_number_with_more_digits_than_a_float_has_is_refused(item):
    """Lua would round it, and then nothing would lead to the item."""
    with pytest.raises(UsageError, match=r"beyond 2\*\*53 keep it as text"):
        PLAN.planned_write(Put(ENTRIES, "a", {"text": "x", **item, **END}, None, "p"))


def test_what_cannot_be_compared_has_no_index():
    table = msgspec.structs.replace(ENTRIES, indexes=(Index(name="by-flag", partition="flag"),))
    with pytest.raises(UsageError, match="by 'flag', which holds flag"):
        RedisPlan(table, "p")


def test_an_index_may_be_by_the_sort_key():
    """Then every item is in it from the beginning, and no update moves it."""
    table = msgspec.structs.replace(NOTES, name="n", indexes=(Index(name="by-place", partition="place"),))
    plan = RedisPlan(table, "p")
    put = Put(table, "a", {"gone_at": 9}, None, "s")
    assert plan.indexes.touched(put)
    assert plan.planned_write(put).entries == (IndexEntry(b"p:n/by-place:{s}", '["a","s"]'),)
    assert not plan.indexes.touched(Update(table, "a", {"text": "x"}, sort="s"))
    assert plan.indexes.touched(Add(table, "a", "count", 1, {}, {"gone_at": 9}, None, "s"))


# What is entered


def told(step, manner=WriteSettings()):  # noqa: B008 - it is a value
    ask = write_command([step], None, manner)
    count = int(ask.rest[0])
    [order] = msgspec.msgpack.decode(ask.rest[1 + count])["writes"]
    return ask.rest[1 : 1 + count], order


def test_a_whole_item_that_lacks_an_attribute_of_an_index_is_not_entered_there():
    indexes, entry = RedisPlan(JOURNAL, "p").indexes, {"at": 1.5, "expires_at": 9}
    assert not indexes.touched(Put(JOURNAL, "dev//chat", entry, None, "01J"))
    assert not indexes.touched(Put(JOURNAL, "dev//chat", entry | {"actor": None}, None, "01J"))
    assert indexes.touched(Put(JOURNAL, "dev//chat", entry | {"actor": "dev//ann"}, None, "01J"))
    assert indexes.touched(Update(JOURNAL, "dev//chat", {"at": 2.5}, sort="01J"))


def test_a_claim_without_a_subject_costs_no_byte_more():
    """Nor does what becomes of it: as if the ledger had no index."""
    bare = msgspec.structs.replace(LEDGER, indexes=())
    opening = {"status": "IN_PROGRESS", "token": "t", "expires_at": After(9)}
    closing = {"status": "COMPLETED", "result": b"1", "expires_at": After(9)}

    def sent(table):
        plan = RedisPlan(table, "p")
        for write in (
            Put(table, "k", opening, ABSENT),
            Put(table, "k", opening | {"subject": None}),
            Update(table, "k", closing),
            Update(table, "k", {"subject": None}),
            Delete(table, "k"),
        ):
            assert not plan.indexes.touched(write)
            yield write_command([PlannedWrite(plan, write)], None, WriteSettings()).encode()

    assert list(sent(LEDGER)) == list(sent(bare))


def test_a_put_with_the_attributes_of_an_index_brings_its_entries_along():
    step = PLAN.planned_write(Put(ENTRIES, "a", {"text": "x", "due": 5, **END}, None, "s"))
    keys, order = told(step)
    assert keys == (
        b"p:conformance_entries:{a}:s",
        b"p:conformance_entries:{a}",
        b"p:conformance_entries/text-due:{x}",
        b"p:conformance_entries/text-due:{x}:ends",
        b"p:conformance_entries/text-due:{x}:doubts",
        b"p:conformance_entries/text:{x}",
        b"p:conformance_entries/text:{x}:ends",
        b"p:conformance_entries/text:{x}:doubts",
    )
    assert order["entries"] == [[3, in_order(5) + '\0\0["a","s"]'], [6, '["a","s"]']]
    assert order["entered"]
    assert "still" not in order


def test_entries_in_other_slots_are_made_before_and_are_not_in_the_run():
    step = PLAN.planned_write(Put(ENTRIES, "x", {"text": "x", "count": 7, **END}, None, "s"))
    manner = WriteSettings(cluster=True)
    keys, order = told(step, manner)
    assert keys[2:] == (
        b"p:conformance_entries/text:{x}",
        b"p:conformance_entries/text:{x}:ends",
        b"p:conformance_entries/text:{x}:doubts",
    )
    assert order["entered"]
    [ask] = index_commands([step], write_command([step], None, manner), None, manner)
    assert ask.key == b"p:conformance_entries/count-text:{7}"
    [order] = msgspec.msgpack.decode(ask.rest[4])["writes"]
    assert order == {
        "make": "enter",
        "expires": "gone_at",
        "set": {"gone_at": {"seconds": 9.0}},
        "entries": [[1, 'x\0\0["x","s"]']],
    }


@pytest.mark.parametrize(
    "write",
    [
        Update(ENTRIES, "a", {"due": 5}, sort="s"),
        Update(ENTRIES, "a", {"text": "x", "due": 5, "count": 1}, sort="s"),
        Add(ENTRIES, "a", "count", 1, {}, END, None, "s"),
        Add(ENTRIES, "a", "due", 1, {"text": "x", "due": 1, "count": 1, **END}, {}, None, "s"),
        Add(ENTRIES, "a", "due", 1, {}, {"text": "x", **END}, None, "s"),
    ],
    ids=["a part", "no end", "what is counted", "counted after all", "once"],
)
def test_a_write_that_does_not_tell_where_to_is_asked_first(write):
    assert PLAN.indexes.touched(write)
    step = PLAN.planned_write(write)
    assert (step.still, step.entries) == (NEVER, ())


FULL = {"text": "x", "due": None, "count": 7, **END}
VERSIONED = msgspec.structs.replace(ENTRIES, attributes=ENTRIES.attributes | {"version": Kind.NUMBER})


@pytest.mark.parametrize(
    "write",
    [
        Update(ENTRIES, "a", FULL, PRESENT, "s"),
        Add(VERSIONED, "a", "version", 1, FULL, {}, None, "s"),
    ],
    ids=["update", "add"],
)
def test_a_write_that_names_every_attribute_and_the_end_is_sure(write):
    step = RedisPlan(write.table, "p").planned_write(write)
    assert step.still is None
    assert [entry.member for entry in step.entries] == ['x\0\0["a","s"]', '["a","s"]']


def test_a_moment_by_which_an_item_is_found_is_told_beforehand():
    """The script that enters it and the one that writes it would each have a now of its own."""
    write = Put(ENTRIES, "a", {"text": "x", "due": NOW, **END}, None, "s")
    assert PLAN.indexes.undated(write)
    step = PLAN.planned_write(write, 50.0)
    assert step.write.item == {"text": "x", "due": 50.0, **END}
    assert step.entries[0].member == in_order(50) + '\0\0["a","s"]'
    add = Add(ENTRIES, "a", "count", 1, {"due": After(1)}, {"due": After(2), **END}, None, "s")
    dated = PLAN.indexes.dated(add, 50.0)
    assert (dated.set, dated.once) == ({"due": 51.0}, {"due": 52.0, **END})


def test_a_write_that_was_answered_with_its_item_is_made_if_that_has_not_moved():
    before = {"owner": "a", "place": "s", "text": "x", "gone_at": 90.0}
    step = PLAN.planned_write_from(Update(ENTRIES, "a", {"due": 5}, sort="s"), before, 50.0)
    assert [entry.key for entry in step.entries] == [
        b"p:conformance_entries/text-due:{x}",
        b"p:conformance_entries/text:{x}",
    ]
    assert step.end == 90.0
    assert step.still == (
        "all",
        [("equals", "text", "x"), ("lacks", "due"), ("lacks", "count"), ("equals", "gone_at", 90.0)],
    )
    absent = PLAN.planned_write_from(Add(ENTRIES, "a", "count", 1, {"text": "x"}, END, None, "s"), None, 50.0)
    assert absent.still == ("absent",)
    assert absent.end == 59.0
    assert len(absent.entries) == 2


def test_an_item_that_leaves_every_index_has_nothing_kept_for_it():
    before = {"owner": "a", "place": "s", "due": 5, "gone_at": 90.0}
    _, order = told(PLAN.planned_write_from(Update(ENTRIES, "a", {"gone_at": 500.0}, sort="s"), before, 50.0))
    assert order["gone"] == ["@"]
    assert "entered" not in order


def test_an_item_whose_place_cannot_be_read_is_reported():
    before = {"owner": "a", "place": "s", "due": b"soon", "gone_at": 90.0}
    with pytest.raises(RecordCorrupt, match="'due' is no number"):
        PLAN.planned_write_from(Update(ENTRIES, "a", {"text": "x"}, sort="s"), before, 50.0)
    assert not BY_TIME.leads_to(before | {"text": "x"}, IndexEntry(b"k", "m"))


def test_what_the_script_keeps_in_an_item_is_nobodys_attribute():
    assert PLAN.item([b"text", b"x", b"@", b"43290"], "a", "s") == {"owner": "a", "place": "s", "text": "x"}


@pytest.mark.seed("H1")
@pytest.mark.seed("H8")
def test_the_indexes_of_the_seeds_can_be_kept():
    activity = Put(ACTIVITIES, "dev//chat", {"userId": 7, "timestamp": 1.5}, None, "01J")
    assert RedisPlan(ACTIVITIES, "p").planned_write(activity).entries[0].key == (
        b"p:household-activities/userId-timestamp-index:{7}"
    )
    entry = Put(JOURNAL, "dev//chat", {"actor": "dev//ann", "at": 1.5, "expires_at": 9}, None, "01J")
    assert [each.key for each in RedisPlan(JOURNAL, "p").planned_write(entry).entries] == [
        b"p:journal/actor-at:{dev//ann}"
    ]
