"""A consumer of a queue, at work while a test looks on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

C = TypeVar("C", bound=Any)


@contextmanager
def running(consumer: C) -> Iterator[C]:
    """The consumer at work in a thread; what `run` raises is raised at the end."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield consumer
    finally:
        consumer.stop()
        thread.join()
    if raised:
        raise raised[0]
