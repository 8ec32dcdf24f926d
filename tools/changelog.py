"""The form of CHANGELOG.md, as Keep a Changelog describes it, and the cut of a version."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
UNRELEASED = "## [Unreleased]"
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
HEADING = re.compile(r"## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})")
LINK = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)


class CannotCut(ValueError):
    """Why no version can be cut from the changelog."""


@dataclass(frozen=True)
class Section:
    """What stands under one heading of a version."""

    heading: str
    text: str

    @property
    def version(self) -> str:
        """The version; nothing for what is not released."""
        found = HEADING.fullmatch(self.heading)
        return found[1] if found else ""

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Its kinds of changes, each with its entries."""
        pieces = re.split(r"^### (.+)\n", self.text, flags=re.MULTILINE)
        return list(zip(pieces[1::2], pieces[2::2], strict=True))


def parts(text: str) -> tuple[str, list[Section]]:
    """What stands before the first version, and the versions; the links at the end belong to neither."""
    pieces = re.split(r"^(## .+)\n", LINK.sub("", text), flags=re.MULTILINE)
    return pieces[0], [Section(*pair) for pair in zip(pieces[1::2], pieces[2::2], strict=True)]


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def links(versions: Sequence[str], address: str) -> list[tuple[str, str]]:
    """Where each heading leads: to what changed since the version before it."""
    if not versions:
        return [("Unreleased", f"{address}/commits/main")]
    since = [(new, f"{address}/compare/v{old}...v{new}") for new, old in pairwise(versions)]
    first = (versions[-1], f"{address}/releases/tag/v{versions[-1]}")
    return [("Unreleased", f"{address}/compare/v{versions[0]}...HEAD"), *since, first]


# The form


def problems(text: str, address: str) -> Iterator[str]:
    """What is not as it has to be, each in words."""
    before, sections = parts(text)
    if not before.startswith("# Changelog\n"):
        yield 'the first line is not "# Changelog"'
    if not sections or sections[0].heading != UNRELEASED:
        yield f'the first section is not "{UNRELEASED}"'
    yield from _order(sections[1:])
    for section in sections:
        yield from _kinds(section)
    versions = [section.version for section in sections if section.version]
    if LINK.findall(text) != links(versions, address):
        wanted = "\n".join(f"[{name}]: {url}" for name, url in links(versions, address))
        yield f"the links at the end are not:\n{wanted}"


def _order(released: Sequence[Section]) -> Iterator[str]:
    """The versions that were released: newest first, each with its day."""
    found = [HEADING.fullmatch(section.heading) for section in released]
    yield from (
        f'"{section.heading}" is not "## [1.2.3] - 2026-11-18"'
        for section, heading in zip(released, found, strict=True)
        if heading is None or not is_day(heading[2])
    )
    for newer, older in pairwise(heading for heading in found if heading):
        if number(newer[1]) <= number(older[1]) or newer[2] < older[2]:
            yield f"{newer[1]} of {newer[2]} stands before {older[1]} of {older[2]}"


def is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _kinds(section: Section) -> Iterator[str]:
    """The kinds of changes of a version: each once, in their order, with a list of entries."""
    names = [name for name, _ in section.kinds]
    if names != [kind for kind in KINDS if kind in names]:
        yield f"{section.heading} has {', '.join(names)}: use each of {', '.join(KINDS)} once, in this order"
    if section.version and not names:
        yield f"{section.heading} says nothing"
    if section.text.split("### ")[0].strip():
        yield f"{section.heading} has text before its first kind of change"
    for name, entries in section.kinds:
        lines = entries.strip().splitlines()
        if not lines or not lines[0].startswith("- "):
            yield f"{name} in {section.heading} has no list of entries"
        yield from (
            f"{name} in {section.heading} has a line outside of an entry: {line}"
            for line in lines
            if line and not line.startswith(("- ", "  "))
        )


# The cut


def cut(text: str, version: str, day: date, address: str) -> str:
    """The changelog with what is unreleased under a version, and an empty Unreleased above it."""
    _, sections = parts(text)
    versions = [section.version for section in sections if section.version]
    if not VERSION.fullmatch(version):
        raise CannotCut(f"{version!r} is no version: write it as 1.2.3")
    if versions and number(version) <= number(versions[0]):
        raise CannotCut(f"{version} does not come after {versions[0]}, the newest in CHANGELOG.md")
    if not sections or not sections[0].kinds:
        raise CannotCut("CHANGELOG.md has nothing under Unreleased")
    body = LINK.sub("", text).rstrip()
    body = body.replace(UNRELEASED, f"{UNRELEASED}\n\n## [{version}] - {day.isoformat()}", 1)
    ends = [f"[{name}]: {url}" for name, url in links([version, *versions], address)]
    return "\n".join([body, "", *ends, ""])
