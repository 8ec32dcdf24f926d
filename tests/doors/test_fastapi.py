"""The FastAPI door: each claim of the policy, seen through routes as people write them."""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.sse import EventSourceResponse
from fastapi.testclient import TestClient
from pydantic import BaseModel

import semel
from semel.doors.asgi import IdempotencyMiddleware
from semel.doors.fastapi import idempotent_route, publish
from semel.doors.http import ANYONE, Idempotency
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty

KEY = {"Idempotency-Key": '"k-1"'}
NORTH = {"X-Token": "north", **KEY}


class Order(BaseModel):
    cents: int


@pytest.fixture(params=["memory", "sqlite"])
def s(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[semel.Semel]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/http.db"
    with semel.connect(url) as ledger:
        yield ledger


def anyone(s: semel.Semel, **options: Any) -> Idempotency:
    return Idempotency(s, identity=ANYONE, **options)


def serving(idempotency: Idempotency, *endpoints: Callable[..., Any], **options: Any) -> TestClient:
    """A client of an application that serves endpoints under their names, by POST."""
    return TestClient(app_of(idempotency, *endpoints, **options), raise_server_exceptions=False)


def app_of(idempotency: Idempotency, *endpoints: Callable[..., Any], **options: Any) -> FastAPI:
    router = APIRouter(route_class=idempotent_route(idempotency))
    for endpoint in endpoints:
        router.post(f"/{endpoint.__name__}", **options)(endpoint)
    app = FastAPI()
    app.include_router(router)
    return app


def kind(response: Any) -> str:
    """The kind of a problem."""
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["type"].rpartition("#")[2])


def records(s: semel.Semel) -> int:
    return len(s.ledger.list().records)


# Once


@pytest.mark.parametrize("is_async", [True, False])
def test_a_request_has_its_effect_once_and_every_retry_gets_the_same_bytes(
    s: semel.Semel, is_async: bool
) -> None:
    ran = []

    def pay(order: Order, response: Response) -> dict[str, Any]:
        ran.append(semel.current_run().attempt)
        response.headers["Location"] = "/payments/1"
        response.headers["X-Trace"] = "for this request alone"
        return {"charged": order.cents, "in": "€"}

    async def apay(order: Order, response: Response) -> dict[str, Any]:
        return pay(order, response)

    endpoint = apay if is_async else pay
    client = serving(anyone(s), endpoint, status_code=201)
    answers = [client.post(f"/{endpoint.__name__}", json={"cents": 5}, headers=KEY) for _ in range(3)]
    first, second, third = answers
    assert ran == [1]
    assert {answer.status_code for answer in answers} == {201}
    assert {answer.content for answer in answers} == {'{"charged":5,"in":"€"}'.encode()}
    assert {answer.headers["location"] for answer in answers} == {"/payments/1"}
    assert "idempotent-replayed" not in first.headers
    assert "x-trace" in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert second.headers["idempotency-expires"].endswith("GMT")
    assert "x-trace" not in second.headers
    assert third.headers == second.headers


@pytest.mark.parametrize(
    ("content", "headers"),
    [(b"\x00\xff\xfe", {"ETag": '"1"'}), (b"", {}), ("ü".encode(), {"Content-Language": "de"})],
)
def test_a_response_of_the_endpoints_own_is_given_again_byte_for_byte(
    s: semel.Semel, content: bytes, headers: dict[str, str]
) -> None:
    async def raw() -> Response:
        return Response(content, 202, headers, "application/octet-stream")

    client = serving(anyone(s), raw)
    first, second = (client.post("/raw", headers=KEY) for _ in range(2))
    assert (second.status_code, second.content) == (202, content)
    assert dict(second.headers).items() >= dict(first.headers).items()


def test_a_response_without_content_stays_without(s: semel.Semel) -> None:
    async def drop() -> None:
        return None

    client = serving(anyone(s), drop, status_code=204)
    first, second = (client.post("/drop", headers=KEY) for _ in range(2))
    assert (first.status_code, second.status_code, second.content) == (204, 204, b"")
    assert "content-length" not in second.headers


