"""One request under its key: claimed, answered, stored. Every HTTP door works through it."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from semel import errors
from semel.core.commands import Raised, Returned
from semel.core.running import CURRENT, Run
from semel.doors.http.policy import AdmittedKey, Idempotency, RequestHead
from semel.doors.http.responses import (
    RETRY_STATUSES,
    HTTPResponse,
    NotStored,
    Pairs,
    Recording,
    RetryRequested,
    replay,
)
from semel.once import Block, Running

T = TypeVar("T")


def admit(
    idempotency: Idempotency, request: RequestHead, read: Callable[[int], bytes | None]
) -> "Exchange | HTTPResponse | None":
    """Admit a request, or return the answer to it; None if it is not protected at all.

    `read` returns its body, or None if that has more than this many bytes.
    """
    admitted = idempotency.admit(request)
    if not isinstance(admitted, AdmittedKey):
        return admitted
    body = read(idempotency.max_body)
    return idempotency.too_large(admitted.base) if body is None else Exchange(idempotency, admitted, body)


def claim(
    idempotency: Idempotency, request: RequestHead, read: Callable[[int], bytes | None]
) -> "Exchange | HTTPResponse | None":
    """Admit a request and claim its key, or return the answer to it; None if it is not protected at all."""
    exchange = admit(idempotency, request, read)
    return exchange.begin() or exchange if isinstance(exchange, Exchange) else exchange


class Exchange(Running):
    """An admitted request: `begin` claims its key, then the handler answers.

    Exactly one of these ends the run: `keep` for a whole response, `stream` for one that comes in pieces, or
    `fail`. Each may return an answer that is sent in place of the handler's.
    """

    def __init__(self, idempotency: Idempotency, admitted: AdmittedKey, body: bytes) -> None:
        # Not by way of `Running.__init__`: this is on the path of every request.
        self.block: Block = admitted.block
        self.key: str = admitted.key
        self.fingerprint: str = idempotency.fingerprint(admitted, body)
        self._idempotency = idempotency
        self.admitted = admitted
        self.body = body
        self.recording: Recording = Recording(idempotency.headers, idempotency.max_kept)

    def begin(self) -> HTTPResponse | None:
        """Claim the key; an answer means that the handler does not run."""
        done = self.claim()
        return None if done is None else self.answer(done)

    def answer(self, done: Returned | Raised) -> HTTPResponse:
        """Return the answer to a request that does not run, from what `claim` returned."""
        if isinstance(done, Raised):
            return self.refuse(done.error)
        return replay(done.value, done.record.expires_at, self.admitted.base)

    def keep(self, status: int, headers: Pairs, body: bytes) -> HTTPResponse | None:
        """Store a whole response; an answer is sent in its place."""
        try:
            self.recording.start(status, headers)
            self.recording.add(body)
            problem = self.end(self.verdict())
        except BaseException as error:
            self.end(error)
            raise
        return None if problem is None else self.refuse(problem, begun=True)

    async def akeep(self, status: int, headers: Pairs, body: bytes) -> HTTPResponse | None:
        """Store a whole response; an answer is sent in its place."""
        try:
            self.recording.start(status, headers)
            self.recording.add(body)
            problem = await self.aend(self.verdict())
        except BaseException as error:
            await self.aend(error)
            raise
        return None if problem is None else self.refuse(problem, begun=True)

    def stream(self, status: int, headers: Pairs, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces of a response as they come; the last one waits until the response is stored.

        A client that goes away does not end it: the rest is made all the same.
        """
        self.recording.start(status, headers)
        pieces = iter(chunks)
        try:
            try:
                for chunk in pieces:
                    self.recording.add(chunk)
                    if self.is_open and self.recording.full:
                        self._conclude()
                    yield chunk
            except GeneratorExit:
                for chunk in pieces:
                    self.recording.add(chunk)
            self._conclude()
        except BaseException as error:
            self.end(error)
            raise

    def stream_later(
        self, response: object, status: int, headers: Pairs, chunks: Iterable[bytes]
    ) -> Iterator[bytes]:
        """Return the pieces of `stream` for a framework that sends its response later, or drops it.

        Closing them ends the run, even before the first one was made. The run is the current one while a
        piece is made, and not in between, where the server may do anything.
        """
        pieces = self._within_run(self.stream(status, headers, chunks))
        self.leave()
        next(pieces)
        # Generators alone would be finalized in any order, and the pieces would find nothing left to make.
        weakref.finalize(response, pieces.close).atexit = False  # type: ignore[attr-defined]  # a generator
        return pieces

    def attempt(self, handle: Callable[[], T]) -> T | HTTPResponse:
        """Call the handler; what it raises ends the run, and may have an answer in its place."""
        try:
            return handle()
        except BaseException as error:
            instead = self.fail(error)
            if instead is None:
                raise
            return instead

    def fail(self, error: BaseException) -> HTTPResponse | None:
        """End the run with the handler's error; an answer is sent in its place."""
        problem = self.end(error)
        return self.refuse(problem) if isinstance(problem, errors.ClaimLost) else None

    async def afail(self, error: BaseException) -> HTTPResponse | None:
        """End the run with the handler's error; an answer is sent in its place."""
        problem = await self.aend(error)
        return self.refuse(problem) if isinstance(problem, errors.ClaimLost) else None

    # The parts of these, for a door that sees the response in pieces

    def verdict(self) -> errors.SemelError | None:
        """Decide what the response means for its key: None stores it, and an error releases the key."""
        status = self.recording.status
        if not self._idempotency.keep(status):
            return RetryRequested(status) if status in RETRY_STATUSES else NotStored(status)
        self.run.result = self.recording.stored()
        return None

    def refuse(self, error: BaseException, *, begun: bool = False) -> HTTPResponse:
        """Return the answer if the run cannot begin, or its response cannot be stored."""
        return self._idempotency.refuse(self.admitted, error, begun=begun)

    def leave(self) -> None:
        """Leave the run in this context too: another task may have ended it."""
        CURRENT.set(self.run.outer)

    # Inside

    def _conclude(self) -> None:
        problem = self.end(self.verdict()) if self.is_open else None
        if problem is not None:
            # What was sent so far breaks off: so the client knows that it is incomplete.
            raise problem

    def _within_run(self, stream: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield b""
            while (piece := _call_within(self.run, next, stream, None)) is not None:
                yield piece
        except GeneratorExit:
            _call_within(self.run, deque, stream, 0)
            raise


def _call_within(run: Run, function: Callable[..., Any], *args: Any) -> Any:
    outer = CURRENT.get()
    CURRENT.set(run)
    try:
        return function(*args)
    finally:
        CURRENT.set(outer)
