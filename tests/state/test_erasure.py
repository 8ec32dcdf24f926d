"""Forgetting a person: nothing of him is left in the store, and what was done is still known to be done."""

import itertools
import uuid
from contextlib import ExitStack, closing

import msgspec
import pytest

import semel
from semel import FileOverflow
from semel.apps.tables import QUILL
from semel.connect import open_store
from semel.core.clock import Clock
from semel.core.codecs import Codec
from semel.core.commands import Batch, Delete, Get, Put, Update
from semel.core.ledger import new_record
from semel.core.policy import ClaimTerms
from semel.doors.inbox import Message, open_inbox
from semel.errors import FailedBefore, ResultNotKept, TableMissing, UsageError
from semel.model import MISSING, Busy, Failed, Happened, Mismatch, Replay
from semel.provision import ProvisionTarget as Site
from semel.provision import provision
from semel.state import erasure
from semel.state.erasure import Erasure
from semel.state.journal import Book
from semel.stores.memory import MemoryStore
from semel.tables import DOCUMENTS, LEDGER, Kind, Table
from semel.testing import FakeClock, Faulty
from tests.places import Forgetful, open_place
from tests.state import raw
from tests.state.conftest import SECRET, Async
from tests.state.crowds import opened
from tests.state.persons import ANN, BOB, KEPT, block, either, gate_of, keep, protected, staged

pytestmark = pytest.mark.seed("R7")


@pytest.fixture
def place(room):
    return room


NOTHING = Erasure()
SETTLED = 700


def forget(do, person=ANN, **options):
    return do(lambda s: s.forget_subject(person, **options))


def hash_of(do, person):
    return do.s.ledger.steps.subject(person)


# Whom a row is about


def test_a_person_stands_in_the_store_only_as_a_keyed_hash(do, place):
    """On every row about him: of claims, functions, blocks, steps, documents, entries and decisions."""
    keep(do, "a", ANN, said="hello")
    stored = raw.text(place)
    assert "öberg" not in stored
    assert hash_of(do, ANN) in stored
    assert forget(do) == KEPT


def test_without_a_secret_nothing_is_written_about_a_person(way, place, clock):
    """A hash that anybody can make hides nobody: the caller is told what to do."""
    with opened(way, place.open(clock), place, clock=clock, secret=None) as do:
        do(lambda s: s.ledger.check_and_set("seen"))
        before, ran = sorted(raw.spelled(raw.rows(place))), []

        def work(who):
            ran.append(who)

        for attempt in (
            lambda s: s.ledger.claim("k", subject=ANN),
            lambda _: protected(do, work, "k:{who}", subject="{who}")(ANN),
            lambda _: protected(do, work, "k:{who}", hide_key=True)(ANN),
            lambda s: s.once.running("k", subject=ANN),
            lambda s: s.once.running("k", hide_key=True),
            lambda s: s.documents.put("k", {}, subject=ANN),
            lambda s: s.documents.change("k", {}, subject=ANN),
            lambda s: s.documents.update("k", lambda _: {}, subject=ANN),
            lambda s: s.journal.append("k", {}, subject=ANN),
            lambda s: gate_of(s).decide("k", subject=ANN),
            lambda s: s.forget_subject(ANN),
        ):
            with pytest.raises(UsageError, match=r"secret: connect\(\.\.\., secret="):
                do(attempt)
        with pytest.raises(UsageError, match="secret"):
            do.transact(lambda tx: tx.documents.put("k", {}, subject=ANN))
        assert ran == []
        assert sorted(raw.spelled(raw.rows(place))) == before


@pytest.mark.parametrize("house", ["memory", "sqlite"], indirect=True)
def test_a_table_without_room_for_a_person_is_refused(do):
    """What could not be found again is not written."""
    states = Table(name="states", partition="id", attributes={"city": Kind.TEXT}, expires="ends_at")
    book = Book(table=Table(name="book", partition="id", sort="at", attributes={}, expires="ends_at"))
    with pytest.raises(UsageError, match="states has no attribute 'subject'"):
        do(lambda s: s.documents.on(states).change("c", {"city": "x"}, subject=ANN))
    with pytest.raises(UsageError, match="book has no attribute for a subject"):
        do(lambda s: s.journal.on(book).append("c", {}, subject=ANN))