def test_a_response_model_leaves_out_the_first_time_what_it_leaves_out_of_the_replay(s: semel.Semel) -> None:
    async def pay() -> Any:
        return {"cents": 5, "secret": "of the house"}

    client = serving(anyone(s), pay, response_model=Order)
    assert [client.post("/pay", headers=KEY).json() for _ in range(2)] == [{"cents": 5}] * 2


def test_another_payload_under_the_same_key_is_refused(s: semel.Semel) -> None:
    async def pay(order: Order) -> int:
        return order.cents

    client = serving(anyone(s), pay)
    assert client.post("/pay", json={"cents": 5}, headers=KEY).json() == 5
    refused = client.post("/pay", json={"cents": 6}, headers=KEY)
    assert (refused.status_code, kind(refused)) == (422, "payload-changed")
    assert client.post("/pay", json={"cents": 5}, headers=KEY).json() == 5


def test_a_body_that_the_endpoint_reads_itself_counts_too(s: semel.Semel) -> None:
    async def pay(request: Request) -> str:
        return (await request.body()).decode()

    client = serving(anyone(s), pay)
    assert client.post("/pay", content=b"one", headers=KEY).json() == "one"
    assert client.post("/pay", content=b"two", headers=KEY).status_code == 422
    assert client.post("/pay", content=b"one", headers=KEY).json() == "one"


# Who may, what is valid, and only then the key


def secured(s: semel.Semel, **options: Any) -> tuple[TestClient, set[str], list[str]]:
    """A client of an application that knows its callers; the callers; and what was done for whom."""
    callers, ran = {"north", "south"}, []

    async def authenticate(request: Request, x_token: Annotated[str, Header()] = "") -> None:
        if x_token not in callers:
            raise HTTPException(401, "who are you?")
        request.state.caller = x_token

    async def pay(order: Order, request: Request) -> dict[str, str]:
        ran.append(request.state.caller)
        return {"paid for": request.state.caller}

    idempotency = Idempotency(s, identity=lambda request: request.state.caller, **options)
    app = app_of(idempotency, pay, dependencies=[Depends(authenticate)])
    publish(app, idempotency, dependencies=[Depends(authenticate)])
    return TestClient(app), callers, ran


def test_authentication_comes_first_then_validation_then_the_key(s: semel.Semel) -> None:
    client, _, ran = secured(s)
    assert client.post("/pay", json={}).status_code == 401
    assert client.post("/pay", json={}, headers={"X-Token": "north"}).status_code == 422
    missing = client.post("/pay", json={"cents": 5}, headers={"X-Token": "north"})
    assert (missing.status_code, kind(missing)) == (400, "key-missing")
    malformed = {"X-Token": "north", "Idempotency-Key": '"a" "b"'}
    refused = client.post("/pay", json={"cents": 5}, headers=malformed)
    assert (refused.status_code, kind(refused)) == (400, "key-malformed")
    assert ran == []


@pytest.mark.parametrize(
    ("headers", "body", "status"), [(KEY, {"cents": 5}, 401), (NORTH, {"cents": "five"}, 422)]
)
def test_who_is_refused_or_sends_what_is_not_valid_uses_up_no_key(
    s: semel.Semel, headers: dict[str, str], body: Any, status: int
) -> None:
    client, _, ran = secured(s)
    refused = client.post("/pay", json=body, headers=headers)
    assert (refused.status_code, refused.headers["content-type"]) == (status, "application/json")
    assert client.post("/pay", json={"cents": 5}, headers=NORTH).status_code == 200
    assert ran == ["north"]


@pytest.mark.situation(31)
def test_a_replay_is_refused_to_somebody_whose_permission_was_lost(s: semel.Semel) -> None:
    client, callers, ran = secured(s)
    assert client.post("/pay", json={"cents": 5}, headers=NORTH).status_code == 200
    callers.remove("north")
    assert client.post("/pay", json={"cents": 5}, headers=NORTH).status_code == 401
    assert ran == ["north"]


def test_two_callers_may_use_one_key(s: semel.Semel) -> None:
    client, _, ran = secured(s)
    for caller in ("north", "south", "north"):
        answer = client.post("/pay", json={"cents": 5}, headers={**KEY, "X-Token": caller})
        assert answer.json() == {"paid for": caller}
    assert ran == ["north", "south"]


