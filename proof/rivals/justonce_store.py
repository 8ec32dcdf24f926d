"""semel's ledger as a store of justonce: `justonce.stores.base.Store`."""

from typing import Any, Final

import msgspec
from justonce.stores.base import Claim, Record, State

import semel
from semel.core.lifecycle import Status

# Where justonce keeps a record for ever, or does not say how long.
CENTURY: Final = 100 * 365 * semel.DAY

STATES: Final = {
    Status.IN_PROGRESS: State.IN_PROGRESS,
    Status.COMPLETED: State.SUCCEEDED,
    Status.FAILED: State.FAILED,
    Status.UNKNOWN: State.UNKNOWN,
}


class SemelStore:
    """The methods of a store.

    justonce names a key where semel asks for the claim, so the claims that were won are remembered here.
    """

    def __init__(self, s: semel.Semel) -> None:
        self._ledger = s.ledger
        self._won: dict[str, semel.Claimed] = {}

    def claim(self, key: str, request_hash: str, ttl_seconds: float) -> Claim:
        ended = ttl_seconds <= 0
        lease = semel.HOUR if ended else ttl_seconds
        outcome = self._ledger.claim(key, fingerprint=request_hash, lease=lease, ttl=max(CENTURY, 2 * lease))
        if not isinstance(outcome, semel.Claimed):
            return Claim(False, self._translated(outcome.record))
        self._won[key] = outcome
        if ended:
            self._ledger.lapse(outcome)  # a lease that is over, as after a crash
        return Claim(True, self.lookup(key))

    def complete(self, key: str, response: Any, *, retention_seconds: float | None = None) -> None:
        self._ledger.complete(self._held(key, retention_seconds), response)

    def fail(self, key: str, *, terminal: bool, retention_seconds: float | None = None) -> None:
        if terminal:
            self._ledger.fail(self._held(key, retention_seconds), semel.Failure("Failed", "it is final"))
        else:
            self._ledger.release(self._won[key])

    def mark_unknown(self, key: str) -> None:
        self._ledger.doubt(self._won[key])

    def lookup(self, key: str) -> Record | None:
        record = self._ledger.get(key)
        # What is released may run again; justonce keeps no record of that.
        return None if record is None or record.status is Status.RELEASED else self._translated(record)

    def sweep(self, *, before: float) -> int:
        """Nothing: what has expired is absent from that moment, and the store deletes it in its own time."""
        return 0

    def unresolved(self, *, older_than: float | None = None, limit: int = 100) -> list[Record]:
        found = self._ledger.doubts(limit=limit).records
        return [
            self._translated(record)
            for record in found
            if older_than is None or record.updated_at <= older_than
        ]

    def _held(self, key: str, retention: float | None) -> semel.Claimed:
        return msgspec.structs.replace(self._won[key], ttl=CENTURY if retention is None else retention)

    def _translated(self, record: semel.Record) -> Record:
        done = record.status is Status.COMPLETED
        return Record(
            record.key,
            STATES[record.status],
            record.fingerprint or "",
            self._ledger.result(record) if done else None,
            record.attempt,
            record.created_at,
            record.updated_at,
            record.expires_at if done or record.status is Status.FAILED else record.lease_until,
        )
