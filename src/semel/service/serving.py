"""The service as a server: uvicorn with the site in it, until a signal says to stop."""

import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import FrameType
from typing import Any, Final

import uvicorn

from semel import errors
from semel.service.crew import Crew
from semel.service.front import Front
from semel.service.heads import MAX_HEAD_BYTES
from semel.service.house import House
from semel.service.run import STOP, kept, working
from semel.service.site import site

# As many connections may wait to be accepted as a burst of webhooks brings.
BACKLOG: Final = 2048
# Longer than the usual load balancer keeps a connection, so that it is never the service that closes first.
KEEP_ALIVE_SECONDS: Final = 75
# A worker's thread has its turn for so long; Python's own 5 ms would be what a webhook waits for its answer.
TURN_SECONDS: Final = 0.001


class Unserved(errors.SemelError):
    """The service cannot begin."""


def serve(
    house: House,
    say: Callable[[str], None],
    beside: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Answer requests and work on what they bring, until a signal says so; `beside` is open meanwhile."""
    with ExitStack() as stack:
        crew = stack.enter_context(kept(house))
        front = site(house)  # refuses what cannot work, before anything listens
        listener = stack.enter_context(_listening(house, house.settings.service.port))
        address = _address(house, listener)
        front.listen(address)
        server = _server(house, front, crew)
        _tell(house, crew, address, say)
        sys.setswitchinterval(TURN_SECONDS)
        crew.start()
        stack.enter_context(beside(address))
        server.run(sockets=[listener])


def work(house: House, port: int, say: Callable[[str], None]) -> None:
    """Work on what waits, and tell whoever watches over it how it is, until a signal says so."""
    with ExitStack() as stack:
        crew = stack.enter_context(working(house))
        front = site(house, crew.failing)
        listener = stack.enter_context(_listening(house, port))
        server = _server(house, front, crew)
        say(f"semel: health and metrics at {_address(house, listener)}")
        say(f"semel: working for {', '.join(crew.names)}")
        crew.start()
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn, which lets the crew know too."""

    def __init__(self, config: uvicorn.Config, crew: Crew) -> None:
        super().__init__(config)
        self._crew = crew

    def leave(self) -> None:
        self._crew.stop()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._crew.stop()
        super().handle_exit(sig, frame)


def _server(house: House, front: Front, crew: Crew) -> _Server:
    server = _Server(_config(house, front), crew)
    for one in STOP:
        # uvicorn gives a signal on to whoever had it before; stopping in order is no death by a signal.
        signal.signal(one, lambda *_: server.leave())
    return server


def _protocol() -> Any:
    """The faster parser, where it is installed."""
    try:
        from semel.service.protocol import Protocol
    except ModuleNotFoundError:
        from semel.service.plain import PlainProtocol

        return PlainProtocol
    return Protocol


def _config(house: House, front: Front) -> uvicorn.Config:
    return uvicorn.Config(
        front,
        log_config=None,
        access_log=False,
        server_header=False,
        # Whoever is in front of it is believed by its settings alone: public_url.
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(house.settings.service.stop_timeout)),
        http=_protocol(),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        lifespan="on",
        ws="none",
    )


def _listening(house: House, port: int) -> socket.socket:
    chosen, given = house.settings.service, house.given
    try:
        family, _, _, _, place = socket.getaddrinfo(
            chosen.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise given.wrong(("service", "host"), f"{chosen.host!r} is no address: {error.strerror}") from error
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(place)
    except OSError as error:
        listening.close()
        raise Unserved(f"{chosen.host}:{port} cannot be listened on: {error.strerror}") from error
    listening.listen(BACKLOG)
    return listening


def _address(house: House, listening: socket.socket) -> str:
    host, port = house.settings.service.host, listening.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _tell(house: House, crew: Crew, address: str, say: Callable[[str], None]) -> None:
    say(f"semel: {address}  (docs at {address}/docs)")
    for path in house.hooks():
        say(f"semel: takes webhooks at {address}{path}")
    if crew.names:
        say(f"semel: working for {', '.join(crew.names)}")
