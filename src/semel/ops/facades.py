"""The questions and actions as callers know them, sync and async."""

from typing import Final

from semel.core.commands import Steps
from semel.core.drive import Measuring, Scanning, Store
from semel.core.facades import AsyncFacade, Driven, Facade, SyncFacade
from semel.core.ledger import LedgerSteps
from semel.core.realm import Moment, Realm
from semel.errors import NotPermitted, UsageError
from semel.model import TableSize
from semel.ops.actions import ActionSteps
from semel.ops.model import Search, SearchCost
from semel.ops.questions import QuestionSteps
from semel.ops.rates import MINUTE, Rates
from semel.ops.standing import StandingSteps
from semel.state.erasure import ErasureSteps
from semel.state.journal import JournalSteps
from semel.state.switches import SwitchSteps
from semel.tables import LEDGER, OWN


class OpsSteps(QuestionSteps, StandingSteps, ActionSteps):
    """All that operators ask and do, as generators of commands."""

    def __init__(
        self,
        ledger: LedgerSteps,
        journal: JournalSteps,
        switches: SwitchSteps,
        erasure: ErasureSteps,
        *,
        unordered: bool = False,
    ) -> None:
        self.realm: Realm = ledger.realm
        QuestionSteps.__init__(self, ledger, journal, unordered=unordered)
        StandingSteps.__init__(self, journal, switches, unordered=unordered)
        ActionSteps.__init__(self, ledger, journal, switches, erasure)

    def rates(self, since: Moment, until: Moment, width: int = MINUTE) -> Steps[list[Rates]]:
        """What all processes did, one for each minute or hour in which anything happened."""
        return self._rates.read(since, until, width)


def cost_of(search: Search, store: Store) -> SearchCost:
    """What a search takes on a store; one that may not be asked how large it is tells only that it scans."""
    if not search.scans(unordered=isinstance(store, Scanning)):
        return SearchCost("index", search.way)
    if not isinstance(store, Scanning):
        return SearchCost("scan", search.way)
    try:
        return SearchCost("scan", search.way, store.scan_cost(LEDGER))
    except NotPermitted:
        return SearchCost("scan", search.way)


def sizes(store: Store) -> tuple[TableSize, ...]:
    """How large the tables of a store are, where it can tell."""
    if not isinstance(store, Measuring):
        raise UsageError(f"{store!r} does not tell how large it is: it has no `measure`")
    return tuple(store.measure(OWN))


class OpsMethods(Facade[OpsSteps]):
    """The methods of `Ops` and `AsyncOps`."""

    search: Final = Driven(OpsSteps.search)
    lists_by_time: Final = Driven(OpsSteps.lists_by_time)
    explain: Final = Driven(OpsSteps.explain)
    look: Final = Driven(OpsSteps.look)
    counters: Final = Driven(OpsSteps.counters)
    inboxes: Final = Driven(OpsSteps.inboxes)
    switch_history: Final = Driven(OpsSteps.switch_history)
    perform: Final = Driven(OpsSteps.perform)
    reveal: Final = Driven(OpsSteps.reveal)
    turn: Final = Driven(OpsSteps.turn)
    erase: Final = Driven(OpsSteps.erase)
    journal: Final = Driven(OpsSteps.journal)
    note: Final = Driven(OpsSteps.note)
    rates: Final = Driven(OpsSteps.rates)


class Ops(OpsMethods, SyncFacade):
    """What a person on call asks of a ledger, and does to it."""

    def cost_of(self, search: Search) -> SearchCost:
        """What a search takes: an index, or a scan, and then what reading the whole table costs."""
        return cost_of(search, self._store)

    def sizes(self) -> tuple[TableSize, ...]:
        """How large the tables are, and what waits to be removed, at a cost that does not grow with them."""
        return sizes(self._store)


class AsyncOps(OpsMethods, AsyncFacade):
    """What a person on call asks of a ledger and does to it, by methods that are awaited."""

    async def cost_of(self, search: Search) -> SearchCost:
        """What a search takes: an index, or a scan, and then what reading the whole table costs."""
        import asyncio

        return await asyncio.to_thread(cost_of, search, self._store)

    async def sizes(self) -> tuple[TableSize, ...]:
        """How large the tables are, and what waits to be removed, at a cost that does not grow with them."""
        import asyncio

        return await asyncio.to_thread(sizes, self._store)
