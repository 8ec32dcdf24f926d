"""The ledger over HTTP, for any language: the same promises as the library's, told by the same rules.

`rules` decides what a repeated request means, `models` says how requests and answers look, and the routers
only carry them to the ledger of the caller's tenant.
"""

from fastapi import APIRouter

from semel.service.runtime import Runtime
from semel.service.tokens import Tokens
from semel.service.v1 import claims, counters, gates, marks, records, switches


def router(runtime: Runtime, tokens: Tokens) -> APIRouter:
    """Everything under /v1."""
    routes = APIRouter(prefix="/v1")
    for part in (claims, records, marks, counters, gates, switches):
        routes.include_router(part.router(runtime, tokens))
    return routes
