"""Ten thousand planted values go through a support desk, and none is found in its store, logs or events."""

import functools
import io
import logging
import re
import string
from random import Random
from typing import NamedTuple

import pytest

from semel.apps.tables import SUPPORT_AUDIT, SUPPORT_STATE
from semel.core.events import Event
from semel.errors import SemelError
from semel.gate import Cap
from semel.model import Abandoned
from semel.redact import Redactor
from semel.testing import FakeClock
from tests.amounts import amount
from tests.places import NAMES, open_place
from tests.state import raw
from tests.state.conftest import SECRET, Async, Sync
from tests.state.persons import staged

# --- What is planted -------------------------------------------------------------------------------


class Planted(NamedTuple):
    """A value as somebody writes it, and the part of it that nobody else's has."""

    text: str
    own: str


def word(rng, length=9):
    return "".join(rng.choices(string.ascii_lowercase, k=length))


def digits(rng, count):
    return "".join(rng.choices(string.digits, k=count))


def email(rng):
    name = f"{word(rng)}{rng.choice('.+_-')}{word(rng, 5)}"
    written = f"{name}@{rng.choice(['example.com', 'mail.example.co.uk', 'müller.example', 'EXAMPLE.org'])}"
    return Planted(rng.choice([str, str.upper, str.title])(written), name)


def phone(rng):
    """Numbers of four countries, as their people write them."""
    last, form = digits(rng, 7), rng.randrange(6)
    swedish = f"{rng.choice(['70', '72', '73', '76', '79'])}{last}"
    written = [
        f"+46 {swedish[:2]} {last[:3]} {last[3:5]} {last[5:]}",
        f"+46{swedish}",
        f"tel: 0{swedish[:2]}-{last[:3]} {last[3:5]} {last[5:]}",
        f"+49 171 {last}",
        f"(202) {rng.choice('2346789')}{last[:2]}-{last[2:6]}",
        f"+44 7911 {last[:6]}",
    ][form]
    return Planted(written, re.sub(r"\D", "", written))


def order(rng):
    number = rng.choice("123456789") + digits(rng, 9)
    letter = rng.choice("ABCK")
    written = rng.choice(
        [
            f"order {number}",
            f"Order #{number}",
            f"#{number}",
            f"ORD-2026-{number}",
            f"Bestellnr. {letter}-{number}",
            f"order_id: {number}",
        ]
    )
    return Planted(written, number)


def parcel(rng):
    """A number of UPS, of the posts, or with a word for it."""
    serial = digits(rng, 15)
    values = [int(digit) for digit in serial]
    ups = f"1Z{serial}{-(sum(values[::2]) + 2 * sum(values[1::2])) % 10}"
    weights = (8, 6, 4, 2, 3, 5, 9, 7)
    check = 11 - sum(value * weight for value, weight in zip(values, weights, strict=False)) % 11
    post = f"RB{serial[:8]}{ {10: 0, 11: 5}.get(check, check) }GB"
    labelled = f"AB-{serial[:10]}"
    written = rng.choice([ups, post, f"tracking number {labelled}"])
    return Planted(written, written.removeprefix("tracking number ").replace("-", ""))


def link(rng):
    own = f"{word(rng)}/{digits(rng, 8)}"
    return Planted(rng.choice([f"https://shop.example/{own}?t=1", f"www.shop.example/{own}"]), own)


KINDS = {email: 2500, phone: 2500, order: 2000, parcel: 1500, link: 1500}
SENTENCES = (
    "Hi, please use {}.",
    "Customer wrote: {}",
    "{} is what I have.",
    "I asked for {}, thanks!",
    "({})",
)


def planted(seed=20260103):
    rng = Random(seed)
    values = [kind(rng) for kind, count in KINDS.items() for _ in range(count)]
    rng.shuffle(values)
    return values


def body(values, rng):
    return "\n".join(rng.choice(SENTENCES).format(value.text) for value in values)


# --- Looking for it --------------------------------------------------------------------------------

