"""Answers of a Redis server, read from bytes."""

import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from semel.stores.redis import connection
from semel.stores.redis.connection import gather, read
from semel.stores.redis.server import ErrorReply

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


def test_an_error_is_a_reply_too():
    data = b"-NOSCRIPT No matching script.\r\n"
    parsed = read(data)
    assert parsed == ("NOSCRIPT No matching script.", len(data))
    assert type(parsed[0]) is ErrorReply


@given(st.lists(ANSWERS, max_size=5), st.data())
def test_replies_are_gathered_as_they_come(answers, data):
    whole, rest = b"".join(map(spoken, answers)), b""
    replies: list[Any] = []
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3)))
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        rest = gather(rest + whole[start:end], len(answers), replies)
    assert (replies, rest) == (answers, b"")


def test_private_names_of_the_driver_are_used_in_one_module_alone():
    package = Path(connection.__file__).parent
    private = re.compile(r"\._sock\b|\._reader\b|\._writer\b|redis\._|driver\._")
    assert {path.stem for path in package.glob("*.py") if private.search(path.read_text())} == {"connection"}


def test_a_word_and_an_absent_array_are_read():
    assert read(b"+PONG\r\n") == (b"PONG", 7)
    assert read(b"*-1\r\n") == (None, 5)
