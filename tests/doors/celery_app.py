"""Celery's worker for the tests; run as a program, it sends a task for each order twice."""

import sys

from celery import Celery  # type: ignore[import-untyped]
from celery.signals import task_success  # type: ignore[import-untyped]

from semel.doors.celery import once
from tests.doors import task_work

app = Celery("tests", broker=task_work.BROKER)
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    task_default_queue="semel-celery",
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="charge")
@once(task_work.s, "celery:{order}", lease=1)
def charge(order: str) -> str:
    return task_work.charge("celery", order)


@task_success.connect
def told(sender, result, **_):
    task_work.note("celery", sender.request.id, result)


if __name__ == "__main__":
    for order in sys.argv[1:] * 2:
        charge.delay(order)
