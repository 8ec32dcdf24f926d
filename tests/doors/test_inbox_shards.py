"""Shards of an inbox: its writes spread over partitions, and raising their number upsets no order."""

import random
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest

import semel
from semel import errors
from semel.connect import open_store
from semel.core.commands import Batch, Delete, Get, Item, Put, Query, Steps, Stored, Transact, Update
from semel.core.drive import drive
from semel.doors.inbox import DeadFilter, Message, StoreInbox, open_inbox
from semel.doors.inbox.redriving import redrive
from semel.doors.inbox.worker import PAGES, Worker
from semel.ops.transfer import export_to, import_from
from semel.state.mailbox import Letter, MailboxSteps, lane_of
from semel.state.shards import FRESH_SECONDS, LATE_SECONDS, NOTICE_SECONDS, Division, Shards, shard_of
from semel.stores.memory import MemoryStore
from semel.tables import INBOX
from semel.testing import FakeClock, Faulty
from tests.amounts import amount
from tests.doors.inbox_kit import (
    Diary,
    InboxHarness,
    conversation,
    failing,
    look_everywhere,
    nobody,
    sweep,
)
from tests.places import open_place


@pytest.fixture
def office(request, tmp_path):
    """An inbox that has one shard so far."""
    desk = InboxHarness(open_place("memory", request, tmp_path))
    yield desk
    desk.close()


@pytest.fixture
def counted():
    """A store that remembers what it was asked, and an inbox of one shard on it."""
    clock = FakeClock()
    store = Faulty(MemoryStore(clock))
    s = semel.Semel(store, clock=clock)
    yield store, s, clock
    s.close()


def divided(s: semel.Semel, clock: FakeClock, shards: int) -> StoreInbox:
    """The inbox, once it has so many shards."""
    inbox = StoreInbox(s, "in", shards=shards)
    inbox.waiting()
    clock.advance(NOTICE_SECONDS)
    return inbox


def settled(desk: InboxHarness) -> None:
    """Let the earlier numbers of shards be over."""
    desk.clock.advance(LATE_SECONDS)
    desk.box.look()
    desk.clock.advance(FRESH_SECONDS)


def shards_of(desk: InboxHarness) -> Shards:
    desk.inbox.waiting()
    _, shards = desk.inbox._box.steps.shards._read
    return shards


def commands(seen: Sequence[Stored]) -> Iterator[Any]:
    """What a store was asked, one by one, of the inbox alone."""
    for command in seen:
        for each in getattr(command, "writes", (command,)):
            if getattr(each, "table", None) is INBOX:
                yield each


def asked(store: Faulty, *kinds: type) -> list[Any]:
    return [each for each in commands(store.seen) if isinstance(each, kinds)]


# --- The load is spread ------------------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [True, False])
def test_the_writes_of_ten_thousand_messages_spread_evenly_over_the_partitions(counted, grouped):
    """Putting in, entering, leaving, putting off and burying: none has more than twice its share."""
    store, s, clock = counted
    inbox, shards = divided(s, clock, 16), 16
    messages = [Message(f"m{n}", n, f"g{n // 4}" if grouped else None) for n in range(10_000)]
    bad = {f"m{n}" for n in range(0, 10_000, 40)}
    worker = inbox.worker(failing(*bad, error=ValueError("no")), on_error={ValueError: "keep"})
    store.seen.clear()
    writes: Counter[str] = Counter()
    for n in range(0, len(messages), 100):
        inbox.put(*messages[n : n + 100])
        while inbox.waiting():
            sweep(worker, clock)
        writes.update(each.key for each in asked(store, Put, Update, Delete))
        store.seen.clear()
    share = writes.total() / shards
    assert writes.total() >= 20_000 + len(bad), "each in and out, and some put aside"
    assert len(writes) == shards
    assert max(writes.values()) < 2 * share
    assert min(writes.values()) > share / 2
    dead = Counter(each.partition for each in s.mailbox("in").dead(limit=1000).letters)
    assert dead.total() == len(bad)
    assert max(dead.values()) < 2.5 * len(bad) / shards, "nor are the dead letters in one of them"


def test_a_lane_is_in_one_shard_by_its_hash():
    lanes = [lane_of("", f"g{n}") for n in range(10_000)]
    for number in (2, 7, 16, 64):
        sizes = Counter(shard_of(lane, number) for lane in lanes)
        assert set(sizes) == set(range(number))
        assert max(sizes.values()) < 2 * len(lanes) / number
    assert shard_of("not even a hash", 1) == 0


