"""Codecs: a result comes back as what it was, or says why it cannot."""

import dataclasses
import functools
import importlib
import inspect
import os
import sys
import zlib
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn, Optional, TypedDict, get_args
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core import codecs
from semel.core.codecs import (
    UNRESOLVED,
    Body,
    Codec,
    Encoded,
    Encryption,
    decoder_for,
    not_kept,
    returns_of,
)
from semel.core.runtime import require
from semel.errors import InvalidOption, MissingExtra, ResultNotKept, ResultUnreadable

ID = "dev/shop/charge:1"


def round_trip(value, annotation=Any, codec=None):
    codec = codec or Codec()
    encoded = codec.encode(value, ID)
    assert encoded.problem is None
    return codec.decode(encoded.body, decoder_for(annotation), ID)


# --- Values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}, 0.0, [None], {"a": None}, "null"], ids=repr)
def test_falsy_results_come_back_as_they_went_in(value):
    result = round_trip(value)
    assert result == value
    assert type(result) is type(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_every_json_value_comes_back(value):
    assert round_trip(value) == value


class Status(Enum):
    PAID = "paid"


class Level(IntEnum):
    HIGH = 3


class Channel(StrEnum):
    MAIL = "mail"


@dataclasses.dataclass
class Item:
    id: UUID
    price: Decimal
    kind: ClassVar[str] = "item"


@dataclasses.dataclass(frozen=True)
class Order:
    id: str
    items: list[Item]
    placed: datetime
    note: str | None = None


class Receipt(msgspec.Struct, frozen=True):
    number: int
    status: Status
    order: Order | None = None


class Point(NamedTuple):
    x: int
    y: int


class Shape(TypedDict):
    name: str
    corners: list[Point]


class Address(pydantic.BaseModel):
    street: str


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    name: str = pydantic.Field(alias="fullName")
    since: date
    balance: Decimal
    tags: set[str] = set()
    address: Address | None = None

    @pydantic.computed_field
    def greeting(self) -> str:
        return f"Dear {self.name}"


class Names(pydantic.RootModel[list[str]]):
    pass


ITEM = Item(UUID(int=1), Decimal("4.20"))
ORDER = Order("o", [ITEM], datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC))
CUSTOMER = Customer(
    fullName="Ada", since=date(2020, 1, 1), balance=Decimal("1.10"), tags={"a"}, address=Address(street="s")
)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (ORDER, Order),
        ([ORDER], list[Order]),
        (None, Order | None),
        (Receipt(1, Status.PAID, ORDER), Receipt),
        ({"a": Receipt(1, Status.PAID)}, dict[str, Receipt]),
        (CUSTOMER, Customer),
        ([CUSTOMER, CUSTOMER], list[Customer]),
        ({"a": (CUSTOMER, 1)}, dict[str, tuple[Customer, int]]),
        (CUSTOMER, Customer | None),
        (None, Optional[Customer]),  # noqa: UP045  # the older spelling too
        (Names(["a", "b"]), Names),
        (datetime(2026, 1, 2, tzinfo=UTC), datetime),
        (datetime(2026, 1, 2, 3), datetime),  # noqa: DTZ001  # naive stays naive
        (date(2026, 1, 2), date),
        (time(3, 4), time),
        (timedelta(days=1, microseconds=1), timedelta),
        (Decimal("4.20"), Decimal),
        (UUID(int=1), UUID),
        (b"\x00\xff", bytes),
        (Status.PAID, Status),
        (Level.HIGH, Level),
        ([Channel.MAIL], list[Channel]),
        ((1, "a"), tuple[int, str]),
        ((1, 2, 3), tuple[int, ...]),
        ({1, 2}, set[int]),
        (frozenset({"a"}), frozenset[str]),
        ({1: "a"}, dict[int, str]),
        ({UUID(int=1): [Decimal(1)]}, dict[UUID, list[Decimal]]),
        (Point(1, 2), Point),
        ({"name": "s", "corners": [Point(0, 0)]}, Shape),
        ("a", Literal["a", "b"]),
        (5, Annotated[int, msgspec.Meta(ge=0)]),
        (5, Annotated[int, []]),
        (10**30, int),
        (2.0, float),
        (None, None),
        (None, type(None)),
        ([ORDER.id], object),
        ({"a": [1]}, dict[str, object]),
    ],
    ids=lambda one: str(one)[:40],
)  # fmt: skip
def test_a_result_comes_back_by_its_annotation(value, annotation):
    result = round_trip(value, annotation)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("annotation", [Any, object, inspect.Signature.empty, NoReturn], ids=repr)
