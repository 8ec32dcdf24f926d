"""What the commands print on a terminal of 80 columns and into a pipe: keys and ids are whole in both."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.text import Text

import semel
from semel.cli import views
from semel.doors.inbox import Message, StoreInbox
from tests.doors.inbox_kit import failing, running
from tests.servers.running import until

# As applications make them, and as long as they may be.
KEYS = [
    "charge:1",
    "evt:rp:conversation-8f14e45fceea167a:message-c9f0f895fb98ab9159f51fd0297e236d",
    "ALOWARE:" + "7" * 300,
    "配達:注文-一二三四五六七八九十一二三四五六七八九十",
]
RESULTS = [{"receipt": "R-1"}, "x" * 5000, "two\nlines", "配達" * 60]
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a store that has long keys, all kinds of results, and messages that were put aside."""
    with semel.connect(f"sqlite:///{tmp_path}/semel.db") as s:
        for key, result in zip(KEYS, RESULTS, strict=True):
            claim = s.ledger.claim(key)
            assert isinstance(claim, semel.Claimed)
            s.ledger.complete(claim, result)
        inbox = StoreInbox(s.scoped("desk"), "support")
        inbox.put(*[Message(key, 0) for key in KEYS])
        fail = failing(*KEYS, error=ValueError("no such order " * 9))
        with running(inbox.worker(fail, poll=0.01, on_error="keep")):
            assert until(lambda: inbox.waiting() == 0)
        for key in KEYS:
            s.switches.turn(key, on=True, reason="because " * 20)
    return tmp_path


def on_a_terminal(folder: Path, *words: str, columns: int = 80) -> str:
    """What a command writes on a terminal of so many columns, without its colours."""
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SEMEL_")}
    environment.pop("COLUMNS", None)
    with (
        os.fdopen(near, "rb", buffering=0) as terminal,
        subprocess.Popen(
            [sys.executable, "-m", "semel", *words],
            cwd=folder,
            env=environment | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
            stdin=far,
            stdout=far,
            stderr=far,
        ) as process,
    ):
        os.close(far)
        shown = b""
        try:
            while piece := terminal.read(65536):
                shown += piece
        except OSError:  # how Linux says that nobody is left on the other end
            pass
        assert process.wait(60) == 0, shown
    return ANSI.sub("", shown.decode()).replace("\r\n", "\n")


def piped(folder: Path, *words: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SEMEL_")}
    environment.pop("COLUMNS", None)
    done = subprocess.run(
        [sys.executable, "-m", "semel", *words],
        cwd=folder,
        env=environment | {"PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        check=True,
    )
    return done.stdout.decode()


@pytest.mark.parametrize(
    "words",
    [("inbox", "dead", "support", "--scope", "desk"), ("switch", "list")],
    ids=" ".join,
)
def test_on_80_columns_and_in_a_pipe_every_key_and_id_is_whole(folder: Path, words: tuple[str, ...]) -> None:
    shown, sent = on_a_terminal(folder, *words), piped(folder, *words)
    everything = json.loads(piped(folder, *words, "--json"))
    for key in KEYS:
        assert key in shown
        assert key in sent
    [listed] = [value for value in everything.values() if isinstance(value, list) and value]
    assert {one.get("key") or one["name"] for one in listed} == set(KEYS)
    for dead in everything.get("dead", ()):
        assert dead["id"] in shown
        assert dead["id"] in sent
    wide = [line for line in shown.splitlines() if Text(line).cell_len > 80]
    assert all(any(key in line for key in KEYS) for line in wide), "only a key may be wider than the terminal"
    assert len(sent.splitlines()) == 1 + len(KEYS), "in a pipe each has its line"


def test_where_there_is_room_each_record_has_one_line(folder: Path) -> None:
    with semel.connect(f"sqlite:///{folder}/semel.db") as s:
        for key in KEYS[1:]:
            s.ledger.forget(key)
    shown = on_a_terminal(folder, "ls").splitlines()
    assert [line.split()[0] for line in shown] == ["key", "charge:1", "1"]
    assert all(Text(line).cell_len <= 80 for line in shown)


def test_a_search_on_80_columns_has_every_key_whole(folder: Path) -> None:
    shown = on_a_terminal(folder, "ls").splitlines()
    assert all(any(key in line for line in shown) for key in KEYS)
    assert all(Text(line).cell_len <= 80 or any(key in line for key in KEYS) for line in shown)
    assert shown[-1] == "4 records, found by reading the whole table."


# How rows are laid out


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return ANSI.sub("", capsys.readouterr().out).splitlines()


@pytest.mark.usefixtures("terminal")
def test_the_last_column_is_cut_or_goes_on_below(capsys: pytest.CaptureFixture[str]) -> None:
    told = "word " * 20
    views.print_table(("key", "what"), [("k" * 30, told)], cut=True)
    assert lines(capsys) == [f"{'key':30}  what", f"{'k' * 30}  {told[:27]}…"]
    views.print_table(("key", "what"), [("k" * 30, told)])
    head, first, *more = lines(capsys)
    assert head == f"{'key':30}  what"
    assert first.startswith("k" * 30 + "  word")
    assert " ".join([first[30:], *more]).split() == told.split()
    assert all(line.startswith(" " * 32) for line in more)


@pytest.mark.usefixtures("terminal")
def test_without_room_the_rest_stands_below_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    row = ("i" * 26, "k" * 70, "3", "an error " * 9)
    views.print_table(("id", "key", "attempts", "error"), [row], whole=2, cut=True)
    head, below, about, told = lines(capsys)
    assert (head, below) == ("id  key", "  attempts  error")
    assert about == f"{'i' * 26}  {'k' * 70}"
    assert told.startswith(f"  {'3':8}  an error")
    assert len(told) == 60


def test_in_a_pipe_nothing_is_wrapped_or_cut(capsys: pytest.CaptureFixture[str]) -> None:
    views.print_table(("key", "what"), [("k" * 200, "w" * 200), ("k", "[red]as it is[/red]")], cut=True)
    assert lines(capsys)[1:] == [f"{'k' * 200}  {'w' * 200}", f"{'k':200}  [red]as it is[/red]"]
    views.print_pairs([("key", "k" * 300), ("status", "DONE")])
    assert lines(capsys) == [f"key     {'k' * 300}", "status  DONE"]
