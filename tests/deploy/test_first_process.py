"""As the first process of a container, a command ends when it is asked to."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.absence import served
from tests.servers.running import IMPORTS, PATIENCE_SECONDS, Unavailable, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces")


@contextlib.contextmanager
def namespace() -> Iterator[list[str]]:
    """What runs a command as the first process of a namespace, as a container has one."""
    command = ["unshare", "--pid", "--fork", "--kill-child"]
    command += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], check=False).returncode:
        raise Unavailable("namespaces: this machine lets nobody make one")
    yield command


def child(process: int) -> int | None:
    """The only child of a process."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(found[0]) if found else None


def opened_by_reader(pipe: Path) -> int | None:
    """The writing end of a pipe, once somebody reads it."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


@pytest.mark.parametrize("command", ["serve", "work", "provision"])
def test_it_ends_by_sigterm_before_it_has_begun(tmp_path: Path, command: str) -> None:
    """The kernel gives a namespace's first process no signal that it has not asked for."""
    pipe = tmp_path / "semel.toml"
    os.mkfifo(pipe)  # which is read until it ends, and so it has not begun
    ends: list[int] = []
    words = [sys.executable, "-m", "semel.cli", command, "--config", str(pipe)]
    with served(namespace, required=False) as apart:
        process = subprocess.Popen(
            [*apart, *words],
            env={"PATH": os.defpath, "PYTHONPATH": IMPORTS},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
        )
    try:

        def reads() -> bool:
            end = opened_by_reader(pipe)
            ends.extend([] if end is None else [end])
            return bool(ends)

        assert until(reads, still=lambda: process.poll() is None)
        first = child(process.pid)
        assert first is not None
        os.kill(first, signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        for end in ends:
            os.close(end)
