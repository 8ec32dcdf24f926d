"""What can be set about the household's helper."""

import functools
import re
from typing import Final, Literal

import msgspec

from semel.apps import settings as common

wrong = functools.partial(common.wrong, "household")

# As BotFather gives them: the bot's number, a colon, and the secret.
TOKEN: Final = re.compile(r"\d+:[A-Za-z0-9_-]+")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `apps.household`."""

    bot_token: str = ""
    """Without one, replies go to an outbox in the journal instead of to Telegram."""
    secret_token: str = ""
    """What setWebhook was called with: Telegram shows it with every update."""
    zone: str = "Europe/Stockholm"
    cap: int = 3
    """So many replies in a chat on one day of that zone."""
    quiet_from: str = "22:00"
    quiet_to: str = "07:00"
    chats: tuple[int, ...] = ()
    """Only these chats are listened to; all of them where none is named."""
    classifier: str = "semel.apps.household.classify:classify"
    responder: str = "semel.apps.household.replies:reply"
    lost_sends: Literal["hold", "repeat"] = "hold"
    """When nobody knows whether a reply was sent: wait for a person, or send it again."""
    telegram_url: str = "https://api.telegram.org"
    telegram_timeout: float = 10.0
    """How long Telegram may take to answer, in seconds."""

    def __repr__(self) -> str:
        # Nobody is to read a token in a log.
        return f"<settings of the household's helper, {'with' if self.bot_token else 'without'} a bot>"


def checked(settings: Settings) -> Settings:
    """The same, or what is wrong with it."""
    if not settings.secret_token:
        raise wrong("secret_token", "give the one that setWebhook was called with: it proves who sends")
    if settings.bot_token and not TOKEN.fullmatch(settings.bot_token):
        raise wrong("bot_token", "it is the bot's number, a colon and letters, as BotFather gave it")
    common.check_address("household", "telegram_url", settings.telegram_url)
    if not 0 < settings.telegram_timeout < float("inf"):
        raise wrong("telegram_timeout", "it is a number of seconds above 0")
    if settings.cap < 1:
        raise wrong("cap", "it is at least 1; to stop all replies, turn the switch household_off")
    return settings
