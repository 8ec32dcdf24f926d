"""The webhook receiver: of a whole delivery each event is handled once, and its sender is told."""

import asyncio
import json
import logging
import random
import threading
import uuid
from dataclasses import replace
from typing import Any

import pytest

import semel
from semel.core.events import What, digest
from semel.doors.webhooks import (
    ALOWARE,
    GITHUB,
    HUBSPOT,
    PROVIDERS,
    SLACK,
    STANDARD_WEBHOOKS,
    STRIPE,
    TELEGRAM,
    Bearer,
    Notice,
    PlainHmac,
    Provider,
    Receiver,
    WebhookResponse,
    aloware_key,
    hubspot_key,
    richpanel_key,
)
from semel.doors.webhooks.receiver import RETRY_AFTER
from semel.errors import InvalidKey, InvalidOption
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock, Faulty
from tests.doors.test_webhooks import (
    EVENT,
    FORGERIES,
    SCHEMES,
    URL,
    WHSEC,
    Sent,
    by_bearer,
    by_github,
    by_hubspot,
    by_slack,
    by_standard_webhooks,
    by_stripe,
    by_telegram,
)
from tests.places import open_place

SECRET = "correct-horse-battery"

SIGNERS = {
    HUBSPOT: by_hubspot,
    STRIPE: by_stripe,
    GITHUB: by_github,
    SLACK: by_slack,
    TELEGRAM: by_telegram,
    ALOWARE: by_bearer,
}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def s(clock):
    with semel.connect("memory:", clock=clock) as s:
        yield s


@pytest.fixture(scope="module", params=["memory", "sqlite", "dynoxide"])
def place(request, tmp_path_factory):
    return open_place(request.param, request, tmp_path_factory.mktemp("receiver"))


@pytest.fixture
def anywhere(place, clock):
    """The same on several stores, each time in a scope of its own."""
    place.forget()
    with semel.Semel(place.open(clock), env=place.env, scope=uuid.uuid4().hex[:12], clock=clock) as s:
        yield s


@pytest.fixture
def heard(s):
    events: list[semel.Event] = []
    s.events.listen(events.append)
    return events


class Work:
    """A handler that notes what it was given, and fails on what it is told to."""

    def __init__(self, *fails: Any, error: BaseException | None = None) -> None:
        self.done: list[Any] = []
        self.begun: list[Any] = []
        self.fails = set(fails)
        self.error = error or RuntimeError("the till is closed")

    def __call__(self, notice: Notice) -> None:
        name = notice.payload.get("objectId", notice.payload.get("id"))
        self.begun.append(name)
        if name in self.fails:
            raise self.error
        self.done.append(name)


def changes(*objects: Any, **fields: Any) -> list[dict[str, Any]]:
    return [EVENT | {"objectId": name, "propertyName": "phone"} | fields for name in objects]


def signed(s: semel.Semel, content: Any, provider: Provider = HUBSPOT, secret: str = SECRET) -> Sent:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return SIGNERS[provider](secret, body, s._shared.clock.now())


def deliver(receiver: Receiver, sent: Sent) -> WebhookResponse:
    return receiver.receive(sent.headers, sent.body, method=sent.method, url=sent.url)


def send(receiver: Receiver, s: semel.Semel, content: Any, provider: Provider = HUBSPOT) -> WebhookResponse:
    return deliver(receiver, signed(s, content, provider))


def said(answer: WebhookResponse) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(answer.body)
    return summary


def outcomes(answer: WebhookResponse) -> list[str]:
    return [event["outcome"] for event in said(answer)["events"]]


# --- One delivery ----------------------------------------------------------------------------------


