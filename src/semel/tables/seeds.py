"""Tables that five systems made before semel, as they are: it works on them, beside what is in them."""

from semel.tables import LEDGER, YEAR, Column, Form, Index, Kind, Table

MARKED = {
    # An item that somebody else wrote is a mark: it was seen, and nothing else is known.
    "status": Column(name="status", default="COMPLETED"),
    "token": Column(name="token", default=""),
    "attempt": Column(name="attempt", default=1),
    "lease_until": Column(name="lease_until", default=0),
    "encoding": Column(name="encoding", default="none:mark"),
    "version": Column(name="version", default=1),
}

QUILL = Table(
    name="quill",
    title="QuillIdempotencyLedger",
    titled_by="DYNAMO_TABLE_NAME",
    holds=LEDGER,
    partition="pk",
    attributes={
        "seenAt": Kind.TEXT,
        "expiresAt": Kind.NUMBER,
        "source": Kind.TEXT,
        "notes": Kind.TEXT,
    },
    expires="expiresAt",
    ttl="expiresAt",
    bare_keys=True,
    longest=YEAR,
    parts=("source", ""),
    spread={"details": ("notes",)},
    columns=MARKED
    | {
        "created_at": Column(name="seenAt", form=Form.ISO, default=0),
        "updated_at": Column(name="updatedAt", form=Form.ISO, default=0),
        "expires_at": Column(name="expiresAt", form=Form.SECONDS),
    },
)

ALCHEMISER = Table(
    name="alchemiser",
    title="alchemiser-idempotency-keys",
    titled_by="IDEMPOTENCY_TABLE_NAME",
    holds=LEDGER,
    partition="idempotency_key",
    attributes={"created_at": Kind.NUMBER, "expiry_time": Kind.NUMBER},
    expires="expiry_time",
    ttl="expiry_time",
    bare_keys=True,
    longest=YEAR,
    columns=MARKED
    | {
        "created_at": Column(name="created_at", form=Form.SECONDS, default=0),
        "updated_at": Column(name="updated_at", default=0),
        "expires_at": Column(name="expiry_time", form=Form.SECONDS),
    },
    tags={"Purpose": "Idempotency"},
)

SUPPORT_EVENTS = Table(
    name="support-events",
    title="rp_mw_idempotency_{env}",
    holds=LEDGER,
    partition="event_id",
    attributes={
        "created_at": Kind.TEXT,
        "last_processed_at": Kind.TEXT,
        "received_at": Kind.TEXT,
        "expires_at": Kind.NUMBER,
        "status": Kind.TEXT,
        "mode": Kind.TEXT,
        "conversation_id": Kind.TEXT,
        "safe_mode": Kind.FLAG,
        "automation_enabled": Kind.FLAG,
        "source_message_id": Kind.TEXT,
        "payload_sha256": Kind.TEXT,
        "payload_bytes": Kind.NUMBER,
        "intent": Kind.TEXT,
    },
    expires="expires_at",
    ttl="expires_at",
    bare_keys=True,
    longest=YEAR,
    spread={
        "details": (
            "received_at",
            "mode",
            "conversation_id",
            "safe_mode",
            "automation_enabled",
            "source_message_id",
            "payload_sha256",
            "payload_bytes",
            "intent",
        )
    },
    columns=MARKED
    | {
        "status": Column(name="status", spelled={"COMPLETED": "processed"}, default="COMPLETED"),
        "fingerprint": Column(name="payload_sha256"),
        "created_at": Column(name="created_at", form=Form.ISO, default=0),
        "updated_at": Column(name="last_processed_at", form=Form.ISO, default=0),
        "expires_at": Column(name="expires_at", form=Form.SECONDS),
    },
)

SUPPORT_STATE = Table(
    name="support-state",
    title="rp_mw_conversation_state_{env}",
    bare_keys=True,
    partition="conversation_id",
    attributes={
        "updated_at": Kind.NUMBER,
        "expires_at": Kind.NUMBER,
        "last_processed_at": Kind.TEXT,
        "last_processed_message_id": Kind.TEXT,
        "last_routed_team": Kind.TEXT,
        "last_routing_confidence": Kind.NUMBER,
        "last_intent": Kind.TEXT,
        "risk_flags": Kind.SET,
        "pending_flow": Kind.OBJECT,
        "last_auto_reply": Kind.OBJECT,
        "version": Kind.NUMBER,
        "token": Kind.TEXT,
        "ends": Kind.OBJECT,
    },
    expires="expires_at",
    ttl="expires_at",
    columns={
        "expires_at": Column(name="expires_at", form=Form.SECONDS),
        "updated_at": Column(name="updated_at", form=Form.ISO),
    },
)

