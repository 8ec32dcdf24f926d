"""Secrets: what holds them is shown without its values and is never pickled, and URLs without passwords."""

import re
from typing import Any, Final, NoReturn, SupportsIndex

_OPTION: Final = re.compile(r"((?:password|secret|token|key)=)[^&\s]*", re.IGNORECASE)


class Concealed:
    """A base for what holds secrets."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self, /) -> list[tuple[str, Any]]:
        """Show nothing where rich shows fields, as in its tracebacks."""
        return []

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds secrets and cannot be pickled")


def masked(url: str) -> str:
    """A URL as an error may show it."""
    # Up to the last @: a password may have any character that nobody escaped.
    head, at, tail = url.rpartition("@")
    shown = f"{head.partition(':')[0]}:***@{tail}" if at else url
    return _OPTION.sub(r"\1***", shown)
