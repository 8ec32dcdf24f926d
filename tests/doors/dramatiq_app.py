"""Dramatiq's worker for the tests; run as a program, it sends a message for each order twice."""

import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from semel.doors.dramatiq import FINAL, once
from tests.doors import task_work


class Told(dramatiq.Middleware):
    def after_process_message(self, broker, message, *, result=None, exception=None):
        if exception is None:
            task_work.note("dramatiq", message.message_id, result)


broker = RabbitmqBroker(url=task_work.BROKER)
broker.add_middleware(Told())
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="semel-dramatiq", throws=FINAL)
@once(task_work.s, "dramatiq:{order}", lease=1)
def charge(order: str) -> str:
    return task_work.charge("dramatiq", order)


if __name__ == "__main__":
    for order in sys.argv[1:] * 2:
        charge.send(order)
    broker.close()
