"""The server: uvicorn with the ASGI application in it, until a signal says to stop."""

import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import FrameType
from typing import Any, Final

import uvicorn

from semel import errors
from semel.service.app import create_app
from semel.service.dashboards import has_dashboard, sign_in_link
from semel.service.limits import MAX_HEAD_BYTES
from semel.service.middleware import FORMS, RequestMiddleware
from semel.service.run import STOP, running_workers, tune_interpreter, working
from semel.service.runtime import Runtime
from semel.service.workers import AppWorkers

# As many connections may wait to be accepted as a burst of webhooks brings.
BACKLOG: Final = 2048
# Longer than the usual load balancer keeps a connection, so that it is never the service that closes first.
KEEP_ALIVE_SECONDS: Final = 75


class CannotListen(errors.SemelError):
    """The service cannot begin."""


def serve(
    runtime: Runtime,
    say: Callable[[str], None],
    beside: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Answer requests and work on what they bring, until a signal says so; `beside` is open meanwhile."""
    with ExitStack() as stack:
        workers = stack.enter_context(running_workers(runtime))
        middleware = create_app(runtime)  # refuses what cannot work, before anything listens
        listener = stack.enter_context(_listening(runtime, runtime.settings.service.port))
        address = _address(runtime, listener)
        middleware.listen(address)
        server = _server(runtime, middleware, workers)
        _announce(runtime, workers, address, say)
        tune_interpreter()
        workers.start()
        stack.enter_context(beside(address))
        server.run(sockets=[listener])


def work(runtime: Runtime, port: int, say: Callable[[str], None]) -> None:
    """Work on what waits, and tell whoever watches over it how it is, until a signal says so."""
    with ExitStack() as stack:
        workers = stack.enter_context(working(runtime))
        middleware = create_app(runtime, workers.failing)
        listener = stack.enter_context(_listening(runtime, port))
        server = _server(runtime, middleware, workers)
        say(f"semel: health and metrics at {_address(runtime, listener)}")
        say(f"semel: working for {', '.join(workers.names)}")
        tune_interpreter()
        workers.start()
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn, which lets the worker threads and live pages know too."""

    def __init__(self, config: uvicorn.Config, workers: AppWorkers, runtime: Runtime) -> None:
        super().__init__(config)
        self._workers = workers
        self._runtime = runtime

    def leave(self) -> None:
        self._stop()
        self.should_exit = True

    def _stop(self) -> None:
        self._runtime.stopping.set()  # what has no end of its own, as a live page
        self._workers.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stop()
        super().handle_exit(sig, frame)


def _server(runtime: Runtime, middleware: RequestMiddleware, workers: AppWorkers) -> _Server:
    server = _Server(_config(runtime, middleware), workers, runtime)
    for one in STOP:
        # uvicorn gives a signal on to whoever had it before; stopping in order is no death by a signal.
        signal.signal(one, lambda *_: server.leave())
    return server


def _protocol() -> Any:
    """The faster parser, where it is installed."""
    try:
        from semel.service.httptools_protocol import LimitedHttpToolsProtocol
    except ModuleNotFoundError:
        from semel.service.h11_protocol import LimitedH11Protocol

        return LimitedH11Protocol
    return LimitedHttpToolsProtocol


def _config(runtime: Runtime, middleware: RequestMiddleware) -> uvicorn.Config:
    proxies = runtime.settings.service.trusted_proxies
    return uvicorn.Config(
        middleware,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(runtime.settings.service.stop_timeout)),
        http=_protocol(),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        lifespan="on",
        ws="none",
    )


def _listening(runtime: Runtime, port: int) -> socket.socket:
    chosen, configuration = runtime.settings.service, runtime.configuration
    try:
        family, _, _, _, place = socket.getaddrinfo(
            chosen.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise configuration.wrong(
            ("service", "host"), f"{chosen.host!r} is no address: {error.strerror}"
        ) from error
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(place)
    except OSError as error:
        listening.close()
        raise CannotListen(f"{chosen.host}:{port} cannot be listened on: {error.strerror}") from error
    listening.listen(BACKLOG)
    return listening


def _address(runtime: Runtime, listening: socket.socket) -> str:
    host, port = runtime.settings.service.host, listening.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(runtime: Runtime, workers: AppWorkers, address: str, say: Callable[[str], None]) -> None:
    if has_dashboard(runtime):
        token = sign_in_link(runtime)
        say(f"semel: dashboard at {address}{FORMS}" + (f"?token={token}" if token else ""))
    else:
        say("semel: no dashboard, since nobody could sign in: add [users.NAME] or a token with ops:read")
    say(f"semel: {address}  (docs at {address}/docs)")
    for path in runtime.hooks():
        say(f"semel: takes webhooks at {address}{path}")
    if workers.names:
        say(f"semel: working for {', '.join(workers.names)}")