def test_one_shard_is_laid_out_as_ever_and_its_number_is_not_even_written_down(counted):
    store, s, clock = counted
    inbox = StoreInbox(s, "in")
    inbox.put(*conversation("a", 0, 1), Message("x", 0))
    sweep(inbox.worker(Diary()), clock)
    assert inbox.waiting() == 0
    assert {each.key for each in commands(store.seen)} == {"dev//in"}
    assert [each for each in asked(store, Put) if "." not in each.sort] == [
        each for each in asked(store, Put) if "expires_at" in each.item and each.sort == lane_of("a0", "a")
    ]
    assert len(asked(store, Get)) == 1, "it was looked up once"


def test_the_number_is_looked_up_when_it_may_have_changed_and_not_before(counted):
    store, s, clock = counted
    inbox = StoreInbox(s, "in")
    for _ in range(10):
        inbox.put(Message("x", 0))
        clock.advance(FRESH_SECONDS / 10)
    assert len(asked(store, Get)) == 1
    inbox.put(Message("x", 0))
    assert len(asked(store, Get)) == 2


# --- What an idle worker costs -----------------------------------------------------------------------


def test_an_idle_worker_looks_at_one_shard_each_time_and_in_turn_at_all(counted):
    store, s, clock = counted
    inbox = divided(s, clock, 8)
    worker = inbox.worker(Diary())
    look_everywhere(worker)
    store.seen.clear()
    for _ in range(8):
        before = len(asked(store, Query))
        worker.look()
        assert len(asked(store, Query)) == before + 1
    assert len({each.key for each in asked(store, Query)}) == 8


def test_what_another_process_puts_in_is_found_within_one_round_and_then_all_shards_are_looked_at(counted):
    store, s, clock = counted
    inbox = divided(s, clock, 8)
    worker = inbox.worker(diary := Diary())
    look_everywhere(worker)
    for n in range(20):
        divided(s, clock, 8).put(Message(f"m{n}", n))
        rounds = next(looks for looks in count(1) if look_and_visit(worker) and diary.keys[-1] == f"m{n}")
        assert rounds <= 8
        store.seen.clear()
        look_and_visit(worker)
        assert 8 <= len(asked(store, Query)) <= PAGES, "more may come where there was something"


def look_and_visit(worker: Worker) -> bool:
    """Whether a look has found anything, which is then handled."""
    worker.look()
    lanes = list(iter(worker.lanes.begin, None))
    for lane in lanes:
        worker.visit(lane)
    return bool(lanes)


# --- Raising the number ------------------------------------------------------------------------------


def test_a_number_is_raised_by_whoever_names_a_higher_one_and_holds_for_all(office):
    assert shards_of(office) == Shards()
    raising = StoreInbox(office.process(), "in", shards=4)
    raising.put(Message("x", 0))
    assert raising._box.steps.shards._read[1].number == 4
    office.clock.advance(FRESH_SECONDS)
    assert shards_of(office).number == 4
    StoreInbox(office.process(), "in", shards=2).put(Message("y", 0))
    office.clock.advance(FRESH_SECONDS)
    assert shards_of(office).number == 4, "it never falls"


def test_of_two_who_raise_it_at_once_neither_undoes_the_other(office):
    made = [MailboxSteps(office.s.ledger.steps, "in", shards=shards) for shards in (3, 8, 5)]
    _side_by_side(office.s.store, [steps.put([Message("x", 0)]) for steps in made])
    assert shards_of(office).number == 8
    assert office.waiting == 3


def _side_by_side(store: Any, many: list[Steps[None]]) -> None:
    replies: dict[int, Any] = dict.fromkeys(range(len(many)))
    while replies:
        for number, reply in list(replies.items()):
            try:
                replies[number] = store.execute(many[number].send(reply))
            except StopIteration:
                del replies[number]


