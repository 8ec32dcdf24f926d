"""What is remembered of a conversation between two messages."""

import msgspec

from semel.apps.payloads import seconds_of


class PendingFlow(msgspec.Struct, frozen=True):
    """Something was asked for, and the next message may bring it."""

    type: str
    requested_at: str
    attempts: int = 1


class AutoReply(msgspec.Struct, frozen=True):
    """What was last answered without a person."""

    type: str
    sent_at: str
    source_message_id: str = ""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `rp_mw_conversation_state`."""

    last_processed_at: str | None = None
    last_processed_message_id: str | None = None
    last_routed_team: str | None = None
    last_routing_confidence: float | None = None
    last_intent: str | None = None
    risk_flags: set[str] = set()
    pending_flow: PendingFlow | None = None
    last_auto_reply: AutoReply | None = None

    def awaits(self, flow: str) -> int:
        """How often this was asked for and is still missing."""
        pending = self.pending_flow
        return pending.attempts if pending is not None and pending.type == flow else 0

    def has_just_got(self, reply: str, now: float, span: float) -> bool:
        """Whether this was the last reply, and that less than so many seconds ago."""
        last = self.last_auto_reply
        return last is not None and last.type == reply and now - seconds_of(last.sent_at) < span
