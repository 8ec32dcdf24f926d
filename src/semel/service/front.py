"""The front of the service: one lean layer around everything, and the webhooks' way past all the rest.

Each request gets an id, is held to the limits, counted, and logged in one line. A webhook goes from here
straight to its hook: it needs no router and no dependencies, and there may be a thousand of them a second.

A request is worked on when its body is there. What waits for the ledger, and what comes by webhooks, has
places of its own; of each kind a client has its share, and is told to come back when that is used up.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from semel import errors
from semel.doors.http.field import read_length
from semel.doors.http.problems import ProblemDetails
from semel.ledger import random_token
from semel.service import logs
from semel.service.metrics import Metrics
from semel.service.problems import STOPPING, Trouble, later, problem, problem_of, trouble
from semel.service.settings import Service
from semel.service.shares import Arrivals, Budget, Crowded

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

logger: Final = logging.getLogger("semel.service")

# Whoever watches over the service asks even when it is full.
HEALTH: Final = "/health/"
# Who asks here may be answered half a minute later.
WAITS: Final = frozenset({"/v1/wait"})
REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
# Where an answer's maker finds the id of its request.
ID: Final = "semel.request_id"
# The status in logs of what nobody was there to be told.
GONE: Final = 499
# The methods of requests that have a body.
BODIED: Final = frozenset({"POST", "PUT", "PATCH"})
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Hook(Protocol):
    """What takes the deliveries of one sender."""

    async def areceive(self, headers: Any, body: bytes, *, method: str = ..., url: str = ...) -> Any:
        """Take a delivery, and answer it."""


class Callers(Protocol):
    """Whoever may ask."""

    def name(self, authorization: str) -> str | None:
        """Whose token a request shows; None where it is nobody's."""

    def unknown(self, *, sent: bool) -> ProblemDetails:
        """What is said to nobody."""


class Gone(Exception):
    """The client went away before its request was complete."""


