"""A new `semel.toml`: every setting with what it means and its default, by the settings' own declarations."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from secrets import token_urlsafe
from types import MappingProxyType
from typing import Any, Final, get_args, get_origin

import msgspec

from semel.apps.registry import RegisteredApp
from semel.apps.sections import EncryptionSection, StoreSection
from semel.apps.settings import variable
from semel.service.settings import InboxSection, ServiceSection, TokenSection, UserSection

WIDTH: Final = 100
HEADER: Final = """\
# The settings of `semel serve` and of every other command. A line that begins with # and no blank is a
# default: take away the # to change it. Every setting can also be an environment variable, which wins:
# service.port is SEMEL_SERVICE__PORT. There are secrets here: keep this file out of version control.
"""


class NewSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The text of the file, and what its owner has to know of the secrets."""

    text: str
    made: tuple[str, ...]
    """The settings for which a secret was made up, which others have to be told."""
    lacking: Mapping[str, str]
    """The variables for secrets that others give, each with what it is for."""


def new_settings(
    url: str, apps: Iterable[RegisteredApp], at: Mapping[str, str] = MappingProxyType({})
) -> NewSettings:
    """Settings for this store and these applications; `at` says where those are that semel does not know."""
    store = {"url": url, "env": StoreSection().env}
    # Beside an SQLite file the service makes one, which no copy of the settings gives away.
    own = {} if url.startswith("sqlite:") else {"secret": token_urlsafe(32)}
    parts = [
        section("semel", StoreSection, store | own),
        section("semel.encryption", EncryptionSection, off=True),
        section("service", ServiceSection),
        section("tokens.NAME", TokenSection, off=True),
        section("users.NAME", UserSection, off=True),
    ]
    made, lacking = [f"semel.{name}" for name in own], dict[str, str]()
    for app in apps:
        chosen = {name: token_urlsafe(32) for name in secret_settings(app.kind.settings_type, "chosen")}
        place = {"at": at[app.name]} if app.name in at else {}
        parts += _sections_of(app, place | chosen)
        made += [f"apps.{app.name}.{name}" for name in chosen]
        lacking |= _lacking(app)
    return NewSettings(text="\n".join([HEADER, *parts]), made=tuple(made), lacking=lacking)


def _sections_of(app: RegisteredApp, values: Mapping[str, str]) -> Iterator[str]:
    yield section(f"apps.{app.name}", app.kind.settings_type, values)
    if app.works:
        yield section(f"inbox.{app.name}", InboxSection, off=True)


def _lacking(app: RegisteredApp) -> dict[str, str]:
    kind = app.kind.settings_type
    meanings = meanings_of(kind)
    return {variable(app.name, name): meanings.get(name, "") for name in secret_settings(kind, "given")}


def secret_settings(kind: type[msgspec.Struct], made_by: str) -> list[str]:
    """The settings that are secrets, and are `chosen` by the owner or `given` by others."""
    return [
        field.name
        for field in msgspec.structs.fields(kind)
        for meta in (get_args(field.type)[1:] if get_origin(field.type) is not None else ())
        if isinstance(meta, msgspec.Meta) and (meta.extra or {}).get("secret") == made_by
    ]


def meanings_of(kind: type[msgspec.Struct]) -> dict[str, str]:
    """What the source says below each field of a section."""
    [body] = [node.body for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body]  # type: ignore[attr-defined]
    meanings = {}
    for field, below in pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as words)),
            ):
                meanings[name] = words
    return meanings


def section(
    name: str,
    kind: type[msgspec.Struct],
    values: Mapping[str, Any] = MappingProxyType({}),
    *,
    off: bool = False,
) -> str:
    """A section with these values, and all its other settings as comments; or all of it as a comment."""
    lines = [f"{'#' if off else ''}[{name}]"]
    lines += [f"{one} = {_toml(values[one])}" for one in values if one not in kind.__struct_fields__]
    meanings = meanings_of(kind)
    for secret in secret_settings(kind, "given"):
        place = f"The variable {variable(name.removeprefix('apps.'), secret)} can hold it."
        meanings[secret] = f"{meanings.get(secret, '')} {place}".strip()
    for field in msgspec.structs.fields(kind):
        if not (isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)):
            lines += _setting(field, meanings.get(field.name, ""), values)
    return "\n".join(lines) + "\n"


def _setting(field: msgspec.structs.FieldInfo, meaning: str, values: Mapping[str, Any]) -> Iterator[str]:
    yield from textwrap.wrap(meaning, WIDTH, initial_indent="# ", subsequent_indent="# ")
    if field.name in values:
        yield f"{field.name} = {_toml(values[field.name])}"
    else:
        yield f"#{field.name} = {_default(field)}".rstrip()


def _default(field: msgspec.structs.FieldInfo) -> str:
    """A field's default; nothing where there is none."""
    made = field.default_factory
    value = field.default if made is msgspec.NODEFAULT else made()
    return "" if value is None or value is msgspec.NODEFAULT else _toml(value)


def _toml(value: Any) -> str:
    """A value as TOML has it, which has texts, numbers, lists and flags as JSON has them."""
    if isinstance(value, dict):
        pairs = [f"{json.dumps(name)} = {_toml(one)}" for name, one in value.items()]
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False)
