"""The service's dashboard: every application's ledger, and each tenant's own, for those who may see them."""

import re
from hashlib import sha256
from typing import Final

from fastapi import FastAPI
from starlette.responses import RedirectResponse, Response

from semel.apps import Presents
from semel.dashboard.app import dashboard_of
from semel.dashboard.sessions import UserTokens
from semel.dashboard.views import LedgerView
from semel.errors import InvalidOption
from semel.ops.scopes import LOOK, OF_APPS
from semel.service.middleware import FORMS
from semel.service.runtime import MountedApp, Runtime
from semel.service.tokens import Tokens

LOOPBACK: Final = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1")
# What stands in an address as it is; any other tenant is named there by a hash.
PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
# Tokens that may have written something into the ledger of their tenant.
WRITES: Final = frozenset({LOOK, "ledger:write"})


def mount_dashboard(app: FastAPI, runtime: Runtime, tokens: Tokens) -> set[str]:
    """Mount it, and return the templates of its addresses.

    It is for tokens with `ops:read` and users; where there are none, for who has the sign-in link.
    """
    _check_open(runtime)
    if not has_dashboard(runtime):
        return set()
    by_token, users = tokens.operators(), _users(runtime)
    try:
        made = dashboard_of(
            dashboard_views(runtime),
            tokens=by_token,
            users=users,
            secret=runtime.session_secret,
            open=runtime.settings.service.open,
            link=sign_in_link(runtime),
            scopes=tokens.scopes(),
            s=runtime.s,
            secure=runtime.settings.service.public_url.startswith("https:"),
            stopping=runtime.stopping.is_set,
        )
    except InvalidOption as error:
        raise runtime.configuration.wrong(("users",), str(error)) from error

    @app.get(FORMS.rstrip("/"), include_in_schema=False)
    async def within() -> Response:
        return RedirectResponse(FORMS, 303)

    app.mount(FORMS.rstrip("/"), made)
    return {FORMS.rstrip("/") + path for path in made.paths}


def has_dashboard(runtime: Runtime) -> bool:
    """Whether there is a dashboard: without users, only for a service that nobody reaches from elsewhere."""
    return _is_signed(runtime) or _is_private(runtime)


def sign_in_link(runtime: Runtime) -> str:
    """The token of the link by which one operator signs in; "" where users do, or nobody has to."""
    needed = has_dashboard(runtime) and not (_is_signed(runtime) or runtime.settings.service.open)
    return runtime.link if needed else ""


def _check_open(runtime: Runtime) -> None:
    """Refuse an open dashboard where it would be open to more than this machine, or to nobody."""
    if not runtime.settings.service.open:
        return
    problem = ""
    if not _is_private(runtime):
        problem = "the dashboard is open only on a loopback host and without public_url: add [users.NAME]"
    elif _is_signed(runtime):
        problem = "the dashboard has users or tokens: remove open, or remove them"
    if problem:
        raise runtime.configuration.wrong(("service", "open"), problem)


def dashboard_views(runtime: Runtime) -> list[LedgerView]:
    """Every ledger that the dashboard has, each with who may see it."""
    apps = [_of_app(one, runtime) for one in runtime.apps]
    tenants = [_of_tenant(scope, names, runtime) for scope, names in _tenants(runtime).items()]
    return [*apps, *tenants] or [LedgerView(s=runtime.s, name="ledger", title="ledger")]


def _is_signed(runtime: Runtime) -> bool:
    """Whether there are users, each with what they may see; else one operator sees everything."""
    settings = runtime.settings
    return bool(settings.users) or any(LOOK in token.scopes for token in settings.tokens.values())


def _is_private(runtime: Runtime) -> bool:
    """Whether the service is meant for this machine alone."""
    service = runtime.settings.service
    return bool(LOOPBACK.fullmatch(service.host)) and not service.public_url


def _users(runtime: Runtime) -> UserTokens:
    return {name: (user.role, user.password) for name, user in runtime.settings.users.items()}


def _of_app(one: MountedApp, runtime: Runtime) -> LedgerView:
    settings = runtime.settings
    names = {name for name, token in settings.tokens.items() if {LOOK, OF_APPS} <= {*token.scopes}}
    names |= {name for name, user in settings.users.items() if user.scope is None}
    return LedgerView(
        s=one.s,
        name=one.name,
        title=one.name,
        inboxes={one.name: one.inbox} if one.works else {},
        pages=one.app.pages() if isinstance(one.app, Presents) else {},
        users=frozenset(names) if _is_signed(runtime) else None,
    )


def _tenants(runtime: Runtime) -> dict[str, set[str]]:
    """The tenants that have a ledger to be seen, each with who may see it."""
    found: dict[str, set[str]] = {}
    for name, token in runtime.settings.tokens.items():
        if WRITES & {*token.scopes}:
            seen = found.setdefault(name if token.scope is None else token.scope, set())
            seen |= {name} if LOOK in token.scopes else set()
    for name, user in runtime.settings.users.items():
        if user.scope is not None:
            found.setdefault(user.scope, set()).add(name)
    return found if not _is_signed(runtime) else {scope: names for scope, names in found.items() if names}


def _of_tenant(scope: str, names: set[str], runtime: Runtime) -> LedgerView:
    path = scope if PLAIN.fullmatch(scope) else sha256(scope.encode()).hexdigest()[:12]
    title = f"tenant {scope}" if scope else "no tenant"
    # No application has a name that begins so.
    seen = frozenset(names) if _is_signed(runtime) else None
    return LedgerView(s=runtime.s.scoped(scope), name=f"~{path}", title=title, users=seen, switches=False)
