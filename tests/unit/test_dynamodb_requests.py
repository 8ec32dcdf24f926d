"""What a write expects, as DynamoDB's expression: built once, and right for defaults and forms."""

import re
from typing import Any

import pytest

from semel.apps.tables import PROBE, QUILL, SUPPORT_EVENTS
from semel.core.commands import ABSENT, ANY, PRESENT, Delete, Expect, Put, Query, Update
from semel.errors import UsageError
from semel.stores.dynamodb.requests import ItemSearch, TableRequests
from semel.tables import FOREVER, LEDGER, Table
from semel.tables.powertools import POWERTOOLS

NOW = (1_700_000_000.5, 1_700_000_001.5)
KEY = "test//key"


def shown(request: dict[str, Any], expression: str = "ConditionExpression") -> str:
    """An expression as it reads with its names and values filled in; each that is given is used."""
    names, values = (request.get(f"ExpressionAttribute{kind}", {}) for kind in ("Names", "Values"))
    texts = " ".join(text for name, text in request.items() if name.endswith("Expression"))
    assert {*names, *values} == set(re.findall(r"[#:]\w+", texts))
    text = re.sub(r"#\w+", lambda found: names[found[0]], request.get(expression, ""))
    return re.sub(r":\w+", lambda found: next(iter(values[found[0]].values())), text)


def expected(expect: Any, kept: Table = LEDGER) -> str:
    """What a deletion expects."""
    return shown(TableRequests(LEDGER, kept, "test").delete(Delete(LEDGER, KEY, expect), NOW))


@pytest.mark.parametrize(
    ("expect", "text"),
    [
        (ANY, ""),
        (ABSENT, "attribute_not_exists(id)"),
        (PRESENT, "attribute_exists(id)"),
        ({"token": "t"}, "attribute_exists(id) AND token = t"),
        ({"token": "t", "attempt": 2}, "attribute_exists(id) AND token = t AND attempt = 2"),
        ({"error": None}, "attribute_exists(id) AND attribute_not_exists(error)"),
        ({"error": None, "token": "t"}, "attribute_exists(id) AND token = t AND attribute_not_exists(error)"),
        ({"expires_at": 5.5}, "attribute_exists(id) AND expires_at = 5.5"),
        ({"expires_at": FOREVER}, "attribute_exists(id) AND attribute_not_exists(expires_at)"),
    ],
)
def test_what_a_write_expects(expect: Expect, text: str) -> None:
    """Nothing is asked about the time: the rules decide what has expired."""
    assert expected(expect) == text


def test_texts_are_built_once() -> None:
    """A write only fills in its values."""
    requests = TableRequests(LEDGER, LEDGER, "test")
    first, second = (
        requests.update(Update(LEDGER, KEY, {"status": "A", "error": None}, {"token": token}), NOW)
        for token in ("one", "two")
    )
    for name in ("UpdateExpression", "ConditionExpression"):
        assert first[name] is second[name]
    assert shown(first) == "attribute_exists(id) AND token = one"
    assert shown(second, "UpdateExpression") == "SET status = A REMOVE error"


def test_equal_names_in_other_places_make_another_text() -> None:
    """What is set, what is removed and what is expected are told apart."""
    requests = TableRequests(LEDGER, LEDGER, "test")
    for changes, text in (
        ({"status": "A", "error": "e"}, "SET status = A, error = e"),
        ({"status": "A", "error": None}, "SET status = A REMOVE error"),
        ({"status": None, "error": "e"}, "SET error = e REMOVE status"),
    ):
        assert shown(requests.update(Update(LEDGER, KEY, changes), NOW), "UpdateExpression") == text


