"""What a person on call asks of a ledger: which records, how one came to be so, and what needs somebody."""

from __future__ import annotations

from collections.abc import Sequence

from semel import errors
from semel.core.commands import Found, Page, Query, Steps, Time
from semel.core.events import digest
from semel.core.keys import Key, key_of
from semel.core.ledger import LedgerSteps, in_doubt
from semel.core.policy import check_limit, check_word
from semel.model import Listing, Record
from semel.ops.model import PAGE_SIZE, Search, SearchPage, SortOrder, version_of
from semel.ops.rates import RateSteps
from semel.ops.related import Related, RelatedSteps
from semel.ops.story import Inspection, Story, completed, story_of, story_without_record
from semel.state.journal import JournalSteps
from semel.tables import LEDGER, RECENT, SUBJECT

# So many records are looked at for one page at most, however few of them are wanted: no page takes long.
EXAMINED = 2000

# So many are asked for at once, at most.
BITE = 200


class QuestionSteps:
    """The questions, as generators of commands."""

    def __init__(self, ledger: LedgerSteps, journal: JournalSteps, *, unordered: bool = False) -> None:
        self._ledger = ledger
        self._unordered = unordered
        self._related = RelatedSteps(ledger, journal, unordered=unordered)
        self._rates = RateSteps(ledger.prefix)

    def search(
        self, search: Search, *, limit: int = PAGE_SIZE, after: str | None = None
    ) -> Steps[SearchPage]:
        """A page of the records that are asked for, by the way that reads the fewest others.

        A page ends after a bounded number of records was looked at, however few of them were wanted; the next
        one goes on from there. Unless an order is asked for, what is in doubt comes oldest first, what failed
        newest first, and the rest in no promised order. As many are read as are wanted, and twice as many
        each time after that while few of them were.
        """
        check_limit("limit", limit)
        _check_order(search)
        skip, place = _cursor(after)
        bite = skip + limit
        records: list[Record] = []
        unreadable: list[str] = []
        examined = 0
        while True:
            left = EXAMINED - examined
            page = yield from self._page(search, place, min(bite, BITE, left), left)
            bite *= 2
            examined += page.read
            for number, record in enumerate(page.records[skip:], skip + 1):
                if matches(search, record):
                    records.append(record)
                if len(records) == limit and number < len(page.records):
                    after = f"{number}.{place or ''}"
                    break
            else:
                unreadable += page.unreadable
                skip, place = 0, page.after
                if place is not None and len(records) < limit and examined < EXAMINED:
                    continue
                after = None if place is None else f"0.{place}"
            scan = search.scans(unordered=self._unordered)
            return SearchPage(tuple(records), after, page.now, examined, search.way, tuple(unreadable), scan)

    def explain(
        self, key: str | Key, *, scan: bool = False, inboxes: Sequence[str] = ()
    ) -> Steps[Story | None]:
        """What happened to a key, what belongs to it, and what its next call gets; None if nothing is known.

        Where keys lie in no order (Redis, DynamoDB), steps are found by the person that they are about; with
        `scan` all of them are, by reading the whole table. Of the `inboxes` each is looked through for the
        message of the key. Without these two it makes 12 requests at most, and where the record names a
        person, one for each row about that person that may belong to it, up to a hundred more.
        """
        record = yield from self._ledger.get(key)
        found: Found = yield Time()
        related = yield from self._related.of(str(key), record, scan=scan, inboxes=inboxes)
        if record is None:
            return completed(story_without_record(str(key)), related, None) if related else None
        return (yield from self._story(record, found.now, related))

    def look(
        self, key: str | Key, *, scan: bool = False, inboxes: Sequence[str] = ()
    ) -> Steps[Inspection | None]:
        """The record of a key as it stands, with its story as `explain` tells it; None where it has none."""
        record = yield from self._ledger.get(key)
        found: Found = yield Time()
        if record is None:
            return None
        related = yield from self._related.of(str(key), record, scan=scan, inboxes=inboxes)
        story = yield from self._story(record, found.now, related)
        return Inspection(record, story, version_of(record), found.now)

    def _story(self, record: Record, now: float, related: Related) -> Steps[Story]:
        return completed(story_of(record, now), related, (yield from self._duplicates(record, now)))

    def _duplicates(self, record: Record, now: float) -> Steps[int | None]:
        try:
            return (yield from self._rates.duplicates(digest(record.id), now))
        except errors.StoreError:
            # It may have no table for them, and what the record says is told all the same.
            return None

    def lists_by_time(self) -> Steps[bool]:
        """Whether this store lists all records newest and oldest first, as `Search.order` asks for it."""
        try:
            yield Query(LEDGER, self._ledger.prefix, index=RECENT.name, limit=1)
        except (errors.NotProvisioned, errors.UsageError):
            return False
        return True

    def _page(self, search: Search, after: str | None, limit: int, most: int) -> Steps[Listing]:
        way = search.way
        if way == "subject":
            return (yield from self._of_subject(search, after, limit))
        if way == "doubts":
            newest = search.order == "newest"
            return (yield from self._ledger.doubts(reverse=newest, limit=limit, after=after))
        if way == "failures":
            newest = search.order != "oldest"
            return (yield from self._ledger.failures(reverse=newest, limit=limit, after=after))
        if way == "recent":
            return (yield from self._by_time(search, after, limit))
        return (
            yield from self._ledger.list(
                status=search.status, prefix=search.prefix, limit=limit, after=after, most=most
            )
        )

    def _by_time(self, search: Search, after: str | None, limit: int) -> Steps[Listing]:
        """A page of all records in the order of time; what else is asked for is looked at one by one."""
        page: Page = yield Query(
            LEDGER,
            self._ledger.prefix,
            low=search.since,
            high=search.until,
            reverse=search.order == "newest",
            limit=limit,
            after=after,
            index=RECENT.name,
        )
        return self._ledger.listing(page)

    def _of_subject(self, search: Search, after: str | None, limit: int) -> Steps[Listing]:
        subject = self._ledger.subject(search.subject)
        page: Page = yield Query(LEDGER, subject, index=SUBJECT.name, limit=limit, after=after)
        records: list[Record] = []
        unreadable: list[str] = []
        for item in page.items:
            try:
                record = yield from self._ledger.get(key_of(item[LEDGER.partition]))
            except errors.RecordCorrupt as error:
                unreadable.append(error.key)
                continue
            if record is None or record.subject != subject:
                continue
            if not search.in_doubt or in_doubt(record, page.now):
                records.append(record)
        return Listing(tuple(records), page.after, tuple(unreadable), page.now, len(page.items))


def matches(search: Search, record: Record) -> bool:
    """Whether a record is one of those that are asked for."""
    failure = record.failure
    return (
        (search.status is None or record.status is search.status)
        and record.key.startswith(search.prefix)
        and (not search.error or (failure is not None and failure.type == search.error))
        and search.worker in (record.worker or "")
        and digest(record.id).startswith(search.digest)
        and (search.since is None or record.updated_at >= search.since)
        and (search.until is None or record.updated_at <= search.until)
    )


def _check_order(search: Search) -> None:
    if search.order is None:
        return
    check_word("order", search.order, SortOrder)
    if search.subject:
        raise errors.InvalidOption("what is about a person comes in no order: leave out the order")


def _cursor(after: str | None) -> tuple[int, str | None]:
    """How many of a page were looked at before, and where that page begins."""
    if after is None:
        return 0, None
    skip, dot, place = after.partition(".")
    if not skip.isascii() or not skip.isdigit() or not dot:
        raise errors.UsageError(f"not the cursor of a search: {after!r}")
    return int(skip), place or None
