"""Users with passwords, and dashboards of several ledgers."""

import asyncio
import subprocess
import sys

import httpx
import pytest
from starlette.applications import Starlette

from semel.dashboard import passwords
from semel.dashboard.app import dashboard_of
from semel.dashboard.passwords import (
    FREE_TRIES,
    PAUSE_SECONDS,
    PasswordHash,
    PasswordThrottle,
    hash_password,
)
from semel.dashboard.views import LedgerView
from semel.errors import InvalidOption
from tests.dashboard.kit import (
    SECRET,
    TOKENS,
    USERS,
    Browser,
    browser_of,
    completed,
    form_token,
    status_with,
)

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def hashed():
    return hash_password(PASSWORD)


@pytest.fixture
def entrance(s, hashed):
    return browser_of(s, users={"bea": ("viewer", hashed)})


def enter(browser, name="bea", password=PASSWORD):
    return browser.submit("/sign-in", name=name, password=password)


def test_a_hash_matches_its_password_alone_and_is_another_each_time(hashed):
    assert PasswordHash(hashed).matches(PASSWORD)
    assert not PasswordHash(hashed).matches(PASSWORD + " ")
    assert PASSWORD not in hashed
    assert hash_password(PASSWORD) != hashed


@pytest.mark.parametrize(
    "text",
    [
        "",
        PASSWORD,
        "scrypt:3:8:1:c2FsdHNhbHRzYWx0:aGFzaGhhc2hoYXNoaGFzaGhhc2g=",
        "scrypt:9999999:99:99:c2FsdHNhbHRzYWx0:aGFzaGhhc2hoYXNoaGFzaGhhc2g=",
    ],
    ids=["none", "plain", "no power of two", "too costly"],
)
def test_what_is_no_hash_is_refused_at_once(s, text):
    with pytest.raises(InvalidOption, match="'bea'"):
        browser_of(s, users={"bea": ("viewer", text)})


def test_a_password_that_can_be_guessed_is_not_hashed():
    with pytest.raises(InvalidOption, match="at least 12"):
        hash_password("secret")


def test_a_user_signs_in_by_name_and_password_with_the_role_of_the_settings(entrance):
    assert enter(entrance).status_code == 303
    assert "bea</bdi>, viewer" in entrance.get("/").text


@pytest.mark.parametrize(
    ("name", "password"), [("bea", "wrong"), ("nobody", PASSWORD), ("ann", TOKENS["ann"]), ("", PASSWORD)]
)
def test_nobody_is_let_in_by_a_wrong_name_or_password(entrance, name, password):
    answer = enter(entrance, name, password)
    assert (answer.status_code, "No user has this name and password" in answer.text) == (403, True)
    assert entrance.get("/").status_code == 303


def test_who_guesses_has_to_wait_and_nobody_else_has(s, entrance, clock):
    for _ in range(FREE_TRIES):
        assert enter(entrance, password="guess").status_code == 403
    refused = enter(entrance)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, str(round(PAUSE_SECONDS)))
    assert browser_of(s).app is not entrance.app
    elsewhere = Browser(entrance.app, client=("10.0.0.9", 4000))
    assert enter(elsewhere).status_code == 303
    assert entrance.sign_in("ann").get("/").status_code == 200
    clock.advance(PAUSE_SECONDS)
    assert enter(Browser(entrance.app)).status_code == 303


def test_what_is_remembered_of_wrong_passwords_has_a_limit(monkeypatch, clock):
    monkeypatch.setattr(passwords, "MOST_REMEMBERED", 3)
    throttle = PasswordThrottle(clock)
    for number in range(10):
        assert throttle.attempt("10.0.0.9", f"{number}" * 100_000) == 0
    assert len(throttle._tries) == 3
    assert all(len(key) == 16 for key in throttle._tries)


