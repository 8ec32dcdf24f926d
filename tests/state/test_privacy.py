"""Nothing personal in keys, errors, events and logs, where that was asked for; and how persons are named."""

import logging
import traceback
import unicodedata

import pytest

import semel
from semel import FileOverflow
from semel.core.events import Event
from semel.errors import (
    AlreadyDone,
    ClaimLost,
    FailedBefore,
    InProgress,
    InvalidKey,
    InvalidOption,
    OutcomeUnknown,
    PayloadChanged,
    Reentered,
    ResultNotKept,
    UsageError,
)
from semel.gate import Cap
from semel.model import Abandoned, Failure
from semel.redact import Redactor
from semel.state.erasure import Erasure
from semel.stores.memory import MemoryStore
from tests.state import raw
from tests.state.conftest import SECRET
from tests.state.persons import ANN, block, either, protected, staged

pytestmark = pytest.mark.seed("R7")

NAME = "öberg"


@pytest.fixture
def place(room):
    return room


# Hidden keys


class Hidden:
    """A function whose key holds an address, and everything that was ever told about it."""

    def __init__(self, do, caplog):
        caplog.set_level(logging.DEBUG)
        self._caplog, self._do = caplog, do
        self.events: list[Event] = []
        self.errors: list[BaseException] = []
        self.runs = 0
        do.s.events.listen(self.events.append)

    def greet(self, address, text="hello"):
        self.runs += 1
        return self.runs

    def greeting(self, name="greet", function=None, **options):
        function = function or self.greet
        return protected(self._do, function, f"{name}:{{address}}", hide_key=True, **options)

    def id(self, name="greet"):
        """The key as it stands in the store."""
        return self._do.s.ledger.steps.subject(f"{name}:{ANN}")

    def refused(self, kind, work, *args):
        """Call it, and note the error that it raises."""
        with pytest.raises(kind) as caught:
            self._do(lambda _: work(ANN, *args))
        self.errors.append(caught.value)

    def told(self):
        errors = ["".join(traceback.format_exception(error)) for error in self.errors]
        return "\n".join([*errors, *map(repr, self.errors), repr(self.events), self._caplog.text])


@pytest.fixture
def hidden(do, caplog):
    return Hidden(do, caplog)


def test_a_hidden_key_is_recognised_by_every_way_in_and_shown_by_none(do, place, hidden):
    """The function itself, a call under the key, and a block; in the store stands a keyed hash."""
    greeting = hidden.greeting()
    assert [do(lambda _: greeting(ANN)) for _ in range(2)] == [1, 1]
    assert do(lambda s: s.once.call(f"greet:{ANN}", greeting, ANN)) == 1
    with pytest.raises(AlreadyDone) as caught:
        block(do, "greet", ANN, hide_key=True)
    assert caught.value.result == 1
    hidden.errors.append(caught.value)
    hidden.refused(PayloadChanged, greeting, "another")
    assert do(lambda _: greeting("bob")) == 2
    assert do(lambda s: s.ledger.get(hidden.id())).result == b"1"
    assert NAME not in raw.text(place)
    assert NAME not in hidden.told()


def test_a_hidden_key_is_in_no_error(do, place, clock, hidden):
    """Whatever is in the way is told without the address: errors are what gets logged."""

    do(lambda s: s.ledger.claim(hidden.id("busy")))
    hidden.refused(InProgress, hidden.greeting("busy", on_busy="raise"))
    clock.advance(31)
    hidden.refused(OutcomeUnknown, hidden.greeting("busy", on_lapsed="hold"))

    def again(address):
        yield itself(address)

    itself = hidden.greeting("again", staged(do, again))
    hidden.refused(Reentered, itself)
    failing = hidden.greeting("fail", lambda address: 1 / 0, on_error="keep")
    hidden.refused(ZeroDivisionError, failing)
    hidden.refused(FailedBefore, failing)
    dropped = hidden.greeting("drop")
    do(lambda _: dropped(ANN))
    do(lambda s: s.ledger.drop_result(hidden.id("drop")))
    hidden.refused(ResultNotKept, dropped)
    late = hidden.greeting("late", lambda address: do.s.ledger.forget(hidden.id("late")))
    hidden.refused(ClaimLost, late)
    assert NAME not in hidden.told()
    assert NAME not in raw.text(place)


