"""uvicorn's other parser, for where the faster one cannot be installed."""

from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

# It has a limit for a head, which it looks at after each piece: so it is passed by no more than this.
PIECE_BYTES: Final = 1024


class LimitedH11Protocol(H11Protocol):
    """One connection, on which the head of a request is not too large, however it was sent."""

    def data_received(self, data: bytes) -> None:
        """Read on, in small pieces."""
        for at in range(0, len(data), PIECE_BYTES):
            if not self.transport.is_closing():
                super().data_received(data[at : at + PIECE_BYTES])