def test_where_nobody_is_known_nothing_is_claimed(s: semel.Semel) -> None:
    async def pay() -> None:
        pytest.fail("it ran")

    client = serving(Idempotency(s, identity=lambda request: None), pay)
    refused = client.post("/pay", headers=KEY)
    assert (refused.status_code, kind(refused)) == (401, "not-authenticated")


@pytest.mark.situation(32)
def test_cookies_are_never_given_again(s: semel.Semel) -> None:
    async def session(response: Response) -> None:
        response.set_cookie("session", "of the caller before")

    async def pay(response: Response) -> JSONResponse:
        answer = JSONResponse({"paid": True})
        answer.set_cookie("receipt", "for one browser")
        return answer

    client = serving(anyone(s), pay, dependencies=[Depends(session)])
    first = client.post("/pay", headers=KEY)
    client.cookies.clear()
    second = client.post("/pay", headers=KEY)
    assert "set-cookie" in first.headers
    assert "set-cookie" not in second.headers
    assert second.content == first.content


# How it ends


def test_a_refusal_by_the_endpoint_is_kept(s: semel.Semel) -> None:
    ran = []

    async def pay() -> None:
        ran.append(1)
        raise HTTPException(402, "declined", {"Retry-After": "9", "Link": "</help>"})

    client = serving(anyone(s), pay)
    first, second = (client.post("/pay", headers=KEY) for _ in range(2))
    assert ran == [1]
    assert second.status_code == first.status_code == 402
    assert second.content == first.content == b'{"detail":"declined"}'
    assert second.headers["link"] == "</help>"
    assert second.headers["idempotent-replayed"] == "true"


def test_what_an_exception_handler_makes_of_an_error_is_kept(s: semel.Semel) -> None:
    class Declined(Exception):
        pass

    ran = []

    async def pay() -> None:
        ran.append(1)
        raise Declined

    app = app_of(anyone(s), pay)
    app.add_exception_handler(Declined, lambda _request, _error: JSONResponse({"sorry": True}, 409))
    client = TestClient(app)
    answers = [client.post("/pay", headers=KEY) for _ in range(2)]
    assert ran == [1]
    assert [(answer.status_code, answer.json()) for answer in answers] == [(409, {"sorry": True})] * 2


@pytest.mark.parametrize("error", [HTTPException(503, "later"), RuntimeError("a bug")])
def test_a_failure_of_the_server_gives_the_key_back(s: semel.Semel, error: Exception) -> None:
    attempts = []

    async def pay() -> int:
        attempts.append(semel.current_run().attempt)
        if len(attempts) == 1:
            raise error
        return 5

    client = serving(anyone(s), pay)
    statuses = [client.post("/pay", headers=KEY).status_code for _ in range(3)]
    assert statuses == [503 if isinstance(error, HTTPException) else 500, 200, 200]
    assert attempts == [1, 2]


def test_a_server_that_is_stopping_still_gives_what_it_has(s: semel.Semel) -> None:
    async def pay() -> int:
        return 5

    client = serving(anyone(s), pay)
    client.post("/pay", headers=KEY)
    s.drain()
    assert client.post("/pay", headers=KEY).json() == 5
    refused = client.post("/pay", headers={"Idempotency-Key": "new"})
    assert (refused.status_code, kind(refused), refused.headers["retry-after"]) == (503, "unavailable", "1")


def test_without_its_store_nothing_is_done() -> None:
    async def pay() -> None:
        pytest.fail("it ran")

    store = Faulty(MemoryStore())
    client = serving(anyone(semel.Semel(store)), pay)
    store.refuse(times=5)
    refused = client.post("/pay", headers=KEY)
    assert (refused.status_code, kind(refused)) == (503, "unavailable")
    assert int(refused.headers["retry-after"]) > 0


def test_a_response_that_may_or_may_not_be_written_down_is_not_sent() -> None:
    ran = []

    async def pay() -> int:
        ran.append(1)
        store.lose_reply(times=1000)
        return 5

    clock = FakeClock()
    store = Faulty(MemoryStore(clock))
    client = serving(anyone(semel.Semel(store, clock=clock)), pay)
    unknown = client.post("/pay", headers=KEY)
    store.recover()
    assert (unknown.status_code, kind(unknown)) == (503, "unavailable")
    assert client.post("/pay", headers=KEY).json() == 5
    assert ran == [1]


