"""One call from its request to its answer, as steps: the shells carry them out, and decide nothing."""

from collections.abc import Generator
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from semel.aws.credentials import Chain, Credentials, Keyring, Source
from semel.aws.errors import Kind, Lost, ServiceError, kind
from semel.aws.http1 import Answer
from semel.aws.mocked import genuine
from semel.aws.places import Endpoint
from semel.aws.retry import Policy, Tries
from semel.aws.servertime import ServerTime
from semel.clock import Clock

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pause(msgspec.Struct, frozen=True):
    """Wait so long, then go on."""

    seconds: float


class Load(msgspec.Struct, frozen=True):
    """Get credentials, which may take a while, and not those that were refused."""

    instead_of: Credentials | None = None


# Bytes are a request to be sent. It is answered by an Answer or by what became of it.
Step: TypeAlias = bytes | Pause | Load
Steps: TypeAlias = Generator[Step, Any, T]


class Errand(Protocol[T_co]):
    """What is asked, and how its answer is read."""

    write: bool

    def prepare(self) -> None:
        """Make the request; once more where the clock was wrong, as there may be times in it."""

    def signed(self, credentials: Credentials, moment: float) -> bytes:
        """The request as it is sent."""

    def read(self, answer: Answer) -> T_co | ServiceError | Lost:
        """What the answer says."""


class Desk(msgspec.Struct, frozen=True):
    """What the errands to one service have in common."""

    place: str
    clock: Clock
    time: ServerTime
    keyring: Keyring
    policy: Policy


def desk_for(
    service: str, endpoint: Endpoint, credentials: Credentials | None, clock: Clock, policy: Policy
) -> Desk:
    """The desk of a service, with the credentials given or else the environment's or botocore's."""
    time = ServerTime(clock)
    source: Source = Chain() if credentials is None else lambda _: credentials
    if endpoint.amazon:
        source = genuine(source)
    place = f"{service} at {endpoint.host}:{endpoint.port}"
    return Desk(place, clock, time, Keyring(source, time), policy)


def exchange(desk: Desk, errand: Errand[T]) -> Steps[T]:
    """Ask until there is an answer, or until it is for the caller to decide."""
    credentials = desk.keyring.current()
    if credentials is None:
        credentials = yield Load()
    errand.prepare()
    tries: Tries | None = None
    while True:
        reply = yield errand.signed(credentials, desk.time.signing())
        if type(reply) is Answer:
            reply = _read(desk, errand, reply)
        if not isinstance(reply, ServiceError | Lost):
            return reply  # type: ignore[no-any-return]
        what = kind(reply)
        if isinstance(reply, ServiceError) and what is Kind.REFUSED:
            raise reply
        tries = tries or Tries(desk.policy, desk.clock, desk.place, write=errand.write)
        if wait := tries.after(reply):
            yield Pause(wait)
        if what is Kind.CLOCK:
            errand.prepare()
        elif what is Kind.EXPIRED:
            credentials = yield Load(instead_of=credentials)


def _read(desk: Desk, errand: Errand[T], answer: Answer) -> T | ServiceError | Lost:
    """What the answer says, and what time it was for the service, if it is the service's own."""
    reply = errand.read(answer)
    foreign = isinstance(reply, Lost) or (isinstance(reply, ServiceError) and not reply.body)
    if not foreign:
        desk.time.observe(answer.headers.get("date"), answer.sent, answer.received)
    return reply