@pytest.mark.seed("Q3")
def test_an_event_is_handled_once_however_often_it_is_delivered(anywhere):
    work = Work()
    receiver = Receiver(anywhere, STRIPE, SECRET, work)
    first = send(receiver, anywhere, {"id": "evt_1"}, STRIPE)
    again = [send(receiver, anywhere, {"id": "evt_1"}, STRIPE) for _ in range(3)]
    assert [answer.status for answer in (first, *again)] == [200] * 4
    assert first.headers == {"Content-Type": "application/json"}
    name = digest(anywhere.ledger.steps.name("STRIPE:evt_1"))
    totals = {"received": 1, "new": 1, "duplicates": 0, "busy": 0, "failed": 0, "deferred": 0}
    assert said(first) == totals | {"events": [{"outcome": "new", "key_digest": name}]}
    totals |= {"new": 0, "duplicates": 1}
    assert said(again[2]) == totals | {"events": [{"outcome": "duplicate", "key_digest": name}]}
    assert work.begun == ["evt_1"]


def test_each_event_of_a_batch_has_its_own_fate_and_they_are_told_in_order(anywhere):
    work = Work(2)
    receiver = Receiver(anywhere, HUBSPOT, SECRET, work)
    send(receiver, anywhere, changes(3))
    answer = send(receiver, anywhere, changes(1, 2, 3, 1))
    assert answer.status == 503
    assert int(answer.headers["Retry-After"]) == RETRY_AFTER
    assert outcomes(answer) == ["new", "failed", "duplicate", "duplicate"]
    told = said(answer)
    assert [told[name] for name in ("received", "new", "duplicates", "failed")] == [4, 1, 2, 1]
    assert told["events"][1]["reason"] == "RuntimeError"
    assert told["events"][1]["redeliver"] is True
    assert work.done == [3, 1]


@pytest.mark.seed("Q5")
def test_a_redelivery_after_a_partial_failure_handles_just_what_is_missing(anywhere):
    work = Work(2, 4)
    receiver = Receiver(anywhere, HUBSPOT, SECRET, work)
    assert send(receiver, anywhere, changes(1, 2, 3, 4)).status == 503
    work.fails.remove(2)
    assert send(receiver, anywhere, changes(1, 2, 3, 4, attemptNumber=1)).status == 503
    work.fails.clear()
    last = send(receiver, anywhere, changes(1, 2, 3, 4, attemptNumber=2, eventId=7))
    assert last.status == 200
    assert outcomes(last) == ["duplicate", "duplicate", "duplicate", "new"]
    assert sorted(work.done) == [1, 2, 3, 4]


def test_an_event_that_is_twice_in_a_delivery_is_tried_once_and_fails_once(s):
    work = Work(1)
    answer = send(Receiver(s, HUBSPOT, SECRET, work), s, changes(1, 1, 2))
    assert outcomes(answer) == ["failed", "failed", "new"]
    assert work.begun == [1, 2]


def test_a_delivery_of_no_events_is_fine(s):
    answer = send(Receiver(s, HUBSPOT, SECRET, Work()), s, [])
    assert (answer.status, said(answer)["received"]) == (200, 0)


def test_a_batch_of_a_hundred_is_handled_whole(anywhere):
    work = Work()
    answer = send(Receiver(anywhere, HUBSPOT, SECRET, work), anywhere, changes(*range(100)))
    assert (answer.status, said(answer)["new"]) == (200, 100)
    assert work.done == list(range(100))


def test_neither_key_nor_payload_nor_words_of_an_error_are_in_an_answer(s):
    work = Work("o-4711", error=RuntimeError("secret words of an error"))
    receiver = Receiver(s, HUBSPOT, SECRET, work, fingerprint=lambda notice: notice.payload["propertyValue"])
    send(receiver, s, changes("o-4712", propertyValue="first"))
    events = [
        *changes("o-4711", "o-4712", propertyValue="personal"),
        *changes(None, propertyValue="personal"),
        EVENT | {"objectId": "o-4711", "propertyValue": float("nan")},
    ]
    answer = send(receiver, s, events)
    assert outcomes(answer) == ["failed", "failed", "failed", "failed"]
    for secret in (b"4711", b"4712", b"personal", b"secret words", b"HUBSPOT"):
        assert secret not in answer.body


# --- Strangers -------------------------------------------------------------------------------------

PRESETS = PROVIDERS | {"standard": STANDARD_WEBHOOKS, "bearer": ALOWARE}


