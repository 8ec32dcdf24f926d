"""Real servers, seen from outside: every framework on every store keeps the same promises.

Each test starts one server, and makes every claim below about it. A claim that yields begins something that
takes the time of a lease; the others are made meanwhile, and then it goes on.
"""

import gzip
import inspect
import json
import os
import signal
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPException
from itertools import product
from typing import Any

import pytest

import semel
from semel.core.clock import Clock
from semel.core.lifecycle import Status
from semel.doors.http import ANYONE, Idempotency
from semel.doors.wsgi import IdempotencyMiddleware
from tests.amounts import amount
from tests.doors.http_apps import BRIEF_LEASE, LONGEST, MAX_BODY, MAX_KEPT, SHORTEST, piece
from tests.doors.http_servers import FRAMEWORKS, Connection, Reply, Shop, body_of, head_of, shop
from tests.doors.wsgi_kit import environ_of
from tests.places import open_place
from tests.servers.absence import served
from tests.servers.running import PATIENCE_SECONDS, until

STORES = ("memory", "sqlite", "postgres", "redis", "dynoxide")
# In every run each framework and each store has its turn, and with `make slow` each framework on each store.
PAIRS = [
    (framework, store)
    for (at, framework), (on, store) in product(enumerate(FRAMEWORKS), enumerate(STORES))
    if (at + on) % amount(1, 3) == 0
]
POLICY = "/.well-known/idempotency-key"

# The shop's places behind two doors of a framework: one for single routes, where there is such, and another
# for the whole of an application.
PLACES = ("", "/strict")

CLAIMS: list[Callable[..., Any]] = []
"""They are made in this order; what takes a `place` is claimed of each."""


def claim(check: Callable[..., Any]) -> Callable[..., Any]:
    CLAIMS.append(check)
    return check


@pytest.mark.draft("2.1", "2.5.2c", "2.5.2f", "2.6a", "2.6b", "2.6c", "2.7a", "2.7b", "2.7c", "5c")
@pytest.mark.seed("M3")
@pytest.mark.situation(61)
@pytest.mark.parametrize(("framework", "store"), PAIRS)
def test_every_claim_holds_of_a_real_server(framework, store, request, tmp_path):
    place = open_place(store, request, tmp_path)
    with served(partial(shop, framework, place)) as running:
        begun = [check(running) for check in CLAIMS if inspect.isgeneratorfunction(check)]
        long: list[Callable[[], object]] = [partial(next, work, None) for work in begun]
        broken = [trouble for step in [*long, *short(running), *long] for trouble in attempt(step)]
        if broken:
            log = (running.home / "log").read_text(errors="replace")
            raise ExceptionGroup(f"{framework} on {store}; the server said:\n{log[-6000:]}", broken)


def short(running: Shop) -> Iterator[Callable[[], object]]:
    """The claims that are made at once."""
    for check in CLAIMS:
        if "place" in inspect.signature(check).parameters:
            yield from (partial(check, running, place) for place in PLACES)
        elif not inspect.isgeneratorfunction(check):
            yield partial(check, running)


def attempt(step: Callable[[], object]) -> list[Exception]:
    """Make one claim; what is wrong with it does not keep the others from being made."""
    try:
        step()
    except Exception as trouble:  # noqa: BLE001 - reported with the others
        trouble.add_note(f"It was claimed as {step}.")
        return [trouble]
    return []


def assert_same(first: Reply, again: Reply) -> None:
    """That the second is the first one, given again."""
    assert (again.status, again.body) == (first.status, first.body)
    for name in ("Content-Type", "Content-Language", "Content-Encoding", "Location", "ETag"):
        assert again.all(name) == first.all(name), name
    assert not first.replayed
    assert again.replayed
    assert parsedate_to_datetime(again.get("Idempotency-Expires")).timestamp() > Clock().now()


# What takes a while: these are begun in this order, before all others, and ended after them


