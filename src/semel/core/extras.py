"""Optional dependencies: imported when first needed, and named when absent."""

from importlib import import_module
from types import ModuleType

from semel.errors import MissingExtra


def require(module: str, extra: str) -> ModuleType:
    """Import a module that an extra brings."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but lacks something of its own is broken, not absent.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingExtra(extra, error.name) from error
