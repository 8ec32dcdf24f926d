"""`once` as its callers know it, on the store in memory."""

import asyncio
import inspect
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import semel
from semel.core.commands import After, Put
from semel.stores.memory import MemoryStore
from semel.tables import LEDGER
from semel.testing import FakeClock, Faulty


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def events() -> list[semel.Event]:
    return []


@pytest.fixture
def s(clock: FakeClock, events: list[semel.Event]) -> semel.Semel:
    return semel.connect("memory:", clock=clock, on_event=events.append)


class Declined(Exception):
    pass


class CardDeclined(Declined):
    pass


def vanish(s: semel.Semel, clock: FakeClock, key: str, lease: float = 30.0) -> semel.Claimed:
    """Claim a key as a worker that then dies; its lease runs out."""
    claim = s.ledger.claim(key, lease=lease)
    assert isinstance(claim, semel.Claimed)
    clock.advance(lease + 1)
    return claim


def test_equal_calls_run_once_and_get_the_same_answer(s: semel.Semel) -> None:
    ran = []

    @s.once("charge:{order_id}")
    def charge(order_id: str, amount: int) -> dict[str, Any]:
        ran.append(order_id)
        return {"id": "ch_1", "amount": amount}

    assert [charge("o1", 5), charge("o1", amount=5), charge(order_id="o1", amount=5)] == [
        {"id": "ch_1", "amount": 5}
    ] * 3
    assert ran == ["o1"]


def test_other_keys_run_by_themselves(s: semel.Semel) -> None:
    ran = []

    @s.once("n:{n}")
    def work(n: int) -> None:
        ran.append(n)

    work(1)
    work(2)
    assert ran == [1, 2]


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}, 0.0], ids=repr)
def test_a_falsy_result_comes_back_as_it_went_in(s: semel.Semel, value: Any) -> None:
    ran = []

    @s.once("k")
    def work() -> Any:
        ran.append(1)
        return value

    first, second = work(), work()
    assert first == second == value
    assert type(first) is type(second)
    assert len(ran) == 1


def test_the_record_is_forgotten_after_its_ttl(s: semel.Semel, clock: FakeClock) -> None:
    ran = []

    @s.once("k", ttl=60)
    def work() -> int:
        ran.append(1)
        return len(ran)

    assert work() == work() == 1
    clock.advance(59)
    assert work() == 1
    clock.advance(1)
    assert work() == 2


@pytest.mark.situation(29)
def test_a_changed_payload_is_refused_and_changes_nothing(s: semel.Semel) -> None:
    @s.once("charge:{order}")
    def charge(order: str, amount: int) -> int:
        return amount

    charge("o1", 5)
    before = s.ledger.get("charge:o1")
    with pytest.raises(semel.PayloadChanged, match="first used with another payload"):
        charge("o1", 6)
    assert s.ledger.get("charge:o1") == before


def test_the_payload_can_be_named_or_left_out(s: semel.Semel) -> None:
    @s.once("a:{order}", fingerprint=("order",))
    def named(order: str, note: str) -> str:
        return note

    @s.once("b:{order}", fingerprint=None)
    def unchecked(order: str, note: object) -> str:
        return str(note)

    assert named("o1", "x") == named("o1", "y") == "x"
    assert unchecked("o1", "x") == unchecked("o1", "y") == "x"
    with pytest.raises(semel.InvalidOption, match="fingerprint names amount"):
        s.once("c:{order}", fingerprint=("amount",))(lambda order: order)


def test_a_payload_without_a_canonical_form_is_refused_before_anything_runs(s: semel.Semel) -> None:
    ran = []

    @s.once("k:{n}")
    def work(n: int, connection: object) -> None:
        ran.append(n)

    with pytest.raises(semel.InvalidPayload, match="connection"):
        work(1, object())
    assert ran == []
    assert s.ledger.get("k:1") is None


@pytest.mark.situation(39)
def test_identity_is_fixed_before_the_function_changes_its_arguments(s: semel.Semel) -> None:
    @s.once("order:{order[id]}")
    def work(order: dict[str, Any]) -> str:
        order["id"] = "other"
        order["lines"].append(1)
        return "done"

    assert work({"id": "o1", "lines": []}) == "done"
    assert work({"id": "o1", "lines": []}) == "done"
    record = s.ledger.get("order:o1")
    assert record is not None
    assert record.status is semel.Status.COMPLETED
    assert s.ledger.get("order:other") is None


def test_keys_reach_into_attributes_and_items(s: semel.Semel) -> None:
    @dataclass
    class Order:
        id: str

    @s.once("charge:{order.id}:{lines[0]}")
    def charge(order: Order, lines: list[str]) -> str:
        return semel.current_run().key

    assert charge(Order("a:b"), ["c"]) == "charge:a%3Ab:c"


def test_a_key_may_be_made_by_a_function(s: semel.Semel) -> None:
    @s.once(key=lambda order, amount=0: semel.Key("charge", order))
    def charge(order: str, amount: int = 0) -> str:
        return semel.current_run().key

    assert charge("o:1") == "charge:o%3A1"


def test_a_key_may_be_given_at_the_call(s: semel.Semel) -> None:
    ran = []

    @s.once(ttl=60)
    def charge(amount: int) -> int:
        ran.append(amount)
        return amount

    def plain(amount: int) -> int:
        ran.append(amount)
        return amount

    assert s.once.call("k1", charge, 5) == s.once.call("k1", charge, 5) == 5
    assert s.once.call("k2", plain, 6) == s.once.call("k2", plain, amount=6) == 6
    assert ran == [5, 6]


def test_without_a_template_the_key_is_the_name_and_the_arguments(s: semel.Semel) -> None:
    @s.once()
    def charge(order: str, amount: int = 5, *, note: str = "") -> str:
        return semel.current_run().key

    key = charge("o-1")
    name, _, hashed = key.rpartition(":")
    assert name.endswith("test_without_a_template_the_key_is_the_name_and_the_arguments.<locals%3E.charge")
    assert hashed == s.fingerprint({"order": "o-1", "amount": 5, "note": ""})
    assert charge(order="o-1", amount=5) == charge("o-1", note="") == key
    assert charge("o-1", 6) != key != charge("o-2")


