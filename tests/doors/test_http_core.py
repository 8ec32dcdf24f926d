"""The HTTP core: what it reads, what it names, what it answers, and how a request under its key ends."""

import base64
import functools
import hashlib
import io
import json
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import semel
from semel.core.running import CURRENT
from semel.doors import wsgi
from semel.doors.http import (
    ANYONE,
    KEPT_HEADERS,
    AdmittedKey,
    HTTPResponse,
    Idempotency,
    RequestHead,
    StoredResponse,
    publish,
)
from semel.doors.http.exchange import Exchange
from semel.doors.http.field import BadField, read_key, read_seconds
from semel.doors.http.publish import key_pattern, policy_document
from semel.doors.http.responses import PROBLEMS, NotStored, Recording, problem, replay
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty

WELL_KNOWN = "/.well-known/idempotency-key"
DAY = 86400.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def s(clock: FakeClock) -> Iterator[semel.Semel]:
    with semel.connect("memory:", clock=clock) as ledger:
        yield ledger


@pytest.fixture(autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    """What one test leaves running is not another one's affair."""
    yield
    CURRENT.set(None)


def anyone(s: semel.Semel, **options: Any) -> Idempotency:
    return Idempotency(s, identity=ANYONE, **options)


def known(s: semel.Semel, **options: Any) -> Idempotency:
    """A policy that takes what stands in for the framework's request for the caller's name."""
    return Idempotency(s, identity=lambda native: native, **options)


def request_of(
    key: str | None = '"k"',
    *,
    method: str = "POST",
    path: str = "/pay",
    query: str = "",
    native: Any = None,
    root: str = "",
    **headers: str,
) -> RequestHead:
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        told["idempotency-key"] = key
    return RequestHead(method, path, query, told, native, root)


def admitted(idempotency: Idempotency, request: RequestHead | None = None) -> AdmittedKey:
    ticket = idempotency.admit(request or request_of())
    assert isinstance(ticket, AdmittedKey), ticket
    return ticket


def rejected(idempotency: Idempotency, request: RequestHead) -> HTTPResponse:
    answer = idempotency.admit(request)
    assert isinstance(answer, HTTPResponse), answer
    return answer


def begun(idempotency: Idempotency, request: RequestHead | None = None, body: bytes = b"{}") -> Exchange:
    exchange = Exchange(idempotency, admitted(idempotency, request), body)
    assert exchange.begin() is None
    return exchange


def asked(idempotency: Idempotency, request: RequestHead | None = None, body: bytes = b"{}") -> HTTPResponse:
    """The answer to a request whose handler does not get to run."""
    answer = Exchange(idempotency, admitted(idempotency, request), body).begin()
    assert answer is not None
    return answer


def told(answer: HTTPResponse) -> dict[str, Any]:
    """What a problem says, by the rules that all problems keep."""
    headers = {name.lower(): value for name, value in reversed(answer.headers)}
    assert headers["content-type"] == "application/problem+json"
    assert headers["cache-control"] == "no-store"
    assert headers["content-length"] == str(len(answer.body))
    assert 'rel="describedby"' in headers["link"]
    found: dict[str, Any] = json.loads(answer.body)
    assert found["status"] == answer.status
    if "retry_after" in found:
        assert headers["retry-after"] == str(found["retry_after"])
    return found


def kind(answer: HTTPResponse) -> str:
    return str(told(answer)["type"]).rpartition("#")[2]


def header(answer: HTTPResponse, name: str) -> list[str]:
    return [value for key, value in answer.headers if key.lower() == name.lower()]


# The field: a String of RFC 9651, or the same without its quotes


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40)
NAMES = st.from_regex(r"[a-z*][a-z0-9_.*-]{0,8}", fullmatch=True)
VALUES = st.one_of(
    st.none(),
    st.integers(-(10**15) + 1, 10**15 - 1).map(str),
    st.integers(0, 10**9).map(lambda number: f"{number}.125"),
    PRINTABLE.map(quoted),
    st.from_regex(r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]{0,8}", fullmatch=True),
    st.binary(max_size=8).map(lambda data: f":{base64.b64encode(data).decode()}:"),
    st.sampled_from(["?0", "?1", "@1659578233", '%"f%c3%bc"', '%"say %22no%22"']),
)
PARAMETERS = st.lists(st.tuples(st.sampled_from(["", " ", "  "]), NAMES, VALUES), max_size=3).map(
    lambda many: "".join(
        f";{gap}{name}" + ("" if value is None else f"={value}") for gap, name, value in many
    )
)


@pytest.mark.draft("2.1")
@given(PRINTABLE.filter(bool), PARAMETERS, st.booleans())
@example("k", ';t=%"f%c3%bc"', True)
def test_a_string_of_the_rfc_is_read_as_what_it_stands_for(text: str, parameters: str, strict: bool) -> None:
    assert read_key(quoted(text) + parameters, strict=strict, longest=255) == text


@given(st.text(st.characters(max_codepoint=0xFF), max_size=60), st.booleans())
@example('"', False)
@example('"a" "b"', False)
@example('"a\\', True)
def test_whatever_a_client_sends_is_a_key_or_is_refused(text: str, strict: bool) -> None:
    try:
        key = read_key(text, strict=strict, longest=20)
    except BadField:
        return
    assert 0 < len(key) <= 20
    assert key.isascii()
    assert key.isprintable()
    if not text.strip(" \t").startswith('"'):
        assert not strict
        assert key == text.strip(" \t")


@pytest.mark.draft("2.1")
@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        '""',
        '"',
        '"a',
        'a"',
        '"a"b',
        '"a", "a"',  # as two headers of the same name are read
        "a, a",
        "a,b",
        "a;b",
        "a b",
        "a\\b",
        '"a\\b"',
        '"a\tb"',
        '"a\x7fb"',
        '"\xe9"',
        "\xe9",
        "'a' b",
        '"a";',
        '"a";=1',
        '"a";B=1',
        '"a";b=',
        '"a";b="c',
        '"a"\n',
        "a\n",
        "(a b)",
    ],
)
def test_what_is_no_single_string_is_refused(value: str) -> None:
    with pytest.raises(BadField):
        read_key(value, strict=False, longest=255)


