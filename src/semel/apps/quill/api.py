"""The facts, to be read over HTTP."""

from dataclasses import dataclass
from datetime import date
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query

from semel.apps.quill.app import Quill
from semel.apps.quill.star import Total


@dataclass(frozen=True)
class Facts:
    """What agents did, by day, agent and metric."""

    facts: list[Total]


def router(app: Quill) -> APIRouter:
    """The addresses of quill."""
    routes = APIRouter(tags=["quill"])

    @routes.get("/facts", summary="Totals by agent, metric and day")
    def facts(
        since: Annotated[date, Query(alias="from")],
        until: Annotated[date, Query(alias="to", description="This day is included.")],
    ) -> Facts:
        if app.star is None:
            raise HTTPException(404, "the facts are in Power BI")
        if not app.star.counts:
            raise HTTPException(404, "no table of facts has an agent, a metric and a date")
        return Facts(app.star.totals(since, until))

    return routes
