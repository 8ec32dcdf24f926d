"""Connections that wait for an answer only so long.

The driver has a limit for connecting only. Afterwards it would wait for as long as the other side keeps the
connection open, which is for ever where something stands between that accepts and never answers.
"""

from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

T = TypeVar("T")


class AnswerTimeout(psycopg.OperationalError):
    """The server has been silent for too long; what was sent to it may have been done."""


class PostgresConnection(psycopg.Connection[Any]):
    """A connection of the driver's, with a limit for each answer."""

    limit: float = float("inf")
    pooled: bool = False
    """A pooler stands between: the session may be another one for each transaction."""

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Wait for what the driver is about."""
        return super().wait(limited(gen, self.limit), *args, **kwargs)


class AsyncPostgresConnection(psycopg.AsyncConnection[Any]):
    """A connection of the driver's for asyncio, with a limit for each answer."""

    limit: float = float("inf")
    pooled: bool = False
    """A pooler stands between: the session may be another one for each transaction."""

    async def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Wait for what the driver is about."""
        return await super().wait(limited(gen, self.limit), *args, **kwargs)


def limited(gen: PQGen[T], seconds: float) -> PQGen[T]:
    """A generator of the driver's, ended after so long; the driver wakes it now and then if nothing comes."""
    end = monotonic() + seconds
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and monotonic() >= end:
                raise AnswerTimeout(f"no answer within {seconds:g} s")
            state = gen.send(ready)
    except StopIteration as ended:
        value: T = ended.value
        return value
