"""The policy's own pages: what is promised, and how it stands with a request."""

from semel.core.drive import adrive, drive
from semel.doors.http.policy import Idempotency, RequestHead
from semel.doors.http.responses import HTTPResponse


def page_of(idempotency: Idempotency, request: RequestHead) -> HTTPResponse | None:
    """The page that is asked for; None where it is the application's own."""
    return drive(idempotency.page(request), idempotency.s.store, idempotency.s.events.failed)


async def apage_of(idempotency: Idempotency, request: RequestHead) -> HTTPResponse | None:
    """Await the page that is asked for; None where it is the application's own."""
    return await adrive(idempotency.page(request), idempotency.s.store, idempotency.s.events.failed)
