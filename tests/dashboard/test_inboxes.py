"""Inboxes in the dashboard: what waits, dead letters, looking at one, and putting them back."""

import re
from html import unescape

import pytest

import semel
from semel.doors.inbox import Message, open_inbox
from tests.dashboard.kit import browser_of, hidden, journal, matched


class Broken(Exception):
    pass


class Away(Exception):
    pass


def killed(s, inbox, name, error, body):
    """A message that a worker gave up."""
    inbox.put(Message(f"order:{name}", {"to": body}, group=name))

    def handle(_message):
        work.stop()
        raise error

    work = inbox.worker(handle, max_attempts=1)
    work.run()


@pytest.fixture
def inbox(s):
    return open_inbox(s, "orders")


@pytest.fixture
def dead(s, inbox):
    killed(s, inbox, "1", Broken("<b>no</b> paper"), "bea@example.org")
    killed(s, inbox, "2", Away("gone"), "cem@example.org")
    killed(s, inbox, "3", Broken("no ink"), "dan@example.org")
    return inbox


@pytest.fixture
def operator(s, inbox):
    return browser_of(s, inboxes={"orders": inbox}).sign_in("ann")


@pytest.fixture
def viewer(s, inbox):
    return browser_of(s, inboxes={"orders": inbox}).sign_in("vic")


def names(inbox):
    return [letter.key for letter in inbox.dead()]


def ask(operator, **fields):
    return operator.submit("/inbox", "/inbox?name=orders", name="orders", **fields)


def confirm(operator, page, why="the printer is back", **fields):
    shown = {name: hidden(page, name) for name in ("error", "id", "until", "shown")}
    sent = {"name": "orders", "confirmed": "yes", "why": why} | shown | fields
    return operator.submit("/inbox", "/inbox?name=orders", **sent)


def test_each_inbox_tells_how_much_waits_since_when_and_how_much_is_dead(s, clock, dead, viewer):
    dead.put(Message("order:9", {}))
    clock.advance(120)
    for path in ("/inboxes", "/"):
        row = re.search(r'inbox\?name=orders".*?</tr>', viewer.get(path).text, re.DOTALL)
        assert row is not None
        assert re.findall(r">([^<>\n]*?)</td>", row[0]) == ["1", "2 min", "0", "3", "2 min"]


def test_dead_letters_are_listed_oldest_first_with_their_error_and_without_what_they_say(dead, viewer):
    text = viewer.get("/inbox?name=orders").text
    assert re.findall(r"<bdi>(order:\d)</bdi></a>", text) == ["order:1", "order:2", "order:3"]
    assert "Broken: &lt;b&gt;no&lt;/b&gt; paper" in text
    assert "@example.org" not in text
    assert re.findall(r'<form[^>]*method="post" action="([^"]*)"', text) == ["/semel/sign-out"]


def test_an_operator_sees_what_a_letter_says_once_the_journal_has_why(s, dead, operator):
    id = dead.dead()[0].id
    refused = operator.submit("/letter", "/inbox?name=orders", name="orders", id=id, why=" ")
    assert (refused.status_code, "bea@" in refused.text, journal(s)) == (400, False, [])
    shown = operator.submit("/letter", "/inbox?name=orders", name="orders", id=id, why="she asks")
    assert "bea@example.org" in shown.text
    assert "cem@example.org" not in shown.text
    assert journal(s) == [("ann", "reveal letter")]
    assert "/semel/inbox?name=orders" in operator.get("/journal").text


def test_a_letter_is_read_by_its_id_however_many_are_before_it(s, dead, operator, monkeypatch):
    monkeypatch.setattr("semel.dashboard.inboxes.LOOKED_THROUGH", 1)
    last = dead.dead()[-1].id
    shown = operator.submit("/letter", "/inbox?name=orders", name="orders", id=last, why="he asks")
    assert (shown.status_code, "dan@example.org" in shown.text) == (200, True)
    dead.redrive(last)
    gone = operator.submit("/letter", "/inbox?name=orders", name="orders", id=last, why="he asks")
    assert gone.status_code == 404
    assert "dan@example.org" not in gone.text


