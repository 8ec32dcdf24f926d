"""HTTP: requests with an `Idempotency-Key` have their effect once, and every retry gets the same response.

    idempotency = Idempotency(s, identity=lambda request: request.user.username)

It is what a server promises; `semel.doors.asgi`, `wsgi`, `fastapi`, `litestar`, `flask` and `django` keep it.
"""

from semel.doors.http.policy import ANYONE, AdmittedKey, Idempotency, RequestHead
from semel.doors.http.responses import KEPT_HEADERS, HTTPResponse, StoredResponse

__all__ = [
    "ANYONE",
    "KEPT_HEADERS",
    "AdmittedKey",
    "HTTPResponse",
    "Idempotency",
    "RequestHead",
    "StoredResponse",
]
