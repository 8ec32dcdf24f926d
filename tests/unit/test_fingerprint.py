"""Fingerprints: one payload, one canonical form, in any language."""

import copy
import dataclasses
import hashlib
import hmac
import json
import math
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, ClassVar
from uuid import UUID

import msgspec
import pydantic
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from semel.core import keys
from semel.core.keys import MAX_INTEGER, Key, canonical, canonical_json, fingerprint
from semel.errors import InvalidPayload

safe_integers = st.integers(-MAX_INTEGER, MAX_INTEGER)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    '\x00\x08\x0b\x1f\x7f\x80"\\/\u2028\ud7ff\ue000\U0001f600é', max_size=6
)
names = texts | st.text("abc_", max_size=4)


def nested(scalars):
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
        max_leaves=12,
    )


plain_values = nested(st.none() | st.booleans() | safe_integers | texts)
json_values = nested(
    st.none() | st.booleans() | safe_integers | texts | st.floats(allow_nan=False, allow_infinity=False)
)

# --- The canonical form ----------------------------------------------------------------------------


@given(plain_values)
def test_the_fast_path_writes_what_rfc8785_writes(value):
    assert canonical(value) == rfc8785.dumps(value)


@given(json_values)
def test_every_json_value_is_written_as_rfc8785_writes_it(value):
    assert canonical(value) == rfc8785.dumps(value)


@given(st.dictionaries(st.text('\x01\x1f"\\aAzZ~\x7f', max_size=5), st.integers(0, 9), max_size=8))
def test_ascii_names_are_sorted_as_rfc8785_sorts_them_without_its_help(value):
    assert keys._is_plain(value)
    assert canonical(value) == rfc8785.dumps(value)


def test_every_character_is_escaped_as_rfc8785_escapes_it():
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000), 0x1F600, 0x10FFFF]))
    assert canonical(everything) == rfc8785.dumps(everything)


def test_names_beyond_the_first_plane_are_sorted_by_utf_16():
    payload = {"\ue000": 1, "\U0001f600": 2}
    assert canonical(payload) == '{"\U0001f600":2,"\ue000":1}'.encode()


def test_the_example_of_the_rfc_comes_out_as_printed_there():
    payload = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(payload).decode() == expected


@pytest.mark.situation(25)
def test_one_and_one_point_zero_are_one_payload():
    assert canonical({"n": 1}) == canonical({"n": 1.0}) == b'{"n":1}'


@pytest.mark.situation(25)
def test_minus_zero_is_zero():
    assert canonical(-0.0) == canonical(0) == b"0"


@pytest.mark.situation(25)
@given(st.dictionaries(names, safe_integers, max_size=6), st.randoms(use_true_random=False))
def test_key_order_does_not_matter(payload, random):
    shuffled = list(payload.items())
    random.shuffle(shuffled)
    assert fingerprint(dict(shuffled)) == fingerprint(payload)


def test_nfc_and_nfd_are_different_payloads():
    assert fingerprint("é") != fingerprint("e\u0301")


def test_true_and_one_are_different_payloads():
    assert fingerprint([True]) != fingerprint([1])


# --- The fingerprint -------------------------------------------------------------------------------

SAMPLE = {"order_id": "o-1001", "amount": 4200, "currency": "EUR"}
SAMPLE_JSON = b'{"amount":4200,"currency":"EUR","order_id":"o-1001"}'


def test_a_fingerprint_is_the_sha256_of_the_canonical_form():
    assert fingerprint(SAMPLE) == hashlib.sha256(SAMPLE_JSON).hexdigest()


def test_with_a_secret_a_fingerprint_is_an_hmac():
    expected = hmac.new(b"secret", SAMPLE_JSON, "sha256").hexdigest()
    assert fingerprint(SAMPLE, b"secret") == expected
    assert fingerprint(SAMPLE, b"another") != expected


@given(json_values)
def test_taking_a_fingerprint_changes_nothing(payload):
    before = copy.deepcopy(payload)
    fingerprint(payload)
    assert payload == before


def test_a_fingerprint_is_fixed_when_it_is_taken():
    payload = {"items": [1, 2]}
    taken = fingerprint(payload)
    payload["items"].append(3)
    assert taken == fingerprint({"items": [1, 2]})


# --- What is not JSON ------------------------------------------------------------------------------


class Status(Enum):
    PAID = "paid"


class Level(IntEnum):
    HIGH = 3


class Channel(StrEnum):
    MAIL = "mail"


@dataclasses.dataclass
class Order:
    id: str
    tags: set[str] = dataclasses.field(default_factory=set)
    _cache: object = None
    kind: ClassVar[str] = "order"


class Line(msgspec.Struct, rename="camel"):
    item_id: str
    count: int = 1


class Paid(msgspec.Struct, tag=True):
    amount: int


class Refunded(msgspec.Struct, tag=True):
    amount: int


class Customer(pydantic.BaseModel):
    name: str
    since: date
    tags: frozenset[str] = frozenset()


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Amount(float):
    pass


