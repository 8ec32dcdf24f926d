"""For whoever runs a ledger: which records, how one came to be so, what to do about it, and who did what."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query

from semel.core.events import digest
from semel.core.lifecycle import Status
from semel.errors import NotProvisioned, UsageError
from semel.model import Record
from semel.ops.model import Action, Done, Found, Search, version_of
from semel.ops.rates import EDGES, HOUR, KEPT, MINUTE
from semel.ops.story import Story
from semel.service.openapi import problems
from semel.service.problems import ProblemError, problem_error
from semel.service.tokens import OpsReader, OpsWriter, Principal
from semel.service.v1.models import (
    KEY_FORM,
    ActionRequest,
    ActionTerms,
    AllRatesResponse,
    BulkRequest,
    BulkResponse,
    CounterResponse,
    CountersQuery,
    CountersResponse,
    DoneResponse,
    ErasedResponse,
    EraseRequest,
    FoundError,
    FoundRecord,
    JournalEntry,
    JournalQuery,
    JournalResponse,
    RatesQuery,
    RatesResponse,
    RateWidth,
    SearchQuery,
    SearchRequest,
    SearchResponse,
    StoryActionResponse,
    StoryDecisionResponse,
    StoryEntryResponse,
    StoryLineResponse,
    StoryMessageResponse,
    StoryQuery,
    StoryResponse,
    StoryStepResponse,
    SwitchHistoryQuery,
    SwitchHistoryResponse,
    SwitchTurnResponse,
)
from semel.service.v1.strict_json import StrictRoute
from semel.state.journal import Entry
from semel.tables import FOREVER, RECENT

WIDTHS: dict[RateWidth, int] = {"minute": MINUTE, "hour": HOUR}
# So many minutes, or hours, are told of where nobody says since when.
USUAL = 60

UNORDERED = (
    "order: this store does not list all records by time; whoever runs it turns that on with "
    f"semel provision --with {RECENT.name}"
)

routes = APIRouter(prefix="/ops", tags=["operators"], route_class=StrictRoute)


# Questions


@routes.get(
    "/records",
    operation_id="ops_search",
    responses=problems("no-such-app"),
    response_model_exclude_unset=True,
)
async def search(asked: Annotated[SearchQuery, Query()], caller: OpsReader) -> SearchResponse:
    """A page of the records that are asked for; never their results."""
    wanted = msgspec.structs.replace(_search(asked), order=asked.order)
    try:
        found = await caller.s.aio.ops.search(wanted, limit=asked.limit, after=asked.after)
    except NotProvisioned as error:
        if error.index != RECENT.name:
            raise
        raise problem_error("invalid-request", UNORDERED) from error
    return SearchResponse(
        records=[_found(record, full=asked.errors == "full") for record in found.records],
        after=found.after,
        now=found.now,
        examined=found.examined,
        how=found.how,  # type: ignore[arg-type]  # pydantic looks at it
        scan=found.scan,
        unreadable=list(found.unreadable),
    )


@routes.get(
    "/story",
    operation_id="ops_story",
    responses=problems("key-malformed", "no-such-record", "no-such-app"),
)
async def story(asked: Annotated[StoryQuery, Query()], caller: OpsReader) -> StoryResponse:
    """What happened to a key, how it stands, and what the next call with it gets; as data and as text."""
    told = await caller.s.aio.ops.explain(asked.key, inboxes=[asked.app] if asked.app else [])
    if told is None:
        raise _absent()
    return _story(told)


@routes.get("/journal", operation_id="ops_journal", responses=problems("no-such-app"))
async def journal(asked: Annotated[JournalQuery, Query()], caller: OpsReader) -> JournalResponse:
    """What operators did, newest first."""
    found = await caller.s.aio.ops.journal(limit=asked.limit, after=asked.after)
    return JournalResponse(entries=[_entry(one) for one in found.entries], after=found.after)


@routes.get("/rates", operation_id="ops_rates", responses=problems("no-such-app"))
async def rates(asked: Annotated[RatesQuery, Query()], caller: OpsReader) -> AllRatesResponse:
    """What all processes did, for each minute or hour in which anything happened."""
    width = WIDTHS[asked.width]
    end = caller.s.ledger.steps.clock.now() if asked.until is None else asked.until.timestamp()
    begin = end - USUAL * width if asked.since is None else asked.since.timestamp()
    _check_span(begin, end, KEPT[width])
    found = await caller.s.aio.ops.rates(begin, end, width)
    return AllRatesResponse(
        width=asked.width,
        since=begin,
        until=end,
        edges=list(EDGES),
        rates=[RatesResponse.model_validate(one) for one in found],
    )


@routes.get("/counters", operation_id="ops_counters", responses=problems("no-such-app"))
async def counters(asked: Annotated[CountersQuery, Query()], caller: OpsReader) -> CountersResponse:
    """The counters that are remembered: how much was counted in each period, and when that ends."""
    found = await caller.s.aio.ops.counters(asked.prefix, limit=asked.limit, after=asked.after)
    return CountersResponse(
        counters=[CounterResponse.model_validate(one) for one in found.counters],
        after=found.after,
        scan=found.scan,
    )


@routes.get("/switches/{name}", operation_id="ops_switch_history", responses=problems("no-such-app"))
async def switch_history(
    name: Annotated[str, Path(**KEY_FORM)], asked: Annotated[SwitchHistoryQuery, Query()], caller: OpsReader
) -> SwitchHistoryResponse:
    """How a switch was turned, newest first: what it tells itself, and what operators' entries tell."""
    caller.require("apps:read")  # a switch is the whole environment's, and no tenant's
    turns = await caller.s.aio.ops.switch_history(name, limit=asked.limit)
    return SwitchHistoryResponse(turns=[SwitchTurnResponse.model_validate(one) for one in turns])


