"""Who is let in to which page: every request is a visit, with its user, its session and its form."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from ipaddress import ip_address
from math import ceil
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from semel import errors
from semel.core.clock import Clock
from semel.dashboard.passwords import PasswordThrottle
from semel.dashboard.rendering import templates
from semel.dashboard.sessions import LIFETIME, LOCAL, EndedSessions, Session, Sessions, User
from semel.dashboard.views import LedgerView

COOKIE: Final = "semel_session"
# A reason and a result by hand; nobody types more.
LARGEST_FORM: Final = 256 * 1024
# A proxy on this machine speaks for clients that are not on it.
FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")
# Where a request's scope has the path at which the whole dashboard is mounted.
ROOT: Final = "semel.dashboard"
# Where a request's scope has the name of its user, for the log.
USER: Final = "semel.user"
# Each takes a thread, 16 MB and 50 ms: this many are checked at a time, and this many of one address wait.
PASSWORDS_AT_ONCE, PASSWORDS_WAITING = 2, 8
# From where a browser says that a form of ours is sent; an old one says nothing.
OWN_SITES: Final = ("same-origin", "none")


class Visit(msgspec.Struct, frozen=True):
    """A request, who makes it, and what was typed into its form."""

    request: Request
    session: Session
    form_token: str
    user: User | None
    view: LedgerView | None
    ledgers: tuple[LedgerView, ...] = ()
    """Those that the user may see, where there are several."""
    form: dict[str, str] = {}

    @property
    def root(self) -> str:
        """Where the dashboard is mounted."""
        return str(self.request.scope[ROOT])

    @property
    def base(self) -> str:
        """Where the pages of this ledger are."""
        return self.root + ("" if self.view is None else self.view.path)

    @property
    def query(self) -> dict[str, str]:
        """What the address asks for."""
        return dict(self.request.query_params)

    def page(self, name: str, status: int = 200, /, **values: Any) -> Response:
        """The page that a template makes of these values."""
        about = {
            "base": self.base,
            "root": self.root,
            "user": self.user,
            "signed_in": bool(self.session.name),
            "form_token": self.form_token,
            "page": name,
            "menu": () if self.view is None else self.view.menu,
            "view": self.view,
            "ledgers": self.ledgers,
        }
        return HTMLResponse(templates().get_template(f"{name}.html").render(about | values), status)

    def problem(self, status: int, title: str, text: str) -> Response:
        """A page that says why not."""
        return self.page("problem", status, title=title, text=text)

    def elsewhere(self, path: str) -> Response:
        """Leads to another page of this ledger."""
        return RedirectResponse(self.base + path, 303)


PageHandler: TypeAlias = Callable[[Visit], Awaitable[Response]]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


class Authenticator:
    """Lets users in by their tokens or passwords, and to the pages of their role."""

    def __init__(
        self,
        sessions: Sessions,
        ended: EndedSessions,
        views: Sequence[LedgerView],
        clock: Clock,
        *,
        open: bool,  # noqa: A002 - as the option is called
        secure: bool = False,
    ) -> None:
        self._sessions = sessions
        self._ended = ended
        self._secure = secure
        self._views = tuple(views)
        self._open = open
        self._throttle = PasswordThrottle(clock)
        self._checking = asyncio.Semaphore(PASSWORDS_AT_ONCE)
        self._waiting: Counter[str] = Counter()

    def viewer(self, view: LedgerView, handler: PageHandler) -> Endpoint:
        """A page for every user of a ledger."""

        async def endpoint(request: Request) -> Response:
            visit = await self._arrived(request, view)
            if elsewhere := self._unauthenticated(visit) or _linked(visit):
                return elsewhere
            refused = self._signed_out(visit) or self._not_theirs(visit)
            return self._kept(visit, refused or await _answered(handler, visit))

        return endpoint

    def operator(self, view: LedgerView, handler: PageHandler, scope: str) -> Endpoint:
        """A form for users with a scope."""

        async def endpoint(request: Request) -> Response:
            visit = await self._filled_in(await self._arrived(request, view))
            refused = self._unauthenticated(visit) or self._signed_out(visit) or self._forged(visit)
            refused = refused or self._not_theirs(visit) or _not_permitted(visit, scope)
            return self._kept(visit, refused or await _answered(handler, visit))

        return endpoint

    def is_still(self, visit: Visit) -> bool:
        """Whether a visit that lasts is of a session that has not ended."""
        known = self._sessions.opened(visit.request.cookies.get(COOKIE, ""))
        if known is None or self._ended.has_here(known):
            return self._open
        return self._open or self._sessions.user(known) is not None

    async def first(self, request: Request) -> Response:
        """Lead to the first ledger that a user may see."""
        visit = await self._arrived(request, None)
        if elsewhere := self._unauthenticated(visit) or _linked(visit):
            return elsewhere
        if request.method == "GET" and (session := self._sessions.follow(visit.query.get("token", ""))):
            return self._begun(visit, session, visit.elsewhere("/"))
        if refused := self._signed_out(visit):
            return self._kept(visit, refused)
        if not visit.ledgers:
            return self._kept(visit, visit.problem(403, "Nothing to see", NO_LEDGER))
        return self._kept(visit, visit.elsewhere(f"{visit.ledgers[0].path}/"))

    async def sign_in(self, request: Request) -> Response:
        """Ask for a token or a password, and begin the session of whoever has it."""
        visit = await self._filled_in(await self._arrived(request, None))
        if elsewhere := self._unauthenticated(visit) or _linked(visit):
            return elsewhere
        to = _inside(visit.query.get("next", ""))
        if request.method == "GET":
            return self._kept(visit, visit.elsewhere(to) if visit.user else self._asking(visit, to))
        if self._forged(visit):
            return self._kept(visit, self._asking(visit, to, STALE))
        name, problem, wait = await self._who(visit)
        if name is None:
            return self._kept(visit, self._asking(visit, to, problem, wait))
        return self._begun(visit, self._sessions.begin(name), visit.elsewhere(to))

    def _asking(self, visit: Visit, to: str, problem: str = "", wait: float = 0.0) -> Response:
        status = 200 if not problem else 429 if wait else 403
        page = visit.page(
            "sign-in",
            status,
            next=to,
            problem=problem,
            name=visit.form.get("name", "")[:200],
            by_password=self._sessions.takes_passwords,
            by_token=self._sessions.takes_tokens,
            by_link=self._sessions.takes_link,
        )
        if wait:
            page.headers["Retry-After"] = str(ceil(wait))
        return page

    async def _who(self, visit: Visit) -> tuple[str | None, str, float]:
        """Who has signed in; else None, the reason, and for how many seconds to wait."""
        token = visit.form.get("token", "").strip()
        if token or not visit.form.get("password"):
            return (
                self._sessions.holder(token),
                "No user has this token. Ask whoever set up the dashboard.",
                0,
            )
        name, password = visit.form.get("name", "").strip(), visit.form["password"]
        address = visit.request.client.host if visit.request.client else ""
        full = self._waiting[address] >= PASSWORDS_WAITING
        wait = 1.0 if full else self._throttle.attempt(address, name)
        if wait:
            problem = f"Too many wrong passwords from your address. Wait {ceil(wait)} s, or use a token."
            return None, problem, wait
        if not await self._is_password(address, name, password):
            return None, "No user has this name and password.", 0
        self._throttle.succeed(address, name)
        return name, "", 0

    async def _is_password(self, address: str, name: str, password: str) -> bool:
        self._waiting[address] += 1
        try:
            async with self._checking:
                return await asyncio.to_thread(partial(self._sessions.knows, name, password))
        finally:
            self._waiting[address] -= 1
            self._waiting += Counter()  # drops the addresses that have none left

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        visit = await self._filled_in(await self._arrived(request, None))
        if refused := self._unauthenticated(visit) or self._forged(visit):
            return refused
        await self._ended.add(visit.session)
        return self._begun(visit, self._sessions.begin(), visit.elsewhere("/sign-in"))

    async def nowhere(self, request: Request, error: Exception) -> Response:
        """Say that there is nothing at an address, or nothing that can be done so."""
        visit = await self._arrived(request, self._views[0] if len(self._views) == 1 else None)
        status = error.status_code if isinstance(error, HTTPException) else 404
        return self._unauthenticated(visit) or visit.problem(status, "Nothing here", NO_PAGE)

    async def unavailable(self, request: Request, error: Exception) -> Response:
        """Say that the store cannot tell who is signed in."""
        return Visit(request, self._sessions.begin(), "", None, None).problem(503, UNAVAILABLE, str(error))

    async def _arrived(self, request: Request, view: LedgerView | None) -> Visit:
        session = self._sessions.opened(request.cookies.get(COOKIE, ""))
        # Who has not signed in has nothing that could be ended.
        if session is None or (session.name and await self._ended.has(session)):
            session = self._sessions.begin()
        user = LOCAL if self._open else self._sessions.user(session)
        request.scope[USER] = "" if user is None else user.name
        seen = () if user is None else tuple(one for one in self._views if one.is_for(user.name))
        return Visit(request, session, self._sessions.form_token(session), user, view, seen)

    async def _filled_in(self, visit: Visit) -> Visit:
        if visit.request.method != "POST":
            return visit
        return msgspec.structs.replace(visit, form=await _form(visit.request))

    def _not_theirs(self, visit: Visit) -> Response | None:
        """As if it were not there: not everybody is to know which ledgers there are."""
        if visit.view is None or visit.user is None or visit.view.is_for(visit.user.name):
            return None
        return msgspec.structs.replace(visit, view=None).problem(404, "Nothing here", NO_PAGE)

    def _unauthenticated(self, visit: Visit) -> Response | None:
        if not self._open or is_local(visit.request):
            return None
        visit = msgspec.structs.replace(visit, user=None, view=None, ledgers=())
        text = "This dashboard is open to its own machine alone. Give it tokens to reach it from elsewhere."
        return visit.problem(403, "Not from here", text)

    def _signed_out(self, visit: Visit) -> Response | None:
        if visit.user is not None:
            return None
        if visit.request.method == "POST":
            return visit.problem(401, "Signed out", "Your session is over. Sign in, and do it again.")
        return RedirectResponse(f"{visit.root}/sign-in?next={quote(_address(visit), safe='')}", 303)

    def _forged(self, visit: Visit) -> Response | None:
        own = self._sessions.is_own_form(visit.session, visit.form.get("form_token", ""))
        if own and visit.request.headers.get("sec-fetch-site", "none") in OWN_SITES:
            return None
        return visit.problem(403, "Not done", STALE if visit.form else UNREADABLE)

    def _kept(self, visit: Visit, response: Response) -> Response:
        """The answer, with the cookie of a session that has only begun."""
        known = self._sessions.opened(visit.request.cookies.get(COOKIE, ""))
        return response if known == visit.session else self._begun(visit, visit.session, response)

    def _begun(self, visit: Visit, session: Session, response: Response) -> Response:
        response.set_cookie(
            COOKIE,
            self._sessions.sealed(session),
            max_age=LIFETIME,
            path=visit.root or "/",
            secure=self._secure or visit.request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response


UNAVAILABLE: Final = "The store did not do as asked"
NO_PAGE: Final = "There is no such page in the dashboard."
NO_LEDGER: Final = "You are signed in, and there is no ledger for you. Ask whoever set up the dashboard."
UNREADABLE: Final = f"No form arrived, or one of more than {LARGEST_FORM // 1024} KB. Nothing was done."
STALE: Final = "The form was not of your session, or is out of date. Nothing was done: load the page again."


def _linked(visit: Visit) -> Response | None:
    """A step that leads on, for whoever follows a link of another site.

    A browser sends no strict cookie along with that, so whoever is signed in would seem not to be, and would
    be given another session in place of that one. It sends the cookie when a page of ours leads there.
    """
    request = visit.request
    if request.method != "GET" or request.headers.get("sec-fetch-site") != "cross-site":
        return None
    return msgspec.structs.replace(visit, user=None).page("arrival", address=visit.root + _address(visit))


def _not_permitted(visit: Visit, scope: str) -> Response | None:
    if visit.user is not None and scope in visit.user.scopes:
        return None
    return visit.problem(403, "Not permitted", f"This needs the scope {scope}. Ask an operator who has it.")


async def _answered(handler: PageHandler, visit: Visit) -> Response:
    try:
        return await handler(visit)
    except errors.UsageError as error:
        return visit.problem(400, "That cannot be", str(error))
    except errors.Refused as error:
        return visit.problem(409, "Refused", str(error))
    except errors.StoreError as error:
        return visit.problem(503, UNAVAILABLE, str(error))


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form; one that is too large, or is not a form, has none."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_FORM:
            return {}
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        return {}


def is_local(request: Request) -> bool:
    """Whether a request comes from this machine, and is meant for it by name."""
    client = request.client
    if client is None or any(name in request.headers for name in FORWARDED):
        return False
    # A page elsewhere can have its own name lead here; the browser then still sends that name.
    return _is_loopback(client.host) and _is_loopback(request.url.hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _address(visit: Visit) -> str:
    url = visit.request.url
    path = url.path.removeprefix(visit.root) or "/"
    return f"{path}?{url.query}" if url.query else path


def _inside(path: str) -> str:
    """A path of the dashboard; whatever would lead out of it becomes the first page."""
    inside = path.startswith("/") and path.isprintable() and path[1:2] not in ("/", "\\")
    return path if inside else "/"
