"""The statements that write.

One step, `s0`, changes the row that is there, another, `s1`, makes one where there is none, and `w` is what
either has written. What was in the way is read only where nothing was written. A write that is refused by
what it reads has therefore written nothing, locked nothing, and waited for nobody.
"""

from collections.abc import Callable
from typing import TypeAlias

from semel.core.commands import Add, Delete, Item, Put, Update, Write, holds
from semel.errors import UsageError
from semel.stores.postgres.conditions import Clauses, StatementShape
from semel.stores.postgres.statements import BELL, StatementTemplate, TableSQL, channel
from semel.stores.postgres.values import HEAD, ITEM, ONCE, Parameters
from semel.stores.sql import check, check_kind, lacks, literal, quoted
from semel.tables import Kind, Table

# What is written to each column, as SQL.
ColumnChanges: TypeAlias = dict[str, str]
# A step, once it is known from where it has its values: from `v`, or from those of them that were locked.
WriteClause: TypeAlias = Callable[[str], str]

FOREVER = "'Infinity'::float8"
NULL = "NULL"

# Fails where nothing was written, so that the server undoes the whole transaction; its log has these words.
REFUSED = "semel takes this transaction back: a condition in it does not hold"
MADE = f"(CASE WHEN w._rings IS NULL THEN '{REFUSED}' ELSE '1' END)::int"

# PostgreSQL refuses a longer notification, and the write with it. Who waits for such a key looks by himself.
LONGEST_NOTE = 7999


