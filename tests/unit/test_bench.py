"""The report of the benchmarks: its page and pictures are made from it, and nothing is left out unsaid."""

import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import Contender, NotOnce, Pair, bare, byhand, charge, page, pair_of, prove
from bench.__main__ import add, combined, last_line, measured, ran, rounded
from bench.parts import PARTS, Part
from bench.plot import PlotRow, Spread, drawn
from bench.timing import Listing, Table, Timing, quartiles, tabulate

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def report() -> Any:
    return json.loads(page.REPORT.read_text("utf-8"))


def empty() -> Any:
    return {
        "seconds": 0,
        "versions": {"machine": "a machine", "semel": "0.1.0"},
        "parts": [],
        "tables": [],
        "listings": [],
        "bars": [],
    }


def timed(title: str, **rounds: tuple[float, ...]) -> Table:
    timings = {name: Timing(each) for name, each in rounds.items()}
    return tabulate(title, timings, next(iter(rounds)), {})


def found(*tables: Table, **more: Any) -> Any:
    """What a part prints."""
    return {"seconds": 1, "tables": [table.as_dict() for table in tables], **more}


def reported(*tables: Table, quick: bool = False, **more: Any) -> Any:
    made = empty()
    add(made, PARTS[0], quick, found(*tables, **more))
    return made


# The report that is here


def test_the_page_and_its_pictures_are_made_from_the_report(report: Any) -> None:
    assert page.PAGE.read_text("utf-8") == page.page(report), "python -m bench.page"
    there = {path.name: path.read_text("utf-8") for path in page.PICTURES.glob("bench-*.svg")}
    assert there == page.pictures(report), "python -m bench.page"


def test_every_part_is_in_the_report(report: Any) -> None:
    assert [part["name"] for part in report["parts"]] == [part.name for part in PARTS]


def test_the_page_has_a_place_for_every_table_of_the_report(report: Any) -> None:
    places = set(re.findall(r"\{figures\[(.+?)\]\}", page.TEMPLATE.read_text("utf-8")))
    for table in report["tables"]:
        title = re.sub("^(first|replay), ", "", table["title"])
        assert title in places or title.partition(",")[0] in places, title
    for listing in report["listings"]:
        assert listing["title"] in places or listing["title"].startswith(page.PROFILE)


def test_every_bar_that_was_missed_has_a_profile_that_shows_why(report: Any) -> None:
    titles = [listing["title"] for listing in report["listings"] if listing["title"].startswith(page.PROFILE)]
    for bar in report["bars"]:
        assert bar["kept"] or page.profile_of(bar["what"], titles), bar["what"]


def test_a_profile_is_shown_for_a_bar_that_was_missed_and_for_no_other() -> None:
    titles = ("first on DynamoDB", "replay on DynamoDB", "FastAPI, an empty handler, in memory")
    listings = [Listing(f"{page.PROFILE}{title}", ("where", "µs"), (("here", 1.0),)) for title in titles]
    found = [
        {"what": "first on DynamoDB to a raw socket", "kept": False},
        {"what": "replay on DynamoDB to a raw socket", "kept": True},
        {"what": "FastAPI, a plain def, in memory: a request", "kept": False},
    ]
    made = empty() | {"listings": [listing.as_dict() for listing in listings], "bars": found}
    shown = re.findall("^### (.+)$", page.profiles(made), re.MULTILINE)
    assert shown == ["First on DynamoDB", "FastAPI, an empty handler, in memory"]
    assert page.profile_of("cold start to Powertools'", titles) is None


def test_every_figure_about_speed_in_the_readme_is_on_the_page() -> None:
    assert page.speeds(page.README.read_text("utf-8")) <= page.numbers(page.PAGE.read_text("utf-8"))


def test_a_figure_about_speed_is_found_in_a_text() -> None:
    text = "A replay takes 11.1 µs, a start 44 ms; 3,481 webhooks a second, 5.4 times as fast. 8,000 worlds."
    assert page.speeds(text) == {"11.1", "44", "3,481", "5.4"}
    assert page.numbers("| semel | 11.1 | 3,481 to 4,000 |") == {"11.1", "3,481", "4,000"}


# The page


def test_a_table_shows_the_median_the_middle_half_and_the_ratio() -> None:
    first = timed("first, on disk", bare=(100.0, 200.0, 300.0), semel=(110.0, 220.0, 360.0))
    replay = timed("replay, on disk", bare=(1.0, 2.0, 3.0), semel=(2.0, 4.0, 6.0))
    text = page.page(reported(first, replay))
    assert "| semel | 220 | 165 to 290 | 1.10 | 4.00 | 3.00 to 5.00 | 2.00 |  |" in text


def test_a_slow_table_is_in_milliseconds() -> None:
    text = page.page(reported(timed("import", sqlite3=(4_000.0,), semel=(24_500.0,))))
    assert "| import, ms | median |" in text
    assert "| semel | 24.5 | 24.5 to 24.5 | 6.12 |  |" in text


def test_a_listing_shows_its_cells_as_people_read_them() -> None:
    listing = Listing(
        "a hot key", ("store", "callers", "seconds"), (("SQLite", 1000, 0.4567), ("Redis", None, 12.34))
    )
    text = page.page(reported(listings=[listing.as_dict()]))
    assert "| SQLite | 1,000 | 0.457 |\n| Redis |  | 12.3 |" in text


def test_a_part_that_failed_and_a_server_that_is_absent_are_said_on_the_page() -> None:
    text = page.page(
        reported(problem="RuntimeError: no room", absent=["Redis: apt-get install redis-server"])
    )
    assert f"- {PARTS[0].name}: RuntimeError: no room" in text
    assert f"- {PARTS[0].name}, Redis: apt-get install redis-server" in text
    assert page.NOTHING in text


