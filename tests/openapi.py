"""The OpenAPI document: `python -m tests.openapi` writes docs/reference/openapi.json.

It is that of a service without applications. What a change means for clients that were generated from the
document before is told from the two documents alone, without any history. A change that breaks them is
written only with `--breaking`.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from semel.apps.configuration import Configuration
from semel.doors.http.problems import MEDIA_TYPE
from semel.service.app import create_app
from semel.service.runtime import Runtime
from tests.seeds import ROOT

FILE = ROOT / "docs" / "reference" / "openapi.json"
COMMAND = "python -m tests.openapi"

Json = dict[str, Any]


def made() -> Json:
    """The document as the service serves it now."""
    secret = "no-secret-of-anybody-since-nothing-is-kept"
    runtime = Runtime(Configuration({"semel": {"url": "memory:", "secret": secret}}, "tests"))
    with contextlib.closing(runtime):
        document: Json = create_app(runtime)._app.openapi()  # type: ignore[attr-defined]  # it is FastAPI's
    return document


def text(document: Json) -> str:
    """The document as it is written: one order and one form, so that a change shows as no more than it is."""
    whole = json.loads(json.dumps(document), parse_float=_number)
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _number(digits: str) -> float:
    value = float(digits)
    return int(value) if value.is_integer() else value


def published() -> Json:
    """The document as it is checked in."""
    document: Json = json.loads(FILE.read_text("utf-8"))
    return document


# What a change means


class Contract(NamedTuple):
    """What clients may count on; and what they must send or expect, each with the promise it is about."""

    promises: set[str]
    demands: dict[str, str]


class Changes(NamedTuple):
    """What breaks clients of the document before, and what they need not know."""

    breaking: list[str]
    additions: list[str]


def changes(before: Json, now: Json) -> Changes:
    """A promise that is gone breaks clients; so does a new demand about what was promised before."""
    old, new = contract(before), contract(now)
    demands = new.demands.keys() - old.demands.keys()
    breaking = [f"gone: {one}" for one in old.promises - new.promises]
    breaking += [f"new: {one}" for one in demands if new.demands[one] in old.promises]
    return Changes(sorted(breaking), sorted(f"new: {one}" for one in new.promises - old.promises))


def contract(document: Json) -> Contract:
    schemas = document["components"]["schemas"]
    facts = Contract({f"the schema {name}" for name in schemas}, {})
    _answer(document, "a problem", schemas["Problem"], facts)
    for path, item in document["paths"].items():
        for method, operation in item.items():
            _operation(document, f"{method.upper()} {path}", operation, facts)
    return facts


def _operation(document: Json, place: str, operation: Json, facts: Contract) -> None:
    facts.promises.update({place, f"{place}, called {operation['operationId']}"})
    for scheme in operation.get("security", []):
        for name, scopes in scheme.items():
            facts.demands.update(
                {f"{place} needs a {name} with {scope}": place for scope in scopes or ["any"]}
            )
    for one in operation.get("parameters", []):
        for kind in _kinds(document, one["schema"]):
            _takes(place, one["name"], kind, facts, required=one.get("required", False))
    for schema in _schemas(operation.get("requestBody", {})):
        for name, kind, required in _members(document, schema):
            _takes(place, name, kind, facts, required=required)
    for status, response in operation["responses"].items():
        facts.promises.add(f"{place} {status}")
        for schema in _schemas(response):
            _answer(document, f"{place} {status}", schema, facts)


def _takes(place: str, name: str, kind: str, facts: Contract, *, required: bool) -> None:
    facts.promises.update({f"{place} takes {name}", f"{place} takes {name}: {kind}"})
    if required:
        outer = name.rpartition(".")[0]
        facts.demands[f"{place} needs {name}"] = f"{place} takes {outer}" if outer else place


def _answer(document: Json, place: str, schema: Json, facts: Contract) -> None:
    """What always comes is promised; each kind of value that may come has to be expected."""
    for name, kind, required in _members(document, schema):
        facts.promises.add(f"{place} has {name}")
        facts.demands[f"{place} has {name}, which may be {kind}"] = f"{place} has {name}"
        if required:
            facts.promises.add(f"{place} always has {name}")


def _schemas(body: Json) -> list[Json]:
    """What a body may be, but for problems, which are the same everywhere."""
    content = body.get("content", {}).items()
    return [one["schema"] for kind, one in content if kind != MEDIA_TYPE and "schema" in one]


def _members(document: Json, schema: Json, within: str = "") -> Iterator[tuple[str, str, bool]]:
    """Each member of an object and of the objects in it: its name, a kind that it may have, if it must be."""
    for one in _options(document, schema):
        for name, member in one.get("properties", {}).items():
            for kind in _kinds(document, member):
                yield within + name, kind, name in one.get("required", ())
            yield from _members(document, member, f"{within}{name}.")
        if "items" in one:
            yield from _members(document, one["items"], within)


def _kinds(document: Json, schema: Json) -> Iterator[str]:
    for one in _options(document, schema):
        for value in one.get("enum", [one["const"]] if "const" in one else []):
            yield repr(value)
        if not {"enum", "const"} & one.keys():
            inside = _kinds(document, one["items"]) if "items" in one else ()
            yield " ".join([one.get("type", "anything"), *one.get("format", "").split(), *inside])


def _options(document: Json, schema: Json) -> Iterator[Json]:
    """What a schema is one of, with references followed."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for name in ("anyOf", "oneOf"):
        if name in schema:
            for one in schema[name]:
                yield from _options(document, one)
            return
    yield schema


def report(found: Changes) -> str:
    """The changes, for people to read."""
    breaking = [f"breaks clients: {one}" for one in found.breaking]
    return "\n".join([*breaking, *(f"compatible: {one}" for one in found.additions)])


def main(words: list[str]) -> None:
    document = made()
    found = changes(published(), document) if FILE.exists() else Changes([], [])
    print(report(found) or "nothing changed that clients see")  # noqa: T201 - run as a program, it prints
    if found.breaking and "--breaking" not in words:
        sys.exit(f"{FILE.name} was left as it is. If that is meant: {COMMAND} --breaking")
    Path(FILE).write_text(text(document), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
