"""The policy's own pages: what is promised, and how it stands with a request."""

from semel import errors
from semel.doors.http.policy import Idempotency, RequestHead, StatusQuery
from semel.doors.http.responses import HTTPResponse


def page_of(idempotency: Idempotency, request: RequestHead) -> HTTPResponse | None:
    """The page that is asked for; None where it is the application's own."""
    page = idempotency.page(request)
    if not isinstance(page, StatusQuery):
        return page
    try:
        return idempotency.status(page, page.ledger.ledger.get(page.key))
    except errors.SemelError as error:
        return idempotency.refuse_page(page, error)


async def apage_of(idempotency: Idempotency, request: RequestHead) -> HTTPResponse | None:
    """Await the page that is asked for; None where it is the application's own."""
    page = idempotency.page(request)
    if not isinstance(page, StatusQuery):
        return page
    try:
        return idempotency.status(page, await page.ledger.aio.ledger.get(page.key))
    except errors.SemelError as error:
        return idempotency.refuse_page(page, error)
