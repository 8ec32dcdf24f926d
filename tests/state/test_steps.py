"""Steps: an event's actions, each under a key made from the event's, so that none happens twice."""

import asyncio
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

import semel
from semel.core.drive import drive
from semel.errors import InvalidKey, PayloadChanged, Reentered, ResultNotKept, StoreUnavailable
from semel.testing import Faulty
from semel.testing.faulty import WRITES
from tests.state.conftest import Sync
from tests.state.crowds import opened

WORKER = Path(__file__).with_name("step_worker.py")
ACTIONS = ("reply", "tag", "assign")
LEASE = 30


@pytest.fixture
def place(room):
    return room


def perform(do, event, *args):
    """Run an event, whether it is a function or a coroutine function."""
    return do(lambda _: event(*args))


def eventful(way, do, act, **options):
    """An event with three actions, as a function for `s` and as a coroutine function for `s.aio`."""
    s = do.s

    async def aact(name):
        return act(name)

    @s.once("evt:rp:{conversation}:{message}", **options)
    def event(conversation: str, message: str) -> list[str]:
        return [s.once.step(name, act, name) for name in ACTIONS]

    @s.once("evt:rp:{conversation}:{message}", shared=True, **options)
    async def aevent(conversation: str, message: str) -> list[str]:
        return [await s.once.step(name, aact, name) for name in ACTIONS]

    return event if way is Sync else aevent


def record(do, key):
    """A record of the ledger as it is kept."""
    return drive(do.s.ledger.steps.get(key), do.s.store)


class Killed(BaseException):
    """The process is gone."""


class Mortal(Faulty):
    """A store as a process sees it that is killed before or after its so many-eth write."""

    def __init__(self, store):
        super().__init__(store)
        self.life = float("inf")
        self.after = False

    def kill(self, number, *, after):
        self.life, self.after = number, after

    def at_once(self, command):
        return None

    def execute(self, command):
        self._last(command)
        return self._died(command, self.inner.execute(command))

    async def aexecute(self, command):
        self._last(command)
        return self._died(command, await self.inner.aexecute(command))

    def _last(self, command):
        if isinstance(command, WRITES):
            self.life -= 1
        if self.life < 0 or (self.life == 0 and not self.after and isinstance(command, WRITES)):
            self.life = -1
            raise Killed

    def _died(self, command, reply):
        if self.life == 0 and isinstance(command, WRITES):
            self.life = -1
            raise Killed
        return reply


# The claim and the completion of the event, and of each of three actions.
EVENT_WRITES = 8
# Before these an action has happened, and nobody has been told: what is right then is a matter of policy.
COMPLETIONS = {3: "reply", 5: "tag", 7: "assign"}


@pytest.mark.seed("R5", "R8")
def test_an_event_that_is_killed_between_two_actions_does_none_of_them_twice(place, way, clock):
    """Before and after every write there is, it is killed, and run again when its lease is over."""
    store = Mortal(place.open(clock))
    happened: Counter[str] = Counter()

    def act(name):
        happened[name] += 1
        return f"{name} done"

    with opened(way, store, place, clock=clock) as do:
        event = eventful(way, do, act, lease=LEASE)
        deaths = 0
        for number in range(1, EVENT_WRITES + 1):
            for after in (False, True):
                happened.clear()
                message = f"m{number}{after}"
                store.kill(number, after=after)
                with pytest.raises(Killed):
                    perform(do, event, "c1", message)
                deaths += 1
                store.kill(float("inf"), after=False)
                clock.advance(LEASE + 1)
                assert perform(do, event, "c1", message) == [f"{name} done" for name in ACTIONS]
                twice = {COMPLETIONS[number]} if number in COMPLETIONS and not after else set()
                assert happened == {name: 2 if name in twice else 1 for name in ACTIONS}
        assert deaths == 2 * EVENT_WRITES


def test_an_action_that_fails_is_tried_again_and_those_before_it_are_not(do, way, clock):
    """An outage of the other side for longer than the event is remembered: every attempt puts that off."""
    happened: Counter[str] = Counter()
    down = [True]

    def act(name):
        happened[name] += 1
        if name == "assign" and down[0]:
            raise ConnectionError("nobody there")
        return name

    event = eventful(way, do, act, ttl=3600)
    for _ in range(6):
        with pytest.raises(ConnectionError):
            perform(do, event, "c1", "m1")
        clock.advance(1800)
    down[0] = False
    assert perform(do, event, "c1", "m1") == list(ACTIONS)
    assert happened == {"reply": 1, "tag": 1, "assign": 7}


