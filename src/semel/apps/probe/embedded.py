"""Queues on the store itself: a queue is one document, and it changes together with what the ledger knows.

So here a request happens exactly once. A queue holds what fits into a row; for more there are brokers.
"""

import threading
from base64 import b64decode, b64encode
from typing import Any, TypeAlias

from semel import errors
from semel.apps.probe.orders import OrderFailed, ProbeJob, ProbeReport, ReportedMessage, fitting
from semel.apps.probe.settings import Settings
from semel.connect import Semel
from semel.core.codecs import Body, decoder_for
from semel.core.keys import Key
from semel.state.documents import Document

Sealed: TypeAlias = "Document[dict[str, Any]] | None"

# How often an empty queue is looked at: soon at first, and less often the longer nothing comes.
FIRST_LOOK = 0.02
SLOWEST_LOOK = 0.5

_letters = decoder_for(list[ReportedMessage])


class Embedded:
    """Queues on the store."""

    def __init__(self, s: Semel, settings: Settings) -> None:
        self._s = s
        self._room = settings.max_response
        self._codec = s.ledger.steps.codec
        self._closing = threading.Event()

    def produce(self, job: ProbeJob) -> ProbeReport:
        """Put the messages behind those that are there."""
        order = job.order
        new = [ReportedMessage(job.name(number), body) for number, body in enumerate(order.bodies, 1)]
        while True:
            before = self._read(order.address)
            messages = [*self._open(order.address, before), *new]
            report = job.report(len(new))
            if self._exchange(job, before, messages, report):
                return report

    def consume(self, job: ProbeJob) -> ProbeReport:
        """Take the first messages away; wait for them where there are not enough."""
        order, clock = job.order, self._s.clock
        deadline, pause = clock.monotonic() + order.seconds, FIRST_LOOK
        while True:
            before = self._read(order.address)
            messages = self._open(order.address, before)
            left = deadline - clock.monotonic()
            if len(messages) < order.max and left > 0 and not self._closing.is_set():
                clock.wait(self._closing, min(pause, left))
                pause = min(2 * pause, SLOWEST_LOOK)
                continue
            taken = fitting(messages[: order.max], self._room)
            report = job.report(len(taken), taken)
            if not taken or self._exchange(job, before, messages[len(taken) :], report):
                return report

    def close(self) -> None:
        """Wait for no more messages."""
        self._closing.set()

    def _read(self, address: str) -> Sealed:
        return self._s.documents.get(_key(address))

    def _exchange(
        self, job: ProbeJob, before: Sealed, messages: list[ReportedMessage], report: ProbeReport
    ) -> bool:
        """Write the queue and the report at once; False where somebody else has written the queue."""
        address = job.order.address
        sealed = self._seal(address, messages)
        try:
            with self._s.transaction() as tx:
                tx.documents.put(_key(address), sealed, version=0 if before is None else before.version)
                tx.ledger.complete(job.run, report)
        except errors.VersionConflict:
            return False
        return True

    # A queue's document, encrypted where results are

    def _seal(self, address: str, messages: list[ReportedMessage]) -> dict[str, str]:
        encoded = self._codec.encode(messages, _identity(address))
        if encoded.problem is not None or encoded.body.data is None:
            raise OrderFailed(f"the queue {address!r} has no room for them: consume some, or set up a broker")
        return {"messages": b64encode(encoded.body.data).decode(), "encoding": encoded.body.encoding}

    def _open(self, address: str, document: Sealed) -> list[ReportedMessage]:
        if document is None:
            return []
        body = Body(b64decode(document.value["messages"]), document.value["encoding"])
        messages: list[ReportedMessage] = self._codec.decode(body, _letters, _identity(address))
        return messages


def _key(address: str) -> Key:
    return Key("probe-queue", address)


def _identity(address: str) -> str:
    return f"probe-queue\0{address}"
