"""Django: `@idempotent(idempotency)` keeps the policy for one view, and `middleware(idempotency)` for a site.

    @require_POST
    @login_required
    @idempotent(idempotency)
    def charge(request): ...

Place it inside what lets a caller in: then a response is given again only to those who would be let in now.
Under `ATOMIC_REQUESTS` a view's transaction is begun and committed inside of it, so a response is kept when
what it tells of is in the database. For views of Django REST framework there is `semel.doors.drf`.
"""

# mypy: disable-error-code="import-untyped"

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from semel.core.runtime import require

require("django", "django")  # which says how to install it

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.core.handlers.exception import response_for_exception
from django.core.handlers.wsgi import WSGIRequest
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.http.request import RawPostDataException
from django.http.response import HttpResponseBase
from django.urls import URLPattern, re_path
from django.utils.decorators import sync_and_async_middleware
from django.views.decorators.http import require_safe

from semel import errors
from semel.doors import wsgi
from semel.doors.http.exchange import Exchange, admit
from semel.doors.http.field import read_length
from semel.doors.http.policy import Idempotency
from semel.doors.http.publish import page_of
from semel.doors.http.responses import HTTPResponse

__all__ = ["idempotent", "middleware", "pages", "user_of"]

V = TypeVar("V", bound=Callable[..., Any])
T = TypeVar("T")

DjangoView: TypeAlias = Callable[..., HttpResponseBase]
AsyncView: TypeAlias = Callable[..., Coroutine[Any, Any, HttpResponseBase]]

# The errors that Django makes an answer of; any other is the view's own failure.
DECIDED: Final = (Http404, PermissionDenied, MultiPartParserError, BadRequest, SuspiciousOperation)


def user_of(request: HttpRequest) -> str | None:
    """The identity of whoever is signed in, as `identity=user_of`."""
    user = request.user
    return str(user.pk) if user.is_authenticated else None


def idempotent(idempotency: Idempotency) -> Callable[[V], V]:
    """Keep this policy for a view, sync or async; `identity` is given the HttpRequest."""

    def protect(view: V) -> V:
        made = _async_view if iscoroutinefunction(view) else _sync_view
        return made(idempotency, view)  # type: ignore[return-value]  # it has the view's own signature

    return protect


def middleware(idempotency: Idempotency) -> Callable[..., Any]:
    """A middleware that keeps this policy for every view: name the module's variable in `MIDDLEWARE`.

    Its place is after AuthenticationMiddleware. What a view itself checks comes too late for a replay: there
    the decorator is the better choice.
    """

    @sync_and_async_middleware  # type: ignore[untyped-decorator]
    def factory(get_response: Any) -> Any:
        make = _async_middleware if iscoroutinefunction(get_response) else _sync_middleware
        return make(idempotency, get_response)

    return factory  # type: ignore[no-any-return]  # Django's decorator has no types


def pages(idempotency: Idempotency) -> list[URLPattern]:
    """The routes of the policy and of the status of a key, for the `urlpatterns` at the site's root."""

    @require_safe  # type: ignore[untyped-decorator]
    def page(request: HttpRequest) -> HttpResponseBase:
        return _page(idempotency, request) or HttpResponse(status=404)

    return [re_path(rf"^{re.escape(idempotency.well_known.lstrip('/'))}(?:/|$)", page)]


# What calls a view


