"""The dashboard: every page, who is let in to it, and that what others wrote is shown as text."""

import asyncio
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from html import escape, unescape
from urllib.parse import urlencode

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.testclient import TestClient

import semel
from semel import Status
from semel.core.policy import DAY
from semel.dashboard import dashboard
from semel.dashboard.sessions import LIFETIME, EndedSessions, Sessions
from semel.dashboard.views import LedgerView
from semel.dashboard.visits import LARGEST_FORM, Authenticator, Visit
from semel.errors import InvalidOption
from semel.ops.model import Action
from semel.stores.memory import MemoryStore
from semel.testing import Faulty
from tests.dashboard.kit import (
    KEY,
    SECRET,
    TOKENS,
    USERS,
    Browser,
    act,
    browser_of,
    claimed,
    completed,
    digest_of,
    doubted,
    failed,
    form_token,
    hidden,
    journal,
    matched,
    released,
    status_with,
)

PAGES = ("/", "/ledger", f"/key?key={KEY}", "/doubts", "/switches", "/journal")
HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "invoice-\u202egpj.exe",
    "\u05e9\u05dc\u05d5\u05dd:\u200f\u05e2",
    "{{ 7 * 7 }}{% raw %}",
    "a" * 1000,
)


# Who is let in


@pytest.mark.parametrize("path", PAGES)
def test_whoever_is_signed_out_is_asked_for_a_token_and_then_led_on(s, stranger, path):
    completed(s)
    answer = stranger.get(path)
    assert (answer.status_code, KEY in answer.text) == (303, False)
    address = answer.headers["location"].removeprefix("/semel")
    shown = stranger.get(address)
    assert shown.status_code == 200
    sent = {"form_token": form_token(shown.text), "token": TOKENS["vic"]}
    entered = stranger.post("/semel" + address, data=sent)
    assert entered.headers["location"] == "/semel" + path
    assert stranger.get(path).status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", digest_of(TOKENS["ann"]), "token-of-ann\n\x00", "ü"])
def test_a_wrong_token_lets_nobody_in(stranger, token):
    answer = stranger.submit("/sign-in", token=token)
    assert answer.status_code == 403
    assert "No user has this token" in answer.text
    assert stranger.get("/").status_code == 303


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "", "/\tx"])
def test_nobody_is_led_out_of_the_dashboard(s, to):
    app = dashboard(s, tokens=USERS)
    with TestClient(app, follow_redirects=False) as root:
        page = root.get("/sign-in", params={"next": to}).text
        sent = {"form_token": form_token(page), "token": TOKENS["vic"]}
        assert root.post("/sign-in", params={"next": to}, data=sent).headers["location"] == "/"


def test_the_cookie_is_for_this_dashboard_and_no_script(stranger):
    cookie = stranger.get("/sign-in").headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", "path=/semel"} <= set(re.split(r";\s*", cookie))
    assert "secure" not in cookie
    secure = Browser(stranger.app)
    secure.base_url = "https://testserver"
    assert "; secure" in secure.get("/sign-in").headers["set-cookie"].lower()


def test_signing_in_begins_another_session_and_signing_out_ends_it(stranger):
    stranger.get("/sign-in")
    before = stranger.cookies["semel_session"]
    stranger.sign_in("ann")
    assert stranger.cookies["semel_session"] != before
    assert stranger.submit("/sign-out", "/").status_code == 303
    assert stranger.get("/").status_code == 303


def test_a_session_ends_after_a_working_day(viewer, clock):
    clock.advance(LIFETIME - 1)
    assert viewer.get("/").status_code == 200
    clock.advance(1)
    assert viewer.get("/").status_code == 303


def test_a_session_is_known_to_every_process_with_the_secret_and_to_no_other(s, viewer):
    cookie = viewer.cookies["semel_session"]
    assert status_with(cookie, browser_of(s)) == 200
    assert status_with(cookie, browser_of(s, secret=b"t" * 32)) == 303
    assert status_with(cookie, browser_of(s, secret=None)) == 303


def test_a_token_that_is_changed_or_taken_away_ends_its_sessions(s, viewer):
    cookie = viewer.cookies["semel_session"]
    for users in ({"vic": ("viewer", "ab" * 32)}, {"ann": USERS["ann"]}):
        assert status_with(cookie, browser_of(s, tokens=users)) == 303


