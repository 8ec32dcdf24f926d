"""A probe for message queues: messages are produced and consumed over HTTP, each request once.

POST /messages/produce   {"address": "orders", "count": 100}
POST /messages/consume   {"address": "orders", "max": 100, "seconds": 5}

Both take an `Idempotency-Key`. The queue is a broker's that speaks AMQP 1.0, or one on the store itself.
"""

from semel.apps.probe.app import Probe
from semel.apps.probe.settings import Settings

__all__ = ["Probe", "Settings"]
