"""Periods and windows: what the clocks of a zone show, also where they are put forward or back."""

import math
import os
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import InvalidOption, UsageError
from semel.periods import Day, Hour, Month, Span, Week, Window

STOCKHOLM = "Europe/Stockholm"
QUIET = Window("22:00", "07:00", STOCKHOLM)

KINDS = [Hour, Day, Week, Month]

# The first and the last second that a datetime in UTC can hold.
FIRST, LAST = -62_135_596_800, 253_402_300_799

# Zones and nights in which something is out of the ordinary.
NIGHTS = [
    (STOCKHOLM, "2026-03-29"),  # an hour forward
    (STOCKHOLM, "2026-10-25"),  # an hour back
    ("America/Havana", "2026-11-01"),  # back from 01:00 to 00:00: the first hour of the day twice
    ("America/St_Johns", "2010-11-07"),  # back at 00:01: the date flaps
    ("America/St_Johns", "2011-03-13"),  # forward at 00:01
    ("America/Sao_Paulo", "2017-10-15"),  # no midnight
    ("America/Sao_Paulo", "2018-02-18"),  # back at midnight
    ("Asia/Beirut", "2026-03-29"),  # no midnight
    ("Asia/Kathmandu", "1986-01-01"),  # a quarter of an hour forward, from 00:00
    ("Australia/Lord_Howe", "2026-04-05"),  # half an hour back
    ("Australia/Lord_Howe", "2026-10-04"),  # half an hour forward
    ("Antarctica/Troll", "2026-03-29"),  # two hours forward
    ("Antarctica/Troll", "2026-10-25"),  # two hours back
    ("Pacific/Apia", "2011-12-30"),  # a day forward
    ("Pacific/Kwajalein", "1969-10-01"),  # almost a day back
]


