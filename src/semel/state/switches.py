"""Switches that stop work at once on every worker: one document that every process polls.

While a process asks for them, a thread looks twice a second; so whoever decides need not look, and knows of a
change within a second. Where the thread has not looked lately, as in a process that was frozen between
two calls, the decision looks first.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from semel.core.clock import Clock
from semel.core.drive import Store, drive
from semel.core.keys import check
from semel.core.parts import Part, PartPlan, part_of
from semel.core.policy import DAY
from semel.core.realm import Realm
from semel.core.runtime import FORKING, LONGEST_NAME
from semel.core.threads import BackgroundThread, SignalSafeLock
from semel.errors import InvalidOption, RecordCorrupt, StoreClosed, StoreError
from semel.state.documents import Document, DocumentSteps
from semel.tables import DOCUMENTS

if TYPE_CHECKING:
    from semel.core.commands import Applied, Steps

# In every scope of an environment alike.
KEY = "semel:switches"
# A switch that is on stays so until somebody turns it off; every item has an end, so this one's is far away.
TTL = 3650 * DAY

# What was seen longer ago than this decides nothing any more; the thread looks twice as often.
FRESH_SECONDS = 1.0
LOOK_SECONDS = 0.5
# A process that has decided nothing for so long stops looking.
IDLE_SECONDS = 60.0


class Switch(msgspec.Struct, frozen=True):
    """How a switch stands, since when, and why."""

    on: bool
    since: float
    reason: str = ""
    by: str = ""
    """Who turned it, where that was said."""


class SwitchCache:
    """What a process last saw of the switches, and the thread that looks."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen: tuple[float, dict[str, Switch]] = (float("-inf"), {})
        self._asked = float("-inf")
        self._look: SwitchSteps | None = None
        self._background = BackgroundThread("semel-switches", self._look_on)
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """In a forked child: have a lock that no thread of the parent holds."""
        self._lock = SignalSafeLock()

    def fresh(self) -> dict[str, Switch] | None:
        """The switches as they were less than a second ago; None where nobody has looked since."""
        self._asked = now = self._clock.monotonic()
        as_of, seen = self._seen
        return seen if now - as_of < FRESH_SECONDS else None

    def note(self, seen: dict[str, Switch], as_of: float) -> None:
        """Somebody has looked, after this moment."""
        with self._lock:
            if as_of >= self._seen[0]:
                self._seen = as_of, seen

    def watch(self, look: "SwitchSteps") -> None:
        """Keep looking from now on, in this process."""
        self._look = look
        self._background.start()  # where no thread can be started, every decision looks

    def stop(self) -> None:
        """Look no more."""
        self._background.stop()

    def _look_on(self) -> None:
        while (look := self._look) is not None and not self._background.stopping.wait(LOOK_SECONDS):
            if self._clock.monotonic() - self._asked > IDLE_SECONDS:
                break
            try:
                drive(look.read(), self._store, look.realm.events.failed)
            except StoreClosed:
                break
            except StoreError:
                continue  # whoever decides meanwhile looks for himself, and meets it


class SwitchSteps:
    """The rules of switches, as generators of commands."""

    def __init__(self, realm: Realm, cache: SwitchCache, clock: Clock) -> None:
        everywhere = msgspec.structs.replace(realm, scope="")
        self.realm = everywhere
        # Whoever has no key can read and turn them all the same; only the reasons are sealed.
        self._documents: DocumentSteps[dict[str, Any]] = DocumentSteps(everywhere, sealed=False)
        self._cache = cache
        self._clock = clock

    def turn(
        self, name: str, *, on: bool, reason: str = "", by: str = ""
    ) -> PartPlan[Document[dict[str, Any]]]:
        """Turn a switch on or off, for every worker of this environment; `by` is who wants it."""
        check(name)
        if not isinstance(on, bool):
            raise InvalidOption(f"a switch is on or off: on=True or on=False, not {on!r}")

        def plan(mark: str) -> "Steps[Part[Document[dict[str, Any]]]]":
            as_of = self._clock.monotonic()
            text = self.realm.sealing.text(self.realm.redacted(reason), *self._place(name))
            switch = {"on": on, "since": (yield from self.realm.now()), "reason": text}
            if by:
                switch["by"] = by[:LONGEST_NAME]
            part = yield from part_of(self._documents.change(KEY, {name: switch}, ttl=TTL), mark)

            def result(reply: "Applied | None") -> "Document[dict[str, Any]]":
                document = part.result(reply)
                value = self._opened(document.value)
                self._cache.note(_switches(value), as_of)
                return msgspec.structs.replace(document, value=value)

            return msgspec.structs.replace(part, result=result)

        return plan

    def read(self) -> "Steps[dict[str, Switch]]":
        """Look now, and let this process know."""
        as_of = self._clock.monotonic()
        document = yield from self._documents.get(KEY)
        seen = _switches({} if document is None else self._opened(document.value))
        self._cache.note(seen, as_of)
        return seen

    def seen(self) -> "Steps[dict[str, Switch]]":
        """How they stood less than a second ago: without looking, where somebody has."""
        seen = self._cache.fresh()
        if seen is None:
            seen = yield from self.read()
        self._cache.watch(self)
        return seen

    def _opened(self, value: dict[str, Any]) -> dict[str, Any]:
        """The switches with their reasons as they read, or with why they cannot be read."""
        return {name: self._opened_one(name, one) for name, one in value.items()}

    def _opened_one(self, name: str, one: Any) -> Any:
        reason = one.get("reason") if isinstance(one, dict) else None
        if not isinstance(reason, str):
            return one
        return one | {"reason": self.realm.sealing.opened_text(reason, *self._place(name))}

    def _place(self, name: str) -> tuple[str, ...]:
        return DOCUMENTS.name, self.realm.name(KEY), name


def _switches(value: dict[str, Any]) -> dict[str, Switch]:
    try:
        return msgspec.convert(value, dict[str, Switch])
    except msgspec.ValidationError as error:
        raise RecordCorrupt(KEY, f"it has no switches: {error}") from error
