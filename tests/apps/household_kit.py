"""A household on one store: its chat, its helper, and a Telegram that does as it is told."""

import itertools
import json
from datetime import UTC, datetime
from typing import Any, cast

import semel
from semel.apps.household import Household, Settings
from semel.apps.household.app import PATH
from semel.apps.tables import RESPONSE_COUNTERS
from semel.doors.inbox import Message
from semel.doors.queues.messages import DeliveryResult, Handler
from semel.periods import Day
from semel.testing import FakeClock
from tests.standins.telegram import TOKEN, Telegram

SECRET_TOKEN = "nobody-else-knows"
ZONE = "Europe/Stockholm"
CHAT, ANN, BO = -42, 11, 12


def awake() -> dict[str, str]:
    """Quiet hours that are not now, for what runs by the machine's own clock; nor is midnight near."""
    now = datetime.now(UTC)
    zone = f"Etc/GMT{now.hour - 12:+d}"  # where it is noon; west is + there
    return {"zone": zone, "quiet_from": "22:00", "quiet_to": "07:00"}


def update(number: int, text: str | None = None, **more: Any) -> dict[str, Any]:
    """A new message as Telegram tells of it: https://core.telegram.org/bots/api#update."""
    chat, user = more.pop("chat", CHAT), more.pop("user", ANN)
    kind = more.pop("kind", "message")
    message = {
        "message_id": more.pop("message", number),
        "from": {"id": user, "is_bot": False, "first_name": "Ann"},
        "chat": {"id": chat, "type": "group" if chat < 0 else "private", "title": "Home"},
        "date": int(more.pop("at", 1_700_046_000)),
        **({} if text is None else {"text": text}),
        **more,
    }
    return {"update_id": 900_000 + number, kind: message}


class Box:
    """An inbox whose messages the test takes out by hand."""

    name = "household"

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def record_key(self, key: str) -> str:
        return key

    def put(self, *messages: Message) -> None:
        self.messages += messages

    async def aput(self, *messages: Message) -> None:
        self.put(*messages)


class Home:
    """One household, and what is known of it."""

    def __init__(self, s: semel.Semel, clock: FakeClock, telegram: Telegram, **settings: Any) -> None:
        self.s, self.clock, self.telegram = s, clock, telegram
        self.box = cast("Any", Box())
        chosen: dict[str, Any] = {
            "bot_token": TOKEN,
            "telegram_url": telegram.url,
        } | settings
        self.app = Household(s, self.box, Settings(secret_token=SECRET_TOKEN, **chosen))
        self._numbers = itertools.count(1)

    def post(self, body: Any, secret: str = SECRET_TOKEN) -> Any:
        """A delivery at the helper's door."""
        headers = {"X-Telegram-Bot-Api-Secret-Token": secret}
        return self.app.hooks[PATH].receive(headers, json.dumps(body).encode())

    def say(self, text: str, **more: Any) -> int:
        """Somebody writes: the number of the message."""
        number = next(self._numbers)
        assert self.post(update(number, text, **{"at": self.clock.now(), **more})).status == 200
        return number

    def work(self) -> list[DeliveryResult]:
        """Handle what waits, as a worker does; what has to come again waits on."""
        handler: Handler[Message] = Handler(
            self.s, self.app.handle, key=lambda message: message.key, door="test", **self.app.worker_options
        )
        waiting, self.box.messages = self.box.messages, []
        taken = [(message, handler.take(message)) for message in waiting]
        self.box.messages = [message for message, one in taken if one.returns]
        return [one for _, one in taken]

    def tell(self, text: str, **more: Any) -> DeliveryResult:
        """Somebody writes, and it is handled."""
        self.say(text, **more)
        return self.work()[-1]

    def charged(self, chat: int = CHAT) -> int:
        """How many replies count for this day."""
        return self.s.counters.on(RESPONSE_COUNTERS).look(str(chat), per=Day(ZONE)).used

    def activities(self, chat: int = CHAT) -> list[Any]:
        return list(self.app.activities.list(str(chat)).entries)

    def trace(self, chat: int = CHAT) -> list[dict[str, Any]]:
        return [entry.body for entry in self.s.journal.list(f"household:{chat}").entries]

    def close(self) -> None:
        self.app.close()
        self.s.close()
