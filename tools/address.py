"""Set the address of the project's repository wherever it stands: `python -m tools.address https://HOST/OWNER/semel`.

`[project.urls]` in pyproject.toml is the one that counts; the others are held against it.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]

SETTINGS = "docs/site/zensical.toml"
# Every file that names the address.
PLACES = (
    "pyproject.toml",
    SETTINGS,
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    ".github/ISSUE_TEMPLATE/config.yml",
)
# What follows the address of a repository in a link into it.
INTO = r"/(?:blob|tree|raw)/main/|/(?:commits|compare|issues|releases|security)\b"
REPOSITORY = re.compile(rf"https?://[^\s()<>\"'`]+?(?={INTO})")
# Hosts that nobody can own, by RFC 2606 and RFC 6761.
RESERVED = re.compile(r"(?:^|\.)(?:example\.(?:com|net|org)|example|invalid|localhost|test)$")


class BadAddress(ValueError):
    """What is no address of a repository."""


def toml(root: Path, path: str) -> dict[str, Any]:
    return tomllib.loads((root / path).read_text("utf-8"))


def address(root: Path = ROOT) -> str:
    """The address that counts."""
    found: str = toml(root, "pyproject.toml")["project"]["urls"]["Repository"]
    return found


def is_placeholder(address: str) -> bool:
    """Whether the address leads nowhere, since nobody has decided on one."""
    return bool(RESERVED.search(urlsplit(address).hostname or ""))


def checked(given: str) -> str:
    """An address as it is written down, without a slash at its end."""
    wanted = given.removesuffix("/").removesuffix(".git")
    parts = urlsplit(wanted)
    path = parts.path.strip("/")
    if (
        parts.scheme != "https"
        or not parts.hostname
        or not path
        or wanted != f"https://{parts.netloc}/{path}"
    ):
        raise BadAddress(f"{given!r} is no address of a repository: write https://HOST/OWNER/semel")
    return wanted


def moved(text: str, old: str, new: str) -> str:
    """A text with the new address for the old one, and for no longer one that begins like it."""
    return re.sub(rf"{re.escape(old)}(?![\w-])", lambda _: new, text)


def strays(root: Path = ROOT) -> Iterator[str]:
    """What leads to another repository than the address that counts."""
    right = address(root)
    for name, url in toml(root, "pyproject.toml")["project"]["urls"].items():
        if moved(url, right, "") == url:
            yield f"pyproject.toml: {name} = {url}"
    if (url := toml(root, SETTINGS)["project"]["repo_url"]) != right:
        yield f"{SETTINGS}: {url}"
    for path in PLACES:
        found = set(REPOSITORY.findall((root / path).read_text("utf-8"))) - {right}
        yield from (f"{path}: {url}" for url in sorted(found))


def set_address(new: str, root: Path = ROOT) -> list[str]:
    """Write the new address into every file that has the old one; the files that were changed."""
    old = address(root)
    texts = {path: (root / path).read_text("utf-8") for path in PLACES}
    changed = {path: after for path, text in texts.items() if (after := moved(text, old, new)) != text}
    for path, text in changed.items():
        (root / path).write_text(text, "utf-8")
    return list(changed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.address", description=__doc__)
    parser.add_argument("address", help="such as https://HOST/OWNER/semel")
    try:
        changed = set_address(checked(parser.parse_args().address))
    except BadAddress as error:
        parser.error(str(error))
    print(*changed or ["The address is this one already."], sep="\n")
    if wrong := list(strays()):
        print("These lead elsewhere; mend them by hand:", *wrong, sep="\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
