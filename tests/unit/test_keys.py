"""Keys, templates and binders: what a piece of work is called."""

import copy
import functools
import inspect
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.keys import (
    MAX_KEY_BYTES,
    MAX_NAME_BYTES,
    Key,
    check,
    compile_binder,
    compile_template,
    part,
    prefix,
)
from semel.errors import InvalidKey, TemplateError


class Channel(StrEnum):
    MAIL = "mail"


class Level(IntEnum):
    HIGH = 3


class Order(Enum):
    ID = UUID(int=7)


class Nothing(Enum):
    NONE = None


# Short texts of a small alphabet meet often, and this one holds all that separates and escapes.
pieces = st.sampled_from(["a", "b", ":", "%", "/", "-", "%3A", "%25", "%2F"])
awkward = st.lists(pieces, min_size=1, max_size=4).map("".join)
printable = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)

# --- Parts and keys --------------------------------------------------------------------------------


@pytest.mark.situation(28)
def test_a_separator_in_one_part_is_not_a_separator_between_two():
    assert str(Key("a:b", "c")) == "a%3Ab:c"
    assert str(Key("a", "b:c")) == "a:b%3Ac"


@given(st.lists(awkward, min_size=1, max_size=4), st.lists(awkward, min_size=1, max_size=4))
def test_two_lists_of_parts_share_a_key_only_if_they_are_the_same(one, other):
    assert (Key(*one) == Key(*other)) == (one == other)


@given(st.lists(printable, min_size=1, max_size=4))
def test_the_parts_can_be_read_back_from_the_key(parts):
    escaped = str(Key(*parts)).split(":")
    read = [text.replace("%3E", ">").replace("%3A", ":").replace("%25", "%") for text in escaped]
    assert read == parts


def test_a_key_is_text_and_stays_itself_when_copied_and_pickled():
    key = Key("charge", "o:1%")
    assert key == "charge:o%3A1%25"
    assert type(str(key)) is str
    assert repr(key) == "<Key 'charge:o%3A1%25'>"
    for twin in (copy.copy(key), copy.deepcopy(key), pickle.loads(pickle.dumps(key))):
        assert twin == key
        assert type(twin) is Key


def test_a_key_inside_a_key_is_one_part():
    assert Key(Key("a", "b"), "c") == "a%3Ab:c"


def test_a_key_without_parts_is_refused():
    with pytest.raises(InvalidKey, match="must not be empty"):
        Key()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("o-1001", "o-1001"),
        ("50%:x", "50%25%3Ax"),
        ("%3A", "%253A"),
        ("ключ 🔑", "ключ 🔑"),
        ("no-break\u00a0space", "no-break\u00a0space"),
        (42, "42"),
        (-7, "-7"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Channel.MAIL, "mail"),
        (Level.HIGH, "3"),
        (Order.ID, "00000000-0000-0000-0000-000000000007"),
        (date(2026, 3, 1), "2026-03-01"),
        (datetime(2026, 3, 1, 12, 30, tzinfo=UTC), "2026-03-01T12%3A30%3A00+00%3A00"),
        (datetime(2026, 3, 1, 12, 30), "2026-03-01T12%3A30%3A00"),  # noqa: DTZ001  # naive on purpose
        (Decimal("4.20"), "4.20"),
        (Key("a", "b"), "a%3Ab"),
    ],
)
def test_what_has_a_lasting_text_is_a_part(value, text):
    assert part(value) == text
    assert type(part(value)) is str


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 1.5, float("nan"), object(), [], {}, (), b"bytes", Nothing.NONE,
        Decimal("NaN"), Decimal("Infinity"), 10**2000, "", "tab\t", "\x7f", "\x85", "\ud800", "x" * 2000,
    ],
)  # fmt: skip
def test_what_names_nothing_lasting_is_no_part(value):
    with pytest.raises(InvalidKey):
        part(value)


