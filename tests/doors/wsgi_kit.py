"""What every door to a WSGI server keeps, as tests to inherit: a door adds only its application."""

import io
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

import semel
from semel.connect import open_store
from semel.core.clock import Clock
from semel.core.commands import Stored, Update
from semel.core.events import What
from semel.doors.http import Idempotency
from semel.testing import FakeClock, Faulty

KEY = "8e03978e-40d5-43dd-bc93-6894a57f9324"
PATIENCE = 60

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass
class Out:
    """What a handler answers; `body` may be pieces."""

    body: bytes | Iterable[bytes] = b""
    status: int = 201
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Reply:
    """What a client gets."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def get(self, name: str) -> str | None:
        values = self.all(name)
        return values[0] if values else None

    @property
    def problem(self) -> str:
        assert self.get("content-type") == "application/problem+json"
        told = json.loads(self.body)
        assert told["status"] == self.status
        return str(told["type"]).partition("#")[2]

    @property
    def replayed(self) -> bool:
        return self.all("idempotent-replayed") == ["true"]


class World:
    """What an application does, and whom it lets in."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.handle: Callable[[bytes], Out] = lambda body: Out(b"made " + body)
        self.allowed = {"alice", "bob", ""}

    @property
    def times(self) -> int:
        return len(self.bodies)

    def __call__(self, body: bytes) -> Out:
        """Handle a request that was let in."""
        self.bodies.append(body)
        return self.handle(body)


def bearer(authorization: str | None) -> str | None:
    return (authorization or "").removeprefix("Bearer ") or None


class Exchanged:
    """A response as a server holds it: begun, and not yet read."""

    def __init__(self, app: App, environ: dict[str, Any]) -> None:
        self.head: list[Any] = []
        self.written: list[bytes] = []
        self.pieces = app(environ, self._start)
        self._iterator = iter(self.pieces)

    def _start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        self.head[:] = [status, headers]
        return self.written.append

    def next(self) -> bytes | None:
        """The next piece that has something in it."""
        return next(filter(None, self._iterator), None)

    def close(self) -> None:
        if hasattr(self.pieces, "close"):
            self.pieces.close()

    def read(self) -> Reply:
        try:
            body = b"".join(self._iterator)
        finally:
            self.close()
        status, headers = self.head
        return Reply(int(status[:3]), list(headers), b"".join(self.written) + body)


