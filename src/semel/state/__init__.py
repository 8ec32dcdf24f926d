"""What decides what may happen next: documents, journal, counters, mailboxes, switches, transactions.

These are the public methods, sync and async. Those of a transaction are in `transaction`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

from semel.core.commands import Steps
from semel.core.facades import AsyncFacade, Driven, Facade, SyncFacade
from semel.core.parts import PartPlan, alone
from semel.core.policy import Seconds
from semel.state.counters import CounterSteps
from semel.state.documents import DocumentSteps
from semel.state.journal import Book, JournalSteps
from semel.state.mailbox import MailboxSteps
from semel.state.switches import SwitchSteps
from semel.tables import Table

T = TypeVar("T")
D = TypeVar("D")
P = ParamSpec("P")


def alone_steps(
    method: Callable[Concatenate[Any, P], PartPlan[T]],
) -> Callable[Concatenate[Any, P], Steps[T]]:
    """Turn a method that plans a part into one whose steps commit the part by itself."""

    @functools.wraps(method)
    def steps(self: Any, *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
        return alone(method(self, *args, **kwargs), self.realm.token())

    return cast("Callable[Concatenate[Any, P], Steps[T]]", steps)


class _DocumentMethods(Facade[DocumentSteps[T]], Generic[T]):
    get: Final = Driven(DocumentSteps[T].get)
    put: Final = Driven(alone_steps(DocumentSteps[T].put))
    update: Final = Driven(alone_steps(DocumentSteps[T].update))
    change: Final = Driven(alone_steps(DocumentSteps[T].change))
    delete: Final = Driven(DocumentSteps[T].delete)
    prune: Final = Driven(DocumentSteps[T].prune)

    def on(self, table: Table) -> Self:
        """The documents of another table, whose attributes are their fields."""
        return type(self)(self.steps.on(table), self._store)


class Documents(_DocumentMethods[T], SyncFacade):
    """Documents with versions, each under its key."""

    def of(self, kind: type[D], *, ends: Mapping[str, Seconds] | None = None) -> "Documents[D]":
        """Documents that are objects of a dataclass or a `msgspec.Struct`."""
        return Documents(self.steps.of(kind, ends=ends), self._store)


class AsyncDocuments(_DocumentMethods[T], AsyncFacade):
    """Documents with versions, each under its key, by methods that are awaited."""

    def of(self, kind: type[D], *, ends: Mapping[str, Seconds] | None = None) -> "AsyncDocuments[D]":
        """Documents that are objects of a dataclass or a `msgspec.Struct`."""
        return AsyncDocuments(self.steps.of(kind, ends=ends), self._store)


class _JournalMethods(Facade[JournalSteps]):
    append: Final = Driven(alone_steps(JournalSteps.append))
    get: Final = Driven(JournalSteps.get)
    list: Final = Driven(JournalSteps.list)
    by_actor: Final = Driven(JournalSteps.by_actor)

    def on(self, table: Table | Book) -> Self:
        """The journal in another table."""
        return type(self)(self.steps.on(table), self._store)


class Journal(_JournalMethods, SyncFacade):
    """A journal: entries of an owner in the order of time."""


class AsyncJournal(_JournalMethods, AsyncFacade):
    """Entries in the order of time, by methods that are awaited."""


class _CounterMethods(Facade[CounterSteps]):
    charge: Final = Driven(alone_steps(CounterSteps.charge))
    refund: Final = Driven(alone_steps(CounterSteps.refund))
    add: Final = Driven(CounterSteps.add)
    look: Final = Driven(CounterSteps.look)

    def on(self, table: Table) -> Self:
        """The counters of another table, which keeps totals by period."""
        return type(self)(self.steps.on(table), self._store)


class Counters(_CounterMethods, SyncFacade):
    """Counters per period, which can have a cap."""


class AsyncCounters(_CounterMethods, AsyncFacade):
    """Counters per period, which can have a cap, by methods that are awaited."""


class _SwitchMethods(Facade[SwitchSteps]):
    turn: Final = Driven(alone_steps(SwitchSteps.turn))
    list: Final = Driven(SwitchSteps.read)


class Switches(_SwitchMethods, SyncFacade):
    """Kill switches, each of which stops work everywhere."""


class AsyncSwitches(_SwitchMethods, AsyncFacade):
    """Kill switches, each of which stops work everywhere, by methods that are awaited."""


class _MailboxMethods(Facade[MailboxSteps]):
    put: Final = Driven(MailboxSteps.put)
    look: Final = Driven(MailboxSteps.look)
    letters: Final = Driven(MailboxSteps.letters)
    alone: Final = Driven(MailboxSteps.alone)
    survey: Final = Driven(MailboxSteps.survey)
    count: Final = Driven(MailboxSteps.count)
    enter: Final = Driven(MailboxSteps.enter)
    stay: Final = Driven(MailboxSteps.stay)
    leave: Final = Driven(MailboxSteps.leave)
    put_off: Final = Driven(MailboxSteps.put_off)
    bury: Final = Driven(MailboxSteps.bury)
    dead: Final = Driven(MailboxSteps.dead)
    dead_letter: Final = Driven(MailboxSteps.dead_letter)
    redrive: Final = Driven(MailboxSteps.redrive)
    forget: Final = Driven(MailboxSteps.forget)


class Mailbox(_MailboxMethods, SyncFacade):
    """Messages that were accepted and wait to be handled; `semel.doors.inbox` has the workers."""


class AsyncMailbox(_MailboxMethods, AsyncFacade):
    """Messages that were accepted and wait to be handled, by methods that are awaited."""
