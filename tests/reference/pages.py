"""The pages of all public names: which modules each is about, and what it says of each name."""

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from tests.reference.source import Place, docstring, find, parsed, public, said
from tests.reference.stubs import laid_out, written
from tests.seeds import ROOT

FOLDER = ROOT / "docs" / "reference" / "names"
MADE = (
    "This page is made from the source by `python -m tests.reference`. A type that no page lists is one of "
    "the standard library, or of the framework that a door is for."
)


class Page(NamedTuple):
    """A page: its title, what it is about, and its modules, with some of their names or, for none, all."""

    title: str
    about: str
    modules: dict[str, tuple[str, ...]]


ALL: tuple[str, ...] = ()
DOORS = (
    *("http", "asgi", "wsgi", "fastapi", "litestar", "flask", "django", "drf"),
    *("webhooks", "inbox", "aws_lambda"),
    *("queues", "sqs", "amqp1", "rabbitmq", "aio_pika", "pubsub", "kafka"),
    *("celery", "dramatiq", "taskiq", "mcp"),
)
STATE = {
    "semel.state": (
        *("Documents", "AsyncDocuments", "Journal", "AsyncJournal", "Counters", "AsyncCounters"),
        *("Switches", "AsyncSwitches", "Mailbox", "AsyncMailbox"),
    ),
    "semel.state.documents": ("Document",),
    "semel.state.journal": ("Book", "Entries", "Entry"),
    "semel.state.counters": ("Charged", "Tally"),
    "semel.state.switches": ("Switch",),
    "semel.state.mailbox": ("Letter",),
    "semel.state.erasure": ("Erasure",),
    "semel.state.transaction": (
        *("Transaction", "Pending"),
        *("GatheredLedger", "GatheredDocuments", "GatheredJournal", "GatheredCounters"),
    ),
}

PAGES = {
    "semel.md": Page(
        "Names of semel",
        "What `import semel` gives; the errors are in `semel.errors` too. [API](../api.md) explains these "
        "names, and [Errors](../errors.md) shows the tree of errors.",
        {"semel": ALL},
    ),
    "state.md": Page(
        "Names of the state that decides",
        "Documents, the journal, counters, switches, mailboxes, the gate and its rules, periods, redaction "
        "and tables. [API](../api.md#documents) explains them, and [Tables](../tables.md) lists the tables "
        "with their attributes.",
        STATE
        | dict.fromkeys(
            ("semel.gate", "semel.periods", "semel.redact", "semel.tables", "semel.tables.mapping"), ALL
        ),
    ),
    "doors.md": Page(
        "Names of the doors",
        "Adapters for HTTP frameworks, webhooks, AWS Lambda, queues and task queues. [Doors](../doors.md) "
        "explains them.",
        {f"semel.doors.{door}": ALL for door in DOORS} | {"semel.doors.http.publish": ("describe",)},
    ),
    "operating.md": Page(
        "Names for operating",
        "Questions and actions of whoever runs a ledger, the dashboard, tables as infrastructure, and "
        "listeners for events. See also the [HTTP API](../http-api.md), the [settings of the "
        "service](../settings.md) and the [command line](../cli.md).",
        dict.fromkeys(("semel.ops", "semel.dashboard", "semel.provision", "semel.telemetry"), ALL),
    ),
    "building.md": Page(
        "Names for applications and tests",
        "What an application of the service has, and tools for tests.",
        dict.fromkeys(("semel.apps", "semel.testing"), ALL),
    ),
}


def entries(page: Page) -> Iterator[tuple[str, str, Place]]:
    """The names of a page, each with its module and the place of its definition."""
    for module, names in page.modules.items():
        for name in names or public(module):
            place = find(module, name)
            assert place is not None, f"{module}.{name} is not in the source"
            yield module, name, place


def filled(words: str) -> str:
    return textwrap.fill(words, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def text(page: Page) -> str:
    """A page, as it is written."""
    found = list(entries(page))
    known = {name for each in PAGES.values() for _, name, _ in entries(each)}
    stubs = laid_out([written(place, known) for _, _, place in found])
    pieces, last = [f"# {page.title}\n", filled(page.about), filled(MADE)], ""
    for (module, name, place), shown in zip(found, stubs, strict=True):
        if module != last:
            about = docstring(parsed(module)).split("\n\n")[0]
            pieces.append(f"## `{module}`\n\n{about}\n")
        pieces.append(f"### `{name}`\n\n{said(place)}\n\n```pyi\n{shown}\n```\n")
        last = module
    return "\n".join(pieces)
