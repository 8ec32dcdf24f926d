"""Records of the ledger: how they are written to items and read from them."""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from semel import errors
from semel.core.codecs import Body, Codec, Decoder, Encoded, check_details, not_kept
from semel.core.commands import NOW, After, Discard, Fetch, Item, Stash, Steps
from semel.core.events import Events, What
from semel.core.keys import Key, key_of
from semel.core.lifecycle import Move, Status
from semel.core.realm import Realm
from semel.core.sealing import SEALED
from semel.core.workers import worker_name
from semel.model import MISSING, RECORD_VERSION, Claimed, Failure, HistoryEntry, OnLapsed, Record
from semel.tables import LEDGER

Details: TypeAlias = dict[str, Any] | None

# An error's message is kept for a person to read; it is no place for data.
MAX_ERROR_TEXT = 1000

# So much of what came before is kept in a record: the last entries, and of each the beginning of its note.
MAX_HISTORY = 8
MAX_NOTE = 200

# What somebody does to a record whose attempt is over.
BY_HAND = frozenset({"settled", "dropped", "completed by hand", "released by hand", "failed by hand"})


class ClaimTerms(msgspec.Struct, frozen=True):
    """On what terms a key is claimed."""

    lease: float
    ttl: float
    fingerprint: str | None = None
    on_lapsed: OnLapsed = "rerun"
    max_attempts: int | None = None
    subject: str | None = None
    doubt_ttl: float | None = None
    """How long a doubt waits for somebody to settle it; None for ever."""


class RecordSteps:
    """How results, errors and details stand in a record: encoded, sealed, or in the overflow."""

    def __init__(self, realm: Realm, codec: Codec | None = None, *, clear_details: bool = False) -> None:
        self.realm = realm
        self.codec: Codec = codec or Codec()
        self.clear_details = clear_details
        """Details stand in attributes that others read too, and so they are not sealed."""
        # What is asked of the realm at every call.
        self.prefix: str = realm.prefix
        self.name: Callable[[str | Key], str] = realm.name
        self.subject: Callable[[str], str] = realm.subject
        self.events: Events = realm.events
        self.horizon: float = realm.horizon
        self.token: Callable[[], str] = realm.token

    def _overflow(self, claim: Claimed, encoded: Encoded) -> Steps[Body]:
        """Place a result that its row cannot hold. The effect has happened: at worst the fact is kept."""
        body, problem = encoded.body, encoded.problem or ""
        if encoded.oversize is not None:
            try:
                reference = yield Stash(claim.id, encoded.oversize)
            except Exception as error:  # noqa: BLE001 - an overflow may fail in any way
                body, problem = not_kept("overflow-failed"), f"{type(error).__name__}: {error}"
            else:
                if reference is not None:
                    return self.codec.overflowed(encoded.encoding, reference)
        self.events.warn(What.RESULT_NOT_KEPT, claim.id, claim.attempt, problem)
        return body

    def _kept_text(self, id: str, error: BaseException | Failure) -> str:
        """An error as it is kept in a record."""
        return self._sealed_text(id, self._kept(error))

    def _kept(self, error: BaseException | Failure) -> Failure:
        failure = failure_of(error)
        message = self.events.scrubbed(failure.message, MAX_ERROR_TEXT)
        # A path, say, may hold half a character, which no JSON has.
        message = message.encode(errors="replace").decode()
        return msgspec.structs.replace(failure, message=message)

    def _sealed_text(self, id: str, failure: Failure) -> str:
        # Its type stays readable: whoever looks on wants to know it, and it is nobody's.
        message = self.realm.sealing.text(failure.message, LEDGER.name, id, "error", steady=True)
        return msgspec.json.encode(msgspec.structs.replace(failure, message=message)).decode()

    def _noted(self, id: str, change: Item, details: Details) -> Item:
        if details:
            check_details(details)
            change["details"] = details
            if not self.clear_details:
                change["details"] = self.realm.sealing.object(
                    details, LEDGER.name, id, "details", steady=True
                )
        return change

    def _opened(self, record: Record) -> Record:
        """A record whose error and details read as they were given, or say why they cannot be read."""
        failure = record.failure if record.error is not None and SEALED in record.error else None
        if failure is not None:
            message = self.realm.sealing.opened_text(failure.message, LEDGER.name, record.id, "error")
            failure = msgspec.structs.replace(failure, message=message)
            record = msgspec.structs.replace(record, error=msgspec.json.encode(failure).decode())
        if record.history is not None and SEALED in record.history:
            history = self.realm.sealing.opened_text(record.history, LEDGER.name, record.id, "history")
            record = msgspec.structs.replace(record, history=history)
        if record.details is not None and not self.clear_details:
            details = self._opened_details(record.id, record.details)
            record = msgspec.structs.replace(record, details=details)
        return record

    def _opened_details(self, id: str, kept: Item) -> Item:
        try:
            return self.realm.sealing.opened(kept, LEDGER.name, id, "details")  # type: ignore[no-any-return]
        except ValueError as error:
            return {"unreadable": str(error)}

    def worker(self) -> str:
        """Who is at work here, as a record keeps it."""
        return worker_name(self.realm.worker, self.events.task)

    def history(self, record: Record, how: str, ended: float, *acts: HistoryEntry) -> str:
        """What a record says of its past once the present attempt is past, and whatever was done then."""
        past = record.past
        # What was done by hand comes after the attempt that it ended.
        if not (past and past[-1].how in BY_HAND and past[-1].attempt == record.attempt):
            note = "" if record.failure is None else f"{record.failure.type}: {record.failure.message}"
            who, began = record.worker or "", record.began
            past = (*past, HistoryEntry(record.attempt, who, began, ended, how, note[:MAX_NOTE]))
        text = msgspec.json.encode((*past, *acts)[-MAX_HISTORY:]).decode()
        return self.realm.sealing.text(text, LEDGER.name, record.id, "history", steady=True)

    def _result(self, record: Record, decoder: Decoder) -> Steps[Any]:
        if record.result is None:
            return MISSING
        body = Body(record.result, record.encoding or "")
        try:
            reference = self.codec.reference(body)
            if reference is not None:
                data = yield Fetch(reference)
                if data is None:
                    return MISSING
                body = self.codec.fetched(body, data)
            return self.codec.decode(body, decoder, record.id)
        except (errors.ResultUnreadable, errors.UsageError) as error:
            reason = error.reason if isinstance(error, errors.ResultUnreadable) else str(error)
            raise errors.ResultUnreadable(record.key, reason) from error

    def discard(self, result: Any, encoding: Any) -> Steps[None]:
        """Remove a result from the overflow, if it is there."""
        if isinstance(result, bytes) and isinstance(encoding, str):
            reference = self.codec.reference(Body(result, encoding))
            if reference is not None:
                yield Discard(reference)

    def _record(self, id: str, item: Item | None) -> Record | None:
        """An item as a record; what cannot be read is reported and never taken for absent."""
        return None if item is None else self._readable(id, item)

    def _readable(self, id: str, item: Item) -> Record:
        try:
            record = msgspec.convert(item, Record)
            if record.version > RECORD_VERSION:
                raise errors.SchemaTooNew(record.version, RECORD_VERSION)
        except (msgspec.ValidationError, errors.SchemaTooNew) as error:
            self.events.warn(What.CORRUPT, id, detail=str(error))
            raise errors.RecordCorrupt(key_of(id), str(error)) from error
        kept = record.error is not None or record.details is not None or record.history is not None
        return self._opened(record) if kept else record


