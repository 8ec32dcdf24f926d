"""Who is at the dashboard: users with roles, known by token or password, and sessions in a signed cookie."""

import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from semel.connect import Semel
from semel.core.clock import Clock
from semel.core.runtime import Concealed
from semel.dashboard.passwords import PasswordHash, hash_password
from semel.errors import InvalidOption
from semel.ops.scopes import ACT, ROLES, TURN

UserRole: TypeAlias = Literal["viewer", "operator"]
UserTokens: TypeAlias = Mapping[str, tuple[UserRole, str]]
"""The role of each user by name, and the SHA-256 of a token, or the hash of a password."""

UserScopes: TypeAlias = Mapping[str, frozenset[str]]
"""What users may do by name, where that is not what their role may."""

# A working day: whoever leaves a browser open is signed out by the next one.
LIFETIME: Final = 12 * 3600
SHORTEST_SECRET: Final = 16
# The documents of sessions that were ended, in a store.
ENDED: Final = "semel:ended-session:"
DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")


class User(msgspec.Struct, frozen=True):
    """A user who is signed in, and what they may do."""

    name: str
    role: UserRole
    scopes: frozenset[str]

    @property
    def operates(self) -> bool:
        """Whether this user may change records, or see a result."""
        return ACT in self.scopes

    @property
    def turns_switches(self) -> bool:
        """Whether this user may turn switches."""
        return TURN in self.scopes


# Whoever comes by the sign-in link, or from this machine to an open dashboard, has no name of their own.
LOCAL: Final = User("local", "operator", ROLES["operator"])


class EndedSessions:
    """The sessions that users signed out of, until they would have expired.

    The store tells the other processes; without one, each process knows only its own.
    """

    def __init__(self, s: Semel | None, clock: Clock) -> None:
        self._documents = None if s is None else s.aio.documents
        self._clock = clock
        self._here: dict[str, float] = {}

    async def add(self, session: "Session") -> None:
        """End a session, for every process."""
        now = self._clock.now()
        self._here = {nonce: until for nonce, until in self._here.items() if now < until}
        self._here[session.nonce] = session.until
        if self._documents is not None and now < session.until:
            await self._documents.put(ENDED + session.nonce, {}, ttl=session.until - now)

    async def has(self, session: "Session") -> bool:
        """Whether a session was ended, by any process."""
        if self.has_here(session) or self._documents is None:
            return self.has_here(session)
        return await self._documents.get(ENDED + session.nonce) is not None

    def has_here(self, session: "Session") -> bool:
        """Whether this process ended a session."""
        return session.nonce in self._here


class Session(msgspec.Struct, frozen=True):
    """What a cookie tells: who, with "" for nobody yet, until when, and what its forms are known by."""

    name: str
    until: float
    nonce: str


