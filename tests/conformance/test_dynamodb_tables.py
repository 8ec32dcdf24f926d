"""Tables that were there first: the rules hold on them, and their items look as their owners have them."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import semel
from semel import errors
from semel.apps.tables import (
    ACTIVITIES,
    ALCHEMISER,
    MESSAGES,
    PROBE,
    QUILL,
    RESPONSE_COUNTERS,
    SUPPORT_AUDIT,
    SUPPORT_EVENTS,
    SUPPORT_STATE,
)
from semel.core.clock import Clock
from semel.core.commands import (
    ABSENT,
    ANY,
    NOW,
    PRESENT,
    Add,
    After,
    Applied,
    Cancelled,
    Delete,
    Get,
    Item,
    Put,
    Query,
    Refused,
    Transact,
    Update,
    allowed,
)
from semel.core.drive import Store
from semel.core.ledger import LedgerSteps
from semel.core.lifecycle import Status
from semel.core.realm import Realm
from semel.model import Busy, Claimed, Mismatch, Replay
from semel.stores.dynamodb.items import ItemFormat, title
from semel.tables import FOREVER, LEDGER, Table
from semel.tables.mapping import Form, asked
from semel.tables.powertools import POWERTOOLS
from semel.testing.clock import FakeClock
from semel.testing.conformance import TABLES
from semel.testing.conformance.faults import FaultTests
from semel.testing.conformance.flow import FlowTests
from semel.testing.conformance.harness import Harness, Runner, RunnerLedger, claimed, keys, one, shown
from semel.testing.conformance.moves import MoveTests, record
from semel.testing.conformance.races import CROWD, RaceTests
from semel.testing.conformance.records import LimitTests, MarkTests, RecordTests
from tests.conformance.dynamodb_kit import ENV, Engine, engine

DAY = 86400


class OnATable(Harness):
    """A store whose ledger is kept in a table that somebody else made."""

    table: Table = LEDGER

    @pytest.fixture(autouse=True)
    def engine(self, request):
        self.on: Engine = engine(request.getfixturevalue("dynoxide"))
        tables = (self.table, *TABLES)
        self.on.make(tables)
        self.on.empty(tables)

    def make_store(self, clock: Clock) -> Store:
        return self.on.store(clock, [self.table])


class KeptElsewhere(
    OnATable, RaceTests, MoveTests, RecordTests, MarkTests, LimitTests, FaultTests, FlowTests
):
    """The rules on such a table. Its keys stand as they are, so it has room for one environment and scope."""

    def test_environments_and_scopes_do_not_meet(self, runner: Runner, ledger: RunnerLedger) -> None:
        """Another environment or scope is refused, as its keys would meet these."""
        claimed(ledger.claim("key"))
        for env, scope in ((ENV, "tenant"), ("tes", "t"), ("other", ""), ("TEST", "")):
            other = LedgerSteps(Realm(env=env, scope=scope))
            for steps in (other.get("key"), other.claim("key"), other.list()):
                with pytest.raises(errors.UsageError, match="a table of their own"):
                    runner.run(steps)
        assert type(ledger.claim("key")) is Busy

    @pytest.mark.parametrize("limit", [1, 3, 100])
    def test_listing(self, runner: Runner, ledger: RunnerLedger, clock: FakeClock, limit: int) -> None:
        """Pages hold the table's records, those of one status if asked."""
        for number in range(9):
            ledger.write(f"key-{number}", record(clock, list(Status)[number % 3]))
        assert sorted(keys(ledger.list, limit=limit)) == [f"key-{number}" for number in range(9)]
        for start, status in enumerate(list(Status)[:3]):
            expected = [f"key-{number}" for number in range(start, 9, 3)]
            assert sorted(keys(ledger.list, status=status, limit=limit)) == expected


class TestQuill(KeptElsewhere):
    table = QUILL


class TestAlchemiser(KeptElsewhere):
    table = ALCHEMISER


class TestSupportEvents(KeptElsewhere):
    table = SUPPORT_EVENTS


class TestProbe(KeptElsewhere):
    table = PROBE


class TestPowertools(KeptElsewhere):
    table = POWERTOOLS


# Races on tables that hold no ledger


def entry(table: Table, clock: FakeClock, **more: Any) -> Item:
    """The least that an item of a table has."""
    return more if table.forever else {table.expires: clock.now() + DAY} | more


