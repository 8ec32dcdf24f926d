"""One client, one share: whoever sends half a request, or waits, costs nobody else a place."""

import json
import re
import selectors
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel.service.limits import BodyLimit, ConcurrencyLimit, LimitReached
from tests.apps.kit import Service
from tests.servers.running import HOST, PATIENCE_SECONDS, until
from tests.service.kit import ALL_TOKENS, TOKENS, bearer

# More than all places there are, whoever has them: 256 of each kind, and half of them for one client.
MANY, SHARE = 300, 128
# Another peer than the one that everything on loopback comes from.
ELSEWHERE = "127.0.0.2"


# The rules


def test_a_client_has_its_share_and_no_more_while_others_have_theirs() -> None:
    limit = ConcurrencyLimit("requests", 4, 0.5)
    with limit.place("a"), limit.place("a"):
        with pytest.raises(LimitReached, match="2 of this client's are, and that is its share of 4"):
            limit.place("a").__enter__()
        with limit.place("b"), limit.place("c"), pytest.raises(LimitReached, match="4 are"):
            limit.place("d").__enter__()
        with limit.place("b"), limit.place("b"):
            assert limit.taken == 4
    assert limit.taken == 0
    with limit.place("a"):
        assert limit.taken == 1


def test_a_share_is_never_nothing() -> None:
    with ConcurrencyLimit("requests", 1, 0.1).place("a"):
        pass


def test_of_too_many_bodies_the_slowest_of_the_peer_with_most_is_given_up() -> None:
    arrivals, dropped = BodyLimit(4, 0.75), list[str]()
    with ExitStack() as stack:

        def arrives(peer: str, name: str) -> None:
            stack.enter_context(arrivals.expected(peer, lambda: dropped.append(name)))

        for number in range(3):
            arrives("a", f"a{number}")
        arrives("a", "a3")
        assert dropped == ["a0"]
        arrives("b", "b0")
        arrives("b", "b1")
        arrives("c", "c0")
        assert dropped == ["a0", "a1", "a2"]
        assert arrivals.taken == 4
    assert arrivals.taken == 0


# The service, over sockets


class Echo(Service):
    """The service, with the app of the tests in it."""

    module = "tests.service.launch"


def begin(service: Service, stack: ExitStack, text: str, source: str = HOST) -> socket.socket:
    """A connection on which this much was sent."""
    address = (HOST, service.port)
    connection = stack.enter_context(
        socket.create_connection(address, PATIENCE_SECONDS, source_address=(source, 0))
    )
    connection.sendall(text.encode())
    return connection


def request(path: str, body: str, *more: str, sent: int | None = None) -> str:
    """A request, with this much of its body."""
    head = [f"POST {path} HTTP/1.1", "Host: semel", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*head, "", body[:sent]])


