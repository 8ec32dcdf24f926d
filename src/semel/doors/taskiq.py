"""The Taskiq door: a task that is delivered or sent again has its effect once.

broker = AioPikaBroker(url, delay_queue=Queue(name="later")).with_middlewares(OnceMiddleware())

@broker.task
@once(s, "charge:{order_id}")
async def charge(order_id: str, cents: int) -> str: ...
"""

import inspect
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar, Unpack

from semel.connect import Semel
from semel.core.extras import require
from semel.core.policy import Options
from semel.doors.tasks import FINAL, RETRYABLE, TaskQueue, retry_after
from semel.model import MISSING
from semel.once import ALL, All, KeyMaker, PayloadNames

require("taskiq", "taskiq")  # which says how to install it

from taskiq import NoResultError, SmartRetryMiddleware, TaskiqMessage, TaskiqResult
from taskiq.kicker import AsyncKicker
from taskiq_dependencies.dependency import Dependency

__all__ = ["FINAL", "OnceMiddleware", "once"]

P = ParamSpec("P")
R = TypeVar("R")

# Who waits for another leaves the event loop free; who waited in vain is sent again by the middleware.
QUEUE: Final = TaskQueue("taskiq", (NoResultError,), None, "wait")


def once(
    s: Semel,
    key: str | KeyMaker,
    *,
    fingerprint: PayloadNames = ALL,
    returns: Any = MISSING,
    **options: Unpack[Options],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Protect a task's function: put it under `@broker.task`, with the key and options of `s.once`.

    What Taskiq injects is no part of the payload. The broker needs an `OnceMiddleware`.
    """

    def protect(function: Callable[P, R]) -> Callable[P, R]:
        compared = _sent(function) if isinstance(fingerprint, All) else fingerprint
        return QUEUE.once(s, key, fingerprint=compared, returns=returns, **options)(function)

    return protect


class OnceMiddleware(SmartRetryMiddleware):
    """Retries as `SmartRetryMiddleware` does, and knows the ledger's refusals.

    What is not done now and may be later is sent again, which does not count as a retry; what is final is not
    tried again.
    """

    async def on_error(
        self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException
    ) -> None:
        """A task raised this."""
        if isinstance(exception, RETRYABLE):
            kicker: AsyncKicker[Any, Any] = AsyncKicker(message.task_name, self.broker, message.labels)
            await self.on_send(kicker.with_task_id(message.task_id), message, retry_after(exception))
            result.error = NoResultError()
        elif not isinstance(exception, FINAL):
            await super().on_error(message, result, exception)


def _sent(function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters that come with the message."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(one.name for one in parameters if not _is_injected(one))


def _is_injected(parameter: inspect.Parameter) -> bool:
    said = (parameter.default, *getattr(parameter.annotation, "__metadata__", ()))
    return any(isinstance(one, Dependency) for one in said)
