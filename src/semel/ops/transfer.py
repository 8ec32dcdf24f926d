"""Moving a ledger by file: every item of an environment as lines of JSON, and from there into any store.

The first line tells the version, the environment and the time, each of the following a table and an item of
it, and the last how many there are: a file that was torn off is known by its lack. What is encrypted stays
so, since an item keeps its place.
"""

import os
from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from semel.core.commands import (
    ABSENT,
    ANY,
    Expect,
    Found,
    Get,
    Item,
    Page,
    Put,
    Query,
    Refused,
    Sort,
    Steps,
    Time,
    read,
    write_each,
)
from semel.core.drive import Store, drive
from semel.core.keys import prefix
from semel.errors import InvalidOption, TableMissing, UsageError
from semel.model import ProgressCallback
from semel.tables import FOREVER, LEDGER, OWN, Kind, Table

FORMAT: Final = 1

# So many items are in memory at once.
PAGE = 100

# So many bad lines are named.
NAMED = 10

ItemPlace: TypeAlias = tuple[Table, str, Sort]


class ExportHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of an export."""

    export: Literal[1]
    """The version of this form."""
    env: str
    at: float
    """When it began, by the store's clock."""


class ExportLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item in an export: moments are seconds since the epoch, bytes are base64."""

    table: str
    item: dict[str, Any]


class ExportEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last line of an export."""

    items: int


class Exported(msgspec.Struct, frozen=True):
    """How many items were written to a file, by table."""

    tables: dict[str, int] = {}

    @property
    def items(self) -> int:
        """How many of all tables."""
        return sum(self.tables.values())


class Imported(msgspec.Struct, frozen=True):
    """What became of the items of a file."""

    written: int = 0
    there: int = 0
    """Were there already, and were left alone."""
    expired: int = 0
    """Came to their end since the export."""
    refused: tuple[str, ...] = ()
    """The store has no room for these, by table and key."""


# Items, on any store


def pages(store: Store, table: Table, env: str) -> Iterator[Page]:
    """The living items of an environment, a page at a time; a table that nobody has made has none."""
    after: str | None = None
    while True:
        try:
            page: Page = drive(_asked(Query(table, prefix=env_prefix(env), limit=PAGE, after=after)), store)
        except TableMissing:
            # Everybody has a ledger: where that is missing, this is the wrong place.
            if table is LEDGER:
                raise
            return
        yield page
        after = page.after
        if after is None:
            return


def env_prefix(env: str) -> str:
    """What every key of an environment begins with, whatever its scope."""
    return prefix(env, "")[:-1]


def _asked(command: Query | Time) -> Steps[Any]:
    return (yield command)


def now_of(store: Store) -> float:
    """What time it is for a store."""
    found: Found = drive(_asked(Time()), store)
    return found.now


def found_at(store: Store, place: ItemPlace) -> Found:
    """Read the item at a place."""
    return drive(read(Get(*place)), store)


def item_place(table: Table, item: Item) -> ItemPlace:
    """Where an item stands."""
    return table, item[table.partition], None if table.sort is None else item[table.sort]


def named(place: ItemPlace) -> str:
    """A place in words."""
    table, key, sort = place
    return f"{table.name} {key}" if sort is None else f"{table.name} {key} {sort}"


def content(table: Table, item: Item) -> Item:
    """What an item says beside its place, alike on every store."""
    return {
        name: value
        for name, value in item.items()
        if name not in table.key and value is not None and not (name == table.expires and value == FOREVER)
    }


def putting(table: Table, item: Item, expect: Expect) -> Put:
    """The write that puts an item where it stands."""
    _, key, sort = item_place(table, item)
    return Put(table, key, content(table, item), expect, sort)


def is_over(table: Table, item: Item, now: float) -> bool:
    """Whether an item's time is up."""
    end = item.get(table.expires)
    return end is not None and bool(end <= now)


def put(store: Store, puts: Iterable[Put]) -> Iterator[tuple[Put, Any]]:
    """Send writes together, each with its reply; or, where the store has no room for one, why."""
    writes = tuple(puts)
    if not writes:
        return
    try:
        replies = drive(write_each(writes), store)
    except UsageError as error:
        if len(writes) == 1:
            yield writes[0], error
            return
        for each in writes:
            yield from put(store, [each])
        return
    yield from zip(writes, replies, strict=True)


# Export


def export_to(
    path: str | os.PathLike[str],
    store: Store,
    env: str,
    *,
    on_progress: ProgressCallback[Exported] | None = None,
) -> Exported:
    """Write every living item of an environment to a new file, which only its owner may read.

    The file is there when it is whole. `on_progress` is called as it goes on.
    """
    target = Path(path)
    if target.exists():
        raise InvalidOption(f"{target} is there already: name another file, or move it away")
    unfinished = target.with_name(f"{target.name}.unfinished")
    try:
        with open(unfinished, "wb", opener=_private) as file:
            exported = _export(file.write, store, env, on_progress)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except BaseException:
        with suppress(FileNotFoundError):
            unfinished.unlink()
        raise
    return exported


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _export(
    write: Callable[[bytes], object], store: Store, env: str, on_progress: ProgressCallback[Exported] | None
) -> Exported:
    counts = dict.fromkeys((table.name for table in OWN), 0)
    write(_line(ExportHead(FORMAT, env, now_of(store))))
    for table in OWN:
        for page in pages(store, table, env):
            for item in page.items:
                write(_line(ExportLine(table.name, _written(table, item))))
            counts[table.name] += len(page.items)
            if on_progress is not None:
                on_progress(Exported(dict(counts)))
    done = Exported(counts)
    write(_line(ExportEnd(done.items)))
    return done


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _written(table: Table, item: Item) -> Item:
    return {name: item[name] for name in table.key} | content(table, item)


