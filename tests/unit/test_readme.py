"""The README's examples run as they stand, and its links lead somewhere."""

import functools
import re
from pathlib import Path

import pytest

import semel
from semel.testing import FakeClock
from tests.unit.test_docs import anchors, links

NOON = 1_700_046_000  # in Stockholm

README = Path(__file__).parents[2] / "README.md"


def test_the_examples_run_in_order_and_do_what_their_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Whether a bot may reply depends on the hour, and the test must not.
    monkeypatch.setattr(semel, "connect", functools.partial(semel.connect, clock=FakeClock(NOON)))
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert "first used with another payload" in capsys.readouterr().out
    s, answer = names["s"], names["answer"]
    assert isinstance(s, semel.Semel)
    assert callable(answer)
    assert s.ledger.list(status="COMPLETED").records[0].attempt == 1
    assert s.ledger.check_and_set("webhook:evt_1") is False
    assert s.ledger.check_and_set_many(["evt:1", "evt:3"]) == [False, True]
    assert answer("chat-1", 7) == "replied"
    assert [entry.body for entry in s.journal.list("chat-1").entries] == [{"did": "reply"}]
    assert s.ledger.is_processed("message:chat-1:7>reply")
    s.close()


def test_every_link_leads_somewhere() -> None:
    for target, anchor in links(README):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target), f"{target.name}#{anchor}"