def sign_out(browser):
    """End the session of a browser; the cookie that it had."""
    cookie = browser.cookies["semel_session"].strip('"')
    token = form_token(browser.get("/ledger").text)
    assert browser.post("/semel/sign-out", data={"form_token": token}).status_code == 303
    return cookie


def test_a_cookie_is_of_no_use_after_signing_out_in_any_process(s, viewer, clock):
    other = browser_of(s)  # another process on the same store
    cookie = viewer.cookies["semel_session"].strip('"')
    assert status_with(cookie, other) == 200
    assert sign_out(viewer) == cookie
    again = browser_of(s)
    assert [status_with(cookie, one) for one in (viewer, other, again)] == [303, 303, 303]
    clock.advance(LIFETIME)
    assert status_with(cookie, other) == 303


def test_who_signed_out_signs_in_again_in_the_same_browser(viewer):
    sign_out(viewer)
    assert viewer.sign_in("vic").get("/ledger").status_code == 200


def test_who_brings_an_ended_cookie_is_given_another_and_signs_in_with_it(s, viewer):
    cookie = sign_out(viewer)
    browser = browser_of(s)
    browser.cookies.set("semel_session", cookie, domain="testserver.local", path="/semel")
    assert browser.sign_in("ann").get("/ledger").status_code == 200


def test_signing_out_ends_one_session_and_no_other_of_the_same_user(s, viewer):
    other = browser_of(s).sign_in("vic")
    sign_out(viewer)
    assert other.get("/ledger").status_code == 200


def test_a_store_that_cannot_tell_who_signed_out_lets_nobody_in(s, viewer):
    s.store.close()
    answer = viewer.get("/ledger")
    assert (answer.status_code, "did not do as asked" in answer.text) == (503, True)


def test_live_pages_of_a_session_that_was_ended_end_with_it(s):
    clock = s.clock
    sessions, ended = Sessions(USERS, {}, SECRET, clock), EndedSessions(s, clock)
    authenticator = Authenticator(sessions, ended, [LedgerView(s=s)], clock, open=False)
    session = sessions.begin("vic")
    cookie = f"semel_session={sessions.sealed(session)}".encode()
    visit = Visit(Request({"type": "http", "headers": [(b"cookie", cookie)]}), session, "", None, None)
    assert authenticator.is_still(visit)
    asyncio.run(ended.add(session))
    assert not authenticator.is_still(visit)


@pytest.mark.parametrize("cookie", ["", ".", "a.b", "ü.ü", "e30.", "=.="])
def test_a_cookie_that_is_not_ours_is_none(stranger, cookie):
    assert status_with(cookie, stranger) == 303


def test_a_cookie_whose_name_was_changed_is_none(s, viewer):
    body, mac = viewer.cookies["semel_session"].strip('"').split(".")
    forged = urlsafe_b64encode(urlsafe_b64decode(body).replace(b'"vic"', b'"ann"')).decode()
    assert forged != body
    assert status_with(f"{forged}.{mac}", browser_of(s)) == 303


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "open=True"),
        ({"tokens": {}}, "open=True"),
        ({"tokens": USERS, "open": True}, "open=True"),
        ({"tokens": {"ann": ("admin", "ab" * 32)}}, "viewer or operator"),
        ({"tokens": {"ann": ("viewer", "token-of-ann")}}, "SHA-256"),
        ({"tokens": {"ann": ("viewer", digest_of(""))}}, "SHA-256"),
        ({"tokens": {" ": USERS["ann"]}}, "name"),
        ({"tokens": {"ann": USERS["ann"], "bob": USERS["ann"]}}, "same token"),
        ({"tokens": USERS, "secret": b"short"}, "guessed"),
    ],
    ids=str,
)
def test_a_dashboard_that_would_let_in_the_wrong_ones_is_refused(s, options, says):
    with pytest.raises(InvalidOption, match=says):
        dashboard(s, **options)


def open_browser(s, client="127.0.0.1", host="localhost", **headers):
    app = Starlette()
    app.mount("/semel", dashboard(s, open=True))
    browser = Browser(app, client=(client, 4000))
    browser.base_url = f"http://{host}:8000"
    browser.headers.update(headers)
    return browser


