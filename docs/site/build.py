"""Build the documentation site from docs/: `python -m docs.site.build`, or `make docs`.

The pages are copied, and what only a reader of the files can follow is rewritten in the copy: links to what
is not a page lead to the repository, and a pair of pictures follows the site's own switch for dark mode. The
navigation is the list of pages in docs/index.md.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = DOCS / "site"
BUILT = ROOT / "build" / "docs"

Entry: TypeAlias = "tuple[str, str | list[Entry]]"

FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")
TEST = re.compile(r"`((?:src|tests)/[\w/]+\.py)::(test_\w+)`")
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]+)" src="(?P<light>[^"]+)">\s*</picture>'
)
MERMAID = re.compile(r"```mermaid\n(.*)```", re.DOTALL)
MOVE = re.compile(r" *(\S+) --> (\S+): (.+)")
COMMANDS = re.compile(r"```console\n(?:\$ (?:.*\\\n)*.*\n)+```")
PROMPT = re.compile(r"^\$ ", re.MULTILINE)
LISTED = re.compile(r"^(#{2,3}) (.+)$|^- \[([^\]]+)\]\(([^)#]+\.md)\)", re.MULTILINE)


class BrokenDocs(Exception):
    """A page that no reader of the site would find, or a link that leads nowhere."""


# The navigation


def navigation(index: str) -> list[Entry]:
    """The pages as the index groups them, by its headings."""
    groups: list[tuple[str, list[Entry]]] = []
    entries: list[Entry] = []
    for level, heading, title, page in LISTED.findall(index):
        if title:
            entries.append((title, page))
            continue
        entries = []
        if level == "##":
            groups.append((heading, entries))
        else:
            groups[-1][1].append((heading, entries))
    return [("Home", "index.md"), *((heading, entries) for heading, entries in groups if entries)]


def pages_of(entries: list[Entry]) -> Iterator[str]:
    for _, entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            yield from pages_of(entry)


def as_toml(entries: list[Entry]) -> str:
    """The navigation as Zensical's settings write it."""
    written = [
        f"{{ {json.dumps(title)} = {json.dumps(entry) if isinstance(entry, str) else as_toml(entry)} }}"
        for title, entry in entries
    ]
    return f"[{', '.join(written)}]"


# The pages


def as_table(block: re.Match[str]) -> str:
    """A diagram of states as a table: a browser would fetch what draws it from another host."""
    moves: dict[tuple[str, str], list[str]] = {}
    for line in block[1].splitlines()[1:]:
        found = MOVE.fullmatch(line)
        if not found:
            raise BrokenDocs(f"the site can show no diagram but of states, and this is none: {line}")
        start, end, name = found.groups()
        moves.setdefault((start, end), []).append(name)
    rows = [f"| {named(start)} | {named(end)} | {', '.join(by)} |\n" for (start, end), by in moves.items()]
    return "".join(["| from | to | by |\n|---|---|---|\n", *sorted(rows)])


def without_prompts(code: str) -> str:
    """A block of nothing but commands, so that what is copied can be run; any other as it is."""
    return PROMPT.sub("", code).replace("```console", "```sh", 1) if COMMANDS.fullmatch(code) else code


def named(state: str) -> str:
    return "absent" if state == "[*]" else f"`{state}`"


class Pages:
    """The pages of a folder of docs, as the site shows them."""

    def __init__(self, docs: Path, repository: str) -> None:
        self.docs = docs
        self.root = docs.parent
        self.sources = f"{repository}/blob/main"

    def rewritten(self, page: Path) -> str:
        """A page's text, with links that can be followed on the site; code stays as it is."""
        pieces = FENCED.split(page.read_text("utf-8"))
        pieces[::2] = [self._prose(page, text) for text in pieces[::2]]
        pieces[1::2] = [without_prompts(MERMAID.sub(as_table, code)) for code in pieces[1::2]]
        return "".join(pieces)

    def _prose(self, page: Path, text: str) -> str:
        text = PICTURE.sub(r"![\g<alt>](\g<light>#only-light)![\g<alt>](\g<dark>#only-dark)", text)
        text = LINK.sub(lambda found: self._target(page, found[0]), text)
        return TEST.sub(self._test, text)

    def _target(self, page: Path, link: str) -> str:
        """A link as it is, or into the repository if it leads out of the docs."""
        path, _, anchor = link.partition("#")
        if "://" in link or not path:
            return link
        target = (page.parent / path).resolve()
        if not target.exists():
            raise BrokenDocs(f"{page.relative_to(self.root)} links to {link}, which is not there")
        if target.is_relative_to(self.docs):
            return link
        return f"{self.sources}/{target.relative_to(self.root).as_posix()}" + (f"#{anchor}" if anchor else "")

    def _test(self, found: re.Match[str]) -> str:
        """A test by what it claims, with a link to its line."""
        path, name = found.groups()
        lines = (self.root / path).read_text("utf-8").splitlines()
        at = next((number for number, line in enumerate(lines, 1) if f"def {name}(" in line), None)
        if at is None:
            raise BrokenDocs(f"{path} has no {name}")
        claim = name.removeprefix("test_").replace("_", " ")
        return f"[{claim}]({self.sources}/{path}#L{at})"


def write_pages(settings: dict[str, Any], docs: Path, folder: Path) -> None:
    """Copy the docs, with their pages rewritten; a page that is there already is left alone."""
    shutil.copytree(docs, folder, ignore=shutil.ignore_patterns("site", "*.md"), dirs_exist_ok=True)
    pages = Pages(docs, settings["project"]["repo_url"])
    for page in sorted(docs.rglob("*.md")):
        write(folder / page.relative_to(docs), pages.rewritten(page))


def write(file: Path, text: str) -> None:
    if not file.is_file() or file.read_text("utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")


def check_every_page_is_listed(entries: list[Entry], docs: Path) -> None:
    written = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    orphans = sorted(written - set(pages_of(entries)))
    if orphans:
        raise BrokenDocs(f"docs/index.md does not list {', '.join(orphans)}")


# The whole


def stage(folder: Path, docs: Path = DOCS) -> Path:
    """Write what Zensical builds the site from into a folder, and return its settings."""
    entries = navigation((docs / "index.md").read_text("utf-8"))
    check_every_page_is_listed(entries, docs)
    settings = (SITE / "zensical.toml").read_text("utf-8")
    write_pages(tomllib.loads(settings), docs, folder / "pages")
    shutil.copy2(SITE / "site.css", folder / "pages")
    file = folder / "zensical.toml"
    write(file, settings.replace("[project]\n", f"[project]\nnav = {as_toml(entries)}\n", 1))
    return file


def zensical(verb: str, settings: Path, *options: str) -> list[str]:
    """The command that builds or serves the site."""
    return [sys.executable, "-m", "zensical", verb, "-f", str(settings), *options]


def build(folder: Path = BUILT, docs: Path = DOCS) -> Path:
    """Build the site, strictly, and return its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(zensical("build", stage(folder, docs), "--strict", "--clean"), check=True)
    return folder / "site"


if __name__ == "__main__":
    try:
        print(f"Built {build().relative_to(ROOT)}.")
    except (BrokenDocs, subprocess.CalledProcessError) as error:
        sys.exit(str(error))
