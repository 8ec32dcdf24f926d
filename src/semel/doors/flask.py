"""Flask: `@idempotent(idempotency)` under a route keeps the policy for one view.

    @app.post("/charges")
    @idempotent(idempotency)
    def charge(): ...

A key is claimed after `before_request` has run, so whoever that turns away uses up no key, and learns nothing
of what is kept. What `after_request` and the session add belongs to each request, and is not kept. For every
view of an application at once there is `semel.doors.wsgi.IdempotencyMiddleware`.
"""

import functools
import io
from collections.abc import Callable
from typing import Any, ParamSpec

from semel.core.runtime import require

require("flask", "flask")  # which says how to install it

from flask import Flask, Request, Response, current_app, request
from flask.typing import ResponseReturnValue

from semel import errors
from semel.doors import wsgi
from semel.doors.http.exchange import Exchange, claim
from semel.doors.http.policy import Idempotency
from semel.doors.http.publish import page_of
from semel.doors.http.responses import HTTPResponse

__all__ = ["idempotent", "publish"]

P = ParamSpec("P")
FlaskView = Callable[P, Any]


def idempotent(idempotency: Idempotency) -> Callable[[FlaskView[P]], Callable[P, ResponseReturnValue]]:
    """Keep this policy for a view; `identity` is given `flask.request`. An async view may be meant too."""

    def protect(view: FlaskView[P]) -> Callable[P, ResponseReturnValue]:
        @functools.wraps(view)
        def protected(*args: P.args, **kwargs: P.kwargs) -> ResponseReturnValue:
            call = functools.partial(current_app.ensure_sync(view), *args, **kwargs)
            claimed = None
            if idempotency.protects(request.method):
                head = wsgi.request_of(request.environ, request)
                claimed = claim(idempotency, head, functools.partial(_body, request))
            if claimed is None:
                return call()  # type: ignore[no-any-return]  # whatever the view gives
            if isinstance(claimed, HTTPResponse):
                return _response(claimed)
            return _run(claimed, call)

        return protected

    return protect


def publish(app: Flask, idempotency: Idempotency) -> None:
    """Serve the policy, and the status of a key, at its well-known path."""

    def page(**_token: str) -> Response:
        return _page(idempotency)

    path = idempotency.well_known
    endpoint = f"idempotency{path.replace('.', '_')}"
    app.add_url_rule(path, endpoint, page)
    app.add_url_rule(f"{path}/<path:token>", endpoint, page)


def _page(idempotency: Idempotency) -> Response:
    page = page_of(idempotency, wsgi.request_of(request.environ, request))
    return current_app.response_class(status=404) if page is None else _response(page)


def _body(request: Request, max_bytes: int) -> bytes | None:
    """The body of a request; None where it is larger than it may be."""
    if "stream" not in vars(request):
        # Nobody has begun to read: so it is read here, and no further than it may be long.
        body = wsgi.read(request.environ, max_bytes)
        if body is None:
            return None
        request.environ["wsgi.input"] = io.BytesIO(body)
    body = request.get_data(cache=True)
    if not body and "form" in vars(request) and (request.form or request.files):
        raise errors.UsageError(
            "this form was parsed before its key was claimed, and its bytes are gone: use "
            "semel.doors.wsgi.IdempotencyMiddleware, or call request.get_data() before request.form is read"
        )
    return None if len(body) > max_bytes else body


def _run(exchange: Exchange, call: Callable[[], Any]) -> Response:
    """Let the view answer, and write down what it answers."""
    made = exchange.attempt(functools.partial(_made, call, exchange.recording.max_bytes))
    if isinstance(made, HTTPResponse):
        return _response(made)
    response, body = made
    if body is None:
        return _streamed(exchange, response)
    answer = exchange.keep(response.status_code, list(response.headers), body)
    if answer is None:
        return response
    response.close()
    return _response(answer)


def _made(call: Callable[[], Any], max_bytes: int) -> tuple[Response, bytes | None]:
    response = _answered(call)
    return response, _whole(response, max_bytes)


def _answered(call: Callable[[], Any]) -> Response:
    """What the view answers; an error that the application makes a response of is an answer too."""
    try:
        return current_app.make_response(call())
    except Exception as error:  # noqa: BLE001 - Flask raises it again where nobody handles it
        return current_app.make_response(current_app.handle_user_exception(error))


def _whole(response: Response, max_bytes: int) -> bytes | None:
    """The body of a response that is there, or is short; None where it comes in pieces."""
    length = response.content_length
    if response.is_streamed and (length is None or length > max_bytes):
        return None
    response.direct_passthrough = False
    response.make_sequence()
    return b"".join(response.iter_encoded())


def _streamed(exchange: Exchange, response: Response) -> Response:
    pieces = response.iter_encoded()
    if hasattr(response.response, "close"):
        response.call_on_close(response.response.close)
    response.direct_passthrough = False
    response.response = exchange.stream_later(response, response.status_code, list(response.headers), pieces)
    return response


def _response(answer: HTTPResponse) -> Response:
    response = current_app.response_class(answer.body, answer.status, answer.headers)
    if all(name.lower() != "content-type" for name, _ in answer.headers):
        del response.headers["Content-Type"]
    return response
