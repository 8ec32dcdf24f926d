"""Rules of the IETF's draft that no other test of the doors shows, as a client meets them.

`tests/draft.py` lists all of them, and the page of the docs names the tests that show each.
"""

from collections.abc import Callable, Iterator
from contextvars import Context
from typing import Any

import httpx
import pytest

import semel
from semel.doors.http import ANYONE, Idempotency
from semel.doors.http.publish import policy_document
from semel.doors.wsgi import IdempotencyMiddleware
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty

POLICY = "/.well-known/idempotency-key"
# They stand in the draft's section on examples.
EXAMPLES = ['"8e03978e-40d5-43e8-bc93-6894a57f9324"', '"clkyoesmbgybucifusbbtdsbohtyuuwz"']


class Shop:
    """An application that charges, and a client of it who is known by name."""

    def __init__(self, s: semel.Semel, **options: Any) -> None:
        self.charged: list[bytes] = []
        self.meanwhile: Callable[[], object] = lambda: None
        idempotency = Idempotency(s, identity=lambda environ: environ.get("HTTP_X_NAME"), **options)
        door = httpx.WSGITransport(IdempotencyMiddleware(self._application, idempotency))
        self.client = httpx.Client(transport=door, base_url="http://shop", headers={"X-Name": "ann"})

    def _application(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        self.meanwhile()
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
        self.charged.append(body)
        start_response("201 Created", [("Content-Type", "text/plain")])
        return [b"%d: " % len(self.charged) + body]

    def post(self, body: str = "5", key: str | None = '"k"', path: str = "/charges") -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.client.post(path, content=body, headers=headers)

    def refusals(self) -> list[httpx.Response]:
        """A refusal of each kind that the draft has: 400, 422 and 409."""
        self.post(key='"used"')
        during: list[httpx.Response] = []
        self.meanwhile = lambda: during.append(Context().run(self.post, key='"busy"'))
        self.post(key='"busy"')
        self.meanwhile = lambda: None
        return [self.post(key=None), self.post("6", '"used"'), *during]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def s(clock: FakeClock) -> Iterator[semel.Semel]:
    with semel.connect("memory:", clock=clock) as ledger:
        yield ledger


@pytest.mark.draft("2.5.2d", "6")
@pytest.mark.parametrize("key", EXAMPLES)
def test_the_drafts_own_examples_are_keys(s: semel.Semel, key: str) -> None:
    shop = Shop(s, strict=True)
    assert [shop.post(key=key).text for _ in range(2)] == ["1: 5", "1: 5"]


@pytest.mark.draft("2.2b")
def test_within_what_a_key_is_unique_is_published_and_so_it_is(s: semel.Semel) -> None:
    shop = Shop(s, methods=("POST", "PUT"))
    assert shop.client.get(POLICY).json()["unique_within"] == ["caller", "method", "path"]
    key = {"Idempotency-Key": '"k"'}
    answers = [
        shop.post(),
        shop.client.post("/charges", content="5", headers={**key, "X-Name": "bob"}),
        shop.client.put("/charges", content="5", headers=key),
        shop.client.post("/refunds", content="5", headers=key),
    ]
    assert [answer.text for answer in answers] == ["1: 5", "2: 5", "3: 5", "4: 5"]


@pytest.mark.draft("2.2b")
def test_where_callers_are_not_told_apart_the_policy_does_not_name_them(s: semel.Semel) -> None:
    assert policy_document(Idempotency(s, identity=ANYONE))["unique_within"] == ["method", "path"]


@pytest.mark.draft("2.3a")
def test_a_key_is_forgotten_when_its_time_is_over(s: semel.Semel, clock: FakeClock) -> None:
    shop = Shop(s, ttl=3600)
    shop.post("5")
    clock.advance(3599)
    assert shop.post("6").status_code == 422
    clock.advance(2)
    assert shop.post("6").text == "2: 6"


@pytest.mark.draft("2.4b")
@pytest.mark.parametrize(
    ("payload", "told"), [("bytes", "bytes"), ("json", "json"), (lambda _, body: len(body), "selected")]
)
def test_what_is_compared_is_published(s: semel.Semel, payload: Any, told: str) -> None:
    assert Shop(s, payload=payload).client.get(POLICY).json()["payload"] == told


@pytest.mark.draft("2.5.2e")
def test_the_fingerprint_is_there_while_the_work_is_at_its_beginning(s: semel.Semel) -> None:
    shop, found = Shop(s), []
    shop.meanwhile = lambda: found.append(Context().run(shop.post, "6"))
    shop.post("5")
    assert [answer.status_code for answer in found] == [422]


@pytest.mark.draft("2.7a", "2.7b", "2.7c", "2.7f")
def test_an_error_says_in_what_language_it_is_and_links_to_where_it_is_described(s: semel.Semel) -> None:
    shop = Shop(s)
    refusals = shop.refusals()
    assert [answer.status_code for answer in refusals] == [400, 422, 409]
    for answer in refusals:
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.headers["Content-Language"] == "en"
        assert f'<{POLICY}>; rel="describedby"' in answer.headers["Link"]
        problem = answer.json()
        described = shop.client.get(problem["type"]).json()["problems"][problem["type"]]
        assert described == {"status": answer.status_code, "title": problem["title"]}
        assert problem["detail"]


@pytest.mark.draft("2.7d")
def test_a_request_that_was_refused_is_refused_again_until_it_is_corrected(s: semel.Semel) -> None:
    shop = Shop(s)
    assert [answer.status_code for answer in shop.refusals()] == [400, 422, 409]
    assert [shop.post(key=None).status_code for _ in range(2)] == [400, 400]
    assert [shop.post("6", '"used"').status_code for _ in range(2)] == [422, 422]
    # Corrected, each is worked on; after a 409 nothing needs to be.
    assert shop.post("5", '"new"').text == "3: 5"
    assert shop.post("6", '"newer"').text == "4: 6"
    assert shop.post(key='"busy"').text == "2: 5"
    assert shop.charged == [b"5", b"5", b"5", b"6"]


@pytest.mark.draft("5b")
@pytest.mark.parametrize(
    "key", ["", '""', '"open', "two words", '"k\x01"', "x" * 256, "'; drop table ledger"]
)
def test_a_key_is_looked_at_before_the_store_is_asked_anything(clock: FakeClock, key: str) -> None:
    store = Faulty(MemoryStore(clock))
    shop = Shop(semel.Semel(store, clock=clock))
    store.refuse(1000)
    assert shop.post().status_code == 503
    answer = shop.post(key=key)
    assert (answer.status_code, answer.json()["type"]) == (400, f"{POLICY}#key-malformed")
