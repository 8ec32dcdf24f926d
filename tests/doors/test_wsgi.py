"""The WSGI middleware: any application behind it keeps the policy."""

import contextlib
import io
from http import HTTPStatus
from typing import Any
from wsgiref.validate import validator

import pytest

from semel.doors.http import ANYONE, Idempotency
from semel.doors.wsgi import IdempotencyMiddleware
from tests.doors.wsgi_kit import App, Exchanged, Out, World, WsgiClaims, bearer, environ_of


def plain(world: World) -> App:
    """An application without any framework."""

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] != "POST":
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [b"" if environ["REQUEST_METHOD"] == "HEAD" else b"hello"]
        out = world(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0)))
        headers = {} if out.status == 204 else {"Content-Type": "text/plain"}
        if isinstance(out.body, bytes) and out.status != 204:
            # As frameworks do it; what wraps a list of pieces does not tell how many there are.
            headers["Content-Length"] = str(len(out.body))
        headers |= out.headers
        start_response(f"{out.status} {HTTPStatus(out.status).phrase}", list(headers.items()))
        return [out.body] if isinstance(out.body, bytes) else out.body

    return app


def guarded(app: App, world: World) -> App:
    """What authorises, around the middleware."""

    def guard(environ: dict[str, Any], start_response: Any) -> Any:
        if (bearer(environ.get("HTTP_AUTHORIZATION")) or "") not in world.allowed:
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"not for you"]
        return app(environ, start_response)

    return guard


class TestWsgi(WsgiClaims):
    def make_app(self, idempotency, world):
        return guarded(IdempotencyMiddleware(plain(world), idempotency), world)

    def identity(self, native):
        return bearer(native.get("HTTP_AUTHORIZATION"))


class TestWsgiByTheBook(WsgiClaims):
    """The same, with the standard's own checker on both sides of the middleware."""

    stores = ("memory",)

    def make_app(self, idempotency, world):
        inner = validator(plain(world))
        return guarded(_checked(IdempotencyMiddleware(inner, idempotency)), world)

    def identity(self, native):
        return bearer(native.get("HTTP_AUTHORIZATION"))


def _checked(app: Any) -> App:
    checked = validator(app)

    def call(environ: dict[str, Any], start_response: Any) -> Any:
        # It takes away the empty header, which no server would send on.
        return checked(dict(environ), start_response)

    return call


@pytest.fixture
def world():
    return World()


@pytest.fixture
def app(s, world):
    return IdempotencyMiddleware(plain(world), Idempotency(s, identity=ANYONE))


def post(app, **request):
    return Exchanged(app, environ_of(**request)).read()


def test_what_is_written_through_the_old_write_function_is_kept_too(s):
    def old(environ, start_response):
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(b"written ")
        write(b"first, ")
        return [b"returned then"]

    app = IdempotencyMiddleware(old, Idempotency(s, identity=ANYONE))
    assert [post(app).body for _ in range(2)] == [b"written first, returned then"] * 2


def test_an_application_that_may_begin_anew_after_an_error_is_kept_as_it_ended(s):
    import sys

    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            raise RuntimeError("after all")
        except RuntimeError:
            start_response("402 Payment Required", [("Content-Type", "text/html")], sys.exc_info())
        return [b"no"]

    app = IdempotencyMiddleware(app, Idempotency(s, identity=ANYONE))
    first, again = post(app), post(app)
    assert (first.status, again.status) == (402, 402)
    assert again.get("content-type") == "text/html"


def test_an_application_that_answers_when_it_is_iterated_is_answered_for(s, world):
    def lazy(environ, start_response):
        world(b"")
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"late"
        yield b" and later"

    app = IdempotencyMiddleware(lazy, Idempotency(s, identity=ANYONE))
    assert [post(app).body for _ in range(2)] == [b"late and later"] * 2
    assert world.times == 1


def test_an_application_that_never_answers_gives_the_key_back(s):
    app = IdempotencyMiddleware(lambda environ, start_response: [], Idempotency(s, identity=ANYONE))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="start_response"):
            post(app)


