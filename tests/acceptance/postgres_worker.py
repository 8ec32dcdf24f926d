"""A process to be killed, or to be woken: what `test_postgres.py` lets other processes do."""

import asyncio
import json
import os
import sys
import threading

import semel
from semel.core.commands import Watch
from semel.stores.postgres import PostgresStore
from semel.stores.postgres.store import WORTH_SUBSCRIBING
from semel.tables import LEDGER

# Nobody waits so long: who is woken was told.
AGES = 3600.0


def say(*words):
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def work(url, effects, jobs):
    """Do each job once, and tell of every step."""
    out = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with semel.connect(url, env="test") as s:

        @s.once("job:{n}", lease=0.2, ttl=3600, wait=60)
        def job(n: int) -> str:
            attempt = semel.current_run().attempt
            value = f"{n}:{attempt}:{os.urandom(8).hex()}"
            say("begun", n, attempt)
            os.write(out, (json.dumps([n, attempt, value]) + "\n").encode())
            say("happened", n, attempt)
            return value

        for n in range(int(jobs)):
            while True:
                try:
                    say("told", n, job(n))
                    break
                except semel.ClaimLost:
                    # This machine stood still for longer than the lease, and somebody else took over.
                    continue


def wait(url, id):
    """Look once in a while, and when told to, wait for a very long time."""
    store = PostgresStore(url, env="test")
    look_until_subscribed(lambda: store.execute(Watch(LEDGER, id, WORTH_SUBSCRIBING)))
    seen = []
    waiter = threading.Thread(target=lambda: seen.append(store.execute(Watch(LEDGER, id, AGES))))
    waiter.start()
    while not len(store._watchers):
        pass
    say("waiting")
    waiter.join()
    say("woken", seen[0].item["status"])
    store.close()


def await_(url, id):
    """The same as a task of an event loop, which runs in a thread of its own."""
    store = PostgresStore(url, env="test")
    loop = asyncio.new_event_loop()
    runner = threading.Thread(target=loop.run_forever)
    runner.start()

    def watch(seconds):
        return asyncio.run_coroutine_threadsafe(store.aexecute(Watch(LEDGER, id, seconds)), loop)

    look_until_subscribed(lambda: watch(WORTH_SUBSCRIBING).result())
    waiter = watch(AGES)
    while not len(store._watchers):
        pass
    say("waiting")
    say("woken", waiter.result().item["status"])
    asyncio.run_coroutine_threadsafe(store.leave(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    runner.join()
    loop.close()
    store.close()


def look_until_subscribed(look):
    told = threading.Thread(target=sys.stdin.readline, daemon=True)
    told.start()
    while told.is_alive():
        look()


if __name__ == "__main__":
    ways: dict = {"work": work, "wait": wait, "await": await_}
    ways[sys.argv[1]](*sys.argv[2:])