# Several at once


@pytest.mark.parametrize("is_async", [True, False])
def test_of_fifty_at_once_one_has_an_effect(s: semel.Semel, is_async: bool) -> None:
    ran: list[int] = []
    go_on = threading.Event()

    def slow() -> str:
        ran.append(1)
        go_on.wait(30)
        return "done"

    async def aslow() -> str:
        ran.append(1)
        await asyncio.to_thread(go_on.wait, 30)
        return "done"

    endpoint = aslow if is_async else slow
    app = app_of(anyone(s), endpoint)

    async def main() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            calls = [asyncio.ensure_future(client.post(app_path, headers=KEY)) for _ in range(50)]
            pending: set[asyncio.Future[httpx.Response]] = set(calls)
            while len(pending) > 1:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            go_on.set()
            answers = [await call for call in calls]
            return [*answers, await client.post(app_path, headers=KEY)]

    app_path = f"/{endpoint.__name__}"
    *answers, replay = asyncio.run(main())
    busy = [answer for answer in answers if answer.status_code == 409]
    assert len(ran) == 1
    assert [answer.json() for answer in answers if answer.status_code == 200] == ["done"]
    assert (replay.json(), replay.headers["idempotent-replayed"]) == ("done", "true")
    assert len(busy) == 49
    for answer in busy:
        assert kind(answer) == "in-progress"
        assert 1 <= int(answer.headers["retry-after"]) <= 5
        assert answer.json()["status_url"].startswith("/.well-known/idempotency-key/")


def test_work_whose_claim_is_lost_is_cancelled_and_answered_with_a_conflict() -> None:
    cancelled: list[bool] = []

    async def slow() -> None:
        run = semel.current_run()
        local.ledger.forget(run.key)
        assert isinstance(local.ledger.claim(run.key), semel.Claimed)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(run.lost)
            raise

    with semel.connect("memory:") as local:
        answer = serving(anyone(local, lease=0.15), slow).post("/slow", headers=KEY)
    assert cancelled == [True]
    assert (answer.status_code, kind(answer)) == (409, "in-progress")


def test_a_thread_whose_claim_is_lost_is_not_waited_for_and_can_know_it() -> None:
    answered, over = threading.Event(), threading.Event()
    lost: list[bool] = []

    def slow() -> None:
        run = semel.current_run()
        local.ledger.forget(run.key)
        assert isinstance(local.ledger.claim(run.key), semel.Claimed)
        answered.wait(30)
        lost.append(run.lost)
        over.set()

    with semel.connect("memory:") as local, serving(anyone(local, lease=0.15), slow) as client:
        answer = client.post("/slow", headers=KEY)
        answered.set()
        assert over.wait(30)
    assert (answer.status_code, kind(answer)) == (409, "in-progress")
    assert lost == [True]


def test_a_response_whose_claim_was_lost_is_not_sent(s: semel.Semel) -> None:
    """The one that has taken over will answer; two answers to one key would be one too many."""

    def zombie() -> str:
        run = semel.current_run()
        s.ledger.forget(run.key)
        theirs = s.ledger.claim(run.key)
        assert isinstance(theirs, semel.Claimed)
        return "mine"

    answer = serving(anyone(s), zombie).post("/zombie", headers=KEY)
    assert (answer.status_code, kind(answer)) == (409, "in-progress")


# What FastAPI does around an endpoint


def test_a_background_task_runs_once_and_after_the_response_is_written_down(s: semel.Semel) -> None:
    seen: list[semel.Status] = []

    def mail() -> None:
        seen.extend(record.status for record in s.ledger.list().records)
        with pytest.raises(LookupError):
            semel.current_run()

    async def pay(tasks: BackgroundTasks) -> int:
        tasks.add_task(mail)
        return 5

    client = serving(anyone(s), pay)
    assert [client.post("/pay", headers=KEY).json() for _ in range(2)] == [5, 5]
    assert seen == [semel.Status.COMPLETED]


def test_a_background_task_that_fails_leaves_the_response_as_it_was(s: semel.Semel) -> None:
    async def pay(tasks: BackgroundTasks) -> int:
        tasks.add_task(lambda: 1 / 0)
        return 5

    client = serving(anyone(s), pay)
    client.post("/pay", headers=KEY)
    assert client.post("/pay", headers=KEY).json() == 5


