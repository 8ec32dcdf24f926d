"""What a newcomer types: in an empty folder, with the built wheel and what the page installs, no more.

The README, the front page, the tutorial and the examples are typed from their first line to their last. Of a
how-to page it is what it begins with, all of its Python, and its commands of `semel`.
"""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

import semel
from semel.doors.inbox import open_inbox
from tests.acceptance import test_pages_typed as desks
from tests.acceptance.desk import APPS, SECRET, Desk, Said, own_dynamodb  # noqa: F401
from tests.acceptance.test_distribution import ROOT, UV, build
from tests.acceptance.test_pages_typed import another_dynamodb, desk  # noqa: F401
from tests.pages import Block, blocks
from tests.places import CREDENTIALS
from tests.reading import SERVES, Reader, typed
from tests.unit.test_docs import SERVED, broker, payments, pubsub, queues, rabbit  # noqa: F401

README, HOW_TO, EXAMPLES = "README.md", "docs/how-to/", "examples/"
PROGRAM = ROOT / "tests" / "pages.py"
# These few are typed in every run, and the rest by `make slow`.
EVERYDAY = {
    README,
    "docs/index.md",
    "docs/tutorial/first-steps.md",
    "docs/tutorial/first-api.md",
    "docs/how-to/protect-a-webhook-handler.md",
    "examples/agent_tools/README.md",
}

# What is never typed here, and why; everything else on the pages is.
UNTYPED = {
    "aws": "it changes an account of AWS; the tests' queues and tables are made without it",
    "sam": "it deploys to an account of AWS",
    "rabbitmqadmin": "it is of RabbitMQ's own; the tests declare the same queues",
    "rabbitmq-plugins": "it is of RabbitMQ's own; the tests' broker has the plugin",
    "sqlite3": "tests/acceptance/test_backups.py types it, beside a database with something in it",
    "umask": "it goes with the one before",
    'curl "https://api.telegram.org': "it is answered by Telegram alone",
    "make": "it is for a copy of the repository, which test_run.py and everybody's `make test` have",
    "gcloud": "it changes an account of Google; the tests' stand-in has the same subscription",
    "docker": "there is no container engine; tests/deploy carries out the Dockerfile's commands",
    "kubectl": "there is no cluster; tests/deploy holds the manifests against their schemas",
    "ls": "it shows what the reader has put there",
}
# On which pages. A page that has none of these any more, or has another one, is told here too.
NOT_ALL_TYPED = {
    README: {"make"},
    "docs/how-to/back-up-and-restore.md": {"sqlite3", "umask"},
    "docs/how-to/deploy-an-app.md": {"aws"},
    "docs/how-to/handle-amqp-messages.md": {"rabbitmq-plugins", "rabbitmqadmin"},
    "docs/how-to/handle-pubsub-messages.md": {"gcloud"},
    "docs/how-to/handle-rabbitmq-messages.md": {"rabbitmqadmin"},
    "docs/how-to/handle-sqs-messages.md": {"aws"},
    "docs/how-to/run-in-containers.md": {"docker"},
    "docs/how-to/run-on-kubernetes.md": {"kubectl", "ls"},
    "docs/how-to/run-household.md": {'curl "https://api.telegram.org'},
    "examples/lambda_sqs/README.md": {"sam"},
}
# What a page names that only its reader has, and the fixture that gives an address in its place.
PLACES = {
    "examples/celery_tasks/README.md": {"redis://localhost:6379": "redis_server"},
    "examples/django_invoices/README.md": {"postgresql://user@localhost/shop": "empty_database"},
}
# Pages on AWS that name no server, since that is in the environment there too.
ON_AWS = {"examples/lambda_sqs/README.md"}


def every_page() -> list[str]:
    """The pages that have something to type."""
    found = [ROOT / README, ROOT / "docs" / "index.md"]
    for pattern in ("docs/tutorial/*.md", f"{HOW_TO}*.md", f"{EXAMPLES}**/README.md"):
        found += sorted(ROOT.glob(pattern))
    return [page.relative_to(ROOT).as_posix() for page in found]


def beginning(page: str) -> list[Block]:
    """What is read of a page: all of it, or of a how-to what it begins with, up to the first code."""
    found = [prompted(block) for block in blocks(ROOT / page)]
    if not page.startswith(HOW_TO):
        return found
    # What is saved is started before it is asked something.
    last = next((at for at, block in enumerate(found) if at and not sets_up(block)), len(found))
    return found[: last + 1]


def sets_up(block: Block) -> bool:
    """Whether a block is a file, or starts what the page goes on with."""
    starts = any(SERVES.match(one.command) for one in typed(block.text, block.line))
    return bool(block.file) or starts or block.language not in ("console", "python")


def prompted(block: Block) -> Block:
    """A block of commands with its prompts, which the README goes without so that it can be pasted whole."""
    if block.language != "console" or block.text.startswith("$ "):
        return block
    return block._replace(text="".join(f"$ {line}\n" for line in block.text.splitlines()))


def commands(page: str) -> list[str]:
    found = [block for block in beginning(page) if block.language == "console"]
    return [one.command for block in found for one in typed(block.text, block.line)]


