"""What a service answers instead of a result, and what follows from it."""

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.aws.errors import (
    KINDS,
    CancellationReason,
    ErrorKind,
    NoResponse,
    ServiceError,
    kind,
    object_error,
    service_error,
)
from semel.errors import StoreError


def told(body, status=400):
    return service_error(status, msgspec.json.encode(body))


@pytest.mark.parametrize(
    "code",
    [
        "ConditionalCheckFailedException",
        "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
        "com.amazon.coral.service#ConditionalCheckFailedException",
        "ConditionalCheckFailedException:http://internal.amazon.com/coral/com.amazonaws.dynamodb/",
    ],
)
@pytest.mark.parametrize("field", ["message", "Message"])
def test_an_error_is_found_with_or_without_its_namespace(code, field):
    error = told({"__type": code, field: "The conditional request failed"})
    assert (error.code, error.message, error.status) == (
        "ConditionalCheckFailedException",
        "The conditional request failed",
        400,
    )
    assert isinstance(error, StoreError)
    assert str(error) == "ConditionalCheckFailedException: The conditional request failed"


def test_the_item_that_was_in_the_way_comes_with_the_error():
    item = {"id": {"S": "a"}}
    assert told({"__type": "x#ConditionalCheckFailedException", "Item": item}).item == item
    assert told({"__type": "x#ConditionalCheckFailedException"}).item is None


def test_a_cancelled_transaction_says_why_for_each_of_its_actions():
    item = {"id": {"S": "a"}}
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Message": "no", "Item": item}, {}]
    error = told({"__type": "x#TransactionCanceledException", "CancellationReasons": reasons})
    assert error.reasons == [
        CancellationReason("None"),
        CancellationReason("ConditionalCheckFailed", "no", item),
        CancellationReason("None"),
    ]
    assert told({"__type": "x#ValidationException"}).reasons == []


@pytest.mark.parametrize(
    ("status", "data", "code", "message"),
    [
        (503, b"<html>\n<h1>Service   Unavailable</h1>", "HTTP 503", "<html> <h1>Service Unavailable</h1>"),
        (403, b"", "HTTP 403", ""),
        (400, b"[1]", "HTTP 400", "[1]"),
        (400, b"{}", "HTTP 400", ""),
        (400, b'{"__type": 7, "message": null}', "7", ""),
        (502, b"\xff" * 1000, "HTTP 502", "\ufffd" * 200),
    ],
)
def test_what_the_service_has_not_written_is_shown_as_it_is(status, data, code, message):
    error = service_error(status, data)
    assert (error.code, error.message, error.status) == (code, message, status)


@given(st.integers(300, 599), st.binary(max_size=100) | st.text(max_size=50).map(str.encode))
def test_whatever_comes_there_is_an_error_to_show(status, data):
    for read in (service_error, object_error):
        assert str(read(status, data))
        assert kind(read(status, data)) in (ErrorKind.REFUSED, ErrorKind.FAILED, ErrorKind.BUSY)


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("ProvisionedThroughputExceededException", 400, ErrorKind.BUSY),
        ("ThrottlingException", 400, ErrorKind.BUSY),
        ("RequestLimitExceeded", 400, ErrorKind.BUSY),
        ("LimitExceededException", 400, ErrorKind.BUSY),
        ("TransactionConflictException", 400, ErrorKind.BUSY),
        ("ReplicatedWriteConflictException", 409, ErrorKind.BUSY),
        ("SlowDown", 503, ErrorKind.BUSY),
        ("HTTP 429", 429, ErrorKind.BUSY),
        ("TransactionInProgressException", 400, ErrorKind.PENDING),
        ("InternalServerError", 500, ErrorKind.FAILED),
        ("ServiceUnavailable", 503, ErrorKind.FAILED),
        ("HTTP 502", 502, ErrorKind.FAILED),
        ("HTTP 504", 504, ErrorKind.FAILED),
        ("RequestTimeTooSkewed", 403, ErrorKind.CLOCK),
        ("ExpiredTokenException", 400, ErrorKind.EXPIRED),
        ("UnrecognizedClientException", 400, ErrorKind.EXPIRED),
        ("ConditionalCheckFailedException", 400, ErrorKind.REFUSED),
        ("ResourceNotFoundException", 400, ErrorKind.REFUSED),
        ("ValidationException", 400, ErrorKind.REFUSED),
        ("AccessDeniedException", 400, ErrorKind.REFUSED),
        ("IdempotentParameterMismatchException", 400, ErrorKind.REFUSED),
        ("HTTP 301", 301, ErrorKind.REFUSED),
    ],
)
def test_what_follows_from_an_error(code, status, expected):
    assert kind(ServiceError(code, "", status, {})) is expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Signature expired: 20230101T000000Z is now earlier than 20230101T010000Z", ErrorKind.CLOCK),
        ("Signature not yet current: 20230101T010000Z is still later than", ErrorKind.CLOCK),
        ("The request signature we calculated does not match the signature you provided.", ErrorKind.REFUSED),
    ],
)
@pytest.mark.parametrize("code", ["InvalidSignatureException", "SignatureDoesNotMatch"])
def test_a_signature_is_refused_for_its_time_or_for_its_key(code, message, expected):
    assert kind(ServiceError(code, message, 400, {})) is expected


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        (["TransactionConflict", "None"], ErrorKind.BUSY),
        (["ThrottlingError"], ErrorKind.BUSY),
        (["ProvisionedThroughputExceeded", "TransactionConflict"], ErrorKind.BUSY),
        (["ConditionalCheckFailed", "TransactionConflict"], ErrorKind.REFUSED),
        (["ValidationError"], ErrorKind.REFUSED),
        (["ItemCollectionSizeLimitExceeded"], ErrorKind.REFUSED),
        (["SomethingNew", "None"], ErrorKind.REFUSED),
        ([], ErrorKind.REFUSED),
    ],
)
def test_a_transaction_is_tried_again_only_if_nothing_but_others_stood_in_its_way(codes, expected):
    reasons = [{"Code": code} for code in codes]
    assert (
        kind(ServiceError("TransactionCanceledException", "", 400, {"CancellationReasons": reasons}))
        is expected
    )


def test_a_lost_answer_is_what_it_was_lost_as():
    assert kind(NoResponse("", ErrorKind.UNREACHED)) is ErrorKind.UNREACHED


def test_no_code_is_listed_for_what_its_status_says_already():
    """Refusal is for everything that is not listed."""
    assert ErrorKind.REFUSED not in KINDS.values()


def test_an_error_of_s3_is_read_from_its_xml():
    data = b"<?xml?>\n<Error><Code>NoSuchKey</Code><Message>It is gone.</Message><Key>k</Key></Error>"
    error = object_error(404, data)
    assert (error.code, error.message, error.status) == ("NoSuchKey", "It is gone.", 404)
    assert object_error(500, b"oops").code == "HTTP 500"


def test_an_error_survives_pickling():
    error = pickle.loads(pickle.dumps(told({"__type": "x#A", "message": "m", "Item": {"a": {"S": "b"}}})))
    assert (error.code, error.message, error.item) == ("A", "m", {"a": {"S": "b"}})
