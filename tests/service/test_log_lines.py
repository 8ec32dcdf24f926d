"""Lines of the service's log: whole, once, and no thread waits for another's."""

import io
import json
import logging
import threading
from typing import Any

import pytest

from semel.service import logs
from semel.service.logs import JsonLines, LineHandler, TextLines


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text, "name": "shop", "levelno": logging.INFO, "levelname": "INFO"})


class Held(io.StringIO):
    """A stream whose first line is not written before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let_go = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        if not self.begun.is_set():
            self.begun.set()
            assert self.let_go.wait(60)
        return super().write(text)


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("no space left on device")


def handler(stream: Any) -> LineHandler:
    made = LineHandler(stream)
    made.setFormatter(logging.Formatter("%(message)s"))
    return made


def started(call: Any, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=call, args=args)
    thread.start()
    return thread


def test_a_thread_does_not_wait_while_another_ones_line_is_written() -> None:
    stream = Held()
    lines = handler(stream)
    first = started(lines.handle, record("first"))
    assert stream.begun.wait(60)
    lines.handle(record("second"))  # it would never come back if it waited
    stream.let_go.set()
    first.join(60)
    assert stream.getvalue() == "first\nsecond\n"


def test_where_too_many_lines_wait_for_a_stuck_stream_a_thread_waits_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "MOST_WAITING", 2)
    stream = Held()
    lines = handler(stream)
    first = started(lines.handle, record("1"))
    assert stream.begun.wait(60)
    lines.handle(record("2"))
    lines.handle(record("3"))
    third = started(lines.handle, record("4"))
    third.join(0.1)
    assert third.is_alive()
    stream.let_go.set()
    first.join(60)
    third.join(60)
    assert stream.getvalue() == "1\n2\n3\n4\n"


def test_every_line_of_many_threads_is_written_once_and_whole() -> None:
    stream = io.StringIO()
    lines = handler(stream)

    def write(name: int) -> None:
        for number in range(200):
            lines.handle(record(f"{name}:{number}:{'x' * 200}"))

    threads = [started(write, name) for name in range(8)]
    for thread in threads:
        thread.join(60)
    expected = [f"{name}:{number}:{'x' * 200}" for name in range(8) for number in range(200)]
    assert sorted(stream.getvalue().splitlines()) == sorted(expected)


def test_a_line_that_cannot_be_written_stops_no_work(capsys: pytest.CaptureFixture[str]) -> None:
    lines = handler(Broken())
    assert lines.handle(record("lost"))
    assert "no space left on device" in capsys.readouterr().err


def test_a_filter_holds_a_line_back_or_changes_it() -> None:
    stream = io.StringIO()
    lines = handler(stream)
    lines.addFilter(lambda one: "secret" not in one.getMessage())
    assert not lines.handle(record("a secret"))
    assert lines.handle(record("plain"))
    assert stream.getvalue() == "plain\n"


@pytest.mark.parametrize("form", [JsonLines(), TextLines()])
def test_flush_leaves_nothing_unwritten(form: logging.Formatter) -> None:
    stream = io.StringIO()
    lines = LineHandler(stream)
    lines.setFormatter(form)
    lines.handle(record("last words"))
    lines.flush()
    assert stream.getvalue().count("last words") == 1


FORGED = "2026-01-01T00:00:00.000+00:00 INFO    semel.access: request"
BREAKS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1b[2K", "\x85", "\u2028", "\u2029", "\u202e", "\x00", "\x7f"]


@pytest.mark.parametrize("broken", BREAKS, ids=ascii)
@pytest.mark.parametrize("place", ["message", "argument", "extra", "name of an extra", "trace"])
def test_nothing_that_is_logged_begins_a_line_of_its_own(broken: str, place: str) -> None:
    text = f"harmless{broken}{FORGED}"
    made: dict[str, Any] = {"msg": "%s", "args": ("told",), "name": "shop", "levelname": "INFO"}
    if place == "message":
        made |= {"msg": text, "args": ()}
    elif place == "argument":
        made["args"] = (text,)
    elif place == "trace":
        made["exc_text"] = f"Traceback\nValueError: {text}"
    else:
        made |= {"it": text} if place == "extra" else {text: "it"}
    for form in (TextLines(), JsonLines()):
        line = form.format(logging.makeLogRecord(made))
        assert not any(one.startswith(FORGED) for one in line.splitlines())
        assert "harmless" in line
    whole = TextLines().format(logging.makeLogRecord(made))
    assert len(whole.split("\n")) == (whole.count("\n  ") + 1 if place == "trace" else 1)


def test_what_a_line_has_beside_its_words_stays_what_it_is() -> None:
    made = logging.makeLogRecord({"msg": "told", "numbers": [1, 2.5, None], "of": {"a": (True, {"b"})}})
    line = json.loads(JsonLines().format(made))
    assert (line["numbers"], line["of"]) == ([1, 2.5, None], {"a": [True, "{'b'}"]})
