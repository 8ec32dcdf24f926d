"""Google Pub/Sub: a consumer of pulled messages, and a receiver of pushed ones; each is handled once.

Consumer(s, "projects/shop/subscriptions/orders", handle).run()

receiver = PushReceiver(s, handle, token=PushToken("https://shop.example/push", "push@shop.iam..."))
answer = receiver.receive(headers, body)  # status, headers and body for any framework
"""

from semel.doors.pubsub.message import Message, by_message_id
from semel.doors.pubsub.pull import Consumer
from semel.doors.pubsub.push import PushReceiver
from semel.doors.pubsub.tokens import GoogleCerts, PushToken

__all__ = ["Consumer", "GoogleCerts", "Message", "PushReceiver", "PushToken", "by_message_id"]
