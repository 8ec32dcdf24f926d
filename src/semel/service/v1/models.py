"""How requests and answers look."""

from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, TypeVar

from fastapi import Path, Query
from pydantic import (  # noqa: TID253 - the service is where it is needed
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    RootModel,
    Strict,
)

from semel.core.keys import MAX_INTEGER, MAX_KEY_BYTES
from semel.core.policy import DAY, SETTLED
from semel.model import MISSING, Record
from semel.ops.model import LONGEST_TTL, PAGE_SIZE
from semel.periods import PeriodName
from semel.service.problems import moment
from semel.service.tokens import AppQuery
from semel.tables import FOREVER

# Half a year: a longer lease is a mistake.
LONGEST_LEASE = 86_400 * 183
LONGEST_WAIT = 30
MOST_KEYS = 1000
# Of a page; and of what one request does to several records, so that it is done before anybody gives up.
LONGEST_PAGE = 500
MOST_ACTIONS = 100

KEY_FORM: Final[dict[str, Any]] = {
    "min_length": 1,
    "max_length": MAX_KEY_BYTES,
    "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$",
}
KEY_MEANS: Final[dict[str, Any]] = {
    "description": f"What is done once: at most {MAX_KEY_BYTES} bytes in UTF-8, without control characters.",
    "examples": ["charge:order-17"],
}
BodyKey: TypeAlias = Annotated[str, Field(**KEY_FORM, **KEY_MEANS)]
KeyQuery: TypeAlias = Annotated[str, Query(**KEY_FORM, **KEY_MEANS)]
SwitchPath: TypeAlias = Annotated[str, Path(**KEY_FORM, description="The name of the switch.")]
CounterName: TypeAlias = Annotated[
    BodyKey, Field(description="The name of the counter.", examples=["mails:ann@example.com"])
]
ClaimToken: TypeAlias = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_-]{16,64}$",
        description="Random, made by the client before it asks, and sent again with every repetition.",
        examples=["4f1d6c0e9b7a4c35a8d2f3b1c0e97a64"],
    ),
]
Ttl: TypeAlias = Annotated[
    float,
    Field(gt=0, le=LONGEST_TTL, allow_inf_nan=False, description="For how many seconds it is remembered."),
]
Amount: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Handle: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=8192, pattern=r"^[A-Za-z0-9_-]+$", description="As it was given out.")
]
IsoMoment: TypeAlias = Annotated[
    float,
    PlainSerializer(moment, return_type=str),
    Field(description="ISO 8601, in UTC.", json_schema_extra={"format": "date-time"}),
]
RecordStatus: TypeAlias = Literal["IN_PROGRESS", "COMPLETED", "FAILED", "UNKNOWN", "RELEASED"]
Zone: TypeAlias = Annotated[
    str,
    Field(max_length=64, description="Where a period begins: an IANA name.", examples=["Europe/Stockholm"]),
]


class RequestModel(BaseModel):
    """A request; a name that it does not know is refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


def _open(schema: dict[str, Any]) -> None:
    schema.pop("additionalProperties", None)


class ResponseModel(BaseModel):
    """An answer; to its clients it is open, so that a later version may tell more."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", from_attributes=True, json_schema_extra=_open
    )


A = TypeVar("A", bound=ResponseModel)


def answer(kind: type[A], found: object, **more: Any) -> A:
    """An answer with what was found under the names of its fields, and with what it has more."""
    names = kind.model_fields.keys() - more.keys()
    return kind(**{name: getattr(found, name) for name in names if hasattr(found, name)}, **more)


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
    lease: Annotated[float, Field(gt=0, le=LONGEST_LEASE, allow_inf_nan=False)] = Field(
        default=30.0, description="For how many seconds the key is held without a renewal."
    )
    ttl: Ttl = Field(
        default=86_400.0, description="For how many seconds the record is kept after its last change."
    )
    on_lapsed: Literal["rerun", "hold", "resolve"] = Field(
        default="rerun",
        description="Where an earlier attempt vanished: `rerun` runs it again, `hold` leaves it to somebody "
        "to settle, and under `resolve` the caller first asks the remote system.",
    )
    max_attempts: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None = Field(
        default=None, description="After so many attempts the failure is final."
    )
    doubt_ttl: Ttl | None = Field(
        default=None,
        description="How long a doubt waits to be settled under `hold` and `resolve`; for ever without it.",
    )


