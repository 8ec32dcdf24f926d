"""Copying a ledger from one store to another while the first is in use, and the switch-over between them.

Passes bring the target nearer to the source while workers go on writing there. Nothing here can stop those:
the switch-over begins when they were stopped, waits for what is at work, and calls itself done only when the
source has stood still and every living item of it was found in the target.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from semel.core.clock import Clock
from semel.core.commands import (
    ABSENT,
    Applied,
    Delete,
    Item,
    Page,
    Put,
    Refused,
    write,
)
from semel.core.drive import Store, drive
from semel.core.keys import prefix
from semel.core.lifecycle import Status
from semel.core.policy import DAY
from semel.core.realm import Realm
from semel.errors import UsageError
from semel.model import ProgressCallback
from semel.ops.transfer import (
    ItemPlace,
    content,
    found_at,
    is_over,
    item_place,
    named,
    now_of,
    pages,
    put,
    putting,
)
from semel.state import Documents
from semel.state.documents import DocumentSteps
from semel.tables import DOCUMENTS, LEDGER, OWN, Table

# The document by which the target of a copy is known; it is of no scope, and is not copied itself.
MARK = "semel:copy"
MARK_TTL = 3650 * DAY

# A pass that changed so few items, or so small a part of them, is near enough for a switch-over.
FEW, FEW_OF = 100, 100
MOST_PASSES = 10

# How long the switch-over waits for running work, and how often it looks.
WAIT = 600.0
LOOK = 1.0

# So many places are named in a report.
NAMED = 20

# What tells an item as it was seen from what somebody has made of it since.
COMPARED = ("token", "status", "version", "state", "count", "attempts", "key", "at", "updated_at")

CopyState: TypeAlias = Literal["copying", "done"]


class Differences(msgspec.Struct, frozen=True):
    """What two stores have, compared item by item."""

    items: int = 0
    """Living items of the source that were compared."""
    missing: int = 0
    """Are not in the target."""
    older: int = 0
    """Are older in the target."""
    newer: int = 0
    """Are newer in the target: somebody has written there."""
    only_there: int = 0
    """Are in the target alone."""
    places: tuple[str, ...] = ()
    """The first of these, each with what is the matter."""

    @property
    def complete(self) -> bool:
        """Whether everything of the source is in the target, as it is or newer."""
        return not self.missing and not self.older


class Copied(msgspec.Struct, frozen=True):
    """What a copy has done so far."""

    passes: int = 0
    items: int = 0
    """Living items of the source, as the last pass saw it."""
    changed: int = 0
    """Written or removed by the last pass."""
    written: int = 0
    """Written by all passes."""
    removed: int = 0
    """Removed from the target, since they are not in the source any more."""
    newer: int = 0
    """Left alone, since they are newer in the target."""
    running: int = 0
    """Records that somebody holds in the source at this moment."""
    lapsed: int = 0
    """Records whose worker vanished: in the target the policy of the next call decides, as after a crash."""
    refused: tuple[str, ...] = ()
    """What the target has no room for."""
    done: bool = False
    """The switch-over is complete: workers may begin on the target."""
    why: str = ""
    """Why it is not."""
    differences: Differences | None = None


class Copier:
    """Copies an environment from a store in use to another that nobody works on yet."""

    def __init__(
        self,
        source: Store,
        target: Store,
        env: str,
        *,
        clock: Clock | None = None,
        on_progress: ProgressCallback[Copied] | None = None,
    ) -> None:
        if source is target:
            raise UsageError("a ledger is copied to another store, not to its own")
        self._source, self._target, self._env = source, target, env
        self._clock = clock or Clock()
        self._on_progress = on_progress or (lambda _done: None)
        self._marks: Documents[dict[str, Any]] = Documents(
            DocumentSteps(Realm(env=env), sealed=False), target
        )
        self._mark_place: ItemPlace = (DOCUMENTS, prefix(env, "") + MARK, None)

    # What an operator asks for

    def copy(self) -> Copied:
        """Copy what is there, again and again until little changes meanwhile; the source may be in use."""
        self._begin()
        done = self._pass(Copied())
        while not _near(done) and done.passes < MOST_PASSES:
            before, done = done, self._pass(done)
            if done.changed > before.changed // 2:
                break  # workers are about as quick as the copy
        return msgspec.structs.replace(done, why=NOT_YET)

    def switch_over(self, wait: float = WAIT) -> Copied:
        """Copy the last of it once the source's workers were stopped, and tell whether it is complete.

        It waits so long at most for records that somebody holds.
        """
        self._begin()
        running = self._wait(wait)
        if running:
            return Copied(running=running, why=_still_running(running))
        done = self._still(Copied())
        if done.why:
            found = self.check() if done.why == SOMEBODY_THERE else None
            return msgspec.structs.replace(done, differences=found)
        return self._verified(done)

    def check(self) -> Differences:
        """Compare the two, and write nothing.

        After a switch-over the target goes its own way: then only what was written to the source since then
        is compared.
        """
        mark = self._marks.get(MARK)
        since = mark.value["at"] if mark is not None and mark.value["state"] == "done" else None
        differences = _DifferenceCount()
        for table, page in self._pages(self._source):
            for item in page.items:
                if since is None or _moment(item) > since:
                    differences.items += 1
                    self._compare(table, item, differences)
        if since is None:
            for place, _ in self._only_there(*OWN):
                differences.note("only_there", place)
        return differences.counted()

    # The target's mark

    def _begin(self) -> None:
        """Refuse a target that is somebody's: what is only there would be taken for leftovers of the copy."""
        mark = self._marks.get(MARK)
        if mark is None:
            if any(page.items for _, page in self._pages(self._target)):
                raise UsageError(
                    f"the target has items of environment {self._env!r} already, and a copy begins with "
                    "none: empty it, or add to it with semel import"
                )
            self._mark("copying", now_of(self._source))
        elif mark.value["state"] == "done":
            raise UsageError(
                f"the switch-over to this target is done: it may be in use, and what was written to it since "
                f"would be lost; a copy begins with a target that has nothing of environment {self._env!r}"
            )

    def _mark(self, state: CopyState, at: float) -> None:
        self._marks.put(MARK, {"state": state, "at": at}, ttl=MARK_TTL)

    # Passes

    def _pages(self, store: Store, tables: tuple[Table, ...] = OWN) -> Iterator[tuple[Table, Page]]:
        for table in tables:
            for page in pages(store, table, self._env):
                items = tuple(item for item in page.items if item_place(table, item) != self._mark_place)
                yield table, msgspec.structs.replace(page, items=items)

    def _pass(self, done: Copied) -> Copied:
        """Bring every item of the source that the target lacks, or has an older one of."""
        done = msgspec.structs.replace(
            done, passes=done.passes + 1, items=0, changed=0, newer=0, running=0, lapsed=0, refused=()
        )
        for table, page in self._pages(self._source):
            done = self._copied(table, page, done)
            self._on_progress(done)
        return done

    def _copied(self, table: Table, page: Page, done: Copied) -> Copied:
        now = max(page.now, now_of(self._target))
        items = {item_place(table, item): item for item in page.items if not is_over(table, item, now)}
        first = self._put([putting(table, item, ABSENT) for item in items.values()])
        differing = [
            (items[place], there)
            for place, there in first.there.items()
            if content(table, there) != content(table, items[place])
        ]
        older = [(item, there) for item, there in differing if not _is_newer(there, item)]
        second = self._put([putting(table, item, _as_seen(there)) for item, there in older])
        # What somebody changed in between is looked at again by the next pass.
        written = first.written + second.written + len(second.there)
        running, lapsed = _leases(table, items.values(), page.now)
        return msgspec.structs.replace(
            done,
            items=done.items + len(items),
            changed=done.changed + written,
            written=done.written + written,
            newer=done.newer + len(differing) - len(older),
            running=done.running + running,
            lapsed=done.lapsed + lapsed,
            refused=(*done.refused, *first.refused, *second.refused),
        )

    def _put(self, puts: list[Put]) -> "_PutReplies":
        replies = _PutReplies()
        for each, reply in put(self._target, puts):
            place = each.table, each.key, each.sort
            if isinstance(reply, UsageError):
                replies.refused.append(f"{named(place)}: {reply}")
            elif isinstance(reply, Refused) and reply.item is not None:
                replies.there[place] = reply.item
            else:
                replies.written += 1
        return replies

    def _wait(self, seconds: float) -> int:
        """Wait until nobody holds a record of the source, or so long; how many are held then."""
        end = self._clock.monotonic() + seconds
        held = self._held()
        while held and self._clock.monotonic() < end:
            self._on_progress(Copied(running=len(held)))
            self._clock.wait(threading.Event(), LOOK)
            held = [place for place in held if self._is_held(place)] or self._held()
        return len(held)

    def _held(self) -> list[ItemPlace]:
        """The places of records that somebody holds in the source."""
        return [
            item_place(LEDGER, item)
            for page in pages(self._source, LEDGER, self._env)
            for item in page.items
            if _lease(item) > page.now
        ]

    def _is_held(self, place: ItemPlace) -> bool:
        found = found_at(self._source, place)
        return found.item is not None and _lease(found.item) > found.now

    def _still(self, done: Copied) -> Copied:
        """Passes, until one finds that nothing has changed since the one before."""
        for _ in range(MOST_PASSES):
            done = self._pass(done)
            if why := self._obstacle(done):
                return msgspec.structs.replace(done, why=why)
            removed = self._remove()
            changed = done.changed + removed
            done = msgspec.structs.replace(done, changed=changed, removed=done.removed + removed)
            if not changed:
                return done
        return msgspec.structs.replace(done, why=NOT_STILL)

    def _obstacle(self, done: Copied) -> str:
        """Why it cannot go on after a pass."""
        if done.running:
            return _still_running(done.running)
        if done.refused:
            return NO_ROOM
        # Before anything is removed: these may be the only trace of what a worker did there.
        if done.newer or next(self._only_there(LEDGER), None):
            return SOMEBODY_THERE
        return ""

    def _verified(self, done: Copied) -> Copied:
        """Compare the two item by item, and mark the target as done where nothing is left."""
        began = now_of(self._source)
        found = self.check()
        if not found.complete or found.newer or found.only_there:
            return msgspec.structs.replace(done, differences=found, why=DIFFERS)
        # As of when it began: what was written after it was compared is then found by a later check.
        self._mark("done", began)
        return msgspec.structs.replace(done, differences=found, done=True)

    # What the target has and the source has not

    def _only_there(self, *tables: Table) -> Iterator[tuple[ItemPlace, Item]]:
        for table, page in self._pages(self._target, tables):
            for item in page.items:
                place = item_place(table, item)
                found = found_at(self._source, place)
                if found.item is None and not is_over(table, item, found.now):
                    yield place, item

    def _remove(self) -> int:
        """Remove what the source has dropped since it was copied: letters that were handled, say."""
        removed = 0
        for (table, key, sort), item in self._only_there(*(table for table in OWN if table is not LEDGER)):
            reply = drive(write(Delete(table, key, _as_seen(item), sort)), self._target)
            removed += isinstance(reply, Applied)
        return removed

    def _compare(self, table: Table, item: Item, tally: "_DifferenceCount") -> None:
        place = item_place(table, item)
        found = found_at(self._target, place)
        if is_over(table, item, found.now):
            return
        if found.item is None:
            tally.note("missing", place)
        elif content(table, found.item) != content(table, item):
            tally.note("newer" if _is_newer(found.item, item) else "older", place)


