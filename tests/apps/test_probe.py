"""The probe on queues of the store's own: each request once, whatever is asked again."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_bytes
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import semel
from semel import errors
from semel.apps.probe import Probe, Settings, aws_lambda
from semel.apps.probe.orders import duration
from semel.apps.tables import PROBE
from semel.aws.environment import Credentials
from semel.aws.wire import Wire
from semel.core.clock import Clock
from semel.provision import dynamodb
from semel.stores.dynamodb.items import title
from semel.tables import OWN
from tests.doors.lambda_events import Context, http_api, rest
from tests.places import CREDENTIALS
from tests.servers.running import until

DAY = 86400
OPEN = Settings(open=True)


class Caller:
    """Somebody who sends requests to a probe."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def ask(
        self, operation: str, key: str | None, order: Any, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        named = {} if key is None else {"Idempotency-Key": key}
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        body = order if isinstance(order, bytes) else json.dumps(order).encode()
        answer = self.probe.hooks[f"/messages/{operation}"].receive({**named, **more}, body)
        return answer.status, json.loads(answer.body), answer.headers

    def produce(self, key: str, order: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        return self.ask("produce", key, order or {"address": "orders", "count": 3}, **headers)

    def consume(self, key: str, most: int = 10, seconds: float = 0, **more: Any) -> list[Any]:
        status, told, _ = self.ask(
            "consume", key, {"address": "orders", "max": most, "seconds": seconds, **more}
        )
        assert status == 200, told
        assert told["processedMessages"] == len(told["messages"])
        return [message["body"] for message in told["messages"]]


@pytest.fixture
def opened(s):
    """Makes probes, each with settings of its own."""
    with ExitStack() as stack:

        def make(on=s, **settings):
            probe = Probe(on, None, Settings(**({"open": True} | settings)))
            stack.callback(probe.close)
            return Caller(probe)

        yield make


@pytest.fixture
def caller(opened):
    return opened()


# The same key again


@pytest.mark.seed("M3")
def test_a_request_that_is_sent_again_gets_the_first_answer_and_nothing_happens(caller):
    first = caller.produce("k")
    again = caller.produce("k")
    assert first[:2] == again[:2] == (200, {"processedMessages": 3, "elapsed": "PT0S"})
    assert "Idempotent-Replayed" not in first[2]
    assert again[2]["Idempotent-Replayed"] == "true"
    assert caller.consume("k") == ["probe"] * 3
    assert caller.consume("k") == ["probe"] * 3, "the answer is given again"
    assert caller.consume("k2") == [], "and no message is"


@pytest.mark.seed("M3")
def test_a_request_that_is_under_way_is_told_to_wait(caller, s):
    s.ledger.claim("PRODUCE#k", lease=3)
    status, told, headers = caller.produce("k")
    assert (status, told["type"], told["retry_after"]) == (409, "/problems#in-progress", 3)
    assert headers["Retry-After"] == "3"
    assert headers["Content-Type"] == "application/problem+json"
    assert caller.consume("k2") == []


@pytest.mark.seed("M3")
def test_another_payload_under_the_same_key_is_refused_and_changes_nothing(caller):
    caller.produce("k")
    status, told, _ = caller.produce("k", {"address": "orders", "count": 4})
    assert (status, told["type"]) == (422, "/problems#payload-changed")
    assert caller.produce("k")[1]["processedMessages"] == 3
    assert len(caller.consume("c")) == 3


def test_producing_and_consuming_have_keys_of_their_own(caller):
    assert caller.produce('"one key"')[0] == 200
    assert caller.consume("one%20key") == ["probe"] * 3
    assert caller.produce("k", {"address": "orders", "messages": [1]})[0] == 200
    assert caller.consume("k") == [1]


def test_of_many_who_send_one_request_at_once_one_has_it_carried_out(opened, tmp_path):
    with semel.connect(f"sqlite:///{tmp_path / 'semel.db'}") as s, ThreadPoolExecutor(16) as crowd:
        caller = opened(s)
        answers = list(crowd.map(lambda _: caller.produce("k")[0], range(48)))
        assert set(answers) <= {200, 409}
        assert 200 in answers
        assert len(caller.consume("c")) == 3


def test_of_many_who_share_a_queue_each_gets_other_messages(opened, tmp_path):
    with semel.connect(f"sqlite:///{tmp_path / 'semel.db'}") as s, ThreadPoolExecutor(8) as crowd:
        caller = opened(s)

        def both(number):
            sent, _, _ = caller.produce(
                f"p{number}", {"address": "orders", "messages": [number, number + 100]}
            )
            assert sent == 200
            return caller.consume(f"c{number}", 2, 5)

        got = [body for bodies in crowd.map(both, range(16)) for body in bodies]
    assert sorted(got) == [*range(16), *range(100, 116)]


# How long it is remembered


@pytest.mark.seed("M4")
def test_an_answer_is_remembered_as_long_as_is_configured_unless_the_request_says_otherwise(opened, s, clock):
    caller = opened(record_ttl=600)
    caller.produce("usual")
    _, _, headers = caller.produce("usual")
    caller.produce("chosen", Idempotency_Expiry_Seconds="3600")
    assert s.ledger.get("PRODUCE#usual").expires_at == clock.now() + 600
    assert s.ledger.get("PRODUCE#chosen").expires_at == clock.now() + 3600
    assert headers["Idempotency-Expires"] == "Tue, 14 Nov 2023 22:23:20 GMT"
    clock.advance(601)
    assert "Idempotent-Replayed" in caller.produce("chosen")[2]
    assert "Idempotent-Replayed" not in caller.produce("usual")[2]


@pytest.mark.seed("M4")
@pytest.mark.parametrize("asked", ["59", "604801", "soon", "", "-1", "60.5"])
def test_a_time_out_of_bounds_is_refused(caller, s, asked):
    status, told, _ = caller.produce("k", Idempotency_Expiry_Seconds=asked)
    assert (status, told["type"]) == (400, "/problems#expiry-malformed")
    assert "from 60 to 604800" in told["detail"]
    assert s.ledger.get("PRODUCE#k") is None


# What is asked for


def test_messages_come_in_the_order_in_which_they_were_sent_with_names_of_their_own(caller):
    bodies = [{"order": 7, "deep": [None, True, 1.5]}, "text", 3, None]
    caller.produce("a", {"address": "orders", "messages": bodies[:3]})
    caller.produce("b", {"address": "orders", "messages": bodies[3:]})
    status, told, _ = caller.ask("consume", "c", {"address": "orders", "max": 3, "seconds": 0})
    assert status == 200
    assert [message["body"] for message in told["messages"]] == bodies[:3]
    names = [message["id"] for message in told["messages"]]
    assert [name.rpartition("-")[2] for name in names] == ["1", "2", "3"]
    assert len({name.rpartition("-")[0] for name in names}) == 1
    assert caller.consume("d") == bodies[3:]


def test_a_request_waits_for_messages_until_its_time_is_up(caller, clock):
    caller.produce("k", {"address": "orders", "count": 1})
    clock.schedule(1.0, lambda: caller.produce("late", {"address": "orders", "messages": ["late"]}))
    status, told, _ = caller.ask("consume", "c", {"address": "orders", "max": 3, "seconds": 2.5})
    assert (status, told["elapsed"], told["processedMessages"]) == (200, "PT2.5S", 2)


def test_a_request_that_has_enough_does_not_wait(caller, clock):
    clock.schedule(1.0, lambda: caller.produce("late", {"address": "orders", "messages": ["a", "b"]}))
    status, told, _ = caller.ask("consume", "c", {"address": "orders", "max": 2, "seconds": 20})
    assert (status, told["processedMessages"]) == (200, 2)
    assert clock.monotonic() < 2


@pytest.mark.seed("M5")
@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "PT0S"), (2.5, "PT2.5S"), (90, "PT90S"), (0.0604, "PT0.06S"), (100.0, "PT100S"), (-1, "PT0S")],
)
def test_a_time_is_told_as_iso_8601_has_it(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("operation", "order", "why"),
    [
        ("produce", b"{", "it is no JSON"),
        ("produce", {"count": 1}, "missing required field `address`"),
        ("produce", {"address": "", "count": 1}, "address names a queue"),
        ("produce", {"address": "a\nb", "count": 1}, "address names a queue"),
        ("produce", {"address": "q"}, "either messages, or count"),
        ("produce", {"address": "q", "count": 1, "messages": [1]}, "either messages, or count"),
        ("produce", {"address": "q", "count": 0}, "between 1 and 1000"),
        ("produce", {"address": "q", "messages": []}, "between 1 and 1000"),
        ("produce", {"address": "q", "count": 1001}, "between 1 and 1000"),
        ("produce", {"address": "q", "count": True}, "Expected `int | null`"),
        ("produce", {"address": "q", "count": 1, "to": "x"}, "unknown field `to`"),
        ("consume", {"address": "q", "max": 0}, "between 1 and 1000"),
        ("consume", {"address": "q", "seconds": 21}, "between 0 and 20"),
        ("consume", {"address": "q", "seconds": -1}, "between 0 and 20"),
    ],
)
def test_a_request_that_cannot_be_read_is_told_why_and_claims_nothing(caller, s, operation, order, why):
    status, told, _ = caller.ask(operation, "k", order)
    assert (status, told["type"]) == (400, "/problems#request-malformed")
    assert why in told["detail"]
    assert s.ledger.list().records == ()


