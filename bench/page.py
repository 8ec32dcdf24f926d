"""The page about performance, and its pictures, from the report: `python -m bench.page` writes them again."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.plot import PlotRow, Spread, drawn
from bench.timing import Cell, cell_text, figure

Report = dict[str, Any]

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "reports" / "bench.json"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
PICTURES = ROOT / "docs" / "pictures"
README = ROOT / "README.md"
TEMPLATE = Path(__file__).with_name("page.md")

FIRST, REPLAY = "first", "replay"
MILLISECONDS_FROM = 1_000
"""A table without a figure below so many microseconds is in milliseconds."""
TIMES = "\N{MULTIPLICATION SIGN}"
MANY = 30
"""A part with more bars than this shows those that were missed."""
NOTHING = "Not measured in this run."
QUICK = (
    "**Parts of this report are from a quick try, with few calls and few rounds: they show that everything "
    "can be measured, and their figures mean little.**"
)


# Tables


class Figures:
    """What the report has under a title, as Markdown: `{figures[on disk]}` in the template."""

    def __init__(self, report: Report) -> None:
        self._tables = {table["title"]: table for table in report["tables"]}
        self._listings = {listing["title"]: listing for listing in report["listings"]}

    def __getitem__(self, title: str) -> str:
        pair = [self._tables.get(f"{which}, {title}") for which in (FIRST, REPLAY)]
        if pair[0]:
            return _paired(pair[0], pair[1]) if pair[1] else _single(pair[0])
        if title in self._tables:
            return _single(self._tables[title])
        if title in self._listings:
            return _listed(self._listings[title])
        named = [table for name, table in self._tables.items() if name.startswith(f"{title},")]
        return _single(named[0]) if named else NOTHING


def _lines(heads: list[str], rows: list[list[str]]) -> str:
    marks = ["---" if head == "note" or not place else "---:" for place, head in enumerate(heads)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, marks, *rows])


def _paired(first: dict[str, Any], replay: dict[str, Any]) -> str:
    """The first call and the replay beside each other."""
    unit = _unit([*first["rows"], *replay["rows"]])
    other = {row["name"]: row for row in replay["rows"]}
    to = f"{TIMES} the limit"
    heads = [unit.name, "first call", "middle half", to, "replay", "middle half", to, "note"]
    rows = [
        [row["name"], *_cells(row, unit), *_cells(other[row["name"]], unit), row["note"]]
        for row in first["rows"]
    ]
    return _lines(heads, rows)


def _single(table: dict[str, Any]) -> str:
    unit = _unit(table["rows"])
    heads = [f"{table['title']}, {unit.name}", "median", "middle half", f"{TIMES} {table['base']}", "note"]
    return _lines(heads, [[row["name"], *_cells(row, unit), row["note"]] for row in table["rows"]])


class Unit(NamedTuple):
    """What a table is in, and how many microseconds that is."""

    name: str
    microseconds: int

    def text(self, microseconds: float) -> str:
        return figure(microseconds / self.microseconds)


def _unit(rows: list[dict[str, Any]]) -> Unit:
    medians = [row["timing"]["median_us"] for row in rows if row["timing"]]
    return Unit("ms", 1000) if medians and min(medians) >= MILLISECONDS_FROM else Unit("µs", 1)


def _cells(row: dict[str, Any], unit: Unit) -> list[str]:
    """The median, the middle half of the rounds, and the ratio."""
    timing, ratio = row["timing"], row["ratio"]
    if not timing:
        return ["", "", ""]
    low, high = timing["quartiles_us"]
    spread = f"{unit.text(low)} to {unit.text(high)}"
    return [unit.text(timing["median_us"]), spread, f"{ratio['median']:.2f}" if ratio else ""]


def _listed(listing: dict[str, Any]) -> str:
    rows: list[list[Cell]] = listing["rows"]
    return _lines(list(listing["columns"]), [[cell_text(cell) for cell in row] for row in rows])


# Bars, and what is missing


def bars(report: Report) -> str:
    """What was promised, against what was found; of a part with many bars, those that were missed."""
    rows = []
    for part in report["parts"]:
        own = [bar for bar in report["bars"] if bar["part"] == part["name"]]
        shown = own if len(own) <= MANY else [bar for bar in own if not bar["kept"]]
        rows += [_bar(bar) for bar in shown]
        if kept := len(own) - len(shown):
            rows.append([f"{kept} more of {part['name']}", "", "", "kept"])
    return _lines(["bar", "found", "at most", ""], rows)


def _bar(bar: dict[str, Any]) -> list[str]:
    unit = "" if bar["unit"] == "x" else f" {bar['unit']}"
    return [
        bar["what"],
        f"{bar['found']:.2f}{unit}",
        f"{bar['limit']:g}",
        "kept" if bar["kept"] else "**missed**",
    ]


def verdict(report: Report) -> str:
    """How many bars were kept, and which were not."""
    missed = [bar["what"] for bar in report["bars"] if not bar["kept"]]
    kept = f"{len(report['bars']) - len(missed)} of {len(report['bars'])} bars are kept."
    return kept if not missed else f"{kept} **Missed**: {'; '.join(missed)}."


# Why a bar was missed

PROFILE = "where the time goes: "

# What is profiled for a bar is named in the bar's own words; of these two, one stands for both.
STANDS_FOR = {"a plain def": "an empty handler"}

WHY = {
    "FastAPI": (
        "The framework's own part is what an application takes alone. The door reads the key, hashes the "
        "payload and holds back the response; the path of a call claims, and completes."
    ),
    "first call in memory": (
        "Powertools asks a client that answers at once, so that its own work is left, as here. The path of a "
        "call binds the arguments, makes the key, hashes the payload, and claims and completes."
    ),
    "in memory": "The framework's own part is what an application takes alone; the rest is the ledger's.",
    "on DynamoDB": (
        "The limit sends bodies that were made beforehand, and reads no more of an answer than its status. "
        "To make them from a table, to read HTTP and the item, and to decide takes that many calls of "
        "functions. The limit has the socket and the hashing too."
    ),
    "on PostgreSQL": "The statements are the driver's part; the rest makes values of rows, and decides.",
    "on Redis": (
        "The driver alone sends values that are bytes already. A decision plans four writes and what each "
        "may be refused for, and a replay reads the record and checks its payload."
    ),
    "first call on SQLite": (
        "The table of the ledger has two indexes that the bare one has not, by the end of a record and by "
        "its status: so what has expired and what is in doubt is found without a look at every row. The "
        "rest is a look at what is there, and the rules."
    ),
    "a batch of 100 on SQLite": (
        "A batch is one commit, and its keys one by one are a hundred. The less a commit takes, the less is "
        "saved, and on a slow disk a batch takes far less than here."
    ),
    "decision on SQLite": "Four writes are planned, each with what it may be refused for, and then made.",
    "a webhook at the ingress": (
        "The empty handler reads no header, no body and no token, and writes no log line. A webhook is "
        "checked, encrypted and committed to the disk, with others that wait at the same time."
    ),
    "a message in the workers": (
        "A message of support is ten commits to the disk, one after the other, and a first call is two: its "
        "lane, its claim, the decision, two actions with their entries in the audit, and its end."
    ),
    "import": "Most of it is the standard library, of which msgspec asks for the larger part.",
}


def profile_of(what: str, titles: Iterable[str]) -> str | None:
    """The profile that shows why such a bar was missed."""
    for word, other in STANDS_FOR.items():
        what = what.replace(word, other)
    return next((title for title in titles if title.removeprefix(PROFILE) in what), None)


def profiles(report: Report) -> str:
    """For every bar that was missed, where the time goes."""
    titles = [one["title"] for one in report["listings"] if one["title"].startswith(PROFILE)]
    missed = [bar["what"] for bar in report["bars"] if not bar["kept"]]
    shown = dict.fromkeys(filter(None, (profile_of(what, titles) for what in missed)))
    return "\n\n".join(_profile(title, Figures(report)) for title in shown) or "No bar was missed."


def _profile(title: str, figures: Figures) -> str:
    name = title.removeprefix(PROFILE)
    why = next((text for word, text in WHY.items() if word in name), "")
    return f"### {name[0].upper()}{name[1:]}\n\n{why}\n\n{figures[title]}"


def missing(report: Report) -> str:
    """The parts that did not run, and the servers that were not there."""
    lines = [f"- {part['name']}: {part['problem']}" for part in report["parts"] if part["problem"]]
    lines += [f"- {part['name']}, {absence}" for part in report["parts"] for absence in part["absent"]]
    return "\n".join(lines) or "Nothing: every part ran, with all its servers."


# Pictures


def pictures(report: Report) -> dict[str, str]:
    """The pictures by the names of their files."""
    tables = {table["title"]: table for table in report["tables"]}
    found = {}
    for title in _pairs(report):
        first, replay = (_spreads(tables[f"{which}, {title}"]) for which in (FIRST, REPLAY))
        rows = [PlotRow(name, (one, replay.get(name)), _is_ours(name)) for name, one in first.items()]
        head = title[0].upper() + title[1:]
        found[picture_name(title)] = drawn(head, "µs", ("first call", "replay"), rows)
    return found


def _pairs(report: Report) -> Iterator[str]:
    """What the page shows a picture of, and the report has."""
    there = {table["title"] for table in report["tables"] if any(row["timing"] for row in table["rows"])}
    for title in re.findall(r"\{plots\[(.+)\]\}", TEMPLATE.read_text("utf-8")):
        if f"{FIRST}, {title}" in there:
            yield title


def _spreads(table: dict[str, Any]) -> dict[str, Spread]:
    return {
        row["name"]: Spread(
            row["timing"]["quartiles_us"][0], row["timing"]["median_us"], row["timing"]["quartiles_us"][1]
        )
        for row in table["rows"]
        if row["timing"]
    }


def _is_ours(name: str) -> bool:
    return name.startswith("semel")


def picture_name(title: str) -> str:
    return f"bench-{re.sub('[^a-z0-9]+', '-', title.lower())}.svg"


class Plots:
    """The picture of a title, as Markdown: `{plots[on disk]}` in the template."""

    def __init__(self, report: Report) -> None:
        self._names = pictures(report).keys()

    def __getitem__(self, title: str) -> str:
        name = picture_name(title)
        return f"![{title}: the same figures as dots](../pictures/{name})" if name in self._names else ""


# All of it

SPEED = re.compile(
    r"(\d[\d,.]*) ?(?:µs|us\b|ms\b|microseconds|milliseconds|times as (?:fast|long)|[a-z]+ a second)"
)


def speeds(text: str) -> set[str]:
    """The figures about speed in a text; the page must have each of them."""
    return {found.rstrip(".,") for found in SPEED.findall(text)}


def numbers(text: str) -> set[str]:
    """All figures of a text."""
    return {found.rstrip(".,") for found in re.findall(r"\d[\d,.]*", text)}


def page(report: Report) -> str:
    """The page as a text."""
    versions = ", ".join(
        f"{name} {version}" for name, version in report["versions"].items() if name != "machine"
    )
    text = TEMPLATE.read_text("utf-8").format(
        quick=QUICK if any(part["quick"] for part in report["parts"]) else "",
        date=" to ".join(sorted({part["date"] for part in report["parts"]})),
        minutes=max(1, round(report["seconds"] / 60)),
        machine=report["versions"]["machine"],
        versions=versions,
        verdict=verdict(report),
        missing=missing(report),
        bars=bars(report),
        profiles=profiles(report),
        figures=Figures(report),
        plots=Plots(report),
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def write(report: Report) -> None:
    """Write the page and its pictures; those of an older report go."""
    PAGE.write_text(page(report), "utf-8")
    for old in PICTURES.glob("bench-*.svg"):
        old.unlink()
    for name, picture in pictures(report).items():
        (PICTURES / name).write_text(picture, "utf-8")


if __name__ == "__main__":
    write(json.loads(REPORT.read_text("utf-8")))
