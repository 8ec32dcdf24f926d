"""What is pending when the interpreter ends keeps no process alive."""

import subprocess
import sys

import pytest

from tests.places import NAMES, open_place

SCRIPT = """
import asyncio, sys
import semel

s = semel.connect(sys.argv[1], env=sys.argv[2])

@s.once("k")
async def work() -> None:
    await asyncio.Event().wait()

loop = asyncio.new_event_loop()
task = loop.create_task(work())
for _ in range(200):
    loop.run_until_complete(asyncio.sleep(0.01))
    if (record := s.ledger.get("k")) is not None:
        break
print(record.status, flush=True)
"""


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ministack"])
def test_a_coroutine_that_is_pending_at_the_end_keeps_no_process_alive(name, request, tmp_path):
    place = open_place(name, request, tmp_path)
    done = run(SCRIPT, place.url(), place.env)
    assert done.stdout.strip() == "IN_PROGRESS"
    assert "Traceback" not in done.stderr


# Uses of every background thread: each makes a function that needs the thread, and one that closes it.

HEARTBEAT = """
def users():
    s = semel.connect(url, env=env)
    keys = iter("ab")

    def use():
        try:
            with s.once.running(next(keys)):
                pass
        except semel.NotBegun:
            assert sys.is_finalizing()
    return use, s.close
"""

WAITING = """
def users():
    s = semel.connect(url, env=env)
    if s.ledger.get("k") is None:
        s.ledger.claim("k", lease=60)

    def use():
        try:
            s.ledger.wait("k", 0.2)
        except semel.InProgress:
            return
        raise AssertionError("it waited for nobody")
    return use, s.close
"""

# Enough writes for some expired rows to be removed.
REAPING = """
def users():
    from semel.stores.postgres.background import REAP_BATCH
    s = semel.connect(url, env=env)

    def use():
        for _ in range(REAP_BATCH):
            s.store._background.count_write()
    return use, s.close
"""

RATES = """
def users():
    s = semel.connect(url, env=env)
    keeper = s.keep_rates()
    return lambda: keeper(semel.Event(semel.What.REPLAYED, "k")), s.close
"""

SWITCHES = """
def users():
    from semel.gate import KillSwitch
    s = semel.connect(url, env=env)
    gate = s.gate(KillSwitch("safe_mode"))
    return lambda: gate.decide("reply:1"), s.close
"""

WORKERS = """
def users():
    from semel.stores.workers import WorkerThreads
    workers = WorkerThreads(2, "semel-workers")

    def use():
        try:
            assert workers.map(str, [1, 2]) == ["1", "2"] and not sys.is_finalizing()
        except semel.StoreUnavailable:
            assert sys.is_finalizing()
    return use, workers.stop
"""

CREDENTIALS = """
def users():
    import time
    from semel.aws.environment import CredentialCache, Credentials
    held = Credentials("key", "secret", None, time.time() + 60)
    cache = CredentialCache(lambda _: held, time.time)
    cache.load()

    def use():
        assert cache.current() is held
        cache._not_before = 0.0
    return use, lambda: None
"""

# A cycle that is garbage when the program ends is collected once the interpreter is finalizing.
AT_THE_END = """
import gc, sys, threading
import semel

url, env = sys.argv[1:]
started = []
start = threading.Thread.start

def noted(thread):
    started.append((thread.name, sys.is_finalizing()))
    start(thread)

threading.Thread.start = noted
{users}

class Last:
    def __init__(self):
        self.cycle = self
        self.users = [users() for _ in range(2)]
        self.users[0][0]()
        names.extend(name for name, _ in started)

    def __del__(self):
        assert sys.is_finalizing()
        for use, close in self.users:
            use()
            close()
        assert [name for name, late in started if late] == []
        print(*sorted(set(names)), flush=True)

names = []
gc.set_threshold(0)
Last()
"""

THREADS = {
    "heartbeat": ("semel-heartbeat", HEARTBEAT, "memory"),
    "listener": ("semel-redis-listener", WAITING, "redis"),
    "notifications": ("semel-postgres", WAITING, "postgres"),
    "reaping": ("semel-postgres", REAPING, "postgres"),
    "workers": ("semel-workers", WORKERS, "memory"),
    "rates": ("semel-rates", RATES, "memory"),
    "switches": ("semel-switches", SWITCHES, "memory"),
    "credentials": ("semel-credentials", CREDENTIALS, "memory"),
}


@pytest.mark.parametrize("which", THREADS)
def test_no_thread_starts_or_is_waited_for_while_the_interpreter_ends(which, request, tmp_path):
    """Neither by what has a thread already, nor by what would need its first."""
    thread, users, name = THREADS[which]
    place = open_place(name, request, tmp_path)
    done = run(AT_THE_END.replace("{users}", users), place.url(), place.env)
    assert done.stdout.split() == [thread], done.stderr
    assert done.stderr == ""


def run(script, *arguments):
    """Run a program that has to end by itself."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
