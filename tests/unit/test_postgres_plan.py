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
    AllOf,
    AnyOf,
    Applied,
    AtMost,
    Begins,
    Delete,
    Equals,
    Get,
    OneOf,
    Past,
    Put,
    Query,
    Refused,
    Update,
    cursor,
)
from semel.errors import UsageError
from semel.stores.postgres.conditions import Clauses, shape_of
from semel.stores.postgres.layout import PostgresLayout
from semel.stores.postgres.plan import PostgresPlan
from semel.stores.postgres.values import Parameters, array, number, text
from semel.stores.postgres.writes import REFUSED
from semel.tables import JOURNAL, LEDGER, Index, Kind, Table
from semel.testing.conformance import ENTRIES, LINES, NOTES, THINGS

ITEM = {"text": "new", "gone_at": After(60)}


@pytest.fixture
def plan():
    return PostgresPlan(THINGS)


def sql(plan, command):
    return plan.write(command)[0].one.decode()


# One statement for every shape


def test_commands_of_one_shape_share_a_statement(plan):
    """Whatever their keys and values: so the driver prepares it, and the server plans it, once."""
    first, values = plan.write(Put(THINGS, "a", ITEM, Equals("text", "x")))
    second, others = plan.write(Put(THINGS, "b", {"text": "old", "gone_at": After(5)}, Equals("text", "y")))
    assert first is second
    assert values == ["a", "new", 60.0, "x"]
    assert others == ["b", "old", 5.0, "y"]


@pytest.mark.parametrize(
    "other",
    [
        Put(THINGS, "a", {"text": "new", "gone_at": 60.0}, ABSENT),
        Put(THINGS, "a", {"text": None, "gone_at": After(60)}, ABSENT),
        Put(THINGS, "a", ITEM | {"count": 1}, ABSENT),
        Put(THINGS, "a", ITEM, PRESENT),
        Put(THINGS, "a", ITEM),
        Update(THINGS, "a", ITEM),
        Delete(THINGS, "a"),
    ],
)
def test_commands_of_other_shapes_do_not(plan, other):
    assert plan.write(Put(THINGS, "a", ITEM, ABSENT))[0].one != plan.write(other)[0].one


def test_no_value_is_part_of_the_text(plan):
    secret = "'; DROP TABLE semel_ledger; --"
    for command in (
        Put(THINGS, secret, {"text": secret, "gone_at": 1, "tags": {secret}, "object": {secret: secret}}),
        Update(THINGS, secret, {"text": secret}, OneOf("text", (secret, "x"))),
        Delete(THINGS, secret, AllOf((Begins("text", secret), Equals("text", secret)))),
    ):
        assert "DROP" not in sql(plan, command)


def test_names_are_quoted():
    odd = Table(name='o"dd', partition='k"ey', attributes={'a"b': Kind.TEXT}, expires="gone")
    template, _ = PostgresPlan(odd, 's"chema').write(Put(odd, "k", {'a"b': "x", "gone": 1}, ABSENT))
    assert '"s""chema"."semel_o""dd"' in template.one.decode()
    assert '"a""b"' in template.one.decode()
    assert '"k""ey" text COLLATE "C" NOT NULL' in PostgresLayout(odd).definition()


def test_the_time_is_read_once(plan):
    for command in (
        Put(THINGS, "a", {"due": NOW, "gone_at": After(60)}, AnyOf((ABSENT, Past("due")))),
        Add(THINGS, "a", "count", 1, {"due": NOW}, {"gone_at": After(1)}),
    ):
        assert sql(plan, command).count("clock_timestamp()") == 1


def test_a_refusal_that_can_be_read_locks_nothing(plan):
    """To insert where a row is would be to wait for whoever is changing it."""
    statement = sql(plan, Put(THINGS, "a", ITEM, ABSENT))
    assert "INSERT" in statement
    assert "WHERE NOT EXISTS" in statement
    assert "FOR UPDATE" not in statement


def test_what_needs_an_item_never_makes_one(plan):
    for command in (
        Put(THINGS, "a", ITEM, PRESENT),
        Put(THINGS, "a", ITEM, Equals("text", "x")),
        Update(THINGS, "a", {"text": "x"}, AnyOf((ABSENT, PRESENT))),
        Add(THINGS, "a", "count", 1, {}, {"gone_at": 1}, PRESENT),
    ):
        assert "INSERT" not in sql(plan, command)


# Conditions


