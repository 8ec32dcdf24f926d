"""Durable functions: work that is done once for each message, over all invocations of a durable execution.

Lambda calls a durable handler again after every wait and every crash, and gives what its steps returned from
a log. So the claim of a key is such a step: it is made once, and every later call of the same execution finds
that it holds it. Its token is drawn in a step before, and not made of the execution's name: two branches of
one execution that meet in a key are two holders, and a claim whose step was cut off is still recognised.
"""

import itertools
from collections.abc import Callable
from typing import Any, Final, TypedDict

import msgspec

from semel import errors
from semel.connect import Semel
from semel.core.drive import drive
from semel.core.events import name_of
from semel.core.functions import refuse_lazy
from semel.core.ledger import LedgerSteps, failure_of
from semel.core.policy import OnError, Policy, Seconds, policy_of, seconds
from semel.core.runtime import random_token, require
from semel.doors.aws_lambda.records import DYNAMODB, KINESIS, SQS, LambdaRecord
from semel.model import MISSING, Busy, Claimed, Failed, Mismatch, OnLapsed, Outcome, Replay, Unknown

SOURCES: Final = {"aws:sqs": SQS, "aws:kinesis": KINESIS, "aws:dynamodb": DYNAMODB}


class DurableOptions(TypedDict, total=False):
    """What can be said about durable work, beside its key and its lease."""

    fingerprint: Callable[[Any], Any]
    """The part of an event that must not change under one key. Nothing is compared, unless this is said."""
    ttl: Seconds
    horizon: Seconds
    on_lapsed: OnLapsed
    max_attempts: int | None
    on_error: OnError


def usual_key(record: LambdaRecord) -> str:
    """What AWS itself calls a record of a queue or a stream."""
    source = SOURCES.get(record.get("eventSource", "")) if isinstance(record, dict) else None
    if source is None:
        raise errors.InvalidKey("it is no record of SQS, Kinesis or DynamoDB: pass key=, which names it")
    return source.key(record)


class DurableWork:
    """A function of an event and a durable context that is done once for each key."""

    def __init__(
        self,
        opened: Callable[[], Semel],
        handle: Callable[[Any, Any], Any],
        *,
        key: Callable[[Any], str],
        lease: Seconds,
        options: DurableOptions,
    ) -> None:
        sdk: Any = require("aws_durable_execution_sdk_python.exceptions", "durable")
        self._unrecoverable: type[Exception] = sdk.UnrecoverableError
        self._opened, self._handle, self._key = opened, handle, key
        self._fingerprint = options.get("fingerprint")
        self._policy = _policy(lease, options)

    def __call__(self, event: Any, context: Any) -> Any:
        """Do it, or give what came of it before."""
        key, payload = self._key(event), self._payload(event)
        token = context.step(lambda _: random_token(), name="semel-token")
        found = context.step(lambda _: self._claim(key, payload, token), name="semel-claim")
        if "claim" not in found:
            return _answer(found)
        claim = msgspec.convert(found["claim"], Claimed)
        try:
            result = self._handle(event, context)
            refuse_lazy(result, name_of(self._handle))
        except self._unrecoverable:
            raise  # of this invocation, and not of the work: Lambda invokes again, or gives up
        except Exception as error:
            raised = error
            context.step(lambda _: self._give_back(claim, raised), name="semel-give-back")
            raise
        return _answer(context.step(lambda _: self._complete(claim, result), name="semel-complete"))

    # What the steps do; a store's error is raised, and has the step tried again

    def _claim(self, key: str, payload: str | None, token: str) -> dict[str, Any]:
        s, policy = self._s, self._policy
        claiming = _with_token(s, token).claim(
            key,
            fingerprint=payload,
            lease=policy.lease,
            ttl=policy.ttl,
            on_lapsed=policy.on_lapsed,
            max_attempts=policy.max_attempts,
        )
        return _found(drive(claiming, s.store, s.events.failed))

    def _complete(self, claim: Claimed, result: Any) -> dict[str, Any]:
        try:
            self._s.ledger.complete(claim, result)
        except errors.ClaimLost as error:
            return _refusal(error, error.key, error.attempt, "complete")
        return {"result": result}

    def _give_back(self, claim: Claimed, error: Exception) -> None:
        ledger = self._s.ledger
        word, kept_as = self._policy.fate_of(error, claim.attempt)
        try:
            if word == "doubt":
                drive(ledger.steps.lapse(claim), self._s.store, self._s.events.failed)
            elif word == "keep":
                ledger.fail(claim, failure_of(error, kept_as))
            else:
                ledger.release(claim, error)
        except errors.ClaimLost:
            pass  # the error of the work says more

    def _payload(self, event: Any) -> str | None:
        return None if self._fingerprint is None else self._s.fingerprint(self._fingerprint(event))

    @property
    def _s(self) -> Semel:
        return self._opened().through("lambda")


def _policy(lease: Seconds, options: DurableOptions) -> Policy:
    given: Any = {name: value for name, value in options.items() if name != "fingerprint"}
    if given.get("on_lapsed") == "resolve":
        raise errors.InvalidOption('on_lapsed is "rerun" or "hold" here: nobody is there to ask a resolver')
    held = seconds(lease)
    # What is delivered again when the lease is over is to find it: so it is remembered for longer.
    given["horizon"] = max(seconds(given.get("horizon", SQS.horizon)), held + 1)
    given["lease"] = held
    return policy_of(given)


def _with_token(s: Semel, token: str) -> LedgerSteps:
    """The rules of a ledger, which claim with this token; for another attempt, others follow."""
    steps = s.ledger.steps
    tokens = itertools.chain([token], iter(random_token, ""))
    return type(steps)(msgspec.structs.replace(steps.realm, token=tokens.__next__))


def _found(outcome: Outcome) -> dict[str, Any]:
    """What a claim found, as a step can keep it."""
    match outcome:
        case Claimed():
            return {"claim": msgspec.to_builtins(outcome)}
        case Replay(record, result) if result is MISSING:
            return _refusal(errors.ResultNotKept, record.key, (record.encoding or "").removeprefix("none:"))
        case Replay(_, result):
            return {"result": result}
        case Busy(record, retry_after):
            return _refusal(errors.InProgress, record.key, retry_after, record.attempt)
        case Failed(record, failure):
            return _refusal(errors.FailedBefore, record.key, failure.type, failure.message, record.attempt)
        case Mismatch(record):
            return _refusal(errors.PayloadChanged, record.key)
        case Unknown(record):
            return _refusal(errors.OutcomeUnknown, record.key, record.attempt)


def _refusal(error: type[errors.Refused] | errors.Refused, *args: Any) -> dict[str, Any]:
    kind = error if isinstance(error, type) else type(error)
    return {"refused": kind.__name__, "args": list(args)}


def _answer(found: dict[str, Any]) -> Any:
    """The result, or the error, that a step has kept."""
    if "refused" in found:
        raise getattr(errors, found["refused"])(*found["args"])
    return found["result"]