def test_a_refused_part_is_not_shown_but_its_type_and_the_remedy_are():
    class Customer:
        def __repr__(self):
            return "Customer(email='a@example.com')"

    with pytest.raises(InvalidKey, match=r"type Customer .* as in \{order.id\}") as caught:
        part(Customer())
    assert "example.com" not in str(caught.value)


def test_a_key_passes_unchanged():
    for key in ("a", "charge:o%3A1", "é", "e\u0301", "a\u2028b", "x" * MAX_KEY_BYTES):
        assert check(key) == key
    assert type(check(Key("a"))) is str


@pytest.mark.situation(27)
def test_nfc_and_nfd_are_different_keys():
    assert check("é") != check("e\u0301")
    assert part("é") != part("e\u0301")


@pytest.mark.situation(33)
@pytest.mark.parametrize("key", ["\x00", "a\nb", "a\x1f", "\x7f", "\x80", "a\x9fb"])
def test_control_characters_are_refused(key):
    with pytest.raises(InvalidKey, match="control characters"):
        check(key)


def test_lone_surrogates_are_refused():
    with pytest.raises(InvalidKey, match="surrogates"):
        check("a\udc80")


@pytest.mark.parametrize("key", [None, 5, b"a", True, ["a"]])
def test_what_is_not_text_is_no_key(key):
    with pytest.raises(InvalidKey, match=r"Key\(\.\.\.\)"):
        check(key)


def test_an_empty_key_is_refused():
    with pytest.raises(InvalidKey, match="empty"):
        check("")