NUMBERS = {
    SUPPORT_STATE.name: "version",
    ACTIVITIES.name: "timestamp",
    RESPONSE_COUNTERS.name: "count",
    MESSAGES.name: "timestamp",
}
SORTS: dict[str, Any] = {
    SUPPORT_STATE.name: None,
    SUPPORT_AUDIT.name: "2026-01-03T00:00:00Z#1",
    ACTIVITIES.name: "01HQJZ7B4Z0J5M3RGT8X4K6N9P",
    RESPONSE_COUNTERS.name: "2026-02-17",
    MESSAGES.name: 4711,
}
OTHERS = (SUPPORT_STATE, SUPPORT_AUDIT, ACTIVITIES, RESPONSE_COUNTERS, MESSAGES)
# Keys as the rules give them; in these tables they stand without their environment.
OWNER, TALK, CHAT = (f"{ENV}//{name}" for name in ("owner", "talk", "chat"))
COUNTING = [table for table in OTHERS if table.name in NUMBERS]


@pytest.mark.parametrize("on", ["dynoxide", "ministack"])
class TestRacesElsewhere(Harness):
    """One winner on these tables too."""

    @pytest.fixture(autouse=True)
    def engine(self, request, on: str):
        self.on = engine(request.getfixturevalue(on))
        self.on.make(OTHERS)
        self.on.empty(OTHERS)

    def make_store(self, clock: Clock) -> Store:
        return self.on.store(clock)

    @pytest.mark.parametrize("table", OTHERS, ids=lambda table: table.name)
    def test_one_of_many_puts_wins(self, runner: Runner, clock: FakeClock, table: Table) -> None:
        """The others are refused with what the winner wrote."""
        put = Put(table, OWNER, entry(table, clock), ABSENT, SORTS[table.name])
        replies = runner.together([one(put) for _ in range(CROWD)])
        assert Counter(type(reply) for reply in replies) == {Applied: 1, Refused: CROWD - 1}
        assert all(reply.item for reply in replies if type(reply) is Refused)

    @pytest.mark.parametrize("table", COUNTING, ids=lambda table: table.name)
    def test_one_of_many_updates_wins(self, runner: Runner, clock: FakeClock, table: Table) -> None:
        """Optimistic concurrency: whoever saw the version that is there changes it."""
        number, sort = NUMBERS[table.name], SORTS[table.name]
        runner.ask(Put(table, OWNER, entry(table, clock, **{number: 1}), ANY, sort))
        change = Update(table, OWNER, {number: 2}, {number: 1}, sort)
        replies = runner.together([one(change) for _ in range(CROWD)])
        assert Counter(type(reply) for reply in replies) == {Applied: 1, Refused: CROWD - 1}

    @pytest.mark.parametrize("table", COUNTING, ids=lambda table: table.name)
    def test_no_addition_is_lost(self, runner: Runner, clock: FakeClock, table: Table) -> None:
        """Together they count from zero."""
        number, sort = NUMBERS[table.name], SORTS[table.name]
        add = Add(table, OWNER, number, 1, {table.expires: After(DAY)}, sort=sort)
        replies = runner.together([one(add) for _ in range(CROWD)])
        assert {type(reply) for reply in replies} == {Applied}
        assert sorted(reply.item[number] for reply in replies) == list(range(1, CROWD + 1))

    def test_a_quota_is_never_exceeded(self, runner: Runner) -> None:
        """Of many that want one of three, three get it."""
        day = SORTS[RESPONSE_COUNTERS.name]
        add = Add(RESPONSE_COUNTERS, CHAT, "count", 1, {"ttl": After(7 * DAY)}, 3, day)
        replies = runner.together([one(add) for _ in range(CROWD)])
        assert Counter(type(reply) for reply in replies) == {Applied: 3, Refused: CROWD - 3}
        in_the_way = [shown(reply.item) for reply in replies if type(reply) is Refused]
        assert {item["count"] for item in in_the_way if item} == {3}

    def test_one_of_many_transactions_wins(self, runner: Runner, clock: FakeClock) -> None:
        """State, audit and counter change together or not at all."""
        day, action = SORTS[RESPONSE_COUNTERS.name], SORTS[SUPPORT_AUDIT.name]
        runner.ask(Put(SUPPORT_STATE, TALK, entry(SUPPORT_STATE, clock, version=1)))
        together = Transact(
            (
                Update(SUPPORT_STATE, TALK, {"version": 2}, {"version": 1}),
                Put(SUPPORT_AUDIT, TALK, entry(SUPPORT_AUDIT, clock), ABSENT, action),
                Add(RESPONSE_COUNTERS, CHAT, "count", 1, {"ttl": After(7 * DAY)}, sort=day),
            )
        )
        replies = runner.together([one(together) for _ in range(CROWD)])
        assert Counter(type(reply) for reply in replies) == {Applied: 1, Cancelled: CROWD - 1}
        assert runner.ask(Get(RESPONSE_COUNTERS, CHAT, day)).item["count"] == 1


