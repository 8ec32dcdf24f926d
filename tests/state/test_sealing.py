"""Where the ledger encrypts, nothing that anybody said stands in the store; and all of it reads as before."""

import msgspec
import pytest

import semel
from semel import Codec, Encryption, Failed
from semel.core.realm import SEALED
from semel.errors import RecordCorrupt
from semel.gate import Cap, KillSwitch
from semel.model import Abandoned, Failure
from semel.state.mailbox import Message
from semel.stores.memory import MemoryStore
from semel.tables import DOCUMENTS, INBOX, JOURNAL, LEDGER
from semel.testing import FakeClock
from tests.state import raw
from tests.state.conftest import SECRET
from tests.state.persons import ANN, block, keep, protected

# In everything that anybody says, and nowhere else.
WORD = "quetzalcoatl"
SAID = f"{WORD} öberg lives at 7 Main Street"
CLEAR = "popocatepetl"
TOLD = {"said": SAID, "score": 1.0, "nested": [{"to": SAID}]}

KEYS = {"2025": b"1" * 32, "2026": b"2" * 32}


def codec(*names, active="", **options):
    """A codec with these keys, the last one active; without any, one that does not encrypt."""
    if not names:
        return Codec(**options)
    keys = {name: KEYS[name] for name in names}
    return Codec(encryption=Encryption(keys, active or names[-1]), **options)


@pytest.fixture
def place(room):
    return room


@pytest.fixture
def do(way, place, clock):
    """As everywhere here, with a ledger that encrypts."""
    options = {"env": place.env, "scope": place.scope, "clock": clock, "secret": SECRET}
    way = way(place.open(clock), codec=codec("2026"), **options)
    yield way
    way.close()


class Flow(msgspec.Struct):
    """A document of a class, of which one field ends early."""

    awaits: str
    customer: str = ""


def say(do):
    """Say it by every way in: those of persons, and in messages, details, switches, gates and settlements."""
    keep(do, "p1", ANN, SAID)
    block(do, "noted", result=TOLD)
    noted = do(lambda s: s.ledger.claim("details"))
    do(lambda s: s.ledger.complete(noted, TOLD, details=TOLD))
    failed = do(lambda s: s.ledger.claim("failed"))
    do(lambda s: s.ledger.fail(failed, LookupError(SAID), details=TOLD))
    released = do(lambda s: s.ledger.claim("released"))
    do(lambda s: s.ledger.release_many([released], TimeoutError(SAID)))
    held = do(lambda s: s.ledger.claim("given up"))
    do(lambda s: s.ledger.doubt(held))
    do(lambda s: s.ledger.resolve("given up", Abandoned(SAID)))
    flow = {"awaits": SAID, "customer": SAID}
    do(lambda s: s.documents.of(Flow, ends={"customer": 60}).put("flow", Flow(**flow)))
    do(lambda s: s.documents.change("state", TOLD))
    do(lambda s: s.journal.append("talk", TOLD, key="said:1", actor="u-1"))
    do(lambda s: s.switches.turn("quiet", on=True, reason=SAID))
    gate = do(lambda s: s.gate(KillSwitch("quiet"), Cap("replies", 9), trace="trace"))
    do(lambda _: gate.decide("send:1", said=SAID))
    do(lambda s: s.mailbox("in").put([Message("m-1", TOLD, "g"), Message("m-2", SAID)]))
    hidden = protected(do, lambda address: TOLD, "greet:{address}", hide_key=True)
    do(lambda _: hidden(SAID))


def letters(do, *lanes):
    return [
        letter for lane in lanes for letter in do(lambda s, lane=lane: s.mailbox("in").letters(lane)).letters
    ]


def trouble(do):
    """Both messages fail: one is put off, and one is put aside."""
    first, second = Message("m-1", None, "g"), Message("m-2", None)
    [put_off] = letters(do, first.lane)
    do(lambda s: s.mailbox("in").put_off(put_off, 60, SAID))
    [buried] = letters(do, second.lane)
    do(lambda s: s.mailbox("in").bury(buried, SAID))
    return [*letters(do, first.lane), *do(lambda s: s.mailbox("in").dead()).letters]


@pytest.mark.seed("R7")
def test_nothing_that_was_said_stands_in_a_store_whose_ledger_encrypts(do, place):
    """By whatever way it came in: in no row, no item, no key of Redis, and not in SQLite's files."""
    say(do)
    trouble(do)
    do(lambda s: s.documents.prune())
    # Of all scopes, since switches are in none.
    house = place._house
    assert WORD not in raw.text(house)
    if place.name == "sqlite":
        assert not [path for path in house._folder.iterdir() if WORD.encode() in path.read_bytes()]
    # Whoever looked in the wrong place would find nothing either.
    with semel.Semel(place.open(), env=place.env, scope=place.scope) as s:
        said = {"said": CLEAR}
        s.documents.put("in clear", said)
        s.journal.append("in clear", said)
        s.ledger.fail(claimed(s, "in clear"), LookupError(CLEAR), details=said)
        s.switches.turn("loud", on=True, reason=CLEAR)
        s.mailbox("in").put([Message("in clear", CLEAR)])
        assert raw.text(house).count(CLEAR) >= 6


