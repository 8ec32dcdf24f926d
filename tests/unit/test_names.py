"""One name, one meaning: whoever looks for a class of the source finds one, but for those with a reason."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "semel"

SHARED = {
    "Consumer": "one for each broker, imported from that broker's door",
    "IdempotencyMiddleware": "one for ASGI and one for WSGI: an application has either",
    "Message": "what an inbox and each broker deliver, imported from where it comes from",
    "Refused": "an error, a decision of a gate, and a store's reply to a write: all three are public",
    "Settings": "one for each application, read from its section",
}
"""Names that stand in several modules, each with the reason."""


def types(module: ast.Module) -> Iterator[str]:
    """The classes and the aliases of types that a module defines."""
    for node in module.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                yield name


def test_a_type_is_defined_in_one_module_unless_there_is_a_reason() -> None:
    places = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for name in types(ast.parse(path.read_text("utf-8"))):
            places[name].add(path.relative_to(SOURCE).as_posix())
    assert len(places) > 500, "it looks at the source"
    several = {name: sorted(where) for name, where in places.items() if len(where) > 1}
    assert several.keys() == SHARED.keys(), several
