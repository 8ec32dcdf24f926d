"""The page of the proof, made from its report: `python -m proof.page` writes it again."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from proof.lines import LINES

Rows: TypeAlias = list[dict[str, Any]]

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "reports" / "proof.json"
PAGE = ROOT / "docs" / "explanation" / "reliability.md"
TEMPLATE = Path(__file__).with_name("page.md")

STORES = {"dynoxide": "DynamoDB (dynoxide)", "ministack": "DynamoDB (ministack)", "postgres": "PostgreSQL"}
STORES |= {"redis": "Redis", "sqlite": "SQLite", "memory": "memory"}


RANGE = re.compile(r"(\d+) to (\d+)")


class Score(NamedTuple):
    """What came of one line on one store."""

    where: str
    tried: int
    violations: int
    seconds: float
    seed: str
    found: str


def scores(rows: Rows, line: str) -> list[Score]:
    """What came of a line, store by store."""
    found = [row for row in rows if row["line"] == line and not row["skipped"]]
    return [_score(where, [row for row in found if row["where"] == where]) for where in _places(found)]


def _places(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["where"] for row in rows))


def _score(where: str, rows: Rows) -> Score:
    seeds = sorted({row["seed"] for row in rows if row["seed"]})
    return Score(
        STORES.get(where, where),
        sum(row["tried"] for row in rows),
        sum(not row["held"] for row in rows),
        sum(row["seconds"] for row in rows),
        _seeds(seeds),
        "; ".join(dict.fromkeys(row["found"] for row in rows if row["found"])),
    )


def _seeds(seeds: list[str]) -> str:
    """Several seeds in short: ranges as the whole that they make."""
    ranges = [tuple(map(int, found.groups())) for seed in seeds if (found := RANGE.fullmatch(seed))]
    if len(ranges) == len(seeds) > 0:
        return f"{min(ranges)[0]:,} to {max(ranges)[1]:,}"
    return ", ".join(seeds) if len(seeds) < 4 else f"{len(seeds)} seeds"


def scoreboard(rows: Rows) -> str:
    """All lines as a table."""
    table = ["| what | where | tried | violations | seed | seconds |", "|---|---|---:|---:|---|---:|"]
    for name, line in LINES.items():
        for at, score in enumerate(scores(rows, name)):
            title = line.title if at == 0 else ""
            table.append(
                f"| {title} | {score.where} | {score.tried:,} {line.one} | {score.violations} | {score.seed} "
                f"| {score.seconds:.0f} |"
            )
    return "\n".join(table)


def findings(rows: Rows) -> str:
    """What was found that is no violation, and is to be known."""
    return "\n".join(
        f"- {line.title}{f', {score.where}' if score.where else ''}: {score.found}."
        for name, line in LINES.items()
        for score in scores(rows, name)
        if score.found
    )


def model(found: Rows) -> str:
    """The searches of the model: those in which all holds, and then each guard that was taken away."""
    table = ["| searched | found | states |", "|---|---|---:|"]
    for one in found:
        what = f"breaks `{one['broken']}`" if one["broken"] else "all holds"
        name = f"mutant `{one['name']}`" if one["expected"] else one["name"]
        table.append(f"| {name} | {what} | {one['states']:,} |")
    return "\n".join(table)


def suites(rivals: dict[str, Any]) -> str:
    """The suites of other libraries on our stores."""
    table = ["| suite | passed | differs | failed |", "|---|---:|---:|---:|"]
    for suite, version in rivals["suites"].items():
        ours = [one for one in rivals["results"] if one["suite"] == suite and one["store"] in STORES]
        counts = Counter(one["outcome"] for one in ours)
        table.append(f"| {suite} {version} | {counts['passed']} | {counts['differs']} | {counts['failed']} |")
    return "\n".join(table)


def as_json(report: dict[str, Any]) -> str:
    """A report with one line for each row, so that two of them can be compared."""

    def lines(value: Any) -> str:
        if isinstance(value, list):
            return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if value else "[]"
        return json.dumps(value)

    parts = [f"{json.dumps(name)}: {lines(value)}" for name, value in report.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def page(report: dict[str, Any]) -> str:
    """The page as a text."""
    used = ", ".join(f"{name} {version}" for name, version in report["versions"].items() if name != "machine")
    return TEMPLATE.read_text("utf-8").format(
        date=report["date"],
        minutes=round(report["seconds"] / 60),
        machine=report["versions"]["machine"],
        versions=used,
        scoreboard=scoreboard(report["rows"]),
        findings=findings(report["rows"]),
        model=model(report["model"]),
        suites=suites(report["rivals"]),
    )


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(REPORT.read_text("utf-8"))), "utf-8")
