"""What can be set about the household's helper."""

import functools
import re
from typing import Annotated, Final, Literal

import msgspec

from semel.apps import settings as common
from semel.core.runtime import Concealed

wrong: Final = functools.partial(common.wrong, "household")

# So many messages are read before every reply, in one request.
MOST: Final = 100
# Ten years, which is as long as anything here can be made to wait.
LONGEST: Final = 3650

# As BotFather gives them: the bot's number, a colon, and the secret.
TOKEN: Final = re.compile(r"\d+:[A-Za-z0-9_-]+")


class Settings(Concealed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `apps.household`."""

    bot_token: Annotated[str, common.GIVEN] = ""
    """Without one, replies go to an outbox in the journal instead of to Telegram."""
    secret_token: Annotated[str, common.CHOSEN] = ""
    """What setWebhook was called with: Telegram shows it with every update."""
    zone: str = "Europe/Stockholm"
    cap: int = 3
    """So many replies in a chat on one day of that zone."""
    quiet_from: str = "22:00"
    quiet_to: str = "07:00"
    fast_messages: int = 3
    """Nothing is replied where others wrote so many messages within `fast_seconds`."""
    fast_seconds: float = 60.0
    fast_look: int = 10
    """So many messages are looked at for that, the latest of the chat."""
    message_days: float = 90.0
    """For so many days a message is kept; what was noted of it stays."""
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


def check_token(settings: Settings) -> str:
    """What Telegram shows, without which nothing that comes is believed."""
    if not settings.secret_token:
        raise wrong("secret_token", "give the one that setWebhook was called with: it proves who sends")
    common.check_secret("household", "secret_token", settings.secret_token)
    return settings.secret_token


def checked(settings: Settings) -> Settings:
    """These settings, if they can work; else the error that names the wrong one."""
    if settings.bot_token and not TOKEN.fullmatch(settings.bot_token):
        raise wrong("bot_token", "it is the bot's number, a colon and letters, as BotFather gave it")
    common.check_address("household", "telegram_url", settings.telegram_url)
    common.check_above_0("household", settings, ("telegram_timeout", "fast_seconds"))
    if not 1 <= settings.cap < 2**53:
        raise wrong("cap", "it is at least 1; to stop all replies, turn the switch household_off")
    _check_fast(settings)
    if not 0 < settings.message_days <= LONGEST:
        raise wrong("message_days", f"it is a number of days above 0, up to {LONGEST}")
    return settings


def _check_fast(settings: Settings) -> None:
    if not 1 <= settings.fast_look <= MOST:
        raise wrong("fast_look", f"it is a number of messages from 1 to {MOST}")
    if not 1 <= settings.fast_messages <= settings.fast_look:
        raise wrong("fast_messages", f"it is a number from 1 to fast_look, which is {settings.fast_look}")
