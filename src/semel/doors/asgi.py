"""ASGI: `app.add_middleware(IdempotencyMiddleware, idempotency=...)`, for Starlette, FastAPI and any other.

The whole request is read before anything is claimed. A response in one piece is stored first and then sent;
one that streams goes to the client as it comes, and only its end waits for the ledger.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from semel.core.running import CURRENT
from semel.doors.http.exchange import Exchange
from semel.doors.http.policy import AdmittedKey, Idempotency, RequestHead
from semel.doors.http.publish import apage_of
from semel.doors.http.responses import HTTPResponse, NotStored, RetryRequested

if TYPE_CHECKING:
    import asyncio

__all__ = ["IdempotencyMiddleware"]

# Mappings, for which each framework has types of its own.
Scope: TypeAlias = Any
ASGIMessage: TypeAlias = Any
Receive: TypeAlias = Callable[[], Awaitable[ASGIMessage]]
Send: TypeAlias = Callable[[ASGIMessage], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

WANTED: Final = frozenset({b"idempotency-key", b"idempotency-expiry-seconds", b"content-length"})

RESPONSE: Final = frozenset({"http.response.start", "http.response.body"})

# With these an application would send what never passes through here.
UNSEEN: Final = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})


class IdempotencyMiddleware:
    """Keeps a policy for every request of an application; place it inside what authenticates."""

    def __init__(self, app: ASGIApp, idempotency: Idempotency) -> None:
        self.app = app
        self.idempotency = idempotency

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        method = scope["method"]
        if method not in self.idempotency.methods and not self.idempotency.protects(method):
            return await self._unprotected(scope, receive, send)
        cycle = ASGICycle(self.idempotency, receive, send)
        try:
            answer = await cycle.begin(request_of(scope, scope))
        except Disconnected:
            return None
        if answer is not None:
            return await respond(answer, send)
        return await cycle.run(self.app, scope)

    async def _unprotected(self, scope: Scope, receive: Receive, send: Send) -> None:
        page = None
        if self.idempotency.may_have_page(scope["method"], scope["path"]):
            page = await apage_of(self.idempotency, request_of(scope, scope))
        if page is None:
            return await self.app(scope, receive, send)
        return await respond(page, send, head=scope["method"] == "HEAD")


class Disconnected(Exception):
    """The client went away before it had sent its request; nothing was claimed for it."""


class ASGICycle(msgspec.Struct, eq=False):
    """One request and its response: `begin` claims its key, and `run` lets an application answer it.

    If the client goes away meanwhile, the application does not see that, so that it comes to an end. The next
    request with the same key gets its response.
    """

    _idempotency: Idempotency
    _receive: Receive
    _send: Send
    _exchange: Exchange | None = None
    _body: bytes | None = None
    _body_given: bool = False
    _start: ASGIMessage | None = None
    """The head of the response, until its first piece is sent."""
    _gone: bool = False
    _complete: bool = False
    _over: "asyncio.Event | None" = None
    _raised: Exception | None = None

    async def begin(self, request: RequestHead) -> HTTPResponse | None:
        """Claim the key of a request; an answer means that it does not run, and None that it may."""
        admitted = self._idempotency.admit(request)
        if not isinstance(admitted, AdmittedKey):
            return admitted
        if self._body is None and not await self.read():
            return self._idempotency.too_large(admitted.base)
        exchange = Exchange(self._idempotency, admitted, self._body or b"")
        done = await exchange.aclaim()
        if done is not None:
            return exchange.answer(done)
        self._exchange = exchange
        return None

    async def read(self) -> bool:
        """Read the body; False if it is larger than allowed."""
        chunks: list[bytes] = []
        left, more = self._idempotency.max_body, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunks.append(message.get("body", b""))
            left -= len(chunks[-1])
            if left < 0:
                return False
            more = message.get("more_body", False)
        self._body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return True

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Let an application answer, and store its answer."""
        if self._body is None:
            return await app(scope, self._receive, self._send)
        try:
            await app(_seeing_all(scope) if scope.get("extensions") else scope, self.receive, self.send)
            if self._exchange is not None and self._exchange.is_open:
                await self._exchange.aend(NotStored(500))
        except BaseException as error:
            answer = await self._failed(error)
            if answer is None:
                raise
            await respond(answer, self._send)
        finally:
            if self._exchange is not None:
                # The run may have been ended by a task of the application's own, whose context is another.
                CURRENT.set(self._exchange.run.outer)
            self._complete = True
            if self._over is not None:
                self._over.set()
        return None

    def blame(self, error: Exception) -> None:
        """Remember that a handler raised this, of which its framework makes a response."""
        self._raised = error

    # The application's side

    async def receive(self) -> ASGIMessage:
        """Return the request, once; and when the response is complete, as a server does it, the end."""
        if not self._body_given:
            self._body_given = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        if self._exchange is None:
            # While nothing is claimed, the application may know that the client has gone.
            return await self._receive()
        if not self._complete:
            import asyncio

            self._over = self._over or asyncio.Event()
            await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: ASGIMessage) -> None:
        """Take a piece of the response."""
        kind, exchange = message["type"], self._exchange
        last = kind == "http.response.body" and not message.get("more_body", False)
        if exchange is None or not exchange.is_open or kind not in RESPONSE:
            await self._pass_on(message)
        elif exchange.recording.begun == (kind == "http.response.start") and self._start is None:
            await self._pass_on(message)  # out of turn, which is the server's to refuse
        elif kind == "http.response.start":
            headers = list(message.get("headers", ()))  # they may be there to be read just once
            exchange.recording.start(message["status"], headers)
            self._start = {**message, "headers": headers}
        else:
            exchange.recording.add(message.get("body", b""))
            if last or exchange.recording.full:
                await self._store(exchange, message)
            else:
                await self._pass_on(message)
        if last:
            self._complete = True
            if self._over is not None:
                self._over.set()

    # Inside

    async def _store(self, exchange: Exchange, message: ASGIMessage) -> None:
        """Store the response, and send its last piece."""
        verdict: Exception | None = exchange.verdict()
        # The error that the response was made of says more than its status.
        if verdict is not None and self._raised is not None and not isinstance(verdict, RetryRequested):
            verdict = self._raised
        problem = await exchange.aend(verdict)
        if problem is None:
            return await self._pass_on(message)
        if self._start is None:
            # What was sent so far breaks off: so the client knows that it is incomplete.
            raise problem
        self._start, self._gone = None, True
        return await respond(exchange.refuse(problem, begun=True), self._send)

    async def _failed(self, error: BaseException) -> HTTPResponse | None:
        exchange = self._exchange
        if exchange is None or not exchange.is_open:
            return None
        answer = await exchange.afail(error)
        return answer if self._start is not None or not exchange.recording.begun else None

    async def _pass_on(self, message: ASGIMessage) -> None:
        """Send a message, after the head if that is still held."""
        start, self._start = self._start, None
        if self._gone:
            return
        try:
            if start is not None:
                await self._send(start)
            await self._send(message)
        except OSError:
            self._gone = True