@pytest.mark.parametrize(
    ("client", "host"), [("127.0.0.1", "localhost"), ("::1", "[::1]"), ("127.0.0.1", "127.0.0.1")]
)
def test_an_open_dashboard_takes_whoever_is_on_the_machine_for_an_operator(s, client, host):
    failed(s)
    local = open_browser(s, client, host)
    assert local.get("/ledger").status_code == 200
    assert act(local, "release").status_code == 200
    assert journal(s) == [("local", "release")]


@pytest.mark.parametrize(
    ("client", "host", "headers"),
    [
        ("10.0.0.7", "localhost", {}),
        ("testclient", "localhost", {}),
        ("127.0.0.1", "evil.example", {}),
        ("127.0.0.1", "localhost", {"X-Forwarded-For": "10.0.0.7"}),
        ("127.0.0.1", "localhost", {"Forwarded": "for=10.0.0.7"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", [*PAGES, "/sign-in"])
def test_an_open_dashboard_refuses_whoever_is_elsewhere(s, client, host, headers, path):
    completed(s)
    answer = open_browser(s, client, host, **headers).get(path)
    assert (answer.status_code, KEY in answer.text, "form_token" in answer.text) == (403, False, False)


@pytest.mark.parametrize("path", [f"/key?key={KEY}", "/ledger?prefix=a%22b&status=FAILED", "/sign-in"])
def test_a_link_of_another_site_leads_on_and_ends_no_session(s, stranger, path):
    completed(s)
    answer = stranger.get(path, headers={"sec-fetch-site": "cross-site"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
    assert "attempt 1" not in answer.text
    address = unescape(matched(r'http-equiv="refresh" content="0; url=([^"]*)"', answer.text))
    assert address == f"/semel{path}"


# Forms


FORMS = {
    "/key": {"key": KEY, "action": "release", "why": "ticket 12"},
    "/reveal": {"key": KEY, "why": "ticket 12"},
    "/switches": {"name": "mail", "on": "yes", "why": "ticket 12"},
    "/bulk": {"records": f'[["{KEY}", "x"]]', "action": "release", "confirmed": "yes", "why": "ticket 12"},
    "/inbox": {"name": "orders", "until": "9e9", "confirmed": "yes", "why": "ticket 12"},
    "/letter": {"name": "orders", "id": "x", "why": "ticket 12"},
}


def untouched(s):
    return s.ledger.get(KEY).status is Status.FAILED and not s.switches.list() and not journal(s)


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("token", ["", "wrong", "ü", "of another session"])
def test_a_form_that_is_not_of_this_session_does_nothing(s, operator, path, token):
    failed(s)
    if token == "of another session":
        token = form_token(browser_of(s).sign_in("ann").get("/").text)
    answer = operator.post("/semel" + path, data=FORMS[path] | {"form_token": token})
    assert (answer.status_code, untouched(s)) == (403, True)


@pytest.mark.parametrize("path", FORMS)
def test_a_viewer_changes_nothing_and_sees_no_form_for_it(s, viewer, path):
    failed(s)
    assert viewer.submit(path, "/", **FORMS[path]).status_code == 403
    assert untouched(s)
    for page in PAGES:
        forms = set(re.findall(r'<form[^>]*method="post" action="([^"]*)"', viewer.get(page).text))
        assert forms == {"/semel/sign-out"}, page


@pytest.mark.parametrize("path", FORMS)
def test_a_form_without_a_session_does_nothing(s, stranger, path):
    failed(s)
    page = stranger.get("/sign-in").text
    answer = stranger.post("/semel" + path, data=FORMS[path] | {"form_token": form_token(page)})
    assert (answer.status_code, untouched(s)) == (401, True)


def test_a_form_too_large_to_be_one_does_nothing(s, operator):
    failed(s)
    answer = operator.submit("/key", "/", **FORMS["/key"], result="x" * LARGEST_FORM)
    assert (answer.status_code, "more than 256 KB" in answer.text) == (403, True)
    assert operator.post("/semel/key", content=b"\xff=\xff&" * 99).status_code == 403
    assert untouched(s)


def test_signing_in_needs_the_form_too(stranger):
    stranger.get("/sign-in")
    assert stranger.post("/semel/sign-in", data={"token": TOKENS["ann"]}).status_code == 403
    assert stranger.get("/").status_code == 303


# What every answer says


@pytest.mark.parametrize("path", [*PAGES, "/sign-in", "/nowhere", "/key?key=", "/static/style.css"])
def test_a_browser_is_told_to_load_nothing_from_elsewhere_and_to_keep_nothing(operator, path):
    answer = operator.get(path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    if not path.startswith("/static"):
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", PAGES)
def test_a_page_needs_no_inline_script_or_style_and_only_our_files(s, operator, path):
    failed(s)
    text = operator.get(path).text
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! src=)", text)
    for address in re.findall(r'(?:src|href)="([^"]*)"', text):
        assert address.startswith(("/semel/", "#")), address
    for address in re.findall(r'"/semel(/static/[^"]*)"', text):
        assert operator.get(address).status_code == 200


@pytest.mark.parametrize("path", PAGES)
def test_a_page_can_be_read_without_seeing_it(s, operator, path):
    failed(s)
    doubted(s, "charge:order-8")
    s.ops.turn("mail", on=True, by="ann", why="down")
    text = operator.get(path).text
    assert re.search(r'<html lang="en">', text)
    assert len(re.findall(r"<h1\b", text)) == 1
    assert '<a class="skip" href="#main">' in text
    labelled = set(re.findall(r'<label[^>]* for="([^"]*)"', text))
    fields = re.findall(r"<(?:input|select|textarea)\b[^>]*>", text)
    for field in [field for field in fields if 'type="hidden"' not in field]:
        assert matched(r' id="([^"]*)"', field) in labelled, field
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    for table in re.findall(r"<table>.*?</table>", text, re.DOTALL):
        assert "<caption" in table
        assert 'scope="col"' in table


@pytest.mark.parametrize("kind", [Starlette, FastAPI])
@pytest.mark.parametrize("mount", ["/semel", "/ops/semel", ""])
def test_it_is_mounted_anywhere_in_any_application(s, kind, mount):
    app = kind()
    app.mount(mount, dashboard(s, tokens=USERS))
    with TestClient(app) as client:
        answer = client.get(mount + "/")
        assert answer.url.path == mount + "/sign-in"
        sent = {"form_token": form_token(answer.text), "token": TOKENS["vic"]}
        assert ">Overview</h1>" in client.post(str(answer.url), data=sent).text


# Pages


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/", "Nothing was counted"),
        ("/", "Nothing is in doubt"),
        ("/ledger", "The ledger is empty"),
        ("/ledger?prefix=x", "No record is like that"),
        ("/doubts", "Nothing is in doubt"),
        ("/switches", "No switch was ever turned"),
        ("/journal", "No operator has done anything yet"),
        ("/key?key=x", "There is no record of this key"),
    ],
)
def test_an_empty_page_says_what_that_means(viewer, path, says):
    answer = viewer.get(path)
    assert (answer.status_code, says in answer.text) == (404 if path.startswith("/key") else 200, True)


def shown(browser, query=""):
    return re.findall(r"<th scope=\"row\"><a [^>]*><bdi>([^<]*)</bdi>", browser.get(f"/ledger{query}").text)


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("", ["charge:1", "charge:2", "charge:3", "mail:1"]),
        ("?prefix=charge:", ["charge:1", "charge:2", "charge:3"]),
        ("?prefix=+mail:+&status=", ["mail:1"]),
        ("?status=FAILED", ["charge:2"]),
        ("?error=ValueError", ["charge:2"]),
        ("?worker=web-2", []),
        ("?worker=web", ["charge:1", "charge:2", "charge:3", "mail:1"]),
        ("?subject=ann@example.org", ["mail:1"]),
        ("?in_doubt=yes", ["charge:3"]),
        ("?since=30s", ["mail:1"]),
        ("?until=1min", ["charge:1", "charge:2", "charge:3"]),
        ("?since=1970-01-01&until=1970-01-02T00:00:00Z", []),
    ],
)
def test_the_address_bar_searches(clock, query, keys):
    with semel.connect("memory:", clock=clock, worker="web-1", secret=SECRET) as s:
        completed(s, "charge:1")
        failed(s, "charge:2")
        doubted(s, "charge:3")
        clock.advance(60)
        completed(s, "mail:1", subject="ann@example.org")
        assert shown(browser_of(s).sign_in("vic"), query) == keys


def test_a_log_lines_digest_leads_to_its_key(s, viewer):
    completed(s)
    completed(s, "charge:order-8")
    digest = matched(r"<code>([0-9a-f]{16})</code>", viewer.get(f"/key?key={KEY}").text)
    assert shown(viewer, f"?digest={digest[:10]}") == [KEY]


@pytest.mark.parametrize(
    "query", ["status=DONE", "since=yesterday", "until=99999999999w", "after=x", "since=1e400"]
)
def test_a_search_that_cannot_be_is_explained_and_kept(viewer, query):
    answer = viewer.get(f"/ledger?prefix=charge:&{query}")
    assert (answer.status_code, 'role="alert"' in answer.text) == (400, True)
    assert 'value="charge:"' in answer.text


def test_where_the_store_has_it_records_are_offered_in_the_order_of_time(s, clock, viewer, tmp_path):
    for number in range(60):
        clock.advance(1)
        completed(s, f"charge:{number * 7 % 60:02}")
    latest = [f"charge:{number * 7 % 60:02}" for number in reversed(range(60))]
    page = viewer.get("/ledger?order=newest").text
    assert '<option value="newest" selected>newest first</option>' in page
    assert shown(viewer, "?order=newest") == latest[:50]
    following = unescape(matched(r'href="/semel/ledger([^"]*)" rel="next"', page))
    assert shown(viewer, following) == latest[50:]
    assert shown(viewer, "?order=oldest") == latest[:9:-1]
    assert viewer.get("/ledger?order=fastest").status_code == 400
    with semel.connect(f"sqlite:///{tmp_path / 'semel.db'}") as without:
        browser = browser_of(without).sign_in("vic")
        assert 'name="order"' not in browser.get("/ledger").text
        asked = browser.get("/ledger?order=newest")
        assert asked.status_code == 400
        assert "--with recent" in asked.text


def test_pages_follow_each_other_with_the_same_search(s, viewer):
    for number in range(120):
        completed(s, f"charge:{number:03}")
    completed(s, "mail:1")
    seen, query = [], "?prefix=charge:"
    while query:
        seen += shown(viewer, query)
        text = viewer.get(f"/ledger{query}").text
        more = re.search(r'href="/semel/ledger([^"]*)" rel="next"', text)
        query = unescape(more[1]) if more else ""
    assert seen == [f"charge:{number:03}" for number in range(120)]


def test_a_page_without_any_says_among_how_many_keys_and_leads_on(s, viewer, monkeypatch):
    monkeypatch.setattr("semel.ops.questions.EXAMINED", 50)
    s.ledger.check_and_set_many([f"charge:{number:03}" for number in range(120)], ttl=3600)
    s.ledger.fail(s.ledger.claim("mail:1"), ValueError("no such address"))
    first = viewer.get("/ledger?error=ValueError").text
    assert "Nothing among the first 50 keys." in first
    assert re.findall(r'rel="next">(.*?)<', first) == ["Go on with those after them"]
    second = viewer.get("/ledger" + unescape(matched(r'href="/semel/ledger([^"]*)" rel="next"', first))).text
    assert "Nothing among the next 50 keys." in second
    assert shown(viewer, unescape(matched(r'href="/semel/ledger([^"]*)" rel="next"', second))) == ["mail:1"]


def test_what_vanished_and_runs_again_is_marked_in_the_ledger(s, clock, viewer):
    s.ledger.claim(KEY, lease=30, ttl=3600)
    assert "lapsed" not in viewer.get("/ledger?status=IN_PROGRESS").text
    clock.advance(31)
    assert "lapsed" in viewer.get("/ledger?status=IN_PROGRESS").text


def test_a_key_tells_its_story_and_what_the_next_call_gets(s, clock, viewer):
    s.ledger.claim(KEY, lease=30, ttl=3600)
    clock.advance(40)
    s.ledger.release(claimed(s), TimeoutError("the bank was slow"))
    text = viewer.get(f"/key?key={KEY}").text
    kinds = re.findall(r'<li class="([^"]*)">', text.partition('<ol class="story">')[2])
    assert kinds == ["claimed", "lapsed", "claimed", "released"]
    assert "TimeoutError: the bank was slow" in text
    assert "30 s later" in text
    assert "The next call with this key runs it" in text


@pytest.mark.parametrize("typed", [f"  {KEY}", f"{KEY} ", f"\t{KEY}\n"])
def test_a_key_that_was_pasted_with_space_around_it_is_found(s, viewer, typed):
    failed(s)
    answer = viewer.get(f"/key?{urlencode({'key': typed})}")
    assert (answer.status_code, "ValueError" in answer.text) == (200, True)


def test_a_key_that_has_space_around_it_is_found_too(s, viewer):
    failed(s, f" {KEY} ")
    completed(s)
    answer = viewer.get(f"/key?{urlencode({'key': f' {KEY} '})}")
    assert (answer.status_code, "ValueError" in answer.text) == (200, True)


@pytest.mark.parametrize(
    ("make", "actions"),
    [
        (failed, {"release", "complete", "forget"}),
        (completed, {"drop", "forget"}),
        (released, {"complete", "fail", "forget"}),
        (claimed, {"release", "complete", "fail", "forget"}),
    ],
)
def test_only_what_can_be_done_is_offered(s, operator, make, actions):
    make(s)
    assert set(re.findall(r'name="action" value="(\w+)"', operator.get(f"/key?key={KEY}").text)) == actions


def test_an_operator_acts_with_a_reason_and_is_told_what_came_of_it(s, operator):
    failed(s)
    answer = act(operator, "complete", result='{"paid": "by wire"}')
    assert (answer.status_code, "It was failed" in answer.text, "is completed now" in answer.text) == (
        200,
        True,
        True,
    )
    assert s.ledger.result(s.ledger.get(KEY)) == {"paid": "by wire"}
    assert journal(s) == [("ann", "complete")]
    assert "ticket 12" in operator.get("/journal").text


@pytest.mark.situation(59)
@pytest.mark.parametrize(("ttl", "days"), [(3600, 30), (90 * DAY, 90)])
def test_a_record_is_kept_for_as_long_as_from_elsewhere_when_it_is_resolved(s, clock, operator, ttl, days):
    s.ledger.fail(s.ledger.claim(KEY, ttl=ttl), ValueError("no such account"))
    offered = matched(r'name="days"[^>]* value="([^"]*)"', operator.get(f"/key?key={KEY}").text)
    act(operator, "complete", days=offered)
    assert s.ledger.get(KEY).expires_at == clock.now() + days * DAY


def test_a_doubt_has_no_end_and_what_settles_it_has(s, clock, operator):
    doubted(s, KEY)
    assert s.ledger.get(KEY).expires_at > clock.now() + 36500 * DAY
    assert act(operator, "complete", days="90").status_code == 200
    assert s.ledger.get(KEY).expires_at == clock.now() + 90 * DAY


def test_a_forgotten_key_is_gone(s, operator):
    failed(s)
    answer = act(operator, "forget")
    assert (answer.status_code, s.ledger.get(KEY)) == (200, None)
    assert "is absent now" in answer.text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"why": "  "}, "why"),
        ({"action": "explode"}, "choose what to do"),
        ({"action": "complete", "result": "{not json"}, "the result is JSON"),
        ({"days": "0"}, "number of days"),
        ({"days": "nan"}, "number of days"),
        ({"days": "1e300"}, "number of days"),
        ({"days": "soon"}, "number of days"),
    ],
)
def test_what_was_typed_wrongly_is_explained_and_nothing_is_done(s, operator, fields, says):
    failed(s)
    answer = act(operator, "release", **fields)
    assert (answer.status_code, says in answer.text, untouched(s)) == (400, True, True)
    assert escape(fields.get("result", ""), quote=False) in answer.text