def test_scopes_do_not_find_each_others_rows(do, way, place, clock):
    """The same person has another hash in each, and is forgotten in each by itself."""
    with opened(way, place.open(clock), place, clock=clock, scope=f"{place.scope}/2") as other:
        assert hash_of(do, ANN) != hash_of(other, ANN)
        keep(do, "a", ANN)
        keep(other, "a", ANN)
        assert forget(do) == KEPT
        assert do(lambda s: s.documents.get("put:a")) is None
        assert other(lambda s: s.documents.get("put:a")).value == {"said": ANN}
        assert forget(do) == NOTHING
        assert forget(other) == KEPT


def test_a_step_is_about_the_person_whom_its_work_is_about(do, place):
    """Also a step whose own key is hidden, and a step of a step; what is merely called inside is not."""
    hidden = protected(do, lambda: "hidden", "own:key", hide_key=True)
    deeper = either(do, lambda: do.s.once.step("deeper", hidden))
    aside = protected(do, lambda: "aside", "aside:key")

    def event(message, customer):
        yield do.s.once.step("hidden", hidden)
        yield do.s.once.step("step", deeper)
        yield aside()

    do(lambda _: do.s.once("event:{message}", subject="{customer}")(staged(do, event))("m", ANN))
    assert forget(do) == Erasure(records=4)
    assert do(lambda s: s.ledger.get("aside:key")).result == b'"aside"'


# What is left of him


def test_nothing_of_a_person_is_left_and_others_are_not_touched(do, place, clock):
    """No result, error, document or entry in the raw store, and in the end not even his hash."""
    keep(do, "a", ANN)
    keep(do, "b", BOB)
    before = raw.text(place)
    assert before.count(ANN) == before.replace("\n", " ").count(BOB) > 10
    assert forget(do) == KEPT
    after = raw.text(place)
    assert "öberg" not in after
    assert after.count(BOB) == before.count(BOB)
    # An index in Redis has what leads nowhere for ten minutes, in case it was entered ahead of its item.
    clock.advance(SETTLED)
    assert forget(do) == NOTHING
    assert hash_of(do, ANN) not in raw.text(place)
    for name in ("put", "change", "update", "tx"):
        assert do(lambda s, name=name: s.documents.get(f"{name}:a")) is None
        assert do(lambda s, name=name: s.documents.get(f"{name}:b")).value == {"said": BOB}
    assert do(lambda s: s.journal.list("a")).entries == ()
    assert len(do(lambda s: s.journal.list("b")).entries) == 3
    assert do(lambda s: s.journal.by_actor("a")).entries == ()
    assert len(do(lambda s: s.journal.by_actor("b")).entries) == 1
    assert forget(do, BOB) == KEPT


def test_what_was_done_is_still_known_to_be_done(do):
    """The event runs no second time, the failure stands, the changed payload is refused as before."""
    work = keep(do, "a", ANN)
    forget(do)
    work.runs.clear()
    with pytest.raises(ResultNotKept) as caught:
        work.call("event", "a", ANN)
    assert caught.value.reason == "erased"
    with pytest.raises(FailedBefore, match="no error was kept"):
        work.call("fail", "a", ANN)
    with pytest.raises(ResultNotKept):
        block(do, "block", "a")
    assert work.runs == []
    replay = do(lambda s: s.ledger.claim("claim:a", fingerprint="f"))
    assert isinstance(replay, Replay)
    assert (replay.result, replay.record.tombstone) == (MISSING, True)
    assert isinstance(do(lambda s: s.ledger.claim("claim:a", fingerprint="other")), Mismatch)
    assert do(lambda s: s.ledger.check_and_set("claim:a")) is False
    assert do(lambda s: s.ledger.check_and_set_many(["claim:a", "event:a>reply"])) == [False, False]
    assert do(lambda s: s.ledger.is_processed("event:a>reply")) is True
    with pytest.raises(LookupError):  # what did not happen may be tried again
        work.call("retry", "a", ANN)
    assert do(lambda s: s.ledger.get("retry:a")).attempt == 2
    assert forget(do) == Erasure(records=1)


