"""Reading what other systems send: what stands at a path, moments, and texts that were cut in two."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any


def value_at(payload: Any, path: str) -> Any:
    """What stands at a path such as `body.contact.id`, or `tags.0`; None where nothing does."""
    found = payload
    for name in _names(path):
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


@lru_cache(maxsize=1024)
def _names(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def seconds_of(text: str) -> float:
    """The moment that an ISO 8601 text names; one that tells no zone means UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def mended(text: str) -> str:
    """A text whose halves of characters, which can be neither kept nor sent, are replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
