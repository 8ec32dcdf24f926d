"""The servers of the tests: reachable from this machine only, and gone when nobody needs them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest

from tests.servers import dynamodb, install, postgres, rabbitmq, redis
from tests.servers.absence import served
from tests.servers.running import Unavailable, folder, until

STARTS = [
    dynamodb.dynoxide,
    dynamodb.ministack,
    dynamodb.sqs,
    postgres.postgres,
    rabbitmq.rabbitmq,
    redis.redis_server,
    redis.redis_pair,
    redis.redis_cluster,
]
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of processes")


def address(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """An address as /proc/net/tcp writes it: words of four bytes, each back to front, in hexadecimal."""
    host, port = text.split(":")
    words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8)]
    return ip_address(b"".join(words)), int(port, 16)


def sockets_of(process: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    links = [str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir() if link.is_symlink()]
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def listening(process: int) -> Iterator[tuple[IPv4Address | IPv6Address, int]]:
    """Where a process listens."""
    mine = sockets_of(process)
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in mine:
                yield address(fields[1])


def children(process: int | str = "self") -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found.update(map(int, (task / "children").read_text().split()))
    return found


def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every server started, whatever the environment names."""
    for name in [name for name in os.environ if name.startswith("SEMEL_TEST_")]:
        monkeypatch.delenv(name)


@linux
@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)
def test_a_server_listens_on_the_loopback_interface_only_and_is_gone_afterwards(
    start: Callable[[], AbstractContextManager[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own(monkeypatch)
    before = children()
    with served(start, required=False) as given:
        places = {place for child in children() - before for place in listening(child)}
        urls = given if isinstance(given, tuple) else (given,)
        assert {urlsplit(url).port for url in urls} <= {port for _, port in places}
        assert {str(host) for host, _ in places} == {"127.0.0.1"}
    assert children() <= before


@linux
def test_a_socket_on_every_interface_would_be_seen() -> None:
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        with socket.socket(family) as wide:
            wide.bind((host, 0))
            wide.listen()
            assert (ip_address(host), wide.getsockname()[1]) in set(listening(os.getpid()))


ORPHANS = """
from contextlib import ExitStack
from tests.servers import dynamodb, postgres, rabbitmq, redis
from tests.servers.running import Unavailable

stores = (dynamodb.dynoxide, dynamodb.ministack, postgres.postgres, redis.redis_server)
with ExitStack() as stack:
    for start in (*stores, rabbitmq.rabbitmq):
        try:
            stack.enter_context(start())
        except Unavailable:
            continue
    print("up", flush=True)
    input()
"""


@linux
def test_no_server_outlives_a_process_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    own(monkeypatch)
    root = Path(__file__).parents[2]
    with folder() as place:
        place.chmod(0o711)  # PostgreSQL's user has to get to his folder in it
        program = [sys.executable, "-c", ORPHANS]
        env = os.environ | {"TMPDIR": str(place)}
        with subprocess.Popen(program, stdin=-1, stdout=-1, cwd=root, env=env) as process:
            assert process.stdout.readline() == b"up\n"
            servers = children(process.pid)
            process.send_signal(signal.SIGKILL)
        assert servers
        assert until(lambda: not any(Path(f"/proc/{server}").exists() for server in servers))


@pytest.mark.parametrize(
    ("start", "variable"),
    [
        (dynamodb.dynoxide, "SEMEL_TEST_DYNAMODB_URL"),
        (dynamodb.ministack, "SEMEL_TEST_MINISTACK_URL"),
        (dynamodb.sqs, "SEMEL_TEST_SQS_URL"),
        (postgres.postgres, "SEMEL_TEST_POSTGRES_URL"),
        (rabbitmq.rabbitmq, "SEMEL_TEST_RABBITMQ_URL"),
        (redis.redis_server, "SEMEL_TEST_REDIS_URL"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_users_own_server_is_used_and_none_is_started(
    start: Callable[[], AbstractContextManager[str]], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "scheme://somewhere")
    monkeypatch.setattr(subprocess, "Popen", None)
    with start() as url:
        assert url == "scheme://somewhere"


def test_what_is_installed_starts_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(install, "POLICY", policy)
    with install.nothing_started():
        assert subprocess.run([policy], check=False).returncode == 101
    assert not policy.exists()
    policy.write_text("the machine's own")
    with install.nothing_started():
        assert policy.read_text() == "the machine's own"
    assert policy.read_text() == "the machine's own"


def absent() -> NoReturn:
    raise Unavailable("brandy: apt-get install brandy")


@pytest.mark.parametrize(
    ("ci", "required", "verdict"),
    [
        ("", True, pytest.skip.Exception),
        ("true", True, pytest.fail.Exception),
        ("true", False, pytest.skip.Exception),
    ],
)
def test_an_absent_server_skips_on_a_laptop_and_fails_in_ci(
    ci: str, required: bool, verdict: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(verdict, match="apt-get install brandy"), served(absent, required=required):
        pass
