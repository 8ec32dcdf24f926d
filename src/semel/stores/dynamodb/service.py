"""DynamoDB as a service: what time it is there, what its errors mean, and what it charges."""

import re
from collections.abc import Mapping
from datetime import date
from math import ceil
from typing import Any

import msgspec

from semel import errors
from semel.aws.errors import DENIED, ServiceError
from semel.aws.time import ServiceTime
from semel.core.clock import Clock
from semel.model import ScanCost, TableSize
from semel.stores.dynamodb.items import ClockReading
from semel.tables import OWN, Table
from semel.tables.mapping import asked, mapped

# The machine's two clocks drift apart by less than this between two answers, unless the machine slept or
# somebody set its clock.
STEP = 1.0

OWN_NAMES = {table.name for table in OWN}

# Errors

ACTION = re.compile(r"dynamodb:\w+")
KEYS = re.compile(
    r"key element|missing the key|number of (conditions on the keys|key)|type mismatch for (index )?key",
    re.IGNORECASE,
)
NO_INDEX = re.compile(r"does not have the specified index", re.IGNORECASE)
# An index of a large table takes hours to be filled.
FILLING = re.compile(r"backfilling", re.IGNORECASE)
TOO_LARGE = re.compile(
    r"(item size|size of the item|collection size).*(exceed|maximum)|exceeded.*item size", re.IGNORECASE
)

# Prices, as dated data: AWS's own price list for DynamoDB on demand, for each region as of the day given.

SOURCE = "https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/AmazonDynamoDB/current/{region}/index.json"


class Timekeeper:
    """The corrected clock, or the one that is imposed.

    DynamoDB only says which second it is by its own clock. From the dates of its responses (`semel.aws.time`)
    it is known between which two moments the server's time T lies: `earliest` and `latest`. With a `margin`
    they are also at most that far from the machine's own clock; a clock that is certainly further off is not
    used. Three rules follow:

    - What is compared is compared with `earliest`: nothing is taken over before its time.
    - What ends later is counted from `latest`: a lease of 30 seconds written at T ends at T + 30 or later.
    - Replies carry `earliest`, so the rules decide by the same time that queries compare with.

    Why two workers never both hold a lease: A notes its own clock, then sends its claim, and counts its lease
    L from that note; so it has stopped by T0 + L, where T0 is the server's time at the note. What it wrote is
    `latest` + L, read at T0 or after, so at least T0 + L. B takes over only when its own `earliest` has
    reached what is written, and so not before T0 + L. This holds however far the two corrected clocks are
    apart, as long as T lies where each of them says. One response with a wrong Date does not change that:
    others have to confirm it, and until then the span reaches from the one time to the other. The price is
    that a lease that is not released is taken over late, by as much as A's and B's spans together. A span is
    about a second at first, since a Date is cut to the second, and shrinks with every response to about the
    time that a response takes.
    """

    def __init__(self, time: ServiceTime, clock: Clock, margin: float | None = None) -> None:
        if margin is not None and not 0 <= margin < float("inf"):
            raise errors.InvalidOption(f"margin={margin!r}: it is a number of seconds, such as 0.5")
        self._time = time
        self._clock = clock
        self._margin = margin
        self._apart: float | None = None

    def read(self) -> ClockReading:
        """Return the earliest and the latest that it may be."""
        imposed = self._clock.imposed()
        if imposed is not None:
            return imposed, imposed
        span = self._time.span()
        if self._margin is None:
            return span
        now = self._clock.now()
        own = now - self._margin, now + self._margin
        if not self._time.known:
            return own
        both = max(span[0], own[0]), min(span[1], own[1])
        return both if both[0] <= both[1] else span

    def doubtful(self) -> bool:
        """Return whether to read first: no response has told the time yet, or not since a clock jumped.

        A machine that slept would go on from where it stopped, and write a lease that has already expired. A
        response that contradicts those before it has to be confirmed by others.
        """
        clock = self._clock
        if self._apart is None:
            return clock.imposed() is None
        return abs(clock.now() - clock.monotonic() - self._apart) > STEP or self._time.contradicted

    def settle(self) -> None:
        """Note that a response has just come, and told the time if it ever does."""
        if self._clock.imposed() is None:
            self._apart = self._clock.now() - self._clock.monotonic()


