"""What happened, as values; listeners carry them to logs and telemetry.

An event names its key by a digest: the key itself may hold personal data, and is told where that is allowed.
"""

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from semel.errors import StoreError, StoreThrottled

if TYPE_CHECKING:
    from logging import Logger


class What(StrEnum):
    """The kinds of event that a listener is told of."""

    CLAIMED = "claimed"
    REPLAYED = "replayed"
    BUSY = "busy"
    MISMATCH = "mismatch"
    FAILED_BEFORE = "failed_before"
    UNKNOWN = "unknown"
    TAKEN_OVER = "taken_over"
    HELD = "held"
    EXHAUSTED = "exhausted"
    COMPLETED = "completed"
    FAILED = "failed"
    RELEASED = "released"
    CLAIM_LOST = "claim_lost"
    RESULT_NOT_KEPT = "result_not_kept"
    RESULT_MISTYPED = "result_mistyped"
    RAN_OPEN = "ran_open"
    CORRUPT = "corrupt"
    ALLOWED = "allowed"
    REFUSED = "refused"
    REFUNDED = "refunded"
    THROTTLED = "throttled"
    STORE_ERROR = "store_error"


class Event(msgspec.Struct, frozen=True):
    """One thing that happened to one key."""

    what: What
    key_digest: str
    """Names the key without showing it; empty if the event is about no key."""
    attempt: int = 0
    detail: str = ""
    door: str = ""
    """Where it came in, such as "http" or "sqs"; empty for a call of the library's own."""
    warned: bool = False
    """Whether semel has logged it by itself, as something to be looked at."""
    name: str = ""
    """The function that it is about, such as "shop.billing.charge"; empty where none is known."""
    scope: str = ""
    """The tenant whose ledger it is about; empty for the ledger that belongs to none."""
    key: str = ""
    """The key itself, redacted where the ledger redacts; empty unless `connect(log_keys=True)` allows it."""

    @property
    def title(self) -> str:
        """What happened, and to what: the beginning of a line in a log."""
        return f"{self.what.value} of {self.name}" if self.name else self.what.value


Listener: TypeAlias = Callable[[Event], None]

WITHHELD = "<left out: it could not be redacted>"

# So much more is read of a text than is kept: masks are shorter than what they stand for.
_READ = 4