def test_a_record_that_changed_since_it_was_looked_at_is_left_alone(s, operator):
    failed(s)
    page = operator.get(f"/key?key={KEY}").text
    s.ops.perform(Action(name="release", key=KEY, by="bob", why="ticket 13"))
    sent = {name: hidden(page, name) for name in ("form_token", "seen")}
    answer = operator.post("/semel/key", data={"key": KEY, "action": "complete", "why": "x"} | sent)
    assert (answer.status_code, "has changed since" in answer.text) == (409, True)
    assert s.ledger.get(KEY).status is Status.RELEASED


def test_work_under_way_is_ended_only_by_force(s, operator):
    claimed(s)
    assert act(operator, "release").status_code == 409
    assert s.ledger.get(KEY).status is Status.IN_PROGRESS
    assert act(operator, "release", force="yes").status_code == 200
    assert s.ledger.get(KEY).status is Status.RELEASED


# What is personal


def personal(s):
    claim = claimed(s)
    s.ledger.complete(claim, {"to": "bea@example.org"})


@pytest.mark.parametrize("path", [*PAGES, "/ledger?status=COMPLETED"])
def test_a_result_is_on_no_page(s, viewer, operator, path):
    personal(s)
    for browser in (viewer, operator):
        assert "bea@example.org" not in browser.get(path).text


