"""A dashboard for a browser to visit: the real service on SQLite, what is in its ledger, and who comes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Response, expect

import semel
from semel.core.drive import drive
from semel.dashboard.app import dashboard_of
from semel.dashboard.views import LedgerView
from semel.doors.inbox import open_inbox
from semel.ops.model import Action
from semel.ops.rates import HOUR, MINUTE, Rates
from tests.apps.kit import Place, Service
from tests.dashboard.addresses import pages
from tests.servers.running import until
from tests.service.test_dashboards import OPERATOR, TOKENS, VIEWER

USERS = {"viewer": VIEWER, "oncall": OPERATOR}
# A key with everything that its page can show.
KEY = "charge:order-7"
# For whatever a page does by and by; a page that is simply wrong is found out when it is opened.
PATIENCE_MS = 20_000
expect.set_options(timeout=PATIENCE_MS)


class Echo(Service):
    """The service, with the app of the tests in it."""

    module = "tests.service.launch"


class Desk:
    """A running service, its dashboard, and the ledger behind it."""

    def __init__(self, service: Service, s: semel.Semel) -> None:
        self.service = service
        self.s = s
        self.root = f"{service.url}/dashboard"
        self.base = f"{self.root}/echo"
        self.inbox = open_inbox(s, "echo")
        self._folder = service.folder
        with semel.connect("memory:") as other:
            views = [LedgerView(s=other, name=name) for name in ("echo", "other")]
            found = pages(dashboard_of(views, open=True), key=KEY, inbox="echo", page="names")
        self.pages = [path.removeprefix("/echo") for path in found if path.startswith("/echo/")]

    def address(self, path: str, **query: str) -> str:
        """Where something is."""
        return f"{self.base}{path}" + (f"?{urlencode(query)}" if query else "")

    def open(self, page: Page, path: str = "/", expected: int = 200, **query: str) -> Page:
        """Go to a page of the ledger; one that is not there, or leads elsewhere, is not waited for."""
        address = self.address(path, **query)
        answer = page.goto(address)
        assert answer is not None
        assert (answer.status, page.url) == (expected, address)
        assert page.title().endswith("· semel")
        return page

    def mend(self) -> None:
        """What was torn can be handled from now on."""
        (self._folder / "mended").touch()

    @property
    def effects(self) -> list[str]:
        """What the app did."""
        return (self._folder / "effects").read_text().splitlines()

    def deliver(self, *names: str) -> None:
        """Send the app events of these names."""
        answer = httpx.post(f"{self.service.url}/webhooks/echo", json=names, trust_env=False, timeout=30)
        assert answer.status_code == 200, answer.text

    def journal(self) -> list[tuple[Any, Any, Any]]:
        """What operators did: who, what, and to which key or switch."""
        found = self.s.ops.journal().entries
        return [(entry.actor, entry.body["action"], entry.body["about"]) for entry in found]


@contextmanager
def desk_in(folder: Path) -> Iterator[Desk]:
    """The service on a database in this folder, which has something on every page."""
    place = Place("sqlite", folder)
    text = place.toml("echo", max_attempts=1) + f'[apps.echo]\nfolder = "{folder}"\n' + TOKENS
    with Echo(folder, text) as service, place.connect("echo") as s:
        prepare(s)
        desk = Desk(service, s)
        desk.deliver("bad-1", "torn-1", "torn-2")
        assert until(lambda: len(desk.inbox.dead()) == 3)
        yield desk


def prepare(s: semel.Semel) -> None:
    """Something for every page."""
    completed(s, KEY, {"paid": 42})
    s.ledger.fail(claim(s, "charge:order-8"), TimeoutError("the bank was slow"))
    s.ledger.release(claim(s, "charge:order-9"), ConnectionError("the bank was away"))
    claim(s, "charge:order-10")
    doubted(s, "charge:order-11")
    s.ops.perform(Action(name="release", key="charge:order-8", by="ann", why="the bank is back"))
    s.ops.turn("mail", on=True, by="ann", why="the provider is down")
    s.ops.turn("calls", on=False, by="ann", why="all is well")
    start = int(s.clock.now() // MINUTE - 5) * MINUTE
    counts = {"pay": {"completed": 40, "replayed": 9, "failed": 2, "released": 3, "held": 1}}
    for width in (MINUTE, HOUR):
        rates = Rates(start // width * width, counts, {}, {})
        drive(s.ops.steps._rates.keep(rates, width, "prepared"), s.store)


def claim(s: semel.Semel, key: str) -> semel.Claimed:
    claimed = s.ledger.claim(key, ttl=3600, lease=600)
    assert isinstance(claimed, semel.Claimed), claimed
    return claimed


def completed(s: semel.Semel, key: str, result: Any = None) -> None:
    s.ledger.complete(claim(s, key), result)


def doubted(s: semel.Semel, key: str) -> None:
    s.ledger.doubt(claim(s, key))


class Visitor:
    """Opens pages in contexts of its own, and notes whatever a browser complains about in them."""

    def __init__(self, browser: Browser, desk: Desk) -> None:
        self._browser = browser
        self._desk = desk
        self._contexts: list[BrowserContext] = []
        self._cookies: dict[str, Any] = {}
        self.troubles: list[str] = []

    def arrive(self, user: str = "", **options: Any) -> Page:
        """A new page, of a user who is signed in or of nobody."""
        if user and user not in self._cookies:
            self._cookies[user] = self._signed_in(user)
        state = self._cookies.get(user)
        return self._opened({"storage_state": state} if state else {}, options)

    def leave(self) -> list[str]:
        """Close every page; what was complained about in them."""
        for context in self._contexts:
            context.close()
        troubles, self.troubles, self._contexts = self.troubles, [], []
        return troubles

    def _opened(self, *options: dict[str, Any]) -> Page:
        merged: dict[str, Any] = {"viewport": {"width": 1200, "height": 800}}
        for one in options:
            merged |= one
        context = self._browser.new_context(**merged)
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("response", self._response)
        page.on("dialog", self._dialog)
        return page

    def _signed_in(self, user: str) -> Any:
        page = self._opened()
        sign_in(page, self._desk, USERS[user])
        expect(page).to_have_title("Overview · semel")
        return page.context.storage_state()

    def _console(self, message: ConsoleMessage) -> None:
        # What was not to be had is told by its answer, too.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.troubles.append(f"console: {message.text}")

    def _dialog(self, dialog: Dialog) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _response(self, response: Response) -> None:
        if response.status >= 400 and response.request.resource_type != "document":
            self.troubles.append(f"{response.status} {response.url}")


def sign_in(page: Page, desk: Desk, token: str, path: str = "/") -> None:
    """Sign in as somebody does who was going to a page of the ledger: by typing the token."""
    answer = page.goto(desk.base + path)
    assert answer is not None
    assert (answer.status, page.title()) == (200, "Sign in · semel"), page.url
    page.get_by_label("Your token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def logged_digest(log: str, event: str) -> list[str]:
    """The digests by which log lines of an event name keys."""
    return re.findall(rf'"semel_event":"{event}","semel_key_digest":"([0-9a-f]+)"', log)
