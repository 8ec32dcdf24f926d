"""The ledger: every rule about the life of a record, as steps that any store can execute.

Callers know these methods as `Ledger` and `AsyncLedger`, which drive them (see `facades`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from semel import errors
from semel.core import lifecycle
from semel.core.claims import ClaimSteps, next_move
from semel.core.codecs import Decoder, decoder_for, not_kept
from semel.core.commands import (
    ABSENT,
    NOW,
    PRESENT,
    AllOf,
    AnyOf,
    Applied,
    Batch,
    Begins,
    Condition,
    Delete,
    Equals,
    Found,
    Get,
    Item,
    Page,
    Pause,
    Put,
    Query,
    Refused,
    Steps,
    Update,
    Watch,
    read,
    write,
    write_each,
)
from semel.core.events import What
from semel.core.holding import RETRYABLE, Answers, judged
from semel.core.keys import Key, key_of
from semel.core.lifecycle import Move, Status
from semel.core.parts import Part, PartPlan, built_once
from semel.core.policy import check_limit, check_word
from semel.core.records import MAX_NOTE, ClaimTerms, is_running, moved_on, opening, was_made
from semel.core.spans import HOUR, LEASE, SETTLED, Seconds, lasting, seconds
from semel.core.workers import LONGEST_NAME
from semel.model import (
    Abandoned,
    Claimed,
    Failure,
    Happened,
    HistoryEntry,
    Listing,
    NotHappened,
    OnStoreError,
    Outcome,
    Record,
    Settlement,
)
from semel.tables import DOUBTS, FAILURES, FOREVER, LEDGER, Index

# A waiter looks again after the first figure, and then after twice as long each time, up to the second:
# quick work is noticed quickly, and slow work is not asked after ten times a second.
FIRST_LOOK = 0.02
SLOWEST_LOOK = 0.5
# What is left of a wait, or of a lease, may be less than any clock can tell.
SHORTEST_LOOK = 0.001

# The moves by which a doubt is settled, and those by which an operator overrides what a record says.
SETTLE: dict[type, Move] = {
    Happened: lifecycle.SETTLE_DONE,
    NotHappened: lifecycle.SETTLE_UNDONE,
    Abandoned: lifecycle.SETTLE_FAILED,
}
OVERRIDE: dict[type, Move] = {
    Happened: lifecycle.OVERRIDE_DONE,
    NotHappened: lifecycle.OVERRIDE_UNDONE,
    Abandoned: lifecycle.OVERRIDE_FAILED,
}
OVERRIDDEN: dict[type, str] = {
    Happened: "completed by hand",
    NotHappened: "released by hand",
    Abandoned: "failed by hand",
}

# How an attempt has ended, by what its record says.
ENDED = {Status.COMPLETED: "completed", Status.FAILED: "failed", Status.RELEASED: "released"}

MARK = not_kept("mark")
DROPPED = not_kept("dropped")


class LedgerSteps(ClaimSteps):
    """The rules, as generators of commands: those of claims, and here whatever else is asked of a key."""

    # Looking and waiting

    def get(self, key: str | Key) -> Steps[Record | None]:
        """The record of a key, or None."""
        id = self.name(key)
        found = yield from read(Get(LEDGER, id))
        return self._record(id, found.item)

    def peek(self, id: str, terms: ClaimTerms, decoder: Decoder) -> Steps[Outcome | None]:
        """What a claim would find on a qualified name that is done; None where it is not."""
        found = yield from read(Get(LEDGER, id))
        record = self._record(id, found.item)
        if record is None or record.status is not Status.COMPLETED:
            return None
        return (yield from self._outcome(record, found.now, terms, decoder))

    def result(self, record: Record, returns: Any = Any) -> Steps[Any]:
        """The result that a record holds; `MISSING` when only the fact was kept."""
        return (yield from self._result(record, decoder_for(returns)))

    def wait(self, key: str | Key, timeout: Seconds = LEASE) -> Steps[Record | None]:
        """Wait until nobody is at work on the key, and give the record as it then is."""
        id = self.name(key)
        found = yield from read(Get(LEDGER, id))
        record = self._record(id, found.item)
        if record is None or not is_running(record, found.now):
            return record
        found = yield from self.settled(id, seconds(timeout))
        record = self._record(id, found.item)
        if record is not None and is_running(record, found.now):
            raise errors.InProgress(record.key, record.lease_until - found.now, record.attempt)
        return record

    def settled(self, id: str, timeout: float, lease_left: float = SLOWEST_LOOK) -> Steps[Found]:
        """Watch a qualified name until nobody holds it, or the time is up; what was seen last."""
        waited, pause = 0.0, FIRST_LOOK
        while True:
            look = max(min(pause, lease_left, timeout - waited), SHORTEST_LOOK)
            try:
                found = yield from read(Watch(LEDGER, id, look))
            except RETRYABLE:
                # Whoever waits has time: the store may be back at the next look.
                if waited + look >= timeout:
                    raise
                yield Pause(look, self.clock)
                waited += look
                pause = min(pause * 2, SLOWEST_LOOK)
                continue
            waited += found.waited
            record = self._record(id, found.item)
            if record is None or not is_running(record, found.now) or waited >= timeout:
                return msgspec.structs.replace(found, waited=waited)
            pause = min(pause * 2, SLOWEST_LOOK)
            lease_left = record.lease_until - found.now

    # Settling, marking, forgetting

    def resolve(
        self,
        key: str | Key,
        settlement: Settlement,
        *,
        ttl: Seconds | None = None,
        by: str = "",
        why: str = "",
    ) -> Steps[None]:
        """Settle what became of an attempt that vanished; the record keeps who found out, and why.

        Without a `ttl` it is kept for as long as it had left, and for 30 days at least.
        """
        if not isinstance(settlement, Happened | NotHappened | Abandoned):
            raise errors.InvalidOption(
                f"{settlement!r} settles nothing: give Happened(result), NotHappened() or Abandoned(reason)"
            )
        id = self.name(key)
        found = yield from read(Get(LEDGER, id))
        record = self._record(id, found.item)
        terms = ClaimTerms(0, SETTLED if ttl is None else seconds(ttl), on_lapsed="hold")
        if record is not None and next_move(record, found.now, terms) is lifecycle.HOLD:
            yield from self._give_up(record, lifecycle.HOLD, terms)
        elif record is None or record.status is not Status.UNKNOWN:
            state = "absent" if record is None else record.status.value
            raise errors.Refused(key_of(id), f"is {state}; only what is UNKNOWN, or lapsed, is settled")
        span = kept_for(record, found.now) if ttl is None else terms.ttl
        claim = Claimed(id, record.token, record.attempt, 0, span, on_lapsed="hold")
        history = self.acted(record, "settled", found.now, by, why)
        part = yield from self._settling(claim, settlement, SETTLE, {"history": history})
        judged(part, (yield from write(part.writes[0])))

    def override(
        self, record: Record, settlement: Settlement, *, now: float, ttl: float, by: str, why: str
    ) -> PartPlan[None]:
        """An operator decides what became of a key, whatever its record said, if that is still as it was."""
        move, done = OVERRIDE[type(settlement)], OVERRIDDEN[type(settlement)]
        seen = msgspec.structs.replace(move, start=(record.status,))
        claim = Claimed(record.id, record.token, record.attempt, 0, ttl, on_lapsed="hold")

        def plan(_mark: str) -> Steps[Part[None]]:
            change = {"error": None, "history": self.acted(record, done, now, by, why)}
            return (yield from self._settling(claim, settlement, {type(settlement): seen}, change))

        return built_once(plan)

    def acted(self, record: Record, how: str, now: float, by: str, why: str) -> str:
        """The history of a record once somebody has done this to it."""
        note = self.events.scrubbed(why, MAX_NOTE)
        act = HistoryEntry(record.attempt, by[:LONGEST_NAME] or self.worker(), now, now, how, note)
        if record.status in ENDED:
            return self.history(record, ENDED[record.status], record.updated_at, act)
        return self.history(record, *_unfinished(record, now), act)

    def _settling(
        self, claim: Claimed, settlement: Settlement, moves: Mapping[type, Move], change: Item
    ) -> Steps[Part[None]]:
        move = moves[type(settlement)]
        match settlement:
            case Happened(result):
                return (yield from self._concluding(claim, move, result, beside=change))
            case Abandoned(reason):
                text = self._kept_text(claim.id, Failure("Abandoned", reason))
                return self._moving(claim, move, change | {"error": text})
            case _:
                return self._moving(claim, move, change)

    def check_and_set(self, key: str | Key, ttl: Seconds = HOUR) -> Steps[bool]:
        """True the first time, False while that time is remembered: one atomic write."""
        token, id = self.token(), self.name(key)
        reply = yield from write(self._mark(id, lasting(ttl, self.horizon), token))
        return self._seen(id, _new(reply, token))

    def _mark(self, id: str, ttl: float, token: str) -> Put:
        """Write a record that is done from the start, unless one is there that may be done or doing."""
        return Put(LEDGER, id, self._marked(ttl, token), MARKABLE)

    def _marked(self, ttl: float, token: str) -> Item:
        done = {"status": "COMPLETED", "encoding": MARK.encoding}
        return opening(ClaimTerms(0, ttl), token, self.worker()) | done

    def _seen(self, id: str, new: bool) -> bool:
        self.events.emit(What.CLAIMED if new else What.REPLAYED, id)
        return new

    def check_and_set_many(self, keys: Iterable[str | Key], ttl: Seconds = HOUR) -> Steps[Answers]:
        """True for each new key, in one round trip; of equal keys in the batch the first one counts."""
        token = self.token()
        names = [self.name(key) for key in keys]
        span = lasting(ttl, self.horizon)
        item = self._marked(span, token)
        marks = tuple([Put(LEDGER, id, item, MARKABLE) for id in dict.fromkeys(names)])
        if not marks:
            return []
        many = yield from write_each(Batch(marks))
        new = {mark.key: _new(reply, token) for mark, reply in zip(marks, many.replies, strict=True)}
        # Popping leaves the later ones of equal keys without an entry: they are duplicates.
        return [self._seen(id, new.pop(id, False)) for id in names]

    def is_processed(self, key: str | Key, *, on_store_error: OnStoreError = "closed") -> Steps[bool]:
        """Whether the key is done; one that is only being worked on is not.

        Under `on_store_error="open"` it is taken for not done where the store is down, which is logged.
        """
        check_word("on_store_error", on_store_error, OnStoreError)
        try:
            record = yield from self.get(key)
        except (errors.StoreUnavailable, errors.StoreThrottled) as error:
            if on_store_error == "closed":
                raise
            self.events.warn(What.RAN_OPEN, self.name(key), detail=f"{type(error).__name__}: {error}")
            return False
        return record is not None and record.status is Status.COMPLETED

    def mark_processed(self, key: str | Key, ttl: Seconds = HOUR) -> Steps[None]:
        """Record that the key is done, whatever became of earlier attempts; a running one is left alone."""
        token = self.token()
        mark = self._mark(self.name(key), lasting(ttl, self.horizon), token)
        reply = yield from write(mark)
        while not _new(reply, token):
            record = self._record(mark.key, reply.item)
            if record is None:
                reply = yield from write(mark)
            elif record.status is Status.COMPLETED:
                return
            elif is_running(record, reply.now):
                raise errors.InProgress(record.key, record.lease_until - reply.now, record.attempt)
            elif record.status is Status.IN_PROGRESS:
                yield from self._give_up(
                    record, lifecycle.HOLD, ClaimTerms(0, seconds(ttl), on_lapsed="hold")
                )
                reply = yield from write(mark)
            else:
                move = lifecycle.MARK
                settled = Claimed(mark.key, record.token, record.attempt, 0, seconds(ttl), on_lapsed="hold")
                change = moved_on({"result": None, "encoding": MARK.encoding}, move, settled, self.prefix)
                reply = yield from write(Update(LEDGER, mark.key, change, move.condition(record.token)))

    def drop_result(self, key: str | Key) -> Steps[bool]:
        """Let the result go and keep the fact, so that duplicates are still known; False if there is none."""
        found = yield from read(Get(LEDGER, self.name(key)))
        record = self._record(self.name(key), found.item)
        if record is None or record.status is not Status.COMPLETED:
            return False
        history = self.acted(record, "dropped", found.now, "", "")
        change: Item = {"result": None, "encoding": DROPPED.encoding, "updated_at": NOW, "history": history}
        condition = lifecycle.DROP.condition(record.token)
        reply = yield from write(Update(LEDGER, record.id, change, condition))
        if isinstance(reply, Refused) and not was_made(reply.item, record.token, change):
            return False
        yield from self.discard(record.result, record.encoding)
        return True

    def forget(self, key: str | Key) -> Steps[bool]:
        """Remove the record, even one that cannot be read; the key may then run again. False if none."""
        id = self.name(key)
        found = yield from read(Get(LEDGER, id))
        first = item = found.item
        while item is not None and first is not None:
            token = item.get("token")
            seen = Equals("token", token) if isinstance(token, str) else PRESENT
            reply = yield from write(Delete(LEDGER, id, seen))
            if type(reply) is Applied or reply.item is None:
                yield from self.discard(item.get("result"), item.get("encoding"))
                break
            # Another attempt at the same is forgotten too; what was born since was not meant.
            item = reply.item if _continues(reply.item, first) else None
        return first is not None

    def list(
        self,
        *,
        status: Status | str | None = None,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
        most: int = 0,
    ) -> Steps[Listing]:
        """A page of this environment's and scope's records: those of one status, of keys that begin so.

        Where keys lie in no order, a page ends after about `most` records were read; 0 fills it.
        """
        where: Condition = Begins(LEDGER.partition, self.prefix + prefix)
        if status is not None:
            if status not in set(Status):
                raise errors.InvalidOption(f"status={status!r}: it is one of {', '.join(Status)}")
            where = AllOf((where, Equals("status", str(status))))
        check_limit("limit", limit)
        page: Page = yield Query(LEDGER, where=where, limit=limit, after=after, most=most)
        return self.listing(page)

    def listing(self, page: Page) -> Listing:
        """A page of items as records, and the keys of those that cannot be read."""
        records, unreadable = [], []
        for item in page.items:
            try:
                records.append(self._readable(item[LEDGER.partition], item))
            except errors.RecordCorrupt as error:
                unreadable.append(error.key)
        looked = max(page.read, len(page.items))
        return Listing(tuple(records), page.after, tuple(unreadable), page.now, looked)

    def doubts(self, *, reverse: bool = False, limit: int = 100, after: str | None = None) -> Steps[Listing]:
        """What waits for somebody to find out what became of it, oldest first or, in `reverse`, newest first.

        That is what is UNKNOWN, and what lapsed where the policy is to hold it or to ask. It comes from an
        index; on a table that was there first and has none, all of it is looked through, a page at a time.
        """
        return (yield from self._listed(DOUBTS, in_doubt, limit, after, reverse))

    def failures(
        self, *, reverse: bool = False, limit: int = 100, after: str | None = None
    ) -> Steps[Listing]:
        """What failed for good, oldest first or, in `reverse`, newest first; from an index, as doubts are."""
        return (yield from self._listed(FAILURES, _failed, limit, after, reverse))

    def _listed(
        self,
        index: Index,
        wanted: Callable[[Record, float], bool],
        limit: int,
        after: str | None,
        reverse: bool = False,
    ) -> Steps[Listing]:
        """A page of the records that an index leads to; it may lag behind, so each is read."""
        check_limit("limit", limit)
        records: list[Record] = []
        unreadable: list[str] = []
        looked = 0
        while True:
            left = limit - len(records)
            page: Page = yield Query(
                LEDGER, self.prefix, reverse=reverse, index=index.name, limit=left, after=after
            )
            for item in page.items:
                found = yield from read(Get(LEDGER, item[LEDGER.partition]))
                try:
                    record = self._record(item[LEDGER.partition], found.item)
                except errors.RecordCorrupt as error:
                    unreadable.append(error.key)
                    continue
                if record is not None and wanted(record, found.now):
                    records.append(record)
            after, looked = page.after, looked + max(page.read, len(page.items))
            if after is None or len(records) >= limit:
                return Listing(tuple(records), after, tuple(unreadable), page.now, looked)


def _failed(record: Record, _now: float) -> bool:
    return record.status is Status.FAILED


MARKABLE = AnyOf((ABSENT, Equals("status", "RELEASED")))


def _new(reply: Applied | Refused, token: str) -> bool:
    return type(reply) is Applied or (reply.item is not None and reply.item.get("token") == token)


def kept_for(record: Record, now: float) -> float:
    """For how long a record is kept that somebody has settled; a doubt has no end of its own."""
    left = record.expires_at - now
    return max(SETTLED, left) if left < FOREVER else SETTLED


def _unfinished(record: Record, now: float) -> tuple[str, float]:
    """How and when an attempt without a result ended, if an operator acts on it now."""
    if is_running(record, now):
        return "interrupted", now
    # A worker that cannot tell says so within its lease; otherwise the lease expired.
    if record.status is Status.UNKNOWN and record.updated_at < record.lease_until:
        return "held", record.updated_at
    return "lapsed", record.lease_until


def in_doubt(record: Record, now: float) -> bool:
    """Whether somebody has to find out what became of it."""
    if record.status is Status.UNKNOWN:
        return True
    return (
        record.status is Status.IN_PROGRESS and record.doubt_since is not None and record.lease_until <= now
    )


def _continues(item: Item, earlier: Item) -> bool:
    """Whether this is a later attempt in the same life of a record."""
    same_life = item.get("created_at") == earlier.get("created_at")
    return same_life and (item.get("attempt") or 0) > (earlier.get("attempt") or 0)
