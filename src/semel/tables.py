"""A table is data: its name, its keys, its attributes, and the attribute that ends an item's life."""

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """What an attribute holds."""

    TEXT = "text"
    NUMBER = "number"
    BYTES = "bytes"


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table that stores keep; from this one value come their statements and definitions."""

    name: str
    partition: str
    sort: str | None = None
    attributes: dict[str, Kind]
    expires: str
    indexes: tuple[tuple[str, ...], ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def key(self) -> tuple[str, ...]:
        """The attributes that name an item."""
        return (self.partition,) if self.sort is None else (self.partition, self.sort)


LEDGER = Table(
    name="ledger",
    partition="id",
    attributes={
        "status": Kind.TEXT,
        "token": Kind.TEXT,
        "attempt": Kind.NUMBER,
        "fingerprint": Kind.TEXT,
        "created_at": Kind.NUMBER,
        "updated_at": Kind.NUMBER,
        "lease_until": Kind.NUMBER,
        "expires_at": Kind.NUMBER,
        "result": Kind.BYTES,
        "encoding": Kind.TEXT,
        "error": Kind.TEXT,
        "version": Kind.NUMBER,
    },
    expires="expires_at",
    indexes=(("status",),),
)
