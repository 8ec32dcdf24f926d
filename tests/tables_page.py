"""The page of the docs about the tables: `python -m tests.tables_page > docs/reference/tables.md`."""

import sys
from collections.abc import Iterator

from semel.apps.tables import TABLES as SEEDS
from semel.provision.shape import SCALARS, definitions, projection
from semel.tables import OWN, Index, Kind, Table
from semel.tables.mapping import Form, TableMapping, mapped
from semel.tables.powertools import POWERTOOLS

HEADER = """\
# Tables

This page lists every table that semel knows, with its keys, attributes and indexes. Each is defined by one
`Table` value. The requests, the SQL, the templates of [provisioning](../how-to/provision.md) and this page
are made from these values.

In DynamoDB every table also has one item with the key `semel:environment`: the stamp, which names the
environment that the table belongs to. It does not expire.

An index contains the items that have its attributes. In DynamoDB an item that lacks one of them is not in the
index and costs nothing more; an item in the index costs another write.
"""
OWN_HEADING = """
## semel's own

`{env}` is the environment, such as `prod`. The other stores have these tables too, under their own names.
"""
OTHERS_HEADING = """
## Existing tables

semel uses these tables as they are, with their own attribute names, together with the programs that already
use them. If a table is used as the ledger, the last column names the ledger's attribute that is stored there.
"""

MEANINGS = {
    Form.PLAIN: "",
    Form.SECONDS: "whole seconds since the epoch",
    Form.MILLISECONDS: "whole milliseconds since the epoch",
    Form.ISO: "ISO 8601 in UTC",
    Form.JSON: "JSON as text",
}
TYPES = SCALARS | {Kind.FLAG: "BOOL", Kind.OBJECT: "M", Kind.SET: "SS"}


def text() -> str:
    """The page."""
    own = [section(table) for table in OWN]
    others = [section(table) for table in (*SEEDS, POWERTOOLS)]
    return "".join([HEADER, OWN_HEADING, *own, OTHERS_HEADING, *others])


def section(listed: Table) -> str:
    """What there is to say of a table."""
    table = mapped(listed)
    facts = "\n".join(f"| {name} | {value} |" for name, value in _facts(table))
    rows = "\n".join(f"| `{name}` | {kind} | {about} |" for name, kind, about in _attributes(table))
    return (
        f"\n### {table.name}\n\n| | |\n|---|---|\n{facts}\n\n"
        f"| attribute | type | {'' if table.holds is None else table.holds.name} |\n|---|---|---|\n{rows}\n"
    )


def _facts(table: TableMapping) -> Iterator[tuple[str, str]]:
    named = f"; `{table.titled_by}` overrides it" if table.titled_by else ""
    yield "name in DynamoDB", f"`{table.title.replace('{name}', table.name)}`{named}"
    yield "key", ", ".join(f"`{name}` ({TYPES[table.kinds[name]]})" for name in table.key)
    yield "TTL", f"on `{table.ttl}`" if table.ttl else f"none: {table.forever}"
    for index in table.indexes:
        keys = definitions(table, index.key)
        told = ", ".join(f"`{each['AttributeName']}` ({each['AttributeType']})" for each in keys)
        yield f"index `{index.name}`", f"{told}, {_carried(table, index)}"
    for index in table.optional_indexes:
        yield "optional in SQL", f"index `{index.name}`, by `semel provision --with {index.name}`"
    yield (
        "billing",
        "for each request"
        if table.capacity is None
        else "{} reads and {} writes a second".format(*table.capacity),
    )
    if table.recoverable:
        yield "point-in-time recovery", "on"
    if table.tags:
        yield "tags", ", ".join(f"`{key}` = `{value}`" for key, value in table.tags.items())


def _carried(table: Table, index: Index) -> str:
    """What an index gives of its items."""
    made = projection(table, index)
    if made["ProjectionType"] == "ALL":
        return "with all attributes"
    return f"with {', '.join(['the key', *(f'`{name}`' for name in made.get('NonKeyAttributes', ()))])}"


def _attributes(table: TableMapping) -> Iterator[tuple[str, str, str]]:
    """Every attribute that an item may have: the table's own, then those that semel adds."""
    kept = {column.name: attribute for attribute, column in table.columns.items()}
    kinds = dict(table.kinds)
    if table.holds is not None:
        kept[table.partition] = table.holds.partition
        for attribute, kind in table.holds.kinds.items():
            name = table.partition if attribute == table.holds.partition else table.column(attribute).name
            kept.setdefault(name, attribute)
            kinds.setdefault(name, kind)
    if table.ttl:
        kinds.setdefault(table.ttl, Kind.NUMBER)
    for name, kind in kinds.items():
        yield name, _type(table, kept.get(name), kind), _about(table, name, kept.get(name))


def _type(table: TableMapping, attribute: str | None, kind: Kind) -> str:
    form = Form.PLAIN if attribute is None else table.column(attribute).form
    written = {Form.SECONDS: "N", Form.MILLISECONDS: "N", Form.ISO: "S", Form.JSON: "S"}
    return written.get(form, TYPES[kind])


def _about(table: TableMapping, name: str, attribute: str | None) -> str:
    if name in table.copies:
        repeated, form = table.copies[name]
        return f"repeats `{repeated}`, in {MEANINGS[form]}"
    if name in table.parts:
        return f"part {table.parts.index(name) + 1} of the key, between `{table.separator}`"
    if attribute is None:
        return f"`{table.expires}` in {MEANINGS[Form.SECONDS]}" if name == table.ttl != table.expires else ""
    column = table.column(attribute)
    told = [f"`{attribute}`"] if table.holds is not None else []
    told += [MEANINGS[column.form]] if column.form is not Form.PLAIN else []
    told += [f"`{here}` is written `{there}`" for here, there in column.spelled.items()]
    return "; ".join(told)


if __name__ == "__main__":
    sys.stdout.write(text())