def test_an_operator_sees_a_result_once_the_journal_has_it(s, operator):
    personal(s)
    answer = operator.submit("/reveal", f"/key?key={KEY}", key=KEY, why="she asks")
    assert "bea@example.org" in answer.text
    assert journal(s) == [("ann", "reveal")]
    assert "bea@example.org" not in operator.get("/journal").text
    assert "bea@example.org" not in operator.get(f"/key?key={KEY}").text


def test_what_work_noted_is_hidden_and_shown_with_the_result(s, viewer, operator):
    s.ledger.complete(claimed(s), None, details={"to": "bea@example.org"})
    assert "bea@example.org" not in viewer.get(f"/key?key={KEY}").text
    answer = operator.submit("/reveal", f"/key?key={KEY}", key=KEY, why="she asks")
    assert "bea@example.org" in answer.text


def test_no_reason_no_result(s, operator):
    personal(s)
    answer = operator.submit("/reveal", f"/key?key={KEY}", key=KEY, why=" ")
    assert (answer.status_code, "bea@example.org" in answer.text, journal(s)) == (400, False, [])


def test_a_viewer_is_not_shown_a_result(s, viewer):
    personal(s)
    answer = viewer.submit("/reveal", "/", key=KEY, why="curious")
    assert (answer.status_code, "bea@example.org" in answer.text, journal(s)) == (403, False, [])


