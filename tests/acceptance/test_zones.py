"""Every zone of the tz database, and every change of its offset from 2000 to 2037, beside the C library.

The C library says how far each zone is ahead of UTC and when that changes; it is asked in a process of its
own, because the zone it goes by is that of the whole process. What a clock there shows follows by adding. So
nothing of zoneinfo is on that side, and both sides read the files of the tzdata package, because the system's
may be of another year.

With tzdata 2026.6 that is 598 zones and 17,091 changes.
"""

import json
import os
import struct
import subprocess
import sys
import time
import zoneinfo
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources
from itertools import cycle, pairwise
from pathlib import Path

import pytest

from semel import periods
from semel.periods import Day, Hour, Month, Period, Span, Week, Window
from tests.amounts import amount

pytestmark = pytest.mark.skipif(not hasattr(time, "tzset"), reason="the C library here knows one zone only")

ROOT = Path(__file__).parents[2]
DATA = Path(str(resources.files("tzdata")))
ZONES = (DATA / "zones").read_text().split()

# Zones next to each other in the list are alike, so a chunk takes every twelfth of them.
CHUNKS = 12

MINUTE, HOUR, DAY = 60, 3600, 86_400
SINCE = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp())
UNTIL = int(datetime(2038, 1, 1, tzinfo=UTC).timestamp())

# So much is seen on both sides of those years: a month around a change, and the days around that.
MARGIN = 40 * DAY

# Looked at in every zone, whether it has changes or not: a leap day, the end of a long ISO year, a summer.
ANCHORS = [
    int(datetime.fromisoformat(text).timestamp())
    for text in ("2000-02-29T12:00Z", "2020-12-31T23:30Z", "2026-07-01T00:00Z")
]

DISTANCES = (1, 60, 1800, 3599, 3600, 2 * HOUR, 3 * HOUR, 12 * HOUR, DAY - 1, DAY, 25 * HOUR)

# From which a window's end is asked.
ASKED = (-3 * HOUR, -HOUR, -1, 0, 1800, 2 * HOUR, 12 * HOUR)

QUIET = ("22:00", "07:00")

# At the hour at which most clocks change, at the midnight at which others do, and most of the day.
OTHERS = [("02:30", "03:15"), ("23:30", "00:15"), ("00:30", "24:00")]


# --- The C library's side --------------------------------------------------------------------------


def ahead(moment: int) -> int:
    """How far this process's zone is ahead of UTC."""
    return time.localtime(moment).tm_gmtoff


def offsets() -> Iterator[tuple[int, int]]:
    """The offsets of this process's zone, each with the moment from which it holds."""
    start, end = SINCE - MARGIN, UNTIL + MARGIN
    yield start, ahead(start)
    # Changes are six days apart or more, as a test below shows, so no two fall between two of these.
    seen = ((moment, ahead(moment)) for moment in range(start, end, 3 * DAY))
    for (left, old), (right, new) in pairwise(seen):
        if new != old:
            yield first_not(old, range(left, right)), new


def first_not(offset: int, moments: range) -> int:
    return moments.start + bisect_left(moments, True, key=lambda moment: ahead(moment) != offset)


def main() -> None:
    """Print the offsets of the zones whose names are given."""
    answer = {}
    for zone in sys.argv[1:]:
        os.environ["TZ"] = f":{DATA / 'zoneinfo' / zone}"
        time.tzset()
        answer[zone] = list(offsets())
    json.dump(answer, sys.stdout)


class Wall:
    """A clock on a wall of a zone, set by the C library."""

    def __init__(self, offsets: list[tuple[int, int]]) -> None:
        self.since, self.offsets = zip(*offsets, strict=True)
        self.changes = [change for change in self.since[1:] if SINCE <= change < UNTIL]
        self._labels: dict[float, tuple[str, ...]] = {}

    def offset(self, moment: float) -> int:
        return self.offsets[bisect_right(self.since, moment) - 1]

    def label(self, kind: type[Period], moment: float) -> str:
        if moment not in self._labels:
            self._labels[moment] = self._read(moment)
        return self._labels[moment][(Hour, Day, Week, Month).index(kind)]

    def _read(self, moment: float) -> tuple[str, ...]:
        offset = self.offset(moment)
        hour, *others = time.strftime(
            "%Y-%m-%dT%H %Y-%m-%d %G-W%V %Y-%m", time.gmtime(moment + offset)
        ).split()
        sign, (hours, seconds) = "-" if offset < 0 else "+", divmod(abs(offset), HOUR)
        return f"{hour}{sign}{hours:02}:{seconds // MINUTE:02}", *others

    def holds(self, start: int, end: int, moment: float) -> bool:
        return (moment + self.offset(moment) - start) % DAY < (end - start) % DAY

    def goes_back(self, after: float, before: float) -> bool:
        changes = [change for change in self.since if after < change < before]
        return any(self.offset(change) < self.offset(change - 1) for change in changes)

    def points(self, change: int) -> list[int]:
        """Moments around a change: before it, at it, after it, and the midnights on both sides of it."""
        around = {change, *(change + d for d in DISTANCES), *(change - d for d in DISTANCES)}
        for offset in (self.offset(change - 1), self.offset(change)):
            midnight = (change + offset) // DAY * DAY - offset
            around |= {midnight - 1, midnight, midnight + DAY - 1, midnight + DAY}
        return sorted(around)


