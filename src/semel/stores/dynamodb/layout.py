"""How items of one table look in DynamoDB: names, forms, keys, and what is repeated beside them."""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from semel.core.commands import After, Item, Sort
from semel.core.keys import prefix
from semel.errors import InvalidOption, UsageError
from semel.stores.dynamodb.time import ClockReading
from semel.stores.dynamodb.values import (
    COMPARED,
    ENCODE,
    FORMED,
    READ,
    Encode,
    Value,
    body,
    body_value,
    plain,
    restored,
    text_value,
)
from semel.tables import FOREVER, Column, Form, Kind, Table

# The item that says which environment a table belongs to; no key of a caller begins so.
STAMP = "semel:environment"
STAMP_SORT = "semel"
# The version of the layout that this release writes.
SCHEMA = 1
# Who held a record and what came before: other people's tables have no place for it.
HISTORY = frozenset({"worker", "began_at", "history"})

# How a body was made is told by this attribute, which is written together with it.
ENCODING = "encoding"
# Powertools' hash of a payload is an MD5, and nobody can compare it with a SHA-256.
FINGERPRINT, TOKEN = "fingerprint", "token"
MD5_DIGITS = 32

TITLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")


def is_title(text: str) -> bool:
    """Whether a text can name a table in DynamoDB; in it `{env}` stands for the environment."""
    return TITLE.fullmatch(text.replace("{env}", "env")) is not None


def title(table: Table, env: str, environ: Mapping[str, str] = os.environ) -> str:
    """A table's name in DynamoDB."""
    name = environ.get(table.titled_by, "") if table.titled_by else ""
    name = name or table.title.format(env=env, name=table.name)
    if not TITLE.fullmatch(name):
        raise InvalidOption(
            f"{name!r} cannot name a table in DynamoDB: it takes 3 to 255 of A-Z a-z 0-9 _ . -; "
            f"choose another environment than {env!r}, or another {table.titled_by or 'title'}"
        )
    return name


class Field:
    """One attribute: its name in the table, and how its values are written there."""

    __slots__ = ("_read", "attribute", "default", "encode", "form", "kind", "name", "shadows", "spelled")

    def __init__(self, attribute: str, kind: Kind, column: Column) -> None:
        self.attribute: str = attribute
        self.name: str = column.name
        self.kind: Kind = kind
        self.form: Form = column.form
        self.default: Any = column.default
        self.encode: Encode = FORMED.get(column.form) or ENCODE[kind]
        if spelled := column.spelled:
            self.encode = lambda value: text_value(spelled.get(value, value))
        self.spelled: dict[str, str] = {there: here for here, there in spelled.items()}
        self._read = READ.get(column.form) or (restored if kind is Kind.OBJECT else None)
        self.shadows: tuple[tuple[str, Encode], ...] = ()
        """Attributes that repeat this one: DynamoDB's own end of an item, and copies in other forms."""

    def write(self, value: Any) -> Value:
        """A value as it is written."""
        try:
            return self.encode(value)
        except TypeError:
            raise UsageError(f"{self.attribute!r} holds {self.kind}, not {type(value).__name__}") from None

    def read(self, value: Value) -> Any:
        """A value as it is meant; one that cannot be read so is given as it is, to be found fault with."""
        content = plain(value)
        if self._read is not None:
            try:
                return self._read(content)
            except (TypeError, ValueError):
                return content
        return self.spelled.get(content, content) if self.spelled else content

    def compared(self) -> Encode:
        """How a moment or a number is written that values of this attribute are compared with."""
        if self.kind is not Kind.NUMBER or self.form not in COMPARED:
            raise UsageError(f"{self.attribute!r} is written as text here, and is not compared with numbers")
        return COMPARED[self.form]