def test_a_letter_that_is_sealed_with_another_key_is_said_to_be(s, clock):
    sealing = semel.Semel(s.store, clock=clock, encryption=semel.Encryption({"k1": bytes(32)}, "k1"))
    inbox = open_inbox(sealing, "orders")
    killed(sealing, inbox, "1", Broken("no paper"), "bea@example.org")
    operator = browser_of(s, inboxes={"orders": open_inbox(s, "orders")}).sign_in("ann")
    [letter] = inbox.dead()
    shown = operator.submit("/letter", "/inbox?name=orders", name="orders", id=letter.id, why="she asks")
    assert shown.status_code == 200
    assert "It cannot be read" in shown.text


def test_nothing_is_put_back_before_it_was_shown_and_confirmed(s, dead, operator):
    page = ask(operator)
    assert (page.status_code, "3 dead letters" in page.text) == (200, True)
    assert (len(names(dead)), journal(s)) == (3, [])
    refused = confirm(operator, page.text, why="")
    assert (refused.status_code, len(names(dead)), journal(s)) == (400, 3, [])
    done = confirm(operator, page.text)
    assert "3 put back" in done.text
    assert (names(dead), journal(s)) == ([], [("ann", "redrive")])
    assert dead.waiting() == 3


def test_a_page_that_answers_a_form_says_where_its_live_parts_are_to_be_had(dead, operator):
    id = dead.dead()[0].id
    shown = operator.submit(
        "/letter", "/inbox?name=orders", name="orders", id=id, why="she asks", error="Broken"
    )
    address = unescape(matched(r'data-page="/semel([^"]+)"', shown.text))
    assert 'id="live-inbox"' in operator.get(address).text


def test_those_of_one_error_are_put_back(s, dead, operator):
    page = ask(operator, error="Broken")
    assert re.findall(r"<bdi>(order:\d)</bdi></a>", page.text) == ["order:1", "order:3"]
    assert "2 put back" in confirm(operator, page.text).text
    assert names(dead) == ["order:2"]
    [entry] = s.ops.journal().entries
    assert entry.body["about"].startswith("inbox orders: error Broken, until ")


def test_one_is_put_back_and_the_journal_has_its_key(s, dead, operator):
    page = ask(operator, id=dead.dead()[1].id)
    assert "1 put back" in confirm(operator, page.text).text
    assert names(dead) == ["order:1", "order:3"]
    [entry] = s.ops.journal().entries
    assert entry.body["before"] == {"key": dead.record_key("order:2")}


def test_what_died_since_it_was_shown_is_not_put_back(s, clock, dead, operator):
    page = ask(operator)
    clock.advance(1)
    killed(s, dead, "4", Broken("no light"), "eve@example.org")
    assert "3 put back." in confirm(operator, page.text).text
    assert names(dead) == ["order:4"]


@pytest.mark.parametrize("until", ["", "soon", "nan", "inf", "-1", "1e300"])
def test_nothing_is_put_back_where_nothing_says_what_was_shown(s, dead, operator, until):
    refused = confirm(operator, ask(operator).text, until=until)
    assert (refused.status_code, len(names(dead)), journal(s)) == (400, 3, [])


def test_what_somebody_else_put_back_meanwhile_is_told(dead, operator):
    page = ask(operator)
    dead.redrive(dead.dead()[0].id)
    assert "2 put back; 1 not there any more" in confirm(operator, page.text).text


def test_one_that_somebody_else_put_back_meanwhile_is_told(dead, operator):
    id = dead.dead()[0].id
    page = ask(operator, id=id)
    dead.redrive(id)
    refused = confirm(operator, page.text)
    assert (refused.status_code, "has no dead letter" in refused.text) == (400, True)


def test_what_is_not_there_is_explained(dead, operator):
    assert operator.get("/inbox?name=other").status_code == 404
    gone = ask(operator, id="gone")
    assert (gone.status_code, "no such dead letter" in gone.text) == (400, True)
    assert len(names(dead)) == 3


def test_an_inbox_without_dead_letters_says_so(operator):
    assert "There is nothing to put back" in operator.get("/inbox?name=orders").text
