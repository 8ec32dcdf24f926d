"""What a month of events costs on DynamoDB: the requests that the ledger makes, sized and priced.

The rules of the ledger run on one record of the workload's size, and each of their commands is billed.
"""

from collections.abc import Iterator
from math import ceil
from typing import Any

import msgspec

from semel.core import commands
from semel.core.codecs import Codec
from semel.core.commands import Item, Steps
from semel.core.keys import fingerprint
from semel.core.ledger import LedgerSteps
from semel.core.policy import DAY, LEASE
from semel.core.realm import Realm
from semel.core.running import RENEWALS_PER_LEASE
from semel.errors import InvalidOption
from semel.model import Claimed
from semel.provision.shape import create_request
from semel.stores.dynamodb import items
from semel.stores.dynamodb.items import ItemFormat, Value
from semel.stores.dynamodb.service import MILLION, PRICES, READ_BYTES, Prices
from semel.tables import LEDGER

# DynamoDB's units: a write for every started kilobyte, a read for every started four.
WRITE_BYTES = 1024
# What an item takes besides its attributes, where storage is billed.
OVERHEAD = 100
GIGABYTE = 1024**3
MONTH = 30 * DAY
RENEWAL = LEASE / RENEWALS_PER_LEASE

# A time with as many digits as times have.
NOW = 1_790_000_000.1234567
# Time passes between the writes of a record: its end moves, and indexes that carry it are written too.
LATER = NOW + 1
ENV = "prod"
FORMAT = ItemFormat(LEDGER, LEDGER, ENV)
INDEXES = create_request(LEDGER, ENV)["GlobalSecondaryIndexes"]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A month of events."""

    events: int
    duplicates: float = 0.0
    """The share of events that are duplicates of completed ones."""
    key_bytes: int = 60
    result_bytes: int = 500
    """As stored: large results are compressed."""
    ttl: float = DAY
    seconds: float = 1.0
    """How long the work takes. Its lease is renewed meanwhile."""
    read_first: bool = False
    """Whether each claim is preceded by a read."""
    subjects: bool = False
    """Whether records have a subject. Such records are also in an index, which costs writes."""

    def __post_init__(self) -> None:
        if self.events < 1 or not 0 <= self.duplicates < 1:
            raise InvalidOption("events must be at least 1, and duplicates a share from 0 to below 1")
        if self.key_bytes < 1 or self.result_bytes < 2 or self.seconds < 0 or self.ttl <= LEASE:
            raise InvalidOption(
                f"a key has at least 1 byte, a result 2, and a record outlives its lease of {LEASE:g} s"
            )


class Units(msgspec.Struct, frozen=True):
    """The units that a request is billed."""

    writes: int = 0
    reads: int = 0

    def __add__(self, other: "Units") -> "Units":
        return Units(self.writes + other.writes, self.reads + other.reads)


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of request in a month; `each` is what one of them is billed."""

    what: str
    requests: float
    each: Units = Units()
    dollars: float
    note: str = ""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a workload."""

    workload: Workload
    prices: Prices
    record_bytes: int
    lines: tuple[CostLine, ...]

    @property
    def dollars(self) -> float:
        """The cost per month."""
        return sum(line.dollars for line in self.lines)

    def per_million(self, dollars: float) -> float:
        """Return a cost per month as one per million events."""
        return dollars / self.workload.events * MILLION


def estimate(workload: Workload, region: str = "us-east-1") -> Estimate:
    """Estimate the cost of a workload in a region."""
    if region not in PRICES:
        raise InvalidOption(f"no prices are known for {region!r}; known are {', '.join(PRICES)}")
    prices, life = PRICES[region], Life(workload)
    lines = [
        CostLine(
            what=what,
            requests=requests,
            each=each,
            dollars=requests * (each.writes * prices.writes + each.reads * prices.reads) / MILLION,
            note=note,
        )
        for what, requests, each, note in _requests(workload, life)
    ]
    lines.append(_storage(workload, life, prices))
    return Estimate(workload=workload, prices=prices, record_bytes=life.bytes, lines=tuple(lines))


def _requests(workload: Workload, life: "Life") -> Iterator[tuple[str, float, Units, str]]:
    """Count each kind of request, with what one of them is billed."""
    first = workload.events * (1 - workload.duplicates)
    again = workload.events - first
    renewals = first * int(workload.seconds / RENEWAL)
    also = ", and its entry in the index of persons" if workload.subjects else ""
    if workload.read_first:
        yield "look", first, life.miss, "a first event is looked for in vain"
        yield "replay", again, life.look, "a duplicate is answered by one read"
    yield "claim", first, life.claim, f"one conditional write{also}"
    yield "renew", renewals, life.renew, f"every {RENEWAL:g} s of work"
    yield "complete", first, life.complete, f"one conditional write, with the result{also}"
    if not workload.read_first:
        yield "replay", again, life.refused, "a duplicate's claim is refused, with the record"
    yield "expire", first, Units(), "TTL deletes for nothing"


def _storage(workload: Workload, life: "Life", prices: Prices) -> CostLine:
    """Price the records that exist at a time, as if events came evenly."""
    kept = workload.events * (1 - workload.duplicates) * workload.ttl / MONTH
    dollars = kept * (life.bytes + OVERHEAD + life.index_bytes) / GIGABYTE * prices.storage
    note = f"{kept:,.0f} records at a time, of {life.bytes} bytes and {OVERHEAD} beside"
    note += f", and {life.index_bytes} in the index of persons" if life.index_bytes else ""
    return CostLine(what="storage", requests=0, dollars=dollars, note=note)


class Life:
    """The life of one record by the rules of the ledger, and the units of each of its requests."""

    def __init__(self, workload: Workload) -> None:
        self._item: Item | None = None
        codec = Codec(compress_over=workload.result_bytes, max_bytes=workload.result_bytes)
        ledger = LedgerSteps(Realm(env=ENV, secret=bytes(32)), codec)
        subject = "somebody" if workload.subjects else None
        key, mark = "k" * workload.key_bytes, fingerprint(None)
        result = "r" * (workload.result_bytes - 2)  # and its quotes

        def claim() -> Steps[Any]:
            return ledger.claim(key, fingerprint=mark, ttl=workload.ttl, subject=subject)

        self.miss: Units = self._run(ledger.get(key))[0]
        first, claimed = self._run(claim())
        self.claim: Units = first
        if not isinstance(claimed, Claimed):
            raise AssertionError("the first claim of a key was refused")
        self.renew: Units = self._run(ledger.renew(claimed))[0]
        self.complete: Units = self._run(ledger.complete(claimed, result))[0]
        self.refused: Units = self._run(claim())[0]
        self.look: Units = self._run(ledger.get(key))[0]
        self.bytes: int = size(self._item)
        self.index_bytes: int = sum(items.size(each) + OVERHEAD for each in entries(self._item) if each)

    def _run(self, steps: Steps[Any]) -> tuple[Units, Any]:
        """Run steps, and return the units of their commands and their result."""
        billed, reply = Units(), None
        try:
            while True:
                more, reply = self._answer(steps.send(reply))
                billed += more
        except StopIteration as end:
            return billed, end.value

    def _answer(self, command: Any) -> tuple[Units, Any]:
        """Answer a command as a store with this item does, with the units that it is billed."""
        before = self._item
        if isinstance(command, commands.Pause):
            return Units(), NOW
        if isinstance(command, commands.Get):
            return Units(reads=units(size(before), READ_BYTES)), commands.Found(NOW, before)
        if not isinstance(command, commands.Put | commands.Update):
            raise TypeError(f"a record's life has no {type(command).__name__}")
        if not commands.allowed(command, before):
            # A refused write is billed by the size of the existing item.
            return Units(writes=units(size(before), WRITE_BYTES)), commands.Refused(NOW, before)
        self._item = commands.outcome(command, before, NOW)
        writes = units(max(size(before), size(self._item)), WRITE_BYTES)
        writes += index_units(before, commands.outcome(command, before, LATER))
        return Units(writes=writes), commands.Applied(NOW)


def units(size: int, unit: int) -> int:
    """Return the number of units for a size; at least one."""
    return max(1, ceil(size / unit))


def size(item: Item | None) -> int:
    """Return the size of a record as DynamoDB counts it, 0 if there is none."""
    return items.size(written(item))


def written(item: Item | None) -> dict[str, Value]:
    """Return a record as it is written in DynamoDB."""
    return {} if item is None else FORMAT.item(item[LEDGER.partition], None, item, (NOW, NOW))


def entries(item: Item | None) -> list[dict[str, Value]]:
    """Return a record's entry in each index of the ledger, empty if it lacks the index's key."""
    values, found = written(item), []
    for index in INDEXES:
        keys = {each["AttributeName"] for each in index["KeySchema"]}
        names = {*keys, *LEDGER.key, *index["Projection"].get("NonKeyAttributes", ())}
        entry = {name: value for name, value in values.items() if name in names}
        found.append(entry if keys <= values.keys() else {})
    return found


def index_units(before: Item | None, after: Item | None) -> int:
    """Return the units of a change in the ledger's indexes: none where their entries stay the same."""
    pairs = zip(entries(before), entries(after), strict=True)
    return sum(units(max(items.size(was), items.size(now)), WRITE_BYTES) for was, now in pairs if was != now)
