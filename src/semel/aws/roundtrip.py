"""One call from its request to its response, as steps that a sync or async driver executes."""

from functools import partial
from typing import Protocol, TypeVar

import msgspec

from semel.aws.credentials import Chain, CredentialCache, Credentials, CredentialSource
from semel.aws.endpoint import ServiceEndpoint
from semel.aws.errors import ErrorKind, NoResponse, ServiceError, kind
from semel.aws.http1 import HttpResponse
from semel.aws.mocked import Mock, genuine
from semel.aws.retry import RetryPolicy, RetryState
from semel.aws.time import ServiceTime
from semel.aws.transport import ThreadCall, WireSteps
from semel.core.clock import Clock
from semel.core.commands import Pause

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AwsRequest(Protocol[T_co]):
    """What is asked, and how its answer is read."""

    write: bool

    def prepare(self) -> None:
        """Make the request; once more where the clock was wrong, as there may be times in it."""

    def signed(self, credentials: Credentials, moment: float) -> bytes:
        """The request as it is sent."""

    def read(self, answer: HttpResponse) -> T_co | ServiceError | NoResponse:
        """What the answer says."""


class AwsSession(msgspec.Struct, frozen=True):
    """What all requests to one service have in common."""

    place: str
    clock: Clock
    time: ServiceTime
    credential_cache: CredentialCache
    policy: RetryPolicy
    mock: Mock


def open_session(
    service: str,
    region: str,
    endpoint: ServiceEndpoint,
    clock: Clock,
    policy: RetryPolicy,
    *,
    credentials: Credentials | None,
) -> AwsSession:
    """The session of a service, with the credentials given or else the environment's or botocore's."""
    time = ServiceTime(clock)
    source: CredentialSource = Chain() if credentials is None else lambda _: credentials
    if endpoint.amazon:
        source = genuine(source)
    place = f"{service} at {endpoint.host}:{endpoint.port}"
    mock = Mock(service, region, endpoint, clock=clock, time=time, credentials=credentials)
    return AwsSession(place, clock, time, CredentialCache(source, time.signing), policy, mock)


def round_trip(session: AwsSession, request: AwsRequest[T]) -> WireSteps[T]:
    """Ask until there is a response, or until it is for the caller to decide."""
    credentials = session.credential_cache.current()
    if credentials is None:
        credentials = yield ThreadCall(session.credential_cache.load)
    request.prepare()
    retries: RetryState | None = None
    while True:
        reply = yield request.signed(credentials, session.time.signing())
        if type(reply) is HttpResponse:
            reply = _read(session, request, reply)
        if not isinstance(reply, ServiceError | NoResponse):
            return reply  # type: ignore[no-any-return]
        what = kind(reply)
        if isinstance(reply, ServiceError) and what is ErrorKind.REFUSED:
            raise reply
        retries = retries or RetryState(session.policy, session.clock, session.place, write=request.write)
        if wait := retries.after(reply):
            yield Pause(wait, session.clock)
        if what is ErrorKind.CLOCK:
            request.prepare()
        elif what is ErrorKind.EXPIRED:
            credentials = yield ThreadCall(partial(session.credential_cache.load, credentials))


def _read(session: AwsSession, request: AwsRequest[T], answer: HttpResponse) -> T | ServiceError | NoResponse:
    """What the answer says, and what time it was for the service, if it is the service's own."""
    reply = request.read(answer)
    foreign = isinstance(reply, NoResponse) or (isinstance(reply, ServiceError) and not reply.body)
    if not foreign:
        session.time.observe(answer.headers.get("date"), answer.sent, answer.received)
    return reply
