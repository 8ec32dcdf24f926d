"""The helper: it keeps what a household writes, notes what was done, and replies where it may.

A message is handled under its update's key, in steps that are each done once:

    the message     kept as it came, by its number in the chat
    note            what it tells is found out and, in one write with that, kept as an activity
    reply           the gate: quiet hours, others talking, the cap of the day
    send            the reply itself; where nobody knows whether it went out, a person settles it
"""

import functools
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

import semel
from semel import errors
from semel.apps.application import check_shared
from semel.apps.client import RequestRefused
from semel.apps.household.classify import Classification
from semel.apps.household.settings import Settings, check_token, checked
from semel.apps.household.telegram import NOT_SENT, Bot
from semel.apps.household.updates import TextMessage, text_message
from semel.apps.persons import person
from semel.apps.settings import function_of, naming
from semel.apps.tables import ACTIVITIES, MESSAGES, RESPONSE_COUNTERS
from semel.connect import Semel
from semel.core.policy import DAY, Keep, OnError, Options
from semel.core.running import Run
from semel.doors.inbox import Inbox, Message
from semel.doors.webhooks import TELEGRAM, Ingress, Notice, telegram_key
from semel.gate import Allowed, Cap, FastConversation, Gate, KillSwitch, QuietHours
from semel.periods import Day
from semel.state import Journal
from semel.state.journal import BOOKS
from semel.state.mailbox import TTL
from semel.tables import LEDGER

if TYPE_CHECKING:
    from fastapi import APIRouter

    from semel.apps.deployment import Deployment
    from semel.ops.blocks import AppPage

PATH: Final = "/webhooks/telegram"

_naming = functools.partial(naming, "household")

# Where replies go as long as there is no bot.
OUTBOX: Final = "outbox:household"

# What stops all replies: that of everything that runs here, and that of the household alone.
SWITCHES: Final = ("safe_mode", "household_off")

# Two minutes of trying, for the messages behind it in the chat wait so long; then somebody has to look.
MAX_ATTEMPTS: Final = 8

# Of so many messages the chats are remembered, for who looks on.
HANDLED: Final = 200

RELEASE: Final[Keep] = "release"
# A reply is in doubt unless it is known that nothing was sent.
IN_DOUBT: Final[OnError] = {Exception: "doubt", **dict.fromkeys(NOT_SENT, RELEASE)}


