"""Inboxes: what waits, what nobody could handle, and putting that back."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec
from starlette.responses import Response

from semel.connect import Semel
from semel.dashboard.views import LedgerView
from semel.dashboard.visits import Visit
from semel.doors.inbox import Counted, Dead, Inbox, Survey
from semel.errors import InvalidOption, UsageError

# So many dead letters are looked at for a page, and so many for those of one error.
LOOKED_AT: Final = 200
LOOKED_THROUGH: Final = 1000
SHOWN: Final = 100


class InboxLook(msgspec.Struct, frozen=True):
    """How an inbox stands."""

    survey: Survey
    dead: Counted | None
    """None where the queue was not told where its dead letters are."""


async def look_into(inbox: Inbox) -> InboxLook:
    """How an inbox stands; a queue is asked in a thread."""
    return await asyncio.to_thread(_look, inbox)


def _look(inbox: Inbox) -> InboxLook:
    survey, dead = inbox.survey(), None
    with suppress(UsageError):
        dead = inbox.count(dead=True)
    return InboxLook(survey, dead)


def error_type(letter: Dead) -> str:
    """The type of the error of which a letter died."""
    return letter.error.partition(":")[0].strip() or "unknown"


class RedrivePreview(msgspec.Struct, frozen=True):
    """What would be put back."""

    letters: tuple[Dead, ...]
    more: bool = False
    """There are more than were looked at."""

    @property
    def errors(self) -> list[tuple[str, int]]:
        """How many died of what, the most frequent first."""
        return Counter(map(error_type, self.letters)).most_common()


class InboxPages:
    """Answers visits with what waits in the inboxes of a ledger."""

    def __init__(self, s: Semel, view: LedgerView) -> None:
        self._s, self._inboxes = s, view.inboxes

    async def all(self, visit: Visit) -> Response:
        """Every inbox, and how much waits in it."""
        looks = await asyncio.gather(*map(look_into, self._inboxes.values()))
        inboxes = dict(zip(self._inboxes, looks, strict=True))
        return visit.page("inboxes", inboxes=inboxes, now=self._s.clock.now())

    async def one(self, visit: Visit) -> Response:
        """One inbox, with its dead letters."""
        return await self._page(visit, visit.query.get("name", ""), visit.query.get("error", ""))

    async def redrive(self, visit: Visit) -> Response:
        """Show what would be put back, and then put that back."""
        form = visit.form
        name, error, id = form.get("name", ""), form.get("error", ""), form.get("id", "")
        try:
            inbox = self._inbox(name)
            if form.get("confirmed") == "yes":
                done = await self._redriven(visit, inbox)
                return await self._page(visit, name, error, done=done)
            preview = await asyncio.to_thread(_preview, inbox, id, error)
        except UsageError as problem:
            return await self._page(visit, name, error, 400, problem=str(problem))
        return visit.page(
            "redrive",
            page="inboxes",
            name=name,
            error=error,
            id=id,
            preview=preview,
            ids=[letter.id for letter in preview.letters],
            now=self._s.clock.now(),
        )

    async def _redriven(self, visit: Visit, inbox: Inbox) -> str:
        """Put back what was shown, once the journal has it; says what came of it."""
        form, everything = visit.form, visit.form.get("all") == "yes"
        ids = [] if everything else _ids(form.get("ids", ""))
        what = "all" if everything else f"{len(ids)} letters" if len(ids) != 1 else ids[0]
        if form.get("error") and not everything:
            what = f"{what} of {form['error']}"
        await self._note(visit, "redrive", f"inbox {inbox.name}: {what}")
        back, gone = await asyncio.to_thread(_put_back, inbox, ids, everything)
        return f"{back} put back" + (f"; {gone} not there any more" if gone else "")

    async def reveal(self, visit: Visit) -> Response:
        """Show what a dead letter says to an operator, which the journal tells."""
        name, id = visit.form.get("name", ""), visit.form.get("id", "")
        try:
            inbox = self._inbox(name)
            await self._note(visit, "reveal letter", f"inbox {name}: {id}")
            letters = await asyncio.to_thread(inbox.dead, LOOKED_THROUGH, bodies=True)
        except UsageError as problem:
            return await self._page(visit, name, "", 400, problem=str(problem))
        shown = next((letter for letter in letters if letter.id == id), None)
        if shown is None:
            return await self._page(visit, name, "", 404, problem=f"there is no dead letter {id!r} any more")
        return await self._page(visit, name, visit.form.get("error", ""), shown=shown)

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
        inbox = self._inboxes[name]
        look = await look_into(inbox)
        most = LOOKED_THROUGH if error else LOOKED_AT
        letters = [] if look.dead is None else await asyncio.to_thread(inbox.dead, most)
        chosen = [letter for letter in letters if not error or error_type(letter) == error]
        return visit.page(
            "inbox",
            status,
            page="inboxes",
            name=name,
            error=error,
            look=look,
            errors=RedrivePreview(tuple(letters)).errors,
            letters=chosen[:SHOWN],
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

    async def _note(self, visit: Visit, what: str, about: str) -> None:
        """Tell the journal, before it is done."""
        by, why = "" if visit.user is None else visit.user.name, visit.form.get("why", "").strip()
        if not why:
            raise InvalidOption("say why, for whoever looks back")
        await self._s.aio.ops.note(by, why, what, about)


def _preview(inbox: Inbox, id: str, error: str) -> RedrivePreview:
    letters = inbox.dead(LOOKED_THROUGH)
    chosen = [
        letter
        for letter in letters
        if (not id or letter.id == id) and (not error or error_type(letter) == error)
    ]
    if not chosen:
        raise InvalidOption("there is no such dead letter any more: somebody may have put it back")
    return RedrivePreview(tuple(chosen), len(letters) >= LOOKED_THROUGH and not id)


def _ids(text: str) -> list[str]:
    ids = [line for line in text.splitlines() if line]
    if not ids:
        raise InvalidOption("no letter was named: look at the inbox again")
    return ids[:LOOKED_THROUGH]


def _put_back(inbox: Inbox, ids: Sequence[str], everything: bool) -> tuple[int, int]:
    """How many were put back, and how many were not there any more."""
    if everything:
        return inbox.redrive(), 0
    back = 0
    for id in ids:
        with suppress(UsageError):  # it is not there
            back += inbox.redrive(id)
    return back, len(ids) - back
