"""Cut a version: `python -m tools.release 0.1.0`. `make release-check` says whether a tag may be published.

A cut writes the version into pyproject.toml, and what is unreleased in CHANGELOG.md under it.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

from tools import address, changelog

ROOT = Path(__file__).parents[1]
PINNED = re.compile(r'^version = ".+"$', re.MULTILINE)


def version_of(root: Path) -> str:
    version: str = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return version


def cut(version: str, day: date, root: Path = ROOT) -> None:
    """Write the version into both files."""
    changes, project = root / "CHANGELOG.md", root / "pyproject.toml"
    text = changelog.cut(changes.read_text("utf-8"), version, day, address.address(root))
    project.write_text(PINNED.sub(f'version = "{version}"', project.read_text("utf-8"), count=1), "utf-8")
    changes.write_text(text, "utf-8")


def refusals(tag: str, root: Path = ROOT) -> Iterator[str]:
    """Why a tag must not be published, and what to do about each."""
    version = version_of(root)
    if tag != f"v{version}":
        yield f"The tag is {tag}, and pyproject.toml has version {version}: tag v{version}."
    text = (root / "CHANGELOG.md").read_text("utf-8")
    yield from (f"CHANGELOG.md: {each}." for each in changelog.problems(text, address.address(root)))
    _, sections = changelog.parts(text)
    if version not in [section.version for section in sections]:
        yield f"CHANGELOG.md has no {version}: python -m tools.release {version}"
    elif sections[0].kinds:
        yield f"CHANGELOG.md has entries under Unreleased: move them to {version}, or cut another version."
    if address.is_placeholder(address.address(root)):
        yield f"{address.address(root)} is a placeholder: python -m tools.address https://HOST/OWNER/semel"
    yield from (f"This leads to another repository: {each}." for each in address.strays(root))


def day(text: str) -> date:
    """A day as the command line takes it; argparse names this function when it is none."""
    return date.fromisoformat(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("version", nargs="?", help="such as 0.1.0")
    parser.add_argument("--date", type=day, metavar="2026-11-18", help="today in UTC, if it is not given")
    parser.add_argument(
        "--check",
        metavar="TAG",
        help="only see whether this tag may be published, or, if it is empty, that of the version",
    )
    given = parser.parse_args()
    if (given.version is None) is (given.check is None):
        parser.error("name a version to cut, or --check a tag")
    if given.check is not None:
        tag = given.check or f"v{version_of(ROOT)}"
        found = list(refusals(tag))
        print(*found or [f"{tag} may be published."], sep="\n", file=sys.stderr if found else sys.stdout)
        return 1 if found else 0
    try:
        cut(given.version, given.date or datetime.now(UTC).date())
    except changelog.CannotCut as error:
        parser.error(str(error))
    print(f"pyproject.toml and CHANGELOG.md have {given.version}; CONTRIBUTING.md has the next steps.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