def test_a_key_of_the_journal_that_was_used_adds_nothing_new(do):
    first = do(lambda s: s.journal.append("a", {"said": ANN}, key="said", subject=ANN))
    assert forget(do) == Erasure(entries=1)
    again = do(lambda s: s.journal.append("a", {"said": "once more"}, key="said"))
    assert (again.id, again.at) == (first.id, first.at)
    assert do(lambda s: s.journal.list("a")).entries == ()


def test_a_decision_that_was_erased_permits_nothing(do):
    """And is not decided anew either: what was sent is not sent again, and stays counted."""
    assert do(lambda s: gate_of(s).decide("send", subject=ANN)).allowed
    assert forget(do) == Erasure(records=1)
    for ask in ("decide", "reconsider"):
        again = do(lambda s, ask=ask: getattr(gate_of(s), ask)("send", subject=ANN))
        assert (again.allowed, again.reason, again.not_before) == (False, "forgotten", None)
    assert do(lambda s: gate_of(s).explain("send")) == ()
    assert do(lambda s: s.counters.look("replies")).used == 1


def test_the_trace_of_a_decision_is_forgotten_with_it(do):
    do(lambda s: s.gate(trace="audit").decide("send", subject=ANN))
    assert forget(do) == Erasure(records=1, entries=1)


def test_the_body_in_the_overflow_goes_too(do, tmp_path):
    """Of whom it was, and of nobody else; and the report that it is gone is true."""
    do.s.store.overflow = FileOverflow(tmp_path / "bodies")
    do.s.ledger.steps.codec = Codec(max_bytes=100, compress_over=10_000)
    for name, person in (("a", ANN), ("b", BOB)):
        claim = do(lambda s, name=name, person=person: s.ledger.claim(f"k:{name}", subject=person))
        do(lambda s, claim=claim, person=person: s.ledger.complete(claim, {"said": person * 50}))
    assert forget(do) == Erasure(records=1)
    [left] = (tmp_path / "bodies").iterdir()
    assert BOB in left.read_text()
    assert do(lambda s: s.ledger.claim("k:b")).result == {"said": BOB * 50}
    assert do(lambda s: s.ledger.claim("k:a")).result is MISSING


def test_a_body_out_of_reach_is_not_reported_as_gone(do, tmp_path):
    """Whoever forgets without the overflow is told; the row leads to the body until somebody has it."""
    do.s.store.overflow = overflow = FileOverflow(tmp_path / "bodies")
    do.s.ledger.steps.codec = Codec(max_bytes=100, compress_over=10_000)
    claim = do(lambda s: s.ledger.claim("k", subject=ANN))
    do(lambda s: s.ledger.complete(claim, {"said": ANN * 50}))
    do.s.store.overflow = None
    with pytest.raises(UsageError, match=r"'k' is in an overflow store.*connect"):
        forget(do)
    do.s.store.overflow = overflow
    assert forget(do) == Erasure(records=1)
    assert list((tmp_path / "bodies").iterdir()) == []


# What is not done yet


def test_what_runs_is_left_alone_and_told_and_a_second_call_finishes_it(do, place):
    """A result that comes later is found by the name of the person, which stays until then."""
    claim = do(lambda s: s.ledger.claim("running", subject=ANN))
    do(lambda s: s.documents.put("state", {"said": ANN}, subject=ANN))
    assert forget(do) == Erasure(documents=1, running=("running",))
    assert forget(do) == Erasure(running=("running",))
    do(lambda s: s.ledger.complete(claim, {"said": ANN}))
    assert forget(do) == Erasure(records=1)
    assert "öberg" not in raw.text(place)


def test_what_waits_to_be_settled_is_left_alone_too(do, place, clock):
    """Whoever settles it may say what came of it, and that is found then."""
    do(lambda s: s.ledger.claim("held", subject=ANN))
    clock.advance(31)
    do(lambda s: s.ledger.claim("held", on_lapsed="hold"))
    assert forget(do) == Erasure(running=("held",))
    do(lambda s: s.ledger.resolve("held", Happened({"said": ANN})))
    assert forget(do) == Erasure(records=1)
    assert "öberg" not in raw.text(place)


# However it goes


def test_it_finds_nothing_where_there_is_nothing(do):
    progress: list[Erasure] = []
    assert forget(do, on_progress=progress.append) == NOTHING
    keep(do, "a", ANN)
    assert forget(do) == KEPT
    assert forget(do, on_progress=progress.append) == NOTHING
    assert progress == []


