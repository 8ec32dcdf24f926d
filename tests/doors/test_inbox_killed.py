"""An inbox on one SQLite file, and worker processes that are killed again and again."""

import random
import sqlite3
from contextlib import ExitStack, closing
from signal import SIGTERM

import pytest

import semel
from semel.doors.inbox import Message, open_inbox
from tests.amounts import amount
from tests.doors.fates import MOMENTS, WorkerProcesses
from tests.servers.running import until

CONVERSATIONS, PROCESSES = 10, 3
MESSAGES = amount(1000, 300)


def conversations() -> list[Message]:
    """What happens in each conversation, in order; every tenth is said twice, and not at once."""
    said = []
    for n in range(MESSAGES // CONVERSATIONS):
        said += [Message(f"c{who}-{n}", {"n": n}, f"c{who}") for who in range(CONVERSATIONS)]
        said += [Message(f"c{who}-{n}", {"n": n}, f"c{who}") for who in range(CONVERSATIONS) if who == n % 10]
    return said


@pytest.mark.situation(4)
@pytest.mark.seed("R8")
@pytest.mark.seed("R10")
@pytest.mark.proof("inbox")
@pytest.mark.parametrize("shards", [1, 4])
def test_killed_workers_handle_every_message_once_and_in_order(tmp_path, tried, monkeypatch, shards):
    """Hundreds of messages in ten groups, every tenth put in twice, by processes that die at any moment.

    The number of shards is raised when half of them have been put in.
    """
    # Nobody else is at work yet, who would have to know of it first.
    monkeypatch.setattr("semel.state.shards.NOTICE_SECONDS", 0.0)
    path = tmp_path / "effects.db"
    with ExitStack() as stack:
        rows = stack.enter_context(closing(sqlite3.connect(path, timeout=60)))
        with rows:
            rows.execute("PRAGMA journal_mode=WAL")
            rows.execute("CREATE TABLE effects (id INTEGER PRIMARY KEY, conversation TEXT, n INT, pid INT)")
        s = stack.enter_context(semel.connect(f"sqlite:///{path}", env="inbox"))
        inbox = open_inbox(s, "in")
        said = conversations()
        half = len(said) // 2
        inbox.put(*said[:half])
        inbox = open_inbox(s, "in", shards=shards)
        inbox.waiting()
        rng = random.Random(3)
        fates = [(rng.randint(3, 12), moment) for moment in MOMENTS]
        processes = WorkerProcesses(stack, ["tests.doors.inbox_worker", str(path)], fates, rng, PROCESSES)
        inbox.put(*said[half:])
        killings = list(range(MESSAGES // 3, MESSAGES, MESSAGES // 4))

        def all_done() -> bool:
            processes.replace_the_dead()
            done = rows.execute("SELECT count(*) FROM effects").fetchone()[0]
            if killings and done >= killings[0]:
                killings.pop(0)
                processes.kill_one()
            return inbox.waiting() == 0

        assert until(all_done)
        # All of them end by themselves, but for one that has not even begun.
        ends = set(processes.dismiss())
        assert 0 in ends
        assert ends <= {0, -SIGTERM}
        assert inbox.dead() == []
        told = rows.execute("SELECT conversation, n, pid FROM effects ORDER BY id").fetchall()
    assert processes.killed >= 3
    assert len({pid for _, _, pid in told}) >= 3, "several of them had a part in it"
    assert len(told) == MESSAGES
    for who in range(CONVERSATIONS):
        assert [n for c, n, _ in told if c == f"c{who}"] == list(range(MESSAGES // CONVERSATIONS))
    tried(MESSAGES, seed="3")
