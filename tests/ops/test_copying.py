"""A ledger is copied to another store while it is in use; nothing is lost by that, and nothing done twice."""

import itertools
import json
import threading
from collections import Counter
from typing import Any

import pytest

import semel
from semel.core.commands import Delete, Get, write
from semel.core.drive import drive
from semel.ops import copying, transfer
from semel.ops.copying import MARK, Copier, Differences
from semel.state.mailbox import Message
from semel.tables import INBOX, OWN
from semel.testing import FakeClock, Faulty
from tests.ops.moving import MOVED, claimed, fill, items_of

SECRET: dict[str, Any] = {"secret": b"s" * 32}


def without_mark(items):
    return {place: item for place, item in items.items() if not place[1].endswith(MARK)}


def handle(s, message):
    """Take the first message of a lane away, as whoever has handled it does."""
    letter = s.mailbox("in").letters(message.lane).letters[0]
    drive(write(Delete(INBOX, f"{s.env}//in", sort=letter.place)), s.store)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(MOVED, MOVED)))
def test_a_ledger_is_copied_between_every_two_stores(old, new, open_one, env):
    source, target = open_one(old), open_one(new)
    s = semel.Semel(source, env=env, **SECRET)
    running, _ = fill(s), fill(semel.Semel(source, env=f"{env}-other", **SECRET))
    tenant = s.scoped("tenant")
    also_running = fill(tenant)
    copier = Copier(source, target, env)
    copied = copier.copy()
    before = items_of(source, env)
    assert {place[0].name for place in before} == {table.name for table in OWN}
    assert (copied.items, copied.written, copied.running, copied.done) == (len(before), len(before), 2, False)
    assert without_mark(items_of(target, env)) == before
    assert items_of(target, f"{env}-other") == {}
    assert copier.check() == Differences(items=len(before))

    # The source goes on: what was there changes, something comes, and something goes.
    s.ledger.complete(running, "late")
    tenant.ledger.release(also_running, counted=False)
    s.ledger.resolve("unknown", semel.Happened("found"))
    s.ledger.complete(claimed(s, "new"), 1)
    s.documents.change("doc", {"more": 2})
    tenant.documents.delete("doc")
    s.journal.append("owner", {"did": "more"})
    s.counters.charge("calls", 1, cap=10, token="t-3")
    s.mailbox("in").put([Message("m-4", {"a": 4}, "g")])
    handle(s, Message("m-1", None, "g"))
    s.forget_subject("ann")
    found = copier.check()
    assert (found.complete, found.missing >= 4, found.older >= 5, found.only_there >= 4) == (
        False,
        *[True] * 3,
    )

    done = copier.switch_over(wait=0)
    assert (done.done, done.why, done.differences.complete) == (True, "", True), done
    assert without_mark(items_of(target, env)) == items_of(source, env)
    assert done.removed == found.only_there
    t = semel.Semel(target, env=env, **SECRET)
    assert t.ledger.claim("running").result == "late"
    assert t.ledger.get("unknown").status is semel.Status.COMPLETED


# What the switch-over waits for, and what it refuses


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def pair(open_one, env, clock):
    """Two ledgers in memory, of which the second is empty, and what copies from one to the other."""
    old, new = (semel.Semel(open_one("memory", clock), env=env, clock=clock, **SECRET) for _ in "ab")
    return old, new, Copier(old.store, new.store, env, clock=clock)


def test_it_waits_for_work_that_runs_and_takes_along_what_came_of_it(pair, clock):
    old, new, copier = pair
    first, second = claimed(old, "first", lease=60), claimed(old, "second", lease=60)
    clock.schedule(5, lambda: old.ledger.complete(first, "came of it"))
    clock.schedule(20, lambda: old.ledger.release(second))
    started = clock.now()
    done = copier.switch_over()
    assert (done.done, done.running) == (True, 0)
    assert 20 <= clock.now() - started < 30
    assert new.ledger.claim("first").result == "came of it"
    assert new.ledger.claim("second").attempt == 2


