"""What an operator does beside a `semel.toml`: provision, look, settle, redrive, stop; on every store."""

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fastapi.testclient import TestClient

import semel
from semel.cli.common import StoreOptions, bound
from semel.service.health import nothing
from semel.stores.sqlite.file import SQLiteFile
from tests.acceptance.desk import (
    APPS,
    SECRET,
    STORES,
    Desk,
    deliver,
    lasting,  # noqa: F401
    open_desk,
    own_dynamodb,  # noqa: F401
    work_off,
)
from tests.acceptance.test_cli_state import COMMANDS
from tests.servers.running import until

MADE = ("postgres", "dynamodb")


@pytest.fixture(params=STORES)
def desk(request: pytest.FixtureRequest) -> Desk:
    """A desk on each store in turn, where nothing was made yet."""
    return open_desk(request.param, request)


@pytest.fixture
def local(request: pytest.FixtureRequest) -> Desk:
    return open_desk("sqlite", request)


each_made = pytest.mark.parametrize("desk", MADE, indirect=True)
two = pytest.mark.parametrize("desk", ["sqlite", "dynamodb"], indirect=True)


# Provisioned means usable


def test_what_plain_provision_makes_is_all_that_the_apps_need(desk: Desk) -> None:
    assert desk.run("provision").code == 0
    checked = desk.run("provision", "--check")
    # The tests' own Redis has nothing that lasts, and is told so.
    assert checked.out.startswith("All is well") or "keeps nothing on disk" in checked.out
    assert desk.run("provision").out.startswith("Nothing to do")
    with desk.serving() as (runtime, client):
        assert client.get("/health/ready").status_code == 200
        sent = deliver(client)
        work_off(runtime)
        for mounted in runtime.apps:
            assert list(mounted.inbox.dead()) == [], mounted.name
        stores = {mounted.name: mounted.s for mounted in runtime.apps}
        for paste in sent:
            record = stores[paste.app].ledger.get(paste.key)
            assert record is not None, paste.app
            assert record.status is semel.Status.COMPLETED, paste.app


def unready(client: TestClient) -> str:
    """Why the service says that it is not ready."""
    told = client.get("/health/ready")
    assert told.status_code == 503
    return str(told.json()["detail"])


@each_made
def test_what_is_not_provisioned_is_not_ready_and_the_remedy_that_is_told_helps(desk: Desk) -> None:
    with desk.serving() as (_, client):
        # On a busy machine the store may take longer than readiness waits, and then it says only that.
        assert until(lambda: "run: semel provision" in unready(client))
        [remedy] = re.findall(r"run: (semel provision[^)]*)", unready(client))
        assert desk.run(*shlex.split(remedy)[1:]).code == 0
        assert until(lambda: client.get("/health/ready").status_code == 200)


@each_made
def test_one_table_that_is_missing_is_noticed_and_named(desk: Desk) -> None:
    """Every table but one was made: readiness and the check name that one."""
    desk.settle("household")
    names = [one["what"] for one in json.loads(desk.run("provision", "--check", "--json").out)["problems"]]
    assert names
    every = ("ledger", "documents", "journal", "counters", "inbox", "household-activities")
    made = [word for name in (*every, "household-counters") for word in ("--table", name)]
    assert desk.run("provision", *made).code == 0
    checked = desk.run("provision", "--check")
    assert checked.code == 1
    assert "messages" in checked.out.splitlines()[0]
    with desk.serving() as (_, client):
        assert until(lambda: "household-messages" in unready(client))
        assert "household-activities" not in unready(client)


@pytest.mark.parametrize("desk", ["dynamodb"], indirect=True)
def test_no_table_is_made_that_nothing_uses(desk: Desk, request: pytest.FixtureRequest) -> None:
    desk.settle("quill", tokens=False)
    done = desk.run("provision", "--json").json["done"]
    made = [did.removeprefix("made table ") for did in done if did.startswith("made table")]
    own = [f"semel-{desk.env}-{name}" for name in ("documents", "inbox")]
    assert made == ["QuillIdempotencyLedger", *own]
    desk.settle("quill", tokens=False, more='[inbox.quill]\nqueue = "https://sqs.example/q.fifo"')
    assert desk.run("provision", "--check").out.endswith("has its tables (quill, documents).\n")
    desk.settle("probe", tokens=False)
    done = desk.run("provision", "--json").json["done"]
    made = [did.removeprefix("made table ") for did in done if did.startswith("made table")]
    assert made == ["mq-probe-idempotency"], "the documents are there, and nothing waits for the probe"