def test_a_bar_that_is_missed_is_said_at_the_top_and_in_the_list() -> None:
    bars = [
        {"what": "replay to the limit", "found": 1.234, "limit": 1.3, "unit": "x", "kept": True},
        {"what": "p99", "found": 77.0, "limit": 50, "unit": "ms", "kept": False},
    ]
    text = page.page(reported(bars=bars))
    assert "1 of 2 bars are kept. **Missed**: p99." in text
    assert "| replay to the limit | 1.23 | 1.3 | kept |" in text
    assert "| p99 | 77.00 ms | 50 | **missed** |" in text


def test_of_a_part_with_many_bars_only_those_that_were_missed_are_listed() -> None:
    bars = [
        {"what": f"question {number}", "found": 1.0, "limit": 2, "unit": "x", "kept": number > 0}
        for number in range(page.MANY + 1)
    ]
    text = page.bars(reported(bars=bars))
    assert "question 0 " in text
    assert "question 1 " not in text
    assert f"{page.MANY} more of {PARTS[0].name}" in text


def test_a_quick_try_is_marked_on_the_page() -> None:
    assert page.QUICK in page.page(reported(quick=True))
    assert page.QUICK not in page.page(reported())


# Putting it together


def test_a_part_that_cannot_be_run_is_a_problem_and_no_error() -> None:
    assert "bench.nothing" in ran(Part("nothing"), quick=True)["problem"]
    assert last_line("Traceback\n  ...\nValueError: no\n") == "ValueError: no"
    assert last_line("") == "it printed nothing"


def test_parts_are_run_one_after_the_other_and_told() -> None:
    told: list[str] = []
    made = measured([Part("nothing"), Part("neither")], True, told.append)
    assert told == ["nothing", "neither"] == [part["name"] for part in made["parts"]]


def test_a_part_that_is_measured_again_replaces_what_the_report_had_of_it() -> None:
    old, new = empty(), empty()
    for part in PARTS[:2]:
        add(old, part, False, found(timed(f"of {part.name}", one=(1.0,)), versions={"redis": "7"}))
    add(new, PARTS[0], True, found(timed("anew", one=(2.0,)), versions={"redis": "8"}))
    made = combined(old, new)
    assert [table["title"] for table in made["tables"]] == ["anew", f"of {PARTS[1].name}"]
    assert [part["quick"] for part in made["parts"]] == [True, False]
    assert (made["seconds"], made["versions"]["redis"]) == (2, "8")


def test_parts_that_were_measured_on_several_days_say_from_when_to_when() -> None:
    made = reported()
    made["parts"] = [made["parts"][0] | {"date": date} for date in ("2026-11-20", "2026-11-18", "2026-11-18")]
    assert "This run: 2026-11-18 to 2026-11-20, " in page.page(made)


def test_figures_are_rounded_wherever_they_are() -> None:
    assert rounded({"a": [1.23456789, {"b": 123456.789}], "c": "text", "d": 7}) == {
        "a": [1.2346, {"b": 123460.0}],
        "c": "text",
        "d": 7,
    }


def test_the_middle_half_of_one_round_is_that_round() -> None:
    assert quartiles((5.0,)) == (5.0, 5.0)
    assert quartiles((1.0, 2.0, 3.0, 4.0, 5.0)) == (2.0, 4.0)


# Pictures


def picture(*rows: PlotRow) -> ElementTree.Element:
    return ElementTree.fromstring(drawn("A call <on> disk", "µs", ("first call", "replay"), rows))


def test_a_picture_has_a_label_and_a_mark_for_each_row_and_series() -> None:
    semel = PlotRow("semel", (Spread(9, 10, 12), Spread(1, 1, 1)), ours=True)
    other = PlotRow("a & b", (Spread(90, 100, 110), None))
    drawn_texts = [text.text for text in picture(semel, other).iter(f"{SVG}text")]
    assert {"A call <on> disk", "semel", "a & b", "first call", "replay", "10.0", "1.00", "100"} <= set(
        drawn_texts
    )
    assert len(list(picture(semel, other).iter(f"{SVG}g"))) == 3


def test_ten_times_as_much_is_as_far_to_the_right_each_time() -> None:
    rows = [PlotRow(str(value), (Spread(value, value, value),)) for value in (1.0, 10.0, 100.0)]
    first, second, third = (float(group[1].get("cx", "")) for group in picture(*rows).iter(f"{SVG}g"))
    assert second - first == pytest.approx(third - second, abs=0.2)
    assert second > first


def test_a_picture_has_colours_for_dark_pages_too() -> None:
    style = picture(PlotRow("one", (Spread(1, 2, 3),))).find(f"{SVG}style")
    assert style is not None
    assert "prefers-color-scheme: dark" in (style.text or "")


# Contenders


def test_what_is_written_by_hand_on_sqlite_runs_the_effect_once() -> None:
    prove(Contender("by hand", byhand.open_sqlite))


def test_a_contender_that_runs_a_replay_again_is_refused() -> None:
    from contextlib import contextmanager

    @contextmanager
    def careless(effect: Any) -> Any:
        yield pair_of(effect)

    with pytest.raises(NotOnce):
        prove(Contender("careless", careless))


def test_the_limit_on_sqlite_gives_what_was_written() -> None:
    with bare.open_sqlite(charge) as pair:
        assert isinstance(pair, Pair)
        assert pair.first() == {"id": "ch_1", "amount": 4200}
        assert b"ch_1" in pair.replay()[9]  # type: ignore[index]