@pytest.mark.parametrize(
    ("payload", "written"),
    [
        ((1, (2,)), "[1,[2]]"),
        (Order("o", {"b", "a"}), '{"id":"o","tags":["a","b"]}'),
        ([Line("i")], '[{"count":1,"itemId":"i"}]'),
        (Paid(1), '{"amount":1,"type":"Paid"}'),
        ({"c": Customer(name="n", since=date(2026, 1, 2), tags=frozenset("ba"))},
         '{"c":{"name":"n","since":"2026-01-02","tags":["a","b"]}}'),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), '"2026-01-02T03:04:05Z"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (timedelta(days=1), '"P1D"'),
        (Decimal("4.20"), '"4.20"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (b"abc", '"YWJj"'),
        ([Status.PAID, Level.HIGH, Channel.MAIL], '["paid",3,"mail"]'),
        ({Channel.MAIL: 1, Text("a"): Text("b")}, '{"a":"b","mail":1}'),
        ([Number(3), Amount(1.5), Key("a", "b")], '[3,1.5,"a:b"]'),
        (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        ({3, 1, 2}, "[1,2,3]"),
        ({"b", 1, (2, 3), None, 2.5}, '["b",1,2.5,[2,3],null]'),
        (frozenset({Status.PAID, UUID(int=1)}), '["00000000-0000-0000-0000-000000000001","paid"]'),
    ],
)  # fmt: skip
def test_what_is_not_json_has_one_canonical_form(payload, written):
    assert canonical(payload).decode() == written


def test_two_tagged_structs_with_the_same_fields_are_different_payloads():
    assert fingerprint(Paid(1)) != fingerprint(Refunded(1))


@given(st.sets(st.text(max_size=3) | st.integers(0, 99) | st.floats(0, 9)))
def test_a_set_comes_out_in_one_order(members):
    assert canonical(members) == canonical(set().union(sorted(members, key=repr)))
    assert len(json.loads(canonical(members))) == len(members)


def test_objects_are_not_changed():
    order = Order("o", {"a"}, _cache=object())
    before = copy.copy(order.__dict__)
    canonical([order])
    assert order.__dict__ == before


# --- What has no canonical form --------------------------------------------------------------------


class Secret(pydantic.BaseModel):
    password: pydantic.SecretStr


@pytest.mark.situation(26)
@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"a": [1, math.nan]}, r"payload\['a'\]\[1\] is nan"),
        (math.inf, "payload is inf"),
        ([-math.inf], r"payload\[0\] is -inf"),
        (Decimal("NaN"), "payload is NaN"),
        ({"n": 2**53}, r"payload\['n'\] is an integer beyond 2\^53, .* pass it as a string"),
        (-(2**53), "beyond"),
        ([10**5000], "beyond"),
        ({"t": "\ud800"}, r"payload\['t'\] holds a lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        ({1: "a"}, "payload has a key of type int"),
        ({None: "a"}, "key of type NoneType"),
        ({"a": {UUID(int=1): 1}}, r"payload\['a'\] has a key of type UUID"),
        ({"a": object()}, r"payload\['a'\] is of type object, .* with fingerprint=\(\.\.\.\)"),
        (Order, "is of type type"),
        (range(3), "is of type range"),
        ((one for one in [1]), "is of type generator"),
        ([Line("i", 2**60)], r"payload\[0\]\['count'\] is an integer beyond"),
        (Secret(password=pydantic.SecretStr("x")), r"payload\['password'\] is of type SecretStr"),
    ],
)  # fmt: skip
def test_what_has_no_canonical_form_is_refused_with_its_place(payload, says):
    with pytest.raises(InvalidPayload, match=says):
        canonical(payload)


def test_the_largest_safe_integers_are_taken():
    assert canonical([MAX_INTEGER, -MAX_INTEGER]) == b"[9007199254740991,-9007199254740991]"


def cyclic_list():
    payload: list[Any] = []
    payload.append(payload)
    return payload


def cyclic_dict_with_a_float():
    payload: dict[str, Any] = {"x": 1.5}
    payload["self"] = payload
    return payload


def deep_list():
    payload: list[Any] = []
    for _ in range(100_000):
        payload = [payload]
    return payload


@pytest.mark.parametrize("make", [cyclic_list, cyclic_dict_with_a_float, deep_list])
def test_a_payload_that_has_no_end_is_refused(make):
    with pytest.raises(InvalidPayload, match="nested too deeply"):
        canonical(make())


# --- JSON text -------------------------------------------------------------------------------------


@given(json_values)
def test_json_text_and_the_value_it_stands_for_have_one_form(value):
    assert canonical_json(json.dumps(value)) == canonical(value)
    assert canonical_json(json.dumps(value, ensure_ascii=False, indent=2).encode()) == canonical(value)


def test_white_space_and_order_do_not_matter_in_json_text():
    assert canonical_json(b' { "b" : 1.0 , "a" : [ ] } ') == b'{"a":[],"b":1}'


@pytest.mark.situation(26)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a":1,"a":1}', "'a' occurs twice"),
        ('[{"x":{"b":1,"c":2,"b":3}}]', "'b' occurs twice"),
        ('{"a":1,"\\u0061":2}', "'a' occurs twice"),
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b'"\xed\xa0\x80"', "not valid JSON"),
        ("[NaN]", "is nan"),
        ("-Infinity", "is -inf"),
        ("1e400", "is inf"),
        ("9007199254740992", "beyond 2"),
        pytest.param("1" * 5000, "not valid JSON", id="long integer"),
        ('"\\ud800"', "lone surrogate"),
        pytest.param("[" * 100_000, "nested too deeply", id="deep"),
    ],
)
def test_json_text_without_a_canonical_form_is_refused(text, says):
    with pytest.raises(InvalidPayload, match=says):
        canonical_json(text)