@pytest.mark.parametrize("numbers", [(1, 4), (4, 6), (1, 3, 8)])
def test_what_was_put_in_before_is_handled_first_and_nothing_is_lost(request, tmp_path, numbers):
    office = InboxHarness(open_place("memory", request, tmp_path), shards=numbers[0])
    groups = list("abcdefghijkl")
    said: list[Message] = []
    others = [StoreInbox(office.process(), "in", shards=number) for number in numbers]
    for n, inbox in enumerate(others):
        for m in range(4):
            more = [message for group in groups for message in conversation(group, 4 * n + m)]
            # Through processes that name a number, and those that name another.
            inbox.put(*more[::2])
            office.put(*more[1::2])
            said += more
            office.clock.advance(NOTICE_SECONDS / 3)
    used = {letter.partition for message in said for letter in office.letters(message)}
    assert len(used) > 1
    diary = Diary()
    worker, elsewhere = office.worker(diary), office.elsewhere(diary)
    for _ in range(6):
        for each in (worker, elsewhere):
            sweep(each, office.clock)
    assert office.waiting == 0
    for group in groups:
        assert diary.of(group) == [f"{group}{n}" for n in range(4 * len(numbers))]
    office.close()


def test_a_retry_of_what_was_put_in_before_holds_up_what_came_after(office):
    lane = next(
        message.group for n in count() for message in conversation(f"c{n}", 0) if shard_of(message.lane, 4)
    )
    office.put(*conversation(str(lane), 0))
    inbox = divided(office.process(), office.clock, 4)
    inbox.put(*conversation(str(lane), 1))
    diary = Diary(failing(f"{lane}0"))
    worker = inbox.worker(diary, backoff=lambda _: 10.0)
    sweep(worker, office.clock)
    sweep(worker, office.clock)
    assert diary.keys == [f"{lane}0"]
    diary.what = lambda _: None
    office.clock.advance(10)
    sweep(worker, office.clock)
    assert diary.keys == [f"{lane}0", f"{lane}0", f"{lane}1"]


def test_who_is_in_a_lane_by_one_number_keeps_out_whoever_comes_by_another(office):
    lane = next(lane for n in count() if shard_of(lane := lane_of("", f"g{n}"), 4))
    first = divided_soon(office)
    assert first.enter(lane, "before", 100) == 0
    office.clock.advance(NOTICE_SECONDS)
    later = office.process().mailbox("in")
    assert later.enter(lane, "after", 100) == pytest.approx(100 - NOTICE_SECONDS)
    assert office.inbox.survey().entered == 1, "who gave way has left no mark"
    assert first.stay({lane: "before"}, 100) == (lane,), "and who is in begins nothing more"
    office.clock.advance(100 - NOTICE_SECONDS)
    assert later.enter(lane, "after", 100) == 0
    assert first.enter(lane, "before", 100) > 0


def divided_soon(desk: InboxHarness) -> Any:
    """A mailbox whose number of shards was raised a moment ago."""
    box = desk.process().mailbox("in", shards=4)
    box.survey()
    return box


def test_earlier_numbers_are_forgotten_once_nothing_is_left_of_them(office):
    office.put(*conversation("a", 0))
    assert shard_of(lane_of("", "a"), 4) != 0
    box = divided_soon(office)
    office.clock.advance(NOTICE_SECONDS + LATE_SECONDS)
    box.look()
    office.clock.advance(FRESH_SECONDS)
    assert shards_of(office).is_moving, "a message is where the first number put it"
    sweep(office.worker(Diary()), office.clock)
    settled(office)
    assert not shards_of(office).is_moving
    assert shards_of(office).number == 4


def test_a_number_is_not_over_while_a_message_may_be_on_its_way(office):
    box = divided_soon(office)
    office.clock.advance(NOTICE_SECONDS + LATE_SECONDS - FRESH_SECONDS)
    for _ in range(4):
        box.look()
    assert shards_of(office).is_moving
    settled(office)
    assert not shards_of(office).is_moving


def test_what_lies_where_nothing_belongs_is_brought_home_and_handled(office):
    """Somebody was frozen for an hour between the time and the write, or a file was imported."""
    divided(office.process(), office.clock, 4)
    settled(office)
    moved = [message for n in range(30) for message in conversation(f"g{n}", 0)]
    for message in moved:
        stray(office, message)
    assert office.waiting == 30
    diary = Diary()
    worker = office.worker(diary)
    for _ in range(3):
        sweep(worker, office.clock)
    assert sorted(diary.keys) == sorted(message.key for message in moved)
    assert office.waiting == 0


def stray(desk: InboxHarness, message: Message) -> None:
    """Put a message into a shard that is not its lane's."""
    desk.put(message)
    [letter] = desk.letters(message)
    name, elsewhere = desk.box.steps._name, (shard_of(message.lane, 4) + 1) % 4
    found = desk.s.store.execute(Get(INBOX, letter.partition, sort=letter.place))
    item: Item = {key: value for key, value in found.item.items() if key not in INBOX.key}
    partition = f"{name}:{elsewhere}" if elsewhere else name
    desk.s.store.execute(Put(INBOX, partition, item, sort=letter.place))
    desk.s.store.execute(Delete(INBOX, letter.partition, sort=letter.place))