def test_a_step_of_hidden_work_is_hidden_with_it(do, place, hidden):
    """And one whose own name holds an address is, if its function hides its key."""
    inner = protected(do, lambda: "inner", "inner:key", hide_key=True)
    plain = either(do, lambda: "plain")
    ran = []

    def event(address):
        ran.append((yield do.s.once.step("mail", plain)))
        ran.append((yield do.s.once.step(("mail", address), inner)))
        raise TimeoutError

    work = hidden.greeting("event", staged(do, event))
    for _ in range(2):
        hidden.refused(TimeoutError, work)
    assert ran == ["plain", "inner"] * 2
    assert do(lambda s: s.ledger.get(f"{hidden.id('event')}>mail")).result == b'"plain"'
    assert NAME not in raw.text(place)
    assert NAME not in hidden.told()


# Who a person is

ANYBODY = [
    "whatsapp:+46701234567",
    "100%",
    "a%3Ab:c%25d",
    "山田 太郎",
    unicodedata.normalize("NFD", "åsa"),
    "👩‍👩‍👧",
    " ann ",
    "{customer}",
    42,
]


@pytest.fixture
def memory():
    with semel.connect(secret=SECRET) as s:
        yield s


def test_scopes_hide_the_same_key_differently(memory):
    ids = {s.ledger.steps.subject("greet:ann") for s in (memory, memory.scoped("tenant"))}
    assert len(ids) == 2


@pytest.mark.parametrize("person", ANYBODY, ids=ascii)
def test_a_person_is_the_same_wherever_he_is_named(memory, person):
    """As the value of a function's argument, and as the text that other calls take."""
    s, text = memory, str(person)

    @s.once("greet:{number}", subject="{customer}")
    def greet(number: int, customer: object) -> str:
        return "hello"

    greet(1, person)
    s.documents.put("state", {}, subject=text)
    with s.once.running("block", subject=text):
        pass
    assert s.forget_subject(text) == Erasure(records=2, documents=1)


def test_a_person_of_several_fields_is_named_by_a_key(memory):
    """Escaped as every key is, so that no two persons share a name."""

    @memory.once("greet:{shop}:{customer}", subject="{shop}:{customer}")
    def greet(shop: str, customer: str) -> str:
        return "hello"

    greet("a:b", "c")
    assert memory.forget_subject("a:b:c").records == 0
    assert memory.forget_subject(semel.Key("a:b", "c")).records == 1


def test_other_texts_are_other_persons(memory):
    """Nobody guesses that two spellings are one person: whoever means that spells them alike."""
    composed, decomposed = (unicodedata.normalize(form, "åsa@example.com") for form in ("NFC", "NFD"))
    memory.documents.put("state", {}, subject=composed)
    for other in (decomposed, composed.upper(), f"{composed} "):
        assert memory.forget_subject(other).documents == 0
    assert memory.forget_subject(composed).documents == 1


@pytest.mark.parametrize("person", ["ann\n", "\0", "x" * 1_000_000], ids=["line", "null", "megabyte"])
def test_long_and_unprintable_texts_name_a_person_where_no_key_is_made_of_them(memory, person):
    memory.documents.put("state", {}, subject=person)
    assert memory.forget_subject(person).documents == 1

    @memory.once("greet:{number}", subject="{customer}")
    def greet(number: int, customer: str) -> str:
        raise AssertionError

    with pytest.raises(InvalidKey, match="names nobody here") as caught:
        greet(1, person)
    assert person[:3] not in "".join(traceback.format_exception(caught.value)).replace(__file__, "")
    assert memory.ledger.list().records == ()


