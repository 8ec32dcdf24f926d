"""A caller's own boto3 client gives the same answers and the same errors as our wire."""

import asyncio
import socket
from base64 import b64encode
from datetime import UTC, datetime
from email.utils import formatdate
from unittest.mock import Mock

import boto3
import botocore.session
import pytest
from botocore import exceptions
from botocore.config import Config
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from semel.aws.boto import BotoWire, from_boto, method, to_boto
from semel.aws.errors import ServiceError
from semel.errors import InvalidOption, StoreClosed, StoreOutcomeUnknown, StoreThrottled, StoreUnavailable
from semel.testing import FakeClock

KEYS = {"region_name": "eu-north-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
PUT = {"TableName": "ttt", "Item": {"id": {"S": "a"}, "b": {"B": "aGk="}}}


@pytest.fixture
def client():
    made = boto3.client("dynamodb", **KEYS)
    yield made
    made.close()


def failing(error):
    """A mock that raises."""
    mock = Mock()
    mock.put_item.side_effect = error
    return mock


def refused(code, status=400, **more):
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": {}}
    return exceptions.ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": metadata, **more}, "PutItem"
    )


# What goes in and out


def test_a_request_is_made_by_the_clients_own_method_with_bytes_as_it_wants_them():
    mock = Mock()
    mock.put_item.return_value = {"Attributes": {"b": {"B": b"hi"}}, "ResponseMetadata": {}}
    assert BotoWire(mock).call("PutItem", PUT, write=True) == {"Attributes": {"b": {"B": "aGk="}}}
    mock.put_item.assert_called_once_with(TableName="ttt", Item={"id": {"S": "a"}, "b": {"B": b"hi"}})


def test_botocore_accepts_what_is_given_to_it(client):
    with Stubber(client) as stub:
        expected = {"TableName": "ttt", "Item": {"id": {"S": "a"}, "b": {"B": b"hi"}}}
        stub.add_response("put_item", {"Attributes": {"b": {"BS": [b"hi"]}}}, expected)
        assert BotoWire(client).call("PutItem", PUT, write=True) == {"Attributes": {"b": {"BS": ["aGk="]}}}


VALUES = st.recursive(
    st.builds(lambda text: {"S": text}, st.text())
    | st.builds(lambda data: {"B": b64encode(data).decode()}, st.binary())
    | st.builds(
        lambda data: {"BS": [b64encode(one).decode() for one in data]}, st.lists(st.binary(), min_size=1)
    )
    | st.just({"NULL": True}),
    lambda values: (
        st.builds(lambda items: {"L": items}, st.lists(values))
        # Attributes may well be called as types are.
        | st.builds(
            lambda items: {"M": items}, st.dictionaries(st.sampled_from(["B", "BS", "M", "x"]), values)
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["B", "BS", "S", "id"]), VALUES))
def test_values_come_back_as_they_went(item):
    request = {"TableName": "B", "Item": item, "ExpressionAttributeNames": {"#b": "B"}}
    there = to_boto(request)
    assert from_boto(there) == request
    assert there["TableName"] == "B"


def test_moments_come_as_they_are_on_the_wire():
    assert from_boto({"CreationDateTime": datetime(2023, 11, 14, tzinfo=UTC)}) == {
        "CreationDateTime": 1699920000.0
    }


@pytest.mark.parametrize("operation", ["PutItem", "TransactWriteItems", "UpdateTimeToLive", "DescribeTable"])
def test_every_operation_has_the_name_that_boto3_gives_it(client, operation):
    assert client.meta.method_to_api_mapping[method(operation)] == operation


def test_a_task_asks_through_a_thread():
    mock = Mock()
    mock.get_item.return_value = {"Item": {}}

    async def ask():
        wire = BotoWire(mock)
        answer = await wire.acall("GetItem", lambda: {"TableName": "ttt"}, write=False)
        await wire.leave()
        return answer

    assert asyncio.run(ask()) == {"Item": {}}


# What may be given


def test_a_session_makes_its_own_client():
    botocore_session = botocore.session.Session()
    botocore_session.set_config_variable("region", "eu-north-1")
    for session in (boto3.Session(**KEYS), botocore_session):
        wire = BotoWire(session)
        assert wire._client.meta.service_model.service_name == "dynamodb"
        wire._client.close()


def test_a_resource_is_refused_since_its_client_takes_other_values():
    resource = boto3.resource("dynamodb", **KEYS)
    for given_ in (resource, resource.Table("ttt")):
        with pytest.raises(InvalidOption, match=r"boto3\.client\('dynamodb'\)"):
            BotoWire(given_)
    resource.meta.client.close()


