"""The wire against servers: real ones, faulty ones, and ones that are not there."""

import asyncio
import contextlib
import gc
import os
import queue
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from uuid import uuid4

import boto3
import pytest

from semel.aws import pool
from semel.aws.boto import BotoWire
from semel.aws.environment import Credentials
from semel.aws.errors import RetryPolicy, ServiceError
from semel.aws.pool import ConnectionLimits
from semel.aws.s3 import S3Overflow
from semel.aws.wire import Wire
from semel.core.clock import Clock, Waiter
from semel.errors import InvalidOption, StoreClosed, StoreOutcomeUnknown, StoreUnavailable, UsageError
from semel.testing import FakeClock
from semel.testing.proxy import FaultProxy
from tests.clocks import MachineClock

REGION = "eu-north-1"
KEYS = Credentials("id", "secret")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """No settings but the test's own."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def wire():
    """Makes wires that are closed at the end."""
    made = []

    def make(endpoint, service="dynamodb", **options):
        made.append(Wire(service, region=REGION, endpoint=endpoint, credentials=KEYS, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def sync_call(wire, operation, request, *, write):
    return wire.call(operation, request, write=write)


def async_call(wire, operation, request, *, write):
    """One call in an event loop of its own, which nobody tidies up."""
    return asyncio.run(wire.acall(operation, request, write=write))


@pytest.fixture(params=[sync_call, async_call], ids=["sync", "async"])
def call(request):
    return request.param


# Servers that do as they are told


class Asked:
    """A request as it came."""

    def __init__(self, head, body):
        self.line, *lines = head.decode("latin-1").split("\r\n")
        self.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        self.body = body


class Script:
    """A server that answers every request with what a function says; it hangs up when told None, or so."""

    def __init__(self, answer, context=None):
        self.answer = answer
        self.context = context
        self.asked: list[Asked] = []
        self.connections = 0
        self.hung_up: queue.SimpleQueue = queue.SimpleQueue()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._receive)]
        self._threads[0].start()

    def _receive(self):
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(connected)
            thread = threading.Thread(target=self._serve, args=[connected])
            self._threads.append(thread)
            thread.start()

    def _serve(self, connected):
        with contextlib.suppress(OSError):
            if self.context is not None:
                self._open.discard(connected)
                connected = self.context.wrap_socket(connected, server_side=True)
                self._open.add(connected)
            data = b""
            while True:
                asked, data = self._read(connected, data)
                if asked is None:
                    break
                self.asked.append(asked)
                answer = self.answer(asked)
                connected.sendall(answer or b"")
                if not answer or b"\r\nHang-Up: yes\r\n" in answer:
                    break
        connected.close()
        self._open.discard(connected)
        self.hung_up.put(True)

    def _read(self, connected, data):
        while (end := data.find(b"\r\n\r\n")) < 0:
            more = connected.recv(65536)
            if not more:
                return None, b""
            data += more
        asked = Asked(data[:end], b"")
        data = data[end + 4 :]
        length = int(asked.headers.get("content-length", 0))
        while len(data) < length:
            data += connected.recv(65536)
        asked.body = data[:length]
        return asked, data[length:]

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connected in list(self._open):
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


@pytest.fixture
def script():
    """Makes servers that are closed at the end."""
    made = []

    def make(answer, context=None):
        made.append(Script(answer if callable(answer) else lambda _: answer, context))
        return made[-1]

    yield make
    for one in made:
        one.close()


def in_turn(*answers):
    """A function that gives one answer after another."""
    left = list(answers)
    return lambda _: left.pop(0)


def http(body, status=200, **headers):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


# DynamoDB


def make_table(wire):
    name = f"wire-{uuid4().hex}"
    key = {"AttributeName": "id"}
    request = {
        "TableName": name,
        "KeySchema": [key | {"KeyType": "HASH"}],
        "AttributeDefinitions": [key | {"AttributeType": "S"}],
        "BillingMode": "PAY_PER_REQUEST",
    }
    wire.call("CreateTable", request, write=True)
    return name


@pytest.fixture(params=["dynoxide", "ministack"])
def dynamodb(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["wire", "boto"])
def transport(request, dynamodb, wire):
    """Both ways to a server."""
    if request.param == "wire":
        yield wire(dynamodb)
        return
    client = boto3.client(
        "dynamodb",
        endpoint_url=dynamodb,
        region_name=REGION,
        aws_access_key_id="id",
        aws_secret_access_key="s",
    )
    yield BotoWire(client)
    client.close()


def test_both_transports_say_the_same_of_a_table(transport, call):
    table = make_table(transport)
    item = {"id": {"S": "ü"}, "b": {"B": "AAH/"}, "bs": {"BS": ["aGk="]}, "n": {"N": "1.5"}}
    put = {
        "TableName": table,
        "Item": item,
        "ConditionExpression": "attribute_not_exists(id)",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    key = {"id": {"S": "ü"}}
    assert call(transport, "PutItem", put, write=True) == {}
    assert call(
        transport, "GetItem", {"TableName": table, "Key": key, "ConsistentRead": True}, write=False
    ) == {"Item": item}
    with pytest.raises(ServiceError) as raised:
        call(transport, "PutItem", lambda: put, write=True)
    assert (raised.value.code, raised.value.status) == ("ConditionalCheckFailedException", 400)
    assert raised.value.item == item

    other = {name: value for name, value in put.items() if name != "Item"} | {"Item": {"id": {"S": "other"}}}
    with pytest.raises(ServiceError) as raised:
        call(transport, "TransactWriteItems", {"TransactItems": [{"Put": other}, {"Put": put}]}, write=True)
    assert raised.value.code == "TransactionCanceledException"
    assert [reason.code for reason in raised.value.reasons] == ["None", "ConditionalCheckFailed"]
    assert raised.value.reasons[1].item == item

    with pytest.raises(ServiceError, match="ResourceNotFoundException"):
        call(transport, "GetItem", {"TableName": "nowhere", "Key": key}, write=False)
    assert transport.time.known
    assert abs(transport.time.signing() - time.time()) < 60


def test_an_answer_of_a_megabyte_comes_whole(wire, dynoxide, call):
    way = wire(dynoxide)
    table = make_table(way)
    for n in range(3):
        call(
            way,
            "PutItem",
            {"TableName": table, "Item": {"id": {"S": f"{n}"}, "v": {"S": "ö" * 150_000}}},
            write=True,
        )
    found = call(way, "Scan", {"TableName": table}, write=False)
    assert sorted(len(item["v"]["S"]) for item in found["Items"]) == [150_000] * 3


def test_a_queue_is_spoken_to_as_well(wire, sqs, call):
    way = wire(sqs, "sqs")
    url = call(way, "CreateQueue", {"QueueName": f"q-{uuid4().hex}"}, write=True)["QueueUrl"]
    sent = call(way, "SendMessage", {"QueueUrl": url, "MessageBody": "hi"}, write=True)
    received = call(way, "ReceiveMessage", {"QueueUrl": url}, write=True)
    assert received["Messages"][0]["MessageId"] == sent["MessageId"]


def test_with_credentials_in_the_environment_botocore_is_never_imported(dynoxide):
    program = (
        "import asyncio, sys\n"
        "from semel.aws.wire import Wire\n"
        "wire = Wire('dynamodb')\n"
        "tables = wire.call('ListTables', {}, write=False)\n"
        "assert tables == asyncio.run(wire.acall('ListTables', {}, write=False))\n"
        "wire.close()\n"
        "drivers = {'botocore', 'boto3', 'urllib3', 'aiohttp'}\n"
        "loaded = drivers & {name.partition('.')[0] for name in sys.modules}\n"
        "sys.exit(', '.join(loaded) or 0)\n"
    )
    settings = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": REGION}
    environ = os.environ | settings | {"AWS_ENDPOINT_URL_DYNAMODB": dynoxide}
    subprocess.run([sys.executable, "-W", "error", "-c", program], env=environ, check=True)


# NoResponse answers


def get(table, key="a"):
    return {"TableName": table, "Key": {"id": {"S": key}}, "ConsistentRead": True}


def test_a_write_whose_answer_is_lost_is_in_doubt_and_was_applied(wire, dynoxide, call):
    direct = wire(dynoxide)
    table = make_table(direct)
    with FaultProxy.before(dynoxide) as proxy:
        way = wire(proxy.url(dynoxide))
        assert call(way, "GetItem", get(table), write=False) == {}
        proxy.drop_answer_to(b"PutItem")
        with pytest.raises(StoreOutcomeUnknown, match="may or may not have been applied"):
            call(way, "PutItem", {"TableName": table, "Item": {"id": {"S": "a"}}}, write=True)
        assert call(way, "GetItem", get(table), write=False) == {"Item": {"id": {"S": "a"}}}


def test_a_read_whose_answer_is_lost_is_repeated(wire, dynoxide, call):
    with FaultProxy.before(dynoxide) as proxy:
        way = wire(proxy.url(dynoxide))
        proxy.drop_answers(times=3)
        assert "TableNames" in call(way, "ListTables", {}, write=False)
        assert proxy.dropped == 3


def test_a_silent_server_is_not_waited_for(wire, dynoxide, call):
    with FaultProxy.before(dynoxide) as proxy:
        way = wire(
            proxy.url(dynoxide), limits=ConnectionLimits(read_timeout=0.1), policy=RetryPolicy(tries=2)
        )
        proxy.black_hole()
        with pytest.raises(StoreOutcomeUnknown):
            call(way, "DeleteTable", {"TableName": "nowhere"}, write=True)
        with pytest.raises(StoreUnavailable, match=r"no usable answer: no answer within 0\.1 s"):
            call(way, "ListTables", {}, write=False)
        proxy.heal()
        patient = wire(proxy.url(dynoxide))
        assert "TableNames" in call(patient, "ListTables", {}, write=False)


def test_a_connection_that_died_while_idle_is_replaced_before_a_write_is_sent(wire, dynoxide):
    with FaultProxy.before(dynoxide) as proxy:
        way = wire(proxy.url(dynoxide))
        table = make_table(way)
        for n in range(3):
            proxy.cut()
            way.call("PutItem", {"TableName": table, "Item": {"id": {"S": f"{n}"}}}, write=True)
        assert way.call("Scan", {"TableName": table, "Select": "COUNT"}, write=False)["Count"] == 3


def test_a_connection_that_died_while_a_loop_slept_is_replaced_before_a_write_is_sent(wire, script):
    """The server has hung up, and the loop has not had a moment to notice."""
    server = script(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nHang-Up: yes\r\n\r\n{}")

    async def twice():
        way = wire(server.url)
        for _ in range(3):
            await way.acall("PutItem", {}, write=True)
            server.hung_up.get(timeout=10)

    asyncio.run(twice())
    assert (len(server.asked), server.connections) == (3, 3)


# Answers that are none

BROKEN = {
    "closed": None,
    "garbage": b"SSH-2.0-OpenSSH_9.9\r\n",
    "truncated": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nHang-Up: yes\r\n\r\n{",
    "not JSON": http(b"<html>hello</html>"),
    "not an object": http(b"[]"),
    "wrong checksum": http(b"{}", x_amz_crc32="1"),
    "5xx page": http(b"<html>Bad gateway</html>", 502),
    "5xx without length": b"HTTP/1.1 503 Busy\r\nHang-Up: yes\r\n\r\n<html>",
    "5xx of the service": http(b'{"__type":"x#InternalServerError"}', 500),
    "endless header": b"HTTP/1.1 200 OK\r\n" + b"a" * 70_000,
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nHang-Up: yes\r\n\r\nnope\r\n",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_answer_is_a_named_error_and_the_next_call_is_well(wire, script, call, broken):
    server = script(in_turn(broken, broken, OK, OK))
    way = wire(server.url, clock=FakeClock())
    with pytest.raises(StoreOutcomeUnknown) as raised:
        call(way, "PutItem", {}, write=True)
    assert f"dynamodb at 127.0.0.1:{server.port}" in str(raised.value)
    assert call(way, "GetItem", {}, write=False) == {}
    assert call(way, "PutItem", {}, write=True) == {}
    assert len(server.asked) == 4


def test_a_page_of_a_proxy_is_shown(wire, script, call):
    server = script(http(b"<html>Blocked by policy</html>", 403))
    with pytest.raises(ServiceError, match="HTTP 403: <html>Blocked by policy</html>"):
        call(wire(server.url), "PutItem", {}, write=True)


def test_a_redirect_is_not_followed(wire, script, call):
    server = script(http(b"", 302, Location="http://elsewhere.example/"))
    with pytest.raises(ServiceError, match="HTTP 302"):
        call(wire(server.url), "PutItem", {}, write=True)
    assert len(server.asked) == 1


@pytest.mark.situation(18)
def test_throttling_is_waited_out(wire, script, call):
    busy = http(b'{"__type":"x#ProvisionedThroughputExceededException"}', 400)
    server = script(in_turn(busy, busy, busy, OK))
    clock = FakeClock()
    assert call(wire(server.url, clock=clock), "PutItem", {}, write=True) == {}
    assert 0 < clock.monotonic() < 0.2


# Servers that are not there


def test_a_stopped_server_is_named_with_what_to_check(wire, script, call):
    server = script(OK)
    way = wire(server.url, clock=FakeClock())
    assert call(way, "PutItem", {}, write=True) == {}
    server.close()
    with pytest.raises(
        StoreUnavailable, match=rf"127\.0\.0\.1:{server.port} cannot be reached: .*Is that the right"
    ):
        call(way, "PutItem", {}, write=True)


def test_a_name_that_leads_nowhere_is_unavailable(wire, call):
    way = wire("http://nowhere.invalid:8000", clock=FakeClock())
    with pytest.raises(StoreUnavailable, match=r"nowhere\.invalid:8000 cannot be reached"):
        call(way, "PutItem", {}, write=True)


def test_a_service_that_semel_does_not_speak_to_is_refused():
    with pytest.raises(InvalidOption, match="dynamodb, sqs"):
        Wire("sns", region=REGION)


# The clock


class Skewed(Clock):
    """A machine whose clock is off."""

    def __init__(self, seconds):
        self.seconds = seconds

    def now(self) -> float:
        return time.time() + self.seconds


def strict(asked):
    """Do as AWS does: refuse what was signed more than five minutes ago, or will be."""
    signed = datetime.strptime(asked.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    date = formatdate(usegmt=True)
    off = signed - time.time()
    if abs(off) < 300:
        return http(b"{}", Date=date)
    word = "expired" if off < 0 else "not yet current"
    message = f"Signature {word}: {asked.headers['x-amz-date']} ..."
    return http(f'{{"__type":"x#InvalidSignatureException","message":"{message}"}}'.encode(), 400, Date=date)


@pytest.mark.parametrize("skew", [3600, -3600])
def test_a_machine_whose_clock_is_an_hour_off_is_served(wire, script, call, skew):
    server = script(strict)
    way = wire(server.url, clock=Skewed(skew))
    assert call(way, "PutItem", lambda: {"now": way.time.signing()}, write=True) == {}
    assert len(server.asked) == 2
    assert abs(float(server.asked[1].body[7:-1]) - time.time()) < 60
    assert call(way, "PutItem", {}, write=True) == {}
    assert len(server.asked) == 3
    assert abs(way.time.signing() - time.time()) < 60


def test_a_clock_that_a_test_moves_signs_with_the_real_time(wire, script, call):
    server = script(strict)
    clock = FakeClock()
    way = wire(server.url, clock=clock)
    assert call(way, "PutItem", {}, write=True) == {}
    assert len(server.asked) == 1
    assert way.time.span() == (clock.now(), clock.now())


# Connections


def test_one_connection_serves_one_call_after_another(wire, script):
    server = script(OK)
    way = wire(server.url)

    async def ask():
        for _ in range(5):
            await way.acall("GetItem", {}, write=False)

    for _ in range(5):
        way.call("GetItem", {}, write=False)
    assert server.connections == 1
    asyncio.run(ask())
    assert server.connections == 2


def test_a_server_that_says_close_is_obeyed(wire, script, call):
    server = script(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
    way = wire(server.url)
    for n in (1, 2):
        call(way, "PutItem", {}, write=True)
        assert server.connections == n


def test_a_connection_that_was_idle_for_long_is_not_trusted(wire, script):
    server = script(OK)
    clock = MachineClock()
    way = wire(server.url, clock=clock)

    async def ask():
        await way.acall("PutItem", {}, write=True)
        clock.advance(pool.IDLE_SECONDS)
        await way.acall("PutItem", {}, write=True)

    way.call("PutItem", {}, write=True)
    clock.advance(pool.IDLE_SECONDS)
    way.call("PutItem", {}, write=True)
    assert server.connections == 2
    asyncio.run(ask())
    assert server.connections == 4


def test_connections_that_nobody_needs_any_more_are_closed(wire, script):
    barrier = threading.Barrier(3)

    def together(asked):
        if b"crowd" in asked.body:
            barrier.wait(10)
        return OK

    server = script(together)
    clock = MachineClock()
    way = wire(server.url, clock=clock)

    async def ask():
        await asyncio.gather(*(way.acall("PutItem", {"crowd": n}, write=True) for n in range(3)))
        for _ in range(4):
            clock.advance(pool.IDLE_SECONDS - 1)
            await way.acall("PutItem", {}, write=True)
        for _ in range(2):
            await asyncio.to_thread(server.hung_up.get, timeout=10)
        assert server.hung_up.empty()

    threads = [
        threading.Thread(target=way.call, args=["PutItem", {"crowd": n}], kwargs={"write": True})
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(4):
        clock.advance(pool.IDLE_SECONDS - 1)
        way.call("PutItem", {}, write=True)
    for _ in range(2):
        server.hung_up.get(timeout=10)
    assert server.hung_up.empty()
    asyncio.run(ask())


def test_there_are_never_more_connections_than_allowed(wire, script):
    barrier = threading.Barrier(2)

    def together(_):
        barrier.wait(10)
        return OK

    server = script(together)
    way = wire(server.url, limits=ConnectionLimits(connections=2))

    async def ask():
        await asyncio.gather(*(way.acall("PutItem", {}, write=True) for _ in range(8)))

    threads = [
        threading.Thread(target=way.call, args=["PutItem", {}], kwargs={"write": True}) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (server.connections, len(server.asked)) == (2, 8)
    asyncio.run(ask())
    assert (server.connections, len(server.asked)) == (4, 16)


def test_whoever_gets_no_connection_is_told_to_allow_for_more(wire, script):
    way = wire(
        script(OK).url,
        limits=ConnectionLimits(connections=1, read_timeout=0.1),
        policy=RetryPolicy(connects=1),
    )
    full = "all 1 connections were in use for 0.1 s: allow for more"
    waiter = Waiter()
    with waiter.held:
        way.pool._places.acquire(waiter, 0)
        with pytest.raises(StoreUnavailable, match=full):
            way.call("GetItem", {}, write=False)

    async def ask():
        await way.acall("GetItem", {}, write=False)
        async with way.pool._loops.here()._places:
            await way.acall("GetItem", {}, write=False)

    with pytest.raises(StoreUnavailable, match=full):
        asyncio.run(ask())
    assert way.call("GetItem", {}, write=False) == {}


def test_after_close_nothing_is_sent(wire, script, call):
    server = script(OK)
    way = wire(server.url)
    call(way, "PutItem", {}, write=True)
    way.close()
    way.close()
    for ask in (sync_call, async_call):
        with pytest.raises(StoreClosed):
            ask(way, "PutItem", {}, write=True)
    assert len(server.asked) == 1


def test_threads_and_loops_share_a_wire(wire, dynoxide):
    way = wire(dynoxide)
    table = make_table(way)

    def put(key):
        way.call("PutItem", {"TableName": table, "Item": {"id": {"S": key}}}, write=True)

    async def puts(name):
        requests = ({"TableName": table, "Item": {"id": {"S": f"{name}-{n}"}}} for n in range(20))
        await asyncio.gather(*(way.acall("PutItem", request, write=True) for request in requests))

    work = [threading.Thread(target=put, args=[f"t{n}"]) for n in range(20)]
    work += [threading.Thread(target=lambda n=n: asyncio.run(puts(n))) for n in range(3)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert way.call("Scan", {"TableName": table, "Select": "COUNT"}, write=False)["Count"] == 80


# Event loops


def test_a_loop_that_leaves_closes_its_connections_and_may_come_back(wire, script):
    server = script(OK)
    way = wire(server.url)

    async def ask():
        await way.leave()
        await way.acall("PutItem", {}, write=True)
        await way.leave()
        server.hung_up.get(timeout=10)
        await way.acall("PutItem", {}, write=True)

    asyncio.run(ask())
    assert server.connections == 2


def test_a_loop_that_ends_by_itself_leaves_nothing_open(wire, script):
    server = script(OK)
    way = wire(server.url)
    asyncio.run(way.acall("PutItem", {}, write=True))
    server.hung_up.get(timeout=10)
    gc.collect()


@pytest.mark.parametrize("secure", [False, True])
def test_a_loop_that_was_closed_with_connections_open_is_cleared_up(
    wire, script, secure, authority, monkeypatch
):
    monkeypatch.setenv("AWS_CA_BUNDLE", authority.file)
    server = script(OK, authority.context if secure else None)
    way = wire(server.url)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(way.acall("PutItem", {}, write=True))
    loop.close()
    way.close()
    server.hung_up.get(timeout=10)
    del loop
    gc.collect()


def test_a_loop_that_was_closed_is_cleared_up_when_the_next_one_comes(wire, script):
    server = script(OK)
    way = wire(server.url)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(way.acall("PutItem", {}, write=True))
    loop.close()
    asyncio.run(way.acall("PutItem", {}, write=True))
    for _ in range(2):
        server.hung_up.get(timeout=10)
    del loop
    gc.collect()


def test_closing_reaches_a_loop_that_pauses_and_one_that_runs_elsewhere(wire, script):
    server = script(OK)
    way = wire(server.url)
    pausing = asyncio.new_event_loop()
    pausing.run_until_complete(way.acall("PutItem", {}, write=True))
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(way.acall("PutItem", {}, write=True), running).result(10)
    way.close()
    for _ in range(2):
        server.hung_up.get(timeout=10)
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()
    pausing.close()
    gc.collect()


def test_a_cancelled_call_leaves_no_answer_for_the_next_one(wire, script):
    came, go = threading.Event(), threading.Event()

    def slowly(asked):
        if b"first" in asked.body:
            came.set()
            go.wait(10)
        return http(asked.body)

    server = script(slowly)
    way = wire(server.url)

    async def ask():
        await way.acall("GetItem", {}, write=False)
        first = asyncio.create_task(way.acall("GetItem", {"it": "first"}, write=False))
        await asyncio.to_thread(came.wait, 10)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(way.acall("GetItem", {"it": "second"}, write=False))
        await asyncio.sleep(0)
        go.set()
        return await second

    assert asyncio.run(ask()) == {"it": "second"}


def test_an_interrupted_call_leaves_no_answer_for_the_next_one(wire, script, monkeypatch):
    server = script(lambda asked: http(asked.body))
    way = wire(server.url)
    way.call("GetItem", {}, write=False)
    with monkeypatch.context() as patch:

        def interrupted(_self, _reader):
            raise KeyboardInterrupt

        patch.setattr(pool.HttpConnection, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            way.call("GetItem", {"it": "first"}, write=False)
    assert way.call("GetItem", {"it": "second"}, write=False) == {"it": "second"}


def test_a_loop_goes_on_while_credentials_are_fetched(wire, script):
    """They may take seconds: another program is asked, or another service."""
    server = script(OK)
    way = wire(server.url)
    go = threading.Event()

    def slowly(_):
        assert go.wait(10)
        return KEYS

    way.credential_cache._source = slowly

    async def ask():
        asking = asyncio.create_task(way.acall("PutItem", {}, write=True))
        await asyncio.sleep(0)
        go.set()
        return await asking

    assert asyncio.run(ask()) == {}


FORKING = """
import asyncio, os, sys, warnings
from semel.aws.environment import Credentials
from semel.aws.wire import Wire

