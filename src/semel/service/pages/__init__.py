"""Pages for people: what this service is and offers. They load nothing from other servers.

`home` and `reference` write HTML from plain values; the look of both is in `page.html` and `page.css`.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, Final, TypeAlias

JsonSchema: TypeAlias = dict[str, Any]

# A browser is told so too: whatever stood in a page, it would load nothing and run nothing.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
HINT: Final = "In the commands `URL` is the address of this service, and `TOKEN` one of its tokens."
METHODS: Final = ("get", "post", "put", "delete")
# What a schema says of its values besides their type, in words.
LIMITS: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "minLength": "length at least {}",
    "maxLength": "length at most {}",
    "minItems": "at least {}",
    "maxItems": "at most {}",
}


def home(about: dict[str, Any]) -> str:
    """What the service is, and where to go from here."""
    links = [(escape(name), _link(path)) for name, path in about["links"].items()]
    apps = [(escape(name), "<br>".join(map(_code, hooks))) for name, hooks in about["apps"].items()]
    main = [_head("semel", about["version"]), _words(about["what"]), _list("Here", links)]
    return _page("semel", [*main, _list("Applications, and where their webhooks come in", apps)])


def reference(document: JsonSchema) -> str:
    """Every operation of an OpenAPI document."""
    info, groups = document["info"], dict[str, list[str]]()
    for path, item in document["paths"].items():
        for method in [method for method in METHODS if method in item]:
            tag = next(iter(item[method].get("tags", [])), "other")
            groups.setdefault(tag, []).append(_operation(document, path, method, item[method]))
    main = [_head(info["title"], info["version"]), _words(info.get("description", "")), _words(HINT)]
    main.append(f"<p>The same for programs: {_link('/openapi.json')}</p>")
    for tag, operations in groups.items():
        main += [f"<h2>{escape(tag)}</h2>", *operations]
    return _page(f"{info['title']}: reference", main)


@cache
def _template() -> Template:
    folder = files(__name__)
    page = Template((folder / "page.html").read_text("utf-8"))
    return Template(page.safe_substitute(style=(folder / "page.css").read_text("utf-8")))


def _page(title: str, main: Iterable[str]) -> str:
    return _template().substitute(title=escape(title), main="\n".join(main))


def _head(name: str, version: str) -> str:
    return f"<h1>{escape(name)} <small>{escape(version)}</small></h1>"


def _link(path: str) -> str:
    return f'<a href="{escape(path)}">{_code(path)}</a>'


# An operation


def _operation(document: JsonSchema, path: str, method: str, operation: JsonSchema) -> str:
    first, rest = operation.get("summary", ""), operation.get("description", "")
    body = _resolved(document, _body(operation))
    parameters = [_parameter(document, one) for one in operation.get("parameters", [])]
    answers = [_answer(document, status, one) for status, one in sorted(operation["responses"].items())]
    parts = [
        _words(rest),
        _list("Parameters", parameters),
        _list("Body", _fields(document, body)),
        f"<h3>Command</h3>\n<pre>{escape(_command(document, path, method, operation))}</pre>",
        _list("Answers", answers),
    ]
    return (
        f"<details><summary><b>{method.upper()}</b> {_code(path)} <small>{_marked(first)}</small></summary>\n"
        f"<div>{''.join(parts)}</div></details>"
    )


def _parameter(document: JsonSchema, one: JsonSchema) -> tuple[str, str]:
    meaning = f"{one['in']}, {_described(document, one.get('schema', {}), one.get('description', ''))}"
    return _name(one["name"], required=one.get("required", False)), meaning


def _answer(document: JsonSchema, status: str, one: JsonSchema) -> tuple[str, str]:
    schema: JsonSchema = next((kind.get("schema", {}) for kind in one.get("content", {}).values()), {})
    described = _fields(document, _resolved(document, schema)) if status < "300" else ()
    fields = dict.fromkeys(name for name, _ in described)
    words = _words(one.get("description", ""))
    return _code(status), words + (f"<small>{', '.join(fields)}</small>" if fields else "")


def _command(document: JsonSchema, path: str, method: str, operation: JsonSchema) -> str:
    """How it is asked from a shell."""
    asked = [one for one in operation.get("parameters", []) if one.get("required") and one["in"] == "query"]
    query = "&".join(f"{one['name']}={_example(document, one['schema'])}" for one in asked)
    words = ["curl", f'"$URL{path}{"?" if query else ""}{query}"']
    if operation.get("security"):
        words.append('--oauth2-bearer "$TOKEN"')
    body = _body(operation)
    if method != ("post" if body else "get"):
        words.append(f"-X {method.upper()}")
    if body:
        words.append(f"--json {shlex.quote(json.dumps(_example(document, body)))}")
    return " ".join(words)


def _body(operation: JsonSchema) -> JsonSchema:
    content: JsonSchema = operation.get("requestBody", {}).get("content", {})
    return next((kind.get("schema", {}) for kind in content.values()), {})


# Schemas


def _resolved(document: JsonSchema, schema: JsonSchema) -> JsonSchema:
    """What a reference stands for."""
    found: Any = document
    for step in schema.get("$ref", "#").split("/")[1:]:
        found = found[step]
    return schema if found is document else found | {k: v for k, v in schema.items() if k != "$ref"}


def _fields(document: JsonSchema, schema: JsonSchema) -> Iterator[tuple[str, str]]:
    for name, one in schema.get("properties", {}).items():
        yield _name(name, required=name in schema.get("required", ())), _described(document, one)
    for option in schema.get("oneOf", []):
        yield from _fields(document, _resolved(document, option))


def _described(document: JsonSchema, schema: JsonSchema, more: str = "") -> str:
    """A value: its type, its limits, and what it means."""
    schema = _resolved(document, schema)
    words = [_type(document, schema)]
    if "default" in schema:
        words.append(f"{_code(json.dumps(schema['default']))} unless it is said")
    options = [_resolved(document, one) for one in schema.get("anyOf", [])]
    meant = more or next((one["description"] for one in (schema, *options) if "description" in one), "")
    return ", ".join(words) + (f"<br><small>{_marked(meant)}</small>" if meant else "")


def _type(document: JsonSchema, schema: JsonSchema) -> str:
    schema = _resolved(document, schema)
    if "anyOf" in schema:
        return " or ".join(_type(document, one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " or ".join(_code(json.dumps(one)) for one in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any JSON")
    if kind == "string":
        kind = schema.get("format", kind)
    if kind == "array":
        kind = f"list of {_type(document, schema.get('items', {}))}"
    limits = [words.format(_number(schema[name])) for name, words in LIMITS.items() if name in schema]
    return ", ".join([escape(kind) if kind == schema.get("type") else kind, *limits])


def _number(value: float) -> str:
    return f"{value:g}" if value != int(value) else str(int(value))


def _example(document: JsonSchema, schema: JsonSchema) -> Any:
    """A value as it might be."""
    schema = _resolved(document, schema)
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    if "default" in schema or "const" in schema:
        return schema.get("default", schema.get("const"))
    if "properties" in schema:
        needed = schema.get("required", [])
        return {name: _example(document, schema["properties"][name]) for name in needed}
    return EXAMPLES.get(schema.get("type", ""), "...")


EXAMPLES: Final[dict[str, Any]] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}


# Text


def _name(name: str, *, required: bool) -> str:
    return _code(name) + ("" if required else " <small>optional</small>")


def _list(title: str, rows: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{name}</dt><dd>{meaning}</dd>\n" for name, meaning in rows)
    return f"<h3>{escape(title)}</h3>\n<dl>{items}</dl>\n" if items else ""


def _words(text: str) -> str:
    return "".join(f"<p>{_marked(part)}</p>" for part in text.split("\n\n") if part)


def _marked(text: str) -> str:
    """A line of text, in which backticks stand around code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