def test_after_close_the_client_is_left_alone():
    mock = Mock()
    wire = BotoWire(mock)
    wire.close()
    with pytest.raises(StoreClosed):
        wire.call("PutItem", PUT, write=True)
    assert mock.mock_calls == []


# What is raised


def test_a_refusal_comes_with_its_item_and_its_reasons():
    item = {"id": {"S": "a"}, "b": {"B": b"hi"}}
    reasons = [{"Code": "ConditionalCheckFailed", "Message": "m", "Item": item}]
    for error in (
        refused("ConditionalCheckFailedException", Item=item),
        refused("TransactionCanceledException", CancellationReasons=reasons),
    ):
        with pytest.raises(ServiceError) as raised:
            BotoWire(failing(error)).call("PutItem", PUT, write=True)
        found = raised.value.item or raised.value.reasons[0].item
        assert found == {"id": {"S": "a"}, "b": {"B": "aGk="}}
        assert (raised.value.message, raised.value.status) == ("m", 400)


@pytest.mark.parametrize(
    ("error", "write", "expected"),
    [
        (refused("ThrottlingException"), True, StoreThrottled),
        (refused("InternalServerError", 500), True, StoreOutcomeUnknown),
        (refused("InternalServerError", 500), False, StoreUnavailable),
        (exceptions.EndpointConnectionError(endpoint_url="http://h"), True, StoreUnavailable),
        (exceptions.ConnectTimeoutError(endpoint_url="http://h"), True, StoreUnavailable),
        (exceptions.NoCredentialsError(), True, StoreUnavailable),
        (exceptions.ReadTimeoutError(endpoint_url="http://h"), True, StoreOutcomeUnknown),
        (exceptions.ReadTimeoutError(endpoint_url="http://h"), False, StoreUnavailable),
        (exceptions.ConnectionClosedError(endpoint_url="http://h"), True, StoreOutcomeUnknown),
        (exceptions.SSLError(endpoint_url="http://h", error="x"), True, StoreOutcomeUnknown),
    ],
)
def test_botocores_errors_are_told_in_our_words(error, write, expected):
    clock = FakeClock()
    with pytest.raises(expected) as raised:
        BotoWire(failing(error), clock=clock).call("PutItem", PUT, write=write)
    assert raised.value.__cause__ is not None


def again(code, status=400):
    error = refused(code, status)
    error.response["ResponseMetadata"]["RetryAttempts"] = 2
    return error


def test_what_botocore_sent_more_than_once_is_never_called_certain():
    """The last sending was throttled, but the one before may have been applied."""
    with pytest.raises(StoreOutcomeUnknown, match="sent it before"):
        BotoWire(failing(again("ThrottlingException"))).call("PutItem", PUT, write=True)
    with pytest.raises(StoreThrottled):
        BotoWire(failing(again("ThrottlingException")), clock=FakeClock()).call("PutItem", PUT, write=False)
    with pytest.raises(ServiceError, match="ConditionalCheckFailedException"):
        BotoWire(failing(again("ConditionalCheckFailedException"))).call("PutItem", PUT, write=True)


@pytest.mark.parametrize(
    ("retries", "expected"),
    [({"mode": "standard"}, StoreOutcomeUnknown), ({"total_max_attempts": 1}, StoreUnavailable)],
)
def test_a_client_that_retries_by_itself_leaves_a_failed_connection_in_doubt(retries, expected):
    config = Config(retries=retries, connect_timeout=0.2)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        client = boto3.client("dynamodb", endpoint_url=url, config=config, **KEYS)
        with pytest.raises(expected):
            BotoWire(client, clock=FakeClock()).call("PutItem", PUT, write=True)
        client.close()


def test_what_is_no_error_of_botocores_comes_through():
    with pytest.raises(ZeroDivisionError):
        BotoWire(failing(ZeroDivisionError())).call("PutItem", PUT, write=True)


def test_a_conflict_with_another_transaction_is_tried_again():
    mock = failing([refused("TransactionConflictException"), {"ok": True}])
    assert BotoWire(mock, clock=FakeClock()).call("PutItem", PUT, write=True) == {"ok": True}


# The time


@pytest.mark.parametrize("fails", [False, True])
def test_answers_and_errors_tell_the_time(fails):
    date = formatdate(1_000_000_000, usegmt=True)
    metadata = {"HTTPStatusCode": 400, "HTTPHeaders": {"date": date}}
    error = exceptions.ClientError(
        {"Error": {"Code": "ValidationException"}, "ResponseMetadata": metadata}, "x"
    )
    wire = BotoWire(failing([error if fails else {"ResponseMetadata": metadata}]))
    try:
        wire.call("PutItem", PUT, write=True)
    except ServiceError:
        assert fails
    assert abs(wire.time.signing() - 1_000_000_000) < 2
