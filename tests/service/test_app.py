"""What the service tells about itself, and to whom."""

import asyncio
import html
import json
import logging
import re
import shutil
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

import semel
from semel.aws.environment import Credentials
from semel.aws.errors import ServiceError
from semel.aws.wire import Wire
from semel.doors.inbox import Counted, Message
from semel.errors import StoreUnavailable
from semel.model import Claimed
from semel.service import pages
from semel.service.app import create_app
from semel.service.metrics import Depths, RunningCount
from semel.service.middleware import RequestMiddleware
from semel.service.problems import PROBLEMS
from semel.service.runtime import Runtime
from semel.stores.dynamodb.items import title
from semel.testing import FakeClock, FaultProxy
from tests.apps.kit import Place
from tests.servers.absence import served as running
from tests.servers.dynamodb import dynoxide, ministack
from tests.servers.running import until
from tests.service.echo import Echo
from tests.service.kit import (
    ALL_TOKENS,
    TOKENS,
    bearer,
    client_of,
    opened,
    problem_of,
    register,
    served,
    told,
)

# Health


def test_it_lives_and_is_ready_with_its_apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    with served("[apps.echo]", tmp_path) as client:
        assert client.get("/health/live").json() == {"status": "live"}
        assert client.get("/health/ready").json() == {"status": "ready", "apps": ["echo"]}


def test_it_is_not_ready_while_its_store_is_away(tmp_path: Path) -> None:
    # A server of its own: most of the seeds' tables have one name, whatever the environment.
    with (
        running(dynoxide if shutil.which("npm") else ministack) as server,
        FaultProxy.before(server) as proxy,
    ):
        place = Place("dynamodb", tmp_path, proxy.url(server))
        text = f"{place.toml()}\n[service]\nready_timeout = 0.2"
        runtime = Runtime(told(text))
        try:
            with client_of(runtime) as client:
                assert until(lambda: client.get("/health/ready").status_code == 200)
                proxy.black_hole()
                silent = client.get("/health/ready")
                assert (silent.status_code, problem_of(silent)) == (503, "unavailable")
                assert silent.json()["detail"] == "the store has not answered for 0.2 s"
                assert silent.headers["retry-after"] == "1"
                assert client.get("/health/live").status_code == 200
                proxy.heal()
                assert until(lambda: client.get("/health/ready").status_code == 200)
        finally:
            runtime.close()


APPS = """
[apps.quill]
aloware_token = "token-of-aloware"
star = "{folder}/quill.db"
[apps.support]
webhook_token = "a-token-of-richpanel"
[apps.household]
secret_token = "a-secret-of-telegram"
[apps.probe]
token = "a-token-of-the-probe"
"""


@pytest.fixture
def on_dynamodb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Runtime, Wire]]:
    """A service with every application on DynamoDB, and a wire to change its tables by."""
    with running(dynoxide if shutil.which("npm") else ministack) as server:
        place = Place("dynamodb", tmp_path, server)
        for name, value in place.environ.items():
            monkeypatch.setenv(name, value)
        wire = Wire("dynamodb", region="us-east-1", endpoint=server, credentials=Credentials("test", "test"))
        runtime = Runtime(told(place.toml() + ALL_TOKENS + APPS.format(folder=tmp_path)))
        yield runtime, wire
        runtime.close()
        wire.close()