class Exchange:
    """One request, and what was answered so far."""

    __slots__ = ("_send", "authorization", "given_up", "has_body", "id", "length", "status", "timer")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self.status = 0
        self.given_up = False
        self.length: int | None = None
        chunked = False
        self.authorization: list[str] = []
        self.timer: asyncio.TimerHandle | None = None
        self.id = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                self.authorization.append(value.decode("latin-1"))
            elif name == b"content-length":
                self.length = read_length(value.decode("latin-1")) or 0
            elif name == b"transfer-encoding":
                chunked = True
            elif name == b"x-request-id" and REQUEST_ID.fullmatch(value):
                self.id = value
        # Not every version of HTTP has to tell a body's length.
        self.has_body = chunked or bool(scope["method"] in BODIED if self.length is None else self.length)
        if not self.id:
            self.id = random_token().encode()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Pass the answer on, with the request's id in it; what comes too late is told to nobody."""
        if self.given_up:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.id)]
        await self._send(message)

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Answer in one piece, unless an answer was begun already."""
        if self.status:
            return
        self.status = status
        head = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        head += [(b"content-length", str(len(body)).encode()), (b"x-request-id", self.id)]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, problem: ProblemDetails) -> None:
        """Answer with a problem."""
        await self.answer(problem.status, dict(problem.all_headers()), problem.body())


class Routes:
    """The templates of all addresses: logs and metrics tell these, and nothing of what fills them in."""

    # A request to an address that does not exist has none of its own: there is no end of them.
    NOWHERE: Final = "(none)"

    def __init__(self, templates: Iterable[str]) -> None:
        self._plain = {template for template in templates if "{" not in template}
        self._filled = [
            (re.compile(re.sub(r"\\{[^{}]+\\}", "[^/]+", re.escape(template))), template)
            for template in templates
            if "{" in template
        ]

    def of(self, path: str) -> str:
        """The template of a path."""
        if path in self._plain:
            return path
        for pattern, template in self._filled:
            if pattern.fullmatch(path):
                return template
        return self.NOWHERE


INTERNAL: Final = problem("internal", "the log says why, under this request's id")


def told_problem(error: errors.SemelError, id: str) -> ProblemDetails:
    """What an error of semel's is to the client; one that is the service's own trouble is logged."""
    problem = problem_of(error)
    if problem.status >= 500:
        # Not its words where they name a key, which may be personal.
        words = "" if hasattr(error, "key") else f": {error}"
        logger.error("a request failed: %s%s", type(error).__name__, words, extra={"id": id})
    return problem


# A connection on which half a body is still to come is of no use for anything else.
CLOSING: Final = ("Connection", "close")


class Front:
    """The service as uvicorn sees it."""

    def __init__(
        self,
        app: App,
        *,
        settings: Service,
        metrics: Metrics,
        hooks: Mapping[str, Hook],
        routes: Routes,
        callers: Callers,
        senders: Mapping[str, str],
    ) -> None:
        self._app = app
        self._hooks = dict(hooks)
        self._senders = dict(senders)
        self._callers = callers
        self._routes = routes
        self._address = settings.public_url.rstrip("/")
        self._settings = settings
        self._metrics = metrics
        share = settings.share
        self._arrivals = Arrivals(settings.max_receiving, share)
        self._requests = Budget("requests", settings.max_in_flight, share)
        self._visits = Budget("visits", settings.max_in_flight, share)
        self._waits = Budget("waits", settings.max_waiting, share)
        self._deliveries = Budget("webhooks", settings.max_webhooks, share)
        self._refusals: set[asyncio.Future[None]] = set()

    @property
    def in_flight(self) -> int:
        """How many requests are under way, those among them whose bodies are still to come."""
        budgets = (self._arrivals, self._requests, self._visits, self._waits, self._deliveries)
        return sum(budget.taken for budget in budgets)

    def listen(self, address: str) -> None:
        """Where it listens, which is what senders were told unless the settings say otherwise."""
        self._address = self._address or address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = perf_counter()
        exchange = Exchange(scope, send)
        scope[ID] = exchange.id.decode()
        try:
            await self._answer(scope, receive, exchange)
        except asyncio.CancelledError:
            if not exchange.given_up:  # the time to stop in is over
                await exchange.refuse(STOPPING)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered and logged here
            await self._fail(exchange, error)
        finally:
            if exchange.timer is not None:
                exchange.timer.cancel()
            self._tell(scope, exchange, perf_counter() - begun)

    async def _answer(self, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        limit, path = self._settings.max_body_bytes, scope["path"]
        if path.startswith(HEALTH):
            self._limit(exchange)
            await self._app(scope, receive, exchange.send)
            return
        if len(exchange.authorization) > 1:
            raise trouble("invalid-request", "it has more than one Authorization header: send one")
        if (exchange.length or 0) > limit:
            raise too_large(limit)
        hook = self._hooks.get(path)
        if hook is not None:
            await self._deliver(hook, scope, receive, exchange)
        else:
            await self._ask(scope, receive, exchange)

    async def _deliver(self, hook: Hook, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        path: str = scope["path"]
        if scope["method"] != "POST":
            raise Trouble(problem("wrong-method", "deliveries are sent by POST", [("Allow", "POST")]))
        query = scope["query_string"]
        url = f"{self._address}{path}" + (f"?{query.decode('latin-1')}" if query else "")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        body = await self._read(scope, receive, exchange)
        self._limit(exchange)
        with self._deliveries.place(self._senders.get(path, path)):
            answer = await hook.areceive(headers, body, method="POST", url=url)
            await exchange.answer(answer.status, dict(answer.headers), answer.body)

    async def _ask(self, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        """A request of whoever is known by its token; nothing that a mere visitor sends is read."""
        shown = exchange.authorization[0] if exchange.authorization else None
        caller = None if shown is None else self._callers.name(shown)
        if not exchange.has_body:
            pass
        elif caller is None:
            receive = _unread(self._callers.unknown(sent=shown is not None))
        else:
            receive = _again(await self._read(scope, receive, exchange), receive)
        self._limit(exchange)
        with self._place(scope, caller):
            await self._app(scope, receive, exchange.send)

    def _place(self, scope: Scope, caller: str | None) -> AbstractContextManager[None]:
        if caller is None:
            return self._visits.place(_peer(scope))
        return (self._waits if scope["path"] in WAITS else self._requests).place(caller)

    async def _read(self, scope: Scope, receive: Receive, exchange: Exchange) -> bytes:
        """The body, if it comes in time."""
        if not exchange.has_body:
            return b""
        wait, task = self._settings.body_timeout, asyncio.current_task()

        def give_up(why: str) -> None:
            self._metrics.refused("bodies")
            problem = later("body-too-slow", why)
            closing = msgspec.structs.replace(problem, headers=(*problem.headers, CLOSING))
            self._give_up(exchange, task, closing)

        exchange.timer = asyncio.get_running_loop().call_later(
            wait, give_up, f"it has not come within {wait:g} s"
        )
        crowded = "too many are on their way, and this one has taken the longest"
        with self._arrivals.expected(_peer(scope), partial(give_up, crowded)):
            return await _body(_measured(receive, self._settings.max_body_bytes))

    def _limit(self, exchange: Exchange) -> None:
        """Give a request up that takes too long from now on."""
        if exchange.timer is not None:
            exchange.timer.cancel()
        wait, task = self._settings.request_timeout, asyncio.current_task()
        problem = later("timed-out", f"it was given up after {wait:g} s")
        # Not `asyncio.timeout`: a write under way is finished first, and the client need not wait for it.
        exchange.timer = asyncio.get_running_loop().call_later(wait, self._give_up, exchange, task, problem)

    def _give_up(self, exchange: Exchange, task: "asyncio.Task[Any] | None", problem: ProblemDetails) -> None:
        """Answer in place of a request, and let it end as soon as it can."""
        exchange.given_up = True
        refusal = asyncio.ensure_future(exchange.refuse(problem))
        self._refusals.add(refusal)
        refusal.add_done_callback(self._refusals.discard)
        if task is not None:
            task.cancel()

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        match error:
            case Gone():
                exchange.status = exchange.status or GONE  # nobody is there to be answered
            case Trouble():
                if isinstance(error, Crowded):
                    self._metrics.refused(error.budget)
                await exchange.refuse(error.problem)
            case errors.SemelError():
                await exchange.refuse(told_problem(error, exchange.id.decode()))
            case _:
                logger.error("a request failed", exc_info=error, extra={"id": exchange.id.decode()})
                await exchange.refuse(INTERNAL)

    def _tell(self, scope: Scope, exchange: Exchange, seconds: float) -> None:
        method = scope["method"]
        if method not in METHODS:
            method = "OTHER"  # anybody may invent one
        route = self._routes.of(scope["path"])
        self._metrics.answered(method, route, exchange.status, seconds)
        logs.told(method, route, exchange.status, seconds, exchange.id.decode())


def too_large(limit: int) -> Trouble:
    """What is said to a body that is too large."""
    return trouble("body-too-large", f"at most {limit} bytes are read")


def _measured(receive: Receive, limit: int) -> Receive:
    """The same body, up to a limit: not every one tells its length."""
    size = 0

    async def measured() -> MutableMapping[str, Any]:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise too_large(limit)
        return message

    return measured


def _unread(problem: ProblemDetails) -> Receive:
    """A body that nobody is to wait for, as it is not known who sends it."""

    async def unread() -> MutableMapping[str, Any]:
        raise Trouble(problem)

    return unread


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, and whatever comes after it."""
    left: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> MutableMapping[str, Any]:
        return left.pop() if left else await receive()

    return again


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


async def _body(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        if not message.get("more_body", False):
            return message["body"] if not chunks else b"".join([*chunks, message.get("body", b"")])
        chunks.append(message.get("body", b""))
