"""The SQS door: messages of a queue, each handled once, and in order within their group.

consumer = Consumer(s, "https://sqs.eu-north-1.amazonaws.com/123456789012/orders.fifo", handle)
consumer.run()
"""

from semel.aws.sqs import Attribute, Outgoing, Queue, Sent
from semel.doors.sqs.consumer import Consumer
from semel.doors.sqs.message import Message

__all__ = ["Attribute", "Consumer", "Message", "Outgoing", "Queue", "Sent"]
