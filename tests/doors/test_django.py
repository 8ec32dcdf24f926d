"""The Django doors: decorated views, a whole site, and views of Django REST framework keep the policy."""

# mypy: disable-error-code="import-untyped, misc"

import asyncio
import gc
import io
import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import connections, transaction
from django.http import FileResponse, Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.http import require_POST

import semel
from semel.connect import open_store
from semel.doors.django import idempotent, middleware, pages, user_of
from semel.doors.drf import IdempotentMixin
from semel.doors.http import ANYONE, Idempotency
from semel.testing import FakeClock
from tests.doors import django_site
from tests.doors.django_site import (
    ApiResponse,
    APIView,
    BasePermission,
    IsAuthenticated,
    TokenAuthentication,
    exceptions,
    renderers,
    routers,
    viewsets,
)
from tests.doors.wsgi_kit import (
    KEY,
    PATIENCE,
    Exchanged,
    Out,
    Reply,
    Watched,
    World,
    WsgiClaims,
    bearer,
    environ_of,
    pieces,
)

pytestmark = pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning")


@pytest.fixture(autouse=True)
def site():
    with django_site.site() as settings:
        yield settings


def response_of(out: Out) -> Any:
    kind = HttpResponse if isinstance(out.body, bytes) else StreamingHttpResponse
    response = kind(out.body, status=out.status)
    for name, value in out.headers.items():
        if name == "Set-Cookie":
            response.cookies.load(value)
        else:
            response[name] = value
    return response


def answer(request: Any, world: World) -> Any:
    return response_of(world(request.body)) if request.method == "POST" else HttpResponse("hello")


class TestView(WsgiClaims):
    def make_app(self, idempotency, world):
        @idempotent(idempotency)
        def charges(request):
            return answer(request, world)

        return django_site.serve([*pages(idempotency), path("charges", charges)], "guard", world=world)

    def identity(self, native):
        return native.who


class TestAsyncViewBehindWsgi(TestView):
    """An async view is run to its end in a loop of its own, and a stream of its is sent after that."""

    stores = ("memory",)

    def make_app(self, idempotency, world):
        @idempotent(idempotency)
        async def charges(request):
            return await sync_to_async(answer)(request, world)

        return django_site.serve([*pages(idempotency), path("charges", charges)], "guard", world=world)


class TestClass(TestView):
    stores = ("memory",)

    def make_app(self, idempotency, world):
        @method_decorator(idempotent(idempotency), name="dispatch")
        class Charges(View):
            def get(self, request):
                return answer(request, world)

            post = put = delete = get

        routes = [*pages(idempotency), path("charges", Charges.as_view())]
        return django_site.serve(routes, "guard", world=world)


class TestMiddleware(TestView):
    def make_app(self, idempotency, world):
        django_site.STATE["middleware"] = middleware(idempotency)

        def charges(request):
            return answer(request, world)

        return django_site.serve([path("charges", charges)], "guard", "idempotency", world=world)


class Plain(renderers.BaseRenderer):
    media_type, format, charset = "text/plain", "txt", None

    def render(self, data, accepted_media_type=None, renderer_context=None):
        return data


class Anyone:
    """A user of no model."""

    is_authenticated = True

    def __init__(self, name: str) -> None:
        self.pk = name


class Bearer(TokenAuthentication):
    keyword = "Bearer"

    def authenticate_credentials(self, key):
        return Anyone(key), key


def allowed(world: World) -> type[BasePermission]:
    class Allowed(BasePermission):
        def has_permission(self, request, view):
            return (request.user.pk if request.user else "") in world.allowed

    return Allowed


