"""How requests and answers look."""

from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, JsonValue  # noqa: TID253 - the service is where it is needed

from semel.core.keys import MAX_INTEGER, MAX_KEY_BYTES
from semel.model import MISSING, Record
from semel.service.problems import moment
from semel.tables import FOREVER

# Half a year, and ten: longer ones are somebody's mistake.
LONGEST_LEASE = 86_400 * 183
LONGEST_TTL = 86_400 * 3650
LONGEST_WAIT = 30
MOST_KEYS = 1000

BodyKey: TypeAlias = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_KEY_BYTES,
        pattern=r"^[^\x00-\x1f\x7f-\x9f]+$",
        description=f"What is done once: at most {MAX_KEY_BYTES} bytes in UTF-8, without control characters.",
        examples=["charge:order-17"],
    ),
]
KeyQuery: TypeAlias = Annotated[
    str, Query(min_length=1, max_length=MAX_KEY_BYTES, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")
]
ClaimToken: TypeAlias = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_-]{16,64}$",
        description="Random, made by the client before it asks, and sent again with every repetition.",
        examples=["4f1d6c0e9b7a4c35a8d2f3b1c0e97a64"],
    ),
]
BodySeconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ttl: TypeAlias = Annotated[float, Field(gt=0, le=LONGEST_TTL, allow_inf_nan=False)]
Amount: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Handle: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=8192, pattern=r"^[A-Za-z0-9_-]+$", description="As it was given out.")
]
IsoMoment: TypeAlias = Annotated[
    str, Field(description="ISO 8601, in UTC.", json_schema_extra={"format": "date-time"})
]
CounterPeriod: TypeAlias = Literal["hour", "day", "week", "month"]
Zone: TypeAlias = Annotated[
    str, Field(max_length=64, description="IANA name.", examples=["Europe/Stockholm"])
]


class RequestModel(BaseModel):
    """A request; a name that it does not know is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ResponseModel(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid")


# Claims


class ClaimRequest(RequestModel):
    """A key to be claimed, and on what terms."""

    key: BodyKey
    token: ClaimToken | None = None
    payload: JsonValue = Field(
        default=None,
        description="What the key stands for; another one under the same key is refused. Its hash is kept.",
    )
    fingerprint: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")] | None = (
        Field(default=None, description="Instead of the payload: a hash of the client's own.")
    )
    lease: Annotated[float, Field(gt=0, le=LONGEST_LEASE, allow_inf_nan=False)] = 30.0
    ttl: Ttl = 86_400.0
    on_lapsed: Literal["rerun", "hold", "resolve"] = "rerun"
    max_attempts: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = None
    doubt_ttl: Ttl | None = Field(
        default=None,
        description="How long a doubt waits to be settled under `hold` and `resolve`; for ever without it.",
    )


class ClaimedResponse(ResponseModel):
    """The key is the caller's until the lease ends."""

    outcome: Literal["claimed"] = "claimed"
    key: str
    claim: str = Field(description="To be given back with complete, fail, release and renew.")
    attempt: int
    lapsed: bool = Field(description="An earlier attempt vanished, so its effect may have happened.")
    lease: float = Field(description="Seconds, counted from before the request was sent.")
    lease_until: IsoMoment
    ttl: float


class ReplayResponse(ResponseModel):
    """It was done before."""

    outcome: Literal["replay"] = "replay"
    key: str
    attempt: int
    completed_at: IsoMoment
    kept: bool = Field(description="Whether there is a result; the fact is kept longer than a large one.")
    result: JsonValue = None


class CompleteRequest(RequestModel):
    """What came of a claim."""

    claim: Handle
    result: JsonValue = None


class SentError(RequestModel):
    """An error: its type and its message."""

    type: Annotated[str, Field(min_length=1, max_length=200)]
    message: Annotated[str, Field(max_length=10_000)] = ""


class FailRequest(RequestModel):
    """Why it failed for good."""

    claim: Handle
    error: SentError


class ReleaseRequest(RequestModel):
    """A claim to be given back, and why."""

    claim: Handle
    error: SentError | None = None


class RenewRequest(RequestModel):
    """A claim whose work goes on."""

    claim: Handle


class CompletedResponse(ResponseModel):
    """It is done, and stays so."""

    outcome: Literal["completed"] = "completed"
    kept: bool = Field(description="Whether the result was stored, and not only the fact.")


class FailedResponse(ResponseModel):
    """It has failed, and stays so."""

    outcome: Literal["failed"] = "failed"


class ReleasedResponse(ResponseModel):
    """It was given back: the next attempt runs."""

    outcome: Literal["released"] = "released"


