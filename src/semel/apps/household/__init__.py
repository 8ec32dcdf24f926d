"""A bot in a household's chat: it records what was done, and replies where the gate allows it.

Telegram's updates come in at `/webhooks/telegram` and wait in the inbox. What somebody wrote is kept, what it
tells of is an activity, and a reply goes out unless the gate refuses it.
"""

from semel.apps.household.app import Household
from semel.apps.household.settings import Settings

__all__ = ["Household", "Settings"]
