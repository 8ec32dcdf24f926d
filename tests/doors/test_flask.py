"""The Flask door: decorated views keep the policy, and the rest of the application goes on as before."""

import gc
import io
from typing import Any

import pytest
from flask import (
    Blueprint,
    Flask,
    Response,
    abort,
    g,
    jsonify,
    request,
    send_file,
    session,
    stream_with_context,
)
from flask.views import MethodView

import semel
from semel.doors.flask import idempotent, publish
from semel.doors.http import ANYONE, Idempotency
from semel.doors.wsgi import IdempotencyMiddleware
from tests.doors.wsgi_kit import KEY, Exchanged, Out, World, WsgiClaims, bearer, environ_of, pieces


def response_of(out: Out) -> Response:
    response = Response(out.body, out.status)
    for name, value in out.headers.items():
        response.headers[name] = value
    return response


def guarded(world: World) -> Flask:
    """An application that lets in whom the world allows, before any view."""
    app = Flask(__name__)

    @app.before_request
    def authorise() -> None:
        g.user = bearer(request.headers.get("Authorization"))
        if (g.user or "") not in world.allowed:
            abort(403)

    return app


def answer(world: World) -> Response | str:
    return response_of(world(request.get_data())) if request.method == "POST" else "hello"


METHODS = ["GET", "POST", "PUT", "DELETE"]


class TestView(WsgiClaims):
    def make_app(self, idempotency, world):
        app = guarded(world)
        publish(app, idempotency)

        @app.route("/charges", methods=METHODS)
        @idempotent(idempotency)
        def charges():
            return answer(world)

        return app

    def identity(self, native):
        assert native.path
        return g.user


class TestAsyncView(TestView):
    stores = ("memory",)

    def make_app(self, idempotency, world):
        app = guarded(world)
        publish(app, idempotency)

        @app.route("/charges", methods=METHODS)
        @idempotent(idempotency)
        async def charges():
            return answer(world)

        return app


class TestMethodView(TestView):
    stores = ("memory",)

    def make_app(self, idempotency, world):
        class Charges(MethodView):
            decorators = [idempotent(idempotency)]  # noqa: RUF012 - as Flask has it

            def get(self):
                return answer(world)

            post = put = delete = get

        blueprint = Blueprint("shop", __name__)
        blueprint.add_url_rule("/charges", view_func=Charges.as_view("charges"))
        app = guarded(world)
        app.register_blueprint(blueprint)
        publish(app, idempotency)
        return app


class TestWholeApplication(WsgiClaims):
    """The middleware around a whole Flask application; what authorises stands around it."""

    stores = ("memory",)

    def make_app(self, idempotency, world):
        app = Flask(__name__)

        @app.route("/charges", methods=METHODS)
        def charges():
            return answer(world)

        app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, idempotency)  # type: ignore[method-assign]

        def guard(environ, start_response):
            if (bearer(environ.get("HTTP_AUTHORIZATION")) or "") not in world.allowed:
                return Response("not for you", 403)(environ, start_response)
            return app(environ, start_response)

        return guard

    def identity(self, native):
        return bearer(native.get("HTTP_AUTHORIZATION"))


# What is Flask's own


@pytest.fixture
def idempotency(s):
    return Idempotency(s, identity=ANYONE, max_kept=4096)


@pytest.fixture
def app():
    app = Flask(__name__)
    app.secret_key = "for tests"
    return app


@pytest.fixture
def times():
    return []


def post(app: Flask, key: str = KEY, **options: Any) -> Any:
    options.setdefault("json", {"cents": 4200})
    return app.test_client().post("/charges", headers={"Idempotency-Key": key}, **options)


def test_a_view_may_give_whatever_flask_takes(app, idempotency):
    given: list[Any] = ["text", {"json": [1]}, [1, 2], ("made", 201, {"Location": "/1"}), (b"\xff", 202)]

    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        return given[int(request.get_json()["number"])]

    for number in range(len(given)):
        first, again = (post(app, f"k{number}", json={"number": number}) for _ in range(2))
        assert (again.data, again.status, again.content_type) == (
            first.data,
            first.status,
            first.content_type,
        )
        assert again.headers["Idempotent-Replayed"] == "true"