def test_without_an_annotation_json_types_come_back(annotation):
    assert round_trip({"order": ORDER, "pair": (1, 2)}, annotation) == {
        "order": {
            "id": "o",
            "items": [{"id": str(ITEM.id), "price": "4.20"}],
            "placed": "2026-01-02T03:04:05.000678Z",
            "note": None,
        },
        "pair": [1, 2],
    }


class Text(str):
    __slots__ = ()

    def __str__(self):
        return "never this"


class Ratio(float):
    pass


class Count(int):
    pass


def test_a_subclass_of_text_or_number_comes_back_equal():
    assert round_trip([Text("a"), Ratio(1.5), Count(3)]) == [Text("a"), 1.5, 3]


@pytest.mark.parametrize(
    "value",
    [
        object(), {"a": {1j}}, (one for one in [1]), "\ud800", {("a", 1): 1}, 10**5000, ValueError("x"),
        float("nan"), [1, float("inf")], {"a": None, "b": -float("inf")}, {"a": {"b": [float("nan")]}},
        Receipt(float("nan"), Status.PAID),  # type: ignore[arg-type]
    ],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_what_cannot_be_written_is_completed_without_a_body_and_says_why(value):
    encoded = Codec().encode(value, ID)
    assert encoded.body == Body(None, "none:not-serialisable")
    assert encoded.problem
    with pytest.raises(ResultNotKept, match="not-serialisable"):
        Codec().decode(encoded.body, decoder_for(Any), ID)


@pytest.mark.parametrize(
    "value",
    [
        {1: "a", "1": "b"}, {"x": [{"deep": {1.5: 1, "1.5": 2}}]}, ({Status.PAID: 1, "paid": 2},),
        OrderedDict({1: 1, "1": 2}), Receipt(1, {1: "a", "1": "b"}),  # type: ignore[arg-type]
        {date(2026, 1, 1): 1, "2026-01-01": 2},
    ],
    ids=repr,
)  # fmt: skip
def test_two_names_that_are_one_in_json_are_refused_and_not_merged(value):
    encoded = Codec().encode(value, ID)
    assert encoded.body.data is None
    assert "are one name in JSON" in str(encoded.problem)


@pytest.mark.parametrize(
    "value", [{1: "a", 2: "b"}, {"x": {1: 1, "2": 2}}, {Status.PAID: 1}, {date(2026, 1, 1): 1}], ids=repr
)
def test_names_that_are_no_text_are_kept_as_the_text_that_they_are(value):
    assert Codec().encode(value, ID).problem is None


def test_a_dict_of_many_numbers_is_looked_through_once(monkeypatch):
    looked: list[Any] = []
    monkeypatch.setattr(codecs, "_refuse_merged", looked.append)
    value = dict.fromkeys(range(1000), 1)
    assert Codec().encode(value, ID).problem is None
    assert looked == [value]


def test_nan_inside_a_model_is_found():
    class Reading(pydantic.BaseModel):
        value: float

    problem = Codec().encode(Reading(value=float("nan")), ID).problem
    assert problem == "ValueError: nan cannot be written as JSON: return None, or text"


def test_a_value_whose_own_dump_fails_is_completed_without_a_body():
    class Broken:
        def model_dump(self, **_):
            raise ZeroDivisionError("boom")

    assert Codec().encode([Broken()], ID).problem == "ZeroDivisionError: boom"


def test_a_value_that_contains_itself_is_completed_without_a_body():
    value: list[Any] = []
    value.append(value)
    assert Codec().encode(value, ID).body == not_kept("not-serialisable")


def test_encoding_changes_nothing():
    value = {"a": [1, {2}], "n": None, "f": 1.5}
    Codec(compress_over=0).encode(value, ID)
    assert value == {"a": [1, {2}], "n": None, "f": 1.5}


# --- Reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "annotation"),
    [
        (Body(b'"a"', "json"), int),
        (Body(b"{", "json"), Any),
        (Body(b"", "json"), Any),
        (Body(b"1 2", "json"), Any),
        (Body(b"\xff", "json"), Any),
        (Body(b'{"street":1}', "json"), Address),
        (Body(b"1", "json"), codecs.Codec),
        (Body(b"1", ""), Any),
        (Body(b"1", "pickle"), Any),
        (Body(b"1", "json+brotli"), Any),
        (Body(b"1", "zlib"), Any),
        (Body(b"1", "none:dropped"), Any),
        (Body(None, "json"), Any),
        (Body(b"1", "json+zlib"), Any),
        (Body(b"ref", "json+overflow"), Any),
        (Body(b"x" * 40, "json+aesgcm=k1"), Any),
    ],
    ids=str,
)
def test_a_body_that_cannot_be_read_says_so(body, annotation):
    with pytest.raises(ResultUnreadable) as caught:
        Codec().decode(body, decoder_for(annotation), ID)
    assert caught.value.key == ID
    assert caught.value.reason


