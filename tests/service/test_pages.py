"""The pages about the service: every table agrees with the code, and every command does as the page says."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from semel.apps.configuration import gather
from semel.apps.sections import EncryptionSection, StoreSection
from semel.gate import RULES
from semel.service.app import create_app
from semel.service.problems import PROBLEMS
from semel.service.settings import (
    GateSection,
    InboxSection,
    Right,
    ServiceSection,
    ServiceSettings,
    TokenSection,
    settings,
)
from semel.service.v1.gates import ELSEWHERE
from tests.apps.kit import Service as Running
from tests.pages import Block, blocks
from tests.service.kit import opened
from tests.unit.test_docs import code, rows, text_of

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS, API, HOW_TO = (
    "reference/settings.md",
    "reference/http-api.md",
    DOCS / "how-to" / "run-the-service.md",
)


def table(head: str) -> list[list[str]]:
    """The cells of the table with this head on the page of settings."""
    lines = text_of(SETTINGS).splitlines()
    at, found = lines.index(head) + 2, list[list[str]]()
    while at < len(lines) and lines[at].startswith("|"):
        found.append([cell.strip() for cell in lines[at].strip("|").split("|")])
        at += 1
    return found


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("semel", StoreSection),
        ("semel.encryption", EncryptionSection),
        ("service", ServiceSection),
        ("tokens.NAME", TokenSection),
        ("inbox.APP", InboxSection),
        ("gates.NAME", GateSection),
    ],
)
def test_every_setting_is_in_the_reference_with_its_default(section: str, kind: type[msgspec.Struct]) -> None:
    told = {row[0].strip("`"): row[1].strip("`") for row in table(f"| `[{section}]` | default | meaning |")}
    values = msgspec.to_builtins(kind())
    assert list(told) == list(values)
    for name, default in told.items():
        if name != "encryption":  # which has a table of its own
            assert default == ("" if values[name] is None else written(values[name])), name


def written(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def test_every_section_scope_and_rule_is_in_the_reference() -> None:
    page = code(text_of(SETTINGS))
    sections = {name.strip("[]").partition(".")[0] for name in page if name.startswith("[")}
    assert set(ServiceSettings.__struct_fields__) - sections == set()
    assert {row[0].strip("`") for row in table("| scope | what it allows |")} == set(get_args(Right))
    rules = {row[0].strip("`"): code(row[1]) for row in table("| rule | parameters |")}
    assert rules.keys() == RULES.keys()
    for word, takes in rules.items():
        known = set(RULES[word].__struct_fields__) - ELSEWHERE
        assert takes == known | ({"zone"} if "per" in known else set()), word


def test_every_problem_is_in_the_reference() -> None:
    told = {row[0].strip("`"): (int(row[1]), row[2]) for row in rows(API, "## Problems")}
    assert told == {f"/problems#{kind}": told for kind, told in PROBLEMS.items()}


def test_every_operation_is_in_the_reference_with_its_scope(tmp_path: Path) -> None:
    with opened("", tmp_path) as runtime:
        document = create_app(runtime)._app.openapi()  # type: ignore[attr-defined]  # it is FastAPI's
    known = {
        f"{method.upper()} {path}": {status for status in one["responses"] if status < "300"}
        for path, item in document["paths"].items()
        for method, one in item.items()
        if path.startswith("/v1")
    }
    told = {row[0].strip("`"): set(re.findall(r"\b2\d\d\b", row[2])) for row in rows(API, "## Operations")}
    assert told == known
    names = {
        field
        for one in document["components"]["schemas"].values()
        for field in one.get("properties", {})
        if one["title"].endswith("Request")
    }
    assert names <= code(text_of(API)) | {"type", "message"}


# The examples


@pytest.mark.parametrize("page", [SETTINGS, "how-to/run-the-service.md"])
def test_every_example_of_settings_can_be_read(page: str, tmp_path: Path) -> None:
    found = [
        block.text for block in blocks(DOCS / page) if re.search(r"^\[[a-z.]+\]$", block.text, re.MULTILINE)
    ]
    assert found
    for number, example in enumerate(found):
        file = tmp_path / f"{number}.toml"
        file.write_text(example)
        settings(gather(str(file), {}))


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, and what the page says that they print."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2].strip()) for part in parts]


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    """Every call of curl, on the service of the page's first settings."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    console = [one for block in blocks(HOW_TO) if block.language == "console" for one in commands(block)]
    asked = [(command, said) for command, said in console if command.startswith("curl")]
    assert len(asked) == 5
    [settings_text, *_] = [block.text for block in blocks(HOW_TO) if block.text.startswith("# semel.toml")]
    claim = ""
    with Running(tmp_path, settings_text) as service:
        for command, said in asked:
            words = shlex.split(
                command.replace("http://127.0.0.1:8000", service.url).replace("WyJjaG...", claim)
            )
            done = subprocess.run(
                ["curl", "--silent", "--noproxy", "*", *words[1:]], capture_output=True, text=True, check=True
            )
            pattern = ".*".join(re.escape(piece) for piece in said.split("..."))
            assert re.fullmatch(pattern, done.stdout.strip(), re.DOTALL), (command, done.stdout)
            if "claim" in command and '"claim":"' in done.stdout:
                claim = json.loads(done.stdout)["claim"]


def test_the_metrics_of_the_page_are_those_of_the_service(tmp_path: Path) -> None:
    told = set(re.findall(r"^\| `(semel_\w+)` \|", HOW_TO.read_text("utf-8"), re.MULTILINE))
    with opened("", tmp_path) as runtime:
        runtime.metrics.watch(lambda: 0, runtime.looks())
        known = {family.name for family in runtime.metrics.registry.collect()}
    assert {name.removesuffix("_total") for name in told} == known
