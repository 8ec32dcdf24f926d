"""The Dramatiq door: a message that is delivered or sent again has its effect once.

@dramatiq.actor(throws=FINAL)
@once(s, "charge:{order_id}")
def charge(order_id: str, cents: int) -> str: ...
"""

from math import ceil
from typing import Any, Final

from semel import errors
from semel.core.keys import own_key
from semel.core.runtime import require
from semel.doors.tasks import FINAL, TaskQueue

__all__ = ["FINAL", "message_id", "once"]

dramatiq: Final = require("dramatiq", "dramatiq")
middleware: Final = require("dramatiq.middleware", "dramatiq")


def message_id(*_: Any, **__: Any) -> str:
    """As a key: the same at every delivery and retry of one message, and another when it is sent again."""
    message = middleware.CurrentMessage.get_current_message()
    if message is None:
        raise errors.InvalidKey(
            "no message is known here: send one, and give the broker the middleware CurrentMessage()"
        )
    return own_key("dramatiq", message.message_id)


def _retry(error: Exception, seconds: float) -> Exception:
    retry: Exception = dramatiq.Retry(str(error), delay=ceil(seconds * 1000))
    return retry


once: Final = TaskQueue("dramatiq", (dramatiq.Retry,), _retry, "raise").once
"""A message that finds its key busy frees its worker and comes again, as one of its retries."""
