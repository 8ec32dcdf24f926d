"""The outermost layer of the service, which sees every request; webhooks go past all the rest.

Each request gets an id, is held to the limits, counted, and logged in one line. A webhook goes from here
straight to its hook: it needs no router and no dependencies, and there may be a thousand of them a second.

A request is worked on when its body is there. What waits for the ledger, and what comes by webhooks, has
places of its own; of each kind a client has its share, and is told to come back when that is used up.
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter
from typing import Any, Final

import msgspec

from semel import errors
from semel.apps.application import Hook
from semel.core.runtime import random_token
from semel.dashboard.visits import USER
from semel.doors.asgi import ASGIApp, ASGIMessage, Receive, Scope, Send
from semel.doors.http.field import read_length
from semel.doors.http.problems import ProblemDetails
from semel.service import logs
from semel.service.limits import BodyLimit, ConcurrencyLimit, LimitReached
from semel.service.metrics import ServiceMetrics
from semel.service.problems import STOPPING, ProblemError, later, problem, problem_error, problem_of
from semel.service.settings import ServiceSection
from semel.service.tokens import Tokens

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
# No cache keeps an answer that does not say otherwise: it may be about one tenant.
NO_STORE: Final = (b"cache-control", b"no-store")
# The methods of requests that have a body.
BODIED: Final = frozenset({"POST", "PUT", "PATCH"})
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class ClientDisconnected(Exception):
    """The client went away before its request was complete."""


class RequestCycle:
    """One request, and what was answered so far."""

    __slots__ = ("_send", "authorization", "given_up", "has_body", "id", "length", "status", "task", "timer")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self.status: int = 0
        self.given_up: bool = False
        self.length: int | None = None
        chunked = False
        self.authorization: list[str] = []
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.id: bytes = b""
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
        self.has_body: bool = chunked or bool(
            scope["method"] in BODIED if self.length is None else self.length
        )
        if not self.id:
            self.id = random_token().encode()

    async def send(self, message: ASGIMessage) -> None:
        """Pass the answer on, with the request's id in it; what comes too late is told to nobody."""
        if self.given_up:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self.id)]
            if all(name != NO_STORE[0] for name, _ in headers):
                headers.append(NO_STORE)
            message["headers"] = headers
        await self._send(message)

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Answer in one piece, unless an answer was begun already."""
        if self.status:
            return
        self.status = status
        head = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        head += [(b"content-length", str(len(body)).encode()), (b"x-request-id", self.id)]
        if all(name != NO_STORE[0] for name, _ in head):
            head.append(NO_STORE)
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


def logged_problem(error: errors.SemelError, id: str) -> ProblemDetails:
    """What an error of semel's is to the client; one that is the service's own fault is logged."""
    problem = problem_of(error)
    if problem.status >= 500:
        # Not its words where they name a key, which may be personal.
        words = "" if hasattr(error, "key") else f": {error}"
        logger.error("a request failed: %s%s", type(error).__name__, words, extra={"id": id})
    return problem


# A connection on which half a body is still to come is of no use for anything else.
CLOSING: Final = ("Connection", "close")


# Whoever fills in a form of a dashboard shows who he is by a cookie.
FORMS: Final = "/dashboard/"
# Answers that go on until their reader leaves.
LIVE_PATH: Final = re.compile(r"/dashboard/[^/]+/live")


class RequestMiddleware:
    """The service as uvicorn sees it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServiceSection,
        metrics: ServiceMetrics,
        hooks: Mapping[str, Hook],
        routes: Routes,
        tokens: Tokens,
        senders: Mapping[str, str],
    ) -> None:
        self._app = app
        self._hooks = dict(hooks)
        self._senders = dict(senders)
        self._tokens = tokens
        self._routes = routes
        self._address = settings.public_url.rstrip("/")
        self._settings = settings
        self._timed_out = later("timed-out", f"it was given up after {settings.request_timeout:g} s")
        self._metrics = metrics
        share = settings.share
        self._bodies = BodyLimit(settings.max_receiving, share)
        self._requests = ConcurrencyLimit("requests", settings.max_in_flight, share)
        self._visits = ConcurrencyLimit("visits", settings.max_in_flight, share)
        self._waits = ConcurrencyLimit("waits", settings.max_waiting, share)
        self._live = ConcurrencyLimit("live", settings.max_live, share)
        self._deliveries = ConcurrencyLimit("webhooks", settings.max_webhooks, share)
        self._refusals: set[asyncio.Future[None]] = set()

    @property
    def in_flight(self) -> int:
        """How many requests are under way, those among them whose bodies are still to come."""
        limits = (self._bodies, self._requests, self._visits, self._waits, self._deliveries)
        return sum(limit.taken for limit in limits)

    def listen(self, address: str) -> None:
        """Where it listens, which is what senders were told unless the settings say otherwise."""
        self._address = self._address or address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = perf_counter()
        cycle = RequestCycle(scope, send)
        scope[ID] = cycle.id.decode()
        try:
            await self._answer(scope, receive, cycle)
        except asyncio.CancelledError:
            if not cycle.given_up:  # the time to stop in is over
                await cycle.refuse(STOPPING)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered and logged here
            await self._fail(cycle, error)
        finally:
            if cycle.timer is not None:
                cycle.timer.cancel()
            self._record(scope, cycle, perf_counter() - begun)

    async def _answer(self, scope: Scope, receive: Receive, cycle: RequestCycle) -> None:
        limit, path = self._settings.max_body_bytes, scope["path"]
        if path.startswith(HEALTH):
            self._limit(cycle)
            await self._app(scope, receive, cycle.send)
            return
        if len(cycle.authorization) > 1:
            raise problem_error("invalid-request", "it has more than one Authorization header: send one")
        if (cycle.length or 0) > limit:
            raise too_large(limit)
        hook = self._hooks.get(path)
        if hook is not None:
            await self._deliver(hook, scope, receive, cycle)
        else:
            await self._ask(scope, receive, cycle)

    async def _deliver(self, hook: Hook, scope: Scope, receive: Receive, cycle: RequestCycle) -> None:
        path: str = scope["path"]
        if scope["method"] != "POST":
            raise ProblemError(problem("wrong-method", "deliveries are sent by POST", [("Allow", "POST")]))
        query = scope["query_string"]
        url = f"{self._address}{path}" + (f"?{query.decode('latin-1')}" if query else "")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        body = await self._read(scope, receive, cycle)
        self._limit(cycle)
        with self._deliveries.place(self._senders.get(path, path)):
            answer = await hook.areceive(headers, body, method="POST", url=url)
            await cycle.answer(answer.status, dict(answer.headers), answer.body)

    async def _ask(self, scope: Scope, receive: Receive, cycle: RequestCycle) -> None:
        """A request of whoever is known by its token; of a mere visitor only a dashboard's forms are read."""
        shown = cycle.authorization[0] if cycle.authorization else None
        caller = None if shown is None else self._tokens.name(shown)
        if not cycle.has_body:
            pass
        elif caller is None and not scope["path"].startswith(FORMS):
            receive = _unread(self._tokens.unknown(sent=shown is not None))
        else:
            receive = _again(await self._read(scope, receive, cycle), receive)
        if caller is None and LIVE_PATH.fullmatch(scope["path"]):
            # Not limited in time, and in places of its own: it is open for as long as its reader looks on.
            with self._live.place(_peer(scope)):
                await self._app(scope, receive, cycle.send)
            return
        self._limit(cycle)
        with self._place(scope, caller):
            await self._app(scope, receive, cycle.send)

    def _place(self, scope: Scope, caller: str | None) -> AbstractContextManager[None]:
        if caller is None:
            return self._visits.place(_peer(scope))
        return (self._waits if scope["path"] in WAITS else self._requests).place(caller)

    async def _read(self, scope: Scope, receive: Receive, cycle: RequestCycle) -> bytes:
        """The body, if it comes in time."""
        if not cycle.has_body:
            return b""
        wait = self._settings.body_timeout

        def give_up(why: str) -> None:
            self._metrics.refused("bodies")
            problem = later("body-too-slow", why)
            closing = msgspec.structs.replace(problem, headers=(*problem.headers, CLOSING))
            self._give_up(cycle, closing)

        cycle.timer = asyncio.get_running_loop().call_later(
            wait, give_up, f"it has not come within {wait:g} s"
        )
        crowded = "too many are on their way, and this one has taken the longest"
        with self._bodies.expected(_peer(scope), partial(give_up, crowded)):
            return await _body(receive, self._settings.max_body_bytes)

    def _limit(self, cycle: RequestCycle) -> None:
        """Give a request up that takes too long from now on."""
        if cycle.timer is not None:
            cycle.timer.cancel()
        wait = self._settings.request_timeout
        # Not `asyncio.timeout`: a write under way is finished first, and the client need not wait for it.
        cycle.timer = asyncio.get_running_loop().call_later(wait, self._give_up, cycle, self._timed_out)

    def _give_up(self, cycle: RequestCycle, problem: ProblemDetails) -> None:
        """Answer in place of a request, and let it end as soon as it can."""
        cycle.given_up = True
        refusal = asyncio.ensure_future(cycle.refuse(problem))
        self._refusals.add(refusal)
        refusal.add_done_callback(self._refusals.discard)
        if cycle.task is not None:
            cycle.task.cancel()

    async def _fail(self, cycle: RequestCycle, error: Exception) -> None:
        match error:
            case ClientDisconnected():
                cycle.status = cycle.status or GONE  # nobody is there to be answered
            case ProblemError():
                if isinstance(error, LimitReached):
                    self._metrics.refused(error.limit)
                await cycle.refuse(error.problem)
            case errors.SemelError():
                await cycle.refuse(logged_problem(error, cycle.id.decode()))
            case _:
                logger.error("a request failed", exc_info=error, extra={"id": cycle.id.decode()})
                await cycle.refuse(INTERNAL)

    def _record(self, scope: Scope, cycle: RequestCycle, seconds: float) -> None:
        method = scope["method"]
        if method not in METHODS:
            method = "OTHER"  # anybody may invent one
        route = self._routes.of(scope["path"])
        self._metrics.answered(method, route, cycle.status, seconds)
        logs.log_request(method, route, cycle.status, seconds, cycle.id.decode(), user=scope.get(USER, ""))


def too_large(limit: int) -> ProblemError:
    """What is said to a body that is too large."""
    return problem_error("body-too-large", f"at most {limit} bytes are read")


def _unread(problem: ProblemDetails) -> Receive:
    """A body that nobody is to wait for, as it is not known who sends it."""

    async def unread() -> ASGIMessage:
        raise ProblemError(problem)

    return unread


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, and whatever comes after it."""
    left: list[ASGIMessage] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> ASGIMessage:
        return left.pop() if left else await receive()

    return again


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


async def _body(receive: Receive, limit: int) -> bytes:
    """A body that is read up to a limit: not every one tells its length."""
    chunks, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        chunks.append(message.get("body", b""))
        size, more = size + len(chunks[-1]), message.get("more_body", False)
        if size > limit:
            raise too_large(limit)
    return b"".join(chunks)
