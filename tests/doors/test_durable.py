"""Durable functions by AWS's own runner: a message has its effect once, over all replays and executions."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import Duration
from aws_durable_execution_sdk_python.exceptions import InvocationError
from aws_durable_execution_sdk_python.lambda_service import InvocationStatus
from aws_durable_execution_sdk_python_testing.runner import DurableFunctionTestRunner

import semel
from semel.doors.aws_lambda import Lambda
from semel.doors.aws_lambda.durable import DurableWork
from semel.errors import InvalidOption
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty

# AWS's runner asks a function of asyncio that Python 3.14 is about to drop.
pytestmark = pytest.mark.filterwarnings(
    "ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning"
)

DAY = semel.DAY
EVENT = {"order": "o-1", "cents": 4200}


def by_order(event: dict[str, Any]) -> str:
    return f"order:{event['order']}"


class Runner(DurableFunctionTestRunner):
    """AWS's runner, whose waits of days are over at once, and which closes its event loop."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        super().__init__(handler=handler, poll_interval=0.02)
        executor: Any = self._executor
        for name in ("on_wait_timer_scheduled", "on_step_retry_scheduled"):
            setattr(executor, name, self._at_once(getattr(executor, name)))
        invoke = executor._invoke_execution
        executor._invoke_execution = lambda execution_arn, delay=0: invoke(execution_arn)

    def _at_once(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        return lambda execution_arn, operation_id, delay: schedule(execution_arn, operation_id, 0)

    def close(self) -> None:
        super().close()
        self._scheduler._loop.close()


def execute(handler: Callable[..., Any], event: Any = None) -> Any:
    """Another durable execution of a handler, from its start to its end."""
    with Runner(handler) as runner:
        text = json.dumps(EVENT if event is None else event)
        return runner.run(input=text, timeout=60, execution_name=uuid.uuid4().hex)


def given(result: Any) -> Any:
    assert result.status is InvocationStatus.SUCCEEDED, result.error
    return json.loads(result.result)


def refused(result: Any) -> str:
    assert result.status is InvocationStatus.FAILED, result
    return str(result.error.type).rpartition(".")[2]


class Shop:
    """A durable function that charges, waits for a week, and ships; and how often it was called."""

    def __init__(self, s: semel.Semel, **options: Any) -> None:
        self.calls = 0
        self.did: list[str] = []
        self.fails = False
        self.meanwhile: Callable[[], None] = lambda: None

        @durable_execution
        @Lambda(s).durable(by_order, **{"lease": 30 * DAY, **options})
        def handler(event: dict[str, Any], context: DurableContext) -> dict[str, Any]:
            self.calls += 1
            context.step(lambda _: self._do("charge"), name="charge")
            context.wait(Duration.from_days(7))
            self.meanwhile()
            if self.fails:
                raise ValueError("out of stock")
            context.step(lambda _: self._do("ship"), name="ship")
            return {"shipped": event["order"], "nothing": None}

        self.handler = handler

    def _do(self, what: str) -> None:
        self.did.append(what)


def test_a_replay_of_the_same_execution_is_the_same_holder(s: semel.Semel) -> None:
    shop = Shop(s)
    assert given(execute(shop.handler)) == {"shipped": "o-1", "nothing": None}
    assert shop.calls >= 2, "the wait had it called again"
    assert shop.did == ["charge", "ship"]
    record = s.ledger.get("order:o-1")
    assert record is not None
    assert (record.status, record.attempt) == ("COMPLETED", 1)


def test_another_execution_for_the_same_message_gets_the_stored_result(s: semel.Semel) -> None:
    shop = Shop(s)
    results = [given(execute(shop.handler)) for _ in range(3)]
    assert results == [{"shipped": "o-1", "nothing": None}] * 3
    assert shop.did == ["charge", "ship"]


def test_another_execution_during_a_wait_of_days_is_told_that_it_is_in_progress(s: semel.Semel) -> None:
    shop, other = Shop(s), Shop(s)
    seen: list[str] = []
    shop.meanwhile = lambda: seen.append(refused(execute(other.handler)))
    assert given(execute(shop.handler))["shipped"] == "o-1"
    assert set(seen) == {"InProgress"}
    assert (shop.did, other.did) == (["charge", "ship"], [])


def test_an_execution_that_fails_leaves_the_message_to_the_next(s: semel.Semel) -> None:
    shop = Shop(s)
    shop.fails = True
    assert refused(execute(shop.handler)) == "ValueError"
    shop.fails = False
    assert given(execute(shop.handler))["shipped"] == "o-1"
    record = s.ledger.get("order:o-1")
    assert record is not None
    assert record.attempt == 2


def test_a_failure_that_is_final_is_told_to_every_later_execution(s: semel.Semel) -> None:
    shop = Shop(s, on_error={ValueError: "keep"})
    shop.fails = True
    assert refused(execute(shop.handler)) == "ValueError"
    assert refused(execute(shop.handler)) == "FailedBefore"
    assert shop.did == ["charge"]


def test_a_failure_in_doubt_waits_for_somebody_under_hold(s: semel.Semel) -> None:
    shop = Shop(s, on_error={ValueError: "doubt"}, on_lapsed="hold")
    shop.fails = True
    assert refused(execute(shop.handler)) == "ValueError"
    assert refused(execute(shop.handler)) == "OutcomeUnknown"
    assert shop.did == ["charge"]


def test_another_payload_under_the_same_key_is_refused(s: semel.Semel) -> None:
    shop = Shop(s, fingerprint=lambda event: event["cents"])
    execute(shop.handler)
    assert refused(execute(shop.handler, {**EVENT, "cents": 1})) == "PayloadChanged"


def test_an_execution_that_was_stopped_is_followed_by_another_when_its_lease_is_over() -> None:
    """Nothing renews a lease while an execution waits, and so the lease is its time-out."""
    clock = FakeClock()
    with semel.connect("memory:", clock=clock) as s:
        shop = Shop(s)
        assert isinstance(s.ledger.claim("order:o-1", lease=30 * DAY, ttl=60 * DAY), semel.Claimed)
        clock.advance(30 * DAY - 1)
        assert refused(execute(shop.handler)) == "InProgress"
        clock.advance(2)
        assert given(execute(shop.handler))["shipped"] == "o-1"
        record = s.ledger.get("order:o-1")
        assert record is not None
        assert record.attempt == 2


def test_an_execution_whose_claim_was_taken_over_is_refused() -> None:
    clock = FakeClock()
    with semel.connect("memory:", clock=clock) as s:
        shop = Shop(s)

        def taken_over() -> None:
            clock.advance(31 * DAY)
            assert isinstance(s.ledger.claim("order:o-1", lease=DAY, ttl=60 * DAY), semel.Claimed)

        shop.meanwhile = taken_over
        assert refused(execute(shop.handler)) == "ClaimLost"


@pytest.mark.parametrize("step", ["_claim", "_complete", "_give_back"])
def test_a_step_that_was_cut_off_after_its_write_finds_what_it_wrote(
    s: semel.Semel, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The ledger has it, and Lambda's log has not: the step runs again, and is the same holder."""
    method = getattr(DurableWork, step)
    cut: list[str] = []

    def cut_off(*args: Any) -> Any:
        done = method(*args)
        if not cut:
            cut.append(step)
            raise ConnectionError("the process died here")
        return done

    monkeypatch.setattr(DurableWork, step, cut_off)
    shop = Shop(s)
    shop.fails = step == "_give_back"
    first = execute(shop.handler)
    assert (refused(first) == "ValueError") if shop.fails else given(first)
    shop.fails = False
    assert given(execute(shop.handler))["shipped"] == "o-1"
    assert shop.did == (["charge", "charge", "ship"] if step == "_give_back" else ["charge", "ship"])
    assert cut == [step]


def test_an_invocation_that_lambda_repeats_keeps_its_claim(s: semel.Semel) -> None:
    """Its error is the invocation's, and not the work's: nothing is given back meanwhile."""
    shop, other = Shop(s), Shop(s)
    broken: list[str] = []

    def meanwhile() -> None:
        if not broken:
            broken.append("once")
            raise InvocationError("the connection to Lambda was lost")
        broken.append(refused(execute(other.handler)))

    shop.meanwhile = meanwhile
    assert given(execute(shop.handler))["shipped"] == "o-1"
    assert broken[:2] == ["once", "InProgress"]
    assert shop.did == ["charge", "ship"]


def test_a_store_that_is_down_for_a_while_has_the_step_tried_again() -> None:
    store = Faulty(MemoryStore())
    shop = Shop(semel.Semel(store))
    store.refuse(times=5)
    assert given(execute(shop.handler))["shipped"] == "o-1"
    assert shop.did == ["charge", "ship"]


def message(number: str, order: str) -> dict[str, Any]:
    return {
        "messageId": number,
        "body": json.dumps({"order": order}),
        "attributes": {"ApproximateReceiveCount": "1"},
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:eu-north-1:123456789012:orders",
    }


def test_each_message_of_a_batch_is_done_once_under_the_key_that_sqs_gives_it(s: semel.Semel) -> None:
    on, shipped = Lambda(s), []

    @on.durable(lease=900)
    def ship(record: dict[str, Any], context: DurableContext) -> str:
        order = json.loads(record["body"])["order"]
        context.wait(Duration.from_minutes(5))
        context.step(lambda _: shipped.append(order), name="ship")
        return f"shipped {order}"

    @durable_execution
    def handler(event: dict[str, Any], context: DurableContext) -> list[str]:
        return [ship(record, context) for record in event["Records"]]

    batch = {"Records": [message("m-1", "o-1"), message("m-2", "o-2"), message("m-1", "o-1")]}
    assert given(execute(handler, batch)) == ["shipped o-1", "shipped o-2", "shipped o-1"]
    more = {"Records": [message("m-2", "o-2"), message("m-3", "o-3")]}
    assert given(execute(handler, more)) == ["shipped o-2", "shipped o-3"]
    assert shipped == ["o-1", "o-2", "o-3"]


def test_two_branches_of_one_execution_that_meet_in_a_key_are_two_holders(s: semel.Semel) -> None:
    on, shipped = Lambda(s), []

    @on.durable(by_order, lease=900)
    def ship(event: dict[str, Any], context: DurableContext) -> str:
        context.wait(Duration.from_minutes(5))
        context.step(lambda _: shipped.append(event["order"]), name="ship")
        return "shipped"

    @durable_execution
    def handler(event: dict[str, Any], context: DurableContext) -> list[str]:
        def branch(child: DurableContext) -> str:
            try:
                return ship(event, child)
            except semel.InProgress:
                return "busy"

        return sorted(context.parallel([branch, branch]).get_results())

    assert given(execute(handler)) == ["busy", "shipped"]
    assert shipped == ["o-1"]


def test_an_event_that_aws_gave_no_name_needs_a_key(s: semel.Semel) -> None:
    @durable_execution
    @Lambda(s).durable(lease=900)
    def handler(event: Any, context: DurableContext) -> None: ...

    result = execute(handler)
    assert result.status is InvocationStatus.FAILED
    assert "pass key=" in result.error.message


def test_options_that_cannot_be_kept_are_refused(s: semel.Semel) -> None:
    with pytest.raises(InvalidOption, match="nobody is there to ask"):
        Lambda(s).durable(by_order, lease=900, on_lapsed="resolve")(lambda event, context: None)
    with pytest.raises(InvalidOption, match="ttl"):
        Lambda(s).durable(by_order, lease=30 * DAY, ttl=DAY)(lambda event, context: None)