@claim
def work_of_a_worker_that_was_killed_is_taken_over_after_its_lease(shop: Shop) -> Iterator[None]:
    if shop.workers == 1:
        yield  # memory dies with its process, and nobody else knows of it
        return
    name = shop.name()
    order = {"name": name, "waits": True}
    with shop.begin("/brief/charges", order, key=name) as connection:
        guest = shop.gates.met(name)
        os.kill(guest.pid, signal.SIGKILL)
        guest.go()
        with pytest.raises((HTTPException, OSError)):
            connection.reply()
    yield
    with ThreadPoolExecutor(1) as pool:
        retry = pool.submit(shop.settled, "/brief/charges", order, key=name)
        shop.gates.met(name).go()
        taken_over = retry.result()
    assert (taken_over.status, taken_over.get("X-Attempt"), taken_over.replayed) == (201, "2", False)
    assert_same(taken_over, shop.post("/brief/charges", order, key=name))
    assert shop.effects(name) == [1, 2]


@claim
def work_that_is_slower_than_its_lease_keeps_its_key_and_is_done_once(shop: Shop) -> Iterator[None]:
    name, clock, never = shop.name(), Clock(), threading.Event()
    order = {"name": name, "waits": True}
    with shop.begin("/brief/charges", order, key=name) as connection:
        guest = shop.gates.met(name)
        begun = clock.monotonic()
        yield
        clock.wait(never, max(0, begun + 1.2 * BRIEF_LEASE - clock.monotonic()))
        busy = shop.post("/brief/charges", order, key=name)
        assert (busy.status, busy.problem) == (409, "in-progress")
        assert int(busy.get("Retry-After")) >= 1
        status = shop.get(busy.json["status_url"])
        assert (status.status, status.json) == (200, {"status": "in-progress", "attempt": 1})
        guest.go()
        first = connection.reply()
    assert first.status == 201
    assert_same(first, shop.post("/brief/charges", order, key=name))
    assert shop.get(busy.json["status_url"]).json["status"] == "completed"
    assert shop.effects(name) == [1]


@claim
def a_stream_that_is_slower_than_its_lease_keeps_its_key_too(shop: Shop) -> Iterator[None]:
    name, clock, never = shop.name(), Clock(), threading.Event()
    order = {"name": name, "pieces": 2, "waits": True}
    with shop.begin("/brief/streams", order, key=name) as connection:
        shop.gates.met(f"{name}:0").go()
        response = connection.head()
        guest = shop.gates.met(f"{name}:1")
        begun = clock.monotonic()
        yield
        clock.wait(never, max(0, begun + 1.2 * BRIEF_LEASE - clock.monotonic()))
        assert shop.post("/brief/streams", order, key=name).status == 409
        guest.go()
        whole = response.read()
    again = shop.post("/brief/streams", order, key=name)
    assert (again.status, again.body, again.replayed) == (200, whole, True)
    assert whole == piece(order, 0) + piece(order, 1)
    assert shop.effects(name) == [1]


@claim
def a_worker_that_was_frozen_past_its_lease_does_not_answer_for_the_one_that_took_over(
    shop: Shop,
) -> Iterator[None]:
    yield  # what the others have at work may be on the worker that is going to be frozen
    if shop.place.name != "sqlite":
        return  # it takes as long as a lease, and what it shows of a door it shows on any store
    name = shop.name()
    order = {"name": name, "waits": True}
    one, other = shop.on_each_worker()
    with one, other, ThreadPoolExecutor(1) as pool:
        one.send("POST", "/brief/charges", head_of(name), body_of(order))
        frozen = shop.gates.met(name)
        os.kill(frozen.pid, signal.SIGSTOP)
        try:
            retry = pool.submit(other.settled, "/brief/charges", head_of(name), body_of(order))
            shop.gates.met(name).go()
            taken_over = retry.result()
        finally:
            os.kill(frozen.pid, signal.SIGCONT)
        frozen.go()
        late = one.reply()
    assert (taken_over.status, taken_over.get("X-Attempt")) == (201, "2")
    assert (late.status, late.problem) == (409, "in-progress")
    assert_same(taken_over, shop.post("/brief/charges", order, key=name))
    assert shop.effects(name) == [1, 2]