class WriteStatements(TableSQL):
    """Makes the statements that write to a table.

    Their rows begin with the time, with whether somebody waited for what was written, which is NULL where
    nothing was, and with whether they were notified; then come the columns of an item.
    """

    def __init__(self, table: Table, schema: str | None) -> None:
        super().__init__(table, schema)
        self._channel = literal(channel(schema))

    def put(self, command: Put, when: StatementShape) -> StatementTemplate:
        """Writes a whole item."""
        parameters = self._key(command)
        changes = self._changes(parameters, ITEM, command.item)
        if self.table.expires not in changes:
            changes[self.table.expires] = self._end()
        others = {name: NULL for name in self.kinds if name not in changes and name not in self.table.key}
        fresh = _fresh(command)
        allowing = self._allowing(parameters, when, fresh)
        step = self._updating(changes | others, allowing)
        return self._template(parameters, allowing, step, self._inserting(changes) if fresh else None)

    def update(self, command: Update, when: StatementShape) -> StatementTemplate:
        """Changes attributes of an item."""
        parameters = self._key(command)
        changes = self._changes(parameters, ITEM, command.set)
        allowing = self._allowing(parameters, when)
        return self._template(parameters, allowing, self._updating(changes, allowing))

    def delete(self, command: Delete, when: StatementShape) -> StatementTemplate:
        """Removes an item."""
        parameters = self._key(command)
        allowing = self._allowing(parameters, when)
        returned = self._returning(ringing=1)
        return self._template(
            parameters,
            allowing,
            lambda values: (
                f"DELETE FROM {self.name} o USING n, {values} WHERE {allowing} RETURNING {returned}"
            ),
        )

    def add(self, command: Add, when: StatementShape) -> StatementTemplate:
        """Adds to a number of an item that is there, or begins one; answers with the whole item."""
        parameters = self._key(command)
        kept, begun = self._sums(parameters, command)
        fresh = _fresh(command) and self.table.expires in begun
        allowing = self._allowing(parameters, when, fresh)
        if not fresh:
            return self._template(
                parameters, allowing, self._updating(kept, allowing, whole=True), whole=True
            )
        either = {
            name: f"CASE WHEN {self.alive} THEN {kept.get(name, f'o.{quoted(name)}')} "
            f"ELSE {begun.get(name, NULL)} END"
            for name in self.kinds
            if name not in self.table.key
        }
        step = self._updating(either, allowing, whole=True)
        return self._template(parameters, allowing, step, self._inserting(begun, whole=True), whole=True)

    # Values

    def _key(self, command: Write) -> Parameters:
        """Parameters that begin with the key."""
        parameters = Parameters()
        for place, name in enumerate(self.table.key):
            check_kind(name, self.kinds[name], (command.key, command.sort)[place])
            parameters.value(self.kinds[name], str, HEAD, place)
        return parameters

    def _changes(self, parameters: Parameters, part: int, item: Item) -> ColumnChanges:
        """What an item says of each column; the key is the command's own."""
        check(self.table.name, self.kinds, item)
        changes: ColumnChanges = {}
        for name, value in item.items():
            if name in self.table.key:
                continue
            if value is not None:
                changes[name] = parameters.value(self.kinds[name], type(value), part, name)
            else:
                changes[name] = self._end() if name == self.table.expires else NULL
        return changes

    def _sums(self, parameters: Parameters, command: Add) -> tuple[ColumnChanges, ColumnChanges]:
        """What an `Add` makes of an item that is there, and what of none."""
        sum_of = command.attribute
        if self.kinds.get(sum_of) is not Kind.NUMBER:
            raise UsageError(f"table {self.table.name} has no number {sum_of!r} to add to")
        always = self._changes(parameters, ITEM, command.set)
        given = {name: value for name, value in command.once.items() if value is not None}
        once = self._changes(parameters, ONCE, given)
        by = parameters.value(Kind.NUMBER, float, HEAD, 2)
        kept = {name: f"coalesce(o.{quoted(name)}, {value})" for name, value in once.items()} | always
        begun = {name: value for name, value in (once | always).items() if value != NULL}
        kept[sum_of] = f"{kept.get(sum_of, f'coalesce(o.{quoted(sum_of)}, 0)')} + {by}"
        begun[sum_of] = f"{begun.get(sum_of, '0')} + {by}"
        if self.table.forever:
            begun.setdefault(self.table.expires, FOREVER)
        return kept, begun

    def _end(self) -> str:
        """When an item ends that is given no end."""
        if not self.table.forever:
            raise lacks(self.table, self.table.expires)
        return FOREVER

    # Steps

    def _allowing(self, parameters: Parameters, when: StatementShape, fresh: bool = False) -> str:
        """Which row is written: one for which the condition holds, or also one whose time is up."""
        holding = Clauses(self.kinds, parameters).write(when) if when else "TRUE"
        if fresh:
            return f"{self.here} AND (o.{self.expires} <= n.now OR {holding})"
        return f"{self.here} AND {self.alive} AND {holding}"

    def _updating(self, changes: ColumnChanges, allowing: str, whole: bool = False) -> WriteClause:
        rung = f"{BELL} = CASE WHEN o.{BELL} = 1 THEN 2 ELSE 0 END"
        sets = ", ".join([*(f"{quoted(name)} = {value}" for name, value in changes.items()), rung])
        returned = self._returning(ringing=2, whole=whole)
        return lambda values: (
            f"UPDATE {self.name} o SET {sets} FROM n, {values} WHERE {allowing} RETURNING {returned}"
        )

    def _inserting(self, changes: ColumnChanges, whole: bool = False) -> str:
        given = {name: value for name, value in changes.items() if value != NULL}
        names = ", ".join(map(quoted, (*self.table.key, *given)))
        parameters = ", ".join([*(f"v.p{place}" for place in range(self.keyed)), *given.values()])
        # Not where a row is: one that somebody is changing would be waited for.
        return (
            f"INSERT INTO {self.name} AS o ({names}) SELECT {parameters} FROM n, v "
            f"WHERE NOT EXISTS (SELECT FROM {self.name} o WHERE {self.here}) "
            f"ON CONFLICT DO NOTHING RETURNING {self._returning(ringing=2, whole=whole)}"
        )

    def _returning(self, ringing: int, whole: bool = False) -> str:
        """What a step tells of a row that it wrote: its key, and whether somebody waits for it."""
        keys = [f"o.{quoted(name)} AS _k{place}" for place, name in enumerate(self.table.key)]
        returned = ", ".join([*keys, f"o.{BELL} = {ringing} AS _rings"])
        return f"{returned}, {self.columns('o')}" if whole else returned

    # Whole statements

    def _template(
        self,
        parameters: Parameters,
        allowing: str,
        step: WriteClause,
        insert: str | None = None,
        whole: bool = False,
    ) -> StatementTemplate:
        rest = ", w AS (SELECT * FROM s0)"
        if insert is not None:
            rest = f", s1 AS ({insert}), w AS (SELECT * FROM s0 UNION ALL SELECT * FROM s1)"
        one = f", s0 AS ({step('v')}){rest} {self._answer(whole)}"
        many = f"{self._locked(allowing)}, s0 AS ({step('l v')}){rest} {self._answers(whole)}"
        firm = (
            f", s0 AS ({step('v')}){rest} SELECT n.now, {self._ringing()}, {MADE} FROM n LEFT JOIN w ON TRUE"
        )
        return StatementTemplate(parameters, self.keyed, one, many, firm)

    def _answer(self, whole: bool) -> str:
        """One row: what was made, or else what was in the way."""
        same = " AND ".join(f"w._k{place} = v.p{place}" for place in range(self.keyed))
        return (
            f"SELECT n.now, w._rings, {self._ringing()}, {self.columns('o', 'w' if whole else '')} "
            f"FROM n CROSS JOIN v LEFT JOIN w ON {same} "
            f"LEFT JOIN {self.name} o ON w._rings IS NULL AND {self.here} AND {self.alive}"
        )

    def _locked(self, allowing: str) -> str:
        """Those rows of many that are written, locked in the order of their keys, as all others lock them."""
        row = f"SELECT FROM {self.name} o WHERE {allowing} LIMIT 1 FOR UPDATE OF o"
        return f", l AS MATERIALIZED (SELECT v.* FROM n, v CROSS JOIN LATERAL ({row}) x)"

    def _answers(self, whole: bool) -> str:
        """Rows of what was there, of what was made, and one of nothing, which tells the time.

        They are not joined here: taking them for few, the server would compare each with each.
        """
        nothing = ", ".join([NULL] * len(self.kinds))
        made = self._made() if not whole else ", ".join(f"w.{quoted(name)}" for name in self.kinds)
        there = f"SELECT {self.columns('o')} FROM {self.name} o WHERE {self.here} AND {self.alive} LIMIT 1"
        return (
            f"SELECT n.now, NULL::bool, NULL::bool, x.* FROM n, v CROSS JOIN LATERAL ({there}) x "
            f"UNION ALL SELECT n.now, w._rings, {self._ringing()}, {made} FROM n, w "
            f"UNION ALL SELECT n.now, NULL, NULL, {nothing} FROM n"
        )

    def _made(self) -> str:
        """The columns of what was made, as far as a step returns them: the key."""
        keys = {name: f"w._k{place}" for place, name in enumerate(self.table.key)}
        return ", ".join(keys.get(name, NULL) for name in self.kinds)

    def _ringing(self) -> str:
        key = ", ".join(f"w._k{place}" for place in range(self.keyed))
        note = f"json_build_array({literal(self.table.name)}, {key})::text"
        return (
            f"CASE WHEN w._rings AND octet_length({note}) <= {LONGEST_NOTE} "
            f"THEN pg_notify({self._channel}, {note}) IS NULL END"
        )


def _fresh(command: Put | Add) -> bool:
    """Whether a write may make an item where none is."""
    return command.when is None or holds(command.when, None, 0)
