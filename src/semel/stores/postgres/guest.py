"""The clerk in a transaction of the caller's, which an error of the server's would end."""

from semel.commands import Applied, Cancelled, Transact, Write
from semel.stores.postgres.clerk import TRIES, Clerk, Sight, Talk, Trip, by_table, contended
from semel.stores.postgres.forms import ASK_TIME, Statement

BEGIN: Statement = b"SAVEPOINT semel", None
END: Statement = b"RELEASE SAVEPOINT semel", None
UNDO: Statement = b"ROLLBACK TO SAVEPOINT semel", None


class Guest(Clerk):
    """A clerk who dares nothing: he locks and looks before he writes."""

    def __init__(self, host: Clerk) -> None:
        super().__init__(host._schema, host._imposed)
        self._plans = host._plans

    def _transact(self, command: Transact) -> Talk[Applied | Cancelled]:
        prepared = self._in_order(command)
        for _ in range(TRIES):
            now, found = yield from self._locked([write for write, _, _ in prepared])
            refusals = self._judged(command, found, now)
            if any(refusals):
                yield Trip([END], commits=False)  # nothing was written
                return Cancelled(now, refusals)
            answers = yield Trip([(form.one, [now, *values]) for _, form, values in prepared], commits=False)
            # What was not there could not be locked, and may be there now.
            if all(row[1] is not None for [row] in answers):
                yield Trip([END], commits=False)
                return Applied(now)
            yield Trip([UNDO], commits=False)
        raise contended()

    def _locked(self, writes: list[Write]) -> Talk[tuple[float, Sight]]:
        """The time, and the rows that the writes are about, which nobody else changes from now on."""
        tables = by_table(writes)
        locks = [self.plan(several[0].table).lock(several) for several in tables.values()]
        time: Statement = ASK_TIME, [self._imposed()]
        _, *answers, [[now]] = yield Trip([BEGIN, *locks, time], commits=False)
        return now, self._sight(tables, answers)