class Sessions(Concealed):
    """Begins sessions, and knows them again; a token or password that is changed ends its own."""

    def __init__(
        self,
        tokens: UserTokens,
        users: UserTokens,
        secret: bytes | None,
        clock: Clock,
        *,
        link: str = "",
        scopes: UserScopes = MappingProxyType({}),
    ) -> None:
        self._tokens = {name: _checked(name, *entry) for name, entry in tokens.items()}
        if len({digest for _, digest in self._tokens.values()}) < len(self._tokens):
            raise InvalidOption("two users of the dashboard have the same token: give each one its own")
        self._passwords = {name: _hashed(name, *entry) for name, entry in users.items()}
        for name in self._passwords.keys() & self._tokens.keys():
            raise InvalidOption(f"{name!r} has a token and a password: give one of them another name")
        self._known = self._tokens | {name: _named(name, *entry) for name, entry in users.items()}
        self._link = sha256(link.encode()).digest() if link else b""
        if link:
            self._known[LOCAL.name] = (LOCAL.role, self._link)
        if secret is not None and len(secret) < SHORTEST_SECRET:
            raise InvalidOption(f"a secret of {len(secret)} bytes can be guessed: secrets.token_bytes(32)")
        self._secret = secret or secrets.token_bytes(32)
        self._clock = clock
        self._scopes = scopes

    def begin(self, name: str = "") -> Session:
        """A new session."""
        return Session(name, self._clock.now() + LIFETIME, secrets.token_urlsafe(16))

    def follow(self, token: str) -> Session | None:
        """Begin the session of the sign-in link, if this is its token; the link works once."""
        digest = sha256(token.encode("utf-8", "replace")).digest()
        if not self._link or not hmac.compare_digest(self._link, digest):
            return None
        self._link = b""
        return self.begin(LOCAL.name)

    def holder(self, token: str) -> str | None:
        """Whose token this is; every one is compared, so that the time tells nothing."""
        digest, found = sha256(token.encode("utf-8", "replace")).digest(), None
        for name, (_, known) in self._tokens.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    @property
    def takes_passwords(self) -> bool:
        """Whether anybody signs in by name and password."""
        return bool(self._passwords)

    @property
    def takes_tokens(self) -> bool:
        """Whether anybody signs in by a token."""
        return bool(self._tokens)

    @property
    def takes_link(self) -> bool:
        """Whether an operator signs in by the link that the service printed, and nobody else does."""
        return LOCAL.name in self._known and not (self._tokens or self._passwords)

    def knows(self, name: str, password: str) -> bool:
        """Whether this is the password of the name; a name that nobody has takes as long."""
        known = self._passwords.get(name)
        found = (known or _nobodys()).matches(password)
        return found and known is not None

    def user(self, session: Session | None) -> User | None:
        """Who has this session."""
        if session is None or session.name not in self._known:
            return None
        role, _ = self._known[session.name]
        return User(session.name, role, self._scopes.get(session.name, ROLES[role]))

    def sealed(self, session: Session) -> str:
        """A session as a cookie holds it."""
        body = urlsafe_b64encode(msgspec.json.encode(session)).decode()
        return f"{body}.{self._mac('session', session.name, body)}"

    def opened(self, cookie: str) -> Session | None:
        """The session that a cookie holds; None where it is not ours, or over."""
        body, _, mac = cookie.partition(".")
        try:
            session = msgspec.json.decode(urlsafe_b64decode(body.encode()), type=Session)
        except (ValueError, msgspec.DecodeError):
            return None
        ours = hmac.compare_digest(
            self._mac("session", session.name, body).encode(), mac.encode("utf-8", "replace")
        )
        return session if ours and self._clock.now() < session.until else None

    def form_token(self, session: Session) -> str:
        """What every form of a session carries, and no other page can know."""
        return self._mac("form", session.name, session.nonce)

    def is_own_form(self, session: Session, sent: str) -> bool:
        """Whether a form was made for this session."""
        return hmac.compare_digest(self.form_token(session).encode(), sent.encode("utf-8", "replace"))

    def _mac(self, purpose: str, name: str, text: str) -> str:
        _, token = self._known.get(name, ("", b""))
        message = msgspec.json.encode([purpose, name, token.hex(), text])
        return hmac.new(self._secret, message, sha256).hexdigest()


@cache
def _nobodys() -> PasswordHash:
    return PasswordHash(hash_password(secrets.token_hex()))


def _hashed(name: str, _role: UserRole, text: str) -> PasswordHash:
    try:
        return PasswordHash(text)
    except InvalidOption as error:
        raise InvalidOption(f"the password of {name!r}: {error}") from error


def _named(name: str, role: UserRole, text: str) -> tuple[UserRole, bytes]:
    if not name.strip():
        raise InvalidOption("a user of the dashboard has a name, which the operators' journal tells")
    if role not in get_args(UserRole):
        raise InvalidOption(f"the role of {name!r} is viewer or operator, not {role!r}")
    return role, text.encode()


def _checked(name: str, role: UserRole, digest: str) -> tuple[UserRole, bytes]:
    _named(name, role, digest)
    if not DIGEST.fullmatch(digest) or digest.lower() == sha256(b"").hexdigest():
        raise InvalidOption(
            f"the token of {name!r} is given as its SHA-256: hashlib.sha256(token.encode()).hexdigest()"
        )
    return role, bytes.fromhex(digest)