def test_a_class_whose_own_check_fails_is_unreadable():
    @dataclasses.dataclass
    class Picky:
        x: int

        def __post_init__(self):
            raise ZeroDivisionError

    with pytest.raises(ResultUnreadable):
        Codec().decode(Body(b'{"x":1}', "json"), decoder_for(Picky), ID)


@pytest.mark.parametrize("reason", ["too-large", "not-serialisable", "overflow-failed", "dropped", "mark"])
def test_a_body_without_a_result_gives_its_reason(reason):
    with pytest.raises(ResultNotKept) as caught:
        Codec().decode(not_kept(reason), decoder_for(Any), ID)
    assert caught.value.reason == reason


def test_the_reasons_are_a_closed_set():
    with pytest.raises(InvalidOption, match="the reasons are too-large"):
        not_kept("whatever")  # type: ignore[arg-type]


# --- Compression and size --------------------------------------------------------------------------


def test_a_large_result_is_compressed_and_a_small_one_is_not():
    codec = Codec(compress_over=100)
    assert codec.encode("x" * 98, ID).body.encoding == "json"
    body = codec.encode("x" * 99, ID).body
    assert body.encoding == "json+zlib"
    assert body.data
    assert len(body.data) < 30
    assert codec.decode(body, decoder_for(str), ID) == "x" * 99


def test_compression_that_does_not_help_is_not_kept():
    noise = os.urandom(40).hex()[:20]
    assert Codec(compress_over=5).encode(noise, ID).body.encoding == "json"


def test_a_result_that_does_not_fit_is_offered_to_an_overflow_store():
    codec = Codec(max_bytes=50, compress_over=10)
    value = os.urandom(200).hex()
    encoded = codec.encode(value, ID)
    assert encoded.body == not_kept("too-large")
    assert encoded.problem
    assert encoded.problem.endswith("more than max_bytes=50")
    assert encoded.oversize
    kept = {"ref": encoded.oversize}

    body = Codec.overflowed(encoded.encoding, "ref")
    assert body == Body(b"ref", "json+zlib+overflow")
    assert Codec.reference(body) == "ref"
    assert codec.unpack(kept["ref"], body.encoding, ID) == msgspec.json.encode(value)
    fetched = Codec.fetched(body, kept["ref"])
    assert codec.decode(fetched, decoder_for(str), ID) == value


def test_a_small_result_can_be_too_large_too():
    encoded = Codec(max_bytes=10).encode("x" * 20, ID)
    assert encoded.oversize == b'"' + b"x" * 20 + b'"'
    assert encoded.encoding == "json"


