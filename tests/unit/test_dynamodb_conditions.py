"""Conditions as expressions: the text for each, made once, and right for defaults, forms and spellings."""

import re

import pytest

from semel.core.commands import (
    ABSENT,
    PRESENT,
    AllOf,
    AnyOf,
    AtMost,
    Begins,
    Condition,
    Equals,
    OneOf,
    Past,
)
from semel.errors import UsageError
from semel.stores.dynamodb.conditions import Conditions, Guard, both, either
from semel.stores.dynamodb.layout import DynamoLayout
from semel.stores.dynamodb.time import ClockReading
from semel.tables import LEDGER, Table
from semel.tables.powertools import POWERTOOLS
from semel.tables.seeds import QUILL, SUPPORT_EVENTS

NOW = ClockReading(1_700_000_000.5, 1_700_000_001.5)


def written(
    condition: Condition | None, use="write", kept: Table = LEDGER, keys: tuple[str, ...] = ()
) -> tuple[str, dict]:
    """An expression as it reads with its names and values filled in."""
    layout = DynamoLayout(LEDGER, kept, "test")
    fields = tuple(layout.fields[key] for key in keys)
    guard, values = Conditions(layout).guard(condition, use, NOW, fields)
    filled = guard.filled(values, NOW)
    assert set(guard.names) | set(filled) == set(re.findall(r"[#:]\w+", guard.text))
    text = re.sub(r"#\w+", lambda found: guard.names[found[0]], guard.text)
    return re.sub(r":\w+", lambda found: next(iter(filled[found[0]].values())), text), filled


ALIVE = "attribute_exists(id) AND (attribute_not_exists(expires_at) OR expires_at > 1700000000.5)"
GONE = "attribute_not_exists(id) OR expires_at <= 1700000000.5"


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (None, ""),
        (ABSENT, GONE),
        (PRESENT, ALIVE),
        (AnyOf((ABSENT, PRESENT)), ""),
        (AllOf((ABSENT, PRESENT)), "attribute_exists(id) AND attribute_not_exists(id)"),
        (Equals("token", "t"), f"{ALIVE} AND token = t"),
        (OneOf("status", ("A", "B")), f"{ALIVE} AND status IN (A, B)"),
        (OneOf("status", ()), "attribute_exists(id) AND attribute_not_exists(id)"),
        (AtMost("attempt", 2), f"{ALIVE} AND (attempt <= 2 OR attribute_not_exists(attempt))"),
        (AtMost("attempt", -1), f"{ALIVE} AND attempt <= -1"),
        (Past("lease_until"), f"{ALIVE} AND lease_until <= 1700000000.5"),
        (Begins("error", "x"), f"{ALIVE} AND begins_with(error, x)"),
        (Begins("error", ""), f"{ALIVE} AND attribute_exists(error)"),
        (AnyOf((ABSENT, Equals("status", "R"))), f"{GONE} OR status = R"),
        (AnyOf((PRESENT, Equals("status", "R"))), ALIVE),
        (
            AllOf((Equals("token", "t"), AnyOf((Past("lease_until"), Equals("status", "R"))))),
            f"{ALIVE} AND token = t AND (lease_until <= 1700000000.5 OR status = R)",
        ),
        (
            AnyOf((AllOf((Equals("token", "t"), Equals("status", "R"))), ABSENT)),
            f"{GONE} OR token = t AND status = R",
        ),
    ],
)
def test_a_write_that_may_make_an_item(condition: Condition | None, text: str) -> None:
    """An item that is over counts as absent in the very condition; no bracket is superfluous."""
    assert written(condition)[0] == text


@pytest.mark.parametrize("condition", [PRESENT, AnyOf((ABSENT, PRESENT))])
def test_a_change_needs_an_item_whatever_it_asks(condition: Condition) -> None:
    assert written(condition, "change")[0] == ALIVE


def test_an_addition_passes_over_what_is_over() -> None:
    """It counts on from what is alive and makes what is not there; an expired item is for another request."""
    living = "attribute_not_exists(expires_at) OR expires_at > 1700000000.5"
    assert written(None, "add")[0] == living
    assert written(ABSENT, "add")[0] == "attribute_not_exists(id)"
    assert written(PRESENT, "add")[0] == ALIVE
    within = AnyOf((ABSENT, AtMost("attempt", 2)))
    assert written(within, "add")[0] == (
        f"attribute_not_exists(id) OR ({living}) AND (attempt <= 2 OR attribute_not_exists(attempt))"
    )


def test_filters_do_not_name_keys_where_they_may_not() -> None:
    """A Query's filter may not; a Scan's may, and leaves the table's stamp out."""
    living = "attribute_not_exists(expires_at) OR expires_at > 1700000000.5"
    where = AllOf((Begins("id", "test//"), Equals("status", "X")))
    assert written(where, "query", keys=("id",))[0] == f"({living}) AND status = X"
    assert written(where, "scan", keys=("id",))[0] == (
        f"({living}) AND id <> semel:environment AND begins_with(id, test//) AND status = X"
    )
    assert written(None, "query", keys=("id",))[0] == living


