"""PostgreSQL's pure half: commands as statements, rows as items."""

import math
import re
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.commands import (
    ABSENT,
    NOW,
    PRESENT,
    Add,
    After,
    Applied,
    Delete,
    Get,
    Put,
    Query,
    Refused,
    Update,
    cursor,
)
from semel.errors import UsageError
from semel.stores.postgres.schema import PostgresLayout
from semel.stores.postgres.statements import REFUSED, PostgresPlan, array, number, text
from semel.tables import JOURNAL, LEDGER, Index, Kind, Table
from semel.testing.conformance import ENTRIES, LINES, NOTES, THINGS

ITEM = {"text": "new", "gone_at": After(60)}


@pytest.fixture
def plan():
    return PostgresPlan(THINGS)


def sql(plan, command):
    return plan.write(command, None)[0].decode()


# One statement for every shape


def test_commands_of_one_shape_share_a_statement(plan):
    """Whatever their keys and values: so it is prepared, and the server plans it, once."""
    first, values = plan.write(Put(THINGS, "a", ITEM, {"text": "x"}), 5.0)
    second, others = plan.write(
        Put(THINGS, "b", {"text": "old", "gone_at": After(5)}, {"text": "y"}), None, True
    )
    assert first is second
    assert values == [5.0, False, "a", "new", 60.0, "x"]
    assert others == [None, True, "b", "old", 5.0, "y"]


@pytest.mark.parametrize(
    "other",
    [
        Put(THINGS, "a", {"text": "new", "gone_at": 60.0}, ABSENT),
        Put(THINGS, "a", ITEM | {"count": 1}, ABSENT),
        Put(THINGS, "a", ITEM, PRESENT),
        Put(THINGS, "a", ITEM, {"text": "new"}),
        Put(THINGS, "a", ITEM),
        Update(THINGS, "a", ITEM),
        Delete(THINGS, "a"),
    ],
)
def test_commands_of_other_shapes_do_not(plan, other):
    assert sql(plan, Put(THINGS, "a", ITEM, ABSENT)) != sql(plan, other)


class Colour(StrEnum):
    RED = "rouge"


@pytest.mark.parametrize("value", ["x", "", None, Colour.RED])
def test_the_text_depends_on_names_and_not_on_values(plan, value):
    """Nor on whether there is a value: what is removed, or expected to be missing, is NULL."""
    usual = Update(THINGS, "a", {"text": "x"}, {"text": "x"})
    other = Update(THINGS, "a", {"text": value}, {"text": value})
    assert sql(plan, usual) == sql(plan, other)
    assert plan.write(other, None)[1][3:] == [value, value]


def test_no_value_is_part_of_the_text(plan):
    secret = "'; DROP TABLE semel_ledger; --"
    for command in (
        Put(THINGS, secret, {"text": secret, "gone_at": 1, "tags": {secret}, "object": {secret: secret}}),
        Update(THINGS, secret, {"text": secret}, {"text": secret}),
        Delete(THINGS, secret, {"text": secret}),
    ):
        assert "DROP" not in sql(plan, command)
    assert b"DROP" not in plan.query(Query(THINGS, prefix=secret, equal={"text": secret}), None)[0]


def test_names_are_quoted():
    odd = Table(name='o"dd', partition='k"ey', attributes={'a"b': Kind.TEXT}, expires="gone")
    statement = sql(PostgresPlan(odd, 's"chema'), Put(odd, "k", {'a"b': "x", "gone": 1}, ABSENT))
    assert '"s""chema"."semel_o""dd"' in statement
    assert '"a""b"' in statement
    assert '"k""ey" text COLLATE "C" NOT NULL' in PostgresLayout(odd).definition()


def test_the_time_is_read_once(plan):
    for command in (
        Put(THINGS, "a", {"due": NOW, "gone_at": After(60)}, ABSENT),
        Put(THINGS, "a", {"due": NOW, "gone_at": After(60)}, {"due": 1}),
        Add(THINGS, "a", "count", 1, {"due": NOW, "gone_at": After(1)}),
    ):
        assert sql(plan, command).count("clock_timestamp()") == 1


def test_a_refusal_that_can_be_read_locks_nothing(plan):
    """To insert where a row is would be to wait for the writer that is changing it."""
    statement = sql(plan, Put(THINGS, "a", ITEM, ABSENT))
    assert "INSERT" in statement
    assert "WHERE NOT EXISTS" in statement
    assert "FOR UPDATE" not in statement