# Replays


@claim
def a_retry_gets_the_first_response_byte_for_byte(shop: Shop, place: str) -> None:
    name = shop.name()
    first, again, third = (shop.post(f"{place}/charges", {"name": name}, key=name) for _ in range(3))
    assert (first.status, first.json["order"], first.json["for"]) == (201, name, "Zoë")
    assert first.get("Location").startswith("/charges/")
    assert_same(first, again)
    assert_same(first, third)
    assert shop.effects(name) == [1]


@claim
def a_key_is_the_same_with_quotes_and_without(shop: Shop) -> None:
    name = shop.name()
    first = shop.post("/charges", {"name": name}, field=name)
    assert_same(first, shop.post("/charges", {"name": name}, field=f'"{name}"'))
    assert shop.effects(name) == [1]


@claim
def what_is_personal_to_one_response_is_never_given_again(shop: Shop, place: str) -> None:
    name = shop.name()
    first, again = (shop.post(f"{place}/charges", {"name": name}, key=name) for _ in range(2))
    assert first.get("Set-Cookie").startswith("session=")
    assert first.get("X-Trace")
    assert again.replayed
    assert (again.all("Set-Cookie"), again.all("X-Trace")) == ([], [])


@claim
def any_bytes_and_any_status_are_given_again_as_they_were(shop: Shop, place: str) -> None:
    packed = gzip.compress(b"packed " * 100)
    page = {"Content-Type": "text/html; charset=utf-8", "ETag": '"v1"'}
    answers: list[tuple[int, bytes, dict[str, str]]] = [
        (200, bytes(range(256)), {"Content-Type": "application/octet-stream"}),
        (200, packed, {"Content-Type": "text/plain", "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}),
        (200, b"", {"Content-Type": "text/plain"}),
        (204, b"", {}),
        (303, b"", {"Location": "/charges/1"}),
        (404, "Kein Café".encode(), page),
        (422, b'{"detail": "no"}', {"Content-Type": "application/json"}),
    ]
    for status, body, headers in answers:
        name = shop.name()
        order = {"name": name, "statuses": [status], "body": b64encode(body).decode(), "headers": headers}
        first, again = (shop.post(f"{place}/answers", order, key=name) for _ in range(2))
        assert (first.status, first.body) == (status, body)
        assert_same(first, again)
        assert shop.effects(name) == [1], status


# What is turned away


@claim
def a_key_that_is_missing_or_cannot_be_read_is_a_400(shop: Shop, place: str) -> None:
    name = shop.name()
    for key in ("", "   ", '"open', '""', "two words", '"one", "two"', "a" * 256, "a" * 7000, "caf\xe9"):
        reply = shop.post(f"{place}/charges", {"name": name}, field=key)
        assert (reply.status, reply.problem) == (400, "key-malformed"), (key, reply)
    missing = shop.post(f"{place}/charges", {"name": name})
    assert (missing.status, missing.problem) == (400, "key-missing")
    twice = shop.post(f"{place}/charges", {"name": name}, key=name, more=[("Idempotency-Key", '"another"')])
    assert (twice.status, twice.problem) == (400, "key-malformed")
    assert shop.effects(name) == []


@claim
def a_key_with_control_characters_is_a_400(shop: Shop) -> None:
    name = shop.name()
    for key in ("a\x01b", '"a\x7fb"', "a\tb"):
        # Some servers refuse such a request before any application sees it.
        assert shop.post("/charges", {"name": name}, field=key).status == 400, key
    assert shop.effects(name) == []


@claim
def where_the_policy_is_strict_a_key_stands_in_quotes_and_json_is_compared_by_its_meaning(shop: Shop) -> None:
    name = shop.name()
    bare = shop.post("/strict/charges", {"name": name}, field=name)
    assert (bare.status, bare.problem) == (400, "key-malformed")
    first = shop.post("/strict/charges", {"name": name, "cents": 5}, key=name)
    spaced = b'{"cents":5.0,  "name":' + json.dumps(name).encode() + b"}"
    assert_same(first, shop.post("/strict/charges", spaced, key=name))
    assert shop.effects(name) == [1]


@claim
def another_payload_under_the_same_key_is_a_422(shop: Shop, place: str) -> None:
    name = shop.name()
    first = shop.post(f"{place}/charges", {"name": name, "cents": 1}, key=name)
    for path, order in (
        (f"{place}/charges", {"name": name, "cents": 2}),
        (f"{place}/charges?force=1", {"name": name, "cents": 1}),
    ):
        changed = shop.post(path, order, key=name)
        assert (changed.status, changed.problem) == (422, "payload-changed")
    assert_same(first, shop.post(f"{place}/charges", {"name": name, "cents": 1}, key=name))
    assert shop.effects(name) == [1]


@claim
def a_body_that_is_too_large_is_a_413_and_uses_up_no_key(shop: Shop, place: str) -> None:
    name = shop.name()
    large = json.dumps({"name": name, "filling": "x" * MAX_BODY}).encode()
    told = shop.post(f"{place}/charges", large, key=name)
    assert (told.status, told.problem) == (413, "body-too-large")
    if shop.framework != "django":  # which reads a body without a length as an empty one
        chunked = shop.post(f"{place}/charges", iter([large[:5000], large[5000:]]), key=name)
        assert (chunked.status, chunked.problem) == (413, "body-too-large")
    assert shop.effects(name) == []
    assert shop.post(f"{place}/charges", {"name": name}, key=name).status == 201


@claim
def a_body_in_chunks_counts_like_any_other(shop: Shop, place: str) -> None:
    if shop.framework == "django":
        return  # it reads such a body as an empty one
    name = shop.name()
    whole = body_of({"name": name})
    first = shop.post(f"{place}/charges", iter([whole[:4], whole[4:]]), key=name)
    assert first.status == 201
    assert_same(first, shop.post(f"{place}/charges", whole, key=name))
    changed = shop.post(f"{place}/charges", iter([whole[:-1], b', "cents": 1}']), key=name)
    assert (changed.status, changed.problem) == (422, "payload-changed")


@claim
def a_connection_lives_on_after_a_refusal_and_no_body_is_taken_for_a_request(shop: Shop, place: str) -> None:
    name = shop.name()
    large = json.dumps({"name": name, "filling": "x" * MAX_BODY}).encode()
    refused = [
        (head_of(), body_of({"name": name}), 400),
        (head_of(name, token=""), body_of({"name": name}), 401),
        (head_of(name), large, 413),
    ]
    for headers, body, status in refused:
        with shop.connect() as connection:
            assert connection.ask("POST", f"{place}/charges", headers, body).status == status
            # A server may close the connection instead, and the client then opens another one by itself.
            with suppress(HTTPException, OSError):
                assert connection.ask("GET", "/hello").status == 200, status
    assert shop.effects(name) == []


@claim
def a_client_may_say_how_long_it_is_to_be_remembered_within_bounds(shop: Shop) -> None:
    def ask(name: str, seconds: str) -> Reply:
        return shop.post("/charges", {"name": name}, key=name, more=[("Idempotency-Expiry-Seconds", seconds)])

    name = shop.name()
    for seconds in (str(SHORTEST - 1), str(LONGEST + 1), "-1", "soon", "1e3"):
        refused = ask(name, seconds)
        assert (refused.status, refused.problem) == (400, "expiry-malformed"), seconds
    now = Clock().now()
    assert ask(name, str(SHORTEST)).status == 201
    ends = parsedate_to_datetime(ask(name, str(SHORTEST)).get("Idempotency-Expires")).timestamp()
    assert now + SHORTEST - 1 <= ends <= now + SHORTEST + PATIENCE_SECONDS
    unasked = shop.post(
        "/strict/charges", {"name": name}, key=name, more=[("Idempotency-Expiry-Seconds", "200")]
    )
    assert (unasked.status, unasked.problem) == (400, "expiry-malformed")


@claim
def a_get_with_a_key_is_left_alone(shop: Shop) -> None:
    first, again = (shop.get("/hello", key="any", token="") for _ in range(2))
    assert (first.status, again.status) == (200, 200)
    assert first.get("X-Trace") != again.get("X-Trace")
    assert not again.replayed


# Whose keys


@claim
def whoever_is_nobody_gets_a_401_before_anything_is_looked_up(shop: Shop, place: str) -> None:
    name = shop.name()
    shop.post(f"{place}/charges", {"name": name}, key=name)
    for token in ("", "token-of-nobody"):
        reply = shop.post(f"{place}/charges", {"name": name}, key=name, token=token)
        assert (reply.status, reply.problem) == (401, "not-authenticated")
    assert shop.effects(name) == [1]


@claim
def the_same_key_of_another_tenant_is_another_key(shop: Shop, place: str) -> None:
    name, foreign = shop.name(), shop.name()
    mine = shop.post(f"{place}/charges", {"name": name}, key=name)
    # Even a payload that differs tells them nothing.
    theirs = shop.post(f"{place}/charges", {"name": foreign}, key=name, token="token-of-south")
    assert (theirs.status, theirs.replayed, theirs.json["order"]) == (201, False, foreign)
    assert mine.json["id"] not in theirs.body.decode()
    assert_same(mine, shop.post(f"{place}/charges", {"name": name}, key=name))
    assert_same(theirs, shop.post(f"{place}/charges", {"name": foreign}, key=name, token="token-of-south"))


@claim
def another_operation_with_the_same_key_is_another_request(shop: Shop) -> None:
    name = shop.name()
    assert shop.post("/charges", {"name": name}, key=name).status == 201
    other = shop.post("/answers", {"name": name, "statuses": [200]}, key=name)
    assert (other.status, other.replayed) == (200, False)


# At the same time


@claim
def a_retry_while_the_first_is_at_work_is_a_409_that_says_where_to_ask(shop: Shop, place: str) -> None:
    name = shop.name()
    order = {"name": name, "waits": True}
    with shop.begin(f"{place}/charges", order, key=name) as connection:
        guest = shop.gates.met(name)
        busy = shop.post(f"{place}/charges", order, key=name)
        assert (busy.status, busy.problem) == (409, "in-progress")
        assert 1 <= int(busy.get("Retry-After")) == busy.json["retry_after"] <= 60
        where = busy.json["status_url"]
        assert f'<{where}>; rel="status"' in ", ".join(busy.all("Link"))
        assert shop.get(where).json == {"status": "in-progress", "attempt": 1}
        assert shop.get(where, token="token-of-south").status == 404
        assert shop.get(where, token="").status == 401
        changed = shop.post(f"{place}/charges", {**order, "cents": 2}, key=name)
        assert (changed.status, changed.problem) == (422, "payload-changed")
        guest.go()
        first = connection.reply()
    assert_same(first, shop.post(f"{place}/charges", order, key=name))
    assert shop.get(where).json["status"] == "completed"
    assert shop.effects(name) == [1]


@claim
def two_workers_of_one_server_do_it_once(shop: Shop, place: str) -> None:
    name = shop.name()
    order = {"name": name, "waits": True}
    connections = shop.on_each_worker()
    # In memory there is one worker, and two connections to it.
    connections += [shop.connect() for _ in range(2 - len(connections))]
    for connection in connections:
        connection.send("POST", f"{place}/charges", head_of(name), body_of(order))
    guest = shop.gates.met(name)
    # Whichever it is that runs, the other one is told to come back.
    with ThreadPoolExecutor(2) as pool:
        replies = [pool.submit(connection.reply) for connection in connections]
        until(lambda: any(reply.done() for reply in replies))
        guest.go()
    assert sorted(reply.result().status for reply in replies) == [201, 409]
    for connection in connections:
        assert connection.ask("POST", f"{place}/charges", head_of(name), body_of(order)).replayed
        connection.close()
    assert shop.effects(name) == [1]


@claim
def of_fifty_requests_at_once_one_has_its_effect(shop: Shop) -> None:
    name = shop.name()
    start = threading.Barrier(50)

    def ask(_: int) -> Reply:
        start.wait(PATIENCE_SECONDS)
        return shop.post("/charges", {"name": name}, key=name)

    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(ask, range(50)))
    assert {reply.status for reply in replies} <= {201, 409}, [reply.status for reply in replies]
    done = [reply for reply in replies if reply.status == 201]
    assert [reply.replayed for reply in done].count(False) == 1
    assert len({reply.body for reply in done}) == 1
    assert shop.effects(name) == [1]


# Responses in pieces


@claim
def a_stream_goes_out_as_it_comes_and_is_given_again_whole(shop: Shop, place: str) -> None:
    name = shop.name()
    order = {"name": name, "pieces": 3, "waits": True}
    with shop.begin(f"{place}/streams", order, key=name) as connection:
        shop.gates.met(f"{name}:0").go()
        response = connection.head()
        assert response.readline() == piece(order, 0)
        guest = shop.gates.met(f"{name}:1")  # so the handler is not at its end, and the client has a piece
        assert shop.post(f"{place}/streams", order, key=name).status == 409
        guest.go()
        assert response.readline() == piece(order, 1)
        shop.gates.met(f"{name}:2").go()
        assert response.read() == piece(order, 2)
    again = shop.post(f"{place}/streams", order, key=name)
    assert (again.status, again.replayed) == (200, True)
    assert again.body == b"".join(piece(order, number) for number in range(3))
    assert again.get("Content-Type").startswith("text/plain")
    assert shop.effects(name) == [1]


@claim
def a_stream_that_is_longer_than_is_kept_is_answered_honestly(shop: Shop, place: str) -> None:
    name = shop.name()
    order = {"name": name, "pieces": 20, "size": MAX_KEPT // 10}
    first, again = (shop.post(f"{place}/streams", order, key=name) for _ in range(2))
    assert (first.status, len(first.body)) == (200, sum(len(piece(order, n)) for n in range(20)))
    assert (again.status, again.replayed, again.problem) == (200, True, "result-not-kept")
    assert again.get("Idempotency-Body") == "not-kept"
    assert again.get("Location") == first.get("Location") == "/receipts/1"
    assert shop.effects(name) == [1]


@claim
def a_stream_that_breaks_is_seen_to_break_and_the_retry_runs(shop: Shop, place: str) -> None:
    name = shop.name()
    order = {"name": name, "pieces": 3, "breaks_at": 1}
    with shop.connect() as connection, pytest.raises((HTTPException, OSError)):
        connection.ask("POST", f"{place}/streams", head_of(name), body_of(order))
    second, third = (shop.settled(f"{place}/streams", order, key=name) for _ in range(2))
    assert second.body == b"".join(piece(order, number) for number in range(3))
    assert_same(second, third)
    assert shop.effects(name) == [1, 2]


# Clients that go away


@claim
def a_client_that_goes_away_before_the_answer_finds_it_when_it_comes_back(shop: Shop, place: str) -> None:
    for what, go_away in product(("charges", "answers"), (Connection.break_off, Connection.close)):
        path = f"{place}/{what}"
        name = shop.name()
        order = {"name": name, "waits": True, "statuses": [201], "body": b64encode(b"made").decode()}
        connection = shop.begin(path, order, key=name)
        guest = shop.gates.met(name)
        go_away(connection)
        guest.go()
        again = shop.settled(path, order, key=name)
        assert (again.status, again.replayed) == (201, True)
        assert shop.effects(name) == [1]


@claim
def a_client_that_goes_away_in_the_middle_of_a_stream_finds_the_whole_of_it(shop: Shop, place: str) -> None:
    for go_away in (Connection.break_off, Connection.close):
        name = shop.name()
        order = {"name": name, "pieces": 4, "waits": True}
        connection = shop.begin(f"{place}/streams", order, key=name)
        shop.gates.met(f"{name}:0").go()
        with connection.head() as response:
            assert response.readline() == piece(order, 0)
        go_away(connection)
        for number in range(1, 4):
            shop.gates.met(f"{name}:{number}").go()
        again = shop.settled(f"{place}/streams", order, key=name)
        assert (again.status, again.replayed) == (200, True)
        assert again.body == b"".join(piece(order, number) for number in range(4))
        assert shop.effects(name) == [1]


@claim
def a_request_that_did_not_arrive_whole_uses_up_no_key(shop: Shop, place: str) -> None:
    name = shop.name()
    with shop.connect() as connection:
        # As far as it came it is an order; whoever took it for the whole would carry it out.
        connection.send_part(f"{place}/charges", head_of(name), body_of({"name": name}))
        connection.shut()
        with suppress(HTTPException, OSError):
            assert connection.reply().status >= 400
    whole = shop.settled(f"{place}/charges", {"name": name}, key=name)
    assert (whole.status, whole.replayed) == (201, False)
    assert shop.effects(name) == [1]


# Failures


@claim
def a_handler_that_raises_is_a_500_and_the_retry_runs(shop: Shop, place: str) -> None:
    name = shop.name()
    first, second, third = (shop.post(f"{place}/crashes", {"name": name}, key=name) for _ in range(3))
    assert (first.status, first.replayed) == (500, False)
    assert (second.status, second.replayed) == (201, False)
    assert_same(second, third)
    assert shop.effects(name) == [1, 2]


@claim
def an_answer_of_503_gives_the_key_back(shop: Shop, place: str) -> None:
    name = shop.name()
    order: dict[str, Any] = {"name": name, "statuses": [503, 200]}
    replies = [shop.post(f"{place}/answers", order, key=name) for _ in range(3)]
    assert [(reply.status, reply.replayed) for reply in replies] == [(503, False), (200, False), (200, True)]
    assert shop.effects(name) == [1, 2]


@claim
def an_answer_that_asks_for_a_retry_is_not_stored_and_keeps_its_retry_after(shop: Shop, place: str) -> None:
    for status in (408, 423, 425, 429, 503):
        name = shop.name()
        order: dict[str, Any] = {"name": name, "statuses": [status, status, 201], "headers": RETRY}
        replies = [shop.post(f"{place}/answers", order, key=name) for _ in range(4)]
        seen = [(reply.status, reply.replayed) for reply in replies]
        assert seen == [(status, False), (status, False), (201, False), (201, True)]
        assert [reply.get("Retry-After") for reply in replies] == ["7"] * 4, status
        assert shop.effects(name) == ([1, 2, 3] if status == 503 else [1, 1, 1])


RETRY = {"Retry-After": "7", "Content-Type": "text/plain"}


# The policy's pages


@claim
def the_policy_is_published(shop: Shop) -> None:
    for place in ("", "/strict", "/brief"):
        reply = shop.get(place + POLICY, token="")
        assert (reply.status, reply.get("Content-Type")) == (200, "application/json")
        told = reply.json
        assert (told["header"], told["quoted_only"]) == ("Idempotency-Key", place == "/strict")
        assert (told["max_body_bytes"], told["max_kept_bytes"]) == (MAX_BODY, MAX_KEPT)
        assert told["status"] == place + POLICY + "/{token}"
        assert shop.get(f"{place}{POLICY}/nonsense").status == 404
    assert shop.get(POLICY).json["expiry"]["maximum"] == LONGEST


# What a client can see only if it is quick


def test_a_response_without_a_body_is_written_down_before_its_head_goes_out():
    def app(environ, start_response):
        start_response("204 No Content", [])
        yield from ()  # nobody can tell beforehand that nothing comes

    with semel.connect("memory:") as s:
        protected = IdempotencyMiddleware(app, Idempotency(s, identity=ANYONE))
        pieces = iter(protected(environ_of(), lambda *_: None))
        # A server sends the head when it is given the first piece, even an empty one.
        next(pieces)
        known = s.ledger.list().records
        assert list(pieces) == []
    assert [record.status for record in known] == [Status.COMPLETED]
