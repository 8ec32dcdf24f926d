"""The published contract: what OpenAPI says about a protected operation, and that it is true."""

import copy
import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import positive_data_acceptance

import semel
from examples.payments_api import create_app
from semel.doors.asgi import IdempotencyMiddleware
from semel.doors.fastapi import idempotent_route, publish
from semel.doors.http import ANYONE, Idempotency
from semel.doors.http.field import BadField, read_key
from semel.doors.http.publish import describe, key_pattern, policy_document
from semel.doors.http.responses import PROBLEMS

NORTH = {"Authorization": "Bearer token-of-north"}
ORDER = {"cents": 4200, "currency": "eur"}


@pytest.fixture
def s() -> Iterator[semel.Semel]:
    with semel.connect("memory:") as ledger:
        yield ledger


@pytest.fixture
def idempotency(s: semel.Semel) -> Idempotency:
    return Idempotency(s, identity=ANYONE)


def app_of(idempotency: Idempotency) -> FastAPI:
    router = APIRouter(prefix="/v1", route_class=idempotent_route(idempotency))

    @router.api_route("/pay", methods=["GET", "POST"], openapi_extra={"x-mine": 1})
    def pay() -> int:
        return 5

    app = FastAPI()
    app.include_router(router)
    app.post("/ping")(lambda: "pong")
    return app


def names(operation: dict[str, Any]) -> set[str]:
    return {parameter["name"] for parameter in operation.get("parameters", [])}


# What is said


@pytest.mark.draft("2.3b", "2.5.2a")
# A route of two methods is one operation id too few; that is FastAPI's own matter.
@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")
def test_an_operation_of_the_route_class_is_described_and_no_other(idempotency: Idempotency) -> None:
    app = app_of(idempotency)
    publish(app, idempotency)
    paths = app.openapi()["paths"]
    described = paths["/v1/pay"]["post"]
    assert described["x-mine"] == 1
    assert described["x-idempotency"]["policy"] == "/.well-known/idempotency-key"
    assert described["x-idempotency"]["retention_seconds"] == semel.DAY
    assert names(described) == {"Idempotency-Key"}
    assert set(described["responses"]) == {"200", "400", "409", "410", "413", "422", "503"}
    for other in (paths["/v1/pay"]["get"], paths["/ping"]["post"]):
        assert "x-idempotency" not in other
        assert "Idempotency-Key" not in names(other)
        assert set(other["responses"]) == {"200"}


def test_with_the_middleware_every_operation_of_its_methods_is_described(idempotency: Idempotency) -> None:
    app = FastAPI()
    app.post("/pay")(lambda: 5)
    app.get("/pay")(lambda: 5)
    publish(app, idempotency)
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)
    paths = app.openapi()["paths"]
    assert names(paths["/pay"]["post"]) == {"Idempotency-Key"}
    assert "x-idempotency" not in paths["/pay"]["get"]
    assert {"/.well-known/idempotency-key", "/.well-known/idempotency-key/{token}"} <= paths.keys()
    assert TestClient(app).get("/.well-known/idempotency-key").json() == policy_document(idempotency)


# A route of two methods is one operation id too few; that is FastAPI's own matter.
@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")
def test_a_route_that_is_added_later_is_described_too(idempotency: Idempotency) -> None:
    app = app_of(idempotency)
    publish(app, idempotency)
    before = app.openapi()
    assert app.openapi() is before
    late = APIRouter(route_class=idempotent_route(idempotency))
    late.post("/late")(lambda: 5)
    app.include_router(late)
    assert names(app.openapi()["paths"]["/late"]["post"]) == {"Idempotency-Key"}


def test_two_policies_of_one_application_are_told_apart(s: semel.Semel) -> None:
    app = FastAPI()
    for name, ttl in (("short", semel.HOUR), ("long", semel.DAY)):
        policy = Idempotency(s, identity=ANYONE, ttl=ttl, well_known=f"/.well-known/{name}")
        router = APIRouter(route_class=idempotent_route(policy))
        router.post(f"/{name}")(lambda: 5)
        app.include_router(router)
        publish(app, policy)
    told = {
        path: item["post"]["x-idempotency"] for path, item in app.openapi()["paths"].items() if "post" in item
    }
    assert {path: one["retention_seconds"] for path, one in told.items()} == {
        "/short": semel.HOUR,
        "/long": semel.DAY,
    }
    client = TestClient(app)
    for path, one in told.items():
        assert client.post(path).headers["link"].startswith(f"<{one['policy']}>")
        assert client.get(one["policy"]).json()["retention_seconds"] == one["retention_seconds"]


