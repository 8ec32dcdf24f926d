"""moto in place of AWS: it mocks botocore and nothing else, so while it does requests go through botocore.

A service opened before a mock is asked through botocore while the mock lasts, and by its own wire before and
after. One opened inside a mock belongs to mocks: between two of them it is refused, so that what a test made
up never reaches AWS.
"""

import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from semel.aws.credentials import Credentials, CredentialSource
from semel.aws.endpoint import ServiceEndpoint
from semel.aws.time import ServiceTime
from semel.core.clock import Clock
from semel.core.runtime import require
from semel.errors import StoreClosed, StoreUnavailable

if TYPE_CHECKING:
    from semel.aws.boto import BotoWire

MOTO = "moto.core.models"
# Those that mock by a server or a proxy of moto's own, and not inside botocore.
ELSEWHERE = ("ServerModeMockAWS", "ProxyModeMockAWS")
# What moto puts into the environment for as long as a mock lasts.
INVENTED = "FOOBARKEY"

ENDED = "it was opened inside moto's mock_aws, which has ended, and nothing of it goes to AWS: open another"

# moto's tables do not hold when threads write at once, and DynamoDB's do.
_turns = threading.Lock()


def mocked() -> bool:
    """Whether moto stands for AWS in this process now."""
    moto = sys.modules.get(MOTO)
    if moto is None:
        return False
    if getattr(getattr(moto, "botocore_stubber", None), "enabled", False):
        return True
    return any(getattr(getattr(moto, mode, None), "_nested_count", 0) for mode in ELSEWHERE)


def genuine(source: CredentialSource) -> CredentialSource:
    """The credentials of a source, but never those that moto made up."""

    def found(instead_of: Credentials | None) -> Credentials:
        held = source(instead_of)
        if held.access_key == INVENTED:
            raise StoreUnavailable(
                "the environment has the credentials of moto's mock_aws, and no mock is active: "
                "begin one, or set credentials that AWS knows"
            )
        return held

    return found


class Mock:
    """The way to one service while moto stands for it."""

    def __init__(
        self,
        service: str,
        region: str,
        endpoint: ServiceEndpoint,
        *,
        clock: Clock,
        time: ServiceTime,
        credentials: Credentials | None = None,
    ) -> None:
        self._service = service
        self._region = region
        self._credentials = credentials
        self._clock = clock
        self._time = time
        # A server of one's own is asked where it is, as botocore does inside a mock.
        self._possible = endpoint.amazon
        self._inside = self._possible and mocked()
        self._opening = threading.Lock()
        self._wire: BotoWire | None = None
        self._closed = False

    def wire(self) -> "BotoWire | None":
        """botocore where a mock is active now; None where the service itself is to be asked."""
        if MOTO not in sys.modules or not self._possible:
            return None
        if mocked():
            return self._opened()
        if self._inside:
            raise StoreClosed(ENDED)
        return None

    def _opened(self) -> "BotoWire":
        with self._opening:
            if self._closed:
                raise StoreClosed("it was closed: open another")
            self._wire = self._wire or self._open()
            return self._wire

    def _open(self) -> "BotoWire":
        from semel.aws.boto import BotoWire

        turns: AbstractContextManager[Any] = _turns if self._service == "dynamodb" else nullcontext()
        return BotoWire(self._client(), clock=self._clock, time=self._time, turns=turns)

    def _client(self) -> Any:
        config = require("botocore.config", "boto").Config(retries={"total_max_attempts": 1})
        known: dict[str, str | None] = {}
        if self._credentials is not None:
            own = self._credentials
            known["aws_access_key_id"], known["aws_secret_access_key"] = own.access_key, own.secret_key
            known["aws_session_token"] = own.token
        # moto's server stands behind boto3.client, and nowhere else.
        boto3 = require("boto3", "boto")
        return boto3.client(self._service, region_name=self._region, config=config, **known)

    def close(self) -> None:
        """Ask nothing any more."""
        self._closed = True