def test_what_needs_an_item_never_makes_one(plan):
    for command in (
        Put(THINGS, "a", ITEM, PRESENT),
        Put(THINGS, "a", ITEM, {"text": "x"}),
        Update(THINGS, "a", {"text": "x"}),
        Add(THINGS, "a", "count", -1, {"gone_at": 1}),
        Add(THINGS, "a", "count", 3, {"gone_at": 1}, cap=2),
        Add(THINGS, "a", "count", 1, {}),
    ):
        assert "INSERT" not in sql(plan, command)


def test_what_is_expected_is_compared_also_where_it_is_missing(plan):
    statement, values = plan.write(Delete(THINGS, "a", {"text": "x", "count": None, "flag": False}), None)
    for name, sent in (("text", "$4::text"), ("count", "$5::float8"), ("flag", "$6::bool")):
        assert f'o."{name}" IS NOT DISTINCT FROM {sent}' in statement.decode()
    assert values[3:] == ["x", None, False]


def test_a_cap_is_compared_with_the_sum(plan):
    statement, values = plan.write(Add(THINGS, "a", "count", 2, {"gone_at": 9}, cap=5), None)
    assert 'WHERE coalesce(o."count", 0) + $5::float8 <= $6::float8' in statement.decode()
    assert values[3:] == [9.0, 2.0, 5.0]


def test_an_addition_leaves_the_end_of_an_item_alone(plan):
    for by in (1, -1):
        [changes] = re.findall(r" SET (.*)", sql(plan, Add(THINGS, "a", "count", by, {"gone_at": 9})))
        assert "gone_at" not in changes


# Reading


def test_a_listing_repeats_the_words_of_its_index():
    """The server has to see that a value is not the usual one, which the index leaves out."""
    ledger = PostgresPlan(LEDGER)
    [index] = [line for name, line in PostgresLayout(LEDGER).indexes().items() if "status" in name]
    words = re.search(r"WHERE (.*);", index)
    assert words
    statement, _ = ledger.query(Query(LEDGER, equal={"status": "FAILED"}), None)
    assert f"o.{words[1]}" in statement.decode()
    statement, _ = ledger.query(Query(LEDGER, equal={"status": "COMPLETED"}), None)
    assert words[1] not in statement.decode()


def test_what_cannot_be_compared_is_refused(plan):
    unfit: tuple[tuple[str, object], ...] = (("object", {"a": 1}), ("tags", {"a"}))
    for attribute, value in unfit:
        with pytest.raises(UsageError, match="no write compares"):
            plan.write(Delete(THINGS, "a", {attribute: value}), None)
    for name, other in (("nowhere", None), ("nowhere", "x"), ("text", 1)):
        with pytest.raises(UsageError, match=name):
            plan.write(Delete(THINGS, "a", {name: other}), None)


# Pages


def test_a_page_of_an_index_has_its_partition_its_bounds_and_its_order():
    entries = PostgresPlan(ENTRIES)
    query = Query(ENTRIES, "x", low=1, high=2, index="text-due", reverse=True)
    statement, values = entries.query(query, None)
    text = statement.decode()
    for clause in (
        'o."text" = $3::text',
        'o."due" >= $4::float8',
        'o."due" <= $5::float8',
        'o."due" IS NOT NULL',
    ):
        assert clause in text
    assert 'ORDER BY o."due" DESC, o."owner" DESC, o."place" DESC' in text
    assert values == [None, False, "x", 1.0, 2.0, "101"]
    assert '"owner" = ' not in text


def test_a_page_of_an_index_goes_on_after_its_cursor():
    entries = PostgresPlan(ENTRIES)
    row = {"owner": "o", "place": "p", "due": 30.5, "text": "x", "gone_at": 1}
    after = cursor(ENTRIES, row, ENTRIES.index("text-due"))
    statement, values = entries.query(Query(ENTRIES, "x", index="text-due", after=after), None)
    assert '(o."due", o."owner", o."place") > ($4::float8, $5::text, $6::text)' in statement.decode()
    assert values == [None, False, "x", 30.5, "o", "p", "101"]


