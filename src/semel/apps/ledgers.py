"""Which ledger an application has: one answer for the service, its functions on Lambda, and every command.

In DynamoDB an application may have a table of its own for its ledger, which its class names as
`ledger_table`.
Everywhere else, and for every other application, the store is shared, and each has a scope of its name.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

import semel
from semel.apps.keyfile import StoreSecrets
from semel.apps.sections import StoreSection
from semel.connect import Semel
from semel.core.codecs import Encryption
from semel.core.runtime import Concealed
from semel.tables import INBOX, LEDGER, OWN, Table
from semel.tables.mapping import Form, asked, mapped


class Binding(Concealed, msgspec.Struct, frozen=True, kw_only=True):
    """Which store, environment, scope and keys a ledger is opened with."""

    url: str
    env: str = "dev"
    scope: str = ""
    secret: bytes | None = None
    encryption: Encryption | None = None

    def __repr__(self) -> str:  # a URL may have a password, and a secret is one
        return f"<binding to env {self.env!r}, scope {self.scope!r}>"

    def open(self, **options: Any) -> Semel:
        """Open it; further options are those of `connect`."""
        chosen = {"env": self.env, "scope": self.scope, "secret": self.secret, "encryption": self.encryption}
        return semel.connect(self.url, **chosen | options)


def binding(
    app: str, store: StoreSection, secrets: StoreSecrets, section: Mapping[str, Any] = MappingProxyType({})
) -> Binding:
    """What the ledger of an application is opened with; without a name, what the store itself is.

    `section` is what was set for the application, which may name its tables.
    """
    url = url_of(app, store.url, section)
    # What others read as JSON in a table of theirs is not encrypted: they could not read it.
    plain = mapped(ledger_at(url)).column("result").form is Form.JSON
    return Binding(
        url=url,
        env=store.env,
        scope=app if _own_ledger(app, store.url, section) is None else "",
        secret=secrets.secret,
        encryption=None if plain else secrets.encryption,
    )


def url_of(app: str, url: str, section: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The URL of an application's store: in DynamoDB it names the tables that are not semel's own."""
    url = _with_ledger(url, _own_ledger(app, url, section))
    if not section.get("tables"):
        return url
    # Only where it is needed: a function's cold start has better things to do.
    from semel.apps.titles import located

    return located(url, app, section)


def _with_ledger(url: str, table: Table | None) -> str:
    """A URL of DynamoDB that names this table as the ledger."""
    if table is None or ledger_at(url).name == table.name:
        return url
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True)) | {"layout": table.name}
    if table is LEDGER:
        del query["layout"]
    # By the table's own name, which is not the one in the URL. Written out, since urlunsplit leaves the
    # slashes away where there is no region.
    return f"dynamodb://{parts.netloc}" + (f"?{urlencode(query)}" if query else "")


def _own_ledger(app: str, url: str, section: Mapping[str, Any]) -> Table | None:
    """The table that is only this application's ledger; None where it shares the store's."""
    if not app or not in_dynamodb(url):
        return None
    # Only where it is needed: in other stores a command need not import the application.
    from semel.apps.registry import own_ledger

    return own_ledger(app, section)


def ledger_at(url: str) -> Table:
    """The table that is the ledger of a store."""
    if not in_dynamodb(url):
        return LEDGER
    from semel.stores.dynamodb.address import parse

    # The ledger's comes last; a URL may name other tables too.
    named = [table for table in parse(url).tables if asked(table).name == LEDGER.name]
    return named[-1] if named else LEDGER


def in_dynamodb(url: str) -> bool:
    """Whether a URL names DynamoDB, where tables may be others than semel's own."""
    return url.startswith("dynamodb:")


# Tables


def tables_of(
    app: str, url: str, section: Mapping[str, Any] = MappingProxyType({}), *, queued: bool
) -> tuple[Table, ...]:
    """Every table that an application has under a URL; one that is not semel's own may use any of ours.

    What waits for it stands in the inbox, unless it is `queued` elsewhere, or nothing ever waits.
    """
    from semel.apps.registry import is_known
    from semel.apps.titles import deployed, deploys

    if not is_known(app, section) or not deploys(app, section):
        return at(url, OWN)
    known = deployed(app, section)
    waits = known.queue is not None and not queued
    return at(url_of(app, url, section), (*known.tables, INBOX) if waits else known.tables)


def at(url: str, tables: Iterable[Table]) -> tuple[Table, ...]:
    """Tables as a store has them: only in DynamoDB may another stand for the ledger, as the URL may say."""
    if not in_dynamodb(url):
        return tuple(dict.fromkeys(map(asked, tables)))
    from semel.stores.dynamodb.address import parse

    ledger, named = ledger_at(url), {table.name: table for table in parse(url).tables}

    def kept(table: Table) -> Table:
        return ledger if table is LEDGER or table.name == ledger.name else named.get(table.name, table)

    return tuple(dict.fromkeys(map(kept, tables)))
