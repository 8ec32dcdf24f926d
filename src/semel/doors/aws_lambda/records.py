"""Records of queues, streams and notifications: which is which, and what Lambda is told of them."""

import os
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from semel.core.keys import own_key
from semel.core.policy import DAY
from semel.doors.queues.messages import DeliveryResult, Verdict
from semel.doors.queues.sqs_names import sqs_key

if TYPE_CHECKING:
    from semel.doors.aws_lambda.attempts import Attempts

LambdaRecord: TypeAlias = dict[str, Any]
OnDead: TypeAlias = Callable[[LambdaRecord, DeliveryResult], Any]

# Lambda keeps an event that it is to invoke a function with for so long.
ASYNC: Final = 6 * 3600.0


class RecordSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where records come from."""

    door: str
    key: Callable[[LambdaRecord], str]
    id: Callable[[LambdaRecord], str]
    """What Lambda calls a record."""
    group: Callable[[LambdaRecord], Hashable] = lambda _: None
    """Records of one group are handled in order; None stands alone."""
    checkpoint: bool = False
    """Lambda goes on from the first that failed, whatever else is reported."""
    horizon: float
    """How long a record may come again, unless its queue or stream is set up otherwise."""


def function_name() -> str:
    """The function that runs here: others may get the same record, and each handles it once."""
    return os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "local")


def queued(record: LambdaRecord) -> str:
    """What a message is called; whether its queue tells equal names in two groups apart is not to be seen."""
    queue = record["eventSourceARN"].rpartition(":")[2]
    system = record["attributes"]
    dedup, group = system.get("MessageDeduplicationId"), system.get("MessageGroupId")
    return sqs_key(queue, record["messageId"], record["body"], dedup, group)


def stored(record: LambdaRecord) -> str:
    """One change of one object; its name is hashed, as it may be longer than a key."""
    from hashlib import sha256

    about = record["s3"]["object"]
    name = f"{record['s3']['bucket']['name']}/{about['key']}?{about.get('versionId')}"
    which = sha256(name.encode()).hexdigest()
    # Only what creates or removes an object is numbered.
    order = about.get("sequencer") or record["eventTime"]
    return own_key("s3", function_name(), record["eventName"], which, order)


SQS: Final = RecordSource(
    door="sqs",
    key=queued,
    id=lambda record: record["messageId"],
    group=lambda record: record["attributes"].get("MessageGroupId"),
    horizon=4 * DAY,
)
# A batch is always of one shard.
KINESIS: Final = RecordSource(
    door="kinesis",
    key=lambda record: own_key("kinesis", function_name(), record["eventSourceARN"], record["eventID"]),
    id=lambda record: record["kinesis"]["sequenceNumber"],
    group=lambda _: "shard",
    checkpoint=True,
    horizon=DAY,
)
DYNAMODB: Final = RecordSource(
    door="dynamodb",
    key=lambda record: own_key("dynamodb", function_name(), record["eventID"]),
    id=lambda record: record["dynamodb"]["SequenceNumber"],
    group=lambda _: "shard",
    checkpoint=True,
    horizon=DAY,
)
# SNS tries for 23 days to hand a message over to Lambda.
SNS: Final = RecordSource(
    door="sns",
    key=lambda record: own_key("sns", function_name(), record["Sns"]["MessageId"]),
    id=lambda record: record["Sns"]["MessageId"],
    horizon=23 * DAY + ASYNC,
)
S3: Final = RecordSource(
    door="s3",
    key=stored,
    id=lambda record: record.get("responseElements", {}).get("x-amz-request-id", ""),
    horizon=DAY + ASYNC,
)
# A bus tries for a day to hand an event over to Lambda.
EVENTBRIDGE: Final = RecordSource(
    door="eventbridge",
    key=lambda event: own_key("eventbridge", function_name(), event["id"]),
    id=lambda event: event["id"],
    horizon=DAY + ASYNC,
)


class RecordBatch:
    """The records of one source, and what becomes of those that cannot be helped."""

    def __init__(self, source: RecordSource, attempts: "Attempts", dead: OnDead | None) -> None:
        self._source = source
        self._attempts = attempts
        self._dead = dead

    def report(self, event: dict[str, Any], context: Any) -> dict[str, Any]:
        """Handle the records of an event, and tell Lambda which have to come again."""
        failed = []
        for record, taken in self._taken(event["Records"], context):
            if not self._settled(record, taken):
                self._log_failure(record, taken)
                failed.append({"itemIdentifier": self._source.id(record)})
        return {"batchItemFailures": failed[:1] if self._source.checkpoint else failed}

    def insist(self, event: dict[str, Any], context: Any) -> list[Any]:
        """Handle the records of an event; if one has to come again, so has the event."""
        results, problem = [], None
        for record, taken in self._taken(event["Records"], context):
            results.append(taken.result)
            if self._settled(record, taken):
                continue
            if problem is None:
                problem = taken.error
            else:
                self._log_failure(record, taken)
        if problem is not None:
            raise problem
        return results

    def insist_on(self, event: LambdaRecord, context: Any) -> Any:
        """Handle an event that is a record itself."""
        taken = self._attempts.during(context, with_context=True).take(event)
        if not self._settled(event, taken) and taken.error is not None:
            raise taken.error
        return taken.result

    def _taken(
        self, records: Iterable[LambdaRecord], context: Any
    ) -> Iterable[tuple[LambdaRecord, DeliveryResult]]:
        return self._attempts.during(context).take_all(records, self._source.group)

    def _settled(self, record: LambdaRecord, taken: DeliveryResult) -> bool:
        if taken.verdict is not Verdict.DEAD or self._dead is None:
            return taken.settled
        try:
            self._dead(record, taken)
        except Exception as error:  # noqa: BLE001 - it stays where it is
            self._log("the dead letters did not take it", record, error)
            return False
        return True

    def _log_failure(self, record: LambdaRecord, taken: DeliveryResult) -> None:
        """Log what nobody would see otherwise, as the invocation as a whole succeeds."""
        if taken.verdict in (Verdict.FAILED, Verdict.DEAD) and taken.error is not None:
            self._log(taken.verdict.value, record, taken.error)

    def _log(self, what: str, record: LambdaRecord, error: BaseException) -> None:
        from logging import getLogger
        from traceback import format_exception

        text = self._attempts.s.events.scrubbed("".join(format_exception(error)))
        source = self._source
        getLogger("semel").error("%s record %s: %s\n%s", source.door, source.id(record), what, text)
