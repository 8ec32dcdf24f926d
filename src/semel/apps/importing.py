"""What settings name as `package.module:name`: classes and functions of yours.

They are looked for among the installed packages, and then in the folder of `semel.toml`: what stands there
never takes the place of something installed.
"""

import re
import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, Final

from semel.errors import InvalidOption

# What the extra `apps` brings: semel's own applications are imported to be asked what their ledger is.
APPS_EXTRA: Final = frozenset({"httpx", "stamina"})

PLACE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def look_beside(folder: str) -> None:
    """Let modules be found in this folder too, after all others."""
    if folder not in sys.path:
        sys.path.append(folder)


def imported(at: str, what: str) -> Any:
    """What stands there; `what` says what it is to be, in the error where the text is no such place."""
    if not PLACE.fullmatch(at):
        raise InvalidOption(f"{at!r} cannot be imported: write it as package.module:{what}")
    name, _, attribute = at.partition(":")
    try:
        module = import_module(name)
    except Exception as error:
        raise InvalidOption(f"{at} cannot be imported: {_why(name, error)}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise InvalidOption(f"{at} cannot be imported: {_lacks(module, attribute)}") from error


def _why(name: str, error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{name}.".startswith(f"{missing}."):
        return f"there is no module {missing} among the installed packages, nor beside semel.toml"
    if missing in APPS_EXTRA:
        return f'{missing} is not installed: pip install "semel[apps]"'
    # The innermost place that is no part of importing itself is what its author wants to see.
    frames = [frame for frame in extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f", at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {error}{where}"


def _lacks(module: ModuleType, attribute: str) -> str:
    close = get_close_matches(attribute, vars(module), 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{module.__name__} has no {attribute}{hint}{_clash(module)}"


def _clash(module: ModuleType) -> str:
    """That there is another module of this name in a folder further down, and this one was found first."""
    top, loaded = module.__name__.partition(".")[0], getattr(module, "__file__", None)
    for folder in map(Path, reversed(sys.path)):
        for there in (folder / f"{top}.py", folder / top / "__init__.py"):
            if there.is_file() and (loaded is None or folder not in Path(loaded).parents):
                return f"; it is {loaded or 'built in'}, which comes before {there}: give yours another name"
    return ""