HEAD = 8
SEPARATORS = re.compile(r"[\s().+_/@:#-]")
# Hashes and tokens, in which any digits may stand; a number has no letter.
HEX = re.compile(r"\b(?=[0-9]*[a-f])[0-9a-f]{16,}\b")


def found(text, values):
    """Those of the values that stand in a text, in whatever case and with whatever between their digits."""
    text = HEX.sub("", text.casefold())
    return within(text, {value.own.casefold() for value in values}) | within(
        SEPARATORS.sub("", text), {SEPARATORS.sub("", value.own.casefold()) for value in values}
    )


def within(text, needles):
    heads: dict[str, list[str]] = {}
    for needle in needles:
        heads.setdefault(needle[:HEAD], []).append(needle)
    places = (at for at in range(len(text)) if text[at : at + HEAD] in heads)
    return {needle for at in places for needle in heads[text[at : at + HEAD]] if text.startswith(needle, at)}


# --- The desk --------------------------------------------------------------------------------------


class Remembering(Redactor, frozen=True):
    """A redactor that does not read the same text twice: six stores are given the same."""

    def text(self, value):
        return masked(value)


@functools.cache
def masked(text):
    return Redactor().text(text)


LOG = logging.getLogger("desk")


class Full:
    """An overflow without room, which says so in its caller's words."""

    def __init__(self):
        self.said = ""

    def put(self, name, data):
        raise OSError(f"no room for {self.said}")


class Desk:
    """A support desk: takes messages as they come, and keeps of them what it needs."""

    def __init__(self, do, redactor):
        self._do, self._redactor = do, redactor
        self.s = do.s.aio if isinstance(do, Async) else do.s
        self._gate = self.s.gate(Cap("replies:{conversation}", 1), trace="trace:{conversation}")
        once = do.s.once
        self.handle = once("evt:rp:{conversation}:{message}", subject="{customer}")(staged(do, self._handle))
        self.look_up = once("act:shopify_lookup:{message}", on_error="keep")(staged(do, self._look_up))
        self.send = once("act:rp_send:{message}", max_attempts=2)(staged(do, self._send))
        self.welcome = once("welcome:{address}", hide_key=True)(staged(do, self._welcome))
        self.report = once("report:{message}")(staged(do, self._report))

    def _handle(self, conversation, message, customer, said):
        s, kept = self.s, self._do.s.digest(said)
        LOG.info("message %s of %s says %s", message, customer, said)
        decision = yield self._gate.decide(f"reply:{message}", conversation=conversation, subject=customer)
        yield s.journal.append(
            conversation, {"said": said, "from": customer}, key=f"said:{message}", subject=customer
        )
        yield s.journal.on(SUPPORT_AUDIT).append(
            conversation,
            {"action_type": "reply", "action_payload_redacted": said, "result": f"told {customer}"},
            key=f"act:rp_reply:{message}",
        )
        state = {"digest": kept.sha256, "bytes": kept.bytes, "excerpt": self._redactor.excerpt(said)}
        yield s.documents.change(conversation, state, subject=customer)
        yield s.documents.on(SUPPORT_STATE).change(
            conversation, {"last_intent": "question", "pending_flow": state}
        )
        sent = yield s.once.step("reply", staged(self._do, self._reply), said, decision.allowed)
        return {"sent": sent, "sha256": kept.sha256}

    def _reply(self, said, allowed):
        yield None
        return allowed

    def _look_up(self, message, said):
        yield None
        raise LookupError(f"nothing was found for {said}")

    def _send(self, message, said):
        yield None
        raise TimeoutError(f"no answer after {said}")

    def _welcome(self, address):
        yield None
        return "welcome"

    def _report(self, message):
        yield None
        return "x" * 4000

    def told(self, work, *args):
        """Do it, and log whatever is wrong with it, as its callers would."""

        async def task(_):
            try:
                return await work(*args)
            except (SemelError, LookupError, TimeoutError):
                LOG.exception("that did not work")

        def sync(_):
            try:
                return work(*args)
            except (SemelError, LookupError, TimeoutError):
                LOG.exception("that did not work")

        return self._do(task if isinstance(self._do, Async) else sync)