def test_work_that_does_not_end_in_time_is_told_and_the_switch_over_is_not_done(pair, clock):
    old, new, copier = pair
    claim = claimed(old, "long", lease=600)
    done = copier.switch_over(wait=30)
    assert (done.done, done.running) == (False, 1)
    assert "1 still at work in the source" in done.why
    assert new.ledger.get("long") is None
    old.ledger.complete(claim, "now")
    assert copier.switch_over().done
    assert new.ledger.claim("long").result == "now"


def test_work_whose_worker_vanished_comes_to_the_target_as_after_a_crash(pair, clock):
    old, new, copier = pair
    claimed(old, "rerun", lease=60)
    claimed(old, "hold", lease=60, on_lapsed="hold")
    done = copier.switch_over()
    assert (done.done, done.lapsed) == (True, 2)
    again = new.ledger.claim("rerun")
    assert (again.attempt, again.lapsed) == (2, True)
    assert isinstance(new.ledger.claim("hold", on_lapsed="hold"), semel.Unknown)


def test_a_source_that_is_still_written_to_is_noticed(pair, env):
    old, new, _ = pair
    numbers = itertools.count()

    def write(_done):
        old.journal.append("owner", {"n": next(numbers)})

    done = Copier(old.store, new.store, env, on_progress=write).switch_over()
    assert (done.done, done.why) == (False, copying.NOT_STILL)
    assert Copier(old.store, new.store, env).switch_over().done


def test_a_write_during_the_comparison_is_found_by_a_later_check(pair, env, clock):
    old, new, _ = pair
    for number in range(3):
        old.ledger.mark_processed(f"k:{number}")

    class Late(Faulty):
        """A target during whose comparison somebody writes to the source."""

        def execute(self, command):
            if isinstance(command, Get) and not command.key.endswith(MARK) and not late:
                late.append(command)
                clock.advance(1)
                old.ledger.check_and_set("late")
            return super().execute(command)

    late: list[Get] = []
    copier = Copier(old.store, Late(new.store), env, clock=clock)
    done = copier.switch_over()
    assert (done.done, done.items, len(late)) == (True, 3, 1)
    found = copier.check()
    assert (found.complete, found.places) == (False, (f"missing: ledger {env}//late",))


def test_a_worker_that_uses_the_target_too_soon_is_noticed_and_what_it_did_is_not_removed(pair):
    old, new, copier = pair
    old.ledger.mark_processed("old")
    old.mailbox("in").put([Message("m", 1)])
    copier.copy()
    new.ledger.complete(claimed(new, "too soon"), "done there")
    new.documents.put("too soon", {"n": 1})
    done = copier.switch_over()
    assert (done.done, done.why) == (False, copying.SOMEBODY_THERE)
    assert any("only there: ledger" in place and "too soon" in place for place in done.differences.places)
    assert new.ledger.claim("too soon").result == "done there"
    assert new.documents.get("too soon").value == {"n": 1}


def test_what_is_newer_in_the_target_is_never_written_over(pair, clock):
    old, new, copier = pair
    old.ledger.release(claimed(old, "both"))
    copier.copy()
    clock.advance(1)
    new.ledger.complete(claimed(new, "both"), "ran there")
    assert copier.copy().newer == 1
    done = copier.switch_over()
    assert (done.done, done.why, done.newer) == (False, copying.SOMEBODY_THERE, 1)
    assert new.ledger.claim("both").result == "ran there"


def test_an_attempt_that_was_given_back_uncounted_is_copied_though_its_number_is_lower(pair, clock):
    old, new, copier = pair
    claim = claimed(old, "key")
    copier.copy()
    clock.advance(1)
    old.ledger.release(claim, counted=False)
    assert copier.switch_over().done
    assert new.ledger.claim("key").attempt == 1


