"""uvicorn's faster parser, with the limits that it does not have by itself."""

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from semel.doors.http.problems import MEDIA_TYPE
from semel.service.limits import MAX_HEAD_BYTES
from semel.service.problems import problem

# A head comes at once. Who sends it by drops means no good.
HEAD_SECONDS: Final = 10.0
# What follows a head is parsed in pieces of this size, so that the next head is met within one of them.
BODY_PIECE_BYTES: Final = 16384


class LimitedHttpToolsProtocol(HttpToolsProtocol):
    """One connection, on which the head of each request comes soon and is not too large.

    What comes is parsed in pieces that end where the limit does, so it holds however the head was sent.
    Fields after a body are held to it too, and dropped: uvicorn would take them for fields of the head.
    """

    _seen = 0
    """Of the head, as it came."""
    _trailing = 0
    """Of fields after the body."""
    _silent = 0
    """Of what follows the head, since the parser last told of something."""
    _in_head = True
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Wait for a request, and not for ever."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; a head that is still not over has been waited for long enough, or is about to."""
        while data and not self.transport.is_closing():
            room = MAX_HEAD_BYTES - self._seen if self._in_head else BODY_PIECE_BYTES
            piece, data = data[:room], data[room:]
            self._silent += len(piece)
            if piece:
                super().data_received(piece)
            if self._in_head:
                self._seen += len(piece)
            if not piece or self._trailing + self._silent > MAX_HEAD_BYTES:
                self.send_400_response("the head of the request is too large")
        if self._in_head:
            self._wait()
        else:
            self._rest()

    def on_message_begin(self) -> None:
        """Another request."""
        super().on_message_begin()
        self._seen, self._in_head = 0, True
        self._trailing = self._silent = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; or one after the body, which could be taken for one of these."""
        self._silent = 0
        if self._in_head:
            super().on_header(name, value)
        else:
            self._trailing += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        """Its head is over."""
        self._seen, self._in_head = 0, False
        self._trailing = self._silent = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        self._silent = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is there, whole."""
        self._silent = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request that anybody could answer, and read on no more."""
        if self.transport.is_closing():
            return
        body = problem("invalid-request", msg).body()
        head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[400] + head.encode() + body)
        self.transport.close()

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
