"""A thousand requests of those who may not, at every address for operators: all refused, and nothing changes.

They are drawn from a seed, at the addresses that the applications themselves name, in every ledger. Whoever
sends them has no token or session, or one that is wrong, expired, another's, of another tenant, or allows
less; or sends along what another site can make the browser of somebody who is signed in send.
"""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_to_bytes, urlencode

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from semel.core.clock import Clock
from semel.dashboard import dashboard
from semel.dashboard.sessions import Session, Sessions, UserTokens
from semel.dashboard.visits import COOKIE
from semel.doors.inbox import Message
from semel.model import Claimed
from semel.ops.model import version_of
from semel.service.app import create_app
from tests.dashboard.addresses import Address, addresses
from tests.service.kit import opened, register

KEY = "charge:order-7"
# It stands in all that is kept, and in no request: an answer that has it tells too much.
CANARY = "canary-of-the-ledger"
# It stands in what a dead letter says, and on no page before that is asked for.
INSIDE = f"{CANARY}:inside"
AMOUNT = 1000
SEED = 15

TOKENS = {
    "oncall": (["ops:read", "ops:write", "apps:read", "admin"], "north"),
    "watcher": (["ops:read", "apps:read"], "north"),
    "clerk": (["ledger:read", "ledger:write", "apps:read", "metrics"], "north"),
    "stranger": (["ops:read", "ops:write"], "south"),
}


def token(name: str) -> str:
    return sha256(name.encode()).hexdigest()


SETTINGS = f'[semel]\nsecret = "{"s" * 32}"\n[service]\nrates = false\n[apps.echo]\n' + "".join(
    f'[tokens.{name}]\ntoken = "{token(name)}"\nscopes = {json.dumps(scopes)}\nscope = "{scope}"\n'
    for name, (scopes, scope) in TOKENS.items()
)


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token(name)}"}


# What is sent


class Attempt(NamedTuple):
    """A request that somebody makes."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    client: str = "10.0.0.7"
    told: str = ""
    """Who makes it, and how, for whoever reads a failure."""
    harmless: bool = False
    """It may be answered, as long as nothing is done and nothing of another's is told."""
    blind: bool = False
    """Whoever makes it sees nothing of the answer."""


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


async def ask(app: Any, attempt: Attempt) -> Reply:
    """Send a request as a server hands it on, whatever a careful client would make of its path."""
    raw = attempt.path.encode("ascii")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": attempt.method,
        "scheme": "http",
        "path": unquote_to_bytes(raw).decode("utf-8", "replace"),
        "raw_path": raw,
        "query_string": attempt.query.encode("ascii"),
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in _all_headers(attempt)],
        "client": (attempt.client, 4000),
        "server": ("semel.example", 80),
        "state": {},
    }
    sent: list[Any] = []
    bodies = [{"type": "http.request", "body": attempt.body, "more_body": False}]

    answered = asyncio.Event()

    async def receive() -> Any:
        if bodies:
            return bodies.pop()
        # Whoever asks for a stream leaves once it has begun.
        await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        answered.set()

    await app(scope, receive, send)
    start = sent[0]
    headers = {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]}
    return Reply(start["status"], headers, b"".join(one.get("body", b"") for one in sent[1:]))


def _all_headers(attempt: Attempt) -> Iterator[tuple[str, str]]:
    headers = {"host": "semel.example", "content-length": str(len(attempt.body))} | attempt.headers
    return iter(headers.items())


# Where, and what would do something there

FIELDS = {
    "key": KEY,
    "action": "forget",
    "name": "mail",
    "on": "no",
    "why": "ticket 12",
    "id": "1",
    "until": "9e9",
    "confirmed": "yes",
    "person": "ann@example.com",
    "subject": "ann@example.com",
}
DOCUMENTS = {
    "/v1/ops/actions": {"name": "forget", "key": KEY, "why": "ticket 12"},
    "/v1/ops/actions/bulk": {
        "search": {"prefix": "charge:"},
        "name": "forget",
        "why": "ticket 12",
        "preview": False,
    },
    "/v1/ops/inboxes/{app}/redrive": {"all": True, "why": "ticket 12"},
    "/v1/ops/erasures": {"person": "ann@example.com", "why": "ticket 12", "preview": False},
}


