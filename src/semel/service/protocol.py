"""uvicorn's faster parser, with the limits that it does not have by itself."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from semel.service.heads import HEAD_SECONDS, MAX_HEAD_BYTES


class Protocol(HttpToolsProtocol):
    """One connection, on which the head of each request comes soon and is not too large."""

    _seen = 0
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
        super().data_received(data)
        if not self._in_head:
            self._rest()
            return
        self._seen += len(data)
        if self._seen > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")
        self._wait()

    def on_message_begin(self) -> None:
        """Another request."""
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Its head is over."""
        self._seen, self._in_head = 0, False
        super().on_headers_complete()

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
