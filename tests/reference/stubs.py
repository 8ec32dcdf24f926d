"""Public names as a stub file would have them, with what is said of each.

Methods that are listed in a facade, as `claim = Driven(LedgerSteps.claim)`, are shown as callers know them.
"""

import ast
import copy
import subprocess
import sys
import textwrap
from collections.abc import Iterator

from tests.reference.source import (
    FUNCTIONS,
    Function,
    Place,
    bases,
    behind,
    docstring,
    find,
    method,
    names_of,
)

WIDTH = 88
SHOWN = {"__call__", "__enter__", "__aenter__", "__iter__", "__len__"}
DECORATORS = {"property", "cached_property", "classmethod", "staticmethod", "overload"}
WRAPPERS = {"Driven", "gathered"}
# How a rule returns a value, which callers get as it is.
STEPS = {"Steps", "PartPlan"}
MARK = "# ---- another name\n"


class Unquoted(ast.NodeTransformer):
    """Annotations without the quotes that put off reading them."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.parse(node.value, mode="eval").body if isinstance(node.value, str) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        if ast.unparse(node.value) != "Literal":
            self.generic_visit(node)
        return node


def unquoted(annotation: ast.expr) -> ast.expr:
    made: ast.expr = Unquoted().visit(copy.deepcopy(annotation))
    return made


def given(returned: ast.expr, wrapper: str) -> ast.expr:
    """What a caller gets of what a rule returns: its value, or in a transaction what it will be."""
    if not (isinstance(returned, ast.Subscript) and ast.unparse(returned.value) in STEPS):
        return returned
    return ast.Subscript(ast.Name("Pending"), returned.slice) if wrapper == "gathered" else returned.slice


def text_of(words: str) -> ast.stmt:
    """A docstring, or what stands for no body at all."""
    if "\n" in words:
        words = textwrap.indent(words, "    ").strip() + "\n    "
    return ast.Expr(ast.Constant(words or ...))


def stub(function: Function, name: str, wrapper: str = "", *, awaited: bool = False) -> str:
    """A function without what it does."""
    made = copy.deepcopy(function)
    made.name = name
    for each in ast.walk(made.args):
        if isinstance(each, ast.arg) and each.annotation:
            each.annotation = unquoted(each.annotation)
    made.returns = given(unquoted(made.returns), wrapper) if made.returns else None
    made.decorator_list = [
        each for each in made.decorator_list if ast.unparse(each).split(".")[-1] in DECORATORS
    ]
    made.body = [text_of(docstring(function))]
    written = ast.unparse(made)
    return f"async {written}" if awaited and isinstance(made, ast.FunctionDef) else written


# Classes


def wrapped(module: str, node: ast.stmt, *, awaited: bool) -> str:
    """A method that is listed as `claim = Driven(LedgerSteps.claim)`; nothing for any other statement."""
    call = getattr(node, "value", None)
    if not (isinstance(call, ast.Call) and ast.unparse(call.func) in WRAPPERS):
        return ""
    inner: ast.expr = call
    while isinstance(inner, ast.Call):
        inner = inner.args[0]
    assert isinstance(inner, ast.Attribute)
    owner = inner.value.value if isinstance(inner.value, ast.Subscript) else inner.value
    function = method(module, ast.unparse(owner), inner.attr)
    return stub(function, names_of(node)[0], ast.unparse(call.func), awaited=awaited)


def typed(name: str, node: ast.AnnAssign) -> str:
    """A name with its type, and its value if that is given."""
    value = f" = {ast.unparse(node.value)}" if node.value and names_of(node) else ""
    return f"{name}: {ast.unparse(unquoted(node.annotation))}{value}"


def field(body: list[ast.stmt], node: ast.Assign | ast.AnnAssign) -> str:
    """A field, and what is said of it."""
    shown = typed(names_of(node)[0], node) if isinstance(node, ast.AnnAssign) else ast.unparse(node)
    words = behind(body, node)
    return f'{shown}\n"""{words}"""' if words else shown


def attributes(function: Function) -> Iterator[tuple[str, str]]:
    """The public attributes that a method gives its object, with their types."""
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target).startswith("self."):
            name = ast.unparse(node.target).removeprefix("self.")
            if name[0] != "_" and "." not in name:
                yield name, typed(name, node)


def own_members(place: Place, *, awaited: bool) -> Iterator[tuple[str, str]]:
    """The public members that a class itself has, by name."""
    body: list[ast.stmt] = getattr(place.node, "body", [])
    functions = [node for node in body if isinstance(node, FUNCTIONS)]
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and names_of(node)[0][0] != "_":
            shown = wrapped(place.module, node, awaited=awaited) or field(body, node)
            yield names_of(node)[0], shown
    for function in functions:
        yield from attributes(function)
    for function in sorted(functions, key=lambda one: one.name != "__init__"):
        if function.name[0] != "_" or function.name in {"__init__", *SHOWN}:
            yield function.name, stub(function, function.name)


def members(place: Place, shown: set[str]) -> list[str]:
    """The members of a class and of those that it is made from; what is nearer hides what is farther.

    How something is made that only semel makes, such as a facade, is nobody else's.
    """
    kinds = [place, *bases(place)]
    awaited = any("AsyncFacade" in names_of(each.node) for each in kinds)
    found: dict[str, list[str]] = {}
    for each in kinds:
        nearer = set(found)
        ours = each is not place and not set(names_of(each.node)) & shown
        for name, text in own_members(each, awaited=awaited):
            if name not in nearer and not name.startswith("test_") and not (ours and name == "__init__"):
                found.setdefault(name, []).append(text)
    return [text for each in found.values() for text in each]


def class_stub(place: Place, shown: set[str]) -> str:
    """A class with its members; of the classes that it is made from, those that a reader knows."""
    node = place.node
    assert isinstance(node, ast.ClassDef)
    known = [
        ast.unparse(base)
        for base in node.bases
        if not find(place.module, ast.unparse(base).partition("[")[0]) or ast.unparse(base) in shown
    ]
    head = f"class {node.name}({', '.join(known)}):" if known else f"class {node.name}:"
    body = "\n".join(members(place, shown)) or "..."
    return f"{head}\n{textwrap.indent(body, '    ')}"


def written(place: Place, shown: set[str]) -> str:
    """A definition as a stub file would have it; what is said of it stands elsewhere."""
    if isinstance(place.node, ast.ClassDef):
        return class_stub(place, shown)
    if isinstance(place.node, FUNCTIONS):
        silent = copy.deepcopy(place.node)
        silent.body = []
        return stub(silent, silent.name)
    return ast.unparse(place.node)


def laid_out(stubs: list[str]) -> list[str]:
    """Stubs in the layout that ruff gives them."""
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", f"--line-length={WIDTH}"]
    text = "".join(f"{MARK}{each}\n" for each in stubs)
    command = [*ruff, "--stdin-filename=names.pyi", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return [each.strip("\n") for each in done.stdout.split(MARK)[1:]]