class ClaimedResponse(ResponseModel):
    """The key is the caller's until the lease ends."""

    outcome: Literal["claimed"]
    key: str
    claim: str = Field(description="To be given back with complete, fail, release and renew.")
    attempt: int = Field(description="Rises with every attempt: the fencing number for other systems.")
    lapsed: bool = Field(description="An earlier attempt vanished, so its effect may have happened.")
    lease: float = Field(description="Seconds, counted from before the request was sent.")
    lease_until: IsoMoment
    ttl: float = Field(description="Seconds.")


class ReplayResponse(ResponseModel):
    """It was done before."""

    outcome: Literal["replay"]
    key: str
    attempt: int = Field(description="Which attempt has completed it.")
    completed_at: IsoMoment
    kept: bool = Field(description="Whether there is a result; the fact is kept longer than a large one.")
    result: JsonValue = Field(default=None, description="What it was completed with; absent where not kept.")


class ClaimResponse(RootModel[ClaimedResponse | ReplayResponse]):
    """The key is the caller's, or it was done before: `outcome` says which."""

    # One shape for both statuses: generated clients read every success of an operation as the same type.
    root: ClaimedResponse | ReplayResponse = Field(discriminator="outcome")


class CompleteRequest(RequestModel):
    """What came of a claim."""

    claim: Handle
    result: JsonValue = Field(default=None, description="What whoever claims the key from now on is given.")


class SentError(RequestModel):
    """An error: its type and its message."""

    type: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        description="The name of the error.", examples=["CardDeclined"]
    )
    message: Annotated[str, Field(max_length=10_000)] = Field(default="", description="For people to read.")


class FailRequest(RequestModel):
    """Why it failed for good."""

    claim: Handle
    error: SentError = Field(description="What whoever claims the key from now on is told.")


class ReleaseRequest(RequestModel):
    """A claim to be given back, and why."""

    claim: Handle
    error: SentError | None = Field(default=None, description="Why, for whoever looks into it.")


class RenewRequest(RequestModel):
    """A claim whose work goes on."""

    claim: Handle


class CompletedResponse(ResponseModel):
    """It is done, and stays so."""

    outcome: Literal["completed"]
    kept: bool = Field(description="Whether the result was stored, and not only the fact.")


class FailedResponse(ResponseModel):
    """It has failed, and stays so."""

    outcome: Literal["failed"]


class ReleasedResponse(ResponseModel):
    """It was given back: the next attempt runs."""

    outcome: Literal["released"]


class RenewedResponse(ResponseModel):
    """The lease began anew."""

    outcome: Literal["renewed"]
    lease: float = Field(description="Seconds, counted from before the request was sent.")
    lease_until: IsoMoment


# Records


class WaitRequest(RequestModel):
    """A key to be waited for."""

    key: BodyKey
    timeout: Annotated[float, Field(gt=0, le=LONGEST_WAIT, allow_inf_nan=False)] = Field(
        default=10.0, description="For how many seconds."
    )


class RecordedError(ResponseModel):
    """An error as it is kept."""

    type: str
    message: str


class RecordResponse(ResponseModel):
    """What is known about a key."""

    key: str
    status: RecordStatus
    attempt: int
    created_at: IsoMoment
    updated_at: IsoMoment
    lease_until: IsoMoment
    expires_at: IsoMoment | None = Field(description="Null for a doubt that stays until it is settled.")
    fingerprint: str | None = Field(description="The hash of the payload, where there was one.")
    error: RecordedError | None = Field(description="Of what failed, or was given back with an error.")
    kept: bool = Field(description="Whether there is a result.")
    result: JsonValue = Field(default=None, description="What it was completed with; absent where not kept.")


def kept_result(result: Any) -> dict[str, Any]:
    """The members of a response that say whether there is a result, and which."""
    return {"kept": False} if result is MISSING else {"kept": True, "result": result}


def record_response(record: Record, result: Any) -> RecordResponse:
    """A record, without the token, which is its holder's alone."""
    failure = record.failure
    return RecordResponse(
        key=record.key,
        status=record.status.value,
        attempt=record.attempt,
        created_at=record.created_at,
        updated_at=record.updated_at,
        lease_until=record.lease_until,
        expires_at=None if record.expires_at == FOREVER else record.expires_at,
        fingerprint=record.fingerprint,
        error=None if failure is None else RecordedError.model_validate(failure),
        **kept_result(result),
    )


# Marks


class CheckRequest(RequestModel):
    """One key, or several, to be marked unless they were before."""

    key: BodyKey | None = None
    keys: Annotated[list[BodyKey], Field(min_length=1, max_length=MOST_KEYS)] | None = Field(
        default=None, description="Instead of one key: several."
    )
    token: ClaimToken | None = None
    ttl: Ttl = 3600.0


