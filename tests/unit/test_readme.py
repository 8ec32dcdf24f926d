"""The README's examples run as they stand, and its links lead somewhere."""

import functools
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from itertools import pairwise
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

import semel
from semel.testing import FakeClock
from tests.servers.running import Server, is_free, serving
from tests.unit.test_docs import anchors, links

NOON = 1_700_046_000  # in Stockholm

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    """The README's examples in a language."""
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_examples_run_in_order_and_do_what_their_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Whether a bot may reply depends on the hour, and the test must not.
    monkeypatch.setattr(semel, "connect", functools.partial(semel.connect, clock=FakeClock(NOON)))
    examples = blocks("python")
    assert len(examples) == 6
    names: dict[str, object] = {"__name__": "readme"}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
    assert "first used with another payload" in capsys.readouterr().out
    s, shop, answer = names["s"], names["shop"], names["answer"]
    assert isinstance(s, semel.Semel)
    assert isinstance(shop, semel.Semel)
    assert callable(answer)
    assert s.ledger.list(status="COMPLETED").records[0].attempt == 1
    assert s.ledger.check_and_set("webhook:evt_1") is False
    assert s.ledger.check_and_set_many(["evt:1", "evt:3"]) == [False, True]
    assert answer("chat-1", 7) == "replied"
    assert [entry.body for entry in s.journal.list("chat-1").entries] == [{"did": "reply"}]
    assert s.ledger.is_processed("message:chat-1:7>reply")
    s.close()
    shop.close()


@contextmanager
def pasted(folder: Path, python: Path) -> Iterator[str]:
    """The README's API, in a file of its own, on a server: its address."""
    [example] = [block for block in blocks("python") if "FastAPI" in block]
    (folder / "shop.py").write_text(example)

    def program(port: int) -> list[str]:
        return [str(python), "-m", "uvicorn", "shop:app", "--port", str(port)]

    with serving(Server(folder, program, ready=lambda port: not is_free(port))) as port:
        yield f"127.0.0.1:{port}"


def curl(address: str) -> tuple[int, Message, bytes]:
    """What the README has its reader send, and what comes back."""
    [command] = [block for block in blocks("console") if block.startswith("curl")]
    words = shlex.split(command.replace("127.0.0.1:8000", address))
    assert words[:4] == ["curl", "-i", "-X", "POST"]
    headers = dict(word.split(": ", 1) for before, word in pairwise(words) if before == "-H")
    with urlopen(Request(words[4], method="POST", headers=headers)) as answer:
        return answer.status, answer.headers, answer.read()


def answered_twice_the_same(folder: Path, python: Path) -> None:
    with pasted(folder, python) as address:
        (status, first, body), (again, second, same) = curl(address), curl(address)
    assert (status, again) == (201, 201)
    assert body == same == b'{"order":"o-1","charged":4200}'
    assert (first.get("Idempotent-Replayed"), second.get("Idempotent-Replayed")) == (None, "true")


def test_the_api_runs_as_pasted_and_answers_a_keyed_post_twice(tmp_path: Path) -> None:
    answered_twice_the_same(tmp_path, Path(sys.executable))


def test_every_link_leads_somewhere() -> None:
    for target, anchor in links(README):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target), f"{target.name}#{anchor}"
