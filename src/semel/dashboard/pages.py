"""The pages, each made of what the ledger's operators can ask."""

import json
from typing import Any, cast, get_args

from starlette.responses import Response

from semel.connect import Semel
from semel.core.lifecycle import Status
from semel.dashboard.charts import OUTCOMES, SPANS, drawn
from semel.dashboard.figures import figures, with_counted
from semel.dashboard.forms import name_of, result_in, ttl_in
from semel.dashboard.inboxes import standing_in
from semel.dashboard.searches import asked, search_of
from semel.dashboard.timelines import timeline_of
from semel.dashboard.views import LedgerView
from semel.dashboard.visits import Visit
from semel.errors import InvalidKey, InvalidOption, NotProvisioned, UsageError
from semel.model import MISSING
from semel.ops.model import PAGE_SIZE, Action, ActionName, Done, Search, SearchPage, SortOrder, version_of


class Pages:
    """Answers visits with what a ledger tells."""

    def __init__(self, s: Semel, view: LedgerView) -> None:
        self._s, self._view = s, view
        self._ops = s.aio.ops
        self._switches = s.aio.switches
        self._clock = s.clock

    async def overview(self, visit: Visit) -> Response:
        """How things stand, and what happened lately."""
        name = visit.query.get("span", "hour")
        span, now = SPANS.get(name, SPANS["hour"]), self._clock.now()
        rows = await self._ops.rates(span.start(now), now, span.row)
        rows = with_counted(rows, self._s.counted_rates(), span.row)
        doubts = await self._ops.search(Search(in_doubt=True), limit=PAGE_SIZE)
        switches = await self._switches.list() if self._view.switches else {}
        return visit.page(
            "overview",
            has_switches=self._view.switches,
            chart=drawn(rows, span, now),
            figures=figures([row for row in rows if row.start >= span.start(now)]),
            outcomes=OUTCOMES,
            spans=SPANS,
            span=span,
            now=now,
            doubts=doubts,
            inboxes=await standing_in(self._view.inboxes),
            switches={name: switch for name, switch in sorted(switches.items()) if switch.on},
        )

    async def ledger(self, visit: Visit) -> Response:
        """Records by search, a page at a time."""
        fields, after = asked(visit.query), visit.query.get("after") or None
        problem, found = "", None
        try:
            found = await self._ops.search(search_of(fields, self._clock.now()), limit=PAGE_SIZE, after=after)
        except (UsageError, NotProvisioned) as error:
            problem = str(error)
        return visit.page(
            "ledger",
            400 if problem else 200,
            fields=fields,
            found=found,
            after=after,
            problem=problem,
            statuses=list(Status),
            orders=get_args(SortOrder) if await self._ops.lists_by_time() else (),
            seen=_versions(found),
            back=visit.request.url.query,
        )

    async def doubts(self, visit: Visit) -> Response:
        """What waits for somebody to find out, oldest first."""
        after = visit.query.get("after") or None
        found = await self._ops.search(Search(in_doubt=True), limit=PAGE_SIZE, after=after)
        return visit.page("doubts", found=found, after=after)

    async def key(self, visit: Visit) -> Response:
        """One key: its story, its record, and what can be done."""
        return await self._key_page(visit, await self._typed(visit.query.get("key", "")))

    async def act(self, visit: Visit) -> Response:
        """Do to a record what an operator asks for."""
        key = visit.form.get("key", "")
        try:
            done = await self._ops.perform(_action(visit))
        except UsageError as error:
            return await self._key_page(visit, key, 400, problem=str(error))
        return await self._key_page(visit, key, 409 if done.refused else 200, done=done)

    async def reveal(self, visit: Visit) -> Response:
        """Show a result to an operator, which the journal tells."""
        key, why = visit.form.get("key", ""), visit.form.get("why", "")
        try:
            result = await self._ops.reveal(key, by=name_of(visit), why=why)
        except UsageError as error:
            return await self._key_page(visit, key, 400, problem=str(error))
        return await self._key_page(visit, key, result=result, revealed=True)

    async def switches(self, visit: Visit) -> Response:
        """Every switch, and how it stands."""
        return await self._switches_page(visit)

    async def turn(self, visit: Visit) -> Response:
        """Turn a switch on or off."""
        form, on = visit.form, visit.form.get("on", "")
        try:
            if on not in ("yes", "no"):
                raise InvalidOption("a switch is turned on or off: say which")
            name = form.get("name", "").strip()
            await self._ops.turn(name, on=on == "yes", by=name_of(visit), why=form.get("why", ""))
        except UsageError as error:
            return await self._switches_page(visit, 400, problem=str(error))
        return visit.elsewhere("/switches")

    async def counters(self, visit: Visit) -> Response:
        """What was counted, a page at a time."""
        prefix, after = visit.query.get("prefix", "").strip(), visit.query.get("after") or None
        found = await self._ops.counters(prefix, limit=PAGE_SIZE, after=after)
        return visit.page("counters", found=found, prefix=prefix, after=after)

    async def journal(self, visit: Visit) -> Response:
        """What operators did, newest first."""
        after = visit.query.get("after") or None
        return visit.page(
            "journal", entries=await self._ops.journal(limit=PAGE_SIZE, after=after), after=after
        )

    async def _typed(self, text: str) -> str:
        """A key that was typed or pasted: without the space around it, unless it is that of a record."""
        key = text.strip()
        if key == text:
            return text
        try:
            return key if await self._s.aio.ledger.get(text) is None else text
        except InvalidKey:
            return key

    async def _switches_page(self, visit: Visit, status: int = 200, problem: str = "") -> Response:
        switches = sorted((await self._switches.list()).items())
        return visit.page("switches", status, switches=switches, problem=problem)

    async def _key_page(
        self,
        visit: Visit,
        key: str,
        status: int = 200,
        *,
        problem: str = "",
        done: Done | None = None,
        result: Any = MISSING,
        revealed: bool = False,
    ) -> Response:
        seen = await self._ops.look(key, inboxes=tuple(self._view.inboxes))
        return visit.page(
            "key",
            404 if seen is None and done is None else status,
            key=key,
            seen=seen,
            timeline=None if seen is None else timeline_of(seen.story),
            problem=problem,
            done=done,
            revealed=revealed,
            result=result,
            has_result=result is not MISSING,
            typed=visit.form,
        )


def _versions(found: SearchPage | None) -> str:
    """The keys of a page with the version of each, as a form carries them."""
    records = () if found is None else found.records
    # In ASCII: what turns the direction of reading is in no page.
    return json.dumps([(record.key, version_of(record)) for record in records])


def _action(visit: Visit) -> Action:
    form = visit.form
    name = form.get("action", "")
    if name not in get_args(ActionName):
        raise InvalidOption("choose what to do with the record")
    return Action(
        name=cast("ActionName", name),
        key=form.get("key", ""),
        by=name_of(visit),
        why=form.get("why", ""),
        result=result_in(form.get("result", "")) if name == "complete" else None,
        seen=form.get("seen", ""),
        force="force" in form,
        ttl=ttl_in(form.get("days", "")),
    )