def test_of_two_thousand_strangers_none_burns_a_key_or_runs_anything(s, clock):
    draw = random.Random(7)
    work = Work()
    schemes = [one for one in SCHEMES if one.name in PRESETS]
    made = [Receiver(s, PRESETS[one.name], one.secrets, work) for one in schemes]
    statuses = set()
    logging.getLogger("semel").setLevel(logging.ERROR)
    try:
        for number in range(2000):
            scheme, receiver = schemes[number % len(schemes)], made[number % len(schemes)]
            body = json.dumps({"id": number, "event_id": number, "update_id": number}).encode()
            sent = scheme.sign(scheme.secrets[0], body, clock.now())
            forged, then = draw.choice(FORGERIES[scheme.name])(draw, scheme, sent, clock.now())
            if number % 50 == 0:
                forged = replace(forged, headers=())
            clock.jump(then - clock.now())
            statuses.add(deliver(receiver, forged).status)
            clock.jump(1_700_000_000 - clock.now())
    finally:
        logging.getLogger("semel").setLevel(logging.NOTSET)
    assert len(schemes) == len(PROVIDERS)
    assert statuses == {401}
    assert work.begun == []
    assert s.ledger.list().records == ()


def test_a_stranger_is_told_nothing_and_we_are_told_why(s, heard, caplog):
    receiver = Receiver(s, STRIPE, SECRET, Work())
    answers = [
        deliver(receiver, sent)
        for sent in (
            signed(s, {"id": "evt_secret"}, STRIPE, "another-secret"),
            replace(signed(s, {"id": "evt_secret"}, STRIPE), body=b"{}"),
            by_stripe(SECRET, b"{}", s._shared.clock.now() - 301),
            Sent((), b""),
        )
    ]
    assert len({answer.body for answer in answers}) == 1
    assert answers[0] == WebhookResponse(
        401,
        {"Content-Type": "application/problem+json"},
        b'{"type":"about:blank","title":"Unauthorized","status":401}',
    )
    assert [event.what for event in heard] == [What.REFUSED] * 4
    assert {event.door for event in heard} == {"webhook"}
    assert "no signature of it fits" in heard[0].detail
    assert "from now" in heard[2].detail
    assert "no Stripe-Signature" in heard[3].detail
    for secret in (SECRET, "another-secret", "evt_secret"):
        assert secret not in str(heard) + caplog.text


def test_a_body_that_is_too_large_is_not_even_hashed(s, heard):
    calls = []

    class Hasher(PlainHmac):
        def verify(self, *args: Any, **options: Any) -> None:
            calls.append(args)

    small = Provider("acme", lambda secrets: Hasher(secrets, "X-Sign"), lambda _: "k", max_bytes=10)
    receiver = Receiver(s, small, SECRET, Work())
    answer = receiver.receive({}, b'{"id":"12"}')
    assert (answer.status, answer.headers["Content-Type"]) == (413, "application/problem+json")
    assert calls == []
    assert receiver.receive({}, b'{"id":"1"}').status == 200
    assert len(calls) == 1
    assert heard[0].what is What.REFUSED


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 200_000, b'"text"', b"1", b"null", b"id=1"])
def test_a_genuine_body_that_is_no_delivery_is_a_bad_request(s, body, heard):
    work = Work()
    answer = send(Receiver(s, STRIPE, SECRET, work), s, body, STRIPE)
    assert (answer.status, said(answer)["title"]) == (400, "Bad Request")
    assert heard[0].what is What.REFUSED
    assert work.begun == []


def test_a_receiver_without_its_url_is_a_mistake_of_the_caller(s):
    sent = signed(s, changes(1))
    with pytest.raises(InvalidOption, match="url="):
        Receiver(s, HUBSPOT, SECRET, Work()).receive(sent.headers, sent.body)


# --- What another delivery can help, and what it cannot ----------------------------------------------


