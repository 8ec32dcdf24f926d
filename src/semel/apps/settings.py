"""What applications share about settings: where they come from, and how errors in them are reported."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, get_origin
from urllib.parse import urlsplit

import msgspec

from semel.apps.importing import imported
from semel.errors import InvalidOption, SemelError

# Nobody guesses so many characters, if they are random.
SHORTEST: Final = 16

# What marks a setting as a secret, by who thinks it up: you, so that `semel init` can make one, or others.
CHOSEN: Final = msgspec.Meta(extra={"secret": "chosen"})
GIVEN: Final = msgspec.Meta(extra={"secret": "given"})

S = TypeVar("S")
T = TypeVar("T")


class OwnFunctionFailed(SemelError):
    """A function that a setting names has failed; its own words are left out, as they may quote a message."""

    def __init__(self, app: str, setting: str, error: Exception) -> None:
        super().__init__(f"the function of apps.{app}.{setting} has failed: {type(error).__name__}")
        self.retry_after: Any | None = getattr(error, "retry_after", None)


def wrong(app: str, setting: str, why: str) -> InvalidOption:
    """The error for a setting, which it names."""
    return InvalidOption(f"apps.{app}.{setting}: {why}")


def check_address(app: str, setting: str, url: str) -> None:
    """Refuse an address that nobody can be asked at."""
    try:
        parts = urlsplit(url)
        # Its port is none unless it is a number.
        known = parts.scheme in ("https", "http") and parts.hostname and (parts.port or 0) >= 0
    except ValueError:
        known = False
    if not known:
        raise wrong(app, setting, "it begins with https://, or with http:// for a server of your own")


def check_above_0(app: str, settings: Any, names: Iterable[str], what: str = "a number of seconds") -> None:
    """Refuse what is no finite number above 0."""
    for name in names:
        if not 0 < getattr(settings, name) < float("inf"):
            raise wrong(app, name, f"it is {what} above 0")


def check_header(app: str, setting: str, text: str) -> None:
    """Refuse a key that no request can show, such as one with the line break of the file that it is from."""
    if not (text.isascii() and text.isprintable() and text == text.strip()):
        raise wrong(
            app, setting, "it has blanks or line breaks around it, or letters that no header can have"
        )


def check_secret(app: str, setting: str, given: str | list[str]) -> None:
    """Refuse what proves who sends, if it can be guessed; there may be two while it is being changed."""
    for one in [given] if isinstance(given, str) else given:
        if len(one) < SHORTEST:
            raise wrong(app, setting, f"it can be guessed: use at least {SHORTEST} random characters")


def variable(app: str, setting: str) -> str:
    """The environment variable of a setting."""
    return f"SEMEL_APPS__{app}__{setting}".upper()


def from_environment(kind: type[S], app: str, environ: Mapping[str, str]) -> S:
    """Settings as environment variables have them: `SEMEL_APPS__QUILL__ALOWARE_TOKEN` and its kin."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):  # type: ignore[arg-type]  # every kind of settings is a Struct
        if (name := variable(app, field.name)) in environ:
            where = f", in the environment variable {name}"
            values[field.name] = read(app, field.name, field.type, environ[name], where)
    return msgspec.convert(values, kind)


def read(app: str, setting: str, kind: Any, value: Any, where: str = "") -> Any:
    """A setting as a value of its kind; the environment has nothing but texts."""
    try:
        return msgspec.convert(parsed(kind, value) if isinstance(value, str) else value, kind, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise wrong(app, setting, f"{error}{where}") from error


def parsed(kind: Any, text: str) -> Any:
    """What a text means where the setting is a list or a table: JSON, or words with commas in between."""
    if get_origin(kind) in (list, tuple) and not text.lstrip().startswith("["):
        return [one.strip() for one in text.split(",") if one.strip()]
    return msgspec.json.decode(text) if get_origin(kind) in (list, tuple, dict) else text


def function_of(app: str, setting: str, path: str) -> Callable[..., Any]:
    """The function that a setting names."""
    found = naming(app, setting, imported, path, "function")
    if not callable(found):
        raise wrong(app, setting, f"{path!r} is no function")

    @functools.wraps(found)
    def call(*args: Any) -> Any:
        try:
            return found(*args)
        except SemelError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, its words are kept by ledgers and logs
            raise OwnFunctionFailed(app, setting, error) from None

    return call


def naming(app: str, setting: str, make: Callable[..., T], *args: Any, **options: Any) -> T:
    """Make something out of a setting; what is wrong with it is said of that setting."""
    try:
        return make(*args, **options)
    except InvalidOption as error:
        raise wrong(app, setting, str(error)) from error