def at(text: str) -> float:
    """A moment written in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def span(label: str, start: str, end: str) -> Span:
    return Span(label, at(start), at(end))


# --- Labels ----------------------------------------------------------------------------------------


def test_each_kind_has_its_label():
    moment = at("2026-10-25T00:30")
    assert Hour(STOCKHOLM).label(moment) == "2026-10-25T02+02:00"
    assert Day(STOCKHOLM).label(moment) == "2026-10-25"
    assert Week(STOCKHOLM).label(moment) == "2026-W43"
    assert Month(STOCKHOLM).label(moment) == "2026-10"


@pytest.mark.seed("H4")
def test_late_in_the_evening_in_utc_it_is_the_next_day_in_stockholm():
    for evening in ("2026-01-15T23:30", "2026-07-15T22:30"):
        assert Day(STOCKHOLM).label(at(evening)) == evening[:8] + "16"
        assert Day().label(at(evening)) == evening[:10]


def test_a_year_begins_with_its_day_and_its_month_but_not_with_its_week():
    moment = at("2026-12-31T23:30")
    assert Hour(STOCKHOLM).label(moment) == "2027-01-01T00+01:00"
    assert Day(STOCKHOLM).label(moment) == "2027-01-01"
    assert Month(STOCKHOLM).label(moment) == "2027-01"
    assert Week(STOCKHOLM).label(moment) == "2026-W53"
    assert Week().label(at("2024-12-30T00:00")) == "2025-W01"


def test_a_year_has_four_digits():
    moment = at("0033-04-03T15:00")
    assert [kind().label(moment) for kind in KINDS] == [
        "0033-04-03T15+00:00",
        "0033-04-03",
        "0033-W13",
        "0033-04",
    ]


def test_without_a_zone_the_calendar_is_that_of_utc():
    assert Day() == Day("UTC")
    assert Day().span(at("2026-10-25T12:00")) == span("2026-10-25", "2026-10-25T00:00", "2026-10-26T00:00")


def test_the_last_fraction_of_a_second_belongs_to_the_old_day():
    midnight = at("2026-10-25T00:00")
    assert Day().label(math.nextafter(midnight, 0)) == "2026-10-24"
    assert Day().span(math.nextafter(midnight, 0)).end == midnight
    assert not Window("00:00", "01:00").holds(math.nextafter(midnight, 0))


def test_a_whole_number_is_a_moment_too():
    moment = int(at("2026-10-25T12:00"))
    assert Day().span(moment) == Day().span(float(moment))
    assert Window("22:00", "07:00").ends(moment) == moment


# --- Spans across changes --------------------------------------------------------------------------


@pytest.mark.seed("H4")
def test_the_day_of_the_change_has_23_hours_in_spring_and_25_in_autumn():
    day = Day(STOCKHOLM)
    spring = span("2026-03-29", "2026-03-28T23:00", "2026-03-29T22:00")
    autumn = span("2026-10-25", "2026-10-24T22:00", "2026-10-25T23:00")
    for whole, hours in ((spring, 23), (autumn, 25)):
        inside = [whole.start + 3600 * hour for hour in range(hours)]
        assert [day.span(moment) for moment in inside] == [whole] * hours
        assert day.span(whole.start - 1).end == whole.start
        assert day.span(whole.end).start == whole.end


@pytest.mark.seed("H4")
def test_both_sides_of_both_changes_lie_in_the_same_day():
    for change in ("2026-03-29T01:00", "2026-10-25T01:00"):
        assert {Day(STOCKHOLM).label(at(change) + s) for s in (-3600, -1, 0, 1, 3600)} == {change[:10]}


def test_a_week_and_a_month_gain_or_lose_the_hour_of_their_change():
    hours = {
        (kind, date): (kind(STOCKHOLM).span(at(date)).end - kind(STOCKHOLM).span(at(date)).start) / 3600
        for kind in (Week, Month)
        for date in ("2026-03-29", "2026-10-25", "2026-05-13")
    }
    assert hours == {
        (Week, "2026-03-29"): 7 * 24 - 1,
        (Week, "2026-10-25"): 7 * 24 + 1,
        (Week, "2026-05-13"): 7 * 24,
        (Month, "2026-03-29"): 31 * 24 - 1,
        (Month, "2026-10-25"): 31 * 24 + 1,
        (Month, "2026-05-13"): 31 * 24,
    }


def test_a_week_begins_on_monday():
    week = Week(STOCKHOLM).span(at("2026-10-25T12:00"))
    assert week == span("2026-W43", "2026-10-18T22:00", "2026-10-25T23:00")


def test_the_offset_tells_an_hour_that_is_shown_twice_apart():
    hour = Hour(STOCKHOLM)
    assert hour.span(at("2026-10-25T00:30")) == span(
        "2026-10-25T02+02:00", "2026-10-25T00:00", "2026-10-25T01:00"
    )
    assert hour.span(at("2026-10-25T01:30")) == span(
        "2026-10-25T02+01:00", "2026-10-25T01:00", "2026-10-25T02:00"
    )


def test_an_hour_that_is_not_shown_is_left_out():
    hour = Hour(STOCKHOLM)
    before, after = hour.span(at("2026-03-29T00:59")), hour.span(at("2026-03-29T01:00"))
    assert before == span("2026-03-29T01+01:00", "2026-03-29T00:00", "2026-03-29T01:00")
    assert after == span("2026-03-29T03+02:00", "2026-03-29T01:00", "2026-03-29T02:00")


def test_the_hours_of_kathmandu_begin_at_a_quarter_past():
    moment = at("2026-10-24T18:20")
    assert Hour("Asia/Kathmandu").span(moment) == span(
        "2026-10-25T00+05:45", "2026-10-24T18:15", "2026-10-24T19:15"
    )
    assert Day("Asia/Kathmandu").span(moment) == span("2026-10-25", "2026-10-24T18:15", "2026-10-25T18:15")


def test_a_change_of_half_an_hour_makes_an_hour_of_half_an_hour():
    hour = Hour("Australia/Lord_Howe")
    back = [hour.span(at(text)) for text in ("2026-04-04T14:45", "2026-04-04T15:15", "2026-04-04T15:45")]
    assert back == [
        span("2026-04-05T01+11:00", "2026-04-04T14:00", "2026-04-04T15:00"),
        span("2026-04-05T01+10:30", "2026-04-04T15:00", "2026-04-04T15:30"),
        span("2026-04-05T02+10:30", "2026-04-04T15:30", "2026-04-04T16:30"),
    ]
    assert hour.span(at("2026-10-03T15:45")) == span(
        "2026-10-04T02+11:00", "2026-10-03T15:30", "2026-10-03T16:00"
    )


def test_where_the_date_flaps_a_label_that_comes_back_is_the_same_day():
    """St. John's put its clocks back from 00:01 to 23:01: a minute of Sunday, an hour of Saturday, Sunday."""
    day = Day("America/St_Johns")
    saturday = span("2010-11-06", "2010-11-06T02:30", "2010-11-07T03:30")
    sunday = span("2010-11-07", "2010-11-07T02:30", "2010-11-08T03:30")
    shown = {
        "2010-11-07T02:29:59": saturday,
        "2010-11-07T02:30:00": sunday,
        "2010-11-07T02:30:59": sunday,
        "2010-11-07T02:31:00": saturday,
        "2010-11-07T03:29:59": saturday,
        "2010-11-07T03:30:00": sunday,
    }
    assert {text: day.span(at(text)) for text in shown} == shown
    assert [day.label(at(text)) for text in shown] == [each.label for each in shown.values()]


