"""`semel init` writes settings that every command takes as they are, and that agree with the reference."""

import io
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from semel.apps.configuration import gather
from semel.apps.registry import APPS, deployment
from semel.service.runtime import Runtime
from semel.service.settings_file import new_settings
from tests.places import CREDENTIALS, NETWORKED, open_place
from tests.service.test_pages import table

STORES = {"sqlite": "sqlite", "dynoxide": "dynamodb", "postgres": "postgresql", "redis": "redis"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, with nothing set by the environment."""
    for name in [name for name in os.environ if name.startswith(("SEMEL_", "DYNAMO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "semel.toml").read_text("utf-8"))


# What is written is taken


@pytest.mark.parametrize("apps", [(), *[(app,) for app in APPS], tuple(APPS)], ids="+".join)
@pytest.mark.parametrize("store", STORES)
def test_every_command_takes_what_was_written_as_it_is(
    store: str,
    apps: tuple[str, ...],
    folder: Path,
    typed: Any,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    place = open_place(store, request, folder)
    where = ["--url", place.url()] if store in NETWORKED else []
    chosen = [word for app in apps for word in ("--app", app)]
    code, out, err = typed("init", "--store", STORES[store], *where, *chosen)
    assert (code, err) == (0, "")
    assert out.splitlines()[-2:] == ["  semel provision", "  semel serve"]
    monkeypatch.setenv("SEMEL_ENV", place.env)  # the tests share a server, and some tables have one name
    for app in apps:
        for name in deployment(app).own():
            monkeypatch.setenv(f"SEMEL_APPS__{app}__TABLES__{name}".upper(), f"{app}-{name}-{place.env}")
    code, out, err = typed("provision")
    assert code == 0, out + err
    checks = json.loads(typed("doctor", "--json")[1])["checks"]
    failed = [check["what"] for check in checks if check["state"] == "fail"]
    # The tests' Redis is without a disk, which is no fault of the settings.
    assert [what for what in failed if "keeps nothing on disk" not in what] == []
    runtime = Runtime(gather("semel.toml"))
    assert [mounted.name for mounted in runtime.apps] == list(apps)
    runtime.close()


def test_the_service_starts_with_it(folder: Path) -> None:
    run = [sys.executable, "-m", "semel"]
    apps = [word for app in APPS for word in ("--app", app)]
    subprocess.run([*run, "init", *apps], check=True, capture_output=True)
    serving = subprocess.Popen([*run, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert serving.stdout is not None
    try:
        lines = iter(serving.stdout.readline, "")
        assert any(line.startswith("semel: working for") for line in lines)
    finally:
        serving.terminate()
        serving.communicate()
    assert serving.returncode == 0


# What is written


@pytest.mark.parametrize(
    ("head", "section"),
    [
        ("| `[semel]` | default | meaning |", "semel"),
        ("| `[semel.encryption]` | default | meaning |", "semel.encryption"),
        ("| `[service]` | default | meaning |", "service"),
        ("| `[tokens.NAME]` | default | meaning |", "tokens.NAME"),
        ("| `[users.NAME]` | default | meaning |", "users.NAME"),
        ("| `[inbox.APP]` | default | meaning |", "inbox.support"),
    ],
)
def test_a_section_has_the_settings_of_the_reference_with_their_defaults(
    head: str, section: str, folder: Path, typed: Any
) -> None:
    typed("init", "--app", "support")
    written = (folder / "semel.toml").read_text("utf-8")
    [lines] = re.findall(rf"^#?\[{re.escape(section)}\]\n(.*?)(?:\n\n|\Z)", written, re.DOTALL | re.MULTILINE)
    found = dict(re.findall(r"^#?(\w+) = ?(.*)$", lines, re.MULTILINE))
    page = {row[0].strip("`"): row[1].strip("`").replace("required", "") for row in table(head)}
    page.pop("encryption", None)  # a section of its own
    assert found == page


def test_every_line_that_is_a_default_can_be_taken_as_it_is(folder: Path, typed: Any) -> None:
    typed("init", *[word for app in APPS for word in ("--app", app)])
    lines = (folder / "semel.toml").read_text("utf-8").splitlines()
    taken = [re.sub(r"^#(?=\w+ = \S)", "", line) for line in lines]
    tree = tomllib.loads("\n".join(taken))
    assert tree["service"]["port"] == 8000
    assert tree["apps"]["household"]["chats"] == []


def test_secrets_are_made_and_no_two_are_alike(folder: Path, typed: Any) -> None:
    code, out, _ = typed(
        "init", "--url", "redis://localhost/0", *[word for app in APPS for word in ("--app", app)]
    )
    tree = read(folder)
    made = [
        tree["semel"]["secret"],
        tree["apps"]["support"]["webhook_token"],
        tree["apps"]["quill"]["aloware_token"],
        tree["apps"]["household"]["secret_token"],
        tree["apps"]["probe"]["token"],
    ]
    assert code == 0
    assert len(set(made)) == 5
    assert min(map(len, made)) >= 32
    assert not any(secret in out for secret in made)
    assert stat.S_IMODE((folder / "semel.toml").stat().st_mode) == 0o600


def test_secrets_that_others_give_are_named_by_their_variables(folder: Path, typed: Any) -> None:
    _, out, _ = typed("init", "--app", "quill")
    assert "set SEMEL_APPS__QUILL__HUBSPOT_SECRET: The client secret of the HubSpot app" in out
    assert "The variable SEMEL_APPS__QUILL__HUBSPOT_SECRET can hold it" in new_text(folder)
    assert "hubspot_secret" not in read(folder)["apps"]["quill"]


def new_text(folder: Path) -> str:
    return " ".join((folder / "semel.toml").read_text("utf-8").replace("\n# ", " ").split())


def test_beside_an_sqlite_file_no_secret_is_written_since_the_service_makes_one() -> None:
    assert new_settings("sqlite:///semel.db", []).made == ()


# What is refused


def test_a_file_that_is_there_is_not_written_over(folder: Path, typed: Any) -> None:
    (folder / "semel.toml").write_text("# mine")
    code, _, err = typed("init")
    assert (code, err) == (
        2,
        "semel: semel.toml is there already: --force replaces it, and keeps it as semel.toml.old\n",
    )
    assert (folder / "semel.toml").read_text() == "# mine"


def test_force_keeps_the_old_file_since_it_may_hold_the_only_copy_of_a_secret(
    folder: Path, typed: Any
) -> None:
    (folder / "semel.toml").write_text("# mine")
    assert typed("init", "--force")[0] == 0
    assert (folder / "semel.toml.old").read_text() == "# mine"
    assert read(folder)["semel"]["url"] == "sqlite:///semel.db"
    code, _, err = typed("init", "--force")
    assert (code, "move it away" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--store", "postgresql"), "say where the store is: --url postgresql://"),
        (("--store", "redis", "--url", "sqlite:///a.db"), "--url is no URL of redis: write it as redis://"),
        (("--url", "mysql://me:hidden@there/db"), "--url is no URL of a store: write it as sqlite:"),
        (("--app", "suport"), "there is no such app"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_written(
    words: tuple[str, ...], told: str, folder: Path, typed: Any
) -> None:
    code, _, err = typed("init", *words)
    assert code == 2
    assert told in err
    assert "hidden" not in err
    assert list(folder.iterdir()) == []


# At a terminal


class Terminal(io.StringIO):
    """Somebody at a terminal, who answers so."""

    def isatty(self) -> bool:
        return True


def test_at_a_terminal_it_asks(folder: Path, typed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ("nosql", "postgresql", "postgresql://me@there/db", "probe")
    monkeypatch.setattr(sys, "stdin", Terminal("\n".join(answers) + "\n"))
    code, out, err = typed("init")
    assert code == 0
    assert "it is one of sqlite, dynamodb, postgresql, redis" in out + err
    assert read(folder)["semel"]["url"] == "postgresql://me@there/db"
    assert list(read(folder)["apps"]) == ["probe"]


def test_who_leaves_while_being_asked_has_changed_nothing(
    folder: Path, typed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("postgresql\n"))
    code, out, _ = typed("init")
    assert (code, out.splitlines()[-1]) == (1, "Nothing was written.")
    assert list(folder.iterdir()) == []
