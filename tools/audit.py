"""Ask the package index whether the pinned versions have known vulnerabilities: `make audit`.

An index tells this for each version, or for the newest one alone. What it does not tell is reported as not
known.
"""

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"

VULNERABLE, NOT_KNOWN = 1, 2
"""Exit codes."""


@dataclass(frozen=True)
class Verdict:
    """What the index tells about one pinned version."""

    name: str
    version: str
    known: tuple[str, ...] = ()
    """The vulnerabilities, each in words."""
    date: str = ""
    unanswered: str = ""
    """Why nothing is known."""


def index() -> str:
    """Where the index that pip is configured for tells about packages."""
    from pip._internal.commands import create_command

    simple: str = create_command("download").parser.get_default_values().index_url
    return simple.rstrip("/").removesuffix("/simple") + "/pypi"


def pins(text: str) -> list[tuple[str, str]]:
    """The pinned names and versions of a file of constraints."""
    return [(name, version) for name, _, version in (line.partition("==") for line in text.split())]


def asked(client: httpx.Client, name: str, version: str) -> Verdict:
    """What the index tells about a version: on its own page, or, if it is the newest, on its project's."""
    try:
        answer = client.get(f"{name}/{version}/json")
        if answer.status_code == httpx.codes.NOT_FOUND:
            answer = client.get(f"{name}/json")
        answer.raise_for_status()
        page = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        return Verdict(name, version, unanswered=f"{type(error).__name__}: {error}".splitlines()[0])
    if page["info"]["version"] != version:
        return Verdict(name, version, unanswered=f"the index tells about {page['info']['version']} alone")
    if "vulnerabilities" not in page:
        return Verdict(name, version, unanswered="the index tells nothing about vulnerabilities")
    known = tuple(words(one) for one in page["vulnerabilities"] if not one.get("withdrawn"))
    return Verdict(name, version, known, date=answer.headers.get("date", "an unknown date"))


def words(one: dict[str, Any]) -> str:
    """A vulnerability by its names, and the versions without it."""
    names = ", ".join(dict.fromkeys([one["id"], *one.get("aliases", ())]))
    fixed = ", ".join(one.get("fixed_in", ())) or "no version yet"
    return f"{names}; fixed in {fixed}"


def summary(verdicts: Iterable[Verdict]) -> tuple[int, list[str]]:
    """The exit code, and what is printed."""
    verdicts = list(verdicts)
    known = [one for one in verdicts if one.date]
    if not known:
        reason = verdicts[0].unanswered if verdicts else "no version is pinned"
        return NOT_KNOWN, [f"No data about vulnerabilities could be had, so nothing is known: {reason}"]
    lines = [f"{one.name} {one.version}: {each}" for one in known for each in one.known]
    found = len(lines)
    unanswered = [one for one in verdicts if not one.date]
    lines += [f"{one.name} {one.version}: not known; {one.unanswered}" for one in unanswered]
    lines.append(
        f"{len(known)} of {len(verdicts)} pinned versions could be asked about; "
        f"{found} known vulnerabilities, as the index told on {known[0].date}"
    )
    return VULNERABLE if found else NOT_KNOWN if unanswered else 0, lines


def main() -> int:
    with httpx.Client(base_url=index(), follow_redirects=True, timeout=30) as client:
        with ThreadPoolExecutor(8) as threads:
            verdicts = threads.map(lambda pin: asked(client, *pin), pins(CONSTRAINTS.read_text("utf-8")))
        code, lines = summary(verdicts)
    print(*lines, sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
