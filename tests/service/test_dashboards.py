"""The service has one dashboard for its ledgers, for the tokens and users that may see each of them."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from semel.dashboard import live
from semel.dashboard.passwords import hash_password
from semel.errors import InvalidOption
from semel.service import logs
from semel.service.app import create_app
from semel.service.dashboards import dashboard_views, has_dashboard
from tests.service.kit import opened, register, served

VIEWER, OPERATOR, READER, TENANT, CLERK = ("v" * 40, "o" * 40, "r" * 40, "t" * 40, "c" * 40)
TOKENS = f"""
[tokens.viewer]
token = "{VIEWER}"
scopes = ["ops:read", "apps:read"]
[tokens.oncall]
token = "{OPERATOR}"
scopes = ["ops:read", "ops:write", "apps:read", "admin"]
[tokens.reader]
token = "{READER}"
scopes = ["ledger:read", "apps:read"]
[tokens.north]
token = "{TENANT}"
scopes = ["ops:read"]
[tokens.clerk]
token = "{CLERK}"
scopes = ["ops:read", "ops:write", "apps:read"]
"""
PASSWORD = "correct horse battery"
HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def users() -> str:
    hashed = hash_password(PASSWORD)
    return f"""
[users.bea]
password = "{hashed}"
role = "operator"
[users.sue]
password = "{hashed}"
scope = "south"
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    register(monkeypatch)
    with served("[apps.echo]" + TOKENS, tmp_path) as client:
        yield client


def sign_in(client: Any, **fields: str) -> Any:
    page = client.get("/dashboard/sign-in").text
    form = page.partition('name="form_token" value="')[2].partition('"')[0]
    return client.post("/dashboard/sign-in", data={**fields, "form_token": form})


def test_nobody_sees_it_without_signing_in(client: Any) -> None:
    page = client.get("/dashboard/echo/ledger")
    assert "sign-in" in str(page.url)


def test_a_browser_is_led_to_it_and_a_program_is_told_where_it_is(client: Any) -> None:
    assert "/dashboard/sign-in" in str(client.get("/", headers=HTML).url)
    assert client.get("/", headers={"Accept": "*/*"}).json()["links"]["dashboard"] == "/dashboard/"
    assert "semel" in client.get("/about", headers=HTML).text


def test_another_app_has_none(client: Any) -> None:
    assert client.get("/dashboard/nothing/").status_code == 404


@pytest.mark.parametrize(
    ("token", "status"), [(VIEWER, 200), (OPERATOR, 200), (READER, 403), ("x" * 40, 403)]
)
def test_those_who_may_operate_are_let_in(client: Any, token: str, status: int) -> None:
    answer = sign_in(client, token=token)
    assert answer.status_code == status
    let_in = "sign-in" not in str(client.get("/dashboard/echo/ledger").url)
    assert let_in is (status == 200)


def test_a_viewer_turns_no_switch(client: Any) -> None:
    sign_in(client, token=VIEWER)
    refused = client.post("/dashboard/echo/switches", data={"name": "mail", "on": "yes", "why": "w"})
    assert refused.status_code == 403


@pytest.mark.parametrize(
    ("token", "turns"),
    [(VIEWER, False), (CLERK, False), (OPERATOR, True)],
    ids=["viewer", "clerk", "operator"],
)
def test_a_token_may_do_with_switches_in_the_dashboard_what_it_may_do_by_the_api(
    client: Any, token: str, turns: bool
) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    assert client.get("/v1/switches", headers=headers).status_code == 200
    by_api = client.put("/v1/switches/mail", json={"on": True}, headers=headers)
    assert by_api.status_code == (200 if turns else 403)
    sign_in(client, token=token)
    page = client.get("/dashboard/echo/switches").text
    assert ("<h1>Switches</h1>" in page, ">Turn on</button>" in page) == (True, turns)
    form = page.partition('name="form_token" value="')[2].partition('"')[0]
    fields = {"name": "post", "on": "yes", "why": "w", "form_token": form}
    by_form = client.post("/dashboard/echo/switches", data=fields)
    assert by_form.status_code == (200 if turns else 403), by_form.text
    seen = client.get("/v1/switches", headers={"Authorization": f"Bearer {OPERATOR}"}).json()["switches"]
    assert [one["name"] for one in seen] == (["mail", "post"] if turns else [])