class Held(errors.SemelError):
    """Nobody knows whether a reply was sent."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"it is unknown whether the reply was sent: check the chat, resolve {key!r} with semel act "
            "complete or release --app household, and redrive the message"
        )
        self.key = key


class Noted(msgspec.Struct, frozen=True):
    """What was found in a message, and what is to be replied."""

    found: Classification | None
    reply: str | None


class Household:
    """The helper on one store."""

    settings_type = Settings
    ledger_table = LEDGER

    def __init__(self, s: Semel, inbox: Inbox, settings: Settings) -> None:
        check_shared(inbox)
        self.s: Semel = s
        self._inbox = inbox
        self.settings: Settings = checked(settings)
        self._classify = function_of("household", "classifier", settings.classifier)
        self._respond = function_of("household", "responder", settings.responder)
        self._gate = _gate(s, settings)
        self.activities: Journal = s.journal.on(ACTIVITIES)
        self.messages: Journal = s.journal.on(MESSAGES)
        self._handled: deque[str] = deque(maxlen=HANDLED)
        self._bot = Bot(settings, s.clock) if settings.bot_token else None

    @functools.cached_property
    def hooks(self) -> dict[str, Ingress]:
        """Where Telegram delivers; who only works on messages has no use for its token."""
        token, message = check_token(self.settings), self._message
        return {PATH: _naming("secret_token", Ingress, self.s, TELEGRAM, token, self._inbox, message)}

    def router(self) -> "APIRouter":
        """What was done, to be read over HTTP."""
        from semel.apps.household.api import router

        return router(self)

    def pages(self) -> "dict[str, AppPage]":
        """Chats and what was done in them, in the dashboard."""
        from semel.apps.household.pages import pages

        return pages(self)

    @property
    def known_chats(self) -> list[str]:
        """The chats that the settings name, and those that this process has handled, the last first."""
        return list(dict.fromkeys([*map(str, self.settings.chats), *reversed(self._handled)]))

    @classmethod
    def deployment(cls) -> "Deployment":
        """The helper on AWS."""
        from semel.apps.household.deployment import DEPLOYMENT

        return DEPLOYMENT

    @property
    def worker_options(self) -> Options:
        """What no further try can mend goes to the dead letters at once."""
        return {"max_attempts": MAX_ATTEMPTS, "on_error": {RequestRefused: "keep", Held: "keep"}}

    def close(self) -> None:
        """Let go of connections."""
        if self._bot is not None:
            self._bot.close()

    def _message(self, notice: Notice) -> Message | None:
        """An update as a message; None for what nobody said, and for chats that are not listened to."""
        heard = text_message(notice.payload)
        if heard is None or (self.settings.chats and heard.chat not in self.settings.chats):
            return None
        key, body, person = telegram_key(notice.payload), msgspec.to_builtins(heard), self._person(heard)
        return Message(str(key), body, str(heard.chat), subject=person)

    def _person(self, heard: TextMessage) -> str | None:
        """Whom a message is about: who wrote it, by Telegram's number for a user."""
        return person(self.s, str(heard.user))

    # Handling

    def handle(self, message: Message) -> dict[str, Any]:
        """What a worker does with a message; gives what came of it."""
        heard = msgspec.convert(message.body, TextMessage)
        self._handled.append(str(heard.chat))
        self.messages.append(
            str(heard.chat),
            {"text": heard.text},
            id=heard.message,
            actor=heard.user,
            at=heard.at,
            ttl=self.settings.message_days * DAY,
            subject=self._person(heard),
        )
        if heard.edited:
            # The first version was handled when it came, and what was done is not done again.
            return {"edited": heard.message}
        noted = self.s.once.step("note", self._note, heard)
        result: dict[str, Any] = {"found": None if noted.found is None else noted.found.type}
        return result if noted.reply is None else result | self._reply(heard, noted.reply)

    def _note(self, heard: TextMessage) -> Noted:
        found = self._classify(heard.text)
        noted = Noted(found, self._respond(heard.text, found) or None)
        with self.s.transaction() as tx:
            if found is not None and found.done:
                tx.journal.on(ACTIVITIES).append(
                    str(heard.chat),
                    _activity(heard, found),
                    at=heard.at,
                    actor=heard.user,
                    subject=self._person(heard),
                )
            tx.ledger.complete(semel.current_run(), noted)
        return noted

    # Replying

    def _reply(self, heard: TextMessage, text: str) -> dict[str, Any]:
        run = semel.current_run()
        if self._is_unsent(run, heard):
            about = self._person(heard)
            decision = self._gate.decide(run.step("reply"), subject=about, chat=heard.chat, user=heard.user)
            if not isinstance(decision, Allowed):
                return {"refused": decision.reason, "not_before": decision.not_before}
        run.check()
        try:
            return {"sent": self.s.once.step("send", self._sending(run), heard, text)}
        except NOT_SENT as error:
            self._give_back(run, heard, str(error))
            raise
        except errors.OutcomeUnknown as error:
            raise Held(run.step("send")) from error
        except errors.FailedBefore:
            # Nobody knew whether it was sent, and whoever was asked has given it up.
            self._give_back(run, heard, "abandoned")
            return {"abandoned": True}

    def _is_unsent(self, run: Run, heard: TextMessage) -> bool:
        """Whether it is not sent, for certain, so that the gate does not come too late."""
        before = self.s.ledger.get(run.step("send"))
        if before is not None and before.status is not semel.Status.RELEASED:
            return False
        # What an earlier attempt was allowed and has not used, it may not be allowed any more. The number of
        # this attempt tells nothing: a dead letter that was put back begins anew.
        self._give_back(run, heard, "interrupted")
        return True

    def _give_back(self, run: Run, heard: TextMessage, why: str) -> None:
        """What the gate has charged for this reply, if it has, was for nothing."""
        decision = self._gate.recorded(run.step("reply"))
        if isinstance(decision, Allowed) and self._gate.refund(decision):
            entry = {"action": decision.key, "given_back": why}
            self.s.journal.append(_trace(heard), entry, subject=self._person(heard))

    def _sending(self, run: Run) -> Any:
        """What sends a reply, for as long as the work that it belongs to."""
        claim = run.claim
        # The outbox is part of the store, and knows what was written.
        repeat = self._bot is None or self.settings.lost_sends == "repeat"
        return self.s.once(
            fingerprint=None,
            lease=claim.lease,
            ttl=claim.ttl,
            horizon=claim.ttl,
            on_lapsed="rerun" if repeat else "hold",
            on_error=IN_DOUBT,
        )(self._send)

    def _send(self, heard: TextMessage, text: str) -> int | None:
        run, about = semel.current_run(), self._person(heard)
        number = None if self._bot is None else self._bot.send(heard.chat, text, heard.message)
        with self.s.transaction() as tx:
            if self._bot is None:
                entry = {"chat": heard.chat, "reply_to": heard.message, "text": text}
                tx.journal.append(OUTBOX, entry, subject=about)
            tx.journal.append(_trace(heard), {"action": run.key, "sent": number}, subject=about)
            tx.ledger.complete(run, number)
        return number


def _activity(heard: TextMessage, found: Classification) -> dict[str, Any]:
    """What is kept of an activity: what the classifier said, and nothing that it did not."""
    activity = {
        "messageId": heard.message,
        "type": found.type,
        "activity": found.activity or None,
        "effort": found.effort,
        "confidence": found.confidence,
    }
    return {name: value for name, value in activity.items() if value is not None}


def _trace(heard: TextMessage) -> semel.Key:
    """Where the decisions about a chat are told, and what became of them."""
    return semel.Key("household", heard.chat)


def _gate(s: Semel, settings: Settings) -> Gate:
    day = _naming("zone", Day, settings.zone)
    return s.gate(
        *map(KillSwitch, SWITCHES),
        _naming("quiet_from", QuietHours, settings.quiet_from, settings.quiet_to, settings.zone),
        FastConversation(
            "{chat}",
            "{user}",
            messages=settings.fast_messages,
            within=settings.fast_seconds,
            look=settings.fast_look,
            book=BOOKS[MESSAGES.name],
        ),
        Cap("{chat}", settings.cap, per=day, table=RESPONSE_COUNTERS),
        ttl=TTL,
        trace="household:{chat}",
    )
