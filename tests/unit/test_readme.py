"""The README's examples run as they stand."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_examples_run_in_order_and_do_what_their_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert "first used with another payload" in capsys.readouterr().out
    s = names["s"]
    assert s.ledger.list(status="COMPLETED").records[0].attempt == 1  # type: ignore[attr-defined]
    assert s.ledger.check_and_set("webhook:evt_1") is False  # type: ignore[attr-defined]
    assert s.ledger.check_and_set_many(["evt:1", "evt:3"]) == [False, True]  # type: ignore[attr-defined]
    s.close()  # type: ignore[attr-defined]