def test_an_answer_by_abort_is_kept_as_the_application_words_it(app, idempotency, times):
    @app.errorhandler(404)
    def not_found(error):
        times.append(error)
        return jsonify(error=error.description), 404

    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        abort(404, "no such card")

    first, again = post(app), post(app)
    assert first.json == again.json == {"error": "no such card"}
    assert (first.status_code, again.status_code) == (404, 404)
    assert len(times) == 1


def test_an_error_that_the_application_makes_an_answer_of_is_that_answer(app, idempotency, times):
    class Declined(Exception):
        pass

    @app.errorhandler(Declined)
    def declined(_error):
        return f"declined {len(times)}", 402

    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        times.append(1)
        raise Declined

    assert [post(app).data for _ in range(2)] == [b"declined 1"] * 2


def test_an_aborted_5xx_gives_the_key_back(app, idempotency, times):
    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        times.append(1)
        if len(times) == 1:
            abort(503)
        return "made"

    assert [post(app).status_code for _ in range(3)] == [503, 200, 200]
    assert len(times) == 2


def test_an_error_of_the_error_handler_gives_the_key_back(app, idempotency, times):
    @app.errorhandler(404)
    def broken(_error):
        times.append(1)
        raise RuntimeError("the page is broken")

    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        if not times:
            abort(404)
        return "made"

    assert post(app).status_code == 500
    assert post(app).data == b"made"


def test_a_session_cookie_belongs_to_the_request_that_gets_it(app, idempotency, times):
    @app.before_request
    def count():
        session["visits"] = session.get("visits", 0) + 1

    @app.after_request
    def stamp(response):
        times.append(1)
        response.headers["X-Request"] = str(len(times))
        response.set_cookie("seen", str(len(times)))
        return response

    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        return "made"

    first, again = post(app), post(app)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (first.headers["X-Request"], again.headers["X-Request"]) == ("1", "2")
    assert any("seen=2" in cookie for cookie in again.headers.getlist("Set-Cookie"))
    assert not any("seen=1" in cookie for cookie in again.headers.getlist("Set-Cookie"))
    assert any("session=" in cookie for cookie in again.headers.getlist("Set-Cookie"))


@pytest.mark.parametrize(("size", "kept"), [(100, True), (4096, True), (70_000, False)])
def test_a_file_is_sent_and_kept_where_it_is_small_enough(app, idempotency, tmp_path, times, size, kept):
    path = tmp_path / "receipt.bin"
    path.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))

    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        times.append(1)
        return send_file(path, as_attachment=True)

    with post(app) as first:
        assert first.data == path.read_bytes()
    with post(app) as again:
        assert (again.data == path.read_bytes()) is kept
        assert again.status_code == 200
        assert again.headers.get("Idempotency-Body") == (None if kept else "not-kept")
        assert again.headers.get("Content-Disposition") == (
            first.headers["Content-Disposition"] if kept else None
        )
    assert len(times) == 1


def test_a_server_that_sends_files_itself_is_given_none_past_the_ledger(app, idempotency, tmp_path):
    path = tmp_path / "receipt.bin"
    path.write_bytes(b"x" * 10_000)

    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        return send_file(path)

    class Wrapper:
        def __init__(self, file: Any, size: int = 8192) -> None:
            self.file, self.size = file, size

        def __iter__(self):
            yield from iter(lambda: self.file.read(self.size), b"")

        def close(self):
            self.file.close()

    exchanged = Exchanged(app, environ_of(extra={"wsgi.file_wrapper": Wrapper}))
    assert not isinstance(exchanged.pieces, Wrapper)
    assert exchanged.read().body == b"x" * 10_000
    assert post(app, data=b'{"cents": 4200}', json=None).headers["Idempotency-Body"] == "not-kept"


def test_a_stream_sees_the_request_and_its_run(app, idempotency):
    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        def told():
            yield request.path
            yield f" attempt {semel.current_run().attempt}"

        return stream_with_context(told())

    assert [post(app).data for _ in range(2)] == [b"/charges attempt 1"] * 2