@pytest.mark.parametrize("person", ["", " \t", 42, b"ann", ["ann"]], ids=ascii)
def test_what_names_nobody_is_refused(memory, person):
    """All who have no name would be one person, and forgotten together."""
    for attempt in (
        lambda: memory.documents.put("state", {}, subject=person),
        lambda: memory.ledger.claim("k", subject=person),
        lambda: memory.journal.append("o", {}, subject=person),
        lambda: memory.once.running("k", subject=person),
        lambda: memory.gate().decide("k", subject=person),
        lambda: memory.forget_subject(person),
    ):
        with pytest.raises(UsageError, match="a person is named by a text") as caught:
            attempt()
        assert "ann" not in str(caught.value)
    assert memory.store._tables == {} or not any(memory.store._tables.values())


def test_half_a_character_is_refused(memory):
    with pytest.raises(UsageError, match="lone surrogate"):
        memory.documents.put("state", {}, subject="ann\udcff")


@pytest.mark.parametrize("secret", [b"", "a text", 7, bytearray(b"x")], ids=ascii)
def test_a_secret_that_hides_nothing_is_refused_at_once(secret):
    """An empty one would make hashes that anybody can make."""
    with pytest.raises(InvalidOption, match="a secret is bytes"):
        semel.connect(secret=secret)
    with pytest.raises(InvalidOption, match="a secret is bytes"):
        semel.Semel(MemoryStore(), secret=secret)


# What is kept of errors, and told in events


@pytest.fixture
def heard():
    return []


@pytest.fixture
def masked(heard):
    with semel.connect(secret=SECRET, redact=Redactor(), on_event=heard.append) as s:
        yield s


SAID = "write to ann.oberg@example.com or call +46 70 123 45 67"
MASKED = "write to ***@*** or call ***-***-4567"


def claimed(s, key="k"):
    return s.ledger.claim(key)


def kept(s, key="k"):
    return s.ledger.get(key).failure.message


def test_every_error_that_is_kept_is_masked(masked):
    """However it comes to be kept: by a holder, in a transaction, by whoever gives a thing up."""
    s = masked
    s.ledger.fail(s.ledger.claim("failed"), LookupError(SAID))
    s.ledger.release(s.ledger.claim("released"), LookupError(SAID))
    s.ledger.fail(s.ledger.claim("made"), Failure("LookupError", SAID))
    with s.transaction() as tx:
        tx.ledger.fail(s.ledger.claim("tx failed"), LookupError(SAID))
        tx.ledger.release(s.ledger.claim("tx released"), LookupError(SAID))
    for key in ("failed", "released", "made", "tx failed", "tx released"):
        assert kept(s, key) == MASKED
    s.ledger.doubt(s.ledger.claim("given up"))
    s.ledger.resolve("given up", Abandoned(SAID))
    assert kept(s, "given up") == MASKED


@pytest.mark.parametrize("before", range(975, 1001))
def test_an_address_that_would_be_cut_in_half_is_masked_first(masked, before):
    """The text of an error is cut, and half an address is none any more, but still somebody's."""
    masked.ledger.fail(masked.ledger.claim("k"), LookupError("x" * before + " ann.oberg@example.com"))
    assert "ann" not in kept(masked)
    assert len(kept(masked)) <= 1000


@pytest.mark.situation(52)
@pytest.mark.parametrize("text", ["+1" * 5000, "call 070-123 45 67 " * 1000, "x" * 10_000], ids=len)
def test_no_more_of_an_error_is_scrubbed_than_can_be_kept(text):
    """Whatever a caller sends: four times as much is read as is kept, and a mask stands for the rest."""
    read = []

    class Counting(Redactor, frozen=True):
        def text(self, value):
            read.append(len(value))
            return super().text(value)

    with semel.connect(redact=Counting()) as s:
        s.ledger.fail(claimed(s), Failure("LookupError", text))
        assert len(kept(s)) <= 1000
        assert "***" in kept(s)
        assert "070" not in kept(s)
    assert max(read) <= 4000


