"""Values whose own methods raise: a typed error that names them, or a result that is not stored."""

import dataclasses
import datetime
import signal
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import pytest

import semel
from semel.core.codecs import Codec
from semel.core.keys import canonical


class Unusable(datetime.tzinfo):
    def utcoffset(self, _moment: datetime.datetime | None) -> datetime.timedelta:
        raise RuntimeError("no offset")


class Detached:
    """What an ORM puts in the place of a field: reading it raises."""

    def __get__(self, one: object, kind: type) -> int:
        if one is None:
            return 0
        raise RuntimeError("detached from its session")

    def __set__(self, one: object, value: int) -> None:
        pass


@dataclasses.dataclass
class LazyRow:
    id: int = dataclasses.field(default=Detached())  # type: ignore[assignment]


class WithoutItems(dict[str, int]):
    items = None  # type: ignore[assignment]


class RaisingItems(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("no items")


class RaisingIteration(list[float]):
    def __iter__(self) -> Any:
        raise RuntimeError("no iteration")


class Unbound:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("a proxy of nothing")


class RaisingModel:
    def model_dump(self, **_options: Any) -> Any:
        raise Wordless


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class RaisingNumber(int):
    def __int__(self) -> int:
        raise RuntimeError("no number")


class RaisingId(uuid.UUID):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class RaisingDecimal(Decimal):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __format__(self, *_: Any) -> str:
        raise RuntimeError("no text")


class TextlessDate(datetime.date):
    def isoformat(self) -> str:
        return None  # type: ignore[return-value]


UNUSABLE, BASE = Unusable(), datetime.tzinfo()  # type: ignore[abstract]
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=UNUSABLE)
NO_OFFSET = datetime.datetime(2026, 1, 1, 12, tzinfo=BASE)

Maker: TypeAlias = Callable[[], Any]

# Made in the tests: collecting them would read them.
MAKERS: dict[str, Maker] = {
    "zone that raises": lambda: NOON,
    "zone without offset": lambda: NO_OFFSET,
    "time of such a zone": NOON.timetz,
    "lazy dataclass": LazyRow,
    "dict without items": lambda: WithoutItems(a=1),
    "dict that raises": lambda: RaisingItems(a=1),
    "list that raises": lambda: RaisingIteration([1.5]),
    "proxy": Unbound,
    "model": RaisingModel,
    "number": lambda: RaisingNumber(1),
    "UUID": lambda: RaisingId(int=1),
    "Decimal": lambda: RaisingDecimal(1),
    "date": lambda: TextlessDate(2026, 1, 1),
}


def every(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("make", [MAKERS[name] for name in names], ids=names)


PAYLOADS = every(*(name for name in MAKERS if name not in ("UUID", "Decimal")))
KEYS = every("zone that raises", "zone without offset", "proxy", "number", "UUID", "Decimal", "date")
RESULTS = every("zone that raises", "zone without offset", "proxy", "model", "date")


def kind(value: object) -> str:
    return type(value).__name__


@pytest.fixture
def s() -> semel.Semel:
    return semel.connect("memory:")


@PAYLOADS
def test_an_argument_whose_own_methods_raise_is_refused_by_its_name(s: semel.Semel, make: Maker) -> None:
    ran, value = [], make()
    pay = s.once("pay:{number}")(lambda number, order: ran.append(number))
    with pytest.raises(semel.InvalidPayload, match=r"payload\['order'\]\['rows'\]\[0\]") as refused:
        pay(1, {"rows": [value]})
    assert refused.value.__cause__ is not None
    assert (ran, s.ledger.get("pay:1")) == ([], None)
    with pytest.raises(semel.InvalidPayload, match=kind(value)):
        s.fingerprint(value)


@KEYS
def test_a_part_of_a_key_whose_own_methods_raise_is_refused_by_its_name(s: semel.Semel, make: Maker) -> None:
    value = make()
    work = s.once("k:{order}", fingerprint=None)(lambda order: order)
    with pytest.raises(semel.InvalidKey, match=rf"\{{order\}}.*{kind(value)}"):
        work(value)
    with pytest.raises(semel.InvalidKey, match=kind(value)):
        semel.Key("k", value)


def test_an_attribute_in_a_template_that_raises_is_refused_by_its_name(s: semel.Semel) -> None:
    work = s.once("k:{order.id}", fingerprint=None)(lambda order: order)
    with pytest.raises(semel.TemplateError, match=r"\{order.id\} .* cannot be read: RuntimeError"):
        work(LazyRow())


@pytest.mark.situation(24)
@RESULTS
def test_work_whose_result_raises_while_it_is_written_is_done(s: semel.Semel, make: Maker) -> None:
    ran, heard, value = [], list[semel.Event](), make()
    s.events.listen(heard.append)

    @s.once("k", returns=Any)
    def work() -> Any:
        ran.append(1)
        return value

    assert work() is value
    with pytest.raises(semel.ResultNotKept, match="not-serialisable"):
        work()
    assert ran == [1]
    assert semel.What.RESULT_NOT_KEPT in [event.what for event in heard]


def noted(s: semel.Semel, value: Any) -> None:
    with s.once.running("k") as run:
        run.note(a=value)


WRITES: dict[str, Callable[[semel.Semel, Any], Any]] = {
    "document": lambda s, value: s.documents.put("d", {"a": value}),
    "journal": lambda s, value: s.journal.append("o", {"a": value}),
    "details": noted,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
@RESULTS
def test_what_raises_while_it_is_written_is_refused_before_anything_is(
    s: semel.Semel, write: Callable[[semel.Semel, Any], Any], make: Maker
) -> None:
    with pytest.raises(semel.UsageError, match="cannot be kept"):
        write(s, make())


class TimeLimit(Exception):
    """What a task queue raises out of a signal handler when a task takes too long."""


@pytest.mark.situation(48)
def test_an_error_out_of_a_signal_handler_is_not_taken_for_the_values_own() -> None:
    def expire(*_: object) -> None:
        raise TimeLimit

    class Interrupted(dict[str, int]):
        left = 1

        def items(self) -> Any:
            if self.left:
                self.left = 0
                signal.raise_signal(signal.SIGUSR1)
            return super().items()

    class InterruptedModel:
        left = 1

        def model_dump(self, **_options: Any) -> Any:
            if self.left:
                self.left = 0
                signal.raise_signal(signal.SIGUSR1)
            return {"a": 1}

    before = signal.signal(signal.SIGUSR1, expire)
    try:
        for read in (canonical, lambda value: Codec().encode(value, "k")):
            for value in (Interrupted(a=1), InterruptedModel()):
                if read is not canonical and isinstance(value, dict):
                    continue  # a codec reads a dict without calling it
                with pytest.raises(TimeLimit):
                    read(value)
    finally:
        signal.signal(signal.SIGUSR1, before)
