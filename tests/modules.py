"""The map of the source: `python -m tests.modules` writes it into docs/explanation/architecture.md.

It is made of the first sentence of each module and folder, two levels deep.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.seeds import ROOT

SOURCE = ROOT / "src" / "semel"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
MAP = re.compile(r"(?<=<!-- map -->\n).*?(?=<!-- end of map -->)", re.DOTALL)


def text() -> str:
    """The page, with the map as the source has it now."""
    return MAP.sub(lambda _: made(), PAGE.read_text("utf-8"))


def made() -> str:
    """The map: what stands in the source's root, and then each folder of it."""
    folders = [path for path in children(SOURCE) if path.is_dir()]
    return "".join([table("semel", SOURCE), *(table(f"semel/{folder.name}", folder) for folder in folders)])


def table(name: str, folder: Path) -> str:
    rows = "".join(f"| `{shown(path)}` | {sentence(path)} |\n" for path in children(folder))
    heading = "what users import, and the folders" if folder == SOURCE else sentence(folder)
    return f"\n| `{name}/` | {heading} |\n|---|---|\n{rows}"


def children(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").is_file() or (path.suffix == ".py" and path.name != "__init__.py"):
            yield path


def shown(path: Path) -> str:
    return f"{path.name}/" if path.is_dir() else path.name


def sentence(path: Path) -> str:
    """What a module says of itself, in its first sentence."""
    file = path / "__init__.py" if path.is_dir() else path
    first = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").split("\n\n")[0]
    return " ".join(first.split()).removesuffix(".").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(text(), "utf-8")