@pytest.mark.seed("R6")
def test_it_says_which_tables_have_ttl_off(on_dynamodb: tuple[Runtime, Wire], caplog) -> None:
    """Of every application and of the ledger; it is ready all the same, as what has expired only costs."""
    runtime, wire = on_dynamodb
    with client_of(runtime) as client:
        assert client.get("/health/ready").json().keys() == {"status", "apps"}
    needed = {table for _, tables in runtime.tables() for table in tables if table.ttl}
    titles = {title(table, runtime.settings.semel.env) for table in needed}
    for table in needed:
        off = {"Enabled": False, "AttributeName": table.ttl}
        name = title(table, runtime.settings.semel.env)
        request = {"TableName": name, "TimeToLiveSpecification": off}
        wire.call("UpdateTimeToLive", request, write=True)
    caplog.clear()
    with client_of(runtime) as client:
        answers = [client.get("/health/ready") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    for answer in answers:
        assert {warning.split(" for ")[1].split(",")[0] for warning in answer.json()["warnings"]} == titles
        assert all(one.startswith("TTL is off") for one in answer.json()["warnings"])
        assert all(one.endswith(": run: semel provision") for one in answer.json()["warnings"])
    logged = [line for line in caplog.messages if "TTL is off" in line]
    assert len(logged) == len(titles) >= 10


@pytest.mark.seed("R6")
def test_where_it_may_not_ask_for_ttl_it_says_that(
    on_dynamodb: tuple[Runtime, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, _ = on_dynamodb
    exchange = Wire.exchange

    def denied(self: Wire, operation: str, request: Any, *, write: bool) -> Any:
        if operation == "DescribeTimeToLive":
            raise ServiceError("AccessDeniedException", "not authorized", 400, {})
        return exchange(self, operation, request, write=write)

    monkeypatch.setattr(Wire, "exchange", denied)
    with client_of(runtime) as client:
        answer = client.get("/health/ready")
    assert answer.status_code == 200
    for warning in answer.json()["warnings"]:
        assert "is not known: these credentials may not dynamodb:DescribeTimeToLive" in warning
    assert len(answer.json()["warnings"]) >= 10


def test_it_says_what_is_wrong_with_the_store(tmp_path: Path) -> None:
    with opened("", tmp_path) as runtime, client_of(runtime) as client:
        runtime.s.close()
        answer = client.get("/health/ready")
        assert (answer.status_code, problem_of(answer)) == (503, "unavailable")
        assert answer.json()["detail"].startswith("StoreClosed: ")


def test_it_is_not_ready_when_its_file_is_another_one(tmp_path: Path) -> None:
    """Who starts now makes a new file, and each of the two would let the same thing happen."""
    with opened("", tmp_path) as runtime, client_of(runtime) as client:
        assert client.get("/health/ready").status_code == 200
        file = tmp_path / "semel.db"
        file.rename(tmp_path / "moved.db")
        for _ in range(2):
            answer = client.get("/health/ready")
            assert (answer.status_code, problem_of(answer)) == (503, "unavailable")
            assert "its file was moved or replaced" in answer.json()["detail"]
            file.touch()
        (tmp_path / "moved.db").rename(file)
        assert client.get("/health/ready").status_code == 200


# Tokens


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with served(ALL_TOKENS, tmp_path_factory.mktemp("app")) as client:
        yield client


def test_a_request_without_a_token_or_with_a_wrong_one_is_not_authenticated(client: TestClient) -> None:
    for headers in ({}, {"Authorization": "Basic abc"}):
        answer = client.get("/v1/records?key=k", headers=headers)
        assert (answer.status_code, problem_of(answer)) == (401, "not-authenticated")
        assert answer.headers["www-authenticate"] == 'Bearer realm="semel"'
    wrong = client.get("/v1/records?key=k", headers={"Authorization": "Bearer guessed"})
    assert wrong.headers["www-authenticate"] == 'Bearer realm="semel", error="invalid_token"'


def test_two_authorization_headers_are_refused_whatever_they_say(client: TestClient) -> None:
    [known] = bearer("north").items()
    for other in (known, ("Authorization", "Bearer guessed"), ("authorization", "")):
        for path in ("/v1/records?key=k", "/metrics", "/"):
            answer = client.get(path, headers=[known, other])
            assert (answer.status_code, problem_of(answer)) == (400, "invalid-request")
            assert "more than one Authorization header" in answer.json()["detail"]


def test_who_is_not_known_is_told_so_before_what_it_sent_is_read(client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.post("/v1/claims", content=b"{", headers=headers)
    assert (answer.status_code, problem_of(answer)) == (401, "not-authenticated")


def test_nobody_is_sent_elsewhere_with_its_token(client: TestClient) -> None:
    """An address of its own making would be http, also where the client came by https."""
    answer = client.post("/v1/claims/", json={"key": "k"}, headers=bearer("north"), follow_redirects=False)
    assert (answer.status_code, problem_of(answer)) == (404, "no-such-page")


def test_whoever_waits_and_goes_away_keeps_no_place(tmp_path: Path) -> None:
    async def story(middleware: RequestMiddleware) -> list[Any]:
        body = json.dumps({"key": "k", "timeout": 30}).encode()
        news: list[Any] = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
        sent: list[Any] = []

        async def receive() -> Any:
            return news.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        names = {"content-type": "application/json", **bearer("north")}
        headers = [(name.lower().encode(), value.encode()) for name, value in names.items()]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/wait",
            "query_string": b"",
            "headers": headers,
        }
        await middleware(scope, receive, send)
        return sent

    with opened(ALL_TOKENS, tmp_path) as runtime:
        runtime.s.scoped("north").ledger.claim("k", lease=60, ttl=600)
        middleware = create_app(runtime)
        assert asyncio.run(story(middleware))[0]["status"] == 499
        assert middleware.in_flight == 0


def test_where_no_token_is_set_up_the_answer_says_so(tmp_path: Path) -> None:
    with served("", tmp_path) as client:
        answer = client.post("/v1/claims", json={"key": "k"}, headers=bearer("north"))
        assert answer.status_code == 401
        assert "no token is set up" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "who", "right"),
    [
        ("POST", "/v1/claims", "reader", "ledger:write"),
        ("POST", "/v1/check-and-set", "reader", "ledger:write"),
        ("POST", "/v1/counters/charge", "reader", "ledger:write"),
        ("POST", "/v1/gates/x/decide", "reader", "ledger:write"),
        ("GET", "/v1/records?key=k", "chief", "ledger:read"),
        ("GET", "/v1/switches", "north", "admin"),
        ("PUT", "/v1/switches/x", "north", "admin"),
        ("GET", "/metrics", "north", "metrics"),
    ],
)
def test_a_right_that_is_lacking_is_named(
    client: TestClient, method: str, path: str, who: str, right: str
) -> None:
    answer = client.request(method, path, headers=bearer(who), json={} if method != "GET" else None)
    assert (answer.status_code, problem_of(answer)) == (403, "not-permitted")
    assert answer.json()["scope"] == right
    assert f'scope="{right}"' in answer.headers["www-authenticate"]
    assert repr(right) in answer.json()["detail"]


def test_a_token_may_be_known_by_its_hash_alone(tmp_path: Path) -> None:
    from hashlib import sha256

    digest = sha256(b"the token itself").hexdigest().upper()
    with served(f"[tokens.x]\nsha256 = '{digest}'\nscopes = ['metrics']", tmp_path) as client:
        assert client.get("/metrics", headers={"Authorization": "Bearer the token itself"}).status_code == 200


def test_metrics_may_be_open_and_tell_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    with served("[service]\nopen_metrics = true\n[apps.echo]", tmp_path) as client:
        client.post("/webhooks/echo", content=b'["a", "b", "c"]')
        answer = client.get("/metrics")
        assert 'semel_inbox_waiting{app="echo"} 3.0' in answer.text
        assert 'semel_inbox_oldest_seconds{app="echo"} ' in answer.text
        assert 'semel_events_total{door="",event="claimed",outcome="new"}' in answer.text
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def gauges(client: TestClient) -> dict[str, float]:
    """What waits for somebody, as Prometheus is told."""
    told = client.get("/metrics").text.splitlines()
    lines = [line for line in told if line.startswith(("semel_inbox", "semel_ledger"))]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_dead_letters_and_doubts_are_gauges_with_the_age_of_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    text = f"{ALL_TOKENS}\n[service]\nopen_metrics = true\n[apps.echo]\nfolder = '{tmp_path}'"
    with opened(text, tmp_path) as runtime, client_of(runtime) as client:
        client.post("/webhooks/echo", content=b'["bad 1", "bad 2", "fine"]')
        [echo] = runtime.apps
        worker = echo.inbox.worker(echo.app.handle, max_attempts=1)
        echo.s.events.listen(lambda _: worker.stop() if not echo.inbox.waiting() else None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert until(lambda: len(echo.inbox.dead()) == 2 and not echo.inbox.waiting())
        worker.stop()
        thread.join(60)
        for key in ("a", "b", "c"):
            claim = runtime.s.scoped("north").ledger.claim(key, on_lapsed="hold")
            assert isinstance(claim, Claimed)
            runtime.s.scoped("north").ledger.doubt(claim)
        told = gauges(client)
    assert told['semel_inbox_waiting{app="echo"}'] == 0
    assert told['semel_inbox_dead{app="echo"}'] == 2
    assert told['semel_ledger_doubts{scope="north"}'] == 3
    assert told['semel_ledger_doubts{scope="south"}'] == told['semel_ledger_doubts{scope="echo"}'] == 0
    assert 0 <= told['semel_inbox_dead_oldest_seconds{app="echo"}'] < 600
    assert 0 <= told['semel_ledger_doubts_oldest_seconds{scope="north"}'] < 600
    assert 'semel_inbox_oldest_seconds{app="echo"}' not in told


def test_what_waits_is_counted_in_parts_and_does_not_stop_at_one(clock: FakeClock) -> None:
    with semel.connect("memory:", clock=clock) as s:
        box = s.mailbox("echo")
        box.put([Message(f"m{number}", {}, group=f"g{number % 3}") for number in range(25)])
        clock.advance(60)
        counted = RunningCount(lambda after: box.count(after=after, most=10))
        assert [counted.look().number for _ in range(3)] == [10, 20, 25]
        assert counted.look().number == 25, "the whole count stands while the next is made"
        for letter in box.letters(Message("m0", {}, "g0").lane).letters:
            box.leave([letter])
        told = [counted.look() for _ in range(4)][-1]
        assert (told.number, told.now - (told.oldest or 0)) == (16, 60)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_an_inbox_that_cannot_tell_is_left_out_and_the_rest_is_told() -> None:
    def broken(_after: str | None) -> Counted:
        raise StoreUnavailable("away")

    looks = {"dead": {"echo": broken, "other": lambda _after: Counted(3)}}
    told = {one.name: one.value for family in Depths(looks).collect() for one in family.samples}
    assert told == {"semel_inbox_dead": 3}


# Workers alone


def test_workers_alone_tell_health_and_metrics_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    wrong = [""]
    with (
        opened(f"{ALL_TOKENS}\n[apps.echo]", tmp_path) as runtime,
        TestClient(create_app(runtime, lambda: wrong[0])) as client,
    ):
        assert client.get("/health/live").json() == {"status": "live"}
        assert client.get("/health/ready").json() == {"status": "ready", "apps": ["echo"]}
        assert client.get("/metrics").status_code == 401
        assert 'semel_inbox_dead{app="echo"} 0.0' in client.get("/metrics", headers=bearer("chief")).text
        for path in ("/webhooks/echo", "/v1/claims", "/apps/echo"):
            assert problem_of(client.post(path, json={}, headers=bearer("north"))) == "no-such-page"
        wrong[0] = "the worker of echo failed: TableMissing: there is no table"
        answer = client.get("/health/ready")
        assert (answer.status_code, problem_of(answer)) == (503, "unavailable")
        assert answer.json()["detail"] == wrong[0]
        assert client.get("/health/live").status_code == 200


def test_an_apps_own_api_asks_for_its_right(tmp_path: Path) -> None:
    text = ALL_TOKENS + f"\n[apps.quill]\naloware_token = 'token-of-aloware'\nstar = '{tmp_path}/quill.db'"
    with served(text, tmp_path) as client:
        path = "/apps/quill/facts?from=2026-01-01&to=2026-01-02"
        assert client.get(path).status_code == 401
        assert client.get(path, headers=bearer("north")).json()["scope"] == "apps:read"
        assert client.get(path, headers=bearer("chief")).json() == {"facts": []}


# Problems and documents


def test_every_problem_is_published_where_its_type_says(client: TestClient) -> None:
    told = client.get("/problems").json()
    assert told.keys() > PROBLEMS.keys()
    assert "key-missing" in told
    assert told["claim-lost"] == {
        "type": "/problems#claim-lost",
        "status": 409,
        "title": "The claim is no longer the caller's; nothing was written",
    }


def test_the_problems_of_an_app_are_published_where_it_runs(client: TestClient, tmp_path: Path) -> None:
    assert "broker-unavailable" not in client.get("/problems").json()
    with served('[apps.probe]\ntoken = "a-token-of-the-probe"', tmp_path) as probing:
        told = probing.get("/problems").json()
    assert told["broker-unavailable"]["title"] == "The broker cannot be reached"
    assert told.keys() > PROBLEMS.keys()


def test_what_is_not_there_or_asked_wrongly_is_a_problem_too(client: TestClient) -> None:
    assert problem_of(client.get("/nowhere")) == "no-such-page"
    assert problem_of(client.get("/v1/claims")) == "wrong-method"


def test_what_is_wrong_with_a_request_is_told_without_what_it_said(client: TestClient) -> None:
    answer = client.post("/v1/claims", json={"key": "", "lease": "planted"}, headers=bearer("north"))
    assert (answer.status_code, problem_of(answer)) == (400, "invalid-request")
    assert [one["at"] for one in answer.json()["errors"]] == ["body.key", "body.lease"]
    assert "planted" not in answer.text


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", None]
)
def test_a_body_that_does_not_say_that_it_is_json_is_told_so(client: TestClient, kind: str | None) -> None:
    """As it is sent by `curl -d`."""
    headers = bearer("north") | ({} if kind is None else {"Content-Type": kind})
    answer = client.post("/v1/claims", content=b'{"key": "k"}', headers=headers)
    assert (answer.status_code, problem_of(answer)) == (415, "not-json")
    assert "-H 'Content-Type: application/json'" in answer.json()["detail"]
    unknown = client.post("/v1/claims", content=b'{"key": "k"}', headers={"Content-Type": "text/plain"})
    assert unknown.status_code == 401
    empty = client.post("/v1/claims", headers=headers)
    assert (empty.status_code, problem_of(empty)) == (400, "invalid-request")


def test_an_apps_own_routes_tell_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = APIRouter()

    @routes.post("/notes")
    def note(told: dict[str, str]) -> dict[str, str]:
        return told

    register(monkeypatch)
    # A class of its own: what Echo itself once had, a runtime protocol would take it to have for good.
    showing = type("Showing", (Echo,), {"router": lambda _self: routes})
    monkeypatch.setattr("tests.service.echo.Echo", showing)
    with served("[apps.echo]" + ALL_TOKENS, tmp_path) as client:
        assert client.post("/apps/echo/notes", json={"a": "b"}, headers=bearer("chief")).json() == {"a": "b"}
        form = client.post("/apps/echo/notes", data={"a": "b"}, headers=bearer("chief"))
        assert (form.status_code, problem_of(form)) == (415, "not-json")
        unknown = client.post("/apps/echo/notes", data={"a": "b"})
        assert (unknown.status_code, problem_of(unknown)) == (401, "not-authenticated")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"key": "a", "key": "b"}', "a name occurs twice in one object"),
        (b'{"key": "a", "payload": NaN}', "NaN is no number of JSON"),
        (b'{"key": "a"', "Expecting"),
        (b"\xff", "UnicodeDecodeError"),
        (b'{"key": "a", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "RecursionError"),
    ],
)
def test_json_that_two_readers_could_read_differently_is_refused(
    client: TestClient, body: bytes, word: str
) -> None:
    headers = bearer("north") | {"Content-Type": "application/json"}
    answer = client.post("/v1/claims", content=body, headers=headers)
    assert (answer.status_code, problem_of(answer)) == (400, "invalid-request")
    assert word in answer.json()["errors"][0]["problem"]


