"""What the workers of every task queue do: they charge orders, and one of them is killed in the middle."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import semel

BROKER = os.environ["SEMEL_TEST_TASKS_BROKER"]
PLACE = Path(os.environ["SEMEL_TEST_TASKS_PLACE"])
FATAL = os.environ["SEMEL_TEST_TASKS_FATAL"]

s = semel.connect(f"sqlite:///{PLACE / 'semel.db'}", env="tasks")


def rows():
    return closing(sqlite3.connect(PLACE / "semel.db", timeout=60))


def charge(queue, order):
    """The effect: a row, written together with the completion of the key."""
    receipt = f"{order} {os.urandom(8).hex()}"
    with rows() as connection, connection:
        connection.execute("INSERT INTO effects VALUES (?, ?, ?)", (queue, order, receipt))
        die_once(queue, order)
        with s.transaction(within=connection) as tx:
            tx.ledger.complete(semel.current_run(), receipt)
    return receipt


def die_once(queue, order):
    if order == FATAL:
        try:
            (PLACE / f"{queue}.died").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def note(queue, id, result):
    """What a task was told."""
    with rows() as connection, connection:
        connection.execute("INSERT INTO results VALUES (?, ?, ?)", (queue, str(id), result))