warnings.simplefilter("error")
wire = Wire("dynamodb", region="eu-north-1", endpoint=sys.argv[1], credentials=Credentials("a", "b"))

async def ask():
    await wire.acall("PutItem", {"by": os.getpid()}, write=True)
    await wire.acall("PutItem", {"by": os.getpid()}, write=True)

loop = asyncio.new_event_loop()
wire.call("PutItem", {"by": os.getpid()}, write=True)
loop.run_until_complete(ask())
child = os.fork()
if child == 0:
    wire.call("PutItem", {"by": os.getpid()}, write=True)
    asyncio.run(ask())
    wire.close()
    os._exit(0)
status = os.waitpid(child, 0)[1]
wire.call("PutItem", {"by": os.getpid()}, write=True)
loop.run_until_complete(ask())
loop.run_until_complete(wire.leave())
loop.close()
wire.close()
sys.exit(status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_connections_of_its_own(script):
    by: dict[int, set[bytes]] = {}

    def note(asked):
        by.setdefault(threading.get_ident(), set()).add(asked.body)
        return OK

    server = script(note)
    subprocess.run([sys.executable, "-c", FORKING, server.url], check=True)
    assert len(server.asked) == 9
    assert server.connections == 4
    assert all(len(processes) == 1 for processes in by.values())


# TLS and proxies


class Authority:
    """A certificate for 127.0.0.1, and the file that vouches for it."""

    def __init__(self, folder):
        from ipaddress import ip_address

        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
            )
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        plain = serialization.NoEncryption()
        secret = folder / "key.pem"
        secret.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        public = folder / "certificate.pem"
        public.write_bytes(certificate.public_bytes(pem))
        self.file = str(public)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(public, secret)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