def test_a_body_in_the_ledger_has_no_reference():
    assert Codec.reference(Body(b"1", "json")) is None
    assert Codec.reference(not_kept("dropped")) is None


def test_a_body_that_unfolds_without_end_is_unreadable(monkeypatch):
    monkeypatch.setattr(codecs, "MAX_UNPACKED", 1000)
    bomb = zlib.compress(b'"' + b"x" * 1_000_000 + b'"')
    with pytest.raises(ResultUnreadable, match="unfolds into more than 1000"):
        Codec().decode(Body(bomb, "json+zlib"), decoder_for(Any), ID)


def test_what_could_not_be_unfolded_again_is_not_written(monkeypatch):
    monkeypatch.setattr(codecs, "MAX_UNPACKED", 1000)
    codec = Codec(compress_over=10)
    assert codec.decode(codec.encode("x" * 998, ID).body, decoder_for(str), ID) == "x" * 998
    assert codec.encode("x" * 999, ID) == Encoded(
        not_kept("too-large"), "1001 bytes are more than could be read again"
    )


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: data + b"x", lambda data: b"x" + data]
)
def test_a_damaged_compressed_body_is_unreadable(damage):
    with pytest.raises(ResultUnreadable, match="compressed form"):
        Codec().decode(Body(damage(zlib.compress(b"[1,2,3]")), "json+zlib"), decoder_for(Any), ID)


def test_sizes_cannot_be_negative():
    with pytest.raises(InvalidOption, match="negative"):
        Codec(max_bytes=-1)


# --- Encryption ------------------------------------------------------------------------------------

OLD, NEW = b"o" * 32, b"n" * 16


def sealed(value: Any = "secret", **options: int) -> tuple[Codec, Any]:
    codec = Codec(encryption=Encryption({"k1": OLD}, "k1"), **options)
    return codec, codec.encode(value, ID).body


def test_an_encrypted_result_comes_back_and_shows_nothing():
    codec, body = sealed()
    assert body.encoding == "json+aesgcm=k1"
    assert b"secret" not in body.data
    assert codec.decode(body, decoder_for(str), ID) == "secret"


def test_compression_comes_before_encryption():
    codec, body = sealed("x" * 5000, compress_over=100)
    assert body.encoding == "json+zlib+aesgcm=k1"
    assert len(body.data) < 200
    assert codec.decode(body, decoder_for(str), ID) == "x" * 5000


def test_the_same_result_is_never_the_same_bytes():
    assert sealed()[1].data != sealed()[1].data


def test_what_is_sealed_steadily_is_the_same_at_one_place_and_another_at_each_other():
    encryption = Encryption({"k": b"1" * 32}, "k")
    first, again = (encryption.seal(b"secret", b"here", steady=True) for _ in range(2))
    assert first == again
    assert encryption.unseal(first, b"here", "k") == b"secret"
    others = [(b"secret", b"there"), (b"other", b"here"), (b"ecret", b"heres"), (b"esecret", b"her")]
    nonces = {encryption.seal(data, place, steady=True)[:12] for data, place in others} | {first[:12]}
    assert len(nonces) == 5
    assert Encryption({"k": b"2" * 32}, "k").seal(b"secret", b"here", steady=True)[:12] not in nonces


def test_after_a_rotation_old_results_are_read_and_new_ones_use_the_new_key():
    _, old = sealed()
    codec = Codec(encryption=Encryption({"k1": OLD, "k2": NEW}, "k2"))
    assert codec.decode(old, decoder_for(str), ID) == "secret"
    new = codec.encode("new", ID).body
    assert new.encoding == "json+aesgcm=k2"
    only_new = Codec(encryption=Encryption({"k2": NEW}, "k2"))
    assert only_new.decode(new, decoder_for(str), ID) == "new"
    with pytest.raises(ResultUnreadable, match="key 'k1', which is not among the keys given"):
        only_new.decode(old, decoder_for(str), ID)


