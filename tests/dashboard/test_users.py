"""Users with passwords, and dashboards of several ledgers."""

import subprocess
import sys

import pytest
from starlette.applications import Starlette

from semel.dashboard.app import dashboard_of
from semel.dashboard.passwords import FREE_TRIES, PAUSE_SECONDS, PasswordHash, hash_password
from semel.dashboard.views import LedgerView
from semel.errors import InvalidOption
from tests.dashboard.kit import SECRET, TOKENS, USERS, Browser, browser_of, completed, status_with

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
    assert enter(entrance).status_code == 429
    assert browser_of(s).app is not entrance.app
    elsewhere = Browser(entrance.app, client=("10.0.0.9", 4000))
    assert enter(elsewhere).status_code == 303
    assert entrance.sign_in("ann").get("/").status_code == 200
    clock.advance(PAUSE_SECONDS)
    assert enter(Browser(entrance.app)).status_code == 303


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