def test_dependencies_with_yield_are_left_on_every_request(s: semel.Semel) -> None:
    steps: list[str] = []

    async def session() -> AsyncIterator[str]:
        steps.append("in")
        yield "session"
        steps.append("out")

    async def pay(session: Annotated[str, Depends(session)]) -> int:
        steps.append("paid")
        return 5

    client = serving(anyone(s), pay)
    assert [client.post("/pay", headers=KEY).json() for _ in range(2)] == [5, 5]
    assert steps == ["in", "paid", "out", "in", "out"]


def test_a_dependency_that_fails_before_the_response_gives_the_key_back(s: semel.Semel) -> None:
    commits = []

    async def session() -> AsyncIterator[None]:
        yield
        commits.append(1)
        if len(commits) == 1:
            raise RuntimeError("the commit failed")

    ran = []

    async def pay(session: Annotated[None, Depends(session, scope="function")]) -> int:
        ran.append(1)
        return 5

    client = serving(anyone(s), pay)
    assert [client.post("/pay", headers=KEY).status_code for _ in range(3)] == [500, 200, 200]
    assert len(ran) == 2


async def stream_of(parts: list[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        assert semel.current_run().attempt == 1
        yield part


PARTS = [b"one\n", b"", b"two\n", "drei €\n".encode()]


def streamed() -> StreamingResponse:
    return StreamingResponse(stream_of(PARTS), media_type="text/plain")


async def astreamed() -> StreamingResponse:
    return StreamingResponse(stream_of(PARTS), media_type="text/plain")


async def aitems() -> AsyncIterator[Order]:
    for cents in (1, 2):
        yield Order(cents=cents + semel.current_run().attempt)


def items() -> Iterator[Order]:
    for cents in (1, 2):
        yield Order(cents=cents + semel.current_run().attempt)


@pytest.mark.parametrize(
    ("endpoint", "response_class"),
    [
        (streamed, None),
        (astreamed, None),
        (aitems, None),
        (items, None),
        (aitems, EventSourceResponse),
        (items, EventSourceResponse),
    ],
)
def test_a_response_in_pieces_is_given_again_whole(
    s: semel.Semel, endpoint: Callable[..., Any], response_class: Any
) -> None:
    options = {} if response_class is None else {"response_class": response_class}
    started: list[int] = []
    s.events.listen(lambda event: started.append(1) if event.what is semel.What.CLAIMED else None)
    client = serving(anyone(s), endpoint, **options)
    first, second = (client.post(f"/{endpoint.__name__}", headers=KEY) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 200)
    assert second.content == first.content != b""
    assert second.headers["content-type"] == first.headers["content-type"]
    assert second.headers["idempotent-replayed"] == "true"
    assert started == [1]


@pytest.mark.parametrize("response_class", [None, EventSourceResponse])
def test_a_generator_does_not_begin_before_its_key_is_claimed(s: semel.Semel, response_class: Any) -> None:
    began = []

    async def events() -> AsyncIterator[int]:
        began.append(1)
        yield 1

    options = {} if response_class is None else {"response_class": response_class}
    client = serving(anyone(s), events, **options)
    refused = client.post("/events")
    assert (refused.status_code, kind(refused)) == (400, "key-missing")
    assert began == []
    for _ in range(2):
        assert client.post("/events", headers=KEY).status_code == 200
    assert began == [1]


def test_a_stream_that_breaks_off_gives_the_key_back(s: semel.Semel) -> None:
    attempts = []

    async def broken() -> StreamingResponse:
        attempts.append(semel.current_run().attempt)

        async def parts() -> AsyncIterator[bytes]:
            yield b"one"
            if len(attempts) == 1:
                raise RuntimeError("the source is gone")

        return StreamingResponse(parts())

    app = app_of(anyone(s), broken)
    client = TestClient(app)
    with pytest.raises(RuntimeError, match="the source is gone"):
        client.post("/broken", headers=KEY)
    assert client.post("/broken", headers=KEY).content == b"one"
    assert client.post("/broken", headers=KEY).headers["idempotent-replayed"] == "true"
    assert attempts == [1, 2]


def test_a_body_larger_than_is_kept_does_not_run_again(s: semel.Semel) -> None:
    ran = []

    async def report() -> str:
        ran.append(1)
        return "x" * 100

    client = serving(anyone(s, max_kept=10), report)
    first, second = (client.post("/report", headers=KEY) for _ in range(2))
    assert first.json() == "x" * 100
    assert (second.status_code, kind(second)) == (200, "result-not-kept")
    assert second.headers["idempotency-body"] == "not-kept"
    assert ran == [1]


def test_a_body_larger_than_is_taken_is_refused_before_anything_else(s: semel.Semel) -> None:
    async def authenticate() -> None:
        pytest.fail("it got as far as this")

    async def pay(order: Order) -> None:
        pytest.fail("it ran")

    client = serving(anyone(s, max_body=10), pay, dependencies=[Depends(authenticate)])
    refused = client.post("/pay", json={"cents": 500_000}, headers=KEY)
    assert (refused.status_code, kind(refused)) == (413, "body-too-large")


# Routers


def test_a_router_can_be_included_at_any_depth_and_more_than_once(s: semel.Semel) -> None:
    ran: list[str] = []
    leaf = APIRouter(prefix="/payments", route_class=idempotent_route(anyone(s)))

    @leaf.post("/{shop}")
    async def pay(shop: str, request: Request) -> str:
        ran.append(request.url.path)
        return shop

    branch = APIRouter(prefix="/v1")
    branch.include_router(leaf)
    app = FastAPI()
    app.include_router(branch)
    app.include_router(leaf, prefix="/v2")
    client = TestClient(app)
    for path in ("/v1/payments/a", "/v2/payments/a", "/v1/payments/b"):
        assert [client.post(path, headers=KEY).json() for _ in range(2)] == [path[-1]] * 2
    assert ran == ["/v1/payments/a", "/v2/payments/a", "/v1/payments/b"]


def test_a_route_made_again_from_its_own_endpoint_claims_once(s: semel.Semel) -> None:
    """So it is where an older FastAPI includes a router."""
    ran = []

    async def pay() -> int:
        ran.append(1)
        return 5

    kind_of_route = idempotent_route(anyone(s))
    first = kind_of_route("/pay", pay, methods=["POST"])
    again = kind_of_route("/pay", first.endpoint, methods=["POST"])
    assert again.endpoint is first.endpoint
    app = FastAPI()
    app.router.routes.append(again)
    client = TestClient(app)
    assert [client.post("/pay", headers=KEY).json() for _ in range(2)] == [5, 5]
    assert ran == [1]


def test_a_mounted_application_tells_addresses_that_lead_to_it(s: semel.Semel) -> None:
    idempotency = anyone(s)

    def client() -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")

    async def busy() -> None:
        async with client() as other:
            again = await other.post("/sub/busy", headers=KEY)
        raise HTTPException(again.status_code, again.json(), {"Link": again.headers["link"]})

    sub = app_of(idempotency, busy)
    publish(sub, idempotency)
    app = FastAPI()
    app.mount("/sub", sub)

    async def main() -> tuple[httpx.Response, ...]:
        async with client() as first:
            answer = await first.post("/sub/busy", headers=KEY)
            told = answer.json()["detail"]
            return answer, await first.get(told["status_url"]), await first.get(told["type"])

    answer, status, policy = asyncio.run(main())
    assert answer.status_code == 409
    assert answer.headers["link"].startswith("</sub/.well-known/idempotency-key>")
    assert status.json()["status"] == "completed"
    assert policy.json()["status"] == "/sub/.well-known/idempotency-key/{token}"


def test_other_methods_of_a_route_are_not_protected(s: semel.Semel) -> None:
    ran = []
    app = FastAPI()
    app.router.route_class = idempotent_route(anyone(s))

    @app.api_route("/pay", methods=["GET", "HEAD", "POST", "PUT"])
    def pay(request: Request) -> int:
        ran.append(request.method)
        return 5

    client = TestClient(app)
    for method in ("GET", "HEAD", "PUT", "PUT"):
        assert client.request(method, "/pay", headers=KEY).status_code == 200
    assert client.post("/pay").status_code == 400
    assert client.delete("/pay").status_code == 405
    assert ran == ["GET", "HEAD", "PUT", "PUT"]
    assert records(s) == 0


def test_where_a_key_is_not_required_a_request_without_one_is_left_alone(s: semel.Semel) -> None:
    ran = []

    async def upload(request: Request) -> int:
        ran.append(1)
        return len(await request.body())

    client = serving(anyone(s, required=False, max_body=10), upload)
    assert [client.post("/upload", content=b"x" * 50).json() for _ in range(2)] == [50, 50]
    assert [client.post("/upload", content=b"x", headers=KEY).json() for _ in range(2)] == [1, 1]
    assert client.post("/upload", content=b"x", headers={"Idempotency-Key": ""}).status_code == 400
    assert len(ran) == 3


class Teller:
    """An endpoint that is an object."""

    async def __call__(self, order: Order) -> int:
        return order.cents


def add(extra: int, order: Order) -> int:
    return order.cents + extra


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as many are: no coroutine function itself, although what it gives can be awaited."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


@logged
async def decorated(order: Order) -> int:
    return order.cents


@pytest.mark.parametrize(
    ("endpoint", "name", "answer"),
    [(Teller(), "Teller", 5), (functools.partial(add, 2), "partial", 7), (decorated, "decorated", 5)],
)
def test_an_endpoint_may_be_any_callable_that_fastapi_takes(
    s: semel.Semel, endpoint: Callable[..., Any], name: str, answer: int
) -> None:
    app = FastAPI()
    app.router.route_class = idempotent_route(anyone(s))
    app.post("/pay")(endpoint)
    client = TestClient(app)
    path = app.url_path_for(name)
    assert [client.post(path, json={"cents": 5}, headers=KEY).json() for _ in range(2)] == [answer] * 2
    assert client.post(path, json={}, headers=KEY).status_code == 422


def test_an_endpoint_may_ask_another_one_of_its_own_process(s: semel.Semel) -> None:
    ran: list[str] = []
    app = FastAPI()
    app.router.route_class = idempotent_route(anyone(s))

    @app.get("/rate")
    async def rate() -> int:
        ran.append("rate")
        return 2

    @app.post("/book")
    async def book() -> int:
        ran.append("book")
        return semel.current_run().attempt

    @app.post("/pay")
    async def pay() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            found = (await client.get("/rate")).json()
            return int(found + (await client.post("/book", headers={"Idempotency-Key": "k-2"})).json())

    client = TestClient(app)
    assert [client.post("/pay", headers=KEY).json() for _ in range(2)] == [3, 3]
    assert ran == ["rate", "book"]


# Clients that go away


class Wire:
    """A client's end of one ASGI request: what it sends, piece by piece, and what it got."""

    def __init__(self, path: str, *messages: dict[str, Any], spec: str = "2.4") -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"idempotency-key", b'"k-1"'), (b"content-type", b"application/json")],
            "client": ("test", 1),
            "server": ("test", 80),
        }
        self.messages = list(messages)
        self.got: list[Any] = []
        self.gone = False

    async def receive(self) -> dict[str, Any]:
        return self.messages.pop(0) if self.messages else {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.gone:
            raise OSError("the client has gone")
        self.got.append(message)


def test_a_client_that_goes_away_while_it_sends_claims_nothing(s: semel.Semel) -> None:
    async def pay(order: Order) -> None:
        pytest.fail("it ran")

    wire = Wire("/pay", {"type": "http.request", "body": b'{"ce', "more_body": True})
    asyncio.run(app_of(anyone(s), pay)(wire.scope, wire.receive, wire.send))
    assert wire.got == []
    assert records(s) == 0


@pytest.mark.situation(34)
@pytest.mark.parametrize("spec", ["2.0", "2.4"])
@pytest.mark.parametrize("endpoint", [astreamed, aitems])
def test_a_client_that_goes_away_before_its_answer_finds_it_when_it_comes_back(
    s: semel.Semel, endpoint: Callable[..., Any], spec: str
) -> None:
    app = app_of(anyone(s), endpoint)
    path = f"/{endpoint.__name__}"
    wire = Wire(path, {"type": "http.request", "body": b""}, spec=spec)
    wire.gone = True
    asyncio.run(app(wire.scope, wire.receive, wire.send))
    replay = TestClient(app).post(path, headers=KEY)
    assert replay.headers["idempotent-replayed"] == "true"
    assert replay.content == (b"".join(PARTS) if endpoint is astreamed else b'{"cents":2}\n{"cents":3}\n')


def test_before_the_key_is_claimed_a_dependency_may_ask_whether_the_client_is_there(s: semel.Semel) -> None:
    seen = []

    async def patient(request: Request) -> None:
        await request.body()
        seen.append(await request.is_disconnected())

    async def pay() -> int:
        return 5

    wire = Wire("/pay", {"type": "http.request", "body": b""}, {"type": "http.request", "body": b""})
    app = app_of(anyone(s), pay, dependencies=[Depends(patient)])
    asyncio.run(app(wire.scope, wire.receive, wire.send))
    assert seen == [False]


def test_an_endpoint_at_work_hears_of_its_client_once_and_then_no_more(s: semel.Semel) -> None:
    heard = []

    async def pay(order: Order, request: Request) -> int:
        more = asyncio.ensure_future(request.receive())
        await asyncio.sleep(0)
        heard.append(more.done())
        more.cancel()
        return order.cents

    wire = Wire("/pay", {"type": "http.request", "body": b'{"cents":5}'})
    asyncio.run(app_of(anyone(s), pay)(wire.scope, wire.receive, wire.send))
    assert heard == [False]
    assert wire.got[1]["body"] == b"5"


# How long, and how it stands


@pytest.mark.seed("M4")
def test_a_client_may_choose_how_long_it_is_remembered(s: semel.Semel) -> None:
    async def pay() -> int:
        return 5

    client = serving(anyone(s, expiry=(60, 3600)), pay)
    headers = {**KEY, "Idempotency-Expiry-Seconds": "120"}
    assert client.post("/pay", headers=headers).json() == 5
    (record,) = s.ledger.list().records
    assert record.expires_at - record.updated_at == pytest.approx(120, abs=1)
    for wrong in ("59", "3601", "soon", "-1"):
        refused = client.post("/pay", headers={**KEY, "Idempotency-Expiry-Seconds": wrong})
        assert (refused.status_code, kind(refused)) == (400, "expiry-malformed")


def test_a_choice_that_the_horizon_forbids_is_refused_when_the_policy_is_made(s: semel.Semel) -> None:
    with pytest.raises(semel.InvalidOption):
        anyone(s, horizon=3600, ttl=7200, expiry=(60, 7200))


def test_the_status_of_a_request_is_told_to_its_owner_alone(s: semel.Semel) -> None:
    client, _, _ = secured(s)
    client.post("/pay", json={"cents": 5}, headers=NORTH)
    busy = s.through("http").scoped("north").ledger.claim(semel.Key("http", "POST", "/pay", "k-2"))
    assert isinstance(busy, semel.Claimed)
    answer = client.post("/pay", json={"cents": 5}, headers={**NORTH, "Idempotency-Key": "k-2"})
    assert (answer.status_code, kind(answer)) == (409, "in-progress")
    url = answer.json()["status_url"]
    assert client.get(url, headers={"X-Token": "north"}).json() == {"status": "in-progress", "attempt": 1}
    assert client.get(url).status_code == 401
    assert client.get(url, headers={"X-Token": "south"}).status_code == 404
    head = client.head(url, headers={"X-Token": "north"})
    assert (head.status_code, head.content) == (200, b"")


# The whole application


def test_a_middleware_protects_every_route(s: semel.Semel) -> None:
    ran = []
    idempotency = Idempotency(s, identity=lambda scope: dict(scope["headers"]).get(b"x-token", b"").decode())
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)

    @app.post("/pay")
    def pay(order: Order, tasks: BackgroundTasks) -> int:
        ran.append(order.cents)
        tasks.add_task(lambda: None)
        return order.cents

    @app.get("/rate")
    def rate() -> int:
        return 2

    client = TestClient(app)
    assert [client.post("/pay", json={"cents": 5}, headers=NORTH).json() for _ in range(2)] == [5, 5]
    assert client.post("/pay", json={"cents": 6}, headers=NORTH).status_code == 422
    assert client.post("/pay", json={"cents": 5}, headers=KEY).status_code == 401
    assert client.get("/rate").json() == 2
    assert client.get("/.well-known/idempotency-key").json()["required"] is True
    assert ran == [5]
