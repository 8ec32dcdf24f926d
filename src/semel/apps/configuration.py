"""Settings from a file, the environment and the command line, each setting with the place it was set."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_origin
from urllib.parse import urlencode

import msgspec

from semel import errors
from semel.apps.sections import BadSetting, StoreSection
from semel.apps.settings import parsed
from semel.apps.tables import TABLES
from semel.core.runtime import Concealed
from semel.tables import Table
from semel.tables.mapping import mapped

SettingPath: TypeAlias = tuple[str, ...]
S = TypeVar("S", bound=msgspec.Struct)

PREFIX: Final = "SEMEL_"
# What the other commands read too; everything else in the environment has its section in its name.
SHORT: Final = {f"{PREFIX}{name.upper()}": ("semel", name) for name in StoreSection.__struct_fields__}
# The folder in which a platform puts secrets, each in a file of its own.
SECRETS_DIR: Final = f"{PREFIX}SECRETS_DIR"


class Configuration(Concealed):
    """What was set, and where."""

    def __init__(self, tree: dict[str, Any] | None = None, name: str = "") -> None:
        self.tree: dict[str, Any] = {} if tree is None else tree
        self.file = name
        self._elsewhere: dict[SettingPath, str] = {}
        self._texts: set[SettingPath] = set()

    @property
    def folder(self) -> str:
        """The folder of the file; the present one, where there is none."""
        return str(Path(self.file or "semel.toml").resolve().parent)

    def where(self, path: SettingPath) -> str:
        """The place a setting was set, to be read after its name; nothing where it was not."""
        if path in self._elsewhere:
            return f" in {self._elsewhere[path]}"
        return f" in {self.file}" if self.file and self.has(path) else ""

    def is_text(self, path: SettingPath) -> bool:
        """Whether it came as a text, whatever it means."""
        return path in self._texts

    def put(self, path: SettingPath, value: Any, where: str) -> None:
        """Set it here instead; the environment has nothing but texts."""
        branch = self.tree
        for name in path[:-1]:
            branch = branch.setdefault(name, {})
            if not isinstance(branch, dict):
                raise BadSetting(".".join(path), f" in {where}", "what is above it is no section")
        branch[path[-1]] = value
        self._elsewhere[path] = where
        if isinstance(value, str):
            self._texts.add(path)

    def take(self, environ: Mapping[str, str]) -> None:
        """Set what the environment sets."""
        for name in sorted(environ):
            path = _path_of(name)
            if path is not None:
                self.put(path, environ[name], f"the environment variable {name}")

    def take_files(self, folder: str) -> None:
        """Set what the files of a folder set: each is named as a variable, and has its value."""
        for file in _files(folder):
            path = _path_of(file.name)
            if path is not None:
                self.put(path, _value_in(file), f"the file {file}")

    def wrong(self, path: SettingPath, problem: str) -> BadSetting:
        """The error for a setting."""
        return BadSetting(".".join(path), self.where(path), problem)

    def has(self, path: SettingPath) -> bool:
        """Whether it was set."""
        branch: Any = self.tree
        for name in path:
            if not isinstance(branch, dict) or name not in branch:
                return False
            branch = branch[name]
        return True


def gather(
    file: str | None,
    environ: Mapping[str, str] = os.environ,
    options: Mapping[SettingPath, Any] | None = None,
) -> Configuration:
    """What is set by the file, by secrets and the environment over it, and by options over them all."""
    configuration = _from_file(file)
    if SECRETS_DIR in environ:
        configuration.take_files(environ[SECRETS_DIR])
    configuration.take(environ)
    for path, value in (options or {}).items():
        configuration.put(path, value, f"the option --{path[-1].replace('_', '-')}")
    _find_store(configuration, environ)
    return configuration


def _find_store(configuration: Configuration, environ: Mapping[str, str]) -> None:
    """Where nothing says where the store is, an application's table may know variables that do."""
    apps = configuration.tree.get("apps")
    if configuration.has(("semel", "url")) or not isinstance(apps, dict):
        return
    for table in TABLES:
        section = apps.get(table.name)
        named = [name for name in mapped(table).located_by if environ.get(name)]
        if named and isinstance(section, dict) and section.get("enabled", True) in (True, "true", "1"):
            url = url_by_variables(table, environ)
            configuration.put(("semel", "url"), url, f"the environment variable {named[0]}")


