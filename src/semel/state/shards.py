"""Shards: which partition of the store a lane of an inbox is in, also while their number is being raised.

A message is in the shard that its lane has by the number in force when the message was accepted, and whoever
reads a lane reads all shards that it has had. A number is announced before it is in force, for longer than
anybody goes without reading it: so nobody accepts by one that is over, or overlooks one that has begun.
"""

from collections.abc import Iterable
from math import inf
from typing import Any

import msgspec

from semel.core.commands import ABSENT, After, Equals, Get, Item, Page, Put, Query, Steps, read, write
from semel.core.policy import DAY
from semel.core.realm import Realm
from semel.errors import InvalidOption, RecordCorrupt
from semel.tables import INBOX

# A shard is one partition, in which any store can move a letter at once. There is `LANE.ID` for each letter,
# and `LANE` while somebody is in that lane. A lane ends before `LANE/`: one of thousands of letters is passed
# over by one request. Dead letters have a lane to themselves in each shard, before all others; and before
# these it says in the first shard how many there are.
BEYOND = "/"
NUMBER, DEAD, GROUP, ALONE = "config", "dead", "g", "k"

MOST = 1000

# Who has not read the number for so long reads it before anything else.
FRESH_SECONDS = 30.0
# So long before it is in force a number is written down: twice that, for clocks that differ.
NOTICE_SECONDS = 60.0
# So long after that a message may still be on its way to where it would have been before.
LATE_SECONDS = 900.0
# Whether anything is left of earlier numbers is found out this often, by so many pages of each shard.
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
        """How many there are, or will soon be; it never falls."""
        return self.divisions[-1].number

    @property
    def since(self) -> float:
        """From when on it is the only number by which messages are accepted."""
        return self.divisions[-1].since

    @property
    def is_moving(self) -> bool:
        """Whether there may be messages where an earlier number put them."""
        return len(self.divisions) > 1

    def home(self, lane: str, moment: float) -> int:
        """The shard of what is accepted in a lane at a moment."""
        number = self.divisions[0].number
        for division in self.divisions:
            if division.since <= moment:
                number = division.number
        return shard_of(lane, number)

    def homes(self, lane: str) -> tuple[int, ...]:
        """The shards where messages of a lane may be."""
        return tuple(dict.fromkeys(shard_of(lane, division.number) for division in self.divisions))

    def is_home(self, lane: str, shard: int) -> bool:
        """Whether a lane is in this shard by the last number."""
        return shard == shard_of(lane, self.number)

    def raised(self, number: int, now: float) -> "Shards":
        """The same with a higher number, announced now."""
        return Shards((*self.divisions, Division(number, max(now, self.since) + NOTICE_SECONDS)))

    def settled(self) -> "Shards":
        """The same without the earlier numbers."""
        return Shards(self.divisions[-1:])


def shard_of(lane: str, number: int) -> int:
    """Which of so many shards a lane is in, by its hash."""
    # Of the lane's own digits those that come last: the first decide its place within the shard.
    return 0 if number == 1 else int(lane[-8:], 16) % number


def read_shards(key: str, item: Item | None) -> Shards:
    """How an inbox is divided, as it was written down; where it was not, it is one shard."""
    if item is None:
        return Shards()
    try:
        shards = msgspec.json.decode(item.get("body") or b"", type=Shards)
    except msgspec.DecodeError as error:
        raise RecordCorrupt(key, f"its number of shards: {error}") from error
    if not shards.divisions:
        raise RecordCorrupt(key, "it has no number of shards")
    return shards


def check_number(number: Any) -> int:
    """A number of shards; `InvalidOption` where it is none."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST:
        raise InvalidOption(f"shards is a whole number from 1 to {MOST}, not {number!r}")
    return number


class ShardSteps:
    """How one inbox is divided, as generators of commands."""

    def __init__(self, realm: Realm, name: str, least: int) -> None:
        self._realm, self._name, self._least = realm, name, check_number(least)
        self._read = (-inf, Shards())
        """When it was last read, and what was read."""
        self._tried = -inf
        """When it was last tried to have done with earlier numbers."""

    def partition(self, shard: int) -> str:
        """A shard as the store knows it; the first is called as the inbox is."""
        return f"{self._name}:{shard}" if shard else self._name

    def partitions(self, shards: Iterable[int]) -> list[str]:
        """Shards as the store knows them."""
        return [self.partition(shard) for shard in shards]

    def now(self) -> Steps[tuple[Shards, float]]:
        """How the inbox is divided, as it was read lately; and what time it is."""
        now = yield from self._realm.now()
        read_at, shards = self._read
        if not 0 <= now - read_at < FRESH_SECONDS:
            shards = yield from self._reread()
            self._read = now, shards
        return shards, now

    def _reread(self) -> Steps[Shards]:
        """Read how the inbox is divided, and raise the number to what is wanted here."""
        while True:
            found = yield from read(Get(INBOX, self._name, sort=NUMBER))
            shards = read_shards(self._name, found.item)
            if shards.number >= self._least:
                return shards
            yield from self._divide(found.item, shards.raised(self._least, found.now))

    def _divide(self, there: Item | None, shards: Shards) -> Steps[None]:
        """Write down how the inbox is divided, unless somebody else has done so since."""
        body, token = msgspec.json.encode(shards), self._realm.token()
        item: Item = {"key": token, "body": body, "expires_at": After(NUMBER_TTL)}
        when = ABSENT if there is None else Equals("key", there["key"])
        yield from write(Put(INBOX, self._name, item, when, sort=NUMBER))

    def settle(self, shards: Shards, now: float) -> Steps[None]:
        """Have done with earlier numbers, now and then, once nothing is where only they put it."""
        if not shards.is_moving or now < max(shards.since + LATE_SECONDS, self._tried + SETTLE_SECONDS):
            return
        self._tried = now
        for shard in range(max(division.number for division in shards.divisions[:-1])):
            if not (yield from self._is_settled(shards, shard)):
                return
        found = yield from read(Get(INBOX, self._name, sort=NUMBER))
        if read_shards(self._name, found.item) == shards:
            yield from self._divide(found.item, shards.settled())

    def _is_settled(self, shards: Shards, shard: int) -> Steps[bool]:
        """Whether everything in a shard belongs there; False where that takes too long to tell."""
        after: str | None = None
        for _ in range(SETTLE_PAGES):
            page: Page = yield Query(
                INBOX, self.partition(shard), GROUP, limit=SETTLE_PAGE, after=after, only=("expires_at",)
            )
            if not all(shards.is_home(item["entry"].partition(".")[0], shard) for item in page.items):
                return False
            after = page.after
            if after is None:
                return True
        return False
