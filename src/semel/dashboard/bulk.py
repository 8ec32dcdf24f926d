"""One action on all records of a page of a search: first what it would do, then the doing."""

from typing import Final, cast, get_args

import msgspec
from starlette.responses import Response

from semel.connect import Semel
from semel.dashboard.forms import name_of, result_in, ttl_in
from semel.dashboard.visits import Visit
from semel.errors import InvalidOption
from semel.ops.model import Action, ActionName, Done

# A page of a search has no more.
MOST_AT_ONCE: Final = 50
# What stands for the reason while nothing is done.
LOOKING: Final = "to look at what it would do"


class BulkPages:
    """Answers the form under a search."""

    def __init__(self, s: Semel) -> None:
        self._ops = s.aio.ops

    async def act(self, visit: Visit) -> Response:
        """Show what an action would do to each record, or do it."""
        form, confirmed = visit.form, visit.form.get("confirmed") == "yes"
        seen, problem = _seen(form.get("records", "")), ""
        try:
            done = await self._performed(visit, seen, preview=not confirmed)
        except InvalidOption as error:
            confirmed, problem = False, str(error)
            done = await self._performed(visit, seen, preview=True)
        return visit.page(
            "bulk",
            400 if problem else 200,
            page="ledger",
            name=_action_name(visit),
            done=done,
            ready=sum(one.changed for one in done),
            confirmed=confirmed,
            problem=problem,
            records=form.get("records", ""),
            back=form.get("back", ""),
            typed=form,
        )

    async def _performed(self, visit: Visit, seen: list[tuple[str, str]], *, preview: bool) -> list[Done]:
        if preview:
            name, by = _action_name(visit), name_of(visit)
            actions = [Action(name=name, key=key, by=by, why=LOOKING, seen=at) for key, at in seen]
        else:
            actions = [_action(visit, key, at) for key, at in seen]
        return [await self._ops.perform(action, preview=preview) for action in actions]


def _action(visit: Visit, key: str, seen: str) -> Action:
    name, form = _action_name(visit), visit.form
    return Action(
        name=name,
        key=key,
        by=name_of(visit),
        why=form.get("why", ""),
        result=result_in(form.get("result", "")) if name == "complete" else None,
        seen=seen,
        ttl=ttl_in(form.get("days", "")),
    )


def _action_name(visit: Visit) -> ActionName:
    name = visit.form.get("action", "")
    if name not in get_args(ActionName):
        raise InvalidOption("choose what to do with these records")
    return cast("ActionName", name)


def _seen(text: str) -> list[tuple[str, str]]:
    """The keys of a page and the version in which each was seen."""
    try:
        seen = msgspec.json.decode(text, type=list[tuple[str, str]])
    except msgspec.DecodeError as error:
        raise InvalidOption("no records came with the form: search again") from error
    if not 0 < len(seen) <= MOST_AT_ONCE or not all(at for _, at in seen):
        raise InvalidOption(f"between 1 and {MOST_AT_ONCE} records can be acted on at once")
    return seen