def walls(zones: list[str]) -> dict[str, Wall]:
    command = [sys.executable, "-m", "tests.acceptance.test_zones", *zones]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    printed = done.stdout
    return {zone: Wall(offsets) for zone, offsets in json.loads(printed).items()}


# --- The files themselves --------------------------------------------------------------------------


def changes_written_down(zone: str) -> list[int]:
    """The moments at which the offset changes, read from the second block of a TZif file (RFC 8536)."""
    data = (DATA / "zoneinfo" / zone).read_bytes()
    utc, standard, leaps, moments, types, letters = struct.unpack_from(">6l", data, 20)
    at = 44 + 5 * moments + 6 * types + letters + 8 * leaps + standard + utc
    assert data[:4] == data[at : at + 4] == b"TZif"
    moments, types = struct.unpack_from(">2l", data, at + 32)
    when = struct.unpack_from(f">{moments}q", data, at + 44)
    which = data[at + 44 + 8 * moments :][:moments]
    offsets = [struct.unpack_from(">l", data, at + 44 + 9 * moments + 6 * each)[0] for each in range(types)]
    shown = pairwise([offsets[0], *(offsets[each] for each in which)])
    return [moment for moment, (old, new) in zip(when, shown, strict=True) if old != new]


# --- What has to hold ------------------------------------------------------------------------------


def check_labels(zone: str, wall: Wall, points: list[int]) -> None:
    for kind in (Hour, Day, Week, Month):
        label = kind(zone).label
        shown = [(point, label(point)) for point in points]
        assert shown == [(point, wall.label(kind, point)) for point in points]


def check_spans(period: Period, wall: Wall, points: list[int], since: int, until: int) -> None:
    """Go from span to span: each is where its label is, and two overlap only where the clock goes back."""
    span = period.span(since)
    check_span(type(period), wall, points, span)
    while span.end <= until:
        following = period.span(span.end)
        check_span(type(period), wall, points, following)
        assert following.start <= span.end < following.end
        assert following.start == span.end or wall.goes_back(following.start, span.end)
        span = following


def check_span(kind: type[Period], wall: Wall, points: list[int], span: Span) -> None:
    inside = {wall.label(kind, moment) for moment in (span.start, span.end - 1)}
    outside = {wall.label(kind, moment) for moment in (span.start - 1, span.end)}
    assert inside == {span.label}
    assert span.label not in outside
    bearing = [point for point in points if wall.label(kind, point) == span.label]
    assert all(span.start <= point < span.end for point in bearing)


def check_window(window: Window, wall: Wall, points: list[int], asked: list[int]) -> None:
    start, end = (int(edge[:2]) * HOUR + int(edge[3:]) * MINUTE for edge in (window.start, window.end))
    held = {point: wall.holds(start, end, point) for point in points}
    assert {point: window.holds(point) for point in points} == held
    for moment in asked:
        outside = window.ends(moment)
        assert not wall.holds(start, end, outside)
        assert wall.holds(start, end, outside - 1) if held[moment] else outside == moment
        assert all(held[point] for point in points if moment <= point < outside)


def check_around(moment: int, zone: str, wall: Wall, windows: list[tuple[str, str]]) -> None:
    points = wall.points(moment)
    check_labels(zone, wall, points)
    for kind, reach in ((Hour, 2 * HOUR), (Day, 25 * HOUR), (Week, 1), (Month, 1)):
        check_spans(kind(zone), wall, points, moment - reach, moment + reach)
    for edges in windows:
        check_window(Window(*edges, zone), wall, points, [moment + distance for distance in ASKED])


@pytest.fixture(autouse=True, scope="module")
def _zones_of_tzdata() -> Iterator[None]:
    zoneinfo.reset_tzpath(to=())
    forget_zones()
    yield
    zoneinfo.reset_tzpath()
    forget_zones()


def forget_zones() -> None:
    zoneinfo.ZoneInfo.clear_cache()
    periods._rules.cache_clear()
    periods._SPANS.clear()


def test_no_zone_has_changed_its_offset_twice_within_six_days():
    """A step of a day, with which semel looks for changes, therefore leaps over none."""
    written = {zone: changes_written_down(zone) for zone in ZONES}
    assert sum(map(len, written.values())) > 20_000
    apart = [later - earlier for changes in written.values() for earlier, later in pairwise(changes)]
    assert min(apart) > 6 * DAY


def test_every_zone_of_the_database_is_in_a_chunk():
    chunks = [ZONES[chunk::CHUNKS] for chunk in range(CHUNKS)]
    assert sorted(zone for chunk in chunks for zone in chunk) == sorted(zoneinfo.available_timezones())
    assert len(ZONES) >= 590


@pytest.mark.parametrize("chunk", range(amount(CHUNKS, 1)))
def test_periods_and_windows_agree_with_the_c_library_around_every_change(chunk):
    found = walls(ZONES[chunk::CHUNKS])
    for zone, wall in found.items():
        assert {change for change in changes_written_down(zone) if SINCE <= change < UNTIL} <= {*wall.changes}
        for moment, other in zip((*wall.changes, *ANCHORS), cycle(OTHERS), strict=False):
            check_around(moment, zone, wall, [QUIET, other])
    # With tzdata 2026.6 a chunk has 49 or 50 zones and 1,185 to 1,709 changes.
    assert len(found) >= 49
    assert sum(len(wall.changes) for wall in found.values()) >= 1_100


if __name__ == "__main__":
    main()
