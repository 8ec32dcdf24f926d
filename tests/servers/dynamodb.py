"""Servers that speak DynamoDB's API, and one of them SQS's too."""

import platform
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from signal import SIGKILL

from tests.servers.running import HOST, Server, Unavailable, folder, overridable, serving

# Where tests.servers.install puts it.
SERVERS = Path(sys.prefix) / "servers"
MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
PACKAGE = f"@dynoxide/{sys.platform}-{MACHINES.get(platform.machine().lower(), platform.machine().lower())}"
VERSION = "1.2.1"
BINARY = SERVERS / "node_modules" / PACKAGE / "dynoxide"


@overridable("SEMEL_TEST_DYNAMODB_URL")
def dynoxide() -> Iterator[str]:
    """DynamoDB alone, in memory: `http://127.0.0.1:PORT`."""
    if not BINARY.exists():
        raise Unavailable(f"dynoxide: npm install --prefix {SERVERS} --no-save {PACKAGE}@{VERSION}")
    with folder() as place:
        server = Server(
            place,
            lambda port: [BINARY, "--host", HOST, "--port", str(port)],
            lambda port: answers(f"http://{HOST}:{port}/"),
            signal=SIGKILL,  # it has nothing to save
        )
        with serving(server) as port:
            yield f"http://{HOST}:{port}"


# Once a minute a thread of ministack removes what has expired by the machine's clock. Tests move one of their
# own, mostly in years gone by, and would now and then find their items gone.
WITHOUT_REAPER = """
import runpy, threading
start = threading.Thread.start
threading.Thread.start = lambda thread: thread.name == "dynamodb-ttl-reaper" or start(thread)
runpy.run_module("ministack", run_name="__main__")
"""


@overridable("SEMEL_TEST_MINISTACK_URL")
def ministack() -> Iterator[str]:
    """DynamoDB, SQS and S3, in memory: `http://127.0.0.1:PORT`."""
    if find_spec("ministack") is None:
        raise Unavailable("ministack: pip install ministack")
    with folder() as place:
        server = Server(
            place,
            lambda _: [sys.executable, "-I", "-c", WITHOUT_REAPER],
            lambda port: answers(f"http://{HOST}:{port}/_ministack/health"),
            env=settings,
            signal=SIGKILL,  # asked politely, it waits for idle connections
        )
        with serving(server) as port:
            yield f"http://{HOST}:{port}"


def settings(port: int) -> dict[str, str]:
    return {
        "BIND_HOST": HOST,
        "GATEWAY_PORT": str(port),
        "SERVICES": "dynamodb,sqs,s3",
        "LOG_LEVEL": "ERROR",
        # These two listen on every interface, whatever BIND_HOST says.
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
    }


@overridable("SEMEL_TEST_SQS_URL")
def sqs() -> Iterator[str]:
    """SQS, by ministack: `http://127.0.0.1:PORT`."""
    with ministack() as url:
        yield url


def answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        direct.open(url, timeout=5).close()
    except urllib.error.HTTPError as error:  # an answer, even if it dislikes the question
        error.close()
    except OSError:
        return False
    return True
