"""For whoever runs a ledger: which records, how one came to be so, what to do about it, and who did what."""

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from fastapi import APIRouter, Depends, Query

from semel.core.events import digest
from semel.errors import NotProvisioned, UsageError
from semel.model import Record
from semel.ops.model import Action, Done, Search, SearchPage, version_of
from semel.ops.rates import EDGES, HOUR, KEPT, MINUTE
from semel.ops.scopes import LOOK, OF_APPS
from semel.service.openapi import problems
from semel.service.problems import ProblemError, problem_error
from semel.service.tokens import OpsReader, OpsWriter, Principal, operating
from semel.service.v1 import models
from semel.service.v1.models import answer
from semel.service.v1.strict_json import StrictRoute
from semel.state.journal import Entry
from semel.tables import FOREVER, RECENT

WIDTHS: dict[models.RateWidth, int] = {"minute": MINUTE, "hour": HOUR}
# So many minutes, or hours, are told of where nobody says since when.
USUAL = 60

# A switch is the whole environment's, and no tenant's.
SwitchReader: TypeAlias = Annotated[Principal, Depends(operating(LOOK, OF_APPS))]

UNORDERED = (
    "order: this store does not list all records by time; whoever runs it turns that on with "
    f"semel provision --with {RECENT.name}"
)

routes: Final = APIRouter(prefix="/ops", tags=["operators"], route_class=StrictRoute)


# Questions


@routes.get(
    "/records",
    operation_id="ops_search",
    responses=problems("no-such-app"),
    response_model_exclude_unset=True,
)
async def search(asked: Annotated[models.SearchQuery, Query()], caller: OpsReader) -> models.SearchResponse:
    """A page of the records that are asked for; never their results."""
    wanted = msgspec.structs.replace(_search(asked), order=asked.order)
    try:
        found = await caller.s.aio.ops.search(wanted, limit=asked.limit, after=asked.after)
    except NotProvisioned as error:
        if error.index != RECENT.name:
            raise
        raise problem_error("invalid-request", UNORDERED) from error
    records = [_found(record, full=asked.errors == "full") for record in found.records]
    return answer(models.SearchResponse, found, records=records)


@routes.get(
    "/story",
    operation_id="ops_story",
    responses=problems("key-malformed", "no-such-record", "no-such-app"),
)
async def story(asked: Annotated[models.StoryQuery, Query()], caller: OpsReader) -> models.StoryResponse:
    """What happened to a key, how it stands, and what the next call with it gets; as data and as text."""
    found = await caller.s.aio.ops.explain(asked.key, inboxes=[asked.app] if asked.app else [])
    if found is None:
        raise _absent()
    return answer(models.StoryResponse, found, text=str(found))


@routes.get("/journal", operation_id="ops_journal", responses=problems("no-such-app"))
async def journal(
    asked: Annotated[models.JournalQuery, Query()], caller: OpsReader
) -> models.JournalResponse:
    """What operators did, newest first."""
    found = await caller.s.aio.ops.journal(limit=asked.limit, after=asked.after)
    return models.JournalResponse(entries=[_entry(one) for one in found.entries], after=found.after)


@routes.get("/rates", operation_id="ops_rates", responses=problems("no-such-app"))
async def rates(asked: Annotated[models.RatesQuery, Query()], caller: OpsReader) -> models.AllRatesResponse:
    """What all processes did, for each minute or hour in which anything happened."""
    width = WIDTHS[asked.width]
    end = caller.s.ledger.steps.clock.now() if asked.until is None else asked.until.timestamp()
    begin = end - USUAL * width if asked.since is None else asked.since.timestamp()
    _check_span(begin, end, KEPT[width])
    found = await caller.s.aio.ops.rates(begin, end, width)
    return models.AllRatesResponse(
        width=asked.width,
        since=begin,
        until=end,
        edges=list(EDGES),
        rates=[models.RatesResponse.model_validate(one) for one in found],
    )


@routes.get("/counters", operation_id="ops_counters", responses=problems("no-such-app"))
async def counters(
    asked: Annotated[models.CountersQuery, Query()], caller: OpsReader
) -> models.CountersResponse:
    """The counters that are remembered: how much was counted in each period, and when that ends."""
    found = await caller.s.aio.ops.counters(asked.prefix, limit=asked.limit, after=asked.after)
    return models.CountersResponse.model_validate(found)


@routes.get("/switches/{name}", operation_id="ops_switch_history", responses=problems("no-such-app"))
async def switch_history(
    name: models.SwitchPath,
    asked: Annotated[models.SwitchHistoryQuery, Query()],
    caller: SwitchReader,
) -> models.SwitchHistoryResponse:
    """How a switch was turned, newest first: what it tells itself, and what operators' entries tell."""
    turns = await caller.s.aio.ops.switch_history(name, limit=asked.limit)
    return models.SwitchHistoryResponse.model_validate({"turns": turns})


