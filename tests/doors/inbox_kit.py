"""What tests of an inbox share: messages, whoever handles them, and an inbox as several processes see it."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import semel
from semel.doors.inbox import Message, Runs, StoreInbox, Worker
from semel.state.mailbox import Letter
from semel.state.shards import NOTICE_SECONDS
from semel.testing import FakeClock
from tests.places import Place

SECRET = b"a secret of the tests, 32 bytes."


class Busy(Exception):
    """The other side says when to come again."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("come again later")
        self.retry_after = retry_after


class Diary:
    """Handles messages: notes each, and then does what it is told with it."""

    def __init__(self, what: Callable[[Message], Any] = lambda _: None) -> None:
        self.messages: list[Message] = []
        self.what = what
        self._noted = threading.Condition()

    def __call__(self, message: Message) -> Any:
        with self._noted:
            self.messages.append(message)
            self._noted.notify_all()
        return self.what(message)

    @property
    def keys(self) -> list[str]:
        return [message.key for message in self.messages]

    def of(self, group: str | None) -> list[str]:
        return [message.key for message in self.messages if message.group == group]

    def wait_for(self, many: int) -> None:
        with self._noted:
            assert self._noted.wait_for(lambda: len(self.messages) >= many, 60), self.keys


def nobody(message: Message) -> None:
    """Fails the test: the message was not to be begun."""
    pytest.fail(f"{message.key} was begun")


def failing(*keys: str, error: Exception | None = None) -> Callable[[Message], None]:
    """What fails on these messages each time."""

    def work(message: Message) -> None:
        if message.key in keys:
            raise error or ConnectionError("the bank does not answer")

    return work


def failing_once(*keys: str) -> Callable[[Message], None]:
    left = set(keys)

    def work(message: Message) -> None:
        if message.key in left:
            left.discard(message.key)
            raise ConnectionError("the bank does not answer")

    return work


class InboxHarness:
    """An inbox in a scope of its own, with a clock that the test moves, and processes as it asks for them."""

    def __init__(self, place: Place, *, shards: int = 1, **options: Any) -> None:
        if place.name == "memory":
            place.forget()
        self.place, self.clock, self._options = place, FakeClock(), options
        self._by_task = False
        self.scope = f"i{uuid.uuid4().hex[:12]}"
        self._opened: list[semel.Semel] = []
        self._loop = asyncio.Runner()
        self.s = self.process()
        self.inbox = StoreInbox(self.s, "in", shards=shards)
        self.box = self.s.mailbox("in")
        if shards > 1:
            self.inbox.waiting()
            self.clock.advance(NOTICE_SECONDS)

    def process(self, **options: Any) -> semel.Semel:
        """The same store, as another process has it."""
        store, given = self.place.open(self.clock), {"secret": SECRET, **self._options, **options}
        self._opened.append(
            semel.Semel(store, env=self.place.env, scope=self.scope, clock=self.clock, **given)
        )
        return self._opened[-1]

    def put(self, *messages: Message, inbox: StoreInbox | None = None) -> None:
        """Put messages in, by turns through a thread and through a task."""
        chosen, self._by_task = inbox or self.inbox, not self._by_task
        if self._by_task:
            self._loop.run(chosen.aput(*messages))
        else:
            chosen.put(*messages)

    def worker(self, handle: Callable[[Message], Any], **options: Any) -> Worker:
        return self.inbox.worker(handle, **{"backoff": lambda _: 10.0, **options})

    def elsewhere(self, handle: Callable[[Message], Any], **options: Any) -> Worker:
        """A worker of another process."""
        return StoreInbox(self.process(), "in").worker(handle, **{"backoff": lambda _: 10.0, **options})

    def letters(self, message: Message) -> tuple[Letter, ...]:
        """What waits in a message's lane."""
        return self.box.letters(message.lane).letters

    @property
    def waiting(self) -> int:
        return self.inbox.waiting()

    def close(self) -> None:
        for s in self._opened:
            self._loop.run(s.aio.close())
        self._loop.close()


def sweep(worker: Worker, clock: FakeClock) -> None:
    """Let a worker look at every shard, and go through the lanes that are in line, all in this thread."""
    worker.lanes.wake(clock.monotonic())
    look_everywhere(worker)
    while (lane := worker.lanes.begin()) is not None:
        worker.visit(lane)


def look_everywhere(worker: Worker) -> None:
    """Let a worker look at every shard once."""
    worker.look()
    _, shards = worker._box.steps.shards._read
    for _ in range(shards.number - 1):
        worker.look()


@contextmanager
def running(*workers: Runs) -> Iterator[None]:
    """Workers at work; at the end they are stopped, and have ended without a complaint."""
    failures: list[BaseException] = []

    def run(worker: Runs) -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - for the test to see
            failures.append(error)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def conversation(group: str, *numbers: int) -> list[Message]:
    """What is said in a conversation."""
    return [Message(f"{group}{n}", {"n": n}, group) for n in numbers]