def test_the_token_of_a_claim_is_on_no_page(s, operator):
    claim = claimed(s)
    for path in PAGES:
        assert claim.token not in operator.get(path).text


# What others wrote


def bare(text):
    return re.search("[\u200e\u200f\u202a-\u202e\u2066-\u2069]", text) is None


@pytest.mark.parametrize("key", HOSTILE, ids=ascii)
def test_whatever_a_key_holds_is_shown_as_text(s, operator, key):
    claim = claimed(s, key)
    s.ledger.fail(claim, RuntimeError(key))
    s.ops.turn("mail", on=True, by=key[:50], why=key)
    plain = operator.get("/journal").text.count("<script")
    for path in ("/", "/ledger", "/switches", "/journal"):
        text = operator.get(path).text
        assert bare(text), path
        assert text.count("<script") == plain
        assert "<img" not in text
    address = matched(r'href="/semel(/key\?[^"]*)"', operator.get("/ledger").text)
    page = operator.get(unescape(address))
    heading = matched(r"<h1 class=\"key\"><bdi>(.*?)</bdi>", page.text)
    assert page.status_code == 200
    assert unescape(heading).replace("\\u202e", "\u202e").replace("\\u200f", "\u200f") == key
    assert bare(re.sub(r'value="[^"]*"', "", page.text))  # where it is sent back as it is
    assert (page.text.count("<script"), "<img" in page.text) == (plain, False)
    assert hidden(page.text, "key") == key


