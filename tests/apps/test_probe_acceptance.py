"""The probe in the running service: killed, restarted, asked again; every message once, and none lost."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel.testing import FaultProxy
from tests.apps.kit import Place, Service, found, place  # noqa: F401
from tests.servers.running import until

TOKEN = "a-token-of-the-tests"
PLANTED = {"e-mail": "planted.person@example.com", "phone": "+46701740605"}


class Asker:
    """Sends requests to a running service, and again while it is told to wait."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60, trust_env=False)

    def ask(self, operation: str, key: str, order: dict[str, Any]) -> httpx.Response:
        url = f"{self._service.url}/messages/{operation}"
        return self._client.post(url, json=order, headers={"Idempotency-Key": f'"{key}"'})

    def insist(self, operation: str, key: str, order: dict[str, Any]) -> dict[str, Any]:
        answers: list[httpx.Response] = []

        def done() -> bool:
            answers.append(self.ask(operation, key, order))
            assert answers[-1].status_code in (200, 409, 503), answers[-1].text
            return answers[-1].status_code == 200

        assert until(done), answers[-1].text
        return dict(answers[-1].json())

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.seed("M3")
@pytest.mark.seed("M5")
@pytest.mark.proof("restarts", 1)
@pytest.mark.parametrize(
    ("place", "queues"),
    [("sqlite", "embedded"), ("dynamodb+sqs", "embedded"), ("dynamodb+sqs", "rabbitmq")],
    indirect=["place"],
)
def test_each_message_moves_once_whatever_happens_to_the_service(
    queues: str,
    place: Place,  # noqa: F811
    tmp_path: Path,
    request: pytest.FixtureRequest,
    stack: ExitStack,
) -> None:
    address, broker, proxy = "orders", "", None
    if queues == "rabbitmq":
        if not os.environ.get("CI"):
            pytest.importorskip("proton")
        from tests.apps.test_probe_amqp import Queue

        queue = Queue(request.getfixturevalue("rabbitmq"))
        stack.callback(queue.remove)
        proxy = stack.enter_context(FaultProxy.before(queue.url))
        address, broker = queue.address, proxy.url(queue.url)
    text = f'{place.toml()}[apps.probe]\ntoken = "{TOKEN}"\nlease = 1\nbroker = "{broker}"\n'
    service = stack.enter_context(Service(tmp_path, text, place.environ))
    asker = Asker(service)
    stack.callback(asker.close)

    # Every request is sent by three at once.
    orders = {
        f"p{n}": {"address": address, "messages": [{"n": n, "m": m, **PLANTED} for m in range(6)]}
        for n in range(5)
    }
    with ThreadPoolExecutor(15) as crowd:
        answers = crowd.map(lambda key: asker.insist("produce", key, orders[key]), list(orders) * 3)
        assert [one["processedMessages"] for one in answers] == [6] * 15

    # Somebody has taken them into hand, waits for one more, and is killed.
    order = {"address": address, "max": 31, "seconds": 20}
    with place.connect("probe") as s, ThreadPoolExecutor(1) as other:
        lost = other.submit(asker.ask, "consume", "c", order)
        assert until(lambda: s.ledger.get("CONSUME#c") is not None)
        if queues == "rabbitmq":
            assert until(lambda: queue.depth() == 0)
        service.kill()
        with pytest.raises(httpx.TransportError):
            lost.result()
        service.start()

        # The other side is not there for a while; the same key then does what it could not.
        last = {"address": address, "messages": [{"n": 5, "m": 0, **PLANTED}]}
        if proxy is not None:
            proxy.refuse()
            refused = asker.ask("produce", "p5", last)
            assert (refused.status_code, refused.json()["type"]) == (503, "/problems#broker-unavailable")
            proxy.heal()
        asker.insist("produce", "p5", last)

        told = asker.insist("consume", "c", order)
        names = [(message["body"]["n"], message["body"]["m"]) for message in told["messages"]]
        assert sorted(names) == [(n, m) for n in range(5) for m in range(6)] + [(5, 0)]
        assert told["processedMessages"] == 31
        assert s.ledger.get("CONSUME#c").attempt > 1

    # It is known from now on, and nothing is left.
    again = asker.ask("consume", "c", order)
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (told, "true")
    rest = asker.insist("consume", "rest", {"address": address, "max": 1, "seconds": 0.2})
    assert rest["processedMessages"] == 0
    service.stop()
    assert found(PLANTED, {"log": service.log, **dict(place.files())}) == []