def test_how_an_inbox_is_divided_is_never_guessed(office):
    name = office.box.steps._name
    for body in (b"?", b'{"divisions": []}'):
        item: Item = {"key": "t", "body": body, "expires_at": 4e9}
        office.s.store.execute(Put(INBOX, name, item, sort="config"))
        with pytest.raises(errors.RecordCorrupt):
            StoreInbox(office.process(), "in").put(Message("x", 0))


@pytest.mark.parametrize("shards", [0, -1, 1.5, True, "4", 1001])
def test_a_number_that_is_none_is_refused(office, shards):
    with pytest.raises(errors.InvalidOption, match="shards is a whole number"):
        open_inbox(office.s, "in", shards=shards)


def test_a_queue_has_no_shards(office):
    with pytest.raises(errors.InvalidOption, match="SQS has no shards"):
        open_inbox(office.s, "in", queue="https://sqs/q.fifo", shards=2)


# --- Dead letters ------------------------------------------------------------------------------------


@pytest.fixture
def buried(office):
    """Twenty dead letters in four shards, in the order in which they were accepted."""
    inbox = divided(office.process(), office.clock, 4)
    office.clock.advance(FRESH_SECONDS)
    keys = [f"x{n}" for n in range(20)]
    for key in keys:
        office.put(Message(key, 0))
        office.clock.advance(1)
    sweep(inbox.worker(failing(*keys, error=ValueError("no")), on_error={ValueError: "keep"}), office.clock)
    return keys


def test_dead_letters_are_listed_in_the_order_in_which_they_were_accepted(office, buried):
    assert [dead.key for dead in office.inbox.dead()] == buried
    assert [dead.key for dead in office.inbox.dead(7)] == buried[:7]
    assert office.inbox.count(dead=True).number == 20
    seen, after = [], None
    while True:
        page = office.box.dead(3, after)
        seen += [letter.key for letter in page.letters]
        assert len(page.letters) <= 3
        if (after := page.after) is None:
            break
    assert seen == buried
    assert len({letter.partition for letter in office.box.dead().letters}) == 4


def test_a_dead_letter_is_found_and_put_back_wherever_it_is(office, buried):
    for dead in office.inbox.dead():
        assert office.box.dead_letter(dead.id).key == dead.key
        assert office.s.ops.explain(dead.key, inboxes=["in"]).messages[0].dead
    assert office.box.dead_letter("01ARZ3NDEKTSV4RRFFQ69G5FAV") is None
    done = redrive(office.s, office.inbox, DeadFilter(prefix="x1"), by="ann", why="again")
    assert len(done.letters) == 11
    diary = Diary()
    sweep(office.worker(diary), office.clock)
    assert sorted(diary.keys) == sorted(key for key in buried if key.startswith("x1"))


def test_what_was_put_aside_by_an_earlier_number_is_put_back_and_handled(office):
    keys = [f"x{n}" for n in range(10)]
    office.put(*(Message(key, 0) for key in keys))
    failed = failing(*keys, error=ValueError("no"))
    sweep(office.worker(failed, on_error={ValueError: "keep"}), office.clock)
    divided(office.process(), office.clock, 4)
    settled(office)
    assert not shards_of(office).is_moving
    assert office.inbox.redrive() == 10
    diary = Diary()
    for _ in range(3):
        sweep(office.worker(diary), office.clock)
    assert sorted(diary.keys) == keys
    assert (office.waiting, office.inbox.dead()) == (0, [])


# --- Other ways to see it ----------------------------------------------------------------------------


def test_a_part_of_a_count_ends_at_any_place_and_goes_on_from_there(office):
    divided(office.process(), office.clock, 4)
    office.clock.advance(FRESH_SECONDS)
    office.put(*(Message(f"x{n}", 0) for n in range(40)))
    for most in (1, 3, 10, 40, 41):
        found, after = 0, None
        for _ in range(60):
            part = office.box.count(after=after, most=most)
            found += part.number
            if (after := part.after) is None:
                break
        assert (found, after) == (40, None)
    assert [office.box.survey(most=most).waiting for most in (1, 39, 40)] == [1, 39, 40]


