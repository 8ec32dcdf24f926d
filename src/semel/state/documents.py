"""Documents: state that is read, changed and written back, with a version so that no change is lost.

A document is a dict as JSON knows it, or an object of a class of yours (see `DocumentSteps.of`). Some of its
fields may have an end of their own, before that of the document.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeAlias, TypeVar, cast

import msgspec

from semel import errors
from semel.core.commands import (
    ABSENT,
    NOW,
    PRESENT,
    After,
    AllOf,
    Applied,
    AtMost,
    Begins,
    Condition,
    Delete,
    Equals,
    Found,
    Get,
    Item,
    Page,
    Put,
    Query,
    Refused,
    Steps,
    Update,
    Write,
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
Fields: TypeAlias = dict[str, Any]

# A conversation that nobody has continued for three months is over.
TTL = 90 * DAY

# So many of the latest changes are known by their marks.
REMEMBERED = 8

# What a table keeps about a document beside its fields.
ABOUT = frozenset({"version", "token", "created_at", "updated_at", "ends", "subject"})


class Document(msgspec.Struct, Generic[T], frozen=True):
    """A document as it was read, with its version."""

    key: str
    value: T
    version: int
    """0 for one that somebody else has written, who counts no versions."""
    expires_at: float
    ends: dict[str, float] = {}
    """When those of its fields end that do so before it does."""


class Shape(Generic[T]):
    """A class of the caller's: how its objects become fields, and fields become one of them."""

    def __init__(self, kind: type[T]) -> None:
        if not hasattr(kind, "__struct_fields__") and not hasattr(kind, "__dataclass_fields__"):
            raise errors.InvalidOption(f"documents are of a dataclass or a msgspec.Struct, not of {kind!r}")
        self.kind = kind
        fields = _fields_of(cast("Any", kind))
        self.names: dict[str, str] = {field.name: field.encode_name for field in fields}
        """What each of its fields is called where it is kept."""
        self._needed = [field.encode_name for field in fields if field.required]

    def stored(self, name: str) -> str:
        """What a field is called where it is kept, under either of its names."""
        name = self.names.get(name, name)
        if name not in self.names.values():
            known = ", ".join(self.names)
            raise errors.UsageError(f"{self.kind.__name__} has no field {name!r}; it has {known}")
        return name

    def fields(self, value: T) -> Fields:
        """An object's fields."""
        return {stored: getattr(value, name) for name, stored in self.names.items()}

    def unknown(self, fields: Fields) -> Fields:
        """Those of a document's fields that the class does not have: somebody else's, or a newer class's."""
        return {name: value for name, value in fields.items() if name not in self.names.values()}

    def value(self, fields: Fields, sets: frozenset[str]) -> T:
        """The object of some fields; what is empty was not kept."""
        empty: Fields = {name: set() if name in sets else None for name in self._needed if name not in fields}
        return msgspec.convert(empty | fields, self.kind, str_keys=True)


