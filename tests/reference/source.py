"""The source as it is written: where a name is defined, and what is said of it.

It is read and not run, so that nothing depends on what is installed, or on how one Python or another prints a
type.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.seeds import ROOT

SOURCE = ROOT / "src"

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Place(NamedTuple):
    """A statement that defines a name, and the module that it is in."""

    module: str
    node: ast.stmt


def file_of(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(file_of(module).read_text("utf-8"))


def top_level(module: str) -> Iterator[ast.stmt]:
    """The statements of a module, with those that only a type checker reads."""
    for node in parsed(module).body:
        yield node
        if isinstance(node, ast.If):
            yield from node.body


def names_of(node: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    assigned = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        assigned = [node.target]
    return [target.id for target in assigned if isinstance(target, ast.Name)]


@cache
def defined(module: str) -> dict[str, ast.stmt]:
    return {name: node for node in top_level(module) for name in names_of(node)}


def imported(module: str, name: str) -> tuple[str, str] | None:
    """Where a module has a name from, if that is in semel."""
    for node in top_level(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("semel"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return str(node.module), alias.name
    return None


def find(module: str, name: str) -> Place | None:
    """A name as a module knows it, wherever in semel it is defined."""
    if name in defined(module):
        return Place(module, defined(module)[name])
    origin = imported(module, name)
    return find(*origin) if origin else None


@cache
def public(module: str) -> list[str]:
    """The names of a module for others: those in `__all__`, or all that do not begin with an underscore."""
    listed = defined(module).get("__all__")
    if isinstance(listed, ast.Assign):
        return sorted(ast.literal_eval(listed.value), key=str.lower)
    return sorted((name for name in defined(module) if name[0] != "_"), key=str.lower)


def bases(place: Place) -> Iterator[Place]:
    """The classes that a class is made from, as far as they are in semel; the nearest first."""
    for base in getattr(place.node, "bases", []):
        name = base.value if isinstance(base, ast.Subscript) else base
        found = find(place.module, ast.unparse(name))
        if found and isinstance(found.node, ast.ClassDef):
            yield found
            yield from bases(found)


def method(module: str, owner: str, name: str) -> Function:
    """A method of a class that a module knows, or of one that it is made from."""
    kind = find(module, owner)
    assert kind is not None, f"{module} does not know {owner}"
    bodies = [getattr(each.node, "body", []) for each in (kind, *bases(kind))]
    found = (node for body in bodies for node in body if isinstance(node, FUNCTIONS) and node.name == name)
    return next(found)


# What is said


def literal(node: ast.stmt | None) -> str:
    """The text of a statement that is only a text, without the indentation of its place."""
    value = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else None
    if not isinstance(value, str):
        return ""
    first, _, rest = value.partition("\n")
    margin = " " * getattr(node, "col_offset", 0)
    return "\n".join([first, *(line.removeprefix(margin) for line in rest.splitlines())]).strip()


def docstring(node: ast.AST) -> str:
    return literal(next(iter(getattr(node, "body", [])), None))


def behind(body: list[ast.stmt], node: ast.stmt) -> str:
    """The text right behind an assignment, which is what is said of it."""
    at = body.index(node) + 1
    return literal(body[at]) if at < len(body) else ""


def comment(place: Place) -> str:
    """The comment above a statement."""
    above: list[str] = []
    for line in reversed(file_of(place.module).read_text("utf-8").splitlines()[: place.node.lineno - 1]):
        if not line.startswith("# "):
            break
        above.insert(0, line.removeprefix("# "))
    return "\n".join(above)


def said(place: Place) -> str:
    """What the source says of a name."""
    if docstring(place.node):
        return docstring(place.node)
    return behind(parsed(place.module).body, place.node) or comment(place)