@pytest.mark.draft("2.1")
def test_a_key_without_its_quotes_is_the_same_key_unless_the_policy_is_strict() -> None:
    assert read_key("8e03-40d5", strict=False, longest=255) == read_key(
        '"8e03-40d5"', strict=True, longest=255
    )
    with pytest.raises(BadField, match="double quotes"):
        read_key("8e03-40d5", strict=True, longest=255)


def test_the_longest_key_is_counted_without_its_quotes_and_escapes() -> None:
    assert len(read_key(quoted('"' * 255), strict=True, longest=255)) == 255
    for value in ("x" * 256, quoted("x" * 256), '"x"' + ";p=1" * 100_000, "x" * 1_000_000):
        with pytest.raises(BadField):
            read_key(value, strict=False, longest=255)


@pytest.mark.parametrize("key", ['""', "", f'"{"x" * 256}"', "x" * 256, "x" * 5000, "a b", '"a'])
def test_the_answer_to_a_bad_key_says_what_a_good_one_is(s: semel.Semel, key: str) -> None:
    """It reads "... cannot be used unless X", so X has to be what is asked for, and not what went wrong."""
    detail = told(rejected(anyone(s), request_of(key)))["detail"]
    assert "unless it is longer" not in detail
    assert "unless it must not" not in detail


@pytest.mark.parametrize("value", ["60", " 3600\t", "86400", "0060"])
def test_a_time_within_the_bounds_is_taken(value: str) -> None:
    assert read_seconds(value, 60, 86400) == int(value)


@pytest.mark.parametrize("value", ["59", "86401", "-1", "+60", "60.0", "1e3", "", "٣٠٠", "60, 60", "9" * 400])
def test_any_other_time_is_refused(value: str) -> None:
    with pytest.raises(BadField, match="from 60 to 86400"):
        read_seconds(value, 60, 86400)


# Requests in


@pytest.mark.draft("2.7a")
def test_a_request_without_a_key_is_rejected_or_left_alone_as_the_policy_says(s: semel.Semel) -> None:
    answer = rejected(anyone(s), request_of(None))
    assert (answer.status, kind(answer)) == (400, "key-missing")
    assert anyone(s, required=False).admit(request_of(None)) is None
    assert kind(rejected(anyone(s, required=False), request_of(""))) == "key-malformed"


def test_methods_are_protected_however_they_are_written(s: semel.Semel) -> None:
    """Werkzeug and Django take "post" for POST: it must not be the way around the policy."""
    idempotency = anyone(s, methods=("post", "Patch"))
    assert [method for method in ("POST", "PATCH", "post", "GET") if idempotency.protects(method)] == [
        "POST",
        "PATCH",
        "post",
    ]


@pytest.mark.parametrize("option", [{"methods": "POST"}, {"headers": "location"}])
def test_one_word_is_not_taken_for_its_letters(s: semel.Semel, option: dict[str, Any]) -> None:
    """A policy that protects the methods P, O, S and T protects nothing."""
    with pytest.raises(semel.InvalidOption):
        anyone(s, **option)


@pytest.mark.parametrize("length", ["-1", "+5", "٣", "1e9", "", "abc", "5, 5", "0" * 5000 + "9", "²", "\x00"])
def test_a_length_that_is_none_decides_nothing(s: semel.Semel, length: str) -> None:
    assert isinstance(anyone(s, max_body=10).admit(request_of(content_length=length)), AdmittedKey)


@pytest.mark.parametrize("length", ["11", "9" * 400, "0011"])
def test_a_length_that_is_too_much_is_refused_before_anything_is_read(s: semel.Semel, length: str) -> None:
    answer = rejected(anyone(s, max_body=10), request_of(content_length=length))
    assert (answer.status, kind(answer)) == (413, "body-too-large")


@pytest.mark.parametrize("length", ["0" * 5000 + "3", "3"])
def test_a_length_of_any_form_is_read_by(length: str) -> None:
    environ = {"CONTENT_LENGTH": length, "wsgi.input": io.BytesIO(b"abcdef")}
    assert wsgi.read(environ, 100) == b"abc"


@pytest.mark.seed("M4")
def test_a_chosen_time_is_kept_within_the_bounds(s: semel.Semel, clock: FakeClock) -> None:
    idempotency = anyone(s, expiry=(60, 3600))
    exchange = begun(idempotency, request_of(idempotency_expiry_seconds="90"))
    assert exchange.keep(200, [], b"") is None
    assert exchange.run is not None
    record = s.ledger.get(exchange.run.key)
    assert record is not None
    assert record.expires_at == clock.now() + 90
    assert kind(rejected(idempotency, request_of(idempotency_expiry_seconds="59"))) == "expiry-malformed"
    assert kind(rejected(anyone(s), request_of(idempotency_expiry_seconds="90"))) == "expiry-malformed"


@pytest.mark.parametrize("expiry", [(10, 60), (60, 10), (0, 60)])
def test_bounds_that_cannot_be_kept_are_refused_when_the_policy_is_made(
    s: semel.Semel, expiry: tuple[float, float]
) -> None:
    with pytest.raises(semel.InvalidOption):
        anyone(s, expiry=expiry)


@pytest.mark.parametrize("options", [{}, {"horizon": 3600, "ttl": 7200}])
def test_bounds_below_the_horizon_are_refused_when_the_policy_is_made(options: dict[str, Any]) -> None:
    """Or the request that chooses such a time would fail where nobody can mend it."""
    with (
        semel.connect("memory:", horizon=None if options else 3600) as s,
        pytest.raises(semel.InvalidOption),
    ):
        anyone(s, expiry=(60, 7200), **options)


# Names: two requests share one only if they are one


TEXTS = st.one_of(
    st.text(max_size=30),
    st.text("/:%>ab", max_size=12),
    st.text(st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF), max_size=3),
    st.integers(100, 9000).map(lambda length: "/" + "x" * length),
    st.binary(max_size=20).map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.text("\x00\n\r\t\x7f\x85\u2028a/", max_size=8),
)
ASCII = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255)
REQUESTS = st.tuples(st.sampled_from(["POST", "PATCH"]), TEXTS, ASCII, TEXTS.filter(bool))
Asking = tuple[str, str, str, str]