def test_an_operator_by_role_turns_switches_and_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: str
) -> None:
    register(monkeypatch)
    with served("[apps.echo]" + users, tmp_path) as client:
        sign_in(client, name="bea", password=PASSWORD)
        assert ">Turn on</button>" in client.get("/dashboard/echo/switches").text


def test_a_token_of_a_tenant_sees_its_ledger_and_no_other(client: Any) -> None:
    entered = sign_in(client, token=TENANT)
    assert str(entered.url).endswith("/dashboard/~north/")
    assert "echo" not in entered.text
    for path in ("/dashboard/echo/", "/dashboard/~viewer/ledger", "/dashboard/~oncall/key?key=k"):
        assert client.get(path).status_code == 404


def test_users_sign_in_by_name_and_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: str
) -> None:
    register(monkeypatch)
    with served("[apps.echo]" + users, tmp_path) as client:
        assert str(sign_in(client, name="bea", password=PASSWORD).url).endswith("/dashboard/echo/")
        client.cookies.clear()
        assert str(sign_in(client, name="sue", password=PASSWORD).url).endswith("/dashboard/~south/")
        assert client.get("/dashboard/echo/").status_code == 404


@pytest.mark.parametrize("section", ['[users.ann]\npassword = "plain"', '[users.ann]\nrole = "viewer"'])
def test_a_user_without_a_hash_is_refused_at_the_start(tmp_path: Path, section: str) -> None:
    with pytest.raises(InvalidOption, match="users"), opened(section, tmp_path) as runtime:
        create_app(runtime)


def test_on_loopback_there_is_one_where_nobody_could_sign_in_and_elsewhere_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    with opened("[apps.echo]", tmp_path) as runtime:
        assert [view.users for view in dashboard_views(runtime)] == [None]
        assert has_dashboard(runtime)
    with served('[service]\nhost = "0.0.0.0"\n[apps.echo]', tmp_path) as client:
        assert client.get("/dashboard/").status_code == 404
        assert "dashboard" not in client.get("/").json()["links"]
        assert client.get("/", headers=HTML).status_code == 200


def test_every_process_with_the_secret_knows_the_sessions_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    text = "[apps.echo]" + TOKENS
    with served(text, tmp_path) as one, served(text, tmp_path) as other:
        sign_in(one, token=VIEWER)
        other.cookies = one.cookies
        assert "sign-in" not in str(other.get("/dashboard/echo/").url)


@pytest.mark.parametrize(
    ("public", "secure"), [("https://hooks.example.com", True), ("http://hooks.example.com", False)]
)
def test_the_cookie_is_for_https_alone_where_the_public_address_is(
    tmp_path: Path, public: str, secure: bool
) -> None:
    with served(f"[service]\npublic_url = '{public}'" + TOKENS, tmp_path) as client:
        cookie = client.get("/dashboard/sign-in").headers["set-cookie"].lower()
    assert ("; secure" in cookie) is secure


def test_signing_out_in_one_process_ends_the_session_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    text = "[apps.echo]" + TOKENS
    with served(text, tmp_path) as one, served(text, tmp_path) as other:
        page = sign_in(one, token=VIEWER)
        old = one.cookies["semel_session"]
        other.cookies["semel_session"] = old
        assert "sign-in" not in str(other.get("/dashboard/echo/").url)
        form = page.text.partition('name="form_token" value="')[2].partition('"')[0]
        one.post("/dashboard/sign-out", data={"form_token": form})
        for client in (one, other):
            client.cookies.clear()
            client.cookies["semel_session"] = old
            assert "sign-in" in str(client.get("/dashboard/echo/").url)


