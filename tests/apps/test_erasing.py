"""Erasing a person from each application: nothing of him is left, and what was done is known to be done."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

import semel
from semel.apps.configuration import Configuration, store_of
from semel.apps.household import Household
from semel.apps.household import Settings as HouseholdSettings
from semel.apps.household.app import PATH as TELEGRAM
from semel.apps.keyfile import secrets_of
from semel.apps.ledgers import binding
from semel.apps.probe import Probe
from semel.apps.probe import Settings as ProbeSettings
from semel.apps.quill import Quill
from semel.apps.quill import Settings as QuillSettings
from semel.apps.quill.events import person_of
from semel.apps.support import Settings as SupportSettings
from semel.apps.support import Support
from semel.apps.support.app import PATH as RICHPANEL
from semel.doors.inbox import Inbox, Message, open_inbox
from semel.testing import FakeClock
from tests.apps.household_kit import awake
from tests.apps.kit import SECRET, Place, place  # noqa: F401
from tests.apps.quill_kit import ALOWARE, TOKEN, bearer, call, down
from tests.doors.inbox_kit import running
from tests.servers.running import until
from tests.state import raw

NAME, PHONE, EMAIL = "Ann Planted", "+46 70 123 45 67", "Ann.Planted@example.com"
PLANTED = (NAME, PHONE, EMAIL, EMAIL.lower(), "+46701234567")
WHY: Any = {"by": "ops-person", "why": "request no. 17"}


@pytest.fixture
def ledger(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], semel.Semel]:  # noqa: F811
    """The ledger of an application, unencrypted, so that what is left can be read."""
    for variable, value in place.environ.items():
        monkeypatch.setenv(variable, value)
    configuration = Configuration({"semel": {"url": place.url, "env": place.env, "secret": SECRET}})
    store = store_of(configuration)
    return lambda app: binding(app, store, secrets_of(store, configuration)).open(encryption=None)


@pytest.fixture
def stored(place: Place) -> Callable[[], str]:  # noqa: F811
    """Everything that stands in the store, as its own tools show it."""
    if place.name == "sqlite":
        return lambda: raw.text(SimpleNamespace(name="sqlite", url=lambda: place.url))
    return lambda: raw.text(SimpleNamespace(name="dynamodb", server=place._dynamodb, env=place.env))


def left(text: str) -> list[str]:
    return [one for one in PLANTED if one in text]


class Runs:
    """An application on a store, its inbox, and which messages its worker was given."""

    def __init__(self, s: semel.Semel, app: Any, inbox: Inbox) -> None:
        self.s, self.app, self.inbox, self.handled = s, app, inbox, list[str]()
        self.fails = ""

    def handle(self, message: Message) -> Any:
        self.handled.append(message.key)
        if message.key == self.fails:
            raise ValueError(f"{NAME} cannot be helped")
        return self.app.handle(message)

    def work(self) -> None:
        """Handle what waits."""
        options = {"backoff": lambda _: 0.0, **self.app.worker_options, "on_error": {ValueError: "keep"}}
        with running(self.inbox.worker(self.handle, poll=0.01, **options)):
            assert until(lambda: self.inbox.waiting() == 0)

    def put(self, path: str, headers: dict[str, str], payload: Any) -> None:
        answer = self.app.hooks[path].receive(headers, json.dumps(payload).encode(), url=f"https://x{path}")
        assert answer.status == 200, answer.body


@pytest.fixture
def support(ledger: Callable[[str], semel.Semel]) -> Iterator[Runs]:
    with ledger("support") as s:
        inbox = open_inbox(s, "support", shared=True)
        settings = SupportSettings(webhook_token="hook-token-of-the-tests", excerpt=True)
        with closing(Support(s, inbox, settings)) as app:
            yield Runs(s, app, inbox)


def write(runs: Runs, message: str, **more: Any) -> None:
    payload = {
        "conversation_id": more.pop("conversation", "c-1"),
        "message_id": message,
        "text": f"Where is my order? {NAME}, {PHONE}, {EMAIL}",
        "email": EMAIL,
    }
    runs.put(RICHPANEL, {"Authorization": "Bearer hook-token-of-the-tests"}, payload | more)


@pytest.mark.seed("R7")
def test_support_forgets_a_customer_and_what_waits_of_him(support: Runs, stored: Callable[[], str]) -> None:
    """Handled, failed for good and waiting; another customer's conversation is left as it is."""
    s = support.s
    support.fails = "evt:rp:c-1:m-2"
    write(support, "m-1")
    write(support, "m-2")
    write(support, "o-1", conversation="c-2", email="bo@example.com", text="Where is my order? Bo Other")
    support.work()
    write(support, "m-3")
    assert left(stored())
    seen = s.ops.erase(EMAIL, **WHY, preview=True)
    assert {"ledger", "support-state", "support-audit", "journal", "inbox"} == set(seen.tables)
    assert left(stored())
    done = s.ops.erase(EMAIL, **WHY)
    assert (done.tables, done.running, done.skipped, done.whole) == (seen.tables, (), (), True)
    assert done.tables["inbox"] == 2
    assert left(stored()) == []
    assert s.ops.erase(EMAIL, **WHY).tables == {}
    assert "Bo Other" in stored()
    before = list(support.handled)
    for message in ("m-1", "m-2", "m-3"):
        write(support, message)
    support.work()
    assert support.handled == before, "duplicates are known, and what waited is never handled"
    support.inbox.redrive()
    assert [entry.body["action"] for entry in s.ops.journal().entries] == ["erase"] * 4
    assert NAME not in str(s.ops.journal().entries)