@pytest.mark.parametrize(
    ("condition", "clause", "values"),
    [
        (ABSENT, "FALSE", []),
        (PRESENT, "TRUE", []),
        (Equals("text", "a"), 'o."text" = v.p0', ["a"]),
        (Equals("count", 1), 'o."count" = v.p0', [1.0]),
        (Equals("text", 1), "FALSE", []),
        (Equals("nowhere", "a"), "FALSE", []),
        (OneOf("text", ("a", 2, "b")), '(o."text" = v.p0 OR FALSE OR o."text" = v.p1)', ["a", "b"]),
        (OneOf("text", ()), "FALSE", []),
        (AtMost("count", 5), 'coalesce(o."count", 0) <= v.p0', [5.0]),
        (AtMost("nowhere", 5), "0 <= v.p0", [5.0]),
        (Past("due"), 'o."due" <= n.now', []),
        (Past("nowhere"), "FALSE", []),
        (Begins("text", "ab"), '(o."text" >= v.p0 AND starts_with(o."text", v.p0))', ["ab"]),
        (Begins("count", "ab"), "FALSE", []),
        (AllOf((PRESENT, Equals("text", "a"))), '(TRUE AND o."text" = v.p0)', ["a"]),
        (AnyOf((Equals("count", 1), AllOf(()))), '(o."count" = v.p0 OR TRUE)', [1.0]),
        (AnyOf(()), "FALSE", []),
    ],
)
def test_a_condition_as_a_clause(condition, clause, values):
    given: list = []
    shape = shape_of(condition, given)
    parameters = Parameters()
    assert Clauses(THINGS.kinds, parameters).write(shape) == clause
    assert [convert(given[place]) for _, place, convert in parameters.sources if convert] == values


def test_a_listing_repeats_the_words_of_its_index():
    """The server has to see that a value is not the usual one, which the index leaves out."""
    ledger = PostgresPlan(LEDGER)
    [index] = [line for name, line in PostgresLayout(LEDGER).indexes().items() if "status" in name]
    words = re.search(r"WHERE (.*);", index)
    assert words
    statement, _ = ledger.query(Query(LEDGER, where=Equals("status", "FAILED")), None)
    assert f"o.{words[1]}" in statement.decode()
    statement, _ = ledger.query(Query(LEDGER, where=Equals("status", "COMPLETED")), None)
    assert words[1] not in statement.decode()


def test_what_cannot_be_compared_is_refused(plan):
    for attribute, value in (("object", {"a": 1}), ("tags", {"a"})):
        with pytest.raises(UsageError, match="no condition compares"):
            plan.write(Delete(THINGS, "a", Equals(attribute, value)))  # type: ignore[arg-type]


# Pages


def test_a_page_of_an_index_has_its_partition_its_bounds_and_its_order():
    entries = PostgresPlan(ENTRIES)
    query = Query(ENTRIES, "x", low=1, high=2, index="text-due", reverse=True)
    statement, values = entries.query(query, None)
    text = statement.decode()
    for clause in ('o."text" = v.p0', 'o."due" >= v.p1', 'o."due" <= v.p2', 'o."due" IS NOT NULL'):
        assert clause in text
    assert 'ORDER BY o."due" DESC, o."owner" DESC, o."place" DESC' in text
    assert values == [None, "x", 1.0, 2.0, 101]
    assert '"owner" = ' not in text


def test_a_page_of_an_index_goes_on_after_its_cursor():
    entries = PostgresPlan(ENTRIES)
    row = {"owner": "o", "place": "p", "due": 30.5, "text": "x", "gone_at": 1}
    after = cursor(ENTRIES, row, ENTRIES.index("text-due"))
    statement, values = entries.query(Query(ENTRIES, "x", index="text-due", after=after), None)
    assert '(o."due", o."owner", o."place") > (v.p1, v.p2, v.p3)' in statement.decode()
    assert values == [None, "x", 30.5, "o", "p", 101]


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


def test_a_write_of_several_fails_where_it_is_refused(plan):
    """Its statement has no way to go on when it has written nothing."""
    for command in (
        Put(THINGS, "a", ITEM, ABSENT),
        Update(THINGS, "a", {"text": "x"}, Equals("text", "y")),
        Add(THINGS, "a", "count", 1, {}, {"gone_at": 1}),
        Delete(THINGS, "a"),
    ):
        template, _ = plan.write(command)
        statement = template.or_fail.decode()
        assert f"THEN '{REFUSED}' ELSE '1' END)::int" in statement
        assert REFUSED not in template.one.decode()
        assert "pg_notify" in statement
        assert statement.count("transaction_timestamp()") == 1


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
        Delete(THINGS, "a", Equals("text", value)),
    ):
        with pytest.raises(UsageError):
            plan.write(command)


