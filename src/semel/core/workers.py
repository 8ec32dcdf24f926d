"""Who is at work: the name that a record keeps of whoever holds it."""

import os
from functools import lru_cache

# A name is for a person to read; what is longer was not meant for one.
LONGEST_NAME = 120


# Asked at every claim: the system takes longer to answer than a claim takes.
@lru_cache(maxsize=1024)
def worker_name(given: str, task: str) -> str:
    """The name of a worker: the one it was given, or its host and process, and what it is at work on."""
    name = given or process_name()
    return (f"{name} {task}" if task else name)[:LONGEST_NAME]


def process_name() -> str:
    """The host and the number of this process."""
    from platform import node

    return f"{node() or 'unknown'}:{os.getpid()}"


if hasattr(os, "register_at_fork"):
    # A copy of the process has another number.
    os.register_at_fork(after_in_child=worker_name.cache_clear)
