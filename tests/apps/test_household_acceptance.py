"""The household's helper as it runs: it is killed, updates come twice, and Telegram fails."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

import semel
from semel.apps.tables import ACTIVITIES, MESSAGES, RESPONSE_COUNTERS
from semel.doors.inbox import open_inbox
from semel.periods import Day
from tests.apps.household_kit import ANN, SECRET_TOKEN, awake, update
from tests.apps.kit import Awaited, Place, Service, found, place  # noqa: F401
from tests.servers.running import until
from tests.standins.telegram import TOKEN, Telegram

AWAKE = awake()
CAP = 2
CHATS = range(-107, -100)
TOLD = ("Jag har diskat hos farmor Greta", "Hej", "I vacuumed at Greta's", "Tog ut soporna")
DONE = [number for number, text in enumerate(TOLD) if text != "Hej"]
BEGUN = 1_771_326_000
READER = "who-reads-what-was-done"


def settings(at: Place, telegram: Telegram) -> str:
    text = at.toml("household")
    if "[inbox.household]" not in text:
        text += "[inbox.household]\n"
    chosen = {
        "bot_token": TOKEN,
        "secret_token": SECRET_TOKEN,
        "telegram_url": telegram.url,
        "telegram_timeout": 0.5,
        "cap": CAP,
        **AWAKE,
    }
    lines = ["lease = 1.5", "workers = 8", "[service]", 'log_level = "debug"']
    lines += ["[tokens.reader]", f'token = "{READER}"', 'scopes = ["apps:read"]']
    lines += ["[apps.household]", *[f"{name} = {json.dumps(value)}" for name, value in chosen.items()]]
    return text + "\n".join(lines) + "\n"


class House:
    """The service, the chats that write to it, and what its store has of them."""

    def __init__(self, service: Service, s: semel.Semel, telegram: Telegram, queues: dict[str, Any]) -> None:
        self.service, self.s, self.telegram, self.queues = service, s, telegram, queues
        self.client = httpx.Client(headers={"X-Telegram-Bot-Api-Secret-Token": SECRET_TOKEN})
        self._numbers = itertools.count(1)
        self.updates: dict[tuple[int, int], str] = {}
        self.settled = Awaited(self._is_settled)
        """Whether everything that was written is handled, or laid aside."""

    def write(self, chat: int, number: int) -> None:
        """One message of a chat; Telegram tells of it twice."""
        message, at = number + 1, BEGUN + number
        told = update(next(self._numbers), TOLD[number], chat=chat, message=message, at=at)
        self.updates[chat, message] = f"TELEGRAM:{told['update_id']}"
        self.settled.add(self.updates[chat, message])
        for _ in range(2):
            answer = self.client.post(f"{self.service.url}/webhooks/telegram", json=told)
            assert answer.json()["accepted"] == 1

    def _is_settled(self, key: str) -> bool:
        record = self.s.ledger.get(key)
        return record is not None and record.status in (semel.Status.COMPLETED, semel.Status.FAILED)

    def dead(self) -> set[str]:
        """What is laid aside for a person to settle."""
        with closing(open_inbox(self.s, "household", **self.queues, shared=True)) as inbox:
            return {letter.key for letter in inbox.dead()}

    def outcome(self, key: str) -> dict[str, Any]:
        """What came of a message: what its record says, or that its reply is held."""
        record, send = self.s.ledger.get(key), self.s.ledger.get(f"{key}>send")
        if record is not None and record.status is semel.Status.COMPLETED:
            outcome: dict[str, Any] = self.s.ledger.result(record)
            return outcome
        return {"held": None if send is None else send.status}


@pytest.fixture
def house(place: Place, tmp_path: Any) -> Iterator[House]:  # noqa: F811
    with (
        Telegram() as telegram,
        place.connect("household") as s,
        Service(tmp_path, settings(place, telegram), place.environ) as service,
    ):
        queues: dict[str, Any] = {}
        if place.name != "sqlite":
            queues = dict(zip(("queue", "dead_letters"), place.queues("household"), strict=True))
        made = House(service, s, telegram, queues)
        with made.client:
            yield made


@pytest.mark.seed("H1", "H2", "H5", "H8")
@pytest.mark.proof("restarts", 1)
def test_each_activity_once_each_reply_at_most_once_and_none_lost(house, place):  # noqa: F811
    """Every update comes twice, the service is killed and started again, and Telegram fails in every way."""
    telegram = house.telegram
    telegram.fail(next=2, status=500)
    telegram.fail(next=2, status=429, retry_after=1)
    telegram.fail(next=1, hang=3)
    telegram.fail(next=1, hang=3, after_applying=True)
    for chat in CHATS:
        for number in (0, 1):
            house.write(chat, number)
    assert until(lambda: len(telegram.sent) >= 3)
    house.service.restart()  # by SIGKILL, in the middle of it
    for chat in CHATS:
        for number in (2, 3):
            house.write(chat, number)
    assert until(house.settled), house.service.log[-4000:]

    outcomes = {place: house.outcome(key) for place, key in house.updates.items()}
    sends = Counter((sent["chat_id"], sent["reply_to"]) for sent in telegram.sent)
    held = {one for one, outcome in outcomes.items() if "held" in outcome}
    day = Day(AWAKE["zone"])
    assert set(sends.values()) == {1}
    assert held
    assert all(outcomes[one]["held"] is semel.Status.UNKNOWN for one in held)
    for chat in CHATS:
        done = house.s.journal.on(ACTIVITIES).list(str(chat)).entries
        assert [entry.body["messageId"] for entry in done] == [number + 1 for number in DONE]
        assert [entry.id for entry in house.s.journal.on(MESSAGES).list(str(chat)).entries] == [1, 2, 3, 4]
        here = [number + 1 for number in DONE]
        sent = {number for number in here if "sent" in outcomes[chat, number]}
        in_doubt = {number for number in here if (chat, number) in held}
        refused = {number for number in here if "refused" in outcomes[chat, number]}
        assert sent | in_doubt | refused == set(here)
        assert sent <= {number for of, number in sends if of == chat} <= sent | in_doubt
        assert {outcomes[chat, number]["refused"] for number in refused} <= {f"cap:{chat}"}
        charged = house.s.counters.on(RESPONSE_COUNTERS).look(str(chat), per=day).used
        assert charged == len(sent | in_doubt) == CAP
    assert house.dead() == {house.updates[one] for one in held}

    answer = httpx.get(
        f"{house.service.url}/apps/household/users/{ANN}/activities",
        params={"limit": 500},
        headers={"Authorization": f"Bearer {READER}"},
    )
    assert len(answer.json()["activities"]) == len(DONE) * len(CHATS)
    house.service.stop()
    needles = {"a text": "Greta", "the bot's token": TOKEN.partition(":")[2], "the secret": SECRET_TOKEN}
    assert found(needles, {"log": house.service.log}) == []
