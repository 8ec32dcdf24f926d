"""Switches that stop work on every worker: one document that every process polls.

While a process asks for them, a thread reads them twice a second: a decision costs no read, and knows of a
change within a second. If the thread has not read them lately, as in a process that was frozen between two
calls, the decision reads them first.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from semel.core.clock import BackgroundThread, Clock, SignalSafeLock
from semel.core.drive import Store, drive
from semel.core.keys import check
from semel.core.parts import Part, PartPlan, part_of
from semel.core.policy import DAY
from semel.core.realm import Realm
from semel.core.runtime import FORKING, LONGEST_NAME
from semel.errors import InvalidOption, RecordCorrupt, StoreClosed, StoreError
from semel.state.documents import Document, DocumentSteps
from semel.tables import DOCUMENTS

if TYPE_CHECKING:
    from semel.core.commands import Applied, Steps

# In every scope of an environment alike.
KEY = "semel:switches"
# A switch that is on stays so until it is turned off; every item has an end, so this one's is far away.
TTL = 3650 * DAY

# What was read longer ago than this decides nothing any more; the thread reads twice as often.
FRESH_SECONDS = 1.0
LOOK_SECONDS = 0.5
# A process that has decided nothing for this long stops reading.
IDLE_SECONDS = 60.0


class Switch(msgspec.Struct, frozen=True):
    """The state of a switch, since when, and why."""

    on: bool
    since: float
    reason: str = ""
    by: str = ""
    """Who turned it, if that is known."""


class SwitchCache:
    """What a process last read of the switches, and the thread that reads them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._asked = float("-inf")
        self._look: SwitchSteps | None = None
        self._background = BackgroundThread("semel-switches", self._look_on)
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """In a forked child: have a lock that no thread of the parent holds, and no thread that reads."""
        self._lock = SignalSafeLock()
        self._seen: tuple[float, dict[str, Switch]] = (float("-inf"), {})

    def fresh(self) -> dict[str, Switch] | None:
        """The switches as they were less than a second ago; None if they were not read since."""
        self._asked = now = self._clock.monotonic()
        as_of, seen = self._seen
        return seen if now - as_of < FRESH_SECONDS else None

    def note(self, seen: dict[str, Switch], as_of: float) -> None:
        """Remember what was read after this moment."""
        with self._lock:
            if as_of >= self._seen[0]:
                self._seen = as_of, seen

    def watch(self, look: "SwitchSteps") -> None:
        """Read them in the background from now on."""
        self._look = look
        self._background.start()  # if no thread can be started, every decision reads

    def stop(self) -> None:
        """Stop reading."""
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
                continue  # a decision meanwhile reads for itself, and raises it


class SwitchSteps:
    """The rules of switches, as generators of commands."""

    def __init__(self, realm: Realm, cache: SwitchCache, clock: Clock) -> None:
        self.realm: Realm = msgspec.structs.replace(realm, scope="")
        # A worker without an encryption key can read and turn them too: only the reasons are sealed.
        self._documents: DocumentSteps[dict[str, Any]] = DocumentSteps(self.realm, sealed=False)
        self._cache, self._clock = cache, clock
        self.fresh: Callable[[], dict[str, Switch] | None] = cache.fresh

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
                seen = self._note(document.value, as_of)
                value = {name: one | {"reason": seen[name].reason} for name, one in document.value.items()}
                return msgspec.structs.replace(document, value=value)

            return msgspec.structs.replace(part, result=result)

        return plan

    def read(self) -> "Steps[dict[str, Switch]]":
        """Read the switches, and let this process know."""
        as_of = self._clock.monotonic()
        document = yield from self._documents.get(KEY)
        return self._note({} if document is None else document.value, as_of)

    def look(self) -> "Steps[dict[str, Switch]]":
        """Read the switches, and have this process read them in the background from now on."""
        seen = yield from self.read()
        self._cache.watch(self)
        return seen

    def _note(self, value: dict[str, Any], as_of: float) -> dict[str, Switch]:
        """Remember the switches of a document, with their reasons unsealed."""
        try:
            switches = msgspec.convert(value, dict[str, Switch])
        except msgspec.ValidationError as error:
            raise RecordCorrupt(KEY, f"it has no switches: {error}") from error
        for name, switch in switches.items():
            reason = self.realm.sealing.opened_text(switch.reason, *self._place(name))
            switches[name] = msgspec.structs.replace(switch, reason=reason)
        self._cache.note(switches, as_of)
        return switches

    def _place(self, name: str) -> tuple[str, ...]:
        return DOCUMENTS.name, self.realm.name(KEY), name
