"""Answers are read right however their bytes come, and what is no answer is never taken for one."""

import io
from http.client import HTTPResponse, IncompleteRead
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from semel.aws import http1
from semel.aws.http1 import MalformedResponse, Reader

STATUSES = st.integers(200, 599)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,15}", fullmatch=True).filter(
    lambda name: name.lower() not in ("content-length", "transfer-encoding", "connection")
)
VALUES = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f\x85\xa0"), max_size=20
)
BODIES = st.binary(max_size=200)


def sized(status, headers, body):
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    length = "" if status in (204, 304) else f"Content-Length: {len(body)}\r\n"
    body = b"" if status in (204, 304) else body
    return f"HTTP/1.1 {status} Whatever\r\n{length}{lines}\r\n".encode("latin-1") + body


def chunked(status, headers, body, pieces=7):
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} \r\n{lines}transfer-encoding: chunked\r\n\r\n".encode("latin-1")
    parts = [body[at : at + pieces] for at in range(0, len(body), pieces)] + [b""]
    return head + b"".join(b"%x;note=1\r\n%b\r\n" % (len(part), part) for part in parts)


ANSWERS = st.builds(
    lambda form, status, headers, body: form(status, headers, body),
    st.sampled_from([sized, chunked]),
    STATUSES.filter(lambda status: status not in (204, 304)),
    st.dictionaries(NAMES, VALUES, max_size=4),
    BODIES,
)


class Fake(io.BytesIO):
    def makefile(self, mode):
        return self


def by_python(data):
    """What the standard library makes of it."""
    response = HTTPResponse(Fake(data), method="POST")  # type: ignore[arg-type]
    response.begin()
    return response.status, response.read()


def fed(data, cuts, **options):
    """The answer in the data, handed over in pieces; None if it is not whole."""
    reader = Reader(**options)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    answer = None
    for begin, end in pairwise(edges):
        if begin < end:
            assert answer is None
            answer = reader.feed(data[begin:end])
    return answer


@given(ANSWERS, st.lists(st.integers(0, 1000), max_size=12))
def test_an_answer_is_the_same_in_however_many_pieces_it_comes(data, cuts):
    answer = fed(data, cuts)
    assert (answer.status, answer.body) == by_python(data)
    assert answer.reusable


@given(ANSWERS, st.integers(0, 1000))
def test_an_answer_that_is_cut_off_is_no_answer(data, cut):
    reader = Reader()
    if arrived := data[: cut % len(data)]:
        assert reader.feed(arrived) is None
    with pytest.raises(MalformedResponse, match="closed"):
        reader.feed(b"")


@given(st.binary(max_size=300) | st.binary(max_size=100).map(b"HTTP/1.1 200 OK\r\n".__add__))
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n")
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabXX")
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n")
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n")
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd")
@example(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n")
@example("HTTP/1.1 200 OK\r\nContent-Length: \u00b2\r\n\r\n".encode("latin-1"))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n")
@example(b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n")
@example(b"HTTP/2 200\r\n\r\n")
@example(b"HTTP/1.1 999 x\r\n\r\n")
@example(b"SSH-2.0-OpenSSH\r\n")
def test_garbage_is_called_garbage(data):
    """Either way it ends: what is returned is what Python's own client would return, or it is refused."""
    reader = Reader()
    try:
        answer = reader.feed(data) or reader.feed(b"")
    except MalformedResponse:
        return
    try:
        expected = by_python(data)
    except IncompleteRead:
        pytest.fail("it was taken for whole")
    assert (answer.status, answer.body) == expected


def test_headers_that_are_read_are_found_by_lower_case_and_repeated_ones_joined():
    data = b"HTTP/1.1 200 OK\r\nDATE:  x \r\nServer: s\r\nConnection: a\r\nconnection: b\r\nContent-Length: 0"
    answer = Reader().feed(data + b"\r\n\r\n")
    assert answer.headers == {"date": "x", "connection": "a, b", "content-length": "0"}
    assert not answer.reusable


def test_a_preliminary_answer_is_passed_over():
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    assert Reader().feed(data).body == b"ok"
    assert fed(data, range(len(data))).body == b"ok"


@pytest.mark.parametrize(
    ("data", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_a_connection_is_used_again_only_if_nothing_speaks_against_it(data, reusable):
    assert Reader().feed(data).reusable is reusable


def test_without_a_length_the_answer_ends_with_the_connection():
    reader = Reader()
    assert reader.feed(b"HTTP/1.1 500 Oops\r\n\r\n<html>") is None
    assert reader.feed(b"</html>") is None
    answer = reader.feed(b"")
    assert (answer.body, answer.reusable) == (b"<html></html>", False)


def test_a_tunnel_has_no_body():
    assert Reader(tunnel=True).feed(b"HTTP/1.1 200 Connection established\r\n\r\n").status == 200


@pytest.mark.parametrize(
    "endless",
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
def test_what_has_no_end_is_given_up(endless, monkeypatch):
    monkeypatch.setattr(http1, "MAX_BODY", 200_000)
    reader = Reader()
    with pytest.raises(MalformedResponse):
        for _ in range(100):
            assert reader.feed(endless) is None
            endless = b"x" * 10_000
