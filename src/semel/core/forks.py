"""What a forked child begins anew: the locks, threads and connections that it has are its parent's."""

import os
import weakref
from typing import Any, Protocol


class ForkAware(Protocol):
    """Something with locks, threads or connections, which are its process's own."""

    def reset_after_fork(self) -> Any:
        """In a forked child: have nothing of the parent's; what must not be closed there is given back."""
        ...


FORKING: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()

# What a child inherits is its parent's: to close it would speak on connections, or change selectors, that the
# parent still uses. So it is kept, and never touched.
INHERITED: list[Any] = []


def _after_fork_in_child() -> None:
    INHERITED.extend([each.reset_after_fork() for each in list(FORKING)])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
