"""Two workers whose clocks are wrong, each within its margin, never both hold a lease."""

from email.utils import formatdate

from hypothesis import given
from hypothesis import strategies as st

from semel.aws.time import AGREEING, ServiceTime
from semel.core.clock import Clock
from semel.core.commands import NOW, After
from semel.stores.dynamodb.items import ClockReading, ItemFormat
from semel.stores.dynamodb.service import Timekeeper
from semel.tables import LEDGER
from semel.testing import FakeClock

SPANS = st.floats(0, 3)
WRONG = st.floats(-1, 1)
LEASES = ItemFormat(LEDGER, LEDGER, "test")


def read(now: float, margin: float, wrong: float) -> ClockReading:
    """What a clock shows that is wrong by some part of its margin."""
    shown = now + margin * wrong
    return shown - margin, shown + margin


def moment(after: After, reading: ClockReading) -> float:
    """The moment that a store writes for one that is counted from now."""
    return float(LEASES.encode({"lease_until": after}, [], reading)["lease_until"]["N"])


@given(SPANS, WRONG, SPANS, WRONG, st.floats(0.001, 100), st.floats(0, 10))
def test_a_lease_is_over_for_its_holder_before_it_is_for_anybody_else(
    margin_a: float, wrong_a: float, margin_b: float, wrong_b: float, lease: float, way: float
) -> None:
    """A counts from before it sent its claim; B compares what A wrote with its own clock."""
    sent = 1000.0
    until = moment(After(lease), read(sent + way, margin_a, wrong_a))
    # B takes over at the first moment at which its earliest has reached what was written.
    taken_over = until + margin_b - margin_b * wrong_b
    assert read(taken_over, margin_b, wrong_b)[0] >= until - 1e-6
    assert taken_over >= sent + lease - 1e-6


@given(SPANS, WRONG)
def test_what_is_written_as_now_is_past_at_once_for_whoever_wrote_it(margin: float, wrong: float) -> None:
    """An interrupted holder ends its lease now, and may claim again."""
    reading = read(1000.0, margin, wrong)
    assert moment(NOW, reading) <= reading[0]


def test_an_imposed_clock_has_no_margin() -> None:
    clock = FakeClock()
    keeper = Timekeeper(ServiceTime(clock), clock, margin=5.0)
    assert keeper.read() == (clock.now(), clock.now())
    assert not keeper.doubtful()


class Machine(Clock):
    """A machine whose clocks a test moves, and which imposes them on nobody."""

    def __init__(self) -> None:
        self.time, self.passed = 1_700_000_000.0, 50.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.passed


def told(machine: Machine) -> Timekeeper:
    time = ServiceTime(machine)
    for _ in range(AGREEING):
        time.observe("Tue, 14 Nov 2023 22:13:20 GMT", machine.passed, machine.passed)
    keeper = Timekeeper(time, machine)
    assert keeper.doubtful()
    keeper.settle()
    return keeper


def test_the_servers_time_lies_between_the_two() -> None:
    """Its Date is cut to the second."""
    for off in (0.0, 3600.0, -3600.0):
        machine = Machine()
        machine.time += off
        earliest, latest = told(machine).read()
        assert earliest <= 1_700_000_000.0
        assert latest >= 1_700_000_001.0
        assert latest - earliest < 2.5


def test_a_margin_of_ones_own_goes_before_the_clocks() -> None:
    machine = Machine()
    keeper = Timekeeper(ServiceTime(machine), machine, margin=0.25)
    assert keeper.read() == (machine.time - 0.25, machine.time + 0.25)


@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=40), st.floats(0, 2), WRONG)
def test_a_margin_never_makes_what_is_known_less(ways: list[float], margin: float, off: float) -> None:
    """However many answers have come, and whatever the machine's clock says within its margin."""
    machine = Machine()
    server = ServiceTime(machine)
    real = machine.time - machine.passed
    for way in ways:
        sent = machine.passed
        machine.passed += way
        server.observe(formatdate(int(real + sent + way / 2), usegmt=True), sent, machine.passed)
        machine.passed += 0.37
    # Not counted up step by step: that many seconds since the epoch lose a little with each.
    machine.time = real + machine.passed + margin * off
    plain, given = Timekeeper(server, machine).read(), Timekeeper(server, machine, margin).read()
    assert plain[0] <= given[0] <= given[1] <= plain[1]
    assert given[1] - given[0] <= 2 * margin + 1e-6
    assert given[0] - 1e-6 <= real + machine.passed <= given[1] + 1e-6


def test_a_clock_that_is_off_by_more_than_its_margin_has_no_say() -> None:
    machine = Machine()
    server = ServiceTime(machine)
    server.observe("Tue, 14 Nov 2023 22:13:20 GMT", machine.passed, machine.passed)
    machine.time += 3600
    assert Timekeeper(server, machine, margin=0.1).read() == Timekeeper(server, machine).read()


def test_a_machine_that_slept_asks_before_it_writes() -> None:
    """Its monotonic clock stood still: what it takes for now is long past, and so would be a lease."""
    machine = Machine()
    keeper = told(machine)
    machine.time += 100
    machine.passed += 100
    assert not keeper.doubtful()
    machine.time += 200
    assert keeper.doubtful()
    keeper.settle()
    assert not keeper.doubtful()


def test_an_answer_that_contradicts_the_others_is_confirmed_before_anything_is_written() -> None:
    machine = Machine()
    time = ServiceTime(machine)
    keeper = Timekeeper(time, machine)
    for date, doubtful in (("22:13:20", False), ("23:13:20", True), ("22:13:20", False)):
        time.observe(f"Tue, 14 Nov 2023 {date} GMT", machine.passed, machine.passed)
        keeper.settle()
        assert keeper.doubtful() is doubtful
        assert keeper.read()[0] <= machine.time
