"""Persons: what is kept about one, and erasing it, first as a preview."""

from starlette.responses import Response

from semel.connect import Semel
from semel.dashboard.forms import name_of
from semel.dashboard.visits import Visit
from semel.errors import UsageError
from semel.ops.model import Erased


class PersonPages:
    """Answers visits of those who are to erase somebody."""

    def __init__(self, s: Semel) -> None:
        self._ops = s.aio.ops

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

    @staticmethod
    def _page(
        visit: Visit, status: int = 200, *, problem: str = "", erased: Erased | None = None
    ) -> Response:
        return visit.page("persons", status, problem=problem, erased=erased, typed=visit.form)