@pytest.mark.parametrize(
    ("key", "kind"),
    [(None, "key-missing"), ("", "key-malformed"), ('"a', "key-malformed"), ("k" * 256, "key-malformed")],
)
def test_a_request_has_a_key(caller, key, kind):
    status, told, _ = caller.ask("produce", key, {"address": "orders", "count": 1})
    assert (status, told["type"]) == (400, f"/problems#{kind}")


def test_a_key_that_comes_twice_is_no_key(caller):
    pairs = [("Idempotency-Key", "a"), ("idempotency-key", "b")]
    answer = caller.probe.hooks["/messages/produce"].receive(pairs, b'{"address": "orders", "count": 1}')
    assert (answer.status, json.loads(answer.body)["type"]) == (400, "/problems#key-malformed")


def test_a_body_may_have_so_many_bytes_and_no_more(opened):
    caller = opened(max_body=30)
    assert caller.ask("produce", "k", b'{"address": "q", "count": 1   }')[0] == 413
    assert caller.ask("produce", "k", b'{"address": "q", "count": 1  }')[0] == 200


def test_only_post_moves_messages(caller):
    answer = caller.probe.hooks["/messages/produce"].receive({"Idempotency-Key": "k"}, b"", method="GET")
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")


# Who may ask


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic horse"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer hörse"}, 401),
        ({"Authorization": "Bearer correct-horse-battery"}, 200),
        ({"Authorization": "bearer correct-horse-battery"}, 200),
    ],
)
def test_a_token_is_asked_for_before_anything_else(opened, s, shown, status):
    caller = opened(token="correct-horse-battery", open=False)
    found, told, headers = caller.produce("k", **shown)
    assert found == status
    if status == 401:
        assert told["type"] == "/problems#not-authenticated"
        assert headers["WWW-Authenticate"].startswith("Bearer")
        assert s.ledger.list().records == ()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "apps.probe.token: "),
        ({"open": True, "token": "t"}, "apps.probe.token: "),
        ({"open": True, "lease": 0}, "apps.probe.lease: "),
        ({"open": True, "lease": 60}, "apps.probe.shortest_ttl: "),
        ({"open": True, "record_ttl": 59}, "apps.probe.record_ttl: "),
        ({"open": True, "max_messages": 0}, "apps.probe.max_messages: "),
        ({"open": True, "max_response": 300_000}, "apps.probe.max_response: "),
        ({"open": True, "on_lapsed": "forget"}, "apps.probe.on_lapsed: "),
        ({"open": True, "broker": "http://host"}, "apps.probe.broker: "),
    ],
)
def test_a_setting_that_cannot_work_is_named(s, settings, named):
    with pytest.raises(errors.InvalidOption, match=named):
        Probe(s, None, Settings(**settings))


