"""Tables that five systems made before semel, as they are; semel uses them beside those systems."""

from functools import partial
from typing import Final

from semel.state.journal import BOOKS, Book
from semel.tables import LEDGER, YEAR, Index, attributes_of
from semel.tables.mapping import Column, Form, Same, TableMapping, defaults

# What is true of every table that stands for the ledger.
ledger_layout: Final = partial(TableMapping, holds=LEDGER, bare_keys=True, longest=YEAR)

# Nobody renews what another program has begun, so it is held for as long as that program said.
UNTIL_ITS_END = Same("expires_at")

# An item that somebody else wrote is a mark: it was seen, and nothing else is known.
MARKED = defaults(
    status="COMPLETED",
    token="",
    attempt=1,
    updated_at=0,
    lease_until=UNTIL_ITS_END,
    encoding="none:mark",
    version=1,
)

QUILL = ledger_layout(
    name="quill",
    title="QuillIdempotencyLedger",
    titled_by="DYNAMO_TABLE_NAME",
    located_by=("DYNAMO_REGION", "DYNAMO_ENDPOINT"),
    partition="pk",
    attributes=attributes_of("seenAt text, expiresAt number, source text, notes text"),
    expires="expiresAt",
    ttl="expiresAt",
    parts=("source", ""),
    spread={"details": ("notes",)},
    columns=MARKED
    | {
        "created_at": Column(name="seenAt", form=Form.ISO, default=0),
        "updated_at": Column(name="updatedAt", form=Form.ISO, default=0),
        "expires_at": Column(name="expiresAt", form=Form.SECONDS),
    },
)

ALCHEMISER = ledger_layout(
    name="alchemiser",
    title="alchemiser-idempotency-keys",
    titled_by="IDEMPOTENCY_TABLE_NAME",
    partition="idempotency_key",
    attributes=attributes_of("created_at number, expiry_time number"),
    expires="expiry_time",
    ttl="expiry_time",
    columns=MARKED
    | {
        "created_at": Column(name="created_at", form=Form.SECONDS, default=0),
        "expires_at": Column(name="expiry_time", form=Form.SECONDS),
    },
    tags={"Purpose": "Idempotency"},
)

EVENT_DETAILS = attributes_of(
    "received_at text, mode text, conversation_id text, safe_mode flag, automation_enabled flag, "
    "source_message_id text, payload_sha256 text, payload_bytes number, intent text"
)

SUPPORT_EVENTS = ledger_layout(
    name="support-events",
    title="rp_mw_idempotency_{env}",
    partition="event_id",
    attributes=attributes_of("created_at text, last_processed_at text, expires_at number, status text")
    | EVENT_DETAILS,
    expires="expires_at",
    ttl="expires_at",
    spread={"details": tuple(EVENT_DETAILS)},
    columns=MARKED
    | {
        "status": Column(name="status", spelled={"COMPLETED": "processed"}, default="COMPLETED"),
        "fingerprint": Column(name="payload_sha256"),
        "created_at": Column(name="created_at", form=Form.ISO, default=0),
        "updated_at": Column(name="last_processed_at", form=Form.ISO, default=0),
        "expires_at": Column(name="expires_at", form=Form.SECONDS),
    },
)

SUPPORT_STATE = TableMapping(
    name="support-state",
    title="rp_mw_conversation_state_{env}",
    bare_keys=True,
    partition="conversation_id",
    attributes=attributes_of(
        "updated_at number, expires_at number, last_processed_at text, last_processed_message_id text, "
        "last_routed_team text, last_routing_confidence number, last_intent text, risk_flags set, "
        "pending_flow object, last_auto_reply object, version number, token text, ends object, subject text"
    ),
    expires="expires_at",
    ttl="expires_at",
    columns={
        "expires_at": Column(name="expires_at", form=Form.SECONDS),
        "updated_at": Column(name="updated_at", form=Form.ISO),
    },
)

