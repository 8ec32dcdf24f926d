"""Django REST framework: `class Charges(IdempotentMixin, APIView)` keeps the policy for a view or a viewset.

A key is claimed when the request is authenticated, permitted and within its throttle, and before the handler
runs; what the handler answers is kept as it was rendered.
"""

# mypy: disable-error-code="import-untyped"

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from semel.core.runtime import require

require("django", "django")  # which says how to install it

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from semel.doors.django import (
    Every,
    admitted,
    in_transactions,
    kept,
    leave_transactions,
    read,
    refuse_transaction,
    rendered,
    response_of,
)
from semel.doors.http.exchange import Exchange
from semel.doors.http.policy import Idempotency

__all__ = ["IdempotentMixin"]


class IdempotentMixin:
    """Stands before APIView among the bases; `identity` is given the framework's Request."""

    idempotency: ClassVar[Idempotency]
    _exchange: Exchange | None = None

    @classmethod
    def as_view(cls, *args: Any, **kwargs: Any) -> Callable[..., HttpResponseBase]:
        """The view for a route."""
        view: Callable[..., HttpResponseBase] = super().as_view(*args, **kwargs)  # type: ignore[misc]
        leave_transactions(view)
        return view

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer one request."""
        refuse_transaction()
        self._claim_at_the_handler(request)
        answer = in_transactions(
            functools.partial(rendered, super().dispatch),  # type: ignore[misc]  # APIView's
            Every(getattr(type(self).dispatch, "_non_atomic_requests", ())),
        )
        try:
            response = answer(request, *args, **kwargs)
        except BaseException as error:
            refusal = None if self._exchange is None else self._exchange.fail(error)
            if refusal is None:
                raise
            return response_of(refusal)
        return response if self._exchange is None else kept(self._exchange, response)

    def _claim_at_the_handler(self, request: HttpRequest) -> None:
        """Have the key claimed where the handler would be called: everything that may refuse has run then."""
        name = str(request.method).lower()
        handler = getattr(self, name, None)
        if handler is None or not self.idempotency.protects(str(request.method)):
            return
        if "HTTP_IDEMPOTENCY_KEY" in request.META:
            # Before anybody parses it, after which its bytes would be gone.
            read(request, self.idempotency.max_body)

        def claimed(native: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
            refusal = self._begin(request, native)
            return handler(native, *args, **kwargs) if refusal is None else refusal

        setattr(self, name, claimed)

    def _begin(self, request: HttpRequest, native: Any) -> HttpResponseBase | None:
        exchange = admitted(self.idempotency, request, native)
        if isinstance(exchange, Exchange):
            refusal = exchange.begin()
            self._exchange = exchange if refusal is None else None
        else:
            refusal = exchange
        return None if refusal is None else response_of(refusal)
