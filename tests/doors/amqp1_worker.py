"""A worker that is killed: python -m tests.doors.amqp1_worker URL FILE QUEUE...

Every message's effect is a row in the file, written together with the ledger's own in one transaction. Some
messages kill the worker, once each, halfway through that or right after it.
"""

import os
import signal
import sqlite3
import sys
import threading
from functools import partial

import semel
from semel.doors.amqp1 import Consumer

TABLE = "CREATE TABLE IF NOT EXISTS effects (id TEXT, grp TEXT, seq INTEGER, pid INTEGER)"
own = threading.local()


def database(file: str) -> sqlite3.Connection:
    if not hasattr(own, "connection"):
        own.connection = sqlite3.connect(file, timeout=60, isolation_level=None)
    return own.connection


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def handle(s: semel.Semel, file: str, message) -> None:
    run, body, db = semel.current_run(), message.body, database(file)
    db.execute("BEGIN IMMEDIATE")
    db.execute(
        "INSERT INTO effects VALUES (?, ?, ?, ?)", (message.id, message.group_id, body["seq"], os.getpid())
    )
    with s.transaction(within=db) as tx:
        tx.ledger.complete(run, "done")
    if body["dies"] == "before" and run.attempt == 1:
        die()
    db.execute("COMMIT")
    if body["dies"] == "after":
        die()


def main(url: str, file: str, *queues: str) -> None:
    s = semel.connect(f"sqlite:///{file}")
    consumers = [
        Consumer(s, url, f"/amq/queue/{queue}", partial(handle, s, file), workers=2, lease=1.0)
        for queue in queues
    ]

    def stop(*_: object) -> None:
        for consumer in consumers:
            consumer.stop()

    signal.signal(signal.SIGTERM, stop)
    threads = [threading.Thread(target=consumer.run) for consumer in consumers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    s.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