@functools.cache
def naming() -> Idempotency:
    return known(semel.connect("memory:", clock=FakeClock()))


def name_of(asking: Asking, idempotency: Idempotency | None = None) -> str:
    """The qualified name under which a request is claimed."""
    method, path, key, owner = asking
    exchange = begun(
        idempotency or naming(), request_of(quoted(key), method=method, path=path, native=owner), b""
    )
    assert exchange.run is not None
    name = exchange.run.claim.id
    exchange.fail(RuntimeError("that was all"))
    return name


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@pytest.mark.draft("2.2b", "5c")
@pytest.mark.situation(30)
@settings(max_examples=300)
@given(REQUESTS, REQUESTS)
def test_different_requests_have_different_names_and_equal_ones_the_same(one: Asking, other: Asking) -> None:
    assert (name_of(one) == name_of(other)) == (one == other)


@settings(max_examples=300)
@given(REQUESTS, st.sampled_from([1, 2, 3]), st.data())
def test_who_sends_what_stands_for_another_text_does_not_get_its_name(
    asking: Asking, at: int, data: st.DataObject
) -> None:
    """Whatever is escaped or hashed for one request can be sent as it is by another."""
    text = asking[at]
    ways = [
        hashed(text),
        text.replace("%", "%25").replace(":", "%3A").replace(">", "%3E"),
        text + ":",
        text + ">",
    ]
    forged = data.draw(st.sampled_from(ways))
    assume(forged != text)
    assume(at != 2 or len(forged) <= 255)
    other = [*asking]
    other[at] = forged
    assert name_of(asking) != name_of((other[0], other[1], other[2], other[3]))


@pytest.mark.parametrize("at", [1, 2, 3], ids=["path", "key", "owner"])
def test_a_hash_in_the_place_of_a_long_text_is_not_a_text_that_somebody_can_send(at: int) -> None:
    asking: list[str] = ["POST", "/pay", "k", "ann"]
    asking[at] = "/" + "x" * 240
    forged = [*asking]
    forged[at] = hashed(asking[at])
    assert name_of(tuple(asking)) != name_of(tuple(forged))  # type: ignore[arg-type]


def test_parts_do_not_run_into_each_other() -> None:
    """A path that ends as a key begins, and the like."""
    assert name_of(("POST", "/a:b", "c", "ann")) != name_of(("POST", "/a", "b:c", "ann"))
    assert name_of(("POST", "/a", "k", "ann/x")) != name_of(("POST", "/a", "k", "ann%2Fx"))
    assert name_of(("POST", "/a", "k>step", "ann")) != name_of(("POST", "/a", "k", "ann")) + ">step"


@pytest.mark.parametrize("max_key", [255, 1024, 5000])
def test_a_key_as_long_as_the_policy_allows_is_taken(s: semel.Semel, max_key: int) -> None:
    admitted(anyone(s, max_key=max_key), request_of("x" * max_key))
    admitted(anyone(s, max_key=max_key), request_of(quoted('"' * max_key)))


OWNERS = [
    "",
    "ann",
    "a/b",
    "a:b",
    "a%3Ab",
    "a%2Fb",
    "x" * 10_000,
    "é" * 300,
    "new\nline",
    "\x00",
    "\ud800",
    "\udcff",
]


@pytest.mark.draft("5c")
@pytest.mark.situation(30)
@pytest.mark.parametrize("scope", ["", "shop", "shop:eu/1"])
def test_every_caller_has_keys_of_its_own_whatever_the_name(s: semel.Semel, scope: str) -> None:
    idempotency = known(s.scoped(scope))
    names = {name_of(("POST", "/pay", "k", owner), idempotency) for owner in OWNERS if owner}
    assert len(names) == len(OWNERS) - 1


def test_names_that_differ_in_half_characters_alone_are_different_names(s: semel.Semel) -> None:
    owners = ["\ud800" * 200, "?" * 200, "\udfff" * 200]
    assert len({name_of(("POST", "/pay", "k", owner), known(s)) for owner in owners}) == 3


@pytest.mark.parametrize("nobody", ["", None, False, True, b"ann", ["ann"]])
def test_who_has_no_name_has_no_keys(s: semel.Semel, nobody: Any) -> None:
    answer = rejected(known(s), request_of(native=nobody))
    assert (answer.status, kind(answer)) == (401, "not-authenticated")
    assert s.ledger.list().records == ()


def test_a_number_names_somebody_too(s: semel.Semel) -> None:
    assert len({name_of(("POST", "/pay", "k", owner), known(s)) for owner in (0, 7, 70)}) == 3  # type: ignore[arg-type]


def test_an_identity_that_fails_lets_nothing_in(s: semel.Semel) -> None:
    def broken(_native: Any) -> str:
        raise KeyError("user")

    with pytest.raises(KeyError):
        Idempotency(s, identity=broken).admit(request_of())
    assert s.ledger.list().records == ()
    with pytest.raises(semel.InvalidOption, match="ANYONE"):
        Idempotency(s, identity=None)  # type: ignore[arg-type]


def test_a_key_of_the_scopes_own_work_is_not_a_key_of_its_callers(s: semel.Semel) -> None:
    outer, inner = anyone(s.scoped("shop")), known(s.scoped("shop"))
    assert begun(outer, request_of()).keep(200, [], b"mine") is None
    assert begun(inner, request_of(native="shop")).keep(200, [], b"yours") is None
    assert asked(outer).body == b"mine"


