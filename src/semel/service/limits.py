"""Limits of concurrent requests, in total and for each client, so that none keeps others out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from semel.service.problems import ProblemError, later

# The head of a request is a few hundred bytes. Who sends more than this means no good.
MAX_HEAD_BYTES: Final = 65536


class LimitReached(ProblemError):
    """There is no place left, or none for this client."""

    def __init__(self, limit: str, why: str) -> None:
        super().__init__(later("overloaded", f"{why}; come back in a second"))
        self.limit = limit


class ConcurrencyLimit:
    """So many requests of a kind at a time, and of these so many of one client."""

    def __init__(self, name: str, most: int, share: float) -> None:
        self.name = name
        self._most, self._each = most, _part(most, share)
        self._clients: dict[str, int] = {}
        self.taken: int = 0

    @contextmanager
    def place(self, client: str) -> Iterator[None]:
        """A place for one request; refused where all are taken, or as many as one client may have."""
        own = self._clients.get(client, 0)
        if own >= self._each:
            raise LimitReached(
                self.name, f"{own} of this client's are, and that is its share of {self._most}"
            )
        if self.taken >= self._most:
            raise LimitReached(self.name, f"{self._most} are")
        self._clients[client] = own + 1
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]


class BodyLimit:
    """Bodies that are on their way; one too many, and the one that has taken longest is given up.

    It is one of the same peer's, where that has its share, or of the peer's that has most. So whoever sends
    at once is taken at once, however many others send by drops.
    """

    def __init__(self, most: int, share: float) -> None:
        self._most, self._each = most, _part(most, share)
        self._peers: dict[str, dict[object, Callable[[], None]]] = {}
        self.taken: int = 0

    @contextmanager
    def expected(self, peer: str, give_up: Callable[[], None]) -> Iterator[None]:
        """A body that comes within this block; else it is told to give up, and is not counted any more."""
        if len(self._peers.get(peer, ())) >= self._each:
            self._drop(peer)
        elif self.taken >= self._most:
            self._drop(max(self._peers, key=lambda one: len(self._peers[one])))
        body = object()
        self._peers.setdefault(peer, {})[body] = give_up
        self.taken += 1
        try:
            yield
        finally:
            self._forget(peer, body)

    def _drop(self, peer: str) -> None:
        body, give_up = next(iter(self._peers[peer].items()))
        self._forget(peer, body)
        give_up()

    def _forget(self, peer: str, body: object) -> None:
        bodies = self._peers.get(peer, {})
        if bodies.pop(body, None) is None:
            return
        self.taken -= 1
        if not bodies:
            del self._peers[peer]


def _part(most: int, share: float) -> int:
    return max(1, int(most * share))
