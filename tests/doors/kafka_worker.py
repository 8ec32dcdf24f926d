"""A consumer to be killed: it writes a row for each message, together with its completion."""

import json
import os
import signal
import sqlite3
import sys
from contextlib import closing

import semel
from semel.doors.kafka import Consumer


def main(path: str, servers: str, topic: str, after: str) -> None:
    left = int(after)
    s = semel.connect(f"sqlite:///{path}", env="kafka", on_event=lambda event: told(event.what))

    def told(word: str) -> None:
        sys.stdout.write(f"{word}\n")
        sys.stdout.flush()

    def handle(message) -> None:
        nonlocal left
        order = json.loads(message.value())["order"]
        with rows:
            rows.execute(
                "INSERT INTO effects (name, part, place) VALUES (?, ?, ?)",
                (order, message.partition(), message.offset()),
            )
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            with s.transaction(within=rows) as tx:
                tx.ledger.complete(semel.current_run(), None)

    config = {
        "bootstrap.servers": servers,
        "group.id": "billing",
        "session.timeout.ms": 6000,
        "log_level": 0,
    }
    consumer = Consumer(s, config, [topic], handle, key=lambda message: message.key().decode(), lease=1)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    with closing(sqlite3.connect(path, timeout=60)) as rows:
        consumer.run()
    s.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
