"""`semel demo`, as somebody without a terminal runs it, and the verdicts that it ends with."""

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from semel.cli import demo as demo_module
from semel.cli.app import app
from semel.cli.demo import Promise, judge, print_promises

DEMO = [sys.executable, "-m", "semel.cli", "demo"]

MANY = {"asked": 50, "processes": 5, "busy": 49, "executions": 1, "answers": 50, "distinct": 1}
KILLED = {"attempt": 2, "waited": 1.6, "after_lease": 0.1, "requests": 2, "keys": 1}
ZOMBIE = {"refused": "ClaimLost", "offered": "R-1", "taken": "R-2", "stored": "R-2"}
LATER = {"stored": "R-1", "answer": "R-1", "refused": "", "executions": 0}
CHANGED = {"stored": "R-1", "answer": "", "refused": "PayloadChanged", "executions": 0}
GOOD: dict[str, dict[str, Any]] = {
    "threads": MANY,
    "killed": KILLED,
    "zombie": ZOMBIE,
    "later": LATER,
    "changed": CHANGED,
    "tasks": MANY | {"processes": 1},
}


@pytest.fixture(scope="module")
def report():
    done = subprocess.run([*DEMO, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_every_promise_is_kept(report):
    assert report["kept"] is True
    assert {promise["promise"]: promise["kept"] for promise in report["promises"]} == {
        "Many threads, one execution": True,
        "All threads get the same answer": True,
        "A killed worker is replaced": True,
        "But not while its lease runs": True,
        "Every attempt has the same key": True,
        "A zombie's completion is refused": True,
        "And its result is not stored": True,
        "A later call replays the answer": True,
        "A changed payload is refused": True,
        "Many tasks, one execution": True,
        "All tasks get the same answer": True,
    }


@pytest.mark.parametrize(("act", "processes"), [("threads", 5), ("tasks", 1)])
def test_of_fifty_concurrent_calls_one_runs_and_all_get_its_answer(report, act, processes):
    facts = report["facts"][act]
    assert (facts["asked"], facts["processes"]) == (50, processes)
    assert (facts["executions"], facts["busy"]) == (1, 49)
    assert (facts["answers"], facts["distinct"]) == (50, 1)


@pytest.mark.situation(2)
def test_a_killed_worker_is_followed_by_attempt_two_once_its_lease_has_lapsed(report):
    facts = report["facts"]["killed"]
    assert facts["attempt"] == 2
    assert facts["after_lease"] >= 0
    assert (facts["requests"], facts["keys"]) == (2, 1)


@pytest.mark.situation(5)
def test_a_zombie_is_refused_and_leaves_no_trace(report):
    facts = report["facts"]["zombie"]
    assert facts["refused"] == "ClaimLost"
    assert facts["stored"] == facts["taken"]
    assert facts["stored"] != facts["offered"]


@pytest.mark.situation(4)
def test_a_later_call_replays_and_a_changed_one_is_refused(report):
    later, changed = report["facts"]["later"], report["facts"]["changed"]
    assert later["answer"] == later["stored"]
    assert changed["refused"] == "PayloadChanged"
    assert (later["executions"], changed["executions"]) == (0, 0)


def test_without_a_terminal_it_prints_plain_lines_and_leaves_the_ledger_where_asked(tmp_path):
    database = tmp_path / "a demo.db"
    env = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*DEMO, "--database", database], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.isascii()
    assert "\r" not in done.stdout
    assert "\x1b" not in done.stdout
    assert '@s.once("charge:{order_id}"' in done.stdout
    assert "11 of 11 promises kept" in done.stdout
    *shown, hint = done.stdout.splitlines()
    assert [line for line in shown if len(line) > 80] == []
    assert hint.startswith("Look at it: semel ls --url sqlite:///")
    assert done.stderr == ""
    assert database.exists()
    assert not list(tmp_path.glob("semel-demo-*")), "the temporary folder is gone"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_demo_that_is_interrupted_leaves_nothing_behind(tmp_path, number, code):
    env = os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    ) as demo:
        said = ""
        for line in demo.stdout:
            said += line
            if "SIGSTOP" in line:  # by now one worker is frozen, and another waits for its lease
                break
        demo.send_signal(number)
        rest, errors = demo.communicate()
    assert demo.returncode == code, errors
    assert "Traceback" not in errors
    assert_no_worker_is_left(said + rest)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_typed_into_a_terminal_ends_the_show(tmp_path):
    terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    env = os.environ | {"TMPDIR": str(tmp_path), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(
        [sys.executable, "-c", terminal, *DEMO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        start_new_session=True,
    ) as demo:
        seen = b""
        while b"SIGSTOP" not in seen and (more := os.read(demo.stdout.fileno(), 4096)):
            seen += more
        demo.stdin.write(b"\x03")
        demo.stdin.flush()
        while more := os.read(demo.stdout.fileno(), 4096):
            seen += more
    assert demo.returncode == 130, seen
    assert b"Traceback" not in seen
    assert b"\x1b[?25l" not in seen, "the cursor was never hidden"
    assert_no_worker_is_left(seen.decode())
    assert list(tmp_path.iterdir()) == []


def assert_no_worker_is_left(said):
    pids = {int(pid) for pid in re.findall(r"pid (\d+)", said)}
    assert len(pids) >= 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_table_of_promises_fits_into_eighty_columns_of_a_terminal(capsys):
    promises = [promise for scenario, facts in GOOD.items() for promise in judge(scenario, facts)]
    promises[1] = Promise(promises[1].promise, "answers: 50, distinct: 2", kept=False)
    print_promises(Console(force_terminal=True, color_system=None, width=80, soft_wrap=True), promises)
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80
    for promise in promises:
        row = next(line for line in shown if promise.promise in line)
        assert row.split()[0] == ("kept" if promise.kept else "BROKEN")
        assert row.endswith(promise.seen)
    assert "10 of 11 promises kept" in shown


@pytest.mark.parametrize("scenario", GOOD)
def test_good_facts_keep_every_promise(scenario):
    promises = judge(scenario, GOOD[scenario])
    assert promises
    assert all(promise.kept for promise in promises)


@pytest.mark.parametrize(
    ("scenario", "change", "promise"),
    [
        ("threads", {"executions": 2}, "Many threads, one execution"),
        ("threads", {"executions": 0}, "Many threads, one execution"),
        ("threads", {"answers": 49}, "All threads get the same answer"),
        ("threads", {"distinct": 2}, "All threads get the same answer"),
        ("killed", {"attempt": 1}, "A killed worker is replaced"),
        ("killed", {"after_lease": -0.2}, "But not while its lease runs"),
        ("killed", {"requests": 1}, "Every attempt has the same key"),
        ("killed", {"keys": 2}, "Every attempt has the same key"),
        ("zombie", {"refused": ""}, "A zombie's completion is refused"),
        ("zombie", {"stored": "R-1"}, "And its result is not stored"),
        ("later", {"answer": "R-9"}, "A later call replays the answer"),
        ("later", {"executions": 1}, "A later call replays the answer"),
        ("changed", {"refused": ""}, "A changed payload is refused"),
        ("changed", {"executions": 1}, "A changed payload is refused"),
        ("tasks", {"executions": 2}, "Many tasks, one execution"),
        ("tasks", {"distinct": 2}, "All tasks get the same answer"),
    ],
)
def test_bad_facts_break_their_promise_and_no_other(scenario, change, promise):
    promises = judge(scenario, GOOD[scenario] | change)
    assert [one.promise for one in promises if not one.kept] == [promise]


def test_a_scenario_that_did_not_finish_keeps_none_of_its_promises():
    assert [promise.kept for promise in judge("killed", {"stalled": "waited 30 s"})] == [False] * 3


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (GOOD, 0),
        (GOOD | {"threads": MANY | {"executions": 2}}, 1),
        (GOOD | {"later": {"stalled": "waited 30 s"}}, 1),
        ({}, 1),
    ],
    ids=["kept", "broken", "stalled", "nothing seen"],
)
def test_the_exit_code_is_zero_only_when_every_promise_was_kept(monkeypatch, facts, code):
    monkeypatch.setattr(demo_module, "run", lambda *_: facts)
    assert CliRunner().invoke(app, ["demo"]).exit_code == code
