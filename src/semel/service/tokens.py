"""Tokens: what each may do, its tenant, and its comparison in constant time."""

import hmac
import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from fastapi import Depends, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from semel import errors
from semel.apps.configuration import Configuration
from semel.apps.settings import SHORTEST
from semel.connect import Semel
from semel.doors.http.problems import ProblemDetails
from semel.ops.scopes import ACT, LOOK, OF_APPS, TURN
from semel.service.problems import ProblemError, problem, problem_error
from semel.service.runtime import Runtime
from semel.service.settings import Right, TokenSection

DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
# What can stand in a header, and comes out of it as it went in.
SENDABLE: Final = re.compile(r"[\x21-\x7e]*")

BEARER: Final = HTTPBearer(
    auto_error=False, scheme_name="token", description="A token of the settings: `[tokens.NAME]`."
)
AppQuery = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=100,
        description="The application whose ledger is meant, instead of the token's own tenant's; takes the "
        "scope `apps:read`.",
    ),
]


class Principal(msgspec.Struct, frozen=True):
    """Who asks, and the ledger of its tenant."""

    name: str
    rights: frozenset[str]
    s: Semel

    def require(self, *rights: Right) -> None:
        """Refuse it what it asks for, unless it has these rights."""
        for right in rights:
            if right not in self.rights:
                raise ProblemError(_lacks(self, right))


class Tokens:
    """Every token that is known."""

    def __init__(self, runtime: Runtime) -> None:
        # Its events say that they came in this way.
        s = runtime.s.through("api")
        self._apps = {one.name: one.s.through("api") for one in runtime.apps}
        self._known: list[tuple[bytes, Principal]] = []
        for name, token in runtime.settings.tokens.items():
            digest = _digest(name, token, runtime.configuration)
            if any(digest == known for known, _ in self._known):
                raise runtime.configuration.wrong(
                    ("tokens", name), "another token is the same: each has its own"
                )
            tenant = name if token.scope is None else token.scope
            try:
                own = s.scoped(tenant)
            except errors.InvalidKey as error:
                raise runtime.configuration.wrong(("tokens", name, "scope"), str(error)) from error
            self._known.append((digest, Principal(name, frozenset(token.scopes), own)))

    def caller(self, presented: str) -> Principal | None:
        """Who has this token; every one is compared, so that the time tells nothing."""
        digest, found = sha256(presented.encode("utf-8", "replace")).digest(), None
        for known, caller in self._known:
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    def operators(self) -> dict[str, tuple[Literal["viewer", "operator"], str]]:
        """Who may look into a ledger by the dashboard, as what, and the digest of each one's token."""
        return {
            caller.name: ("operator" if ACT in caller.rights else "viewer", digest.hex())
            for digest, caller in self._known
            if LOOK in caller.rights
        }

    def scopes(self) -> dict[str, frozenset[str]]:
        """What each of these may do, by name."""
        return {caller.name: caller.rights for _, caller in self._known if LOOK in caller.rights}

    def in_app(self, caller: Principal, app: str) -> Principal:
        """The caller, in the ledger of an application."""
        caller.require(OF_APPS)
        if app not in self._apps:
            raise problem_error("no-such-app", f"there are {', '.join(self._apps) or 'none'}")
        return msgspec.structs.replace(caller, s=self._apps[app])

    def name(self, authorization: str) -> str | None:
        """Whose token this header shows; None where it is nobody's."""
        scheme, _, presented = authorization.partition(" ")
        caller = self.caller(presented) if scheme.lower() == "bearer" else None
        return None if caller is None else caller.name

    def unknown(self, *, sent: bool) -> ProblemDetails:
        """What is said to nobody."""
        detail = "send Authorization: Bearer with a token of the settings"
        if not self._known:
            detail = "no token is set up: add a section [tokens.NAME] to the settings"
        elif sent:
            detail = "no such token is set up"
        challenge = 'Bearer realm="semel"' + (', error="invalid_token"' if sent else "")
        return problem("not-authenticated", detail, [("WWW-Authenticate", challenge)])

    def recognise(self, credentials: HTTPAuthorizationCredentials | None) -> Principal:
        """Who sent these; nobody that is not known."""
        caller = None if credentials is None else self.caller(credentials.credentials)
        if caller is None:
            raise ProblemError(self.unknown(sent=credentials is not None))
        return caller


def asking(*rights: Right, instead: tuple[Right, ...] = ()) -> Callable[..., Awaitable[Principal]]:
    """A dependency: the caller, if it has these rights, which the document names, or those `instead`."""
    bearer = Security(BEARER, scopes=rights)

    async def asks(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, bearer]
    ) -> Principal:
        caller: Principal = request.app.state.tokens.recognise(credentials)
        if not instead or not caller.rights.issuperset(instead):
            caller.require(*rights)
        return caller

    return asks


def operating(*rights: Right) -> Callable[..., Awaitable[Principal]]:
    """A dependency: the caller, if it has these rights, in the ledger that it asks about."""

    async def asks(
        request: Request, caller: Annotated[Principal, Depends(asking(*rights))], app: AppQuery = None
    ) -> Principal:
        tokens: Tokens = request.app.state.tokens
        return caller if app is None else tokens.in_app(caller, app)

    return asks


LedgerReader: TypeAlias = Annotated[Principal, Depends(asking("ledger:read"))]
LedgerWriter: TypeAlias = Annotated[Principal, Depends(asking("ledger:write"))]
SwitchViewer: TypeAlias = Annotated[Principal, Depends(asking(TURN, instead=(LOOK, OF_APPS)))]
Admin: TypeAlias = Annotated[Principal, Depends(asking(TURN))]
OpsReader: TypeAlias = Annotated[Principal, Depends(operating(LOOK))]
OpsWriter: TypeAlias = Annotated[Principal, Depends(operating(ACT))]


def _lacks(caller: Principal, right: Right) -> ProblemDetails:
    challenge = f'Bearer realm="semel", error="insufficient_scope", scope="{right}"'
    detail = f"the token {caller.name!r} lacks the scope {right!r}"
    return problem("not-permitted", detail, [("WWW-Authenticate", challenge)], scope=right)


def _digest(name: str, token: TokenSection, configuration: Configuration) -> bytes:
    path = ("tokens", name)
    if bool(token.token) == bool(token.sha256):
        raise configuration.wrong(path, "it has either a token or the sha256 of one")
    if token.token and len(token.token) < SHORTEST:
        raise configuration.wrong(
            (*path, "token"), f"it can be guessed: use at least {SHORTEST} random characters"
        )
    if not SENDABLE.fullmatch(token.token):
        raise configuration.wrong((*path, "token"), "no header can carry it: use ASCII without blanks")
    if token.sha256 and not DIGEST.fullmatch(token.sha256):
        raise configuration.wrong((*path, "sha256"), "it is no SHA-256 in hex, which has 64 digits")
    digest = bytes.fromhex(token.sha256) if token.sha256 else sha256(token.token.encode()).digest()
    if digest == sha256(b"").digest():
        raise configuration.wrong((*path, "sha256"), "it is the hash of no text at all: hash the token")
    return digest
