"""An overflow store in a directory, for results that are too large for a row."""

import os
import re
import time
from contextlib import suppress
from functools import partial

from semel.errors import UsageError


class FileOverflow:
    """One file for each result.

    A file is complete or absent: it is written under another name and then renamed. File names are
    hashes, so they show no key and lead nowhere else.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = os.fspath(directory)
        os.makedirs(self._directory, mode=0o700, exist_ok=True)

    def put(self, name: str, data: bytes) -> str:
        """Write the bytes to a new file."""
        from hashlib import sha256

        ref = f"{sha256(name.encode()).hexdigest()[:32]}-{os.urandom(16).hex()}"
        path = self._path(ref)
        unfinished = f"{path}.unfinished"
        try:
            _write(unfinished, data)
            os.replace(unfinished, path)
        except BaseException:
            _remove(unfinished)
            raise
        self._sync_directory()
        return ref

    def get(self, ref: str) -> bytes:
        """Read the bytes of a file."""
        with open(self._path(ref), "rb") as file:
            return file.read()

    def delete(self, ref: str) -> None:
        """Remove a file."""
        _remove(self._path(ref))

    def reap(self, older_than: float) -> int:
        """Remove files not written for so many seconds, such as the longest `ttl`; how many there were.

        A record that expires leaves its file behind, since nobody is told when it does.
        """
        end = time.time() - older_than
        with os.scandir(self._directory) as files:
            old = [file.path for file in files if file.stat().st_mtime < end]
        for path in old:
            _remove(path)
        return len(old)

    def _path(self, ref: str) -> str:
        if not re.fullmatch(r"[0-9a-f]{32}-[0-9a-f]{32}", ref):
            raise UsageError(f"{ref[:80]!r} is not a reference that this overflow store gave out")
        return os.path.join(self._directory, ref)

    def _sync_directory(self) -> None:
        # A rename is durable once its directory is. Windows cannot open directories, and needs it not.
        if os.name == "posix":
            handle = os.open(self._directory, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _write(path: str, data: bytes) -> None:
    # Nobody else may read a result, and no file that is there already is written to.
    with open(path, "xb", opener=partial(os.open, mode=0o600)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.remove(path)
