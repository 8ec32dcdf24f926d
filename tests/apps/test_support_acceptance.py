"""Support as it runs: a service that is killed, deliveries that come twice, a Richpanel that fails."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

import semel
from semel.apps.support.app import PATH
from semel.apps.tables import SUPPORT_AUDIT, SUPPORT_STATE
from semel.state.journal import Entry
from tests.apps.kit import Awaited, Place, Service, found, place  # noqa: F401
from tests.servers.running import until
from tests.standins.richpanel import API_KEY, SHOP_TOKEN, Richpanel, Shop
from tests.state import raw

TOKEN, READER = "hook-token-of-the-tests", "who-reads-conversations"
EMAIL, PHONE, TRACKING = "ann.planted@example.com", "070 123 45 67", "1Z999AA10123456784"
TALKS = [f"talk-{number}" for number in range(6)]
ORDERS = {talk: f"90876{number}4" for number, talk in enumerate(TALKS)}
UNKNOWN = "nobody knows"


def said(talk: str) -> list[str]:
    """What a customer writes, one message after the other."""
    return [
        f"Where is my order? Write to {EMAIL}, or call {PHONE}.",
        f"My order number is #{ORDERS[talk]}.",
        f"And I want a refund for parcel {TRACKING}.",
        "Thank you!",
    ]


def settings(at: Place, richpanel: Richpanel, shop: Shop) -> str:
    text = at.toml("support")
    if "[inbox.support]" not in text:
        text += "[inbox.support]\n"
    chosen = {
        "webhook_token": TOKEN,
        "automation_enabled": True,
        "richpanel_key": API_KEY,
        "richpanel_url": richpanel.url,
        "richpanel_timeout": 0.5,
        "shopify_url": shop.url,
        "shopify_token": SHOP_TOKEN,
    }
    lines = ["lease = 1.5", "workers = 6", "[service]", 'log_level = "debug"']
    lines += ["[tokens.reader]", f'token = "{READER}"', 'scopes = ["apps:read"]']
    lines += ["[apps.support]", *[f"{name} = {json.dumps(value)}" for name, value in chosen.items()]]
    return text + "\n".join(lines) + "\n"


class House:
    """The service, the customers who write to it, and what its store has of them."""

    def __init__(self, service: Service, s: semel.Semel, richpanel: Richpanel) -> None:
        self.service, self.s, self.richpanel = service, s, richpanel
        self.client = httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"})
        self.settled = Awaited(self._is_settled)

    def write(self, talk: str, number: int) -> None:
        """One message of a conversation; Richpanel tells of it twice."""
        body = {
            "conversation_id": talk,
            "message_id": f"m{number}",
            "text": said(talk)[number],
            "email": EMAIL,
        }
        self.settled.add(f"evt:rp:{talk}:m{number}")
        for _ in range(2):
            answer = self.client.post(self.service.url + PATH, json=body)
            assert answer.json()["accepted"] == 1

    def _is_settled(self, key: str) -> bool:
        record = self.s.ledger.get(key)
        return record is not None and record.status is semel.Status.COMPLETED

    def handled(self, talk: str, number: int) -> dict[str, Any]:
        record = self.s.ledger.get(f"evt:rp:{talk}:m{number}")
        assert record is not None
        handled: dict[str, Any] = self.s.ledger.result(record)
        return handled

    def audit(self, talk: str) -> tuple[Entry, ...]:
        return self.s.journal.on(SUPPORT_AUDIT).list(talk).entries

    def done(self, talk: str) -> list[str]:
        """The keys of actions that the ledger knows as done."""
        after, keys = None, []
        while True:
            page = self.s.ledger.list(after=after)
            keys += [one.key for one in page.records if one.status is semel.Status.COMPLETED]
            if (after := page.after) is None:
                return sorted(key for key in keys if key.startswith("act:") and key.split(":")[2] == talk)


@pytest.fixture
def house(place: Place, tmp_path: Path) -> Iterator[House]:  # noqa: F811
    # More requests than Richpanel takes in so short a time; what it does then has a test of its own.
    with Richpanel(limit=10_000) as richpanel, Shop() as shop, place.connect("support") as s:
        for number in ORDERS.values():
            shop.add(number, EMAIL)
        shop.fail(status=503)
        with Service(tmp_path, settings(place, richpanel, shop), place.environ) as service:
            made = House(service, s, richpanel)
            with made.client:
                yield made


@pytest.mark.seed("R3", "R5", "R7", "R8", "R9", "R10")
@pytest.mark.proof("restarts", 1)
def test_each_reply_at_most_once_nothing_lost_and_the_audit_complete(house: House, place: Place) -> None:  # noqa: F811
    """Every delivery comes twice, the service is killed in the middle, and Richpanel fails in every way."""
    richpanel = house.richpanel
    richpanel.fail(next=2, status=500)
    richpanel.fail(next=2, status=429, retry_after=1)
    richpanel.lose_reply(sent=True, hang=2)
    richpanel.lose_reply(sent=False, hang=2)
    for number in (0, 1):
        for talk in TALKS:
            house.write(talk, number)
    assert until(lambda: len(richpanel.replies) >= 3)
    house.service.restart()  # by SIGKILL, in the middle of it
    for talk in TALKS:
        house.write(talk, 2)
    assert until(house.settled), house.service.log[-4000:]
    house.s.switches.turn("safe_mode", on=True)
    for talk in TALKS:
        house.write(talk, 3)
    assert until(house.settled), house.service.log[-4000:]

    in_doubt = [talk for talk in TALKS for number in (0, 1) if _doubtful(house, talk, number)]
    assert in_doubt
    replies = Counter(richpanel.replies)
    assert set(replies.values()) == {1}
    for talk in TALKS:
        _check_talk(house, talk, in_doubt.count(talk))
    _check_api(house, TALKS[0])
    house.service.stop()
    needles = {"e-mail": EMAIL, "phone": PHONE, "parcel": TRACKING, "a word": "refund for", "key": API_KEY}
    needles |= {f"order {talk}": number for talk, number in ORDERS.items()}
    assert found(needles, {"log": house.service.log, "store": _stored(place), **dict(place.files())}) == []


def _doubtful(house: House, talk: str, number: int) -> bool:
    handled = house.handled(talk, number)
    record = house.s.ledger.get(f"act:rp_reply:{talk}:m{number}")
    held = record is not None and record.status is semel.Status.UNKNOWN
    assert held == handled["refused"].startswith(UNKNOWN)
    return held


def _check_talk(house: House, talk: str, in_doubt: int) -> None:
    handled = [house.handled(talk, number) for number in range(4)]
    sent = [one["replied"] for one in handled if one["replied"] is not None]
    got = [text for of, text in house.richpanel.replies if of == talk]
    # What the ledger knows as sent was, in this order; what is in doubt may have been.
    assert len(sent) <= len(got) <= len(sent) + in_doubt
    if not in_doubt:
        assert sent == ["ask_order_number", "order_status"]
        assert got[1] == f"Your order ending in {ORDERS[talk][-4:]} has been shipped."
    assert (handled[2]["intent"], handled[3]["mode"]) == ("returns", "route_only")
    assert ("returns" in [team for of, team in house.richpanel.assigned if of == talk]) is True

    entries = house.audit(talk)
    succeeded = sorted(str(entry.key) for entry in entries if entry.body["result"] == "success")
    assert succeeded == house.done(talk)
    refused = [one["refused"] for one in handled if one["refused"]]
    told = [entry.body["result"] for entry in entries if entry.body["action_type"] == "auto_reply"]
    assert {f"fail: {why}" for why in refused} <= set(told)

    state = house.s.documents.on(SUPPORT_STATE).get(talk)
    assert state is not None
    assert (state.version, state.value["last_processed_message_id"]) == (4, "m3")


def _check_api(house: House, talk: str) -> None:
    address = f"{house.service.url}/apps/support/conversations/{talk}"
    assert httpx.get(address).status_code == 401
    headers = {"Authorization": f"Bearer {READER}"}
    state = httpx.get(address, headers=headers).json()
    assert (state["conversation_id"], state["last_processed_message_id"]) == (talk, "m3")
    actions = httpx.get(f"{address}/audit", headers=headers).json()["actions"]
    assert [one["ts_action_id"] for one in actions] == [entry.id for entry in house.audit(talk)]


def _stored(at: Place) -> str:
    """Everything in DynamoDB, where the store is there."""
    query = parse_qs(urlsplit(at.url).query)
    if "endpoint" not in query:
        return ""
    return raw.text(SimpleNamespace(name="dynamodb", server=query["endpoint"][0], env=at.env))
