"""The page of the proof, made from its report: `python -m proof.page` writes it again."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from proof.lines import LINES

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


def scores(report: dict[str, Any], line: str) -> list[Score]:
    """What came of a line, store by store."""
    rows = [row for row in report["rows"] if row["line"] == line and not row["skipped"]]
    return [_score(where, [row for row in rows if row["where"] == where]) for where in _places(rows)]


def _places(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["where"] for row in rows))


def _score(where: str, rows: list[dict[str, Any]]) -> Score:
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


def scoreboard(report: dict[str, Any]) -> str:
    """All lines as a table."""
    table = ["| what | where | tried | violations | seed | seconds |", "|---|---|---:|---:|---|---:|"]
    for name, line in LINES.items():
        for at, score in enumerate(scores(report, name)):
            title = line.title if at == 0 else ""
            table.append(
                f"| {title} | {score.where} | {score.tried:,} {line.one} | {score.violations} | {score.seed} "
                f"| {score.seconds:.0f} |"
            )
    return "\n".join(table)


def findings(report: dict[str, Any]) -> str:
    """What was found that is no violation, and is to be known."""
    return "\n".join(
        f"- {line.title}{f', {score.where}' if score.where else ''}: {score.found}."
        for name, line in LINES.items()
        for score in scores(report, name)
        if score.found
    )


def page(report: dict[str, Any]) -> str:
    """The page as a text."""
    told = ", ".join(f"{name} {version}" for name, version in report["versions"].items() if name != "machine")
    return TEMPLATE.read_text("utf-8").format(
        date=report["date"],
        minutes=round(report["seconds"] / 60),
        machine=report["versions"]["machine"],
        versions=told,
        scoreboard=scoreboard(report),
        findings=findings(report),
    )


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(REPORT.read_text("utf-8"))), "utf-8")