class Events:
    """Hands each event to the listeners that were added."""

    def __init__(self, scrub: Callable[[str], str] | None = None) -> None:
        self.listeners: list[Listener] = []
        """Called with each event; without any, an event need not be made."""
        self.name = self.door = self.scope = ""
        """What these events say of themselves; see `Event`."""
        self.scrub = scrub
        """Takes what is personal out of a text that people will read."""
        self.shows_keys = False
        """Whether events have keys beside their digests."""
        self.throttle: Callable[[str], int | None] | None = None
        """How many warnings of a cause were left out, or None to leave out this one; see `LogThrottle`."""

    def listen(self, listener: Listener) -> None:
        """Call this with every event from now on; adding it twice adds it once."""
        if listener not in self.listeners:
            self.listeners.append(listener)

    def through(self, door: str) -> "Events":
        """Return events that go to these listeners, and name the door that a message came through."""
        return self._like(door=door)

    def about(self, name: str) -> "Events":
        """Return events that go to these listeners, and name the function that they are about."""
        return self._like(name=name)

    def within(self, scope: str) -> "Events":
        """Return events that go to these listeners, and name the tenant whose ledger they are about."""
        return self._like(scope=scope)

    def _like(self, **names: str) -> "Events":
        other = object.__new__(Events)
        other.__dict__.update(self.__dict__, **names)
        return other

    @property
    def task(self) -> str:
        """The function that these events are about, or else the door that they came through."""
        return self.name or self.door

    def scrubbed(self, text: str, most: int | None = None) -> str:
        """Return a text without what is personal, in at most `most` characters; nothing, if scrubbing fails.

        It is cut before it is scrubbed, because that takes the longer the more there is; and at a place where
        nothing personal is cut in half, which would then not be recognised.
        """
        if not text or self.scrub is None:
            return text[:most]
        try:
            if most is not None and len(text) > _READ * most:
                from semel.redact.text import beginning

                text = beginning(text, _READ * most)
            return self.scrub(text)[:most]
        except Exception:  # noqa: BLE001 - what cannot be scrubbed is not shown, and the work goes on
            return WITHHELD

    def emit(self, what: What, id: str, attempt: int = 0, detail: str = "") -> None:
        """Call the listeners; an error of theirs is logged and goes no further."""
        if self.listeners:
            self._notify(self._event(what, id, attempt, detail, warned=False))

    def warn(self, what: What, id: str, attempt: int = 0, detail: str = "", *, cause: str = "") -> None:
        """Call the listeners with what an operator should look at, and log it, even if nothing listens.

        With a `cause`, it is logged once a minute, with the number of those that were left out since.
        """
        event = self._event(what, id, attempt, detail, warned=True)
        left_out = self.throttle(f"{what.value} {cause}") if cause and self.throttle is not None else 0
        if left_out is not None:
            text, args = words(event)
            if left_out:
                text, args = f"{text} (and %d more of these since the last such line)", (*args, left_out)
            # A handler of the application's may raise, and must not end the work or a thread of semel's.
            with suppress(Exception):
                _logger().warning(text, *args, extra=fields(event))
        self._notify(event)

    def _event(self, what: What, id: str, attempt: int, detail: str, *, warned: bool) -> Event:
        text = self.scrubbed(detail)
        # Its environment and its scope stand before it.
        key = self.scrubbed(id.split("/", 2)[-1]) if self.shows_keys and id else ""
        return Event(what, digest(id), attempt, text, self.door, warned, self.name, self.scope, key)

    def failed(self, error: StoreError, id: str) -> None:
        """Report an error of the store's; the error itself goes to the caller."""
        what = What.THROTTLED if isinstance(error, StoreThrottled) else What.STORE_ERROR
        name = type(error).__name__
        self.warn(what, id, detail=f"{name}: {error}", cause=name)

    def _notify(self, event: Event) -> None:
        for listener in tuple(self.listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - a listener may fail in any way, and the work goes on
                self._listener_failed(event, error)

    def _listener_failed(self, event: Event, error: Exception) -> None:
        if self.scrub is None:
            _logger().error("a listener failed on %s", event.what.value, exc_info=error)
            return
        from traceback import format_exception

        trace = self.scrubbed("".join(format_exception(error)))
        _logger().error("a listener failed on %s\n%s", event.what.value, trace)


def fields(event: Event) -> dict[str, str | int]:
    """Return an event as the attributes of a log record."""
    attributes: dict[str, str | int] = {"semel_event": event.what.value}
    if event.key_digest:
        attributes |= {"semel_key_digest": event.key_digest, "semel_attempt": event.attempt}
    if event.key:
        attributes["semel_key"] = event.key
    return attributes | {"semel_door": event.door, "semel_name": event.name, "semel_detail": event.detail}


def words(event: Event) -> tuple[str, tuple[Any, ...]]:
    """Return an event as the text of a log record and the arguments of that."""
    text, args = "%s", tuple[Any, ...]((event.title,))
    if event.key_digest:
        key = f"{event.key_digest} ({event.key})" if event.key else event.key_digest
        text, args = f"{text}: key %s, attempt %d", (*args, key, event.attempt)
    if event.detail:
        text, args = f"{text}{'.' if event.key_digest else ':'} %s", (*args, event.detail)
    return text, args


def _logger() -> "Logger":
    # Nothing is logged while all is well, and importing logging takes a tenth of semel's own import.
    from logging import getLogger

    return getLogger("semel")


def name_of(function: Any) -> str:
    """Return the name of a function for people to read: its module, and its name there."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def lasting_name(function: Any) -> str:
    """Return a function's name in every process: that of a script is its file's, as if it were imported."""
    name = name_of(function)
    if not name.startswith("__main__."):
        return name
    import sys
    from pathlib import Path

    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    module = spec.name if spec else Path(path or "__main__").stem
    return name.replace("__main__", module, 1)


def digest(id: str) -> str:
    """Return a short name for a key that does not show the key; "" for no key."""
    from hashlib import sha256

    return sha256(id.encode()).hexdigest()[:16] if id else ""
