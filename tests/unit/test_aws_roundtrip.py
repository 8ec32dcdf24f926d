"""A call's steps, played without any network: what is sent again, signed how, and what comes of it."""

from email.utils import formatdate
from typing import Any

import msgspec
import pytest

from semel.aws.environment import CredentialCache, Credentials
from semel.aws.errors import ErrorKind, NoResponse, ServiceError
from semel.aws.http1 import HttpResponse
from semel.aws.wire import Wire
from semel.core.commands import Pause
from semel.errors import StoreError, StoreOutcomeUnknown, StoreThrottled, StoreUnavailable, UsageError
from tests.clocks import MachineClock

TORN = NoResponse("it broke", ErrorKind.FAILED)
UNREACHED = NoResponse("refused", ErrorKind.UNREACHED)
HOUR = 3600


def answer(body: Any, status=200, *, raw=None, **headers):
    data = msgspec.json.encode(body) if raw is None else raw
    return HttpResponse(status, headers, data, True, 0.0, 0.0)


def refusal(code, message="", status=400, **headers):
    return answer({"__type": f"x#{code}", "message": message}, status, **headers)


class Noted(CredentialCache):
    """Credentials that keep note of how they are loaded."""

    def __init__(self, source, time):
        super().__init__(source, time.signing)
        self.loads: list[Any] = []

    def load(self, instead_of=None):
        self.loads.append(instead_of)
        return super().load(instead_of)


class Play:
    """A call whose replies are given."""

    def __init__(self, source=None, request: Any = None, *, write=True):
        self.clock = MachineClock()
        wire = Wire("dynamodb", region="eu-north-1", endpoint="http://h:1", clock=self.clock)
        self.session = wire
        credential_cache = Noted(source or (lambda _: Credentials("id", "s")), wire.time)
        self.session.credential_cache = credential_cache
        self.steps = lambda: wire.exchange("Op", {"a": 1} if request is None else request, write=write)
        self.sent: list[str] = []
        self.waits: list[float] = []
        self.loads = credential_cache.loads

    def run(self, *replies):
        steps = self.steps()
        left = list(replies)
        reply = None
        try:
            while True:
                step = steps.send(reply)
                if isinstance(step, Pause):
                    self.waits.append(step.seconds)
                    self.clock.advance(step.seconds)
                    reply = None
                elif callable(step):
                    reply = step()
                else:
                    self.sent.append(step.decode())
                    reply = left.pop(0)
        except StopIteration as end:
            assert not left
            return end.value


def test_an_answer_is_what_the_service_said():
    play = Play()
    assert play.run(answer({"Item": {"id": {"S": "ü"}}})) == {"Item": {"id": {"S": "ü"}}}
    (sent,) = play.sent
    head, body = sent.split("\r\n\r\n")
    assert body == '{"a":1}'
    line, *headers = head.split("\r\n")
    assert line == "POST / HTTP/1.1"
    assert {"Host: h:1", "X-Amz-Target: DynamoDB_20120810.Op", "Content-Length: 7"} < set(headers)
    assert play.waits == []


@pytest.mark.parametrize("write", [True, False])
def test_what_was_not_applied_is_sent_again(write):
    play = Play(write=write)
    assert play.run(refusal("ThrottlingException"), UNREACHED, answer({})) == {}
    assert len(play.sent) == 3
    assert len(play.waits) == 2


UNUSABLE = [
    TORN,
    refusal("InternalServerError", status=500),
    answer(None, 502, raw=b"<html>Bad gateway</html>"),
    answer(None, raw=b"<html>Sign in to the hotel</html>"),
    answer(None, raw=b'{"cut": '),
    answer(None, raw=b"[]"),
    answer(None, raw=b""),
    answer(None, raw=b'{"a":"\xff"}'),
    answer({"Item": {}}, **{"x-amz-crc32": "12345"}),
    answer({"Item": {}}, **{"x-amz-crc32": "garbage"}),
]


@pytest.mark.parametrize("unusable", UNUSABLE)
def test_a_write_without_a_usable_answer_is_left_to_the_caller(unusable):
    play = Play(write=True)
    with pytest.raises(
        StoreOutcomeUnknown, match="dynamodb at h:1: the write may or may not have been applied"
    ):
        play.run(unusable)