class RenewedResponse(ResponseModel):
    """The lease began anew."""

    outcome: Literal["renewed"] = "renewed"
    lease: float
    lease_until: IsoMoment


# Records


class WaitRequest(RequestModel):
    """A key to be waited for."""

    key: BodyKey
    timeout: Annotated[float, Field(gt=0, le=LONGEST_WAIT, allow_inf_nan=False)] = 10.0


class RecordedError(ResponseModel):
    """An error as it is kept."""

    type: str
    message: str


class RecordResponse(ResponseModel):
    """What is known about a key."""

    key: str
    status: Literal["IN_PROGRESS", "COMPLETED", "FAILED", "UNKNOWN", "RELEASED"]
    attempt: int
    created_at: IsoMoment
    updated_at: IsoMoment
    lease_until: IsoMoment
    expires_at: IsoMoment | None = Field(description="Null for a doubt that stays until it is settled.")
    fingerprint: str | None
    error: RecordedError | None
    kept: bool = Field(description="Whether there is a result.")
    result: JsonValue = None


def record_told(record: Record, result: Any) -> RecordResponse:
    """A record, without the token, which is its holder's alone."""
    failure = record.failure
    told: dict[str, Any] = {"kept": result is not MISSING}
    if result is not MISSING:
        told["result"] = result
    return RecordResponse(
        key=record.key,
        status=record.status.value,
        attempt=record.attempt,
        created_at=moment(record.created_at),
        updated_at=moment(record.updated_at),
        lease_until=moment(record.lease_until),
        expires_at=None if record.expires_at == FOREVER else moment(record.expires_at),
        fingerprint=record.fingerprint,
        error=None if failure is None else RecordedError(type=failure.type, message=failure.message),
        **told,
    )


# Marks


class CheckRequest(RequestModel):
    """One key, or several, to be marked unless they were before."""

    key: BodyKey | None = None
    keys: Annotated[list[BodyKey], Field(min_length=1, max_length=MOST_KEYS)] | None = None
    token: ClaimToken | None = None
    ttl: Ttl = 3600.0


class CheckResponse(ResponseModel):
    """Whether it was the first time; for several keys, in their order."""

    new: bool | list[bool]


class KeyRequest(RequestModel):
    """One key."""

    key: BodyKey


class MarkRequest(RequestModel):
    """A key that is done, and for how long that is to be known."""

    key: BodyKey
    ttl: Ttl = 3600.0


class ProcessedResponse(ResponseModel):
    """Whether the key is done."""

    processed: bool


# Counters


class ChargeRequest(RequestModel):
    """So much to be counted, under a token, if there is room."""

    counter: BodyKey
    token: BodyKey
    cap: Amount
    by: Amount = 1
    per: CounterPeriod = "day"
    zone: Zone = "UTC"
    keep: Ttl = 604_800.0


class ChargeResponse(ResponseModel):
    """It was counted, now or when it was first asked for."""

    charge: str = Field(description="To be given back with refund.")
    counter: str
    period: str
    by: int
    resets_at: IsoMoment


class RefundRequest(RequestModel):
    """A charge to be given back."""

    charge: Handle


class RefundResponse(ResponseModel):
    """Whether it was given back, now or before; false where it is not there any more."""

    refunded: bool


class TallyResponse(ResponseModel):
    """How a counter stands."""

    counter: str
    period: str
    used: int
    resets_at: IsoMoment
    cap: int | None
    remaining: int | None


# Gates and switches


class DecideRequest(RequestModel):
    """An action, and what the rules have to know about it."""

    key: BodyKey
    facts: dict[str, str | int] = {}
    reconsider: bool = Field(
        default=False, description="Decide anew, where the time of an earlier refusal is over."
    )


class SightResponse(ResponseModel):
    """What one rule saw."""

    rule: str
    passed: bool
    saw: str
    not_before: IsoMoment | None


class DecisionResponse(ResponseModel):
    """Whether it may happen; what is allowed has been counted already."""

    key: str
    allowed: bool
    at: IsoMoment
    decision: str | None = Field(description="Of an allowed action: to be given back with refund.")
    reason: str | None
    not_before: IsoMoment | None
    would_allow: bool
    rules: list[SightResponse]


class GateRefundRequest(RequestModel):
    """An allowed action that did not happen."""

    decision: Handle


class SwitchRequest(RequestModel):
    """How a switch is to stand, and why."""

    on: bool
    reason: Annotated[str, Field(max_length=1000)] = ""


class SwitchResponse(ResponseModel):
    """How a switch stands."""

    name: str
    on: bool
    since: IsoMoment
    reason: str


class SwitchesResponse(ResponseModel):
    """Every switch that was ever turned."""

    switches: list[SwitchResponse]