def test_the_limit_counts_bytes_not_characters():
    assert check("é" * (MAX_KEY_BYTES // 2))
    with pytest.raises(InvalidKey, match=f"at most {MAX_KEY_BYTES} bytes"):
        check("é" * (MAX_KEY_BYTES // 2) + "x")
    with pytest.raises(InvalidKey, match="bytes"):
        check("x" * (MAX_KEY_BYTES + 1))


@pytest.mark.situation(33)
def test_a_huge_key_is_refused_unread(monkeypatch):
    """Only its length is asked for: no pattern runs over it, and the message shows its beginning."""
    monkeypatch.setattr("semel.core.keys.re.search", None)
    huge = "x" * 2_000_000
    for refuse in (check, part, Key):
        with pytest.raises(InvalidKey) as caught:
            refuse(huge)
        assert len(str(caught.value)) < 200


# --- Qualified names -------------------------------------------------------------------------------


def test_a_qualified_name_is_environment_scope_and_key():
    assert prefix("prod", "shop") + "charge:1/2" == "prod/shop/charge:1/2"
    assert prefix("prod", "") + "k" == "prod//k"
    assert prefix("prod", "a/b%") == "prod/a%2Fb%25/"


@given(*[st.tuples(awkward, st.just("") | awkward, awkward)] * 2)
def test_two_qualified_names_are_the_same_only_if_all_three_are(one, other):
    assert (prefix(*one[:2]) + one[2] == prefix(*other[:2]) + other[2]) == (one == other)


@pytest.mark.parametrize(
    ("env", "scope"),
    [("", "s"), ("e" * 129, ""), ("dev", "s" * 129), ("d\n", ""), ("dev", "\x85"), ("dev", "\ud800")],
)
def test_an_environment_or_scope_that_names_nothing_is_refused(env, scope):
    with pytest.raises(InvalidKey):
        prefix(env, scope)


def test_the_longest_names_and_key_fit_a_dynamodb_partition_key():
    longest = prefix("/" * MAX_NAME_BYTES, "%" * MAX_NAME_BYTES) + "k" * MAX_KEY_BYTES
    assert len(longest) <= 2048


def test_a_scope_that_is_not_text_is_refused():
    with pytest.raises(InvalidKey, match="a scope is text, not None"):
        prefix("dev", None)  # type: ignore[arg-type]


# --- Binders ---------------------------------------------------------------------------------------

MARK = object()


def plain(a, b): ...
def nothing(): ...
def defaults(a, b=MARK, c=None): ...
def positional(a, b=2, /, c=3): ...
def positional_last(a, b=2, /): ...
def keywords(a, *, b, c=3): ...
def only_keywords(*, b, c=MARK): ...
def star(a, *rest, b=1): ...
def stars(*args, **kwargs): ...
def everything(a, b=2, /, c=3, *rest, d, e=5, **more): ...
def hidden(a, /, **more): ...
def shadowing(default_0, default_1=MARK, bind=3, *, dict=4, type=5): ...  # noqa: A002


class Shop:
    def method(self, order, amount=1): ...
    @classmethod
    def by_class(cls, order): ...
    @staticmethod
    def static(order, *, amount=1): ...
    def private(self, __x=1): ...  # noqa: PYI063  # its name is mangled
    def __call__(self, order): ...


def documented(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


ZOO = [
    plain, nothing, defaults, positional, positional_last, keywords, only_keywords, star, stars, everything,
    hidden, shadowing, Shop.method, Shop().method, Shop.by_class, Shop.static, Shop.private, Shop(),
    functools.partial(everything, 1, e=9), functools.partial(plain, b=2), documented(keywords),
    lambda x, y=1: None,
]  # fmt: skip

CALLS = [
    ((), {}), ((1,), {}), ((1, 2), {}), ((1, 2, 3), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"b": 2}),
    ((), {"a": 1, "b": 2}), ((1,), {"a": 2}), ((), {"b": 1}), ((1, 2), {"d": 4}), ((1,), {"d": 4, "z": 9}),
    ((), {"order": 1}), ((1,), {"order": 2, "amount": 3}), ((), {"x": 1}), ((1,), {"_Shop__x": 2}),
    ((1,), {"b": 2, "b2": 3}), ((1,), {"dict": 2}), ((), {"args": 1, "kwargs": 2}),
]  # fmt: skip


def bound_by_inspect(function, args, kwargs):
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return list(bound.arguments.items())


@pytest.mark.parametrize("function", ZOO, ids=lambda one: getattr(one, "__qualname__", type(one).__name__))
def test_a_binder_takes_what_the_function_takes_and_binds_as_inspect_does(function):
    bind = compile_binder(function)
    for args, kwargs in CALLS:
        try:
            function(*args, **kwargs)
        except TypeError:
            with pytest.raises(TypeError):
                bind(*args, **kwargs)
        else:
            assert list(bind(*args, **kwargs).items()) == bound_by_inspect(function, args, kwargs)


def test_a_binder_gives_defaults_by_reference():
    assert compile_binder(defaults)(1)["b"] is MARK


def test_a_wrong_call_names_the_function():
    with pytest.raises(TypeError, match=r"Shop\.method\(\) missing 1 required positional argument: 'order'"):
        compile_binder(Shop.method)(Shop())
    with pytest.raises(TypeError, match=r"Shop\(\) got an unexpected keyword argument 'x'"):
        compile_binder(Shop())(1, x=2)


# --- Templates -------------------------------------------------------------------------------------


def key_of(template, function, *args, **kwargs):
    return compile_template(template, inspect.signature(function))(compile_binder(function)(*args, **kwargs))


def charge(order, items=(), *, meta=None): ...


def test_a_template_takes_parameters_attributes_and_items():
    order = SimpleNamespace(id="o-1", customer=SimpleNamespace(id=7))
    template = "charge:{order.id}:{order.customer.id}:{items[0]}:{meta[kind]}"
    assert key_of(template, charge, order, ["i"], meta={"kind": "x"}) == "charge:o-1:7:i:x"


@pytest.mark.parametrize("value", ["x:y", "%3A", "a\u00a0b", 50, UUID(int=1)])
def test_a_template_gives_the_key_that_its_parts_would_give(value):
    assert key_of("charge:{a}:{b}", plain, value, 50) == Key("charge", value, 50)


@given(awkward, awkward, awkward, awkward)
def test_a_template_gives_two_calls_one_key_only_if_they_are_the_same(a, b, c, d):
    assert (key_of("{a}-:{b}", plain, a, b) == key_of("{a}-:{b}", plain, c, d)) == ((a, b) == (c, d))


def test_values_are_escaped_and_the_template_is_not():
    assert key_of("50%:{{x}}:{a}:end", plain, "a:b%", 0) == "50%:{x}:a%3Ab%25:end"


def test_a_name_that_is_no_parameter_is_looked_up_in_the_keyword_arguments():
    assert key_of("{region}:{a}", hidden, 1, region="eu") == "eu:1"
    assert key_of("{kwargs[region]}:{args[1]}", stars, 1, 2, region="eu") == "eu:2"


def test_a_template_may_reach_into_self():
    assert key_of("{self.id}:{order}", Shop.method, SimpleNamespace(id="s"), 1) == "s:1"


def test_a_function_without_parameters_may_have_one_key():
    assert key_of("nightly", nothing) == "nightly"
    assert key_of("nightly", lambda self: None, object()) == "nightly"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("charge:{order_id}", "names no parameter of the function, which has: order, items, meta"),
        ("charge", "every call would share one key"),
        ("", "must not be empty"),
        ("{order!r}", "conversion or a format"),
        ("{order:>10}", "conversion or a format"),
        ("{order:{items}}", "conversion or a format"),
        ("{order", "is not a template"),
        ("order}", "is not a template"),
        ("{}", "is no field"),
        ("{0}", "names no parameter"),
        ("{order.}", "is no field"),
        ("{order..id}", "is no field"),
        ("{items[]}", "is no field"),
        ("{items[0}", "is not a template|is no field"),
        ("{items[0]x}", "is no field"),
        ("{order}{items}", "needs a ':' before {items}"),
        ("{order}-{items}", "needs a ':' before {items}"),
        ("a\n{order}", "control characters"),
        ("a\ud800{order}", "surrogates"),
        pytest.param("x" * 1025 + "{order}", "at most 1024 bytes", id="long"),
    ],
)
def test_a_template_that_cannot_work_is_refused_when_it_is_compiled(template, says):
    with pytest.raises(TemplateError, match=says):
        compile_template(template, inspect.signature(charge))


def test_no_text_in_a_template_becomes_code():
    template = """it's "{{quoted}}" \\ '+1/0+':{order[') + 1/0 + (']}:{order[""" + '"""+1/0]}"'
    order = {"') + 1/0 + ('": "x", '"""+1/0': "y"}
    assert key_of(template, charge, order) == """it's "{quoted}" \\ '+1/0+':x:y\""""


@pytest.mark.parametrize(
    ("template", "arguments", "cause"),
    [
        ("{order.id}", (object(),), AttributeError),
        ("{order.id}", (None,), AttributeError),
        ("{items[3]}", (1, []), IndexError),
        ("{items[kind]}", (1, {}), KeyError),
        ("{order[0]}", (1,), TypeError),
    ],
)
def test_what_a_call_does_not_have_is_named(template, arguments, cause):
    with pytest.raises(TemplateError) as caught:
        key_of(f"charge:{template}", charge, *arguments)
    assert f"{template} of 'charge:{template}' was not found" in str(caught.value)
    assert type(caught.value.__cause__) is cause


def test_a_missing_keyword_argument_is_named():
    with pytest.raises(
        TemplateError, match=r"\{region\} of 'x:\{region\}' was not found: KeyError: 'region'"
    ):
        key_of("x:{region}", hidden, 1)


@pytest.mark.parametrize("value", [None, "", 1.5, True, "a\nb", "x" * 2000])
def test_a_value_that_names_nothing_is_refused_with_its_field(value):
    with pytest.raises(InvalidKey, match=r"\{order\} of 'charge:\{order\}'"):
        key_of("charge:{order}", charge, value)


def test_parts_that_fit_alone_but_not_together_are_refused():
    with pytest.raises(InvalidKey, match="at most"):
        key_of("{a}:{b}", plain, "x" * 600, "y" * 600)
    assert len(key_of("{a}:{b}", plain, "x" * 500, "y" * 500)) == 1001
