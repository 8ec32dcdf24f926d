"""AMQP 1.0: each message of a queue is handled once, and one is sent until the broker has it.

Consumer(s, "amqp://user:password@host/vhost", "/amq/queue/orders", handle).run()

with Producer("amqp://user:password@host/vhost") as producer:
    producer.send("/amq/queue/orders", {"order": 7}, key="order:7")
"""

from semel.doors.amqp.consumer import Consumer, by_message_id, group_id
from semel.doors.amqp.producer import Producer
from semel.errors import (
    AddressRefused,
    BrokerError,
    BrokerUnavailable,
    SendOutcomeUnknown,
    SendRefused,
)

__all__ = [
    "AddressRefused",
    "BrokerError",
    "BrokerUnavailable",
    "Consumer",
    "Producer",
    "SendOutcomeUnknown",
    "SendRefused",
    "by_message_id",
    "group_id",
]
