"""What waits is posted together: whoever handles one fact takes along the others that could go with it.

Each of them is claimed under its own key, and is what the ledger says of it: only those that were claimed go
along, and what becomes of the request is written down for every one of them.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import msgspec

from semel.apps.client import AnswerLost
from semel.apps.quill.schema import Fact
from semel.aws.errors import ServiceError
from semel.connect import Semel
from semel.doors.inbox import Inbox, Message, WaitingMessage
from semel.errors import SemelError
from semel.model import Claimed, OnLapsed, Replay

T = TypeVar("T")

# What is noted of a fact that could not be posted at once.
LATER: Final = "posted later"
# So many are written at once.
BATCH: Final = 1000
# Of a lease: so much is for claiming, and the rest for posting and for writing down what came of it.
SHARE: Final = 1 / 3
# After a request that failed, the next one is so much smaller: what is wrong may be in one of its rows.
SMALLER: Final = 10
# What was taken along in vain can be received again after this.
AGAIN_SECONDS: Final = 30.0


class PendingFact(msgspec.Struct, frozen=True):
    """A fact in the inbox."""

    fact: Fact
    until: float
    """The ledger remembers until then what became of it so far."""


class TakenFact(NamedTuple):
    """A fact that was taken along, its claim, and the messages that it was found in."""

    fact: Fact
    claim: Claimed
    others: list[WaitingMessage]


class FactTerms(NamedTuple):
    """On which terms keys are claimed."""

    lease: float
    ttl: float
    on_lapsed: OnLapsed


class BacklogBatch:
    """Facts that go with another one, until it is known what became of them."""

    def __init__(self, s: Semel, inbox: Inbox, terms: FactTerms, until: float) -> None:
        self._s, self._inbox, self._terms = s, inbox, terms
        self.until = until
        """They are claimed until then, on the local clock."""
        self.keys: set[str] = set()
        """Those that were looked at, and need not be again."""
        self.held: list[TakenFact] = []
        self._done: list[WaitingMessage] = []
        """What was found to be posted already."""

    @property
    def facts(self) -> list[Fact]:
        """What they are."""
        return [one.fact for one in self.held]

    def claim(self, others: Sequence[WaitingMessage], table: str, most: int) -> bool:
        """Claim those that may go along; False where somebody else is at most of them already."""
        chosen, rest = self._chosen(others, table, most - len(self.held))
        lease, ttl, on_lapsed = self._terms
        about = [same[0].message.subject for same in chosen.values()]
        outcomes = self._s.ledger.claim_many(
            list(chosen), lease=lease, ttl=ttl, on_lapsed=on_lapsed, subjects=about
        )
        free = 0
        for same, outcome in zip(chosen.values(), outcomes, strict=True):
            if isinstance(outcome, Claimed):
                self.held.append(TakenFact(pending_in(same[0].message).fact, outcome, same))
            elif isinstance(outcome, Replay):
                self._done += same
            else:
                # Somebody is at it, or has to settle it, or has put it aside.
                rest += same
                continue
            free += 1
        self._give_back(rest, 0.0)
        return 2 * free >= len(chosen)

    def _chosen(
        self, others: Sequence[WaitingMessage], table: str, room: int
    ) -> tuple[dict[str, list[WaitingMessage]], list[WaitingMessage]]:
        """Those that may go along by their keys, and those that may not."""
        chosen: dict[str, list[WaitingMessage]] = {}
        rest: list[WaitingMessage] = []
        for other in others:
            key = self._inbox.record_key(other.message.key)
            if key in chosen:
                chosen[key].append(other)
            elif key not in self.keys and len(chosen) < room and self._fits(other.message, table):
                chosen[key] = [other]
            else:
                rest.append(other)
        self.keys |= chosen.keys()
        return chosen, rest

    def _fits(self, message: Message, table: str) -> bool:
        try:
            pending = pending_in(message)
        except msgspec.ValidationError:
            return False  # whoever comes to it finds out
        # What may be forgotten is looked at alone.
        return pending.fact.table == table and pending.until > self._s.clock.now()

    def posted(self) -> None:
        """They are where they belong: it is written down, and they wait no more."""
        for some in batches(self.held):
            self._s.ledger.complete_many([one.claim for one in some], details={"notes": LATER})
        self._settle([other for one in self.held for other in one.others])

    def failed(self, error: Exception) -> None:
        """They are not, or nobody knows. They were only taken along: that was no attempt of theirs."""
        ledger, lost = self._s.ledger, isinstance(error, AnswerLost) and self._terms.on_lapsed == "hold"
        for some in batches(self.held):
            claims = [one.claim for one in some]
            if lost:
                ledger.doubt_many(claims)
            else:
                ledger.release_many(claims, error, counted=False)
        self._give_back([other for one in self.held for other in one.others], AGAIN_SECONDS)
        self._settle([])

    def _give_back(self, others: Sequence[WaitingMessage], seconds: float) -> None:
        # They can be received again in any case, only later.
        with suppress(SemelError, ServiceError):
            self._inbox.give_back(others, seconds)

    def _settle(self, others: list[WaitingMessage]) -> None:
        for some in batches([*others, *self._done]):
            self._inbox.settle(some)


class Backlog:
    """What waits in the inbox beside the message in hand."""

    def __init__(self, s: Semel, inbox: Inbox, most: int) -> None:
        self._s, self._inbox, self._most = s, inbox, most
        self._size = most
        """So many facts go together, by what came of the last request."""

    def claim_batch(self, message: Message, table: str, terms: FactTerms) -> BacklogBatch:
        """Claim what else waits for the same table, as much as may go with this message."""
        begun = self._s.clock.monotonic()
        batch = BacklogBatch(self._s, self._inbox, terms, begun + terms.lease)
        batch.keys.add(self._inbox.record_key(message.key))
        if self._size == 1:
            return batch
        # Whatever the matter is, no claim is to be left behind: it goes with what was claimed so far.
        with suppress(Exception):
            for others in self._inbox.others(message, seconds=terms.lease):
                free = batch.claim(others, table, self._size - 1)
                full = len(batch.held) + 1 >= self._size
                if not free or full or self._s.clock.monotonic() >= begun + terms.lease * SHARE:
                    break
        return batch

    def adapt(self, batch: BacklogBatch, *, well: bool) -> None:
        """Go by how a request ended: after a failure the next is smaller, and then they grow again."""
        many = len(batch.held) + 1
        if well:
            self._size = min(self._most, max(self._size, many) * SMALLER)
        elif many > 1:
            self._size = max(1, many // SMALLER)


def pending_in(message: Message) -> PendingFact:
    """The fact in a message."""
    return msgspec.convert(message.body, PendingFact)


def batches(things: Sequence[T], most: int = BATCH) -> Iterator[Sequence[T]]:
    """Things in batches of so many at most."""
    for start in range(0, len(things), most):
        yield things[start : start + most]