@pytest.mark.draft("5a")
def test_the_headers_of_a_request_are_described_as_they_are_taken(s: semel.Semel) -> None:
    policy = Idempotency(s, identity=ANYONE, max_key=40, required=False, expiry=(60.5, 3600), ttl=600)
    key, expiry = post_of(describe(plain(), policy))["parameters"]
    assert (key["name"], key["in"], key["required"]) == ("Idempotency-Key", "header", False)
    assert key["schema"]["maxLength"] == 42
    assert re.fullmatch(key["schema"]["pattern"], key["example"])
    assert (expiry["name"], expiry["required"]) == ("Idempotency-Expiry-Seconds", False)
    assert expiry["schema"] == {"type": "integer", "minimum": 61, "maximum": 3600, "default": 600}
    assert policy_document(policy)["expiry"]["minimum"] == 61


@pytest.mark.parametrize(
    ("options", "absent"),
    [({"identity": ANYONE}, "401"), ({"identity": lambda _request: "north"}, None)],
)
def test_every_problem_that_can_come_is_described_and_none_that_cannot(
    s: semel.Semel, options: dict[str, Any], absent: str | None
) -> None:
    responses = post_of(describe(plain(), Idempotency(s, **options)))["responses"]
    expected = {str(status) for kind, (status, _) in PROBLEMS.items() if kind != "no-such-key"} - {absent}
    problems = {code for code, one in responses.items() if "problem+json" in json.dumps(one)} - {"200"}
    assert problems == expected
    for code in problems:
        assert "Link" in responses[code]["headers"]
    assert {code for code in problems if "Retry-After" in responses[code]["headers"]} == {"409", "503"}
    assert "Idempotency-Key is missing" in responses["400"]["description"]


def test_what_may_be_given_again_says_so(s: semel.Semel) -> None:
    policy = Idempotency(s, identity=ANYONE, keep=lambda status: status in (200, 402))
    more = {code: {"description": "so it is"} for code in ("204", "402", "4XX", "default", "500")}
    responses = post_of(describe(plain(responses=more), policy))["responses"]
    replayed = {code for code, one in responses.items() if "Idempotent-Replayed" in one.get("headers", {})}
    assert replayed == {"200", "402", "default"}
    # A body that was too large to be kept comes back as a problem of the same status.
    assert responses["200"]["content"].keys() == {"application/json", "application/problem+json"}
    assert "content" not in responses["402"]


def test_what_an_operation_says_already_stays(idempotency: Idempotency) -> None:
    own = {
        "409": {"$ref": "#/components/responses/Taken"},
        "422": {"description": "Not valid", "content": {"application/json": {"schema": {}}}},
    }
    parameters = [
        {"$ref": "#/components/parameters/Key"},
        {"name": "verbose", "in": "query", "schema": {"type": "boolean"}},
    ]
    document = plain(responses=own, parameters=parameters)
    document["components"] = {
        "responses": {"Taken": {"description": "Taken", "content": {"text/plain": {}}}},
        "parameters": {"Key": {"name": "idempotency-key", "in": "header"}},
        "schemas": {"Mine": {"type": "object"}},
    }
    before = copy.deepcopy(document)
    told = describe(document, idempotency)
    assert document == before
    operation = post_of(told)
    assert [parameter["name"] for parameter in operation["parameters"]] == ["verbose", "Idempotency-Key"]
    assert operation["responses"]["409"]["content"].keys() == {"text/plain", "application/problem+json"}
    assert operation["responses"]["422"]["content"].keys() == {"application/json", "application/problem+json"}
    assert operation["responses"]["422"]["description"].startswith("Not valid. ")
    assert told["components"]["responses"] == before["components"]["responses"]
    assert told["components"]["schemas"].keys() == {"Mine", "IdempotencyProblem"}