def test_a_visit_is_logged_with_its_page_and_its_user(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    sign_in(client, token=VIEWER)
    caplog.clear()  # another test may have turned this log on before
    with caplog.at_level(logging.INFO, "semel.access"):
        for path in ("", "echo", "echo/", "echo/key?key=planted", "echo/own/planted", "static/style.css"):
            client.get(f"/dashboard/{path}", follow_redirects=False)
        client.cookies.clear()
        client.get("/dashboard/echo/ledger", follow_redirects=False)
        client.get("/dashboard/planted/ledger", follow_redirects=False)
    records = [record.__dict__ for record in caplog.records if record.name == "semel.access"]
    assert [(one["route"], one.get("user")) for one in records] == [
        ("/dashboard/", "viewer"),
        ("/dashboard/{ledger}", "viewer"),
        ("/dashboard/{ledger}/", "viewer"),
        ("/dashboard/{ledger}/key", "viewer"),
        ("/dashboard/{ledger}/own/{page}", "viewer"),
        ("/dashboard/static/style.css", None),
        ("/dashboard/{ledger}/ledger", None),
        ("/dashboard/{ledger}/ledger", None),
    ]
    # The tests' client may log its own requests.
    lines = [logs.JsonLines().format(one) for one in caplog.records if one.name.startswith("semel")]
    assert "planted" not in str(lines)


# Live


# One comes every 10 ms, so that these take longer than a request may.
PIECES = 40


class Stream:
    """A live page of a service, as its server sees it."""

    def __init__(self, cookie: str, path: str) -> None:
        self.status, self.pieces = 0, 0
        self.heard, self.lasting, self._left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._headers = [(b"cookie", cookie.encode()), (b"host", b"testserver")]
        self._path = path

    async def run(self, app: Any) -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "headers": self._headers,
            "client": ("10.0.0.1", 1),
            "server": ("testserver", 80),
            "scheme": "http",
            "root_path": "",
            "http_version": "1.1",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
        }
        await app(scope, self._receive, self._send)

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.pieces += 1
        if b"version" in message.get("body", b""):
            self.heard.set()
        if self.pieces > PIECES:
            self.lasting.set()


LIMITS = "[service]\nrequest_timeout = 0.2\nmax_live = 4\nmax_in_flight = 2\n[apps.echo]"


def test_live_pages_outlast_the_limit_of_a_request_and_take_no_place_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.02)
    with opened(LIMITS + TOKENS, tmp_path) as runtime:
        app = create_app(runtime)
        with TestClient(app) as client:
            sign_in(client, token=VIEWER)
            cookie = f"semel_session={client.cookies['semel_session']}"
        statuses, crowded = asyncio.run(_watched(app, runtime, cookie))
    assert statuses == [200, 200]
    assert crowded == 503


async def _watched(app: Any, runtime: Any, cookie: str) -> tuple[list[int], int]:
    streams = [Stream(cookie, "/dashboard/echo/live") for _ in range(3)]
    tasks = [asyncio.ensure_future(stream.run(app)) for stream in streams[:2]]
    try:
        async with asyncio.timeout(30):
            for stream in streams[:2]:
                await stream.heard.wait()
            assert app.in_flight == 0
            # Half of the places for live pages is the share of one peer.
            await streams[2].run(app)
            await streams[1].lasting.wait()
            streams[0].leave()
            await tasks[0]
            runtime.stopping.set()
            await tasks[1]
    except TimeoutError as error:
        error.add_note(f"status and pieces: {[(stream.status, stream.pieces) for stream in streams]}")
        error.add_note(f"tasks: {[task.get_stack() for task in asyncio.all_tasks()]}")
        raise
    return [stream.status for stream in streams[:2]], streams[2].status
