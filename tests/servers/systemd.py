"""systemd's own look at units, which needs no systemd that runs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.running import Unavailable


def binary() -> str:
    """Where it is."""
    found = shutil.which("systemd-analyze")
    if found is None:
        raise Unavailable("there is no systemd-analyze: install your system's systemd")
    return found


@contextmanager
def systemd_analyze() -> Iterator[str]:
    yield binary()
