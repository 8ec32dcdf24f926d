"""Calls to another system: what is tried again, what is waited for, and what an error says is known."""

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx
import pytest
import stamina

from semel.apps.client import (
    AnswerLost,
    RemoteClient,
    RequestRefused,
    Unavailable,
    retry_after_header,
)
from tests.standins.base import Reply, Request, StandIn


class Till(StandIn):
    def answer(self, request: Request) -> Reply:
        return Reply(404) if request.path == "/nowhere" else Reply(201, {"charged": request.json["amount"]})


@pytest.fixture
def till() -> Iterator[Till]:
    with Till() as running:
        yield running


@pytest.fixture
def side(till: Till) -> Iterator[RemoteClient]:
    # Without the growing pauses; what the other side asks for is waited for all the same.
    with stamina.set_testing(True, attempts=3, cap=True):
        side = RemoteClient("till", till.url, timeout=0.5, attempts=3, patience=1.0)
        yield side
        side.close()


def charge(side: RemoteClient, key: str | None = None) -> int:
    told: int = side.call("POST", "/charges", json={"amount": 5}, key=key).json()["charged"]
    return told


def test_what_is_busy_is_asked_again(till: Till, side: RemoteClient) -> None:
    till.fail(status=408)
    till.fail(status=429, retry_after=0)
    assert charge(side) == 5
    assert [each.status for each in till.received] == [408, 429, 201]


def test_after_every_try_it_says_that_nothing_was_done_and_when_to_come_back(
    till: Till, side: RemoteClient
) -> None:
    till.fail(next=9, status=429, retry_after=0)
    with pytest.raises(Unavailable) as raised:
        charge(side)
    assert (raised.value.system, raised.value.status, raised.value.retry_after) == ("till", 429, 0)
    assert len(till.received) == 3


def test_a_long_pause_is_left_to_the_caller(till: Till, side: RemoteClient) -> None:
    till.fail(next=9, status=429, retry_after=120)
    with pytest.raises(Unavailable) as raised:
        charge(side)
    assert raised.value.retry_after == 120
    assert len(till.received) == 1


def test_where_to_read_the_pause_can_be_said(till: Till) -> None:
    side = RemoteClient("till", till.url, attempts=1, retry_after=lambda answer: answer.json()["wait"])
    till.fail(status=429, body={"wait": 33})
    with pytest.raises(Unavailable) as raised:
        charge(side)
    side.close()
    assert raised.value.retry_after == 33