def test_two_functions_without_templates_have_keys_of_their_own(s: semel.Semel) -> None:
    @s.once()
    def charge(order: str) -> str:
        return "charged"

    @s.once()
    def refund(order: str) -> str:
        return "refunded"

    assert (charge("o-1"), refund("o-1")) == ("charged", "refunded")


def test_arguments_that_are_not_compared_are_not_in_the_key(s: semel.Semel) -> None:
    @s.once(fingerprint=("order",))
    def charge(connection: object, order: str) -> str:
        return semel.current_run().key

    assert charge(object(), "o-1") == charge(object(), "o-1") != charge(object(), "o-2")


def test_what_has_neither_template_nor_arguments_to_tell_calls_apart_is_refused(s: semel.Semel) -> None:
    ran: list[object] = []

    @s.once(fingerprint=None)
    def charge(amount: int) -> None:
        ran.append(amount)

    class Till:
        @s.once()
        def refund(self, order: str) -> None:
            ran.append(order)

    with pytest.raises(semel.InvalidKey, match=r"compares no arguments.*once\.call\(key, "):
        charge(5)
    with pytest.raises(semel.InvalidKey, match="is a method, and its object has no key"):
        Till().refund("o-1")
    assert ran == []


SCRIPT = """
import semel

s = semel.connect("memory:")


@s.once()
def charge(order: str) -> str:
    return semel.current_run().key


if __name__ == "__main__":
    print(charge("o-1"))
"""


