"""Answers of a Redis server, read from bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import AuthenticationError, NoScriptError, ResponseError

from semel.stores.redis.answers import read

ANSWERS = st.recursive(
    st.none() | st.binary(max_size=40) | st.integers(-(2**63), 2**63 - 1),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def spoken(answer) -> bytes:
    """An answer as a server sends it."""
    if answer is None:
        return b"$-1\r\n"
    if isinstance(answer, bytes):
        return b"$%d\r\n%b\r\n" % (len(answer), answer)
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    return b"*%d\r\n" % len(answer) + b"".join(map(spoken, answer))


@given(ANSWERS, st.binary(max_size=20))
def test_an_answer_is_read_up_to_its_end(answer, beyond):
    data = spoken(answer)
    assert read(data + beyond) == (answer, len(data))
    assert read(b"+OK\r\n" + data, 5) == (answer, 5 + len(data))


@given(ANSWERS, st.data())
def test_what_has_not_come_whole_is_not_read(answer, data):
    whole = spoken(answer)
    come = data.draw(st.integers(0, len(whole) - 1))
    assert read(whole[:come]) is None


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (b"-ERR no\r\n", ResponseError),
        (b"-NOSCRIPT No matching script.\r\n", NoScriptError),
        (b"-WRONGPASS invalid\r\n", AuthenticationError),
    ],
)
def test_an_error_is_an_answer_too(told, kind):
    answer = read(told)
    assert answer is not None
    assert type(answer[0]) is kind
    assert answer[1] == len(told)


def test_a_word_and_an_absent_array_are_read():
    assert read(b"+PONG\r\n") == (b"PONG", 7)
    assert read(b"*-1\r\n") == (None, 5)
