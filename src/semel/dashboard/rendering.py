"""Templates, and how values read in them; what comes from outside is text, and never markup."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from semel.core.events import digest
from semel.core.ledger import is_running
from semel.core.policy import DAY, SETTLED
from semel.dashboard.figures import took
from semel.ops.actions import STARTS
from semel.ops.story import moment, span

# What each file of `static` is sent as.
ASSETS: Final = {
    "style.css": "text/css; charset=utf-8",
    "script.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

STATUS_TITLES: Final = {
    "IN_PROGRESS": "in progress",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "UNKNOWN": "unknown",
    "RELEASED": "released",
}

# What each action does, in words for whoever chooses.
ACTION_HELP: Final = {
    "release": ("Release", "It did not happen. The next call runs it."),
    "complete": ("Complete", "It happened. Later calls are given the result below, and nothing runs."),
    "fail": ("Fail", "Give it up. Later calls are given the failure, with your reason."),
    "drop": ("Drop the result", "The fact stays and nothing runs again; the result is gone for good."),
    "forget": ("Forget", "Remove the record. The next call is the first, and its effect may happen twice."),
}


@cache
def templates() -> Environment:
    """The templates, which escape whatever is put into them."""
    env = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {"visible": visible, "short": short, "moment": moment, "span": span, "query": urlencode}
    env.filters |= {"count": lambda number: f"{number:,}", "digest": digest, "pretty": pretty}
    env.globals |= {"version": assets_version(), "status_titles": STATUS_TITLES, "help": ACTION_HELP}
    env.globals |= {"running": is_running, "starts": STARTS, "took": took, "least_days": round(SETTLED / DAY)}
    return env


@cache
def asset(name: str) -> bytes:
    """A file that pages need."""
    return (files(__package__) / "static" / name).read_bytes()


@cache
def assets_version() -> str:
    """Another one whenever a file has changed, so that a browser may keep the old one."""
    return hashlib.sha256(b"".join(map(asset, ASSETS))).hexdigest()[:12]


def visible(text: Any) -> str:
    """A text with what cannot be seen, or would turn the direction of reading, written out."""
    return "".join(one if one.isprintable() or one == "\n" else _code(one) for one in str(text))


def short(text: Any, length: int = 120) -> str:
    """The beginning and the end of a long text."""
    shown = visible(text)
    return shown if len(shown) <= length else f"{shown[: length - 20]}\u2026{shown[-19:]}"


def pretty(value: Any) -> str:
    """A result as people read it."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _code(character: str) -> str:
    return f"\\u{ord(character):04x}"
