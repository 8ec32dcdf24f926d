"""Quill: deliveries of Aloware and HubSpot become facts, each once.

A delivery loses its own duplicates, then what earlier ones brought, by claiming the rest in one round trip.
Then the rows that facts refer to are seen to, the facts are posted together, and only then is it written down
that they are. What cannot be posted goes into the inbox, whose worker tries again under the same keys.
"""

import asyncio
import contextvars
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from semel.apps.application import check_shared
from semel.apps.client import AnswerLost, RequestRefused
from semel.apps.persons import person
from semel.apps.quill.backlog import LATER, Backlog, FactTerms, PendingFact, batches, pending_in
from semel.apps.quill.events import person_of
from semel.apps.quill.powerbi import PowerBI
from semel.apps.quill.report import Received, Unreadable, report_of
from semel.apps.quill.schema import Fact, StarSchema
from semel.apps.quill.settings import Settings, check_tokens, checked, wrong, zone_of
from semel.apps.quill.star import OtherTables, Star
from semel.apps.settings import OwnFunctionFailed, naming
from semel.apps.tables import QUILL
from semel.aws.errors import ServiceError
from semel.connect import Semel
from semel.core.drive import FileBacked
from semel.core.events import What
from semel.core.policy import Options, lasting
from semel.core.running import current_run
from semel.doors.http.problems import retry_after
from semel.doors.inbox import Inbox, Message
from semel.doors.webhooks import ALOWARE, HUBSPOT, DeliveryReader, Headers, Notice, Provider, WebhookResponse
from semel.errors import InvalidOption, Later, SemelError, StoreError
from semel.model import Claimed, Failed, OnLapsed, Replay

if TYPE_CHECKING:
    from fastapi import APIRouter

    from semel.apps.deployment import Deployment
    from semel.ops.blocks import AppPage

# Deliveries that an event loop takes at once; more wait for their turn, and those that wait for Power BI
# go out together.
THREADS: Final = 16

# What failed may do better soon.
RETRY_AFTER: Final = 10

HOOKS: Final[dict[str, tuple[str, Provider]]] = {
    "/webhooks/aloware": ("aloware_token", ALOWARE),
    "/webhooks/hubspot": ("hubspot_secret", HUBSPOT),
}


class Sink(Protocol):
    """Where facts go."""

    repeats: bool
    """Whether posting again what may have been posted is harmless."""
    most: int
    """So many facts of one table are posted together at most: all of them, or none."""

    def check(self) -> None:
        """Raise `Later` while nothing would be let through."""

    def ensure(self, facts: Sequence[Fact]) -> None:
        """See to the rows that these facts refer to."""

    def post(self, facts: Sequence[Fact]) -> None:
        """Add facts of one table."""

    def close(self) -> None:
        """Let go of connections."""


class QuillSummary(msgspec.Struct):
    """What the sender is told of a delivery."""

    received: int
    new: int = 0
    duplicates: int = 0
    """Events that came twice in it, or came before."""
    ignored: int = 0
    """Events that nobody counts."""
    posted: int = 0
    failed: int = 0
    """Events that nothing names or nobody can read, or that were put aside before."""
    queued: int = 0
    """Events that will be posted later, or that somebody is at work on or has to settle."""


class ReadDelivery(NamedTuple):
    """What a delivery says."""

    facts: list[Fact]
    counts: QuillSummary
    broken: bool
    """A function of the owner's has failed at some of it."""


class Late(SemelError):
    """Claims have lapsed before their events were posted: somebody else may be at it by now."""


class Forgotten(SemelError):
    """An event has waited for longer than it is remembered whether it was posted."""


class ClaimedFact(NamedTuple):
    """A fact whose key was claimed."""

    fact: Fact
    claim: Claimed


def by_table(mine: Iterable[ClaimedFact], most: int) -> Iterator[Sequence[ClaimedFact]]:
    """Facts as they are posted: those of one table together, up to so many."""
    tables: dict[str, list[ClaimedFact]] = {}
    for one in mine:
        tables.setdefault(one.fact.table, []).append(one)
    for some in tables.values():
        yield from batches(some, most)


