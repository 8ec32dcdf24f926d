"""A failure that was kept, raised again so that the caller's `except` clause sees it as it saw the first."""

from functools import lru_cache
from sys import modules
from types import BuiltinMethodType
from typing import Any, cast

from semel.errors import FailedBefore


def failed_before(
    kind: type[Exception] | None, key: str, error_type: str, error_message: str, attempt: int
) -> FailedBefore:
    """A `FailedBefore` that is an instance of the kept type too, whatever that one's constructor wants."""
    plain = FailedBefore(key, error_type, error_message, attempt)
    both = None if kind is None else _both(cast("Any", kind))
    error = None if both is None else _unmade(both, plain)
    if error is None:
        return plain
    # Neither the type's constructor nor its rules for attributes are asked: they are for the first time.
    error.args = plain.args
    error.__dict__.update(plain.__dict__)
    return error


@lru_cache(maxsize=256)
def _both(kind: type[Exception]) -> type[FailedBefore] | None:
    """A type that is both; one that nothing may be derived from gives way to its nearest base."""
    names: dict[str, Any] = {name: getattr(BaseException, name) for name in OURS}
    names |= {name: _field(name) for name in FIELDS}
    names |= {"__module__": FailedBefore.__module__, "__reduce__": _reduced, "kept_type": kind}
    for base in kind.__mro__:
        if base is Exception:
            break
        try:
            return cast("type[FailedBefore]", type("FailedBefore", (FailedBefore, base), names))
        except Exception:  # noqa: BLE001, S112 - a class may refuse to be derived from in any way
            continue
    return None


FIELDS = ("key", "error_type", "error_message", "attempt")
# How such an error shows itself, compares and takes attributes is not for the kept type to say.
OURS = ("__str__", "__repr__", "__setattr__", "__getattribute__", "__eq__", "__hash__")


def _field(name: str) -> property:
    """A field of ours, under a name that may be the kept type's own."""
    return property(lambda error: error.__dict__[name])


def _unmade(both: type[FailedBefore], plain: FailedBefore) -> FailedBefore | None:
    """An instance that no constructor written in Python has seen."""
    maker: Any = next(
        base for base in both.__mro__ if isinstance(vars(base).get("__new__"), BuiltinMethodType)
    )
    text = plain.args[0]
    # Most ask for nothing; groups of exceptions, and pydantic's own, for a text and a list.
    for asked in ((), (text, [plain]), (text, [])):
        try:
            error: FailedBefore = maker.__new__(both, *asked)
        except TypeError:
            continue
        return error
    return None


def _reduced(error: Any) -> tuple[Any, ...]:
    """How it is pickled: with the kept type, where that can be found by its name."""
    kind, arguments = error.kept_type, [error.__dict__[name] for name in FIELDS]
    found: Any = modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return failed_before, (kind if found is kind else None, *arguments)