# To ask takes a tenth of a millisecond, and every transaction names the class of its documents anew.
@lru_cache(maxsize=256)
def _fields_of(kind: Any) -> tuple[Any, ...]:
    from msgspec.inspect import type_info

    return type_info(kind).fields  # type: ignore[attr-defined,no-any-return]  # it has fields


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
        self._table = table
        self._kind = kind
        self._shape = None if kind is None else Shape(kind)
        self._spans = {self._stored(name): seconds(span) for name, span in (ends or {}).items()}
        # Other tables have owners, who read them.
        self._sealing = realm.sealing if table is DOCUMENTS and sealed else None
        self._known = table.kinds.keys()
        self._packed = "body" in table.attributes
        self._columns = tuple(name for name in table.attributes if name not in ABOUT | {table.expires})
        self._sets = frozenset(name for name, held in table.attributes.items() if held is Kind.SET)

    def on(self, table: Table) -> "DocumentSteps[T]":
        """The rules in another table, whose attributes are the fields of its documents."""
        return DocumentSteps(self.realm, table, self._kind, self._spans)

    def of(self, kind: type[D], *, ends: Mapping[str, Seconds] | None = None) -> "DocumentSteps[D]":
        """The rules for documents that are objects of a dataclass or a `msgspec.Struct`.

        `ends` says how long a field lasts that is to go before the document does, counted from when it was
        last changed.
        """
        return DocumentSteps(self.realm, self._table, kind, ends)

    # Reading

    def get(self, key: str | Key) -> Steps[Document[T] | None]:
        """The document, without fields whose own end has come; None where there is none."""
        found = yield from self._found(str(key), self.realm.name(key))
        return None if found.item is None else self._document(str(key), found.item, found.now)

    def _found(self, key: str, id: str) -> Steps[Found]:
        """What is there; what no document can look like is reported, and never written over."""
        found = yield from read(Get(self._table, id))
        if found.item is None:
            return found
        try:
            item = self._opened(found.item)
        except ValueError as error:
            raise errors.RecordCorrupt(key, str(error)) from error
        if not _sound(item):
            raise errors.RecordCorrupt(key, "its body, ends, version or token is not what it should be")
        return found if item is found.item else msgspec.structs.replace(found, item=item)

    def _opened(self, item: Item) -> Item:
        """An item with its body as it reads; `ValueError` says why that cannot be told."""
        kept = item.get("body")
        if self._sealing is None or kept is None:
            return item
        body = self._sealing.opened(kept, self._table.name, item[self._table.partition], "body")
        return item if body is kept else item | {"body": body}

    def _sealed(self, id: str, change: Item) -> Item:
        """A change with its body as it is kept."""
        if self._sealing is None:
            return change
        body = self._sealing.object(change["body"], self._table.name, id, "body")
        return change if body is change["body"] else change | {"body": body}

    def _document(self, key: str, item: Item, now: float) -> Document[T]:
        fields, ends = self._living(item, now)
        try:
            value = self._value(fields)
        except Exception as error:  # a class's own checks may raise anything
            reason = f"it is no {getattr(self._kind, '__name__', 'document')}: {error}"
            raise errors.RecordCorrupt(key, reason) from error
        return Document(key, value, _version(item), item[self._table.expires], ends)

    def _value(self, fields: Fields) -> T:
        return cast("T", fields) if self._shape is None else self._shape.value(fields, self._sets)

    def _living(self, item: Item, now: float) -> tuple[Fields, dict[str, float]]:
        """The fields of an item, and the ends of some, without what has ended."""
        body = item.get("body") or {} if self._packed else {
            name: item[name] for name in self._columns if item.get(name) is not None
        }  # fmt: skip
        ends = {name: end for name, end in (item.get("ends") or {}).items() if name in body}
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
        """Write the whole document, and give its new version.

        With a `version` only if that is the one it has (0: only if there is none), else `VersionConflict`.
        """
        id, fields, span = self.realm.name(key), self._fields(value), seconds(ttl)
        person = self.realm.subject_of(subject)
        self._checked(fields)

        def plan(mark: str) -> "Steps[Part[int]]":
            if version is not None:
                now = (yield from self.realm.now()) if self._spans else 0.0
                change = self._change(fields, self._new_ends(fields, now), span, mark, person)
                return self._writing(str(key), id, change, version)
            # Over the version that is there: over any, it would be made twice where its answer was lost.
            found = yield from self._found(str(key), id)
            change = self._change(fields, self._new_ends(fields, found.now), span, mark, person)
            part = self._rewriting(str(key), id, found, change)
            return Part(part.writes, part.judge, lambda reply: part.result(reply).version)

        return plan

    def update(
        self,
        key: str | Key,
        function: Callable[[T | None], T | Mapping[str, Any]],
        *,
        ttl: Seconds = TTL,
        subject: str | None = None,
    ) -> PartPlan[Document[T]]:
        """Read the document, let the function make the new one of it (of None where there is none), write it.

        Where somebody else was quicker the function is called again, with what is there by then: it must do
        nothing but make a value. In a transaction it is called again where any of its parts was overtaken.
        """
        id, span, person = self.realm.name(key), seconds(ttl), self.realm.subject_of(subject)

        def plan(mark: str) -> "Steps[Part[Document[T]]]":
            found = yield from self._found(str(key), id)
            before = None if found.item is None else self._document(str(key), found.item, found.now)
            fields = self._fields(function(None if before is None else before.value))
            old, kept = ({}, {}) if found.item is None else self._living(found.item, found.now)
            # A class does not see the fields that it does not have, and so has not meant to remove them.
            fields = fields if self._shape is None else self._shape.unknown(old) | fields
            ends = self._new_ends(fields, found.now)
            ends |= {name: end for name, end in kept.items() if name in fields and old[name] == fields[name]}
            change = self._change(fields, ends, span, mark, person)
            return self._rewriting(str(key), id, found, change)

        return plan

    def change(
        self,
        key: str | Key,
        fields: Mapping[str, Any],
        *,
        ends: Mapping[str, Seconds] | None = None,
        ttl: Seconds = TTL,
        subject: str | None = None,
    ) -> PartPlan[Document[T]]:
        """Set these fields and leave the others as they are; None removes one, a document is made if need be.

        `ends` says how long some of them last, where that is shorter than the document's `ttl`.
        """
        id, span, person = self.realm.name(key), seconds(ttl), self.realm.subject_of(subject)
        given = self._given(fields)
        own = {self._stored(name): seconds(each) for name, each in (ends or {}).items()}
        if unknown := own.keys() - given.keys():
            raise errors.InvalidOption(f"ends names {', '.join(sorted(unknown))}, which is not being changed")
        spans = self._spans | own

        def plan(mark: str) -> "Steps[Part[Document[T]]]":
            found = yield from self._found(str(key), id)
            before, kept = ({}, {}) if found.item is None else self._living(found.item, found.now)
            after = {name: value for name, value in (before | given).items() if value is not None}
            lasting = {name: end for name, end in kept.items() if name not in given}
            lasting |= {name: found.now + spans[name] for name in given if name in spans and name in after}
            return self._rewriting(str(key), id, found, self._change(after, lasting, span, mark, person))

        return plan

    def delete(self, key: str | Key, *, version: int | None = None) -> Steps[bool]:
        """Remove the document; False where there is none."""
        condition = PRESENT if version is None else _at(version)
        reply = yield from write(Delete(self._table, self.realm.name(key), condition))
        if isinstance(reply, Refused) and reply.item is not None and version is not None:
            raise errors.VersionConflict(str(key), version, _version(reply.item))
        return type(reply) is Applied

    def prune(self) -> Steps[int]:
        """Remove fields whose end has come from documents that nobody has written since; how many documents.

        Readers do not see such fields in any case; this is for those that must be gone from the disk too.
        """
        pruned, after = 0, None
        where = Begins(self._table.partition, self.realm.prefix)
        while True:
            page: Page = yield Query(self._table, where=where, after=after)
            for item in page.items:
                pruned += yield from self._pruned(item, page.now)
            after = page.after
            if after is None:
                return pruned

    def _pruned(self, item: Item, now: float) -> Steps[bool]:
        # One that cannot be read is its reader's to find fault with; the others are not to wait for that.
        if not _sound(item) or all(end > now for end in (item.get("ends") or {}).values()):
            return False
        id = item[self._table.partition]
        try:
            living, ends = self._living(self._opened(item), now)
        except ValueError:
            return False
        set_ = self._sealed(id, self._columnar(living)) | {"ends": ends or None}
        # Without a new version: whoever has read it has not seen those fields either.
        reply = yield from write(Update(self._table, id, set_, _as_found(item)))
        return type(reply) is Applied

    # How a change is written

    def _new_ends(self, fields: Fields, now: float) -> dict[str, float]:
        return {name: now + span for name, span in self._spans.items() if name in fields}

    def _change(
        self, fields: Fields, ends: dict[str, float], span: float, mark: str, person: str | None
    ) -> Item:
        change: Item = self._columnar(fields) | {
            "updated_at": NOW,
            self._table.expires: After(span),
            "ends": ends or None,
            "token": mark,
        }
        if person is not None:
            change["subject"] = person
        for name in change.keys() - self._known:
            if name in ("subject", "ends") and change[name] is not None:
                raise errors.UsageError(f"table {self._table.name} has no attribute {name!r} to keep that in")
            del change[name]
        return change

    def _columnar(self, fields: Fields) -> Item:
        if self._packed:
            return {"body": fields}
        if unknown := fields.keys() - set(self._columns):
            known = ", ".join(self._columns)
            raise errors.UsageError(
                f"table {self._table.name} has no attribute {', '.join(sorted(unknown))}; it has {known}"
            )
        return {name: fields.get(name) for name in self._columns}

    def _rewriting(self, key: str, id: str, found: Found, change: Item) -> Part[Document[T]]:
        """Write what was made of what was found, unless that has changed meanwhile."""
        mark = change.get("token")
        if mark and found.item is not None:
            # Whoever was answered late finds his mark though others have written since.
            earlier = (found.item.get("token") or "").split()
            change["token"] = " ".join([mark, *earlier][:REMEMBERED])
        before = 0 if found.item is None else _version(found.item)
        fields, ends = self._living(change, found.now)
        end = found.now + change[self._table.expires].seconds
        made = Document(key, self._checked(fields), before + 1, end, ends)
        sent = False

        def judge(refusals: PartRefusals) -> PartVerdict:
            nonlocal sent
            sent = True
            return PartVerdict.MADE if _mine(refusals[0], mark) else PartVerdict.STALE

        def result(reply: Applied | None) -> "Document[T]":
            if reply is not None or sent or found.item is None:
                return made
            # Neither made now nor refused: it had been made before, and is what was found.
            return self._document(key, found.item, found.now)

        when = ABSENT if found.item is None else _as_found(found.item)
        return Part((self._write(id, change, before, when),), judge, result)

    def _writing(self, key: str, id: str, change: Item, version: int) -> Part[int]:
        """Write it over one version."""

        def judge(refusals: PartRefusals) -> "PartVerdict | errors.SemelError":
            if _mine(refusals[0], change.get("token")):
                return PartVerdict.MADE
            item = refusals[0].item if refusals[0] else None
            return errors.VersionConflict(key, version, 0 if item is None else _version(item))

        when = _at(version) if version else ABSENT
        return Part((self._write(id, change, version, when),), judge, lambda _: version + 1)

    def _write(self, id: str, change: Item, version: int, when: Condition) -> Write:
        """Write it over a version that is there, or where none is."""
        change = self._sealed(id, change)
        if when is not ABSENT:
            return Update(self._table, id, change | {"version": version + 1}, when)
        created: Item = {"created_at": NOW} if "created_at" in self._table.attributes else {}
        item = {name: value for name, value in change.items() if value is not None}
        return Put(self._table, id, item | created | {"version": 1}, ABSENT)

    # Values as they are kept

    def _stored(self, name: str) -> str:
        return name if self._shape is None else self._shape.stored(name)

    def _checked(self, fields: Fields) -> T:
        """The value of fields that are to be written; refused is what could not be read again."""
        try:
            return self._value(fields)
        except Exception as error:  # a class's own checks may raise anything
            name = getattr(self._kind, "__name__", "document")
            raise errors.UsageError(f"what is to be written is no {name}: {error}") from error

    def _fields(self, value: Any) -> Fields:
        """The fields of a whole document; what is None, or an empty set, is not there."""
        if self._shape is not None and isinstance(value, self._shape.kind):
            given = self._given(self._shape.fields(value))
        elif isinstance(value, Mapping):
            given = self._given(value)
        else:
            wanted = "a dict" if self._kind is None else f"a {self._kind.__name__} or a dict"
            raise errors.UsageError(f"a document is {wanted}, not {type(value).__name__}")
        return {name: one for name, one in given.items() if one is not None}

    def _given(self, fields: Mapping[str, Any]) -> Fields:
        """Fields in the types that tables keep: JSON's, and sets where the table has them."""
        if not isinstance(fields, Mapping):
            raise errors.UsageError(f"fields are given as a dict, not as {type(fields).__name__}")
        given, typed = {}, self._shape is not None
        for name, value in fields.items():
            if not isinstance(name, str):
                raise errors.UsageError(f"a field is named by a text, not by {name!r}")
            stored = self._stored(name) if typed else name
            made = plain(name, value, typed=typed)
            given[stored] = _set(name, made) if stored in self._sets and made is not None else made
        return given


def _mine(refused: Refused | None, mark: str | None) -> bool:
    item = None if refused is None else refused.item
    return item is not None and bool(mark) and mark in (item.get("token") or "").split()


def _at(version: int) -> Condition:
    # One that counts no versions has none; a missing number is 0.
    return Equals("version", version) if version else AtMost("version", 0)


def _as_found(item: Item) -> Condition:
    """That a document is still the one that was read; a new one in its place counts from 1 again."""
    token, at = item.get("token"), _at(_version(item))
    return AllOf((at, Equals("token", token))) if isinstance(token, str) else at


def _version(item: Item) -> int:
    return int(item.get("version") or 0)


def _sound(item: Item) -> bool:
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