def test_a_target_that_is_somebodys_is_refused(pair):
    old, new, copier = pair
    new.documents.put("own", {"n": 1})
    for act in (copier.copy, copier.switch_over):
        with pytest.raises(semel.errors.UsageError, match="has items of environment"):
            act()
    assert new.documents.get("own").value == {"n": 1}
    with pytest.raises(semel.errors.UsageError, match="not to its own"):
        Copier(old.store, old.store, old.env)


def test_after_the_switch_over_nothing_more_is_copied_and_late_writes_are_found(pair, clock):
    old, new, copier = pair
    old.mailbox("in").put([Message("m", 1)])
    old.ledger.release(claimed(old, "k"))
    assert copier.switch_over().done
    clock.advance(1)
    new.ledger.complete(claimed(new, "k"), 1)
    handle(new, Message("m", 1))
    for act in (copier.copy, copier.switch_over):
        with pytest.raises(semel.errors.UsageError, match="the switch-over to this target is done"):
            act()
    assert copier.check() == Differences()
    old.ledger.check_and_set("by a worker that was not stopped")
    found = copier.check()
    assert (found.complete, found.items, found.missing) == (False, 1, 1)
    assert found.places == (f"missing: ledger {old.env}//by a worker that was not stopped",)


def test_after_a_crash_the_same_copy_goes_on(pair, env, clock, monkeypatch):
    monkeypatch.setattr(transfer, "PAGE", 5)
    old, new, _ = pair
    running = fill(old)
    seen = []

    def crash(done):
        seen.append(done)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Copier(old.store, new.store, env, on_progress=crash).copy()
    old.ledger.release(running)
    store = Faulty(new.store)
    store.lose_reply(2)
    assert Copier(old.store, store, env, clock=clock).switch_over().done
    assert without_mark(items_of(new.store, env)) == items_of(old.store, env)


def test_what_the_target_has_no_room_for_is_named(open_one, env):
    s = semel.Semel(open_one("memory"), env=env)
    s.documents.put("large", {"text": "x" * 500_000})
    s.documents.put("small", {"n": 1})
    target = open_one("dynoxide")
    done = Copier(s.store, target, env).switch_over()
    assert (done.done, done.why, len(done.refused)) == (False, copying.NO_ROOM, 1)
    assert f"documents {env}//large" in done.refused[0]
    t = semel.Semel(target, env=env)
    assert t.documents.get("small").value == {"n": 1}
    # One that was there, and has grown since.
    s.documents.delete("large")
    s.documents.put("small", {"text": "x" * 500_000})
    done = Copier(s.store, target, env).switch_over()
    assert (done.done, done.why, len(done.refused)) == (False, copying.NO_ROOM, 1)
    assert t.documents.get("small").value == {"n": 1}
    s.documents.put("small", {"n": 2})
    assert Copier(s.store, target, env).switch_over().done


def test_the_mark_of_an_earlier_move_stays_where_it_is(pair, open_one, env, clock):
    old, new, copier = pair
    old.ledger.mark_processed("k")
    assert copier.switch_over().done
    third = open_one("memory", clock)
    assert Copier(new.store, third, env, clock=clock).switch_over().done
    assert without_mark(items_of(third, env)) == items_of(old.store, env)


# With workers at work


# Nobody copies a store that grows faster than it is read, as the one in memory does here.
MOST_NEW = 300