def test_what_lacks_an_attribute_has_its_default() -> None:
    """As a mark that another program wrote: completed, with no token, at its first attempt, until its end."""
    foreign = "attribute_not_exists(token)"
    for expect, text in (
        ({"status": "COMPLETED"}, f"(status = COMPLETED OR attribute_not_exists(status) AND {foreign})"),
        ({"status": "RELEASED"}, "status = RELEASED"),
        ({"token": ""}, f"(token =  OR {foreign} AND {foreign})"),
        ({"attempt": 1}, f"(attempt = 1 OR attribute_not_exists(attempt) AND {foreign})"),
        ({"attempt": 2}, "attempt = 2"),
        ({"status": None}, f"attribute_not_exists(status) AND NOT {foreign}"),
        (
            {"lease_until": 60},
            f"(lease_until = 60 OR attribute_not_exists(lease_until) AND {foreign} AND expiresAt = 60)",
        ),
        (
            {"lease_until": FOREVER},
            f"attribute_not_exists(lease_until) AND {foreign} AND attribute_not_exists(expiresAt)",
        ),
    ):
        assert expected(expect, QUILL) == f"attribute_exists(pk) AND {text}"


def test_values_are_spelled_and_formed_as_the_owner_has_them() -> None:
    assert "(status = processed OR " in expected({"status": "COMPLETED"}, SUPPORT_EVENTS)
    text = expected({"status": "IN_PROGRESS", "lease_until": 1_700_000_000.5}, POWERTOOLS)
    assert "status = INPROGRESS" in text
    assert text.endswith(
        "(in_progress_expiration = 1700000000500 OR attribute_not_exists(in_progress_expiration) "
        "AND (attribute_not_exists(token) OR attribute_exists(data)) "
        "AND expiration IN (1700000001, 1700000000.5))"
    )


def test_a_moment_is_compared_with_every_way_to_write_it() -> None:
    """Another program's text for it may have no fraction, or another zone's sign."""
    text = expected({"created_at": 1_700_000_000}, QUILL)
    for spelled in ("22:13:20.000Z", "22:13:20Z", "22:13:20+00:00", "22:13:20", "22:13:20.000000Z"):
        assert f"2023-11-14T{spelled}" in re.split(r", |[()]", text)


def test_a_query_finds_bare_keys() -> None:
    requests = TableRequests(LEDGER, QUILL, "test")

    def filtered(**asked: Any) -> str:
        return shown(ItemSearch(requests, Query(LEDGER, **asked)).request(NOW) or {}, "FilterExpression")

    living = "(attribute_not_exists(expiresAt) OR expiresAt > 1700000000) AND pk <> semel:environment"
    assert filtered(prefix="test//a") == f"{living} AND begins_with(pk, a)"
    assert filtered(prefix="test/") == living
    assert filtered(equal={"id": "test//a:b"}) == f"{living} AND pk = a:b"
    with pytest.raises(UsageError, match="a table of their own"):
        filtered(prefix="prod//a")


@pytest.mark.parametrize(
    ("expect", "kept"),
    [
        ({"nothing": 1}, LEDGER),
        ({"nothing": 1}, POWERTOOLS),
        ({"attempt": "1"}, LEDGER),
        ({"attempt": "1"}, POWERTOOLS),
        ({"result": b"x"}, POWERTOOLS),
    ],
)
def test_what_cannot_be_compared_is_refused(expect: Expect, kept: Table) -> None:
    """An unknown attribute, a value of another kind, a body that others read as text."""
    with pytest.raises(UsageError):
        expected(expect, kept)


def test_an_owners_attributes_are_beside_the_rules_own() -> None:
    """What repeats the key, and the end in another form."""
    item = {"status": "COMPLETED", "expires_at": 60, "created_at": 5}
    request = TableRequests(LEDGER, PROBE, "test").put(Put(LEDGER, "test//PRODUCE#a", item), NOW)
    assert request["Item"] == {
        "pk": {"S": "PRODUCE#a"},
        "operationType": {"S": "PRODUCE"},
        "idempotencyKey": {"S": "a"},
        "status": {"S": "COMPLETED"},
        "ttl": {"N": "60"},
        "expiresAt": {"S": "1970-01-01T00:01:00.000Z"},
        "createdAt": {"S": "1970-01-01T00:00:05.000Z"},
    }
