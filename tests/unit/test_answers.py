"""What a caller is told: whether a call ran, what its annotation says, whose keys it has."""

import asyncio
import dataclasses
import datetime
from typing import Any

import pydantic
import pytest

import semel
from semel.core.codecs import Codec, Encryption
from semel.testing import FakeClock


@pytest.fixture
def s():
    with semel.connect("memory:", clock=FakeClock()) as s:
        yield s


# Did it run?


def test_a_caller_learns_whether_its_call_ran(s):
    @s.once("charge:{order}")
    def charge(order: str) -> str:
        return f"charged {order}"

    assert s.once.answer(charge, "o-1") == semel.Answer("charged o-1", ran=True)
    assert s.once.answer(charge, order="o-1") == semel.Answer("charged o-1", ran=False)
    assert charge("o-1") == "charged o-1"


def test_the_same_for_async_work(s):
    @s.once("charge:{order}")
    async def charge(order: str) -> str:
        return f"charged {order}"

    async def main():
        return [await s.once.answer(charge, "o-1") for _ in range(2)]

    assert [answer.ran for answer in asyncio.run(main())] == [True, False]


def test_the_same_for_a_method(s):
    class Shop:
        @s.once("charge:{order}")
        def charge(self, order: str) -> str:
            return order

    shop = Shop()
    assert [s.once.answer(shop.charge, "o-1").ran for _ in range(2)] == [True, False]


def test_what_a_resolver_found_did_not_run(s):
    @s.once("pay:{order}", on_lapsed="resolve", resolver=lambda order: semel.Happened("found"))
    def pay(order: str) -> str:
        raise AssertionError("nobody may run it")

    s.ledger.claim("pay:o-1", lease=30, on_lapsed="hold")
    s.clock.advance(31)
    assert s.once.answer(pay, "o-1") == semel.Answer("found", ran=False)


def test_what_was_skipped_did_not_run(s):
    @s.once("pay:{order}", on_busy="skip")
    def pay(order: str) -> str:
        return "paid"

    s.ledger.claim("pay:o-1")
    assert s.once.answer(pay, "o-1") == semel.Answer(semel.SKIPPED, ran=False)


def test_only_protected_functions_can_answer(s):
    with pytest.raises(semel.UsageError, match="not protected"):
        s.once.answer(len, "o-1")


# Annotations


@dataclasses.dataclass
class Receipt:
    number: int
    at: datetime.date


class Paid(pydantic.BaseModel):
    number: int


UNTRUE: list[tuple[Any, Any]] = [
    (int, "text"),
    (str, None),
    (type(None), {"number": 1}),
    (list[int], ["a"]),
    (dict[str, int], [1, 2]),
    (Receipt, {"number": "x"}),
    (Paid, {"number": []}),
    (bool, 1),
    (datetime.date, "tomorrow"),
]


@pytest.mark.situation(47)
@pytest.mark.parametrize(("said", "given"), UNTRUE, ids=lambda one: repr(one)[:20])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_replay_gives_what_the_first_call_gave_where_the_annotation_is_not_true(s, said, given, is_async):
    told = []
    s.events.listen(lambda event: told.append(event.what))
    runs = []

    if is_async:

        @s.once("k", returns=said)
        async def soon() -> Any:
            runs.append(1)
            return given

        answers = [asyncio.run(soon()) for _ in range(2)]
    else:

        @s.once("k", returns=said)
        def now() -> Any:
            runs.append(1)
            return given

        answers = [now(), now()]
    assert answers == [given, given]
    assert runs == [1]
    assert told.count(semel.What.RESULT_MISTYPED) == 1


@pytest.mark.situation(47)
def test_a_true_annotation_is_not_complained_of(s, caplog):
    @s.once("k")
    def work() -> Receipt:
        return Receipt(1, datetime.date(2026, 11, 16))

    assert work() == work()
    assert not caplog.records


@pytest.mark.situation(47)
@pytest.mark.parametrize(
    "codec",
    [
        Codec(),
        Codec(compress_over=0),
        Codec(encryption=Encryption({"k": bytes(32)}, "k")),
        Codec(compress_over=0, encryption=Encryption({"k": bytes(32)}, "k")),
    ],
    ids=["plain", "compressed", "encrypted", "both"],
)
def test_however_it_is_kept(codec):
    s = semel.Semel(semel.connect("memory:").store, codec=codec)

    @s.once("k")
    def work() -> int:
        return "text " * 100  # type: ignore[return-value]

    assert work() == work() == "text " * 100  # type: ignore[comparison-overlap]


@pytest.mark.situation(47)
def test_a_type_that_changed_since_is_told_and_nothing_runs(s):
    """That is another case: the first caller was given what was promised then."""

    @s.once("k", shared=True)
    def before() -> dict:
        return {"number": 1}

    @s.once("k", shared=True)
    def after() -> Receipt:
        raise AssertionError("it is done")

    before()
    with pytest.raises(semel.ResultUnreadable):
        after()


# Templates


@pytest.mark.situation(49)
@pytest.mark.parametrize("template", ["charge:{order}", "charge:{order.id}", "charge:{number}"])
def test_two_functions_under_one_template_are_refused_at_decoration(s, template):
    @s.once("charge:{order}")
    def charge(order: Any) -> None: ...

    with pytest.raises(semel.InvalidOption, match=r"charge_again.* the same keys as .*charge") as caught:

        @s.once(template)
        def charge_again(order: Any, number: int = 0) -> None: ...

    assert "shared=True" in str(caught.value)


@pytest.mark.situation(49)
def test_functions_that_say_so_share_their_keys(s):
    @s.once("charge:{order}")
    def charge(order: str) -> str:
        return "now"

    @s.once("charge:{order}", shared=True)
    async def charge_soon(order: str) -> str:
        return "soon"

    assert charge("o-1") == "now"
    assert asyncio.run(charge_soon("o-1")) == "now"


@pytest.mark.situation(49)
def test_a_function_that_is_defined_again_is_no_second_one(s):
    """As in a notebook, or when a module is reloaded."""
    for version in (1, 2):
        scope = {"s": s, "__name__": "notebook"}
        exec(f'@s.once("charge:{{order}}")\ndef charge(order): return {version}', scope)
    assert scope["charge"]("o-1") == 2


@pytest.mark.situation(49)
def test_scopes_and_other_templates_do_not_meet(s):
    def one(order: str) -> None: ...

    def other(order: str) -> None: ...

    s.once("charge:{order}")(one)
    s.once("refund:{order}")(other)
    s.once("charge:{order}:again")(other)
    s.scoped("tenant").once("charge:{order}")(other)


# Without its call


@pytest.mark.situation(50)
def test_once_without_its_call_is_refused_at_decoration(s):
    with pytest.raises(semel.InvalidOption, match=r'@s\.once\("charge:\{order_id\}"\)'):

        @s.once
        def charge(order_id: str, amount: int) -> None: ...


@pytest.mark.situation(50)
def test_so_is_a_function_of_keys_in_its_place(s):
    with pytest.raises(semel.InvalidOption, match=r"once\(key=\.\.\.\)"):
        s.once(lambda order: f"charge:{order}")
    with pytest.raises(semel.InvalidOption, match="not by both"):
        s.once("charge:{order}", key=lambda order: order)
