"""Switches: what stops work at once, for every worker and every tenant of the environment."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from semel.core.keys import MAX_KEY_BYTES
from semel.service.openapi import problems
from semel.service.problems import moment
from semel.service.runtime import Runtime
from semel.service.tokens import Principal, Tokens
from semel.service.v1.models import SwitchesResponse, SwitchRequest, SwitchResponse
from semel.service.v1.strict_json import StrictRoute
from semel.state.switches import Switch

SwitchPath = Annotated[str, Path(min_length=1, max_length=MAX_KEY_BYTES, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]


def router(_runtime: Runtime, tokens: Tokens) -> APIRouter:
    """The addresses of switches."""
    routes = APIRouter(prefix="/switches", tags=["switches"], route_class=StrictRoute)
    Admin = Annotated[Principal, Depends(tokens.asking("admin"))]  # noqa: N806 - a type

    @routes.get("", responses=problems())
    async def switches(caller: Admin) -> SwitchesResponse:
        """Every switch that was ever turned."""
        found = await caller.s.aio.switches.list()
        return SwitchesResponse(switches=[_told(name, found[name]) for name in sorted(found)])

    @routes.put("/{name}", responses=problems("key-malformed"))
    async def turn(name: SwitchPath, asked: SwitchRequest, caller: Admin) -> SwitchResponse:
        """Turn a switch on or off; gates know of it within a second."""
        document = await caller.s.aio.switches.turn(name, on=asked.on, reason=asked.reason)
        return _told(name, Switch(**document.value[name]))

    return routes


def _told(name: str, switch: Switch) -> SwitchResponse:
    return SwitchResponse(name=name, on=switch.on, since=moment(switch.since), reason=switch.reason)