def test_results_from_before_encryption_are_still_read():
    plain = Codec().encode("plain", ID).body
    assert sealed()[0].decode(plain, decoder_for(str), ID) == "plain"


def test_a_body_moved_to_another_record_is_unreadable():
    codec, body = sealed()
    with pytest.raises(ResultUnreadable, match="moved from another record"):
        codec.decode(body, decoder_for(str), "dev/shop/charge:2")


def test_every_changed_byte_is_noticed():
    codec, body = sealed(1)
    for place in range(len(body.data)):
        changed = bytearray(body.data)
        changed[place] ^= 1
        with pytest.raises(ResultUnreadable):
            codec.decode(Body(bytes(changed), body.encoding), decoder_for(Any), ID)


@pytest.mark.parametrize("length", [0, 5, 12, 20])
def test_a_body_that_is_cut_off_is_unreadable(length):
    codec, body = sealed()
    with pytest.raises(ResultUnreadable):
        codec.decode(Body(body.data[:length], body.encoding), decoder_for(Any), ID)


def test_a_changed_encoding_is_noticed():
    codec, body = sealed("x" * 5000, compress_over=100)
    for encoding in ("json+aesgcm=k1", "json+zlib+zlib+aesgcm=k1", "json+zlib+aesgcm=", "json+zlib+aesgcm"):
        with pytest.raises(ResultUnreadable):
            codec.decode(Body(body.data, encoding), decoder_for(Any), ID)


def test_a_changed_key_name_is_noticed_even_where_it_is_the_same_key():
    _, body = sealed()
    codec = Codec(encryption=Encryption({"k1": OLD, "twin": OLD}, "k1"))
    with pytest.raises(ResultUnreadable, match="it was changed"):
        codec.decode(Body(body.data, "json+aesgcm=twin"), decoder_for(Any), ID)


def test_an_overflowing_result_is_encrypted_too():
    codec, body = sealed("secret" * 100, max_bytes=10, compress_over=10_000)
    assert body == not_kept("too-large")
    encoded = codec.encode("secret" * 100, ID)
    assert encoded.oversize
    assert b"secret" not in encoded.oversize
    fetched = Codec.fetched(Codec.overflowed(encoded.encoding, "ref"), encoded.oversize)
    assert codec.decode(fetched, decoder_for(str), ID) == "secret" * 100


def test_no_key_is_shown():
    encryption = Encryption({"k1": b"o" * 32, "k2": b"n" * 32}, "k2")
    assert repr(encryption) == "<Encryption active='k2' of ['k1', 'k2']>"


@pytest.mark.parametrize(
    ("keys", "active"),
    [
        ({"k": b"short"}, "k"),
        ({"k": "x" * 32}, "k"),
        ({"a+b": OLD}, "a+b"),
        ({"a=b": OLD}, "a=b"),
        ({"": OLD}, ""),
        ({"k\n": OLD}, "k\n"),
        ({"k": OLD}, "other"),
        ({}, "k"),
    ],
)
def test_keys_that_cannot_work_are_refused(keys, active):
    with pytest.raises(InvalidOption) as caught:
        Encryption(keys, active)
    assert "short" not in str(caught.value)


def test_without_cryptography_the_extra_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MissingExtra, match=r'cryptography.* is not installed: pip install "semel\[crypto\]"'):
        Encryption({"k": OLD}, "k")


# --- Extras ----------------------------------------------------------------------------------------


def test_an_extra_that_is_there_is_imported():
    assert require("importlib", "any") is importlib


def test_an_absent_extra_says_what_to_install():
    with pytest.raises(MissingExtra, match=r'absent_module is not installed: pip install "semel\[some\]"'):
        require("absent_module.sub", "some")