def test_the_hour_of_a_flapping_midnight_lasts_a_minute():
    assert Hour("America/St_Johns").span(at("2010-11-07T02:30:30")) == span(
        "2010-11-07T00-02:30", "2010-11-07T02:30", "2010-11-07T02:31"
    )


def test_a_midnight_that_is_shown_twice_belongs_to_the_new_day_both_times():
    """Havana goes back from 01:00 to 00:00."""
    day = Day("America/Havana")
    assert day.span(at("2026-11-01T04:30")) == day.span(at("2026-11-01T05:30"))
    assert day.span(at("2026-11-01T05:30")) == span("2026-11-01", "2026-11-01T04:00", "2026-11-02T05:00")
    assert day.span(at("2026-11-01T03:59")).end == at("2026-11-01T04:00")


def test_a_date_that_a_zone_leaves_out_is_never_shown():
    """Samoa moved across the date line: 29 December 2011 was followed by the 31st."""
    day = Day("Pacific/Apia")
    before, after = day.span(at("2011-12-30T09:59:59")), day.span(at("2011-12-30T10:00"))
    assert before == span("2011-12-29", "2011-12-29T10:00", "2011-12-30T10:00")
    assert after == span("2011-12-31", "2011-12-30T10:00", "2011-12-31T10:00")
    week, month = Week("Pacific/Apia").span(before.start), Month("Pacific/Apia").span(before.start)
    assert (week.end - week.start) / 86_400 == 6
    assert (month.end - month.start) / 86_400 == 30


def test_a_date_that_a_zone_shows_twice_is_one_day():
    """Kwajalein moved across the date line the other way: 30 September 1969 had 47 hours."""
    whole = span("1969-09-30", "1969-09-29T13:00", "1969-10-01T12:00")
    for text in ("1969-09-29T13:00", "1969-09-30T12:59", "1969-09-30T13:00", "1969-10-01T11:59"):
        assert Day("Pacific/Kwajalein").span(at(text)) == whole
    assert Month("Pacific/Kwajalein").span(whole.start).end == whole.end


@pytest.mark.parametrize(
    ("zone", "spring", "autumn"),
    [
        (
            "America/Sao_Paulo",
            span("2017-10-15", "2017-10-15T03:00", "2017-10-16T02:00"),
            span("2018-02-17", "2018-02-17T02:00", "2018-02-18T03:00"),
        ),
        (
            "Asia/Beirut",
            span("2026-03-29", "2026-03-28T22:00", "2026-03-29T21:00"),
            span("2026-10-24", "2026-10-23T21:00", "2026-10-24T22:00"),
        ),
    ],
)
def test_a_day_without_its_midnight_begins_where_the_gap_ends(zone, spring, autumn):
    for whole in (spring, autumn):
        assert Day(zone).span(whole.start) == Day(zone).span(whole.end - 1) == whole
    assert Hour(zone).label(spring.start)[10:13] == "T01"


def test_casablanca_goes_back_for_ramadan():
    day = Day("Africa/Casablanca")
    assert day.span(at("2024-03-10T12:00")) == span("2024-03-10", "2024-03-09T23:00", "2024-03-11T00:00")
    assert day.span(at("2024-04-14T12:00")) == span("2024-04-14", "2024-04-14T00:00", "2024-04-14T23:00")


