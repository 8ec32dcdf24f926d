"""Mails by Celery: an order is confirmed once, however often its task is delivered or sent.

CELERY_BROKER=redis://localhost/0 SEMEL_URL=redis://localhost/1 celery -A mails worker
"""

import os

from celery import Celery  # type: ignore[import-untyped]

import semel
from semel.doors.celery import FINAL, once

app = Celery("mails", broker=os.environ.get("CELERY_BROKER", "memory://"))
s = semel.connect(os.environ.get("SEMEL_URL", "memory:"))


class MailDown(Exception):
    """The mail server cannot be reached now."""


def send(to: str, text: str, key: str) -> None:
    """Hand a mail to your provider, with this key so that it recognises a second one."""
    print(f"{key[:8]} to {to}: {text}")  # noqa: T201 - in place of a provider


# Late acknowledgement lets a task be delivered again when its worker has died.
@app.task(acks_late=True, autoretry_for=(MailDown,), dont_autoretry_for=FINAL, retry_backoff=True)  # type: ignore[untyped-decorator]
@once(s, "confirm:{order_id}", ttl=7 * semel.DAY)
def confirm(order_id: str, to: str) -> str:
    """Confirm an order to its customer."""
    send(to, f"We have your order {order_id}.", semel.current_run().key_for("mail"))
    return f"confirmed {order_id}"
