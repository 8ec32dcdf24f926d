"""The README: its examples run as they stand, and its links lead somewhere from wherever it is read."""

import re
from pathlib import Path

import pytest

import semel
from tests.pages import blocks
from tests.unit.test_docs import anchors, links

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
# Package indexes show the page without the repository, so that its links have to be whole.
PAGES, PICTURES = (
    re.compile(rf"https://[^\s)\"]+/{kind}/main/([^\s)\"#]+)(?:#([\w-]+))?") for kind in ("blob", "raw")
)


def test_the_examples_run_in_order_and_do_what_their_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = [block.text for block in blocks(README) if block.language == "python"]
    assert len(examples) == 2
    names: dict[str, object] = {"__name__": "readme"}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
    first, second, refused = capsys.readouterr().out.splitlines()
    assert first == second == "{'charged': 4200}"
    assert "first used with another payload" in refused
    s = names["s"]
    assert isinstance(s, semel.Semel)
    [record] = s.ledger.list().records
    assert (record.key, record.attempt) == ("charge:order-1001", 1)
    s.close()


def test_every_link_is_whole_and_leads_to_a_file() -> None:
    text = README.read_text("utf-8")
    assert links(README) == []
    pages, pictures = PAGES.findall(text), PICTURES.findall(text)
    assert len(pages) + len(pictures) == text.count("https://")
    for path, anchor in pages:
        assert (ROOT / path).is_file(), path
        assert not anchor or anchor in anchors(ROOT / path), f"{path}#{anchor}"
    assert {Path(path).suffix for path, _ in pictures} == {".png"}
    assert all((ROOT / path).is_file() for path, _ in pictures)


def test_it_is_short_and_names_the_two_commands_of_a_copy() -> None:
    lines = README.read_text("utf-8").splitlines()
    assert len(lines) < 150
    assert {line.split("#")[0].strip() for line in lines} >= {"make run", "make test"}