class DynamoLayout:
    """Where a table of the rules is kept: `asked` by the rules, `kept` in DynamoDB."""

    def __init__(self, asked: Table, kept: Table, env: str) -> None:
        self.asked = asked
        self.kept = kept
        self.title: str = title(kept, env)
        # Its owner asks for a table as it is, though another one is kept in it.
        direct = kept.holds is not None and asked.name == kept.name
        # What others write in it knows nothing of the table that is asked for.
        self.shared: bool = kept.holds is not None and not direct
        self._prefix = prefix(env, "") if kept.bare_keys and not direct else ""
        self._env = env
        columns = _ends(kept) if direct else kept.columns
        self.fields: dict[str, Field] = {
            attribute: Field(attribute, kind, self._column(attribute, columns))
            for attribute, kind in asked.kinds.items()
        }
        self._comparable = self._column(FINGERPRINT, columns).comparable
        self.partition: Field = self.fields[asked.partition]
        self.sort: Field | None = None if asked.sort is None else self.fields[asked.sort]
        self.expires: Field = self.fields[asked.expires]
        for attribute, field in self.fields.items():
            field.shadows = tuple(self._shadows(attribute, field))
        self._parts = tuple(enumerate(kept.parts))
        self._fixed = {name: _fixed(value) for name, value in kept.fixed.items()}
        self._keys = {self.partition.attribute, None if self.sort is None else self.sort.attribute}
        self._read = {
            field.name: field for field in self.fields.values() if field.attribute not in self._keys
        }
        spread = {} if direct else kept.spread
        self._spread = {
            attribute: [Field(name, kept.attributes[name], Column(name=name)) for name in names]
            for attribute, names in spread.items()
        }
        self._gathered = {
            field.name: (whole, field) for whole, parts in self._spread.items() for field in parts
        }
        # Those who had the table first do not find in it what they have no use for.
        self._left_out = HISTORY - kept.columns.keys() if self.shared else frozenset()
        self._defaults = [field for field in self._read.values() if field.default is not None]
        self.bodies: list[Field] = [field for field in self._read.values() if field.form is Form.JSON]

    def _column(self, attribute: str, columns: Mapping[str, Column]) -> Column:
        for ours, theirs in ((self.asked.partition, self.kept.partition), (self.asked.sort, self.kept.sort)):
            if attribute == ours and theirs is not None:
                return Column(name=theirs)
        return columns.get(attribute) or Column(name=attribute)

    def _shadows(self, attribute: str, field: Field) -> Any:
        if attribute == self.asked.expires and self.kept.ttl not in ("", field.name):
            yield self.kept.ttl, FORMED[Form.SECONDS]
        for name, (repeated, form) in self.kept.copies.items():
            if repeated == attribute:
                yield name, FORMED[form]

    def spreads(self, attribute: str) -> bool:
        """Whether the fields of this attribute are attributes of their own."""
        return attribute in self._spread

    # Keys

    def key(self, key: str, sort: Sort) -> dict[str, Value]:
        """What names an item."""
        named = {self.partition.name: self.partition.write(self.bare(key))}
        if self.sort is not None:
            named[self.sort.name] = self.sort.write(sort)
        return named

    def bare(self, key: Any) -> Any:
        """A key as it stands in the table."""
        if not self._prefix:
            return key
        if not isinstance(key, str) or not key.startswith(self._prefix):
            raise UsageError(
                f"{self.title} keeps keys as they stand, so it serves environment {self._env!r} without a "
                f"scope, and not {key!r}: give other environments and scopes a table of their own"
            )
        return key[len(self._prefix) :]

    def bare_beginning(self, beginning: str) -> str:
        """The beginning of a key as it stands in the table."""
        return "" if self._prefix.startswith(beginning) else self.bare(beginning)

    def stamp_key(self) -> dict[str, Value]:
        """Where the stamp is that says which environment the table belongs to."""
        named: dict[str, Value] = {self.partition.name: {"S": STAMP}}
        if self.sort is not None:
            named[self.sort.name] = {"N": "0"} if self.sort.kind is Kind.NUMBER else {"S": STAMP_SORT}
        return named

    # Writing

    def item(self, key: str, sort: Sort, item: Item, reading: ClockReading) -> dict[str, Value]:
        """A whole item."""
        if item.get(self.asked.expires) is None and not self.asked.forever:
            raise self.endless()
        written = self.key(key, sort)
        for name, value in self.changes(item, reading).items():
            if value is not None:
                written[name] = value
        if self._parts or self._fixed:
            written |= self.beside(key)
        return written

    def beside(self, key: str) -> dict[str, Value]:
        """What stands in every item beside what the rules know: pieces of its key, and what is fixed."""
        pieces = self.bare(key).split(self.kept.separator, max(0, len(self._parts) - 1))
        if len(pieces) < len(self._parts):
            return self._fixed
        return self._fixed | {name: {"S": pieces[place]} for place, name in self._parts if name}

    def changes(self, item: Item, reading: ClockReading) -> dict[str, Value | None]:
        """Attributes as they are written, None for one that goes."""
        written: dict[str, Value | None] = {}
        fields, keys, endless = self.fields, self._keys, self.expires if self.asked.forever else None
        longest = self.kept.longest
        for attribute, value in item.items():
            field = fields.get(attribute)
            if field is None:
                raise self.unknown(attribute)
            if attribute in keys or attribute in self._left_out:
                continue  # the command says where, or there is no place for it
            if attribute in self._spread:
                written |= self._apart(attribute, value or {})
                continue
            if type(value) is After:
                value = moment(value, reading)  # noqa: PLW2901 - what it stands for
            elif field is endless and longest is not None and value in (None, FOREVER):
                value = reading.latest + longest  # noqa: PLW2901 - its owner's code looks for one
            if (
                value is None
                or (field is endless and value == FOREVER)
                or (field.kind is Kind.SET and not value)
            ):
                written[field.name] = None
                for name, _ in field.shadows:
                    written[name] = None
            else:
                written[field.name] = (
                    field.write(value) if field.form is not Form.JSON else self._body(field, value, item)
                )
                for name, encode in field.shadows:
                    written[name] = encode(value)
        return written

    def _apart(self, attribute: str, value: dict[str, Any]) -> dict[str, Value | None]:
        """The fields of a value as attributes of their own; what the table has no room for is refused."""
        fields = {field.name: field for field in self._spread[attribute]}
        if unknown := value.keys() - fields.keys():
            raise self.unknown(min(unknown))
        return {name: None if one is None else fields[name].write(one) for name, one in value.items()}

    def _body(self, field: Field, value: Any, item: Item) -> Value:
        if ENCODING not in item:
            raise UsageError(f"{field.attribute!r} is written together with its {ENCODING!r} in {self.title}")
        try:
            return body_value(value, item[ENCODING])
        except TypeError:
            raise UsageError(f"{field.attribute!r} holds bytes, not {type(value).__name__}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{field.attribute!r} is no JSON, though its {ENCODING!r} says so") from None

    def unknown(self, attribute: str) -> UsageError:
        """The error for an attribute that the table does not have."""
        return UsageError(
            f"table {self.asked.name} has no attribute {attribute!r}; it has {', '.join(self.fields)}"
        )

    def endless(self) -> UsageError:
        """The error for an item that would never go."""
        return UsageError(f"an item of table {self.asked.name} needs the attribute {self.asked.expires!r}")

    # Reading

    def read(self, item: Mapping[str, Value]) -> Item:
        """An item as the rules know it; what else stands in it is its owner's."""
        known: Item = {self.partition.attribute: self._prefix + plain(item[self.partition.name])}
        if self.sort is not None:
            known[self.sort.attribute] = plain(item[self.sort.name])
        fields = self._read
        for name, value in item.items():
            field = fields.get(name)
            if field is not None:
                known[field.attribute] = field.read(value)
            elif (part := self._gathered.get(name)) is not None:
                whole, field = part
                known.setdefault(whole, {})[name] = field.read(value)
        # An item without an end has none, whoever wrote it.
        known.setdefault(self.expires.attribute, FOREVER)
        if self.shared:
            self._adopt(known)
        return known

    def _adopt(self, known: Item) -> None:
        """Make a record of what may have been written by somebody who knows nothing of records."""
        bodies = [field.attribute for field in self.bodies if field.attribute in known]
        foreign = TOKEN not in known
        theirs = foreign or len(str(known.get(FINGERPRINT))) == MD5_DIGITS
        if theirs and not self._comparable:
            known.pop(FINGERPRINT, None)
        if foreign or bodies:
            for field in self._defaults:
                if field.attribute not in known:
                    known[field.attribute] = default(field, known.get)
        for attribute in bodies:
            known[attribute] = body(known[attribute], known[ENCODING])

    def living(self, item: Mapping[str, Value] | None, reading: ClockReading) -> Item | None:
        """An item as the rules know it, unless its time is up."""
        if item is None:
            return None
        known = self.read(item)
        end = known[self.expires.attribute]
        # What is no moment ends nothing: such an item is there, for its reader to find fault with.
        return None if isinstance(end, int | float) and end <= reading.earliest else known


def moment(after: After, reading: ClockReading) -> float:
    """The moment that is meant: what is to end later is counted from the latest that it may be now."""
    return (reading.latest if after.seconds > 0 else reading.earliest) + after.seconds


def default(field: Field, other: Callable[[str], Any]) -> Any:
    """What an item means that lacks an attribute."""
    given = field.default
    return other(given.attribute) if hasattr(given, "attribute") else given


def _ends(kept: Table) -> dict[str, Column]:
    """How a table's own end is written, told by the table that it holds."""
    columns = [column for column in kept.columns.values() if column.name == kept.expires]
    return dict.fromkeys([kept.expires], columns[0]) if columns else {}


def _fixed(value: str | int | bool) -> Value:
    kind = Kind.FLAG if isinstance(value, bool) else Kind.NUMBER if isinstance(value, int) else Kind.TEXT
    return ENCODE[kind](value)
