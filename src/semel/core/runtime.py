"""What semel needs of the Python that it runs in: the main interpreter, and asyncio for async code."""

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from semel.errors import UsageError

if TYPE_CHECKING:
    import asyncio


def running_loop() -> "asyncio.AbstractEventLoop":
    """Return the running event loop of asyncio, or raise a `UsageError` that names what runs instead."""
    from asyncio import get_running_loop

    try:
        return get_running_loop()
    except RuntimeError:
        library = _async_library()
    where = f"this code runs under {library}" if library else "no event loop of asyncio runs here"
    remedy = f"{library}.to_thread.run_sync" if library == "trio" else "a thread"
    raise UsageError(
        f"async calls of semel need asyncio, and {where}: call the sync methods in {remedy}, or run this "
        "code with asyncio"
    )


def _async_library() -> str:
    """The name of the async library that runs this code, such as "trio"; "" where that is unknown."""
    sniffio: Any = sys.modules.get("sniffio")
    try:
        name: str = sniffio.current_async_library()
    except Exception:  # noqa: BLE001 - there is no sniffio, or it does not know
        return ""
    return "" if name == "asyncio" else name


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
