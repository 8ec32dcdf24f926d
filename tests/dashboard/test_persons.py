"""Erasing a person, and looking at counters."""

import pytest

import semel
from semel.doors.inbox.sqs import SQSInbox
from semel.gate import Cap
from semel.periods import Day
from semel.state.erasure import erased_key
from tests.dashboard.kit import SECRET, browser_of, hidden, journal

PERSON = "ann@example.org"


@pytest.fixture
def s(clock):
    with semel.connect("memory:", clock=clock, secret=SECRET) as s:
        yield s


@pytest.fixture
def about_her(s):
    """A record, a document and an entry about a person, and a record about another."""

    @s.once("reply:{n}", subject="{person}")
    def reply(n, person):
        return f"Dear {person}"

    reply(1, PERSON)
    reply(2, "bob@example.org")
    s.documents.put("chat-1", {"from": PERSON}, subject=PERSON)
    s.journal.append("chat-1", {"from": PERSON}, subject=PERSON)
    return reply


def test_what_would_be_erased_is_shown_before_it_is(s, about_her, operator):
    page = operator.submit("/persons", person=PERSON, why="she asked for it")
    assert "This would erase 3 rows" in page.text
    assert s.documents.get("chat-1") is not None
    assert journal(s) == []
    fields = {name: hidden(page.text, name) for name in ("person", "why", "confirmed")}
    done = operator.submit("/persons", **fields)
    assert "3 rows erased" in done.text
    assert s.documents.get("chat-1") is None
    assert journal(s) == [("ann", "erase")]
    assert PERSON not in operator.get("/journal").text
    assert about_her(2, "bob@example.org") == "Dear bob@example.org"


def test_of_a_person_that_nothing_is_kept_about_nothing_is_erased(s, about_her, operator):
    page = operator.submit("/persons", person="nobody@example.org", why="a request")
    assert "Nothing is kept about" in page.text
    assert "Erase it for good" not in page.text


def test_where_messages_are_on_sqs_the_page_says_what_is_left_to_do(s, clock):
    queue = SQSInbox(s, "orders", "https://sqs.eu-north-1.amazonaws.com/000000000000/orders.fifo")
    operator = browser_of(s, inboxes={"orders": queue}).sign_in("ann")
    page = operator.submit("/persons", person=PERSON, why="she asked for it")
    assert "Nothing is kept about" in page.text
    assert "semel inbox redrive orders ID" in page.text
    fields = {name: hidden(page.text, name) for name in ("person", "why", "confirmed")}
    assert "0 rows erased" in operator.submit("/persons", **fields).text
    assert s.ledger.get(erased_key(s.ledger.steps.subject(PERSON))) is not None
    queue.close()


def test_a_person_is_erased_for_a_reason(s, about_her, operator):
    page = operator.submit("/persons", person=PERSON, why=" ", confirmed="yes")
    assert page.status_code == 400
    assert s.documents.get("chat-1") is not None


def test_a_viewer_erases_nobody(s, about_her, viewer):
    page = viewer.get("/persons").text
    assert "An operator can erase a person" in page
    assert 'name="person"' not in page
    token = hidden(viewer.get("/ledger").text, "form_token")
    sent = {"form_token": token, "person": PERSON, "why": "x", "confirmed": "yes"}
    assert viewer.post("/semel/persons", data=sent).status_code == 403
    assert s.documents.get("chat-1") is not None


def test_counters_are_listed_with_the_end_of_their_period(s, viewer):
    assert "Nothing is counted" in viewer.get("/counters").text
    gate = s.gate(Cap("replies:{chat}", 3, per=Day("Europe/Stockholm")))
    for number in range(2):
        gate.decide(f"message:{number}", chat="<b")
    gate.decide("message:3", chat="chat-2")
    page = viewer.get("/counters").text
    assert "replies:&lt;b" in page
    assert page.count("<tr>") == 3
    assert "replies:chat-2" not in viewer.get("/counters?prefix=replies:%3Cb").text


def test_a_key_is_shown_with_what_belongs_to_it(s, operator, clock):
    gate = s.gate(Cap("replies:{chat}", 1, per=Day("Europe/Stockholm")))

    @s.once("message:{n}")
    def answer(n):
        run = semel.current_run()
        gate.decide(run.step("reply"), chat="c")
        return s.once.step("send", lambda: "sent")

    answer(1)
    answer(2)
    page = operator.get("/key?key=message:2").text
    assert "What belongs to it" in page
    assert "was refused: <bdi>" in page
    assert "/key?key=message%3A2%3Esend" in page
    assert browser_of(s).sign_in("vic").get("/key?key=message:1").status_code == 200
