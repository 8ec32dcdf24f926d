"""A consumer to be killed: a row for each message, in one transaction with the message's completion."""

import signal
import sqlite3
import sys
import threading

import semel
from semel.doors.sqs import Consumer, Message, Queue
from tests.doors.fates import Fate


def main(path: str, url: str, after: str, moment: str) -> None:
    s = semel.connect(f"sqlite:///{path}", env="sqs")
    fate, mine, queue = Fate(int(after), moment), threading.local(), Queue(url)

    def connection() -> sqlite3.Connection:
        if not hasattr(mine, "connection"):
            mine.connection = sqlite3.connect(path, timeout=60)
        opened: sqlite3.Connection = mine.connection
        return opened

    def handle(message: Message) -> None:
        told = message.json()
        fate.at("claimed")
        if told["n"] % 25 == 7 and message.deliveries == 1:
            # What a visibility that is over does: somebody else gets it too, while it is worked on.
            again = {"ReceiptHandle": message.receipt, "VisibilityTimeout": 0}
            queue.call("ChangeMessageVisibility", again)
        with connection() as rows:
            rows.execute("INSERT INTO effects (conversation, n) VALUES (?, ?)", (message.group, told["n"]))
            fate.at("written")
            with s.transaction(within=rows) as tx:
                tx.ledger.complete(semel.current_run(), None)
        fate.at("committed")

    consumer = Consumer(
        s,
        url,
        handle,
        key=lambda message: semel.Key(message.group, message.json()["n"]),
        workers=4,
        poll=1,
        backoff=lambda _: 0,
        lease=1,
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()
    queue.close()
    s.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