def _sync_view(idempotency: Idempotency, view: DjangoView) -> DjangoView:
    @functools.wraps(view)
    def protected(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        refuse_transaction()
        answer = in_transactions(functools.partial(rendered, view), exempt)
        return _protect(idempotency, request, lambda: answer(request, *args, **kwargs))

    exempt = leave_transactions(protected)
    return protected


def _async_view(idempotency: Idempotency, view: AsyncView) -> AsyncView:
    @functools.wraps(view)
    async def protected(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        async def answer() -> HttpResponseBase:
            response = await view(request, *args, **kwargs)
            return await sync_to_async(response.render)() if _is_deferred(response) else response

        return await _aprotect(idempotency, request, answer)

    return protected


def _sync_middleware(idempotency: Idempotency, get_response: DjangoView) -> DjangoView:
    def protected(request: HttpRequest) -> HttpResponseBase:
        page = _page(idempotency, request)
        return page or _protect(idempotency, request, lambda: get_response(request))

    return protected


def _async_middleware(idempotency: Idempotency, get_response: AsyncView) -> AsyncView:
    async def protected(request: HttpRequest) -> HttpResponseBase:
        if idempotency.may_have_page(request.method, request.path):
            page = await sync_to_async(_page)(idempotency, request)
            if page is not None:
                return page
        return await _aprotect(idempotency, request, lambda: get_response(request))

    return protected


def _page(idempotency: Idempotency, request: HttpRequest) -> HttpResponseBase | None:
    page = page_of(idempotency, wsgi.request_of(request.META, request))
    return None if page is None else response_of(page)


def rendered(view: DjangoView, *args: Any, **kwargs: Any) -> HttpResponseBase:
    """What a view answers, in bytes: its template is a part of the work, and may fail like the rest."""
    response = view(*args, **kwargs)
    if asyncio.iscoroutine(response):
        response.close()
        raise errors.UsageError(
            "this class has async handlers: decorate what its as_view() gives, and not its dispatch()"
        )
    return response.render() if _is_deferred(response) else response


def _is_deferred(response: HttpResponseBase) -> bool:
    return not getattr(response, "is_rendered", True)


# Transactions: a view's own is committed before its answer is kept


class Every(set[str]):
    """Every name is in it, so that Django begins no transaction of its own; its elements get none at all."""

    def __contains__(self, name: object) -> bool:
        return True


def leave_transactions(view: Any) -> Every:
    """Make Django leave the transactions of a view to this door; gives those that nobody wants."""
    view._non_atomic_requests = exempt = Every(getattr(view, "_non_atomic_requests", ()))
    return exempt


def in_transactions(view: DjangoView, exempt: Every) -> DjangoView:
    """A view in the transactions that `ATOMIC_REQUESTS` asks for."""
    for alias, database in connections.settings.items():
        if database["ATOMIC_REQUESTS"] and alias not in set(exempt):
            view = transaction.atomic(using=alias)(view)
    return view


def refuse_transaction() -> None:
    """Raise where a transaction is open: it could still be rolled back when its answer is kept."""
    for connection in connections.all(initialized_only=True):
        # A TestCase wraps each test into one; Django's durable transactions look past it in the same way.
        if connection.atomic_blocks and not connection.atomic_blocks[-1]._from_testcase:
            raise errors.UsageError(
                f"the transaction on {connection.alias!r} would be committed after its answer is kept: place "
                'idempotent(...) outside of it, and on a class as method_decorator(..., name="dispatch")'
            )


# One request


def _protect(
    idempotency: Idempotency, request: HttpRequest, answer: Callable[[], HttpResponseBase]
) -> HttpResponseBase:
    exchange = admitted(idempotency, request)
    if exchange is None:
        return answer()
    if isinstance(exchange, HTTPResponse):
        return response_of(exchange)
    made = exchange.begin() or exchange.attempt(lambda: _decided(answer, request))
    return response_of(made) if isinstance(made, HTTPResponse) else kept(exchange, made)


async def _aprotect(
    idempotency: Idempotency, request: HttpRequest, answer: Callable[[], Awaitable[HttpResponseBase]]
) -> HttpResponseBase:
    if not idempotency.protects(request.method):
        return await answer()
    if isinstance(request, WSGIRequest):
        # Its loop ends with the view, and the response is sent by what knows of none.
        return await sync_to_async(_protect)(idempotency, request, async_to_sync(answer))
    # In a thread, as Django does with all that is not async: an identity may come from the database.
    exchange = await sync_to_async(admitted)(idempotency, request)
    if exchange is None:
        return await answer()
    if isinstance(exchange, HTTPResponse):
        return response_of(exchange)
    return await _to_the_end(_arun(exchange, request, answer))


async def _arun(
    exchange: Exchange, request: HttpRequest, answer: Callable[[], Awaitable[HttpResponseBase]]
) -> HttpResponseBase:
    done = await exchange.aclaim()
    if done is not None:
        return response_of(exchange.answer(done))
    try:
        response = await _adecided(answer, request)
        whole = await _awhole(response, exchange.recording.max_bytes)
    except BaseException as error:
        refusal = await exchange.afail(error)
        if refusal is None:
            raise
        return response_of(refusal)
    if whole is None:
        return _in_pieces(response, Pieces(exchange, response, exchange.aend))
    refusal = await exchange.akeep(response.status_code, list(response.items()), whole)
    return response if refusal is None else response_of(refusal)


def admitted(
    idempotency: Idempotency, request: HttpRequest, native: Any = None
) -> Exchange | HTTPResponse | None:
    """Admit a request, or return the answer to it; None if it is not protected."""
    if not idempotency.protects(request.method):
        return None
    head = wsgi.request_of(request.META, native or request)
    return admit(idempotency, head, functools.partial(read, request))


def read(request: HttpRequest, max_bytes: int) -> bytes | None:
    """The body of a request; None where it is larger than it may be."""
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        return None
    except RawPostDataException:
        raise errors.UsageError(
            "this form was parsed before its key was claimed, as CsrfViewMiddleware does it, and its bytes "
            "are gone: use semel.doors.django.middleware, which comes first"
        ) from None
    if len(body) < (read_length(request.META.get("CONTENT_LENGTH")) or 0):
        raise BadRequest("the client went away before it had sent its request")
    return None if len(body) > max_bytes else body


def _decided(answer: Callable[[], HttpResponseBase], request: HttpRequest) -> HttpResponseBase:
    """What a view answers; an error that Django makes a response of is an answer too."""
    try:
        return answer()
    except DECIDED as error:
        return response_for_exception(request, error)


async def _adecided(
    answer: Callable[[], Awaitable[HttpResponseBase]], request: HttpRequest
) -> HttpResponseBase:
    try:
        return await answer()
    except DECIDED as error:
        return await sync_to_async(response_for_exception, thread_sensitive=False)(request, error)


def kept(exchange: Exchange, response: HttpResponseBase) -> HttpResponseBase:
    """Write a response down; gives the one to be sent."""
    body = exchange.attempt(lambda: _whole(response, exchange.recording.max_bytes))
    if isinstance(body, HTTPResponse):
        return response_of(body)
    if body is not None:
        instead = exchange.keep(response.status_code, list(response.items()), body)
        return response if instead is None else response_of(instead)
    if response.is_async:
        return _in_pieces(response, Pieces(exchange, response, sync_to_async(exchange.end)))
    # Not `streaming_content`, which holds the response that is to hold these: nothing would ever end them.
    encoded = map(functools.partial(_encoded, response.charset), response._iterator)
    pieces = exchange.stream_later(response, response.status_code, list(response.items()), encoded)
    return _in_pieces(response, pieces)


def response_of(answer: HTTPResponse) -> HttpResponse:
    """An answer as Django's response, which has one line for each name of a header."""
    headers: dict[str, str] = {}
    for name, value in answer.headers:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    response = HttpResponse(answer.body, status=answer.status, headers=headers)
    if all(name.lower() != "content-type" for name in headers):
        del response["Content-Type"]
    return response


# Responses that come in pieces


def _is_short(response: HttpResponseBase, max_bytes: int) -> bool:
    length = response.get("Content-Length", "")
    return length.isdecimal() and int(length) <= max_bytes


def _whole(response: HttpResponseBase, max_bytes: int) -> bytes | None:
    """The body of a response that is there, or is short; None where it comes in pieces."""
    if not response.streaming:
        return bytes(response.content)
    if response.is_async or not _is_short(response, max_bytes):
        return None
    body = b"".join(response.streaming_content)
    response.streaming_content = [body]
    return body


async def _awhole(response: HttpResponseBase, max_bytes: int) -> bytes | None:
    if not response.streaming:
        return bytes(response.content)
    if not _is_short(response, max_bytes):
        return None
    body = b"".join([piece async for piece in _pieces_of(response.streaming_content)])
    response.streaming_content = _alone(body)
    return body


async def _alone(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _pieces_of(pieces: Any) -> AsyncIterator[bytes]:
    """The pieces of a response, whichever kind they are."""
    if hasattr(pieces, "__anext__"):
        async for piece in pieces:
            yield piece
        return
    while (piece := await sync_to_async(lambda: next(pieces, None))()) is not None:
        yield piece


def _encoded(charset: str, piece: Any) -> bytes:
    return bytes(piece) if isinstance(piece, bytes | memoryview) else str(piece).encode(charset)


def _in_pieces(response: HttpResponseBase, pieces: Any) -> HttpResponseBase:
    response.streaming_content = pieces
    # To be closed before what the pieces are made of: closing them is what makes the rest.
    closers = response._resource_closers
    closers.insert(0, closers.pop())
    return response


class Pieces:
    """The pieces of an async response, made to the end by a task of their own, whoever is there to see it."""

    def __init__(
        self,
        exchange: Exchange,
        response: HttpResponseBase,
        end: Callable[[BaseException | None], Awaitable[errors.SemelError | None]],
    ) -> None:
        exchange.recording.start(response.status_code, list(response.items()))
        self._exchange = exchange
        self._pieces = _pieces_of(response.streaming_content)
        self._end = end
        self._made: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._begun = False
        self._wanted = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._begun = True
        making = _on_its_own(self._make())
        try:
            while (piece := await self._made.get()) is not None:
                yield piece
            await making
        finally:
            self._wanted = False
            while not self._made.empty():
                self._made.get_nowait()

    def close(self) -> None:
        """The server wants no more of it; what is left is made all the same."""
        if not self._begun:
            self._begun, self._wanted = True, False
            async_to_sync(self._make)()

    async def _make(self) -> None:
        exchange = self._exchange
        try:
            async for piece in self._pieces:
                exchange.recording.add(piece)
                if exchange.recording.full:
                    await self._conclude()
                await self._hand_on(piece)
            await self._conclude()
        except BaseException as error:
            if exchange.is_open:
                await self._end(error)
            raise
        finally:
            await self._hand_on(None)

    async def _hand_on(self, piece: bytes | None) -> None:
        if self._wanted:
            await self._made.put(piece)

    async def _conclude(self) -> None:
        exchange = self._exchange
        problem = await self._end(exchange.verdict()) if exchange.is_open else None
        if problem is not None:
            # What the client has of it so far breaks off, and so it knows that it is not the whole.
            raise problem


# A loop itself holds its tasks only weakly.
TASKS: Final[set[asyncio.Task[Any]]] = set()


def _on_its_own(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    task = asyncio.create_task(work)
    TASKS.add(task)
    task.add_done_callback(_done)
    return task


def _done(task: asyncio.Task[Any]) -> None:
    TASKS.discard(task)
    if not task.cancelled():
        task.exception()  # whoever waited for it may have gone, and the ledger has been told


async def _to_the_end(work: Coroutine[Any, Any, HttpResponseBase]) -> HttpResponseBase:
    """Do this to its end even where the client goes away, for which Django cancels the request's task."""
    task = _on_its_own(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            _on_its_own(_unseen(task))
        raise


async def _unseen(answering: Awaitable[HttpResponseBase]) -> None:
    """Make what nobody will ask for: a response that comes in pieces is at its end only with the last."""
    response = await answering
    if response.streaming:
        async for _ in response.streaming_content:
            pass
