"""Documents: state that is read, changed and written back, with a version so that no change is lost.

A document is a dict as JSON knows it, or an object of a class of yours (see `DocumentSteps.of`). Some of its
fields may expire before the document does.

A write expects the version and the token that it read. The token of a document lists the marks of its latest
commits: a commit whose reply was lost finds its own mark, though others have written since.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Generic, TypeAlias, TypeVar, cast

import msgspec

from semel import errors
from semel.core.commands import (
    ABSENT,
    NOW,
    PRESENT,
    After,
    Applied,
    Delete,
    Found,
    Get,
    Item,
    Page,
    Put,
    Query,
    Refused,
    Steps,
    Update,
    read,
    write,
)
from semel.core.keys import Key
from semel.core.parts import Part, PartPlan, PartRefusals, PartVerdict
from semel.core.policy import DAY, Seconds, seconds
from semel.core.realm import Realm, copied, plain
from semel.tables import DOCUMENTS, Kind, Table

T = TypeVar("T")
D = TypeVar("D")
R = TypeVar("R")
Fields: TypeAlias = dict[str, Any]
Ends: TypeAlias = dict[str, float]

# A conversation that was not continued for three months is over.
TTL = 90 * DAY

# The number of commits whose marks a document lists.
REMEMBERED = 8

# What a table keeps about a document beside its fields.
ABOUT = frozenset({"version", "token", "created_at", "updated_at", "ends", "subject"})


class Document(msgspec.Struct, Generic[T], frozen=True):
    """A document as it was read, with its version."""

    key: str
    value: T
    version: int
    """0 for one that another program has written, which counts no versions."""
    expires_at: float
    ends: Ends = {}
    """When those of its fields expire that do so before it does."""


# Asking takes a tenth of a millisecond, and every transaction names the class of its documents.
@lru_cache(maxsize=256)
def _fields_of(kind: Any) -> tuple[dict[str, str], list[str]]:
    """The stored names of the fields of a class, and those that an object needs."""
    from msgspec.inspect import type_info

    if not hasattr(kind, "__struct_fields__") and not hasattr(kind, "__dataclass_fields__"):
        raise errors.InvalidOption(f"documents are of a dataclass or a msgspec.Struct, not of {kind!r}")
    fields: Any = type_info(kind).fields  # type: ignore[attr-defined]  # it has fields
    stored = {field.name: field.encode_name for field in fields}
    return stored, [field.encode_name for field in fields if field.required]


@lru_cache(maxsize=256)
def _columns_of(table: Table) -> tuple[tuple[str, ...], frozenset[str]]:
    """The attributes of a table that are fields of its documents, and those that are sets."""
    kinds = table.attributes
    columns = tuple([name for name in kinds if name not in ABOUT | {table.expires}])
    return columns, frozenset([name for name, held in kinds.items() if held is Kind.SET])


class DocumentSteps(Generic[T]):
    """The rules of documents, as generators of commands."""

    def __init__(
        self,
        realm: Realm,
        table: Table = DOCUMENTS,
        kind: type[T] | None = None,
        ends: Mapping[str, Seconds] | None = None,
        *,
        sealed: bool = True,
    ) -> None:
        self.realm = realm
        self._table, self._kind = table, kind
        self._names, self._needed = ({}, []) if kind is None else _fields_of(cast("Any", kind))
        self._spans = self._own_spans(ends)
        # Other tables have owners, who read them.
        self._sealing = realm.sealing if table is DOCUMENTS and sealed else None
        self._packed = "body" in table.attributes
        self._columns, self._sets = _columns_of(table)

    def on(self, table: Table) -> "DocumentSteps[T]":
        """The rules in another table, whose attributes are the fields of its documents."""
        return DocumentSteps(self.realm, table, self._kind, self._spans)

    def of(self, kind: type[D], *, ends: Mapping[str, Seconds] | None = None) -> "DocumentSteps[D]":
        """The rules for documents that are objects of a dataclass or a `msgspec.Struct`.

        `ends` says how long some fields last, counted from their last change, if that is shorter.
        """
        return DocumentSteps(self.realm, self._table, kind, ends)

    # Reading

    def get(self, key: str | Key) -> Steps[Document[T] | None]:
        """The document, without fields that have expired; None if there is no document."""
        found = yield from self._found(str(key), self.realm.name(key))
        return None if found.item is None else self._document(str(key), found.item, found.now)

    def _found(self, key: str, id: str) -> Steps[Found]:
        """Read an item. One that cannot be a document is reported, and never written over."""
        found = yield from read(Get(self._table, id))
        if found.item is None:
            return found
        try:
            item = self._opened(found.item)
        except ValueError as error:
            raise errors.RecordCorrupt(key, str(error)) from error
        return found if item is found.item else Found(found.now, item)

    def _opened(self, item: Item) -> Item:
        """An item with its body unsealed; `ValueError` says why it is no document."""
        kept = item.get("body")
        if self._sealing is not None and kept is not None:
            body = self._sealing.opened(kept, self._table.name, item[self._table.partition], "body")
            item = item if body is kept else item | {"body": body}
        if not _is_sound(item):
            raise ValueError("its body, ends, version or token is not what it should be")
        return item

    def _document(self, key: str, item: Item, now: float) -> Document[T]:
        fields, ends = self._living(item, now)
        try:
            value = self._value(fields)
        except Exception as error:  # a class's own checks may raise anything
            reason = f"it is no {getattr(self._kind, '__name__', 'document')}: {error}"
            raise errors.RecordCorrupt(key, reason) from error
        end = item[self._table.expires]
        return Document(key, value, _version(item), end.seconds + now if type(end) is After else end, ends)

    def _value(self, fields: Fields) -> T:
        if self._kind is None:
            return fields  # type: ignore[return-value]  # a document of no class is its fields
        # An empty field is not stored.
        missing = [name for name in self._needed if name not in fields]
        empty = {name: set[str]() if name in self._sets else None for name in missing}
        return msgspec.convert(empty | fields, self._kind, str_keys=True)

    def _living(self, item: Item | None, now: float) -> tuple[Fields, Ends]:
        """The fields of an item that have not expired, and when some of them do."""
        if item is None:
            return {}, {}
        body = item.get("body") or {} if self._packed else {
            name: item[name] for name in self._columns if item.get(name) is not None
        }  # fmt: skip
        ends = item.get("ends") or {}
        living = {name: copied(value) for name, value in body.items() if ends.get(name, now + 1) > now}
        return living, {name: end for name, end in ends.items() if name in living}

    # Writing

    def put(
        self,
        key: str | Key,
        value: T | Mapping[str, Any],
        *,
        version: int | None = None,
        ttl: Seconds = TTL,
        subject: str | None = None,
    ) -> PartPlan[int]:
        """Write the whole document, and return its new version.

        With a `version`, write only if the document has that version (0: only if there is none), else raise
        `VersionConflict`.
        """
        fields = self._fields(value)

        def change(found: Found) -> tuple[Fields, Ends]:
            return fields, self._ends(fields, found.now)

        return self._rewrite(key, change, _version, ttl=ttl, subject=subject, version=version)

    def update(
        self,
        key: str | Key,
        function: Callable[[T | None], T | Mapping[str, Any]],
        *,
        ttl: Seconds = TTL,
        subject: str | None = None,
    ) -> PartPlan[Document[T]]:
        """Read the document, call the function with it, or None, and write what it returns.

        If another writer was quicker, the function is called again with what is there by then: it must do
        nothing but make a value. In a transaction it is called again if any of its parts was overtaken.
        """

        def change(found: Found) -> tuple[Fields, Ends]:
            there = found.item
            before = None if there is None else self._document(str(key), there, found.now).value
            fields = self._fields(function(before))
            old, kept = self._living(there, found.now)
            if self._kind is not None:
                # A class does not see the fields that it does not have, and so has not meant to remove them.
                known = self._names.values()
                fields = {name: value for name, value in old.items() if name not in known} | fields
            same = {name: end for name, end in kept.items() if name in fields and old[name] == fields[name]}
            return fields, self._ends(fields, found.now) | same

        return self._rewrite(key, change, partial(self._document, str(key)), ttl=ttl, subject=subject)

    def change(
        self,
        key: str | Key,
        fields: Mapping[str, Any],
        *,
        ends: Mapping[str, Seconds] | None = None,
        ttl: Seconds = TTL,
        subject: str | None = None,
    ) -> PartPlan[Document[T]]:
        """Set these fields and leave the others; None removes a field. A missing document is created.

        `ends` says how long some of them last, if that is shorter than the document's `ttl`.
        """
        given, own = self._given(fields), self._own_spans(ends)
        if unknown := own.keys() - given.keys():
            raise errors.InvalidOption(f"ends names {', '.join(sorted(unknown))}, which is not being changed")
        spans = {name: span for name, span in (self._spans | own).items() if name in given}

        def change(found: Found) -> tuple[Fields, Ends]:
            before, kept = self._living(found.item, found.now)
            after = {name: value for name, value in (before | given).items() if value is not None}
            lasting = {name: end for name, end in kept.items() if name not in given}
            ends = {name: found.now + span for name, span in spans.items() if name in after}
            return self._checked(after), lasting | ends

        return self._rewrite(key, change, partial(self._document, str(key)), ttl=ttl, subject=subject)

    def delete(self, key: str | Key, *, version: int | None = None) -> Steps[bool]:
        """Delete the document; False if there is none."""
        name = self.realm.name(key)
        found = yield from read(Get(self._table, name))
        if found.item is None:  # it may have expired, and still be in the store
            return False
        reply = yield from write(Delete(self._table, name, PRESENT if version is None else _at(version)))
        if isinstance(reply, Refused) and reply.item is not None and version is not None:
            raise errors.VersionConflict(str(key), version, _version(reply.item))
        return type(reply) is Applied

    def prune(self) -> Steps[int]:
        """Delete expired fields from documents that were not written since; return how many documents.

        Readers never see such fields. This is for fields that must be gone from the disk too.
        """
        pruned, after = 0, None
        while True:
            page: Page = yield Query(self._table, prefix=self.realm.prefix, after=after)
            for item in page.items:
                pruned += yield from self._pruned(item, page.now)
            after = page.after
            if after is None:
                return pruned

    def _pruned(self, item: Item, now: float) -> Steps[bool]:
        # One that cannot be read is reported to its readers, and does not hold up the others.
        if not _is_sound(item) or all(end > now for end in (item.get("ends") or {}).values()):
            return False
        try:
            living, ends = self._living(self._opened(item), now)
        except ValueError:
            return False
        # Without a new version: no reader has seen those fields either.
        change = self._columnar(living) | {"ends": ends or None}
        reply = yield from write(self._write(item[self._table.partition], change, item))
        return type(reply) is Applied

    # How a change is written

    def _rewrite(
        self,
        key: str | Key,
        change: Callable[[Found], tuple[Fields, Ends]],
        give: Callable[[Item, float], R],
        *,
        ttl: Seconds,
        subject: str | None,
        version: int | None = None,
    ) -> Callable[[str], Steps[Part[R]]]:
        """Plan to write what `change` makes of the document that is there, or to write over a version."""
        id, span, hashed = self.realm.name(key), seconds(ttl), self.realm.subject_of(subject)

        def plan(mark: str) -> "Steps[Part[R]]":
            if version is None:
                found = yield from self._found(str(key), id)
            else:
                now = (yield from self.realm.now()) if self._spans else 0.0
                found = Found(now, _at(version) if version else None)
            made = self._item(*change(found), span, mark, hashed)
            return self._rewrite_part(id, found, made, give, version)

        return plan

    def _rewrite_part(
        self, id: str, found: Found, made: Item, give: Callable[[Item, float], R], version: int | None
    ) -> Part[R]:
        """Write over what was found, unless that has changed meanwhile."""
        there, mark, refused = found.item, made.get("token"), False
        if there is not None:
            made["version"] = _version(there) + 1
            if mark:
                made["token"] = " ".join([mark, *(there.get("token") or "").split()][:REMEMBERED])

        def on_refused(refusals: PartRefusals) -> "PartVerdict | errors.SemelError":
            nonlocal refused
            refused, item = True, (refusals[0] and refusals[0].item) or {}
            if mark and mark in (item.get("token") or "").split():
                return PartVerdict.MADE
            if version is None:
                return PartVerdict.STALE
            return errors.VersionConflict(id.removeprefix(self.realm.prefix), version, _version(item))

        def result(reply: Applied | None) -> R:
            # Neither made now nor refused: it had been made before, and is what was found.
            earlier = reply is None and not refused and version is None
            return give(there if earlier and there is not None else made, found.now)

        return Part((self._write(id, made, there),), on_refused, result)

    def _write(self, id: str, made: Item, there: Item | None) -> Update | Put:
        """Write over a document as it was read, or create one."""
        if self._sealing is not None:
            made = made | {"body": self._sealing.object(made["body"], self._table.name, id, "body")}
        if there is not None:
            return Update(self._table, id, made, _as_found(there))
        item = {name: value for name, value in made.items() if value is not None}
        if "created_at" in self._table.attributes:
            item["created_at"] = NOW
        return Put(self._table, id, item, ABSENT)

    def _item(self, fields: Fields, ends: Ends, span: float, mark: str, hashed: str | None) -> Item:
        """The attributes that a write sets."""
        item = self._columnar(fields)
        item["updated_at"], item[self._table.expires] = NOW, After(span)
        item["ends"], item["token"] = ends or None, mark
        if hashed is not None:
            item["subject"] = hashed
        for name in item.keys() - self._table.names:
            if name in ("subject", "ends") and item[name] is not None:
                raise errors.UsageError(f"table {self._table.name} has no attribute {name!r} to keep that in")
            del item[name]
        item["version"] = 1
        return item

    def _columnar(self, fields: Fields) -> Item:
        if self._packed:
            return {"body": fields}
        if unknown := fields.keys() - set(self._columns):
            known = ", ".join(self._columns)
            raise errors.UsageError(
                f"table {self._table.name} has no attribute {', '.join(sorted(unknown))}; it has {known}"
            )
        return {name: fields.get(name) for name in self._columns}

    # Values as they are stored

    def _own_spans(self, ends: Mapping[str, Seconds] | None) -> dict[str, float]:
        return {self._stored(name): seconds(span) for name, span in ends.items()} if ends else {}

    def _ends(self, fields: Fields, now: float) -> Ends:
        return {name: now + span for name, span in self._spans.items() if name in fields}

    def _stored(self, name: str) -> str:
        """The stored name of a field, from either of its names."""
        name = self._names.get(name, name)
        if self._kind is not None and name not in self._names.values():
            known = ", ".join(self._names)
            raise errors.UsageError(f"{self._kind.__name__} has no field {name!r}; it has {known}")
        return name

    def _checked(self, fields: Fields) -> Fields:
        """Refuse fields that could not be read again as an object."""
        if self._kind is None:
            return fields
        try:
            self._value(fields)
        except Exception as error:  # a class's own checks may raise anything
            raise errors.UsageError(f"what is to be written is no {self._kind.__name__}: {error}") from error
        return fields

    def _fields(self, value: Any) -> Fields:
        """The fields of a whole document, without those that are None or an empty set."""
        if self._kind is not None and isinstance(value, self._kind):
            value = {name: getattr(value, name) for name in self._names}
        elif type(value) is not dict and not isinstance(value, Mapping):
            wanted = "a dict" if self._kind is None else f"a {self._kind.__name__} or a dict"
            raise errors.UsageError(f"a document is {wanted}, not {type(value).__name__}")
        return self._checked({name: one for name, one in self._given(value).items() if one is not None})

    def _given(self, fields: Mapping[str, Any]) -> Fields:
        """Fields in the types that tables keep: JSON's, and sets where the table has them."""
        if type(fields) is not dict and not isinstance(fields, Mapping):
            raise errors.UsageError(f"fields are given as a dict, not as {type(fields).__name__}")
        given, typed = {}, self._kind is not None
        for name, value in fields.items():
            if not isinstance(name, str):
                raise errors.UsageError(f"a field is named by a text, not by {name!r}")
            stored = self._stored(name) if typed else name
            known = type(value) is str and value.isascii()  # as most, and plain already
            made = value if known else plain(name, value, typed=typed)
            given[stored] = _set(name, made) if stored in self._sets and made is not None else made
        return given


def _at(version: int) -> Item:
    # One that counts no versions has none.
    return {"version": version or None}


def _as_found(item: Item) -> Item:
    """Return what a write expects of a document that was read; a new one in its place counts from 1 again."""
    expect: Item = {"version": item.get("version")}
    return expect | {"token": item["token"]} if isinstance(item.get("token"), str) else expect


def _version(item: Item, _now: float = 0.0) -> int:
    return int(item.get("version") or 0)


def _is_sound(item: Item) -> bool:
    """Whether this is a document at all."""
    ends = item.get("ends") or {}
    return (
        isinstance(item.get("version") or 0, int | float)
        and isinstance(item.get("token") or "", str)
        and isinstance(item.get("body") or {}, dict)
        and isinstance(ends, dict)
        and all(isinstance(end, int | float) for end in ends.values())
    )


def _set(name: str, value: Any) -> set[str] | None:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise errors.UsageError(f"{name!r} is a set of texts, not {value!r:.80}")
    return set(value) or None