def test_each_index_has_a_statement_of_its_own():
    entries = PostgresPlan(ENTRIES)
    texts = {entries.query(Query(ENTRIES, "x", index=index), None)[0] for index in ("", "text", "text-due")}
    assert len(texts) == 3


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"key": 1, "index": "text-due"}, "'text' holds text, not int"),
        ({"key": "x", "index": "count-text"}, "'count' holds number, not str"),
        ({"key": "x", "index": "text-due", "low": "a"}, "'due' holds number, not str"),
    ],
)
def test_a_query_of_another_kind_is_refused(asked, message):
    with pytest.raises(UsageError, match=message):
        PostgresPlan(ENTRIES).query(Query(ENTRIES, **asked), None)


# All or none


def test_a_write_of_several_fails_if_it_is_refused(plan):
    """Then its reply is no boolean, which is an error, and the server undoes them all."""
    for command in (
        Put(THINGS, "a", ITEM, ABSENT),
        Put(THINGS, "a", ITEM),
        Update(THINGS, "a", {"text": "x"}, {"text": "y"}),
        Add(THINGS, "a", "count", 1, {"gone_at": 1}),
        Delete(THINGS, "a"),
    ):
        statement = sql(plan, command)
        assert f"WHEN $2 THEN '{REFUSED}' ELSE 'false' END)::bool" in statement
        assert "pg_notify" in statement


# Values


@pytest.mark.parametrize("value", [0, -1, 2**53, 0.1, 1e300, math.inf, True])
def test_a_number_is_kept_exactly(value):
    assert number(value) == value
    assert type(number(value)) is float


@pytest.mark.parametrize("value", [2**53 + 1, -(2**64) - 1, 10**400, math.nan])
def test_a_number_that_would_change_is_refused(value):
    with pytest.raises(UsageError):
        number(value)


@pytest.mark.parametrize("value", ["a\0b", "\ud800", "a\udfff"])
def test_a_text_that_cannot_be_kept_is_refused_before_anything_is_sent(plan, value):
    with pytest.raises(UsageError):
        text(value)
    for command in (
        Put(THINGS, value, ITEM),
        Put(THINGS, "a", ITEM | {"text": value}),
        Put(THINGS, "a", ITEM | {"tags": {value}}),
        Delete(THINGS, "a", {"text": value}),
    ):
        with pytest.raises(UsageError):
            plan.write(command, None)


def test_a_word_of_an_enum_is_its_value():
    assert type(text(Colour.RED)) is str
    assert text(Colour.RED) == "rouge"