def url_by_variables(table: Table, environ: Mapping[str, str]) -> str:
    """The URL of the DynamoDB that a table's own variables lead to; tables have their own names there."""
    region, endpoint = (environ.get(name, "") for name in mapped(table).located_by)
    return f"dynamodb://{region}" + (f"?{urlencode({'endpoint': endpoint})}" if endpoint else "")


def _from_file(file: str | None) -> Configuration:
    if file is None:
        return Configuration()
    try:
        with Path(file).open("rb") as text:
            return Configuration(tomllib.load(text), file)
    except tomllib.TOMLDecodeError as error:
        raise errors.InvalidOption(f"{file} is no TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise errors.InvalidOption(f"{file} is no text in UTF-8: {error}") from error
    except OSError as error:
        raise errors.InvalidOption(f"{file} cannot be read: {error.strerror}") from error


def _files(folder: str) -> list[Path]:
    try:
        return sorted(file for file in Path(folder).iterdir() if file.is_file())
    except OSError as error:
        raise errors.InvalidOption(f"{SECRETS_DIR}: {folder} cannot be read: {error.strerror}") from error


def _value_in(file: Path) -> str:
    """What a file has, without the end of its last line, which editors and `echo` add."""
    try:
        return file.read_text("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise errors.InvalidOption(f"{file} is no text in UTF-8: {error}") from error
    except OSError as error:
        raise errors.InvalidOption(f"{file} cannot be read: {error.strerror}") from error


def _path_of(variable: str) -> SettingPath | None:
    """The setting that a variable sets; those of other programs have no section in their name."""
    if not variable.startswith(PREFIX):
        return None
    if variable in SHORT:
        return SHORT[variable]
    meant = variable.removesuffix("_FILE")
    if meant in SHORT:
        remedy = f"put the value into a file named {meant}, and name its folder with {SECRETS_DIR}"
        raise BadSetting(".".join(SHORT[meant]), "", f"there is no {variable}: {remedy}")
    name = variable.removeprefix(PREFIX)
    return tuple(name.lower().split("__")) if "__" in name else None


def store_of(configuration: Configuration) -> StoreSection:
    """The section `semel`, if it can work."""
    return read(StoreSection, configuration.tree.get("semel", {}), ("semel",), configuration)


def read(kind: type[S], values: Any, path: SettingPath, configuration: Configuration) -> S:
    """A section as a value."""
    if not isinstance(values, dict):
        raise configuration.wrong(path, "it is a section, with settings of its own")
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name in values:
        if name not in fields:
            raise configuration.wrong((*path, name), f"there is no such setting; {hint(name, fields)}")
    made = {
        name: _value(fields[name].type, one, (*path, name), configuration) for name, one in values.items()
    }
    try:
        return msgspec.convert(made, kind)
    except msgspec.ValidationError as error:
        raise configuration.wrong(path, str(error)) from error


def hint(name: str, known: Iterable[str]) -> str:
    """The name that was meant, it seems; else all there are."""
    close = get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def _value(kind: Any, value: Any, path: SettingPath, configuration: Configuration) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return read(kind, value, path, configuration)
    inner = _section_of(kind)
    if inner is not None:
        if not isinstance(value, dict):
            raise configuration.wrong(path, f"it is a section for each name: [{'.'.join(path)}.NAME]")
        return {name: read(inner, one, (*path, name), configuration) for name, one in value.items()}
    try:
        text = configuration.is_text(path)
        return msgspec.convert(parsed(kind, value) if text else value, kind, strict=not text)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise configuration.wrong(path, str(error)) from error


def _section_of(kind: Any) -> type[msgspec.Struct] | None:
    """The kind of section that stands under each name, where names are the user's own."""
    inner = get_args(kind)[-1] if get_origin(kind) is dict else None
    return inner if isinstance(inner, type) and issubclass(inner, msgspec.Struct) else None