def test_a_customer_is_known_by_phone_by_id_or_by_the_conversation(support: Runs, stored: Any) -> None:
    told: dict[str, Any] = {
        "+46701234567": {"phone": PHONE},
        "cust-9": {"customer": {"id": "cust-9"}},
        "c-4": {"conversation": "c-4"},
    }
    for number, (person, more) in enumerate(told.items()):
        write(support, f"m-{number}", **{"email": "", "conversation": "c-1"} | more)
        support.work()
        assert NAME in stored()
        assert support.s.ops.erase(person, **WHY).rows > 0
        assert left(stored()) == []


@pytest.fixture
def household(ledger: Callable[[str], semel.Semel]) -> Iterator[Runs]:
    with ledger("household") as s:
        inbox = open_inbox(s, "household", shared=True)
        hours: Any = awake()
        settings = HouseholdSettings(secret_token="nobody-else-knows", **hours)
        with closing(Household(s, inbox, settings)) as app:
            yield Runs(s, app, inbox)


def say(runs: Runs, number: int, user: int = 4711, text: str = "") -> None:
    said = text or f"I cleaned the kitchen and did the dishes. {NAME}, {PHONE}, {EMAIL}"
    message = {
        "message_id": number,
        "date": int(runs.s.clock.now()),
        "chat": {"id": -42},
        "from": {"id": user},
        "text": said,
    }
    update = {"update_id": 9000 + number, "message": message}
    runs.put(TELEGRAM, {"X-Telegram-Bot-Api-Secret-Token": "nobody-else-knows"}, update)


def test_the_household_forgets_a_member_and_what_waits_of_him(
    household: Runs, stored: Callable[[], str]
) -> None:
    s = household.s
    say(household, 1)
    say(household, 2, user=12, text="I did the laundry. Bo Other")
    household.work()
    say(household, 3)
    assert left(stored()) == [NAME, PHONE, EMAIL]
    done = s.ops.erase("4711", **WHY)
    assert {"ledger", "household-messages", "household-activities", "journal", "inbox"} == set(done.tables)
    assert (done.running, left(stored())) == ((), [])
    assert "Bo Other" in stored()
    for number in (1, 3):
        say(household, number)
    household.work()
    assert sorted(household.handled) == ["TELEGRAM:9001", "TELEGRAM:9002"]
    assert left(stored()) == []


