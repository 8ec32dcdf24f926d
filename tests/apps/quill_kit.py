"""Quill on one store: deliveries as Aloware and HubSpot send them, and an inbox that is emptied by hand."""

import base64
import hmac
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

import semel
from semel.apps.client import AnswerLost, Unavailable
from semel.apps.quill import Quill, Settings
from semel.apps.quill.powerbi import create_dataset
from semel.apps.quill.schema import Fact
from semel.doors.inbox import Message, WaitingMessage
from semel.doors.queues.messages import DeliveryResult, Handler
from semel.doors.webhooks import WebhookResponse
from semel.testing import FakeClock
from tests.standins import powerbi

TOKEN, SECRET = "a-token-of-aloware", "a secret of HubSpot's"
ADDRESS = "https://quill.test"
ALOWARE, HUBSPOT = "/webhooks/aloware", "/webhooks/hubspot"

# 14 November 2023, 22:13:20 UTC: FakeClock's beginning.
AT = 1_700_000_000.0


def call(number: int, event: str = "OutboundPhoneCall-DispositionCompleted", **more: Any) -> dict[str, Any]:
    """What Aloware sends about a call, as those who receive it have published it."""
    contact = {
        "name": "Ada Lovelace",
        "phone_number": "+14155550123",
        "email": "ada@example.org",
        "timezone": more.pop("timezone", None),
    }
    body = {
        "id": number,
        "type": 1,
        "direction": 2,
        "user_id": 123260,
        "owner_id": 123260,
        "contact_id": 55,
        "lead_number": "+14155550123",
        "talk_time": 63,
        "created_at": "2023-11-14 22:13:20",
        "updated_at": "2023-11-14 22:14:30",
        "contact": contact,
    }
    return {"event": event, "body": body | more}


def text(number: int, **more: Any) -> dict[str, Any]:
    return call(number, "OutboundSMS-DispositionSent", type=2, body="see you soon", **more)


def creation(number: int, kind: str = "0-49", **more: Any) -> dict[str, Any]:
    """One event of a HubSpot batch: https://developers.hubspot.com/docs/api/webhooks."""
    return {
        "eventId": number,
        "subscriptionId": 234567,
        "portalId": 12345678,
        "appId": 987654,
        "occurredAt": int(AT * 1000) + number,
        "subscriptionType": "object.creation",
        "attemptNumber": 0,
        "objectId": number,
        "objectTypeId": kind,
        "changeFlag": "CREATED",
        "changeSource": "CRM_UI",
        "sourceId": "userId:45678",
    } | more


def bearer(body: Any, token: str = TOKEN) -> tuple[dict[str, str], bytes]:
    """A delivery of Aloware's."""
    return {"Authorization": f"Bearer {token}"}, json.dumps(body).encode()


def signed(events: Any, now: float, secret: str = SECRET, url: str = ADDRESS + HUBSPOT) -> Any:
    """A delivery of HubSpot's."""
    body, sent = json.dumps(events).encode(), str(int(now * 1000))
    digest = hmac.digest(secret.encode(), f"POST{url}".encode() + body + sent.encode(), "sha256")
    signature = base64.b64encode(digest).decode()
    return {"X-HubSpot-Request-Timestamp": sent, "X-HubSpot-Signature-v3": signature}, body