# What stands in the tables, as their owners wrote it down


def kinds(item: dict[str, Any]) -> dict[str, str]:
    """The attributes of an item with the types that DynamoDB has for them."""
    return {name: next(iter(value)) for name, value in item.items()}


# What semel keeps besides, under names of its own.
OWN = {"token": "S", "attempt": "N", "lease_until": "N", "version": "N"}


class TestShapes:
    @pytest.fixture(autouse=True)
    def engine(self, dynoxide):
        self.on = engine(dynoxide)
        self.clock = FakeClock()
        self.ledger = LedgerSteps(Realm(env=ENV))

    @pytest.fixture
    def run(self):
        stores: list[Any] = []

        def on(*tables: Table) -> Runner:
            self.on.make(tables)
            self.on.empty(tables)
            stores.append(self.on.store(self.clock, [table for table in tables if asked(table) is not table]))
            return Runner(stores[-1])

        yield on
        for store in stores:
            store.close()

    @pytest.mark.seed("Q1")
    def test_quills_table_is_named_by_the_environment(self, monkeypatch) -> None:
        """`QuillIdempotencyLedger`, or what DYNAMO_TABLE_NAME says; its key is `pk`, its TTL `expiresAt`."""
        assert title(QUILL, ENV) == "QuillIdempotencyLedger"
        assert (QUILL.key, QUILL.ttl) == (("pk",), "expiresAt")
        monkeypatch.setenv("DYNAMO_TABLE_NAME", "QuillElsewhere")
        self.on.make([QUILL])
        store = self.on.store(self.clock, [QUILL])
        Runner(store).run(self.ledger.check_and_set("ALOWARE:1"))
        store.close()
        found = self.on.call("Scan", TableName="QuillElsewhere")
        self.on.empty([QUILL])
        assert [item["pk"] for item in found["Items"]] == [{"S": "ALOWARE:1"}]

    @pytest.mark.seed("Q2")
    @pytest.mark.seed("Q4")
    def test_what_quill_sees(self, run) -> None:
        """`pk`, `seenAt` in ISO, `expiresAt` fourteen days on in whole seconds, `source`; and our own."""
        runner = run(QUILL)
        self.clock.advance(0.25)
        assert runner.run(self.ledger.check_and_set("ALOWARE:719285063", ttl=14 * DAY)) is True
        item = self.on.item(QUILL, "ALOWARE:719285063")
        assert (
            kinds(item)
            == {
                "pk": "S",
                "seenAt": "S",
                "expiresAt": "N",
                "source": "S",
                "updatedAt": "S",
                "status": "S",
                "encoding": "S",
            }
            | OWN
        )
        assert item["seenAt"] == {"S": "2023-11-14T22:13:20.250Z"}
        assert item["expiresAt"] == {"N": str(1_700_000_001 + 14 * DAY)}
        assert item["source"] == {"S": "ALOWARE"}

    @pytest.mark.seed("Q3")
    def test_what_quill_has_seen_is_a_duplicate(self, run) -> None:
        """An item of Quill's own counts, until its time is up; and ours count for Quill."""
        runner = run(QUILL)
        seen = {"pk": {"S": "HUBSPOT:0-1:5:x"}, "seenAt": {"S": "2023-11-14T22:00:00Z"}}
        self.on.put(QUILL, seen | {"expiresAt": {"N": "1700000060"}, "source": {"S": "HUBSPOT"}})
        assert runner.run(self.ledger.check_and_set("HUBSPOT:0-1:5:x")) is False
        assert runner.run(self.ledger.is_processed("HUBSPOT:0-1:5:x")) is True
        found = runner.run(self.ledger.get("HUBSPOT:0-1:5:x"))
        assert (found.status, found.attempt, found.created_at) == (Status.COMPLETED, 1, 1_699_999_200.0)
        assert found.tombstone
        assert [each.key for each in runner.run(self.ledger.list(status="COMPLETED")).records] == [found.key]
        self.clock.advance(60)
        assert runner.run(self.ledger.check_and_set("HUBSPOT:0-1:5:x")) is True

    @pytest.mark.parametrize("table", [QUILL, ALCHEMISER, SUPPORT_EVENTS], ids=lambda table: table.name)
    def test_what_somebody_else_marked_can_be_forgotten(self, run, table: Table) -> None:
        """It has no token, which is a token too; and without an end it is there for good."""
        runner = run(table)
        self.on.put(table, {table.partition: {"S": "theirs"}})
        assert type(runner.run(self.ledger.claim("theirs"))) is Replay
        self.clock.advance(1e9)
        assert type(runner.run(self.ledger.claim("theirs"))) is Replay
        assert runner.run(self.ledger.forget("theirs")) is True
        assert type(runner.run(self.ledger.claim("theirs"))) is Claimed

    @pytest.mark.seed("A3")
    def test_what_alchemiser_sees(self, run, monkeypatch) -> None:
        """`idempotency_key`, `expiry_time` and `created_at`, both in whole seconds."""
        runner = run(ALCHEMISER)
        assert runner.run(self.ledger.check_and_set("workflow-123", ttl=3600)) is True
        item = self.on.item(ALCHEMISER, "workflow-123")
        assert item["expiry_time"] == {"N": "1700003600"}
        assert item["created_at"] == {"N": "1700000000"}
        assert set(item) - set(OWN) == {
            "idempotency_key",
            "expiry_time",
            "created_at",
            "updated_at",
            "status",
            "encoding",
        }
        monkeypatch.setenv("IDEMPOTENCY_TABLE_NAME", "elsewhere")
        assert title(ALCHEMISER, ENV) == "elsewhere"

    @pytest.mark.seed("R1")
    def test_what_support_sees_of_an_event(self, run) -> None:
        """The ledger writes what it knows, and what the application notes, by its own names."""
        runner = run(SUPPORT_EVENTS)
        key = "evt:rp:talk:message"
        claim = claimed(runner.run(self.ledger.claim(key, fingerprint="f" * 64, ttl=30 * DAY)))
        more = {
            "received_at": "2023-11-14T22:13:19Z",
            "mode": "route_only",
            "conversation_id": "talk",
            "safe_mode": True,
            "automation_enabled": False,
            "source_message_id": "message",
            "payload_bytes": 512,
            "intent": "order_status",
        }
        with pytest.raises(semel.UsageError, match="no attribute 'mood'"):
            runner.run(self.ledger.complete(claim, details={"mood": "good"}))
        runner.run(self.ledger.complete(claim, details=more))
        item = self.on.item(SUPPORT_EVENTS, key)
        assert (
            kinds(item)
            == {
                "event_id": "S",
                "created_at": "S",
                "last_processed_at": "S",
                "received_at": "S",
                "expires_at": "N",
                "status": "S",
                "mode": "S",
                "conversation_id": "S",
                "safe_mode": "BOOL",
                "automation_enabled": "BOOL",
                "source_message_id": "S",
                "payload_sha256": "S",
                "payload_bytes": "N",
                "intent": "S",
                "result": "B",
                "encoding": "S",
            }
            | OWN
        )
        assert item["status"] == {"S": "processed"}
        assert item["expires_at"] == {"N": str(1_700_000_000 + 30 * DAY)}
        assert (
            shown(runner.ask(Get(SUPPORT_EVENTS, key)).item)
            == {
                "event_id": key,
                "created_at": "2023-11-14T22:13:20.000Z",
                "last_processed_at": "2023-11-14T22:13:20.000Z",
                "expires_at": 1_700_000_000 + 30 * DAY,
                "status": "processed",
                "payload_sha256": "f" * 64,
            }
            | more
        )
        replay = runner.run(self.ledger.claim(key, fingerprint="f" * 64))
        assert replay.record.details == more

    @pytest.mark.seed("R2")
    def test_what_support_sees_of_a_conversation(self, run) -> None:
        """Objects, a set, numbers and ISO texts, with a version and an end in whole seconds."""
        runner = run(SUPPORT_STATE)
        state = {
            "updated_at": self.clock.now(),
            "expires_at": self.clock.now() + 90 * DAY - 0.5,
            "last_processed_at": "2023-11-14T22:13:20Z",
            "last_processed_message_id": "message",
            "last_routed_team": "returns",
            "last_routing_confidence": 0.92,
            "last_intent": "order_status",
            "risk_flags": {"chargeback", "fraud_suspected"},
            "pending_flow": {"type": "need_order_number", "attempts": 1},
            "last_auto_reply": {"type": "order_status", "source_message_id": "message"},
            "version": 1,
        }
        runner.ask(Put(SUPPORT_STATE, TALK, state, ABSENT))
        item = self.on.item(SUPPORT_STATE, "talk")
        assert kinds(item) == {
            "conversation_id": "S",
            "updated_at": "S",
            "expires_at": "N",
            "last_processed_at": "S",
            "last_processed_message_id": "S",
            "last_routed_team": "S",
            "last_routing_confidence": "N",
            "last_intent": "S",
            "risk_flags": "SS",
            "pending_flow": "M",
            "last_auto_reply": "M",
            "version": "N",
        }
        assert item["expires_at"] == {"N": str(1_700_000_000 + 90 * DAY)}
        assert item["updated_at"] == {"S": "2023-11-14T22:13:20.000Z"}
        assert title(SUPPORT_STATE, "prod") == "rp_mw_conversation_state_prod"

    @pytest.mark.seed("R3")
    def test_what_support_sees_of_an_action(self, run) -> None:
        """Actions of a conversation in the order of their sort key, each with its end."""
        runner = run(SUPPORT_AUDIT)
        action = {
            "action_type": "route",
            "action_payload_redacted": "{}",
            "idempotency_key": "act:rp_tag:talk:vip:message",
            "result": "success",
            "expires_at": After(60 * DAY),
        }
        sorts = [f"2026-01-03T00:00:0{second}Z#a" for second in (2, 0, 1)]
        for sort in sorts:
            runner.ask(Put(SUPPORT_AUDIT, TALK, action, ABSENT, sort))
        assert kinds(self.on.item(SUPPORT_AUDIT, "talk", sorts[0])) == {
            "conversation_id": "S",
            "ts_action_id": "S",
            "action_type": "S",
            "action_payload_redacted": "S",
            "idempotency_key": "S",
            "result": "S",
            "expires_at": "N",
        }
        found = runner.ask(Query(SUPPORT_AUDIT, TALK)).items
        assert [item["ts_action_id"] for item in found] == sorted(sorts)

    @pytest.mark.seed("H1", "H11")
    def test_what_the_household_sees_of_an_activity(self, run) -> None:
        """`chatId` and `activityId`; `userId` and `timestamp` as numbers; no end, as it is history."""
        runner = run(ACTIVITIES)
        activity = {
            "userId": 7,
            "timestamp": 1_700_000_000_000,
            "messageId": 42,
            "type": "chore",
            "activity": "dishes",
            "effort": "low",
            "confidence": 0.8,
        }
        runner.ask(Put(ACTIVITIES, CHAT, activity, ABSENT, "01HQJZ7B4Z0J5M3RGT8X4K6N9P"))
        item = self.on.item(ACTIVITIES, "chat", "01HQJZ7B4Z0J5M3RGT8X4K6N9P")
        assert kinds(item) == {
            "chatId": "S",
            "activityId": "S",
            "userId": "N",
            "timestamp": "N",
            "messageId": "N",
            "type": "S",
            "activity": "S",
            "effort": "S",
            "confidence": "N",
        }
        by_user = self.on.call(
            "Query",
            TableName=title(ACTIVITIES, ENV),
            IndexName="userId-timestamp-index",
            KeyConditionExpression="userId = :user",
            ExpressionAttributeValues={":user": {"N": "7"}},
        )
        assert by_user["Items"] == [item]

    @pytest.mark.seed("H8")
    @pytest.mark.parametrize("server", ["dynoxide", "ministack"])
    def test_activities_of_a_user_come_in_the_order_of_time(self, request, server: str) -> None:
        """Of any chat, within a range of time, and page by page; of one chat in the order of their ids."""
        self.on = engine(request.getfixturevalue(server))
        self.on.make([ACTIVITIES])
        self.on.empty([ACTIVITIES])
        store = self.on.store(self.clock)
        runner = Runner(store)
        for number in range(10):
            activity = {"userId": number % 2, "timestamp": 100 - number, "messageId": number}
            chat = f"{ENV}//chat-{number % 3}"
            runner.ask(Put(ACTIVITIES, chat, activity, ABSENT, f"01H{number}"))
        query, found = Query(ACTIVITIES, 1, 92, 99, index="userId-timestamp-index", limit=2), []
        while True:
            page = runner.ask(query)
            found += [item["timestamp"] for item in page.items]
            if page.after is None:
                break
            query = msgspec.structs.replace(query, after=page.after)
        assert found == [93, 95, 97, 99]
        in_chat = runner.ask(Query(ACTIVITIES, f"{ENV}//chat-0")).items
        assert [item["messageId"] for item in in_chat] == [0, 3, 6, 9]
        store.close()

    @pytest.mark.seed("H3")
    def test_what_the_household_sees_of_a_counter(self, run) -> None:
        """`count` is added to, `updatedAt` written each time, `ttl` only once."""
        runner = run(RESPONSE_COUNTERS)
        for _ in range(2):
            self.clock.advance(3600)
            changes = {"updatedAt": NOW, "ttl": After(7 * DAY)}
            runner.ask(Add(RESPONSE_COUNTERS, CHAT, "count", 1, changes, sort="2023-11-14"))
        assert self.on.item(RESPONSE_COUNTERS, "chat", "2023-11-14") == {
            "chatId": {"S": "chat"},
            "date": {"S": "2023-11-14"},
            "count": {"N": "2"},
            "updatedAt": {"S": "2023-11-15T00:13:20.000Z"},
            "ttl": {"N": str(1_700_003_600 + 7 * DAY)},
        }

    @pytest.mark.seed("H7")
    def test_the_last_messages_of_a_chat(self, run) -> None:
        """`messageId` is a number and sorts as one: the last ten are those with the highest."""
        runner = run(MESSAGES)
        for number in range(95, 107):
            message = {"userId": 7, "timestamp": number, "text": "hello", "expires_at": After(DAY)}
            runner.ask(Put(MESSAGES, CHAT, message, ABSENT, number))
        assert kinds(self.on.item(MESSAGES, "chat", 100)) == {
            "chatId": "S",
            "messageId": "N",
            "userId": "N",
            "timestamp": "N",
            "text": "S",
            "ttl": "N",
        }
        query = Query(MESSAGES, CHAT, reverse=True, limit=10, only=("userId", "timestamp"))
        last = runner.ask(query).items
        assert [item["messageId"] for item in last] == list(range(106, 96, -1))
        assert {(item["userId"], "text" in item) for item in last} == {(7, False)}

    @pytest.mark.seed("M1")
    @pytest.mark.seed("M2")
    def test_what_the_probe_sees(self, run) -> None:
        """Claimed it is IN_PROGRESS; then COMPLETED with the response as JSON text, every name as it was."""
        runner = run(PROBE)
        key = "PRODUCE#5c1e0a56-4a58"
        claim = claimed(runner.run(self.ledger.claim(key, fingerprint="a" * 64, ttl=DAY)))
        running = self.on.item(PROBE, key)
        shape = {
            "pk": "S",
            "operationType": "S",
            "idempotencyKey": "S",
            "status": "S",
            "requestHash": "S",
            "createdAt": "S",
            "updatedAt": "S",
            "expiresAt": "S",
            "ttl": "N",
            "token": "S",
            "attempt": "N",
            "leaseUntil": "N",
            "version": "N",
        }
        assert kinds(running) == shape
        assert running["status"] == {"S": "IN_PROGRESS"}
        self.clock.advance(2)
        runner.run(self.ledger.complete(claim, {"processedMessages": 100, "elapsed": "PT2.5S"}))
        done = self.on.item(PROBE, key)
        assert kinds(done) == shape | {"responsePayload": "S", "encoding": "S"}
        assert {name: value for name, value in done.items() if name in PROBE.attributes or name == "pk"} == {
            "pk": {"S": key},
            "operationType": {"S": "PRODUCE"},
            "idempotencyKey": {"S": "5c1e0a56-4a58"},
            "status": {"S": "COMPLETED"},
            "requestHash": {"S": "a" * 64},
            "responsePayload": {"S": '{"processedMessages":100,"elapsed":"PT2.5S"}'},
            "createdAt": {"S": "2023-11-14T22:13:20.000Z"},
            "updatedAt": {"S": "2023-11-14T22:13:22.000Z"},
            "expiresAt": {"S": "2023-11-15T22:13:22.000Z"},
            "ttl": {"N": str(1_700_000_002 + DAY)},
        }

    @pytest.mark.seed("M2")
    def test_what_the_probe_wrote_is_replayed(self, run) -> None:
        """An item of its own, as its document shows one; and one that failed there has failed here."""
        runner = run(PROBE)
        theirs = {
            "pk": {"S": "PRODUCE#a"},
            "operationType": {"S": "PRODUCE"},
            "idempotencyKey": {"S": "a"},
            "status": {"S": "COMPLETED"},
            "requestHash": {"S": "f1c4b5a3"},
            "responsePayload": {"S": '{"processedMessages":100,"elapsed":"PT2.5S"}'},
            "createdAt": {"S": "2025-10-29T12:00:00Z"},
            "updatedAt": {"S": "2025-10-29T12:00:02Z"},
            "expiresAt": {"S": "2025-10-30T12:00:00Z"},
            "ttl": {"N": "1761748800"},
        }
        self.on.put(PROBE, theirs)
        replay = runner.run(self.ledger.claim("PRODUCE#a", fingerprint="f1c4b5a3"))
        assert type(replay) is Replay
        assert replay.result == {"processedMessages": 100, "elapsed": "PT2.5S"}
        assert replay.record.created_at == 1_761_739_200.0
        self.on.put(PROBE, theirs | {"pk": {"S": "CONSUME#b"}, "status": {"S": "FAILED"}})
        assert runner.run(self.ledger.claim("CONSUME#b")).record.status is Status.FAILED

    @pytest.mark.seed("M3")
    def test_what_the_probe_wrote_has_its_payload(self, run) -> None:
        """Its hash is compared, whatever became of the request; an item without one says nothing."""
        runner = run(PROBE)
        for status in ("COMPLETED", "IN_PROGRESS", "FAILED"):
            theirs = {"pk": {"S": "PRODUCE#a"}, "status": {"S": status}, "requestHash": {"S": "f1c4b5a3"}}
            self.on.put(PROBE, theirs)
            assert type(runner.run(self.ledger.claim("PRODUCE#a", fingerprint="a" * 64))) is Mismatch
            assert type(runner.run(self.ledger.claim("PRODUCE#a", fingerprint="f1c4b5a3"))) is not Mismatch
        self.on.put(PROBE, {"pk": {"S": "PRODUCE#a"}, "status": {"S": "COMPLETED"}})
        assert type(runner.run(self.ledger.claim("PRODUCE#a", fingerprint="a" * 64))) is Replay

    @pytest.mark.seed("M3")
    @pytest.mark.parametrize("on_lapsed", ["rerun", "hold", "resolve"])
    @pytest.mark.parametrize("table", [QUILL, ALCHEMISER, SUPPORT_EVENTS, PROBE, POWERTOOLS], ids=repr)
    def test_what_somebody_else_is_at_is_held_until_its_end(self, run, table: Table, on_lapsed: Any) -> None:
        """It has no lease of ours, so it has the time that its owner gave it; nothing is written into it."""
        runner = run(table)
        layout = ItemFormat(LEDGER, table, ENV)
        theirs = {
            table.partition: {"S": "theirs"},
            "status": layout.fields["status"].write("IN_PROGRESS"),
            layout.expires.name: {"N": "1700000060"},
        }
        self.on.put(table, theirs)
        busy = runner.run(self.ledger.claim("theirs", on_lapsed=on_lapsed))
        assert type(busy) is Busy
        assert busy.retry_after == 60
        self.clock.advance(59.5)
        assert type(runner.run(self.ledger.claim("theirs", on_lapsed=on_lapsed))) is Busy
        assert self.on.item(table, "theirs") == theirs
        self.clock.advance(0.5)
        mine = runner.run(self.ledger.claim("theirs", on_lapsed=on_lapsed))
        assert (type(mine), mine.attempt) == (Claimed, 1)

    def test_an_owners_attributes_survive_what_the_ledger_changes(self, run) -> None:
        """A completion changes what it names and leaves the rest; a delete takes it all."""
        runner = run(QUILL)
        claim = claimed(runner.run(self.ledger.claim("ALOWARE:1")))
        assert type(runner.ask(Update(QUILL, "ALOWARE:1", {"notes": "initial insert"}))) is Applied
        runner.run(self.ledger.complete(claim, "done"))
        assert self.on.item(QUILL, "ALOWARE:1")["notes"] == {"S": "initial insert"}
        assert type(runner.ask(Delete(QUILL, "ALOWARE:1", PRESENT))) is Applied
        assert runner.run(self.ledger.get("ALOWARE:1")) is None

    def test_a_body_comes_with_its_encoding(self, run) -> None:
        """Where a body is kept as text only its encoding tells how, so neither is written alone."""
        runner = run(PROBE)
        runner.run(self.ledger.claim("key"))
        with pytest.raises(errors.UsageError, match="together with its 'encoding'"):
            runner.ask(Update(LEDGER, self.ledger.name("key"), {"result": b"1", "updated_at": NOW}))


