"""Telemetry: what happened in a ledger is told in logs, traces and metrics; counted right, with no key."""

import asyncio
import functools
import json
import logging
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import pytest
import yaml  # type: ignore[import-untyped]
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

import semel
from semel import Event, What
from semel.connect import MOST_CAUSES, LogThrottle
from semel.core.codecs import Codec, Encryption
from semel.core.commands import Put, Stored
from semel.core.events import Listener, name_of
from semel.doors.inbox import Message, open_inbox
from semel.doors.queues.messages import Handler
from semel.doors.webhooks import Bearer, Ingress, Notice, Provider
from semel.errors import InvalidOption, MissingExtra
from semel.gate import Cap
from semel.redact import Redactor
from semel.stores.memory import MemoryStore
from semel.tables import LEDGER
from semel.telemetry import log_events
from semel.telemetry.emf import Emf
from semel.telemetry.otel import OpenTelemetry
from semel.telemetry.prometheus import Prometheus
from semel.telemetry.words import METRICS, OUTCOMES, metric, outcome
from semel.testing import FakeClock, Faulty

# Stands in keys, payloads, results and errors, and is to be found in nothing that telemetry puts out.
PRIVATE = "ada@example.org"


class Declined(Exception):
    """The other side said no."""


def decline(who: str) -> None:
    raise Declined(who)


def live(listener: Listener) -> None:
    """A life of a ledger in which one of each thing happens that telemetry is to tell apart."""
    clock = FakeClock()
    with semel.connect("memory:", on_event=listener, clock=clock) as s:
        greet = s.once("greet:{who}", fingerprint=("text",), on_busy="raise")(lambda who, text: who + text)
        greet(PRIVATE, "hello")  # new
        greet(PRIVATE, "hello")  # a duplicate
        greet(PRIVATE, "hello")
        with pytest.raises(semel.PayloadChanged):
            greet(PRIVATE, PRIVATE)  # a mismatch
        s.ledger.claim(f"greet:{PRIVATE}-2", lease=30)  # new
        with pytest.raises(semel.InProgress):
            greet(f"{PRIVATE}-2", "hello")  # busy
        clock.advance(31)
        greet(f"{PRIVATE}-2", "hello")  # taken over
        charge = s.once("charge:{who}", on_error={Declined: "keep"})(decline)
        for _ in range(2):
            with pytest.raises(Declined):
                charge(PRIVATE)  # new and failed; then a duplicate of a failure
        gate = s.gate(Cap("replies", 1))
        gate.decide(f"reply:{PRIVATE}")  # allowed
        gate.decide(f"reply:{PRIVATE}-2")  # refused
        s.through("sqs").ledger.claim(f"message:{PRIVATE}")  # new, by a door


EVENTS = {
    "": {
        "claimed": 3,
        "completed": 2,
        "replayed": 2,
        "mismatch": 1,
        "busy": 1,
        "taken_over": 1,
        "failed": 1,
        "failed_before": 1,
        "allowed": 1,
        "refused": 1,
    },
    "sqs": {"claimed": 1},
}


def test_the_life_that_the_other_tests_tell_of_is_as_they_say() -> None:
    heard: list[Event] = []
    live(heard.append)
    for door, events in EVENTS.items():
        assert Counter(event.what for event in heard if event.door == door) == events


# The words


def test_the_words_are_those_that_people_use() -> None:
    words = {what.value: outcome(what) for what in What}
    assert words["claimed"] == "new"
    assert words["replayed"] == words["failed_before"] == "duplicate"
    assert words["failed"] == words["exhausted"] == "failed"
    assert {"busy", "mismatch", "taken_over", "refused"} <= set(words.values())


def test_a_kind_of_event_that_nobody_thought_of_is_its_own_word() -> None:
    ours = set(OUTCOMES)
    assert {what: outcome(what) for what in set(What) - ours} == {
        what: what.value for what in set(What) - ours
    }


def test_every_kind_of_event_has_a_metric_in_cloudwatch() -> None:
    names = {metric(what) for what in What}
    assert {"Hits", "Misses", "Busy", "Mismatch", "Failed", "TakenOver", "ClaimLost", "Refused"} <= names
    assert all(re.fullmatch(r"([A-Z][a-z]+)+", name) for name in names)
    assert len(names) <= 100, "more than a document of the embedded metric format may hold"
    assert set(METRICS) <= {outcome(what) for what in What}


# Logs


