"""Servers that keep what they are told, and may be killed and started again."""

from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGINT, SIGKILL

from tests.servers import postgres, redis
from tests.servers.running import HOST, Server, come_up, folder, start, stop, until


class Durable:
    """One server: its port, and how it is stopped and started again."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._process, self.port = come_up(server)

    def stop(self) -> None:
        stop(self._process, self._server.signal)

    def start(self) -> None:
        self._process = start(self._server, self.port)
        assert until(lambda: self._server.ready(self.port))

    def restart(self) -> None:
        self.stop()
        self.start()


@contextmanager
def durable_redis() -> Iterator[tuple[str, Durable]]:
    """Redis, which has every write on disk before it confirms it; it is killed."""
    kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
    with folder() as place:
        server = Server(
            place,
            lambda port: [redis.binary(), "--bind", HOST, "--port", str(port), *kept],
            redis.answers,
            signal=SIGKILL,
        )
        with running(server) as durable:
            yield redis.url(durable.port), durable


@contextmanager
def durable_postgres() -> Iterator[tuple[str, Durable]]:
    """PostgreSQL, with nobody else on it; it ends every transaction that is open, and stops."""
    with folder() as place:
        user, programs, data = postgres.servant(place), postgres.binaries(place), place / "data"
        postgres.once(postgres.initdb(programs, data), place, user)
        server = Server(
            place,
            lambda port: [programs / "postgres", "-D", data, *postgres.options(port)],
            postgres.answers,
            user=user,
            signal=SIGINT,
        )
        with running(server) as durable:
            yield postgres.url(durable.port), durable


@contextmanager
def running(server: Server) -> Iterator[Durable]:
    durable = Durable(server)
    try:
        yield durable
    finally:
        durable.stop()
