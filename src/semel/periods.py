"""Calendar periods and daily windows, as the clocks of a time zone show them.

    Day("Europe/Stockholm").label(moment)                        ->  "2026-10-25"
    Window("22:00", "07:00", "Europe/Stockholm").holds(moment)   ->  True

A moment is a number of seconds since the epoch, and every answer follows from it alone: nothing here reads
a clock, and only the loading of a zone reads a file.

Clocks are put forward and back. A day may have 23 hours or 25, its midnight may never be shown, a date may
be missing (30 December 2011 in Apia), and a clock that goes back over midnight shows the old date once more.
What bears one label is one period, so there the old day and the new one overlap.

The labels of a zone sort as text in the order of time, with one exception: of an hour that a clock shows
twice, the second may sort first, as `2026-10-25T02+01:00` does before `2026-10-25T02+02:00`.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from math import floor
from typing import ClassVar, Final, Literal, TypeAlias

import msgspec

from semel.errors import InvalidOption, UsageError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = 86_400

# A day away from the first and the last datetime, so that no offset leads out of what it can hold.
_FIRST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _SECOND + _DAY
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _SECOND - _DAY

_TIME_OF_DAY: Final = re.compile("([01][0-9]|2[0-3]):[0-5][0-9]")


# --- Periods ---------------------------------------------------------------------------------------


class Span(msgspec.Struct, frozen=True):
    """A period: its label, its first moment, and the moment from which its label is never shown again."""

    label: str
    start: float
    end: float


class Period(msgspec.Struct, frozen=True):
    """The calendar of a zone cut into hours, days, weeks or months."""

    zone: str = "UTC"

    # Whether a change of the offset begins another period.
    _ends_with_offset: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_zone(self.zone)

    def label(self, moment: float) -> str:
        """The name of the period that a moment lies in."""
        return self._name(_clock(self.zone, moment))

    def span(self, moment: float) -> Span:
        """The period that a moment lies in, from its first moment to its last."""
        known = _SPANS.get((self, self.label(moment)))
        return known or self._remembered(self._span(moment))

    def _remembered(self, span: Span) -> Span:
        if len(_SPANS) >= _REMEMBERED:
            _SPANS.clear()
        return _SPANS.setdefault((self, span.label), span)

    def _span(self, moment: float) -> Span:
        clock = _clock(self.zone, moment)
        own = _offset(clock)
        passed, length = self._progress(clock)
        # Counted in seconds that the clock shows; less an offset, they are seconds since the epoch.
        low = floor(moment) + own - passed
        parts = [
            (max(since, low - offset), min(until, low + length - offset))
            for since, until, offset in _stretches(self.zone, low - _DAY, low + length + _DAY)
            if offset == own or not self._ends_with_offset
        ]
        shown = [(since, until) for since, until in parts if since < until]
        return Span(self._name(clock), float(shown[0][0]), float(shown[-1][1]))

    def _name(self, clock: datetime) -> str:
        raise NotImplementedError

    def _progress(self, clock: datetime) -> tuple[int, int]:
        # Seconds of the period that are over, and seconds in all, by a clock that is never changed.
        raise NotImplementedError


# What bears one label is one period; finding its ends takes a hundred times as long as its label.
_SPANS: dict[tuple[Period, str], Span] = {}
_REMEMBERED: Final = 1024


class Hour(Period, frozen=True):
    """Hours such as `2026-10-25T02+02:00`: the same hour under the same offset from UTC."""

    _ends_with_offset = True

    def _name(self, clock: datetime) -> str:
        return clock.isoformat(timespec="hours")

    def _progress(self, clock: datetime) -> tuple[int, int]:
        return clock.minute * 60 + clock.second, 3600


class Day(Period, frozen=True):
    """Calendar days of a time zone, such as `2026-10-25`."""

    def _name(self, clock: datetime) -> str:
        return clock.date().isoformat()

    def _progress(self, clock: datetime) -> tuple[int, int]:
        return _time_of_day(clock), _DAY


class Week(Period, frozen=True):
    """Weeks such as `2026-W43`: those of ISO 8601, Monday first, in the year that has most of their days."""

    def _name(self, clock: datetime) -> str:
        year, week, _ = clock.isocalendar()
        return f"{year:04}-W{week:02}"

    def _progress(self, clock: datetime) -> tuple[int, int]:
        return clock.weekday() * _DAY + _time_of_day(clock), 7 * _DAY


class Month(Period, frozen=True):
    """Calendar months of a time zone, such as `2026-10`."""

    def _name(self, clock: datetime) -> str:
        return clock.date().isoformat()[:7]

    def _progress(self, clock: datetime) -> tuple[int, int]:
        from calendar import monthrange

        _, days = monthrange(clock.year, clock.month)
        return (clock.day - 1) * _DAY + _time_of_day(clock), days * _DAY


PeriodName: TypeAlias = Literal["hour", "day", "week", "month"]
"""How settings, requests and commands call a period."""
PERIODS: Final[dict[PeriodName, type[Period]]] = {"hour": Hour, "day": Day, "week": Week, "month": Month}
"""The periods by these names."""


# --- Windows ---------------------------------------------------------------------------------------


class Window(msgspec.Struct, frozen=True):
    """Hours of the day, such as quiet hours from "22:00" to "07:00"; the end itself is outside."""

    start: str
    end: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _check_zone(self.zone)
        _check_window(self.start, self.end)

    def holds(self, moment: float) -> bool:
        """Whether the clocks there show a time inside the window."""
        shown = _clock(self.zone, moment).time().isoformat("minutes")
        # Both are "HH:MM", so they compare as text as they do in time.
        if self.start < self.end:
            return self.start <= shown < self.end
        return not self.end <= shown < self.start

    def ends(self, moment: float) -> float:
        """The first moment outside the window, from this one on."""
        while self.holds(moment):
            second, clock = floor(moment), _clock(self.zone, moment)
            left = (_seconds(self.end) - _time_of_day(clock)) % _DAY
            # A clock put forward or back on the way shows another time than it promised.
            moment = float(_next_change(self.zone, second, second + left))
        return moment


def _check_window(start: str, end: str) -> None:
    if not (_is_time(start) and (_is_time(end) or end == "24:00")):
        raise InvalidOption(
            'a window has two times of day, "HH:MM" from "00:00" to "23:59" ("24:00" too as its end), '
            f'such as "22:00" and "07:00", not {start!r} and {end!r}'
        )
    if _seconds(start) == _seconds(end) % _DAY:
        raise InvalidOption(
            f"a window from {start} to {end} is empty or never ends; give it an end that is not its start"
        )


def _is_time(text: str) -> bool:
    return isinstance(text, str) and _TIME_OF_DAY.fullmatch(text) is not None


def _seconds(text: str) -> int:
    return int(text[:2]) * 3600 + int(text[3:]) * 60


# --- Clocks ----------------------------------------------------------------------------------------


def _clock(zone: str, moment: float) -> datetime:
    # What the clocks of a zone show. Fractions are cut off: rounding could show the next day too early.
    if isinstance(moment, bool) or not isinstance(moment, (int, float)):
        raise UsageError(
            "a moment is a number of seconds since the epoch, as time.time() gives it, "
            f"not a value of type {type(moment).__name__}"
        )
    rules = _rules(zone)
    try:
        return _clock_at(rules, floor(moment))
    except (ValueError, OverflowError) as error:
        raise UsageError(
            "a moment is a finite number of seconds since the epoch and lies in the years 1 to 9999, "
            "which this one does not; is it in milliseconds?"
        ) from error


# A decision of a gate asks the same clock several times, and a busy one is made many times a second.
@lru_cache(maxsize=1024)
def _clock_at(rules: tzinfo, second: int) -> datetime:
    # Not datetime.fromtimestamp: on Windows it refuses what lies before 1970.
    return (_EPOCH + timedelta(0, second)).astimezone(rules)


def _time_of_day(clock: datetime) -> int:
    return clock.hour * 3600 + clock.minute * 60 + clock.second


def _offset(clock: datetime) -> int:
    return clock.utcoffset() // _SECOND  # type: ignore[operator]  # only a datetime without a zone has none


def _offset_at(zone: str, second: int) -> int:
    return _offset(_clock(zone, min(max(second, _FIRST), _LAST)))


def _stretches(zone: str, since: int, until: int) -> Iterator[tuple[int, int, int]]:
    # The time from `since` to `until`, cut where the offset changes: since, until, offset.
    while since < until:
        change = _next_change(zone, since, until)
        yield since, change, _offset_at(zone, since)
        since = change


def _next_change(zone: str, second: int, limit: int) -> int:
    # The first second after this one at which the offset is another, or the limit if it is not later.
    offset = _offset_at(zone, second)
    while second < limit:
        # No zone has ever changed its offset twice within six days, so a day's step leaps over no change.
        ahead = min(second + _DAY, limit)
        if _offset_at(zone, ahead) != offset:
            passed = range(second + 1, ahead)
            return second + 1 + bisect_left(passed, True, key=lambda at: _offset_at(zone, at) != offset)
        second = ahead
    return limit


# --- Zones -----------------------------------------------------------------------------------------


def _check_zone(zone: str) -> None:
    if not isinstance(zone, str):
        raise InvalidOption(
            f"a zone is a name such as Europe/Stockholm, not a value of type {type(zone).__name__}"
        )
    _rules(zone)


@lru_cache(maxsize=1024)  # more than there are zones
def _rules(zone: str) -> tzinfo:
    if zone == "UTC":
        return UTC  # which works where no zone data is installed, too
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        # A name that is no path inside the data is a ValueError, and one of a folder, "Europe", an OSError.
        raise _unknown(zone) from error


def _unknown(zone: str) -> InvalidOption:
    from zoneinfo import available_timezones

    if not available_timezones():
        return InvalidOption(
            f"{zone!r} cannot be looked up, because no time zone data is installed here: "
            'pip install "semel[zones]" brings it (tzdata)'
        )
    return InvalidOption(
        f"there is no time zone {zone!r} here: name one of the IANA database, such as Europe/Stockholm; "
        'if it is a new one, pip install "semel[zones]" brings newer data (tzdata)'
    )