def everything_to_be_looked_at(listener: Listener) -> None:
    """A life of a ledger in which everything happens that semel warns of."""
    clock = FakeClock()
    store = Faulty(MemoryStore(clock))
    with semel.Semel(store, clock=clock) as s:
        s.events.listen(listener)
        terms: dict[str, Any] = {"a": {}, "b": {"on_lapsed": "hold"}, "c": {"max_attempts": 1}}
        for key, options in terms.items():
            s.ledger.claim(key, lease=30)
            clock.advance(31)
            s.ledger.claim(key, **options)  # taken over, held, exhausted
        lost = s.ledger.claim("d")
        assert isinstance(lost, semel.Claimed)
        s.ledger.forget("d")
        with pytest.raises(semel.ClaimLost):
            s.ledger.complete(lost)
        s.once("e")(object)()  # its result cannot be kept
        store.refuse()
        s.once("f", on_store_error="open")(lambda: None)()
        store.inner.execute(Put(LEDGER, "dev//g", {"status": "NONSENSE", "expires_at": clock.now() + 60}))
        with pytest.raises(semel.RecordCorrupt):
            s.ledger.get("g")


def test_everything_is_logged_once_and_what_should_be_looked_at_as_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    heard: list[Event] = []

    def listen(event: Event) -> None:
        heard.append(event)
        log_events(event)

    live(listen)
    everything_to_be_looked_at(listen)
    logged = [(re.split(":| of ", record.getMessage())[0], record.levelname) for record in caplog.records]
    warned = {name for name, level in logged if level == "WARNING"}
    assert [name for name, _ in logged] == [event.what for event in heard]
    assert warned == {event.what for event in heard if event.warned}
    assert len(warned) == 9
    assert {"failed", "store_error"} <= warned
    assert {name for name, level in logged if level == "INFO"} == {event.what for event in heard} - warned


def test_a_log_record_has_the_fields_of_the_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_events(Event(What.REFUSED, "0123456789abcdef", 2, "QuietHours", "http", name="shop.reply"))
    [record] = caplog.records
    assert record.name == "semel.events"
    assert record.getMessage() == "refused of shop.reply: key 0123456789abcdef, attempt 2. QuietHours"
    assert {name: value for name, value in vars(record).items() if name.startswith("semel_")} == {
        "semel_event": "refused",
        "semel_outcome": "refused",
        "semel_key_digest": "0123456789abcdef",
        "semel_attempt": 2,
        "semel_door": "http",
        "semel_name": "shop.reply",
        "semel_detail": "QuietHours",
    }


# Keys, where they are allowed


def keys_told(caplog: pytest.LogCaptureFixture, **options: Any) -> tuple[list[str], list[str], list[str]]:
    """The keys of events, the lines of the log, and their fields with the key."""
    caplog.set_level(logging.INFO)
    heard, clock = list[Event](), FakeClock()
    with semel.connect("memory:", on_event=heard.append, clock=clock, **options) as s:
        s.events.listen(log_events)
        s.through("http").scoped("north").ledger.claim(f"order:{PRIVATE}/7", lease=30)
        clock.advance(31)
        s.scoped("north").ledger.claim(f"order:{PRIVATE}/7", lease=30)
    fields = [str(vars(record).get("semel_key")) for record in caplog.records]
    return [event.key for event in heard], [record.getMessage() for record in caplog.records], fields


def test_keys_are_told_where_that_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    keys, lines, fields = keys_told(caplog, log_keys=True)
    assert keys == fields == [f"order:{PRIVATE}/7"] * 2
    assert re.fullmatch(rf"claimed: key [0-9a-f]{{16}} \(order:{PRIVATE}/7\), attempt 1", lines[0])
    assert lines[1].startswith("taken_over: key ")


def test_keys_are_redacted_where_the_ledger_redacts(caplog: pytest.LogCaptureFixture) -> None:
    keys, lines, fields = keys_told(caplog, log_keys=True, redact=Redactor())
    assert keys == fields == ["order:***@***/7"] * 2
    assert PRIVATE not in "".join(lines)


def test_a_key_that_cannot_be_redacted_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    broken = SimpleNamespace(text=lambda _text: 1 / 0)
    keys, lines, _ = keys_told(caplog, log_keys=True, redact=broken)
    assert not [text for text in (*keys, *lines) if PRIVATE in text]
    assert all(keys)


def test_without_being_allowed_no_key_is_told(caplog: pytest.LogCaptureFixture) -> None:
    keys, lines, fields = keys_told(caplog)
    assert keys == ["", ""]
    assert fields == ["None", "None"]
    assert PRIVATE not in "".join(lines)


def test_metrics_and_spans_have_no_keys_though_they_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    registry, emf = CollectorRegistry(), Emf(service="orders", env="prod")
    with semel.connect("memory:", on_event=Prometheus(registry), log_keys=True) as s:
        s.events.listen(emf)
        s.ledger.check_and_set(f"order:{PRIVATE}")
    emf.flush()
    assert PRIVATE not in capsys.readouterr().out + generate_latest(registry).decode()


