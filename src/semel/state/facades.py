"""The state that decides, as callers know it: documents, journal, counters, mailboxes and switches."""

from collections.abc import Mapping
from typing import Generic, TypeVar

from semel.core.facades import Facade, adriven, amade, driven, made
from semel.core.spans import Seconds
from semel.state.counters import CounterSteps
from semel.state.documents import DocumentSteps
from semel.state.erasure import ErasureSteps
from semel.state.journal import Book, JournalSteps
from semel.state.mailbox import MailboxSteps
from semel.state.switches import SwitchSteps
from semel.tables import Table

T = TypeVar("T")
D = TypeVar("D")


class Documents(Facade[DocumentSteps[T]], Generic[T]):
    """Versioned state."""

    get = driven(DocumentSteps[T].get)
    put = made(DocumentSteps[T].put)
    update = made(DocumentSteps[T].update)
    change = made(DocumentSteps[T].change)
    delete = driven(DocumentSteps[T].delete)
    prune = driven(DocumentSteps[T].prune)

    def on(self, table: Table) -> "Documents[T]":
        """The same in another table, whose attributes are the fields of its documents."""
        return Documents(self.steps.on(table), self._store)

    def of(self, kind: type[D], *, ends: Mapping[str, Seconds] | None = None) -> "Documents[D]":
        """The same with documents that are objects of a dataclass or a `msgspec.Struct`."""
        return Documents(self.steps.of(kind, ends=ends), self._store)


class AsyncDocuments(Facade[DocumentSteps[T]], Generic[T]):
    """The same, awaitable."""

    get = adriven(DocumentSteps[T].get)
    put = amade(DocumentSteps[T].put)
    update = amade(DocumentSteps[T].update)
    change = amade(DocumentSteps[T].change)
    delete = adriven(DocumentSteps[T].delete)
    prune = adriven(DocumentSteps[T].prune)

    def on(self, table: Table) -> "AsyncDocuments[T]":
        """The same in another table, whose attributes are the fields of its documents."""
        return AsyncDocuments(self.steps.on(table), self._store)

    def of(self, kind: type[D], *, ends: Mapping[str, Seconds] | None = None) -> "AsyncDocuments[D]":
        """The same with documents that are objects of a dataclass or a `msgspec.Struct`."""
        return AsyncDocuments(self.steps.of(kind, ends=ends), self._store)


class Journal(Facade[JournalSteps]):
    """Entries in the order of time."""

    append = made(JournalSteps.append)
    get = driven(JournalSteps.get)
    list = driven(JournalSteps.list)
    by_actor = driven(JournalSteps.by_actor)

    def on(self, table: Table | Book) -> "Journal":
        """The same in another table."""
        return Journal(self.steps.on(table), self._store)


class AsyncJournal(Facade[JournalSteps]):
    """The same, awaitable."""

    append = amade(JournalSteps.append)
    get = adriven(JournalSteps.get)
    list = adriven(JournalSteps.list)
    by_actor = adriven(JournalSteps.by_actor)

    def on(self, table: Table | Book) -> "AsyncJournal":
        """The same in another table."""
        return AsyncJournal(self.steps.on(table), self._store)


class Counters(Facade[CounterSteps]):
    """So many in a period."""

    charge = made(CounterSteps.charge)
    refund = made(CounterSteps.refund)
    add = driven(CounterSteps.add)
    look = driven(CounterSteps.look)

    def on(self, table: Table) -> "Counters":
        """The same on another table of totals by period."""
        return Counters(self.steps.on(table), self._store)


class AsyncCounters(Facade[CounterSteps]):
    """The same, awaitable."""

    charge = amade(CounterSteps.charge)
    refund = amade(CounterSteps.refund)
    add = adriven(CounterSteps.add)
    look = adriven(CounterSteps.look)

    def on(self, table: Table) -> "AsyncCounters":
        """The same on another table of totals by period."""
        return AsyncCounters(self.steps.on(table), self._store)


class Switches(Facade[SwitchSteps]):
    """What stops work at once, everywhere."""

    turn = made(SwitchSteps.turn)
    list = driven(SwitchSteps.read)


class AsyncSwitches(Facade[SwitchSteps]):
    """The same, awaitable."""

    turn = amade(SwitchSteps.turn)
    list = adriven(SwitchSteps.read)


class Eraser(Facade[ErasureSteps]):
    """Forgets persons."""

    forget_subject = driven(ErasureSteps.forget_subject)


class AsyncEraser(Facade[ErasureSteps]):
    """The same, awaitable."""

    forget_subject = adriven(ErasureSteps.forget_subject)


class Mailbox(Facade[MailboxSteps]):
    """Messages that were accepted and wait to be handled; `semel.doors.inbox` has the workers."""

    put = driven(MailboxSteps.put)
    look = driven(MailboxSteps.look)
    letters = driven(MailboxSteps.letters)
    alone = driven(MailboxSteps.alone)
    survey = driven(MailboxSteps.survey)
    count = driven(MailboxSteps.count)
    enter = driven(MailboxSteps.enter)
    stay = driven(MailboxSteps.stay)
    leave = driven(MailboxSteps.leave)
    put_off = driven(MailboxSteps.put_off)
    bury = driven(MailboxSteps.bury)
    dead = driven(MailboxSteps.dead)
    dead_letter = driven(MailboxSteps.dead_letter)
    redrive = driven(MailboxSteps.redrive)
    forget = driven(MailboxSteps.forget)


class AsyncMailbox(Facade[MailboxSteps]):
    """The same, awaitable."""

    put = adriven(MailboxSteps.put)
    look = adriven(MailboxSteps.look)
    letters = adriven(MailboxSteps.letters)
    alone = adriven(MailboxSteps.alone)
    survey = adriven(MailboxSteps.survey)
    count = adriven(MailboxSteps.count)
    enter = adriven(MailboxSteps.enter)
    stay = adriven(MailboxSteps.stay)
    leave = adriven(MailboxSteps.leave)
    put_off = adriven(MailboxSteps.put_off)
    bury = adriven(MailboxSteps.bury)
    dead = adriven(MailboxSteps.dead)
    dead_letter = adriven(MailboxSteps.dead_letter)
    redrive = adriven(MailboxSteps.redrive)
    forget = adriven(MailboxSteps.forget)
