"""Task queues: what Celery, Dramatiq and Taskiq have in common.

A task that is delivered or sent again has its effect once, and its second run gives the first one's result.
What the ledger refuses is told by its type: some of it may be done later, so the task comes again; the rest
will never be done. The task's own errors are its queue's business, and go on as they are.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar, Unpack, cast

import msgspec

from semel import errors
from semel.connect import Semel
from semel.core.policy import Options
from semel.model import MISSING, OnBusy
from semel.once import ALL, All, KeyMaker, PayloadNames

P = ParamSpec("P")
R = TypeVar("R")
RetryMaker: TypeAlias = Callable[[Exception, float], Exception]

RETRYABLE: Final = (
    errors.InProgress,
    errors.OutcomeUnknown,
    errors.ClaimLost,
    errors.StoreError,
    errors.ShuttingDown,
)
"""Not done now, and perhaps later: the task comes again."""

FINAL: Final = (
    errors.FailedBefore,
    errors.PayloadChanged,
    errors.ResultNotKept,
    errors.ResultUnreadable,
    errors.UsageError,
)
"""However often the task comes again, this is its answer: give it to your queue as what not to retry."""

# For a store that is down or a key that somebody has to settle, neither of which says how long it takes.
RETRY_SECONDS: Final = 10.0


def retry_after(error: Exception) -> float:
    """After how many seconds a task that met this may do better."""
    after: float = getattr(error, "retry_after", RETRY_SECONDS)
    return after


class TaskQueue(msgspec.Struct, frozen=True):
    """One task queue: `once` is the decorator for its tasks."""

    name: str
    signals: tuple[type[Exception], ...]
    """What its tasks raise to tell it something: no failure of theirs, so never kept as one."""
    retry: RetryMaker | None
    """Has the running task come again, in its queue's words; None leaves that to somebody else."""
    on_busy: OnBusy
    sent: Callable[[Callable[..., Any]], PayloadNames] = lambda _: ALL
    """The parameters of a task that come with its message."""

    def once(
        self,
        s: Semel,
        key: str | KeyMaker,
        *,
        fingerprint: PayloadNames = ALL,
        returns: Any = MISSING,
        **options: Unpack[Options],
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Protect a task: put this next to its function, with the key and the options of `s.once`."""
        on_error = options.get("on_error", "release")
        by_type = {Exception: on_error} if isinstance(on_error, str) else dict(on_error)
        options["on_error"] = by_type | dict.fromkeys(self.signals, "release")
        options.setdefault("on_busy", self.on_busy)
        through = s.through(self.name)

        def protect(function: Callable[P, R]) -> Callable[P, R]:
            payload = self.sent(function) if isinstance(fingerprint, All) else fingerprint
            run = through.once(key=key, fingerprint=payload, returns=returns, **options)(function)
            return run if self.retry is None else translated(run, functools.partial(_translating, self.retry))

        return protect


def translated(
    run: Callable[P, R], translating: Callable[[], AbstractContextManager[None]]
) -> Callable[P, R]:
    """The function, whose errors are raised in others' words."""

    @functools.wraps(run)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        with translating():
            return run(*args, **kwargs)

    @functools.wraps(run)
    async def acall(*args: P.args, **kwargs: P.kwargs) -> Any:
        with translating():
            return await cast("Any", run(*args, **kwargs))

    return cast("Callable[P, R]", acall if inspect.iscoroutinefunction(run) else call)


@contextmanager
def _translating(retry: RetryMaker) -> Iterator[None]:
    try:
        yield
    except RETRYABLE as error:
        raise retry(error, retry_after(error)) from error
