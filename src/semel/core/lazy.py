"""Lazy results: generators, awaitables and other values whose work runs only when they are used."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final

from semel.errors import InvalidOption, LazyResult

# Most results are of these types, so one look is enough for them.
_FINISHED: Final = frozenset({dict, list, str, int, float, bool, tuple, type(None)})


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
    if type(value) in _FINISHED:
        return
    found = _describe(value)
    if found is not None:
        _close(value)
        raise LazyResult(source, *found)


def _describe(value: Any) -> tuple[str, str] | None:
    """What a lazy value is, and what to return instead; None for any other value."""
    kind = type(value)  # and not __class__, which a proxy may have to look up
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