SUPPORT_AUDIT = TableMapping(
    name="support-audit",
    title="rp_mw_audit_actions_{env}",
    bare_keys=True,
    partition="conversation_id",
    sort="ts_action_id",
    attributes=attributes_of(
        "action_type text, action_payload_redacted text, idempotency_key text, result text, "
        "expires_at number, subject text"
    ),
    expires="expires_at",
    ttl="expires_at",
    columns={"expires_at": Column(name="expires_at", form=Form.SECONDS)},
)

ACTIVITIES = TableMapping(
    name="household-activities",
    title="homeops-activities-{env}",
    titled_by="ACTIVITIES_TABLE_NAME",
    bare_keys=True,
    partition="chatId",
    sort="activityId",
    # `body` is what an entry tells besides; an item that the household's own writer made has none.
    attributes=attributes_of(
        "userId number, timestamp number, messageId number, type text, activity text, effort text, "
        "confidence number, body object, expires_at number, subject text"
    ),
    expires="expires_at",
    ttl="",
    forever="a household's activities are its history",
    indexes=(Index(name="userId-timestamp-index", partition="userId", sort="timestamp"),),
    recoverable=True,
)

RESPONSE_COUNTERS = TableMapping(
    name="household-counters",
    title="homeops-response-counters-{env}",
    titled_by="RESPONSE_COUNTERS_TABLE_NAME",
    bare_keys=True,
    partition="chatId",
    sort="date",
    attributes=attributes_of("count number, updatedAt number, ttl number"),
    expires="ttl",
    columns={
        "ttl": Column(name="ttl", form=Form.SECONDS),
        "updatedAt": Column(name="updatedAt", form=Form.ISO),
    },
)

MESSAGES = TableMapping(
    name="household-messages",
    title="homeops-messages-{env}",
    titled_by="MESSAGES_TABLE_NAME",
    bare_keys=True,
    partition="chatId",
    sort="messageId",
    attributes=attributes_of(
        "messageId number, userId number, timestamp number, text text, expires_at number, subject text"
    ),
    expires="expires_at",
    # Named as in the household's other table; its own writer gives a message no end, and such a one has none.
    columns={"expires_at": Column(name="ttl", form=Form.SECONDS)},
)

PROBE = ledger_layout(
    name="probe",
    title="mq-probe-idempotency",
    partition="pk",
    attributes=attributes_of(
        "operationType text, idempotencyKey text, status text, requestHash text, responsePayload text, "
        "createdAt text, updatedAt text, expiresAt text, ttl number"
    ),
    expires="ttl",
    parts=("operationType", "idempotencyKey"),
    separator="#",
    copies={"expiresAt": ("expires_at", Form.ISO)},
    columns=defaults(token="", attempt=1, encoding="json", version=1)
    | {
        # The SHA-256 of the request's body, in hex, as its document has it.
        "fingerprint": Column(name="requestHash", comparable=True),
        "created_at": Column(name="createdAt", form=Form.ISO, default=0),
        "updated_at": Column(name="updatedAt", form=Form.ISO, default=0),
        "lease_until": Column(name="leaseUntil", default=UNTIL_ITS_END),
        "expires_at": Column(name="ttl", form=Form.SECONDS),
        "result": Column(name="responsePayload", form=Form.JSON),
    },
)

TABLES = (
    QUILL,
    ALCHEMISER,
    SUPPORT_EVENTS,
    SUPPORT_STATE,
    SUPPORT_AUDIT,
    ACTIVITIES,
    RESPONSE_COUNTERS,
    MESSAGES,
    PROBE,
)

# How the journal keeps entries in these tables.
BOOKS |= {
    book.table.name: book
    for book in (
        Book(
            table=ACTIVITIES,
            at="timestamp",
            per_second=1000,
            actor="userId",
            body="body",
            index="userId-timestamp-index",
            fields=("messageId", "type", "activity", "effort", "confidence"),
        ),
        Book(
            table=SUPPORT_AUDIT,
            ids="time",
            key="idempotency_key",
            fields=("action_type", "action_payload_redacted", "result"),
        ),
        Book(table=MESSAGES, ids="own", at="timestamp", per_second=1000, actor="userId", fields=("text",)),
    )
}
