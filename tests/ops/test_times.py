"""Times as operators write them: one parser for the command line and the dashboard."""

import pytest

from semel.cli import filters
from semel.dashboard.searches import search_of
from semel.errors import InvalidOption
from semel.ops.times import parse_time

NOW = 1_800_000_000.0
DAY = 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("15 min", 900),
        ("1.5h", 5400),
        (" 2h ago ", 7200),
        ("3d", 3 * DAY),
        ("1w", 7 * DAY),
        ("0.5w", 3.5 * DAY),
    ],
)
def test_a_span_is_that_long_ago(text, seconds):
    assert parse_time(text, NOW) == NOW - seconds


@pytest.mark.parametrize(
    "text", ["2026-01-31T14:00Z", "2026-01-31 14:00", "2026-01-31T15:00+01:00", " 2026-01-31T14:00:00 "]
)
def test_a_date_is_in_utc_unless_it_names_a_zone(text):
    assert parse_time(text, NOW) == 1769868000


@pytest.mark.parametrize("text", ["", "yesterday", "2", "2y", "-2h", "1.h", "9" * 400 + "h"])
def test_what_is_no_time_is_refused_with_examples(text):
    with pytest.raises(InvalidOption, match=r"as a time: write 30min, 1\.5h or 1w"):
        parse_time(text, NOW)


@pytest.mark.parametrize("text", ["1.5h", "1w", "2h ago", "2026-01-31", "2026-01-31T14:00"])
def test_the_command_line_and_the_dashboard_understand_the_same_times(text, monkeypatch):
    monkeypatch.setattr("semel.cli.filters.time.time", lambda: NOW)
    assert filters.when("--since", text) == search_of({"since": text}, NOW).since == parse_time(text, NOW)
