"""The server's time: right to within what is stated, however wrong the machine's clock is."""

from email.utils import formatdate
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.aws.time import AGREEING, DRIFT, ServiceTime, parse_date
from semel.core.clock import Clock
from semel.testing import FakeClock
from tests.clocks import MachineClock

HOUR = 3600.0


class World:
    """A machine, and a server whose clock is right and runs at another pace."""

    def __init__(self, skew=0.0, pace=0.0):
        self.clock = MachineClock()
        self.time = ServiceTime(self.clock)
        self.pace = pace
        self.start = self.clock.now() - skew

    @property
    def truth(self):
        return self.start + self.clock.monotonic() * (1 + self.pace)

    def ask(self, there=0.0, back=0.0):
        """A request and its answer, which tells the server's second."""
        sent = self.clock.monotonic()
        self.clock.advance(there)
        date = formatdate(self.truth, usegmt=True)
        self.clock.advance(back)
        self.time.observe(date, sent, self.clock.monotonic())

    @property
    def error(self):
        return abs(self.time.signing() - self.truth)

    @property
    def width(self):
        lowest, highest = self.time.span()
        return highest - lowest


LATENCIES = st.floats(0, 5)
PAUSES = st.floats(0, 1e5)
# Clocks differ by seconds, by hours, or by years.
SKEWS = st.floats(-3, 3) | st.floats(-HOUR * 24, HOUR * 24) | st.floats(-1e9, 1e9)
# Differences of large numbers are not exact to the last digit.
ROUNDING = 1e-5


@given(SKEWS, st.floats(-DRIFT / 2, DRIFT / 2), st.lists(st.tuples(LATENCIES, LATENCIES, PAUSES), min_size=1))
def test_the_time_is_never_further_off_than_it_says(skew, pace, answers):
    world = World(skew, pace)
    for there, back, pause in answers:
        world.ask(there, back)
        for passed in (0.0, pause):
            world.clock.advance(passed)
            lowest, highest = world.time.span()
            assert lowest - ROUNDING <= world.truth <= highest + ROUNDING
            assert lowest - ROUNDING <= world.time.signing() <= highest + ROUNDING


@given(SKEWS, st.lists(st.tuples(st.floats(0, 0.1), st.floats(0, 0.1), st.floats(0, 3)), min_size=2))
def test_each_answer_narrows_what_is_not_known(skew, answers):
    """Within a minute and a half, drift is too little to see."""
    world = World(skew)
    widths = []
    for there, back, pause in answers[:20]:
        world.ask(there, back)
        lowest, highest = world.time.span()
        if world.time.known:
            widths.append(highest - lowest)
        world.clock.advance(pause)
    assert all(later <= earlier + 2 * DRIFT * 90 for earlier, later in pairwise(widths))


@pytest.mark.situation(11)
@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_a_clock_an_hour_off_is_corrected_by_the_first_answers(skew):
    world = World(skew)
    assert world.error == HOUR
    for _ in range(AGREEING):
        assert not world.time.known
        world.ask(0.02, 0.02)
        assert abs(world.time.signing() - world.truth) < 0.6
    assert world.time.known
    assert not world.time.contradicted
    assert world.error < 0.6


@pytest.mark.situation(11)
@pytest.mark.parametrize("answers", [0, 1, 20])
@pytest.mark.parametrize("wrong", [HOUR, -HOUR, 1e8, 5.0])
def test_one_wrong_date_leaves_the_truth_within_the_span(wrong, answers):
    """Whether it is the first answer or a later one; nor does the same again, before others have spoken."""
    world = World()
    for _ in range(answers):
        world.ask(0.02, 0.02)
    for _ in range(AGREEING - 1):
        world.start += wrong
        world.ask(0.02, 0.02)
        world.start -= wrong
        assert world.time.contradicted
        lowest, highest = world.time.span()
        assert lowest <= world.truth <= highest
    world.ask(0.02, 0.02)
    assert not world.time.contradicted
    assert world.width < 1.2


@pytest.mark.situation(11)
@given(SKEWS, st.lists(st.tuples(st.booleans(), SKEWS.filter(lambda by: abs(by) > 5)), max_size=30))
def test_what_has_certainly_passed_has_passed_however_often_a_date_is_wrong(skew, dates):
    """By more than the second that no answer tells, and as long as no two wrong ones come in a row."""
    world = World(skew)
    for _ in range(AGREEING):
        world.ask(0.02, 0.02)
    for wrong, by in dates:
        if wrong:
            world.start += by
            world.ask(0.02, 0.02)
            world.start -= by
        world.ask(0.02, 0.02)
        lowest, highest = world.time.span()
        assert lowest - ROUNDING <= world.truth <= highest + ROUNDING


def test_a_clock_that_agrees_with_every_answer_is_left_as_it_is():
    world = World(skew=0.02)
    for _ in range(20):
        world.ask(0.05, 0.05)
        world.clock.advance(1.0)
    assert world.time.signing() == world.clock.now()


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_setting_the_machines_clock_moves_nothing(jump):
    world = World()
    world.ask(0.02, 0.02)
    world.clock.jump(jump)
    assert world.error <= world.width < 1.2
    world.ask(0.02, 0.02)
    assert world.error <= world.width < 1.2


@pytest.mark.situation(12)
def test_a_server_whose_clock_was_set_is_followed_when_its_answers_agree():
    world = World()
    world.ask()
    world.start += HOUR
    for _ in range(AGREEING):
        world.ask()
    assert world.error < 1.1
    assert world.width < 1.2


def test_what_was_known_long_ago_is_known_less_well():
    world = World(skew=HOUR)
    for _ in range(AGREEING):
        world.ask()
    fresh = world.width
    world.clock.advance(HOUR)
    assert world.width == pytest.approx(fresh + 2 * DRIFT * HOUR)


def test_before_the_first_answer_the_machine_is_believed():
    world = World(skew=HOUR)
    assert world.time.signing() == world.clock.now()
    assert world.time.span() == (world.clock.now() - 1, world.clock.now() + 1)


def test_an_imposed_clock_is_the_stores_time_but_signs_nothing():
    clock = FakeClock()
    time = ServiceTime(clock)
    sent = time.monotonic()
    time.observe(formatdate(Clock().now(), usegmt=True), sent, time.monotonic())
    clock.advance(12345)
    assert time.span() == (clock.now(), clock.now())
    assert abs(time.signing() - Clock().now()) < 60


@given(st.integers(0, 253402300799))
def test_a_date_is_read_as_it_is_written(moment):
    assert parse_date(formatdate(moment, usegmt=True)) == moment


@pytest.mark.parametrize(
    "date",
    [
        None,
        "",
        "now",
        "2023-11-14T22:13:20Z",
        "Tue, 14 Nov 2023 22:13 GMT",
        "Tue, 14 Nov 2023 22:13:20 CET",
        "Tue, 14 Foo 2023 22:13:20 GMT",
        "Tue, 14 anF 2023 22:13:20 GMT",
        "Tue, 99 Nov 2023 22:13:20 GMT",
    ],
)
def test_a_date_that_cannot_be_read_says_nothing(date):
    world = World(skew=HOUR)
    world.time.observe(date, 0.0, 0.0)
    assert not world.time.known
