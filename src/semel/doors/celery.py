"""The Celery door: a task that is delivered or sent again has its effect once.

@app.task(acks_late=True)
@once(s, "charge:{order_id}")
def charge(order_id: str, cents: int) -> str: ...
"""

from typing import Any, Final

from semel import errors
from semel.core.keys import own_key
from semel.core.runtime import require
from semel.doors.tasks import FINAL, TaskQueue

__all__ = ["FINAL", "once", "task_id"]

celery: Final = require("celery", "celery")
exceptions: Final = require("celery.exceptions", "celery")


def task_id(*_: Any, **__: Any) -> str:
    """As a key: the same at every delivery and retry of one task, and another when it is sent again."""
    task = celery.current_task
    if not task or not task.request.id:
        raise errors.InvalidKey("no task of Celery's is running here, so there is no task id: send the task")
    return own_key("celery", task.request.id)


def _retry(error: Exception, seconds: float) -> Exception:
    """Have the running task come again."""
    task = celery.current_task
    if not task or task.request.called_directly or task.request.is_eager:
        return error
    if isinstance(error, errors.ShuttingDown) and task.acks_late:
        return _requeued(error)
    # Not by retry(), which counts: somebody else's being at work is no failure of this task.
    request = task.request
    signature = task.signature_from_request(request, countdown=seconds, retries=request.retries)
    try:
        signature.apply_async()
    except Exception as failure:  # noqa: BLE001 - whatever it is, the message must not be lost
        return _requeued(failure)
    retry: Exception = exceptions.Retry(exc=error, when=seconds, sig=signature)
    return retry


def _requeued(reason: Exception) -> Exception:
    rejected: Exception = exceptions.Reject(reason, requeue=True)
    return rejected


once: Final = TaskQueue("celery", (exceptions.TaskPredicate,), _retry, "raise").once
"""A task that finds its key busy frees its worker and comes again, which does not count as a retry."""