@pytest.mark.draft("5c")
@pytest.mark.situation(51)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("shop", "alice"), ("", "shop:alice")),
        (("shop", None), ("", "shop")),
        (("shop:alice", None), ("shop", "alice")),
        (("a:b", "c"), ("a", "b:c")),
        (("", "a:b"), ("", "a%3Ab")),
        (("x" * 100, "y" * 100), ("", f"{'x' * 100}:{'y' * 100}")),
    ],
)
def test_nobody_is_given_the_response_of_another_owner_or_scope(
    s: semel.Semel, one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    def policy(scope: str, owner: str | None) -> Idempotency:
        return known(s.scoped(scope)) if owner else anyone(s.scoped(scope))

    for (scope, owner), body in ((one, b"mine"), (other, b"yours")):
        assert begun(policy(scope, owner), request_of(native=owner)).keep(200, [], body) is None
    for (scope, owner), body in ((one, b"mine"), (other, b"yours")):
        assert asked(policy(scope, owner), request_of(native=owner)).body == body


def test_no_request_makes_the_policy_remember_more_than_a_little(s: semel.Semel) -> None:
    """Paths and callers are the client's to choose, a new one for every request."""
    idempotency = anyone(s)
    for number in range(300):
        admitted(idempotency, request_of(path=f"/{number}/" + "x" * 60_000))
    held = sum(len(path) for _, path in idempotency._operations)
    assert held < 1_000_000


# Fingerprints


BODIES = [
    b"",
    b"{}",
    b"{ }",
    b"[1]",
    b"\xff\xfe",
    b'{"a":1,"a":2}',
    b"1" * 5000,
    b"[" * 100_000,
    b'"\\ud800"',
    b"NaN",
]


@pytest.mark.draft("2.4a", "2.4b")
@pytest.mark.parametrize("payload", ["bytes", "json"])
def test_any_body_has_a_fingerprint_and_other_bodies_have_others(s: semel.Semel, payload: Any) -> None:
    idempotency = anyone(s, payload=payload)
    ticket = admitted(idempotency)
    prints = [idempotency.fingerprint(ticket, body) for body in BODIES]
    assert len(set(prints)) == len(BODIES) - (payload == "json")  # {} and { } are one JSON


@pytest.mark.draft("2.4b")
@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(), st.lists))
def test_the_form_of_a_json_body_does_not_count(value: Any) -> None:
    idempotency = Idempotency(naming().s, identity=ANYONE, payload="json")
    ticket = admitted(idempotency)
    wide, narrow = json.dumps(value, indent=3).encode(), json.dumps(value, ensure_ascii=False)
    assume("".join(set(narrow)) < "\ud800" or narrow.isprintable())
    try:
        assert idempotency.fingerprint(ticket, wide) == idempotency.fingerprint(ticket, narrow.encode())
    except UnicodeEncodeError:
        assume(False)  # half a character has no bytes to send


def test_the_query_counts_and_does_not_run_into_the_body(s: semel.Semel) -> None:
    idempotency = anyone(s)
    asking = [("", b"a=1"), ("a=1", b""), ("a=1", b"a=1"), ("a=\udcff", b"")]
    prints = {
        idempotency.fingerprint(admitted(idempotency, request_of(query=query)), body)
        for query, body in asking
    }
    assert len(prints) == len(asking)


@pytest.mark.draft("2.4b")
def test_a_payload_of_ones_own_is_made_of_the_request_and_its_body(s: semel.Semel) -> None:
    idempotency = anyone(s, payload=lambda native, body: [native, len(body)])

    def of(native: Any, body: bytes) -> str:
        return idempotency.fingerprint(admitted(idempotency, request_of(native=native)), body)

    assert of("a", b"xx") == of("a", b"yy") != of("b", b"xx")
    # What has no canonical form still has bytes.
    assert of(object(), b"xx") != of(object(), b"yy")
    with pytest.raises(semel.InvalidOption, match="payload"):
        anyone(s, payload="xml")


def test_a_secret_hides_the_payload_from_who_can_guess_it() -> None:
    prints = set()
    for secret in (b"one", b"two"):
        with semel.connect("memory:", secret=secret) as s:
            idempotency = anyone(s)
            prints.add(idempotency.fingerprint(admitted(idempotency), b"{}"))
    assert len(prints) == 2


# A request under its key


@pytest.mark.draft("2.3b", "2.6b")
def test_a_response_is_kept_and_given_again(s: semel.Semel, clock: FakeClock) -> None:
    idempotency = anyone(s)
    headers = [
        ("Content-Type", "text/plain"),
        ("Location", "/1"),
        ("Link", "</a>"),
        ("Link", "</b>"),
        ("Set-Cookie", "session=1"),
        ("Authorization", "x"),
        ("X-Trace", "1"),
        ("Content-Length", "4"),
    ]
    assert begun(idempotency).keep(201, headers, b"made") is None
    answer = asked(idempotency)
    assert (answer.status, answer.body) == (201, b"made")
    assert answer.headers[:4] == headers[:4]
    assert header(answer, "Content-Length") == ["4"]
    assert header(answer, "Idempotent-Replayed") == ["true"]
    assert header(answer, "Idempotency-Expires") == ["Wed, 15 Nov 2023 22:13:20 GMT"]
    assert {name.lower() for name, _ in answer.headers}.isdisjoint({"set-cookie", "authorization", "x-trace"})


@pytest.mark.parametrize(
    "body", [b"", b"plain", "äöü€😀".encode(), b"\xff\x00\xfe", b"null", b"NaN", "\ufeff".encode()]
)
def test_any_body_comes_back_as_it_went_in(s: semel.Semel, body: bytes) -> None:
    assert begun(anyone(s)).keep(200, [], body) is None
    assert asked(anyone(s)).body == body


@pytest.mark.parametrize("status", [204, 304])
def test_what_has_no_body_has_no_length(status: int) -> None:
    assert header(replay(StoredResponse(status, [], text=""), 1.7e9, WELL_KNOWN), "Content-Length") == []


@pytest.mark.parametrize("ttl", [1.0, 1e9, 1e12, 1e15])
def test_a_response_is_given_again_however_long_it_is_remembered(s: semel.Semel, ttl: float) -> None:
    idempotency = anyone(s, lease=0.5, ttl=ttl)
    assert begun(idempotency).keep(200, [], b"kept") is None
    assert asked(idempotency).body == b"kept"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_body_larger_than_is_kept_leaves_its_status_and_where_the_thing_is(
    s: semel.Semel, streamed: bool
) -> None:
    idempotency = anyone(s, max_kept=10)
    exchange = begun(idempotency)
    headers = [("Location", "/1"), ("Content-Type", "text/plain"), ("ETag", '"1"'), ("Last-Modified", "x")]
    if streamed:
        assert b"".join(exchange.stream(201, headers, [b"x"] * 11)) == b"x" * 11
    else:
        assert exchange.keep(201, headers, b"x" * 11) is None
    answer = asked(idempotency)
    assert (answer.status, kind(answer)) == (201, "result-not-kept")
    assert header(answer, "Idempotency-Body") == ["not-kept"]
    assert header(answer, "Idempotent-Replayed") == ["true"]
    assert header(answer, "Location") == ["/1"]
    assert header(answer, "Content-Type") == ["application/problem+json"]
    # They are about the body that is not there.
    assert header(answer, "ETag") == header(answer, "Last-Modified") == []