class Quill:
    """Takes deliveries, and handles what is left of them."""

    settings_type = Settings
    ledger_table = QUILL

    def __init__(self, s: Semel, inbox: Inbox, settings: Settings) -> None:
        self.settings: Settings = checked(settings)
        check_shared(inbox)
        self._s = s.through("quill")
        self.inbox: Inbox = inbox
        self._zone, self._report = zone_of(settings.zone), report_of(settings)
        self._pool = ThreadPoolExecutor(THREADS, "semel-quill")
        schema = self._report.schema
        self.sink: Sink = (
            PowerBI(self._s, settings, schema) if settings.has_powerbi else _star(s, settings, schema)
        )
        self._backlog = Backlog(self._s, inbox, self.sink.most)

    @cached_property
    def hooks(self) -> "dict[str, QuillWebhook]":
        """Where the sources deliver; who only works on messages has no use for their tokens."""
        check_tokens(self.settings)
        return {
            path: QuillWebhook(self, _reader(self._s, self.settings, setting, provider))
            for path, (setting, provider) in HOOKS.items()
            if getattr(self.settings, setting)
        }

    def router(self) -> "APIRouter":
        """The facts, to be read over HTTP."""
        from semel.apps.quill.api import router

        return router(self)

    def pages(self) -> "dict[str, AppPage]":
        """The facts and what waits, in the dashboard."""
        from semel.apps.quill.pages import pages

        return pages(self)

    @classmethod
    def deployment(cls) -> "Deployment":
        """Quill on AWS."""
        from semel.apps.quill.deployment import DEPLOYMENT

        return DEPLOYMENT

    def now(self) -> float:
        """What time it is."""
        return self._s.clock.now()

    @property
    def star(self) -> Star | None:
        """The local facts; None where they are in Power BI."""
        return self.sink if isinstance(self.sink, Star) else None

    @property
    def _on_lapsed(self) -> OnLapsed:
        return "rerun" if self.sink.repeats or self.settings.lost_posts == "repeat" else "hold"

    @property
    def worker_options(self) -> Options:
        """How the inbox's worker treats what it finds there."""
        return {
            "lease": self.settings.lease,
            "ttl": self.settings.ttl,
            # Each source's own is seen to where it delivers; what waits in the inbox says itself how long it
            # is remembered.
            "horizon": self.settings.ttl,
            "max_attempts": self.settings.max_attempts,
            "on_lapsed": self._on_lapsed,
            "on_error": {
                RequestRefused: "keep",
                Forgotten: "doubt",
                AnswerLost: "doubt" if self._on_lapsed == "hold" else "release",
            },
        }

    def handle(self, message: Message) -> None:
        """Post what could not be posted at once, and with it what else waits."""
        pending, run = pending_in(message), current_run()
        late = self._s.clock.now() > pending.until
        # A second attempt knows of the first, or somebody has settled it.
        if late and run.attempt == 1 and self._on_lapsed == "hold":
            raise Forgotten("it may have been posted, and nobody remembers: settle it")
        self.sink.check()
        terms = FactTerms(min(self.settings.lease, run.claim.lease), self.settings.ttl, self._on_lapsed)
        batch = self._backlog.claim_batch(message, pending.fact.table, terms)
        try:
            self._post_now([pending.fact, *batch.facts], batch.until)
        except Exception as error:
            if not isinstance(error, Later):
                self._backlog.adapt(batch, well=False)
            self._settle(partial(batch.failed, error))
            if not (batch.held and isinstance(error, RequestRefused)):
                raise
            # Whose row it is nobody knows, and nothing of that request was taken: so this one goes alone.
            self._post_now([pending.fact], batch.until)
        else:
            self._backlog.adapt(batch, well=True)
            self._settle(batch.posted)
        run.note(notes=LATER)

    def _post_now(self, facts: list[Fact], until: float) -> None:
        self.sink.ensure(facts)
        current_run().check()
        self._check_time(until)
        self.sink.post(facts)

    def _check_time(self, until: float) -> None:
        if self._s.clock.monotonic() >= until:
            raise Late("it took longer than their lease to see to what they refer to")

    def close(self) -> None:
        """Let go of threads and connections."""
        self._pool.shutdown()
        self.sink.close()

    async def in_thread(self, work: Callable[[], WebhookResponse]) -> WebhookResponse:
        """Do something without holding up the event loop."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        return await loop.run_in_executor(self._pool, context.run, work)

    # A delivery

    def read(self, reader: DeliveryReader, notices: list[Notice]) -> ReadDelivery:
        """The events that are counted, each once."""
        counts, facts, broken = QuillSummary(len(notices)), dict[str, Fact](), False
        for notice in notices:
            try:
                fact = self._fact(reader, notice)
            except Exception as error:  # noqa: BLE001 - whatever it is about one event, the others are taken
                # Without its words, which may quote the event.
                self._warn(What.REFUSED, f"an event cannot be read: {_unquoted(error)}")
                counts.failed += 1
                broken = broken or isinstance(error, OwnFunctionFailed)
                continue
            if fact is None:
                counts.ignored += 1
            elif fact.key in facts:
                counts.duplicates += 1
            else:
                facts[fact.key] = fact
        return ReadDelivery(list(facts.values()), counts, broken)

    def _fact(self, reader: DeliveryReader, notice: Notice) -> Fact | None:
        now, source = self._s.clock.now(), reader.provider.name
        received = Received(source, notice, partial(reader.key, notice), now, self._zone)
        fact = self._report.fact(received)
        about = person(self._s, person_of(source, notice.payload)) or ""
        return None if fact is None else msgspec.structs.replace(fact, person=about)

    def take(self, facts: list[Fact], counts: QuillSummary) -> WebhookResponse:
        """Post what is new, and leave to the worker what cannot be posted."""
        try:
            later = self._take(facts, counts)
        except StoreError as error:
            self._warn(What.STORE_ERROR, "nothing could be claimed", error)
            later = facts
        try:
            self._queue(later)
        except (SemelError, ServiceError) as error:
            self._warn(What.STORE_ERROR, "a delivery could not be kept", error)
            return WebhookResponse.problem(503, dict([retry_after(RETRY_AFTER)]))
        counts.queued = len(later)
        return WebhookResponse.json(200, counts)

    def _take(self, facts: list[Fact], counts: QuillSummary) -> list[Fact]:
        """Post what is new; what is left for later."""
        until = self._s.clock.monotonic() + self.settings.lease
        outcomes = self._s.ledger.claim_many(
            [fact.key for fact in facts],
            lease=self.settings.lease,
            ttl=self.settings.ttl,
            on_lapsed=self._on_lapsed,
            subjects=[fact.person or None for fact in facts],
        )
        mine: list[ClaimedFact] = []
        later: list[Fact] = []
        for fact, outcome in zip(facts, outcomes, strict=True):
            match outcome:
                case Claimed():
                    mine.append(ClaimedFact(fact, outcome))
                case Replay():
                    counts.duplicates += 1
                case Failed():
                    counts.failed += 1
                case _:
                    # Somebody is at work on it, or has to settle it: only then is it known what to do.
                    later.append(fact)
        counts.new = len(mine)
        for some in by_table(mine, self.sink.most):
            later += self._post(some, counts, until)
        return later

    def _post(self, mine: Sequence[ClaimedFact], counts: QuillSummary, until: float) -> list[Fact]:
        """Post facts of one table that were claimed until then; what is left for later."""
        facts, claims = [one.fact for one in mine], [one.claim for one in mine]
        try:
            self.sink.ensure(facts)
            self._check_time(until)
            self.sink.post(facts)
        except Exception as error:  # noqa: BLE001 - whatever it is, no event is to be lost
            self._give_back(claims, error)
            return facts
        counts.posted += len(facts)
        self._settle(partial(self._s.ledger.complete_many, claims))
        return []

    def _give_back(self, claims: list[Claimed], error: Exception) -> None:
        """Let the worker have them; or let somebody settle them, where nobody knows what became of them."""
        turned_away = isinstance(error, Later)
        if not turned_away:
            self._warn(What.RELEASED, f"{len(claims)} events were not posted", error)
        if isinstance(error, AnswerLost) and self._on_lapsed == "hold":
            self._settle(partial(self._s.ledger.doubt_many, claims))
        else:
            self._settle(partial(self._s.ledger.release_many, claims, error, counted=not turned_away))

    def _settle(self, write: Callable[[], object]) -> None:
        """Say what became of claims; where that cannot be written they lapse, and nobody knows."""
        try:
            write()
        except (SemelError, ServiceError) as error:
            self._warn(What.STORE_ERROR, "what became of events is not kept", error)

    def _queue(self, facts: list[Fact]) -> None:
        until = self._s.clock.now() + self.settings.ttl
        if facts:
            self.inbox.put(*[_message(PendingFact(fact, until)) for fact in facts])

    def _warn(self, what: What, detail: str, error: Exception | None = None) -> None:
        """Warn of something; while Power BI or the store is away, not of each delivery."""
        if error is None:
            self._s.events.warn(what, "", detail=detail)
            return
        name = type(error).__name__
        self._s.events.warn(what, "", detail=f"{detail}: {name}: {error}", cause=name)


def _message(pending: PendingFact) -> Message:
    """A fact as it waits: whom it is about is told by a hash, and nowhere else."""
    fact = msgspec.structs.replace(pending.fact, person="")
    body = msgspec.to_builtins(msgspec.structs.replace(pending, fact=fact))
    return Message(fact.key, body, subject=pending.fact.person or None)


class QuillWebhook:
    """Takes the deliveries of one source."""

    def __init__(self, quill: Quill, reader: DeliveryReader) -> None:
        self._quill, self._reader = quill, reader

    def receive(
        self, headers: Headers, body: bytes, *, method: str = "POST", url: str = ""
    ) -> WebhookResponse:
        """Take a delivery: `body` is the bytes that came, and `url` the address as the sender was told it."""
        notices = self._reader.open(headers, body, method=method, url=url)
        if isinstance(notices, WebhookResponse):
            return notices
        read = self._quill.read(self._reader, notices)
        answer = self._quill.take(read.facts, read.counts)
        # Once the function is mended these are facts: until then their sender keeps them.
        return WebhookResponse.problem(503, dict([retry_after(RETRY_AFTER)])) if read.broken else answer

    async def areceive(
        self, headers: Headers, body: bytes, *, method: str = "POST", url: str = ""
    ) -> WebhookResponse:
        """Take a delivery in a thread, where the store and Power BI are waited for."""
        return await self._quill.in_thread(partial(self.receive, headers, body, method=method, url=url))


def _unquoted(error: Exception) -> str:
    """What is wrong with an event, without what it says; quill's own errors say nothing of that."""
    return str(error) if isinstance(error, Unreadable | OwnFunctionFailed) else type(error).__name__


def _reader(s: Semel, settings: Settings, setting: str, provider: Provider) -> DeliveryReader:
    """What opens the deliveries of a source, if the ledger remembers them for long enough."""
    try:
        lasting(settings.ttl, provider.retry_horizon or 0.0)
    except InvalidOption as error:
        raise wrong("ttl_days", f"{provider.name} goes on delivering for longer: {error}") from error
    return naming("quill", setting, DeliveryReader, s, provider, getattr(settings, setting))


def _star(s: Semel, settings: Settings, schema: StarSchema) -> Star:
    store = s.store.path if isinstance(s.store, FileBacked) else None
    path = settings.star or (Path(store).with_name("quill.db") if store else "quill.db")
    try:
        return Star(path, schema)
    except sqlite3.Error as error:
        raise wrong("star", f"{path} cannot be opened: {error}") from error
    except OtherTables as error:
        problem = f"{path} was made for another report: {error}. Give this one a file of its own"
        raise wrong("star", problem) from error
