"""Personal values and secrets that are planted all over a ledger: a viewer meets none, and no log has one."""

import json
import logging
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_plus, urlencode

import pytest
from starlette.routing import Mount
from starlette.testclient import TestClient

from semel.connect import Semel
from semel.doors.inbox import Message, open_inbox
from semel.model import Claimed
from semel.ops.model import Action
from semel.redact import Redactor
from semel.service import logs
from semel.service.app import create_app
from tests.dashboard.addresses import pages
from tests.service.kit import opened, register
from tests.service.test_dashboards import OPERATOR, TOKENS, VIEWER

# What each reads as, and the part of it that would give it away.
PLANTED = {
    "Bea.Lindqvist@example.com": "lindqvist",
    "+46 70 123 45 67": "123 45",
    "sk_live_51HqLyjWDarjtT1zdp7dc": "51HqLyjWDarj",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJiZWEifQ.c2lnbmF0dXJl": "eyJzdWIiOiJiZWEifQ",
}
TEXT = ", ".join(PLANTED)
KEYS = ("mail:done", "mail:failed", "mail:tried-again", "mail:settled", "mail:noted", "mail:held")


def claim(s: Semel, key: str) -> Claimed:
    claimed = s.ledger.claim(key, ttl=3600)
    assert isinstance(claimed, Claimed)
    return claimed


def plant(s: Semel, inbox: Any) -> None:
    """Each place where semel keeps what somebody wrote."""
    s.ledger.complete(claim(s, "mail:done"), {"to": TEXT})
    s.ledger.complete(claim(s, "mail:noted"), None, details={"to": TEXT})
    s.ledger.fail(claim(s, "mail:failed"), ValueError(TEXT))
    s.ledger.release(claim(s, "mail:tried-again"), ValueError(TEXT))
    s.ledger.release(claim(s, "mail:tried-again"), ValueError(TEXT))
    s.ledger.doubt(claim(s, "mail:held"))
    s.ledger.doubt(claim(s, "mail:settled"))
    s.ops.perform(Action(name="fail", key="mail:settled", by="ann", why=TEXT))
    s.ops.turn("mail", on=True, by="ann", why=TEXT)
    s.ops.note("ann", TEXT, "redrive", "inbox echo: all", {"was": TEXT})
    s.journal.append("conversation:1", {"said": TEXT})
    inbox.put(Message("echo:bad", {"name": TEXT}))
    box = s.mailbox("echo")
    for letter in box.alone().letters:
        box.bury(letter, f"ValueError: {TEXT}")
    inbox.put(Message("echo:waits", {"name": TEXT}))


class Office(NamedTuple):
    """A service whose ledger is full of what is nobody's business."""

    client: TestClient
    s: Semel
    pages: list[str]
    """Those of the whole dashboard, of all its ledgers."""
    log: Path

    def sign_in(self, token: str) -> None:
        page = self.client.get("/dashboard/sign-in").text
        sent = {"token": token, "form_token": form_token(page)}
        assert self.client.post("/dashboard/sign-in", data=sent).status_code == 200

    def submit(self, path: str, page: str, **fields: str) -> str:
        """Send a form of a page of the ledger; what is answered."""
        sent = fields | {"form_token": form_token(self.client.get(f"/dashboard/echo{page}").text)}
        answer = self.client.post(f"/dashboard/echo{path}", data=sent)
        assert answer.status_code == 200, answer.text
        return unescape(answer.text)


def form_token(page: str) -> str:
    return page.partition('name="form_token" value="')[2].partition('"')[0]


def given_away(text: str) -> list[str]:
    """Which of the planted values stand in a text, however it is escaped."""
    plain = unquote_plus(unescape(text)).lower()
    return [value for value, part in PLANTED.items() if part.lower() in plain]


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that the service logs to, as it sets its log up; with every line that anybody writes."""
    root, file = logging.getLogger(), tmp_path / "log"
    before = root.handlers[:]
    # Other tests of this process look at what these say.
    levels = {one: one.level for one in (root, *map(logging.getLogger, logs.DRIVERS))}
    with file.open("w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        logs.set_up("json", "debug", Redactor())
        yield file
        root.handlers[:] = before
        for logger, level in levels.items():
            logger.setLevel(level)


@pytest.fixture
def office(logged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    register(monkeypatch)
    with opened("[apps.echo]" + TOKENS, tmp_path) as runtime:
        app = create_app(runtime)
        plant(runtime.apps[0].s, runtime.apps[0].inbox)
        [mount] = [one for one in app._app.routes if isinstance(one, Mount)]  # type: ignore[attr-defined]
        with TestClient(app) as client:
            found = pages(mount.app, key=KEYS[0], inbox="echo", page="names")
            yield Office(client, runtime.apps[0].s, [mount.path + path for path in found], logged)


def look_around(office: Office) -> Iterator[tuple[str, Any]]:
    """Every page, every key's page and what they lead to."""
    todo = [*office.pages]
    todo += [f"/dashboard/echo/key?{urlencode({'key': key})}" for key in KEYS]
    seen: set[str] = set()
    while todo:
        path = todo.pop(0)
        if path not in seen and "/static/" not in path:
            seen.add(path)
            answer = office.client.get(path)
            todo += [unescape(one) for one in re.findall(r'href="(/dashboard/[^"#]+)"', answer.text)]
            yield path, answer


