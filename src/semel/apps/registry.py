"""Where applications are found: by `at`, among semel's own, or by an entry point of an installed package."""

import inspect
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

import msgspec

from semel.apps.application import AppFacts, Application, Presents, facts_of
from semel.apps.importing import imported
from semel.apps.settings import naming, wrong
from semel.core.functions import signature_of
from semel.errors import InvalidOption
from semel.ops.blocks import AppPage
from semel.tables import Table

if TYPE_CHECKING:
    from semel.apps.deployment import Deployment

# Where semel's own are, unless a setting says otherwise.
APPS: Final[dict[str, str]] = {
    "quill": "semel.apps.quill:Quill",
    "support": "semel.apps.support:Support",
    "household": "semel.apps.household:Household",
    "probe": "semel.apps.probe:Probe",
}
# An installed package says by entry points of this group which applications it has.
GROUP: Final = "semel.apps"

# A name is part of addresses, of keys, and of environment variables, which have no small letters.
NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

# What the service reads of an application's section itself.
RESERVED: Final = ("at", "enabled", "tables")


class RegisteredApp(msgspec.Struct, frozen=True):
    """An application's class, and what it says about itself."""

    name: str
    kind: Any
    facts: AppFacts

    @property
    def works(self) -> bool:
        """Whether it has messages to be worked on."""
        return hasattr(self.kind, "handle")


def is_known(name: str, section: Mapping[str, Any]) -> bool:
    """Whether there is an application of a name: its section says where, or it can be found without."""
    return bool(section.get("at")) or name in APPS or bool(entry_points(group=GROUP, name=name))


def known(*more: str) -> list[str]:
    """The names of all applications that can be found, and these."""
    return list(dict.fromkeys([*APPS, *more, *sorted(entry_points(group=GROUP).names)]))


def find(name: str, at: str = "") -> RegisteredApp:
    """The application of a name; `InvalidOption` says what it lacks."""
    if not NAME.fullmatch(name):
        raise InvalidOption(f"apps.{name}: a name has small letters and digits, and underscores between them")
    at = at or APPS.get(name) or _entry_point(name)
    if not at:
        own = 'one of your own is found by at = "package.module:Class"'
        raise InvalidOption(f"apps.{name}: there is no such app; there are {', '.join(known())}; {own}")
    kind = _class_at(name, at)
    _check(name, at, kind)
    try:
        return RegisteredApp(name, kind, facts_of(kind))
    except msgspec.ValidationError as error:
        raise wrong(name, "at", f"{at}: {error}") from error


def own_ledger(name: str, section: Mapping[str, Any]) -> Table | None:
    """The table that an application has for its ledger in DynamoDB; None where it shares the store's."""
    return find(name, section.get("at", "")).facts.ledger_table if is_known(name, section) else None


def deployment(name: str, at: str = "") -> "Deployment":
    """What the application of a name needs on AWS."""
    kind = find(name, at).kind
    if not hasattr(kind, "deployment"):
        raise InvalidOption(f"apps.{name}: it has no classmethod deployment(), which says what it needs")
    declared: Deployment = kind.deployment()
    return declared


def _entry_point(name: str) -> str:
    found = sorted({one.value for one in entry_points(group=GROUP, name=name)})
    if len(found) > 1:
        raise wrong(name, "at", f"several packages have an app of this name: say which of {', '.join(found)}")
    return found[0] if found else ""


# Checking


def _class_at(name: str, at: str) -> Any:
    kind = naming(name, "at", imported, at, "Class")
    if not inspect.isclass(kind):
        raise wrong(name, "at", f"{at} is no class")
    return kind


def _check(name: str, at: str, kind: Any) -> None:
    """Refuse a class that lacks something that every application has."""
    settings = getattr(kind, "settings_type", None)
    if not (inspect.isclass(settings) and issubclass(settings, msgspec.Struct)):
        raise wrong(name, "at", f"{at} has no settings_type, a msgspec.Struct that its section is read as")
    taken = [field for field in RESERVED if field in settings.__struct_fields__]
    if taken:
        raise wrong(name, "at", f"{at} has a setting {taken[0]!r}, which the service reads itself")
    for method in ("close", "handle", "router", "pages", "deployment"):
        there = getattr(kind, method, None)
        if not callable(there) and (there is not None or method == "close"):
            raise wrong(name, "at", f"{at} has no method {method}()")
    try:
        signature_of(kind).bind("s", "inbox", "settings")
    except TypeError as error:
        raise wrong(name, "at", f"{at} is not made from (s, inbox, settings): {error}") from error


def check_made(name: str, app: Application) -> None:
    """Refuse an application that was made, and lacks something that only shows then."""
    hooks: Any = getattr(app, "hooks", None)
    if not hasattr(hooks, "items"):
        raise wrong(name, "at", f"{type(app).__name__} has no hooks: addresses, and what takes deliveries")
    for path, hook in hooks.items():
        if not (isinstance(path, str) and path.startswith("/")):
            raise wrong(name, "at", f"{type(app).__name__}.hooks has {path!r}: an address begins with /")
        for method in ("receive", "areceive"):
            if not callable(getattr(hook, method, None)):
                raise wrong(name, "at", f"the hook for {path} has no method {method}()")
    if isinstance(app, Presents):
        _check_pages(name, app)


def _check_pages(name: str, app: Presents) -> None:
    pages: Any = app.pages()
    for page, made in pages.items() if hasattr(pages, "items") else [("", None)]:
        if not (isinstance(page, str) and NAME.fullmatch(page) and isinstance(made, AppPage)):
            who = type(app).__name__
            raise wrong(name, "at", f'{who}.pages() gives no AppPage by a name like "open_orders"')