def test_the_applications_pieces_are_closed_once_they_are_sent(s):
    closed = []

    class Pieces:
        def __iter__(self):
            yield b"one"
            yield b"two"

        def close(self):
            closed.append(True)

    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return Pieces()

    app = IdempotencyMiddleware(app, Idempotency(s, identity=ANYONE))
    assert post(app).body == b"onetwo"
    assert closed == [True]
    assert post(app).body == b"onetwo"
    assert closed == [True]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_goes_on_and_leaves_no_key_locked(app, world, interruption):
    def interrupted(_body):
        if world.times == 1:
            raise interruption
        return Out(b"made")

    world.handle = interrupted
    with pytest.raises(interruption):
        post(app)
    assert post(app).body == b"made"


def test_a_body_of_unknown_length_is_read_where_the_server_ends_it(s, world):
    app = IdempotencyMiddleware(plain(world), Idempotency(s, identity=ANYONE, max_body=8))

    def chunked(body):
        environ = environ_of(extra={"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True})
        del environ["CONTENT_LENGTH"]
        return Exchanged(app, environ).read()

    assert chunked(b"12345678").status == 201
    assert world.bodies == [b"12345678"]
    assert chunked(b"123456789").status == 413
    assert chunked(b"other").status == 422


def test_a_body_of_unknown_length_is_none_where_the_server_does_not_end_it(app, world):
    class Endless(io.BytesIO):
        def read(self, *_size):
            raise AssertionError("this would wait for ever")

    environ = environ_of(extra={"wsgi.input": Endless()})
    del environ["CONTENT_LENGTH"]
    assert Exchanged(app, environ).read().status == 201
    assert world.bodies == [b""]


class Trickle(io.BytesIO):
    """A body that comes in small packets: a read gives what is there."""

    def read(self, size=-1):
        return super().read(min(size, 3) if size >= 0 else 3)


def test_a_body_that_comes_in_small_packets_is_read_to_its_end(app, world):
    body = b'{"cents": 4200}'
    environ = environ_of(body=body, extra={"wsgi.input": Trickle(body)})
    assert Exchanged(app, environ).read().status == 201
    assert world.bodies == [body]


def test_a_body_that_breaks_off_claims_nothing(app, world):
    body = b'{"cents": 4200}'
    environ = environ_of(body=body, extra={"wsgi.input": io.BytesIO(body[:7])})
    with contextlib.suppress(OSError):
        assert Exchanged(app, environ).read().status == 400
    assert world.times == 0
    assert post(app, body=body).status == 201


@pytest.mark.parametrize(
    "path", ["/caf\xc3\xa9", "/a\xc2\x85b", "/a\x00b", "/a b", "/" + "x" * 300, "/a/b%2Fc"]
)
def test_a_path_may_hold_anything(app, world, path):
    assert post(app, path=path).status == 201
    assert post(app, path=path).replayed
    assert world.times == 1


def test_another_path_is_another_key(app, world):
    for path in ("/a", "/a/", "/A", "/a:b"):
        assert not post(app, path=path).replayed
    assert world.times == 4


def test_an_application_under_a_prefix_tells_its_own_addresses(app):
    reply = post(app, key=None, SCRIPT_NAME="/shop")
    assert "</shop/.well-known/idempotency-key>" in (reply.get("link") or "")
    page = Exchanged(app, environ_of("GET", "/.well-known/idempotency-key", b"", SCRIPT_NAME="/shop")).read()
    assert page.status == 200


def test_a_head_of_a_page_has_no_body(app):
    reply = Exchanged(app, environ_of("HEAD", "/.well-known/idempotency-key", b"", key=None)).read()
    assert (reply.status, reply.body) == (200, b"")


def test_a_status_without_a_name_is_answered_with_all_the_same(s, world):
    def app(environ, start_response):
        start_response("299 Odd", [("Content-Type", "text/plain")])
        return [b"odd"]

    app = IdempotencyMiddleware(app, Idempotency(s, identity=ANYONE))
    assert [post(app).status for _ in range(2)] == [299, 299]