class CheckResponse(ResponseModel):
    """Whether it was the first time; for several keys, in their order."""

    new: bool | list[bool] = Field(description="A list where `keys` were sent.")


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

    counter: CounterName
    token: BodyKey = Field(
        description="What is charged for: each token counts once.", examples=["message-17"]
    )
    cap: Amount = Field(description="How much a period has room for.")
    by: Amount = Field(default=1, description="How much is counted.")
    per: PeriodName = Field(default="day", description="How long a period is.")
    zone: Zone = "UTC"
    keep: Ttl = Field(
        default=604_800.0, description="For how many seconds after its period a charge is remembered."
    )


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
    facts: dict[str, str | int] = Field(
        default={}, description="What the rules ask for, by name.", examples=[{"person": "ann@example.com"}]
    )
    reconsider: bool = Field(
        default=False, description="Decide anew, where the time of an earlier refusal is over."
    )


class RuleResultResponse(ResponseModel):
    """What one rule saw."""

    rule: str
    passed: bool
    saw: str
    not_before: IsoMoment | None


class DecisionResponse(ResponseModel):
    """Whether it may happen; what is allowed has been counted already."""

    key: str
    allowed: bool = Field(description="Whether it may happen now.")
    at: IsoMoment
    decision: str | None = Field(description="Of an allowed action: to be given back with refund.")
    reason: str | None = Field(description="Why it was refused.")
    not_before: IsoMoment | None = Field(description="From when it may happen, where that is known.")
    would_allow: bool = Field(
        description="True where it is allowed, and where a gate that is only tried out refused it."
    )
    rules: list[RuleResultResponse] = Field(description="What each rule saw.")


class GateRefundRequest(RequestModel):
    """An allowed action that did not happen."""

    decision: Handle


class SwitchRequest(RequestModel):
    """How a switch is to stand, and why."""

    on: bool = Field(description="True stops what the switch stands for.")
    reason: Annotated[str, Field(max_length=1000)] = Field(default="", description="For whoever looks back.")


class SwitchResponse(ResponseModel):
    """How a switch stands."""

    name: str
    on: bool
    since: IsoMoment
    reason: str
    by: str = Field(description="Who turned it, where that was said.")


class SwitchesResponse(ResponseModel):
    """Every switch that was ever turned."""

    switches: list[SwitchResponse]


# Operators

RateWidth: TypeAlias = Literal["minute", "hour"]
GivenMoment: TypeAlias = Annotated[
    AwareDatetime,
    Strict(False),  # JSON has no moments, only texts
    Field(description="ISO 8601, with its zone.", examples=["2026-03-01T08:00:00Z"]),
]
SearchWord: TypeAlias = Annotated[str, Field(max_length=MAX_KEY_BYTES)]
PageLimit: TypeAlias = Annotated[
    int, Field(ge=1, le=LONGEST_PAGE, description="How many a page has at most.")
]
PageCursor: TypeAlias = Annotated[
    str,
    Field(
        min_length=1,
        # That of a whole table in Redis names keys; it has to fit into the head of a request all the same.
        max_length=32_768,
        pattern=r"^[^\x00-\x1f\x7f-\x9f]+$",
        description="Where the page begins: the `after` of the one before.",
    ),
]
SearchCursor: TypeAlias = Annotated[PageCursor, Field(pattern=r"^[0-9]{1,6}[.][^\x00-\x1f\x7f-\x9f]*$")]
Reason: TypeAlias = Annotated[
    str,
    Field(
        max_length=1000,
        pattern=r"\S",
        description="For whoever looks back.",
        examples=["ticket 4711: the provider confirms that nothing was sent"],
    ),
]


class SearchRequest(RequestModel):
    """Which records are wanted; what is left out does not narrow it."""

    status: RecordStatus | None = Field(default=None, description="How they stand.")
    prefix: SearchWord = Field(default="", description="What the key begins with.", examples=["charge:"])
    in_doubt: bool = Field(
        default=False, description="Only what waits for somebody to find out what became of it."
    )
    error: SearchWord = Field(
        default="", description="The type of the kept error.", examples=["TimeoutError"]
    )
    worker: SearchWord = Field(default="", description="What the name of the worker contains.")
    subject: SearchWord = Field(default="", description="The person that it is about.")
    digest: SearchWord = Field(
        default="", description="The digest by which a log line names a key, or its beginning."
    )
    since: GivenMoment | None = Field(default=None, description="Changed at this moment or later.")
    until: GivenMoment | None = Field(default=None, description="Changed at this moment or earlier.")


