"""The household's page in the dashboard: chats, what was done in them, and the replies of today."""

import re
from collections.abc import Mapping
from typing import Any, Final

from semel.apps.household.app import Household
from semel.apps.tables import ACTIVITIES, RESPONSE_COUNTERS
from semel.ops.blocks import (
    AppPage,
    Cell,
    FactsBlock,
    FieldBlock,
    PageBlock,
    PageLink,
    TableBlock,
    TextBlock,
    TimeCell,
)
from semel.periods import Day
from semel.state.journal import Entry

LISTED: Final = 50
CHAT: Final = re.compile(r"-?[0-9]{1,20}")
FIELD: Final = FieldBlock("chat", "Chat", "its number at Telegram")


def pages(app: Household) -> dict[str, AppPage]:
    """The pages of a helper."""
    return {"chats": AppPage("Chats", ChatPages(app).show)}


class ChatPages:
    """Reads what was done and counted; what was written stays where it is."""

    def __init__(self, app: Household) -> None:
        self._app = app
        self._activities = app.s.aio.journal.on(ACTIVITIES)
        self._counters = app.s.aio.counters.on(RESPONSE_COUNTERS)
        self._day, self._cap = Day(app.settings.zone), app.settings.cap

    async def show(self, query: Mapping[str, str]) -> list[PageBlock]:
        """One chat, or those that are known here."""
        asked = query.get("chat", "").strip()
        if not asked:
            return await self._known()
        if not CHAT.fullmatch(asked):
            return [FIELD, TextBlock("A chat is a number.")]
        return await self._one(asked)

    async def _known(self) -> list[PageBlock]:
        rows = [await self._row(chat) for chat in self._app.known_chats[:LISTED]]
        about = "Chats that the settings name, and those that this process has handled since it began."
        empty = "No message was handled here yet. Tell Telegram where to deliver, or ask for a chat above."
        columns = ("Chat", "Replies today", "Of at most", "Last activity")
        return [FIELD, TextBlock(about), TableBlock("Chats", columns, tuple(rows), empty)]

    async def _row(self, chat: str) -> tuple[Cell, ...]:
        tally = await self._counters.look(chat, per=self._day)
        last = (await self._activities.list(chat, limit=1, reverse=True)).entries
        when = TimeCell(last[0].at) if last and last[0].at is not None else None
        return PageLink("chats", chat, {"chat": chat}), tally.used, self._cap, when

    async def _one(self, chat: str) -> list[PageBlock]:
        tally = await self._counters.look(chat, per=self._day)
        facts: dict[str, Cell] = {
            "Replies today": f"{tally.used} of {self._cap}",
            "Counted anew": None if tally.resets_at is None else TimeCell(tally.resets_at),
        }
        found = await self._activities.list(chat, limit=LISTED, reverse=True)
        columns = ("When", "Activity", "Kind", "Effort", "Sure of it", "By")
        rows = tuple(map(_activity, found.entries))
        empty = "Nothing was noted in this chat: nobody told of having done anything."
        return [FIELD, FactsBlock(facts), TableBlock("What was done, newest first", columns, rows, empty)]


def _activity(entry: Entry) -> tuple[Cell, ...]:
    body: Mapping[str, Any] = entry.body
    when = None if entry.at is None else TimeCell(entry.at)
    sure = body.get("confidence")
    return (
        when,
        str(body.get("activity") or ""),
        str(body.get("type") or ""),
        str(body.get("effort") or ""),
        None if sure is None else f"{float(sure):.0%}",
        entry.actor,
    )
