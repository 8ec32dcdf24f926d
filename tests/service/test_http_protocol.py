"""The limit of a request's head holds in whatever pieces it comes; what follows a body is no part of it."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from semel.service.h11_protocol import PIECE_BYTES, LimitedH11Protocol
from semel.service.httptools_protocol import LimitedHttpToolsProtocol
from semel.service.limits import MAX_HEAD_BYTES

PIECES = [61, 1000, 60_000, 1_000_000]


class Wire(asyncio.Transport):
    """A connection whose other end is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self._closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self._closing = True

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with how long the body is, and with the names of the headers as they are then."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    told = json.dumps([size, [name.decode() for name, _ in scope["headers"]]]).encode()
    head = [(b"content-length", str(len(told)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": told})


def sent(data: bytes, size: int, protocol: Any = LimitedHttpToolsProtocol) -> bytes:
    """What comes back for these bytes, which come in pieces of this size."""
    return asyncio.run(_sent(cut(data, size), protocol))


def cut(data: bytes, size: int) -> Iterable[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


async def _sent(pieces: Iterable[bytes], kind: Any) -> bytes:
    config = Config(
        app, log_config=None, lifespan="off", ws="none", h11_max_incomplete_event_size=MAX_HEAD_BYTES
    )
    protocol, wire = kind(config, ServerState(), {}), Wire()
    protocol.connection_made(wire)
    for piece in pieces:
        if wire.is_closing():
            break
        protocol.data_received(piece)
    if wire.is_closing():
        protocol.connection_lost(None)
    while protocol.tasks:
        await asyncio.wait(protocol.tasks)
    if not wire.is_closing():
        protocol.connection_lost(None)
    return wire.sent


def head(size: int) -> bytes:
    """A head of just this length."""
    begin, end = b"GET / HTTP/1.1\r\nHost: semel\r\nX: ", b"\r\n\r\n"
    return begin + b"x" * (size - len(begin) - len(end)) + end


@pytest.mark.parametrize("size", PIECES)
def test_the_limit_for_a_head_holds_in_whatever_pieces_it_comes(size: int) -> None:
    assert sent(head(MAX_HEAD_BYTES), size).startswith(b"HTTP/1.1 200 OK")
    for length in (MAX_HEAD_BYTES + 1, MAX_HEAD_BYTES + 5000, 4 * MAX_HEAD_BYTES):
        answer = sent(head(length), size)
        assert answer.startswith(b"HTTP/1.1 400 Bad Request"), length
        told = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert (told["type"], told["status"]) == ("/problems#invalid-request", 400)
        assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("size", PIECES)
def test_it_holds_for_the_second_request_of_a_connection_and_not_for_a_body(size: int) -> None:
    body = b"x" * (4 * MAX_HEAD_BYTES)
    post = b"POST / HTTP/1.1\r\nHost: semel\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    answers = sent(post + head(MAX_HEAD_BYTES // 2), size)
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert f"[{len(body)}, ".encode() in answers
    refused = sent(post + head(2 * MAX_HEAD_BYTES), size)
    assert b"400 Bad Request" in refused


CHUNKED = b"POST / HTTP/1.1\r\nHost: semel\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"


@pytest.mark.parametrize("size", PIECES)
def test_fields_after_a_body_are_held_to_the_limit_and_are_no_headers(size: int) -> None:
    answer = sent(CHUNKED + b"0\r\nAuthorization: Bearer x\r\n\r\n", size)
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == [3, ["host", "transfer-encoding"]]
    for trailers in (b"a: b\r\n" * MAX_HEAD_BYTES, b"a: " + b"x" * 2 * MAX_HEAD_BYTES):
        assert b"400 Bad Request" in sent(CHUNKED + b"0\r\n" + trailers, size)


@pytest.mark.parametrize("size", PIECES)
def test_the_plain_parser_keeps_the_limit_to_within_a_piece(size: int) -> None:
    assert sent(head(MAX_HEAD_BYTES), size, LimitedH11Protocol).startswith(b"HTTP/1.1 200")
    for length in (MAX_HEAD_BYTES + 2 * PIECE_BYTES, 4 * MAX_HEAD_BYTES):
        assert sent(head(length), size, LimitedH11Protocol).startswith(b"HTTP/1.1 400"), length
