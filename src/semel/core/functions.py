"""Users' functions: their signatures, results whose work has not run, and failures that are raised again.

From Python 3.14 on, an annotation is evaluated when somebody asks for it. It may name what is imported for
type checking alone, or a class that is defined further down: whoever asks for its value meets a NameError.
"""

import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache, partial
from types import BuiltinMethodType
from typing import TYPE_CHECKING, Any, Final, cast

from semel.errors import FailedBefore, InvalidOption, LazyResult

if TYPE_CHECKING:
    from inspect import Signature


def signature_of(function: Callable[..., Any]) -> "Signature":
    """The signature of a function; in it a `ForwardRef` stands for a name that is not defined."""
    from inspect import signature

    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return signature(function, annotation_format=Format.FORWARDREF)
    return signature(function)


def annotations_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotations of a function; in them a `ForwardRef` stands for a name that is not defined."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(function, format=Format.FORWARDREF)
    found: Mapping[str, Any] = getattr(function, "__annotations__", {})
    return found


# Lazy results

# Most results are of these types, so one look is enough for them.
FINISHED: Final = frozenset({dict, list, str, int, float, bool, tuple, type(None)})


def _empty() -> Any:
    return iter(())


# Every function that contextlib makes shares its code with these two, and every result its class.
_MADE: Final[tuple[Any, ...]] = (contextmanager(_empty), asynccontextmanager(_empty))
_MANAGERS: Final[tuple[type, ...]] = tuple(type(made()) for made in _MADE)
_MANAGER_CODE: Final = frozenset(made.__code__ for made in _MADE)
# Not every iterator: a database cursor is one, and returning it means that its statement was executed.
_LAZY_MODULES: Final = frozenset({"builtins", "itertools"})

LIST: Final = "return list(...) of it"


def check_function(function: Any) -> None:
    """Refuse a function whose calls only make a generator or a context manager."""
    from inspect import isasyncgenfunction, isgeneratorfunction

    while isinstance(function, partial):
        function = function.func
    faces = (function, type(function).__call__)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if any(isgeneratorfunction(face) or isasyncgenfunction(face) for face in faces):
        raise InvalidOption(f"{name} yields many values, and a result is stored as one: return a list")
    if any(getattr(face, "__code__", None) in _MANAGER_CODE for face in faces):
        raise InvalidOption(
            f"{name} returns a context manager, so a call runs nothing: protect a function that enters it"
        )


def refuse_lazy(value: Any, source: str) -> None:
    """Raise `LazyResult` for a result that has not run, and close it so that it never does."""
    kind: Any = type(value)  # and not __class__, which a proxy may have to look up
    if kind not in FINISHED and (found := describe_lazy(kind)) is not None:
        _close(value)
        raise LazyResult(source, *found)


@lru_cache(maxsize=256)
def describe_lazy(kind: Any) -> tuple[str, str] | None:
    """Return what a lazy type is, and what to return instead; None for any other type."""
    if issubclass(kind, Generator):
        return "a generator", LIST
    if issubclass(kind, AsyncGenerator):
        return "an async generator", "return [item async for item in it]"
    if hasattr(kind, "__await__"):
        return f"an awaitable ({kind.__name__})", "await it in an async function, and return the value"
    if issubclass(kind, _MANAGERS):
        return "a context manager", "enter it in the function, and return a value"
    if kind.__module__ in _LAZY_MODULES and hasattr(kind, "__next__"):
        return f"an iterator ({kind.__name__})", LIST
    return None


def _close(value: Any) -> None:
    inner = getattr(value, "gen", value) if isinstance(value, _MANAGERS) else value
    close: Callable[[], object] | None = getattr(inner, "close", None) or getattr(inner, "cancel", None)
    if close is not None:
        with suppress(Exception):  # a generator that had begun may raise anything
            close()


# Failures that were kept, raised again so that the caller's `except` clause sees them as it saw the first


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


FIELDS: Final = ("key", "error_type", "error_message", "attempt")
# How such an error shows itself, compares and takes attributes is not for the kept type to say.
OURS: Final = ("__str__", "__repr__", "__setattr__", "__getattribute__", "__eq__", "__hash__")


@lru_cache(maxsize=256)
def _both(kind: type[Exception]) -> type[FailedBefore] | None:
    """A type that is both; one that nothing may be derived from gives way to its nearest base."""
    names: dict[str, Any] = {name: getattr(BaseException, name) for name in OURS}
    # Fields may have names that are the kept type's own.
    names |= {name: property(lambda error, name=name: error.__dict__[name]) for name in FIELDS}  # type: ignore[misc]
    names |= {"__module__": FailedBefore.__module__, "__reduce__": _reduced, "kept_type": kind}
    for base in kind.__mro__:
        if base is Exception:
            break
        with suppress(Exception):  # a class may refuse to be derived from in any way
            return cast("type[FailedBefore]", type("FailedBefore", (FailedBefore, base), names))
    return None


def _unmade(both: type[FailedBefore], plain: FailedBefore) -> FailedBefore | None:
    """An instance that no constructor written in Python has seen."""
    news = (vars(base).get("__new__") for base in both.__mro__)
    new: Any = next(new for new in news if isinstance(new, BuiltinMethodType))
    # Most ask for nothing; groups of exceptions, and pydantic's own, for a text and a list.
    for asked in ((), (plain.args[0], [plain]), (plain.args[0], [])):
        with suppress(TypeError):
            return cast("FailedBefore", new(both, *asked))
    return None


def _reduced(error: Any) -> tuple[Any, ...]:
    """How it is pickled: with the kept type, where that can be found by its name."""
    kind, arguments = error.kept_type, [error.__dict__[name] for name in FIELDS]
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return failed_before, (kind if found is kind else None, *arguments)