# Actions


@routes.post(
    "/actions",
    operation_id="ops_act",
    responses=problems("key-malformed", "no-such-record", "action-refused", "no-such-app"),
)
async def act(asked: ActionRequest, caller: OpsWriter) -> DoneResponse:
    """Do something to a record, or tell what it would do; a preview is refused as the action would be."""
    action = _action(asked, caller, asked.key, asked.seen)
    done = await caller.s.aio.ops.perform(action, preview=asked.preview)
    if done.refused:
        raise _refusal(done)
    return DoneResponse.model_validate(done)


@routes.post("/actions/bulk", operation_id="ops_act_on_many", responses=problems("no-such-app"))
async def act_on_many(asked: BulkRequest, caller: OpsWriter) -> BulkResponse:
    """Do something to every record of a page of a search; unless told otherwise, only say what it would do.

    Each is done or refused by itself, and refused where it has changed since it was found.
    """
    wanted = _search(asked.search)
    if wanted == Search():
        raise problem_error("invalid-request", "search: say which records are meant, and not all of them")
    found = await caller.s.aio.ops.search(wanted, limit=asked.limit, after=asked.after)
    done = await _performed(asked, caller, found)
    return BulkResponse(
        preview=asked.preview,
        done=[DoneResponse.model_validate(one) for one in done],
        changed=sum(one.changed for one in done),
        examined=found.examined,
        after=found.after,
    )


@routes.post("/erasures", operation_id="ops_erase", responses=problems("no-such-app"))
async def erase(asked: EraseRequest, caller: OpsWriter) -> ErasedResponse:
    """Erase a person from a ledger and what stands on it; unless told otherwise, only say what would go.

    What was done once is still known to be done. Done again, it goes on with what is left.
    """
    try:
        done = await caller.s.aio.ops.erase(
            asked.person, by=caller.name, why=asked.why, preview=asked.preview
        )
    except UsageError as error:  # a ledger without a secret, or without its overflow
        raise problem_error("invalid-request", str(error)) from error
    return ErasedResponse.model_validate(done)


async def _performed(asked: BulkRequest, caller: Principal, found: Found) -> list[Done]:
    actions = [_action(asked, caller, record.key, version_of(record)) for record in found.records]
    return [await caller.s.aio.ops.perform(action, preview=asked.preview) for action in actions]


def _action(asked: ActionTerms, caller: Principal, key: str, seen: str) -> Action:
    return Action(
        name=asked.name,
        key=key,
        by=caller.name,
        why=asked.why,
        result=asked.result,
        seen=seen,
        force=asked.force,
        ttl=asked.ttl,
    )


def _refusal(done: Done) -> ProblemError:
    if done.before == "absent":
        return _absent()
    return problem_error("action-refused", done.refused, before=done.before)


def _absent() -> ProblemError:
    return problem_error("no-such-record", "it was never used, or its time is over")


# How it is told


def _search(asked: SearchRequest) -> Search:
    return Search(
        status=None if asked.status is None else Status(asked.status),
        prefix=asked.prefix,
        in_doubt=asked.in_doubt,
        error=asked.error,
        worker=asked.worker,
        subject=asked.subject,
        digest=asked.digest,
        since=None if asked.since is None else asked.since.timestamp(),
        until=None if asked.until is None else asked.until.timestamp(),
    )


def _check_span(begin: float, end: float, longest: float) -> None:
    if begin > end:
        raise problem_error("invalid-request", "since: it is later than until")
    if end - begin > longest:
        days = round(longest / 86_400)
        raise problem_error("invalid-request", f"since: rates of this width are kept for {days} days")


def _found(record: Record, *, full: bool) -> FoundRecord:
    failure = record.failure
    message: dict[str, Any] = {} if failure is None or not full else {"message": failure.message}
    return FoundRecord(
        key=record.key,
        digest=digest(record.id),
        version=version_of(record),
        status=record.status.value,
        attempt=record.attempt,
        worker=record.worker,
        created_at=record.created_at,
        began_at=record.began,
        updated_at=record.updated_at,
        lease_until=record.lease_until,
        expires_at=None if record.expires_at == FOREVER else record.expires_at,
        doubt_since=record.doubt_since,
        error=None if failure is None else FoundError(type=failure.type, **message),
    )


def _story(told: Story) -> StoryResponse:
    return StoryResponse(
        key=told.key,
        status=None if told.status is None else told.status.value,
        version=told.version,
        headline=told.headline,
        lines=[StoryLineResponse.model_validate(line) for line in told.lines],
        next_call=told.next_call,
        until=told.until,
        duplicates=told.duplicates,
        decisions=[StoryDecisionResponse.model_validate(one) for one in told.decisions],
        steps=[StoryStepResponse.model_validate(one) for one in told.steps],
        all_steps=told.all_steps,
        messages=[StoryMessageResponse.model_validate(one) for one in told.messages],
        entries=[StoryEntryResponse.model_validate(one) for one in told.entries],
        actions=[StoryActionResponse.model_validate(one) for one in told.actions],
        text=str(told),
    )


def _entry(entry: Entry) -> JournalEntry:
    body = entry.body
    return JournalEntry(
        id=str(entry.id),
        at=entry.at or 0.0,
        by=str(entry.actor or ""),
        action=str(body.get("action", "")),
        about=str(body.get("about", "")),
        why=str(body.get("why", "")),
        before=body.get("before"),
    )