# Expecting what others wrote


STATUSES = ["IN_PROGRESS", "COMPLETED", "RELEASED", "FAILED"]
MOMENTS = [0, 1_700_000_000, 1_700_000_000.1, 1_700_000_001.5, 1_700_009_999]
# As semel writes moments and as others do, whole and in parts.
SPELLED = {
    Form.SECONDS: ["1700000000", "1700000001.5"],
    Form.MILLISECONDS: ["1700000000100", "1700000001500.5"],
    Form.ISO: ["2023-11-14T22:13:20Z", "2023-11-14T22:13:20.1+00:00", "2023-11-14T22:13:20.123456"],
}


def somebodys(table: Table) -> st.SearchStrategy[dict[str, Any]]:
    """An item that lacks any attribute but its key, in the forms that the table has for them."""
    known = {
        "status": st.sampled_from(STATUSES),
        "token": st.sampled_from(["", "t"]),
        "attempt": st.integers(0, 3),
        "lease_until": st.sampled_from(MOMENTS),
        "expires_at": st.sampled_from(MOMENTS),
        "created_at": st.sampled_from(MOMENTS),
        "encoding": st.sampled_from(["json", "none:mark"]),
    }
    values: dict[str, st.SearchStrategy[Any]] = {}
    for name, drawn in known.items():
        field = ItemFormat(LEDGER, table, ENV).fields[name]
        spelled = [{"S" if field.form is Form.ISO else "N": text} for text in SPELLED.get(field.form, [])]
        written = drawn.map(field.write)
        values[field.name] = written | st.sampled_from(spelled) if spelled else written
    return st.fixed_dictionaries({}, optional=values)