SUPPORT_AUDIT = Table(
    name="support-audit",
    title="rp_mw_audit_actions_{env}",
    bare_keys=True,
    partition="conversation_id",
    sort="ts_action_id",
    attributes={
        "action_type": Kind.TEXT,
        "action_payload_redacted": Kind.TEXT,
        "idempotency_key": Kind.TEXT,
        "result": Kind.TEXT,
        "expires_at": Kind.NUMBER,
    },
    expires="expires_at",
    ttl="expires_at",
    columns={"expires_at": Column(name="expires_at", form=Form.SECONDS)},
)

ACTIVITIES = Table(
    name="household-activities",
    title="homeops-activities-{env}",
    titled_by="ACTIVITIES_TABLE_NAME",
    bare_keys=True,
    partition="chatId",
    sort="activityId",
    attributes={
        "userId": Kind.NUMBER,
        "timestamp": Kind.NUMBER,
        "messageId": Kind.NUMBER,
        "type": Kind.TEXT,
        "activity": Kind.TEXT,
        "effort": Kind.TEXT,
        "confidence": Kind.NUMBER,
        # What an entry tells besides; an item that the household's own writer made has none.
        "body": Kind.OBJECT,
        "expires_at": Kind.NUMBER,
    },
    expires="expires_at",
    ttl="",
    forever="a household's activities are its history",
    indexes=(Index(name="userId-timestamp-index", partition="userId", sort="timestamp"),),
    recoverable=True,
)

RESPONSE_COUNTERS = Table(
    name="household-counters",
    title="homeops-response-counters-{env}",
    titled_by="RESPONSE_COUNTERS_TABLE_NAME",
    bare_keys=True,
    partition="chatId",
    sort="date",
    attributes={"count": Kind.NUMBER, "updatedAt": Kind.NUMBER, "ttl": Kind.NUMBER},
    expires="ttl",
    columns={
        "ttl": Column(name="ttl", form=Form.SECONDS),
        "updatedAt": Column(name="updatedAt", form=Form.ISO),
    },
)

MESSAGES = Table(
    name="household-messages",
    title="homeops-messages-{env}",
    titled_by="MESSAGES_TABLE_NAME",
    bare_keys=True,
    partition="chatId",
    sort="messageId",
    attributes={
        "messageId": Kind.NUMBER,
        "userId": Kind.NUMBER,
        "timestamp": Kind.NUMBER,
        "text": Kind.TEXT,
        "expires_at": Kind.NUMBER,
    },
    expires="expires_at",
    # Named as in the household's other table; its own writer gives a message no end, and such a one has none.
    columns={"expires_at": Column(name="ttl", form=Form.SECONDS)},
)

PROBE = Table(
    name="probe",
    title="mq-probe-idempotency",
    holds=LEDGER,
    partition="pk",
    attributes={
        "operationType": Kind.TEXT,
        "idempotencyKey": Kind.TEXT,
        "status": Kind.TEXT,
        "requestHash": Kind.TEXT,
        "responsePayload": Kind.TEXT,
        "createdAt": Kind.TEXT,
        "updatedAt": Kind.TEXT,
        "expiresAt": Kind.TEXT,
        "ttl": Kind.NUMBER,
    },
    expires="ttl",
    bare_keys=True,
    longest=YEAR,
    parts=("operationType", "idempotencyKey"),
    separator="#",
    copies={"expiresAt": ("expires_at", Form.ISO)},
    columns={
        "token": Column(name="token", default=""),
        "attempt": Column(name="attempt", default=1),
        "fingerprint": Column(name="requestHash"),
        "created_at": Column(name="createdAt", form=Form.ISO, default=0),
        "updated_at": Column(name="updatedAt", form=Form.ISO, default=0),
        "lease_until": Column(name="leaseUntil", default=0),
        "expires_at": Column(name="ttl", form=Form.SECONDS),
        "result": Column(name="responsePayload", form=Form.JSON),
        "encoding": Column(name="encoding", default="json"),
        "version": Column(name="version", default=1),
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