def test_passwords_that_come_at_once_are_counted_before_they_are_checked(entrance):
    """Otherwise as many are free as come before the first one was found to be wrong."""
    page = entrance.get("/sign-in")
    form = {"form_token": form_token(page.text), "name": "bea", "password": "guess"}
    cookies = {"semel_session": page.cookies["semel_session"]}

    async def burst():
        transport = httpx.ASGITransport(entrance.app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://testserver", cookies=cookies
        ) as client:
            return await asyncio.gather(*(client.post("/semel/sign-in", data=form) for _ in range(8)))

    statuses = sorted(answer.status_code for answer in asyncio.run(burst()))
    assert statuses == [403] * FREE_TRIES + [429] * 3


def test_an_address_that_sends_many_passwords_keeps_nobody_else_out(entrance):
    """It has its own places to wait in."""
    page = entrance.get("/sign-in")
    form = {"form_token": form_token(page.text), "name": "bea", "password": PASSWORD}
    cookies = {"semel_session": page.cookies["semel_session"]}

    def client(address):
        transport = httpx.ASGITransport(entrance.app, client=(address, 4000))
        return httpx.AsyncClient(transport=transport, base_url="http://testserver", cookies=cookies)

    async def crowd():
        async with client("10.0.0.8") as many, client("10.0.0.9") as one:
            names = [many.post("/semel/sign-in", data=form | {"name": f"n{n}"}) for n in range(60)]
            answers = asyncio.gather(*names)
            await asyncio.sleep(0)
            mine = await one.post("/semel/sign-in", data=form)
            return mine.status_code, {answer.status_code for answer in await answers}

    assert asyncio.run(crowd()) == (303, {403, 429})


def test_a_password_that_is_changed_ends_its_sessions(s, entrance, hashed):
    enter(entrance)
    cookie = entrance.cookies["semel_session"]
    assert status_with(cookie, browser_of(s, users={"bea": ("viewer", hashed)})) == 200
    assert status_with(cookie, browser_of(s, users={"bea": ("viewer", hash_password(PASSWORD))})) == 303


def test_a_name_stands_for_one_user(s, hashed):
    with pytest.raises(InvalidOption, match="another name"):
        browser_of(s, users={"ann": ("viewer", hashed)})


@pytest.fixture
def several(s):
    views = [
        LedgerView(s=s.scoped("north"), name="north", title="North", users=frozenset({"ann", "vic"})),
        LedgerView(s=s.scoped("south"), name="south", title="South", users=frozenset({"ann"})),
    ]
    app = Starlette()
    app.mount("/semel", dashboard_of(views, tokens=USERS, secret=SECRET))
    return app


def test_one_session_is_for_all_ledgers_and_a_menu_leads_from_one_to_another(s, several):
    for scope in ("north", "south"):
        completed(s.scoped(scope), f"of-{scope}")
    ann = Browser(several).sign_in("ann")
    assert ann.get("/").headers["location"] == "/semel/north/"
    page = ann.get("/north/ledger").text
    assert 'href="/semel/south/"' in page
    assert ("of-north" in page, "of-south" in page) == (True, False)
    assert "of-south" in ann.get("/south/ledger").text
    assert ann.get("/south").headers["location"] == "/semel/south/"


@pytest.mark.parametrize("path", ["/south/", "/south/ledger", "/south/live", "/south/key?key=of-south"])
def test_a_ledger_of_others_is_as_if_it_were_not_there(s, several, path):
    completed(s.scoped("south"), "of-south")
    vic = Browser(several).sign_in("vic")
    answer = vic.get(path)
    assert (answer.status_code, "South" in answer.text) == (404, False)
    assert "South" not in vic.get("/north/").text


def test_a_form_of_one_ledger_changes_no_other_that_is_not_its_users(s, several):
    users = Browser(several).sign_in("vic")
    fields = {"name": "mail", "on": "yes", "why": "x"}
    assert users.submit("/south/switches", "/north/", **fields).status_code == 404
    assert s.scoped("south").switches.list() == {}


@pytest.mark.parametrize(("typed", "code"), [(PASSWORD, 0), ("short", 2)])
def test_the_command_prints_a_hash_that_the_settings_take(typed, code):
    ran = subprocess.run(
        [sys.executable, "-m", "semel", "hash-password"],
        input=typed + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, ran.stderr
    if code == 0:
        assert PasswordHash(ran.stdout.strip()).matches(PASSWORD)
    else:
        assert "at least 12 characters" in ran.stderr