def test_ten_bytes_of_ten_are_kept(s: semel.Semel) -> None:
    idempotency = anyone(s, max_kept=10)
    assert begun(idempotency).keep(200, [], b"x" * 10) is None
    assert asked(idempotency).body == b"x" * 10


def test_a_result_that_the_store_has_no_room_for_does_not_run_again(clock: FakeClock) -> None:
    with semel.connect("memory:", clock=clock, max_result_bytes=100) as s:
        assert begun(anyone(s)).keep(200, [], b"x" * 1000) is None
        answer = asked(anyone(s))
        assert (answer.status, kind(answer)) == (410, "result-not-kept")


def test_a_record_that_cannot_be_read_does_not_run_again(s: semel.Semel) -> None:
    exchange = begun(anyone(s))
    assert exchange.run is not None
    s.ledger.complete(exchange.run.claim, {"nothing": "that a response could be made of"})
    answer = apart(asked, anyone(s))
    assert (answer.status, kind(answer)) == (410, "result-not-kept")


@pytest.mark.draft("2.7b")
def test_another_payload_is_refused_and_changes_nothing(s: semel.Semel) -> None:
    assert begun(anyone(s), body=b"1").keep(200, [], b"one") is None
    assert kind(asked(anyone(s), body=b"2")) == "payload-changed"
    assert kind(asked(anyone(s), request_of(query="a=1"), b"1")) == "payload-changed"
    assert asked(anyone(s), body=b"1").body == b"one"


@pytest.mark.draft("2.7c")
def test_while_one_is_at_work_the_next_is_told_when_to_come_and_where_to_ask(
    s: semel.Semel, clock: FakeClock
) -> None:
    exchange = begun(anyone(s))
    try:
        # In a context of its own, as another request is.
        answer = apart(asked, anyone(s))
        found = told(answer)
        assert (answer.status, kind(answer), found["retry_after"]) == (409, "in-progress", 5)
        assert f'<{found["status_url"]}>; rel="status"; type="application/json"' in header(answer, "Link")
        clock.advance(29)
        assert told(apart(asked, anyone(s)))["retry_after"] == 1
    finally:
        exchange.fail(RuntimeError())


def apart(function: Any, *args: Any) -> Any:
    """Call a function outside the run that is under way."""
    from contextvars import Context

    return Context().run(function, *args)


def test_a_request_inside_itself_is_refused_instead_of_waiting_for_ever(s: semel.Semel) -> None:
    idempotency = anyone(s, on_busy="wait")
    exchange = begun(idempotency)
    assert asked(idempotency).status == 409
    inner = begun(idempotency, request_of('"another"'))
    assert semel.current_run() is inner.run
    assert inner.keep(200, [], b"") is None
    assert semel.current_run() is exchange.run
    assert exchange.keep(200, [], b"") is None
    with pytest.raises(LookupError):
        semel.current_run()


@pytest.mark.draft("2.6b")
def test_a_server_error_gives_the_key_back_and_so_does_an_exception(s: semel.Semel) -> None:
    for attempt, end in enumerate(
        [
            lambda exchange: exchange.keep(500, [], b"oh"),
            lambda exchange: exchange.fail(RuntimeError("oh")),
            lambda exchange: exchange.keep(200, [], b"done"),
        ],
        1,
    ):
        exchange = begun(anyone(s))
        assert exchange.run is not None
        assert exchange.run.attempt == attempt
        assert end(exchange) is None
    assert asked(anyone(s)).body == b"done"


@pytest.mark.draft("2.6b")
def test_which_statuses_are_kept_is_the_policys_to_say(s: semel.Semel) -> None:
    idempotency = anyone(s, keep=lambda status: status == 500)
    assert begun(idempotency).keep(200, [], b"given back") is None
    assert begun(idempotency).keep(500, [], b"kept") is None
    assert asked(idempotency).body == b"kept"


RETRY_AFTER = ("Retry-After", "7")


@pytest.mark.situation(61)
@pytest.mark.parametrize("status", [408, 423, 425, 429])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_asks_for_a_retry_releases_the_key_and_counts_no_attempt(
    s: semel.Semel, status: int, streamed: bool
) -> None:
    """However often, and whatever becomes of errors: the handler has not begun."""
    idempotency = anyone(s, max_attempts=2, on_error="keep")
    for _ in range(3):
        exchange = begun(idempotency)
        assert exchange.run is not None
        assert exchange.run.attempt == 1
        if streamed:
            assert b"".join(exchange.stream(status, [RETRY_AFTER], [b"not ", b"now"])) == b"not now"
        else:
            assert exchange.keep(status, [RETRY_AFTER], b"not now") is None
    assert begun(idempotency).keep(201, [], b"done") is None
    assert (asked(idempotency).status, asked(idempotency).body) == (201, b"done")


@pytest.mark.situation(61)
def test_a_503_with_retry_after_releases_the_key_as_an_error_does(s: semel.Semel) -> None:
    assert begun(anyone(s)).keep(503, [RETRY_AFTER], b"down") is None
    exchange = begun(anyone(s))
    assert exchange.run is not None
    assert exchange.run.attempt == 2
    assert exchange.keep(201, [], b"done") is None
    assert asked(anyone(s)).body == b"done"


@pytest.mark.situation(61)
@pytest.mark.parametrize("body", [b"down", b"x" * 100])
def test_a_response_that_the_policy_stores_is_replayed_with_its_retry_after(
    s: semel.Semel, body: bytes
) -> None:
    idempotency = anyone(s, keep=lambda status: status in (429, 503), max_kept=10)
    for status in (429, 503):
        request = request_of(f'"k-{status}"')
        assert begun(idempotency, request).keep(status, [RETRY_AFTER], body) is None
        answer = asked(idempotency, request)
        assert (answer.status, header(answer, "Retry-After")) == (status, ["7"])


