"""The process that semel runs in: forks, random tokens, the worker's name, secrets, optional packages.

Rules import this module, and rules do no I/O: so threads, event loops and the clock are in `clock.py`.
"""

import os
import re
import sys
import weakref
from collections import deque
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NoReturn, Protocol, SupportsIndex

from semel.errors import MissingExtra, UsageError

# Forks


class ForkAware(Protocol):
    """Something with locks, threads or connections, which belong to its process."""

    def reset_after_fork(self) -> Any:
        """In a forked child: drop what is the parent's, and return what must not be closed there."""


class ForkPausing(Protocol):
    """Something that closes everything while its process forks, and continues in the parent."""

    def pause_for_fork(self) -> None:
        """Close everything."""

    def resume_after_fork(self) -> None:
        """Continue, in the parent."""


FORKING: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()
PAUSING: "weakref.WeakSet[ForkPausing]" = weakref.WeakSet()

# What a child inherits is its parent's: to close it would speak on connections, or change selectors, that the
# parent still uses. So it is kept, and never touched.
INHERITED: list[Any] = []
_paused: list[ForkPausing] = []


def _before_fork() -> None:
    for each in list(PAUSING):
        _paused.append(each)
        each.pause_for_fork()


def _after_fork_in_parent() -> None:
    while _paused:
        _paused.pop().resume_after_fork()


def _after_fork_in_child() -> None:
    _paused.clear()
    forget_tokens()
    worker_name.cache_clear()
    INHERITED.extend([each.reset_after_fork() for each in list(FORKING)])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )


# Tokens and names

# Randomness in stock: asking the system for every token takes longer than claiming a key in memory does.
_stock: deque[str] = deque()
# A name is for a person to read; what is longer was not meant for one.
LONGEST_NAME = 120


def random_token() -> str:
    """Return a name for one attempt that is unique and cannot be guessed; never made from the time."""
    try:
        return _stock.popleft()
    except IndexError:
        first, *others = os.urandom(16 * 256).hex(" ", 16).split(" ")
        _stock.extend(others)
        return first


def forget_tokens() -> None:
    """Draw new randomness from now on: two copies of a process must not have the same tokens."""
    _stock.clear()


# Asked at every claim: the system takes longer to answer than a claim takes.
@lru_cache(maxsize=1024)
def worker_name(given: str, task: str) -> str:
    """Return the name of a worker: the given one, or its host and process, and the task it works on."""
    name = given or process_name()
    return (f"{name} {task}" if task else name)[:LONGEST_NAME]


def process_name() -> str:
    """Return the host and the number of this process."""
    from platform import node

    return f"{node() or 'unknown'}:{os.getpid()}"


# Secrets

_OPTION: Final = re.compile(r"((?:password|secret|token|key)=)[^&\s]*", re.IGNORECASE)


class Concealed:
    """A base for what holds secrets: it is shown without its values, and never pickled."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self, /) -> list[tuple[str, Any]]:
        """Show nothing where rich shows fields, as in its tracebacks."""
        return []

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds secrets and cannot be pickled")


def masked(url: str) -> str:
    """Return a URL as an error may show it."""
    # Up to the last @: a password may have any character that nobody escaped.
    head, at, tail = url.rpartition("@")
    shown = f"{head.partition(':')[0]}:***@{tail}" if at else url
    return _OPTION.sub(r"\1***", shown)


# Python itself


def require(module: str, extra: str) -> ModuleType:
    """Import a module that an extra brings."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but lacks something of its own is broken, not absent.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingExtra(extra, error.name) from error


@cache
def check_interpreter() -> None:
    """Refuse a subinterpreter: it may not start threads, or cannot end while one of semel's runs."""
    try:
        interpreters = import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    except ImportError:  # this Python has none
        return
    if interpreters.get_current() != interpreters.get_main():
        raise UsageError(
            "semel does not work in a subinterpreter, which cannot run its threads: use the main "
            "interpreter, or a process (mod_wsgi: WSGIApplicationGroup %{GLOBAL}; uWSGI: single-interpreter)"
        )
