"""A browser at a dashboard, and records for it to look at."""

import re
from hashlib import sha256
from html import unescape

from starlette.applications import Starlette
from starlette.testclient import TestClient

from semel.dashboard import dashboard
from semel.dashboard.sessions import UserRole

KEY = "charge:order-7"
SECRET = b"s" * 32
TOKENS = {"ann": "token-of-ann", "vic": "token-of-vic"}


def digest_of(token):
    return sha256(token.encode()).hexdigest()


USERS: dict[str, tuple[UserRole, str]] = {
    "ann": ("operator", digest_of(TOKENS["ann"])),
    "vic": ("viewer", digest_of(TOKENS["vic"])),
}


class Browser(TestClient):
    """A client at the dashboard that an application has at /semel."""

    def __init__(self, app, **options):
        super().__init__(app, base_url="http://testserver", follow_redirects=False, **options)

    def get(self, url, **options):
        return super().get(f"/semel{url}", **options)

    def submit(self, path, page=None, **fields):
        """Send a form, with what the page that it stands on hides in it."""
        token = form_token(self.get(page or path.partition("?")[0]).text)
        return self.post("/semel" + path, data={"form_token": token} | fields)

    def sign_in(self, name):
        answer = self.submit("/sign-in", token=TOKENS[name])
        assert answer.status_code == 303, answer.text
        return self


def matched(pattern, text):
    """What the brackets of a pattern find in a text."""
    found = re.search(pattern, text, re.DOTALL)
    assert found is not None, (pattern, text)
    return found[1]


def form_token(text):
    return hidden(text, "form_token")


def hidden(text, name):
    return unescape(matched(rf'name="{name}" value="([^"]*)"', text))


def browser_of(s, **options):
    app = Starlette()
    app.mount("/semel", dashboard(s, **({"tokens": USERS, "secret": SECRET} | options)))
    return Browser(app)


def status_with(cookie, browser):
    """What the first page answers to whoever brings this cookie."""
    return browser.get("/", headers={"cookie": f"semel_session={cookie}".encode()}).status_code


def claimed(s, key=KEY, **options):
    return s.ledger.claim(key, ttl=3600, **options)


def completed(s, key=KEY, result="paid", **options):
    s.ledger.complete(claimed(s, key, **options), result)


def failed(s, key=KEY):
    s.ledger.fail(claimed(s, key), ValueError("no such account"))


def doubted(s, key):
    s.ledger.doubt(claimed(s, key))


def released(s):
    s.ledger.release(claimed(s))


def act(browser, name, **more):
    seen = hidden(browser.get(f"/key?key={KEY}").text, "seen")
    fields = {"key": KEY, "action": name, "seen": seen, "why": "ticket 12"} | more
    return browser.submit("/key", f"/key?key={KEY}", **fields)


def journal(s):
    return [(entry.actor, entry.body["action"]) for entry in s.ops.journal().entries]