class OpsQuery(RequestModel):
    """What can be said in the address of any question; a name that it does not know is refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=False)

    app: AppQuery = None  # which `OpsReader` reads


class SearchQuery(SearchRequest, OpsQuery):
    """Which records are wanted, and how they are to be shown."""

    order: Literal["newest", "oldest"] | None = Field(
        default=None,
        description="Newest or oldest first. What failed or is in doubt has an order in every store; all "
        "records have one where the store was provisioned for it.",
    )
    limit: PageLimit = PAGE_SIZE
    after: SearchCursor | None = None
    errors: Literal["type", "full"] = Field(
        default="type", description="Whether an error is told by its type alone; a message may be personal."
    )


class FoundError(ResponseModel):
    """A kept error; its message is there where it was asked for."""

    type: str
    message: str | None = None


class FoundRecord(ResponseModel):
    """A record as an operator sees it, without its result."""

    key: str
    digest: str = Field(description="As log lines name it.")
    version: str = Field(description="How it stands, by a name: the `seen` of an action.")
    status: RecordStatus
    attempt: int
    worker: str | None
    created_at: IsoMoment
    began_at: IsoMoment = Field(description="When the present attempt began.")
    updated_at: IsoMoment
    lease_until: IsoMoment
    expires_at: IsoMoment | None
    doubt_since: IsoMoment | None
    error: FoundError | None


class SearchResponse(ResponseModel):
    """A page of records, and what it cost to find them."""

    records: list[FoundRecord]
    after: str | None = Field(
        description="Where the next page begins; null when this is the last. A page ends after some thousand "
        "keys: where it is empty and this is not null, nothing was among those, and the next page goes on."
    )
    now: IsoMoment
    examined: int = Field(description="About how many keys the store has gone over to find these.")
    how: Literal["key", "status", "doubts", "failures", "subject", "recent"] = Field(
        description="By which way they were found."
    )
    scan: bool = Field(description="No index led to them: one record was read after the other.")
    unreadable: list[str] = Field(description="Keys of records that cannot be read.")


class StoryQuery(OpsQuery):
    """The key whose story is to be told."""

    key: KeyQuery


class StoryLineResponse(ResponseModel):
    """One thing that happened."""

    at: IsoMoment
    kind: str
    text: str
    attempt: int
    who: str


class StoryDecisionResponse(ResponseModel):
    """What a gate decided about the key, or about a step of it."""

    key: str = Field(description="The action that it is about.")
    at: IsoMoment
    allowed: bool
    reason: str = Field(description="Why it was refused.")
    not_before: IsoMoment | None = Field(description="From when it may happen, where that is known.")


class StoryStepResponse(ResponseModel):
    """A step inside the work on the key."""

    key: str
    status: RecordStatus
    attempt: int
    began: IsoMoment
    changed: IsoMoment


class StoryMessageResponse(ResponseModel):
    """The message that the key is about, in the inbox of the app."""

    inbox: str
    id: str
    dead: bool = Field(description="Nobody could handle it, and it was put aside.")
    at: IsoMoment
    attempts: int
    not_before: IsoMoment = Field(description="It is not tried again before this moment.")
    error: str


class StoryEntryResponse(ResponseModel):
    """An entry of the journal that names the key."""

    owner: str
    id: str
    at: IsoMoment | None
    actor: str


class StoryActionResponse(ResponseModel):
    """What an operator did to the key."""

    at: IsoMoment
    by: str
    action: str
    why: str


class StoryResponse(ResponseModel):
    """What happened to a key, how it stands, and what the next call with it gets."""

    key: str
    status: RecordStatus | None = Field(
        description="How its record stands; null where it has none, and something else is known of it."
    )
    version: str = Field(description="How it stands, by a name: the `seen` of an action.")
    headline: str
    lines: list[StoryLineResponse]
    next_call: str
    until: IsoMoment | None = Field(description="Until when that holds; null where nothing ends it.")
    duplicates: int | None = Field(
        description="How many duplicates were answered in the last day; null where no rates are kept."
    )
    decisions: list[StoryDecisionResponse]
    steps: list[StoryStepResponse]
    all_steps: bool = Field(
        description="False where there may be other steps, which only reading the whole table would find."
    )
    messages: list[StoryMessageResponse] = Field(description="Where its message is in the inbox of `app`.")
    entries: list[StoryEntryResponse] = Field(description="Entries of the journal that name it.")
    actions: list[StoryActionResponse] = Field(description="What operators did to it.")
    text: str = Field(description="All of it, for people to read.")


class CountersQuery(OpsQuery):
    """Which counters are wanted."""

    prefix: SearchWord = Field(default="", description="What their names begin with.")
    limit: PageLimit = PAGE_SIZE
    after: PageCursor | None = None


class CounterResponse(ResponseModel):
    """A counter in one of its periods."""

    counter: str
    period: str
    used: int
    updated_at: IsoMoment
    resets_at: IsoMoment | None = Field(description="When its period ends; null where its row does not tell.")
    cap: int | None


class CountersResponse(ResponseModel):
    """A page of counters."""

    counters: list[CounterResponse]
    after: str | None = Field(description="Where the next page begins; null when this is the last.")
    scan: bool = Field(description="No index led to them: one row was read after the other.")


class SwitchHistoryQuery(OpsQuery):
    """How much is wanted of a switch's history."""

    limit: PageLimit = 20