@pytest.mark.parametrize("unusable", UNUSABLE)
def test_a_read_without_a_usable_answer_is_repeated_and_then_given_up(unusable):
    assert Play(write=False).run(unusable, answer({"a": 1})) == {"a": 1}
    with pytest.raises(StoreUnavailable, match="no usable answer in 8 tries"):
        Play(write=False).run(*[unusable] * 8)


def test_a_checksum_that_fits_is_no_hindrance():
    assert Play().run(answer({}, **{"x-amz-crc32": "2745614147"})) == {}


def test_a_refusal_is_the_callers_at_once():
    play = Play()
    with pytest.raises(ServiceError) as raised:
        play.run(refusal("ConditionalCheckFailedException", "no"))
    assert raised.value.code == "ConditionalCheckFailedException"
    assert play.waits == []


@pytest.mark.situation(18)
def test_throttling_without_end_has_an_end():
    with pytest.raises(StoreThrottled, match="still too busy at try 8: ThrottlingException"):
        Play().run(*[refusal("ThrottlingException")] * 8)


# The clock


def stamp(sent):
    return sent.split("X-Amz-Date: ")[1][:16]


def test_a_clock_an_hour_off_is_corrected_and_the_request_made_anew_and_signed_anew():
    """What is in the body of a write may hold times, too."""
    made = []

    def request():
        made.append(play.session.time.signing())
        return {"now": made[-1]}

    play = Play(request=request)
    truth = play.clock.now() + HOUR
    skewed = refusal(
        "InvalidSignatureException", "Signature expired: ...", date=formatdate(truth, usegmt=True)
    )
    assert play.run(skewed, answer({})) == {}
    assert [round((moment - truth) / HOUR) for moment in made] == [-1, 0]
    assert [stamp(sent)[:11] for sent in play.sent] == ["20231114T22", "20231114T23"]
    assert play.waits == []


def test_a_request_that_is_a_value_is_signed_anew_as_it_is():
    play = Play()
    skewed = refusal("RequestTimeTooSkewed", date=formatdate(play.clock.now() - HOUR, usegmt=True))
    play.run(skewed, answer({}))
    assert play.sent[1].endswith('{"a":1}')


def test_a_clock_that_cannot_be_corrected_is_the_services_own_error():
    with pytest.raises(ServiceError, match="Signature expired"):
        Play().run(*[refusal("InvalidSignatureException", "Signature expired: ...")] * 3)


def test_every_answer_tells_the_time():
    play = Play()
    with pytest.raises(ServiceError):
        play.run(refusal("ValidationException", date=formatdate(play.clock.now() + HOUR, usegmt=True)))
    assert play.session.time.signing() - play.clock.now() > HOUR - 1


@pytest.mark.parametrize("foreign", [*UNUSABLE[2:], answer(None, 403, raw=b"<html>Blocked</html>")])
def test_only_the_services_own_answers_tell_the_time(foreign):
    """A proxy on the way has a clock of its own."""
    play = Play()
    date = formatdate(play.clock.now() + HOUR, usegmt=True)
    with pytest.raises(StoreError):
        play.run(msgspec.structs.replace(foreign, headers=foreign.headers | {"date": date}))
    assert not play.session.time.contradicted
    assert play.session.time.signing() == play.clock.now()


# Credentials


def test_expired_credentials_are_replaced_and_the_request_is_signed_anew():
    issued = iter([Credentials("old", "s", "t"), Credentials("new", "s")])
    play = Play(lambda _: next(issued))
    assert play.run(refusal("ExpiredTokenException"), answer({})) == {}
    assert play.loads == [None, Credentials("old", "s", "t")]
    assert ["Credential=old/" in play.sent[0], "Credential=new/" in play.sent[1]] == [True, True]
    assert ["X-Amz-Security-Token: t\r\n" in sent for sent in play.sent] == [True, False]


def test_credentials_that_nobody_can_replace_are_the_services_own_error():
    play = Play()
    with pytest.raises(ServiceError, match="UnrecognizedClientException: who"):
        play.run(*[refusal("UnrecognizedClientException", "who")] * 2)


def test_credentials_that_are_at_hand_are_not_loaded():
    play = Play()
    play.session.credential_cache.load()
    play.loads.clear()
    play.run(answer({}))
    assert play.loads == []


# Requests


@pytest.mark.parametrize("request_", [{"a": object()}, {"a": "\ud800"}])
def test_what_has_no_json_form_is_refused_before_anything_is_sent(request_):
    play = Play(request=request_)
    with pytest.raises(UsageError, match="cannot be sent as JSON"):
        play.run()
    assert play.sent == []