def test_an_action_that_failed_for_good_stays_so_as_long_as_its_event(do, clock):
    """What was kept of it is raised at every attempt of the event."""
    happened: Counter[str] = Counter()

    @do.s.once("act", on_error={ValueError: "keep"}, ttl=3600)
    def act() -> None:
        happened["act"] += 1
        raise ValueError("no such customer")

    @do.s.once("evt:{n}", ttl=3600)
    def event(n: int) -> None:
        do.s.once.step("act", act)

    for _ in range(5):
        with pytest.raises(ValueError, match="no such customer"):
            event(1)
        clock.advance(1800)
    assert happened["act"] == 1


@contextmanager
def worker(tmp_path):
    url, done = f"sqlite:///{tmp_path / 'semel.db'}", tmp_path / "done.txt"
    command = [sys.executable, str(WORKER), url, str(done)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.seed("R5")
def test_a_process_that_is_killed_between_two_actions_does_none_of_them_twice(tmp_path):
    """`kill -9` before the second action, then before the third; the third process goes through."""
    for life in (2, 3, None):
        with worker(tmp_path) as process:
            for number, name in enumerate(ACTIONS, 1):
                assert process.stdout.readline() == f"{name}\n"
                if number == life:
                    break
                process.stdin.write("go on\n")
                process.stdin.flush()
            else:
                assert process.stdout.readline() == f"{list(ACTIONS)}\n"
    assert (tmp_path / "done.txt").read_text().split() == list(ACTIONS)


# Keys


@pytest.mark.seed("R5")
def test_a_step_s_key_is_made_from_the_event_s(do, way):
    """From immutable properties only, and so that no two steps of any events meet."""
    event = eventful(way, do, lambda name: name)
    perform(do, event, "c1", "m1")
    for name in ACTIONS:
        assert record(do, f"evt:rp:c1:m1>{name}").status == "COMPLETED"

    @do.s.once("evt:{n}")
    def other(n: str) -> list[str]:
        run = semel.current_run()
        do.s.once.step(("tag", "vip:yes", 7), lambda: None)
        return [run.step("reply"), run.step("tag", "vip:yes", 7), run.step("a>b"), run.step("a", "b")]

    assert other("1>reply") == [
        "evt:1%3Ereply>reply",
        "evt:1%3Ereply>tag:vip%3Ayes:7",
        "evt:1%3Ereply>a%3Eb",
        "evt:1%3Ereply>a:b",
    ]
    assert record(do, "evt:1%3Ereply>tag:vip%3Ayes:7").status == "COMPLETED"


def test_a_step_inside_a_step_has_both_names(do, way):
    """And each is done once, however often the event is tried."""
    happened: Counter[str] = Counter()
    failures = iter([True, False])
    s = do.s

    def inner():
        happened["inner"] += 1

    @s.once("evt:{n}")
    def event(n: int) -> str:
        def outer():
            s.once.step("inner", inner)
            if next(failures):
                raise ConnectionError("nobody there")
            return semel.current_run().key

        return s.once.step("outer", outer)

    @s.once("evt:{n}", shared=True)
    async def aevent(n: int) -> str:
        async def ainner():
            inner()

        async def outer():
            await s.once.step("inner", ainner)
            if next(failures):
                raise ConnectionError("nobody there")
            return semel.current_run().key

        return await s.once.step("outer", outer)

    work = event if way is Sync else aevent
    with pytest.raises(ConnectionError):
        perform(do, work, 1)
    assert perform(do, work, 1) == "evt:1>outer"
    assert happened["inner"] == 1
    assert record(do, "evt:1>outer>inner").status == "COMPLETED"


def test_the_steps_of_an_async_event_may_be_done_at_the_same_time(place, clock):
    happened: Counter[str] = Counter()
    s = semel.Semel(place.open(clock), env=place.env, scope=place.scope, clock=clock)

    async def act(name):
        await asyncio.sleep(0)
        happened[name] += 1
        return name

    @s.once("evt:{n}")
    async def event(n: int) -> list[str]:
        return list(await asyncio.gather(*(s.once.step(name, act, name) for name in ACTIONS)))

    async def main():
        assert await event(1) == list(ACTIONS)
        assert await event(1) == list(ACTIONS)
        await s.aio.close()

    asyncio.run(main())
    assert happened == dict.fromkeys(ACTIONS, 1)


def test_the_same_step_with_other_arguments_is_refused(do):
    """One name is one action; twice in one event it gives what it gave the first time."""

    @do.s.once("evt:{n}")
    def event(n: int) -> list[int]:
        told = [do.s.once.step("double", _double, 1), do.s.once.step("double", _double, 1)]
        with pytest.raises(PayloadChanged):
            do.s.once.step("double", _double, 2)
        return told

    assert event(1) == [2, 2]


def _double(number: int) -> int:
    return number * 2


def test_a_step_of_the_same_name_inside_itself_is_another_one(do):
    def outer():
        return do.s.once.step("again", lambda: "inner")

    @do.s.once("evt:{n}")
    def event(n: int) -> str:
        with pytest.raises(Reentered):
            do.s.once.call("evt:1", _double, 1)
        return do.s.once.step("again", outer)

    assert event(1) == "inner"


# How long, about whom, by which policy


@pytest.mark.seed("R6")
def test_a_step_is_kept_as_long_as_its_event(do, way, clock):
    """A plain function's; one that has a policy of its own is kept as that says."""
    event = eventful(way, do, lambda name: name, ttl=7200, lease=60)
    perform(do, event, "c1", "m1")
    ends = [record(do, "evt:rp:c1:m1").expires_at]
    ends += [record(do, f"evt:rp:c1:m1>{name}").expires_at for name in ACTIONS]
    assert ends == [pytest.approx(clock.now() + 7200, abs=1)] * 4

    @do.s.once("double:{number}", ttl=600)
    def double(number: int) -> int:
        return number * 2

    @do.s.once("evt:{n}", ttl=7200)
    def other(n: int) -> int:
        return do.s.once.step("double", double, n)

    assert other(4) == 8
    assert record(do, "evt:4>double").expires_at == pytest.approx(clock.now() + 600, abs=1)
    assert record(do, "double:4") is None


def test_an_event_may_be_kept_for_less_than_the_ledger_s_horizon_and_so_may_its_steps(clock):
    """The other side of this one event gives up sooner, and said so."""
    with semel.connect("memory:", clock=clock, horizon=3 * 86400) as s:

        @s.once("evt:{n}", horizon=60, ttl=7200)
        def event(n: int) -> str:
            return s.once.step("reply", lambda: "sent")

        assert event(1) == "sent"


def test_a_step_is_about_the_same_person_as_its_event(do, way):
    """When that one is forgotten, the results of the steps go too, and they are still known to be done."""
    happened: Counter[str] = Counter()

    def act(name):
        happened[name] += 1
        return "to anna@example.com"

    event = eventful(way, do, act, subject="{conversation}")
    perform(do, event, "c1", "m1")
    records = [record(do, key) for key in ("evt:rp:c1:m1", "evt:rp:c1:m1>reply", "evt:rp:c1:m1>tag")]
    assert len({one.subject for one in records}) == 1
    assert records[0].subject is not None
    assert do(lambda s: s.forget_subject("c1")).records == 4
    assert record(do, "evt:rp:c1:m1>reply").result is None
    with pytest.raises(ResultNotKept):
        perform(do, event, "c1", "m1")
    assert happened == dict.fromkeys(ACTIONS, 1)


# What is wrong


def test_a_step_needs_a_name_and_work_that_it_belongs_to(do):
    @do.s.once("evt:{n}")
    def event(n: int) -> None:
        run = semel.current_run()
        with pytest.raises(InvalidKey, match="a step needs a name"):
            run.step()
        for name in ("", ()):
            with pytest.raises(InvalidKey):
                do.s.once.step(name, _double, 1)

    event(1)
    with pytest.raises(LookupError, match="no function of semel's is running here"):
        do.s.once.step("reply", _double, 1)
    with pytest.raises(LookupError):
        semel.current_run()


def test_without_a_store_a_step_is_not_done(place, clock):
    """Work that runs all the same while the store is down is not protected; its steps insist on it."""

    class Down(Faulty):
        down = False

        def execute(self, command):
            if self.down:
                raise StoreUnavailable("the store cannot be reached")
            return self.inner.execute(command)

    happened: Counter[str] = Counter()
    store = Down(place.open(clock))
    with semel.Semel(store, env=place.env, scope=place.scope, clock=clock) as s:

        @s.once("evt:{n}", on_store_error="open")
        def event(n: int) -> None:
            happened["event"] += 1
            s.once.step("reply", happened.update, ["reply"])

        store.down = True
        with pytest.raises(StoreUnavailable):
            event(1)
        store.down = False
        event(1)
        assert s.ledger.get("evt:1>reply").status == "COMPLETED"
    assert happened == {"event": 2, "reply": 1}
