"""Every command of the how-to pages, typed as the page has it: beside a `semel.toml`, on SQLite and DynamoDB.

Before a page's commands are typed, what it speaks of is put into the store. Where a page names a server of
its own, such as db.example, one of the tests' is put in its place.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from starlette.testclient import TestClient

import semel
from semel.connect import Semel
from semel.dashboard import dashboard
from semel.state.mailbox import Message
from tests.acceptance import on_call
from tests.acceptance.desk import SECRET, Desk, lasting, open_desk, own_dynamodb  # noqa: F401
from tests.pages import blocks
from tests.servers.absence import served
from tests.servers.dynamodb import dynoxide, ministack
from tests.servers.running import PATIENCE_SECONDS
from tests.service.test_pages import commands

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
EXAMPLES = Path(__file__).parents[2] / "examples"

# What a page names that only its reader has.
ELSEWHERE = {
    "postgresql://owner:password@db.example/shop": "postgres",
    "redis://:password@cache.example": "redis_server",
    '"$DATABASE_URL"': "postgres",
}
# Pages that are about a folder which the examples have.
IN_EXAMPLES = {"write-your-own-app.md": "order_notices"}
# What keeps running: it is started, and stopped when it says that it runs.
RUNNING = ("serve", "work")
# What is another at every run, and what stands for it.
VARYING = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "MOMENT"),
    (r"\b\d[\d.,]* (ms|s|min|h|d|MB)\b( \d+ (s|min|h)\b)?", "SPAN"),
    (r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "ULID"),
)
# Which of a page's commands leave with 1, as they find what the page says that they find.
FINDS = {
    ("provision.md", "semel provision --url dynamodb://eu-west-1 --env prod --check"),
    ("use-redis.md", "semel provision --url redis://:password@cache.example --env prod --check"),
    # Nothing was restored here; tests/acceptance/test_backups.py does it.
    ("back-up-and-restore.md", "semel provision --check --url sqlite:///semel.db --env prod"),
    ("back-up-and-restore.md", 'semel provision --check --url "$DATABASE_URL" --env prod'),
    # The applications have unresolved records, which it counts and does not list.
    ("operate-from-a-terminal.md", "semel stuck --scan"),
    ("operate-from-a-terminal.md", "semel stuck --json"),
}


class Typed(NamedTuple):
    """A command of a page, and what the page says that it prints."""

    page: str
    line: str
    said: str

    @property
    def on_dynamodb(self) -> bool:
        return "dynamodb://" in self.line and "--print" not in self.line

    @property
    def keeps_running(self) -> bool:
        return self.line.split()[1] in RUNNING


def typed() -> list[Typed]:
    """Every command of the pages, once for each page."""
    found = [
        Typed(page.name, line, said)
        for page in sorted(HOW_TO.glob("*.md"))
        for block in blocks(page)
        if block.language == "console"
        for line, said in commands(block)
        if line.startswith("semel ")
    ]
    return list(dict.fromkeys(found))


EVERY = typed()
PAGES = sorted({one.page for one in EVERY})


@pytest.fixture(params=["sqlite", "dynamodb"])
def desk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = open_desk(request.param, request)
    if request.param == "dynamodb":
        # As the pages have it: without an endpoint in the URL.
        server = request.getfixturevalue("own_dynamodb")
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", server)
        desk.url = "dynamodb://us-east-1"
    desk.env = "prod"
    (desk.folder / "secret").write_text(SECRET)
    desk.settle()
    assert desk.run("provision").code == 0
    monkeypatch.setenv("STORE", desk.url)
    monkeypatch.setenv("OLD", desk.url)
    for name in ("TARGET", "NEW"):
        monkeypatch.setenv(name, f"sqlite:///{desk.folder / name}.db")
    return desk


def put_there(desk: Desk) -> None:
    """What the pages speak of: attempts that vanished, a message that was put aside, a person."""
    with desk.runtime() as house:
        ledgers = {one.name: one.s for one in house.apps}
        for app, key in (
            ("quill", "ALOWARE:719285063"),
            ("quill", "ALOWARE:719285064"),
            ("household", "TELEGRAM:9001>send"),
            ("probe", "PRODUCE#5c1e0a56"),
            ("support", "act:rp_reply:c-1:m-1"),
        ):
            held(ledgers[app], key)
        held(house.s, "wire:o-3")
        house.s.mailbox("chats").put([Message("m-1", {"text": "hello"})])
        house.s.documents.put("conversation:2", {"city": "Lund"}, subject="ann@example.com")
        house.s.journal.append("conversation:2", {"did": "answered"}, subject="ann@example.com")
        claim = house.s.ledger.claim("answer:m-1", subject="ann@example.com")
        assert isinstance(claim, semel.Claimed)
        house.s.ledger.complete(claim, {"text": "Dear Ann, ..."})
    (desk.folder / "person.txt").write_text("ann@example.com\n")


def held(s: Semel, key: str) -> None:
    claim = s.ledger.claim(key)
    assert isinstance(claim, semel.Claimed)
    s.ledger.doubt(claim)


def type_in(desk: Desk, line: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """Type a line, with its redirections and variables."""
    words = shlex.split(os.path.expandvars(line), posix=True)
    target = ""
    if words[-2] == "<":
        monkeypatch.setattr(sys, "stdin", StringIO((desk.folder / words[-1]).read_text()))
        words = words[:-2]
    elif words[-2] == ">":
        words, target = words[:-2], words[-1]
    code, out, err = desk.run(*words[1:])
    if target:
        assert out, line
        (desk.folder / target).write_text(out)
    return code, out, err


def start(desk: Desk, line: str) -> None:
    """Start what keeps running, and stop it as soon as it runs."""
    environment = os.environ | {"SEMEL_SERVICE__PORT": "0", "PYTHONUNBUFFERED": "1"}
    words = [sys.executable, "-m", "semel", *shlex.split(line)[1:]]
    with subprocess.Popen(
        words, cwd=desk.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        told = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert told.startswith("semel: "), (line, told)
        assert process.wait(PATIENCE_SECONDS) == 0


@pytest.fixture
def another_dynamodb() -> Iterator[str]:
    """A server where nothing was made yet."""
    with served(dynoxide if shutil.which("npm") else ministack) as url:
        yield url


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_does_as_the_page_says(
    page: str, desk: Desk, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    prepare(page, desk, monkeypatch)
    type_all(page, desk, monkeypatch, request)


def prepare(page: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ready what a page speaks of."""
    if page in on_call.PAGES:
        on_call.prepare(desk, page, monkeypatch)
    else:
        put_there(desk)
    if page in IN_EXAMPLES:
        shutil.copytree(EXAMPLES / IN_EXAMPLES[page], desk.folder, dirs_exist_ok=True)
    key = desk.folder / "semel.db.key"
    monkeypatch.setenv("SEMEL_SECRET", key.read_text().strip() if key.exists() else SECRET)