def answered(connections: list[socket.socket]) -> list[socket.socket]:
    """Those that have something to be read."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(0)]  # type: ignore[misc]  # they are sockets


def answer_of(connection: socket.socket) -> tuple[int, dict[str, str], Any]:
    """The status, the headers and the problem on a connection."""
    received = b""
    with suppress(ConnectionError):
        while piece := connection.recv(65536):
            received += piece
            head, found, body = received.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            if found and length and len(body) >= int(length[1]):
                break
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert headers["content-type"] == "application/problem+json"
    return int(first.split()[1]), headers, json.loads(body)


def refused(client: httpx.Client, limit: str) -> float:
    text = client.get("/metrics", headers=bearer("chief")).text
    found = re.search(rf'semel_http_refused_total{{budget="{limit}"}} (\S+)', text)
    return float(found[1]) if found else 0.0


@pytest.mark.situation(54)
def test_half_sent_bodies_cost_their_sender_and_nobody_else(tmp_path: Path) -> None:
    """Of a webhook, which anybody can begin, and of the API by a token: 300 of each, and none goes on."""
    text = f'[service]\nbody_timeout = 600\n[apps.echo]\nfolder = "{tmp_path}"\n' + ALL_TOKENS
    token = f"Authorization: Bearer {TOKENS['north']}"
    with Echo(tmp_path, text) as service, ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=service.url, trust_env=False, timeout=30))
        slow = begin(service, stack, request("/webhooks/echo", '["late"]', sent=3), ELSEWHERE)
        half = [begin(service, stack, request("/webhooks/echo", '["x"]', sent=3)) for _ in range(MANY)]
        half += [
            begin(service, stack, request("/v1/claims", '{"key": "k"}', token, sent=5)) for _ in range(MANY)
        ]
        dropped = 2 * MANY - SHARE
        assert until(lambda: len(answered(half)) == dropped)
        for who in ("north", "south"):
            claim = client.post("/v1/claims", json={"key": f"of {who}"}, headers=bearer(who))
            assert claim.status_code == 201, claim.text
        assert client.post("/webhooks/echo", json=["a"]).json() == {"accepted": 1}
        assert client.get("/health/ready").status_code == 200
        # They had the place of one of the same peer's, and what comes from elsewhere has kept its own.
        assert until(lambda: len(answered(half)) == dropped + 1)
        assert answered([slow]) == []
        status, headers, problem = answer_of(half[0])
        assert (status, problem["type"]) == (408, "/problems#body-too-slow")
        assert (headers["retry-after"], headers["connection"]) == ("1", "close")
        assert refused(client, "bodies") == dropped + 1
        slow.sendall(b'ate"]')
        assert slow.recv(65536).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.situation(54)
def test_a_body_is_waited_for_until_its_time_is_over_and_nobodys_not_at_all(tmp_path: Path) -> None:
    text = f'[service]\nbody_timeout = 0.05\n[apps.echo]\nfolder = "{tmp_path}"\n' + ALL_TOKENS
    with Echo(tmp_path, text) as service, ExitStack() as stack:
        half = begin(service, stack, request("/webhooks/echo", '["x"]', sent=3))
        status, headers, problem = answer_of(half)
        assert (status, problem["type"]) == (408, "/problems#body-too-slow")
        assert problem["detail"] == "it has not come within 0.05 s"
        assert headers["connection"] == "close"
        for more in ([], ["Authorization: Bearer guessed"]):
            half = begin(service, stack, request("/v1/claims", '{"key": "k"}', *more, sent=5))
            status, _, problem = answer_of(half)
            assert (status, problem["type"]) == (401, "/problems#not-authenticated")


@pytest.mark.situation(54)
def test_waiting_costs_a_tokens_share_of_the_waits_and_nothing_else(tmp_path: Path) -> None:
    text = f'[service]\nmax_waiting = 8\n[apps.echo]\nfolder = "{tmp_path}"\n' + ALL_TOKENS
    with Echo(tmp_path, text) as service, ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=service.url, trust_env=False, timeout=30))
        for who in ("north", "south"):
            body = {"key": "k", "lease": 600}
            assert client.post("/v1/claims", json=body, headers=bearer(who)).status_code == 201
        head = "Content-Type: application/json", f"Authorization: Bearer {TOKENS['reader']}"
        wait = request("/v1/wait", '{"key": "k", "timeout": 30}', *head)
        waits = [begin(service, stack, wait) for _ in range(9)]
        assert until(lambda: len(answered(waits)) == 5)
        status, headers, problem = answer_of(answered(waits)[0])
        assert (status, problem["type"]) == (503, "/problems#overloaded")
        assert (headers["retry-after"], problem["retry_after"]) == ("1", 1.0)
        assert refused(client, "waits") == 5

        asked = {"key": "k", "timeout": 0.01}
        mine = client.post("/v1/wait", json=asked, headers=bearer("south"))
        assert (mine.status_code, mine.json()["type"]) == (409, "/problems#in-progress")
        assert client.get("/v1/records?key=k", headers=bearer("reader")).status_code == 200
        assert client.post("/v1/claims", json={"key": "new"}, headers=bearer("south")).status_code == 201
        assert client.post("/webhooks/echo", json=["a"]).json() == {"accepted": 1}
        assert client.get("/health/ready").status_code == 200


def test_an_app_whose_requests_take_long_leaves_places_for_the_webhooks_of_others() -> None:
    limit = ConcurrencyLimit("webhooks", 256, 0.5)
    with ExitStack() as stack:
        for _ in range(SHARE):
            stack.enter_context(limit.place("probe"))
        with pytest.raises(LimitReached):
            limit.place("probe").__enter__()
        with limit.place("quill"):
            assert limit.taken == SHARE + 1
