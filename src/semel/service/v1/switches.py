"""Switches: what stops work at once, for every worker and every tenant of the environment."""

from typing import Final

from fastapi import APIRouter

from semel.ops.actions import NO_REASON
from semel.service.openapi import problems
from semel.service.tokens import Admin, SwitchViewer
from semel.service.v1.models import SwitchesResponse, SwitchPath, SwitchRequest, SwitchResponse, answer
from semel.service.v1.strict_json import StrictRoute
from semel.state.switches import Switch

routes: Final = APIRouter(prefix="/switches", tags=["switches"], route_class=StrictRoute)


@routes.get("", operation_id="list_switches", responses=problems())
async def switches(caller: SwitchViewer) -> SwitchesResponse:
    """Every switch that was ever turned; a token with `ops:read` and `apps:read` may see them too."""
    found = await caller.s.aio.switches.list()
    return SwitchesResponse(switches=[_response(name, found[name]) for name in sorted(found)])


@routes.put("/{name}", operation_id="turn_switch", responses=problems("key-malformed"))
async def turn(name: SwitchPath, asked: SwitchRequest, caller: Admin) -> SwitchResponse:
    """Turn a switch on or off; gates know of it within a second."""
    why = asked.reason or NO_REASON
    return _response(name, await caller.s.aio.ops.turn(name, on=asked.on, by=caller.name, why=why))


def _response(name: str, switch: Switch) -> SwitchResponse:
    return answer(SwitchResponse, switch, name=name)
