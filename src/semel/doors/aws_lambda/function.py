"""`Lambda`: makes handlers for a function's events out of plain functions."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Unpack, cast

from semel import errors
from semel.connect import Semel
from semel.core.clock import SignalSafeLock
from semel.core.events import Event as Happened
from semel.core.functions import check_function
from semel.core.policy import Options, Seconds, policy_of, seconds
from semel.doors.aws_lambda import records
from semel.doors.aws_lambda.attempts import Attempts, LambdaEvent
from semel.doors.aws_lambda.environment import forget_at_restore
from semel.doors.aws_lambda.records import LambdaRecord, OnDead, RecordBatch, RecordSource

if TYPE_CHECKING:
    from semel.doors.aws_lambda.durable import DurableOptions
    from semel.doors.http.policy import Idempotency

LambdaHandler: TypeAlias = Callable[[LambdaEvent, Any], Any]
"""A handler as Lambda calls it: with an event and a context."""
OfRecord: TypeAlias = Callable[[LambdaRecord], Any]


class EventMetrics(Protocol):
    """What counts events, and writes the counts when it is told to, as `semel.telemetry.emf.Emf` does."""

    def __call__(self, event: Happened, /) -> None:
        """Count an event."""

    def flush(self) -> None:
        """Write what was counted."""


class RecordOptions(Options, total=False):
    """What can be said about a handler of records, or of events; all but `lease` and `heartbeat`."""

    key: Callable[[LambdaRecord], str]
    """Names a record: the same whenever it comes. What AWS itself calls it, unless this is said."""
    fingerprint: Callable[[LambdaRecord], Any] | None
    """The part of it that must not change under one key. Nothing is compared, unless this is said."""
    person: Callable[[LambdaRecord], str | None]
    """Gives whom it is about. It is about nobody, unless this is said."""
    dead: OnDead | None
    """Takes what no delivery can mend. It is left to AWS's own dead letters, unless this is said."""


