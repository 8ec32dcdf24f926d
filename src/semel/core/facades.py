"""The rules as callers know them, sync and async: the same methods, driven in two ways."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast

from semel.core.commands import Steps
from semel.core.drive import Store, adrive, drive, joined
from semel.core.ledger import LedgerSteps
from semel.core.parts import PartPlan, alone
from semel.core.realm import Realm
from semel.model import check_claim

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


class Facade(Generic[S_co]):
    """Steps, and the store they run on."""

    def __init__(self, steps: S_co, store: Store) -> None:
        self.steps = steps
        self._store = store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._store!r}>"

    def within(self, connection: Any) -> Self:
        """These methods in the transaction of a connection of yours: they stand or fall with your rows."""
        return type(self)(self.steps, joined(self._store, connection))


def driven(method: Callable[Concatenate[S, P], Steps[T]]) -> Callable[Concatenate[Facade[S], P], T]:
    """The method as callers know it: its steps, driven."""

    @functools.wraps(method)
    def run(self: Facade[S], *args: P.args, **kwargs: P.kwargs) -> T:
        return drive(method(self.steps, *args, **kwargs), self._store)

    return cast("Callable[Concatenate[Facade[S], P], T]", run)


def adriven(
    method: Callable[Concatenate[S, P], Steps[T]],
) -> Callable[Concatenate[Facade[S], P], Coroutine[Any, Any, T]]:
    """The method as async callers know it: its steps, driven by awaiting."""

    @functools.wraps(method)
    async def run(self: Facade[S], *args: P.args, **kwargs: P.kwargs) -> T:
        return await adrive(method(self.steps, *args, **kwargs), self._store)

    return cast("Callable[Concatenate[Facade[S], P], Coroutine[Any, Any, T]]", run)


class Marking(Protocol):
    """Steps that draw the mark of a write."""

    realm: Realm


M = TypeVar("M", bound=Marking)


def made(method: Callable[Concatenate[M, P], PartPlan[T]]) -> Callable[Concatenate[Facade[M], P], T]:
    """A method that contributes to a write, as callers know it: its write made at once, by itself."""

    @functools.wraps(method)
    def run(self: Facade[M], *args: P.args, **kwargs: P.kwargs) -> T:
        plan = method(self.steps, *args, **kwargs)
        return drive(alone(plan, self.steps.realm.token()), self._store)

    return cast("Callable[Concatenate[Facade[M], P], T]", run)


def amade(
    method: Callable[Concatenate[M, P], PartPlan[T]],
) -> Callable[Concatenate[Facade[M], P], Coroutine[Any, Any, T]]:
    """A method that contributes to a write, as async callers know it: its write, awaited by itself."""

    @functools.wraps(method)
    async def run(self: Facade[M], *args: P.args, **kwargs: P.kwargs) -> T:
        plan = method(self.steps, *args, **kwargs)
        return await adrive(alone(plan, self.steps.realm.token()), self._store)

    return cast("Callable[Concatenate[Facade[M], P], Coroutine[Any, Any, T]]", run)


def held(method: F) -> F:
    """The method, given a claim and nothing that only looks like one."""

    @functools.wraps(method)
    def checked(self: Any, claim: Any, *args: Any, **kwargs: Any) -> Any:
        check_claim(claim)
        return method(self, claim, *args, **kwargs)

    return cast("F", checked)


def held_many(method: F) -> F:
    """The method, given claims and nothing that only looks like one."""

    @functools.wraps(method)
    def checked(self: Any, claims: Any, *args: Any, **kwargs: Any) -> Any:
        claims = list(claims)
        for claim in claims:
            check_claim(claim)
        return method(self, claims, *args, **kwargs)

    return cast("F", checked)


class Ledger(Facade[LedgerSteps]):
    """What was seen, what is running, and what came of it."""

    claim = driven(LedgerSteps.claim)
    claim_many = driven(LedgerSteps.claim_many)
    complete = driven(held(LedgerSteps.complete))
    complete_many = driven(held_many(LedgerSteps.complete_many))
    fail = driven(held(LedgerSteps.fail))
    release = driven(held(LedgerSteps.release))
    release_many = driven(held_many(LedgerSteps.release_many))
    renew = driven(held(LedgerSteps.renew))
    lapse = driven(held(LedgerSteps.lapse))
    doubt = driven(held(LedgerSteps.doubt))
    doubt_many = driven(held_many(LedgerSteps.doubt_many))
    get = driven(LedgerSteps.get)
    result = driven(LedgerSteps.result)
    wait = driven(LedgerSteps.wait)
    list = driven(LedgerSteps.list)
    doubts = driven(LedgerSteps.doubts)
    resolve = driven(LedgerSteps.resolve)
    check_and_set = driven(LedgerSteps.check_and_set)
    check_and_set_many = driven(LedgerSteps.check_and_set_many)
    is_processed = driven(LedgerSteps.is_processed)
    mark_processed = driven(LedgerSteps.mark_processed)
    drop_result = driven(LedgerSteps.drop_result)
    forget = driven(LedgerSteps.forget)


class AsyncLedger(Facade[LedgerSteps]):
    """What was seen, what is running, and what came of it, by methods that are awaited."""

    claim = adriven(LedgerSteps.claim)
    claim_many = adriven(LedgerSteps.claim_many)
    complete = adriven(held(LedgerSteps.complete))
    complete_many = adriven(held_many(LedgerSteps.complete_many))
    fail = adriven(held(LedgerSteps.fail))
    release = adriven(held(LedgerSteps.release))
    release_many = adriven(held_many(LedgerSteps.release_many))
    renew = adriven(held(LedgerSteps.renew))
    lapse = adriven(held(LedgerSteps.lapse))
    doubt = adriven(held(LedgerSteps.doubt))
    doubt_many = adriven(held_many(LedgerSteps.doubt_many))
    get = adriven(LedgerSteps.get)
    result = adriven(LedgerSteps.result)
    wait = adriven(LedgerSteps.wait)
    list = adriven(LedgerSteps.list)
    doubts = adriven(LedgerSteps.doubts)
    resolve = adriven(LedgerSteps.resolve)
    check_and_set = adriven(LedgerSteps.check_and_set)
    check_and_set_many = adriven(LedgerSteps.check_and_set_many)
    is_processed = adriven(LedgerSteps.is_processed)
    mark_processed = adriven(LedgerSteps.mark_processed)
    drop_result = adriven(LedgerSteps.drop_result)
    forget = adriven(LedgerSteps.forget)