def test_what_else_waits_is_told_from_every_shard_once(office):
    divided(office.process(), office.clock, 4)
    office.clock.advance(FRESH_SECONDS)
    keys = [f"x{n}" for n in range(40)]
    office.put(*(Message(key, 0) for key in keys))
    others = [other for part in office.inbox.others(Message("x7", 0)) for other in part]
    assert sorted(other.message.key for other in others) == sorted(set(keys) - {"x7"})
    office.inbox.settle(others)
    assert office.waiting == 1


def test_an_exported_inbox_goes_on_where_it_is_imported(office, tmp_path):
    divided(office.process(), office.clock, 4)
    office.clock.advance(FRESH_SECONDS)
    said = [message for n in range(3) for group in "abcdef" for message in conversation(group, n)]
    office.put(*said)
    export_to(tmp_path / "file", office.s.store, office.s.env)
    for there in (1, 2):
        store = MemoryStore(office.clock)
        s = semel.Semel(store, env=office.s.env, scope=office.scope, clock=office.clock)
        if there > 1:
            divided(s, office.clock, there)
        import_from(tmp_path / "file", store, s.env)
        # Where the inbox of that name had fewer shards, whoever names as many as it had sees all of it.
        inbox = divided(s, office.clock, 4)
        diary = Diary()
        worker = inbox.worker(diary)
        for _ in range(6):
            sweep(worker, office.clock)
        assert (len(diary.keys), inbox.waiting()) == (len(said), 0)
        if there == 1:
            assert all(diary.of(group) == [f"{group}{n}" for n in range(3)] for group in "abcdef")
        s.close()


# --- Every order of steps ----------------------------------------------------------------------------


class World:
    """Processes that put in and handle, one command at a time as the dice fall; the clock moves between."""

    def __init__(self, seed: int) -> None:
        self.rng, self.clock = random.Random(seed), FakeClock()
        self.store = MemoryStore(self.clock)
        self.said: dict[str, list[str]] = defaultdict(list)
        self.done: dict[str, list[str]] = defaultdict(list)
        self.inside: Counter[str] = Counter()
        self._names = count()

    def process(self, shards: int) -> MailboxSteps:
        s = semel.Semel(self.store, clock=self.clock)
        return s.mailbox("in", shards=shards).steps

    def putting(self, box: MailboxSteps, group: str, many: int) -> Steps[None]:
        for _ in range(many):
            key = f"{group}-{next(self._names)}"
            self.said[group].append(key)
            yield from box.put([Message(key, 0, group)])

    def handling(self, box: MailboxSteps) -> Steps[None]:
        place = ""
        while True:
            page = yield from box.look(place)
            place = page.after
            for lane in page.lanes:
                if not lane.wait:
                    yield from self._visit(box, lane.name)

    def _visit(self, box: MailboxSteps, lane: str) -> Steps[None]:
        token = str(self.rng.random())
        if (yield from box.enter(lane, token, LEASE)):
            return
        found = yield from box.letters(lane, 3)
        settled = []
        for letter in found.letters:
            if (yield from box.stay({lane: token}, LEASE)):
                break
            yield from self._handle(letter)
            settled.append(letter)
        yield from box.leave(settled, lane, token)

    def _handle(self, letter: Letter) -> Steps[None]:
        group = str(letter.group)
        self.inside[group] += 1
        assert self.inside[group] == 1, "two are in one lane"
        try:
            yield Get(INBOX, "some", sort="work")
        finally:
            self.inside[group] -= 1
        if letter.key not in self.done[group]:
            self.done[group].append(letter.key)


# Longer than anybody who lives goes without saying that he is there.
LEASE = 200.0


