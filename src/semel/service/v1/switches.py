"""Switches: what stops work at once, for every worker and every tenant of the environment."""

from typing import Annotated, Final

from fastapi import APIRouter, Path

from semel.ops.actions import NO_REASON
from semel.service.openapi import problems
from semel.service.tokens import Admin
from semel.service.v1.models import KEY_FORM, SwitchesResponse, SwitchRequest, SwitchResponse, answer
from semel.service.v1.strict_json import StrictRoute
from semel.state.switches import Switch

SwitchPath = Annotated[str, Path(**KEY_FORM)]


routes: Final = APIRouter(prefix="/switches", tags=["switches"], route_class=StrictRoute)


@routes.get("", responses=problems())
async def switches(caller: Admin) -> SwitchesResponse:
    """Every switch that was ever turned."""
    found = await caller.s.aio.switches.list()
    return SwitchesResponse(switches=[_response(name, found[name]) for name in sorted(found)])


@routes.put("/{name}", responses=problems("key-malformed"))
async def turn(name: SwitchPath, asked: SwitchRequest, caller: Admin) -> SwitchResponse:
    """Turn a switch on or off; gates know of it within a second."""
    why = asked.reason or NO_REASON
    return _response(name, await caller.s.aio.ops.turn(name, on=asked.on, by=caller.name, why=why))


def _response(name: str, switch: Switch) -> SwitchResponse:
    return answer(SwitchResponse, switch, name=name)