class Down:
    """Power BI, which is away."""

    repeats, most = True, 10

    def check(self) -> None:
        """Nothing is known to be wrong."""

    def ensure(self, _facts: Any) -> None:
        raise down()

    post = ensure

    def close(self) -> None:
        """There is nothing to let go of."""


@pytest.fixture
def quill(ledger: Callable[[str], semel.Semel], tmp_path: Any) -> Iterator[Runs]:
    with ledger("quill") as s:
        inbox = open_inbox(s, "quill", shared=True)
        settings = QuillSettings(aloware_token=TOKEN, star=str(tmp_path / "quill.db"))
        with closing(Quill(s, inbox, settings)) as app:
            yield Runs(s, app, inbox)


def ring(runs: Runs, number: int, **contact: Any) -> None:
    who = {"name": NAME, "phone_number": PHONE, "email": EMAIL} | contact
    runs.put(ALOWARE, *[bearer(call(number, contact=who))[0], call(number, contact=who)])


def test_quill_forgets_a_contact_and_what_waits_of_him(quill: Runs, stored: Callable[[], str]) -> None:
    """By e-mail address where an event has one; of a call that waits not even its number is posted later."""
    ring(quill, 1)
    sink, quill.app.sink = quill.app.sink, Down()
    ring(quill, 2)
    ring(quill, 3, email="bo@example.com")
    quill.app.sink = sink
    assert left(stored()) == [], "it keeps nothing personal by itself"
    done = quill.s.ops.erase(EMAIL.upper(), **WHY)
    assert done.tables.keys() == {"ledger", "inbox"}
    assert done.tables["inbox"] == 1
    quill.work()
    ring(quill, 1)
    ring(quill, 2)
    quill.work()
    assert quill.handled == ["ALOWARE:3"]
    assert quill.s.ops.erase(EMAIL, **WHY).tables == {}


@pytest.mark.parametrize(
    ("source", "event", "person"),
    [
        ("aloware", {"body": {"contact": {"phone_number": PHONE, "id": 5}}}, PHONE),
        ("aloware", {"body": {"contact_id": 55}}, "aloware:55"),
        ("aloware", {"body": "?"}, ""),
        ("hubspot", {"objectId": 501}, "hubspot:501"),
        ("hubspot", {"objectId": 501, "propertyName": "email", "propertyValue": EMAIL}, EMAIL),
        ("hubspot", {"objectId": 501, "propertyName": "city", "propertyValue": "Lund"}, "hubspot:501"),
        ("hubspot", {"objectId": {}}, ""),
    ],
    ids=str,
)
def test_whom_an_event_is_about(source: str, event: Any, person: str) -> None:
    assert person_of(source, event) == person


def test_the_probe_names_nobody(ledger: Callable[[str], semel.Semel]) -> None:
    """What is sent through it may be about anybody: it cannot know, and its page says so."""
    with ledger("probe") as s, closing(Probe(s, None, ProbeSettings(open=True))) as app:
        body = json.dumps({"address": "q", "messages": [NAME]}).encode()
        headers = {"Idempotency-Key": "k-1"}
        assert app.hooks["/messages/produce"].receive(headers, body).status == 200
        assert s.ops.erase(NAME, **WHY).tables == {}


def test_without_a_secret_nobody_is_named_and_everything_works(clock: FakeClock) -> None:
    with semel.connect("memory:", clock=clock) as s:
        inbox = open_inbox(s, "household", shared=True)
        hours: Any = awake()
        settings = HouseholdSettings(secret_token="nobody-else-knows", **hours)
        with closing(Household(s, inbox, settings)) as app:
            runs = Runs(s, app, inbox)
            say(runs, 1)
            runs.work()
            assert runs.handled == ["TELEGRAM:9001"]
            assert all(record.subject is None for record in s.ledger.list().records)
