"""The ledger over HTTP, for any language: the same promises as the library, by the same rules.

`rules` decides what a repeated request means, `models` says how requests and answers look, and the routers
only carry them to the ledger of the caller's tenant.
"""

from fastapi import APIRouter

from semel.service.runtime import Runtime
from semel.service.v1 import claims, counters, gates, inboxes, marks, ops, records, switches


def router(runtime: Runtime) -> APIRouter:
    """Everything under /v1."""
    routes = APIRouter(prefix="/v1")
    for part in (claims.routes, records.routes, marks.routes, counters.routes):
        routes.include_router(part)
    routes.include_router(gates.router(runtime))
    routes.include_router(switches.routes)
    routes.include_router(ops.routes)
    routes.include_router(inboxes.router(runtime))
    return routes