def test_only_what_the_caller_names_is_described(idempotency: Idempotency) -> None:
    document = plain()
    document["paths"]["/other"] = copy.deepcopy(document["paths"]["/pay"])
    asked = []

    def protected(path: str, method: str) -> bool:
        asked.append((path, method))
        return path == "/pay"

    told = describe(document, idempotency, protected)["paths"]
    assert "parameters" in told["/pay"]["post"]
    assert "parameters" not in told["/other"]["post"]
    assert asked == [("/pay", "POST"), ("/other", "POST")]


def test_a_document_of_another_version_is_refused(idempotency: Idempotency) -> None:
    with pytest.raises(semel.InvalidOption, match="version 3"):
        describe({"swagger": "2.0", "paths": {}}, idempotency)


def plain(**operation: Any) -> dict[str, Any]:
    """A document of one operation."""
    ok = {"200": {"description": "done", "content": {"application/json": {"schema": {}}}}}
    operation = {**operation, "responses": {**ok, **operation.get("responses", {})}}
    return {"openapi": "3.1.0", "info": {}, "paths": {"/pay": {"summary": "Payments", "post": operation}}}


def post_of(document: dict[str, Any]) -> dict[str, Any]:
    post: dict[str, Any] = document["paths"]["/pay"]["post"]
    return post


# The pattern of a key agrees with what is taken


@pytest.mark.parametrize("strict", [True, False])
def test_every_key_of_the_published_pattern_is_taken(s: semel.Semel, strict: bool) -> None:
    policy = Idempotency(s, identity=ANYONE, strict=strict, max_key=8)

    @given(st.from_regex(key_pattern(policy), fullmatch=True))
    def check(value: str) -> None:
        key = read_key(value, strict=strict, longest=8)
        assert key in (value, value[1:-1])

    check()


@pytest.mark.parametrize("strict", [True, False])
def test_what_the_published_pattern_leaves_out_is_not_taken_as_it_stands(
    s: semel.Semel, strict: bool
) -> None:
    """But for escapes and parameters, which a structured field may have and few clients know."""
    policy = Idempotency(s, identity=ANYONE, strict=strict, max_key=8)
    pattern = re.compile(key_pattern(policy))
    characters = st.characters(min_codepoint=0x1F, max_codepoint=0x80, exclude_characters='\\";')

    @given(st.text(characters, max_size=10), st.booleans())
    def check(text: str, quoted: bool) -> None:
        value = f'"{text}"' if quoted else text
        if pattern.fullmatch(value):
            return
        if value == value.strip(" \t"):
            with pytest.raises(BadField):
                read_key(value, strict=strict, longest=8)

    check()


# What is said is true


PLANNED = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))


class Examined:
    """An application under the examination of schemathesis: what was sent, and what came back."""

    def __init__(self, app: FastAPI, **leaving_out: Any) -> None:
        self.schema = schemathesis.openapi.from_asgi("/openapi.json", app)
        self.seen: Counter[tuple[str, str, int]] = Counter()
        self._options = leaving_out

    def examine(self, send: Callable[[Any], None], times: int, *, only: str = "") -> None:
        """Send requests that fit the document, and requests that do not."""
        for found in self.schema.get_all_operations():
            operation = found.ok()
            if only not in operation.label:
                continue
            cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

            @settings(PLANNED, max_examples=times)
            @given(cases)
            def check(case: Any) -> None:
                self._check(send, case)

            check()

    def _check(self, send: Callable[[Any], None], case: Any) -> None:
        send(case)
        response = case.call(headers=NORTH)
        self.seen[case.operation.label, case.meta.generation.mode.value, response.status_code] += 1
        case.validate_response(response, **self._options)

    def statuses(self, label: str, mode: str = "") -> set[int]:
        return {status for name, how, status in self.seen if name == label and mode in how}


def test_the_application_answers_as_its_document_says() -> None:
    """Each valid request has a key of its own here: so all of them are to be accepted."""
    examined = Examined(create_app("memory:"))
    numbers = iter(range(10**6))

    def fresh_key(case: Any) -> None:
        if case.meta.generation.mode is GenerationMode.POSITIVE and case.method == "POST":
            case.headers["Idempotency-Key"] = f'"k-{next(numbers)}"'

    examined.examine(fresh_key, 60)
    assert examined.statuses("POST /payments", "positive") == {201}
    assert examined.statuses("POST /payments", "negative") >= {400, 422}
    assert 200 not in examined.statuses("POST /payments", "negative")
    assert examined.statuses("GET /.well-known/idempotency-key") == {200}


