"""The Taskiq door: a task that is delivered or sent again has its effect once.

broker = AioPikaBroker(url, delay_queue=Queue(name="later")).with_middlewares(OnceMiddleware())

@broker.task
@once(s, "charge:{order_id}")
async def charge(order_id: str, cents: int) -> str: ...
"""

import inspect
from collections.abc import Callable
from typing import Any, Final

from semel.core.functions import signature_of
from semel.core.runtime import require
from semel.doors.tasks import FINAL, RETRYABLE, TaskQueue, retry_after

require("taskiq", "taskiq")  # which says how to install it

from taskiq import NoResultError, SmartRetryMiddleware, TaskiqMessage, TaskiqResult
from taskiq.kicker import AsyncKicker
from taskiq_dependencies.dependency import Dependency

__all__ = ["FINAL", "OnceMiddleware", "once"]


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
    parameters = signature_of(function).parameters.values()
    return tuple(one.name for one in parameters if not _is_injected(one))


def _is_injected(parameter: inspect.Parameter) -> bool:
    hints = (parameter.default, *getattr(parameter.annotation, "__metadata__", ()))
    return any(isinstance(one, Dependency) for one in hints)


once: Final = TaskQueue("taskiq", (NoResultError,), None, "wait", _sent).once
"""A task that finds its key busy leaves the event loop free, and is sent again if it waits in vain.

What Taskiq injects is no part of the payload. The broker needs an `OnceMiddleware`.
"""
