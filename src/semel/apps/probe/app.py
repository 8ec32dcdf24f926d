"""The probe: its two operations, on the queues that the settings name."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol

from semel import errors
from semel.apps.probe.embedded import Embedded
from semel.apps.probe.endpoint import ProbeEndpoint, ProbeOperation
from semel.apps.probe.orders import ConsumeRequest, OrderFailed, ProbeJob, ProbeReport, ProduceRequest
from semel.apps.probe.replies import OWN
from semel.apps.probe.settings import Settings, checked
from semel.apps.settings import naming
from semel.apps.tables import PROBE
from semel.connect import Semel
from semel.core.policy import OnError, Options

if TYPE_CHECKING:
    from semel.apps.deployment import Deployment
    from semel.doors.inbox import Inbox
    from semel.ops.blocks import AppPage

# Most of them wait, for messages or for a broker; so that these do not keep others waiting.
THREADS: Final = 32

# What no further try can mend is kept: FAILED. Other errors leave the key to be used again, unless messages
# may be on their way.
ON_ERROR: Final[OnError] = {
    OrderFailed: "keep",
    errors.BrokerError: "keep",
    errors.InvalidPayload: "keep",
    errors.BrokerUnavailable: "release",
    errors.SendOutcomeUnknown: "doubt",
}


class Queues(Protocol):
    """Where messages go to, and come from."""

    def produce(self, job: ProbeJob) -> ProbeReport:
        """Send the messages of an order."""

    def consume(self, job: ProbeJob) -> ProbeReport:
        """Receive messages for an order."""

    def close(self) -> None:
        """Wait for no more messages."""


class Probe:
    """Produces and consumes messages, each request once; nothing of it waits in an inbox."""

    settings_type = Settings
    ledger_table = PROBE
    problem_types = OWN

    def __init__(self, s: Semel, inbox: "Inbox | None" = None, settings: Settings | None = None) -> None:
        settings = checked(settings or Settings())
        self.settings: Settings = settings
        self._s = s = s.through("probe")
        self._queues, self._pool = _queues(s, settings), ThreadPoolExecutor(THREADS, "semel-probe")
        # A queue on the store changes together with the ledger: what lapsed there has not happened.
        holds = settings.on_lapsed == "hold" and settings.broker
        sending: Options = {"on_error": ON_ERROR, "on_lapsed": "hold" if holds else "rerun"}
        # What was received and not reported has gone back to its queue, so it may be done over.
        receiving: Options = {"on_error": ON_ERROR, "on_lapsed": "rerun"}
        produce = ProbeOperation("PRODUCE", ProduceRequest, self._queues.produce, sending)
        consume = ProbeOperation("CONSUME", ConsumeRequest, self._queues.consume, receiving)
        self.hooks: dict[str, ProbeEndpoint] = {
            "/messages/produce": ProbeEndpoint(s, settings, produce, self._pool),
            "/messages/consume": ProbeEndpoint(s, settings, consume, self._pool),
        }

    def pages(self) -> "dict[str, AppPage]":
        """The operations that were asked for, in the dashboard."""
        from semel.apps.probe.pages import pages

        return pages(self._s)

    @classmethod
    def deployment(cls) -> "Deployment":
        """The probe on AWS."""
        from semel.apps.probe.deployment import DEPLOYMENT

        return DEPLOYMENT

    def close(self) -> None:
        """Let requests that wait for messages end with those that have come."""
        self._queues.close()
        self._pool.shutdown()


def _queues(s: Semel, settings: Settings) -> Queues:
    if not settings.broker:
        return Embedded(s, settings)
    from semel.apps.probe.amqp import Amqp

    return naming("probe", "broker", Amqp, s.clock, settings)
