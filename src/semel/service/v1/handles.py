"""Handles: what a client is given to hold, and gives back as it is; its inside is nobody's business.

A handle has the key and never the tenant, which is always that of the token. It proves nothing: every write
is conditional on the random token in it, in the store, and how much is given back is what the store has.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, TypeVar

import msgspec

from semel.gate import Allowed
from semel.model import Claimed, OnLapsed
from semel.ops.model import LONGEST_TTL
from semel.service.problems import problem_error
from semel.service.v1.models import LONGEST_LEASE
from semel.state.counters import Charged

T = TypeVar("T", bound=msgspec.Struct)


class ClaimHandle(msgspec.Struct, frozen=True, array_like=True):
    """A claim."""

    key: str
    token: str
    attempt: int
    # Renewing begins them anew, so they are held to what a claim is held to.
    lease: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_LEASE)]
    ttl: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_TTL)]
    on_lapsed: OnLapsed = "rerun"
    doubt_ttl: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_TTL)] | None = None


class ChargeHandle(Charged, frozen=True, array_like=True):
    """A charge."""


class DecisionHandle(msgspec.Struct, frozen=True, array_like=True):
    """A decision that allowed something."""

    key: str
    token: str


def claim_handle(claim: Claimed) -> str:
    """A claim as a text to hold."""
    terms = claim.lease, claim.ttl, claim.on_lapsed, claim.doubt_ttl
    return _sealed(ClaimHandle(claim.key, claim.token, claim.attempt, *terms))


def claim_of(handle: str, prefix: str) -> Claimed:
    """The claim that is meant, in the caller's own tenant."""
    held = _opened(handle, ClaimHandle)
    return Claimed(
        prefix + held.key,
        held.token,
        held.attempt,
        held.lease,
        held.ttl,
        on_lapsed=held.on_lapsed,
        doubt_ttl=held.doubt_ttl,
    )


def charge_handle(charge: Charged) -> str:
    """A charge as a text to hold."""
    return _sealed(ChargeHandle(*msgspec.structs.astuple(charge)))


def charge_of(handle: str) -> Charged:
    """The charge that is meant."""
    return _opened(handle, ChargeHandle)


def decision_handle(decision: Allowed) -> str:
    """A decision as a text to hold."""
    return _sealed(DecisionHandle(decision.key, decision.token))


def decision_of(handle: str) -> Allowed:
    """The decision that is meant; what it took is for the store to say."""
    held = _opened(handle, DecisionHandle)
    return Allowed(held.key, 0.0, held.token)


def _sealed(held: msgspec.Struct) -> str:
    return urlsafe_b64encode(msgspec.json.encode(held)).decode().rstrip("=")


def _opened(handle: str, kind: type[T]) -> T:
    try:
        data = urlsafe_b64decode(handle.encode("ascii") + b"=" * (-len(handle) % 4))
        return msgspec.json.decode(data, type=kind)
    except (ValueError, msgspec.MsgspecError):
        raise problem_error("claim-malformed", "give it back as it was given out") from None
