"""The rules as callers know them, sync and async: the same methods, driven in two ways.

The methods of some rules are listed once, each as `Driven`. The class that callers know is made of that list
and of `SyncFacade` or `AsyncFacade`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast, overload

from semel.core.commands import Steps
from semel.core.drive import ErrorListener, Store, adrive, drive, joined
from semel.core.ledger import LedgerSteps
from semel.model import check_claim

T = TypeVar("T")
P = ParamSpec("P")
S_co = TypeVar("S_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


class SyncFacade:
    """A facade whose methods run to their end before they return."""


class AsyncFacade:
    """A facade whose methods are awaited."""


class Driven(Generic[P, T]):
    """A method of some steps as callers know it: its steps, driven as the facade does."""

    def __init__(self, method: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self.method = method

    @overload
    def __get__(self, facade: SyncFacade, kind: Any) -> Callable[P, T]: ...

    @overload
    def __get__(self, facade: AsyncFacade, kind: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, facade: None, kind: Any) -> Callable[Concatenate[Any, P], Any]: ...

    def __get__(self, facade: Any, kind: Any) -> Any:
        """What a type checker goes by: `Facade` puts a plain function in its place."""
        return self


def _driven(method: Callable[..., Steps[Any]]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Facade[Any], *args: Any, **kwargs: Any) -> Any:
        return drive(method(self.steps, *args, **kwargs), self._store, self._on_error)

    return run


def _adriven(method: Callable[..., Steps[Any]]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def run(self: Facade[Any], *args: Any, **kwargs: Any) -> Any:
        return await adrive(method(self.steps, *args, **kwargs), self._store, self._on_error)

    return run


class Facade(Generic[S_co]):
    """Steps, and the store they run on."""

    def __init__(self, steps: S_co, store: Store) -> None:
        self.steps = steps
        self._store = store
        self._on_error: ErrorListener = cast("Any", steps).realm.events.failed

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not issubclass(cls, SyncFacade | AsyncFacade):
            return
        make = _driven if issubclass(cls, SyncFacade) else _adriven
        for name, listed in [pair for base in cls.__bases__ for pair in vars(base).items()]:
            if isinstance(listed, Driven):
                setattr(cls, name, make(listed.method))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._store!r}>"

    def within(self, connection: Any) -> Self:
        """These methods in the transaction of a connection of yours: they stand or fall with your rows."""
        return type(self)(self.steps, joined(self._store, connection))


def held(method: F, *, many: bool = False) -> F:
    """The method, given a claim, or many, and nothing that only looks like one."""

    @functools.wraps(method)
    def checked(self: Any, claims: Any, *args: Any, **kwargs: Any) -> Any:
        claims = list(claims) if many else claims
        for claim in claims if many else [claims]:
            check_claim(claim)
        return method(self, claims, *args, **kwargs)

    return cast("F", checked)


class LedgerMethods(Facade[LedgerSteps]):
    """The methods of `Ledger` and `AsyncLedger`."""

    claim: Final = Driven(LedgerSteps.claim)
    claim_many: Final = Driven(LedgerSteps.claim_many)
    complete: Final = Driven(held(LedgerSteps.complete))
    complete_many: Final = Driven(held(LedgerSteps.complete_many, many=True))
    fail: Final = Driven(held(LedgerSteps.fail))
    release: Final = Driven(held(LedgerSteps.release))
    release_many: Final = Driven(held(LedgerSteps.release_many, many=True))
    renew: Final = Driven(held(LedgerSteps.renew))
    lapse: Final = Driven(held(LedgerSteps.lapse))
    doubt: Final = Driven(held(LedgerSteps.doubt))
    doubt_many: Final = Driven(held(LedgerSteps.doubt_many, many=True))
    get: Final = Driven(LedgerSteps.get)
    result: Final = Driven(LedgerSteps.result)
    wait: Final = Driven(LedgerSteps.wait)
    list: Final = Driven(LedgerSteps.list)
    doubts: Final = Driven(LedgerSteps.doubts)
    failures: Final = Driven(LedgerSteps.failures)
    resolve: Final = Driven(LedgerSteps.resolve)
    check_and_set: Final = Driven(LedgerSteps.check_and_set)
    check_and_set_many: Final = Driven(LedgerSteps.check_and_set_many)
    is_processed: Final = Driven(LedgerSteps.is_processed)
    mark_processed: Final = Driven(LedgerSteps.mark_processed)
    drop_result: Final = Driven(LedgerSteps.drop_result)
    forget: Final = Driven(LedgerSteps.forget)


class Ledger(LedgerMethods, SyncFacade):
    """What was seen, what is running, and what came of it."""


class AsyncLedger(LedgerMethods, AsyncFacade):
    """What was seen, what is running, and what came of it, by methods that are awaited."""