def test_it_goes_through_all_pages_and_tells_how_far_it_is(do, place):
    """More than a thousand records; where that takes long, somewhat more than a page of them."""
    many = 130 if isinstance(do, Async) or place.name == "ministack" else 1100
    done = new_record(ClaimTerms(30, 86400), "t", "w", subject=hash_of(do, ANN)) | {
        "status": "COMPLETED",
        "result": ANN.encode(),
        "encoding": "json",
    }
    rows = [Put(LEDGER, do.s.ledger.steps.name(f"k:{number}"), done) for number in range(many)]
    for start in range(0, many, 100):
        do.s.store.execute(Batch(tuple(rows[start : start + 100])))
    progress: list[Erasure] = []
    assert forget(do, on_progress=progress.append) == Erasure(records=many)
    assert [erasure.records for erasure in progress] == list(range(1, many + 1))
    assert "öberg" not in raw.text(place)


def test_what_is_written_while_it_works_is_found_too(do, place):
    late = iter(["late:1", "late:2", "late:3"])

    def write_more(_):
        for name in itertools.islice(late, 1):
            do.s.documents.put(name, {"said": ANN}, subject=ANN)

    keep(do, "a", ANN)
    assert forget(do, on_progress=write_more) == msgspec.structs.replace(KEPT, documents=KEPT.documents + 3)
    assert "öberg" not in raw.text(place)


def test_it_works_beside_others_who_write(do, place):
    """Twenty writers about two persons at once: in the end one is forgotten, and the other is all there."""

    def written(person, number):
        return lambda s: s.documents.put(f"{person}:{number}", {"said": person}, subject=person)

    writers = [written(person, number) for number in range(10) for person in (ANN, BOB)]
    done = do.together([*writers, lambda s: s.forget_subject(ANN), lambda s: s.forget_subject(ANN)])
    assert [one for one in done if isinstance(one, Exception)] == []
    forget(do)
    assert {hash_of(do, ANN)}.isdisjoint(raw.spelled(raw.rows(place)))
    assert all(do(lambda s, n=number: s.documents.get(f"{BOB}:{n}")) for number in range(10))


class Meddler(Faulty):
    """A store where somebody else comes in before a command of a kind is carried out, once."""

    def __init__(self, store):
        super().__init__(store)
        self._due = []

    def meddle(self, kind, table, work):
        self._due.append((kind, table, work))

    def at_once(self, command):
        return None

    def _begin(self, command):
        for due in self._due[:1]:
            kind, table, work = due
            if type(command) is kind and command.table is table:
                self._due.clear()
                work()
        return super()._begin(command)


@pytest.fixture
def meddled(way, place, clock):
    """A `do` whose store can be meddled with, and a plain one beside it."""
    with ExitStack() as stack:
        plain = stack.enter_context(opened(way, place.open(clock), place, clock=clock))
        own = place.open(clock)
        do = stack.enter_context(opened(way, Meddler(own), place, clock=clock))
        yield do, do.s.store.meddle, plain.s


@pytest.mark.parametrize("when", [Get, Delete], ids=["before it is looked at", "before it is deleted"])
def test_a_document_that_became_somebody_elses_is_not_deleted(meddled, when):
    """An index may lag behind: what it leads to is deleted only if it still is the person's."""
    do, meddle, others = meddled
    do(lambda s: s.documents.put("state", {"said": ANN}, subject=ANN))
    meddle(when, DOCUMENTS, lambda: others.documents.put("state", {"said": BOB}, subject=BOB))
    assert forget(do) == NOTHING
    assert others.documents.get("state").value == {"said": BOB}


@pytest.mark.parametrize("when", [Get, Update], ids=["before it is looked at", "before it is emptied"])
def test_a_record_that_became_somebody_elses_is_not_emptied(meddled, when):
    do, meddle, others = meddled
    claim = do(lambda s: s.ledger.claim("k", subject=ANN))
    do(lambda s: s.ledger.complete(claim, ANN))

    def reborn():
        others.ledger.forget("k")
        others.ledger.complete(others.ledger.claim("k", subject=BOB), BOB)

    meddle(when, LEDGER, reborn)
    assert forget(do) == NOTHING
    assert others.ledger.claim("k").result == BOB


