"""The fault proxy: what it does to connections, and that only the answer of a request is dropped."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from semel.errors import UsageError
from semel.testing import FakeClock, FaultProxy
from tests.servers.running import until

# Only what has failed waits so long.
PATIENCE_SECONDS = 60


class Echo(socketserver.ThreadingTCPServer):
    """A server that answers each line in capitals, and remembers the lines."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        super().__init__(("127.0.0.1", 0), Answer)


class Answer(socketserver.StreamRequestHandler):
    server: Echo

    def handle(self) -> None:
        for line in self.rfile:
            self.server.lines.append(line)
            self.wfile.write(line.upper())


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy(*echo.server_address) as proxy:
        yield proxy


class Client:
    """A connection to the echo, through the proxy."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.socket = socket.create_connection((proxy.host, proxy.port), PATIENCE_SECONDS)
        self.stream = self.socket.makefile("rb")

    def ask(self, line: bytes) -> bytes:
        """The answer; nothing, where the connection was closed in its place."""
        self.send(line)
        return self.answer()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> bytes:
        try:
            return self.stream.readline()
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[Client]:
    with closing(Client(proxy)) as client:
        yield client


def asked(proxy: FaultProxy, line: bytes) -> bytes:
    """The answer on a connection of its own."""
    with closing(Client(proxy)) as client:
        return client.ask(line)


def test_bytes_are_passed_on_both_ways_whatever_their_number(client: Client) -> None:
    line = b"x" * 3_000_000 + b"\n"
    sender = threading.Thread(target=client.send, args=(line,))
    sender.start()
    assert client.answer() == line.upper()
    sender.join()
    assert client.ask(b"again\n") == b"AGAIN\n"


def test_an_end_is_passed_on_and_what_was_asked_before_it_is_still_answered(client: Client) -> None:
    client.send(b"last\n")
    client.socket.shutdown(socket.SHUT_WR)
    assert client.answer() == b"LAST\n"
    assert client.answer() == b""


def test_the_next_answers_are_dropped_and_their_requests_delivered(proxy: FaultProxy, echo: Echo) -> None:
    proxy.drop_answers(2)
    answers = [asked(proxy, b"%d\n" % number) for number in range(3)]
    assert answers == [b"", b"", b"2\n"]
    assert echo.lines == [b"0\n", b"1\n", b"2\n"]
    assert proxy.dropped == 2


def test_an_answer_is_dropped_by_what_was_asked(proxy: FaultProxy, echo: Echo) -> None:
    proxy.drop_answer_to(b"put")
    assert [asked(proxy, line) for line in (b"get\n", b"put\n", b"put\n")] == [b"GET\n", b"", b"PUT\n"]
    assert echo.lines == [b"get\n", b"put\n", b"put\n"]


def test_an_answer_is_dropped_by_a_function(proxy: FaultProxy) -> None:
    proxy.drop_answer_to(lambda request: request.startswith(b"p") and len(request) > 4, times=2)
    lines = (b"put\n", b"put 1\n", b"get 2\n", b"put 3\n", b"put 4\n")
    assert [asked(proxy, line) for line in lines] == [b"PUT\n", b"", b"GET 2\n", b"", b"PUT 4\n"]


def test_only_the_connection_that_asked_is_closed(proxy: FaultProxy, client: Client) -> None:
    proxy.drop_answer_to(b"put")
    assert asked(proxy, b"put\n") == b""
    assert client.ask(b"get\n") == b"GET\n"


def test_a_request_that_comes_in_pieces_is_recognised(proxy: FaultProxy, client: Client, echo: Echo) -> None:
    proxy.drop_answer_to(b"put")
    for piece in (b"p", b"u", b"t", b"\n"):
        client.send(piece)
    assert client.answer() == b""
    assert echo.lines == [b"put\n"]


def test_what_was_answered_already_is_no_part_of_the_next_request(proxy: FaultProxy, client: Client) -> None:
    assert client.ask(b"put\n") == b"PUT\n"
    proxy.drop_answer_to(b"put")
    assert client.ask(b"get\n") == b"GET\n"
    assert client.ask(b"put\n") == b""


def test_a_match_that_fails_leaves_nobody_waiting(
    proxy: FaultProxy, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", heard.append)
    proxy.drop_answer_to(lambda request: bool(request.decode("ascii")))
    assert client.ask(b"\xff\n") == b""
    assert until(lambda: [one.exc_type for one in heard] == [UnicodeDecodeError])


def test_answers_are_delayed_by_the_clock_that_was_given(echo: Echo) -> None:
    clock = FakeClock()
    with FaultProxy(*echo.server_address, clock=clock) as proxy, closing(Client(proxy)) as client:
        proxy.delay(5)
        assert client.ask(b"a\n") == b"A\n"
        assert client.ask(b"b\n") == b"B\n"
        proxy.heal()
        assert client.ask(b"c\n") == b"C\n"
    assert clock.monotonic() == 10


def test_a_delay_ends_with_its_connection(proxy: FaultProxy, client: Client, echo: Echo) -> None:
    proxy.delay(86_400)
    client.send(b"a\n")
    assert until(lambda: bool(echo.lines))
    proxy.cut()
    assert client.answer() == b""


def test_a_cut_closes_every_connection_and_lets_new_ones_in(proxy: FaultProxy, client: Client) -> None:
    with closing(Client(proxy)) as other:
        assert client.ask(b"a\n") == b"A\n"
        assert other.ask(b"b\n") == b"B\n"
        proxy.cut()
        assert client.answer() == other.answer() == b""
    assert asked(proxy, b"c\n") == b"C\n"


def test_new_connections_are_refused_until_it_heals(proxy: FaultProxy, client: Client, echo: Echo) -> None:
    assert client.ask(b"before\n") == b"BEFORE\n"
    proxy.refuse()
    # Whether the reset comes before or after connect() returns is the system's affair.
    with pytest.raises(OSError), closing(Client(proxy)) as refused:  # noqa: PT011 - any of several
        refused.send(b"no\n")
        refused.socket.recv(1)
        refused.send(b"no\n")
    assert client.ask(b"old\n") == b"OLD\n"
    proxy.heal()
    assert asked(proxy, b"new\n") == b"NEW\n"
    assert echo.lines == [b"before\n", b"old\n", b"new\n"]


def test_a_black_hole_swallows_on_old_and_new_connections_until_it_heals(
    proxy: FaultProxy, client: Client, echo: Echo
) -> None:
    assert client.ask(b"old\n") == b"OLD\n"
    with closing(Client(proxy)) as idle, closing(Client(proxy)) as new:
        assert idle.ask(b"idle\n") == b"IDLE\n"
        proxy.black_hole()
        client.send(b"lost\n")
        new.send(b"lost\n")
        assert until(lambda: proxy.swallowed == 10)
        proxy.heal()
        # Bytes are missing there, and nobody could make sense of what comes after them.
        assert client.answer() == new.answer() == b""
        assert idle.ask(b"again\n") == b"AGAIN\n"
    assert echo.lines == [b"old\n", b"idle\n", b"again\n"]


def test_healing_forgets_what_was_planned(proxy: FaultProxy) -> None:
    proxy.drop_answers()
    proxy.heal()
    assert asked(proxy, b"a\n") == b"A\n"
    assert proxy.dropped == 0


def test_a_server_that_is_not_there_resets_its_callers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with (
        FaultProxy("127.0.0.1", port) as proxy,
        pytest.raises(ConnectionError),
        closing(Client(proxy)) as client,
    ):
        client.socket.recv(1)


def test_the_end_closes_the_port_every_connection_and_every_thread(echo: Echo) -> None:
    before = set(threading.enumerate())
    with FaultProxy(*echo.server_address) as proxy:
        client = Client(proxy)
        assert client.ask(b"a\n") == b"A\n"
    proxy.close()  # twice does no harm
    assert client.answer() == b""
    client.close()
    with pytest.raises(ConnectionRefusedError):
        Client(proxy)
    assert not [thread for thread in set(threading.enumerate()) - before if "semel-proxy" in thread.name]


@pytest.mark.parametrize(
    ("url", "through"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:{}/0"),
        (
            "postgresql://me:secret@localhost:5432/db?sslmode=disable",
            "postgresql://me:secret@127.0.0.1:{}/db?sslmode=disable",
        ),
        ("http://[::1]:8000", "http://127.0.0.1:{}"),
    ],
)
def test_a_servers_url_becomes_the_proxys(url: str, through: str) -> None:
    with FaultProxy.before(url) as proxy:
        assert proxy.url(url) == through.format(proxy.port)


def test_a_url_without_a_port_is_refused() -> None:
    with pytest.raises(UsageError, match="host and port"):
        FaultProxy.before("redis://localhost")


# Real servers: the request was carried out, and only its answer is missing.


def test_redis_has_counted_though_its_answer_was_dropped(redis_server: str) -> None:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    with FaultProxy.before(redis_server) as proxy, redis.from_url(redis_server) as direct:
        with redis.from_url(proxy.url(redis_server), retry=Retry(NoBackoff(), 0)) as client:
            assert client.incr("proxy:n") == 1
            proxy.drop_answer_to(b"INCR")
            with pytest.raises(redis.ConnectionError):
                client.incr("proxy:n")
            assert client.get("proxy:n") == b"2"
        assert direct.getdel("proxy:n") == b"2"
        assert proxy.dropped == 1


def test_postgres_has_committed_though_its_answer_was_dropped(postgres: str) -> None:
    import psycopg

    with FaultProxy.before(postgres) as proxy, psycopg.connect(postgres, autocommit=True) as direct:
        direct.execute("CREATE TABLE proxy_rows (n int)")
        with psycopg.connect(proxy.url(postgres), autocommit=True) as client:
            proxy.drop_answer_to(b"INSERT")
            with pytest.raises(psycopg.OperationalError):
                client.execute("INSERT INTO proxy_rows VALUES (%s)", [7])
        assert direct.execute("DELETE FROM proxy_rows RETURNING n").fetchall() == [(7,)]
        direct.execute("DROP TABLE proxy_rows")
        assert proxy.dropped == 1


@pytest.mark.parametrize("server", ["dynoxide", "ministack"])
def test_dynamodb_has_put_though_its_answer_was_dropped(server: str, request: pytest.FixtureRequest) -> None:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import ConnectionClosedError

    def table(endpoint: str):
        resource = boto3.resource(
            "dynamodb",
            endpoint_url=endpoint,
            region_name="eu-north-1",
            aws_access_key_id="x",
            aws_secret_access_key="x",
            config=Config(retries={"total_max_attempts": 1}),
        )
        return resource.Table("proxy-items")

    url = request.getfixturevalue(server)
    direct = table(url)
    direct.meta.client.create_table(
        TableName=direct.name,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with FaultProxy.before(url) as proxy:
        client = table(proxy.url(url))
        proxy.drop_answer_to(b"PutItem")
        with pytest.raises(ConnectionClosedError):
            client.put_item(Item={"pk": "a"})
        assert client.get_item(Key={"pk": "a"})["Item"] == {"pk": "a"}
        assert proxy.dropped == 1
        client.meta.client.close()
    direct.delete()
    direct.meta.client.close()
