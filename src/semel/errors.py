"""Every error semel raises, in one tree.

SemelError
├── UsageError              the call itself is wrong; nothing was written
│   ├── InvalidKey          empty, too long, unprintable, or built from a part that names nothing
│   ├── TemplateError       a key template that its function cannot fill
│   ├── InvalidPayload      a payload that has no canonical form
│   ├── InvalidOption       a lease, a time zone, a rule or a policy that cannot work
│   ├── MessageRefused      a message that no inbox can keep
│   ├── LazyResult          a generator or awaitable in place of a result: its work has not run
│   ├── Reentered           the same key again, from inside its own run
│   ├── WriteUnderWay       a signal handler writes in the midst of a write that it has interrupted
│   └── MissingExtra        an optional dependency is not installed
├── Refused                 the record that was found says no; nothing was changed
│   ├── InProgress          another attempt holds the key
│   ├── PayloadChanged      the key was first used with another payload
│   ├── OutcomeUnknown      an attempt vanished, and somebody has to settle what became of it
│   ├── FailedBefore        the failure was kept, and is raised again
│   ├── AlreadyDone         a `with` block whose work is done already
│   ├── ResultNotKept       done, but its result was not stored
│   ├── ResultUnreadable    done, but the stored result does not fit the type asked for
│   ├── ClaimLost           the claim is no longer the caller's
│   ├── VersionConflict     the document was changed meanwhile
│   └── CapReached          the counter has no room for that much
├── StoreError              the store did not do as asked
│   ├── StoreUnavailable    not reached, or it failed before anything was written
│   ├── StoreThrottled      still too busy after every retry
│   ├── StoreOutcomeUnknown nobody can tell whether the write was applied
│   ├── StoreClosed         used after close()
│   ├── TableMissing        the table, or the database, is not there
│   ├── QueueMissing        there is no queue at that URL
│   ├── WrongSchema         the table is there, and is not as it should be
│   ├── NotProvisioned      an optional index that the store's owner has not provisioned
│   ├── WrongReply          the store answered what no store may answer to that command
│   ├── NotPermitted        the store knows the caller, and does not let it do that
│   ├── WrongEnvironment    the store belongs to another environment
│   ├── SchemaTooNew        written by a newer semel
│   └── RecordCorrupt       a record that cannot be read; it is never taken for absent
├── BrokerError             a queue's own server did not do as asked
│   ├── BrokerUnavailable   not reached, or it let nobody in; nothing was sent
│   ├── AddressRefused      it has no such address, or not for this user; nothing was sent
│   ├── SendRefused         it has seen the message and does not keep it
│   └── SendOutcomeUnknown  nobody can tell whether the message is there
├── MessageUnreadable       a message whose body cannot be read any more
├── BadSignature            a webhook that does not prove who sent it, or when
├── Later                   not now: nothing was done, and it does not count as an attempt
├── NotBegun                this process cannot run the work now; nothing was done
└── ShuttingDown            no new work is begun
"""

from collections.abc import Callable
from typing import Any


def words_of(error: BaseException | None) -> str:
    """What an error says; of one that cannot say it, why not."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 - it is somebody else's code, and may do anything
        return f"<it cannot say what is wrong: {type(problem).__name__}>"


def fails_again(read: Callable[[], object]) -> bool:
    """Whether reading a value raises a second time; if not, a signal handler raised, and not the value."""
    try:
        read()
    except Exception:  # noqa: BLE001 - it is somebody else's code, and may do anything
        return True
    return False


class SemelError(Exception):
    """The root of the tree: every error of semel is one."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take fields, not the message, so the default would not survive pickling.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[SemelError], args: tuple[Any, ...], fields: dict[str, Any]) -> SemelError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class UsageError(SemelError, ValueError):
    """The call itself is wrong; nothing was written."""


class InvalidKey(UsageError):
    """A key that is empty, too long, unprintable, or built from a part that names nothing."""


class TemplateError(UsageError):
    """A key template that its function cannot fill."""


class InvalidPayload(UsageError):
    """A payload that has no canonical form, and so no fingerprint."""


class InvalidOption(UsageError):
    """A lease, a time to live, a time zone, a rule or a policy that cannot work."""