def test_the_application_answers_as_its_document_says_when_keys_are_used_again() -> None:
    """Few keys for many requests: replays, other payloads, and the application's own refusals."""
    app = create_app("memory:")
    paid = TestClient(app).post("/payments", json=ORDER, headers={**NORTH, "Idempotency-Key": "first"}).json()
    examined = Examined(app, excluded_checks=[positive_data_acceptance])
    numbers = iter(range(10**6))

    def used_key(case: Any) -> None:
        if case.meta.generation.mode is GenerationMode.POSITIVE:
            case.headers["Idempotency-Key"] = f'"k-{next(numbers) % 3}"'
            if case.path_parameters:
                case.path_parameters["payment_id"] = paid["id"]

    examined.examine(used_key, 40, only="POST ")
    assert examined.statuses("POST /payments", "positive") == {201, 422}
    assert examined.statuses("POST /payments/{payment_id}/refund", "positive") == {200, 409}


def test_the_examination_finds_an_answer_that_is_not_described() -> None:
    app = create_app("memory:")
    app.openapi = functools.partial(FastAPI.openapi, app)  # type: ignore[method-assign]  # as without publish
    with pytest.raises(FailureGroup) as found:
        Examined(app).examine(lambda _case: None, 20, only="/refund")
    assert "Received: 400\n    Documented: 200, 401, 404, 409, 422" in str(found.value)
    assert "Idempotency-Key is missing" in str(found.value)


def test_the_examination_finds_an_answer_of_another_form(s: semel.Semel) -> None:
    app = create_app("memory:")
    told = copy.deepcopy(app.openapi())
    told["components"]["schemas"]["IdempotencyProblem"]["required"].append("sorry")
    app.openapi = lambda: told  # type: ignore[method-assign]
    with pytest.raises(FailureGroup, match="sorry"):
        Examined(app).examine(lambda _case: None, 40, only="POST /payments")


# The example


def test_the_example_pays_once_and_gives_back_once() -> None:
    with TestClient(create_app("memory:")) as client:
        pay = functools.partial(
            client.post, "/payments", json=ORDER, headers={**NORTH, "Idempotency-Key": "1"}
        )
        first, second = pay(), pay()
        assert (first.status_code, first.json()) == (201, second.json())
        path = f"/payments/{first.json()['id']}"
        assert client.get(path, headers=NORTH).json() == first.json()
        assert client.get(path, headers={"Authorization": "Bearer token-of-south"}).status_code == 404
        answers = [
            client.post(f"{path}/refund", headers={**NORTH, "Idempotency-Key": key})
            for key in ("2", "2", "3", "3")
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 409, 409]
        assert answers[3].headers["idempotent-replayed"] == "true"


def test_the_example_runs_on_a_file_unless_it_is_told_otherwise(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEMEL_URL", raising=False)
    headers = {**NORTH, "Idempotency-Key": "1"}
    for replayed in (None, "true"):
        with TestClient(create_app()) as client:
            answer = client.post("/payments", json=ORDER, headers=headers)
            assert answer.headers.get("idempotent-replayed") == replayed
    assert (tmp_path / "payments.db").exists()


def test_an_endpoints_own_refusal_is_of_its_own_form(idempotency: Idempotency) -> None:
    """So the two kinds of 409 can be told apart by their media type."""
    app = FastAPI()
    app.router.route_class = idempotent_route(idempotency)

    @app.post("/pay", responses={409: {"description": "Sold out"}})
    def pay() -> None:
        raise HTTPException(409, "sold out")

    publish(app, idempotency)
    answer = TestClient(app).post("/pay", headers={"Idempotency-Key": "1"})
    assert answer.headers["content-type"] == "application/json"
    described = app.openapi()["paths"]["/pay"]["post"]["responses"]["409"]
    assert described["content"].keys() == {"application/problem+json"}
