"""`with s.transaction() as tx`: the writes of the block are made at its end, all or none."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

import msgspec

from semel import errors
from semel.core.commands import Steps
from semel.core.drive import Store, adrive, drive, joined
from semel.core.ledger import LedgerSteps
from semel.core.parts import PartPlan, commit
from semel.core.running import CURRENT, Run
from semel.model import Claimed, Failure, check_claim
from semel.state.counters import CounterSteps
from semel.state.documents import DocumentSteps
from semel.state.journal import JournalSteps

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S")


class Pending(msgspec.Struct, Generic[T]):
    """The result of one call, which is known once the transaction is committed."""

    _results: list[Any]
    _place: int

    @property
    def value(self) -> T:
        """The result."""
        if not self._results:
            raise errors.UsageError("this is known when the transaction has been made: ask after the block")
        result: T = self._results[self._place]
        return result


class TransactionBuilder(msgspec.Struct):
    """The calls of a block in their order, and how they are committed as one write."""

    token: Callable[[], str]
    joined: bool = False
    """Whether it is committed inside a transaction of the caller's."""
    completed: list[tuple[Run, Any]] = []
    """The runs whose claims it completes, each with its result."""
    plans: list[PartPlan[Any]] = []
    _results: list[Any] = []
    _mark: str = ""
    _over: bool = False

    def add(self, plan: PartPlan[T], ended: Claimed | None = None) -> Pending[T]:
        """Add one call. The token of a claim that it ends marks the whole, which is then made only once."""
        if self._over:
            raise errors.UsageError("this transaction is over: nobody would write that any more")
        if ended is not None:
            self._mark = self._mark or ended.token
        self.plans.append(plan)
        return Pending(self._results, len(self.plans) - 1)

    def commit(self, mark: str = "") -> Steps[None]:
        """Commit everything that was added."""
        self._over = True
        if not self.plans:
            return
        for run, _ in self.completed:
            run.settling = True
        try:
            self._results += yield from commit(self.plans, mark or self._mark or self.token())
        except BaseException:
            for run, _ in self.completed:
                run.settling = False
            raise
        for run, result in self.completed:
            # Inside a transaction of the caller's, nothing is certain until that has ended.
            run.keep(result, certain=not self.joined)


class Gathering(Generic[S]):
    """The methods of some rules, whose writes are added to a transaction."""

    def __init__(self, steps: S, builder: TransactionBuilder) -> None:
        self._steps = steps
        self._builder = builder

    def on(self, *where: Any) -> Self:
        """These methods on another table."""
        steps: Any = self._steps
        return type(self)(steps.on(*where), self._builder)


def gathered(
    method: Callable[Concatenate[S, P], PartPlan[T]],
) -> Callable[Concatenate[Gathering[S], P], Pending[T]]:
    """Turn a method that plans a part into one that adds the part to a transaction."""

    @functools.wraps(method)
    def gather(self: Gathering[S], *args: P.args, **kwargs: P.kwargs) -> Pending[T]:
        return self._builder.add(method(self._steps, *args, **kwargs))

    return gather  # type: ignore[return-value]  # mypy takes `wraps` for more than it is


class GatheredLedger(Gathering[LedgerSteps]):
    """Ends of claims, as part of a transaction."""

    def complete(self, claim: Claimed | Run, result: Any = None) -> Pending[None]:
        """Complete the claim in this transaction: store its result.

        With the run of a function of `once`, the function is then done, and this is what it returns.
        """
        details = claim.details if isinstance(claim, Run) else None
        claim, runs, steps = self._held(claim)
        for run in runs:
            self._builder.completed.append((run, result))
        return self._builder.add(steps.part(claim, steps.completion(claim, result, details)), claim)

    def fail(self, claim: Claimed, error: BaseException | Failure) -> Pending[None]:
        """Record a final failure."""
        claim, _, steps = self._held(claim)
        return self._builder.add(steps.part(claim, steps.failure(claim, error)), claim)

    def release(self, claim: Claimed, error: BaseException | Failure | None = None) -> Pending[None]:
        """Record that the effect did not happen; the next attempt may run."""
        claim, _, steps = self._held(claim)
        return self._builder.add(steps.part(claim, steps.releasing(claim, error)), claim)

    def _held(self, claim: Claimed | Run) -> tuple[Claimed, list[Run], LedgerSteps]:
        """A claim, the current runs that hold it, and the rules whose events name the function that runs."""
        runs, run = list[Run](), CURRENT.get()
        if isinstance(claim, Run):
            runs, run = [claim], None
            claim = claim.claim
        check_claim(claim)
        while run is not None:
            if run.claim == claim:
                runs.append(run)
            run = run.outer
        steps = self._steps.about(runs[0].task) if runs and runs[0].task else self._steps
        return claim, runs, steps


class GatheredDocuments(Gathering[DocumentSteps[Any]]):
    """Writes of documents, as part of a transaction."""

    put: Final = gathered(DocumentSteps[Any].put)
    update: Final = gathered(DocumentSteps[Any].update)
    change: Final = gathered(DocumentSteps[Any].change)

    def of(self, *kind: Any, **ends: Any) -> Self:
        """These methods with documents of a class."""
        return type(self)(self._steps.of(*kind, **ends), self._builder)


class GatheredJournal(Gathering[JournalSteps]):
    """New entries of the journal, as part of a transaction."""

    append: Final = gathered(JournalSteps.append)


class GatheredCounters(Gathering[CounterSteps]):
    """Charges and refunds of counters, as part of a transaction."""

    charge: Final = gathered(CounterSteps.charge)
    refund: Final = gathered(CounterSteps.refund)


class Rules(msgspec.Struct, frozen=True):
    """The rules whose writes can be part of a transaction."""

    ledger: LedgerSteps
    documents: DocumentSteps[dict[str, Any]]
    journal: JournalSteps
    counters: CounterSteps


class Parts:
    """The calls that can be added to a transaction."""

    def __init__(self, rules: Rules, builder: TransactionBuilder) -> None:
        self.builder: TransactionBuilder = builder
        self.ledger: GatheredLedger = GatheredLedger(rules.ledger, builder)
        self.documents: GatheredDocuments = GatheredDocuments(rules.documents, builder)
        self.journal: GatheredJournal = GatheredJournal(rules.journal, builder)
        self.counters: GatheredCounters = GatheredCounters(rules.counters, builder)


class Transaction(Parts):
    """Several writes made as one, all or none, at the end of `with` or `async with`."""

    def __init__(self, rules: Rules, store: Store, within: Any = None) -> None:
        super().__init__(rules, TransactionBuilder(rules.counters.realm.token, within is not None))
        self._store = store if within is None else joined(store, within)
        self._on_error = rules.ledger.events.failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            drive(self.builder.commit(), self._store, self._on_error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            await adrive(self.builder.commit(), self._store, self._on_error)