def test_settings_do_not_show_what_is_secret():
    shown = repr(Settings(token="correct-horse-battery", broker="amqp://u:battery@h"))
    assert "horse" not in shown
    assert "battery" not in shown


# What does not fit, and what goes wrong


@pytest.mark.seed("M2")
def test_a_queue_that_is_full_takes_none_of_the_messages_and_the_request_has_failed(opened):
    with semel.connect("memory:", max_result_bytes=2000) as s:
        caller = opened(s)
        order = {"address": "orders", "messages": [token_bytes(200).hex() for _ in range(3)]}
        assert caller.produce("a", order)[0] == 200
        status, told, _ = caller.produce("b", order)
        assert (status, told["type"]) == (409, "/problems#failed-before")
        assert "has no room" in told["detail"]
        assert s.ledger.get("PRODUCE#b").status == "FAILED"
        assert caller.produce("b", order)[:2] == (status, told), "it stays so"
        assert caller.consume("c") == order["messages"]


def test_what_a_response_has_no_room_for_stays_in_its_queue(opened):
    caller = opened(max_response=400)
    caller.produce("k", {"address": "orders", "messages": ["x" * 150] * 3})
    assert [len(caller.consume(f"c{number}")) for number in range(4)] == [1, 1, 1, 0]


def test_a_message_that_no_response_has_room_for_stays_and_the_request_has_failed(opened):
    caller = opened(max_response=400)
    caller.produce("k", {"address": "orders", "messages": ["x" * 400]})
    status, told, _ = caller.ask("consume", "c", {"address": "orders", "seconds": 0})
    assert (status, told["type"]) == (409, "/problems#failed-before")
    assert "was left where it is" in told["detail"]
    assert len(opened().consume("d")[0]) == 400