class SwitchTurnResponse(ResponseModel):
    """A switch was turned."""

    at: IsoMoment
    on: bool
    by: str
    why: str


class SwitchHistoryResponse(ResponseModel):
    """How a switch was turned, newest first."""

    turns: list[SwitchTurnResponse]


class ActionTerms(RequestModel):
    """What is to be done, and why; who wants it is told by the token."""

    name: Literal["release", "complete", "fail", "drop", "forget"] = Field(description="What is done.")
    why: Reason
    result: JsonValue = Field(default=None, description="With `complete`: what came of it.")
    force: bool = Field(default=False, description="Though somebody is at work on it at this moment.")
    ttl: Ttl | None = Field(
        default=None,
        description="How long it is kept from then on; by default as long as it had left, and at least "
        f"{SETTLED / DAY:.0f} days.",
    )


class ActionRequest(ActionTerms):
    """What is to be done to one record."""

    key: BodyKey
    seen: Annotated[str, Field(max_length=64)] = Field(
        default="", description="The version of the record that was looked at; another one is refused."
    )
    preview: bool = Field(default=False, description="Only tell what it would do.")


class BulkRequest(ActionTerms):
    """What is to be done to every record of a page of a search."""

    search: SearchRequest = Field(
        description="To which records.", examples=[{"status": "FAILED", "error": "TimeoutError"}]
    )
    limit: Annotated[int, Field(ge=1, le=MOST_ACTIONS)] = Field(
        default=MOST_ACTIONS, description="To how many at most."
    )
    after: SearchCursor | None = None
    preview: bool = Field(default=True, description="Only tell what it would do; false does it.")


class DoneResponse(ResponseModel):
    """What an action did, or would do."""

    key: str
    name: str
    before: str = Field(description="How the record stood: its status, `absent` or `unreadable`.")
    after: str
    changed: bool = Field(description="False where this very action was done before, or was refused.")
    refused: str = Field(description="Why it was not done.")


class BulkResponse(ResponseModel):
    """What became of each record of the page."""

    preview: bool
    done: list[DoneResponse]
    changed: int
    examined: int
    after: str | None = Field(description="Where the next page begins; null when this is the last.")


class EraseRequest(RequestModel):
    """Which person is to be erased, and why; who wants it is told by the token."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"person": "ann@example.com", "why": "request no. 17"}]}
    )

    person: Annotated[str, Field(min_length=1, max_length=MAX_KEY_BYTES, pattern=r"\S")] = Field(
        description="As the programs write the name: an e-mail address, a phone number, a user's number."
    )
    why: Reason
    preview: bool = Field(default=True, description="Only tell what would go; false erases it.")


class ErasedResponse(ResponseModel):
    """What was erased of a person, or would be."""

    preview: bool
    subjects: list[str] = Field(description="The hashes that stand for the person in this ledger.")
    rows: int
    tables: dict[str, int] = Field(
        description="How many rows, by their table; those of `ledger` lose their result, others are deleted."
    )
    running: list[str] = Field(description="Keys at work, which are left alone: erase again later.")
    more: bool = Field(description="Rows about the person kept coming: stop what writes them.")
    skipped: list[str] = Field(description="Tables that the service's role may not look into.")


class JournalQuery(OpsQuery):
    """A page of the operators' journal."""

    limit: PageLimit = PAGE_SIZE
    after: PageCursor | None = None