def day(do, desk, values, per_message):
    """Every value comes in a message; each message goes through everything that the desk does."""
    rng = Random(1)
    for number, start in enumerate(range(0, len(values), per_message)):
        batch = values[start : start + per_message]
        said, customer = body(batch, rng), batch[0].text
        conversation, message = f"c{number // 4}", f"m{number}"
        for _ in range(2):
            desk.told(desk.handle, conversation, message, customer, said)
        desk.told(desk.handle, conversation, message, customer, f"{said}!")
        # Each of these has its share of the values, in what it raises.
        for work, share in ((desk.look_up, batch[::2]), (desk.send, batch[1::2])):
            for _ in range(3):
                desk.told(work, message, body(share, Random(number)))
        desk.told(desk.welcome, customer)
        mishaps(do, desk, message, body(batch[number % len(batch) :][:3], rng))


def mishaps(do, desk, message, said):
    """What semel itself has to tell of: no room, somebody's late end, and what was given up."""
    do.s.store.overflow.said = said
    desk.told(desk.report, message)
    claim = do(lambda s: s.ledger.claim(f"late:{message}"))
    do(lambda s: s.ledger.doubt(claim))
    do(lambda s: s.ledger.resolve(f"late:{message}", Abandoned(said)))
    desk.told(desk.s.ledger.complete, claim, "too late")


# --- The day ---------------------------------------------------------------------------------------


@pytest.fixture(params=NAMES)
def place(request, tmp_path):
    return open_place(request.param, request, tmp_path, more=(SUPPORT_STATE, SUPPORT_AUDIT))


@pytest.fixture
def log():
    """Everything that anybody logs: all of it through the filter, and semel's own lines without."""
    whole, own = io.StringIO(), io.StringIO()
    handlers = {"": logging.StreamHandler(whole), "semel": logging.StreamHandler(own)}
    handlers[""].addFilter(Remembering().filter())
    loggers = {name: logging.getLogger(name) for name in handlers}
    levels = {name: logger.level for name, logger in loggers.items()}
    for name, logger in loggers.items():
        logger.addHandler(handlers[name])
        logger.setLevel(logging.DEBUG)
    yield whole, own
    for name, logger in loggers.items():
        logger.removeHandler(handlers[name])
        logger.setLevel(levels[name])


@pytest.mark.seed("R7")
@pytest.mark.parametrize(
    ("way", "many"), [(Sync, amount(10_000, 1_000)), (Async, amount(1_000, 300))], ids=["sync", "async"]
)
@pytest.mark.proof("planted")
def test_none_of_what_is_planted_is_stored_or_logged(place, way, many, log, tried):
    """Of thousands of addresses, numbers and links: in no row, no log line, no event, in whatever case."""
    values, clock, redactor = planted()[:many], FakeClock(), Remembering()
    events: list[Event] = []
    do = way(place.open(clock), env=place.env, clock=clock, secret=SECRET, redact=redactor)
    do.s.events.listen(events.append)
    do.s.store.overflow, do.s.ledger.steps.codec.max_bytes = Full(), 3000
    try:
        day(do, Desk(do, redactor), values, per_message=100)
        stored, (whole, own) = raw.text(place), (text.getvalue() for text in log)
        assert found(stored, values) == set()
        assert found(whole, values) == set()
        assert found(own, values) == set()
        assert found(repr(events), values) == set()
        assert stored.count("***@***") > many / 10
        assert "***@***" in whole
        assert "***" in own
        # Whoever looked in the wrong place would find nothing either.
        said = body(values[:100], Random(2))
        do(lambda s: s.documents.put("as it is", {"said": said}))
        assert found(raw.text(place), values) == found(said, values[:100])
        assert len(found(said, values[:100])) >= 100
        tried(many)
    finally:
        do.close()