class Lambda:
    """Makes handlers that share a ledger.

    `s` is a ledger, or a function that opens one when the first event comes. An attempt lasts as long as its
    invocation: its lease is the time that is left, and nothing renews it. With less than `min_remaining`
    seconds left no record is begun. `metrics` listens to the ledger, and is written after each invocation.
    """

    def __init__(
        self,
        s: Semel | Callable[[], Semel],
        *,
        min_remaining: Seconds = 1,
        metrics: EventMetrics | None = None,
    ) -> None:
        self._source = s
        self._min_remaining = seconds(min_remaining)
        self._metrics = metrics
        self._lock = SignalSafeLock()
        self._opened: Semel | None = None
        forget_at_restore()

    @property
    def s(self) -> Semel:
        """The ledger, opened by now."""
        with self._lock:
            if self._opened is None:
                source = self._source
                self._opened = source if isinstance(source, Semel) else source()
                if self._metrics is not None:
                    self._opened.events.listen(self._metrics)
            return self._opened

    def drain_on_sigterm(self) -> None:
        """Begin nothing new once this process is told to stop; a handler of that signal's is still called."""
        from signal import SIGTERM, getsignal, signal

        previous = getsignal(SIGTERM)

        def stop(number: int, frame: Any) -> None:
            # Not by way of the lock: this may have interrupted whoever holds it.
            opened = self._source if isinstance(self._source, Semel) else self._opened
            if opened is not None:
                opened.drain()
            if callable(previous):
                previous(number, frame)

        signal(SIGTERM, stop)

    # HTTP

    def http(
        self, idempotency: "Idempotency | Callable[[Semel], Idempotency]"
    ) -> Callable[[LambdaHandler], LambdaHandler]:
        """A handler of requests that keeps a policy, or the one that a function makes for the ledger.

        Requests come from API Gateway, in payload format 1.0 or 2.0, from a function URL, or from a load
        balancer. `identity` and `payload` of the policy are given the event.
        """
        from semel.doors.aws_lambda.proxy import answer

        @functools.cache
        def policy() -> "Idempotency":
            s = self.s
            return idempotency(s) if callable(idempotency) else idempotency

        def protect(handle: LambdaHandler) -> LambdaHandler:
            return self._entry(handle, lambda event, context: answer(policy(), handle, event, context))

        return protect

    # Batches, of which Lambda takes back what failed

    def sqs(self, **terms: Unpack[RecordOptions]) -> Callable[[OfRecord], LambdaHandler]:
        """A handler of a queue's messages; a FIFO queue's group stops at its first that failed.

        `horizon` is the queue's retention period: 4 days, unless it is said.
        """
        return self._handlers(records.SQS, RecordBatch.report, terms)

    def kinesis(self, **terms: Unpack[RecordOptions]) -> Callable[[OfRecord], LambdaHandler]:
        """A handler of a stream's records, in order; a shard stops at its first that failed.

        `horizon` is the stream's retention period: a day, unless it is said.
        """
        return self._handlers(records.KINESIS, RecordBatch.report, terms)

    def dynamodb(self, **terms: Unpack[RecordOptions]) -> Callable[[OfRecord], LambdaHandler]:
        """A handler of a table's changes, in order; a shard stops at its first that failed."""
        return self._handlers(records.DYNAMODB, RecordBatch.report, terms)

    # What Lambda was handed and will try again: what goes wrong is raised

    def sns(self, **terms: Unpack[RecordOptions]) -> Callable[[OfRecord], LambdaHandler]:
        """A handler of a topic's messages; gives the results in a list."""
        return self._handlers(records.SNS, RecordBatch.insist, terms)

    def s3(self, **terms: Unpack[RecordOptions]) -> Callable[[OfRecord], LambdaHandler]:
        """A handler of a bucket's notifications; gives the results in a list."""
        return self._handlers(records.S3, RecordBatch.insist, terms)

    def eventbridge(self, **terms: Unpack[RecordOptions]) -> Callable[[LambdaHandler], LambdaHandler]:
        """A handler of a bus's events."""
        return self._handlers(records.EVENTBRIDGE, RecordBatch.insist_on, terms)

    def event(
        self,
        key: Callable[[LambdaEvent], str],
        *,
        fingerprint: Callable[[LambdaEvent], Any] | None = None,
        dead: OnDead | None = None,
        **options: Unpack[Options],
    ) -> Callable[[LambdaHandler], LambdaHandler]:
        """A handler of any event that has a key: another one with the same key gives the same result."""
        terms = cast("RecordOptions", {**options, "dead": dead, "fingerprint": fingerprint})
        source = RecordSource(door="lambda", key=key, id=lambda _: "event", horizon=records.ASYNC)
        return self._handlers(source, RecordBatch.insist_on, terms)

    # Durable functions, which Lambda calls many times for one execution

    def durable(
        self,
        key: "Callable[[Any], str] | None" = None,
        *,
        lease: Seconds,
        **options: "Unpack[DurableOptions]",
    ) -> Callable[[LambdaHandler], LambdaHandler]:
        """A function of an event, or of a record in it, and a durable context; below `@durable_execution`.

        The claim lasts over every wait and every invocation of the execution. `lease` is the execution's own
        time-out: nothing renews it meanwhile. Records of SQS, Kinesis and DynamoDB need no key.
        """
        from semel.doors.aws_lambda.durable import DurableWork, usual_key

        def protect(handle: LambdaHandler) -> LambdaHandler:
            work = DurableWork(lambda: self.s, handle, key=key or usual_key, lease=lease, options=options)
            return self._entry(handle, work)

        return protect

    # Inside

    def _handlers(
        self, source: RecordSource, end: Callable[[RecordBatch, LambdaEvent, Any], Any], terms: RecordOptions
    ) -> Callable[[Callable[..., Any]], LambdaHandler]:
        def protect(handle: Callable[..., Any]) -> LambdaHandler:
            batch = self._batch(source, handle, terms)
            return self._entry(handle, lambda event, context: end(batch(), event, context))

        return protect

    def _batch(
        self, source: RecordSource, handle: Callable[..., Any], terms: RecordOptions
    ) -> Callable[[], RecordBatch]:
        """What makes the batch of a source once the ledger is open; what is wrong with it is said now."""
        terms = terms.copy()
        dead = terms.pop("dead", None)
        names = {
            "key": terms.pop("key", source.key),
            "fingerprint": terms.pop("fingerprint", None),
            "person": terms.pop("person", lambda _: None),
        }
        options = _checked(cast("Options", terms), source)

        @functools.cache
        def batch() -> RecordBatch:
            s = self.s
            horizon = max(seconds(options["horizon"]), s.ledger.steps.horizon)
            more: Any = {**options, **names, "door": source.door, "horizon": horizon}
            return RecordBatch(source, Attempts(s, handle, min_remaining=self._min_remaining, **more), dead)

        return batch

    def _entry(self, handle: Callable[..., Any], run: LambdaHandler) -> LambdaHandler:
        """A handler as Lambda calls it, named like the function that it is made of."""
        from inspect import iscoroutinefunction

        check_function(handle)
        if iscoroutinefunction(handle):
            raise errors.InvalidOption(
                f"{handle.__qualname__} is async, and Lambda calls plain functions: use asyncio.run() in one"
            )

        def handler(event: LambdaEvent, context: Any) -> Any:
            try:
                return run(event, context)
            finally:
                if self._metrics is not None:
                    self._metrics.flush()

        functools.update_wrapper(handler, handle)
        del handler.__wrapped__  # type: ignore[attr-defined]  # it takes other arguments than this
        return handler


def _checked(options: Options, source: RecordSource) -> Options:
    if given := options.keys() & {"lease", "heartbeat"}:
        raise errors.InvalidOption(
            f"leave out {' and '.join(sorted(given))}: an attempt lasts as long as its invocation, "
            "which ends at the function's own time-out"
        )
    options["horizon"] = seconds(options.get("horizon", source.horizon))
    policy_of(options)
    return options