def test_an_attempt_that_vanished_on_the_stores_own_queue_has_not_happened_and_runs_again(caller, s, clock):
    body = {"address": "orders", "count": 3}
    print_ = sha256(json.dumps(body).encode()).hexdigest()
    s.ledger.claim("PRODUCE#k", fingerprint=print_, lease=30)
    clock.advance(31)
    assert caller.produce("k", body)[0] == 200
    assert len(caller.consume("c")) == 3


def test_a_service_that_is_stopping_answers_what_is_done_and_begins_nothing(caller, s):
    caller.produce("k")
    s.drain()
    assert caller.produce("k")[0] == 200
    status, told, headers = caller.produce("new")
    assert (status, told["type"], headers["Retry-After"]) == (503, "/problems#unavailable", "1")


def test_closing_ends_a_request_that_waits_with_what_has_come(tmp_path):
    with semel.connect(f"sqlite:///{tmp_path / 'semel.db'}") as s:
        probe = Probe(s, None, OPEN)
        caller, got = Caller(probe), []
        caller.produce("k", {"address": "orders", "count": 2})
        waiting = threading.Thread(target=lambda: got.append(caller.consume("c", 3, 20)))
        waiting.start()
        assert until(lambda: s.ledger.get("CONSUME#c") is not None)
        probe.close()
        waiting.join()
    assert got == [["probe"] * 2]


def test_a_store_that_cannot_be_reached_is_told_with_a_pause(caller, s, monkeypatch):
    def down(*_):
        raise errors.StoreUnavailable("gone")

    monkeypatch.setattr(s.store, "execute", down)
    status, told, headers = caller.produce("k")
    assert (status, told["type"], headers["Retry-After"]) == (503, "/problems#unavailable", "5")