NAMES = ["status", "token", "attempt", "lease_until", "expires_at", "created_at", "encoding"]
EXPECTED = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from([*STATUSES, None]),
        "token": st.sampled_from(["", "t", None]),
        "attempt": st.sampled_from([0, 1, 2, None]),
        "lease_until": st.sampled_from([0, 1_700_000_000, FOREVER, None]),
        "expires_at": st.sampled_from([0, 1_700_000_000, FOREVER]),
        "created_at": st.sampled_from([0, 1_700_000_000]),
        "encoding": st.sampled_from(["json", "none:mark", None]),
    },
)


class TestExpectationsElsewhere:
    @pytest.mark.parametrize("table", [QUILL, ALCHEMISER, SUPPORT_EVENTS, PROBE, POWERTOOLS], ids=repr)
    def test_the_server_decides_as_the_rules_do(self, dynoxide, table: Table) -> None:
        """A write is made exactly if it expects what is read: defaults too, and values in any spelling."""
        on = engine(dynoxide)
        on.make([table])
        on.empty([table])
        clock = FakeClock()
        store = on.store(clock, [table])
        fresh = record(clock, Status.IN_PROGRESS)

        @given(st.none() | somebodys(table), EXPECTED, st.sets(st.sampled_from(NAMES)))
        @example({}, {}, {"token", "status", "lease_until", "expires_at"})
        def decided_alike(item: dict[str, Any] | None, others: Item, as_read: set[str]) -> None:
            if item is None:
                on.empty([table])
            else:
                on.put(table, {table.partition: {"S": "key"}} | item)
            found = store.execute(Get(LEDGER, f"{ENV}//key")).item
            expect = others | {name: (found or {}).get(name) for name in as_read}
            for write in (
                Update(LEDGER, f"{ENV}//key", {"error": "changed"}, expect),
                Put(LEDGER, f"{ENV}//key", fresh, expect),
            ):
                reply = store.execute(write)
                assert (type(reply) is Applied) is allowed(write, found), (found, expect)
                if type(reply) is Refused:
                    assert reply.item == found
                else:
                    found = store.execute(Get(LEDGER, f"{ENV}//key")).item

        decided_alike()
        store.close()
