"""The addresses of a dashboard, taken from the application itself: no test has to be told of a new one."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from starlette.routing import Mount, Route

# What follows the path of a page that shows nothing without it.
QUERIES = {"/key": "?key={key}", "/inbox": "?name={inbox}"}
# They have no page: a stream, and forms that only lead on.
NO_PAGES = ("/live", "/sign-out")


class Address(NamedTuple):
    """Where something can be asked for or sent, and how."""

    method: str
    path: str

    @property
    def leaf(self) -> str:
        """The last part of its path, by which every ledger calls the page."""
        return f"/{self.path.rpartition('/')[2]}"

    def opened(self, **names: str) -> str:
        """It as a browser asks for it, about what has these names."""
        return (self.path + QUERIES.get(self.leaf, "")).format(**names)


def addresses(dashboard: Any) -> Iterator[Address]:
    """Every address of a dashboard and of all ledgers in it, once for each of its methods."""
    yield from _within(dashboard._app.routes, "")


def _within(routes: Iterable[Any], base: str) -> Iterator[Address]:
    for route in routes:
        if isinstance(route, Mount):
            assert route.routes, f"nobody knows what is at {route.path}"
            yield from _within(route.routes, base + route.path)
            continue
        assert isinstance(route, Route), route
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield Address(method, base + route.path)


def pages(dashboard: Any, **names: str) -> list[str]:
    """The pages of a dashboard that a user can open, as a browser asks for them."""
    shown = [one for one in addresses(dashboard) if one.method == "GET" and one.leaf not in NO_PAGES]
    return [one.opened(**names) for one in shown if "/static/" not in one.path]