def test_all_of_it_reads_as_it_was_said(do, clock):
    say(do)
    failed = do(lambda s: s.ledger.get("failed"))
    assert (failed.failure, failed.details) == (Failure("LookupError", SAID), TOLD)
    assert do(lambda s: s.ledger.get("released")).failure == Failure("TimeoutError", SAID)
    assert do(lambda s: s.ledger.get("given up")).failure == Failure("Abandoned", SAID)
    assert do(lambda s: s.ledger.get("details")).details == TOLD
    assert do(lambda s: s.ledger.claim("failed")).failure == Failure("LookupError", SAID)
    errors = [record.failure.message for record in do(lambda s: s.ledger.list()).records if record.failure]
    assert errors
    assert all(message.startswith(SAID) for message in errors)
    assert do(lambda s: s.documents.get("state")).value == TOLD
    assert do(lambda s: s.documents.get("put:p1")).value == {"said": SAID}
    assert do(lambda s: s.documents.of(Flow).get("flow")).value == Flow(SAID, SAID)
    [entry] = do(lambda s: s.journal.list("talk")).entries
    assert (entry.body, entry.actor, entry.key) == (TOLD, "u-1", "said:1")
    assert do(lambda s: s.journal.by_actor("u-1")).entries[0].body == TOLD
    assert do(lambda s: s.journal.append("talk", {}, key="said:1")) == entry
    assert do(lambda s: s.switches.list())["quiet"].reason == SAID
    assert not do(lambda s: s.gate(KillSwitch("quiet")).recorded("send:1")).allowed
    assert [letter.error for letter in trouble(do)] == [SAID, SAID]
    clock.advance(61)
    assert do(lambda s: s.documents.prune()) == 1
    assert do(lambda s: s.documents.of(Flow).get("flow")).value == Flow(SAID)


# What is bound to its place, and read by whom


def claimed(s, key="k", **options):
    return s.ledger.claim(key, **options)


@pytest.fixture
def memory():
    return MemoryStore(FakeClock())


@pytest.fixture
def s(memory):
    return semel.Semel(memory, codec=codec("2026"))


def item(store, table, key, sort=None):
    """One item as it stands in the store."""
    return store._tables[table.name][key if sort is None else (key, sort)]


def swap(store, table, attribute, first, second):
    """Put the sealed attribute of one item into another's place."""
    ones = [item(store, table, *place) for place in (first, second)]
    ones[0][attribute], ones[1][attribute] = ones[1][attribute], ones[0][attribute]


def test_a_sealed_document_cannot_be_read_in_another_place(s, memory):
    for key in ("a", "b"):
        s.documents.put(key, {"said": key})
    swap(memory, DOCUMENTS, "body", ("dev//a",), ("dev//b",))
    with pytest.raises(RecordCorrupt, match="moved from another record") as caught:
        s.documents.get("a")
    assert caught.value.key == "a"
    with pytest.raises(RecordCorrupt):
        s.documents.change("b", {"more": 1})


def test_a_sealed_entry_cannot_be_read_in_another_place(s, memory):
    ids = [s.journal.append("o", {"said": said}).id for said in "ab"]
    swap(memory, JOURNAL, "body", ("dev//o", ids[0]), ("dev//o", ids[1]))
    with pytest.raises(RecordCorrupt, match="moved from another record"):
        s.journal.list("o")


def test_a_sealed_error_and_details_cannot_be_read_in_another_place(s, memory):
    for key in ("a", "b"):
        s.ledger.fail(claimed(s, key), LookupError(key), details={"said": key})
    swap(memory, LEDGER, "error", ("dev//a",), ("dev//b",))
    swap(memory, LEDGER, "details", ("dev//a",), ("dev//b",))
    record = s.ledger.get("a")
    assert record.failure.type == "LookupError"
    assert "moved from another record" in record.failure.message
    assert "moved from another record" in record.details["unreadable"]


def test_a_key_can_be_changed_and_what_was_in_clear_is_read(memory):
    """What was written before there was encryption, with the old key, and with the new one."""
    for key, made in (("clear", codec()), ("old", codec("2025")), ("new", codec("2025", "2026"))):
        s = semel.Semel(memory, codec=made)
        s.documents.put(key, {"said": SAID})
        s.journal.append("o", {"said": SAID}, key=key)
        s.ledger.fail(claimed(s, key), LookupError(SAID), details={"said": SAID})
        s.switches.turn(key, on=True, reason=SAID)
        s.mailbox("in").put([Message(key, SAID)])
        [letter] = s.mailbox("in").letters(Message(key, SAID).lane).letters
        s.mailbox("in").bury(letter, SAID)
    assert "2026" in item(memory, DOCUMENTS, "dev//new")["body"][SEALED]
    for key in ("clear", "old", "new"):
        assert s.documents.get(key).value == {"said": SAID}
        assert s.ledger.get(key).failure.message == SAID
        assert s.ledger.get(key).details == {"said": SAID}
        assert s.switches.list()[key].reason == SAID
    assert {entry.body["said"] for entry in s.journal.list("o").entries} == {SAID}
    assert {letter.error for letter in s.mailbox("in").dead().letters} == {SAID}
    # And it is sealed anew with the new key when it is written again.
    s.documents.change("clear", {"more": 1})
    assert WORD not in str(item(memory, DOCUMENTS, "dev//clear"))
    assert s.documents.get("clear").value == {"said": SAID, "more": 1}