class Deliveries:
    """What workers are asked to do, each thing again and again, and how often each was done."""

    def __init__(self):
        self.effects: Counter[str] = Counter()
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def workers(self, s, run):
        threads = [threading.Thread(target=run, args=(self.handler(s), number)) for number in range(4)]
        for thread in threads:
            thread.start()
        return threads

    def handler(self, s):
        @s.once("{key}", lease=30)
        def handle(key):
            with self._lock:
                self.effects[key] += 1
            return f"did {key}"

        def deliver(key):
            try:
                if handle(key) != f"did {key}":
                    self.wrong.append(key)
            except semel.errors.ShuttingDown:
                return

        return deliver

    def new(self, deliver, number):
        """Deliver something new, and then what was delivered before, until it is to stop."""
        for count in range(MOST_NEW):
            if self.stop.is_set():
                return
            key = f"order:{count if count % 3 == 0 else f'{number}:{count}'}"
            self.asked.append(key)
            deliver(key)
            deliver(self.asked[count])

    def again(self, deliver, _number):
        """Deliver everything again, and some more."""
        for key in [*dict.fromkeys(self.asked), *(f"late:{count}" for count in range(20))]:
            deliver(key)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("memory", "sqlite"),
        ("sqlite", "postgres"),
        ("postgres", "dynoxide"),
        ("dynoxide", "redis"),
        ("redis", "sqlite"),
    ],
)
def test_no_effect_is_lost_or_made_twice_when_workers_move_as_the_page_says(old, new, open_one, env):
    source, target = open_one(old), open_one(new)
    deliveries, s = Deliveries(), semel.Semel(source, env=env)
    workers = deliveries.workers(s, deliveries.new)
    copier = Copier(source, target, env)
    while len(deliveries.effects) < 50:
        assert not copier.copy().done
    # Stop the workers: what runs is finished, and nothing is begun.
    s.drain()
    deliveries.stop.set()
    for worker in workers:
        worker.join()
    done = copier.switch_over()
    assert (done.done, done.why) == (True, "")
    first = dict(deliveries.effects)
    # The same deliveries to workers on the target, and others.
    for worker in deliveries.workers(semel.Semel(target, env=env), deliveries.again):
        worker.join()
    assert set(deliveries.effects.values()) == {1}
    assert deliveries.effects.keys() == {*deliveries.asked, *(f"late:{count}" for count in range(20))}
    assert len(deliveries.effects) > len(first) >= 50
    assert deliveries.wrong == []
    assert copier.check() == Differences()


# The command line


@pytest.fixture
def urls(tmp_path):
    """An SQLite file with a ledger in it, in which one record is held, and another with none."""
    old, new = (f"sqlite:///{tmp_path / name}.db" for name in ("old", "new"))
    with semel.connect(old, env="prod", **SECRET) as s:
        running = fill(s)
    semel.connect(new, env="prod").close()
    return old, new, running


def test_a_ledger_is_copied_and_switched_over_by_commands(typed, urls):
    old, new, running = urls
    code, out, _ = typed("copy", old, new, "--env", "prod")
    assert (code, "20 items in pass 1, 20 of them changed, 1 record is being worked on" in out) == (0, True)
    assert "Now stop the workers" in out
    code, out, err = typed("copy", old, new, "--env", "prod", "--switch-over", "--wait", "0")
    assert (code, "The switch-over is done" in out) == (1, False)
    assert "the switch-over is not done: 1 still at work in the source" in err
    with semel.connect(old, env="prod") as s:
        s.ledger.complete(running, 1)
    code, out, err = typed("copy", old, new, "--env", "prod", "--check")
    assert (code, "lacks something" in err) == (1, True)
    assert "older: ledger prod//running" in out
    code, out, _ = typed("copy", old, new, "--env", "prod", "--switch-over", "--json")
    told = json.loads(out)
    assert (code, told["done"], told["differences"]["older"], told["written"]) == (0, True, 0, 1)
    code, _, err = typed("copy", old, new, "--env", "prod")
    assert (code, "the switch-over to this target is done" in err) == (2, True)
    code, out, _ = typed("copy", old, new, "--env", "prod", "--check", "--json")
    assert (code, json.loads(out)["complete"]) == (0, True)


def test_a_call_that_cannot_be_meant_is_refused(typed, urls):
    old, new, _ = urls
    for words in (
        (old, old),
        (old, new, "--check", "--switch-over"),
        (old, "memory:"),
        (old, "sqlite:///no.db"),
    ):
        code, _, err = typed("copy", *words, "--env", "prod")
        assert (code != 0, err.startswith("semel: "), len(err.splitlines())) == (True, True, 1)