class JournalEntry(ResponseModel):
    """Something that an operator did."""

    id: str
    at: IsoMoment
    by: str
    action: str
    about: str = Field(description="The key, or the inbox.")
    why: str
    before: JsonValue = Field(description="How it stood before, with moments in seconds.")


class JournalResponse(ResponseModel):
    """A page of what operators did, newest first."""

    entries: list[JournalEntry]
    after: str | None = Field(description="Where the next page begins; null when this is the last.")


class RatesQuery(OpsQuery):
    """Which rates are wanted: those of the last hour, or of sixty hours, where nothing else is said."""

    since: GivenMoment | None = Field(default=None, description="From this moment on.")
    until: GivenMoment | None = Field(default=None, description="Up to this moment, which is now without it.")
    width: RateWidth = Field(default="minute", description="Of how long each of them tells.")


class RatesResponse(ResponseModel):
    """What happened in a minute or an hour, in all processes."""

    start: IsoMoment
    counts: dict[str, dict[str, int]] = Field(
        description="How often each kind of event came, by the function or the door that it is about."
    )
    seconds: dict[str, list[int]] = Field(
        description="How many took how long: one number for each edge, and one for what took longer."
    )
    duplicates: dict[str, int] = Field(description="What was asked for most often again, by digest.")
    reasons: dict[str, int] = Field(
        description="How often a gate refused, by the kind of its reason.", examples=[{"cap": 12, "quiet": 3}]
    )


class AllRatesResponse(ResponseModel):
    """What happened, for each minute or hour in which anything did."""

    width: RateWidth
    since: IsoMoment
    until: IsoMoment
    edges: list[float] = Field(description="The upper edges of `seconds`.")
    rates: list[RatesResponse]


class InboxResponse(ResponseModel):
    """What waits for an application, in numbers; null for what the queue does not tell."""

    app: str
    waiting: int
    oldest: IsoMoment | None
    more: bool = Field(description="More wait than were counted.")
    resting: int | None = Field(description="Lanes whose first message has failed, and is tried again later.")
    dead: int | None
    dead_oldest: IsoMoment | None
    dead_more: bool = Field(description="More are dead than were counted.")


class InboxesResponse(ResponseModel):
    """The inbox of each application that has one."""

    inboxes: list[InboxResponse]


class DeadLettersQuery(RequestModel):
    """How many dead letters are to be shown, and whether with what they say."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=False)

    limit: PageLimit = PAGE_SIZE
    bodies: bool = Field(
        default=False,
        description="What they say, which may be personal; takes the scope `ops:write`, and `why`.",
    )
    why: Reason | None = Field(
        default=None, description="With `bodies`: the reason, which the operators' journal records."
    )


class DeadLetterResponse(ResponseModel):
    """A message that nobody could handle."""

    id: str
    key: str
    group: str | None
    attempts: int
    error: str
    at: IsoMoment = Field(description="When it was put aside.")
    body: JsonValue = Field(default=None, description="Where it was asked for and can be read.")


class DeadLettersResponse(ResponseModel):
    """The oldest messages that nobody could handle."""

    app: str
    letters: list[DeadLetterResponse]


class RedriveRequest(RequestModel):
    """Which dead letters are to be handled as if they were new: one by its id, all, or those that fit."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [
                {"all": True, "why": "the provider is back"},
                {
                    "error": "TimeoutError",
                    "since": "2026-03-01T08:00:00Z",
                    "preview": True,
                    "why": "no. 12",
                },
            ]
        }
    )

    why: Reason
    id: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        default=None, description="One of them."
    )
    all: bool = Field(default=False, description="Every one.")
    error: SearchWord = Field(
        default="", description="Those with this type of error.", examples=["TimeoutError"]
    )
    prefix: SearchWord = Field(default="", description="Those whose key begins so.", examples=["evt:rp:"])
    group: SearchWord | None = Field(default=None, description="Those of one group.")
    since: GivenMoment | None = Field(default=None, description="Put aside at this moment or later.")
    until: GivenMoment | None = Field(default=None, description="Put aside at this moment or earlier.")
    preview: bool = Field(default=False, description="Only say which.")


class RefusedLetter(ResponseModel):
    """A dead letter that was not put back."""

    id: str
    why: str


class RedriveResponse(ResponseModel):
    """Which were put back, or would be."""

    preview: bool
    redriven: int
    letters: list[DeadLetterResponse] = Field(description="The first of them, up to 100; without bodies.")
    refused: list[RefusedLetter]