@pytest.mark.seed("Q5")
def test_an_event_without_a_key_is_failed_and_the_others_are_not(s, heard, caplog):
    work = Work()
    receiver = Receiver(s, HUBSPOT, SECRET, work)
    answer = send(receiver, s, [*changes(1, None), "text", 5, *changes(2)])
    assert answer.status == 200
    assert outcomes(answer) == ["new", "failed", "failed", "failed", "new"]
    assert said(answer)["events"][1] == {"outcome": "failed", "reason": "InvalidKey", "redeliver": False}
    assert [event.what for event in heard].count(What.REFUSED) == 3
    assert "InvalidKey" in caplog.text


def test_what_failed_for_good_is_failed_and_does_not_make_the_delivery_fail(s, heard, caplog):
    work = Work(1, error=ValueError("no such customer"))
    receiver = Receiver(s, HUBSPOT, SECRET, work, on_error={ValueError: "keep"})
    first, again = send(receiver, s, changes(1, 2)), send(receiver, s, changes(1, 2))
    assert (first.status, again.status) == (200, 200)
    assert [event["outcome"] for event in said(first)["events"]] == ["failed", "new"]
    assert said(first)["events"][0]["reason"] == "ValueError"
    assert said(again)["events"][0]["reason"] == "FailedBefore"
    assert work.begun == [1, 2]
    refused = [event for event in heard if event.what is What.REFUSED]
    assert [event.key_digest for event in refused] == [said(first)["events"][0]["key_digest"]] * 2
    assert caplog.text.count("no further delivery") == 2
    assert "no such customer" not in caplog.text


def test_a_changed_payload_is_refused_once_and_for_all_where_it_is_compared(s):
    receiver = Receiver(s, STRIPE, SECRET, Work(), fingerprint=lambda notice: notice.payload["amount"])
    batch = [{"id": "evt_1", "amount": 5}, {"id": "evt_1", "amount": 5}, {"id": "evt_1", "amount": 6}]
    answer = send(receiver, s, batch, STRIPE)
    assert outcomes(answer) == ["new", "duplicate", "failed"]
    assert said(answer)["events"][2]["reason"] == "PayloadChanged"
    assert answer.status == 200


def test_without_a_fingerprint_an_event_may_be_delivered_with_other_details(s):
    work = Work()
    receiver = Receiver(s, STRIPE, SECRET, work)
    for webhooks in (1, 0):
        assert send(receiver, s, {"id": "evt_1", "pending_webhooks": webhooks}, STRIPE).status == 200
    assert work.begun == ["evt_1"]


def test_a_busy_event_is_to_come_again_once_its_lease_is_over(s):
    key = HUBSPOT.key(Notice(changes(1)[0], {}))
    s.ledger.claim(key, lease=25.2, ttl=86400)
    answer = send(Receiver(s, HUBSPOT, SECRET, Work()), s, changes(1, 2))
    assert (answer.status, answer.headers["Retry-After"]) == (503, "26")
    assert outcomes(answer) == ["busy", "new"]
    assert said(answer)["busy"] == 1


@pytest.mark.parametrize(
    ("wait", "told"), [(120, "120"), (2.5, "3"), (float("inf"), "3600"), (float("nan"), "1"), (-5, "1")]
)
def test_an_error_of_the_handlers_may_say_when_to_come_again(s, wait, told):
    error = RuntimeError("slow down")
    error.retry_after = wait  # type: ignore[attr-defined]
    answer = send(Receiver(s, HUBSPOT, SECRET, Work(1, error=error)), s, changes(1))
    assert (answer.status, answer.headers["Retry-After"]) == (503, told)


def test_with_the_store_down_nothing_runs_and_everything_is_to_come_again(clock):
    store, work = Faulty(MemoryStore(clock)), Work()
    with semel.Semel(store, clock=clock) as s:
        receiver = Receiver(s, HUBSPOT, SECRET, work)
        store.refuse(2)
        answer = send(receiver, s, changes(1, 2))
        assert answer.status == 503
        assert {event["reason"] for event in said(answer)["events"]} == {"StoreUnavailable"}
        assert work.begun == []
        assert send(receiver, s, changes(1, 2)).status == 200
        assert work.done == [1, 2]


