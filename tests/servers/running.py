"""Start a program as a server, know when it answers, and see it gone at the end.

The modules beside this one have a context manager for each server, which gives its URL:

    with postgres() as url: ...

Each server listens on a free port of the loopback interface, keeps its data in memory or in a temporary
folder, and is gone after the block, or when the thread that started it is. Where the environment names a
server (`SEMEL_TEST_POSTGRES_URL` and its kin), that one is used and none is started.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from signal import SIGTERM
from typing import TypeAlias

import semel
from semel.core.clock import Clock

LEASH = Path(__file__).with_name("leash.py")
HOST = "127.0.0.1"
# What programs of the tests import from: the tests, and the very semel that the tests import.
IMPORTS = os.pathsep.join(map(str, (Path(__file__).parents[2], Path(semel.__file__).parents[1])))

Start: TypeAlias = Callable[[], AbstractContextManager[str]]

# A server answers within a second or two. How long it takes on a busy machine decides no test: this is only
# how long something may hang until that is told, and well below the limit of a whole test.
PATIENCE_SECONDS = 240
# So short that nobody notices, so long that it costs nothing.
POLL_SECONDS = 0.02
# Between choosing a free port and listening on it somebody else may take it. Thrice is no coincidence.
TRIES = 3


class Unavailable(Exception):
    """A server cannot be had here; the message says what to install."""


class Failed(Exception):
    """A server was started and did not come up; the message has what it said."""


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) != 0


def free_port(also: Iterable[int] = ()) -> int:
    """A port that nobody listens on, nor on those so much above it."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if all(port + more < 2**16 and is_free(port + more) for more in also):
            return port


def until(what: Callable[[], bool], still: Callable[[], bool] = lambda: True) -> bool:
    """Whether it came true, while the other thing held, before patience ran out."""
    clock, never = Clock(), threading.Event()
    deadline = clock.monotonic() + PATIENCE_SECONDS
    while still() and clock.monotonic() < deadline:
        if what():
            return True
        clock.wait(never, POLL_SECONDS)
    return False


def leashed(program: Iterable[str | Path], user: str = "-", signal: int = SIGTERM) -> list[str]:
    """The command line of a program that ends when this process does."""
    options = [str(os.getpid()), str(int(signal)), user]
    return [sys.executable, "-I", "-S", str(LEASH), *options, *map(str, program)]


def environment(folder: Path) -> dict[str, str]:
    """What a server needs of ours; credentials and proxies are none of its business."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "TMPDIR": str(folder)}


@dataclass
class Server:
    """How a server is started: what there is to say about it once its port is known."""

    folder: Path
    program: Callable[[int], Iterable[str | Path]]
    ready: Callable[[int], bool]
    env: Callable[[int], dict[str, str]] = lambda _: {}
    user: str = "-"
    signal: int = SIGTERM
    also: tuple[int, ...] = ()


@contextmanager
def serving(server: Server) -> Iterator[int]:
    """The port of the server, from when it answers until the end of the block."""
    process, port = come_up(server)
    try:
        yield port
    finally:
        stop(process, server.signal)


def come_up(server: Server) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(TRIES):
        port = free_port(server.also)
        process = start(server, port)
        with ExitStack() as unless_ready:
            unless_ready.callback(stop, process, server.signal)
            if until(partial(server.ready, port), still=lambda: process.poll() is None):  # noqa: B023 - used now
                unless_ready.pop_all()
                return process, port
    log = (server.folder / "log").read_text(errors="replace")
    raise Failed(f"{process.args!r} did not come up {TRIES} times; the last said:\n{log[-4000:]}")


def start(server: Server, port: int) -> subprocess.Popen[bytes]:
    with (server.folder / "log").open("wb") as log:
        return subprocess.Popen(
            leashed(server.program(port), server.user, server.signal),
            cwd=server.folder,
            env=environment(server.folder) | server.env(port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def stop(process: subprocess.Popen[bytes], signal: int) -> None:
    process.send_signal(signal)
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder of a server's own."""
    # A child of a server that was killed may still write there for a moment.
    with tempfile.TemporaryDirectory(prefix="semel-test-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def overridable(variable: str) -> Callable[[Callable[[], Iterator[str]]], Start]:
    """A context manager that starts a server, unless the environment names the user's own."""

    def wrap(steps: Callable[[], Iterator[str]]) -> Start:
        start = contextmanager(steps)

        @wraps(steps)
        def either() -> AbstractContextManager[str]:
            url = os.environ.get(variable)
            return nullcontext(url) if url else start()

        return either

    return wrap
