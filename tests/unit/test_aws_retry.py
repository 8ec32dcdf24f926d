"""Retries: of what was not applied or may be repeated; spread, bounded, and then a named error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.aws.errors import ErrorKind, NoResponse, RetryPolicy, RetryState, ServiceError, kind
from semel.errors import StoreError, StoreOutcomeUnknown, StoreThrottled, StoreUnavailable
from semel.testing import FakeClock

UNREACHED = NoResponse("refused", ErrorKind.UNREACHED, ConnectionRefusedError("refused"))
TORN = NoResponse("it broke", ErrorKind.FAILED, ConnectionResetError("it broke"))
BUSY = ServiceError("ThrottlingException", "slow down", 400, {})
PENDING = ServiceError("TransactionInProgressException", "wait", 400, {})
FAILED = ServiceError("InternalServerError", "sorry", 500, {})
SKEWED = ServiceError("RequestTimeTooSkewed", "the clock", 403, {})
EXPIRED = ServiceError("ExpiredTokenException", "the token", 400, {})
REFUSED = ServiceError("ValidationException", "nonsense", 400, {})
EVERYTHING = [UNREACHED, TORN, BUSY, PENDING, FAILED, SKEWED, EXPIRED, REFUSED]


class Run:
    """Meets with trouble until it may not try again."""

    def __init__(self, *, write, policy=None):
        self.clock = FakeClock()
        self.tries = RetryState(policy or RetryPolicy(), self.clock, "dynamodb at h:1", write=write)
        self.pauses: list[float] = []

    def meets(self, trouble):
        while True:
            pause = self.tries.after(trouble)
            self.pauses.append(pause)
            self.clock.advance(pause)


@pytest.mark.parametrize(
    ("trouble", "write", "error", "tries"),
    [
        (UNREACHED, True, StoreUnavailable, 3),
        (UNREACHED, False, StoreUnavailable, 3),
        (TORN, True, StoreOutcomeUnknown, 1),
        (TORN, False, StoreUnavailable, 8),
        (FAILED, True, StoreOutcomeUnknown, 1),
        (FAILED, False, StoreUnavailable, 8),
        (BUSY, True, StoreThrottled, 8),
        (BUSY, False, StoreThrottled, 8),
        (SKEWED, True, ServiceError, 3),
        (EXPIRED, True, ServiceError, 2),
        (REFUSED, True, ServiceError, 1),
        (REFUSED, False, ServiceError, 1),
    ],
)
def test_how_often_each_trouble_is_tried_and_what_the_caller_is_told(trouble, write, error, tries):
    run = Run(write=write)
    with pytest.raises(error) as raised:
        run.meets(trouble)
    assert len(run.pauses) == tries - 1
    if error is ServiceError:
        assert raised.value is trouble
    else:
        assert raised.value.__cause__ is (trouble.error if isinstance(trouble, NoResponse) else trouble)


@pytest.mark.parametrize("write", [True, False])
@given(st.lists(st.sampled_from(EVERYTHING), min_size=40, max_size=40))
def test_it_always_ends_in_time_and_with_an_error_of_ours(write, troubles):
    """And a write is never tried again once it may have been applied."""
    run = Run(write=write)
    met: list[ErrorKind] = []
    with pytest.raises(StoreError):
        for trouble in troubles:
            met.append(kind(trouble))
            run.clock.advance(run.tries.after(trouble))
    assert run.clock.monotonic() <= RetryPolicy().patience
    assert ErrorKind.REFUSED not in met[:-1]
    if write:
        assert ErrorKind.FAILED not in met[:-1]


def test_pauses_double_and_are_spread_over_all_that_is_before():
    first = [Run(write=True).tries.after(BUSY) for _ in range(300)]
    assert 0 < min(first) < 0.005
    assert 0.02 < max(first) <= 0.025
    later = Run(write=True, policy=RetryPolicy(tries=30, patience=100))
    with pytest.raises(StoreThrottled):
        later.meets(BUSY)
    for number, pause in enumerate(later.pauses):
        assert pause <= min(1.0, 0.025 * 2**number)
    assert max(later.pauses) > 0.5


def test_a_transaction_under_way_is_asked_for_until_its_coordinator_takes_it_up_again():
    """DynamoDB finishes a stalled one when it is asked for again after five seconds."""
    for _ in range(50):
        run = Run(write=True)
        with pytest.raises(StoreOutcomeUnknown):
            run.meets(PENDING)
        assert run.clock.monotonic() > 5


def test_time_outs_use_up_patience_too():
    run = Run(write=False)
    run.tries.after(TORN)
    run.clock.advance(10.1)
    with pytest.raises(StoreUnavailable, match="2 tries"):
        run.tries.after(TORN)


def test_what_was_never_reached_is_named_with_what_to_check():
    with pytest.raises(
        StoreUnavailable, match=r"dynamodb at h:1 cannot be reached: refused\. Is that the right"
    ):
        Run(write=True).meets(UNREACHED)