def test_while_shutting_down_what_is_done_is_confirmed_and_the_rest_is_to_come_again(s):
    work = Work()
    receiver = Receiver(s, HUBSPOT, SECRET, work)
    send(receiver, s, changes(1))
    s.drain()
    answer = send(receiver, s, changes(1, 2))
    assert (answer.status, outcomes(answer)) == (503, ["duplicate", "failed"])
    assert work.done == [1]


@pytest.mark.parametrize("end", [SystemExit(1), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_a_crash_in_the_middle_loses_nothing_and_repeats_nothing_that_is_done(anywhere, end):
    work = Work(2, error=end)
    receiver = Receiver(anywhere, HUBSPOT, SECRET, work)
    with pytest.raises(type(end)):
        send(receiver, anywhere, changes(1, 2, 3))
    work.fails.clear()
    answer = send(receiver, anywhere, changes(1, 2, 3))
    assert (answer.status, outcomes(answer)) == (200, ["duplicate", "new", "new"])
    assert work.done == [1, 2, 3]


def test_two_receivers_at_once_handle_each_event_once(anywhere, clock):
    work, meet = Work(), threading.Barrier(2)
    answers: list[WebhookResponse] = []

    def one(order: list[int]) -> None:
        receiver = Receiver(anywhere, HUBSPOT, SECRET, work)
        meet.wait()
        answers.append(send(receiver, anywhere, changes(*order)))

    order = list(range(20))
    threads = [threading.Thread(target=one, args=(each,)) for each in (order, order[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(work.done) == order
    assert sum(said(answer)["new"] for answer in answers) == 20
    assert len(answers) == 2


# --- The sender's patience ---------------------------------------------------------------------------


def test_what_there_is_no_time_for_is_deferred_before_the_sender_gives_up(s, clock):
    handled = []

    def slow(notice: Notice) -> None:
        handled.append(notice.payload["objectId"])
        clock.advance(1.5)

    receiver = Receiver(s, HUBSPOT, SECRET, slow)
    answer = send(receiver, s, changes(1, 2, 3, 4, 4))
    assert HUBSPOT.answer_within == 5
    assert outcomes(answer) == ["new", "new", "new", "deferred", "deferred"]
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert said(answer)["deferred"] == 2
    assert clock.monotonic() == 4.5
    again = send(receiver, s, changes(1, 2, 3, 4, 4))
    assert (again.status, outcomes(again)) == (200, ["duplicate"] * 3 + ["new", "duplicate"])
    assert handled == [1, 2, 3, 4]


def test_four_fifths_of_the_time_are_for_work_and_not_a_moment_more(s, clock):
    def until(limit: float) -> list[str]:
        receiver = Receiver(s.scoped(f"{limit}"), HUBSPOT, SECRET, lambda _: clock.advance(limit))
        return outcomes(send(receiver, s, changes(1, 2)))

    assert until(4) == ["new", "deferred"]
    assert until(3.999) == ["new", "new"]


def test_a_sender_whose_patience_is_not_known_is_not_hurried(s, clock):
    receiver = Receiver(s, STRIPE, SECRET, lambda _: clock.advance(25))
    answer = send(receiver, s, [{"id": f"evt_{number}"} for number in range(3)], STRIPE)
    assert (answer.status, said(answer)["new"]) == (200, 3)


def test_a_clock_that_jumps_defers_nothing(s, clock):
    receiver = Receiver(s, HUBSPOT, SECRET, lambda _: clock.jump(100))
    assert outcomes(send(receiver, s, changes(1, 2))) == ["new", "new"]


# --- How long it is remembered -----------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)
def test_events_are_remembered_for_as_long_as_their_sender_repeats_them(s, provider):
    secret = WHSEC if provider is STANDARD_WEBHOOKS else SECRET
    ttl = Receiver(s, provider, secret, Work())._handler.policy.ttl
    assert ttl >= max(provider.retry_horizon or 0, semel.DAY)
    if provider.retry_horizon is not None:
        with pytest.raises(InvalidOption, match="horizon"):
            Receiver(s, provider, secret, Work(), ttl=provider.retry_horizon - 1)


def test_a_delivery_at_the_very_end_of_the_horizon_is_a_duplicate(s, clock):
    work = Work()
    receiver = Receiver(s, STRIPE, SECRET, work)
    send(receiver, s, {"id": "evt_1"}, STRIPE)
    clock.advance(3 * semel.DAY - 1)
    assert outcomes(send(receiver, s, {"id": "evt_1"}, STRIPE)) == ["duplicate"]


def test_a_ledgers_own_horizon_counts_where_it_is_longer():
    with semel.connect("memory:", horizon=30 * semel.DAY) as s:
        assert Receiver(s, HUBSPOT, SECRET, Work())._handler.policy.ttl == 30 * semel.DAY
        assert Receiver(s, ALOWARE, SECRET, Work())._handler.policy.ttl == 30 * semel.DAY
        shorter = Receiver(s, SLACK, SECRET, Work(), horizon=360, ttl=3600)
        assert shorter._handler.policy.ttl == 3600


# --- Async -------------------------------------------------------------------------------------------


def test_async_handlers_are_awaited_and_the_rules_are_the_same(anywhere):
    work = Work(2)

    async def handle(notice: Notice) -> None:
        await asyncio.sleep(0)
        work(notice)

    receiver = Receiver(anywhere, HUBSPOT, SECRET, handle)

    async def scene() -> list[WebhookResponse]:
        answers = []
        for _ in range(2):
            sent = signed(anywhere, changes(1, 2, 3, 4, 1))
            answers.append(await receiver.areceive(sent.headers, sent.body, url=URL))
            work.fails.clear()
        stranger = signed(anywhere, changes(5), secret="another")
        answers.append(await receiver.areceive(stranger.headers, stranger.body, url=URL))
        return answers

    first, second, stranger = asyncio.run(scene())
    assert (first.status, outcomes(first)) == (503, ["new", "failed", "new", "new", "duplicate"])
    assert (second.status, outcomes(second)) == (
        200,
        ["duplicate", "new", "duplicate", "duplicate", "duplicate"],
    )
    assert stranger.status == 401
    assert work.done == [1, 3, 4, 2]


def test_an_async_delivery_that_is_cancelled_is_neither_lost_nor_repeated(s):
    reached, done = asyncio.Event(), []

    async def handle(notice: Notice) -> None:
        if notice.payload["objectId"] == 2 and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        done.append(notice.payload["objectId"])

    receiver = Receiver(s, HUBSPOT, SECRET, handle)
    sent = signed(s, changes(1, 2, 3))

    async def scene() -> WebhookResponse:
        task = asyncio.create_task(receiver.areceive(sent.headers, sent.body, url=URL))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await receiver.areceive(sent.headers, sent.body, url=URL)

    answer = asyncio.run(scene())
    assert (answer.status, outcomes(answer)) == (200, ["duplicate", "new", "new"])
    assert done == [1, 2, 3]


def test_an_async_handler_is_not_taken_for_done_by_a_sync_call(s):
    class Object:
        async def __call__(self, notice: Notice) -> None:
            raise AssertionError

    for handle in (Object(), Object().__call__):
        with pytest.raises(InvalidOption, match="areceive"):
            send(Receiver(s, HUBSPOT, SECRET, handle), s, changes(1))
    assert s.ledger.list().records == ()


def test_a_plain_handler_may_be_used_from_async_code(s):
    work = Work()
    sent = signed(s, changes(1))
    answer = asyncio.run(Receiver(s, HUBSPOT, SECRET, work).areceive(sent.headers, sent.body, url=URL))
    assert (answer.status, work.done) == (200, [1])


# --- Senders -----------------------------------------------------------------------------------------


def key_of(provider: Provider, payload: Any, **headers: str) -> str:
    return provider.key(Notice(payload, {name.replace("_", "-"): value for name, value in headers.items()}))


def test_slacks_challenge_is_answered_and_is_no_event(s):
    work = Work()
    receiver = Receiver(s, SLACK, SECRET, work)
    challenge = {"token": "t", "challenge": "3eZbrw1a", "type": "url_verification"}
    answer = send(receiver, s, challenge, SLACK)
    assert (answer.status, said(answer)) == (200, {"challenge": "3eZbrw1a"})
    assert answer.headers == {"Content-Type": "application/json"}
    assert deliver(receiver, signed(s, challenge, SLACK, "another")).status == 401
    assert work.begun == []
    event = {"type": "event_callback", "event_id": "Ev1", "event": {"type": "message"}}
    assert outcomes(send(receiver, s, event, SLACK)) == ["new"]


def test_githubs_ping_is_answered_and_is_no_event(s):
    kinds = []
    receiver = Receiver(s, GITHUB, SECRET, lambda notice: kinds.append(notice.header("x-github-event")))

    def give(kind: str, delivery: str) -> WebhookResponse:
        sent = signed(s, {"zen": "Keep it simple."}, GITHUB)
        headers = (*sent.headers, ("X-GitHub-Event", kind), ("X-GitHub-Delivery", delivery))
        return deliver(receiver, replace(sent, headers=headers))

    assert said(give("ping", "d-0")) == {"pong": True}
    assert outcomes(give("push", "d-1")) == ["new"]
    assert outcomes(give("push", "d-1")) == ["duplicate"]
    assert outcomes(give("push", "d-2")) == ["new"]
    assert kinds == ["push", "push"]


@pytest.mark.parametrize("provider", [STANDARD_WEBHOOKS, GITHUB], ids=["standard", "github"])
def test_a_body_whose_key_is_in_a_header_is_one_event_even_if_it_is_an_array(s, provider):
    got = []
    receiver = Receiver(s, provider, WHSEC, lambda notice: got.append(notice.payload))
    sign = by_github if provider is GITHUB else by_standard_webhooks
    sent = sign(WHSEC, b"[1, 2]", s._shared.clock.now())
    sent = replace(sent, headers=(*sent.headers, ("X-GitHub-Delivery", "d-1")))
    assert outcomes(deliver(receiver, sent)) == ["new"]
    assert got == [[1, 2]]


def test_telegrams_update_is_one_event_and_its_answer_is_no_request_to_the_bot(s):
    answer = send(Receiver(s, TELEGRAM, SECRET, lambda _: None), s, {"update_id": 7}, TELEGRAM)
    assert outcomes(answer) == ["new"]
    assert "method" not in said(answer)


@pytest.mark.seed("Q5")
def test_an_aloware_body_is_found_inside_its_webhook_or_alone(s):
    expected = aloware_key({"id": 719285063})
    assert key_of(ALOWARE, {"event": "Contact created", "body": {"id": 719285063}}) == expected
    assert key_of(ALOWARE, {"id": 719285063, "body": "words of a message"}) == expected
    work = Work()
    receiver = Receiver(s, ALOWARE, SECRET, work)
    for status in ("new", "duplicate"):
        assert outcomes(send(receiver, s, {"id": 719285063}, ALOWARE)) == [status]
    assert deliver(receiver, Sent((), b'{"id":1}')).status == 401
    assert work.done == [719285063]


@pytest.mark.seed("Q5")
def test_no_two_events_of_hubspot_share_a_key_and_no_classic_one_lacks_it():
    """Of two events that came at one millisecond under one key, the second would be lost."""
    change = {"subscriptionType": "contact.propertyChange", "objectId": 5, "occurredAt": 7}
    link = {"subscriptionType": "contact.associationChange", "fromObjectId": 5, "occurredAt": 7}
    message = {"subscriptionType": "conversation.newMessage", "objectId": 5, "occurredAt": 7}
    events = [
        change | {"propertyName": "phone"},
        change | {"propertyName": "city"},
        change | {"subscriptionType": "contact.creation"},
        change | {"subscriptionType": "company.creation"},
        {"subscriptionType": "deal.merge", "primaryObjectId": 5, "mergedObjectIds": [6], "occurredAt": 7},
        *[link | {"toObjectId": to, "associationType": "CONTACT_TO_COMPANY"} for to in (8, 9)],
        *[message | {"messageId": name} for name in ("a", "b")],
    ]
    keys = [key_of(HUBSPOT, event) for event in events]
    assert len(set(keys)) == len(events)
    assert keys == [key_of(HUBSPOT, event | {"attemptNumber": 3, "eventId": 9}) for event in events]
    assert keys[2] == "HUBSPOT:0-1:5:contact.creation:7"
    assert key_of(HUBSPOT, EVENT) == hubspot_key(EVENT, "propertyName")
    for missing in ("subscriptionType", "objectId"):
        with pytest.raises(InvalidKey, match=missing):
            key_of(HUBSPOT, {name: value for name, value in change.items() if name != missing})


def richpanel(notice: Notice) -> str:
    message = notice.payload
    return richpanel_key(
        message["conversation"], message.get("id"), text=message["text"], created_at=message["at"]
    )


@pytest.mark.seed("R4")
def test_a_sender_that_semel_does_not_know_is_described_by_its_user(s):
    own = Provider("richpanel", Bearer, richpanel, events=lambda body: body["messages"])
    got = []
    receiver = Receiver(s, own, SECRET, lambda notice: got.append(notice.payload["text"]))
    messages = [
        {"conversation": "c1", "text": "Hello", "at": 60.0},
        {"conversation": "c1", "text": " Hello ", "at": 61.0},
        {"conversation": "c1", "id": "m2", "text": "Hello", "at": 61.0},
        {"conversation": "c1", "text": "", "at": 61.0},
    ]
    sent = by_bearer(SECRET, json.dumps({"messages": messages}).encode(), 0)
    answer = deliver(receiver, sent)
    assert (answer.status, outcomes(answer)) == (200, ["new", "duplicate", "new", "failed"])
    assert got == ["Hello", "Hello"]


def test_a_body_that_is_split_wrongly_is_not_lost(s):
    """An error of the split is a server's error, after which the sender tries again."""
    own = Provider("acme", Bearer, lambda notice: notice.payload["id"], events=lambda body: body["typo"])
    with pytest.raises(KeyError):
        deliver(Receiver(s, own, SECRET, Work()), by_bearer(SECRET, b'{"id": "1"}', 0))


def test_a_known_sender_can_be_changed(s):
    plain = replace(HUBSPOT, key=lambda notice: hubspot_key(notice.payload))
    answer = send(Receiver(s, plain, SECRET, Work()), s, [EVENT, EVENT | {"propertyName": "city"}])
    assert outcomes(answer) == ["new", "duplicate"]


def test_tenants_may_send_equal_ids(s):
    work = Work()
    for tenant in ("a", "b"):
        receiver = Receiver(s.scoped(tenant), STRIPE, SECRET, work)
        assert outcomes(send(receiver, s, {"id": "evt_1"}, STRIPE)) == ["new"]
    assert work.done == ["evt_1", "evt_1"]


def test_old_and_new_secret_count_while_it_is_being_changed(s):
    receiver = Receiver(s, STRIPE, ["new-secret", "old-secret"], Work())
    for secret, status in (("old-secret", "new"), ("new-secret", "duplicate")):
        assert outcomes(deliver(receiver, signed(s, {"id": "evt_1"}, STRIPE, secret))) == [status]
    with pytest.raises(InvalidOption, match="secret"):
        Receiver(s, STRIPE, "", Work())


def test_a_hidden_key_has_one_digest_in_answers_and_events(clock):
    heard: list[semel.Event] = []
    with semel.connect("memory:", secret=b"x" * 32, clock=clock, on_event=heard.append) as s:
        receiver = Receiver(s, STRIPE, SECRET, Work(), hide_key=True)
        answer = send(receiver, s, {"id": "evt_1"}, STRIPE)
        assert said(answer)["events"][0]["key_digest"] == heard[0].key_digest
        assert "evt_1" not in str(s.ledger.list())