def test_the_document_describes_hooks_problems_and_who_may_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    with served("[apps.echo]", tmp_path) as client:
        document = client.get("/openapi.json").json()
    hook = document["paths"]["/webhooks/echo"]["post"]
    assert set(hook["responses"]) == {"200", "400", "401", "408", "413", "500", "503"}
    assert hook["security"] == []
    claim = document["paths"]["/v1/claims"]["post"]
    refused = {"400", "401", "403", "408", "409", "413", "415", "422", "500", "503"}
    assert set(claim["responses"]) == {"200", "201"} | refused
    assert set(document["paths"]["/health/ready"]["get"]["responses"]) == {"200", "500", "503"}
    assert claim["security"] == [{"token": ["ledger:write"]}]
    assert "HTTPValidationError" not in str(document)
    for path, item in document["paths"].items():
        for operation in item.values():
            for status, one in operation["responses"].items():
                if status >= "400":
                    assert set(one["content"]) == {"application/problem+json"}, (path, status)


# Pages


def test_the_root_leads_somewhere_in_json_and_for_browsers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    with served("[apps.echo]" + ALL_TOKENS, tmp_path) as client:
        told = client.get("/").json()
        assert (told["name"], told["version"]) == ("semel", version("semel"))
        assert told["apps"] == {"echo": ["/webhooks/echo"]}
        for path in told["links"].values():
            assert client.get(path).status_code == 200, path
        led = client.get("/", headers={"Accept": "text/html,*/*;q=0.8"}, follow_redirects=False)
        assert (led.status_code, led.headers["location"]) == (303, "/dashboard/")
        page = client.get("/about")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        for words in (version("semel"), "echo", "/webhooks/echo", *told["links"].values()):
            assert words in page.text
        assert client.get("/").headers["vary"] == led.headers["vary"] == "Accept"
        assert not any(token in page.text + json.dumps(told) for token in TOKENS.values())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/records?key=k", 200),
        ("GET", "/v1/records?key=none", 404),
        ("POST", "/v1/is-processed", 200),
        ("GET", "/health/ready", 200),
        ("GET", "/docs", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/dashboard/", 200),
        ("GET", "/nothing", 404),
        ("POST", "/webhooks/echo", 200),
    ],
)
def test_no_cache_keeps_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str, status: int
) -> None:
    register(monkeypatch)
    with served("[apps.echo]" + ALL_TOKENS, tmp_path) as client:
        client.post("/v1/mark-processed", json={"key": "k"}, headers=bearer("north"))
        body: Any = [] if "webhooks" in path else {"key": "k"}
        more = {"json": body} if method == "POST" else {}
        answer = client.request(method, path, headers=bearer("north"), **more)
        assert (answer.status_code, answer.headers["cache-control"]) == (status, "no-store"), answer.text


