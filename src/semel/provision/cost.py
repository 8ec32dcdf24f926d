"""What a month of events costs on DynamoDB: the requests that the ledger really makes, sized and priced.

The rules of the ledger are run on a record of the workload's size, and every command they ask for is counted.
"""

from binascii import a2b_base64
from collections.abc import Iterator
from math import ceil
from typing import Any

import msgspec

from semel.core.codecs import Codec
from semel.core.commands import (
    Applied,
    Found,
    Get,
    Item,
    Pause,
    Put,
    Refused,
    Steps,
    Update,
    allowed,
    outcome,
)
from semel.core.keys import fingerprint
from semel.core.ledger import LedgerSteps
from semel.core.policy import DAY, LEASE
from semel.core.realm import Realm
from semel.core.running import RENEWALS_PER_LEASE
from semel.errors import InvalidOption
from semel.model import Claimed
from semel.provision import shape
from semel.stores.dynamodb.layout import DynamoLayout
from semel.stores.dynamodb.prices import MILLION, PRICES, READ_BYTES, Prices
from semel.stores.dynamodb.time import ClockReading
from semel.stores.dynamodb.values import Value
from semel.tables import LEDGER

# DynamoDB's units: a write for every started kilobyte, a read for every started four.
WRITE_BYTES = 1024
# What an item takes beside its attributes, where storage is billed.
OVERHEAD = 100
GIGABYTE = 1024**3
MONTH = 30 * DAY