class Box:
    """An inbox whose messages the test takes out by hand."""

    name = "quill"

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.full: Exception | None = None

    def put(self, *messages: Message) -> None:
        if self.full is not None:
            raise self.full
        # As they come back: through JSON.
        self.messages += [Message(one.key, json.loads(json.dumps(one.body)), one.group) for one in messages]

    async def aput(self, *messages: Message) -> None:
        self.put(*messages)

    def record_key(self, key: str) -> str:
        return key

    def others(self, message: Message, *, seconds: float = 60.0) -> Iterator[list[WaitingMessage]]:
        yield []

    def worker(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def settle(self, others: Any) -> None:
        """There are none."""

    def give_back(self, others: Any, seconds: float = 0.0) -> None:
        """There are none."""

    waiting = survey = count = dead = redrive = redrive_where = close = worker


class Wall:
    """A sink that remembers what was posted, and fails as it is told to."""

    most = 10_000

    def __init__(self, *, repeats: bool = False) -> None:
        self.repeats = repeats
        self.steps: list[str] = []
        self.rows: list[str] = []
        self.failures: list[BaseException] = []
        """What the next posts raise; what was lost is posted all the same."""
        self.before: Any = lambda events: None

    def check(self) -> None:
        """It takes whatever comes."""

    def ensure(self, facts: Sequence[Fact]) -> None:
        self.steps.append(f"ensure {len(facts)}")

    def post(self, facts: Sequence[Fact]) -> None:
        self.before(facts)
        self.steps.append(f"post {len(facts)}")
        failure = self.failures.pop(0) if self.failures else None
        if failure is None or isinstance(failure, AnswerLost):
            self.rows += [fact.key for fact in facts]
        if failure is not None:
            raise failure

    def close(self) -> None:
        self.steps.append("close")


def down(retry_after: float | None = None) -> Unavailable:
    return Unavailable("Power BI", "answers 503", 503, retry_after)


def lost() -> AnswerLost:
    return AnswerLost("Power BI", "may have carried out the request")


class Office:
    """Quill, and what comes in and goes out."""

    def __init__(self, s: semel.Semel, clock: FakeClock, folder: Path, sink: Any = None, **more: Any) -> None:
        self.s, self.clock, self.box = s, clock, Box()
        chosen = {"aloware_token": TOKEN, "hubspot_secret": SECRET, "star": str(folder / "quill.db")} | more
        self.app = Quill(s, self.box, Settings(**chosen))
        if sink is not None:
            self.app.sink.close()
            self.app.sink = sink
        self._numbers = itertools.count(1)

    def deliver(self, *events: Any) -> WebhookResponse:
        """A batch of HubSpot's."""
        headers, body = signed(list(events), self.clock.now())
        return self.app.hooks[HUBSPOT].receive(headers, body, url=ADDRESS + HUBSPOT)

    def ring(self, body: Any, token: str = TOKEN) -> WebhookResponse:
        """One event of Aloware's."""
        return self.app.hooks[ALOWARE].receive(*bearer(body, token), url=ADDRESS + ALOWARE)

    def work(self) -> list[DeliveryResult]:
        """Handle what waits, as a worker does; what has to come again waits on."""
        handler: Handler[Message] = Handler(
            self.s, self.app.handle, key=lambda message: message.key, door="inbox", **self.app.worker_options
        )
        waiting, self.box.messages = self.box.messages, []
        taken = [(message, handler.take(message)) for message in waiting]
        self.box.messages = [message for message, one in taken if one.returns]
        return [one for _, one in taken]

    def status(self, key: str) -> str | None:
        record = self.s.ledger.get(key)
        return None if record is None else record.status.value

    def close(self) -> None:
        self.app.close()


def told(answer: WebhookResponse) -> dict[str, int]:
    """The counts of an answer, without those that are zero."""
    assert answer.status == 200, answer
    return {name: count for name, count in json.loads(answer.body).items() if count}


def dataset_at(there: powerbi.PowerBI) -> dict[str, str]:
    """The settings of a dataset that was made at the stand-in, which has forgotten how."""
    settings = {
        "powerbi_tenant": powerbi.TENANT,
        "powerbi_client": powerbi.CLIENT,
        "powerbi_secret": powerbi.SECRET,
        "powerbi_workspace": powerbi.WORKSPACE,
        "powerbi_url": there.url,
        "powerbi_login": there.url,
    }
    settings["powerbi_dataset"] = create_dataset(msgspec.convert(settings, Settings))
    there.reset()
    return settings
