"""One request under its key: claimed, answered, written down. Every HTTP door works through it."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from semel import errors
from semel.core.running import Run, leave
from semel.doors.http.policy import AdmittedKey, Idempotency, RequestHead
from semel.doors.http.responses import RETRY_STATUSES, HTTPResponse, NotKept, Pairs, Recording, RetryRequested

if TYPE_CHECKING:
    from semel.once import Running

T = TypeVar("T")


def admit(
    idempotency: Idempotency, request: RequestHead, read: Callable[[int], bytes | None]
) -> "Exchange | HTTPResponse | None":
    """A request that has its ticket, or the answer to it; None where it is not protected at all.

    `read` gives its body, or None where that has more than so many bytes.
    """
    ticket = idempotency.admit(request)
    if not isinstance(ticket, AdmittedKey):
        return ticket
    body = read(idempotency.max_body)
    return idempotency.too_large(ticket.base) if body is None else Exchange(idempotency, ticket, body)


def claim(
    idempotency: Idempotency, request: RequestHead, read: Callable[[int], bytes | None]
) -> "Exchange | HTTPResponse | None":
    """A request whose key is claimed, or the answer to it; None where it is not protected at all."""
    admitted = admit(idempotency, request, read)
    return admitted.begin() or admitted if isinstance(admitted, Exchange) else admitted


class Exchange:
    """A request that has its ticket.

    After `begin` the handler answers, and exactly one of these ends the run: `keep` for a whole response,
    `stream` for one that comes in pieces, or `fail`. They may give an answer to send instead of it.
    """

    __slots__ = ("_idempotency", "_running", "body", "is_open", "recording", "run", "ticket")

    def __init__(self, idempotency: Idempotency, ticket: AdmittedKey, body: bytes) -> None:
        self._idempotency = idempotency
        self._running: Running | None = None
        self.ticket: AdmittedKey = ticket
        self.body: bytes = body
        self.run: Run | None = None
        self.recording: Recording = Recording(idempotency.headers, idempotency.max_kept)
        self.is_open: bool = False
        """Whether the run has begun, and not ended."""

    def begin(self) -> HTTPResponse | None:
        """Claim the key; an answer says that the handler does not run, and None that it may."""
        running = self._block()
        try:
            self.run = running.__enter__()
        except errors.SemelError as error:
            return self.refuse(error)
        self._running, self.is_open = running, True
        return None

    async def abegin(self) -> HTTPResponse | None:
        """Await the claim of the key; an answer says that the handler does not run, and None that it may."""
        running = self._block()
        try:
            self.run = await running.__aenter__()
        except errors.SemelError as error:
            return self.refuse(error)
        self._running, self.is_open = running, True
        return None

    def keep(self, status: int, headers: Pairs, body: bytes) -> HTTPResponse | None:
        """A whole response; an answer is to be sent in its place."""
        try:
            self._record(status, headers, body)
            problem = self.end(self.verdict())
        except BaseException as error:
            self.end(error)
            raise
        return None if problem is None else self.refuse(problem, begun=True)

    async def akeep(self, status: int, headers: Pairs, body: bytes) -> HTTPResponse | None:
        """Await that a whole response is kept; an answer is to be sent in its place."""
        try:
            self._record(status, headers, body)
            problem = await self.aend(self.verdict())
        except BaseException as error:
            await self.aend(error)
            raise
        return None if problem is None else self.refuse(problem, begun=True)

    def stream(self, status: int, headers: Pairs, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The pieces of a response as they come; the last one waits until the response is written down.

        A client that goes away does not end it: what is left is made all the same.
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
            if self.is_open:
                self.end(error)
            raise

    def attempt(self, handle: Callable[[], T]) -> T | HTTPResponse:
        """What the handler makes; what it raises is written down, and may have an answer in its place."""
        try:
            return handle()
        except BaseException as error:
            instead = self.fail(error)
            if instead is None:
                raise
            return instead

    def fail(self, error: BaseException) -> HTTPResponse | None:
        """The handler raised this; an answer is to be sent in its place."""
        problem = self.end(error)
        return self.refuse(problem) if isinstance(problem, errors.ClaimLost) else None

    async def afail(self, error: BaseException) -> HTTPResponse | None:
        """Await that the handler's error is written down; an answer is to be sent in its place."""
        problem = await self.aend(error)
        return self.refuse(problem) if isinstance(problem, errors.ClaimLost) else None

    # The parts of these, for a door that sees the response in pieces

    def verdict(self) -> errors.SemelError | None:
        """What the recorded response means for its key: None keeps it, and an error gives the key back."""
        status = self.recording.status
        if not self._idempotency.keep(status):
            return RetryRequested(status) if status in RETRY_STATUSES else NotKept(status)
        if self.run is not None:
            self.run.result = self.recording.kept()
        return None

    def end(self, error: BaseException | None) -> errors.SemelError | None:
        """End the run with this error, or with its result; gives what the ledger could not be told."""
        running, self._running, self.is_open = self._running, None, False
        try:
            if running is not None:
                running.__exit__(type(error), error, None)
        except errors.SemelError as problem:
            return problem
        return None

    async def aend(self, error: BaseException | None) -> errors.SemelError | None:
        """End the run, awaiting the store; gives what the ledger could not be told."""
        running, self._running, self.is_open = self._running, None, False
        try:
            if running is not None:
                await running.__aexit__(type(error), error, None)
        except errors.SemelError as problem:
            return problem
        return None

    def refuse(self, error: errors.SemelError, *, begun: bool = False) -> HTTPResponse:
        """The answer to what stood in the way: of beginning, or of writing it down."""
        return self._idempotency.refuse(self.ticket, error, begun=begun)

    def leave(self) -> None:
        """The run is over in this context too, whichever task it was ended by."""
        if self.run is not None:
            leave(self.run)

    def _block(self) -> "Running":
        ticket = self.ticket
        return ticket.block.running(ticket.key, self._idempotency.fingerprint(ticket, self.body))

    def _record(self, status: int, headers: Pairs, body: bytes) -> None:
        self.recording.start(status, headers)
        self.recording.add(body)

    def _conclude(self) -> None:
        problem = self.end(self.verdict()) if self.is_open else None
        if problem is not None:
            # What the client has of it so far breaks off, and so it knows that it is not the whole.
            raise problem
