"""The Lua scripts: each in a file of its own, and known to a server by its digest."""

import hashlib
from importlib import resources

import msgspec


class Script(msgspec.Struct, frozen=True):
    """A script's text, and the digest by which a server that has seen it knows it."""

    text: bytes
    digest: bytes


def _script(name: str) -> Script:
    text = resources.files(__package__).joinpath(f"{name}.lua").read_bytes()
    # Redis names scripts so; nothing is kept secret by it.
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


DOUBT = _script("doubt")
INDEX = _script("index")
OPEN = _script("open")
PAGE = _script("page")
READ = _script("read")
WRITE = _script("write")