class TestApiView(WsgiClaims):
    def make_app(self, idempotency, world):
        class Charges(IdempotentMixin, APIView):
            authentication_classes = [Bearer]  # noqa: RUF012 - as the framework has it
            permission_classes = [allowed(world)]  # noqa: RUF012
            renderer_classes = [Plain, renderers.JSONRenderer]  # noqa: RUF012

            def get(self, request):
                return ApiResponse(b"hello")

            put = delete = get

            def post(self, request):
                out = world(request.body)
                if not isinstance(out.body, bytes):
                    return response_of(out)
                kind = out.headers.get("Content-Type")
                more = {name: value for name, value in out.headers.items() if name != "Set-Cookie"}
                response = ApiResponse(out.body, out.status, headers=more, content_type=kind)
                response.cookies.load(out.headers.get("Set-Cookie", ""))
                return response

        Charges.idempotency = idempotency
        return django_site.serve([*pages(idempotency), path("charges", Charges.as_view())])

    def identity(self, native):
        return bearer(native.headers.get("Authorization"))

    def test_whoever_is_nobody_has_no_keys(self, door):
        assert door.post(user="").status in (401, 403)
        assert door.world.times == 0


# What is Django's own


@pytest.fixture
def idempotency(s):
    return Idempotency(s, identity=ANYONE, max_kept=4096)


@pytest.fixture
def times():
    return []


def post(app: Any, **request: Any) -> Reply:
    return Exchanged(app, environ_of(**request)).read()


def served(view: Any, *names: str) -> Any:
    return django_site.serve([path("charges", view)], *names, world=World())


@pytest.mark.parametrize(
    ("error", "status"),
    [(Http404("no such card"), 404), (PermissionDenied("not yours"), 403), (BadRequest("what?"), 400)],
)
def test_an_error_that_django_makes_an_answer_of_is_that_answer(idempotency, times, error, status):
    @idempotent(idempotency)
    def charge(request):
        times.append(1)
        raise error

    app = served(charge)
    first, again = post(app), post(app)
    assert first.status == again.status == status
    assert first.body == again.body != b""
    assert again.replayed
    assert len(times) == 1


def test_a_template_is_rendered_before_it_is_kept(idempotency, times):
    @idempotent(idempotency)
    def charge(request):
        times.append(1)
        return TemplateResponse(request, "bill.txt", {"times": len(times), "body": request.body.decode()})

    app = served(charge)
    assert [post(app, body=b"x").body for _ in range(2)] == [b"1: x", b"1: x"]


def test_a_template_that_fails_gives_the_key_back(idempotency, times):
    class Broken:
        def __str__(self):
            times.append(1)
            if len(times) == 1:
                raise RuntimeError("out of ink")
            return "ink"

    @idempotent(idempotency)
    def charge(request):
        return TemplateResponse(request, "bill.txt", {"times": Broken(), "body": ""})

    app = served(charge)
    assert [post(app).status for _ in range(3)] == [500, 200, 200]
    assert len(times) == 2


def test_a_cookie_belongs_to_the_request_that_gets_it(idempotency):
    app = served(idempotent(idempotency)(lambda request: HttpResponse("made")), "cookies")
    first, again = post(app), post(app)
    assert again.replayed
    assert first.all("set-cookie") != again.all("set-cookie") != []


def test_what_turns_away_outside_of_the_decorator_claims_nothing(idempotency, s):
    app = served(require_POST(idempotent(Idempotency(s, identity=ANYONE, methods=["PUT"]))(HttpResponse)))
    assert post(app, method="PUT").status == 405
    assert not s.ledger.list().records


@pytest.mark.parametrize(("size", "kept"), [(100, True), (4096, True), (70_000, False)])
def test_a_file_is_sent_and_kept_where_it_is_small_enough(idempotency, tmp_path, times, size, kept):
    receipt = tmp_path / "receipt.bin"
    receipt.write_bytes(b"\xff" * size)

    @idempotent(idempotency)
    def charge(request):
        times.append(1)
        return FileResponse(receipt.open("rb"), as_attachment=True)

    class Wrapper:
        def __init__(self, *_file: Any) -> None:
            raise AssertionError("a file that the server sends itself passes by the ledger")

    app = served(charge)
    assert post(app, extra={"wsgi.file_wrapper": Wrapper}).body == receipt.read_bytes()
    again = post(app)
    assert again.status == 200
    assert (again.body == receipt.read_bytes()) is kept
    assert again.get("idempotency-body") == (None if kept else "not-kept")
    assert len(times) == 1