class MessageRefused(UsageError):
    """A message that cannot be kept: it is too large, or holds what JSON has not."""


class LazyResult(UsageError):
    """A generator, awaitable or iterator in place of a result: its work has not run, so nothing is stored."""

    def __init__(self, source: str, returned: str, remedy: str) -> None:
        super().__init__(f"{source} returned {returned}, whose work has not run: {remedy}")
        self.source = source
        self.returned = returned


class Reentered(UsageError):
    """A key was claimed again from inside its own run."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key!r} is already running in this very call, which would wait for itself for ever; "
            "give the inner call a key of its own"
        )
        self.key = key


class WriteUnderWay(UsageError):
    """A signal handler cannot write in the midst of a write of its own thread; it has written nothing."""

    def __init__(self) -> None:
        super().__init__(
            "a signal handler cannot write while the write that it has interrupted is under way: let the "
            "handler take a note, and write once it has returned"
        )


class MissingExtra(UsageError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(f'{module} is not installed: pip install "semel[{extra}]"')
        self.extra = extra


class Refused(SemelError):
    """The record that was found says no; nothing was changed."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key!r} {message}")
        self.key = key


class InProgress(Refused):
    """Another attempt holds the key."""

    def __init__(self, key: str, retry_after: float, attempt: int) -> None:
        super().__init__(
            key, f"is being worked on (attempt {attempt}); its lease runs for another {retry_after:.1f} s"
        )
        self.retry_after = retry_after
        self.attempt = attempt


class PayloadChanged(Refused):
    """The key was first used with another payload."""

    def __init__(self, key: str) -> None:
        super().__init__(
            key, "was first used with another payload; use a new key, or send the payload of the first time"
        )


class OutcomeUnknown(Refused):
    """An attempt vanished, and somebody has to settle what became of it."""

    def __init__(self, key: str, attempt: int) -> None:
        super().__init__(
            key,
            f"is held: attempt {attempt} vanished and its effect may have happened; "
            "find out, then settle it with ledger.resolve()",
        )
        self.attempt = attempt


class FailedBefore(Refused):
    """The failure was kept, and is raised again.

    Where `on_error` keeps a type, the error raised on replay is an instance of that type too, so the
    caller's `except` clause sees the first time and every later time alike.
    """

    def __init__(self, key: str, error_type: str, error_message: str, attempt: int) -> None:
        super().__init__(key, f"failed for good at attempt {attempt}: {error_type}: {error_message}")
        self.error_type = error_type
        self.error_message = error_message
        self.attempt = attempt


class AlreadyDone(Refused):
    """A `with` block whose work is done already; `result` is what came of it, as `record` says."""

    def __init__(self, key: str, result: Any, record: Any = None) -> None:
        super().__init__(key, "is done already; its result is in .result")
        self.result = result
        self.record = record


class ResultNotKept(Refused):
    """The work is done, but its result was not stored."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, f"is done, but its result was not kept ({reason}); it will not run again")
        self.reason = reason


class ResultUnreadable(Refused):
    """Done, but the stored result cannot be read as the type asked for."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(
            key, f"is done, but its stored result cannot be read ({reason}); it will not run again"
        )
        self.reason = reason


class ClaimLost(Refused):
    """The claim is no longer the caller's; what it wanted to write was not written."""

    def __init__(self, key: str, attempt: int, move: str) -> None:
        super().__init__(
            key,
            f"is no longer held by attempt {attempt}, so it may not {move} it; "
            "if the work takes longer than its lease, raise the lease or keep the heartbeat on",
        )
        self.attempt = attempt
        self.move = move


