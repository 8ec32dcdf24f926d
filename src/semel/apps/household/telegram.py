"""Telegram's Bot API: sending a message.

https://core.telegram.org/bots/api#sendmessage. It takes no idempotency key, and cannot be asked afterwards
what was sent: where its answer is lost, only a person in the chat can tell.
"""

import logging
import re
from typing import Any, Final

import httpx

from semel.apps.client import RemoteClient, RequestRefused, Unavailable, retry_after_header
from semel.apps.household.rate_limiter import TelegramRateLimiter, TooFast
from semel.apps.household.settings import Settings
from semel.core.clock import Clock

# After these nothing was sent, for certain.
NOT_SENT: Final = (RequestRefused, Unavailable, TooFast)

# "1-4096 characters"; counted as Telegram counts elsewhere, in UTF-16, which is never too many.
LONGEST: Final = 4096

BOT: Final = re.compile(r"/bot\d+:[^/\s\"']+")


class TokenFilter(logging.Filter):
    """Takes the token out of what httpx logs of every request: it is a part of Telegram's addresses."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask it, and let the rest pass."""
        text = record.getMessage()
        if BOT.search(text):
            record.msg, record.args = BOT.sub("/bot***", text), None
        return True


TOKEN_FILTER: Final = TokenFilter()


class Bot:
    """A bot that writes to chats."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        logging.getLogger("httpx").addFilter(TOKEN_FILTER)
        self._rate_limiter = TelegramRateLimiter(clock)
        self._client = RemoteClient(
            "telegram",
            f"{settings.telegram_url.rstrip('/')}/bot{settings.bot_token}",
            retry_after=_retry_after,
            timeout=settings.telegram_timeout,
            # The inbox tries again, and the gate is asked anew: by then it may be night.
            attempts=1,
        )

    def send(self, chat: int, text: str, reply_to: int) -> int:
        """Write to a chat: the number of the message there."""
        self._rate_limiter.wait(chat)
        asked = {
            "chat_id": chat,
            "text": cut(text),
            # Somebody may have deleted the message meanwhile.
            "reply_parameters": {"message_id": reply_to, "allow_sending_without_reply": True},
        }
        answer: dict[str, Any] = self._client.call("POST", "/sendMessage", json=asked).json()
        number: int = answer["result"]["message_id"]
        return number

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()


def cut(text: str) -> str:
    """As much of a text as one message holds."""
    units = text.encode("utf-16-le", "replace")
    if len(units) <= 2 * LONGEST:
        return text
    return units[: 2 * (LONGEST - 1)].decode("utf-16-le", "ignore") + "…"


def _retry_after(response: httpx.Response) -> float | None:
    """After how many seconds to come again, which Telegram documents in the body of a 429."""
    # https://core.telegram.org/bots/api#responseparameters
    try:
        return float(response.json()["parameters"]["retry_after"])
    except (ValueError, TypeError, KeyError):
        return retry_after_header(response)
