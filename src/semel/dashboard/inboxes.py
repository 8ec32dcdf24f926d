"""Inboxes: what waits, what nobody could handle, and putting that back."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from starlette.responses import Response

from semel.connect import Semel
from semel.dashboard.forms import moment_in, name_of
from semel.dashboard.views import LedgerView
from semel.dashboard.visits import Visit
from semel.doors.inbox import Dead, DeadFilter, Inbox, StoreInbox
from semel.doors.inbox.redriving import redrive
from semel.doors.inbox.status import InboxStatus, status_of
from semel.errors import InvalidOption, MessageUnreadable, UsageError
from semel.ops.actions import check_named

# So many dead letters are looked at for a page, and so many for those of one error.
LOOKED_AT: Final = 200
LOOKED_THROUGH: Final = 1000
SHOWN: Final = 100


async def standing_in(inboxes: Mapping[str, Inbox]) -> dict[str, InboxStatus]:
    """How each inbox stands; a queue is asked in a thread."""
    found = await asyncio.gather(*(asyncio.to_thread(status_of, inbox) for inbox in inboxes.values()))
    return dict(zip(inboxes, found, strict=True))


class InboxPages:
    """Answers visits with what waits in the inboxes of a ledger."""

    def __init__(self, s: Semel, view: LedgerView) -> None:
        self._s, self._inboxes = s, view.inboxes

    async def all(self, visit: Visit) -> Response:
        """Every inbox, and how much waits in it."""
        inboxes = await standing_in(self._inboxes)
        return visit.page("inboxes", inboxes=inboxes, now=self._s.clock.now())

    async def one(self, visit: Visit) -> Response:
        """One inbox, with its dead letters."""
        return await self._page(visit, visit.query.get("name", ""), visit.query.get("error", ""))

    async def redrive(self, visit: Visit) -> Response:
        """Show what would be put back, and then put that back."""
        form = visit.form
        name, which = form.get("name", ""), DeadFilter(id=form.get("id", ""), error=form.get("error", ""))
        try:
            inbox = self._inbox(name)
            if form.get("confirmed") == "yes":
                done = await self._redriven(visit, inbox, which)
                return await self._page(visit, name, which.error, done=done)
            preview = await asyncio.to_thread(inbox.redrive_where, which, preview=True)
            if not preview.letters:
                raise InvalidOption("there is no such dead letter any more: somebody may have put it back")
        except UsageError as problem:
            return await self._page(visit, name, which.error, 400, problem=str(problem))
        return visit.page(
            "redrive",
            page="inboxes",
            name=name,
            which=preview.narrowed(which),
            letters=preview.letters,
            record_key=inbox.record_key,
            errors=_errors(preview.letters),
            now=self._s.clock.now(),
        )

    async def _redriven(self, visit: Visit, inbox: Inbox, which: DeadFilter) -> str:
        """Put back what was shown, and nothing that died since; says what came of it."""
        form, by = visit.form, name_of(visit)
        which = msgspec.structs.replace(which, until=moment_in(form.get("until", "")))
        done = await asyncio.to_thread(redrive, self._s, inbox, which, by=by, why=form.get("why", ""))
        back, shown = len(done.letters), form.get("shown", "")
        gone = int(shown) - back if shown.isdecimal() else len(done.refused)
        return f"{back} put back" + (f"; {gone} not there any more" if gone > 0 else "")

    async def reveal(self, visit: Visit) -> Response:
        """Show what a dead letter says to an operator, which the journal tells."""
        name, id = visit.form.get("name", ""), visit.form.get("id", "")
        try:
            inbox, by, why = self._inbox(name), name_of(visit), visit.form.get("why", "")
            check_named(by, why)
            await self._s.aio.ops.note(by, why, "reveal letter", f"inbox {name}: {id}")
            shown = await self._letter(inbox, id)
        except UsageError as problem:
            return await self._page(visit, name, "", 400, problem=str(problem))
        if shown is None:
            return await self._page(visit, name, "", 404, problem=f"there is no dead letter {id!r} any more")
        return await self._page(visit, name, visit.form.get("error", ""), shown=shown)

    async def _letter(self, inbox: Inbox, id: str) -> Dead | None:
        """A dead letter with what it says; a queue finds none by its id, so there many are gone through."""
        if not isinstance(inbox, StoreInbox):
            letters = await asyncio.to_thread(inbox.dead, LOOKED_THROUGH, bodies=True)
            return next((one for one in letters if one.id == id), None)
        box = self._s.aio.mailbox(inbox.name)
        found = await box.dead_letter(id)
        if found is None:
            return None
        try:
            body = box.steps.open(found).body
        except MessageUnreadable:
            body = msgspec.UNSET
        return Dead(found.id, found.key, found.group, found.attempts, found.error, found.at, body)

    async def _page(
        self,
        visit: Visit,
        name: str,
        error: str,
        status: int = 200,
        *,
        problem: str = "",
        done: str = "",
        shown: Dead | None = None,
    ) -> Response:
        if name not in self._inboxes:
            return visit.problem(404, "No such inbox", f"There are {', '.join(self._inboxes) or 'none'}.")
        inbox, which = self._inboxes[name], DeadFilter(error=error)
        standing = await asyncio.to_thread(status_of, inbox)
        most = LOOKED_THROUGH if error else LOOKED_AT
        letters = [] if standing.dead is None else await asyncio.to_thread(inbox.dead, most)
        chosen = [letter for letter in letters if which.fits(letter)]
        return visit.page(
            "inbox",
            status,
            page="inboxes",
            name=name,
            error=error,
            look=standing,
            errors=_errors(letters),
            letters=chosen[:SHOWN],
            record_key=inbox.record_key,
            more=len(chosen) > SHOWN or len(letters) >= most,
            problem=problem,
            done=done,
            shown=shown,
            body_known=shown is not None and shown.body is not msgspec.UNSET,
            now=self._s.clock.now(),
        )

    def _inbox(self, name: str) -> Inbox:
        if name not in self._inboxes:
            raise InvalidOption(f"there is no inbox {name!r}")
        return self._inboxes[name]


def _errors(letters: Iterable[Dead]) -> list[tuple[str, int]]:
    """How many died of what, the most frequent first."""
    return Counter(letter.error_type for letter in letters).most_common()