# What stands in addresses.
NAMES = {"key": KEY, "inbox": "echo", "app": "echo", "page": "names", "name": "mail"}
# Who operates each ledger, and who does so elsewhere alone. That of the south is empty: its operator may act
# there, over HTTP too, and is to change nothing here.
OPERATORS = {
    "echo": ("oncall", "stranger"),
    "~north": ("oncall", "stranger"),
    "~south": ("stranger", "oncall"),
}
# The forms of every ledger.
FORMS = ("key", "reveal", "bulk", "persons")
# Only an application has these.
OF_APPS = ("/inbox", "/letter", "/{page}")


class Place(NamedTuple):
    """An address that an application has: where it is, and what stands before the dashboard's own path."""

    base: str
    address: Address

    @property
    def path(self) -> str:
        return self.opened[0]

    @property
    def opened(self) -> tuple[str, str]:
        """The path, and what is asked for there."""
        path, _, query = (self.base + self.address.opened(**NAMES)).partition("?")
        return path, query

    @property
    def is_form(self) -> bool:
        return self.base != ""

    @property
    def ledger(self) -> str:
        """The ledger that it is in; "" for none."""
        name = self.address.path.split("/")[1]
        return name if self.is_form and name in OPERATORS else ""

    @property
    def operator(self) -> str:
        """Who may do there whatever can be done."""
        return OPERATORS.get(self.ledger, ("oncall",))[0]


class Desk(NamedTuple):
    """The service, the addresses for its operators, and the file that nobody is to change."""

    app: Any
    places: list[Place]
    sessions: Sessions
    ledgers: dict[str, Any]
    inbox: Any
    file: Path

    def dump(self) -> list[str]:
        with closing(sqlite3.connect(self.file)) as connection:
            return list(connection.iterdump())

    def prepare(self) -> None:
        """Have the key and the dead letter, whether or not they are there already."""
        for s in self.ledgers.values():
            complete(s)
        box = self.ledgers["echo"].mailbox("echo")
        for letter in box.alone().letters:
            box.bury(letter, CANARY)

    def form(self, place: Place) -> dict[str, str]:
        """What does something at a place, there and now."""
        if place.address.leaf == "/bulk":
            record = self.ledgers.get(place.ledger, self.ledgers["echo"]).ledger.get(KEY)
            return FIELDS | {"records": json.dumps([(KEY, version_of(record))])}
        if place.address.leaf in OF_APPS:
            return FIELDS | {"name": "echo", "id": self.inbox.dead()[0].id}
        return FIELDS

    def cookie(self, session: Session) -> dict[str, str]:
        return {"cookie": f"{COOKIE}={self.sessions.sealed(session)}"}


def users() -> UserTokens:
    return {
        "oncall": ("operator", token_digest("oncall")),
        "watcher": ("viewer", token_digest("watcher")),
        "stranger": ("operator", token_digest("stranger")),
    }


def token_digest(name: str) -> str:
    return sha256(token(name).encode()).hexdigest()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    register(monkeypatch)
    with opened(SETTINGS, tmp_path) as runtime:
        app = create_app(runtime)
        ledgers = {"echo": runtime.apps[0].s, "~north": runtime.s.scoped("north")}
        inbox = runtime.apps[0].inbox
        places = [Place("", one) for one in _operations(app)]
        [mount] = [route for route in app._app.routes if isinstance(route, Mount)]  # type: ignore[attr-defined]
        places += [Place(mount.path, one) for one in addresses(mount.app)]
        # So that the test can make the cookies that the service would.
        sessions = Sessions(users(), {}, runtime.session_secret, Clock())
        desk = Desk(app, places, sessions, ledgers, inbox, tmp_path / "semel.db")
        for s in desk.ledgers.values():
            fill(s)
        inbox.put(Message(f"echo:{CANARY}", {"name": INSIDE}))
        desk.prepare()
        assert {place.ledger for place in places} == {"", *OPERATORS}
        yield desk


def _operations(app: Any) -> Iterator[Address]:
    for path, methods in app._app.openapi()["paths"].items():
        if path.startswith("/v1/ops"):
            yield from (Address(method.upper(), path) for method in methods)


def fill(s: Any) -> None:
    failed = s.ledger.claim(f"charge:{CANARY}", ttl=3600, subject="ann@example.com")
    s.ledger.fail(failed, ValueError(CANARY))
    s.ops.turn("mail", on=True, by=CANARY, why=CANARY)


