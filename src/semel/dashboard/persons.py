"""Persons: what is kept about one, and erasing it, first as a preview."""

from starlette.responses import Response

from semel.connect import Semel
from semel.dashboard.forms import name_of
from semel.dashboard.views import LedgerView
from semel.dashboard.visits import Visit
from semel.doors.inbox import StoreInbox
from semel.errors import UsageError
from semel.ops.actions import left_in_queue
from semel.ops.model import Erased


class PersonPages:
    """Answers visits of those who are to erase somebody."""

    def __init__(self, s: Semel, view: LedgerView) -> None:
        self._ops = s.aio.ops
        self._queues = [name for name, inbox in view.inboxes.items() if not isinstance(inbox, StoreInbox)]

    async def ask(self, visit: Visit) -> Response:
        """Ask whom to erase."""
        return self._page(visit)

    async def erase(self, visit: Visit) -> Response:
        """Show what would be erased, and then erase it."""
        form, preview = visit.form, visit.form.get("confirmed") != "yes"
        try:
            erased = await self._ops.erase(
                form.get("person", "").strip(), by=name_of(visit), why=form.get("why", ""), preview=preview
            )
        except UsageError as problem:
            return self._page(visit, 400, problem=str(problem))
        return self._page(visit, erased=erased)

    def _page(
        self, visit: Visit, status: int = 200, *, problem: str = "", erased: Erased | None = None
    ) -> Response:
        left = [left_in_queue(name) for name in self._queues]
        return visit.page("persons", status, problem=problem, erased=erased, typed=visit.form, left=left)
