"""A message of Pub/Sub, the same however it was delivered, and what it is called."""

from datetime import datetime
from typing import Any, Final

import msgspec

from semel.core.keys import own_key
from semel.core.policy import DAY, Options, seconds
from semel.errors import InvalidKey

# A subscription delivers a message for so long, unless it was told another time.
# https://docs.cloud.google.com/pubsub/docs/subscription-properties
RETENTION: Final = 7 * DAY


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a subscription delivers it."""

    data: bytes
    id: str
    """What Pub/Sub named it when it was published."""
    subscription: str
    """The whole name of its subscription: `projects/PROJECT/subscriptions/NAME`."""
    attributes: dict[str, str] = {}
    ordering_key: str = ""
    published: datetime | None = None
    deliveries: int = 1
    """How often it was delivered, as far as the subscription counts: it does so for its dead letters."""

    def json(self) -> Any:
        """The data, read as JSON."""
        return msgspec.json.decode(self.data)


def by_message_id(message: Message) -> str:
    """The usual key: the subscription, and the message's id."""
    if not message.id or not message.subscription:
        raise InvalidKey("the message has no id, or no subscription: have Pub/Sub send both, or pass key=")
    return own_key("pubsub", message.subscription, message.id)


def remembered(options: Options, horizon: float) -> Options:
    """The options of a handler that remembers a message for as long as it may be delivered."""
    known = seconds(options["horizon"]) if "horizon" in options else RETENTION
    return {**options, "horizon": max(known, horizon)}