@pytest.mark.parametrize("desk", ["postgres"], indirect=True)
def test_where_apps_share_the_ledger_no_other_is_made_for_them(desk: Desk) -> None:
    done = desk.run("provision", "--json").json["done"]
    made = {did.removeprefix("made table semel_") for did in done if did.startswith("made table")}
    assert {"support-state", "household-activities"} <= made
    assert not {"quill", "support-events", "probe"} & made


# Remedies


def remedied(desk: Desk, remedy: str) -> None:
    """Do as a remedy says: a command as it stands, or one whose options it leaves to the reader."""
    if as_it_stands := re.search(r"run: semel (provision --url .*?)( \(|$)", remedy):
        words = shlex.split(as_it_stands[1])
    else:
        assert re.search(r"run semel provision (with the same options|beside the service's)", remedy), remedy
        named = re.findall(r"--table (\S+)", remedy)
        same = ["--url", desk.url, "--env", desk.env] if named else []
        words = ["provision", *same, *[word for name in named for word in ("--table", name)]]
    assert desk.run(*words).code == 0, remedy


@each_made
def test_the_remedy_of_a_table_that_is_missing_makes_it(desk: Desk) -> None:
    """Whoever runs into one is told which it is, by the store itself."""
    desk.settle("household")
    ours = [word for name in ("ledger", "documents") for word in ("--table", name)]
    assert desk.run("provision", *ours).code == 0
    missing = 0
    with desk.runtime() as runtime:
        for s, table in [(s, table) for s, tables in runtime.tables() for table in tables]:
            look = nothing(s, table)
            try:
                s.store.execute(look)
            except semel.TableMissing as error:
                missing += 1
                remedied(desk, str(error))
                assert s.store.execute(look).item is None
    assert missing


def test_every_remedy_of_a_check_helps(desk: Desk, request: pytest.FixtureRequest) -> None:
    found = json.loads(desk.run("provision", "--check", "--json").out)["problems"]
    for remedy in dict.fromkeys(problem["remedy"] for problem in found):
        if remedy == "set appendonly to yes":
            request.getfixturevalue("lasting")
        else:
            remedied(desk, remedy)
    left = desk.run("provision", "--check", "--json")
    assert json.loads(left.out)["problems"] == []


# A full disk


def test_a_file_that_cannot_be_written_is_not_ready(local: Desk) -> None:
    """A process whose files may not grow stands for a disk that has no room."""
    local.settle("household")
    program = """
import resource, sys
from fastapi.testclient import TestClient
from semel.apps.configuration import gather
from semel.service import health
from semel.service.runtime import Runtime
from semel.service.app import create_app
runtime = Runtime(gather("semel.toml", {}))
health.TRY_SECONDS = 0
with TestClient(create_app(runtime)) as client:
    print(client.get("/health/ready").status_code)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
    answer = client.get("/health/ready")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(answer.status_code, answer.json()["detail"])
    print(client.get("/health/ready").status_code)
runtime.close()
"""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=local.folder)
    first, second, third = done.stdout.splitlines()
    assert (first, third) == ("200", "200")
    assert second.startswith("503 Store")
    assert "semel.db: " in second


