"""Creates tables from `Table` values: directly, or as templates for other tools.

shape     the description of a table, and the requests that make it in DynamoDB
dynamodb  tables as they are found, what differs, and what mends it
builders  the same for the store of any URL
iam       the least that each role may do
formats   the description as text: CloudFormation, SAM, Terraform, CDK
cost      what a month of events costs, by the prices in `semel.stores.dynamodb`
"""

from collections.abc import Iterable
from typing import Final

from semel.errors import InvalidOption
from semel.tables import OWN, Table
from semel.tables.powertools import POWERTOOLS
from semel.tables.seeds import TABLES as SEEDS

__all__ = ["KNOWN", "OWN", "named"]

KNOWN: Final = {table.name: table for table in (*OWN, *SEEDS, POWERTOOLS)}
"""The tables that can be made by their names: semel's own, those of the applications, and Powertools'."""


def named(names: Iterable[str]) -> tuple[Table, ...]:
    """The tables of these names; semel's own where none is named."""
    chosen = dict.fromkeys(names)
    unknown = [name for name in chosen if name not in KNOWN]
    if unknown:
        raise InvalidOption(f"there is no table {unknown[0]!r}; known are {', '.join(KNOWN)}")
    return tuple(KNOWN[name] for name in chosen) or OWN