def test_a_hidden_key_stays_hidden(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []
    with semel.connect("memory:", on_event=heard.append, log_keys=True, secret=b"s" * 32) as s:
        s.once("greet:{name}", hide_key=True)(one_more_greeting)(PRIVATE)
    assert heard
    assert PRIVATE not in repr(heard)


def test_an_event_about_no_key_has_none() -> None:
    heard: list[Event] = []
    with semel.connect("memory:", on_event=heard.append, log_keys=True) as s:
        s.events.emit(What.REFUSED, "", detail="signature")
    assert [event.key for event in heard] == [""]


def test_an_event_tells_its_scope() -> None:
    heard: list[Event] = []
    with semel.connect("memory:", on_event=heard.append, scope="home") as s:
        for ledger in (s, s.scoped("north"), s.scoped("north").through("http"), s.through("http").scoped("")):
            ledger.ledger.check_and_set("a")
    assert [(event.scope, event.door) for event in heard] == [
        ("home", ""),
        ("north", ""),
        ("north", "http"),
        ("", "http"),
    ]


def one_more_greeting(name: str) -> str:
    return f"hello {name}"


def one_more(n: int) -> int:
    return n + 1


class Till:
    @staticmethod
    def handle(message: str) -> None:
        if message == "poison":
            raise ValueError(message)


@pytest.mark.parametrize("is_async", [False, True])
def test_every_event_of_a_function_names_it(caplog: pytest.LogCaptureFixture, is_async: bool) -> None:
    clock, heard = FakeClock(), list[Event]()
    s = semel.connect("memory:", clock=clock, on_event=heard.append)

    def charge(order: int) -> int:
        return order

    async def acharge(order: int) -> int:
        return order

    chosen: Any = acharge if is_async else charge
    name = f"{__name__}.{chosen.__qualname__}"
    work = s.once("k:{order}", fingerprint=None)(chosen)

    def call(order: int) -> None:
        asyncio.run(work(order)) if is_async else work(order)

    s.ledger.claim("k:2", lease=30)
    clock.advance(31)
    heard.clear()
    for order in (1, 1, 2):
        call(order)
    told = [What.CLAIMED, What.COMPLETED, What.REPLAYED, What.TAKEN_OVER, What.COMPLETED]
    assert [event.what for event in heard] == told
    assert {event.name for event in heard} == {name}
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert record.getMessage().startswith(f"taken_over of {name}: key ")
    assert vars(record)["semel_name"] == name


def test_an_event_of_a_message_names_the_function_that_handles_it() -> None:
    heard: list[Event] = []
    s = semel.connect("memory:", on_event=heard.append)
    handler = Handler[str](s, Till.handle, key=str, door="sqs", on_error={ValueError: "keep"})
    for message in ("m-1", "m-1", "poison"):
        handler.take(message)
    assert {(event.door, event.name) for event in heard} == {("sqs", f"{__name__}.Till.handle")}
    assert heard[-1].what is What.FAILED


def test_a_step_and_a_call_under_a_key_are_named_by_their_functions() -> None:
    heard: list[Event] = []
    s = semel.connect("memory:", on_event=heard.append)
    s.once.call("outer", lambda: s.once.step("inner", Till.handle, "m-1"))
    assert {event.name.rpartition(".")[2] for event in heard} == {"<lambda>", "handle"}


def test_what_is_no_function_is_named_by_its_type() -> None:
    assert name_of(functools.partial(print)) == "functools.partial"
    assert name_of(Till().handle) == f"{__name__}.Till.handle"


def test_a_line_without_a_detail_ends_where_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_events(Event(What.CLAIMED, "0123456789abcdef", 1))
    assert [record.getMessage() for record in caplog.records] == ["claimed: key 0123456789abcdef, attempt 1"]


def test_nothing_is_logged_below_the_level_that_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    log_events(Event(What.CLAIMED, "0123456789abcdef", 1))
    assert not caplog.records


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What an operator hears who listens to warnings alone."""
    caplog.set_level(logging.WARNING)
    return caplog


def test_every_dead_letter_leaves_a_line_at_warning_with_the_errors_text(
    heard: pytest.LogCaptureFixture,
) -> None:
    with semel.connect("memory:", redact=Redactor()) as s:
        inbox = open_inbox(s, "orders")
        inbox.put(*[Message(f"order:{number}", {}) for number in range(15)])

        def handle(message: Message) -> None:
            raise Declined(f"no room for {PRIVATE}")

        worker = inbox.worker(handle, max_attempts=1)
        s.events.listen(lambda _: worker.stop() if len(inbox.dead()) == 14 else None)
        worker.run()
        assert len(inbox.dead()) == 15
    assert len(warnings(heard)) == 15
    told = re.compile(r"failed of \S+handle: key [0-9a-f]{16}, attempt 1\. Declined: no room for \S*")
    for line in warnings(heard):
        assert told.fullmatch(line), line
        assert PRIVATE not in line


def test_a_dead_letter_that_was_never_tried_leaves_a_line_too(heard: pytest.LogCaptureFixture) -> None:
    """One that failed for good and was delivered again, and one that cannot be read."""
    store, sealed = MemoryStore(), Encryption({"a": b"k" * 32}, active="a")
    with semel.Semel(store) as s, semel.Semel(store, codec=Codec(encryption=sealed)) as other:
        inbox = open_inbox(s, "orders")
        claim = s.ledger.claim(inbox.record_key("order:1"))
        assert isinstance(claim, semel.Claimed)
        s.ledger.fail(claim, Declined("no"))
        inbox.put(Message("order:1", {}))
        open_inbox(other, "orders").put(Message("order:2", {}))
        worker = inbox.worker(lambda _: None)
        s.events.listen(lambda event: worker.stop() if event.what == "refused" and inbox.dead() else None)
        worker.run()
        assert len(inbox.dead()) == 2
    told = [re.sub("[0-9a-f]{16}", "...", line) for line in warnings(heard)]
    assert sorted(told) == [
        "failed: key ..., attempt 1. Declined",
        "refused: key ..., attempt 0. a message is put aside: FailedBefore",
        "refused: key ..., attempt 0. a message is put aside: MessageUnreadable",
    ]


def test_where_nobody_scrubs_a_failure_is_told_by_its_type_alone(heard: pytest.LogCaptureFixture) -> None:
    with semel.connect("memory:") as s, pytest.raises(Declined):
        s.once("charge:{who}", on_error={Declined: "keep"})(decline)(PRIVATE)
    [line] = warnings(heard)
    assert line.endswith(", attempt 1. Declined")


def test_while_the_store_is_away_one_warning_a_minute_is_logged_and_every_event_is_counted(
    heard: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    store = Faulty(MemoryStore(clock))
    events: Counter[str] = Counter()
    with semel.Semel(store, clock=clock) as s:
        s.events.listen(lambda event: events.update([event.what]))
        hook = Ingress(s, Provider("shop", Bearer, lambda _: "k"), "token", open_inbox(s, "shop"), _message)
        for minute in range(3):
            store.refuse(100)
            for _ in range(100):
                assert hook.receive({"Authorization": "Bearer token"}, b"{}").status == 503
            assert len(warnings(heard)) == minute + 1
            clock.advance(60)
    # Each is told by the store, and by whoever could not accept a delivery for it.
    assert events == {"store_error": 600}
    first, second, third = warnings(heard)
    assert re.fullmatch(r"store_error: key \w+, attempt 0\. StoreUnavailable: the store cannot .*\)", first)
    assert second.endswith(" (and 199 more of these since the last such line)")
    assert third.endswith(" (and 199 more of these since the last such line)")


def _message(_notice: Notice) -> Message:
    return Message("k", {})


def test_what_has_another_cause_is_not_left_out(heard: pytest.LogCaptureFixture) -> None:
    store = Faulty(MemoryStore())
    with semel.Semel(store) as s:
        store.refuse()
        store.lose_request()
        with pytest.raises(semel.StoreUnavailable):
            s.ledger.check_and_set("k")
        assert s.ledger.check_and_set("k"), "it is sent again"
    assert [line.partition(". ")[2].partition(":")[0] for line in warnings(heard)] == [
        "StoreUnavailable",
        "StoreOutcomeUnknown",
    ]


def test_causes_that_somebody_makes_up_take_no_more_and_more_room() -> None:
    throttle = LogThrottle(FakeClock())
    for number in range(3 * MOST_CAUSES):
        assert throttle(f"cause {number}") == 0
    assert len(throttle._passed) <= MOST_CAUSES


def test_an_event_without_a_key_logs_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with semel.connect("memory:", on_event=log_events) as s:
        s.events.warn(What.REFUSED, "", detail="a delivery is refused")
        s.events.emit(What.REFUSED, "", detail="401")
        s.events.emit(What.REFUSED, "")
    assert [record.getMessage() for record in caplog.records] == [
        "refused: a delivery is refused",
        "refused: 401",
        "refused",
    ]
    for record in caplog.records:
        assert not {"semel_key_digest", "semel_attempt"} & vars(record).keys()


# Prometheus


def counted(registry: CollectorRegistry) -> dict[str, dict[str, int]]:
    """What a registry has counted, by door and event, without what it has not."""
    numbers: dict[str, dict[str, int]] = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == "semel_events_total" and sample.value:
                numbers.setdefault(sample.labels["door"], {})[sample.labels["event"]] = int(sample.value)
    return numbers


def test_prometheus_counts_events_by_door() -> None:
    registry = CollectorRegistry()
    live(Prometheus(registry))
    assert counted(registry) == EVENTS


def test_prometheus_adds_up_by_outcome() -> None:
    registry = CollectorRegistry()
    live(Prometheus(registry))
    [family] = registry.collect()
    numbers: Counter[str] = Counter()
    for sample in family.samples:
        if sample.name == "semel_events_total":
            numbers[sample.labels["outcome"]] += int(sample.value)
    told = {"new": 4, "duplicate": 3, "busy": 1, "mismatch": 1, "failed": 1, "taken_over": 1, "refused": 1}
    assert told.items() <= numbers.items()


def test_prometheus_shows_every_kind_of_event_before_it_happens() -> None:
    registry = CollectorRegistry()
    listener = Prometheus(registry)
    shown = generate_latest(registry).decode()
    assert all(
        f'semel_events_total{{door="",event="{what.value}",outcome="{outcome(what)}"}} 0.0' in shown
        for what in What
    )
    listener(Event(What.CLAIMED, "0123456789abcdef", 1, door="sqs"))
    shown = generate_latest(registry).decode()
    assert 'semel_events_total{door="sqs",event="claim_lost",outcome="claim_lost"} 0.0' in shown


def test_prometheus_uses_the_registry_of_the_program_where_none_is_given() -> None:
    listener = Prometheus()
    try:
        listener(Event(What.BUSY, "0123456789abcdef", 1))
        assert counted(REGISTRY)[""] == {"busy": 1}
    finally:
        REGISTRY.unregister(listener._counter)


# OpenTelemetry


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def meters(reader: InMemoryMetricReader) -> Iterator[MeterProvider]:
    provider = MeterProvider([reader])
    yield provider
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> Any:
    """The one metric there is, as its exporter sees it."""
    data = reader.get_metrics_data()
    assert data is not None
    [resource] = data.resource_metrics
    [scope] = resource.scope_metrics
    assert scope.scope.name == "semel"
    [found] = scope.metrics
    assert (found.name, found.unit) == ("semel.events", "{event}")
    return found.data.data_points


def test_opentelemetry_counts_events_by_door(reader: InMemoryMetricReader, meters: MeterProvider) -> None:
    live(OpenTelemetry(meters))
    numbers: dict[str, dict[str, int]] = {}
    for point in points(reader):
        attributes = dict(point.attributes)
        event, word = attributes.pop("semel.event"), attributes.pop("semel.outcome")
        assert word == outcome(What(event))
        numbers.setdefault(attributes.pop("semel.door", ""), {})[event] = point.value
        assert not attributes, "whatever else is told multiplies the number of time series"
    assert numbers == EVENTS


def test_events_are_added_to_the_span_that_they_happen_in(meters: MeterProvider) -> None:
    exporter, spans = InMemorySpanExporter(), TracerProvider()
    spans.add_span_processor(SimpleSpanProcessor(exporter))
    s = semel.connect("memory:", on_event=OpenTelemetry(meters)).through("http")
    work = s.once("k:{n}")(one_more)
    tracer = spans.get_tracer("test")
    with tracer.start_as_current_span("outer"):
        work(1)
        with tracer.start_as_current_span("inner"):
            work(1)
    work(1)  # outside of any
    inner, outer = exporter.get_finished_spans()
    assert [event.name for event in outer.events] == ["semel.claimed", "semel.completed"]
    assert [event.name for event in inner.events] == ["semel.replayed"]
    claimed = dict(outer.events[0].attributes or {})
    assert re.fullmatch(r"[0-9a-f]{16}", str(claimed.pop("semel.key_digest")))
    assert claimed == {
        "semel.event": "claimed",
        "semel.outcome": "new",
        "semel.door": "http",
        "semel.attempt": 1,
        "semel.name": f"{__name__}.one_more",
    }
    spans.shutdown()


def test_without_an_sdk_opentelemetry_is_told_and_does_nothing() -> None:
    live(OpenTelemetry())


# CloudWatch

# The rules of the published schema, and of the text beside it.
DOCUMENT = {
    "type": "object",
    "required": ["_aws"],
    "properties": {
        "_aws": {
            "type": "object",
            "required": ["Timestamp", "CloudWatchMetrics"],
            "additionalProperties": False,
            "properties": {
                "Timestamp": {"type": "integer"},
                "CloudWatchMetrics": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["Namespace", "Dimensions", "Metrics"],
                        "additionalProperties": False,
                        "properties": {
                            "Namespace": {"type": "string", "minLength": 1, "maxLength": 255},
                            "Dimensions": {
                                "type": "array",
                                "minItems": 1,
                                "items": {
                                    "type": "array",
                                    "maxItems": 30,
                                    "items": {"type": "string", "minLength": 1, "maxLength": 250},
                                },
                            },
                            "Metrics": {
                                "type": "array",
                                "maxItems": 100,
                                "items": {
                                    "type": "object",
                                    "required": ["Name"],
                                    "additionalProperties": False,
                                    "properties": {
                                        "Name": {"type": "string", "minLength": 1, "maxLength": 255},
                                        "Unit": {"enum": ["Count"]},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        }
    },
}
LARGEST = 256 * 1024  # bytes of a log event in the strictest edition of the specification


def documents(out: str) -> list[dict[str, Any]]:
    """The documents that were written, each found to be as CloudWatch wants it."""
    assert out == "" or out.endswith("\n")
    lines = out.splitlines()
    found = [json.loads(line) for line in lines]
    for line, document in zip(lines, found, strict=True):
        assert len(line.encode()) < LARGEST
        jsonschema_rs.validate(DOCUMENT, document)
        [directive] = document["_aws"]["CloudWatchMetrics"]
        for name in {name for names in directive["Dimensions"] for name in names}:
            assert isinstance(document[name], str)
            assert 0 < len(document[name]) <= 1024
        for definition in directive["Metrics"]:
            assert type(document[definition["Name"]]) is int
    return found


@pytest.mark.seed("A6")
def test_cloudwatch_is_given_hits_and_misses_by_door(capsys: pytest.CaptureFixture[str]) -> None:
    emf = Emf(service="orders", env="prod", clock=FakeClock(1_700_000_000.25))
    live(emf)
    assert capsys.readouterr().out == "", "nothing is written before the end of the invocation"
    emf.flush()
    own, sqs = documents(capsys.readouterr().out)
    values = {
        "Hits": 3,
        "Misses": 3,
        "Busy": 1,
        "Mismatch": 1,
        "Failed": 1,
        "TakenOver": 1,
        "Completed": 2,
        "Allowed": 1,
        "Refused": 1,
    }
    [directive] = own["_aws"].pop("CloudWatchMetrics")
    assert own == {"_aws": {"Timestamp": 1_700_000_000_250}, "service": "orders", "env": "prod", **values}
    assert directive["Namespace"] == "semel"
    assert directive["Dimensions"] == [["service", "env"]]
    assert directive["Metrics"] == [{"Name": name, "Unit": "Count"} for name in own if name in values]
    assert sqs == {
        "_aws": {
            "Timestamp": 1_700_000_000_250,
            "CloudWatchMetrics": [
                {
                    "Namespace": "semel",
                    "Dimensions": [["service", "env"], ["service", "env", "door"]],
                    "Metrics": [{"Name": "Misses", "Unit": "Count"}],
                }
            ],
        },
        "service": "orders",
        "env": "prod",
        "door": "sqs",
        "Misses": 1,
    }


class Overloaded(MemoryStore):
    """A store that has no time for anybody."""

    def execute(self, command: Stored) -> Any:
        raise semel.StoreThrottled("too busy")


@pytest.mark.seed("A6")
def test_throttling_and_errors_of_the_store_are_counted_once_each(capsys: pytest.CaptureFixture[str]) -> None:
    emf = Emf(service="orders", env="prod")
    flaky = Faulty(MemoryStore())
    for store, kind in ((Overloaded(), semel.StoreThrottled), (flaky, semel.StoreUnavailable)):
        s = semel.Semel(store)
        s.events.listen(emf)
        flaky.refuse(2)
        with pytest.raises(kind):
            s.once("work")(lambda: None)()
        with pytest.raises(kind):
            s.ledger.check_and_set("event")
    emf.flush()
    [document] = documents(capsys.readouterr().out)
    assert (document["Throttled"], document["StoreError"]) == (2, 2)


@pytest.mark.seed("A6")
def test_keys_that_are_only_checked_and_set_are_hits_and_misses_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    emf = Emf(service="orders", env="prod")
    s = semel.connect("memory:", on_event=emf)
    assert s.ledger.check_and_set("a")
    assert s.ledger.check_and_set_many(["a", "b", "b"]) == [False, True, False]
    emf.flush()
    [document] = documents(capsys.readouterr().out)
    assert (document["Hits"], document["Misses"]) == (2, 2)


def one_of_each() -> list[Event]:
    return [Event(what, "0123456789abcdef", 1) for what in What]


def test_a_document_of_every_kind_of_event_is_as_cloudwatch_wants_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    emf = Emf(service="orders", env="prod", namespace="shop/semel")
    for event in one_of_each():
        emf(event)
    emf.flush()
    [document] = documents(capsys.readouterr().out)
    assert sum(value for value in document.values() if type(value) is int) == len(What)
    assert document["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "shop/semel"


def test_every_invocation_writes_what_it_counted_also_when_it_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    emf = Emf(service="orders", env="prod")

    @emf.invocation()
    def handler(number: int) -> int:
        for _ in range(number):
            emf(Event(What.CLAIMED, "0123456789abcdef", 1))
        return number

    assert (handler(2), handler(0), handler(1)) == (2, 0, 1)
    assert [document["Misses"] for document in documents(capsys.readouterr().out)] == [2, 1]
    with pytest.raises(Declined), emf.invocation():
        emf(Event(What.FAILED, "0123456789abcdef", 1))
        raise Declined
    assert [document["Failed"] for document in documents(capsys.readouterr().out)] == [1]


def test_what_could_not_be_written_is_written_the_next_time(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    emf = Emf(service="orders", env="prod")
    emf(Event(What.CLAIMED, "0123456789abcdef", 1))
    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", None)
        with emf.invocation():
            pass
    assert "metrics could not be written" in caplog.text
    emf(Event(What.CLAIMED, "0123456789abcdef", 1))
    emf.flush()
    assert [document["Misses"] for document in documents(capsys.readouterr().out)] == [2]


@pytest.mark.parametrize("door", ["", " ", "d\u00f6r", "a\nb", "d" * 1025])
def test_what_came_in_by_a_door_that_cloudwatch_cannot_name_is_counted_without_it(
    door: str, capsys: pytest.CaptureFixture[str]
) -> None:
    emf = Emf(service="orders", env="prod")
    emf(Event(What.CLAIMED, "0123456789abcdef", 1, door=door))
    emf.flush()
    [document] = documents(capsys.readouterr().out)
    assert document["Misses"] == 1
    assert "door" not in document


@pytest.mark.parametrize(
    "names",
    [
        {"service": ""},
        {"service": " "},
        {"env": "pr\u00f6d"},
        {"env": "a\nb"},
        {"env": "e" * 1025},
        {"namespace": ""},
        {"namespace": ":a"},
        {"namespace": "AWS/Lambda"},
        {"namespace": "n" * 256},
    ],
    ids=str,
)
def test_names_that_cloudwatch_would_drop_are_refused(names: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="ASCII"):
        Emf(**{"service": "orders", "env": "prod"} | names)


# The page about it

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "watch-what-happens.md").read_text("utf-8")


@pytest.mark.seed("A6")
def test_the_alarm_on_the_page_looks_at_a_metric_that_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    [text] = re.findall(r"^```text\n(\w+Alarm:\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    [alarm] = yaml.safe_load(text).values()
    watched = alarm["Properties"]
    dimensions = {each["Name"]: each["Value"] for each in watched["Dimensions"]}
    emf = Emf(**dimensions)
    emf(Event(What.CLAIM_LOST, "0123456789abcdef", 1, door="sqs"))
    emf.flush()
    [document] = documents(capsys.readouterr().out)
    [directive] = document["_aws"]["CloudWatchMetrics"]
    assert directive["Namespace"] == watched["Namespace"]
    assert list(dimensions) in directive["Dimensions"]
    assert document[watched["MetricName"]] > watched["Threshold"]


def test_the_table_of_outcomes_on_the_page_is_the_one_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (`[^|]+`) \| `(\w+)` \|$", PAGE, re.MULTILINE)
    shown = {word: ([what.strip("`") for what in events.split(", ")], name) for word, events, name in rows}
    for word, (events, name) in shown.items():
        assert sorted(what for what in What if outcome(what) == word) == sorted(events)
        assert {metric(What(event)) for event in events} == {name}
    assert {*OUTCOMES.values(), *METRICS} <= shown.keys()


# All of them


def told_in_all_ways(
    life: Callable[[Listener], None],
    reader: InMemoryMetricReader,
    meters: MeterProvider,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Everything that every listener puts out about a life, as one text."""
    caplog.set_level(logging.DEBUG)
    registry, emf, otel = CollectorRegistry(), Emf(service="orders", env="prod"), OpenTelemetry(meters)
    listeners: list[Listener] = [log_events, Prometheus(registry), emf, otel]
    exporter, spans = InMemorySpanExporter(), TracerProvider()
    spans.add_span_processor(SimpleSpanProcessor(exporter))

    def listen(event: Event) -> None:
        for listener in listeners:
            listener(event)

    with spans.get_tracer("test").start_as_current_span("work"), emf.invocation():
        life(listen)
    spans.shutdown()
    logs = "\n".join(str(vars(record)) + record.getMessage() for record in caplog.records)
    traces = "\n".join(span.to_json() for span in exporter.get_finished_spans())
    data = reader.get_metrics_data()
    assert data is not None
    parts = [logs, traces, data.to_json(), generate_latest(registry).decode(), capsys.readouterr().out]
    assert all("claimed" in part or "Misses" in part for part in parts)
    return "\n".join(parts)


def test_no_key_payload_result_or_error_is_told(
    reader: InMemoryMetricReader,
    meters: MeterProvider,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = told_in_all_ways(live, reader, meters, caplog, capsys)
    assert PRIVATE not in told
    # Digests, and the random id of OpenTelemetry's resource, may hold these three digits by chance.
    assert "ada" not in re.sub(r"[0-9a-f]{16}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "", told.lower())


def test_a_detail_goes_to_logs_and_nowhere_else(
    reader: InMemoryMetricReader,
    meters: MeterProvider,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def life(listener: Listener) -> None:
        listener(Event(What.CLAIMED, "0123456789abcdef", 1))
        listener(Event(What.REFUSED, "0123456789abcdef", 1, "quoted"))

    told = told_in_all_ways(life, reader, meters, caplog, capsys)
    assert told.count("quoted") == sum(
        (str(vars(record)) + record.getMessage()).count("quoted") for record in caplog.records
    )


THREADS, TIMES = 8, 1000


def from_many_threads(listener: Listener) -> None:
    """Eight threads that tell a thousand events each, of two kinds and by two doors."""
    events = [
        Event(what, "0123456789abcdef", 1, door=door)
        for what in (What.CLAIMED, What.BUSY)
        for door in ("", "sqs")
    ]
    ready = threading.Barrier(THREADS)

    def tell() -> None:
        ready.wait()
        for number in range(TIMES):
            listener(events[number % len(events)])

    threads = [threading.Thread(target=tell) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


EACH = THREADS * TIMES // 4


@pytest.fixture
def crowded() -> Iterator[None]:
    """Threads take turns as often as they can, so that what is not locked is torn."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("crowded")
def test_cloudwatch_is_given_every_event_of_many_threads(capsys: pytest.CaptureFixture[str]) -> None:
    emf = Emf(service="orders", env="prod")
    done = threading.Event()

    def flush_now_and_then() -> None:
        while not done.is_set():
            emf.flush()

    flusher = threading.Thread(target=flush_now_and_then)
    flusher.start()
    from_many_threads(emf)
    done.set()
    flusher.join()
    emf.flush()
    numbers: Counter[tuple[str, str]] = Counter()
    for document in documents(capsys.readouterr().out):
        for name in ("Misses", "Busy"):
            numbers[document.get("door", ""), name] += document.get(name, 0)
    assert numbers == {(door, name): EACH for door in ("", "sqs") for name in ("Misses", "Busy")}


@pytest.mark.usefixtures("crowded")
def test_prometheus_counts_every_event_of_many_threads() -> None:
    registry = CollectorRegistry()
    from_many_threads(Prometheus(registry))
    assert counted(registry) == {door: {"claimed": EACH, "busy": EACH} for door in ("", "sqs")}


@pytest.mark.usefixtures("crowded")
def test_opentelemetry_counts_every_event_of_many_threads(
    reader: InMemoryMetricReader, meters: MeterProvider
) -> None:
    from_many_threads(OpenTelemetry(meters))
    assert [point.value for point in points(reader)] == [EACH] * 4


@pytest.mark.usefixtures("crowded")
def test_every_event_of_many_threads_is_logged() -> None:
    logged: Counter[tuple[str, str]] = Counter()

    class Counting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # called under the handler's lock
            logged[vars(record)["semel_door"], vars(record)["semel_event"]] += 1

    logger, handler = logging.getLogger("semel.events"), Counting()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        from_many_threads(log_events)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert logged == {(door, what): EACH for door in ("", "sqs") for what in ("claimed", "busy")}


# What is imported


def imported(statement: str) -> set[str]:
    """The modules that are there after this statement, in a new interpreter."""
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def test_semel_loads_no_telemetry_and_telemetry_loads_only_what_it_is_asked_for() -> None:
    optional = {"logging", "opentelemetry", "prometheus_client", "semel.telemetry"}
    assert not imported("import semel") & optional
    assert imported("import semel.telemetry.emf") & optional == {"logging", "semel.telemetry"}
    everything = "import semel.telemetry.otel, semel.telemetry.prometheus"
    assert imported(everything) & optional == {"logging", "semel.telemetry"}


@pytest.mark.parametrize(
    ("listener", "module", "extra"),
    [(Prometheus, "prometheus_client", "prometheus"), (OpenTelemetry, "opentelemetry.metrics", "otel")],
)
def test_a_missing_library_is_named_with_what_brings_it(
    listener: Callable[[], Listener], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=re.escape(f'pip install "semel[{extra}]"')):
        listener()