def failure_of(error: BaseException | Failure, kept_as: str = "") -> Failure:
    """An error as it is kept."""
    if isinstance(error, Failure):
        return error
    return Failure(type(error).__qualname__, errors.words_of(error), kept_as)


def opening(
    terms: ClaimTerms, token: str, worker: str, attempt: int = 1, before: Record | None = None
) -> Item:
    """A record at the beginning of an attempt."""
    item: Item = {
        "status": "IN_PROGRESS",
        "token": token,
        "attempt": attempt,
        "fingerprint": terms.fingerprint if before is None else before.fingerprint or terms.fingerprint,
        "created_at": NOW if before is None else before.created_at,
        "updated_at": NOW,
        "lease_until": After(terms.lease),
        "expires_at": After(terms.ttl),
        "version": RECORD_VERSION,
        "worker": worker,
    }
    if subject := terms.subject if before is None else before.subject or terms.subject:
        item["subject"] = subject
    return item


def moved_on(change: Item, move: Move, claim: Claimed | ClaimTerms, prefix: str) -> Item:
    """Add what every move writes. Each sets the end of the record's life anew, so it outlives the lease.

    What may come to be in doubt does not end as other records do: by then somebody has to have settled it.
    """
    change["status"] = move.status
    change["updated_at"] = NOW
    reruns = claim.on_lapsed == "rerun"
    if move.to is Status.UNKNOWN or (move.to is Status.IN_PROGRESS and not reruns):
        change["expires_at"] = doubt_end(claim.doubt_ttl)
        return change
    change["expires_at"] = After(claim.ttl)
    if not reruns:
        change["doubt"] = change["doubt_since"] = None
    if move.to is Status.FAILED:
        change |= {"failed": prefix, "failed_at": NOW}
    elif Status.FAILED in move.start:
        change["failed"] = change["failed_at"] = None
    return change


def doubt_end(span: float | None) -> After | None:
    """When a doubt ends that waits so long; None where it waits for ever."""
    return None if span is None else After(span)


def was_made(item: Item | None, token: str, change: Item) -> bool:
    """Whether the record already is as the change would leave it: my write, whose answer was lost."""
    if item is None or item.get("token") != token:
        return False
    return all(
        item.get(name) == value
        for name, value in change.items()
        if type(value) is not After and name not in BESIDE
    )


# When a record ends, what it is found by and what came before do not tell what became of it.
BESIDE = frozenset({"expires_at", "doubt", "doubt_since", "history", "failed", "failed_at"})


def is_running(record: Record, now: float) -> bool:
    """Whether somebody is at work on it, and has not been silent for too long."""
    return record.status is Status.IN_PROGRESS and record.lease_until > now