class VersionConflict(Refused):
    """The document is not at the version that the change was made for; nothing was written."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        states = [f"version {number}" if number else "absent" for number in (found, expected)]
        super().__init__(
            key,
            f"is {states[0]}, and the change was made for {states[1]}: read it again, or let update() do so",
        )
        self.expected = expected
        self.found = found


class CapReached(Refused):
    """The counter has no room for that much in its period; nothing was written."""

    def __init__(self, key: str, used: float, cap: float, resets_at: float) -> None:
        super().__init__(key, f"stands at {used:g} of {cap:g}; its period ends at {resets_at:.0f}")
        self.used = used
        self.cap = cap
        self.resets_at = resets_at


class StoreError(SemelError):
    """The store did not do as asked."""


class StoreUnavailable(StoreError):
    """The store was not reached, or failed before anything was written."""


class StoreThrottled(StoreError):
    """The store is still too busy after every retry."""


class StoreOutcomeUnknown(StoreError):
    """Nobody can tell whether the write was applied."""


class StoreClosed(StoreError):
    """The store was used after `close`."""


class TableMissing(StoreError):
    """The table, or the database, is not there."""


class QueueMissing(StoreError):
    """There is no queue at that URL."""


class WrongSchema(StoreError):
    """The table is there, and is not as it should be."""


class NotProvisioned(StoreError):
    """A query needs an optional index that the store's owner has not provisioned; all else works."""

    def __init__(self, table: str, index: str, command: str) -> None:
        super().__init__(
            f"table {table} has no index {index!r}, which is optional; run: {command} --with {index}"
        )
        self.table = table
        self.index = index


class WrongReply(StoreError):
    """The store answered what no store may answer to that command: the store has a bug."""


class NotPermitted(StoreError):
    """The store knows the caller, and does not let it do that; or does not know it."""


class WrongEnvironment(StoreError):
    """The store belongs to another environment."""

    def __init__(self, stamped: str, asked: str) -> None:
        super().__init__(f"this store belongs to environment {stamped!r} and was opened for {asked!r}")
        self.stamped = stamped
        self.asked = asked


class SchemaTooNew(StoreError):
    """The record or the table was written by a newer semel."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"schema {found} is newer than {known}, the newest this version reads; upgrade semel"
        )
        self.found = found
        self.known = known


class RecordCorrupt(StoreError):
    """A record that cannot be read; it is never taken for absent."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"the record of {key!r} cannot be read ({reason}); it was left as it is")
        self.key = key
        self.reason = reason


class BrokerError(SemelError):
    """A queue's own server did not do as asked."""


class BrokerUnavailable(BrokerError):
    """The broker was not reached, or let nobody in; nothing was sent."""


class AddressRefused(BrokerError):
    """The broker has no such address, or not for this user; nothing was sent."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"the broker refuses {address!r}: {reason}. Create it there, or correct the address, "
            "whose form is the broker's own"
        )
        self.address = address
        self.reason = reason


class SendRefused(BrokerError):
    """The broker has seen the message and does not keep it; `outcome` is its word for that."""

    def __init__(self, address: str, outcome: str, reason: str) -> None:
        because = f": {reason}" if reason else ""
        super().__init__(f"{address!r} answered {outcome}{because}; the message is not there")
        self.address = address
        self.outcome = outcome
        self.reason = reason


class SendOutcomeUnknown(BrokerError):
    """The message may or may not be there: the answer did not come."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"the message to {address!r} may or may not be there ({reason}); send it again under the same "
            "key, and whoever handles messages once drops the second"
        )
        self.address = address
        self.reason = reason


class MessageUnreadable(SemelError):
    """What a message says cannot be read: its encryption key is not there, or its bytes are damaged."""


class BadSignature(SemelError):
    """A delivery that does not prove who sent it, or when; nothing in it can be believed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the webhook is refused, because {reason}: answer 401, and leave its body alone")
        self.reason = reason


class Later(SemelError):
    """Not now: nothing was done, it does not count as an attempt, and it is tried again after a while.

    Raise it out of work that has to wait for its turn, such as for the limits of another system. `everyone`
    tells a worker that no other message would fare better meanwhile, so that it begins none.
    """

    def __init__(self, seconds: float, why: str = "it is not its turn", *, everyone: bool = False) -> None:
        super().__init__(f"{why}; again in {seconds:.1f} s")
        self.retry_after = seconds
        self.everyone = everyone


class NotBegun(SemelError):
    """This process cannot run the work now; nothing was done, and it does not count as an attempt."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(
            f"The work on {key!r} did not begin: {why}. Check this process's limit of threads (ulimit -u), "
            "and begin no work while the interpreter shuts down."
        )
        self.key = key


class ShuttingDown(SemelError):
    """The process is about to stop, and begins no new work."""