def test_troll_changes_by_two_hours():
    day, hour = Day("Antarctica/Troll"), Hour("Antarctica/Troll")
    assert day.span(at("2026-03-29T12:00")) == span("2026-03-29", "2026-03-29T00:00", "2026-03-29T22:00")
    assert day.span(at("2026-10-25T12:00")) == span("2026-10-25", "2026-10-24T22:00", "2026-10-26T00:00")
    shown = [hour.label(at("2026-10-24T23:00") + 3600 * i)[10:] for i in range(4)]
    assert shown == ["T01+02:00", "T02+02:00", "T01+00:00", "T02+00:00"]


@pytest.mark.parametrize(("zone", "date"), NIGHTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_span_reaches_from_the_first_to_the_last_minute_that_bears_its_label(kind, zone, date):
    minutes = [at(date) + 60 * minute for minute in range(-4 * 1440, 4 * 1440)]
    shown: dict[str, list[float]] = {}
    for minute in minutes:
        shown.setdefault(kind(zone).label(minute), []).append(minute)
    for label, bearing in shown.items():
        whole = kind(zone).span(bearing[len(bearing) // 2])
        assert whole.label == label
        assert whole.start == bearing[0] or (whole.start < bearing[0] == minutes[0])
        assert whole.end == bearing[-1] + 60 or (whole.end > bearing[-1] == minutes[-1])


# --- The order of labels ---------------------------------------------------------------------------


@pytest.mark.parametrize(("zone", "date"), NIGHTS)
@pytest.mark.parametrize("kind", [Day, Week, Month])
def test_labels_sort_in_the_order_in_which_their_periods_begin(kind, zone, date):
    minutes = range(-40 * 1440, 40 * 1440, 30)
    shown = list(dict.fromkeys(kind(zone).label(at(date) + 60 * minute) for minute in minutes))
    assert shown == sorted(shown)


def test_only_hours_that_are_shown_twice_may_sort_the_wrong_way_round():
    start = at("2026-10-24T22:00")
    labels = [Hour(STOCKHOLM).label(start + 3600 * i) for i in range(25)]
    wrong = [pair for pair in pairwise(labels) if pair[0] > pair[1]]
    assert wrong == [("2026-10-25T02+02:00", "2026-10-25T02+01:00")]


# --- Windows ---------------------------------------------------------------------------------------


@pytest.mark.seed("H6")
@pytest.mark.parametrize(
    ("start", "end", "hours"),
    [
        ("2026-01-15T21:00", "2026-01-16T06:00", 9),
        ("2026-07-15T20:00", "2026-07-16T05:00", 9),
        ("2026-03-28T21:00", "2026-03-29T05:00", 8),
        ("2026-10-24T20:00", "2026-10-25T06:00", 10),
    ],
)
def test_quiet_hours_go_by_the_clock_on_the_wall(start, end, hours):
    assert (at(end) - at(start)) / 3600 == hours
    assert [QUIET.holds(at(start) - 1), QUIET.holds(at(start))] == [False, True]
    assert [QUIET.holds(at(end) - 1), QUIET.holds(at(end))] == [True, False]
    for hour in range(hours):
        assert QUIET.ends(at(start) + 3600 * hour) == at(end)
    assert QUIET.ends(at(start) - 0.5) == at(start) - 0.5
    assert QUIET.ends(at(end)) == at(end)


def test_a_window_within_a_day_holds_from_its_start_until_its_end():
    window = Window("09:00", "17:30")
    held = [window.holds(at(f"2026-05-13T{time}")) for time in ("08:59:59", "09:00", "17:29:59", "17:30")]
    assert held == [False, True, True, False]
    assert window.ends(at("2026-05-13T12:00")) == at("2026-05-13T17:30")


@pytest.mark.parametrize("end", ["24:00", "00:00"])
def test_a_window_may_end_at_midnight(end):
    window = Window("22:00", end)
    held = [window.holds(at(f"2026-05-13T{time}")) for time in ("00:00", "21:59", "22:00", "23:59:59")]
    assert held == [False, False, True, True]
    assert window.ends(at("2026-05-13T23:00")) == at("2026-05-14T00:00")


def test_an_end_that_is_not_shown_ends_the_window_where_the_gap_ends():
    assert Window("22:00", "02:30", STOCKHOLM).ends(at("2026-03-29T00:30")) == at("2026-03-29T01:00")
    assert Window("22:00", "00:30", "Asia/Beirut").ends(at("2026-03-28T21:00")) == at("2026-03-28T22:00")
    assert Window("22:00", "24:00", "Asia/Beirut").ends(at("2026-03-28T21:00")) == at("2026-03-28T22:00")


def test_a_window_whose_start_is_not_shown_begins_where_the_gap_ends():
    window = Window("02:30", "04:00", STOCKHOLM)
    assert [window.holds(at("2026-03-29T01:00") + s) for s in (-1, 0)] == [False, True]


def test_a_window_inside_a_gap_is_skipped_that_day():
    window = Window("02:15", "02:45", STOCKHOLM)
    assert not any(window.holds(at("2026-03-28T23:00") + 60 * minute) for minute in range(23 * 60))


def test_a_window_whose_outside_falls_into_a_gap_goes_on_until_the_next_day():
    window = Window("03:00", "02:00", STOCKHOLM)
    assert window.ends(at("2026-03-28T12:00")) == at("2026-03-30T00:00")


def test_a_clock_that_goes_back_into_the_window_makes_it_quiet_again():
    """A window until 02:30 ends, begins again when 03:00 becomes 02:00, and ends again."""
    window = Window("22:00", "02:30", STOCKHOLM)
    assert window.ends(at("2026-10-24T23:00")) == at("2026-10-25T00:30")
    assert [window.holds(at("2026-10-25T01:00") + s) for s in (-1, 0)] == [False, True]
    assert window.ends(at("2026-10-25T01:00")) == at("2026-10-25T01:30")


def test_a_window_that_would_end_as_the_clock_goes_back_goes_on():
    assert Window("22:00", "03:00", STOCKHOLM).ends(at("2026-10-25T00:30")) == at("2026-10-25T02:00")
    assert Window("22:00", "24:00", "Asia/Beirut").ends(at("2026-10-24T20:30")) == at("2026-10-24T22:00")


def test_quiet_hours_go_on_over_a_date_that_is_left_out():
    window = Window("22:00", "07:00", "Pacific/Apia")
    assert window.ends(at("2011-12-30T08:00")) == at("2011-12-30T17:00")


@pytest.mark.parametrize(("zone", "date"), NIGHTS)
@pytest.mark.parametrize(
    ("start", "end"),
    [("22:00", "07:00"), ("00:30", "02:15"), ("23:30", "00:01"), ("02:00", "24:00"), ("01:00", "00:59")],
)
def test_a_window_ends_at_the_first_minute_outside(start, end, zone, date):
    window = Window(start, end, zone)
    minutes = [at(date) + 60 * minute for minute in range(-2 * 1440, 3 * 1440)]
    held = [window.holds(minute) for minute in minutes]
    for i in range(0, 3 * 1440, 41):
        assert window.ends(minutes[i]) == minutes[held.index(False, i)]


# --- What is refused -------------------------------------------------------------------------------


MISSPELT = ["", "Nope", "Europe/Stokholm", "Europe/Stockholm ", "UTC+2", "\ud800"]
PATHS = ["Europe", "Europe/", "../UTC", "/UTC", "a\0b", pytest.param("x" * 300, id="long")]
NO_RULES = ["tzdata.zi", "__init__.py"]  # files among the zones' own


@pytest.mark.parametrize("make", [*KINDS, lambda zone: Window("22:00", "07:00", zone)])
@pytest.mark.parametrize("name", [*MISSPELT, *PATHS, *NO_RULES])
def test_a_zone_that_does_not_exist_is_refused_when_the_value_is_made(make, name):
    with pytest.raises(InvalidOption) as caught:
        make(name)
    assert str(caught.value) == (
        f"there is no time zone {name!r} here: name one of the IANA database, such as Europe/Stockholm; "
        'if it is a new one, pip install "semel[zones]" brings newer data (tzdata)'
    )


@given(st.text(max_size=12))
def test_whatever_the_name_it_is_a_zone_or_refused(name):
    with suppress(InvalidOption):
        assert Day(name).label(0)


@pytest.mark.parametrize("zone", [None, 2, b"UTC", ["UTC"], UTC])
def test_a_zone_is_given_by_its_name(zone):
    with pytest.raises(InvalidOption, match=r"a name such as Europe/Stockholm, not a value of type \w+"):
        Day(zone)


def without_zone_data(program: str) -> str:
    """What a program prints where neither the system nor tzdata has zones."""
    blocked = f"import sys; sys.modules['tzdata'] = None; from semel.periods import *; {program}"
    ran = subprocess.run(
        [sys.executable, "-c", blocked],
        env=os.environ | {"PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout + ran.stderr


def test_without_zone_data_the_message_says_how_to_install_it():
    assert (
        "InvalidOption: 'Europe/Stockholm' cannot be looked up, because no time zone data is installed here: "
        'pip install "semel[zones]" brings it (tzdata)\n'
    ) in without_zone_data("Day('Europe/Stockholm')")


def test_utc_needs_no_zone_data():
    assert (
        without_zone_data("print(Day().label(0), Window('22:00', '07:00').ends(0))") == "1970-01-01 25200.0\n"
    )


def test_the_module_loads_no_zone_machinery_before_a_zone_is_named():
    program = "import sys, semel.periods; sys.exit('zoneinfo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


HALF_RIGHT = ["", "22", "7:00", "7:00 ", "22:00:00", "22:00\n", "22:60", "24:01", "٢٢:00", 22, None]


@pytest.mark.parametrize(
    ("start", "end"),
    [*((time, "07:00") for time in (*HALF_RIGHT, "24:00")), *(("22:00", time) for time in HALF_RIGHT)],
)
def test_a_window_has_two_times_of_day(start, end):
    with pytest.raises(InvalidOption) as caught:
        Window(start, end)
    assert str(caught.value) == (
        'a window has two times of day, "HH:MM" from "00:00" to "23:59" ("24:00" too as its end), '
        f'such as "22:00" and "07:00", not {start!r} and {end!r}'
    )


@pytest.mark.parametrize(("start", "end"), [("22:00", "22:00"), ("00:00", "00:00"), ("00:00", "24:00")])
def test_a_window_has_an_inside_and_an_outside(start, end):
    with pytest.raises(InvalidOption) as caught:
        Window(start, end)
    assert str(caught.value) == (
        f"a window from {start} to {end} is empty or never ends; give it an end that is not its start"
    )


ASKED = [
    *(getattr(kind(STOCKHOLM), name) for kind in KINDS for name in ("label", "span")),
    QUIET.holds,
    QUIET.ends,
]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("moment", [math.nan, math.inf, -math.inf, 1e12, -1e12, 10**400, LAST + 1, FIRST - 1])
def test_a_moment_beyond_the_calendar_is_refused(ask, moment):
    with pytest.raises(UsageError, match=r"in the years 1 to 9999.*; is it in milliseconds\?"):
        ask(moment)


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize(
    "moment", [None, "0", True, Decimal(0), timedelta(0), datetime(2026, 1, 1, tzinfo=UTC)]
)
def test_a_moment_is_a_number(ask, moment):
    with pytest.raises(
        UsageError, match=f"as time.time.. gives it, not a value of type {type(moment).__name__}"
    ):
        ask(moment)


# --- The ends of the calendar ----------------------------------------------------------------------


def test_the_first_and_the_last_second_of_the_calendar_have_their_periods():
    assert [kind().label(FIRST) for kind in (Day, Week, Month)] == ["0001-01-01", "0001-W01", "0001-01"]
    assert [kind().label(LAST) for kind in (Day, Week, Month)] == ["9999-12-31", "9999-W52", "9999-12"]
    assert {kind().span(FIRST).start for kind in KINDS} == {FIRST}
    assert {kind().span(LAST).end for kind in (Hour, Day, Month)} == {LAST + 1}


def test_a_clock_that_would_show_the_year_0_or_10000_is_refused():
    assert Day("Asia/Tokyo").label(FIRST) == "0001-01-01"
    assert Day("America/New_York").label(LAST) == "9999-12-31"
    for zone, moment in (("America/New_York", FIRST), ("Asia/Tokyo", LAST)):
        with pytest.raises(UsageError, match="years 1 to 9999"):
            Day(zone).label(moment)


@given(
    kind=st.sampled_from(KINDS),
    zone=st.sampled_from(sorted({zone for zone, _ in NIGHTS})),
    moment=st.floats(FIRST + 40 * 86_400, LAST - 40 * 86_400),
)
def test_every_moment_lies_in_its_period_whose_label_changes_at_both_ends(kind, zone, moment):
    label, whole = kind(zone).label, kind(zone).span(moment)
    assert whole.start <= moment < whole.end
    assert whole.label == label(moment) == label(whole.start) == label(whole.end - 1)
    assert whole.label not in (label(whole.start - 1), label(whole.end))