def test_a_record_that_is_taken_up_again_meanwhile_is_left_to_its_holder(meddled):
    do, meddle, others = meddled
    claim = do(lambda s: s.ledger.claim("k", subject=ANN))
    do(lambda s: s.ledger.release(claim, LookupError(ANN)))
    meddle(Update, LEDGER, lambda: others.ledger.claim("k"))
    assert forget(do) == Erasure(running=("k",))
    assert isinstance(others.ledger.claim("k"), Busy)


@pytest.mark.parametrize("end", ["complete", "fail"])
def test_what_its_holder_ends_meanwhile_is_emptied_as_it_then_is(meddled, clock, end):
    """A holder that was given up for lost comes back between the look and the write."""
    do, meddle, others = meddled
    claim = do(lambda s: s.ledger.claim("k", subject=ANN))
    meddle(
        Get, LEDGER, lambda: getattr(others.ledger, end)(claim, LookupError(ANN) if end == "fail" else ANN)
    )
    assert forget(do) == Erasure(records=1)
    record = others.ledger.get("k")
    assert (record.result, record.error, record.subject) == (None, None, None)
    assert isinstance(others.ledger.claim("k"), Failed if end == "fail" else Replay)


# Crashes


class Died(Exception):
    """The process is gone."""


class Life:
    """Ends at a moment of the test's choice: before a command, or between a command and its answer."""

    def __init__(self):
        self.left = float("inf")

    def tick(self):
        if self.left <= 0:
            raise Died
        self.left -= 1


class Mortal(Faulty):
    """A store, and an overflow, of a process that dies."""

    def __init__(self, store, life):
        super().__init__(store)
        self._life = life

    def at_once(self, command):
        return None

    def _begin(self, command):
        self._life.tick()
        return super()._begin(command)

    def _end(self, fault, reply):
        self._life.tick()
        return super()._end(fault, reply)


class MortalFiles(FileOverflow):
    def __init__(self, directory, life):
        super().__init__(directory)
        self._life = life

    def delete(self, ref):
        self._life.tick()
        super().delete(ref)
        self._life.tick()


@pytest.fixture
def mortal(way, place, clock, tmp_path):
    """A `do` of a process that dies at a moment of the test's choice."""
    life = Life()
    with opened(way, Mortal(place.open(clock), life), place, clock=clock) as do:
        do.s.store.overflow = MortalFiles(tmp_path / "bodies", life)
        yield do, life


def keep_with_body(do, name, person):
    """Everything, and a result that lies in the overflow."""
    do.s.ledger.steps.codec = Codec(max_bytes=1000, compress_over=100_000)
    work = keep(do, name, person)
    claim = do(lambda s: s.ledger.claim(f"large:{name}", subject=person))
    do(lambda s: s.ledger.complete(claim, person * 100))
    return work


def test_whoever_dies_of_it_again_and_again_goes_on_where_he_was(mortal, place, tmp_path):
    """Each process lives for one command more than the one before, and in the end all is gone."""
    do, life = mortal
    work = keep_with_body(do, "a", ANN)
    keep(do, "b", BOB)
    for lived in itertools.count(1):
        life.left = lived
        try:
            forget(do)
            break
        except Died:
            continue
    life.left = float("inf")
    assert lived > 5
    assert forget(do) == NOTHING
    assert_forgotten(do, place, tmp_path, work)
    assert forget(do, BOB) == KEPT


def assert_forgotten(do, place, tmp_path, work):
    assert "öberg" not in raw.text(place)
    assert list((tmp_path / "bodies").iterdir()) == []
    with pytest.raises(ResultNotKept):
        work.call("event", "a", ANN)