def test_what_is_told_to_the_other_side_is_not_logged(
    till: Till, side: RemoteClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    till.fail(status=408)
    assert side.call("POST", "/bot-secret/charges", json={"amount": 5, "to": "sensitive"}).is_success
    stamina_says = [vars(record) for record in caplog.records if record.name.startswith("stamina")]
    assert stamina_says
    assert "sensitive" not in str(stamina_says)
    assert "secret" not in str(stamina_says)


def test_a_refusal_is_final(till: Till, side: RemoteClient) -> None:
    with pytest.raises(RequestRefused) as raised:
        side.call("POST", "/nowhere", json={})
    assert raised.value.status == 404
    assert len(till.received) == 1


# What leaves open whether a request that was applied was applied; without a status the connection closes.
LOST: dict[str, dict[str, Any]] = {
    "time-out": {"hang": 2.0},
    "cut off": {},
    "truncated": {"status": 201, "body": {"charged": 5}, "cut": True},
    "not compressed": {"status": 201, "body": {"charged": 5}, "headers": {"Content-Encoding": "gzip"}},
    **{str(status): {"status": status} for status in (302, 303, 500, 502, 503, 504, 520, 524, 529, 599)},
    "503 with Retry-After": {"status": 503, "retry_after": 0},
}
each_loss = pytest.mark.parametrize("lost", LOST.values(), ids=list(LOST))


@pytest.mark.situation(56)
@each_loss
def test_a_post_whose_outcome_is_unknown_is_not_sent_again(
    till: Till, side: RemoteClient, lost: dict[str, Any]
) -> None:
    till.fail(next=9, after_applying=True, **lost)
    with pytest.raises(AnswerLost, match="may have carried out") as raised:
        charge(side)
    assert raised.value.status == (lost.get("status") if {"cut", "headers"}.isdisjoint(lost) else None)
    assert len(till.applied) == len(till.received) == 1


@pytest.mark.situation(56)
@each_loss
def test_with_a_key_a_request_whose_outcome_is_unknown_is_retried_under_the_same_key(
    till: Till, side: RemoteClient, lost: dict[str, Any]
) -> None:
    till.fail(after_applying=True, **lost)
    assert charge(side, key="k-1") == 5
    assert [each.key for each in till.received] == ["k-1", "k-1"]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_request_with_an_idempotent_method_is_retried_after_a_server_error(
    till: Till, side: RemoteClient, method: str
) -> None:
    till.fail(status=500, after_applying=True)
    assert side.call(method, "/charges", json={"amount": 5}).status_code == 201
    assert [each.method for each in till.received] == [method, method]


@pytest.mark.parametrize("key", [None, "k-1"])
def test_a_server_error_carries_the_pause_that_the_remote_system_asks_for(
    till: Till, side: RemoteClient, key: str | None
) -> None:
    till.fail(next=9, status=503, retry_after=120)
    with pytest.raises(AnswerLost if key is None else Unavailable) as raised:
        charge(side, key)
    assert raised.value.retry_after == 120
    assert len(till.received) == 1


def test_what_may_be_repeated_can_be_said_of_a_call(till: Till, side: RemoteClient) -> None:
    till.fail(after_applying=True)
    with pytest.raises(AnswerLost):
        side.call("PUT", "/charges", json={"amount": 5}, repeatable=False)
    till.fail(after_applying=True)
    assert side.call("POST", "/charges", json={"amount": 6}, repeatable=True).status_code == 201


def test_a_web_page_is_no_answer(till: Till, side: RemoteClient) -> None:
    """A page to log in at, or one that tells of a repair: nothing of what was asked need have been done."""
    till.fail(status=200, headers={"Content-Type": "text/html; charset=utf-8"})
    with pytest.raises(AnswerLost, match="a web page answers"):
        charge(side)
    till.fail(status=200, headers={"Content-Type": "text/html"})
    assert charge(side, key="k-1") == 5


@pytest.mark.parametrize("url", ["till.example", "ftp://till.example"])
def test_an_address_that_cannot_be_asked_leaves_nothing_open(url: str) -> None:
    side = RemoteClient("till", url, attempts=1)
    with pytest.raises(Unavailable, match="cannot be reached"):
        charge(side)
    side.close()


def test_a_header_that_cannot_be_sent_leaves_nothing_open(till: Till) -> None:
    side = RemoteClient("till", till.url, headers={"Authorization": "Bearer a\nb"}, attempts=1)
    with pytest.raises(Unavailable, match="cannot be reached"):
        charge(side)
    side.close()
    assert till.received == []


def test_an_answer_that_does_not_end_is_given_up() -> None:
    """Each of its pieces comes in time, and there is always one more."""
    gone = threading.Event()

    class Silent(WSGIRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    def drip(_environ, start):
        start("200 OK", [("Content-Length", "1000000")])
        while not gone.wait(0.02):
            yield b" "

    with make_server("127.0.0.1", 0, drip, handler_class=Silent) as server:
        served = threading.Thread(target=server.handle_request)
        served.start()
        side = RemoteClient("till", f"http://127.0.0.1:{server.server_port}", timeout=0.3, attempts=1)
        with pytest.raises(AnswerLost, match="ReadTimeout"):
            charge(side)
        side.close()
        gone.set()
        served.join()


def test_who_cannot_be_reached_has_done_nothing(till: Till, side: RemoteClient) -> None:
    till.stop()
    with pytest.raises(Unavailable, match="cannot be reached"):
        charge(side)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Mon, 16 Nov 2026 08:00:30 GMT", 30.0),
        ("Mon, 16 Nov 2026 07:00:00 GMT", 0.0),
        ("soon", None),
        ("inf", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(told: str, seconds: float | None) -> None:
    headers = {"Retry-After": told, "Date": "Mon, 16 Nov 2026 08:00:00 GMT"}
    assert retry_after_header(httpx.Response(429, headers=headers)) == seconds


@pytest.mark.parametrize("id", ["a/b", "..%2f..", "%2e%2e", "a?b#c", "é b", "...", "a\\..\\b", "a;b"])
def test_no_id_leaves_its_place_in_a_path(till: Till, side: RemoteClient, id: str) -> None:
    side.call("PUT", side.path("v1", "tickets", id, "tags"), json={"amount": 5})
    [path] = {request.path for request in till.received}  # on a busy machine it may have been sent again
    assert [unquote(segment) for segment in path.split("/")] == ["", "v1", "tickets", id, "tags"]


@pytest.mark.parametrize("id", ["", ".", ".."])
def test_what_no_path_can_hold_is_refused_before_anybody_is_asked(side: RemoteClient, id: str) -> None:
    with pytest.raises(RequestRefused, match="till cannot be asked for"):
        side.path("v1", "tickets", id)
