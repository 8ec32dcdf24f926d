"""Taskiq's worker for the tests; run as a program, it sends a task for each order twice."""

import asyncio
import sys

from taskiq import TaskiqMiddleware
from taskiq_aio_pika import AioPikaBroker, Queue

from semel.doors.taskiq import OnceMiddleware, once
from tests.doors import task_work


class Told(TaskiqMiddleware):
    def post_execute(self, message, result):
        if not result.is_err:
            task_work.note("taskiq", message.task_id, result.return_value)


broker = AioPikaBroker(
    task_work.BROKER,
    task_queues=[Queue(name="semel-taskiq")],
    delay_queue=Queue(name="semel-taskiq-later"),
).with_middlewares(OnceMiddleware(), Told())


@broker.task("charge")
@once(task_work.s, "taskiq:{order}", lease=1)
async def charge(order: str) -> str:
    return task_work.charge("taskiq", order)


async def send():
    await broker.startup()
    for order in sys.argv[1:] * 2:
        await charge.kiq(order)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(send())