def test_after_a_crash_at_any_point_the_same_call_finishes(way, tmp_path):
    """Before and after every single command that it takes."""
    for lived in itertools.count():
        life, clock = Life(), FakeClock()
        room = InMemory(clock)
        with opened(way, Mortal(room.store, life), room, clock=clock) as do:
            do.s.store.overflow = MortalFiles(tmp_path / "bodies", life)
            work = keep_with_body(do, "a", ANN)
            life.left = lived
            progress: list[Erasure] = []
            try:
                forget(do, on_progress=progress.append)
                life.left = float("inf")
            except Died:
                life.left = float("inf")
                before = progress[-1] if progress else NOTHING
                rest = forget(do)
                # What was done and not told of is one row at most.
                lost = sum_of(KEPT) + 1 - sum_of(before) - sum_of(rest)
                assert lost in (0, 1)
            assert_forgotten(do, room, tmp_path, work)
            if len(progress) == sum_of(KEPT) + 1:
                break
    assert lived > 60


def sum_of(erasure):
    return erasure.records + erasure.documents + erasure.entries


class InMemory:
    """A place of a test's own."""

    name, env = "memory", "dev"

    def __init__(self, clock):
        self.store = MemoryStore(clock)

    def open(self):
        return self.store


def test_lost_answers_change_nothing_and_every_row_is_counted_once(way, place):
    store = Forgetful(place.open())
    with opened(way, store, place) as do:
        keep(do, "a", ANN)
        lost = len(store.known)
        assert forget(do) == KEPT
        assert len(store.known) - lost == sum_of(KEPT)
        assert "öberg" not in raw.text(place)


# Tables that somebody else has made


QUILLS = msgspec.structs.replace(QUILL, title="Quill-{env}", titled_by="")


@pytest.mark.parametrize("engine", ["dynoxide", "ministack"])
def test_a_table_without_the_index_is_looked_through(request, engine, way, clock, tmp_path):
    """A ledger of the caller's own layout, which has no index of persons."""
    place = open_place(engine, request, tmp_path, more=(QUILLS,))
    url = f"dynamodb://us-east-1/Quill-{place.env}?layout=quill&endpoint={place.server}"
    with opened(way, open_store(url, env=place.env, clock=clock), place, clock=clock) as do:
        keep(do, "a", ANN)
        keep(do, "b", BOB)
        assert forget(do) == KEPT
        assert "öberg" not in raw.text(place)
        assert raw.text(place).count(BOB) > 10
        assert forget(do) == NOTHING
        assert forget(do, BOB) == KEPT


@pytest.mark.parametrize("engine", ["dynoxide", "ministack"])
def test_who_keeps_no_documents_needs_no_table_for_them(request, engine, way, clock):
    """Of a table that is not there nothing has to be forgotten; but everybody has a ledger."""
    env = f"t{uuid.uuid4().hex[:12]}"
    url = f"dynamodb://us-east-1/{env}?layout=quill&endpoint={request.getfixturevalue(engine)}"
    with closing(way(open_store(url, env=env, clock=clock), env=env, clock=clock, secret=SECRET)) as do:
        with pytest.raises(TableMissing):
            forget(do)
        table = msgspec.structs.replace(QUILL, title=env, titled_by="")
        provision(Site(url=url, env=env, tables=(table,), clock=Clock()))
        claim = do(lambda s: s.ledger.claim("k", subject=ANN))
        do(lambda s: s.ledger.complete(claim, ANN))
        assert forget(do) == Erasure(records=1)
        assert do(lambda s: s.ledger.claim("k")).result is MISSING


def test_rows_that_keep_coming_are_told_of(clock):
    """Somebody writes about the person as quickly as he is forgotten: that has to stop first."""
    with semel.connect("memory:", clock=clock, secret=SECRET) as s:
        s.journal.append("chat", {"n": 0}, subject="ann")
        done = s.forget_subject(
            "ann", on_progress=lambda _: s.journal.append("chat", {"n": 1}, subject="ann")
        )
        assert done.more
        assert done.entries == erasure.PASSES
        assert s.forget_subject("ann") == Erasure(entries=1)


@pytest.mark.parametrize("shared", [False, True])
def test_an_erased_message_is_done_under_its_own_key_and_other_work_is_not(clock, shared):
    """An inbox that is not shared has keys of its own, and other work may have the same key as a message."""
    with semel.connect("memory:", clock=clock, secret=b"s") as s:
        box = open_inbox(s, "mail", shared=shared)
        box.put(Message("k", {"name": "ann"}, subject="ann"))
        assert s.forget_subject("ann").messages == 1
        assert s.ledger.is_processed(box.record_key("k"))
        assert s.ledger.is_processed("k") is shared