def test_a_broken_extra_is_not_called_absent(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("import something_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_needs") as caught:
        require("broken_module", "some")
    assert not isinstance(caught.value, MissingExtra)


# --- Annotations -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Cat:
    name: str


@dataclasses.dataclass
class Dog:
    name: str


@pytest.mark.parametrize(
    "annotation", [Cat | Dog, Customer | int, set[int] | list[int], "Cat", 5, UNRESOLVED]
)
def test_an_annotation_that_cannot_be_read_back_is_refused(annotation):
    with pytest.raises(InvalidOption, match=r"pass .*returns="):
        decoder_for(annotation)


def test_a_decoder_is_made_once():
    assert decoder_for(list[Cat]) is decoder_for(list[Cat])


def bare(): ...
def as_none() -> None: ...
def as_type() -> Cat: ...  # type: ignore[empty-body]
def as_text() -> "list[Cat]": ...  # type: ignore[empty-body]
def nested_text() -> list["Cat"]: ...  # type: ignore[empty-body]
async def as_async() -> Cat: ...  # type: ignore[empty-body]
def as_annotated() -> Annotated[int, msgspec.Meta(ge=0)]: ...  # type: ignore[empty-body]
def only_the_return(order: "NotImported") -> "Cat": ...  # type: ignore[empty-body, name-defined]  # noqa: F821


class Shop:
    def sell(self) -> Cat: ...  # type: ignore[empty-body]
    def __call__(self) -> Dog: ...  # type: ignore[empty-body]


class Till:
    currency: str = "EUR"

    def __call__(self) -> Dog: ...  # type: ignore[empty-body]


def documented(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("function", "annotation"),
    [
        (bare, Any),
        (lambda: None, Any),
        (len, Any),
        (as_none, None),
        (as_type, Cat),
        (as_text, list[Cat]),
        (nested_text, list[Cat]),
        (as_async, Cat),
        (as_annotated, Annotated[int, msgspec.Meta(ge=0)]),
        (only_the_return, Cat),
        (Shop.sell, Cat),
        (Shop().sell, Cat),
        (Shop(), Dog),
        (Till(), Dog),
        (functools.partial(as_text), list[Cat]),
        (documented(as_text), list[Cat]),
    ],
)
def test_what_a_function_returns_is_read_from_its_annotation(function, annotation):
    assert returns_of(function) == annotation


def test_a_class_that_is_defined_later_is_found_at_the_second_try():
    names: dict[str, Any] = {"__name__": "later"}
    exec("def function() -> 'list[Later]': ...", names)
    assert returns_of(names["function"]) is UNRESOLVED
    exec("class Later: ...", names)
    assert get_args(returns_of(names["function"])) == (names["Later"],)


@pytest.mark.skipif(
    sys.version_info < (3, 14), reason="annotations were evaluated at once before Python 3.14"
)
def test_a_class_that_is_defined_later_needs_no_quotes_around_it():
    names: dict[str, Any] = {"__name__": "later"}
    exec("def function(other: Unseen) -> list[Later]: ...", names)
    assert returns_of(names["function"]) is UNRESOLVED
    exec("class Later: ...", names)
    assert get_args(returns_of(names["function"])) == (names["Later"],)


def test_a_field_whose_class_is_defined_later_is_found_at_the_second_try():
    names: dict[str, Any] = {"__name__": "later"}
    module = "import msgspec\nclass Outer(msgspec.Struct):\n  inner: 'Inner'\ndef function() -> Outer: ..."
    sys.modules["later"] = sys.modules[__name__]  # msgspec looks a class's names up in its module
    try:
        exec(module, names)
        assert returns_of(names["function"]) is UNRESOLVED
        globals()["Inner"] = Cat
        assert returns_of(names["function"]) is names["Outer"]
    finally:
        del sys.modules["later"]
        globals().pop("Inner", None)


def test_a_local_class_is_found_through_the_closure():
    class Local(msgspec.Struct):
        x: int

    def function() -> "Local":
        return Local(1)

    assert returns_of(function) is Local


def test_an_annotation_that_is_no_type_is_refused():
    def function() -> "not a type": ...  # type: ignore[valid-type]  # noqa: F722

    with pytest.raises(InvalidOption, match="pass returns="):
        returns_of(function)
