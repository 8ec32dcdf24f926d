"""How fast may be sent: Telegram's published limits, kept on our side.

https://core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this: in one chat not more than one
message a second, in one group not more than 20 a minute, to all chats not more than about 30 a second. Each
process keeps them by itself; what several send together beyond that, Telegram refuses with 429.
"""

import threading
from collections import deque
from typing import Final

from semel.core.clock import Clock

# How many, in how many seconds.
IN_A_CHAT: Final = (1, 1.0)
IN_A_GROUP: Final = (20, 60.0)
TO_ALL: Final = (30, 1.0)

# So long a worker waits for its turn; what would have to wait longer is put off.
PATIENCE: Final = 3.0


class TooFast(Exception):
    """It is not the turn of this message yet: nothing was sent."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"a limit of Telegram's is reached: wait {retry_after:.0f} s")
        self.retry_after = retry_after


class TelegramRateLimiter:
    """Gives each message the moment from which it may be sent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._all: deque[float] = deque(maxlen=TO_ALL[0])
        self._chats: dict[int, deque[float]] = {}

    def wait(self, chat: int) -> None:
        """Return when a message to this chat may be sent; `TooFast` where that takes long."""
        with self._lock:
            now = self._clock.monotonic()
            turn = self._turn(chat, now)
            if turn - now > PATIENCE:
                raise TooFast(turn - now)
            self._all.append(turn)
            self._chats.setdefault(chat, deque(maxlen=IN_A_GROUP[0])).append(turn)
        if turn > now:
            self._clock.wait(threading.Event(), turn - now)

    def _turn(self, chat: int, now: float) -> float:
        # What is older than the longest limit counts no more.
        self._chats = {one: times for one, times in self._chats.items() if times[-1] > now - IN_A_GROUP[1]}
        here = self._chats.get(chat, deque())
        # The ids of groups are negative, those of persons are not.
        group = _turn(here, *IN_A_GROUP) if chat < 0 else 0.0
        return max(now, _turn(here, *IN_A_CHAT), _turn(self._all, *TO_ALL), group)


def _turn(times: deque[float], count: int, span: float) -> float:
    """When there will have been fewer than so many in so many seconds."""
    return times[-count] + span if len(times) >= count else 0.0