def type_all(page: str, desk: Desk, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Type every command of a page that ends by itself."""
    for one in [one for one in EVERY if one.page == page and not one.keeps_running]:
        if one.on_dynamodb:
            if desk.url.startswith("sqlite:"):
                continue
            # It is about a program of the reader's own, in a folder without a service's settings.
            server = request.getfixturevalue("another_dynamodb")
            monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", server)
            if page not in IN_EXAMPLES:
                (desk.folder / "semel.toml").unlink(missing_ok=True)
        line = one.line
        for there, fixture in ELSEWHERE.items():
            if there in line:
                unique = "?schema=pages" if fixture == "postgres" else "?prefix=pages"
                line = line.replace(there, shlex.quote(request.getfixturevalue(fixture) + unique))
        code, out, err = type_in(desk, line, monkeypatch)
        assert "Traceback" not in err
        if (page, one.line) in FINDS:
            assert code in (0, 1), (one.line, out, err)
            continue
        assert code == 0, (one.line, out, err)
        pattern = ".*".join(re.escape(piece.strip()) for piece in plain(one.said).split("..."))
        assert re.search(pattern, plain(out), re.DOTALL), (one.line, out)


def plain(text: str) -> str:
    """A text without what columns are filled up with, in which any moment, span, size or id is as good."""
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text)
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("line", sorted({one.line for one in EVERY if one.keeps_running}))
def test_what_keeps_running_starts_and_stops_as_the_pages_say(line: str, desk: Desk) -> None:
    start(desk, line)


@pytest.mark.parametrize("kind", ["postgresql", "redis", "dynamodb"])
def test_the_page_shows_how_the_service_runs_on_each_store(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings and its commands, with a server of the tests' in place of the one that it names."""
    store = {"postgresql": "postgres"}.get(kind, kind)
    desk = open_desk(store, request)
    if kind == "redis":
        request.getfixturevalue("lasting")
    page = HOW_TO / "run-the-service.md"
    [text] = [one.text for one in blocks(page) if f'url = "{kind}://' in one.text]
    [app] = [one.text for one in blocks(page) if "[apps.support]" in one.text]
    (desk.folder / "semel.toml").write_text(re.sub(r'url = "[^"]+"', f'url = "{desk.url}"', text) + app)
    (desk.folder / "secret").write_text(SECRET)
    [typed_in] = [block for block in blocks(page) if block.text.startswith("$ semel provision\n")]
    for line, said in commands(typed_in):
        if line == "semel serve":
            with desk.serving() as (_, client):
                assert client.get("/health/ready").json() == {"status": "ready", "apps": ["support"]}
            continue
        code, out, err = type_in(desk, line, monkeypatch)
        assert (code, err) == (0, "")
        assert out.startswith(said.partition("...")[0]), out


def test_the_pages_have_commands_for_every_group() -> None:
    """Should the blocks be written otherwise one day, this notices that nothing is typed any more."""
    groups = {one.line.split()[1] for one in EVERY}
    assert {"provision", "serve", "work", "switch", "ls", "inbox", "act", "cost"} <= groups


def test_every_address_of_the_dashboard_that_the_pages_name_is_there() -> None:
    """The pages for people on call name addresses, and the labels of fields in quotes."""
    texts = [(HOW_TO / page).read_text("utf-8") for page in on_call.PAGES]
    named = set(re.findall(r"`(/(?:ledger|key|doubts|switches|journal)?(?:\?[^`]+)?)`", "".join(texts)))
    assert {"/", "/journal", "/doubts", "/switches"} < named
    with semel.connect("memory:", secret=SECRET.encode()) as s:
        for address in named:
            s.ledger.check_and_set(address.partition("?key=")[2] or "another")
        client = TestClient(dashboard(s, open=True), "http://localhost", client=("127.0.0.1", 50000))
        answers = {address: client.get(address) for address in named}
    assert {address for address, answer in answers.items() if answer.status_code != 200} == set()
    for label in ("About the person", "Key begins with", "Digest in a log"):
        assert label in answers["/ledger?subject=bob@example.com"].text