def test_after_the_last_attempt_it_has_failed_for_good(s: semel.Semel) -> None:
    idempotency = anyone(s, max_attempts=2)
    for _ in range(2):
        assert begun(idempotency).keep(500, [], b"") is None
    answer = asked(idempotency)
    assert (answer.status, kind(answer)) == (409, "failed-before")


def test_an_attempt_that_vanished_is_held_where_the_policy_says_so(s: semel.Semel, clock: FakeClock) -> None:
    idempotency = anyone(s, on_lapsed="hold", heartbeat=False)
    apart(begun, idempotency)
    clock.advance(31)
    answer = asked(idempotency)
    assert (answer.status, kind(answer)) == (409, "outcome-unknown")
    assert told(answer)["status_url"]


def test_an_interrupted_attempt_is_in_doubt_and_an_error_is_not(s: semel.Semel) -> None:
    idempotency = anyone(s, on_lapsed="hold")
    assert begun(idempotency).fail(ValueError()) is None
    assert begun(idempotency).fail(KeyboardInterrupt()) is None
    assert kind(asked(idempotency)) == "outcome-unknown"


def test_a_zombie_is_told_and_its_answer_is_not_kept(s: semel.Semel, clock: FakeClock) -> None:
    idempotency = anyone(s, heartbeat=False)
    zombie = begun(idempotency)
    clock.advance(31)
    assert apart(begun, idempotency).keep(200, [], b"the other's") is None
    answer = zombie.keep(200, [], b"mine")
    assert answer is not None
    assert (answer.status, kind(answer)) == (409, "in-progress")
    assert asked(idempotency).body == b"the other's"


def test_what_stops_begins_nothing_and_still_gives_what_it_has(s: semel.Semel) -> None:
    idempotency = anyone(s)
    assert begun(idempotency).keep(200, [], b"kept") is None
    s.drain()
    answer = asked(idempotency, request_of('"another"'))
    assert (answer.status, kind(answer), told(answer)["retry_after"]) == (503, "unavailable", 1)
    assert asked(idempotency).body == b"kept"


# The store is down


@pytest.fixture
def store(clock: FakeClock) -> Faulty:
    return Faulty(MemoryStore(clock))


@pytest.fixture
def shaky(store: Faulty, clock: FakeClock) -> semel.Semel:
    return semel.Semel(store, clock=clock)


def test_without_its_store_nothing_begins(shaky: semel.Semel, store: Faulty) -> None:
    store.refuse()
    answer = asked(anyone(shaky))
    assert (answer.status, kind(answer)) == (503, "unavailable")
    store.lose_request(3)
    assert kind(asked(anyone(shaky))) == "unavailable"
    assert begun(anyone(shaky)).keep(200, [], b"") is None


def test_a_claim_whose_answer_was_lost_is_still_ones_own(shaky: semel.Semel, store: Faulty) -> None:
    store.lose_reply(2)
    assert begun(anyone(shaky)).keep(200, [], b"") is None


def test_an_answer_is_the_handlers_only_if_it_is_written_down(shaky: semel.Semel, store: Faulty) -> None:
    exchange = begun(anyone(shaky))
    store.lose_reply(2)
    assert exchange.keep(200, [], b"done") is None
    exchange = begun(anyone(shaky), request_of('"2"'))
    store.lose_reply(1000)
    answer = exchange.keep(200, [], b"done")
    store.recover()
    assert answer is not None
    assert (answer.status, kind(answer)) == (503, "unavailable")
    assert asked(anyone(shaky), request_of('"2"')).body == b"done"


@pytest.mark.parametrize("fault", ["refuse", "lose_request"])
def test_a_client_is_not_told_that_nothing_was_done_when_something_was(
    shaky: semel.Semel, store: Faulty, clock: FakeClock, fault: str
) -> None:
    exchange = begun(anyone(shaky))
    getattr(store, fault)(1000)
    answer = exchange.keep(200, [], b"done")
    assert answer is not None
    assert answer.status == 503
    assert "nothing is done" not in told(answer)["title"]
    assert "not known" in told(answer)["detail"]


def test_where_the_work_matters_more_it_runs_without_a_store(shaky: semel.Semel, store: Faulty) -> None:
    idempotency = anyone(shaky, on_store_error="open")
    store.refuse()
    exchange = begun(idempotency)
    assert exchange.run is not None
    assert not exchange.run.protected
    assert not exchange.run.lost
    assert exchange.keep(200, [], b"unprotected") is None
    assert begun(idempotency).keep(200, [], b"protected") is None


def test_an_error_that_no_client_can_mend_is_raised(s: semel.Semel) -> None:
    idempotency = anyone(s)
    ticket = admitted(idempotency)
    for error in (semel.NotPermitted("no"), semel.StoreClosed("closed"), RuntimeError("a bug")):
        with pytest.raises(type(error)):
            idempotency.refuse(ticket, error)


# Responses in pieces


def test_the_last_piece_waits_until_the_response_is_written_down(s: semel.Semel) -> None:
    exchange = begun(anyone(s))
    assert exchange.run is not None
    seen = []
    for _ in exchange.stream(200, [("content-length", "4")], [b"ab", b"", b"cd", b""]):
        record = s.ledger.get(exchange.run.key)
        assert record is not None
        seen.append(record.status.value)
    assert seen == ["IN_PROGRESS", "IN_PROGRESS", "COMPLETED", "COMPLETED"]
    assert asked(anyone(s)).body == b"abcd"


def broken_off() -> Iterator[bytes]:
    yield b"one"
    yield b"two"
    raise OSError("the backend is gone")


def status_of(s: semel.Semel, exchange: Exchange) -> str:
    assert exchange.run is not None
    record = s.ledger.get(exchange.run.key)
    assert record is not None
    return record.status.value


def renewed(s: semel.Semel) -> int:
    """How many leases are being kept alive."""
    return len(s._shared.heartbeats._live)


def test_a_stream_that_fails_gives_the_key_back(s: semel.Semel) -> None:
    exchange = begun(anyone(s))
    with pytest.raises(OSError, match="backend"):
        list(exchange.stream(200, [], broken_off()))
    assert (status_of(s, exchange), renewed(s)) == ("RELEASED", 0)