def test_a_secure_server_that_proves_who_it_is_is_spoken_to(wire, script, call, authority, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", authority.file)
    server = script(OK, authority.context)
    way = wire(server.url)
    assert call(way, "PutItem", {"secret": 1}, write=True) == {}
    assert call(way, "PutItem", {"large": "x" * 1_000_000}, write=True) == {}
    assert server.asked[0].body == b'{"secret":1}'
    assert server.connections == (1 if call is sync_call else 2)


def test_a_secure_server_that_cannot_prove_who_it_is_is_told_nothing(wire, script, call, authority):
    server = script(OK, authority.context)
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        call(wire(server.url, clock=FakeClock()), "PutItem", {"secret": 1}, write=True)
    assert server.asked == []


class Tunnel:
    """A proxy that opens tunnels, if one knows the word."""

    def __init__(self, word=None):
        self.word = word
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._receive)]
        self._threads[0].start()

    def _receive(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            head = client.recv(65536).decode()
            self.asked.append(head)
            if self.word is not None and self.word not in head:
                client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                client.close()
                continue
            host, port = head.split()[1].split(":")
            server = socket.create_connection((host, int(port)))
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            for pair in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pass, args=pair)
                self._threads.append(thread)
                thread.start()

    def _pass(self, here, there):
        with here, contextlib.suppress(OSError):
            while data := here.recv(65536):
                there.sendall(data)
            there.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def tunnel():
    with contextlib.ExitStack() as stack:

        def make(word=None):
            made = Tunnel(word)
            stack.callback(made.close)
            return made

        yield make


