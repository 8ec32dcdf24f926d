"""Telegram's Bot API as far as a bot that replies needs it: sendMessage, with its published limits.

https://core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this has them: in one chat about
one message a second, in one group no more than 20 a minute, to all chats about 30 a second. By
https://core.telegram.org/bots/api#sendmessage a text has 1 to 4096 characters. The shape of an error is in
#making-requests there, and in #responseparameters `retry_after`, the seconds to wait after too many.
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.standins.base import Failure, Reply, Request, StandIn, serve

TOKEN = "7000000000:AAE-stand-in-token-of-no-bot"

# How many, in how many seconds, to whom.
IN_A_CHAT = (1, 1.0)
IN_A_GROUP = (20, 60.0)
TO_ALL = (30, 1.0)

# A client paces what it sends, and what arrives is spaced by that and by the way it took.
JITTER = 0.1


class Telegram(StandIn):
    """One bot's Telegram; `sent` is what its people have read."""

    def __init__(
        self, port: int = 0, *, token: str = TOKEN, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(port)
        self.sent: list[dict[str, Any]] = []
        self.unknown: set[int] = set()
        self.kicked: set[int] = set()
        self._token = token
        self._clock = clock
        self._times: dict[int, list[float]] = {}
        self._flooded = 0

    def reset(self) -> None:
        with self.lock:
            super().reset()
            self.sent.clear()
            self._times.clear()

    def told(self, failure: Failure) -> Failure:
        """As Telegram says it: what went wrong, and how long to wait, is in the body."""
        if failure.status is not None and failure.body is None:
            failure.body = _said(failure.status, retry_after=failure.retry_after).body
        failure.retry_after = None
        return failure

    def answer(self, request: Request) -> Reply:
        token, _, method = request.path.removeprefix("/bot").partition("/")
        if token != self._token:
            return _said(401)
        if method != "sendMessage" or request.method != "POST":
            return _said(404)
        return self._send(request.json)

    def _send(self, asked: Mapping[str, Any]) -> Reply:
        chat, text = asked["chat_id"], asked.get("text", "")
        if chat in self.unknown:
            return _said(400, "Bad Request: chat not found")
        if chat in self.kicked:
            return _said(403, "Forbidden: bot was kicked from the group chat")
        if not text:
            return _said(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) > 2 * 4096:
            return _said(400, "Bad Request: message is too long")
        wait = self._flood(chat)
        if wait > 0:
            self._flooded += 1
            return _said(429, retry_after=math.ceil(wait))
        number = len(self.sent) + 1
        self.sent.append({"message_id": number, "chat_id": chat, "text": text, **_quoted(asked)})
        kind = "group" if chat < 0 else "private"
        result = {
            "message_id": number,
            "date": int(time.time()),
            "chat": {"id": chat, "type": kind},
            "text": text,
        }
        return Reply(200, {"ok": True, "result": result})

    @property
    def flooded(self) -> int:
        """How often a limit was exceeded."""
        return self._flooded

    def _flood(self, chat: int) -> float:
        """After how many seconds this chat may be written to again; what may be sent now is counted."""
        now = self._clock()
        everywhere = sorted(each for times in self._times.values() for each in times)
        here = self._times.setdefault(chat, [])
        waits = [_wait(here, now, *IN_A_CHAT), _wait(everywhere, now, *TO_ALL)]
        if chat < 0:
            waits.append(_wait(here, now, *IN_A_GROUP))
        if max(waits) <= 0:
            here.append(now)
        return max(waits)

    def control(self, word: str, request: Request) -> Reply:
        """`sent` tells what people have read; `kick` and `unknown` name chats that cannot be written to."""
        with self.lock:
            match word:
                case "sent":
                    return Reply(200, {"sent": self.sent, "flooded": self.flooded})
                case "kick":
                    self.kicked.update(request.json)
                case "unknown":
                    self.unknown.update(request.json)
                case _:
                    return super().control(word, request)
        return Reply(204)


def _wait(times: list[float], now: float, count: int, span: float) -> float:
    """Seconds until there were fewer than `count` in the last `span`."""
    recent = times[-count:]
    return recent[0] + span - JITTER - now if len(recent) == count else 0.0


def _quoted(asked: Mapping[str, Any]) -> dict[str, Any]:
    quoted = asked.get("reply_parameters")
    return {} if quoted is None else {"reply_to": quoted["message_id"]}


WORDS = {
    401: "Unauthorized",
    403: "Forbidden: bot was kicked from the group chat",
    404: "Not Found",
    500: "Internal Server Error",
    502: "Bad Gateway",
}


def _said(status: int, description: str = "", *, retry_after: float | str | None = None) -> Reply:
    body: dict[str, Any] = {"ok": False, "error_code": status}
    if status == 429:
        wait = 1 if retry_after is None else retry_after
        return Reply(
            status,
            {
                **body,
                "description": f"Too Many Requests: retry after {wait}",
                "parameters": {"retry_after": wait},
            },
        )
    return Reply(status, {**body, "description": description or WORDS.get(status, "Bad Request")})


if __name__ == "__main__":
    serve(lambda port: Telegram(port, token=os.environ.get("TELEGRAM_TOKEN", TOKEN)))