def test_a_stream_that_nobody_gets_to_see_is_made_and_kept_all_the_same(idempotency):
    def view(request):
        return StreamingHttpResponse(pieces([], 2))

    factory = RequestFactory()
    charge = idempotent(idempotency)(view)

    def ask():
        return charge(factory.post("/charges", headers={"Idempotency-Key": KEY}))

    response = ask()
    with pytest.raises(LookupError):
        semel.current_run()
    assert ask().status_code == 409
    del response
    gc.collect()
    assert ask().content == b"piece 0 piece 1 "


FORM = b'--x\r\nContent-Disposition: form-data; name="cents"\r\n\r\n1\r\n--x--\r\n'
MULTIPART = {"body": FORM, "CONTENT_TYPE": "multipart/form-data; boundary=x"}


def test_a_form_that_was_parsed_before_is_refused_rather_than_taken_for_an_empty_body(idempotency, times):
    charge = idempotent(idempotency)(lambda request: times.append(1) or HttpResponse("made"))

    def parsing(request):
        assert request.POST["cents"] == "1"
        return charge(request)

    assert post(served(parsing), **MULTIPART).status == 500
    assert times == []
    with pytest.raises(semel.errors.UsageError, match=r"doors\.django\.middleware"):
        parsing(RequestFactory().post("/charges", {"cents": "1"}, headers={"Idempotency-Key": KEY}))


def test_the_middleware_comes_before_whoever_parses_a_form(idempotency, times):
    django_site.STATE["middleware"] = middleware(idempotency)

    def charge(request):
        times.append(request.POST["cents"])
        return HttpResponse("made")

    app = served(charge, "idempotency", "django.middleware.csrf.CsrfViewMiddleware")
    charge.csrf_exempt = True  # type: ignore[attr-defined]
    assert [post(app, **MULTIPART).body for _ in range(2)] == [b"made", b"made"]
    assert times == ["1"]


def test_djangos_own_limit_of_a_body_is_ours(idempotency, site):
    site.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    app = served(idempotent(idempotency)(lambda request: HttpResponse("made")))
    reply = post(app, body=b"x" * 11)
    assert (reply.status, reply.problem) == (413, "body-too-large")
    assert post(app, body=b"x" * 10).status == 200


def test_the_user_who_is_signed_in_is_an_identity_and_an_anonymous_one_is_none():
    class Request:
        user: Any = Anyone("7")

    assert user_of(Request()) == "7"
    Request.user.is_authenticated = False
    assert user_of(Request()) is None


def test_a_view_keeps_its_name_and_its_arguments(idempotency):
    @idempotent(idempotency)
    def charge(request, number, unit="cent"):
        """Charge a card."""
        return HttpResponse(f"{number} {unit}")

    assert (charge.__name__, charge.__doc__) == ("charge", "Charge a card.")
    app = django_site.serve([path("charges/<int:number>", charge)])
    assert [post(app, path=f"/charges/{n}").body for n in (1, 2, 1)] == [b"1 cent", b"2 cent", b"1 cent"]


def test_a_path_of_any_letters_is_one_key(idempotency):
    app = django_site.serve([path("<str:name>", idempotent(idempotency)(lambda r, name: HttpResponse(name)))])
    for name in ("caf\xc3\xa9", "a b", "x" * 400):
        assert not post(app, path=f"/{name}").replayed
        assert post(app, path=f"/{name}").replayed


# Transactions


@pytest.fixture
def database(monkeypatch, tmp_path):
    """A real database of which every request wants a transaction."""
    made = connections.configure_settings(
        {
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": tmp_path / "shop.db",
                "ATOMIC_REQUESTS": True,
            }
        }
    )
    monkeypatch.setitem(connections.settings, "shop", made["default"])
    connection = connections["shop"]
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE account (id INTEGER PRIMARY KEY)")
        cursor.execute(
            "CREATE TABLE charge (account INTEGER REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED)"
        )
        cursor.execute("INSERT INTO account VALUES (1)")
    yield connection
    connection.close()
    del connections["shop"]