def environ_of(
    method: str = "POST",
    path: str = "/charges",
    body: bytes = b'{"cents": 4200}',
    *,
    key: str | None = KEY,
    user: str = "alice",
    query: str = "",
    extra: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "SERVER_NAME": "shop.test",
        "SERVER_PORT": "443",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "shop.test",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "https",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    if key is not None:
        environ["HTTP_IDEMPOTENCY_KEY"] = key
    if user:
        environ["HTTP_AUTHORIZATION"] = f"Bearer {user}"
    return environ | more | (extra or {})


class Watched(Faulty):
    """A store that tells when leases are renewed."""

    renewals = 0

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.enough = threading.Event()

    def execute(self, command: Stored) -> Any:
        reply = super().execute(command)
        if isinstance(command, Update) and "lease_until" in command.set:
            self.renewals += 1
            if self.renewals >= 5:
                self.enough.set()
        return reply


class WsgiClaims:
    """What holds of every door; `make_app` and `identity` are the door's."""

    stores: ClassVar[tuple[str, ...]] = ("memory", "sqlite")

    def make_app(self, idempotency: Idempotency, world: World) -> App:
        """The application: POST /charges is protected, whoever is not allowed gets 403, GET is answered."""
        raise NotImplementedError

    def identity(self, native: Any) -> str | None:
        """Who asks, of the door's own request."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "store" in metafunc.fixturenames:
            metafunc.parametrize("store", self.stores, indirect=True)

    @pytest.fixture
    def store(self, request, tmp_path, clock) -> Watched:
        url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'semel.db'}"
        return Watched(open_store(url, env="test", clock=clock))

    @pytest.fixture
    def s(self, store, clock) -> Iterator[semel.Semel]:
        with semel.Semel(store, env="test", clock=clock) as s:
            yield s

    @pytest.fixture
    def world(self) -> World:
        return World()

    @pytest.fixture
    def door(self, s, world) -> "Door":
        return Door(self, s, world)

    # Replays

    def test_a_retry_gets_the_same_response_byte_for_byte_and_nothing_runs_again(self, door):
        door.world.handle = lambda body: Out(
            '{"id": "ch_1", "for": "Zoë"}'.encode(),
            headers={"Content-Type": "application/json", "Location": "/charges/1", "X-Trace": "t-1"},
        )
        first, second = door.post(), door.post()
        assert (first.status, first.body) == (201, '{"id": "ch_1", "for": "Zoë"}'.encode())
        assert (second.status, second.body) == (first.status, first.body)
        assert not first.replayed
        assert second.replayed
        assert (second.get("idempotency-expires") or "").endswith("GMT")
        for name in ("content-type", "location"):
            assert second.all(name) == first.all(name) != []
        assert first.get("x-trace") == "t-1"
        assert second.get("x-trace") is None
        assert door.world.times == 1

    @pytest.mark.parametrize("body", [b"", b"\x00\xff\xfe binary \r\n", b"x" * 70_000])
    def test_any_body_comes_back_as_it_was(self, door, body):
        door.world.handle = lambda _: Out(body, 200, {"Content-Type": "application/octet-stream"})
        replies = [door.post() for _ in range(3)]
        assert [reply.body for reply in replies] == [body] * 3
        assert len({reply.get("content-type") for reply in replies}) == 1
        assert door.world.times == 1

    def test_a_response_without_a_body_has_none_again(self, door):
        door.world.handle = lambda _: Out(b"", 204)
        for reply in (door.post(), door.post()):
            assert (reply.status, reply.body) == (204, b"")
            assert reply.get("content-length") in (None, "0")
        assert door.world.times == 1

    def test_a_cookie_is_neither_kept_nor_given_again(self, door):
        door.world.handle = lambda _: Out(b"ok", headers={"Set-Cookie": "session=secret; Path=/"})
        assert door.post().all("set-cookie") != []
        again = door.post()
        assert again.replayed
        assert again.all("set-cookie") == []

    def test_a_refusal_of_the_handlers_is_kept_like_any_answer(self, door):
        door.world.handle = lambda _: Out(b"no such card", 402)
        assert [door.post().status for _ in range(2)] == [402, 402]
        assert door.world.times == 1

    def test_the_handler_reads_the_whole_body_and_knows_its_attempt(self, door):
        door.world.handle = lambda body: Out(f"attempt {semel.current_run().attempt}".encode())
        assert door.post(body=b"{" + b" " * 5000 + b"}").body == b"attempt 1"
        assert door.world.bodies == [b"{" + b" " * 5000 + b"}"]
        with pytest.raises(LookupError):
            semel.current_run()

    # What is turned away

    def test_a_request_without_a_key_is_turned_away_and_does_not_run(self, door):
        reply = door.post(key=None)
        assert (reply.status, reply.problem) == (400, "key-missing")
        assert 'rel="describedby"' in (reply.get("link") or "")
        assert door.world.times == 0

    @pytest.mark.parametrize("key", ["", '"open', "two words", "a" * 256, '"a", "b"'])
    def test_a_key_that_cannot_be_read_is_turned_away(self, door, key):
        reply = door.post(key=key)
        assert (reply.status, reply.problem) == (400, "key-malformed")
        assert door.world.times == 0

    def test_a_quoted_key_is_the_same_key(self, door):
        door.post(key=KEY)
        assert door.post(key=f'"{KEY}"').replayed

    def test_a_key_may_be_left_out_where_the_policy_says_so(self, door):
        door.open(required=False)
        assert [door.post(key=None).status for _ in range(2)] == [201, 201]
        assert door.world.times == 2
        door.post(), door.post()
        assert door.world.times == 3

    def test_an_empty_key_is_malformed_also_where_none_is_required(self, door):
        door.open(required=False)
        for empty in ("", "  ", '""'):
            reply = door.post(key=empty)
            assert (reply.status, reply.problem) == (400, "key-malformed")
        assert door.world.times == 0

    @pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
    def test_other_methods_are_left_alone(self, door, method):
        for _ in range(2):
            reply = door.send(method=method, body=b"", key=KEY)
            assert reply.status < 400
            assert not reply.replayed
        assert not door.s.ledger.list().records

    def test_another_payload_under_the_same_key_is_refused_and_changes_nothing(self, door):
        first = door.post(body=b'{"cents": 1}')
        for changed in ({"body": b'{"cents": 2}'}, {"body": b'{"cents": 1}', "query": "force=1"}):
            reply = door.post(**changed)
            assert (reply.status, reply.problem) == (422, "payload-changed")
        assert door.post(body=b'{"cents": 1}').body == first.body
        assert door.world.times == 1

    def test_a_body_that_says_it_is_too_large_is_not_read(self, door):
        door.open(max_body=10)
        reply = door.post(body=b"x" * 11)
        assert (reply.status, reply.problem) == (413, "body-too-large")
        assert door.post(body=b"x" * 10).status == 201

    # Whose keys

    def test_the_same_key_of_another_caller_is_another_key(self, door):
        door.world.handle = lambda body: Out(f"number {door.world.times}".encode())
        assert door.post(user="alice").body == b"number 1"
        assert door.post(user="bob").body == b"number 2"
        assert door.post(user="alice").body == b"number 1"

    def test_whoever_is_nobody_has_no_keys(self, door):
        reply = door.post(user="")
        assert (reply.status, reply.problem) == (401, "not-authenticated")
        assert door.world.times == 0

    def test_whoever_has_lost_the_permission_gets_no_replay(self, door):
        door.post()
        door.world.allowed.discard("alice")
        reply = door.post()
        assert reply.status == 403
        assert b"made" not in reply.body
        door.world.allowed.add("alice")
        assert door.post().replayed

    def test_whoever_is_not_let_in_uses_up_no_key(self, door):
        door.world.allowed.discard("alice")
        assert door.post().status == 403
        door.world.allowed.add("alice")
        assert door.post().status == 201

    # Failures

    @pytest.mark.parametrize("status", [500, 503])
    def test_a_server_error_gives_the_key_back(self, door, status):
        answers = [Out(b"down", status), Out(b"made")]
        door.world.handle = lambda _: answers.pop(0)
        assert [door.post().status for _ in range(3)] == [status, 201, 201]
        assert door.world.times == 2

    def test_an_exception_gives_the_key_back(self, door):
        def handle(_body):
            if door.world.times == 1:
                raise RuntimeError("the till is closed")
            return Out(b"made")

        door.world.handle = handle
        assert door.failing() == 500
        assert door.post().body == b"made"
        assert door.post().replayed
        assert door.world.times == 2

    def test_a_store_that_is_down_lets_nothing_run(self, door, store):
        store.refuse()
        reply = door.post()
        assert (reply.status, reply.problem) == (503, "unavailable")
        assert reply.get("retry-after") is not None
        assert door.world.times == 0
        assert door.post().status == 201

    def test_a_completion_that_cannot_be_written_is_not_told_as_done(self, door, store):
        door.world.handle = lambda _: store.refuse(1000) or Out(b"made")
        reply = door.post()
        assert (reply.status, reply.problem) == (503, "unavailable")
        assert b"made" not in reply.body

    def test_a_server_that_is_stopping_begins_nothing_and_still_replays(self, door):
        door.post()
        door.s.drain()
        assert door.post().replayed
        reply = door.post(key="another")
        assert (reply.status, reply.problem) == (503, "unavailable")

    # At the same time

    def test_a_retry_while_the_first_is_at_work_is_told_to_come_back(self, door):
        with door.busy() as finish:
            reply = door.post()
            assert (reply.status, reply.problem) == (409, "in-progress")
            assert int(reply.get("retry-after") or 0) >= 1
            told = json.loads(reply.body)
            status = door.get(told["status_url"])
            assert json.loads(status.body) == {"status": "in-progress", "attempt": 1}
            assert any('rel="status"' in link for link in reply.all("link"))
            assert any('rel="describedby"' in link for link in reply.all("link"))
            first = finish()
        assert (first.status, first.body) == (201, b"slow")
        assert json.loads(door.get(told["status_url"]).body)["status"] == "completed"
        assert door.get(told["status_url"], user="bob").status == 404
        assert door.post().body == b"slow"
        assert door.world.times == 1

    def test_work_that_is_slower_than_its_lease_is_done_once(self, world, tmp_path):
        store = Watched(open_store(f"sqlite:///{tmp_path / 'real.db'}", env="test", clock=Clock()))
        with semel.Semel(store, env="test") as s:
            door = Door(self, s, world)
            door.open(lease=0.15)
            world.handle = lambda _: Out(b"late" if store.enough.wait(PATIENCE) else b"never")
            assert [door.post().body for _ in range(2)] == [b"late", b"late"]
            assert world.times == 1
            assert store.renewals >= 5

    def test_whoever_has_lost_the_lease_is_told_and_the_other_answer_stands(self, door, clock):
        door.open(heartbeat=False)
        other: list[Reply] = []

        def handle(_body):
            if door.world.times == 1:
                clock.advance(31)
                elsewhere(lambda: other.append(door.post()))
                return Out(b"too late")
            return Out(b"in time")

        door.world.handle = handle
        late = door.post()
        assert (late.status, late.problem) == (409, "in-progress")
        assert other[0].body == b"in time"
        assert door.post().body == b"in time"

    # Responses in pieces

    def test_a_streamed_response_goes_out_as_it_comes_and_is_kept_at_its_end(self, door):
        made: list[bytes] = []
        door.world.handle = lambda _: Out(pieces(made, 3), 200)
        response = door.begin()
        assert response.next() == b"piece 0 "
        assert len(made) < 3
        assert door.post().status == 409
        assert b"piece 0 " + response.read().body == b"piece 0 piece 1 piece 2 "
        again = door.post()
        assert (again.status, again.body) == (200, b"piece 0 piece 1 piece 2 ")
        assert again.replayed
        assert door.world.times == 1

    def test_a_stream_that_is_longer_than_is_kept_leaves_its_status(self, door):
        door.open(max_kept=16)
        door.world.handle = lambda _: Out(pieces([], 3), 200, {"Location": "/charges/1"})
        assert len(door.post().body) == 24
        again = door.post()
        assert (again.status, again.problem) == (200, "result-not-kept")
        assert again.get("idempotency-body") == "not-kept"
        assert again.get("location") == "/charges/1"
        assert door.world.times == 1

    @pytest.mark.parametrize("read", [0, 1, 2])
    def test_a_client_that_goes_away_in_the_middle_does_not_end_the_work(self, door, read):
        made: list[bytes] = []
        door.world.handle = lambda _: Out(pieces(made, 4), 200)
        response = door.begin()
        for _ in range(read):
            response.next()
        response.close()
        assert len(made) == 4
        assert door.post().body == b"".join(made)
        assert door.world.times == 1

    def test_a_stream_that_breaks_gives_the_key_back(self, door):
        def broken():
            yield b"a piece"
            raise RuntimeError("the printer is out of paper")

        answers = [Out(broken(), 200), Out(b"whole")]
        door.world.handle = lambda _: answers.pop(0)
        response = door.begin()
        with pytest.raises(RuntimeError, match="out of paper"):
            response.read()
        assert door.post().body == b"whole"
        assert door.world.times == 2

    def test_a_stream_of_known_length_is_kept_before_its_last_piece_goes_out(self, door):
        door.open(max_kept=8)
        made: list[bytes] = []
        door.world.handle = lambda _: Out(pieces(made, 2), 200, {"Content-Length": "16"})
        response = door.begin()
        while response.next() != b"piece 1 ":
            pass
        assert door.post().replayed
        response.close()

    def test_a_stream_whose_lease_was_lost_breaks_off(self, door, clock):
        door.open(heartbeat=False)
        door.world.handle = lambda _: Out(pieces([], 2), 200) if door.world.times == 1 else Out(b"other")
        response = door.begin()
        assert response.next() == b"piece 0 "
        clock.advance(31)
        elsewhere(door.post)
        with pytest.raises(semel.ClaimLost):
            response.read()
        assert door.post().body == b"other"

    # The policy's pages

    def test_the_policy_is_published(self, door):
        reply = door.get("/.well-known/idempotency-key")
        assert reply.status == 200
        told = json.loads(reply.body)
        assert told["header"] == "Idempotency-Key"
        assert told["methods"] == ["PATCH", "POST"]
        assert door.get("/.well-known/idempotency-key/nonsense").status == 404

    def test_what_is_turned_away_is_told_by_an_event(self, door):
        heard: list[semel.Event] = []
        door.s.events.listen(heard.append)
        door.post(key=None)
        assert [(event.what, event.detail, event.door) for event in heard] == [
            (What.REFUSED, "key-missing", "http")
        ]


def pieces(made: list[bytes], many: int) -> Iterator[bytes]:
    """So many pieces, each noted when it is made."""
    for number in range(many):
        made.append(f"piece {number} ".encode())
        yield made[-1]


def elsewhere(work: Callable[[], Any]) -> None:
    """Do this in a thread of its own, to the end."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


class Door:
    """An application behind a door, and a client of it."""

    def __init__(self, claims: WsgiClaims, s: semel.Semel, world: World) -> None:
        self._claims = claims
        self.s = s
        self.world = world
        self.open()

    def open(self, **options: Any) -> None:
        """The same with another policy."""
        self.idempotency = Idempotency(self.s, identity=self._claims.identity, **options)
        self.app = self._claims.make_app(self.idempotency, self.world)

    def begin(self, **request: Any) -> Exchanged:
        return Exchanged(self.app, environ_of(**request))

    def send(self, **request: Any) -> Reply:
        return self.begin(**request).read()

    def post(self, **request: Any) -> Reply:
        return self.send(**request)

    def get(self, path: str, **request: Any) -> Reply:
        return self.send(method="GET", path=path, body=b"", key=None, **request)

    def failing(self) -> int:
        """The status of a request whose handler raises; a server makes a 500 of what it sees raised."""
        try:
            return self.post().status
        except RuntimeError:
            return 500

    def busy(self) -> "Busy":
        return Busy(self)


class Busy:
    """While it is open, a request is at work in another thread; what it gives makes that one finish."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._begun, self._go_on = threading.Event(), threading.Event()
        self._replies: list[Reply] = []
        self._thread = threading.Thread(target=lambda: self._replies.append(door.post()))

    def __enter__(self) -> Callable[[], Reply]:
        self._door.world.handle = self._handle
        self._thread.start()
        assert self._begun.wait(PATIENCE)
        return self._finish

    def __exit__(self, *_error: object) -> None:
        self._go_on.set()
        self._thread.join(PATIENCE)

    def _handle(self, _body: bytes) -> Out:
        self._begun.set()
        assert self._go_on.wait(PATIENCE)
        return Out(b"slow")

    def _finish(self) -> Reply:
        self.__exit__()
        return self._replies[0]