def untyped(command: str) -> str:
    """What of the list a command begins with, or nothing."""
    return next((name for name in UNTYPED if command.startswith((f"{name} ", f"{name}/"))), "")


# The environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"))[0]


@pytest.fixture(scope="module")
def environments(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The programs of an environment in which nothing is installed but a `pip` that knows the wheel."""
    made: dict[tuple[str, ...], Path] = {}

    def programs(page: str) -> Path:
        # Pages that install the same share what they install.
        installs = tuple(one for one in commands(page) if one.startswith("pip install "))
        if installs not in made:
            made[installs] = empty(tmp_path_factory.mktemp("venv"), wheel)
        return made[installs]

    return programs


def empty(folder: Path, wheel: Path) -> Path:
    """An environment with a `pip` that finds semel where it was built, and all else in pinned versions."""
    subprocess.run([UV, "--quiet", "venv", "--clear", "--python", sys.executable, folder], check=True)
    here = folder / "semel.txt"
    here.write_text(f"semel @ {wheel.as_uri()}\n")
    words = [UV, "--quiet", "pip", "install", "--python", folder / "bin" / "python"]
    words += ["--constraints", ROOT / "constraints.txt", "--constraints", here]
    install = shlex.join(map(str, words))
    pip = folder / "bin" / "pip"
    # On the network only where what was downloaded before is not enough. A reader's home is empty.
    home = f"export HOME={shlex.quote(str(Path.home()))}; shift"
    pip.write_text(f'#!/bin/sh\n{home}\n{install} --offline "$@" 2>/dev/null || exec {install} "$@"\n')
    pip.chmod(0o755)
    return pip.parent


def variables() -> dict[str, str]:
    """What a page's servers are known by, and how packages are found; nothing of this repository."""
    kept = ("AWS_", "AMQP_", "UV_", "SSL_")
    return {name: value for name, value in os.environ.items() if name.startswith(kept)}


def run(*command: str | Path, folder: Path) -> str:
    """What a program prints that knows nothing of this folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The pages


@pytest.fixture
def empty_database(postgres: str) -> Iterator[str]:
    """A database of its own, as a newcomer would make one."""
    import psycopg

    name = f"newcomer_{uuid.uuid4().hex[:8]}"
    with closing(psycopg.connect(postgres, autocommit=True)) as server:
        server.execute(f"CREATE DATABASE {name}")
        yield urlunsplit(urlsplit(postgres)._replace(path=f"/{name}"))
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def on_aws(own_dynamodb: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811 - a fixture
    """An account of AWS with nothing in it."""
    for variable, value in ({"AWS_ENDPOINT_URL_DYNAMODB": own_dynamodb} | CREDENTIALS).items():
        monkeypatch.setenv(variable, value)


def prepare(page: str, request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Have the servers of a page ready; what it calls them, and where they are."""
    served = SERVED.get(page.removeprefix("docs/"))
    if served and served != "django_database":  # which is for pages that share a process
        request.getfixturevalue(served)
    if page in ON_AWS:
        request.getfixturevalue("on_aws")
    return {named: request.getfixturevalue(fixture) for named, fixture in PLACES.get(page, {}).items()}


def marked(page: str) -> object:
    return page if page in EVERYDAY else pytest.param(page, marks=pytest.mark.slow)


@pytest.mark.parametrize("page", [marked(page) for page in every_page()])
def test_a_newcomer_sees_what_the_page_says(
    page: str, environments: Callable[[str], Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    places = prepare(page, request)
    if page.startswith(EXAMPLES):
        made = shutil.ignore_patterns("__pycache__", "conftest.py")  # which is for servers of the tests
        shutil.copytree((ROOT / page).parent, tmp_path, dirs_exist_ok=True, ignore=made)
    with ExitStack() as stack:
        reader = Reader(
            tmp_path,
            stack,
            programs=environments(page),
            passes_over=lambda command: passed_over(page, command),
            variables=variables(),
            places=places,
        )
        for block in beginning(page):
            reader.read(block)
        if any(block.language == "python" for block in blocks(ROOT / page)):
            examples(page, environments(page), tmp_path)


def passed_over(page: str, command: str) -> bool:
    """Whether a command is not typed with the page: never, or by the test below."""
    return bool(untyped(command)) or (page.startswith(HOW_TO) and command.startswith("semel "))


def examples(page: str, programs: Path, folder: Path) -> None:
    """Run a page's Python, in order, as one program."""
    run(programs / "python", "-I", PROGRAM, ROOT / page, folder=folder)


def test_the_five_lines_of_the_readme_are_a_program(
    environments: Callable[[str], Path], tmp_path: Path
) -> None:
    programs = environments(README)
    [install] = [one for one in commands(README) if one.startswith("pip ")]
    subprocess.run([programs / "pip", *shlex.split(install)[1:]], check=True)
    code = "".join(block.text for block in blocks(ROOT / README) if block.language == "python")
    (tmp_path / "shop.py").write_text(f"{code}\nprint(semel.__file__)\n")
    for _ in range(2):
        out = run(programs / "python", "shop.py", folder=tmp_path)
        *said, place = out.splitlines()
        assert said[:2] == ["{'charged': 4200}"] * 2
        assert "first used with another payload" in said[2]
        assert Path(place).is_relative_to(programs.parent)


@pytest.mark.slow
def test_the_contract_of_a_store_needs_pytest_and_the_wheel_alone(
    environments: Callable[[str], Path], tmp_path: Path
) -> None:
    page = f"{HOW_TO}write-a-store.md"
    programs = environments(page)
    [install] = commands(page)
    run(programs / "pip", *shlex.split(install)[1:], folder=tmp_path)
    code = [block.text for block in blocks(ROOT / page) if block.language == "python"]
    [contract] = [text for text in code if "StoreConformance" in text]
    (tmp_path / "dict_store.py").write_text("".join(code[: code.index(contract)]))
    (tmp_path / "test_dict_store.py").write_text(f"from dict_store import DictStore\n{contract}")
    assert " passed" in run(programs / "pytest", "-q", "test_dict_store.py", folder=tmp_path)


SERVER = re.compile(r"(?:postgresql|redis)://[^\s\"]+\.example[^\s\"]*")


@pytest.fixture
def empty_redis(redis_server: str) -> str:
    """A database that nobody else here uses."""
    return f"{redis_server}/9"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "fixture"),
    [("postgresql", "empty_database"), ("redis", "empty_redis"), ("dynamodb", "on_aws")],
)
def test_the_first_code_of_a_stores_page_works_on_a_server(
    store: str,
    fixture: str,
    environments: Callable[[str], Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    page, url = f"{HOW_TO}use-{store}.md", request.getfixturevalue(fixture)
    programs = environments(page)
    for command in commands(page):
        placed = shlex.split(SERVER.sub(url or "", command))
        run(programs / placed[0], *placed[1:], folder=tmp_path)
    code = next(block.text for block in blocks(ROOT / page) if block.language == "python")
    called = 'print(charge("o-1"), s.ledger.get("charge:o-1").attempt)\ns.close()\n'
    (tmp_path / "shop.py").write_text(SERVER.sub(url or "", code) + called)
    for _ in range(2):
        assert run(programs / "python", "shop.py", folder=tmp_path) == "charged 1\n"


# The commands of the how-to pages


def by_wheel(folder: Path, programs: Path) -> Callable[..., Said]:
    """Type commands of the wheel's `semel` where they would have been called in this process."""

    def run(*words: str) -> Said:
        typed_in = sys.stdin.getvalue() if isinstance(sys.stdin, io.StringIO) else ""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [programs / "semel", *words],
            cwd=folder,
            env=environment,
            input=typed_in,
            capture_output=True,
            text=True,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return run


def own_program(desk: Desk, patch: pytest.MonkeyPatch) -> None:  # noqa: F811 - a fixture elsewhere
    """Have a program of the reader's own in place of the service, and its store in the environment."""

    @contextmanager
    def running() -> Iterator[Any]:
        with semel.connect(desk.url, env="prod", secret=SECRET.encode()) as s:
            apps = [SimpleNamespace(name=name, s=s.scoped(name), inbox=open_inbox(s, name)) for name in APPS]
            yield SimpleNamespace(s=s, apps=apps)

    patch.setattr(desk, "runtime", running)
    (desk.folder / "semel.toml").unlink()
    (desk.folder / "semel.db.key").unlink(missing_ok=True)
    patch.setenv("SEMEL_URL", desk.url)
    patch.setenv("SEMEL_ENV", "prod")


@pytest.mark.slow
@pytest.mark.parametrize("page", desks.PAGES)
def test_the_commands_of_a_page_need_no_more_than_it_installs(
    page: str,
    desk: Desk,  # noqa: F811 - a fixture
    environments: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    programs = environments(f"{HOW_TO}{page}")
    [install] = [one for one in commands(f"{HOW_TO}{page}") if one.startswith("pip install ")]
    subprocess.run([programs / "pip", *shlex.split(install)[1:]], check=True)
    if "service" not in install:
        own_program(desk, monkeypatch)
    desks.prepare(page, desk, monkeypatch)
    monkeypatch.setattr(desk, "run", by_wheel(desk.folder, programs))
    desks.type_all(page, desk, monkeypatch, request)


# The lists


def test_the_list_of_what_is_not_typed_is_that_of_the_pages() -> None:
    found = {page: {untyped(one) for one in commands(page)} - {""} for page in every_page()}
    assert {page: names for page, names in found.items() if names} == NOT_ALL_TYPED


def test_every_page_that_a_list_names_is_there() -> None:
    named = {*EVERYDAY, *NOT_ALL_TYPED, *PLACES, *ON_AWS, *(f"docs/{page}" for page in SERVED)}
    assert named <= set(every_page())
    assert set[str]().union(*NOT_ALL_TYPED.values()) == UNTYPED.keys()


def test_every_page_begins_with_what_it_installs() -> None:
    for page in every_page():
        assert re.match(r"pip install (?:\S|\"semel)", commands(page)[0]), page
