"""A worker to be killed: for each line it is told, a child of its own makes one deal and asks one gate.

The children are forked from a process that has imported everything, as starting Python takes longer than the
whole of their work.
"""

import json
import os
import signal
import sqlite3
import sys
import traceback

import semel
import semel.stores.dynamodb
import semel.stores.postgres
import semel.stores.redis
import semel.stores.sqlite
from semel.gate import Cap
from semel.testing import FakeClock


def say(*words):
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def increment(document):
    return {"n": (document or {"n": 0})["n"] + 1}


def deal(s, run):
    """One answer: claimed, and then completed, counted, known and written down in one write."""
    claim = s.ledger.claim(f"message:{run}", lease=30, ttl=3600)
    if not isinstance(claim, semel.Claimed):
        return claim.result
    with s.transaction() as tx:
        tx.ledger.complete(claim, run)
        tx.counters.charge(f"replies:{run}", cap=3, token=f"m:{run}")
        tx.documents.update(f"chat:{run}", increment)
        tx.journal.append(f"chat:{run}", {"told": run}, key=f"act:{run}", actor="ann")
        tx.journal.append(f"log:{run}", {"told": run})
    return run


def decide(s, run):
    """One decision of a gate: recorded, counted and traced in one write, with a document of the caller's."""
    gate = s.gate(Cap(f"sends:{run}", 3), trace=f"trace:{run}")
    return gate.decide(f"send:{run}", also=lambda tx, _: tx.documents.update(f"sent:{run}", increment))


NOT_DEALT, DEALT = (False, 0, None, 0, 0), (True, 1, (1, 1), 1, 1)
NOT_DECIDED, DECIDED = (0, None, 0), (1, (1, 1), 1)


def look(s, run):
    """What there is of a deal, and of a decision."""
    record = s.ledger.get(f"message:{run}")
    documents = [s.documents.get(f"{kind}:{run}") for kind in ("chat", "sent")]
    dealt = (
        record is not None and record.status == "COMPLETED",
        s.counters.look(f"replies:{run}").used,
        documents[0] and (documents[0].value["n"], documents[0].version),
        len(s.journal.list(f"chat:{run}").entries),
        len(s.journal.list(f"log:{run}").entries),
    )
    decided = (
        s.counters.look(f"sends:{run}").used,
        documents[1] and (documents[1].value["n"], documents[1].version),
        len(s.journal.list(f"trace:{run}").entries),
    )
    return dealt, decided


def check(s, clock, run):
    """All or none of each; then, after the lease of whoever was killed, it is done again, all of it."""
    dealt, decided = look(s, run)
    assert dealt in (NOT_DEALT, DEALT), run
    assert decided in (NOT_DECIDED, DECIDED), run
    clock.advance(31)
    for _ in range(2):
        assert deal(s, run) == run
        assert decide(s, run).allowed
        assert look(s, run) == (DEALT, DECIDED), run
    return dealt == DEALT, decided == DECIDED


def doomed(what, number):
    """Have this process killed when it begins its n-th statement of SQL, or n-th instruction of SQLite's."""
    left, connect = number, sqlite3.connect

    def count(*_):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def connected(*args, **kwargs):
        connection = connect(*args, **kwargs)
        if what == "statement":
            connection.set_trace_callback(count)
        else:
            connection.set_progress_handler(count, 1)
        return connection

    sqlite3.connect = connected


def work(run, url, env, now, doom):
    if doom:
        doomed(*doom)
    with semel.connect(url, env=env, clock=FakeClock(now)) as s:
        deal(s, run)
        decide(s, run)


def main():
    say("ready")
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                # Whoever is to kill it is told first, and then lets it begin.
                say("begins", os.getpid())
                sys.stdin.readline()
                work(**order)
                code = 0
            except BaseException:  # noqa: BLE001 - whatever it is, the parent's own end is not to be reached
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        say("ended", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
