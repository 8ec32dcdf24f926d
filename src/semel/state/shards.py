"""Shards: which partition of the store a lane of an inbox is in, also while their number is being raised.

A message is in the shard that its lane has by the number in force when the message was accepted, and readers
of a lane read all shards that it has had. A number is announced before it is in force, for longer than any
process goes without reading it: so no process accepts by one that is over, or overlooks one that has begun.
"""

from collections.abc import Iterable
from math import inf

import msgspec

from semel.core.commands import ABSENT, After, Expect, Found, Get, Page, Put, Query, Steps, Time, read, write
from semel.core.policy import DAY
from semel.core.realm import Realm
from semel.errors import InvalidOption, RecordCorrupt
from semel.tables import INBOX

# A shard is one partition, in which any store can move a message in one write. There is `LANE.ID` for each
# message, and `LANE` while a worker is in that lane. A lane ends before `LANE/`: one of thousands of messages
# is skipped in one request. Dead letters have a lane of their own in each shard, before all others; before
# these the first shard has the number of shards.
BEYOND = "/"
NUMBER, DEAD, GROUP, ALONE = "config", "dead", "g", "k"

MOST = 1000

# A process that has not read the number for longer reads it before anything else.
FRESH_SECONDS = 30.0
# A number is written down this long before it is in force: twice that, for clocks that differ.
NOTICE_SECONDS = 60.0
# A message may still be on its way to its earlier place for this long after that.
LATE_SECONDS = 900.0
# How often a process looks whether anything is left of earlier numbers, and how many pages of each shard.
SETTLE_SECONDS = 300.0
SETTLE_PAGES, SETTLE_PAGE = 10, 1000
# The number is known for as long as the inbox is used; every item has an end: this one's is far away.
NUMBER_TTL = 3650 * DAY


class Division(msgspec.Struct, frozen=True):
    """A number of shards, and the moment from which on it is in force."""

    number: int
    since: float


class Shards(msgspec.Struct, frozen=True):
    """How an inbox is divided: by the last number, and by earlier ones while there are messages of theirs."""

    divisions: tuple[Division, ...] = (Division(1, 0.0),)

    @property
    def number(self) -> int:
        """The number of shards, now or soon; it never falls."""
        return self.divisions[-1].number

    @property
    def since(self) -> float:
        """When it becomes the only number by which messages are accepted."""
        return self.divisions[-1].since

    @property
    def is_moving(self) -> bool:
        """Whether there may be messages where an earlier number put them."""
        return len(self.divisions) > 1

    def home(self, lane: str, moment: float) -> int:
        """The shard of messages that are accepted in a lane at a moment."""
        number = self.divisions[0].number
        for division in self.divisions:
            if division.since <= moment:
                number = division.number
        return shard_of(lane, number)

    def homes(self, lane: str) -> tuple[int, ...]:
        """The shards where messages of a lane may be."""
        return tuple(dict.fromkeys([shard_of(lane, division.number) for division in self.divisions]))

    def raised(self, number: int, now: float) -> "Shards":
        """The same with a higher number, announced now."""
        return Shards((*self.divisions, Division(number, max(now, self.since) + NOTICE_SECONDS)))

    def settled(self) -> "Shards":
        """The same without the earlier numbers."""
        return Shards(self.divisions[-1:])


def shard_of(lane: str, number: int) -> int:
    """Return the shard of a lane, by its hash, where there are this many."""
    # Of the lane's own digits those that come last: the first decide its place within the shard.
    return 0 if number == 1 else int(lane[-8:], 16) % number


class ShardSteps:
    """How one inbox is divided, as generators of commands."""

    def __init__(self, realm: Realm, name: str, least: int) -> None:
        if isinstance(least, bool) or not isinstance(least, int) or not 1 <= least <= MOST:
            raise InvalidOption(f"shards is a whole number from 1 to {MOST}, not {least!r}")
        self._realm, self._name, self._least = realm, name, least
        self._read = (-inf, Shards())
        """When the division was last read, and what was read."""
        self._tried = -inf
        """When this process last tried to drop the earlier numbers."""

    def partition(self, shard: int) -> str:
        """A shard as the store knows it; the first has the name of the inbox."""
        return f"{self._name}:{shard}" if shard else self._name

    def partitions(self, shards: Iterable[int]) -> list[str]:
        """Shards as the store knows them."""
        return [self.partition(shard) for shard in shards]

    def now(self) -> Steps[tuple[Shards, float]]:
        """How the inbox is divided, as it was read lately, and the store's time."""
        time: Found = yield Time()
        now, (read_at, shards) = time.now, self._read
        if not 0 <= now - read_at < FRESH_SECONDS:
            found, shards = yield from self._get()
            while shards.number < self._least:
                yield from self._divide(found, shards.raised(self._least, found.now))
                found, shards = yield from self._get()
            self._read = now, shards
        return shards, now

    def _get(self) -> Steps[tuple[Found, Shards]]:
        """Read how the inbox is divided: until that was written down, it is one shard."""
        found = yield from read(Get(INBOX, self._name, sort=NUMBER))
        if found.item is None:
            return found, Shards()
        try:
            shards = msgspec.json.decode(found.item.get("body") or b"", type=Shards)
        except msgspec.DecodeError as error:
            raise RecordCorrupt(self._name, f"its number of shards: {error}") from error
        if not shards.divisions:
            raise RecordCorrupt(self._name, "it has no number of shards")
        return found, shards

    def _divide(self, found: Found, shards: Shards) -> Steps[None]:
        """Write down how the inbox is divided, unless another process has done so since."""
        body, token = msgspec.json.encode(shards), self._realm.token()
        item = {"key": token, "body": body, "expires_at": After(NUMBER_TTL)}
        expect: Expect = ABSENT if found.item is None else {"key": found.item["key"]}
        yield from write(Put(INBOX, self._name, item, expect, sort=NUMBER))

    def settle(self, shards: Shards, now: float) -> Steps[None]:
        """Drop the earlier numbers, now and then, once there are no messages where only they put them."""
        if not shards.is_moving or now < max(shards.since + LATE_SECONDS, self._tried + SETTLE_SECONDS):
            return
        self._tried = now
        for shard in range(max(division.number for division in shards.divisions[:-1])):
            if not (yield from self._is_settled(shards, shard)):
                return
        found, latest = yield from self._get()
        if latest == shards:
            yield from self._divide(found, shards.settled())

    def _is_settled(self, shards: Shards, shard: int) -> Steps[bool]:
        """Whether everything in a shard belongs there; False if that takes too long to find out."""
        after, where, only = None, self.partition(shard), ("expires_at",)
        for _ in range(SETTLE_PAGES):
            page: Page = yield Query(INBOX, where, GROUP, limit=SETTLE_PAGE, after=after, only=only)
            lanes = (item["entry"].partition(".")[0] for item in page.items)
            if any(shard_of(lane, shards.number) != shard for lane in lanes):
                return False
            after = page.after
            if after is None:
                return True
        return False