@pytest.mark.parametrize(
    "key", ["x" * 10_000, "<script>" * 1250, "a\x00b", ""], ids=["x", "script", "nul", "none"]
)
def test_a_key_that_cannot_be_is_refused_in_a_page(operator, key):
    answer = operator.get("/key", params={"key": key})
    assert (answer.status_code, 'role="alert"' in answer.text) == (400, True)
    assert len(answer.text) < 5000
    assert "<script><script>" not in answer.text


def test_a_hostile_result_is_text_too(s, operator):
    completed(s, result="</pre><script>alert(1)</script>\u202e")
    text = operator.submit("/reveal", f"/key?key={KEY}", key=KEY, why="look").text
    assert escape("</pre><script>alert(1)</script>", quote=False) in text
    assert "<script>alert" not in text
    assert bare(text)


# How things stand


def test_the_overview_counts_what_happened_and_what_was_prevented(s, clock, viewer):
    keeper = s.keep_rates()
    for key in ("charge:1", "charge:2"):
        completed(s, key)
    for _ in range(3):
        s.ledger.claim("charge:1", ttl=3600)
    failed(s)
    keeper.flush()
    for span in ("hour", "day", "week", "month", "nonsense"):
        text = viewer.get(f"/?span={span}").text
        assert "<b>2</b> completed" in text
        assert "<b>3</b> duplicates prevented" in text
        assert re.search(r"<b>1</b> <a [^>]*>failed", text)
        assert "completed 2, duplicates prevented 3, failed 1</title>" in text
        drawing = text.partition('<div class="chart">')[2].partition("</svg>")[0]
        assert set(re.findall(r'<rect class="(\w+)"', drawing)) == {
            "hit",
            "completed",
            "duplicates",
            "failed",
        }


