"""The documentation site: it builds strictly, its links lead somewhere, and it asks no other host."""

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs.site import build, publish

LOADED = {"script": "src", "link": "href", "img": "src", "source": "srcset", "iframe": "src"}


class PageParser(HTMLParser):
    """The anchors of a page, where its links lead, and what a browser loads for it."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        if LOADED.get(tag) in found and found.get("rel") != "canonical":
            self.loads.add(found[LOADED[tag]])


@cache
def parsed(page: Path) -> PageParser:
    parser = PageParser()
    parser.feed(page.read_text("utf-8"))
    return parser


def pages(site: Path) -> Iterator[Path]:
    """Its pages; the one for addresses that do not exist is served under any of them."""
    return (page for page in site.rglob("*.html") if page.name != "404.html")


def missing(site: Path, page: Path, link: str) -> bool:
    """Whether a link within the site leads nowhere."""
    parts = urlsplit(link)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    file = target / "index.html" if target.is_dir() else target
    if not file.is_file() or not file.is_relative_to(site):
        return True
    return bool(parts.fragment) and file.suffix == ".html" and parts.fragment not in parsed(file).anchors


def is_elsewhere(link: str) -> bool:
    return bool(urlsplit(link).netloc or urlsplit(link).scheme)


def dead_links(site: Path) -> set[str]:
    return {
        f"{page.relative_to(site)}: {link}"
        for page in pages(site)
        for link in parsed(page).links | parsed(page).loads
        if not is_elsewhere(link) and missing(site, page, link)
    }


def searched(site: Path) -> set[Path]:
    """The pages that its search knows."""
    items = json.loads((site / "search.json").read_text("utf-8"))["items"]
    return {site / item["location"].partition("#")[0] / "index.html" for item in items}


def test_the_site_has_no_dead_link_and_no_page_that_is_not_found_and_asks_no_other_host(
    tmp_path: Path,
) -> None:
    site = build.build(tmp_path)
    assert dead_links(site) == set()
    assert searched(site) == set(pages(site))
    assert {load for page in pages(site) for load in parsed(page).loads if is_elsewhere(load)} == set()


# What must not be built


def docs_of(folder: Path, **pages: str) -> Path:
    """A repository's docs of these pages, the first of which is the index."""
    docs = folder / "docs"
    docs.mkdir()
    for name, text in pages.items():
        (docs / f"{name}.md").write_text(text)
    return docs


def test_a_page_that_the_index_does_not_list_is_reported_by_name(tmp_path: Path) -> None:
    docs = docs_of(
        tmp_path, index="# Docs\n\n## Learn\n\n- [One](one.md): first\n", one="# One\n", two="# Two\n"
    )
    with pytest.raises(build.BrokenDocs, match=r"does not list two\.md"):
        build.stage(tmp_path / "built", docs)


def test_a_link_to_a_file_that_is_not_there_is_reported_with_its_page(tmp_path: Path) -> None:
    docs = docs_of(tmp_path, index="# Docs\n\nSee [it](../src/gone.py).\n")
    with pytest.raises(build.BrokenDocs, match=r"docs/index\.md links to \.\./src/gone\.py"):
        build.stage(tmp_path / "built", docs)


def test_a_link_to_an_anchor_that_is_not_there_stops_the_build(tmp_path: Path) -> None:
    docs = docs_of(tmp_path, index="# Docs\n\nSee [it](#gone).\n")
    with pytest.raises(subprocess.CalledProcessError):
        build.build(tmp_path / "built", docs)


# What is rewritten


def test_the_navigation_is_grouped_as_the_index_is() -> None:
    index = "## Facts\n\nNone.\n\n## Do\n\n### Start\n\n- [A](a.md): first\n\n### End\n\n- [C](c.md)\n"
    assert build.navigation(index) == [
        ("Home", "index.md"),
        ("Do", [("Start", [("A", "a.md")]), ("End", [("C", "c.md")])]),
    ]


def test_a_link_out_of_the_docs_leads_to_the_repository_and_code_stays_as_it_is(tmp_path: Path) -> None:
    docs = docs_of(tmp_path, index="[it](../once.py#L3) [top](#docs)\n\n```text\n[it](../once.py)\n```\n")
    (tmp_path / "once.py").touch()
    assert build.Pages(docs, "https://example.org/x").rewritten(docs / "index.md") == (
        "[it](https://example.org/x/blob/main/once.py#L3) [top](#docs)\n\n```text\n[it](../once.py)\n```\n"
    )


def test_a_test_is_shown_by_its_claim_and_leads_to_its_line(tmp_path: Path) -> None:
    docs = docs_of(tmp_path, index="`tests/test_a.py::test_it_holds`")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("\n\ndef test_it_holds() -> None: ...\n")
    shown = build.Pages(docs, "https://example.org/x").rewritten(docs / "index.md")
    assert shown == "[it holds](https://example.org/x/blob/main/tests/test_a.py#L3)"


def test_a_pair_of_pictures_follows_the_sites_own_switch(tmp_path: Path) -> None:
    docs = docs_of(
        tmp_path,
        index='<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="d.png">\n'
        '  <img alt="A page" src="l.png">\n</picture>\n',
    )
    for name in ("d.png", "l.png"):
        (docs / name).touch()
    shown = build.Pages(docs, "https://example.org/x").rewritten(docs / "index.md")
    assert shown == "![A page](l.png#only-light)![A page](d.png#only-dark)\n"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("```console\n$ ls a \\\n    b\n$ ls\n```", "```sh\nls a \\\n    b\nls\n```"),
        ("```console\n$ ls\nname\n```", "```console\n$ ls\nname\n```"),
    ],
)
def test_commands_without_their_output_are_copied_without_prompts(
    tmp_path: Path, written: str, shown: str
) -> None:
    docs = docs_of(tmp_path, index=f"# Docs\n\n{written}\n")
    assert build.Pages(docs, "").rewritten(docs / "index.md") == f"# Docs\n\n{shown}\n"


def test_a_diagram_of_states_is_shown_as_a_table_and_no_other_is_left_out_in_silence(tmp_path: Path) -> None:
    moves = ("[*] --> B: begin", "[*] --> B: begin / late", "A --> B: end")
    drawn = "\n    ".join(["```mermaid\nstateDiagram-v2", *moves]) + "\n```\n"
    docs = docs_of(tmp_path, index=drawn, other="```mermaid\nflowchart\n    A --- B\n```\n")
    pages = build.Pages(docs, "https://example.org/x")
    assert pages.rewritten(docs / "index.md") == (
        "| from | to | by |\n|---|---|---|\n| `A` | `B` | end |\n| absent | `B` | begin, begin / late |\n\n"
    )
    with pytest.raises(build.BrokenDocs, match="A --- B"):
        pages.rewritten(docs / "other.md")


# Versions


def test_a_published_version_leaves_the_others_and_the_newest_is_the_first(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    served = tmp_path / "served"
    for version in ("0.9", "0.10", "0.2"):
        (site / "index.html").write_text(version)
        publish.publish(site, served, version)
    listed = json.loads((served / "versions.json").read_text())
    assert [(each["version"], each["aliases"]) for each in listed] == [
        ("0.10", ["latest"]),
        ("0.9", []),
        ("0.2", []),
    ]
    assert {each.name: (each / "index.html").read_text() for each in served.iterdir() if each.is_dir()} == {
        version: version for version in ("0.2", "0.9", "0.10")
    }
    assert "url=0.10/" in (served / "index.html").read_text()
