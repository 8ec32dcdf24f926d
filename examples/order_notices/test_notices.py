"""The application as its shop and its warehouse see it; `pytest` in this folder runs them."""

import hmac
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from notices import PATH, Notices, Settings

import semel
from semel.doors.inbox import Inbox, Message, open_inbox
from semel.doors.webhooks import WebhookResponse

SECRET = "what-the-shop-signs-with"


class Warehouse:
    """A warehouse that answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        """What it answers next; 200 when nothing is left."""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        warehouse = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                warehouse.asked.append((self.headers["Idempotency-Key"], body))
                self.send_response(warehouse.statuses.pop(0) if warehouse.statuses else 200)
                self.end_headers()
                self.wfile.write(b'{"receipt": "r-1"}')

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def warehouse() -> Iterator[Warehouse]:
    warehouse = Warehouse()
    yield warehouse
    warehouse.close()


class Desk:
    """The application on a store in memory, with its inbox."""

    def __init__(self, settings: Settings) -> None:
        self.s = semel.connect("memory:")
        self.inbox: Inbox = open_inbox(self.s, "notices", shared=True)
        self.app = Notices(self.s, self.inbox, settings)

    def deliver(self, number: str, *, event: str = "order.paid", secret: str = SECRET) -> WebhookResponse:
        body = json.dumps({"event": event, "number": number, "items": 2, "email": "ann@example.com"}).encode()
        signature = hmac.new(secret.encode(), body, "sha256").hexdigest()
        answer: WebhookResponse = self.app.hooks[PATH].receive({"X-Shop-Signature": signature}, body)
        return answer

    def work(self, until: Callable[[], bool]) -> None:
        """Handle what waits, and try again at once what failed, until this is so."""

        def handle(message: Message) -> Any:
            try:
                return self.app.handle(message)
            finally:
                if until():
                    worker.stop()

        worker = self.inbox.worker(handle, backoff=lambda _: 0.0, **self.app.worker_options)
        worker.run()


@pytest.fixture
def desk(warehouse: Warehouse) -> Iterator[Desk]:
    desk = Desk(Settings(shop_secret=SECRET, warehouse_url=warehouse.url))
    yield desk
    desk.app.close()
    desk.s.close()


def test_an_order_that_is_delivered_twice_is_told_once(desk: Desk, warehouse: Warehouse) -> None:
    for number in ("1001", "1001", "1002"):
        assert desk.deliver(number).status == 200
    desk.work(lambda: len(warehouse.asked) == 2)
    assert sorted(body["number"] for _, body in warehouse.asked) == ["1001", "1002"]
    document = desk.s.documents.get("order:1001")
    assert document is not None
    assert document.value == {"items": 2, "receipt": "r-1"}


def test_nothing_of_the_customer_goes_any_further(desk: Desk, warehouse: Warehouse) -> None:
    desk.deliver("1001")
    desk.work(lambda: bool(warehouse.asked))
    assert [body for _, body in warehouse.asked] == [{"number": "1001", "items": 2}]


def test_a_delivery_that_the_shop_did_not_sign_is_refused(desk: Desk) -> None:
    assert desk.deliver("1001", secret="guessed").status == 401
    assert desk.inbox.waiting() == 0


def test_what_is_no_paid_order_is_let_pass(desk: Desk) -> None:
    assert desk.deliver("1001", event="order.viewed").status == 200
    assert desk.inbox.waiting() == 0


def test_a_notice_that_failed_is_sent_again_under_the_same_key(desk: Desk, warehouse: Warehouse) -> None:
    warehouse.statuses = [503]
    desk.deliver("1001")
    desk.work(lambda: len(warehouse.asked) == 2)
    [first, second] = [key for key, _ in warehouse.asked]
    assert first == second


def test_what_the_warehouse_refuses_is_put_aside_at_once(desk: Desk, warehouse: Warehouse) -> None:
    warehouse.statuses = [422]
    desk.deliver("1001")
    desk.work(lambda: len(warehouse.asked) == 1)
    [dead] = desk.inbox.dead()
    assert dead.key == "paid:1001"
    assert "422" in dead.error


def test_without_a_warehouse_a_notice_is_kept_in_the_journal() -> None:
    desk = Desk(Settings(shop_secret=SECRET))
    desk.deliver("1001")
    desk.work(lambda: True)
    assert [entry.body for entry in desk.s.journal.list("outbox:notices").entries] == [
        {"order": "1001", "items": 2}
    ]
    desk.app.close()
    desk.s.close()


def test_without_a_secret_nobody_is_believed() -> None:
    desk = Desk(Settings())
    with pytest.raises(semel.InvalidOption, match=r"apps\.notices\.shop_secret: "):
        desk.deliver("1001")
    desk.app.close()
    desk.s.close()