def test_a_client_that_goes_away_does_not_end_the_stream(s: semel.Semel) -> None:
    exchange = begun(anyone(s))
    stream = exchange.stream(200, [], iter([b"one", b"two"]))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert asked(anyone(s)).body == b"onetwo"
    assert renewed(s) == 0


def test_a_stream_that_fails_after_its_client_has_gone_gives_the_key_back_too(s: semel.Semel) -> None:
    """Else its lease would be renewed as long as the process lives, and every retry would find it busy."""
    exchange = begun(anyone(s))
    stream = exchange.stream(200, [], broken_off())
    next(stream)
    with pytest.raises(OSError, match="backend"):
        stream.close()  # type: ignore[attr-defined]
    assert not exchange.is_open
    assert (status_of(s, exchange), renewed(s)) == ("RELEASED", 0)


def test_a_stream_whose_claim_was_lost_breaks_off(s: semel.Semel, clock: FakeClock) -> None:
    exchange = begun(anyone(s, heartbeat=False))
    stream = exchange.stream(200, [], [b"one"])
    assert next(stream) == b"one"
    clock.advance(31)
    assert apart(begun, anyone(s)).keep(200, [], b"the other's") is None
    with pytest.raises(semel.ClaimLost):
        next(stream)
    assert asked(anyone(s)).body == b"the other's"


# Whatever goes wrong on the way out, the run ends


def environ_of() -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/pay",
        "HTTP_IDEMPOTENCY_KEY": '"k"',
        "CONTENT_LENGTH": "2",
        "wsgi.input": io.BytesIO(b"{}"),
    }


def fails(*_: Any) -> Any:
    raise ValueError("a bug")


@pytest.mark.parametrize("pieces", [[b"whole"], iter([b"in", b"pieces"])], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("options", "status", "start"),
    [
        ({"keep": fails}, "200 OK", lambda *_: None),
        ({}, "fine", lambda *_: None),
        ({}, "200 OK", fails),
    ],
    ids=["keep= fails", "a status that is none", "the server refuses its head"],
)
def test_a_response_that_cannot_be_sent_leaves_no_lease_that_is_renewed_for_ever(
    s: semel.Semel, pieces: Any, options: Any, status: str, start: Any
) -> None:
    def app(_environ: dict[str, Any], start_response: Any) -> Any:
        start_response(status, [("Content-Type", "text/plain")])
        return pieces

    served = wsgi.IdempotencyMiddleware(app, anyone(s, **options))
    with pytest.raises(ValueError, match=r"bug|literal"):
        list(served(environ_of(), start))
    assert renewed(s) == 0
    with pytest.raises(LookupError):
        semel.current_run()


