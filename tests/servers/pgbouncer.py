"""PgBouncer: a pooler in front of a PostgreSQL server, in transaction mode unless told otherwise."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.postgres import servant
from tests.servers.running import HOST, Server, Unavailable, folder, serving

# Where Debian has it, which an ordinary user's PATH leaves out.
DEBIAN = "/usr/sbin/pgbouncer"


def binary() -> str:
    found = shutil.which("pgbouncer") or (DEBIAN if os.access(DEBIAN, os.X_OK) else None)
    if not found:
        raise Unavailable("PgBouncer: apt-get install pgbouncer")
    return found


@contextmanager
def pgbouncer(upstream: str, **settings: object) -> Iterator[str]:
    """The URL of the same database by way of a pooler; three sessions of the server serve in turn."""
    program = binary()
    parts = urlsplit(upstream)
    with folder() as place:
        user = servant(place)
        server = Server(
            place,
            lambda port: [program, configuration(place, port, upstream, settings)],
            answers,
            user=user,
        )
        with serving(server) as port:
            yield parts._replace(netloc=f"{parts.username}@{HOST}:{port}").geturl()


def configuration(place: Path, port: int, upstream: str, settings: dict[str, object]) -> Path:
    parts = urlsplit(upstream)
    login = f"host={parts.hostname} port={parts.port} user={parts.username}"
    login += f" password={parts.password}" if parts.password else ""
    defaults = {
        "listen_addr": HOST,
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": 3,
        "server_round_robin": 1,
        "ignore_startup_parameters": "options",
    }
    lines = ["[databases]", f"* = {login}", "[pgbouncer]"]
    lines += [f"{name} = {value}" for name, value in (defaults | settings).items()]
    file = place / "pgbouncer.ini"
    file.write_text("\n".join([*lines, ""]))
    file.chmod(0o644)
    return file


def answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=5).close()
    except OSError:
        return False
    return True
