"""RabbitMQ: one broker, which speaks AMQP 0.9.1 and AMQP 1.0 at one port."""

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

from tests.servers.running import HOST, Server, Unavailable, folder, overridable, serving

# Debian's program of this name in the PATH serves root and the system's own broker; this is what it calls.
DEBIAN = "/usr/lib/rabbitmq/bin/rabbitmq-server"
WORD = "semel"  # the user, the password and the virtual host
PLUGINS = "[rabbitmq_amqp1_0].\n"
# Tables for a million processes and five million atoms take longer to lay out than the rest of the start.
# And threads that spin while they wait starve the rest on a busy machine: the start took over 45 s, not 17 s.
SMALL = "+P 100000 +t 1048576 +sbwt none +sbwtdcpu none +sbwtdio none"
# A node with a name, which mnesia wants, that talks to no other: no port for them, no daemon that lists them.
ALONE = "-sname rabbit@localhost -start_epmd false -erl_epmd_port 1 -dist_listen false"


class Broker(NamedTuple):
    """A broker, as its clients need it."""

    url: str
    """`amqp://user:password@127.0.0.1:PORT/vhost`, for clients of either protocol."""


@overridable("SEMEL_TEST_RABBITMQ_URL")
def rabbitmq() -> Iterator[str]:
    """One broker with a virtual host of its own: `amqp://semel:semel@127.0.0.1:PORT/semel`."""
    program = binary()
    with folder() as place:
        (place / "plugins").write_text(PLUGINS)
        server = Server(
            place,
            lambda _: [program],
            answers,
            env=lambda port: environment(place, port),
            signal=SIGKILL,  # nothing it saves is read again
        )
        with serving(server) as port:
            yield f"amqp://{WORD}:{WORD}@{HOST}:{port}/{WORD}"


def binary() -> str:
    found = DEBIAN if os.access(DEBIAN, os.X_OK) else shutil.which("rabbitmq-server")
    if not found:
        raise Unavailable(
            "RabbitMQ: apt-get install rabbitmq-server, or name yours in SEMEL_TEST_RABBITMQ_URL"
        )
    return found


def environment(place: Path, port: int) -> dict[str, str]:
    (place / "rabbitmq.conf").write_text(settings(port))
    # A broker that did not come up may have left half a database.
    shutil.rmtree(place / "mnesia", ignore_errors=True)
    absent = str(place / "absent")  # whatever the system says of its own broker is not for this one
    return {
        "detached": "yes",  # the script becomes the broker instead of waiting for it
        "RABBITMQ_NODENAME": "rabbit@localhost",
        "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": f"{absent}.config",
        "RABBITMQ_CONF_ENV_FILE": absent,
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(place / "mnesia"),
        "RABBITMQ_PID_FILE": str(place / "pid"),
        "RABBITMQ_LOG_BASE": str(place / "logs"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_SERVER_ERL_ARGS": SMALL,
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ALONE,
    }


def settings(port: int) -> str:
    lines = {
        "listeners.tcp.1": f"{HOST}:{port}",
        "default_user": WORD,
        "default_pass": WORD,
        "default_vhost": WORD,
        "log.console.level": "warning",
    }
    return "".join(f"{name} = {value}\n" for name, value in lines.items())


def declare(url: str, name: str, **arguments: object) -> None:
    """Make a durable queue."""
    import pika  # type: ignore[import-untyped,unused-ignore]

    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        connection.channel().queue_declare(name, durable=True, arguments=arguments)
    finally:
        connection.close()


def answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=5) as probe:
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            return probe.recv(1) == b"\x01"  # its first frame, not the header of another version
    except OSError:
        return False