def test_the_overview_names_the_oldest_doubt_and_what_is_switched(s, clock, viewer):
    for key in ("charge:1", "charge:2"):
        doubted(s, key)
        clock.advance(90)
    s.ops.turn("mail", on=True, by="ann", why="the provider is down")
    s.ops.turn("calls", on=False, by="ann", why="over")
    text = viewer.get("/").text
    assert "<b>2</b> <a" in text
    assert re.search(r"waited for <b>3 min</b>: <a [^>]*><bdi>charge:1</bdi>", text)
    assert "the provider is down" in text
    assert "calls" not in text


def test_what_is_in_doubt_is_listed_oldest_first_and_leads_to_its_keys(s, clock, viewer):
    for number in range(3):
        doubted(s, f"charge:{number}")
        clock.advance(1)
    text = viewer.get("/doubts").text
    links = re.findall(r'<th scope="row"><a href="/semel(/key[^"]*)"', text)
    assert [viewer.get(unescape(link)).status_code for link in links] == [200] * 3
    assert [link[-1] for link in links] == ["0", "1", "2"]


def test_switches_are_turned_with_a_reason(s, operator):
    assert operator.submit("/switches", name="mail", on="yes", why="down").status_code == 303
    assert s.switches.list()["mail"].on
    assert operator.submit("/switches", name="mail", on="no", why="back").status_code == 303
    assert not s.switches.list()["mail"].on
    assert journal(s) == [("ann", "turn off"), ("ann", "turn on")]
    assert "back" in operator.get("/switches").text


@pytest.mark.parametrize(
    "fields", [{"why": ""}, {"on": "maybe"}, {"name": ""}, {"name": "x" * 3000}], ids=str
)
def test_a_switch_that_cannot_be_turned_is_explained(s, operator, fields):
    answer = operator.submit("/switches", **({"name": "mail", "on": "yes", "why": "down"} | fields))
    assert (answer.status_code, 'role="alert"' in answer.text, s.switches.list()) == (400, True, {})


def test_the_journal_has_pages(s, viewer):
    for number in range(60):
        s.ops.turn("mail", on=bool(number % 2), by="ann", why=f"number {number:02}.")
    first = viewer.get("/journal").text
    more = unescape(matched(r'href="/semel/journal([^"]*)" rel="next"', first))
    told = re.findall(r"number (\d\d)\.", first + viewer.get(f"/journal{more}").text)
    assert told == [f"{number:02}" for number in reversed(range(60))]


def test_a_store_that_is_away_is_told_in_a_page(s, viewer):
    s.close()
    for path in PAGES:
        answer = viewer.get(path)
        assert (answer.status_code, 'role="alert"' in answer.text) == (503, True)


def test_a_write_whose_answer_is_lost_is_not_said_to_be_done(clock):
    store = Faulty(MemoryStore(clock))
    with semel.Semel(store, clock=clock) as s:
        failed(s)
        operator = browser_of(s).sign_in("ann")
        store.lose_request(times=99)
        answer = act(operator, "release")
        assert (answer.status_code, "done. It was" in answer.text) == (503, False)
        store.recover()
        assert untouched(s)


def test_an_address_without_a_page_says_so(viewer):
    assert (viewer.get("/nowhere").status_code, viewer.post("/semel/ledger").status_code) == (404, 405)
    assert "There is no such page" in viewer.get("/nowhere").text