def test_a_disk_without_room_is_noticed_before_a_write_fails(
    local: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local.run("provision").code == 0
    monkeypatch.setattr(SQLiteFile, "room", lambda _: 4096)
    checked = local.run("provision", "--check")
    assert checked.code == 1
    assert checked.out.splitlines()[0].endswith("semel.db is on is full, but for 4,096 bytes")
    with local.serving() as (_, client):
        told = client.get("/health/ready")
    assert (told.status_code, "its disk is full" in told.text) == (503, True)


# Commands beside the settings


class Broken(Exception):
    """The other side is broken, in these tests."""


@pytest.fixture
def served(desk: Desk) -> Desk:
    """A service that was provisioned."""
    assert desk.run("provision").code == 0
    return desk


@two
def test_the_emergency_stop_works_with_nothing_else_said(served: Desk) -> None:
    said = served.run("switch", "on", "safe_mode", "--reason", "wrong replies")
    assert said.code == 0
    assert said.out.startswith(f"safe_mode is on for every worker of environment {served.env}.")
    with served.runtime() as runtime:
        assert runtime.s.switches.list()["safe_mode"].on
        [support] = [one for one in runtime.apps if one.name == "support"]
        assert support.s.switches.list()["safe_mode"].reason == "wrong replies"
    assert served.run("switch", "list", "--json").json["switches"][0]["on"] is True


REVEAL = ("--reveal", "--why", "ticket 12")


@two
@pytest.mark.parametrize("app", APPS)
def test_app_finds_its_ledger_and_what_is_encrypted_there(served: Desk, app: str) -> None:
    with served.serving() as (runtime, client):
        [paste] = deliver(client, app)
        work_off(runtime)
        [mounted] = [one for one in runtime.apps if one.name == app]
        record = mounted.s.ledger.get(paste.key)
        assert record is not None
        result = mounted.s.ledger.result(record)
    shown = served.run("show", paste.key, *REVEAL, "--app", app, "--json").json
    assert (shown["status"], shown["result"]) == ("COMPLETED", msgspec.to_builtins(result))
    listed = served.run("ls", "--scan", "--app", app, "--json").json["records"]
    assert paste.key in [one["key"] for one in listed]


@two
def test_what_a_person_settles_is_settled_for_the_app(served: Desk) -> None:
    with served.runtime() as runtime:
        [quill] = [one for one in runtime.apps if one.name == "quill"]
        for key in ("ALOWARE:1", "ALOWARE:2"):
            claim = quill.s.ledger.claim(key)
            assert isinstance(claim, semel.Claimed)
            quill.s.ledger.doubt(claim)
        held = served.run("ls", "--scan", "--app", "quill", "--status", "UNKNOWN", "--json").json
        assert [one["key"] for one in held["records"]] == ["ALOWARE:1", "ALOWARE:2"]
        complete = ("act", "complete", "--result", '{"row": 1}', "--why", "the table has it")
        assert served.run(*complete, "ALOWARE:1", "--app", "quill").code == 0
        again = quill.s.ledger.claim("ALOWARE:1")
        assert isinstance(again, semel.Replay)
        assert again.result == {"row": 1}
        wrong = served.run(*complete, "ALOWARE:2")
        assert wrong.code == 1, "without --app it is looked for where the app has nothing"


@two
def test_a_message_that_is_put_back_is_handled_and_not_dead_again(
    served: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.settle(more="[inbox.support]\nmax_attempts = 1")
    with served.serving() as (runtime, client):
        [support] = [one for one in runtime.apps if one.name == "support"]
        with monkeypatch.context() as patch:
            patch.setattr(support.app, "handle", broken)
            [sent] = deliver(client, "support")
            work_off(runtime)
        [dead] = served.run("inbox", "dead", "support", "--json").json["dead"]
        assert dead["key"] == sent.key
        put_back = served.run(*REDRIVE)
        assert (put_back.code, put_back.out) == (0, "Put back 1 message.\n")
        assert served.run("inbox", "list", "support", "--json").json["waiting"] == 1
        work_off(runtime)
        assert served.run("inbox", "dead", "support", "--json").json["dead"] == []
        shown = served.run("show", sent.key, "--app", "support", "--json").json
        assert shown["status"] == "COMPLETED"


REDRIVE = ("inbox", "redrive", "support", "--all", "--why", "mended", "--yes")


def broken(_message: object) -> None:
    raise Broken("planted")


@pytest.fixture
def by_url(served: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A shell that knows the store by SEMEL_URL alone, while the app support has a dead letter."""
    served.settle(more="[inbox.support]\nmax_attempts = 1")
    with served.serving() as (runtime, client), monkeypatch.context() as patch:
        [support] = [one for one in runtime.apps if one.name == "support"]
        patch.setattr(support.app, "handle", broken)
        deliver(client, "support")
        work_off(runtime)
    (served.folder / "semel.toml").unlink()
    monkeypatch.setenv("SEMEL_URL", served.url)
    monkeypatch.setenv("SEMEL_ENV", served.env)
    return served


@two
@pytest.mark.parametrize("command", [("list",), ("dead",), ("dead", "--json"), REDRIVE[1:2] + REDRIVE[3:]])
def test_by_the_url_alone_the_inbox_of_an_app_is_not_taken_for_another(
    by_url: Desk, command: tuple[str, ...]
) -> None:
    """Put back past the app's own ledger, a message would come to nothing; and nobody would be told."""
    words = ("inbox", command[0], "support", *command[1:])
    said = by_url.run(*words)
    assert (said.code, said.out) == (2, "")
    assert "say --app support" in said.err
    assert by_url.run(*words, "--app", "support").code == 0
    elsewhere = by_url.run(*words, "--scope", "another")
    assert elsewhere.code == 1
    assert f"no inbox 'support' with messages in environment {by_url.env}, scope another" in elsewhere.err


@two
def test_by_the_url_alone_what_needs_an_operator_in_an_app_is_told(by_url: Desk) -> None:
    said = by_url.run("stuck")
    assert said.code == 1
    assert f"Looked at 0 keys in environment {by_url.env}, no scope." in said.out
    assert "0 unresolved records, 1 dead letter. Look with --app support." in said.err
    told = by_url.run("stuck", "--json")
    document = json.loads(told.out)
    assert (told.code, document["env"], document["scope"]) == (1, by_url.env, "")
    [found] = document["elsewhere"]
    assert (found["look_with"], found["unresolved"], found["dead_letters"]) == ("--app support", 0, 1)
    assert "Look with --app support" in by_url.run("ls", "--doubts").err
    assert by_url.run("ls", "--doubts", "--json").json["elsewhere"] == [found]
    of_app = by_url.run("stuck", "--app", "support")
    assert (of_app.code, of_app.err) == (0, "")
    assert "Inbox support has 1 dead letter: semel inbox dead support" in of_app.out
    assert by_url.run("stuck", "--app", "support", "--json").json["dead_letters"] == {"support": 1}


@two
def test_by_the_url_alone_an_unresolved_record_of_an_app_is_told(by_url: Desk) -> None:
    with bound(StoreOptions(app="quill", url=by_url.url, env=by_url.env)).open() as s:
        claim = s.ledger.claim("ALOWARE:1")
        assert isinstance(claim, semel.Claimed)
        s.ledger.doubt(claim)
    said = by_url.run("stuck")
    assert said.code == 1
    assert "1 unresolved record, 0 dead letters. Look with --app quill." in said.err
    assert [one["key"] for one in by_url.run("stuck", "--app", "quill", "--json").json["stuck"]] == [
        "ALOWARE:1"
    ]


@two
def test_options_win_over_the_environment_and_that_over_the_file(
    served: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served.runtime() as runtime:
        runtime.s.scoped("shop").ledger.mark_processed("order:1")
    assert served.run("ls", "--scan", "--json").json["records"] == []
    listed = served.run("ls", "--scan", "--scope", "shop", "--json").json["records"]
    assert [one["key"] for one in listed] == ["order:1"]
    monkeypatch.setenv("SEMEL_SCOPE", "shop")
    assert len(served.run("ls", "--scan", "--json").json["records"]) == 1
    assert served.run("ls", "--scan", "--app", "household", "--json").json["records"] == []
    monkeypatch.setenv("SEMEL_ENV", "another")
    assert served.run("ls", "--scan").code == 1
    assert served.run("ls", "--scan", "--env", served.env).code == 0
    monkeypatch.setenv("SEMEL_URL", f"sqlite:///{served.folder}/nowhere.db")
    assert "there is no file" in served.run("ls").err
    assert served.run("ls", "--scan", "--env", served.env, "--url", served.url).code == 0


def test_an_app_that_is_not_there_is_told_with_those_that_are(local: Desk) -> None:
    local.run("provision")
    said = local.run("ls", "--app", "suport")
    assert (said.code, said.err) == (2, "semel: there is no app 'suport' here: did you mean support?\n")


def test_looking_makes_no_key_and_a_program_without_encryption_reads_what_a_command_writes(
    local: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (local.folder / "semel.toml").unlink()
    with semel.connect("sqlite:///semel.db", secret=SECRET.encode()) as s:
        claim = s.ledger.claim("wire:1")
        assert isinstance(claim, semel.Claimed)
        s.ledger.doubt(claim)
    assert local.run("ls").code == 0, "semel.db in this folder is what semel serve would open"
    monkeypatch.setenv("SEMEL_SECRET", SECRET)
    assert local.run("act", "complete", "wire:1", "--result", '"wired"', "--why", "x").code == 0
    assert local.run("switch", "on", "sending", "--reason", "why not").code == 0
    with semel.connect("sqlite:///semel.db", secret=SECRET.encode()) as s:
        again = s.ledger.claim("wire:1")
        assert isinstance(again, semel.Replay)
        assert again.result == "wired"
        assert s.switches.list()["sending"].reason == "why not"
    assert not list(local.folder.glob("*.key"))


def test_settings_are_read_from_another_file_too(local: Desk) -> None:
    assert local.run("provision").code == 0
    (local.folder / "semel.toml").rename(local.folder / "other.toml")
    assert local.run("ls", "--config", "other.toml").code == 0
    said = local.run("ls", "--config", "nowhere.toml")
    assert (said.code, said.err) == (2, "semel: nowhere.toml cannot be read: No such file or directory\n")


def test_a_setting_that_has_nothing_to_do_with_it_stops_no_emergency_stop(local: Desk) -> None:
    assert local.run("provision").code == 0
    local.settle(more="[service]\nport = 'eighty'")
    assert local.run("switch", "on", "safe_mode").code == 0
    local.settle(more="[semel.encryption]\nactve = 'k'")
    said = local.run("switch", "on", "safe_mode")
    assert (said.code, said.err) == (
        2,
        "semel: semel.encryption.actve in semel.toml: there is no such setting; did you mean active?\n",
    )


def test_who_asks_to_be_forgotten_is_found_by_the_secret_of_the_service(local: Desk) -> None:
    assert local.run("provision").code == 0
    with local.runtime() as runtime:
        s = runtime.s.scoped("support")
        s.documents.put("c:1", {"text": "hello"}, subject="ada@example.org")
    assert list(local.folder.glob("*.key"))
    said = local.run("act", "erase", "ada@example.org", "--why", "her wish", "--yes", "--app", "support")
    assert (said.code, said.out) == (0, "Erased: 1 row of documents.\n")


# Commands that messages name

GROUPS = "|".join(sorted({name.split()[1] for name in COMMANDS}))
VERBS = "list|show|complete|release|forget|reap|dead|redrive|on|off|by"
SAID = re.compile(rf"\bsemel ({GROUPS})(?: ({VERBS})\b)?([^\n&\"'`(),;]*)")


def texts() -> list[str]:
    """Every text in the code, docstrings of commands included, with the names in it left out."""
    found = []
    for file in sorted((Path(semel.__file__).parent).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [one.value if isinstance(one, ast.Constant) else "X" for one in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_every_command_and_option_that_a_message_names_is_there() -> None:
    named = {found.groups(default="") for text in texts() for found in SAID.finditer(text)}
    assert len(named) > 20
    for group, command, rest in named:
        path = f"semel {group} {command}".strip()
        known = [one for name, one in COMMANDS.items() if name == path or name.startswith(f"{path} ")]
        assert known, path
        options = {opt for one in known for param in one.params for opt in param.opts}
        assert set(re.findall(r"(?<!\S)--[a-z-]+", rest)) <= options, (path, rest)
