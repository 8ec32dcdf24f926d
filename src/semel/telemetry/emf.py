"""Events as CloudWatch metrics, in the embedded metric format: JSON lines that CloudWatch Logs reads.

The format is specified in the CloudWatch User Guide, under "Specification: Embedded metric format".
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from typing import Any, Final, TypeAlias

import msgspec

from semel.core.clock import Clock, SignalSafeLock
from semel.core.events import Event, What
from semel.errors import InvalidOption
from semel.telemetry.words import metric

EventCounts: TypeAlias = Counter[tuple[str, What]]

# What CloudWatch takes for the name of a namespace and the value of a dimension; it drops others unheard.
NAMESPACE: Final = re.compile(r"(?!:|AWS/)(?=.*[!-~])[ -~]{1,255}")
DIMENSION: Final = re.compile(r"(?=.*[!-~])[ -~]{1,1024}")


class Emf:
    """Counts events, and writes the counts to standard output: what CloudWatch makes metrics of in Lambda.

        emf = Emf(service="orders", env="prod")
        s = semel.connect("dynamodb:", on_event=emf)

        @emf.invocation()
        def handler(event, context): ...

    Metrics have the dimensions `service` and `env`, and again these with `door`: an alarm looks at one set of
    dimensions and adds none up.
    """

    def __init__(
        self, *, service: str, env: str, namespace: str = "semel", clock: Clock | None = None
    ) -> None:
        _check(NAMESPACE, "namespace", namespace)
        _check(DIMENSION, "service", service)
        _check(DIMENSION, "env", env)
        self._namespace = namespace
        self._dimensions = {"service": service, "env": env}
        self._clock = clock or Clock()
        self._counts: EventCounts = Counter()
        # Not a plain lock: a signal's handler may do work of its own in the midst of a call.
        self._lock = SignalSafeLock()

    def __call__(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            self._counts[event.door, event.what] += 1

    @contextmanager
    def invocation(self) -> Iterator[None]:
        """Write at the end of the block, or of the function that this decorates, what was counted till then.

        An `async def` is not to be decorated, as its call ends before its work: put the block inside it.
        """
        try:
            yield
        finally:
            self.flush()

    def flush(self) -> None:
        """Write what was counted since the last time: a line for each door that was used."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            sys.stdout.write("".join(self._lines(counts)))
            sys.stdout.flush()
        except Exception:
            getLogger("semel").exception("metrics could not be written")
            with self._lock:
                self._counts.update(counts)  # they are written the next time

    def _lines(self, counts: EventCounts) -> Iterator[str]:
        """The documents for these counts."""
        now = int(self._clock.now() * 1000)
        for door in dict.fromkeys(door for door, _ in counts):
            values = Counter[str]()
            for (through, what), number in counts.items():
                if through == door:
                    values[metric(what)] += number
            yield msgspec.json.encode(self._document(now, door, values)).decode() + "\n"

    def _document(self, now: int, door: str, values: dict[str, int]) -> dict[str, Any]:
        targets, sets = self._dimensions, [list(self._dimensions)]
        if DIMENSION.fullmatch(door):
            targets = {**targets, "door": door}
            sets.append(list(targets))
        directive = {
            "Namespace": self._namespace,
            "Dimensions": sets,
            "Metrics": [{"Name": name, "Unit": "Count"} for name in values],
        }
        return {"_aws": {"Timestamp": now, "CloudWatchMetrics": [directive]}, **targets, **values}


def _check(pattern: re.Pattern[str], name: str, value: str) -> None:
    if not pattern.fullmatch(value):
        raise InvalidOption(f"CloudWatch drops metrics with {name}={value!r}: use a short ASCII name")