class ErrorTranslator:
    """Says what errors mean, and what to do about them."""

    def __init__(self, url: str, env: str) -> None:
        self._url, self._env = url, env

    def _command(self, *options: str) -> str:
        from shlex import quote  # where something is wrong, and not at every start

        return " ".join(["semel provision --url", quote(self._url), "--env", quote(self._env), *options])

    def translated(
        self, error: ServiceError | UnicodeEncodeError, operation: str, tables: Mapping[str, Table]
    ) -> errors.SemelError:
        """Return the error as callers know it; `tables` are by their titles."""
        if isinstance(error, UnicodeEncodeError):
            return errors.UsageError(
                f"text with half a character in it cannot be written: {error.object!r:.80}"
            )
        code, message, title = error.code, error.message, ", ".join(tables)
        if code == "ResourceNotFoundException":
            return errors.TableMissing(f"there is no table {title} (yet); {self._finding(tables)}")
        if code in DENIED:
            named = ACTION.search(message)
            return errors.NotPermitted(
                f"these credentials may not do {named[0] if named else f'dynamodb:{operation}'} on {title} "
                f"({code}: {message}); allow it as this prints it: {self._command('--print iam')}"
            )
        if code == "ItemCollectionSizeLimitExceededException" or TOO_LARGE.search(message):
            return too_large(f"an item of {title}")
        if code not in ("ValidationException", "SerializationException"):
            return error
        if NO_INDEX.search(message):
            return errors.WrongSchema(f"{title}: {message}; run: {self._provision(tables)}")
        if FILLING.search(message):
            return errors.StoreUnavailable(f"{title}: {message}; it can be read once it is ACTIVE")
        if KEYS.search(message):
            return errors.WrongSchema(
                f"{title} has another key than it should have ({message}); compare it with what this prints: "
                f"{self._command('--print cloudformation')}"
            )
        return errors.UsageError(f"DynamoDB refuses this {operation} on {title}: {message}")

    def _finding(self, tables: Mapping[str, Table]) -> str:
        """What to do about a table that is missing: who has it under another name does not want a new one."""
        named = [table.titled_by for table in map(mapped, tables.values()) if table.titled_by]
        other = f"name one that you have with {' or '.join(named)}, or " if named else ""
        every = "(or, for every table that a service needs, semel provision beside its semel.toml)"
        return f"{other}run: {self._provision(tables)} {every}"

    def _provision(self, tables: Mapping[str, Table]) -> str:
        """The command that makes these tables; semel's own it makes unasked."""
        names = dict.fromkeys(asked(table).name for table in tables.values())
        return self._command(*[f"--table {name}" for name in names if name not in OWN_NAMES])


def too_large(what: str) -> errors.UsageError:
    """Return the error for an item that DynamoDB has no room for."""
    return errors.UsageError(
        f"{what} is more than the 400 KB that DynamoDB keeps in one; results go elsewhere with overflow="
    )


class Prices(msgspec.Struct, frozen=True):
    """US dollars for a million request units and for a gigabyte a month: Standard class, no free tier."""

    region: str
    writes: float
    reads: float
    storage: float
    published: date

    @property
    def source(self) -> str:
        """Where they stand, and newer ones."""
        return SOURCE.format(region=self.region)


PRICES = {
    prices.region: prices
    for prices in (
        Prices("us-east-1", 0.625, 0.125, 0.25, date(2026, 8, 15)),
        Prices("eu-north-1", 0.67, 0.1345, 0.269, date(2026, 9, 11)),
        Prices("eu-west-1", 0.705, 0.1415, 0.283, date(2026, 8, 15)),
        Prices("eu-central-1", 0.7625, 0.1525, 0.306, date(2026, 9, 11)),
        Prices("ap-south-1", 0.71, 0.1425, 0.285, date(2026, 9, 11)),
        Prices("ap-southeast-2", 0.71, 0.1425, 0.285, date(2026, 8, 13)),
        Prices("ap-northeast-1", 0.715, 0.1425, 0.285, date(2026, 9, 11)),
    )
}

# DynamoDB's read unit, for a read that is never from a replica; and what one Scan reads at most.
READ_BYTES = 4096
SCAN_BYTES = 1024**2
MILLION = 1_000_000
# A first call claims and completes. In an index by when records changed the claim is one write more, and the
# completion two: its entry leaves one place and comes to another.
CALL_UNITS, INDEXED_CALL_UNITS = 2, 5
# Where no price of a region is known, it is told by this one's.
USUAL_REGION = "us-east-1"


def scan_cost(described: dict[str, Any]) -> ScanCost:
    """What it costs to read a whole table, by what `DescribeTable` tells of it."""
    size, arn = int(described.get("TableSizeBytes", 0)), described.get("TableArn", "").split(":")
    prices = PRICES.get(arn[3] if len(arn) > 3 else "") or PRICES[USUAL_REGION]
    return ScanCost(
        items=int(described.get("ItemCount", 0)),
        bytes=size,
        requests=max(1, ceil(size / SCAN_BYTES)),
        billed=True,
        dollars=ceil(size / READ_BYTES) * prices.reads / MILLION,
        note=f"DynamoDB counts items every six hours; on demand, by the prices of {prices.region} of "
        f"{prices.published}",
    )


def why_no_recent() -> str:
    """Why there is no index over all records here, and what it would cost."""
    prices = PRICES[USUAL_REGION]
    more = INDEXED_CALL_UNITS - CALL_UNITS
    return (
        f"on DynamoDB it would make a first call cost {INDEXED_CALL_UNITS} write units instead of "
        f"{CALL_UNITS}, ${more * prices.writes:,.2f} more for a million of them by the prices of "
        f"{prices.region} of {prices.published}, and one partition of it would take every write"
    )


def table_size(name: str, described: dict[str, Any]) -> TableSize:
    """How large a table is, by what `DescribeTable` tells of it."""
    indexes = described.get("GlobalSecondaryIndexes", [])
    return TableSize(
        table=name,
        items=int(described.get("ItemCount", 0)),
        bytes=int(described.get("TableSizeBytes", 0)),
        indexes={each["IndexName"]: int(each.get("ItemCount", 0)) for each in indexes},
        how="as DynamoDB counted within the last six hours; what has expired is removed by its TTL",
    )


# What is known where the caller may not ask.
UNKNOWN_COST = ScanCost(
    items=0,
    requests=0,
    billed=True,
    note="how large the table is, only a role that may dynamodb:DescribeTable can tell",
)
