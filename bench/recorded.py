"""What semel was seen to send, so that others can send the same."""

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import semel
from bench import charge, new_order
from bench.servers import ENV

# Every later key is as long as the recorded one, so that it fits in its place.
RECORDED = "order-1000000"

Watch = Callable[[Any, list[Any]], None]


def later_keys() -> Iterator[str]:
    return (f"order-{number}" for number in itertools.count(1_000_001))


def renamed(value: Any, key: str) -> Any:
    """A recorded value, with another key in the place of the recorded one."""
    if isinstance(value, dict):
        return {name: renamed(one, key) for name, one in value.items()}
    if isinstance(value, bytes):
        return value.replace(RECORDED.encode(), key.encode())
    return value.replace(RECORDED, key) if isinstance(value, str) else value


def recorded(url: str, watch: Watch) -> list[Any]:
    """What semel sends for a first call and a replay of it, as `watch` notes it: three requests."""
    sent: list[Any] = []
    with semel.connect(url, env=ENV, scope=os.urandom(4).hex()) as s:
        protected = s.once("charge:{order[id]}")(charge)
        protected(new_order(0))  # connections, statements and scripts are there from now on
        watch(s.store, sent)
        order = new_order(1_000_000)
        protected(order)
        protected(order)
    return sent


class Recorded:
    """A transport that notes what is sent through it."""

    def __init__(self, transport: Any, sent: list[tuple[str, dict[str, Any]]]) -> None:
        self._transport = transport
        self._sent = sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def exchange(self, operation: str, request: Any, *, write: bool) -> Any:
        request = request() if callable(request) else request
        self._sent.append((operation, request))
        return self._transport.exchange(operation, request, write=write)


def watch_dynamodb(store: Any, sent: list[Any]) -> None:
    operations = store._operations
    operations._transport = Recorded(operations._transport, sent)


def for_boto(request: Any) -> Any:
    """A request as boto3 takes it: bytes as bytes."""
    from base64 import b64decode

    if isinstance(request, list):
        return [for_boto(one) for one in request]
    if not isinstance(request, dict):
        return request
    return {
        name: b64decode(one) if name == "B" and isinstance(one, str) else for_boto(one)
        for name, one in request.items()
    }


def watch_postgres(store: Any, sent: list[Any]) -> None:
    of = store._steps.of

    def noting(command: Any) -> Any:
        steps = of(command)
        trip = next(steps)
        while True:
            sent.extend(trip.statements)
            answers = yield trip
            try:
                trip = steps.send(answers)
            except StopIteration as end:
                return end.value

    store._steps.of = noting


def watch_redis(store: Any, sent: list[Any]) -> None:
    exchange = store._pool.exchange

    def noting(asked: Any) -> Any:
        sent.append(asked.data)
        return exchange(asked)

    store._pool.exchange = noting


def commands(data: bytes) -> list[list[bytes]]:
    """Commands as Redis reads them, in their words."""
    found: list[list[bytes]] = []
    while data:
        head, _, data = data.partition(b"\r\n")
        words: list[bytes] = []
        for _ in range(int(head[1:])):
            size, _, data = data.partition(b"\r\n")
            words.append(data[: int(size[1:])])
            data = data[int(size[1:]) + 2 :]
        found.append(words)
    return found
