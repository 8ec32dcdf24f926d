"""What was done, to be read over HTTP: by chat, or by who did it, with a way back to the message."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, HTTPException, Query, Request

from semel.apps.household.app import Household
from semel.apps.tables import ACTIVITIES, MESSAGES
from semel.state.journal import Entries, Entry


def _asked(
    *,
    since: Annotated[datetime | None, Query(alias="from", description="With its offset from UTC.")] = None,
    until: Annotated[datetime | None, Query(alias="to", description="This moment is included.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: Annotated[str | None, Query(description="`after` of the page before.")] = None,
    reverse: Annotated[bool, Query(description="The latest first.")] = False,
) -> dict[str, Any]:
    for moment in (since, until):
        if moment is not None and moment.tzinfo is None:
            raise HTTPException(422, "say in which zone: 2026-02-17T12:00:00+01:00, or with Z for UTC")
    return {"since": since, "until": until, "limit": limit, "after": after, "reverse": reverse}


ListQuery: TypeAlias = Annotated[dict[str, Any], Depends(_asked)]


@dataclass(frozen=True)
class Activity:
    """Something that somebody did; what its writer has not told is null, whoever that was."""

    id: str
    chat: str
    user: int | None
    at: datetime | None
    type: str | None
    activity: str | None
    effort: str | int | float | None
    confidence: float | None
    message: str | None
    """Where the message is that told of it."""


@dataclass(frozen=True)
class ActivityPage:
    """Some activities in the order of time, and where the next page begins."""

    activities: list[Activity]
    after: str | None


@dataclass(frozen=True)
class ChatMessage:
    """A message as it came, its personal data masked where the service masks it."""

    chat: str
    message: int
    user: int | None
    at: datetime | None
    text: str | None


def router(app: Household) -> APIRouter:
    """The addresses of one household's helper."""
    routes = APIRouter(tags=["household"])
    activities, messages = app.s.aio.journal.on(ACTIVITIES), app.s.aio.journal.on(MESSAGES)

    @routes.get("/chats/{chat}/activities", summary="What was done in a chat, in the order of time")
    async def of_chat(request: Request, chat: int, asked: ListQuery) -> ActivityPage:
        return _page(request, await activities.list(str(chat), **asked))

    @routes.get("/users/{user}/activities", summary="What somebody did, in whatever chat")
    async def of_user(request: Request, user: int, asked: ListQuery) -> ActivityPage:
        return _page(request, await activities.by_actor(user, **asked))

    @routes.get("/chats/{chat}/messages/{message}", name="household_message", summary="A message as it came")
    async def message(chat: int, message: int) -> ChatMessage:
        entry = await messages.get(str(chat), message)
        if entry is None:
            raise HTTPException(404, "there is no such message")
        return ChatMessage(str(chat), message, _user(entry), _at(entry), entry.body.get("text"))

    return routes


def _page(request: Request, found: Entries) -> ActivityPage:
    return ActivityPage([_activity(request, entry) for entry in found.entries], found.after)


def _activity(request: Request, entry: Entry) -> Activity:
    body = entry.body
    return Activity(
        id=str(entry.id),
        chat=entry.owner,
        user=_user(entry),
        at=_at(entry),
        type=body.get("type"),
        activity=body.get("activity"),
        effort=body.get("effort"),
        confidence=body.get("confidence"),
        message=_message(request, entry.owner, body.get("messageId")),
    )


def _message(request: Request, chat: str, message: int | None) -> str | None:
    if message is None:
        return None
    return request.url_for("household_message", chat=chat, message=message).path


def _at(entry: Entry) -> datetime | None:
    return None if entry.at is None else datetime.fromtimestamp(entry.at, UTC)


def _user(entry: Entry) -> int | None:
    return None if entry.actor is None else int(entry.actor)
