"""The service as processes: it starts, is raced, loses answers, is killed, and stops in order."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import semel
from semel.cli import main
from semel.core.commands import Update
from semel.core.lifecycle import Status
from semel.service import logs
from semel.tables import LEDGER
from semel.testing import FaultProxy
from tests.amounts import amount
from tests.apps.kit import Place, Service, Work, found, place
from tests.servers.running import HOST, IMPORTS, until
from tests.service.kit import ALL_TOKENS, TOKENS, bearer

__all__ = ["place"]  # the fixture


class Echo(Service):
    """The service, with the app of the tests in it."""

    module = "tests.service.launch"


class EchoWork(Work):
    """Its workers alone."""

    module = "tests.service.launch"


def effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return file.read_text().splitlines() if file.exists() else []


def post(service: Service, path: str, body: Any, who: str = "north") -> httpx.Response:
    return httpx.post(service.url + path, json=body, headers=bearer(who), timeout=30, trust_env=False)


def test_workers_alone_are_watched_on_a_port_of_their_own(tmp_path: Path) -> None:
    text = f"{ALL_TOKENS}\n[semel]\nurl = 'sqlite:///semel.db'\n[apps.echo]\nfolder = '{tmp_path}'"
    with EchoWork(tmp_path, text, {}, "--port", "0") as work:
        [address] = re.findall(r"health and metrics at (\S+)", work.log)
        with httpx.Client(base_url=address, trust_env=False, timeout=30) as client:
            assert client.get("/health/ready").json() == {"status": "ready", "apps": ["echo"]}
            told = client.get("/metrics", headers=bearer("chief")).text
        assert 'semel_inbox_dead{app="echo"} 0.0' in told


# Several processes are one


def children(process: int) -> list[int]:
    """The processes that this one has started."""
    found = [task.read_text().split() for task in Path(f"/proc/{process}/task").glob("*/children")]
    return [int(child) for each in found for child in each]


def is_there(process: int) -> bool:
    """Whether it runs; one that has ended and that its parent has not asked about does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists processes in /proc")


@on_linux
def test_a_worker_process_that_is_killed_is_started_again(tmp_path: Path) -> None:
    text = f"{ALL_TOKENS}\n[semel]\nurl = 'sqlite:///semel.db'\n[apps.echo]\nfolder = '{tmp_path}'"
    with Echo(tmp_path, text, {}, "--workers", "0") as service:
        with EchoWork(tmp_path, text, {}, "--processes", "2") as work:
            assert until(lambda: work.log.count("working for echo") == 2)
            [first] = children(work.pid)
            os.kill(first, signal.SIGKILL)
            assert until(lambda: work.log.count("working for echo") == 3)
            [second] = children(work.pid)
            post(service, "/webhooks/echo", ["a", "b"])
            assert until(lambda: {"done a", "done b"} <= set(effects(tmp_path)))
        assert not is_there(second)
    assert f"process {first} ended with exit code -9" in work.log


@on_linux
def test_worker_processes_end_when_the_first_is_killed(tmp_path: Path) -> None:
    text = f"{ALL_TOKENS}\n[semel]\nurl = 'sqlite:///semel.db'\n[apps.echo]\nfolder = '{tmp_path}'"
    with EchoWork(tmp_path, text, {}, "--processes", "2") as work:
        assert until(lambda: work.log.count("working for echo") == 2)
        [other] = children(work.pid)
        work.kill()
        assert until(lambda: not is_there(other))


@on_linux
def test_a_worker_process_for_each_processor_is_bound_to_it(tmp_path: Path) -> None:
    text = f"{ALL_TOKENS}\n[semel]\nurl = 'sqlite:///semel.db'\n[apps.echo]\nfolder = '{tmp_path}'"
    processors = os.sched_getaffinity(0)
    with EchoWork(tmp_path, text, {}, "--processes", str(len(processors))) as work:
        assert until(lambda: work.log.count("working for echo") == len(processors))
        bound = [os.sched_getaffinity(process) for process in [work.pid, *children(work.pid)]]
    assert sorted(map(sorted, bound)) == [[processor] for processor in sorted(processors)]