def test_a_stream_that_fails_after_the_client_has_gone_ends_its_run_through_wsgi_too(s: semel.Semel) -> None:
    def app(_environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return broken_off()

    pieces: Any = wsgi.IdempotencyMiddleware(app, anyone(s))(environ_of(), lambda *_: None)
    next(pieces)
    with pytest.raises(OSError, match="backend"):
        pieces.close()
    assert renewed(s) == 0


def test_an_application_that_begins_anew_after_its_head_was_sent_is_told_so(s: semel.Semel) -> None:
    """By PEP 3333 start_response then raises what it is given; else half an answer is kept as a whole one."""
    import sys

    def app(_environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"first half"
        try:
            raise OSError("the backend is gone")
        except OSError:
            start_response("500 Internal Server Error", [], sys.exc_info())
            yield b"<h1>Sorry</h1>"

    served = wsgi.IdempotencyMiddleware(app, anyone(s))
    with pytest.raises(OSError, match="backend"):
        list(served(environ_of(), lambda *_: None))
    assert renewed(s) == 0
    assert [record.status.value for record in s.ledger.list().records] == ["RELEASED"]


# The policy's own pages


def page_of(idempotency: Idempotency, path: str = WELL_KNOWN, **more: Any) -> HTTPResponse | None:
    request = request_of(None, method=more.pop("method", "GET"), path=path, **more)
    return publish.page_of(idempotency, request)


def token_of(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def status_page(idempotency: Idempotency, url: str, native: Any = None) -> HTTPResponse:
    page = page_of(idempotency, url, native=native)
    assert page is not None
    return page


@pytest.mark.draft("2.3b", "2.5.2a", "2.5.2b")
def test_the_policy_is_published_as_it_is_kept(s: semel.Semel) -> None:
    idempotency = anyone(
        s, expiry=(60, 3600), strict=True, ttl=7200, keep=lambda status: status in (200, 201, 404)
    )
    page = page_of(idempotency, "/app" + WELL_KNOWN, root="/app")
    assert isinstance(page, HTTPResponse)
    assert page.status == 200
    document = json.loads(page.body)
    assert document == policy_document(idempotency, "/app")
    assert document["kept_statuses"] == ["200-201", "404"]
    assert document["retention_seconds"] == 7200
    assert document["expiry"] == {"header": "Idempotency-Expiry-Seconds", "minimum": 60, "maximum": 3600}
    assert set(document["kept_headers"]) == set(KEPT_HEADERS)
    assert document["problems"] == {
        f"/app{WELL_KNOWN}#{kind}": {"status": status, "title": title}
        for kind, (status, title) in PROBLEMS.items()
    }


@pytest.mark.draft("5a")
@pytest.mark.parametrize("strict", [True, False])
@given(data=st.data())
def test_whatever_the_published_pattern_fits_is_taken_for_a_key(strict: bool, data: st.DataObject) -> None:
    idempotency = anyone(naming().s, strict=strict, max_key=12)
    value = data.draw(st.from_regex(key_pattern(idempotency), fullmatch=True))
    assert not re.search("\n$", value)
    assert len(read_key(value, strict=strict, longest=12)) <= 12


@pytest.mark.parametrize(
    "path", ["/", "/pay", "/.well-known", "/.well-known/idempotency-keys", "/x" + WELL_KNOWN]
)
def test_every_other_page_is_the_applications_own(s: semel.Semel, path: str) -> None:
    assert page_of(anyone(s), path) is None
    assert page_of(anyone(s), WELL_KNOWN, method="POST") is None


def test_the_status_of_a_request_is_told_where_its_409_said(s: semel.Semel, clock: FakeClock) -> None:
    idempotency = anyone(s)
    exchange = begun(idempotency)
    url = told(apart(asked, idempotency))["status_url"]
    assert json.loads(status_page(idempotency, url).body) == {"status": "in-progress", "attempt": 1}
    assert exchange.keep(200, [], b"") is None
    assert json.loads(status_page(idempotency, url).body) == {
        "status": "completed",
        "attempt": 1,
        "expires_at": clock.now() + DAY,
    }
    clock.advance(DAY + 1)
    assert status_page(idempotency, url).status == 404


def test_the_status_of_a_hidden_key_is_told_too(clock: FakeClock) -> None:
    """Whoever hears "never received" may send the request again under another key."""
    with semel.connect("memory:", clock=clock, secret=b"x" * 32) as s:
        idempotency = anyone(s, hide_key=True)
        exchange = begun(idempotency)
        url = told(apart(asked, idempotency))["status_url"]
        assert json.loads(status_page(idempotency, url).body)["status"] == "in-progress"
        exchange.fail(RuntimeError())


def test_only_requests_have_a_status_and_no_other_work_of_the_ledger(s: semel.Semel) -> None:
    """Whoever may ask could otherwise learn which orders exist, and how often they were tried."""
    s.once.call("charge:o1", lambda: 1)
    assert status_page(anyone(s), f"{WELL_KNOWN}/{token_of('charge:o1')}").status == 404


def test_a_status_is_told_to_its_owner_alone(s: semel.Semel) -> None:
    idempotency = known(s)
    exchange = begun(idempotency, request_of(native="ann"))
    assert status_page(idempotency, exchange.admitted.url, "ann").status == 200
    assert status_page(idempotency, exchange.admitted.url, "bob").status == 404
    assert status_page(idempotency, exchange.admitted.url, "").status == 401
    exchange.fail(RuntimeError())


@pytest.mark.parametrize(
    "token",
    [
        "",
        "é",
        "!",
        "a",
        "_w",
        "\udcff",
        token_of("\x00"),
        token_of("http:\x00"),
        token_of(":"),
        "A" * 9000,
        "%41",
        "a/b",
        "==",
    ],
)
def test_a_token_that_names_nothing_is_not_found(s: semel.Semel, token: str) -> None:
    answer = status_page(anyone(s), f"{WELL_KNOWN}/{token}")
    assert (answer.status, kind(answer)) == (404, "no-such-key")


def test_a_status_that_cannot_be_read_says_so(s: semel.Semel, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{WELL_KNOWN}/{token_of('http:POST:/pay:k')}"
    monkeypatch.setattr(s.store, "execute", Mock(side_effect=semel.StoreUnavailable("gone")))
    assert status_page(anyone(s), url).status == 503
    monkeypatch.setattr(s.store, "execute", Mock(side_effect=semel.NotPermitted("no")))
    with pytest.raises(semel.NotPermitted):
        status_page(anyone(s), url)


@pytest.mark.parametrize("root", ["/é", "/€", "/a\r\nX-Evil: 1", "/a>b", "/\udcff", "/a b"])
def test_a_prefix_that_a_client_chose_cannot_break_a_header(s: semel.Semel, root: str) -> None:
    """An application may be mounted under a part of the path that has any value."""
    idempotency = anyone(s)
    exchange = begun(idempotency, request_of(root=root))
    answers = [rejected(idempotency, request_of(None, root=root)), apart(asked, idempotency)]
    answers.append(apart(asked, idempotency, request_of(root=root)))
    exchange.fail(RuntimeError())
    for answer in answers:
        for _, value in answer.headers:
            assert value.isascii()
            assert value.isprintable()
        for link in header(answer, "Link"):
            assert re.fullmatch(r'<[^<>" ]+>; rel="\w+"; type="application/json"', link)


# Values


def test_a_problem_has_what_the_rfc_asks_for() -> None:
    for kind_of, (status, title) in PROBLEMS.items():
        answer = problem(kind_of, WELL_KNOWN, "Do this.", [("X", "y")], more=1)
        assert told(answer) == {
            "type": f"{WELL_KNOWN}#{kind_of}",
            "title": title,
            "status": status,
            "detail": "Do this.",
            "more": 1,
        }
        assert ("X", "y") in answer.headers


@pytest.mark.parametrize(
    "name", ["Set-Cookie", "authorization", "Proxy-Authorization", "Authentication-Info"]
)
def test_what_belongs_to_one_client_cannot_be_asked_to_be_kept(s: semel.Semel, name: str) -> None:
    with pytest.raises(semel.InvalidOption, match="never kept"):
        anyone(s, headers=(*KEPT_HEADERS, name))


def test_other_headers_can(s: semel.Semel) -> None:
    idempotency = anyone(s, headers=("X-Receipt", "Content-Length", "Transfer-Encoding"))
    exchange = begun(idempotency)
    assert (
        exchange.keep(
            200, [("x-receipt", "1"), ("transfer-encoding", "chunked"), ("content-length", "0")], b""
        )
        is None
    )
    assert asked(idempotency).headers[:2] == [("x-receipt", "1"), ("Content-Length", "0")]


@given(st.lists(st.binary(max_size=8)), st.integers(0, 20))
def test_a_recording_keeps_the_body_or_its_size(chunks: list[bytes], room: int) -> None:
    recording = Recording(frozenset(), room)
    recording.start(200, [])
    for chunk in chunks:
        recording.add(chunk)
    body, kept = b"".join(chunks), recording.stored()
    if len(body) <= room:
        assert (kept.body, kept.size) == (body, None)
    else:
        assert (kept.body, kept.size) == (None, len(body))


@pytest.mark.parametrize(
    ("length", "full"), [("2", True), ("1", True), ("3", False), ("x", False), ("-2", False)]
)
def test_a_response_is_full_when_it_is_as_long_as_it_says(length: str, full: bool) -> None:
    recording = Recording(frozenset(), 10)
    recording.start(200, [("Content-Length", length)])
    assert not recording.full or length == "0"
    recording.add(b"ab")
    assert recording.full is full


def test_what_is_given_back_says_why() -> None:
    assert str(NotStored(503)) == "the handler answered 503"