def test_a_secure_server_is_reached_through_the_proxy(wire, script, call, authority, tunnel, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", authority.file)
    server, proxy = script(OK, authority.context), tunnel("YWRhOmh1c2g=")
    monkeypatch.setenv("HTTPS_PROXY", f"http://ada:hush@127.0.0.1:{proxy.port}")
    way = wire(server.url)
    assert call(way, "PutItem", {}, write=True) == {}
    assert call(way, "PutItem", {"large": "x" * 300_000}, write=True) == {}
    assert proxy.asked[0].startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n")
    asyncio.run(way.leave())
    way.close()


def test_a_proxy_that_refuses_is_named_as_such(wire, script, call, authority, tunnel, monkeypatch):
    server, proxy = script(OK, authority.context), tunnel("word")
    monkeypatch.setenv("HTTPS_PROXY", f"http://ada:hush@127.0.0.1:{proxy.port}")
    with pytest.raises(StoreUnavailable, match="the proxy said 407") as raised:
        call(wire(server.url, clock=FakeClock()), "PutItem", {}, write=True)
    assert "hush" not in str(raised.value)


# S3


@pytest.fixture
def bucket(ministack):
    client = boto3.client(
        "s3",
        endpoint_url=ministack,
        region_name=REGION,
        aws_access_key_id="id",
        aws_secret_access_key="secret",
    )
    name = f"overflow-{uuid4().hex}"
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    yield name
    client.close()


@pytest.fixture
def overflow(ministack):
    with contextlib.ExitStack() as stack:

        def make(bucket, **options):
            made = S3Overflow(bucket, region=REGION, endpoint=ministack, credentials=KEYS, **options)
            stack.callback(made.close)
            return made

        yield make


@pytest.mark.parametrize("prefix", ["semel/", "", "a b/ü+%&=?#/~", "x"])
def test_a_large_result_is_kept_as_an_object_until_it_is_deleted(overflow, bucket, prefix):
    objects = overflow(bucket, prefix=prefix)
    data = os.urandom(3_000_000)
    ref, other = objects.put("prod/mail:ada@example.com", data), objects.put("prod/mail:ada@example.com", b"")
    assert ref != other
    assert ref.startswith(prefix)
    assert "mail" not in ref
    assert (objects.get(ref), objects.get(other)) == (data, b"")
    objects.delete(ref)
    objects.delete(ref)
    with pytest.raises(KeyError):
        objects.get(ref)
    assert objects.get(other) == b""


def test_a_reference_outlives_a_change_of_prefix(overflow, bucket):
    ref = overflow(bucket, prefix="old/").put("k", b"1")
    assert overflow(bucket, prefix="new/").get(ref) == b"1"


@pytest.mark.parametrize(
    "ref", ["", "semel/", "semel/x", "../x", f"{'0' * 32}-{'0' * 32}\n", f"{'0' * 32}-{'0' * 31}"]
)
def test_a_reference_of_another_making_is_refused(overflow, bucket, ref):
    objects = overflow(bucket)
    for use in (objects.get, objects.delete):
        with pytest.raises(UsageError, match="not a reference"):
            use(ref)


def test_a_bucket_that_is_not_there_is_an_error_and_not_a_missing_result(overflow):
    objects = overflow("nobody-made-this-bucket")
    with pytest.raises(ServiceError, match="NoSuchBucket"):
        objects.put("k", b"1")
    with pytest.raises(ServiceError, match="NoSuchBucket"):
        objects.get(f"semel/{'0' * 32}-{'0' * 32}")


def test_a_key_is_written_as_botocore_writes_it(script):
    server = script(http(b""))
    objects = S3Overflow(
        "bucket", prefix="a b/ü+%&=?#/~/*'", region=REGION, endpoint=server.url, credentials=KEYS
    )
    ref = objects.put("k", b"")
    objects.close()
    client = boto3.client(
        "s3", endpoint_url=server.url, region_name=REGION, aws_access_key_id="id", aws_secret_access_key="s"
    )
    client.put_object(Bucket="bucket", Key=ref, Body=b"")
    client.close()
    ours, theirs = server.asked
    assert ours.line == theirs.line


def test_an_object_is_put_again_when_nobody_said_that_it_was_kept(script):
    server = script(in_turn(None, http(b"<Error><Code>SlowDown</Code></Error>", 503), http(b"")))
    objects = S3Overflow("bucket", region=REGION, endpoint=server.url, credentials=KEYS, clock=FakeClock())
    ref = objects.put("k", b"data")
    objects.close()
    assert {(asked.line, asked.body) for asked in server.asked} == {(f"PUT /bucket/{ref} HTTP/1.1", b"data")}
    assert len(server.asked) == 3
