"""Inboxes: what waits for each application, what nobody could handle, and how that is put back."""

import asyncio
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from fastapi import APIRouter, Depends, Path, Query

from semel.doors.inbox import Counted, Dead, DeadFilter, Inbox
from semel.doors.inbox.redriving import redrive
from semel.doors.inbox.status import status_of
from semel.errors import UsageError
from semel.ops.scopes import ACT, LOOK, OF_APPS
from semel.service.openapi import problems
from semel.service.problems import problem_error
from semel.service.runtime import MountedApp, Runtime
from semel.service.settings import Right
from semel.service.tokens import Principal, asking
from semel.service.v1 import models
from semel.service.v1.models import answer
from semel.service.v1.strict_json import StrictRoute

# What waits for the applications is theirs, and no tenant's.
READS: Final[tuple[Right, ...]] = (LOOK, OF_APPS)
WRITES: Final[tuple[Right, ...]] = (ACT, OF_APPS)
# So many of what was put back are named in an answer.
NAMED: Final = 100
AppPath: TypeAlias = Annotated[str, Path(description="The application whose inbox is meant.")]
InboxReader: TypeAlias = Annotated[Principal, Depends(asking(*READS))]
InboxWriter: TypeAlias = Annotated[Principal, Depends(asking(*WRITES))]


def router(runtime: Runtime) -> APIRouter:
    """The addresses of inboxes; each asks its queue, which may take a moment, in a thread."""
    mounted = {one.name: one for one in runtime.apps if one.works}
    routes = APIRouter(prefix="/ops/inboxes", tags=["operators"], route_class=StrictRoute)

    def mounted_app(app: str) -> MountedApp:
        if app not in mounted:
            raise problem_error("no-such-app", f"those with an inbox are {', '.join(mounted) or 'none'}")
        return mounted[app]

    @routes.get("", operation_id="ops_inboxes", responses=problems(), dependencies=[Depends(asking(*READS))])
    async def inboxes() -> models.InboxesResponse:
        """How much waits for each application, how much is dead, and since when."""
        looks = [asyncio.to_thread(_response, one.name, one.inbox) for one in mounted.values()]
        return models.InboxesResponse(inboxes=await asyncio.gather(*looks))

    @routes.get(
        "/{app}/dead",
        operation_id="ops_dead_letters",
        responses=problems("no-such-app"),
        response_model_exclude_unset=True,
    )
    async def dead(
        app: AppPath, asked: Annotated[models.DeadLettersQuery, Query()], caller: InboxReader
    ) -> models.DeadLettersResponse:
        """Messages that nobody could handle, the oldest first."""
        one = mounted_app(app)
        if asked.bodies:
            caller.require("ops:write")
            if not asked.why:
                raise problem_error("invalid-request", "why: the journal records why bodies are revealed")
        found = await asyncio.to_thread(one.inbox.dead, asked.limit, bodies=asked.bodies)
        if asked.bodies:
            about, ids = f"inbox {app}: {len(found)} dead letters", [letter.id for letter in found]
            await one.s.aio.ops.note(caller.name, asked.why or "", "reveal letters", about, {"ids": ids})
        return models.DeadLettersResponse(app=app, letters=[_letter(letter) for letter in found])

    @routes.post(
        "/{app}/redrive",
        operation_id="ops_redrive",
        responses=problems("no-such-app", "no-such-letter"),
        response_model_exclude_unset=True,
    )
    async def put_back(
        app: AppPath, asked: models.RedriveRequest, caller: InboxWriter
    ) -> models.RedriveResponse:
        """Put dead letters back, to be handled as if they were new: one, all, or those that fit."""
        which = _which(asked)
        return await asyncio.to_thread(_redriven, mounted_app(app), asked, which, caller.name)

    return routes


def _response(app: str, inbox: Inbox) -> models.InboxResponse:
    standing = status_of(inbox)
    survey, dead = standing.survey, standing.dead
    counted = dead or Counted(0)
    return answer(
        models.InboxResponse,
        survey,
        app=app,
        dead=None if dead is None else dead.number,
        dead_oldest=counted.oldest,
        dead_more=counted.after is not None,
    )


def _which(asked: models.RedriveRequest) -> DeadFilter:
    """The dead letters that are meant; all of them only where that was said."""
    which = DeadFilter(
        error=asked.error,
        prefix=asked.prefix,
        group=asked.group,
        since=None if asked.since is None else asked.since.timestamp(),
        until=None if asked.until is None else asked.until.timestamp(),
    )
    if [asked.id is not None, asked.all, which != DeadFilter()].count(True) != 1:
        detail = 'name one letter by its id, or say "all": true, or which by error, prefix, group or time'
        raise problem_error("invalid-request", detail)
    return msgspec.structs.replace(which, id=asked.id or "")


def _redriven(
    app: MountedApp, asked: models.RedriveRequest, which: DeadFilter, by: str
) -> models.RedriveResponse:
    try:
        done = redrive(app.s, app.inbox, which, by=by, why=asked.why, preview=asked.preview)
    except UsageError as error:
        raise problem_error("no-such-letter", str(error)) from error
    return models.RedriveResponse(
        preview=asked.preview,
        redriven=len(done.letters),
        letters=[_letter(one) for one in done.letters[:NAMED]],
        refused=[models.RefusedLetter(id=id, why=why) for id, why in done.refused.items()],
    )


def _letter(dead: Dead) -> models.DeadLetterResponse:
    fields: dict[str, Any] = msgspec.to_builtins(dead, str_keys=True, enc_hook=repr)
    return models.DeadLetterResponse(**fields)