def test_what_says_how_long_it_may_be_kept_is_kept(client: TestClient) -> None:
    icon = client.get("/dashboard/static/icon.svg")
    assert icon.headers["cache-control"] == "public, max-age=86400, immutable"


def test_the_pages_load_nothing_from_elsewhere_and_run_nothing(client: TestClient) -> None:
    for path in ("/about", "/docs"):
        page = client.get(path, headers={"Accept": "text/html"})
        assert page.headers["content-security-policy"].startswith("default-src 'none'; ")
        assert page.headers["content-security-policy"].endswith("frame-ancestors 'none'")
        leads = re.findall(r"""(?:src|href|srcset|action)\s*=\s*["']?([^"'\s>]*)""", page.text)
        assert leads
        assert all(re.match(r"/(?!/)|data:,$", lead) for lead in leads), leads
        assert not re.search(r"<script|<iframe|@import|url\(|https?://|\son\w+=", page.text)


def test_the_reference_has_every_operation_with_its_fields_and_statuses(client: TestClient) -> None:
    document, page = client.get("/openapi.json").json(), client.get("/docs").text
    shown = re.findall(r"<details><summary><b>(\w+)</b> <code>([^<]+)</code>(.*?)</details>", page, re.DOTALL)
    known = {
        (method.upper(), path): one
        for path, item in document["paths"].items()
        for method, one in item.items()
    }
    assert sorted(one[:2] for one in shown) == sorted(known)
    for method, path, text in shown:
        operation = known[method, path]
        for word in (*operation["responses"], *(one["name"] for one in operation.get("parameters", []))):
            assert f"<code>{word}</code>" in text, (path, word)
    claim = next(text for method, path, text in shown if path == "/v1/claims")
    assert "<code>on_lapsed</code> <small>optional</small>" in claim
    told = 'curl "$URL/v1/claims" --oauth2-bearer "$TOKEN" --json \'{"key": "charge:order-17"}\''
    assert html.escape(told) in claim


def test_what_stands_in_a_document_is_text_and_never_html() -> None:
    nasty = "<script>alert('x')</script>"
    operation = {"description": nasty, "responses": {"200": {"description": nasty}}, "tags": [nasty]}
    schema = {"type": "object", "properties": {nasty: {"description": nasty, "enum": [nasty]}}}
    operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    page = pages.reference(
        {"info": {"title": nasty, "version": nasty}, "paths": {nasty: {"post": operation}}}
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8


@pytest.mark.parametrize("allowed", [False, True])
def test_the_log_tells_keys_where_that_is_allowed_and_redacts_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, allowed: bool
) -> None:
    caplog.set_level(logging.INFO, "semel.events")
    with served(f"{ALL_TOKENS}\n[service]\nlog_keys = {str(allowed).lower()}", tmp_path) as client:
        asked = {"key": "welcome:ann@example.com", "lease": 60}
        assert client.post("/v1/claims", headers=bearer("north"), json=asked).status_code == 201
    [record] = [one for one in caplog.records if one.name == "semel.events"]
    assert vars(record).get("semel_key") == ("welcome:***@***" if allowed else None)
    assert "ann@example.com" not in record.getMessage()
