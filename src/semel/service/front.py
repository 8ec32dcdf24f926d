"""The front of the service: one lean layer around everything, and the webhooks' way past all the rest.

Each request gets an id, is held to the limits, counted, and logged in one line. A webhook goes from here
straight to its hook: it needs no router and no dependencies, and there may be a thousand of them a second.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from time import perf_counter
from typing import Any, Final, Protocol, TypeAlias

from semel import errors
from semel.ledger import random_token
from semel.service import logs
from semel.service.metrics import Metrics
from semel.service.problems import STOPPING, Problem, Trouble, later, problem_of, trouble
from semel.service.settings import Service

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

logger: Final = logging.getLogger("semel.service")

# Whoever watches over the service asks even when it is full.
HEALTH: Final = "/health/"
REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
# Where an answer's maker finds the id of its request.
ID: Final = "semel.request_id"
# The status in logs of what nobody was there to be told.
GONE: Final = 499
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Hook(Protocol):
    """What takes the deliveries of one sender."""

    async def areceive(self, headers: Any, body: bytes, *, method: str = ..., url: str = ...) -> Any:
        """Take a delivery, and answer it."""


class Gone(Exception):
    """The client went away before its request was complete."""


class Exchange:
    """One request, and what was answered so far."""

    __slots__ = ("_send", "given_up", "id", "length", "status", "unmeasured")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self.status = 0
        self.given_up = False
        self.length = 0
        self.unmeasured = False
        self.id = b""
        for name, value in scope["headers"]:
            if name == b"content-length":
                self.length = int(value) if value.isdigit() else 0
            elif name == b"transfer-encoding":
                self.unmeasured = True
            elif name == b"x-request-id" and REQUEST_ID.fullmatch(value):
                self.id = value
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

    async def refuse(self, problem: Problem) -> None:
        """Answer with a problem."""
        await self.answer(problem.status, problem.head(), problem.body())


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


INTERNAL: Final = Problem("internal", "the log says why, under this request's id")


def told_problem(error: errors.SemelError, id: str) -> Problem:
    """What an error of semel's is to the client; one that is the service's own trouble is logged."""
    problem = problem_of(error)
    if problem.status >= 500:
        # Not its words where they name a key, which may be personal.
        words = "" if hasattr(error, "key") else f": {error}"
        logger.error("a request failed: %s%s", type(error).__name__, words, extra={"id": id})
    return problem


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
    ) -> None:
        self._app = app
        self._hooks = dict(hooks)
        self._routes = routes
        self._address = settings.public_url.rstrip("/")
        self._settings = settings
        self._metrics = metrics
        self.in_flight = 0
        self._refusals: set[asyncio.Future[None]] = set()

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
        self.in_flight += 1
        # Not `asyncio.timeout`: a write under way is finished first, and the client need not wait for it.
        timer = asyncio.get_running_loop().call_later(
            self._settings.request_timeout, self._give_up, exchange, asyncio.current_task()
        )
        try:
            await self._answer(scope, receive, exchange)
        except asyncio.CancelledError:
            if not exchange.given_up:  # the time to stop in is over
                await exchange.refuse(STOPPING)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered and logged here
            await self._fail(exchange, error)
        finally:
            timer.cancel()
            self.in_flight -= 1
            self._tell(scope, exchange, perf_counter() - begun)

    async def _answer(self, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        limit, path = self._settings.max_body_bytes, scope["path"]
        if self.in_flight > self._settings.max_in_flight and not path.startswith(HEALTH):
            raise Trouble(later("overloaded", f"{self._settings.max_in_flight} are; come back in a second"))
        if exchange.length > limit:
            raise too_large(limit)
        if exchange.unmeasured:
            receive = _measured(receive, limit)
        hook = self._hooks.get(path)
        if hook is None:
            await self._app(scope, receive, exchange.send)
        else:
            await self._deliver(hook, scope, receive, exchange)

    async def _deliver(self, hook: Hook, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        if scope["method"] != "POST":
            raise Trouble(Problem("wrong-method", "deliveries are sent by POST", (("Allow", "POST"),)))
        query = scope["query_string"]
        url = f"{self._address}{scope['path']}" + (f"?{query.decode('latin-1')}" if query else "")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        answer = await hook.areceive(headers, await _body(receive), method="POST", url=url)
        await exchange.answer(answer.status, dict(answer.headers), answer.body)

    def _give_up(self, exchange: Exchange, task: "asyncio.Task[Any] | None") -> None:
        """Answer in place of a request that takes too long, and let it end as soon as it can."""
        exchange.given_up = True
        waited = self._settings.request_timeout
        refusal = asyncio.ensure_future(
            exchange.refuse(later("timed-out", f"it was given up after {waited:g} s"))
        )
        self._refusals.add(refusal)
        refusal.add_done_callback(self._refusals.discard)
        if task is not None:
            task.cancel()

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        match error:
            case Gone():
                exchange.status = exchange.status or GONE  # nobody is there to be answered
            case Trouble():
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
    """The same body, up to a limit; for one that did not tell its length."""
    size = 0

    async def measured() -> MutableMapping[str, Any]:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise too_large(limit)
        return message

    return measured


async def _body(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        if not message.get("more_body", False):
            return message["body"] if not chunks else b"".join([*chunks, message.get("body", b"")])
        chunks.append(message.get("body", b""))
