"""What else waits: for a handler that can do many messages as easily as one."""

from typing import Any

import msgspec

from semel.state.mailbox import Message


class WaitingMessage(msgspec.Struct, frozen=True):
    """A message that waits beside the one that is being handled, and may be handled with it."""

    message: Message
    held: Any
    """What its inbox knows it by."""
