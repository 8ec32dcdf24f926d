"""Values go into DynamoDB's JSON and come back; what it could not keep is refused before it is sent."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from semel.errors import UsageError
from semel.stores.dynamodb import items as values
from semel.tables import Kind
from semel.tables.mapping import Form

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(-1e100, 1e100).filter(lambda number: number == 0 or abs(number) > 1e-100)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def normalised(value: values.Value) -> values.Value:
    """A value as DynamoDB gives it back: its numbers without zeros that say nothing."""
    [(tag, content)] = value.items()
    if tag == "N":
        return {"N": format(Decimal(content).normalize(), "f")}
    if tag == "M":
        return {"M": {name: normalised(one) for name, one in content.items()}}
    return {"L": [normalised(one) for one in content]} if tag == "L" else value


def typed(value: Any) -> Any:
    """A value in which 1 and 1.0 differ."""
    if isinstance(value, dict):
        return {name: typed(one) for name, one in value.items()}
    return [typed(one) for one in value] if isinstance(value, list) else (type(value), value)


# Hypothesis tries texts that it finds in the source, and this name is semel's own.
NAMES = st.text().filter(lambda name: name != values.FLOATS)


@given(st.dictionaries(NAMES, JSON))
@example({"a/b": {"~1": [1.0, 1, {"": 1e16}]}, "~0": 0.0})
def test_an_object_comes_back(value: dict[str, Any]) -> None:
    """Whatever JSON knows, at any depth: a float as a float, a whole number as a whole number."""
    found = values.restore_floats(values.plain(normalised(values.ENCODE[Kind.OBJECT](value))))
    assert typed(found) == typed(value)


@pytest.mark.parametrize("place", ["/gone", "/list/7", "/list/x", "/text", "/text/0", "/list", ""])
def test_an_object_that_somebody_else_has_changed_since_is_read_as_it_is(place: str) -> None:
    content = {"list": [1], "text": "x", values.FLOATS: [place]}
    assert values.restore_floats(content) == {"list": [1], "text": "x"}


@given(st.integers(-(10**38) + 1, 10**38 - 1))
def test_every_whole_number_of_38_digits_comes_back_exactly(number: int) -> None:
    found = values.plain(values.ENCODE[Kind.NUMBER](number))
    assert found == number
    assert type(found) is int


@given(st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False))
def test_a_float_comes_back_or_is_refused(number: float) -> None:
    """Exactly, as Python's shortest text for it gives it back; what DynamoDB cannot hold is refused."""
    if number == 0 or 1e-130 <= abs(number) < 1e126:
        assert values.plain(values.ENCODE[Kind.NUMBER](number)) == number
    else:
        with pytest.raises(UsageError):
            values.ENCODE[Kind.NUMBER](number)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 10**38, -(10**38), 1e200])
def test_what_is_no_number_of_dynamodbs_is_refused(number: float) -> None:
    with pytest.raises(UsageError):
        values.ENCODE[Kind.NUMBER](number)


class Money(float):
    """A float that shows itself otherwise, as numpy's does."""

    def __repr__(self) -> str:
        return f"Money({float(self)})"


def test_a_kind_of_float_is_written_as_a_float() -> None:
    assert values.ENCODE[Kind.NUMBER](Money(1.5)) == {"N": "1.5"}


@given(st.binary())
def test_bytes_come_back(data: bytes) -> None:
    assert values.plain(values.ENCODE[Kind.BYTES](data)) == data
    assert values.ENCODE[Kind.BYTES](bytearray(data)) == values.ENCODE[Kind.BYTES](memoryview(data))


def test_equal_sets_make_equal_requests() -> None:
    assert values.ENCODE[Kind.SET]({"b", "a"}) == values.ENCODE[Kind.SET]({"a", "b"}) == {"SS": ["a", "b"]}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Kind.TEXT, 1),
        (Kind.NUMBER, "1"),
        (Kind.BYTES, "text"),
        (Kind.FLAG, 1),
        (Kind.OBJECT, []),
        (Kind.SET, ["a"]),
        (Kind.SET, {1}),
    ],
)
def test_a_value_of_another_kind_is_told_apart(kind: Kind, value: Any) -> None:
    """By TypeError, which is told to the caller with the attribute's name."""
    with pytest.raises(TypeError):
        values.ENCODE[kind](value)


@pytest.mark.parametrize("value", [{1: "a"}, {"a": b"bytes"}, {"a": {"b": object()}}, {"a": float("nan")}])
def test_an_object_holds_what_json_knows(value: Any) -> None:
    with pytest.raises(UsageError):
        values.ENCODE[Kind.OBJECT](value)


@given(st.floats(0, 4e9))
def test_an_end_is_rounded_up_and_the_present_down(moment: float) -> None:
    """So that nothing ends before its time, in whichever form it is written."""
    for form, scale in ((Form.SECONDS, 1), (Form.MILLISECONDS, 1000)):
        end = float(values.FORMED[form](moment)["N"])
        now = float(values.PRESENT[form](moment)["N"])
        assert now - 0.001 <= moment * scale <= end + 0.001
        assert end - now <= 1


@pytest.mark.parametrize("moment", [1_700_000_030.1, 1_700_000_030.2, 1_700_000_030.3, 1_700_000_030.7])
def test_a_moment_in_milliseconds_is_past_when_it_has_come(moment: float) -> None:
    """The noise of a multiplication does not put it off: whoever reads it would look again for ever."""
    end = values.FORMED[Form.MILLISECONDS](moment)
    assert values.READ[Form.MILLISECONDS](values.plain(end)) == moment
    assert values.PRESENT[Form.MILLISECONDS](moment) == end


@given(st.floats(0, 4e9))
def test_iso_text_is_a_moment_in_utc(moment: float) -> None:
    text = values.iso(moment)
    assert datetime.fromisoformat(text).tzinfo == UTC
    assert values.from_iso(text) == pytest.approx(moment, abs=0.0011)


@pytest.mark.parametrize(
    "text",
    ["2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00", "2023-11-14T22:13:20", "2023-11-14T22:13:20.000Z"],
)
def test_iso_text_of_others_is_read(text: str) -> None:
    assert values.from_iso(text) == 1_700_000_000.0


def test_a_body_is_text_where_everybody_can_read_it() -> None:
    assert values.body_value(b'{"a":1}', "json") == {"S": '{"a":1}'}
    assert values.body_value(b"\x00\xff", "json+zlib") == {"S": "AP8="}
    assert values.body('{"a":1}', "json") == b'{"a":1}'
    assert values.body("AP8=", "json+zlib") == b"\x00\xff"


@pytest.mark.parametrize("text", ["not base64!", 5, None])
def test_a_body_that_is_none_is_left_for_its_reader(text: Any) -> None:
    assert values.body(text, "json+zlib") == text


def test_sizes_are_counted_as_dynamodb_counts_them() -> None:
    """Names and texts in UTF-8, bytes as they are, numbers by their digits."""
    item: dict[str, Any] = {
        "id": {"S": "é"},
        "b": {"B": values.base64(b"x" * 300)},
        "n": {"N": "1"},
        "f": {"BOOL": True},
    }
    assert values.size(item) == (2 + 2) + (1 + 300) + (1 + 2) + (1 + 1)
    nested: dict[str, Any] = {
        "m": {"M": {"a": {"L": [{"S": "xy"}]}}},
        "s": {"SS": ["a", "bc"]},
        "z": {"NULL": True},
    }
    assert values.size(nested) == 1 + 3 + 1 + (1 + 3 + 1 + 2) + 1 + 3 + 1 + 1