def concerns(idempotency: Idempotency, scope: Scope) -> bool:
    """Whether a request is protected, or gets the reason why it is not."""
    if not idempotency.protects(scope["method"]):
        return False
    return idempotency.required or any(name == b"idempotency-key" for name, _ in scope["headers"])


async def open_cycle(
    idempotency: Idempotency, scope: Scope, receive: Receive, send: Send
) -> ASGICycle | None:
    """Read the body of a request, and return its cycle; None if it is over already."""
    cycle = ASGICycle(idempotency, receive, send)
    try:
        fits = await cycle.read()
    except Disconnected:
        return None
    if fits:
        return cycle
    await respond(idempotency.too_large(scope.get("root_path", "") + idempotency.well_known), send)
    return None


def request_of(scope: Scope, native: Any) -> RequestHead:
    """A request as the policy reads it."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name in WANTED:
            low, text = name.decode("latin-1"), value.decode("latin-1")
            found[low] = f"{found[low]}, {text}" if low in found else text
    query = scope.get("query_string", b"").decode("latin-1")
    return RequestHead(scope["method"], scope["path"], query, found, native, scope.get("root_path", ""))


def raw_headers(answer: HTTPResponse) -> list[tuple[bytes, bytes]]:
    """The headers of an answer as ASGI has them."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]


async def respond(answer: HTTPResponse, send: Send, *, head: bool = False) -> None:
    """Send an answer."""
    headers = raw_headers(answer)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else answer.body})


def _seeing_all(scope: Scope) -> Scope:
    """The scope without what would let a response pass by here."""
    extensions = scope["extensions"]
    if not UNSEEN & extensions.keys():
        return scope
    return {**scope, "extensions": {name: extensions[name] for name in extensions.keys() - UNSEEN}}