class _PutReplies:
    """What became of several writes to the target."""

    def __init__(self) -> None:
        self.written = 0
        self.there: dict[ItemPlace, Item] = {}
        """What was in the way."""
        self.refused: list[str] = []


class _DifferenceCount:
    """Differences as they are counted."""

    def __init__(self) -> None:
        self.items = 0
        self.counts = {"missing": 0, "older": 0, "newer": 0, "only_there": 0}
        self._places: list[str] = []

    def note(self, what: str, place: ItemPlace) -> None:
        """One more."""
        self.counts[what] += 1
        if len(self._places) < NAMED:
            self._places.append(f"{what.replace('_', ' ')}: {named(place)}")

    def counted(self) -> Differences:
        """All of them."""
        return Differences(self.items, **self.counts, places=tuple(self._places))


# Why a copy is not done.
NOT_YET = "the source may be in use: stop its workers, then switch over"
NO_ROOM = "the target has no room for some items"
SOMEBODY_THERE = (
    "the target has records of its own: a worker uses it already, or they were forgotten in the source since"
)
NOT_STILL = "the source is still written to: stop its workers"
DIFFERS = "the two differ"


def _still_running(count: int) -> str:
    return f"{count} still at work in the source: let it finish, or wait until the leases end"


def _near(done: Copied) -> bool:
    return done.changed <= max(FEW, done.items // FEW_OF)


def _leases(table: Table, items: Iterable[Item], now: float) -> tuple[int, int]:
    """How many records somebody holds, and how many were held by somebody who vanished."""
    leases = [lease for item in items if table is LEDGER and (lease := _lease(item))]
    running = sum(lease > now for lease in leases)
    return running, len(leases) - running


def _lease(record: Item) -> float:
    """Until when somebody holds a record; 0 where it is not in progress."""
    if record.get("status") != Status.IN_PROGRESS.value:
        return 0.0
    return float(record.get("lease_until") or 0.0)


def _is_newer(there: Item, here: Item) -> bool:
    # Not by the attempt: one that had not begun is given back uncounted, and is then lower than before.
    return bool((there.get("updated_at") or 0.0) > (here.get("updated_at") or 0.0))


def _as_seen(item: Item) -> Item:
    """Return what a write expects of an item that was read: nobody has touched it since."""
    return {name: item[name] for name in COMPARED if item.get(name) is not None}


def _moment(item: Item) -> float:
    """When an item was last written, so far as it tells."""
    return float(item.get("updated_at") or item.get("at") or 0.0)