def test_what_is_to_happen_when_a_response_is_closed_happens_after_its_last_piece(app, idempotency):
    made: list[bytes] = []

    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        response = Response(pieces(made, 3))
        response.call_on_close(lambda: made.append(b"closed"))
        return response

    exchanged = Exchanged(app, environ_of())
    assert exchanged.next() == b"piece 0 "
    exchanged.close()
    assert made == [b"piece 0 ", b"piece 1 ", b"piece 2 ", b"closed"]


def test_a_stream_that_nobody_gets_to_see_is_made_and_kept_all_the_same(app, idempotency, times):
    app.logger.disabled = True  # what is logged would keep the response alive

    @app.after_request
    def fail_once(response):
        times.append(1)
        if len(times) == 1:
            raise RuntimeError("the trace could not be sent")
        return response

    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        return pieces([], 2)

    assert post(app).status_code == 500
    with pytest.raises(LookupError):
        semel.current_run()
    gc.collect()
    assert post(app).data == b"piece 0 piece 1 "


def test_a_parsed_form_is_refused_rather_than_taken_for_an_empty_body(app, idempotency, times):
    app.testing = True

    @app.before_request
    def check_csrf_token():
        if "early" in request.args:
            request.get_data()
        assert request.form.get("token") == "t"

    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        times.append(request.form["cents"])
        return "made"

    form: dict[str, Any] = {"json": None, "data": {"cents": "1", "token": "t"}}
    with pytest.raises(semel.errors.UsageError, match=r"request\.get_data"):
        post(app, **form)
    assert times == []
    assert [post(app, query_string="early", **form).data for _ in range(2)] == [b"made"] * 2
    assert times == ["1"]
    other: dict[str, Any] = {"json": None, "data": {"cents": "2", "token": "t"}}
    assert post(app, query_string="early", **other).status_code == 422


def test_a_form_and_its_files_are_read_as_ever_after_the_claim(app, idempotency, times):
    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        times.append((request.form["cents"], request.files["receipt"].read()))
        return "made"

    form = b'--x\r\nContent-Disposition: form-data; name="cents"\r\n\r\n1\r\n'
    form += b'--x\r\nContent-Disposition: form-data; name="receipt"; filename="r"\r\n\r\nbytes\r\n--x--\r\n'
    for _ in range(2):
        reply = post(app, json=None, data=form, content_type="multipart/form-data; boundary=x")
        assert reply.data == b"made"
    assert times == [("1", b"bytes")]


def test_an_application_s_own_limit_of_a_body_holds(app, idempotency, times):
    app.config["MAX_CONTENT_LENGTH"] = 10

    @app.post("/charges")
    @idempotent(idempotency)
    def charge():
        times.append(1)
        return "made"

    assert post(app, json=None, data=b"x" * 11).status_code == 413
    assert post(app, json=None, data=b"x" * 10).status_code == 200
    assert times == [1]


def test_a_body_of_unknown_length_is_read_no_further_than_it_may_be_long(app, s):
    @app.post("/charges")
    @idempotent(Idempotency(s, identity=ANYONE, max_body=8))
    def charge():
        return request.get_data()

    def chunked(body: bytes) -> Any:
        more = {"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True}
        environ = environ_of(HTTP_TRANSFER_ENCODING="chunked", extra=more)
        del environ["CONTENT_LENGTH"]
        return Exchanged(app, environ).read()

    assert chunked(b"12345678").body == b"12345678"
    assert chunked(b"123456789").status == 413


def test_two_policies_may_be_published_side_by_side(app, s, idempotency):
    publish(app, idempotency)
    publish(app, Idempotency(s, identity=ANYONE, well_known="/api/idempotency", required=False))
    client = app.test_client()
    assert client.get("/.well-known/idempotency-key").json["required"] is True
    assert client.get("/api/idempotency").json["required"] is False
    assert client.head("/api/idempotency").data == b""


def test_a_view_keeps_its_name_and_its_arguments(app, idempotency):
    @app.post("/charges/<int:number>")
    @idempotent(idempotency)
    def charge(number: int, unit: str = "cent"):
        """Charge a card."""
        return f"{number} {unit}"

    assert (charge.__name__, charge.__doc__) == ("charge", "Charge a card.")
    replies = [
        app.test_client().post(f"/charges/{n}", headers={"Idempotency-Key": KEY}).data for n in (1, 2, 1)
    ]
    assert replies == [b"1 cent", b"2 cent", b"1 cent"]