def test_a_script_has_the_keys_of_the_module_that_it_is(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SCRIPT)
    ways = (["shop.py"], ["-m", "shop"], ["-c", "import shop; print(shop.charge('o-1'))"])
    keys = {
        subprocess.run(
            [sys.executable, *way], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout
        for way in ways
    }
    assert len(keys) == 1
    assert keys.pop().startswith("shop.charge:")


def test_methods_are_protected_like_functions(s: semel.Semel) -> None:
    class Till:
        def __init__(self) -> None:
            self.ran: list[str] = []

        @s.once("charge:{order}")
        def charge(self, order: str) -> str:
            self.ran.append(order)
            return order

        @s.once()
        def refund(self, order: str) -> str:
            self.ran.append(order)
            return order

        @classmethod
        @s.once("c:{order}")
        def of_class(cls, order: str) -> str:
            return order

        @staticmethod
        @s.once("s:{order}")
        def of_nobody(order: str) -> str:
            return order

    till = Till()
    assert till.charge("o1") == till.charge("o1") == "o1"
    assert s.once.call("r1", till.refund, "o1") == s.once.call("r1", till.refund, "o1") == "o1"
    assert till.ran == ["o1", "o1"]
    assert Till.of_class("x") == Till.of_class("x") == "x"
    assert till.of_nobody("x") == till.of_nobody("x") == "x"


@pytest.mark.parametrize(
    ("key", "error"),
    [
        ("k:{missing}", semel.TemplateError),
        ("k:{order!r}", semel.TemplateError),
        ("constant", semel.TemplateError),
    ],
)
def test_what_a_template_cannot_fill_is_an_error_at_decoration(
    s: semel.Semel, key: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        s.once(key=key)(lambda order: order)


@pytest.mark.parametrize(
    "part", [None, "", 1.5, object(), "a\nb", "x" * 2000], ids=lambda v: type(v).__name__
)
def test_a_key_that_names_nothing_never_runs_unprotected(s: semel.Semel, part: Any) -> None:
    ran = []

    @s.once("k:{part}", fingerprint=None)
    def work(part: Any) -> None:
        ran.append(part)

    with pytest.raises(semel.InvalidKey):
        work(part)
    assert ran == []


def test_a_two_megabyte_key_is_refused(s: semel.Semel) -> None:
    with pytest.raises(semel.InvalidKey, match="1024"):
        s.ledger.claim("x" * 2_000_000)


def test_generators_are_refused_at_decoration(s: semel.Semel) -> None:
    def stream(n: int) -> Any:
        yield n

    with pytest.raises(semel.InvalidOption, match="yields many values"):
        s.once("k:{n}")(stream)


@pytest.mark.situation(14, 16)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lease": 0}, "positive"),
        ({"lease": None}, "positive"),
        ({"lease": 60, "ttl": 60}, "longer than lease"),
        ({"on_busy": "maybe"}, "wait, raise, skip"),
        ({"on_lapsed": "resolve"}, "resolver"),
        ({"on_error": {ValueError: "forget"}}, "keep, release"),
        ({"on_error": {KeyboardInterrupt: "keep"}}, "exception type"),
        ({"max_attempts": 0}, "at least 1"),
        ({"tll": 5}, "no option tll"),
    ],
)
def test_an_option_that_cannot_work_is_refused_at_the_call(
    s: semel.Semel, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(semel.InvalidOption, match=says):
        s.once("k", **options)


# Errors


def test_a_failed_run_is_released_for_a_retry(s: semel.Semel) -> None:
    attempts = []

    @s.once("k")
    def work() -> str:
        attempts.append(semel.current_run().attempt)
        if len(attempts) < 3:
            raise TimeoutError("not yet")
        return "done"

    for _ in range(2):
        with pytest.raises(TimeoutError, match="not yet"):
            work()
    assert work() == work() == "done"
    assert attempts == [1, 2, 3]


def test_a_kept_failure_is_raised_again_and_caught_by_the_same_clause(s: semel.Semel) -> None:
    ran = []

    @s.once("k", on_error={Declined: "keep"})
    def work() -> None:
        ran.append(1)
        raise CardDeclined("no funds")

    with pytest.raises(CardDeclined):
        work()
    with pytest.raises(Declined, match="no funds") as caught:
        work()
    assert isinstance(caught.value, semel.FailedBefore)
    assert caught.value.error_type == "CardDeclined"
    assert len(ran) == 1


def test_the_most_specific_type_decides(s: semel.Semel) -> None:
    ran = []

    @s.once("k", on_error={Exception: "keep", TimeoutError: "release"})
    def work() -> None:
        ran.append(1)
        raise TimeoutError

    for _ in range(2):
        with pytest.raises(TimeoutError):
            work()
    assert len(ran) == 2


@pytest.mark.situation(40)
def test_a_poison_call_is_failed_for_good_and_can_be_listed(s: semel.Semel) -> None:
    ran = []

    @s.once("k", max_attempts=2)
    def work() -> None:
        ran.append(1)
        raise ValueError("poison")

    for _ in range(2):
        with pytest.raises(ValueError, match="poison"):
            work()
    with pytest.raises(semel.FailedBefore, match="poison"):
        work()
    assert len(ran) == 2
    assert [record.key for record in s.ledger.list(status="FAILED").records] == ["k"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_does_not_lock_the_key(s: semel.Semel, interruption: type[BaseException]) -> None:
    ran = []

    @s.once("k")
    def work() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise interruption
        return "done"

    with pytest.raises(interruption):
        work()
    assert work() == "done"


def test_an_interruption_is_a_doubt_where_the_policy_is_to_hold(s: semel.Semel) -> None:
    @s.once("k", on_lapsed="hold")
    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    with pytest.raises(semel.OutcomeUnknown):
        work()


@pytest.mark.situation(7)
def test_a_refused_duplicates_error_path_touches_nothing(s: semel.Semel) -> None:
    claim = s.ledger.claim("k")
    before = s.ledger.get("k")

    @s.once("k", on_busy="raise")
    def work() -> None:
        pytest.fail("it ran")

    with pytest.raises(semel.InProgress) as caught:
        work()
    assert 0 < caught.value.retry_after <= 30
    assert s.ledger.get("k") == before
    assert isinstance(claim, semel.Claimed)
    s.ledger.complete(claim)


# Busy


def test_a_busy_key_can_be_skipped(s: semel.Semel) -> None:
    s.ledger.claim("k")
    skipped: Any = s.once("k", on_busy="skip")(lambda: 1)()
    assert skipped is semel.SKIPPED


@pytest.mark.situation(41)
def test_waiting_ends_with_in_progress(s: semel.Semel) -> None:
    s.ledger.claim("k", lease=300)
    with pytest.raises(semel.InProgress):
        s.once("k", wait=5)(lambda: 1)()


def test_a_waiter_takes_over_when_the_holder_vanished(s: semel.Semel, events: list[semel.Event]) -> None:
    s.ledger.claim("k", lease=5)
    work = s.once("k")(lambda: semel.current_run().attempt)
    assert work() == 2
    assert semel.What.TAKEN_OVER in [event.what for event in events]


@pytest.mark.situation(36)
@pytest.mark.seed("A8")
def test_fifty_threads_get_one_answer() -> None:
    s = semel.connect("memory:")
    ran, answers, barrier = [], [], threading.Barrier(50)

    @s.once("k")
    def work() -> int:
        ran.append(1)
        return len(ran)

    def call() -> None:
        barrier.wait()
        answers.append(work())

    threads = [threading.Thread(target=call) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [1] * 50
    assert len(ran) == 1


@pytest.mark.situation(42)
def test_when_the_winner_fails_exactly_one_waiter_takes_over() -> None:
    s = semel.connect("memory:")
    ran, answers, barrier = [], [], threading.Barrier(8)

    @s.once("k")
    def work() -> int:
        ran.append(semel.current_run().attempt)
        if semel.current_run().attempt == 1:
            raise TimeoutError
        return len(ran)

    def call() -> None:
        barrier.wait()
        try:
            answers.append(work())
        except TimeoutError:
            answers.append(-1)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [-1] + [2] * 7
    assert ran == [1, 2]


def test_two_functions_on_one_ledger_never_get_each_others_answers() -> None:
    s = semel.connect("memory:")
    wrong = []

    @s.once("a:{n}")
    def a(n: int) -> str:
        return f"a{n}"

    @s.once("b:{n}")
    def b(n: int) -> str:
        return f"b{n}"

    def call(function: Any, name: str) -> None:
        for turn in range(1000):
            n = turn % 50
            if function(n) != f"{name}{n}":
                wrong.append((name, n))

    threads = [threading.Thread(target=call, args=args) for args in ((a, "a"), (b, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert {s.ledger.get(f"{name}:{n}").attempt for name in "ab" for n in range(50)} == {1}


# Nesting


@pytest.mark.situation(38)
def test_nested_calls_complete_under_their_own_keys(s: semel.Semel) -> None:
    @s.once("inner:{n}")
    def inner(n: int) -> str:
        return semel.current_run().key

    @s.once("outer:{n}")
    def outer(n: int) -> list[str]:
        return [semel.current_run().key, inner(n), semel.current_run().key]

    assert outer(1) == outer(1) == ["outer:1", "inner:1", "outer:1"]
    assert inner(1) == "inner:1"


@pytest.mark.situation(38)
def test_the_same_key_inside_itself_is_an_error_and_no_deadlock(s: semel.Semel) -> None:
    @s.once("k")
    def work() -> None:
        work()

    with pytest.raises(semel.Reentered, match="wait for itself"):
        work()


@pytest.mark.situation(38)
def test_the_same_key_inside_itself_is_an_error_after_a_resolver_too(
    s: semel.Semel, clock: FakeClock
) -> None:
    """Sync and async: the resolver runs as this attempt before the work does."""

    @s.once("k", on_lapsed="resolve", resolver=semel.NotHappened, wait=0.01)
    def work() -> None:
        work()

    @s.once("a", on_lapsed="resolve", resolver=semel.NotHappened, wait=0.01)
    async def awork() -> None:
        await awork()

    for key in ("k", "a"):
        s.ledger.claim(key, lease=10, on_lapsed="resolve")
    clock.advance(11)
    with pytest.raises(semel.Reentered, match="wait for itself"):
        work()
    with pytest.raises(semel.Reentered, match="wait for itself"):
        asyncio.run(awork())


def test_outside_of_a_run_there_is_no_current_run() -> None:
    with pytest.raises(LookupError):
        semel.current_run()


# Vanished attempts


@pytest.mark.situation(3)
def test_rerun_gives_the_next_attempt_the_same_downstream_key(s: semel.Semel, clock: FakeClock) -> None:
    keys = []

    @s.once("k", lease=10)
    def work() -> int:
        run = semel.current_run()
        keys.append(run.key_for("stripe"))
        if run.attempt == 1:
            raise KeyboardInterrupt
        return run.attempt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert work() == 2
    assert keys[0] == keys[1]
    assert "k" != keys[0] != semel.Key("k")


@pytest.mark.situation(3)
def test_hold_makes_it_unknown_until_somebody_settles_it(s: semel.Semel, clock: FakeClock) -> None:
    work = s.once("k", on_lapsed="hold")(lambda: "ran")
    vanish(s, clock, "k")
    for _ in range(2):
        with pytest.raises(semel.OutcomeUnknown, match="resolve"):
            work()
    assert [record.key for record in s.ledger.list(status=semel.Status.UNKNOWN).records] == ["k"]
    s.ledger.resolve("k", semel.Happened("settled"))
    assert work() == "settled"


@pytest.mark.situation(3)
@pytest.mark.parametrize(
    ("settlement", "answer"),
    [(semel.Happened(0), 0), (semel.NotHappened(), "ran")],
)
def test_a_resolver_asks_the_other_side(
    s: semel.Semel, clock: FakeClock, settlement: Any, answer: Any
) -> None:
    asked = []

    def resolver(order: str) -> Any:
        asked.append((order, semel.current_run().attempt))
        return settlement

    @s.once("k:{order}", on_lapsed="resolve", resolver=resolver)
    def work(order: str) -> Any:
        return "ran"

    vanish(s, clock, "k:o1")
    assert work("o1") == work("o1") == answer
    assert asked == [("o1", 2)]


def test_a_resolver_that_cannot_tell_leaves_it_unknown(s: semel.Semel, clock: FakeClock) -> None:
    work = s.once("k", on_lapsed="resolve", resolver=semel.Undecided)(lambda: 1)
    vanish(s, clock, "k")
    with pytest.raises(semel.OutcomeUnknown):
        work()
    record = s.ledger.get("k")
    assert record is not None
    assert record.status is semel.Status.UNKNOWN


def test_a_resolver_may_give_it_up(s: semel.Semel, clock: FakeClock) -> None:
    work = s.once("k", on_lapsed="resolve", resolver=lambda: semel.Abandoned("too old"))(lambda: 1)
    vanish(s, clock, "k")
    for _ in range(2):
        with pytest.raises(semel.FailedBefore, match="too old"):
            work()


def test_a_resolver_that_fails_or_talks_nonsense_can_be_asked_again(s: semel.Semel, clock: FakeClock) -> None:
    answers: list[Any] = [ConnectionError("down"), "nonsense", semel.Happened("found")]

    def resolver() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    work = s.once("k", on_lapsed="resolve", resolver=resolver)(lambda: "ran")
    vanish(s, clock, "k")
    with pytest.raises(ConnectionError):
        work()
    with pytest.raises(semel.InvalidOption, match="a resolver gave 'nonsense'"):
        work()
    assert work() == "found"


def test_a_resolver_is_asked_even_when_the_attempts_are_spent(s: semel.Semel, clock: FakeClock) -> None:
    settlements: list[Any] = [semel.NotHappened()]
    ran = []
    work = s.once("k", on_lapsed="resolve", resolver=settlements.pop, max_attempts=1)(lambda: ran.append(1))
    vanish(s, clock, "k")
    for _ in range(2):
        with pytest.raises(semel.FailedBefore, match="given up after 1 attempts"):
            work()
    assert (ran, settlements) == ([], [])


def test_draining_after_a_take_over_leaves_the_doubt(s: semel.Semel, clock: FakeClock) -> None:
    vanish(s, clock, "k")
    asked = []

    def drain_at_take_over(event: semel.Event) -> None:
        if event.what is semel.What.TAKEN_OVER and event.attempt == 2:
            s.drain()

    def resolver() -> semel.Happened:
        asked.append(1)
        return semel.Happened("found")

    s.events.listen(drain_at_take_over)
    with pytest.raises(semel.ShuttingDown):
        s.once("k", on_lapsed="resolve", resolver=resolver)(lambda: "ran")()
    fresh = semel.Semel(s.store, clock=clock)
    assert fresh.once("k", on_lapsed="resolve", resolver=resolver)(lambda: "ran")() == "found"
    assert asked == [1]


def test_work_that_stops_for_a_lost_lease_leaves_a_doubt(s: semel.Semel, clock: FakeClock) -> None:
    @s.once("k", lease=10, heartbeat=False, on_lapsed="hold")
    def work() -> None:
        clock.advance(11)
        semel.current_run().check()

    with pytest.raises(semel.ClaimLost):
        work()
    with pytest.raises(semel.OutcomeUnknown):
        work()


def test_after_a_slow_resolver_the_work_does_not_begin(s: semel.Semel, clock: FakeClock) -> None:
    def resolver() -> semel.NotHappened:
        clock.advance(40)
        return semel.NotHappened()

    vanish(s, clock, "k")
    with pytest.raises(semel.ClaimLost, match="begin"):
        s.once("k", on_lapsed="resolve", resolver=resolver, heartbeat=False)(lambda: pytest.fail("it ran"))()


def test_a_claim_whose_answer_came_after_its_lease_does_not_begin(s: semel.Semel, clock: FakeClock) -> None:
    execute = s.store.execute

    def late(command: Any) -> Any:
        reply = execute(command)
        clock.advance(40)
        return reply

    s.store.execute = late  # type: ignore[method-assign]
    with pytest.raises(semel.ClaimLost, match="begin"):
        s.once("k")(lambda: pytest.fail("it ran"))()


@pytest.mark.situation(5)
def test_a_zombies_result_is_refused_and_the_zombie_told(
    s: semel.Semel, clock: FakeClock, events: list[semel.Event]
) -> None:
    @s.once("k", lease=10, heartbeat=False)
    def work() -> str:
        if semel.current_run().attempt == 1:
            clock.advance(11)
            assert semel.current_run().lost
            with pytest.raises(semel.ClaimLost):
                semel.current_run().check()
            other = s.ledger.claim("k")
            assert isinstance(other, semel.Claimed)
            s.ledger.complete(other, "theirs")
        return "mine"

    with pytest.raises(semel.ClaimLost, match="attempt 1"):
        work()
    assert work() == "theirs"
    assert semel.What.CLAIM_LOST in [event.what for event in events]


# Results


@pytest.mark.situation(24)
def test_a_result_that_cannot_be_serialised_is_returned_told_and_never_runs_again(
    s: semel.Semel, events: list[semel.Event]
) -> None:
    ran = []

    @s.once("k")
    def work() -> Any:
        ran.append(1)
        return threading.Lock()

    assert work() is not None
    with pytest.raises(semel.ResultNotKept, match="not-serialisable"):
        work()
    assert len(ran) == 1
    assert semel.What.RESULT_NOT_KEPT in [event.what for event in events]


def noise(size: int) -> str:
    import random

    return random.Random(1).randbytes(size // 2).hex()


@pytest.mark.situation(23)
def test_a_large_result_is_compressed(s: semel.Semel) -> None:
    work = s.once("k")(lambda: "a" * 2_000_000)
    assert work() == work() == "a" * 2_000_000
    record = s.ledger.get("k")
    assert record is not None
    assert record.result is not None
    assert len(record.result) < 10_000


@pytest.mark.situation(23)
def test_a_result_too_large_for_the_row_is_completed_without_it(s: semel.Semel) -> None:
    ran = []

    @s.once("k")
    def work() -> str:
        ran.append(1)
        return noise(5_000_000)

    assert work() == noise(5_000_000)
    with pytest.raises(semel.ResultNotKept, match="too-large"):
        work()
    assert len(ran) == 1


@pytest.mark.situation(23)
def test_a_two_megabyte_result_goes_to_the_overflow(tmp_path: Any, clock: FakeClock) -> None:
    s = semel.connect("memory:", clock=clock, overflow=semel.FileOverflow(tmp_path), max_result_bytes=100_000)
    ran = []

    @s.once("k")
    def work() -> str:
        ran.append(1)
        return noise(2_000_000)

    assert work() == work() == noise(2_000_000)
    assert len(ran) == 1
    assert len(list(tmp_path.iterdir())) == 1
    s.ledger.drop_result("k")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(semel.ResultNotKept, match="dropped"):
        work()


def test_an_overflow_that_fails_costs_the_result_and_not_a_second_run(clock: FakeClock) -> None:
    class Broken:
        def put(self, name: str, data: bytes) -> str:
            raise OSError("disk full")

        get = delete = put

    s = semel.connect("memory:", clock=clock, overflow=Broken(), max_result_bytes=10)  # type: ignore[arg-type]
    work = s.once("k")(lambda: "more than ten bytes")
    assert work() == "more than ten bytes"
    with pytest.raises(semel.ResultNotKept, match="overflow-failed"):
        work()


@dataclass
class Receipt:
    id: UUID
    amount: Decimal
    at: datetime


def test_a_result_comes_back_as_the_type_its_annotation_says(s: semel.Semel) -> None:
    @s.once("k")
    def work() -> Receipt:
        return Receipt(UUID(int=1), Decimal("4.20"), datetime(2026, 1, 2, tzinfo=UTC))

    assert work() == work() == Receipt(UUID(int=1), Decimal("4.20"), datetime(2026, 1, 2, tzinfo=UTC))


def test_an_annotation_may_name_a_class_that_comes_later(s: semel.Semel) -> None:
    @s.once("k")
    def work() -> "Later":
        return Later(1)

    assert work() == work() == Later(1)


@dataclass
class Later:
    n: int


@pytest.mark.skipif(
    sys.version_info < (3, 14), reason="annotations were evaluated at once before Python 3.14"
)
def test_a_parameter_may_be_annotated_with_what_only_type_checkers_import(s: semel.Semel) -> None:
    names: dict[str, Any] = {"Later": Later, "__name__": "shop"}
    exec("def charge(n: int, order: OnlyForTypes = None) -> Later: return Later(n)", names)
    charge = s.once("charge:{n}")(names["charge"])
    assert charge(1) == charge(1) == Later(1)


def test_a_result_that_does_not_fit_its_annotation_never_runs_again(s: semel.Semel) -> None:
    ran = []

    @s.once("k")
    def work() -> int:
        ran.append(1)
        return "text"  # type: ignore[return-value]

    assert [work(), work()] == ["text"] * 2  # type: ignore[comparison-overlap]
    assert len(ran) == 1


def test_results_are_encrypted_where_asked(clock: FakeClock) -> None:
    encryption = semel.Encryption({"k1": b"0" * 32}, active="k1")
    s = semel.connect("memory:", clock=clock, encryption=encryption)
    work = s.once("k")(lambda: "secret words")
    assert work() == work() == "secret words"
    record = s.ledger.get("k")
    assert record is not None
    assert b"secret" not in (record.result or b"")


# The store is down


class Down:
    """A store that cannot be reached."""

    overflow: semel.Overflow | None = None

    def execute(self, command: Any) -> Any:
        raise semel.StoreUnavailable("down")

    at_once = execute

    async def aexecute(self, command: Any) -> Any:
        raise semel.StoreUnavailable("down")

    def close(self) -> None:
        pass


@pytest.mark.situation(19)
@pytest.mark.seed("A4")
def test_a_store_that_is_down_stops_the_work_by_default() -> None:
    ran = []
    work = semel.Semel(Down()).once("k")(lambda: ran.append(1))
    with pytest.raises(semel.StoreUnavailable):
        work()
    assert ran == []


@pytest.mark.situation(19)
@pytest.mark.seed("A4")
def test_running_open_is_explicit_and_counted() -> None:
    heard: list[semel.Event] = []
    s = semel.Semel(Down(), on_event=heard.append)
    work = s.once("k", on_store_error="open")(lambda: semel.current_run().protected)
    assert work() is False
    assert [event.what for event in heard] == [semel.What.STORE_ERROR, semel.What.RAN_OPEN]


@pytest.mark.seed("A4")
def test_asking_whether_a_key_is_done_fails_open_only_where_the_caller_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[semel.Event] = []
    s = semel.Semel(Down(), on_event=heard.append)
    closed: tuple[dict[str, Any], ...] = ({}, {"on_store_error": "closed"})
    for word in closed:
        with pytest.raises(semel.StoreUnavailable):
            s.ledger.is_processed("k", **word)
        with pytest.raises(semel.StoreUnavailable):
            asyncio.run(s.aio.ledger.is_processed("k", **word))
    assert "ran_open" not in caplog.text
    heard.clear()
    assert s.ledger.is_processed("k", on_store_error="open") is False
    assert asyncio.run(s.aio.ledger.is_processed("k", on_store_error="open")) is False
    told = [event.what for event in heard]
    assert told == [semel.What.STORE_ERROR, semel.What.RAN_OPEN] * 2
    assert caplog.text.count("ran_open") == 2
    with pytest.raises(semel.InvalidOption, match="on_store_error"):
        s.ledger.is_processed("k", on_store_error="ajar")  # type: ignore[arg-type]


@pytest.mark.seed("A4")
def test_a_record_that_cannot_be_read_is_no_store_that_is_down() -> None:
    s = semel.connect("memory:")
    s.store.execute(Put(LEDGER, "dev//k", {"status": "no such word", "expires_at": After(60)}))
    with pytest.raises(semel.RecordCorrupt):
        s.ledger.is_processed("k", on_store_error="open")


@pytest.mark.situation(10)
@pytest.mark.seed("A4")
def test_an_unknown_outcome_of_the_claim_never_runs() -> None:
    class Lossy(Down):
        def execute(self, command: Any) -> Any:
            raise semel.StoreOutcomeUnknown("lost")

    ran = []
    work = semel.Semel(Lossy()).once("k", on_store_error="open")(lambda: ran.append(1))
    with pytest.raises(semel.StoreOutcomeUnknown):
        work()
    assert ran == []


def test_a_completion_that_cannot_be_written_says_so(s: semel.Semel) -> None:
    s = semel.Semel(Faulty(s.store), clock=s.clock)

    @s.once("k")
    def work() -> str:
        s.store.refuse(1000)  # type: ignore[attr-defined]
        return "done"

    with pytest.raises(semel.StoreUnavailable) as caught:
        work()
    assert "the ledger could not be told" in caught.value.__notes__[0]


# Shutting down


@pytest.mark.situation(37)
def test_draining_begins_nothing_new(s: semel.Semel) -> None:
    work = s.once("k")(lambda: 1)
    s.drain()
    with pytest.raises(semel.ShuttingDown):
        work()
    assert s.ledger.get("k") is None


@pytest.mark.situation(37)
def test_what_was_claimed_and_has_not_begun_is_given_back(s: semel.Semel, monkeypatch: Any) -> None:
    ran = []
    work = s.once("k")(lambda: ran.append(1))
    execute = s.store.execute

    def draining(command: Any) -> Any:
        s.drain()
        return execute(command)

    monkeypatch.setattr(s.store, "execute", draining)
    with pytest.raises(semel.ShuttingDown):
        work()
    record = s.ledger.get("k")
    assert record is not None
    assert (record.status, ran) == (semel.Status.RELEASED, [])


# The with block


def test_a_block_is_done_once_and_says_what_came_of_it(s: semel.Semel) -> None:
    with s.once.running("charge", "o:1") as run:
        assert semel.current_run() is run
        run.result = 0
    with pytest.raises(semel.AlreadyDone) as caught, s.once.running("charge", "o:1"):
        pytest.fail("it ran")
    assert caught.value.result == 0
    assert s.ledger.get("charge:o%3A1") is not None


def test_a_block_that_fails_may_run_again(s: semel.Semel) -> None:
    with pytest.raises(ValueError, match="x"), s.once.running("k"):
        raise ValueError("x")
    with s.once.running("k") as run:
        assert run.attempt == 2
    with pytest.raises(semel.AlreadyDone) as caught, s.once.running("k"):
        pytest.fail("it ran")
    assert caught.value.result is None


@pytest.mark.parametrize("options", [{"on_busy": "skip"}, {"on_lapsed": "resolve", "resolver": print}])
def test_a_block_refuses_what_only_functions_can_do(s: semel.Semel, options: Any) -> None:
    with pytest.raises(semel.InvalidOption):
        s.once.running("k", **options)


def test_a_zombies_block_is_refused(s: semel.Semel, clock: FakeClock) -> None:
    with pytest.raises(semel.ClaimLost), s.once.running("k", lease=5, heartbeat=False) as run:
        clock.advance(6)
        assert isinstance(s.ledger.claim("k"), semel.Claimed)
        run.result = "mine"


# Scope and environment


@pytest.mark.situation(30)
def test_scopes_and_environments_do_not_see_each_other(clock: FakeClock) -> None:
    s = semel.connect("memory:", clock=clock, env="prod", scope="acme")
    other = s.scoped("globex")
    assert s.ledger.check_and_set("k") is True
    assert other.ledger.check_and_set("k") is True
    assert [record.id for record in other.ledger.list().records] == ["prod/globex/k"]


def test_draining_reaches_every_scope(s: semel.Semel) -> None:
    other = s.scoped("globex")
    work = other.once("k")(lambda: 1)
    s.drain()
    with pytest.raises(semel.ShuttingDown):
        work()


@pytest.mark.parametrize("result", ["plain", "x" * 10_000], ids=len)
def test_while_draining_what_is_done_is_still_answered(s: semel.Semel, result: str) -> None:
    work = s.once("k:{n}")(lambda n: result)
    work(1)
    s.drain()
    assert work(1) == result
    with pytest.raises(semel.ShuttingDown):
        work(2)


def test_fingerprints_for_the_ledger_are_made_with_the_secret(clock: FakeClock) -> None:
    plain = semel.connect("memory:", clock=clock)
    secret = semel.connect("memory:", clock=clock, secret=b"s" * 32)
    assert plain.fingerprint({"a": 1}) == plain.fingerprint({"a": 1.0})
    assert plain.fingerprint({"a": 1}) != secret.fingerprint({"a": 1})
    secret.once("k:{n}")(lambda n: n)(1)
    record = secret.ledger.get("k:1")
    assert record is not None
    assert record.fingerprint == secret.fingerprint({"n": 1})


@pytest.mark.situation(30)
def test_a_scope_cannot_be_forged_by_a_key(clock: FakeClock) -> None:
    s = semel.connect("memory:", clock=clock, scope="a")
    assert s.ledger.check_and_set("b/k")
    assert s.scoped("a/b").ledger.check_and_set("k")


# Waiting, async


@pytest.mark.situation(36)
def test_async_functions_run_once_too() -> None:
    s = semel.connect("memory:")
    ran = []

    @s.once("k:{n}")
    async def work(n: int) -> int:
        ran.append(n)
        await asyncio.sleep(0)
        return n

    async def main() -> list[int]:
        return await asyncio.gather(*(work(7) for _ in range(50)))

    assert asyncio.run(main()) == [7] * 50
    assert ran == [7]


def test_an_async_function_still_looks_like_one() -> None:
    s = semel.connect("memory:")

    @s.once("k:{n}")
    async def work(n: int) -> int:
        """Works."""
        return n

    assert inspect.iscoroutinefunction(work)
    assert (work.__name__, work.__doc__) == ("work", "Works.")


def test_cancelled_work_does_not_lock_the_key() -> None:
    s = semel.connect("memory:")
    started = asyncio.Event()

    @s.once("k")
    async def work() -> str:
        if semel.current_run().attempt == 1:
            started.set()
            await asyncio.Event().wait()
        return "done"

    async def main() -> str:
        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await work()

    assert asyncio.run(main()) == "done"


def test_async_blocks() -> None:
    s = semel.connect("memory:")

    async def main() -> Any:
        async with s.once.running("k") as run:
            run.result = 5
        with pytest.raises(semel.AlreadyDone) as caught:
            async with s.once.running("k"):
                pytest.fail("it ran")
        return caught.value.result

    assert asyncio.run(main()) == 5


def test_an_async_function_may_have_an_ordinary_resolver() -> None:
    clock = FakeClock()
    s = semel.connect("memory:", clock=clock)
    vanish(s, clock, "k")

    @s.once("k", on_lapsed="resolve", resolver=lambda: semel.Happened("found"))
    async def work() -> str:
        return "ran"

    assert asyncio.run(work()) == "found"


def test_an_ordinary_function_cannot_have_an_async_resolver(s: semel.Semel) -> None:
    async def resolver() -> semel.NotHappened:
        return semel.NotHappened()

    with pytest.raises(semel.InvalidOption, match="resolver"):
        s.once("k", on_lapsed="resolve", resolver=resolver)(lambda: 1)


def test_a_herd_of_callers_looks_together(monkeypatch: Any) -> None:
    """Two hundred tasks want one key: one runs, and the others share their looks at it."""
    looks, busy, everybody = [], [], asyncio.Event()
    look = MemoryStore._look

    def counted(self: MemoryStore, command: Any) -> Any:
        looks.append(1)
        return look(self, command)

    def heard(event: semel.Event) -> None:
        if event.what is semel.What.BUSY:
            busy.append(1)
        if len(busy) == 199:
            everybody.set()

    monkeypatch.setattr(MemoryStore, "_look", counted)
    s = semel.connect("memory:", on_event=heard)

    @s.once("k")
    async def work() -> str:
        await everybody.wait()
        return "done"

    async def main() -> list[str]:
        return await asyncio.gather(*(work() for _ in range(200)))

    assert asyncio.run(main()) == ["done"] * 200
    assert len(looks) < 50


# Imports


def test_importing_semel_imports_no_driver_and_nothing_heavy() -> None:
    heavy = "asyncio sqlite3 logging dataclasses cryptography pydantic rich typer rfc8785 urllib3 json zlib"
    code = f"import sys, semel; print([name for name in {heavy.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Blocks of one policy


class Turn:
    """A function for a block, sync or async, that does as it is told."""

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async
        self.runs: list[int] = []

    def __call__(
        self, block: Any, does: Any = "made", *, key: str = "k", fingerprint: str | None = None
    ) -> Any:
        def work(*args: Any) -> Any:
            self.runs.append(semel.current_run().attempt)
            if isinstance(does, BaseException):
                raise does
            return does(*args) if callable(does) else does

        async def awork(*args: Any) -> Any:
            await asyncio.sleep(0)
            return work(*args)

        if self.is_async:
            return asyncio.run(block.arun(key, fingerprint, awork, "an argument"))
        return block.run(key, fingerprint, work, "an argument")


@pytest.fixture(params=[False, True], ids=["run", "arun"])
def turn(request: pytest.FixtureRequest) -> Turn:
    return Turn(bool(request.param))


def test_a_block_says_whether_its_work_ran_now_or_before(s: semel.Semel, turn: Turn) -> None:
    block = s.once.block()
    first, again = turn(block, lambda word: [word]), turn(block)
    assert (first.value, first.record) == (["an argument"], None)
    assert again.value == ["an argument"]
    assert again.record == s.ledger.get("k")
    assert turn.runs == [1]
    with pytest.raises(LookupError):
        semel.current_run()


def test_a_block_gives_an_error_and_says_that_the_work_had_begun(s: semel.Semel, turn: Turn) -> None:
    error = Declined()
    done = turn(s.once.block(), error)
    assert (done.error, done.begun, done.final) == (error, True, False)
    assert turn(s.once.block()).value == "made"


@pytest.mark.parametrize("options", [{"max_attempts": 1}, {"on_error": {Declined: "keep"}}], ids=str)
def test_a_block_says_that_an_error_is_final_and_then_that_nothing_began(
    s: semel.Semel, turn: Turn, options: Any
) -> None:
    block = s.once.block(**options)
    first, again = turn(block, CardDeclined("no")), turn(block)
    assert (first.begun, first.final) == (True, True)
    assert (again.begun, again.final) == (False, False)
    assert isinstance(again.error, semel.FailedBefore)
    assert turn.runs == [1]


def test_an_interruption_is_never_final(s: semel.Semel, turn: Turn) -> None:
    error = KeyboardInterrupt() if not turn.is_async else asyncio.CancelledError()
    done = turn(s.once.block(max_attempts=1, on_error="keep"), error)
    assert (type(done.error), done.begun, done.final) == (type(error), True, False)


def test_what_stands_in_the_way_of_a_block_is_given_before_it_begins(
    s: semel.Semel, clock: FakeClock, turn: Turn
) -> None:
    block = s.once.block(on_busy="raise", on_lapsed="hold")
    s.ledger.claim("busy")
    vanish(s, clock, "held")
    s.ledger.claim("busy2")
    turn(block, key="done", fingerprint="one")
    for key, fingerprint, error in [
        ("busy2", None, semel.InProgress),
        ("held", None, semel.OutcomeUnknown),
        ("done", "another", semel.PayloadChanged),
        ("", None, semel.InvalidKey),
        ("x" * 2000, None, semel.InvalidKey),
    ]:
        done = turn(block, key=key, fingerprint=fingerprint)
        assert (type(done.error), done.begun) == (error, False)
    s.drain()
    done = turn(block, key="new")
    assert (type(done.error), done.begun) == (semel.ShuttingDown, False)
    assert len(turn.runs) == 1


def test_a_block_says_on_which_side_of_its_work_the_store_failed(clock: FakeClock, turn: Turn) -> None:
    store = Faulty(MemoryStore(clock))
    block = semel.Semel(store, clock=clock).once.block()
    store.refuse()
    before = turn(block)
    assert (type(before.error), before.begun, turn.runs) == (semel.StoreUnavailable, False, [])
    after = turn(block, lambda _: store.refuse(1000))
    assert (type(after.error), after.begun, after.final) == (semel.StoreUnavailable, True, False)
    store.recover()
    clock.advance(31)
    lost = turn(block, lambda _: store.lose_reply(1000))
    assert (type(lost.error), lost.begun) == (semel.StoreOutcomeUnknown, True)
    store.recover()
    assert turn(block).record is not None


def test_a_zombies_block_is_told_that_its_claim_is_lost(s: semel.Semel, clock: FakeClock, turn: Turn) -> None:
    def taken_over(_: Any) -> None:
        clock.advance(31)
        vanish(s, clock, "k")

    done = turn(s.once.block(heartbeat=False), taken_over)
    assert (type(done.error), done.begun, done.final) == (semel.ClaimLost, True, False)


def test_a_block_inside_itself_is_refused_and_inside_another_is_not(s: semel.Semel) -> None:
    block = s.once.block()
    inner: list[Any] = []
    done = block.run("k", None, lambda: inner.extend(block.run(key, None, lambda: 1) for key in ("k", "l")))
    assert isinstance(done, semel.core.commands.Returned)
    assert (type(inner[0].error), inner[0].begun) == (semel.Reentered, False)
    assert inner[1].value == 1


def test_work_that_would_have_to_be_awaited_is_not_taken_for_done(s: semel.Semel) -> None:
    ran = []

    async def later() -> None:
        ran.append(1)

    class Later:
        def __await__(self) -> Any:
            yield

    for work in (later, Later):
        done = s.once.block().run("k", None, work)
        assert isinstance(done, semel.core.commands.Raised)
        assert isinstance(done.error, semel.UsageError)
        record = s.ledger.get("k")
        assert record is not None
        assert record.status is semel.Status.RELEASED
    assert ran == []
    # The other way around nothing is lost.
    assert asyncio.run(s.once.block().arun("k", None, lambda: 5)).value == 5


def test_a_block_may_hide_its_keys_and_name_whom_it_is_about(clock: FakeClock, turn: Turn) -> None:
    s = semel.connect("memory:", clock=clock, secret=b"x" * 32)
    block = s.once.block(hide_key=True, subject="ann@example.com")
    assert turn(block, key="ann@example.com").record is None
    assert turn(block, key="ann@example.com").value == "made"
    (record,) = s.ledger.list().records
    assert "ann" not in record.id
    assert record.subject is not None
    assert turn(s.once.block(), key="ann@example.com").record is None


def test_what_is_done_already_comes_with_its_record(s: semel.Semel, clock: FakeClock) -> None:
    with s.once.running("k", ttl=60) as run:
        run.result = {"n": 1}
    with pytest.raises(semel.AlreadyDone) as raised, s.once.running("k"):
        pass
    assert raised.value.result == {"n": 1}
    assert raised.value.record == s.ledger.get("k")
    assert raised.value.record.expires_at == clock.now() + 60
    import pickle

    assert pickle.loads(pickle.dumps(raised.value)).record == raised.value.record


@pytest.mark.parametrize("is_async", [False, True])
def test_a_task_or_thread_that_outlives_its_work_is_not_inside_it_any_more(is_async: bool) -> None:
    """It has a copy of the context of that time, and the same key is no waiting for oneself by then."""
    s = semel.Semel(Faulty(MemoryStore()))
    over = threading.Event()
    replies: list[Any] = []

    @s.once("k")
    def work() -> str:
        import contextvars

        context = contextvars.copy_context()

        def later() -> None:
            assert over.wait(60)
            replies.append(s.once.block().run("k", None, work.__wrapped__))  # type: ignore[attr-defined]

        thread = threading.Thread(target=context.run, args=(later,))
        thread.start()
        threads.append(thread)
        return "made"

    @s.once("a")
    async def awork() -> str:
        async def later() -> None:
            await over_there.wait()
            replies.append(await s.once.block().arun("a", None, awork.__wrapped__))  # type: ignore[attr-defined]

        tasks.append(asyncio.create_task(later()))
        return "made"

    threads: list[threading.Thread] = []
    tasks: list[asyncio.Task[None]] = []
    over_there = asyncio.Event()

    async def main() -> None:
        await awork()
        over_there.set()
        await tasks[0]

    if is_async:
        asyncio.run(main())
    else:
        work()
        over.set()
        threads[0].join(60)
    assert [type(reply).__name__ for reply in replies] == ["Returned"]