# A moment with as many digits as moments have.
NOW = 1_790_000_000.1234567
# Time passes between the writes of a record, so that ends move, and an index that has them is written too.
LATER = NOW + 1
ENV = "prod"
LAYOUT = DynamoLayout(LEDGER, LEDGER, ENV)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A month of events."""

    events: int
    duplicates: float = 0.0
    """The share of events that came before, and are done."""
    key_bytes: int = 60
    result_bytes: int = 500
    """As it is stored: large results are compressed."""
    ttl: float = DAY
    seconds: float = 1.0
    """How long the work takes; its lease is renewed meanwhile."""
    read_first: bool = False
    """Whether a duplicate is looked for before it is claimed."""
    subjects: bool = False
    """Whether events name the person they are about: such records are in an index, which costs writes too."""

    def __post_init__(self) -> None:
        if self.events < 1 or not 0 <= self.duplicates < 1:
            raise InvalidOption("there is at least one event, and duplicates are a share from 0 up to 1")
        if self.key_bytes < 1 or self.result_bytes < 2 or self.seconds < 0 or self.ttl <= LEASE:
            raise InvalidOption(
                f"a key has at least 1 byte, a result 2, and a record outlives its lease of {LEASE:g} s"
            )


class Units(msgspec.Struct, frozen=True):
    """What one request is billed."""

    writes: int = 0
    reads: int = 0


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of request in a month; `each` is what one of them is billed."""

    what: str
    requests: float
    each: Units = Units()
    dollars: float
    note: str = ""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a workload costs."""

    workload: Workload
    prices: Prices
    record_bytes: int
    lines: tuple[CostLine, ...]

    @property
    def dollars(self) -> float:
        """A month."""
        return sum(line.dollars for line in self.lines)

    def per_million(self, dollars: float) -> float:
        """What that makes for a million events."""
        return dollars / self.workload.events * MILLION


def estimate(workload: Workload, region: str = "us-east-1") -> Estimate:
    """What a workload costs in a region."""
    if region not in PRICES:
        raise InvalidOption(f"no prices are known for {region!r}; known are {', '.join(PRICES)}")
    prices, life = PRICES[region], Life(workload)
    lines = (*_requests(workload, life, prices), _storage(workload, life, prices))
    return Estimate(workload=workload, prices=prices, record_bytes=life.bytes, lines=lines)


def _requests(workload: Workload, life: "Life", prices: Prices) -> Iterator[CostLine]:
    first = workload.events * (1 - workload.duplicates)
    again = workload.events - first
    renewals = int(workload.seconds / (LEASE / RENEWALS_PER_LEASE))
    if workload.read_first:
        yield _line("look", first, life.miss, prices, "a first event is looked for in vain")
        yield _line("replay", again, life.look, prices, "a duplicate is answered by one read")
    beside = ", and its entry in the index of persons" if workload.subjects else ""
    yield _line("claim", first, life.claim, prices, f"one conditional write{beside}")
    yield _line(
        "renew", first * renewals, life.renew, prices, f"every {LEASE / RENEWALS_PER_LEASE:g} s of work"
    )
    yield _line("complete", first, life.complete, prices, f"one conditional write, with the result{beside}")
    if not workload.read_first:
        yield _line("replay", again, life.refused, prices, "a duplicate's claim is refused, with the record")
    yield _line("expire", first, Units(), prices, "TTL deletes for nothing")


def _line(what: str, requests: float, each: Units, prices: Prices, note: str) -> CostLine:
    dollars = requests * (each.writes * prices.writes + each.reads * prices.reads) / MILLION
    return CostLine(what=what, requests=requests, each=each, dollars=dollars, note=note)


def _storage(workload: Workload, life: "Life", prices: Prices) -> CostLine:
    """Records of the last so many days, as if they came evenly."""
    kept = workload.events * (1 - workload.duplicates) * workload.ttl / MONTH
    dollars = kept * (life.bytes + OVERHEAD + life.index_bytes) / GIGABYTE * prices.storage
    note = f"{kept:,.0f} records at a time, of {life.bytes} bytes and {OVERHEAD} beside"
    note += f", and {life.index_bytes} in the index of persons" if life.index_bytes else ""
    return CostLine(what="storage", requests=0, dollars=dollars, note=note)


class Life:
    """The life of one record, by the rules of the ledger, and what each request of it is billed."""

    def __init__(self, workload: Workload) -> None:
        self._item: Item | None = None
        self._billed = Units()
        codec = Codec(compress_over=workload.result_bytes, max_bytes=workload.result_bytes)
        ledger = LedgerSteps(Realm(env=ENV, secret=bytes(32)), codec)
        person = "somebody" if workload.subjects else None
        key, mark = "k" * workload.key_bytes, fingerprint(None)
        result = "r" * (workload.result_bytes - 2)  # and its quotes

        def claim() -> Steps[Any]:
            return ledger.claim(key, fingerprint=mark, ttl=workload.ttl, subject=person)

        self.miss: Units = self._take(ledger.get(key))[0]
        first, claimed = self._take(claim())
        self.claim: Units = first
        if not isinstance(claimed, Claimed):
            raise AssertionError("the first claim of a key was refused")
        self.renew: Units = self._take(ledger.renew(claimed))[0]
        self.complete: Units = self._take(ledger.complete(claimed, result))[0]
        self.refused: Units = self._take(claim())[0]
        self.look: Units = self._take(ledger.get(key))[0]
        self.bytes: int = size(self._item)
        self.index_bytes: int = sum(written_size(each) + OVERHEAD for each in entries(self._item) if each)

    def _take(self, steps: Steps[Any]) -> tuple[Units, Any]:
        """What steps are billed in all, and what they give."""
        billed, reply = Units(), None
        try:
            while True:
                reply = self._answer(steps.send(reply))
                billed = Units(billed.writes + self._billed.writes, billed.reads + self._billed.reads)
        except StopIteration as end:
            return billed, end.value

    def _answer(self, command: Any) -> Found | Applied | Refused | float:
        """What a store would say of the one item there is."""
        before = self._item
        if isinstance(command, Pause):
            self._billed = Units()
            return NOW
        if isinstance(command, Get):
            self._billed = Units(reads=units(size(before), READ_BYTES))
            return Found(NOW, before)
        if not isinstance(command, Put | Update):
            raise TypeError(f"a record's life has no {type(command).__name__}")
        if not allowed(command, before, NOW):
            # Refused or not, a write is billed by the size of the item that is there.
            self._billed = Units(writes=units(size(before), WRITE_BYTES))
            return Refused(NOW, before)
        self._item = outcome(command, before, NOW)
        writes = units(max(size(before), size(self._item)), WRITE_BYTES)
        self._billed = Units(writes=writes + index_units(before, outcome(command, before, LATER)))
        return Applied(NOW)


def units(size: int, unit: int) -> int:
    """How many units a size takes; at least one."""
    return max(1, ceil(size / unit))


def written(item: Item | None) -> dict[str, Value]:
    """A record as it stands in DynamoDB."""
    return {} if item is None else LAYOUT.item(item[LEDGER.partition], None, item, ClockReading(NOW, NOW))


def size(item: Item | None) -> int:
    """The size of a record as DynamoDB counts it, 0 where there is none."""
    return written_size(written(item))


def written_size(values: dict[str, Value]) -> int:
    """The size of an item as DynamoDB counts it: its names and its values."""
    return sum(len(name) + value_size(value) for name, value in values.items())


def entries(item: Item | None) -> list[dict[str, Value]]:
    """A record as each of the ledger's indexes has it; empty in one whose key it lacks."""
    values, found = written(item), []
    for index in LEDGER.indexes:
        made = shape.index(LEDGER, index)
        keys = [each["AttributeName"] for each in made["KeySchema"]]
        names = {*keys, *LEDGER.key, *made["Projection"].get("NonKeyAttributes", ())}
        there = all(key in values for key in keys)
        found.append({name: value for name, value in values.items() if there and name in names})
    return found


def index_units(before: Item | None, after: Item | None) -> int:
    """What a change is billed in the ledger's indexes: nothing where they do not see it."""
    pairs = zip(entries(before), entries(after), strict=True)
    return sum(
        units(max(written_size(was), written_size(now)), WRITE_BYTES) for was, now in pairs if was != now
    )


def value_size(value: Value) -> int:
    """The size of text in UTF-8, of bytes as they are, and of a number by its significant digits."""
    [(tag, content)] = value.items()
    if tag == "N":
        digits = content.lstrip("-").replace(".", "").strip("0")
        return ceil(len(digits) / 2) + 1
    return len(a2b_base64(content)) if tag == "B" else len(content.encode())