@given(st.sets(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")), max_size=5))
def test_a_set_is_one_text_whatever_is_in_it(texts):
    """Between quotes only a quote and a backslash mean anything but themselves."""
    written = array(texts)
    assert (written is None) is (not texts)
    if written is None:
        return
    found = re.findall(r'"((?:[^"\\]|\\.)*)"', written[1:-1], re.DOTALL)
    assert {re.sub(r"\\(.)", r"\1", each, flags=re.DOTALL) for each in found} == texts


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"nowhere": 1, "gone_at": 1}, "has no attribute 'nowhere'; it has id, gone_at, text"),
        ({"text": 1, "gone_at": 1}, "'text' holds text, not int"),
        ({"text": After(1), "gone_at": 1}, "'text' holds text, not After"),
        ({"count": "1", "gone_at": 1}, "'count' holds number, not str"),
        ({"text": "endless"}, "needs the attribute 'gone_at'"),
        ({"gone_at": None}, "needs the attribute 'gone_at'"),
        ({"object": {"a": {1, 2}, "b": object()}, "gone_at": 1}, "not an object"),
    ],
)
def test_an_item_that_does_not_fit_is_refused(plan, item, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        plan.write(Put(THINGS, "a", item), None)


def test_a_key_of_another_kind_is_refused():
    with pytest.raises(UsageError, match="'number' holds number"):
        PostgresPlan(LINES).write(Put(LINES, "a", {}, sort="1"), None)
    with pytest.raises(UsageError, match="'place' holds text, not NoneType"):
        PostgresPlan(NOTES).get(Get(NOTES, "a"), None)
    with pytest.raises(UsageError, match="'place' holds text, not int"):
        PostgresPlan(NOTES).query(Query(NOTES, "a", low=1), None)


def test_an_item_that_may_stay_stays():
    for item in ({"text": "x"}, {"text": "x", "gone_at": None}):
        assert "'Infinity'::float8" in sql(PostgresPlan(LINES), Put(LINES, "a", item, sort=1))


def row(plan, **attributes):
    return tuple(attributes.get(name) for name in plan._columns)


def test_a_row_as_an_item(plan):
    """What is a whole number comes back as one; what is NULL is not there."""
    found = plan.item(
        row(
            plan,
            id="a",
            gone_at=math.inf,
            count=2.0,
            due=0.5,
            object='{"a":[1]}',
            tags=["x", "y"],
            flag=False,
        )
    )
    assert found == {
        "id": "a",
        "gone_at": math.inf,
        "count": 2,
        "due": 0.5,
        "object": {"a": [1]},
        "tags": {"x", "y"},
        "flag": False,
    }
    assert type(found["count"]) is int
    assert plan.item(row(plan)) is None


# Replies


def test_a_write_that_was_made(plan):
    assert plan.reply(Put(THINGS, "a", ITEM), (5.0, True, None, row(plan))) == Applied(5.0)
    added = plan.reply(
        Add(THINGS, "a", "count", 1, {}), (5.0, True, None, row(plan, id="a", gone_at=9.5, count=3.0))
    )
    assert added == Applied(5.0, {"id": "a", "gone_at": 9.5, "count": 3})


def test_a_refusal_has_what_was_in_the_way(plan):
    there = row(plan, id="a", gone_at=9.5, text="old")
    refused = plan.reply(Put(THINGS, "a", ITEM, ABSENT), (5.0, False, None, there))
    assert refused == Refused(5.0, {"id": "a", "gone_at": 9.5, "text": "old"})
    assert plan.reply(Update(THINGS, "a", {}), (5.0, False, None, row(plan))) == Refused(5.0, None)


def test_what_would_allow_a_write_did_not_refuse_it(plan):
    """It was changed since it was read: there is no reply, and the statement is sent again."""
    assert plan.reply(Put(THINGS, "a", ITEM, ABSENT), (5.0, False, None, row(plan))) is None
    there = row(plan, id="a", gone_at=9.5, text="old")
    assert plan.reply(Update(THINGS, "a", {}, {"text": "old"}), (5.0, False, None, there)) is None


def test_an_addition_that_would_begin_an_item_without_an_end_is_refused(plan):
    add = Add(THINGS, "a", "count", 1, {})
    assert "INSERT" not in sql(plan, add)
    with pytest.raises(UsageError, match="gone_at"):
        plan.reply(add, (5.0, False, None, row(plan)))
    with pytest.raises(UsageError, match="no number 'text'"):
        plan.write(Add(THINGS, "a", "text", 1, {}), None)


# PostgresLayout


@pytest.mark.parametrize("table", [LEDGER, THINGS, NOTES, LINES])
def test_texts_compare_by_their_bytes(table):
    """On a server of any language: a key is bytes, and a page goes on where the one before ended."""
    for line in PostgresLayout(table).definition().splitlines():
        if re.search(r'^ +"\w+" text\b(?!\[)', line):
            assert 'COLLATE "C"' in line
    assert re.search(r'"(id|owner)" text COLLATE "C" NOT NULL', PostgresLayout(table).definition())


def test_the_end_of_a_life_is_indexed():
    assert '("gone_at")' in PostgresLayout(THINGS).indexes()["semel_conformance_things_gone_at"]


def test_an_index_has_only_rows_that_have_its_attributes():
    """So a claim that names nobody costs nothing for being found by nobody's name."""
    subject = PostgresLayout(LEDGER).indexes()["semel_ledger_subject"]
    assert subject.endswith('("subject", "id") WHERE "subject" IS NOT NULL;')
    both = PostgresLayout(JOURNAL).indexes()["semel_journal_actor-at"]
    assert '("actor", "at", "owner", "entry") WHERE "actor" IS NOT NULL AND "at" IS NOT NULL;' in both


def test_an_index_over_the_key_has_every_row():
    """What is always there needs no mention."""
    table = Table(
        name="t",
        partition="a",
        sort="b",
        attributes={"c": Kind.TEXT},
        expires="gone",
        indexes=(Index(name="swapped", partition="b", sort="a"), Index(name="c", partition="c", sort="b")),
    )
    assert PostgresLayout(table).indexes()["semel_t_swapped"].endswith('("b", "a");')
    assert PostgresLayout(table).indexes()["semel_t_c"].endswith('("c", "b", "a") WHERE "c" IS NOT NULL;')


def test_names_longer_than_postgresql_keeps_are_cut_here():
    long = Table(name="n" * 60, partition="id", attributes={}, expires="gone_at")
    assert all(len(name) <= 63 for name in PostgresLayout(long).indexes())