# Import


def import_from(
    path: str | os.PathLike[str],
    store: Store,
    env: str,
    *,
    replace: bool = False,
    on_progress: ProgressCallback[Imported] | None = None,
) -> Imported:
    """Put the items of an export into a store; what is there already is left alone, unless `replace`.

    The whole file is checked before anything is written. After a crash the same call goes on.
    """
    check_file(path, env)
    done = Imported()
    lines = read_lines(path)
    while rows := list(islice(lines, PAGE)):
        done = _import(store, rows, replace, done)
        if on_progress is not None:
            on_progress(done)
    return done


def _import(store: Store, rows: list[tuple[Table, Item]], replace: bool, done: Imported) -> Imported:
    now = now_of(store)
    living = [(table, item) for table, item in rows if not is_over(table, item, now)]
    expect = ANY if replace else ABSENT
    # Where a store has told of an item twice, once is enough.
    puts = {item_place(*row): putting(*row, expect) for row in living}
    written, there, refused = 0, len(living) - len(puts), list[str]()
    for each, reply in put(store, puts.values()):
        match reply:
            case UsageError():
                refused.append(f"{named((each.table, each.key, each.sort))}: {reply}")
            case Refused():
                there += 1
            case _:
                written += 1
    expired = len(rows) - len(living)
    return Imported(
        done.written + written, done.there + there, done.expired + expired, (*done.refused, *refused)
    )


def check_file(path: str | os.PathLike[str], env: str) -> None:
    """Refuse a file that is no whole export of this environment; bad lines are named by their numbers."""
    with _opened(path) as file:
        _check_head(path, file.readline(), env)
        items, bad, end = 0, 0, None
        problems: list[str] = []
        for number, line in enumerate(file, 2):
            problem, end = _problem(line, env, end)
            items += end is None
            bad += bool(problem)
            if problem and bad <= NAMED:
                problems.append(f"line {number}: {problem}")
    if bad:
        rest = f"; and {bad - NAMED} more" if bad > NAMED else ""
        raise UsageError(f"{path} cannot be imported: {'; '.join(problems)}{rest}")
    if end is None or end.items != items:
        raise UsageError(f"{path} is not whole: it does not end by telling that it has {items} items")


def _problem(line: bytes, env: str, end: ExportEnd | None) -> tuple[str, ExportEnd | None]:
    """What is wrong with a line, and the end of the file once it was read."""
    if end is not None:
        return "it comes after the last", end
    try:
        end = _end(line)
        if end is None:
            _check(line, env)
    except ValueError as error:
        return str(error), end
    return "", end


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[Table, Item]]:
    """The items of an export that was checked."""
    with _opened(path) as file:
        file.readline()
        for line in file:
            if _end(line) is None:
                yield _item(line)


def _opened(path: str | os.PathLike[str]) -> Any:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _check_head(path: str | os.PathLike[str], line: bytes, env: str) -> None:
    try:
        head = msgspec.json.decode(line, type=ExportHead)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is no export of semel that this version reads: line 1: {error}") from error
    if head.env != env:
        raise UsageError(
            f"{path} is of environment {head.env!r}, which is part of every key, and not of {env!r}"
        )


def _end(line: bytes) -> ExportEnd | None:
    if not line.startswith(b'{"items"'):
        return None
    return msgspec.json.decode(line, type=ExportEnd)


TABLES = {table.name: table for table in OWN}
TYPES: dict[Kind, Any] = {
    Kind.TEXT: str,
    Kind.NUMBER: int | float,
    Kind.BYTES: bytes,
    Kind.FLAG: bool,
    Kind.OBJECT: dict,
    Kind.SET: set,
}


def _item(line: bytes) -> tuple[Table, Item]:
    read = msgspec.json.decode(line, type=ExportLine)
    if read.table not in TABLES:
        raise ValueError(f"there is no table {read.table!r}")
    table, item = TABLES[read.table], read.item
    for name, kind in table.kinds.items():
        if kind is Kind.BYTES and isinstance(item.get(name), str):
            item[name] = _bytes(name, item[name])
    return table, item


def _bytes(name: str, text: str) -> bytes:
    try:
        return a2b_base64(text, strict_mode=True)
    except NotBase64 as error:
        raise ValueError(f"{name} is no base64: {error}") from error


def _check(line: bytes, env: str) -> None:
    table, item = _item(line)
    for name, value in item.items():
        _check_value(table, name, value)
    missing = [name for name in table.key if name not in item]
    missing += [table.expires] if table.expires not in item and not table.forever else []
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    if not item[table.partition].startswith(env_prefix(env)):
        raise ValueError(f"its key is not of environment {env!r}")


def _check_value(table: Table, name: str, value: Any) -> None:
    kind = table.kinds.get(name)
    if kind is None:
        raise ValueError(f"table {table.name} has no attribute {name!r}")
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind is not Kind.FLAG):
        raise ValueError(f"{name} is to hold {kind.value}")
