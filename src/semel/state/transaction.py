"""`with s.transaction() as tx`: the writes of the block are made at its end, all or none."""

from collections.abc import Callable
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

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


class Pending(Generic[T]):
    """What a call will have given once the transaction is made."""

    def __init__(self, results: list[Any], place: int) -> None:
        self._results = results
        self._place = place

    @property
    def value(self) -> T:
        """What it gave."""
        if not self._results:
            raise errors.UsageError("this is known when the transaction has been made: ask after the block")
        return cast("T", self._results[self._place])


class Gathered:
    """What a block asks for, in its order."""

    def __init__(self, token: Callable[[], str], *, joined: bool = False) -> None:
        self._token = token
        self._joined = joined
        self._plans: list[PartPlan[Any]] = []
        self._results: list[Any] = []
        self._ended: list[Claimed] = []
        self._completed: list[tuple[Claimed | Run, Any]] = []
        self._over = False

    def add(self, plan: PartPlan[T]) -> Pending[T]:
        """One call more."""
        if self._over:
            raise errors.UsageError("this transaction is over: nobody would write that any more")
        pending: Pending[T] = Pending(self._results, len(self._plans))
        self._plans.append(plan)
        return pending

    def end(self, claim: Claimed, plan: PartPlan[None]) -> Pending[None]:
        """The end of a claim: its token marks the whole, which can then be made only once."""
        self._ended.append(claim)
        return self.add(plan)

    def complete(self, holder: Claimed | Run, result: Any, plan: PartPlan[None]) -> Pending[None]:
        """The end of a claim with a result, which its run is told of."""
        self._completed.append((holder, result))
        return self.end(_claim(holder), plan)

    def commit(self, mark: str = "") -> Steps[None]:
        """Make all of it."""
        self._over = True
        if not self._plans:
            return
        mark = mark or (self._ended[0].token if self._ended else self._token())
        runs = [(run, result) for holder, result in self._completed for run in _runs(holder)]
        for run, _ in runs:
            run.settling = True
        try:
            self._results += yield from commit(self._plans, mark)
        except BaseException:
            for run, _ in runs:
                run.settling = False
            raise
        for run, result in runs:
            # Inside a transaction of the caller's nothing is sure until that has ended.
            run.promise(result) if self._joined else run.keep(result)


def _claim(holder: Claimed | Run) -> Claimed:
    if isinstance(holder, Run):
        return holder.claim
    check_claim(holder)
    return holder


def _runs(holder: Claimed | Run) -> list[Run]:
    """The runs that are to know that a claim is settled."""
    if isinstance(holder, Run):
        return [holder]
    found, run = [], CURRENT.get()
    while run is not None:
        if run.claim == holder:
            found.append(run)
        run = run.outer
    return found


class Gathering(Generic[S]):
    """The methods of some rules, whose writes are gathered."""

    def __init__(self, steps: S, gathered: Gathered) -> None:
        self._steps = steps
        self._gathered = gathered

    def on(self, *where: Any) -> Self:
        """These methods on another table."""
        steps: Any = self._steps
        return type(self)(steps.on(*where), self._gathered)


def gathered(
    method: Callable[Concatenate[S, P], PartPlan[T]],
) -> Callable[Concatenate[Gathering[S], P], Pending[T]]:
    """The method inside a transaction: what it would write is gathered."""
    import functools

    @functools.wraps(method)
    def gather(self: Gathering[S], *args: P.args, **kwargs: P.kwargs) -> Pending[T]:
        return self._gathered.add(method(self._steps, *args, **kwargs))

    return cast("Callable[Concatenate[Gathering[S], P], Pending[T]]", gather)


class GatheredLedger(Gathering[LedgerSteps]):
    """Ends of claims, as part of a transaction."""

    def complete(self, claim: Claimed | Run, result: Any = None) -> Pending[None]:
        """The effect happens in this very write; keep what came of it.

        Given the run of a function of `once`, the function is thereby done: what it returns is this result.
        """
        details = claim.details if isinstance(claim, Run) else None
        plan = self._of(claim).completion_part(_claim(claim), result, details)
        return self._gathered.complete(claim, result, plan)

    def fail(self, claim: Claimed, error: BaseException | Failure) -> Pending[None]:
        """It failed, and is to stay failed."""
        check_claim(claim)
        ledger = self._of(claim)
        return self._gathered.end(claim, ledger.part(claim, ledger.failure(claim, error)))

    def release(self, claim: Claimed, error: BaseException | Failure | None = None) -> Pending[None]:
        """It did not happen; let the next attempt run."""
        check_claim(claim)
        ledger = self._of(claim)
        return self._gathered.end(claim, ledger.part(claim, ledger.releasing(claim, error)))

    def _of(self, holder: Claimed | Run) -> LedgerSteps:
        """The rules whose events name the function that has this claim."""
        task = next((run.task for run in _runs(holder)), "")
        return self._steps.about(task) if task else self._steps


class GatheredDocuments(Gathering[DocumentSteps[Any]]):
    """Writes of documents, as part of a transaction."""

    put: Final = gathered(DocumentSteps[Any].put)
    update: Final = gathered(DocumentSteps[Any].update)
    change: Final = gathered(DocumentSteps[Any].change)

    def of(self, *kind: Any, **ends: Any) -> Self:
        """These methods with documents of a class."""
        return type(self)(self._steps.of(*kind, **ends), self._gathered)


class GatheredJournal(Gathering[JournalSteps]):
    """New entries of the journal, as part of a transaction."""

    append: Final = gathered(JournalSteps.append)


class GatheredCounters(Gathering[CounterSteps]):
    """Charges and refunds of counters, as part of a transaction."""

    charge: Final = gathered(CounterSteps.charge)
    refund: Final = gathered(CounterSteps.refund)


class Rules(msgspec.Struct, frozen=True):
    """The rules whose writes a transaction gathers."""

    ledger: LedgerSteps
    documents: DocumentSteps[dict[str, Any]]
    journal: JournalSteps
    counters: CounterSteps


class Parts:
    """What a transaction offers while it is gathered."""

    def __init__(self, rules: Rules, *, joined: bool = False) -> None:
        self.gathered: Gathered = Gathered(rules.counters.realm.token, joined=joined)
        self._rules = rules

    @property
    def ledger(self) -> GatheredLedger:
        """Ends of claims."""
        return GatheredLedger(self._rules.ledger, self.gathered)

    @property
    def documents(self) -> GatheredDocuments:
        """Writes of documents."""
        return GatheredDocuments(self._rules.documents, self.gathered)

    @property
    def journal(self) -> GatheredJournal:
        """New entries."""
        return GatheredJournal(self._rules.journal, self.gathered)

    @property
    def counters(self) -> GatheredCounters:
        """Charges, and what is given back."""
        return GatheredCounters(self._rules.counters, self.gathered)


class Transaction(Parts):
    """Several writes made as one, all or none, at the end of `with` or `async with`."""

    def __init__(self, rules: Rules, store: Store, within: Any = None) -> None:
        super().__init__(rules, joined=within is not None)
        self._store = store if within is None else joined(store, within)
        self._on_error = rules.ledger.events.failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            drive(self.gathered.commit(), self._store, self._on_error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            await adrive(self.gathered.commit(), self._store, self._on_error)
