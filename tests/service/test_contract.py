"""The OpenAPI document is true: what it allows is taken, and whatever comes back is as it says."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance, unsupported_method

from semel import errors
from semel.apps.configuration import Configuration
from semel.apps.probe.replies import ANSWERS
from semel.core.clock import Clock
from semel.service import sample_data
from semel.service.app import create_app
from semel.service.openapi import OF_BODIES, OF_HEALTH, OF_HOOKS
from semel.service.problems import PROBLEMS
from semel.service.runtime import Runtime
from tests.service.kit import TOKENS, Reader, bearer, client_of, opened
from tests.service.test_v1 import GATES

# Enough for every operation to be answered in more than one way; the same requests in every run.
EXAMPLES = 2
PLANNED = settings(
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    max_examples=EXAMPLES,
)
# What is taken depends on more than the form: handles have an inside, zones and gates exist or do not.
LEFT_OUT = [positive_data_acceptance, unsupported_method]
EVERYTHING = f"""
[tokens.all]
token = "{TOKENS["north"]}"
scopes = ["ledger:read", "ledger:write", "ops:read", "ops:write", "apps:read", "admin", "metrics"]
"""


def is_span(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 30


def test_the_document_of_the_ledgers_api_is_true(tmp_path: Path) -> None:
    seen: Counter[tuple[str, int]] = Counter()

    def examine(case: schemathesis.Case) -> None:
        if case.path == "/v1/wait" and isinstance(case.body, dict):
            # Some of the keys are held, by other requests of these.
            case.body |= {"timeout": 0.001} if is_span(case.body.get("timeout", 1)) else {}
        headers = {"Authorization": f"Bearer {TOKENS['north']}"}
        response = case.call_and_validate(headers=headers, excluded_checks=LEFT_OUT)
        seen[case.operation.label, response.status_code] += 1

    with opened(EVERYTHING + GATES, tmp_path) as runtime:
        schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(runtime))
        operations = [found.ok() for found in schema.get_all_operations()]
        for operation in [one for one in operations if one.path.startswith("/v1")]:
            for mode in GenerationMode:
                PLANNED(given(case=operation.as_strategy(generation_mode=mode))(examine))()
    assert len({label for label, _ in seen}) == 29
    assert not [one for one in seen if one[1] >= 500]
    # What these take can be told by its form alone; the others refuse some of what the document allows.
    taken = {label for label, status in seen if status < 300}
    assert {"GET /v1/switches", "PUT /v1/switches/{name}", "POST /v1/is-processed"} <= taken
    assert {"GET /v1/ops/records", "GET /v1/ops/journal", "GET /v1/ops/inboxes"} <= taken


# Webhooks, and what the apps answer besides


ADDRESS = "http://testserver"


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    """Every app there is."""
    tree = sample_data.settings(f"sqlite:///{tmp_path / 'semel.db'}")
    tree["service"] |= {"max_body_bytes": 10_000, "public_url": ADDRESS}
    runtime = Runtime(Configuration(tree, "the sample"))
    yield runtime
    runtime.close()


def deliveries() -> list[sample_data.SampleDelivery]:
    """One for each address."""
    now = Clock().now()
    calls = [
        sample_data.call(1, 1),
        sample_data.batch(1, 3, 1, now),
        sample_data.message(1, "m-1", "Where is my order?"),
    ]
    orders = [
        sample_data.order("produce", "k-1", count=1),
        sample_data.order("consume", "k-2", max=1, seconds=0.01),
    ]
    return [*calls, sample_data.update(1, 2, now, "I did the dishes"), *orders]


PATHS = {delivery.path for delivery in deliveries()}


def send(client: Reader, delivery: sample_data.SampleDelivery, **changes: Any) -> int:
    """Deliver it, and tell the status of the answer; the client compares that with the document."""
    headers = delivery.signed(ADDRESS, Clock().now())
    told = {"content": delivery.body, "headers": headers} | changes
    return int(client.post(delivery.path, **told).status_code)


def test_every_status_of_a_webhook_is_published(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of(runtime) as client:
        for delivery in deliveries():
            shown = delivery.signed(ADDRESS, Clock().now())
            assert send(client, delivery) == 200
            assert send(client, delivery) == 200
            assert send(client, delivery, headers={}) == 401
            assert send(client, delivery, content=b"x" * 20_000) == 413
            assert send(client, delivery, headers=[*bearer("north").items(), *bearer("south").items()]) == 400
            wrong = sample_data.SampleDelivery(delivery.path, delivery.headers, {"body": {}})
            assert send(client, wrong) in (200, 400, 422)
            broken = shown if delivery.path != "/webhooks/hubspot" else {}
            assert send(client, delivery, content=b"{", headers=broken) in (400, 401)
        assert {route for _, route, _ in client.seen} == PATHS
        changed = sample_data.order("produce", "k-1", count=2)
        assert send(client, changed) == 422
        keyless = {name: value for name, value in changed.headers.items() if name != "Idempotency-Key"}
        assert send(client, changed, headers=keyless) == 400
        for hook in runtime.hooks().values():
            monkeypatch.setattr(hook, "areceive", _failing)
        for error, status in ((RuntimeError("x"), 500), (errors.StoreUnavailable("x"), 503)):
            monkeypatch.setattr(_failing, "error", error, raising=False)
            assert [send(client, one) for one in deliveries()] == [status] * len(PATHS)


async def _failing(*_args: Any, **_options: Any) -> Any:
    raise _failing.error  # type: ignore[attr-defined]  # the test's


def test_a_store_that_is_away_is_a_status_that_is_published(runtime: Runtime) -> None:
    with client_of(runtime) as client:
        for s in runtime.stores():
            s.close()
        assert {send(client, one) for one in deliveries()} == {503}


def test_what_the_code_can_answer_is_what_is_published(runtime: Runtime) -> None:
    """Each operation with the statuses of its own problems, and of those that every one may have."""
    with client_of(runtime) as client:
        paths = client.document["paths"]
    statuses = {path: set(map(int, paths[path]["post"]["responses"])) for path in PATHS}
    common = {200} | {PROBLEMS[kind][0] for kind in OF_HOOKS}
    for path, published in statuses.items():
        assert published == common | (set(ANSWERS) if path.startswith("/messages") else set())
    for path, item in paths.items():
        for method, operation in item.items():
            published = {int(status) for status in operation["responses"]}
            if path.startswith("/health/"):
                assert {PROBLEMS[kind][0] for kind in OF_HEALTH} <= published
                continue
            assert {400, 413, 500, 503} <= published, (method, path)
            if path not in PATHS and "requestBody" in operation:
                assert {PROBLEMS[kind][0] for kind in OF_BODIES} <= published, (method, path)
            if operation.get("security"):
                assert {401, 403} <= published, (method, path)
            if path.startswith("/apps/"):
                assert {404, 422} <= published, path


def test_logs_and_metrics_tell_every_address_of_the_document(runtime: Runtime) -> None:
    middleware = create_app(runtime)
    addresses = [*middleware._app.openapi()["paths"], "/openapi.json", "/docs", "/about"]  # type: ignore[attr-defined]  # it is FastAPI's
    assert [middleware._routes.of(address) for address in addresses] == addresses