@pytest.mark.parametrize("names", [(), ("2025",)], ids=["no keys", "another key"])
def test_who_has_no_key_is_told_so_and_what_was_done_stays_known(s, memory, names):
    s.documents.put("d", TOLD)
    s.journal.append("o", TOLD)
    s.ledger.fail(claimed(s), LookupError(SAID), details=TOLD)
    s.ledger.complete(claimed(s, "done"), 1, details=TOLD)
    other = semel.Semel(memory, codec=codec(*names))
    for read in (lambda: other.documents.get("d"), lambda: other.journal.list("o")):
        with pytest.raises(RecordCorrupt, match="encrypted with the key '2026'") as caught:
            read()
        assert WORD not in str(caught.value)
    outcome = claimed(other)
    assert isinstance(outcome, Failed)
    assert outcome.failure.type == "LookupError"
    assert "encrypted with the key '2026'" in outcome.failure.message
    assert "encrypted with the key '2026'" in str(other.ledger.get("done").details)
    # Nothing is lost by having been read so.
    assert s.documents.get("d").value == TOLD
    assert s.ledger.get("k").failure.message == SAID


def test_an_emergency_stop_works_for_who_has_no_key(s, memory):
    """Only the reason of a switch is sealed, and never what it does."""
    s.switches.turn("safe_mode", on=True, reason=SAID)
    other = semel.Semel(memory)
    assert other.switches.list()["safe_mode"].on
    assert "encrypted with the key '2026'" in other.switches.list()["safe_mode"].reason
    other.switches.turn("all", on=True)
    assert s.switches.list()["safe_mode"].reason == SAID
    assert not s.gate(KillSwitch("all")).decide("send").allowed
    other.switches.turn("safe_mode", on=False)
    assert not s.switches.list()["safe_mode"].on


@pytest.mark.parametrize("names", [(), ("2026",)], ids=["clear", "sealed"])
@pytest.mark.parametrize(
    "looks", [SEALED, f"{SEALED}:x", f"{SEALED}:clear:x", f"{SEALED}:json+aesgcm=2026:AA=="]
)
def test_what_only_looks_sealed_comes_back_as_it_went_in(memory, names, looks):
    s = semel.Semel(memory, codec=codec(*names))
    body = {SEALED: looks, "value": looks}
    s.documents.put("d", body)
    s.documents.change("d", {"more": 1})
    assert s.documents.get("d").value == body | {"more": 1}
    assert s.journal.append("o", body) == s.journal.list("o").entries[0]
    s.ledger.fail(claimed(s), LookupError(looks), details=body)
    assert s.ledger.get("k").failure.message == looks
    assert s.ledger.get("k").details == body
    s.switches.turn("quiet", on=True, reason=looks)
    assert s.switches.list()["quiet"].reason == looks


def test_the_same_end_asked_for_twice_is_the_same_end(s):
    """A sealed text would be another one each time, and the second request be refused."""
    claim = claimed(s)
    for _ in range(2):
        s.ledger.fail(claim, LookupError(SAID), details=TOLD)
    given_back = claimed(s, "back")
    for _ in range(2):
        with s.transaction() as tx:
            tx.ledger.release(given_back, TimeoutError(SAID))
    assert s.ledger.get("back").failure.message == SAID


def test_an_error_that_is_given_up_on_stays_sealed(s, memory):
    """The last attempt's error is kept with the record that has had every chance."""
    for _ in range(2):
        s.ledger.release(s.ledger.claim("k", max_attempts=2), TimeoutError(SAID))
    assert s.ledger.claim("k", max_attempts=2).failure == Failure("TimeoutError", SAID)
    assert WORD not in str(item(memory, LEDGER, "dev//k"))


def test_what_was_noted_about_a_person_is_forgotten_too(memory):
    s = semel.Semel(memory, secret=SECRET)
    s.ledger.complete(claimed(s, subject=ANN), 1, details=TOLD)
    assert s.forget_subject(ANN).records == 1
    assert s.ledger.get("k").details is None
    assert WORD not in str(item(memory, LEDGER, "dev//k"))


def test_an_unreadable_message_names_its_error_all_the_same(s, memory):
    s.mailbox("in").put([Message("m", SAID)])
    [letter] = s.mailbox("in").letters(Message("m", SAID).lane).letters
    s.mailbox("in").put_off(letter, 1, SAID)
    [there] = [one for (_, sort), one in memory._tables[INBOX.name].items() if sort]
    assert WORD not in str(there)
    [seen] = semel.Semel(memory).mailbox("in").letters(Message("m", SAID).lane).letters
    assert "encrypted with the key '2026'" in seen.error
    with pytest.raises(semel.MessageUnreadable):
        semel.Semel(memory).mailbox("in").steps.open(seen)