def test_an_error_of_the_programs_own_is_raised_and_the_key_may_be_used_again(caller, s, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("semel.state.Documents.get", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            caller.produce("k")
    assert caller.produce("k")[0] == 200


def test_the_awaitable_way_is_the_same(caller):
    async def both():
        hook = caller.probe.hooks["/messages/produce"]
        request = {"Idempotency-Key": "k"}, b'{"address": "orders", "count": 2}'
        return await hook.areceive(*request), await hook.areceive(*request)

    first, again = asyncio.run(both())
    assert first.body == again.body
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(caller.consume("c")) == 2


def test_messages_are_encrypted_in_the_queue_and_in_the_answer_where_results_are(opened, tmp_path):
    pytest.importorskip("cryptography")
    keys = semel.Encryption({"k": token_bytes(32)}, "k")
    with semel.connect(f"sqlite:///{tmp_path / 'semel.db'}", encryption=keys) as s:
        caller = opened(s)
        caller.produce("k", {"address": "orders", "messages": ["planted@example.com"] * 2})
        assert caller.consume("c", 1) == ["planted@example.com"]
        files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"orders" in files
    assert b"planted" not in files


# On the table of the seed


@pytest.fixture(params=["dynoxide", "ministack"])
def table(request, monkeypatch):
    """A store whose ledger is like the seed's table; what reads an item of it, and what writes one."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    endpoint, env = request.getfixturevalue(request.param), f"e{uuid4().hex[:12]}"
    wire = Wire("dynamodb", region="us-east-1", endpoint=endpoint, credentials=Credentials("test", "test"))
    tables = [msgspec.structs.replace(PROBE, title=f"probe-{env}"), *OWN]
    dynamodb.provision(wire, tables, env, clock=Clock())
    named = {"TableName": f"probe-{env}"}

    def item(key):
        request = {**named, "Key": {"pk": {"S": key}}, "ConsistentRead": True}
        return wire.call("GetItem", request, write=False).get("Item")

    def put(item):
        wire.call("PutItem", {**named, "Item": item}, write=False)

    with semel.connect(f"dynamodb://us-east-1/probe-{env}?endpoint={endpoint}&layout=probe", env=env) as s:
        yield s, item, put
    for each in tables:
        wire.call("DeleteTable", {"TableName": title(each, env)}, write=False)
    wire.close()


@pytest.mark.seed("M1")
@pytest.mark.seed("M2")
def test_a_request_stands_in_the_seeds_table_as_the_seed_shows_it(opened, table):
    s, item, _ = table
    caller = opened(s)
    order = b'{"address": "orders", "max": 2, "seconds": 20}'
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(caller.ask, "consume", '"5c1e0a56-4a58"', order)
        assert until(lambda: item("CONSUME#5c1e0a56-4a58") is not None)
        running = item("CONSUME#5c1e0a56-4a58")
        caller.produce("p", {"address": "orders", "messages": ["a", "b"]})
        status, told, _ = waiting.result()
    assert running["status"] == {"S": "IN_PROGRESS"}
    assert status == 200
    done = item("CONSUME#5c1e0a56-4a58")
    assert {
        name: value
        for name, value in done.items()
        if name not in ("createdAt", "updatedAt", "expiresAt", "ttl")
    } == {
        "pk": {"S": "CONSUME#5c1e0a56-4a58"},
        "operationType": {"S": "CONSUME"},
        "idempotencyKey": {"S": "5c1e0a56-4a58"},
        "status": {"S": "COMPLETED"},
        "requestHash": {"S": sha256(order).hexdigest()},
        "responsePayload": done["responsePayload"],
        # What else the ledger has to know, beside what the seed asks for.
        **{name: done[name] for name in ("token", "attempt", "leaseUntil", "version", "encoding")},
    }
    assert json.loads(done["responsePayload"]["S"]) == told
    assert done["createdAt"]["S"] < done["updatedAt"]["S"] < done["expiresAt"]["S"]
    assert done["createdAt"]["S"].endswith("Z")
    record = s.ledger.get("CONSUME#5c1e0a56-4a58")
    assert float(done["ttl"]["N"]) == record.expires_at == pytest.approx(record.updated_at + DAY, abs=3)


@pytest.mark.seed("M2")
def test_a_request_that_failed_is_failed_in_the_seeds_table(opened, table):
    s, item, _ = table
    caller = opened(s, max_response=10)
    caller.produce("p", {"address": "orders", "count": 1})
    assert caller.ask("consume", "c", {"address": "orders", "seconds": 0})[0] == 409
    assert item("CONSUME#c")["status"] == {"S": "FAILED"}


def theirs(operation: str, order: bytes, status: str, ends: float = 4_102_444_800) -> dict[str, Any]:
    """An item as the seed's own program writes it for a request under the key `k`."""
    done = {"responsePayload": {"S": '{"processedMessages":100,"elapsed":"PT2.5S"}'}}
    return {
        "pk": {"S": f"{operation}#k"},
        "operationType": {"S": operation},
        "idempotencyKey": {"S": "k"},
        "status": {"S": status},
        "requestHash": {"S": sha256(order).hexdigest()},
        **(done if status == "COMPLETED" else {}),
        "createdAt": {"S": "2025-10-29T12:00:00Z"},
        "updatedAt": {"S": "2025-10-29T12:00:02Z"},
        "expiresAt": {"S": datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
        "ttl": {"N": str(int(ends))},
    }


ORDERS = {
    "PRODUCE": b'{"address": "orders", "count": 3}',
    "CONSUME": b'{"address": "orders", "max": 3, "seconds": 0}',
}


@pytest.mark.seed("M3")
def test_what_the_seeds_own_system_has_done_is_not_done_again(opened, table):
    s, _, put = table
    put(theirs("PRODUCE", ORDERS["PRODUCE"], "COMPLETED"))
    caller = opened(s)
    status, told, headers = caller.ask("produce", "k", ORDERS["PRODUCE"])
    assert (status, told) == (200, {"processedMessages": 100, "elapsed": "PT2.5S"})
    assert headers["Idempotent-Replayed"] == "true"
    assert caller.consume("c") == []


@pytest.mark.seed("M3")
@pytest.mark.parametrize("operation", list(ORDERS))
def test_what_the_seeds_own_system_is_at_is_left_to_it_until_its_end(opened, table, operation):
    s, item, put = table
    caller = opened(s)
    caller.produce("before", {"address": "orders", "messages": ["a", "b"]})
    running = theirs(operation, ORDERS[operation], "IN_PROGRESS")
    put(running)
    status, told, _ = caller.ask(operation.lower(), "k", ORDERS[operation])
    assert (status, told["type"]) == (409, "/problems#in-progress")
    assert item(f"{operation}#k") == running
    assert caller.consume("c") == ["a", "b"]
    put(theirs(operation, ORDERS[operation], "IN_PROGRESS", ends=1_761_825_600))
    assert caller.ask(operation.lower(), "k", ORDERS[operation])[0] == 200


@pytest.mark.seed("M3")
@pytest.mark.parametrize("status", ["COMPLETED", "IN_PROGRESS", "FAILED"])
@pytest.mark.parametrize("operation", list(ORDERS))
def test_another_payload_under_a_key_of_the_seeds_own_system_is_refused(opened, table, operation, status):
    s, item, put = table
    put(theirs(operation, ORDERS[operation], status))
    caller = opened(s)
    order = {"address": "elsewhere", **({"count": 1} if operation == "PRODUCE" else {"max": 1})}
    refused = caller.ask(operation.lower(), "k", order)
    assert (refused[0], refused[1]["type"]) == (422, "/problems#payload-changed")
    assert item(f"{operation}#k") == theirs(operation, ORDERS[operation], status)


# On Lambda


@pytest.fixture
def function(monkeypatch, tmp_path):
    """The entry point, in an environment of its own."""
    monkeypatch.setenv("SEMEL_URL", f"sqlite:///{tmp_path / 'semel.db'}")
    monkeypatch.setenv("SEMEL_APPS__PROBE__TOKEN", "correct-horse-battery")
    monkeypatch.setenv("SEMEL_APPS__PROBE__RECORD_TTL", "600")
    yield aws_lambda.ingress
    aws_lambda.FUNCTIONS.close()


@pytest.mark.parametrize("event", [http_api, rest])
def test_a_function_answers_requests_of_both_kinds_of_api(function, event, capsys):
    headers = {"Idempotency-Key": ["k"], "Authorization": ["Bearer correct-horse-battery"]}
    order = b'{"address": "orders", "count": 2}'
    answers = [function(event(order, headers, path="/messages/produce"), Context()) for _ in range(2)]
    assert [answer["statusCode"] for answer in answers] == [200, 200]
    assert answers[0]["body"] == answers[1]["body"]
    assert json.loads(answers[0]["body"])["processedMessages"] == 2
    named = answers[1].get("headers") or {
        name: each[0] for name, each in answers[1]["multiValueHeaders"].items()
    }
    assert named["Idempotent-Replayed"] == "true"
    assert function(event(order, {}, path="/messages/produce"), Context())["statusCode"] == 401
    assert function(event(order, headers, path="/elsewhere"), Context())["statusCode"] == 404
    counted = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["service"], line.get("Misses"), line.get("Hits")) for line in counted[:2]] == [
        ("probe", 1, None),
        ("probe", None, 1),
    ]