@pytest.mark.situation(52)
@pytest.mark.parametrize("before", range(3940, 4000, 4))
def test_an_address_at_the_place_where_much_is_left_out_is_not_shown_in_half(masked, before):
    """Though so much of what stands before it is masked that the place comes into view."""
    text = f"https://{'x' * before} ann.oberg@example.com or +46 70 123 45 67 " + "and so on " * 1000
    masked.ledger.fail(masked.ledger.claim("k"), LookupError(text))
    assert "ann" not in kept(masked)
    assert "123" not in kept(masked)
    assert kept(masked).startswith("***")


def test_what_a_listener_fails_with_is_masked_in_the_log(masked, caplog):
    def listener(event):
        raise LookupError(SAID)

    masked.events.listen(listener)
    masked.ledger.claim("k")
    assert f"LookupError: {MASKED}" in caplog.text
    assert "oberg" not in caplog.text


@pytest.mark.parametrize("redact", [None, Redactor()], ids=["plain", "masked"])
def test_half_a_character_in_an_error_locks_nobody_out(redact):
    """The name of a file may hold one: the error goes on, and the key is free again."""
    with semel.connect(redact=redact) as s:

        @s.once("k:{n}")
        def work(n: int) -> None:
            raise FileNotFoundError("no file \udcff")

        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                work(1)
        assert s.ledger.get("k:1").attempt == 2
        assert kept(s, "k:1") == "no file ?"


def test_what_is_told_in_events_is_masked(masked, heard, caplog):
    """The reason of a refusal, and what went wrong with a result; in the log too."""
    gate = masked.gate(Cap("to:{who}", 1))
    for number in range(2):
        gate.decide(f"send:{number}", who="ann.oberg@example.com")
    masked.store.overflow = Full()
    masked.ledger.steps.codec.max_bytes = 10
    masked.ledger.complete(masked.ledger.claim("k"), "x" * 100)
    details = [event.detail for event in heard if event.detail]
    assert details == ["cap:to:***@***", f"OSError: {MASKED}"]
    assert MASKED in caplog.text
    assert "oberg" not in caplog.text


class Full(FileOverflow):
    """An overflow that has no room, and says so in too many words."""

    def __init__(self):
        """Nothing is ever put anywhere."""

    def put(self, name, data):
        raise OSError(SAID)


def test_a_redactor_that_fails_lets_nothing_through_and_stops_no_work(heard, caplog):
    """Events and kept errors then say that something was left out."""

    class Broken(Redactor, frozen=True):
        def text(self, value):
            raise RuntimeError(value)

    with semel.connect(redact=Broken(), on_event=heard.append) as s:
        s.ledger.fail(claimed(s), LookupError(SAID))
        assert kept(s) == "<left out: it could not be redacted>"
        gate = s.gate(Cap("to:{who}", 1))
        assert [gate.decide(f"send:{number}", who="ann.oberg").allowed for number in range(2)] == [
            True,
            False,
        ]
        s.store.overflow, s.ledger.steps.codec.max_bytes = Full(), 10
        s.ledger.complete(claimed(s, "large"), "x" * 100)
    details = [event.detail for event in heard if event.detail]
    assert details == ["<left out: it could not be redacted>"] * 3
    assert "oberg" not in caplog.text


def test_a_redactor_counts_however_semel_is_opened(heard):
    with semel.Semel(MemoryStore(), redact=Redactor()) as s:
        s.events.listen(heard.append)
        s.ledger.fail(claimed(s), LookupError(SAID))
        assert kept(s) == MASKED
        assert s.journal.append("o", {"said": SAID}).body == {"said": MASKED}