class Dice:
    """Whose turn it is, what the clock does meanwhile, and who is killed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.replies: dict[Steps[None], Any] = {}

    def begin(self, steps: Steps[None]) -> None:
        self.replies[steps] = None

    def kill(self, steps: Steps[None]) -> None:
        """End somebody wherever he is."""
        del self.replies[steps]
        steps.close()

    def turn(self) -> None:
        """One command of somebody."""
        steps = self.world.rng.choice(list(self.replies))
        try:
            command: Any = steps.send(self.replies[steps])
            self.replies[steps] = self.world.store.execute(command)
        except StopIteration:
            del self.replies[steps]


@pytest.mark.parametrize("seed", range(amount(400, 60)))
def test_in_every_order_of_steps_groups_stay_in_order_while_the_number_is_raised(seed):
    """Processes that name different numbers put in and handle, and are killed, while the numbers change."""
    world = World(seed)
    rng, numbers = Dice(world), [1, 1, world.rng.choice([2, 3, 5]), world.rng.choice([4, 8, 12])]
    groups = [f"g{n}" for n in range(4)]
    workers = [world.handling(world.process(1)) for _ in range(2)]
    for worker in workers:
        rng.begin(worker)
    putting: dict[str, Steps[None]] = {}
    for _ in range(amount(900, 500)):
        if world.rng.random() < KILLED:
            rng.kill(workers.pop(0))
            workers.append(world.handling(world.process(world.rng.choice(numbers))))
            rng.begin(workers[-1])
        for group in groups:
            if putting.get(group) not in rng.replies and world.rng.random() < 0.03:
                # One sender at a time: what two say in one millisecond has no order.
                world.clock.advance(0.002)
                sender = world.process(world.rng.choice(numbers))
                putting[group] = world.putting(sender, group, world.rng.randint(1, 4))
                rng.begin(putting[group])
        rng.turn()
        world.clock.advance(world.rng.choice([0, 0, 0.001, 0.2, 1]))
    finish(world, rng)
    assert {group: world.done[group] for group in groups} == {group: world.said[group] for group in groups}


KILLED = 0.01


def finish(world: World, rng: Dice) -> None:
    """Let everything that was said be handled and taken away."""
    for step in range(20_000):
        rng.turn()
        world.clock.advance(world.rng.choice([0, 0.1, 1]))
        if step % 100 == 0 and drive(world.process(1).survey(), world.store).waiting == 0:
            return
    pytest.fail("messages are left")


def test_a_division_is_kept_by_the_time_of_a_message():
    shards = Shards().raised(4, 100.0)
    since = 100.0 + NOTICE_SECONDS
    assert shards.divisions == (Division(1, 0.0), Division(4, since))
    lane = next(lane for n in count() if shard_of(lane := lane_of("", f"g{n}"), 4) == 3)
    assert [shards.home(lane, at) for at in (0, since - 0.001, since)] == [0, 0, 3]
    assert shards.homes(lane) == (0, 3)
    assert shards.settled().homes(lane) == (3,)
    assert shards.settled().home(lane, 0) == 3
    # Raised again before it holds: one after the other.
    assert shards.raised(8, 101.0).since == since + NOTICE_SECONDS


def test_nobody_handles_what_was_not_put_in(office):
    divided(office.process(), office.clock, 4)
    for _ in range(3):
        sweep(office.worker(nobody), office.clock)


def test_an_inbox_is_spread_over_a_cluster_of_redis(redis_cluster):
    """Each shard has a slot: what is written together is in one, and the rest is sent to each."""
    clock, prefix = FakeClock(), f"t{uuid.uuid4().hex[:12]}"
    store = open_store(f"{redis_cluster}?cluster=yes&prefix={prefix}", env="test", clock=clock)
    with semel.Semel(store, env="test", clock=clock) as s:
        inbox = divided(s, clock, 8)
        said = [message for n in range(3) for group in "abcdef" for message in conversation(group, n)]
        inbox.put(*said, *(Message(f"x{n}", 0) for n in range(10)))
        diary = Diary(failing(*(f"x{n}" for n in range(10)), error=ValueError("no")))
        worker = inbox.worker(diary, on_error={ValueError: "keep"})
        for _ in range(3):
            sweep(worker, clock)
        assert all(diary.of(group) == [f"{group}{n}" for n in range(3)] for group in "abcdef")
        assert [dead.key for dead in inbox.dead()] == [f"x{n}" for n in range(10)]
        diary.what = lambda _: None
        assert inbox.redrive() == 10
        sweep(worker, clock)
        assert (inbox.waiting(), inbox.dead()) == (0, [])


def test_a_letter_is_moved_within_its_partition(counted):
    """So that a cluster of Redis, which keeps a partition together, can make the move."""
    store, s, clock = counted
    inbox = divided(s, clock, 4)
    inbox.put(*(Message(f"x{n}", 0) for n in range(10)))
    failed = failing(*(f"x{n}" for n in range(10)), error=ValueError("no"))
    sweep(inbox.worker(failed, on_error={ValueError: "keep"}), clock)
    assert inbox.redrive() == 10
    moves = [each for each in store.seen if isinstance(each, Transact)]
    assert len(moves) == 20
    assert all(len({write.key for write in move.writes}) == 1 for move in moves)
    batches = [each for each in store.seen if isinstance(each, Batch)]
    assert max(len({write.key for write in batch.writes}) for batch in batches) > 1