def test_a_word_of_an_enum_is_its_value():
    class Colour(StrEnum):
        RED = "rouge"

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
        plan.write(Put(THINGS, "a", item))


def test_a_key_of_another_kind_is_refused():
    with pytest.raises(UsageError, match="'number' holds number"):
        PostgresPlan(LINES).write(Put(LINES, "a", {}, None, "1"))
    with pytest.raises(UsageError, match="'place' holds text, not NoneType"):
        PostgresPlan(NOTES).get(Get(NOTES, "a"), None)
    with pytest.raises(UsageError, match="'place' holds text, not int"):
        PostgresPlan(NOTES).query(Query(NOTES, "a", low=1), None)


def test_an_item_that_may_stay_stays():
    statement = PostgresPlan(LINES).write(Put(LINES, "a", {"text": "x"}, None, 1))[0].one.decode()
    assert "'Infinity'::float8" in statement


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
    assert plan.reply(Put(THINGS, "a", ITEM), (5.0, False, None, *row(plan))) == Applied(5.0)
    added = plan.reply(
        Add(THINGS, "a", "count", 1, {}, {}), (5.0, False, None, *row(plan, id="a", gone_at=9.5, count=3.0))
    )
    assert added == Applied(5.0, {"id": "a", "gone_at": 9.5, "count": 3})


def test_a_refusal_has_what_was_in_the_way(plan):
    there = row(plan, id="a", gone_at=9.5, text="old")
    refused = plan.reply(Put(THINGS, "a", ITEM, ABSENT), (5.0, None, None, *there))
    assert refused == Refused(5.0, {"id": "a", "gone_at": 9.5, "text": "old"})
    assert plan.reply(Update(THINGS, "a", {}), (5.0, None, None, *row(plan))) == Refused(5.0, None)


def test_what_would_allow_a_write_did_not_refuse_it(plan):
    """It was changed since it was read: there is no reply, and the statement is sent again."""
    assert plan.reply(Put(THINGS, "a", ITEM, ABSENT), (5.0, None, None, *row(plan))) is None
    there = row(plan, id="a", gone_at=9.5, text="old")
    assert plan.reply(Update(THINGS, "a", {}, Equals("text", "old")), (5.0, None, None, *there)) is None


def test_an_addition_that_would_begin_an_item_without_an_end_is_refused(plan):
    add = Add(THINGS, "a", "count", 1, {}, {})
    assert "INSERT" not in sql(plan, add)
    with pytest.raises(UsageError, match="gone_at"):
        plan.reply(add, (5.0, None, None, *row(plan)))
    with pytest.raises(UsageError, match="no number 'text'"):
        plan.write(Add(THINGS, "a", "text", 1, {}, {}))


# Many at once


def test_what_many_commands_share_is_sent_once(plan):
    writes = [Put(THINGS, key, ITEM | {"count": number}, ABSENT) for number, key in enumerate("bac")]
    prepared = [plan.write(write) for write in writes]
    statement, values = prepared[0][0].many(7.0, [values for _, values in prepared])
    assert values == [7.0, ["b", "a", "c"], "new", 60.0, [0.0, 1.0, 2.0]]
    assert b'ORDER BY x.a2::text COLLATE "C"' in statement
    again, _ = prepared[0][0].many(None, [values for _, values in prepared[:2]])
    assert again is statement


def test_the_rows_of_many_are_told_apart_by_their_keys(plan):
    writes = [Put(THINGS, key, ITEM, ABSENT) for key in ("new", "there", "raced")]
    there = (5.0, None, None, *row(plan, id="there", gone_at=9.5))
    made = (5.0, True, True, *row(plan, id="new"))
    nothing = (5.0, None, None, *row(plan))
    assert plan.answers(writes, [there, made, nothing]) == [made, there, nothing]


def test_numbers_find_their_rows():
    lines = PostgresPlan(LINES)
    write = Update(LINES, "a", {"text": "x"}, PRESENT, 9)
    made = (5.0, False, None, "a", 9.0, *[None] * (len(lines._columns) - 2))
    assert lines.answers([write], [made]) == [made]


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