def complete(s: Any) -> None:
    """Have the key, with a result, whether or not it is there already."""
    claim = s.ledger.claim(KEY, ttl=3600)
    if isinstance(claim, Claimed):
        s.ledger.complete(claim, {"text": CANARY})


# Who, and by which way


class Drawer:
    """Draws attempts from a seed."""

    def __init__(self, seed: int, desk: Desk) -> None:
        self._rng = Random(seed)
        self._desk = desk
        self._sessions = desk.sessions

    def draw(self) -> Attempt:
        place = self._rng.choice(self._desk.places)
        if place.is_form and place.address.method == "POST" and self._rng.random() < 0.5:
            return self._of_another_site(place)
        who, headers, form = self._rng.choice(self._strangers(place))()
        way, attempt = self._rng.choice(self._ways)(self._asked(place, headers, form))
        # A tenant has a ledger of its own, and a viewer may look; neither may do anything here.
        looks = who == VIEWER and attempt.method in ("GET", "HEAD")
        return attempt._replace(told=f"{who}, {way}", harmless=looks or who == TENANT, blind=looks)

    def _asked(self, place: Place, headers: dict[str, str], form: dict[str, str]) -> Attempt:
        method, (path, query) = place.address.method, place.opened
        if path.endswith("/story"):
            query = urlencode({"key": KEY})
        if method == "GET":
            return Attempt("GET", path, query, headers, b"")
        if place.is_form:
            kind, body = (
                "application/x-www-form-urlencoded",
                urlencode(self._desk.form(place) | form).encode(),
            )
        else:
            kind, body = "application/json", msgspec.json.encode(DOCUMENTS.get(place.address.path, FIELDS))
        return Attempt(method, path, "", headers | {"content-type": kind}, body)

    # Those who are nobody here, or may do less

    def _strangers(self, place: Place) -> list[Any]:
        if not place.is_form:
            lesser = [self._lesser_token] if place.address.method == "POST" else []
            return [
                self._nobody,
                self._wrong_token,
                self._clerk,
                self._tenant,
                self._cookie_as_token,
                *lesser,
            ]
        lesser = [self._lesser_session] if place.address.method == "POST" else []
        foreign = [partial(self._foreign, place)] if place.ledger else []
        return [
            self._nobody,
            self._wrong_cookie,
            partial(self._expired, place),
            partial(self._renamed, place),
            partial(self._of_another_dashboard, place),
            partial(self._bearer, place),
            *lesser,
            *foreign,
        ]

    def _nobody(self) -> Any:
        return "nobody", {}, {}

    def _wrong_token(self) -> Any:
        presented = self._rng.choice(["", "x" * 64, token("oncall")[:-1], token("oncall").upper()])
        scheme = self._rng.choice(["Bearer", "bearer", "Basic", "Token", ""])
        return "a wrong token", {"authorization": f"{scheme} {presented}".strip()}, {}

    def _clerk(self) -> Any:
        return "a token without the right", bearer("clerk"), {}

    def _tenant(self) -> Any:
        return TENANT, bearer("stranger"), {}

    def _lesser_token(self) -> Any:
        return "a token that may look only", bearer("watcher"), {}

    def _cookie_as_token(self) -> Any:
        cookie = self._desk.cookie(self._sessions.begin("oncall"))
        return "a session in place of a token", cookie, {}

    def _wrong_cookie(self) -> Any:
        value = self._rng.choice(["", ".", "a.b", "e30=.", f"{token('oncall')}", '"oncall".x', "%00.%00"])
        return "a wrong cookie", {"cookie": f"{COOKIE}={value}"}, {}

    def _expired(self, place: Place) -> Any:
        session = msgspec.structs.replace(self._sessions.begin(place.operator), until=Clock().now() - 1)
        return "an expired session", self._desk.cookie(session), self._form(session)

    def _renamed(self, place: Place) -> Any:
        mine, other = self._sessions.begin("watcher"), self._sessions.begin(place.operator)
        sealed = (
            self._sessions.sealed(other).partition(".")[0]
            + "."
            + self._sessions.sealed(mine).partition(".")[2]
        )
        return "a forged session", {"cookie": f"{COOKIE}={sealed}"}, self._form(mine)

    def _of_another_dashboard(self, place: Place) -> Any:
        tokens: UserTokens = {place.operator: ("operator", sha256(b"another").hexdigest())}
        elsewhere = Sessions(tokens, {}, self._sessions._secret, Clock())
        session = elsewhere.begin(place.operator)
        cookie = {"cookie": f"{COOKIE}={elsewhere.sealed(session)}"}
        return "a session of another dashboard", cookie, {"form_token": elsewhere.form_token(session)}

    def _bearer(self, place: Place) -> Any:
        return "a token in place of a session", bearer(place.operator), {}

    def _foreign(self, place: Place) -> Any:
        session = self._sessions.begin(OPERATORS[place.ledger][1])
        return "an operator of another ledger", self._desk.cookie(session), self._form(session)

    def _lesser_session(self) -> Any:
        session = self._sessions.begin("watcher")
        return VIEWER, self._desk.cookie(session), self._form(session)

    def _form(self, session: Session) -> dict[str, str]:
        return {"form_token": self._sessions.form_token(session)}

    # What another site has the browser of an operator send, even if that sent its cookie along

    def _of_another_site(self, place: Place) -> Attempt:
        session, other = self._sessions.begin(place.operator), self._sessions.begin(place.operator)
        form, where = self._rng.choice(
            [
                ({}, {}),
                ({"form_token": ""}, {}),
                ({"form_token": "x" * 64}, {}),
                (self._form(other), {}),
                (self._form(self._sessions.begin("watcher")), {}),
                (self._form(self._sessions.begin()), {}),
                ({}, self._form(session)),
                (self._form(session), CROSS_SITE),
                (self._form(session), CROSS_SITE | {"sec-fetch-site": "same-site"}),
            ]
        )
        query = urlencode(where) if "form_token" in where else ""
        headers = self._desk.cookie(session) | CROSS_SITE | ({} if query else where)
        attempt = self._asked(place, headers, form)._replace(query=query)
        kind = self._rng.choice(["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"])
        attempt = attempt._replace(headers=attempt.headers | {"content-type": kind}, told=f"CSRF, {form}")
        if self._rng.random() < 0.7:
            return attempt
        way, attempt = self._overridden(attempt)
        # The pages of a signed-in operator are theirs, and the other site sees nothing of them.
        return attempt._replace(told=f"CSRF, {way}", harmless=True, blind=True)

    # The ways to an address

    @property
    def _ways(self) -> list[Any]:
        return [self._straight, self._straight, self._bent, self._decorated, self._overridden]

    def _straight(self, attempt: Attempt) -> Any:
        return "straight", attempt

    def _bent(self, attempt: Attempt) -> Any:
        path = self._rng.choice(BENDS)(attempt.path)
        return f"by {path}", attempt._replace(path=path)

    def _decorated(self, attempt: Attempt) -> Any:
        headers = self._rng.choice(DECORATIONS)
        client = self._rng.choice(["10.0.0.7", "127.0.0.1", "::1"])
        return f"with {headers}", attempt._replace(headers=attempt.headers | headers, client=client)

    def _overridden(self, attempt: Attempt) -> Any:
        method = self._rng.choice(["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "post"])
        header = self._rng.choice(["x-http-method-override", "x-method-override", "x-http-method"])
        headers = attempt.headers | {header: attempt.method}
        query = attempt.query or urlencode(FIELDS | {"_method": attempt.method})
        return f"by {method} as {attempt.method}", attempt._replace(
            method=method, headers=headers, query=query
        )


TENANT, VIEWER = "another tenant", "a viewer"
CROSS_SITE = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
BENDS = (
    lambda path: f"/{path}",
    lambda path: f"{path}/",
    lambda path: path.replace("/", "//"),
    lambda path: path.replace("/", "%2f"),
    lambda path: "/" + path[1:].replace("/", "%2F", 1),
    lambda path: f"/health/..{path}",
    lambda path: f"/health/..%2f{path[1:]}",
    lambda path: f"/health/live/../..{path}",
    lambda path: f"/webhooks/echo/../..{path}",
    lambda path: f"/dashboard/static/..%2f..{path}",
    lambda path: f"/dashboard/static/%2e%2e/%2e%2e{path}",
    lambda path: f"/dashboard/~south/../..{path}",
    lambda path: f"/dashboard/~south/%2e%2e/%2e%2e{path}",
    lambda path: f"/dashboard/..{path}",
    lambda path: f"/dashboard/..;{path}",
    lambda path: f"/.{path}",
    lambda path: f"/%2e{path}",
    lambda path: f"/%252e%252e{path}",
    lambda path: path.replace("/", "/./"),
    lambda path: path.replace("/", "\\"),
    lambda path: f"{path}%00",
    lambda path: f"{path}%00.css",
    lambda path: f"{path};.css",
    lambda path: f"{path}%20",
    lambda path: f"{path}..;/",
    lambda path: f"{path}/../sign-in",
    lambda path: path.upper(),
    lambda path: f"http://semel.example{path}",
    lambda path: path.replace("a", "%61"),
    lambda path: path.replace("o", "%c0%af"),
)
DECORATIONS: tuple[dict[str, str], ...] = (
    {"host": "localhost"},
    {"host": "127.0.0.1:8000"},
    {"host": "evil.example"},
    {"host": ""},
    {"x-forwarded-for": "127.0.0.1"},
    {"x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1", "forwarded": "for=127.0.0.1"},
    {"x-forwarded-host": "localhost", "x-forwarded-proto": "https"},
    {"x-forwarded-user": "oncall", "remote-user": "oncall", "x-remote-user": "oncall"},
    {"x-original-url": "/health/live", "x-rewrite-url": "/health/live"},
    {"x-forwarded-prefix": "/health", "x-script-name": "/health"},
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    {"origin": "null", "sec-fetch-site": "same-site"},
    {"referer": "http://semel.example/dashboard/echo/"},
    {"accept": "application/json"},
    {"x-requested-with": "XMLHttpRequest", "hx-request": "true"},
    {"transfer-encoding": "chunked"},
)


# What is right

REFUSED = {400, 401, 403, 404, 405, 409, 413, 415, 422}


def is_refused(attempt: Attempt, reply: Reply, public: set[str]) -> bool:
    """Whether an answer is no; or is what anybody is given."""
    if reply.status == 303:
        return "/sign-in" in reply.headers["location"]
    if reply.status == 200:
        path = unquote(attempt.path)
        asked = any(b"<h1>%s</h1>" % title in reply.body for title in (b"One moment", b"Sign in"))
        return asked or path.startswith((*public, "/health/"))
    return reply.status in REFUSED


def tells(reply: Reply) -> bool:
    """Whether something of what is kept stands in an answer."""
    everything = reply.body + json.dumps(reply.headers).encode()
    return CANARY.encode() in everything


class Watched:
    """A database, and whether another connection has changed it."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file)
        self._version = self._read()

    def _read(self) -> Any:
        return self._connection.execute("PRAGMA data_version").fetchone()

    @property
    def has_changed(self) -> bool:
        before, self._version = self._version, self._read()
        return bool(before != self._version)

    def close(self) -> None:
        self._connection.close()


def test_a_thousand_requests_of_those_who_may_not_are_refused(desk: Desk) -> None:
    public = {f"{place.base}/static/" for place in desk.places if place.is_form}
    drawer, before, wrong = Drawer(SEED, desk), desk.dump(), []
    tried: set[Place | tuple[str, str]] = set()

    async def all_of_them() -> None:
        with closing(Watched(desk.file)) as watched:
            for _ in range(AMOUNT):
                attempt = drawer.draw()
                reply = await ask(desk.app, attempt)
                tried.add((attempt.method, attempt.path))
                refused = attempt.harmless or is_refused(attempt, reply, public)
                told = tells(reply) and not attempt.blind
                if not refused or told or watched.has_changed:
                    wrong.append(f"{reply.status} {attempt.method} {attempt.path}: {attempt.told}")

    asyncio.run(all_of_them())
    assert not wrong, "\n".join(wrong)
    assert desk.dump() == before
    assert {(place.address.method, place.path) for place in desk.places} <= tried


def test_a_session_for_one_ledger_finds_nothing_in_another(desk: Desk) -> None:
    drawer, before = Drawer(SEED, desk), desk.dump()
    theirs = [place for place in desk.places if place.ledger]

    async def answers() -> list[Reply]:
        asked = [drawer._asked(place, *drawer._foreign(place)[1:]) for place in theirs]
        return [await ask(desk.app, attempt) for attempt in asked]

    replies = zip(theirs, asyncio.run(answers()), strict=True)
    assert {place: reply.status for place, reply in replies if reply.status != 404 or tells(reply)} == {}
    assert desk.dump() == before


def test_what_they_ask_for_is_done_for_who_may(desk: Desk) -> None:
    """The control: but for who sends them, these are the same requests."""
    drawer, done = Drawer(SEED, desk), dict[str, bool]()
    effects: dict[str, Any] = {}

    async def one(place: Place) -> Reply:
        session = desk.sessions.begin(place.operator)
        headers = desk.cookie(session) if place.is_form else bearer("oncall")
        attempt = drawer._asked(place, headers, {"form_token": desk.sessions.form_token(session)})
        reply = await ask(desk.app, attempt)
        there = place.ledger != "~south" and (place.ledger != "~north" or place.address.leaf not in OF_APPS)
        assert reply.status not in (401, 403, 405, *([404] * there)), (attempt, reply)
        return reply

    async def all_of_them() -> None:
        with closing(Watched(desk.file)) as watched:
            for place in sorted(desk.places, key=lambda one: one.address.method):
                if place.address.leaf == "/sign-in":
                    continue
                reply, name = await one(place), f"{place.address.method} {place.address.path}"
                done[name] = watched.has_changed
                effects[name] = (kept(desk, place), INSIDE.encode() in reply.body)
                desk.prepare()
                _ = watched.has_changed  # by us

    asyncio.run(all_of_them())
    assert not any(changed for name, changed in done.items() if name.startswith("GET"))
    assert {name for name, changed in done.items() if changed} == {
        *(f"POST /{name}/{leaf}" for name in desk.ledgers for leaf in FORMS),
        "POST /~south/persons",
        "POST /echo/switches",
        "POST /sign-out",
        "POST /echo/inbox",
        "POST /echo/letter",
        "POST /v1/ops/actions",
        "POST /v1/ops/actions/bulk",
        "POST /v1/ops/erasures",
        "POST /v1/ops/inboxes/{app}/redrive",
    }
    # Whether the key is there, what is dead, and whether the letter is shown.
    assert effects["GET /echo/inbox"] == ((True, 1), False)
    assert effects["POST /echo/letter"] == ((True, 1), True)
    assert effects["POST /echo/inbox"] == ((True, 0), False)
    for name in desk.ledgers:
        assert effects[f"POST /{name}/bulk"] == ((False, 1), False)


def kept(desk: Desk, place: Place) -> tuple[bool, int]:
    """Whether the key is in the ledger of a place, and how many letters are dead."""
    s = desk.ledgers.get(place.ledger, desk.ledgers["echo"])
    return s.ledger.get(KEY) is not None, len(desk.inbox.dead())


ELSEWHERE = [
    ("10.0.0.7", {"host": "localhost"}),
    ("10.0.0.7", {"host": "127.0.0.1", "x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1"}),
    ("127.0.0.1", {"host": "evil.example"}),
    ("127.0.0.1", {"host": "localhost.evil.example"}),
    ("127.0.0.1", {"host": "127.0.0.1.evil.example"}),
    ("127.0.0.1", {"host": "localhost", "x-forwarded-for": "127.0.0.1"}),
    ("127.0.0.1", {"host": "localhost", "forwarded": "for=127.0.0.1"}),
    ("127.0.0.1", {"host": "localhost", "x-real-ip": "127.0.0.1"}),
    ("::ffff:10.0.0.7", {"host": "localhost"}),
    ("", {"host": "localhost"}),
]


def test_a_dashboard_that_is_open_to_its_machine_refuses_all_others(desk: Desk) -> None:
    one = dashboard(desk.ledgers["echo"], inboxes={"echo": desk.inbox}, open=True)
    app, drawer, before = Starlette(), Drawer(SEED, desk), desk.dump()
    app.mount("/open", one)
    places = [Place("/open", address) for address in addresses(one) if "/static/" not in address.path]

    async def answers(client: str, headers: dict[str, str]) -> list[Reply]:
        asked = [drawer._asked(place, headers, {})._replace(client=client) for place in places]
        return [await ask(app, attempt) for attempt in asked]

    for client, headers in ELSEWHERE:
        for reply in asyncio.run(answers(client, headers)):
            assert (reply.status, tells(reply), b"form_token" in reply.body) == (403, False, False)
    assert desk.dump() == before
    local = asyncio.run(answers("127.0.0.1", {"host": "localhost"}))
    assert any(reply.status == 200 and tells(reply) for reply in local)
