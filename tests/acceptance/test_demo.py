"""`semel demo`, as somebody without a terminal runs it, and the verdicts that it ends with."""

import io
import json
import os
import re
import signal
import subprocess
import sys

import msgspec
import pytest
from rich.console import Console

from semel.cli.demo_stage import LiveStage
from semel.cli.demo_verdict import Herd, Later, Stalled, Takeover, Verdict, Zombie, exit_code, judge

DEMO = [sys.executable, "-m", "semel.cli", "demo"]

HERD = Herd(caller="threads", asked=50, processes=5, busy=49, executions=1, answers=50, distinct=1)
TAKEOVER = Takeover(attempt=2, waited=1.6, after_lease=0.1, requests=2, keys=1)
ZOMBIE = Zombie(refused="ClaimLost", offered="R-1", taken="R-2", stored="R-2")
LATER = Later(stored="R-1", answer="R-1", replay_executions=0, refused="PayloadChanged", changed_executions=0)


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
    facts = report["facts"]["later"]
    assert facts["answer"] == facts["stored"]
    assert facts["refused"] == "PayloadChanged"
    assert (facts["replay_executions"], facts["changed_executions"]) == (0, 0)


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


def test_ctrl_c_typed_into_a_terminal_ends_the_live_show(tmp_path):
    terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    env = os.environ | {"TMPDIR": str(tmp_path), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(
        [sys.executable, "-c", terminal, *DEMO, "--fast"],
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
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l"), "the cursor is back"
    assert_no_worker_is_left(seen.decode())
    assert list(tmp_path.iterdir()) == []


def assert_no_worker_is_left(said):
    pids = {int(pid) for pid in re.findall(r"pid (\d+)", said)}
    assert len(pids) >= 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_live_show_fits_into_eighty_columns():
    screen = io.StringIO()
    stage = LiveStage(Console(file=screen, force_terminal=True, color_system=None, width=80), breath=0)
    verdicts = [*judge(HERD), *judge(TAKEOVER), *judge(ZOMBIE), Verdict("A promise", "not kept", kept=False)]
    stage.open()
    with stage.act(1, "Back from the dead", "A worker is frozen."):
        stage.say("worker A", "is frozen with SIGSTOP", "yellow")
        stage.gauge("lease of A", 0.5, "0.7 s left")
        stage.settle("lease of A", 0, "lapsed")
    stage.close(verdicts, 9.0, "Next: semel --help")
    shown = screen.getvalue()
    assert "is frozen with SIGSTOP" in shown
    assert "lapsed" in shown
    for verdict in verdicts:
        row = next(line for line in shown.splitlines() if verdict.promise in line)
        assert verdict.seen in row, "it is not broken over two lines"
        assert row.split()[-1] == ("kept" if verdict.kept else "BROKEN")
    assert "7 of 8 promises kept" in shown


@pytest.mark.parametrize("facts", [HERD, TAKEOVER, ZOMBIE, LATER])
def test_good_facts_keep_every_promise(facts):
    assert exit_code(judge(facts)) == 0


@pytest.mark.parametrize(
    ("facts", "change", "promise"),
    [
        (HERD, {"executions": 2}, "Many threads, one execution"),
        (HERD, {"executions": 0}, "Many threads, one execution"),
        (HERD, {"answers": 49}, "All threads get the same answer"),
        (HERD, {"distinct": 2}, "All threads get the same answer"),
        (TAKEOVER, {"attempt": 1}, "A killed worker is replaced"),
        (TAKEOVER, {"after_lease": -0.2}, "But not while its lease runs"),
        (TAKEOVER, {"keys": 2}, "Every attempt has the same key"),
        (ZOMBIE, {"refused": ""}, "A zombie's completion is refused"),
        (ZOMBIE, {"stored": "R-1"}, "And its result is not stored"),
        (LATER, {"answer": "R-9"}, "A later call replays the answer"),
        (LATER, {"replay_executions": 1}, "A later call replays the answer"),
        (LATER, {"refused": ""}, "A changed payload is refused"),
        (LATER, {"changed_executions": 1}, "A changed payload is refused"),
    ],
)
def test_bad_facts_break_their_promise_and_no_other(facts, change, promise):
    verdicts = judge(msgspec.structs.replace(facts, **change))
    assert [verdict.promise for verdict in verdicts if not verdict.kept] == [promise]
    assert exit_code(verdicts) == 1


def test_an_act_that_did_not_finish_is_a_broken_promise():
    verdicts = judge(Stalled("Killed half-way", "waited 30 s"))
    assert verdicts == [Verdict("Killed half-way", "did not finish: waited 30 s", kept=False)]
    assert exit_code(verdicts) == 1


def test_a_demo_that_saw_nothing_has_not_succeeded():
    assert exit_code([]) == 1