def test_filters_of_an_index_name_the_tables_key_and_not_its_own() -> None:
    """Nor the end, where that is part of it: then what is over is left out after it has come."""
    where = AllOf((Begins("id", "test//"), Equals("subject", "you")))
    living = "attribute_not_exists(expires_at) OR expires_at > 1700000000.5"
    assert written(where, "query", keys=("subject",))[0] == f"({living}) AND begins_with(id, test//)"
    assert written(where, "query", keys=("subject", "expires_at"))[0] == "begins_with(id, test//)"
    assert written(None, "query", keys=("subject", "expires_at"))[0] == ""


def test_what_lacks_an_attribute_means_its_default() -> None:
    """As a mark that somebody else wrote: completed, with no token, at its first attempt, until its end."""
    alive = "attribute_exists(pk) AND (attribute_not_exists(expiresAt) OR expiresAt > 1700000000)"
    foreign = "attribute_not_exists(token)"
    assert written(Equals("status", "COMPLETED"), kept=QUILL)[0] == (
        f"{alive} AND (status = COMPLETED OR attribute_not_exists(status) AND {foreign})"
    )
    assert written(Equals("status", "RELEASED"), kept=QUILL)[0] == f"{alive} AND status = RELEASED"
    assert written(OneOf("status", ("FAILED", "COMPLETED")), kept=QUILL)[0] == (
        f"{alive} AND (status IN (FAILED, COMPLETED) OR attribute_not_exists(status) AND {foreign})"
    )
    assert written(Past("lease_until"), kept=QUILL)[0] == (
        f"{alive} AND (lease_until <= 1700000000.5 OR attribute_not_exists(lease_until) AND {foreign} "
        "AND expiresAt <= 1700000000)"
    )
    assert written(AtMost("attempt", 0), kept=QUILL)[0] == f"{alive} AND attempt <= 0"
    assert written(AtMost("attempt", 1), kept=QUILL)[0] == (
        f"{alive} AND (attempt <= 1 OR attribute_not_exists(attempt) AND {foreign})"
    )
    assert written(Begins("encoding", "none"), kept=QUILL)[0] == (
        f"{alive} AND (begins_with(encoding, none) OR attribute_not_exists(encoding) AND {foreign})"
    )


def test_values_are_spelled_and_formed_as_the_owner_has_them() -> None:
    assert written(Equals("status", "COMPLETED"), kept=SUPPORT_EVENTS)[1][":c0"] == {"S": "processed"}
    text, filled = written(AllOf((Equals("status", "IN_PROGRESS"), Past("lease_until"))), kept=POWERTOOLS)
    assert "status = INPROGRESS" in text
    assert text.endswith(
        "AND (in_progress_expiration <= 1700000000500 "
        "OR attribute_not_exists(in_progress_expiration) "
        "AND (attribute_not_exists(token) OR attribute_exists(data)) AND expiration <= 1700000000)"
    )
    assert filled[":now"] == {"N": "1700000000"}


def test_a_bare_key_is_compared_as_it_stands() -> None:
    assert written(Equals("id", "test//a:b"), kept=QUILL)[0].endswith("AND pk = a:b")
    assert written(Begins("id", "test//a"), kept=QUILL)[0].endswith("AND begins_with(pk, a)")
    assert written(Begins("id", "test/"), kept=QUILL)[0].endswith("AND attribute_exists(pk)")
    with pytest.raises(UsageError, match="a table of their own"):
        written(Begins("id", "prod//a"), kept=QUILL)


@pytest.mark.parametrize(
    "condition",
    [
        Equals("nothing", 1),
        Equals("attempt", "1"),
        Equals("result", b"x"),
        Past("created_at"),
        Begins("status", "IN"),
    ],
)
def test_what_cannot_be_compared_is_refused(condition: Condition) -> None:
    """An unknown attribute, a value of another kind, a body, a moment in ISO text, part of a spelled word."""
    kept = POWERTOOLS if condition != Past("created_at") else QUILL
    with pytest.raises(UsageError):
        written(condition, kept=kept)


def test_a_shape_is_written_once() -> None:
    """A call only fills in its values."""
    conditions = Conditions(DynamoLayout(LEDGER, LEDGER, "test"))

    def guard(token: str) -> tuple[Guard, list]:
        return conditions.guard(AllOf((Equals("token", token), OneOf("status", ("A", "B")))), "change", NOW)

    (first, values), (second, others) = guard("one"), guard("two")
    assert first is second
    assert (values, others) == (["one", "A", "B"], ["two", "A", "B"])


def test_joining_plain_truths() -> None:
    assert both() is True
    assert either() is False
    assert both(True, False) is False
    assert either(False, True) is True
