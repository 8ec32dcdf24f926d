"""The URL of a store: `dynamodb://REGION/TITLE?option=value`, of which all but the scheme may be left out."""

from collections.abc import Mapping
from typing import Any, get_args
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import msgspec

from semel.core.clock import ANSWER_SECONDS, timeout_of
from semel.core.runtime import masked
from semel.errors import InvalidOption
from semel.stores.dynamodb.items import is_title
from semel.stores.dynamodb.steps import ReadFirst
from semel.tables import LEDGER, Table, known
from semel.tables.mapping import asked

EXAMPLE = "dynamodb://eu-north-1/my-table?endpoint=http://127.0.0.1:8000"

TRANSPORTS = ("wire", "botocore")


class DynamoAddress(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL says."""

    region: str | None = None
    endpoint: str | None = None
    tables: tuple[Table, ...] = ()
    read_first: ReadFirst = "no"
    margin: float | None = None
    timeout: float = ANSWER_SECONDS
    overflow: tuple[str, str] | None = None
    """A bucket of S3, and what its objects' names begin with."""
    botocore: bool = False
    profile: str | None = None


def parse(url: str) -> DynamoAddress:
    """A URL in its parts."""
    parts = urlsplit(url)
    if parts.scheme != "dynamodb" or parts.fragment or (parts.path and not url.startswith("dynamodb://")):
        raise _wrong(url, f"it has another form: {EXAMPLE}")
    if parts.username is not None or parts.password is not None:
        hidden = url.replace(parts.netloc, "***", 1)
        raise _wrong(hidden, "credentials come from the environment or a profile")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := options.keys() - OPTIONS:
        raise _wrong(url, f"there is no option {min(unknown)!r}; there are {', '.join(OPTIONS)}")
    profile = options.get("profile")
    return DynamoAddress(
        region=parts.netloc or None,
        endpoint=options.get("endpoint"),
        tables=_tables(url, unquote(parts.path.strip("/")), options),
        read_first=_word(url, options, "read_first", get_args(ReadFirst)),
        margin=_margin(url, options["margin"]) if "margin" in options else None,
        timeout=timeout_of(options.get("timeout")),
        overflow=_bucket(url, options["overflow"]) if "overflow" in options else None,
        # A profile takes botocore to read, which then may as well do the rest.
        botocore=_word(url, options, "transport", TRANSPORTS) == "botocore" or profile is not None,
        profile=profile,
    )


OPTIONS = (
    *("endpoint", "layout", "tables", "read_first", "margin", "timeout"),
    *("overflow", "transport", "profile"),
)


def _wrong(url: str, why: str) -> InvalidOption:
    return InvalidOption(f"{masked(url)!r}: {why}")


def _word(url: str, options: Mapping[str, str], option: str, words: tuple[str, ...]) -> Any:
    word = options.get(option, words[0])
    if word not in words:
        raise _wrong(url, f"{option}={word!r}: it is one of {', '.join(words)}")
    return word


def with_titles(url: str, titles: Mapping[str, str]) -> str:
    """The URL of a store of whose tables these, by semel's name for each, have another name."""
    if not titles:
        return url
    address, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = {**_titles(url, options), **titles}
    options["tables"] = ",".join(f"{name}:{title}" for name, title in known.items())
    return f"{address}?{urlencode(options)}"


def _titles(url: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the names that the option `tables` gives: `journal:my-journal,household-messages:homeops`."""
    pairs = [pair.partition(":") for pair in options.get("tables", "").split(",") if pair]
    return {_known(url, "tables", name).name: title for name, _, title in pairs}


def _known(url: str, option: str, name: str) -> Table:
    """Return the table of a name, which as `layout` has to be one that holds the ledger."""
    tables = {table.name: table for table in known() if option == "tables" or _is_layout(table)}
    if name not in tables:
        raise _wrong(url, f"{option}={name!r}: it is one of {', '.join(tables)}")
    return tables[name]


def _is_layout(table: Table) -> bool:
    return table is not LEDGER and asked(table) is LEDGER


def _tables(url: str, title: str, options: Mapping[str, str]) -> tuple[Table, ...]:
    """Return the tables that a URL names; the ledger's comes last, and is used where two would be it."""
    layout, titles = options.get("layout"), _titles(url, options)
    ledger = LEDGER if layout is None else _known(url, "layout", layout)
    title = titles.pop(ledger.name, "") or title
    tables = {name: _known(url, "tables", name) for name in titles}
    if others := sorted(name for name, one in tables.items() if _is_layout(one)):
        raise _wrong(url, f"tables={others[0]}: the ledger is not kept in that one; add layout={others[0]}")
    named = [_titled(url, tables[name], one) for name, one in titles.items()]
    if title or layout is not None:
        named.append(_titled(url, ledger, title) if title else ledger)
    return tuple(named)


def _titled(url: str, table: Table, title: str) -> Table:
    if not is_title(title):
        raise _wrong(url, f"{title!r} cannot name a table: 3 to 255 of A-Z a-z 0-9 _ . -")
    return table.titled(title)


def _margin(url: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _wrong(url, f"margin={text!r}: it is a number of seconds, such as 0.5") from None


def _bucket(url: str, overflow: str) -> tuple[str, str]:
    parts = urlsplit(overflow)
    if parts.scheme != "s3" or not parts.netloc:
        raise _wrong(url, f"overflow={overflow!r}: it is a bucket of S3, such as s3://bucket/prefix/")
    return parts.netloc, parts.path.lstrip("/") or "semel/"
