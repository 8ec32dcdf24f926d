"""The changelog keeps its form, a version is cut from it, and only what agrees with it is published."""

import re
import shutil
from datetime import date
from pathlib import Path

import pytest

from tools import address, changelog, release

ROOT = Path(__file__).parents[2]
CHANGES = (ROOT / "CHANGELOG.md").read_text("utf-8")
AT = "https://forge.net/semel"
DAY = date(2026, 11, 18)

GOOD = f"""# Changelog

What changed.

## [Unreleased]

### Added

- One thing,
  in two lines.

### Fixed

- Another.

## [0.2.0] - 2026-10-02

### Security

- A third.

## [0.1.0] - 2026-10-02

### Added

- All of it.

[Unreleased]: {AT}/compare/v0.2.0...HEAD
[0.2.0]: {AT}/compare/v0.1.0...v0.2.0
[0.1.0]: {AT}/releases/tag/v0.1.0
"""


# The form


def test_the_changelog_has_its_form() -> None:
    assert list(changelog.problems(CHANGES, address.address())) == []


def test_a_changelog_of_several_versions_has_its_form() -> None:
    assert list(changelog.problems(GOOD, AT)) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("# Changelog", "# Changes", "the first line is not"),
        ("## [Unreleased]\n", "## Unreleased\n", "the first section is not"),
        ("## [0.2.0] - 2026-10-02", "## [0.2.0]", r"is not \"## \[1\.2\.3\]"),
        ("## [0.2.0] - 2026-10-02", "## [0.2.0] - 2026-13-02", "is not"),
        ("## [0.2.0] - 2026-10-02", "## 0.2.0 - 2026-10-02", "is not"),
        ("## [0.2.0] - 2026-10-02", "## [0.0.9] - 2026-10-02", "stands before 0.1.0"),
        ("## [0.2.0] - 2026-10-02", "## [0.2.0] - 2026-10-01", "stands before 0.1.0"),
        ("### Fixed", "### Bugs", "has Added, Bugs"),
        ("### Fixed", "### Added", "has Added, Added"),
        ("### Security\n\n- A third.\n", "", "says nothing"),
        ("- A third.", "", "has no list of entries"),
        ("- A third.", "A third.", "has no list of entries"),
        ("- Another.", "- Another.\nnot indented", "outside of an entry: not indented"),
        ("## [Unreleased]\n", "## [Unreleased]\n\nSoon.\n", "text before its first kind"),
        (f"[0.1.0]: {AT}", "[0.1.0]: https://elsewhere.net", "the links at the end are not"),
        (f"[0.2.0]: {AT}/compare/v0.1.0...v0.2.0\n", "", "the links at the end are not"),
    ],
)
def test_what_is_not_in_form_is_named(old: str, new: str, problem: str) -> None:
    assert old in GOOD
    found = "\n".join(changelog.problems(GOOD.replace(old, new, 1), AT))
    assert re.search(problem, found)


# The cut


def test_a_cut_puts_what_is_unreleased_under_the_version_and_nothing_else() -> None:
    after = changelog.cut(GOOD, "0.3.0", DAY, AT)
    assert list(changelog.problems(after, AT)) == []
    assert (
        after.replace("## [Unreleased]\n\n## [0.3.0] - 2026-11-18", "## [Unreleased]").split("\n[")[0]
        == GOOD.split("\n[", maxsplit=1)[0]
    )
    _, sections = changelog.parts(after)
    assert [section.version for section in sections] == ["", "0.3.0", "0.2.0", "0.1.0"]
    assert [name for name, _ in sections[1].kinds] == ["Added", "Fixed"]
    assert sections[0].kinds == []


def test_our_own_changelog_keeps_its_form_when_a_version_is_cut_from_it() -> None:
    _, sections = changelog.parts(CHANGES)
    more = "" if sections[0].kinds else "\n\n### Fixed\n\n- One thing."
    after = changelog.cut(CHANGES.replace("## [Unreleased]", f"## [Unreleased]{more}", 1), "99.0.0", DAY, AT)
    assert list(changelog.problems(after, AT)) == []


@pytest.mark.parametrize(
    ("text", "version", "reason"),
    [
        (GOOD, "0.2.0", "does not come after 0.2.0"),
        (GOOD, "0.1.9", "does not come after 0.2.0"),
        (GOOD, "v0.3.0", "write it as 1.2.3"),
        (GOOD, "0.3", "write it as 1.2.3"),
        (changelog.cut(GOOD, "0.3.0", DAY, AT), "0.4.0", "nothing under Unreleased"),
    ],
)
def test_a_version_that_cannot_be_cut_is_refused_with_the_reason(
    text: str, version: str, reason: str
) -> None:
    with pytest.raises(changelog.CannotCut, match=reason):
        changelog.cut(text, version, DAY, AT)


# What may be published


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Our own files, with one entry that is not released, at an address that somebody owns."""
    for path in address.PLACES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    address.set_address(AT, tmp_path)
    text = f"# Changelog\n\n## [Unreleased]\n\n### Added\n\n- All.\n\n[Unreleased]: {AT}/commits/main\n"
    (tmp_path / "CHANGELOG.md").write_text(text, "utf-8")
    return tmp_path


def test_a_version_that_was_cut_may_be_published_under_its_own_tag_alone(copy: Path) -> None:
    release.cut("3.2.1", DAY, copy)
    assert release.version_of(copy) == "3.2.1"
    assert list(release.refusals("v3.2.1", copy)) == []
    for tag in ("v3.2.2", "3.2.1", "V3.2.1", "v3.2.1 "):
        assert len(list(release.refusals(tag, copy))) == 1


def test_what_was_not_cut_or_has_more_since_is_refused(copy: Path) -> None:
    [refusal] = release.refusals(f"v{release.version_of(copy)}", copy)
    assert "python -m tools.release" in refusal
    release.cut("3.2.1", DAY, copy)
    changes = copy / "CHANGELOG.md"
    more = "## [Unreleased]\n\n### Fixed\n\n- More.\n"
    changes.write_text(changes.read_text("utf-8").replace("## [Unreleased]\n", more), "utf-8")
    [refusal] = release.refusals("v3.2.1", copy)
    assert "under Unreleased" in refusal


def test_a_placeholder_for_the_address_is_refused(copy: Path) -> None:
    release.cut("3.2.1", DAY, copy)
    address.set_address("https://git.example.org/semel", copy)
    [refusal] = release.refusals("v3.2.1", copy)
    assert "python -m tools.address" in refusal


def test_a_cut_that_is_refused_changes_nothing(copy: Path) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(changelog.CannotCut):
        release.cut("next", DAY, copy)
    assert {path: path.read_bytes() for path in before} == before
