"""The statements that read, and the one that tidies up."""

from collections.abc import Iterator

from semel.core.commands import Bound, Query, ordering
from semel.stores.postgres.conditions import Clauses, StatementShape
from semel.stores.postgres.statements import BELL, StatementTemplate, TableSQL, realm
from semel.stores.postgres.values import HEAD, Parameters
from semel.stores.sql import check_kind, quoted
from semel.tables import Index


class ReadStatements(TableSQL):
    """Makes the statements that read a table. The first column of their rows is the time, but for `lock`."""

    def get(self) -> StatementTemplate:
        """Reads one item."""
        return self._template(
            self._key(),
            f" SELECT n.now, {self.columns('o')} FROM n CROSS JOIN v "
            f"LEFT JOIN {self.name} o ON {self.here} AND {self.alive}",
        )

    def subscribe(self) -> StatementTemplate:
        """Reads one item, and has the next write to it notify whoever waits."""
        return self._template(
            self._key(),
            f", m AS (UPDATE {self.name} o SET {BELL} = 1 FROM n, v WHERE {self.here} AND {self.alive} "
            f"AND o.{BELL} <> 1 RETURNING {self.columns('o')}) SELECT n.now, {self.columns('o', 'm')} "
            f"FROM n CROSS JOIN v LEFT JOIN m ON TRUE LEFT JOIN {self.name} o "
            f"ON m.{quoted(self.table.partition)} IS NULL AND {self.here} AND {self.alive}",
        )

    def rows(self, locking: str = "") -> StatementTemplate:
        """Reads many rows, expired ones too."""
        return self._template(
            self._key(), f" SELECT {self.columns('o')} FROM v JOIN {self.name} o ON {self.here}{locking}"
        )

    def lock(self) -> StatementTemplate:
        """Reads many rows, expired ones too, in the order of their keys, and locks them."""
        return self.rows(f" ORDER BY {self.order('o')} FOR UPDATE OF o")

    def reap(self) -> StatementTemplate:
        """Deletes some expired rows, passing over those that somebody is writing; counts them."""
        parameters = Parameters()
        key = ", ".join(quoted(name) for name in self.table.key)
        expired = (
            f"SELECT {key} FROM {self.name} WHERE {self.expires} <= (SELECT now FROM n) "
            f"ORDER BY {self.expires} LIMIT {parameters.count(0)} FOR UPDATE SKIP LOCKED"
        )
        return self._template(
            parameters,
            f", d AS (DELETE FROM {self.name} o USING n WHERE o.{self.expires} <= n.now "
            f"AND ({self.order('o')}) IN ({expired}) RETURNING 1) SELECT count(*) FROM d",
        )

    def query(self, query: Query, place: list[str | float], where: StatementShape) -> StatementTemplate:
        """Reads a page, and one item more where there is one. The head is (key, low, high, limit, *place)."""
        parameters, index = Parameters(), self.table.index(query.index)
        order = ordering(self.table, index)
        clauses = [self.alive, *self._bounds(parameters, query, index)]
        if place:
            beyond = [parameters.value(self.kinds[name], str, HEAD, at) for at, name in enumerate(order, 4)]
            clauses.append(
                f"({self.order('o', '', order)}) {'<' if query.reverse else '>'} ({', '.join(beyond)})"
            )
        if where:
            clauses.append(Clauses(self.kinds, parameters).write(where))
        direction = " DESC" if query.reverse else ""
        rows = (
            f"SELECT {self.columns('o')} FROM {self.name} o, v WHERE {' AND '.join(clauses)} "
            f"ORDER BY {self.order('o', direction, order)} LIMIT {parameters.count(3)}"
        )
        again = self.order("r", direction, order)
        return self._template(
            parameters, f" SELECT n.now, r.* FROM n LEFT JOIN LATERAL ({rows}) r ON TRUE ORDER BY {again}"
        )

    def _bounds(self, parameters: Parameters, query: Query, index: Index | None) -> Iterator[str]:
        """Which partition of the table, or of an index, and what part of it."""
        by = self.table if index is None else index
        if query.key is not None:
            column = f"o.{quoted(by.partition)}"
            if index is not None and index.by_realm:
                column = realm(column)
            yield f"{column} = {self._bound(parameters, by.partition, 0, query.key)}"
        if by.sort is None:
            return
        if index is not None:
            yield f"o.{quoted(by.sort)} IS NOT NULL"
        for operator, place, value in ((">=", 1, query.low), ("<=", 2, query.high)):
            if value is not None:
                yield f"o.{quoted(by.sort)} {operator} {self._bound(parameters, by.sort, place, value)}"

    def _bound(self, parameters: Parameters, name: str, place: int, value: Bound) -> str:
        check_kind(name, self.kinds[name], value)
        return parameters.value(self.kinds[name], type(value), HEAD, place)

    def _key(self) -> Parameters:
        parameters = Parameters()
        for place, name in enumerate(self.table.key):
            parameters.value(self.kinds[name], str, HEAD, place)
        return parameters

    def _template(self, parameters: Parameters, body: str) -> StatementTemplate:
        return StatementTemplate(parameters, self.keyed, body)
