"""AMQP 1.0: a consumer that handles each message once, and a producer that waits for confirmation.

RabbitMQ's own protocol, AMQP 0-9-1, is another one in all but its name, and is not spoken here.

Consumer(s, "amqp://user:password@host/vhost", "/amq/queue/orders", handle).run()

with Producer("amqp://user:password@host/vhost") as producer:
    producer.send("/amq/queue/orders", {"order": 7}, key="order:7")
"""

from semel.doors.amqp1.consumer import Consumer, by_message_id, group_id
from semel.doors.amqp1.producer import Producer
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