# Actions


@routes.post(
    "/actions",
    operation_id="ops_act",
    responses=problems("key-malformed", "no-such-record", "action-refused", "no-such-app"),
)
async def act(asked: models.ActionRequest, caller: OpsWriter) -> models.DoneResponse:
    """Do something to a record, or tell what it would do; a preview is refused as the action would be."""
    action = _action(asked, caller, asked.key, asked.seen)
    done = await caller.s.aio.ops.perform(action, preview=asked.preview)
    if done.refused:
        raise _refusal(done)
    return models.DoneResponse.model_validate(done)


@routes.post("/actions/bulk", operation_id="ops_act_on_many", responses=problems("no-such-app"))
async def act_on_many(asked: models.BulkRequest, caller: OpsWriter) -> models.BulkResponse:
    """Do something to every record of a page of a search; unless told otherwise, only say what it would do.

    Each is done or refused by itself, and refused where it has changed since it was found.
    """
    wanted = _search(asked.search)
    if wanted == Search():
        raise problem_error("invalid-request", "search: say which records are meant, and not all of them")
    found = await caller.s.aio.ops.search(wanted, limit=asked.limit, after=asked.after)
    done = await _performed(asked, caller, found)
    changed = sum(one.changed for one in done)
    return answer(models.BulkResponse, found, preview=asked.preview, done=done, changed=changed)


@routes.post("/erasures", operation_id="ops_erase", responses=problems("no-such-app"))
async def erase(asked: models.EraseRequest, caller: OpsWriter) -> models.ErasedResponse:
    """Erase a person from a ledger and what stands on it; unless told otherwise, only say what would go.

    What was done once is still known to be done. Done again, it goes on with what is left. What waits in an
    inbox on SQS about the person is deleted when its turn comes. Dead letters there are left to you: put
    those about the person back, and they are deleted too, and not handled.
    """
    try:
        done = await caller.s.aio.ops.erase(
            asked.person, by=caller.name, why=asked.why, preview=asked.preview
        )
    except UsageError as error:  # a ledger without a secret, or without its overflow
        raise problem_error("invalid-request", str(error)) from error
    return models.ErasedResponse.model_validate(done)


async def _performed(asked: models.BulkRequest, caller: Principal, found: SearchPage) -> list[Done]:
    actions = [_action(asked, caller, record.key, version_of(record)) for record in found.records]
    return [await caller.s.aio.ops.perform(action, preview=asked.preview) for action in actions]


def _action(asked: models.ActionTerms, caller: Principal, key: str, seen: str) -> Action:
    terms = {name: getattr(asked, name) for name in models.ActionTerms.model_fields}
    return Action(**terms, key=key, by=caller.name, seen=seen)


def _refusal(done: Done) -> ProblemError:
    if done.before == "absent":
        return _absent()
    return problem_error("action-refused", done.refused, before=done.before)


def _absent() -> ProblemError:
    return problem_error("no-such-record", "it was never used, or its time is over")


# How it is told


def _search(asked: models.SearchRequest) -> Search:
    wanted = {name: getattr(asked, name) for name in models.SearchRequest.model_fields}
    for name in ("since", "until"):
        wanted[name] = None if wanted[name] is None else wanted[name].timestamp()
    return msgspec.convert(wanted, Search)


def _check_span(begin: float, end: float, longest: float) -> None:
    if begin > end:
        raise problem_error("invalid-request", "since: it is later than until")
    if end - begin > longest:
        days = round(longest / 86_400)
        raise problem_error("invalid-request", f"since: rates of this width are kept for {days} days")


def _found(record: Record, *, full: bool) -> models.FoundRecord:
    failure = record.failure
    message: dict[str, Any] = {} if failure is None or not full else {"message": failure.message}
    return answer(
        models.FoundRecord,
        record,
        digest=digest(record.id),
        version=version_of(record),
        began_at=record.began,
        expires_at=None if record.expires_at == FOREVER else record.expires_at,
        error=None if failure is None else models.FoundError(type=failure.type, **message),
    )


def _entry(entry: Entry) -> models.JournalEntry:
    body = entry.body
    return models.JournalEntry(
        id=str(entry.id),
        at=entry.at or 0.0,
        by=str(entry.actor or ""),
        action=str(body.get("action", "")),
        about=str(body.get("about", "")),
        why=str(body.get("why", "")),
        before=body.get("before"),
    )
