"""The dashboard as an ASGI application: its addresses, who is let in to each, and what every answer says."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semel.connect import Semel
from semel.dashboard.bulk import BulkPages
from semel.dashboard.inboxes import InboxPages
from semel.dashboard.live import LiveFeed
from semel.dashboard.own import OwnPages
from semel.dashboard.pages import Pages
from semel.dashboard.persons import PersonPages
from semel.dashboard.rendering import ASSETS, asset
from semel.dashboard.sessions import EndedSessions, Sessions, UserScopes, UserTokens
from semel.dashboard.views import LedgerView
from semel.dashboard.visits import ROOT, Authenticator, Endpoint, PageHandler, Visit
from semel.doors.inbox import Inbox
from semel.errors import InvalidOption, StoreError
from semel.ops.scopes import ACT, TURN

# Whatever stood in a page, a browser would load nothing from elsewhere, and run and keep nothing of it.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
# The address of a file changes with the file.
KEPT_BY_BROWSER: Final = "public, max-age=86400, immutable"


def dashboard(
    s: Semel,
    *,
    tokens: UserTokens | None = None,
    users: UserTokens | None = None,
    inboxes: Mapping[str, Inbox] | None = None,
    secret: bytes | None = None,
    open: bool = False,  # noqa: A002 - the word for it; nothing here opens a file
) -> ASGIApp:
    """The dashboard of a ledger, to be mounted: `app.mount("/semel", dashboard(s, tokens=...))`.

    `tokens` has the role, viewer or operator, and the SHA-256 in hex of the token of each user by name;
    `users` has the role and the hash of a password, as `semel hash-password` prints it. `inboxes` are shown
    by their names. `secret` signs sessions; several processes share one, and without it each signs with its
    own until it ends. `open=True`, in place of tokens and users, lets in everybody on this machine, and
    nobody else.
    """
    view = LedgerView(s=s, inboxes=inboxes or {})
    return dashboard_of([view], tokens=tokens, users=users, secret=secret, open=open)


def dashboard_of(
    views: Sequence[LedgerView],
    *,
    tokens: UserTokens | None = None,
    users: UserTokens | None = None,
    secret: bytes | None = None,
    open: bool = False,  # noqa: A002 - as the option is called
    link: str = "",
    scopes: UserScopes = MappingProxyType({}),
    s: Semel | None = None,
    secure: bool = False,
    stopping: Callable[[], bool] = lambda: False,
) -> "SafeHeaders":
    """One dashboard of several ledgers, each under its name.

    `link` is the token of the sign-in link, `/?token=...`, which signs one operator in, once. `scopes`
    has what users may do, where their role does not say it. `s` has the store for ended sessions; by default
    the first view does. `secure` sets cookies for HTTPS only. `stopping` says when live pages are to end.
    """
    if [bool(tokens or users), open, bool(link)].count(True) != 1:
        raise InvalidOption(
            "a dashboard is given tokens={name: (role, sha256)}, users={name: (role, hash)}, or open=True "
            "for this machine alone"
        )
    clock = views[0].s.clock
    sessions = Sessions(tokens or {}, users or {}, secret, clock, link=link, scopes=scopes)
    # Nobody but this process knows the sessions of its link.
    ended = EndedSessions(None if link or open else s or views[0].s, clock)
    authenticator = Authenticator(sessions, ended, views, clock, open=open, secure=secure)
    routes: list[BaseRoute] = [
        Route("/sign-in", authenticator.sign_in, methods=["GET", "POST"]),
        Route("/sign-out", authenticator.sign_out, methods=["POST"]),
        *(Route(f"/static/{name}", _file(name)) for name in ASSETS),
    ]
    if len(views) == 1 and not views[0].name:
        routes += _routes(views[0], authenticator, stopping)
    else:
        routes += [Mount(view.path, _router(_routes(view, authenticator, stopping))) for view in views]
        routes += [Route(view.path, authenticator.viewer(view, _first_page)) for view in views]
        routes.append(Route("/", authenticator.first))
    app = Starlette(
        exception_handlers={HTTPException: authenticator.nowhere, StoreError: authenticator.unavailable}
    )
    app.router = _router(routes)
    return SafeHeaders(app)


def _router(routes: list[BaseRoute]) -> Router:
    # A redirect to the address with a slash would lead to whichever host the request names, as http: behind
    # TLS, and send the form there again.
    return Router(routes, redirect_slashes=False)


def _routes(view: LedgerView, authenticator: Authenticator, stopping: Callable[[], bool]) -> list[BaseRoute]:
    s = view.s.through("dashboard")
    pages, inboxes, bulk, own = Pages(s, view), InboxPages(s, view), BulkPages(s), OwnPages(view)
    persons = PersonPages(s, view)
    live = LiveFeed(s, view, authenticator, stopping)
    seen: dict[str, PageHandler] = {
        "/": pages.overview,
        "/ledger": pages.ledger,
        "/key": pages.key,
        "/doubts": pages.doubts,
        **({"/switches": pages.switches} if view.switches else {}),
        "/counters": pages.counters,
        "/persons": persons.ask,
        "/journal": pages.journal,
        "/inboxes": inboxes.all,
        "/inbox": inboxes.one,
        "/own/{page}": own.show,
        "/live": live.stream,
    }
    done: dict[str, tuple[PageHandler, str]] = {
        "/key": (pages.act, ACT),
        "/reveal": (pages.reveal, ACT),
        **({"/switches": (pages.turn, TURN)} if view.switches else {}),
        "/inbox": (inboxes.redrive, ACT),
        "/letter": (inboxes.reveal, ACT),
        "/bulk": (bulk.act, ACT),
        "/persons": (persons.erase, ACT),
    }
    return [
        *(
            Route(path, authenticator.viewer(view, handler), methods=["GET"])
            for path, handler in seen.items()
        ),
        *(
            Route(path, authenticator.operator(view, handler, scope), methods=["POST"])
            for path, (handler, scope) in done.items()
        ),
    ]


async def _first_page(visit: Visit) -> Response:
    return visit.elsewhere("/")


def _file(name: str) -> Endpoint:
    async def send(_: Request) -> Response:
        return Response(asset(name), media_type=ASSETS[name], headers={"Cache-Control": KEPT_BY_BROWSER})

    return send


class SafeHeaders:
    """Says with every answer what a browser may do with it."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    @property
    def paths(self) -> set[str]:
        """The templates of its addresses, the same for every ledger."""
        return set(_paths(self._app.routes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope[ROOT] = str(scope.get("root_path", "")).rstrip("/")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, guarded)


def _paths(routes: Sequence[BaseRoute]) -> Iterator[str]:
    ledgers = [route for route in routes if isinstance(route, Mount)]
    for ledger in ledgers:
        yield "/{ledger}"
        yield from ("/{ledger}" + path for path in _paths(ledger.routes))
    plain = [route.path for route in routes if isinstance(route, Route)]
    yield from (path for path in plain if path not in {ledger.path for ledger in ledgers})