def test_a_viewer_meets_nothing_that_is_planted_on_any_page_or_in_any_address(office: Office) -> None:
    office.sign_in(VIEWER)
    visited = set[str]()
    for path, answer in look_around(office):
        assert given_away(answer.text) == [], path
        assert given_away(f"{path} {answer.url} {answer.headers}") == [], path
        visited |= {path} if answer.status_code == 200 else set()
    assert {path for path in office.pages if path.startswith("/dashboard/echo/")} < visited
    assert any(path.startswith("/dashboard/~viewer/") for path in visited)


ASKED = ("records?app=echo&errors=full", "journal?app=echo", "inboxes", "inboxes/echo/dead")


def test_nor_does_whoever_may_only_look_over_http(office: Office) -> None:
    for path in (*ASKED, *(f"story?app=echo&key={key}" for key in KEYS)):
        answer = office.client.get(f"/v1/ops/{path}", headers={"Authorization": f"Bearer {VIEWER}"})
        assert (answer.status_code, given_away(answer.text)) == (200, []), path


def test_no_line_of_the_log_has_any_of_it_or_of_what_lets_people_in(office: Office) -> None:
    office.sign_in(OPERATOR)
    for _ in look_around(office):
        pass
    reveal(office, "mail:done")
    reveal_letter(office)
    office.submit("/inbox", "/inbox?name=echo", name="echo", confirmed="yes", until="9e9", why=TEXT)
    bulk = {"action": "drop", "confirmed": "yes", "why": TEXT}
    office.submit("/bulk", "/ledger", records=json.dumps([("mail:done", "1")]), **bulk)
    office.client.get("/dashboard/echo/ledger", params={"subject": TEXT, "prefix": TEXT})
    office.client.get("/dashboard/echo/key", params={"key": TEXT})
    cookie = office.client.cookies["semel_session"]
    text = office.log.read_text()
    assert text.count("\n") > 20
    assert given_away(text) == []
    assert [one for one in (OPERATOR, VIEWER, cookie) if one in text] == []


def reveal(office: Office, key: str) -> str:
    return office.submit("/reveal", f"/key?{urlencode({'key': key})}", key=key, why=f"{TEXT} asks")


def reveal_letter(office: Office) -> str:
    id = open_inbox(office.s, "echo").dead()[0].id
    return office.submit("/letter", "/inbox?name=echo", name="echo", id=id, why=f"{TEXT} asks")


@pytest.mark.parametrize("key", ["mail:done", "mail:noted"])
def test_an_operator_is_shown_all_of_it_once_the_journal_has_who_looked(office: Office, key: str) -> None:
    office.sign_in(OPERATOR)
    assert given_away(office.client.get("/dashboard/echo/key", params={"key": key}).text) == []
    assert given_away(reveal(office, key)) == [*PLANTED]
    [entry, *_] = office.s.ops.journal().entries
    assert (entry.actor, entry.body["action"], entry.body["about"]) == ("oncall", "reveal", key)
    assert given_away(office.client.get("/dashboard/echo/journal").text) == []


def test_so_is_what_a_dead_letter_says(office: Office) -> None:
    office.sign_in(OPERATOR)
    assert given_away(office.client.get("/dashboard/echo/inbox", params={"name": "echo"}).text) == []
    assert given_away(reveal_letter(office)) == [*PLANTED]
    [entry, *_] = office.s.ops.journal().entries
    assert (entry.actor, entry.body["action"]) == ("oncall", "reveal letter")
    assert given_away(office.client.get("/dashboard/echo/journal").text) == []