def book(account: int = 1) -> None:
    with connections["shop"].cursor() as cursor:
        cursor.execute("INSERT INTO charge VALUES (%s)", [account])


def booked(connection: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM charge")
        return int(cursor.fetchone()[0])


def charging(idempotency: Any, account: Any) -> dict[str, Any]:
    """The same view behind each door."""

    def view(request, *_args):
        assert connections["shop"].in_atomic_block
        book(account[0])
        return HttpResponse("made")

    @method_decorator(idempotent(idempotency), name="dispatch")
    class Class(View):
        post = staticmethod(view)

    class Api(IdempotentMixin, APIView):
        authentication_classes = ()
        post = staticmethod(view)

    Api.idempotency = idempotency
    django_site.STATE["middleware"] = middleware(idempotency)
    return {
        "decorator": ([path("charges", idempotent(idempotency)(view))], ()),
        "class": ([path("charges", Class.as_view())], ()),
        "middleware": ([path("charges", view)], ("idempotency",)),
        "api": ([path("charges", Api.as_view())], ()),
    }


@pytest.mark.parametrize("door", ["decorator", "class", "middleware", "api"])
def test_a_response_is_kept_only_when_its_transaction_is_committed(idempotency, database, door):
    account = [99]
    routes, names = charging(idempotency, account)[door]
    app = django_site.serve(routes, *names)
    # Its foreign key is checked at the commit, after the view has answered.
    assert post(app).status == 500
    assert booked(database) == 0
    account[0] = 1
    assert [post(app).status for _ in range(3)] == [200, 200, 200]
    assert booked(database) == 1


@pytest.mark.parametrize("door", ["decorator", "class", "api"])
def test_an_error_rolls_the_transaction_back_and_gives_the_key_back(idempotency, database, times, door):
    def view(request):
        book()
        times.append(1)
        if len(times) == 1:
            raise RuntimeError("the till is closed")
        return HttpResponse("made")

    class Api(IdempotentMixin, APIView):
        authentication_classes = ()
        post = staticmethod(view)

    class Class(View):
        post = staticmethod(view)

    Api.idempotency = idempotency
    doors = {
        "decorator": idempotent(idempotency)(view),
        "class": idempotent(idempotency)(Class.as_view()),
        "api": Api.as_view(),
    }
    app = served(doors[door])
    assert [post(app).status for _ in range(3)] == [500, 200, 200]
    assert booked(database) == 1


def test_an_answer_by_exception_is_kept_and_its_transaction_rolled_back(idempotency, database):
    @idempotent(idempotency)
    def charge(request):
        book()
        raise Http404

    app = served(charge)
    assert [post(app).status for _ in range(2)] == [404, 404]
    assert booked(database) == 0


def test_requests_that_are_not_protected_have_their_transaction_too(idempotency, database):
    @idempotent(idempotency)
    def charge(request):
        book()
        raise Http404

    assert post(served(charge), method="PUT").status == 404
    assert booked(database) == 0


@pytest.mark.parametrize("outside", [True, False])
def test_a_view_without_a_transaction_gets_none(idempotency, database, outside):
    def view(request):
        assert not connections["shop"].in_atomic_block
        book()
        return HttpResponse("made")

    if outside:
        charge = transaction.non_atomic_requests(using="shop")(idempotent(idempotency)(view))
    else:
        charge = idempotent(idempotency)(transaction.non_atomic_requests(using="shop")(view))
    assert post(served(charge)).status == 200
    assert booked(database) == 1


def test_a_transaction_around_the_decorator_is_refused_before_anything_is_claimed(idempotency, database, s):
    charge = idempotent(idempotency)(lambda request: HttpResponse("made"))
    request = RequestFactory().post("/charges", headers={"Idempotency-Key": KEY})
    with transaction.atomic(using="shop"), pytest.raises(semel.errors.UsageError, match="dispatch"):
        charge(request)
    assert not s.ledger.list().records
    # A TestCase rolls its own back, and commits nothing at all.
    around = transaction.atomic(using="shop")
    around._from_testcase = True
    with around:
        assert charge(request).status_code == 200


def test_a_decorated_method_inside_the_transaction_of_its_class_is_refused(idempotency, database):
    class Charges(View):
        @method_decorator(idempotent(idempotency))
        def post(self, request):
            return HttpResponse("made")

    assert post(served(Charges.as_view())).status == 500


# Django REST framework


@pytest.fixture
def charges(s, times):
    """A viewset, whose callers are known by their tokens."""

    class Charges(IdempotentMixin, viewsets.ViewSet):
        idempotency = Idempotency(s, identity=user_of)
        authentication_classes = [Bearer]  # noqa: RUF012 - as the framework has it
        permission_classes = [IsAuthenticated]  # noqa: RUF012
        renderer_classes = [renderers.JSONRenderer, Plain]  # noqa: RUF012

        def create(self, request):
            times.append(request.data)
            if request.data["cents"] < 0:
                raise exceptions.ValidationError({"cents": "it is negative"})
            if request.data["cents"] == 0 and len(times) == 1:
                raise exceptions.APIException("the till is closed")
            return ApiResponse({"charged": request.data["cents"], "to": request.user.pk}, 201)

        def list(self, request):
            return ApiResponse([])

    return Charges


def api(viewset: Any) -> Any:
    router = routers.SimpleRouter(trailing_slash=False)
    router.register("charges", viewset, basename="charge")
    return django_site.serve(router.urls)


def test_a_viewset_answers_as_it_was_rendered(charges, times):
    app = api(charges)
    first, again = post(app), post(app)
    assert first.body == again.body == b'{"charged":4200,"to":"alice"}'
    assert again.replayed
    for name in ("content-type", "vary", "allow"):
        assert first.all(name) == again.all(name) != []
    assert post(app, user="bob").body == b'{"charged":4200,"to":"bob"}'
    assert len(times) == 2


def test_whoever_is_not_authenticated_is_told_so_by_the_framework(charges, s):
    reply = post(api(charges), user="")
    assert reply.status == 401
    assert reply.get("www-authenticate") == "Bearer"
    assert not s.ledger.list().records


def test_a_validation_error_is_kept_as_the_framework_words_it(charges, times):
    app = api(charges)
    replies = [post(app, body=b'{"cents": -1}') for _ in range(2)]
    assert [(reply.status, reply.body) for reply in replies] == [(400, b'{"cents":"it is negative"}')] * 2
    assert len(times) == 1


def test_an_api_error_gives_the_key_back(charges, times):
    app = api(charges)
    assert [post(app, body=b'{"cents": 0}').status for _ in range(3)] == [500, 201, 201]
    assert len(times) == 2


def test_a_body_that_cannot_be_parsed_is_the_frameworks_to_refuse(charges):
    app = api(charges)
    assert [post(app, body=b"{").status for _ in range(2)] == [400, 400]


def test_a_method_that_a_view_does_not_have_is_no_matter_of_keys(charges, s):
    assert post(api(charges), method="PATCH", key=None).status == 405
    assert post(api(charges), method="GET", body=b"", key=None).status == 200


def test_a_permission_may_read_the_data_before_the_claim(charges):
    class Small(BasePermission):
        def has_permission(self, request, view):
            return request.data.get("cents", 0) < 10_000

    charges.permission_classes = [IsAuthenticated, Small]
    app = api(charges)
    assert post(app, body=b'{"cents": 20000}').status == 403
    assert post(app, body=b'{"cents": 1}').status == 201
    assert post(app, body=b'{"cents": 2}').status == 422


# Async


class Asgi:
    """A client of a site behind ASGI; `gone` lets it go away."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.gone = asyncio.Event()
        self.got: list[bytes] = []
        self.each = asyncio.Event()

    async def post(self, body: bytes = b"{}", **scope: Any) -> Reply:
        request = [{"type": "http.request", "body": body}]
        sent: list[dict[str, Any]] = []

        async def receive():
            if request:
                return request.pop()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if message.get("body"):
                self.got.append(message["body"])
                self.each.set()
            await asyncio.sleep(0)

        headers = [(b"host", b"shop.test"), (b"idempotency-key", KEY.encode())]
        whole = {
            "type": "http",
            "method": "POST",
            "path": "/charges",
            "query_string": b"",
            "headers": headers,
        }
        await self._app({**whole, **scope}, receive, send)
        if not sent:
            return Reply(0, [], b"")
        pairs = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        return Reply(sent[0]["status"], pairs, b"".join(message.get("body", b"") for message in sent))


DOORS = ["view", "middleware"]


def aserved(idempotency: Any, view: Any, door: str) -> Any:
    django_site.STATE["middleware"] = middleware(idempotency)
    protected = idempotent(idempotency)(view) if door == "view" else view
    names = () if door == "view" else ("idempotency",)
    return django_site.serve([*pages(idempotency), path("charges", protected)], *names, asgi=True)


async def settled() -> None:
    """All that was begun on its own has come to its end."""
    from semel.doors.django import TASKS

    while TASKS:
        await asyncio.wait(TASKS, timeout=PATIENCE)


@pytest.fixture(params=DOORS)
def door(request):
    return request.param


def test_an_async_view_runs_once(idempotency, times, door):
    async def charge(request):
        await asyncio.sleep(0)
        times.append(semel.current_run().attempt)
        return JsonResponse({"times": len(times)})

    async def story():
        app = aserved(idempotency, charge, door)
        first, again = [await Asgi(app).post() for _ in range(2)]
        assert first.body == again.body == b'{"times": 1}'
        assert again.replayed
        changed = await Asgi(app).post(b"[]")
        assert (changed.status, changed.problem) == (422, "payload-changed")
        page = await Asgi(app).post(b"", method="GET", path="/.well-known/idempotency-key")
        assert page.status == 200

    asyncio.run(story())
    assert times == [1]


def test_a_retry_while_an_async_view_is_at_work_is_told_to_come_back(idempotency, door):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def charge(request):
        begun.set()
        await go_on.wait()
        return HttpResponse("slow")

    async def story():
        app = aserved(idempotency, charge, door)
        first = asyncio.create_task(Asgi(app).post())
        await begun.wait()
        reply = await Asgi(app).post()
        assert (reply.status, reply.problem) == (409, "in-progress")
        assert int(reply.get("retry-after") or 0) >= 1
        go_on.set()
        assert (await first).body == b"slow"

    asyncio.run(story())


def test_errors_of_async_views_are_what_they_are_of_others(idempotency, times, door):
    async def charge(request):
        times.append(1)
        if len(times) == 1:
            raise RuntimeError("the till is closed")
        raise Http404

    async def story():
        app = aserved(idempotency, charge, door)
        assert [(await Asgi(app).post()).status for _ in range(3)] == [500, 404, 404]

    asyncio.run(story())
    assert len(times) == 2


def test_a_client_that_goes_away_does_not_end_an_async_view(idempotency, times, door):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def charge(request):
        begun.set()
        await go_on.wait()
        times.append(1)
        return HttpResponse("made")

    async def story():
        app = aserved(idempotency, charge, door)
        client = Asgi(app)
        asking = asyncio.create_task(client.post())
        await begun.wait()
        client.gone.set()
        assert (await asking).status == 0
        go_on.set()
        await settled()
        again = await Asgi(app).post()
        assert (again.body, again.replayed) == (b"made", True)

    asyncio.run(story())
    assert times == [1]


def test_a_client_that_goes_away_before_a_stream_begins_does_not_lose_it(idempotency, door):
    begun, go_on = asyncio.Event(), asyncio.Event()
    made: list[bytes] = []

    async def charge(request):
        begun.set()
        await go_on.wait()
        return StreamingHttpResponse(atold(made, 3))

    async def story():
        app = aserved(idempotency, charge, door)
        client = Asgi(app)
        asking = asyncio.create_task(client.post())
        await begun.wait()
        client.gone.set()
        assert (await asking).status == 0
        go_on.set()
        await settled()
        again = await Asgi(app).post()
        assert (again.body, again.replayed) == (b"piece 0 piece 1 piece 2 ", True)

    asyncio.run(story())
    assert len(made) == 3


async def atold(made: list[bytes], many: int, go_on: asyncio.Event | None = None) -> Any:
    for piece in pieces(made, many):
        yield piece
        if go_on is not None:
            await go_on.wait()


def test_an_async_stream_goes_out_as_it_comes_and_is_kept_at_its_end(idempotency, door):
    made: list[bytes] = []
    go_on = asyncio.Event()

    async def charge(request):
        return StreamingHttpResponse(atold(made, 3, go_on))

    async def story():
        app = aserved(idempotency, charge, door)
        client = Asgi(app)
        asking = asyncio.create_task(client.post())
        await client.each.wait()
        assert client.got == [b"piece 0 "]
        assert (await Asgi(app).post()).status == 409
        go_on.set()
        assert (await asking).body == b"piece 0 piece 1 piece 2 "
        again = await Asgi(app).post()
        assert (again.body, again.replayed) == (b"piece 0 piece 1 piece 2 ", True)

    asyncio.run(story())
    assert len(made) == 3


def test_a_client_that_goes_away_does_not_end_an_async_stream(idempotency, door):
    made: list[bytes] = []
    go_on = asyncio.Event()

    async def charge(request):
        return StreamingHttpResponse(atold(made, 3, go_on))

    async def story():
        app = aserved(idempotency, charge, door)
        client = Asgi(app)
        asking = asyncio.create_task(client.post())
        await client.each.wait()
        client.gone.set()
        await asking
        go_on.set()
        await settled()
        again = await Asgi(app).post()
        assert (again.body, again.replayed) == (b"piece 0 piece 1 piece 2 ", True)

    asyncio.run(story())
    assert len(made) == 3


def test_an_async_stream_that_is_closed_before_it_is_read_is_kept(idempotency):
    made: list[bytes] = []

    @idempotent(idempotency)
    async def charge(request):
        return StreamingHttpResponse(atold(made, 3))

    async def story():
        factory = AsyncRequestFactory()
        ask = lambda: charge(factory.post("/charges", headers={"Idempotency-Key": KEY}))  # noqa: E731
        response = await ask()
        await sync_to_async(response.close)()
        assert len(made) == 3
        assert (await ask()).content == b"".join(made)

    asyncio.run(story())


def test_an_async_stream_that_breaks_gives_the_key_back(idempotency, times, door):
    async def broken():
        yield b"a piece"
        raise RuntimeError("out of paper")

    async def charge(request):
        times.append(1)
        return StreamingHttpResponse(broken()) if len(times) == 1 else HttpResponse("whole")

    async def story():
        app = aserved(idempotency, charge, door)
        with pytest.raises(RuntimeError, match="out of paper"):
            await Asgi(app).post()
        assert (await Asgi(app).post()).body == b"whole"

    asyncio.run(story())


@pytest.mark.parametrize("size", [100, 70_000])
def test_an_async_view_may_send_a_file(idempotency, times, door, size):
    async def charge(request):
        times.append(1)
        return FileResponse(io.BytesIO(b"x" * size))

    async def story():
        app = aserved(idempotency, charge, door)
        assert (await Asgi(app).post()).body == b"x" * size
        again = await Asgi(app).post()
        assert again.replayed
        assert (again.body == b"x" * size) is (size == 100)

    asyncio.run(story())
    assert len(times) == 1


def test_a_sync_view_behind_asgi_keeps_its_async_stream(idempotency, times):
    @idempotent(idempotency)
    def charge(request):
        times.append(1)
        return StreamingHttpResponse(atold([], 3))

    async def story():
        app = django_site.serve([path("charges", charge)], asgi=True)
        replies = [(await Asgi(app).post()).body for _ in range(2)]
        assert replies == [b"piece 0 piece 1 piece 2 "] * 2

    asyncio.run(story())
    assert len(times) == 1


def test_async_templates_are_rendered_before_they_are_kept(idempotency, times):
    async def charge(request):
        times.append(1)
        return TemplateResponse(request, "bill.txt", {"times": len(times), "body": ""})

    async def story():
        app = aserved(idempotency, charge, "view")
        assert [(await Asgi(app).post()).body for _ in range(2)] == [b"1: ", b"1: "]

    asyncio.run(story())


def test_an_async_view_whose_lease_cannot_be_renewed_is_cancelled_and_says_so(door):
    store = Watched(open_store("memory:", env="test", clock=semel.Clock()))
    cancelled = []

    async def charge(request):
        store.refuse(10_000)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            store._faults.clear()
            raise

    with semel.Semel(store, env="test") as s:

        async def story():
            app = aserved(Idempotency(s, identity=ANYONE, lease=0.15), charge, door)
            reply = await Asgi(app).post()
            assert (reply.status, reply.problem) == (409, "in-progress")

        asyncio.run(story())
    assert cancelled == [True]


async def loop_elsewhere(work: Any) -> Any:
    """Do this in a thread that knows nothing of the running attempt."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


def test_an_async_view_that_has_lost_its_lease_says_so(door):
    clock = FakeClock()
    with semel.connect("memory:", clock=clock) as s:
        idempotency = Idempotency(s, identity=ANYONE, heartbeat=False)
        other: list[Reply] = []

        async def charge(request):
            if not other:
                other.append(Reply(0, [], b""))
                clock.advance(31)
                other[0] = await loop_elsewhere(lambda: asyncio.run(Asgi(app).post()))
                return HttpResponse("too late")
            return HttpResponse("in time")

        app = aserved(idempotency, charge, door)

        async def story():
            late = await Asgi(app).post()
            assert (late.status, late.problem) == (409, "in-progress")
            assert other[0].body == b"in time"
            assert (await Asgi(app).post()).body == b"in time"

        asyncio.run(story())


def test_an_async_class_is_decorated_as_a_view(idempotency, times):
    class Charges(View):
        async def post(self, request):
            times.append(1)
            return HttpResponse("made")

    async def story():
        app = aserved(idempotency, Charges.as_view(), "view")
        assert [(await Asgi(app).post()).body for _ in range(2)] == [b"made", b"made"]

    asyncio.run(story())
    assert len(times) == 1


def test_an_async_class_whose_dispatch_is_decorated_is_told_what_to_do(idempotency, s):
    @method_decorator(idempotent(idempotency), name="dispatch")
    class Charges(View):
        async def post(self, request):
            return HttpResponse("made")

    request = RequestFactory().post("/charges", headers={"Idempotency-Key": KEY})
    with pytest.raises(semel.errors.UsageError, match="as_view"):
        Charges.as_view()(request)
    assert [record.status for record in s.ledger.list().records] == ["RELEASED"]


def close_shop() -> None:
    connections["shop"].close()


def test_an_identity_may_come_from_the_database_in_async_code(s, database):
    def identity(request):
        return str(booked(connections["shop"]))  # Django refuses this in a thread that runs a loop

    async def charge(request):
        return HttpResponse("made")

    charge._non_atomic_requests = {"shop"}  # type: ignore[attr-defined]

    async def story():
        app = aserved(Idempotency(s, identity=identity), charge, "view")
        assert [(await Asgi(app).post()).body for _ in range(2)] == [b"made", b"made"]
        await sync_to_async(close_shop)()

    asyncio.run(story())


def test_the_door_is_used_by_many_threads_at_once(idempotency, times):
    gate = threading.Barrier(4)
    replies: list[int] = []

    def charge(request):
        times.append(1)
        return HttpResponse("made")

    app = served(idempotent(idempotency)(charge))

    def ask():
        gate.wait(PATIENCE)
        replies.append(post(app).status)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert set(replies) <= {200, 409}
    assert 200 in replies
    assert len(times) == 1