def test_two_processes_on_one_store_have_one_winner(place: Place, tmp_path: Path) -> None:
    """Claims, marks and charges, each asked of both at once."""
    text = place.toml() + ALL_TOKENS
    with ExitStack() as stack:
        services = [stack.enter_context(Service(tmp_path, text, place.environ)) for _ in range(2)]
        pool = stack.enter_context(ThreadPoolExecutor(8))
        clients = [
            stack.enter_context(
                httpx.Client(base_url=one.url, headers=bearer("north"), trust_env=False, timeout=30)
            )
            for one in services
        ]

        def race(path: str, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
            asks = [pool.submit(clients[at % 2].post, path, json=body) for at, body in enumerate(bodies)]
            return [ask.result() for ask in asks]

        for number in range(5):
            claims = race(
                "/v1/claims", [{"key": f"k{number}", "token": f"token-{at:016}"} for at in range(8)]
            )
            assert sorted(one.status_code for one in claims) == [201] + [409] * 7
            marks = race("/v1/check-and-set", [{"key": f"m{number}"}] * 8)
            assert sorted(one.json()["new"] for one in marks) == [False] * 7 + [True]
        charges = race(
            "/v1/counters/charge", [{"counter": "c", "cap": 3, "token": f"t{n}"} for n in range(8)]
        )
        assert sorted(one.status_code for one in charges) == [200] * 3 + [409] * 5


def test_a_client_that_loses_every_first_answer_still_does_all_of_it_once(tmp_path: Path) -> None:
    """The service does as asked, its answer never comes, and the client sends the same again."""
    place = Place("sqlite", tmp_path)
    with Service(tmp_path, place.toml() + ALL_TOKENS) as service, FaultProxy.before(service.url) as proxy:
        lossy = proxy.url(service.url)

        def ask(path: str, **body: Any) -> httpx.Response:
            proxy.drop_answers(1)
            with pytest.raises(httpx.TransportError):
                httpx.post(lossy + path, json=body, headers=bearer("north"), trust_env=False, timeout=30)
            proxy.heal()
            return httpx.post(lossy + path, json=body, headers=bearer("north"), trust_env=False, timeout=30)

        claimed = ask("/v1/claims", key="k", token="token-of-mine-0001")
        assert (claimed.status_code, claimed.json()["attempt"]) == (201, 1)
        claim = claimed.json()["claim"]
        assert ask("/v1/claims/renew", claim=claim).status_code == 200
        assert ask("/v1/claims/complete", claim=claim, result=[1]).status_code == 200
        assert ask("/v1/claims", key="k", token="token-of-mine-0002").json()["result"] == [1]
        assert ask("/v1/check-and-set", key="m", token="token-of-mine-0003").json() == {"new": True}
        charge = ask("/v1/counters/charge", counter="c", cap=1, token="t").json()["charge"]
        assert ask("/v1/counters/refund", charge=charge).json() == {"refunded": True}
        look = httpx.get(
            f"{service.url}/v1/counters?counter=c", headers=bearer("north"), trust_env=False, timeout=30
        ).json()
        assert look["used"] == 0


# Webhooks and workers


@pytest.mark.proof("restarts", 1)
@pytest.mark.parametrize("time", range(amount(1, 1, 10)))
def test_what_was_accepted_is_worked_on_once_though_the_worker_is_killed(
    place: Place, tmp_path: Path, time: int
) -> None:
    # One at a time, so that nothing else is under way when it is killed; and no lease ends by itself.
    inbox = place.toml("echo", lease=600, workers=1)
    text = inbox + f'[apps.echo]\nfolder = "{tmp_path}"\n' + ALL_TOKENS
    names = [f"n{number}" for number in range(12)]
    with Echo(tmp_path, text, place.environ) as service:
        accepted = post(service, "/webhooks/echo", [*names, "slow"])
        assert accepted.json() == {"accepted": 13}
        assert until(lambda: "begun slow" in effects(tmp_path))
        service.kill()
        with place.connect("echo") as s:
            lapse(s)
        (tmp_path / "go").touch()
        service.restart()
        post(service, "/webhooks/echo", [*names[:3], "slow"])  # delivered again
        assert until(lambda: {f"done {name}" for name in [*names, "slow"]} <= set(effects(tmp_path)))
        assert until(lambda: waiting(service) == 0)
    done = [line for line in effects(tmp_path) if line.startswith("done")]
    assert sorted(done) == sorted(f"done {name}" for name in [*names, "slow"])


def lapse(s: semel.Semel) -> None:
    """End the leases of all that is under way, as their time would."""
    for record in s.ledger.list(status=Status.IN_PROGRESS).records:
        s.store.execute(Update(LEDGER, record.id, {"lease_until": record.created_at}))


def waiting(service: Service) -> float:
    text = httpx.get(service.url + "/metrics", headers=bearer("chief"), trust_env=False, timeout=30).text
    [line] = [line for line in text.splitlines() if line.startswith('semel_inbox_waiting{app="echo"}')]
    return float(line.split()[1])


def test_a_stop_finishes_what_runs_and_leaves_the_rest(tmp_path: Path) -> None:
    text = f'[service]\nworkers = 1\n[apps.echo]\nfolder = "{tmp_path}"\n' + ALL_TOKENS
    service = Echo(tmp_path, text).start()
    post(service, "/webhooks/echo", ["slow1"])
    assert until(lambda: effects(tmp_path) == ["begun slow1"])
    post(service, "/webhooks/echo", ["n1", "n2"])
    os.kill(service.pid, signal.SIGTERM)
    assert until(lambda: not listens(service.port))
    assert service.is_running()
    (tmp_path / "go").touch()
    service.stop()
    assert effects(tmp_path) == ["begun slow1", "done slow1"]
    with service:
        assert until(lambda: len(effects(tmp_path)) == 6)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def test_a_request_under_way_is_answered_before_the_service_stops(tmp_path: Path) -> None:
    with Service(tmp_path, ALL_TOKENS) as service, ThreadPoolExecutor(1) as pool:
        assert post(service, "/v1/claims", {"key": "k", "lease": 600}).status_code == 201
        waits = pool.submit(post, service, "/v1/wait", {"key": "k", "timeout": 30})
        with httpx.Client(
            base_url=service.url, headers=bearer("chief"), trust_env=False, timeout=30
        ) as chief:
            assert until(lambda: "semel_http_in_flight 2.0" in chief.get("/metrics").text)
        os.kill(service.pid, signal.SIGINT)  # Ctrl-C is a stop too
        assert until(lambda: not listens(service.port))
        with semel.connect(f"sqlite:///{tmp_path / 'semel.db'}", scope="north") as s:
            lapse(s)
        service.stop()
        assert waits.result().status_code == 200
    assert "Traceback" not in service.log


def test_workers_alone_work_and_a_service_may_have_none(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path)
    text = place.toml("echo") + f'[apps.echo]\nfolder = "{tmp_path}"\n' + ALL_TOKENS
    with Echo(tmp_path, text, place.environ, "--workers", "0") as service:
        post(service, "/webhooks/echo", ["a", "b"])
        assert waiting(service) == 2
        with EchoWork(tmp_path, text, place.environ) as work:
            assert until(lambda: {"done a", "done b"} <= set(effects(tmp_path)))
        assert "working for echo" in work.log
        assert "working for" not in service.log


# What is written


def test_neither_logs_nor_files_have_what_nobody_should_read(tmp_path: Path) -> None:
    planted = {
        "the query": "planted-query",
        "a key": "planted-key",
        "a payload": "planted-payload",
        "a result": "planted-result",
        "a header": "planted-header",
        "a webhook": "planted-name@example.com",
        "an exception": "planted-in-an-exception@example.com",
        **{f"the token of {name}": token for name, token in TOKENS.items()},
    }
    text = f'[apps.echo]\nfolder = "{tmp_path / "elsewhere"}"\n' + ALL_TOKENS
    (tmp_path / "elsewhere").mkdir()
    with Echo(tmp_path, text) as service:
        headers = bearer("north") | {"X-Planted": "planted-header"}
        with httpx.Client(base_url=service.url, headers=headers, trust_env=False, timeout=30) as client:
            body = {"key": "planted-key", "payload": "planted-payload"}
            claim = client.post("/v1/claims?x=planted-query", json=body).json()["claim"]
            client.post("/v1/claims/complete", json={"claim": claim, "result": "planted-result"})
            client.get("/v1/records?key=planted-key")
            client.post("/v1/claims/complete", json={"claim": claim, "result": "planted-result 2"})
            assert client.post("/webhooks/echo", json=["!"]).status_code == 500
            client.post("/webhooks/echo", json=["bad planted-name@example.com"])
            assert until((tmp_path / "elsewhere" / "effects").exists)
            assert until(lambda: "semel.events" in service.log)
    lines = [json.loads(line) for line in service.log.splitlines() if line.startswith("{")]
    assert {"semel.access", "semel.events", "semel.service"} <= {line["logger"] for line in lines}
    assert any(line.get("trace") for line in lines)
    assert found(planted, {"the log": service.log}) == []
    # A key is what it is: whoever puts a person into one says hide_key, or hashes it.
    files = {file.name: file.read_bytes() for file in tmp_path.glob("semel.db*")}
    assert len(files) >= 2
    assert {what for what, _ in found(planted, files)} <= {"a key", "a webhook"}


# What cannot begin


STARTED = """
import gc, sys
from semel.apps.configuration import gather
from semel.redact.numbers import numbering_plans
from semel.service.run import begin, tune_interpreter

runtime = begin(gather(sys.argv[1], {}))
loaded = len(gc.get_objects())
tune_interpreter()
print(numbering_plans.cache_info().currsize, len(gc.get_objects()) < loaded / 100, sys.getswitchinterval())
runtime.close()
"""


def test_what_takes_long_is_over_before_the_first_request(tmp_path: Path) -> None:
    """Numbering plans are read, and what was loaded is left out of garbage collections."""
    settings = tmp_path / "semel.toml"
    settings.write_text(f"[semel]\nurl = 'sqlite:///{tmp_path}/semel.db'")
    program = [sys.executable, "-c", STARTED, str(settings)]
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True", "0.001"], done.stderr


def test_a_start_that_fails_is_one_line_and_a_code(tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text("[service]\nprot = 8000")
    done = subprocess.run(
        [sys.executable, "-m", "semel.cli", "serve"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": IMPORTS},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = "semel: service.prot in semel.toml: there is no such setting; did you mean port?\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


@pytest.mark.parametrize(
    ("command", "text", "code", "message"),
    [
        ("serve", "[service]\nport = 'x'", 2, "service.port in semel.toml: Expected `int`, got `str`"),
        ("serve", "[tokens.x]", 2, "tokens.x in semel.toml: it has either a token or the sha256 of one"),
        ("serve", "[semel]\nurl = 'sqlite:///nowhere/x.db'", 1, "cannot be made: there is no folder"),
        ("serve", "[semel]\nurl = 'oracle://'", 2, "'oracle://' names no store"),
        (
            "serve",
            "[service]\nhost = 'nowhere.invalid'",
            2,
            "service.host in semel.toml: 'nowhere.invalid' is no",
        ),
        ("serve --app x", "", 2, "--app x: there is no such app"),
        ("work", "", 2, "there is nothing to work on"),
        (
            "work --port 0 --processes 2",
            "[apps.support]\nwebhook_token = 'token-of-richpanel'",
            2,
            "2 processes cannot share port 0",
        ),
        ("serve --config x.toml", "", 2, "x.toml cannot be read: No such file"),
    ],
)
def test_what_stands_in_the_way_of_a_start_is_told(
    command: str,
    text: str,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before it finds that its port is taken, which may be by the one that it is to follow."""
    (tmp_path / "semel.toml").write_text(text)
    with closing(socket.create_server((HOST, 0))) as taken:
        if command == "serve" and "port" not in text:
            command = f"serve --port {taken.getsockname()[1]}"
        assert left(command, tmp_path, monkeypatch) == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("semel: ")
    assert message in line


def left(command: str, folder: Path, patch: pytest.MonkeyPatch) -> int:
    """The code that a command leaves with, in this process."""
    patch.chdir(folder)
    patch.setattr(sys, "argv", ["semel", *command.split()])
    patch.setattr(logs, "set_up", lambda *_: None)
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_a_port_that_is_taken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(socket.create_server((HOST, 0))) as taken:
        port = taken.getsockname()[1]
        assert left(f"serve --port {port}", tmp_path, monkeypatch) == 1
    told = f"semel: 127.0.0.1:{port} cannot be listened on: Address already in use\n"
    assert capsys.readouterr().err == told


# What means no good


def test_a_head_that_is_too_large_is_refused_and_a_large_body_is_not(tmp_path: Path) -> None:
    with Service(tmp_path, ALL_TOKENS) as service:
        head = b"GET /health/live HTTP/1.1\r\nX-Long: " + b"x" * 100_000 + b"\r\n\r\n"
        for size in (8192, len(head)):
            with socket.create_connection((HOST, service.port)) as connection:
                answered = bytearray()
                with suppress(ConnectionError):
                    for at in range(0, len(head), size):
                        connection.sendall(head[at : at + size])
                    while piece := connection.recv(65536):
                        answered += piece
                assert not answered or b"400 Bad Request" in answered
        body = {"key": "k", "payload": "x" * 500_000}
        assert post(service, "/v1/claims", body).status_code == 201
