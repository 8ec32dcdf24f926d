"""A worker of an inbox, to be killed: a row for each message, in one transaction with its completion."""

import os
import signal
import sqlite3
import sys
import threading

import semel
from semel.doors.inbox import Message, open_inbox
from tests.doors.fates import Fate


def main(path: str, after: str, moment: str) -> None:
    s = semel.connect(f"sqlite:///{path}", env="inbox")
    fate, mine = Fate(int(after), moment), threading.local()

    def connection() -> sqlite3.Connection:
        if not hasattr(mine, "connection"):
            mine.connection = sqlite3.connect(path, timeout=60)
        opened: sqlite3.Connection = mine.connection
        return opened

    def handle(message: Message) -> None:
        fate.at("claimed")
        if message.body["n"] % 17 == 5 and message.attempt == 1:
            raise ConnectionError("the first time it fails")
        with connection() as rows:
            row = (message.group, message.body["n"], os.getpid())
            rows.execute("INSERT INTO effects (conversation, n, pid) VALUES (?, ?, ?)", row)
            fate.at("written")
            with s.transaction(within=rows) as tx:
                tx.ledger.complete(semel.current_run(), None)
        fate.at("committed")

    inbox = open_inbox(s, "in")
    # It dies often here, and each time it had begun: that is no reason to give a message up.
    worker = inbox.worker(handle, workers=3, poll=0.1, lease=1, backoff=lambda _: 0.05, max_attempts=None)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()
    s.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
