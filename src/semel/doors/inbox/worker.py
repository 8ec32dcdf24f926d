"""A worker: it looks for lanes in which something waits, and has threads go through them.

A thread enters the lane of a group, so that nobody else is in it, reads what waits there, and handles one
letter after the other until one has to come again. The next one may be anybody's, in any process; he enters
the lane in turn, and reads it anew. That is all there is to the order. Each letter is claimed in the ledger
under its key, so that it is handled once whatever becomes of lanes and threads.

What is put in by this process rings, and is begun at once. For the rest the worker looks through the mailbox
by itself: a few pages every `poll` seconds, and on from there the next time, from shard to shard.
"""

import inspect
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import msgspec

from semel import errors
from semel.connect import Semel
from semel.core.events import What
from semel.core.policy import DAY, Options
from semel.core.runtime import random_token
from semel.doors.queues.lanes import LaneScheduler
from semel.doors.queues.messages import DeliveryResult, Handler, Verdict
from semel.doors.queues.runners import ConsumerThreads, check_whole
from semel.doors.queues.steps import BlockingCall, ConsumerLoop, RunState, Wait
from semel.state.mailbox import Lanes, Letter, Message, is_shared
from semel.state.shards import MOST as SHARDS

if TYPE_CHECKING:
    from semel.state import Mailbox

# While so many lanes may be begun, no more are taken in: they are found again later.
AHEAD = 100
# How long a worker is idle at most before it looks whether another process has put something in.
POLL = 0.5
# So many pages are looked at in that time, as long as nothing is found that could be begun.
PAGES = 10
# A message is tried so often before it is put aside.
MAX_ATTEMPTS = 5
# Somebody else is at work on a message, or in a lane: it is tried again after this, or when his lease ends.
BUSY_SECONDS = 1.0
# A person has to settle what became of a message: who does is not in that much of a hurry.
HELD_SECONDS = 10.0
# What has waited for long is looked at after a tenth of that time, and at least every five minutes.
HELD_SHARE = 10
LONGEST_HELD = 300.0
# While the store is away, it is asked again after this.
AWAY_SECONDS = 2.0
# For so long a lane is gone through as it was read, and then read anew: what came late, or was put back, may
# have its place before the next.
FRESH_SECONDS = 1.0
# So many letters are read at once: each may be large, and slow work gets to few of them in that time.
READ = 20
# A third leaves room for two more tries when one is lost.
RENEWALS_PER_LEASE = 3
# A worker that was told to begin nothing asks again after this: what it waits for may be over sooner.
STILL_SECONDS = 60.0
# The other side may name any time at all; a message is not put off for longer than this.
LONGEST_SPAN = DAY

# What passes by itself. Any other trouble with the store ends the worker: waiting does not mend it.
PASSING = (errors.StoreUnavailable, errors.StoreThrottled, errors.StoreOutcomeUnknown)

# What no attempt is begun for: it cannot be read, or failed for good before it was delivered again.
UNBEGUN = (errors.MessageUnreadable, errors.FailedBefore)

Backoff: TypeAlias = Callable[[int], float]


class Dead(msgspec.Struct, frozen=True):
    """A message that nobody could handle; what it says is not shown where nobody asked for that."""

    id: str
    key: str
    group: str | None
    attempts: int
    error: str
    at: float
    """When it was put aside."""
    body: Any = msgspec.UNSET
    """What it says, where that was asked for and can be read."""

    @property
    def error_type(self) -> str:
        """The type of the error of which it died."""
        return self.error.partition(":")[0].strip() or "unknown"


class LaneNotifier:
    """Tells the workers of this process when something was put in."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[list[str]], None]] = []

    def notify(self, lanes: Iterable[str]) -> None:
        """Something is in these lanes."""
        if listeners := self._listeners:  # a lane is a hash, and where only others work it is for nothing
            where = list(dict.fromkeys(lanes))
            for listener in listeners:
                listener(where)

    def listen(self, listener: Callable[[list[str]], None]) -> None:
        """Call this from now on."""
        self._listeners = [*self._listeners, listener]

    def leave(self, listener: Callable[[list[str]], None]) -> None:
        """Call it no more."""
        self._listeners = [one for one in self._listeners if one != listener]


class LaneLease(msgspec.Struct):
    """The right to be the only one in the lane of a group."""

    until: float
    token: str = msgspec.field(default_factory=random_token)
    lost: bool = False


class Worker:
    """Handles the messages of a mailbox, each once; a worker runs once."""

    def __init__(
        self,
        s: Semel,
        box: "Mailbox",
        handle: Callable[[Message], Any],
        *,
        notifier: LaneNotifier,
        workers: int,
        poll: float,
        backoff: Backoff,
        **options: Unpack[Options],
    ) -> None:
        _check(workers, poll)
        check_handling(handle, options)
        options.setdefault("max_attempts", MAX_ATTEMPTS)
        # What was done may be delivered again for as long as a message can wait.
        options.setdefault("horizon", max(box.steps.ttl, s.ledger.steps.horizon))
        self._box = box
        self._handler: Handler[Message] = Handler(
            s,
            handle,
            key=lambda message: box.steps.record_key(message.key),
            person=lambda message: message.subject,
            door="inbox",
            **options,
        )
        self._lease = self._handler.policy.lease
        self._notifier, self._workers, self._poll, self._backoff = notifier, workers, poll, backoff
        self._monotonic, self._now, self._events = s.clock.monotonic, s.clock.now, self._handler.s.events
        self._state = RunState()
        self._threads = ConsumerThreads(self._state, "semel-inbox")
        self.lanes: LaneScheduler[str] = LaneScheduler()
        self._leases: dict[str, LaneLease] = {}
        self._renew_at = self._look_at = 0.0
        # Other processes begin in other shards.
        self._place = f"{random.randrange(SHARDS)}:"  # noqa: S311 - no secret
        """Where looking goes on."""
        self._quiet = 0
        """In so many shards, one after the other, nothing was found."""
        self._begun = False

    def run(self) -> None:
        """Handle messages until `stop` is called, or until something is wrong that waiting cannot mend."""
        if self._begun:
            raise errors.UsageError("a worker runs once: make another")
        self._begun = True
        self._look_at = self._monotonic()
        self._notifier.listen(self._notified)
        try:
            handling = [self._handling() for _ in range(self._workers)]
            self._threads.run(self._looking(), self._renewing(), handling)
        finally:
            self._notifier.leave(self._notified)

    def stop(self) -> None:
        """Begin nothing new: what runs is finished, what has not begun is left where it is.

        It may be called from anywhere, a signal handler included.
        """
        self._threads.stop()

    def _notified(self, lanes: list[str]) -> None:
        with self._threads.changing():
            for lane in lanes:
                if self.lanes.knows(lane) or self._has_room:
                    self.lanes.add(lane)

    # The loops, under the lock but for what they have called

    def _looking(self) -> ConsumerLoop:
        while not self._state.stopping:
            if self.lanes.wake(self._monotonic()):
                self._state.changed = True
            if self._has_room and self._look_at <= self._monotonic():
                yield BlockingCall(self.look)
                continue  # it may have been stopped meanwhile, and nobody notifies it twice
            pause = self._pause()
            if pause > 0:
                yield Wait(pause)

    def _renewing(self) -> ConsumerLoop:
        while self.lanes.entered or not self._state.stopping:
            pause = self._renew_at - self._monotonic() if self._leases else None
            yield BlockingCall(self.renew) if pause is not None and pause <= 0 else Wait(pause)

    def _handling(self) -> ConsumerLoop:
        while not self._state.stopping:
            lane = self.lanes.begin()
            if lane is None:
                yield Wait(None)
                continue
            self._state.changed = True  # there may be room for another
            yield BlockingCall(partial(self.visit, lane))

    # Looking

    @property
    def _has_room(self) -> bool:
        return self.lanes.ready < AHEAD

    def _pause(self) -> float:
        """How long nothing needs to be done here, unless something happens."""
        moments = [self.lanes.next_wake]
        if self._has_room:
            moments.append(self._look_at)
        return min(self._poll, min(moments) - self._monotonic())

    def look(self) -> None:
        """Find lanes that nobody here knows of, and remember where to go on."""
        found, pause = 0, self._poll
        try:
            for _ in range(PAGES):
                page = self._box.look(self._place)
                self._place = page.after
                found += self._note(page)
                self._quiet = 0 if found else self._quiet + page.ended
                # While nothing is anywhere, one shard is looked at each time.
                idle = page.ended and self._quiet >= page.shards
                if found or idle or self._state.stopping:
                    break
        except PASSING as error:
            self._warn(error)
            pause = max(self._poll, AWAY_SECONDS)
        self._look_at = self._monotonic() + (0 if found else pause)

    def _note(self, page: Lanes) -> int:
        lanes = list(page.lanes)
        # Other processes see the same: who begins elsewhere is in nobody's way.
        random.shuffle(lanes)
        found = 0
        with self._threads.changing():
            now = self._monotonic()
            for lane in lanes:
                if self.lanes.knows(lane.name):
                    continue
                if lane.wait:
                    wait = min(lane.wait, BUSY_SECONDS) if lane.entered else lane.wait
                    self.lanes.rest(lane.name, now + wait)
                else:
                    self.lanes.add(lane.name)
                    found += 1
        return found

    # Being in lanes

    def _enter(self, lane: str) -> bool:
        """Be the only one in a lane, if others have no business in it meanwhile."""
        if not is_shared(lane):
            return True
        lease = LaneLease(self._monotonic() + self._lease)
        left = self._box.enter(lane, lease.token, self._lease)
        if left:
            self._rest(lane, min(left, BUSY_SECONDS))
            return False
        with self._threads.changing():
            if not self._leases:
                self._renew_at = self._monotonic() + self._lease / RENEWALS_PER_LEASE
            self._leases[lane] = lease
        return True

    def _leave(self, lane: str, settled: list[Letter]) -> None:
        with self._threads.changing():
            lease = self._leases.pop(lane, None)
        self._write(lane, self._box.leave, settled, *(() if lease is None else (lane, lease.token)))

    def renew(self) -> None:
        """Say of the lanes that somebody here is in that he still is, before that is over."""
        with self._threads.changing():
            now, leases = self._monotonic(), self._leases.copy()
            self._renew_at = now + self._lease / RENEWALS_PER_LEASE
        try:
            lost = self._box.stay({lane: lease.token for lane, lease in leases.items()}, self._lease)
        except errors.StoreError as error:
            self._warn(error)
            return
        for lane, lease in leases.items():
            lease.lost, lease.until = lane in lost, now + self._lease

    def _is_in(self, lane: str) -> bool:
        lease = self._leases.get(lane)
        return lease is None or not (lease.lost or self._monotonic() >= lease.until)

    # Handling

    def visit(self, lane: str) -> None:
        """Go through one lane that was begun."""
        more = False
        try:
            more = self._enter(lane) and self._go_through(lane)
        except PASSING as error:
            self._warn(error)
            self._rest(lane, AWAY_SECONDS)
        finally:
            with self._threads.changing():
                self.lanes.end(lane, more=more)

    def _go_through(self, lane: str) -> bool:
        """Handle letters one after the other, until one has to come again; whether there may be more."""
        settled: list[Letter] = []
        try:
            seen = self._box.letters(lane, READ)
            fresh = self._monotonic() + FRESH_SECONDS
            for letter in seen.letters:
                if self._state.stopping or self._monotonic() > fresh or not self._is_in(lane):
                    return True
                if letter.not_before > seen.now:
                    self._rest(lane, letter.not_before - seen.now)
                    return False
                if not self._settle(lane, letter, settled):
                    return False
            return seen.after is not None
        finally:
            self._leave(lane, settled)

    def _settle(self, lane: str, letter: Letter, settled: list[Letter]) -> bool:
        """Handle one letter; False where it has to come again, and those behind it wait."""
        taken = self._take(letter)
        if taken.settled:
            settled.append(letter)
        elif taken.verdict is Verdict.DEAD:
            self._warn_unbegun(letter, taken)
            return self._write(lane, self._box.bury, letter, taken.why)
        else:
            self._postpone(lane, letter, taken)
            return False
        return True

    def _warn_unbegun(self, letter: Letter, taken: DeliveryResult) -> None:
        """Tell of a dead letter that was never tried: of one that was, its attempt has told already."""
        if isinstance(taken.error, UNBEGUN):
            detail = f"a message is put aside: {type(taken.error).__name__}"
            key = self._box.steps.record_key(letter.key)
            self._events.warn(What.REFUSED, self._handler.s.ledger.steps.name(key), detail=detail)

    def _take(self, letter: Letter) -> DeliveryResult:
        try:
            message = self._box.steps.open(letter)
        except errors.MessageUnreadable as error:
            return DeliveryResult(Verdict.DEAD, error=error)
        return self._handler.take(message)

    def _postpone(self, lane: str, letter: Letter, taken: DeliveryResult) -> None:
        if taken.stops:
            self.stop()
        elif isinstance(taken.error, errors.OutcomeUnknown):
            # The longer it has waited, the less often it is asked for: thousands must not keep a worker busy.
            self._rest(lane, min(LONGEST_HELD, max(HELD_SECONDS, (self._now() - letter.at) / HELD_SHARE)))
        elif isinstance(taken.error, errors.Later) and taken.error.everyone:
            self._pause_all(taken.error.retry_after)
        elif taken.verdict is Verdict.BUSY:
            self._rest(lane, min(BUSY_SECONDS, taken.retry_after or BUSY_SECONDS))
        elif isinstance(taken.error, PASSING):
            self._rest(lane, AWAY_SECONDS)
        else:
            delay = self._backoff(letter.attempts + 1) if taken.retry_after is None else taken.retry_after
            span = min(max(0.0, delay), LONGEST_SPAN)
            self._rest(lane, span)
            counted = taken.verdict is not Verdict.LATER
            self._write(lane, partial(self._box.put_off, counted=counted), letter, span, taken.why)

    def _write(self, lane: str, method: Callable[..., object], *arguments: object) -> bool:
        """Write to the mailbox; if that fails the letter is found again, and the ledger knows about it."""
        try:
            method(*arguments)
        except PASSING as error:
            self._warn(error)
            self._rest(lane, AWAY_SECONDS)
            return False
        return True

    def _pause_all(self, seconds: float) -> None:
        """Begin nothing for a while, in any lane; what waits stays as it is, for whoever comes first then."""
        with self._threads.changing():
            self.lanes.pause(self._monotonic() + min(max(0.0, seconds), STILL_SECONDS))

    def _rest(self, lane: str, seconds: float) -> None:
        with self._threads.changing():
            self.lanes.rest(lane, self._monotonic() + seconds)

    def _warn(self, error: Exception) -> None:
        name = type(error).__name__
        self._events.warn(What.STORE_ERROR, "", detail=f"{name}: {error}", cause=name)


def _check(workers: Any, poll: Any) -> None:
    check_whole("workers", workers, 1, 1000)
    if not 0 < poll < float("inf"):
        raise errors.InvalidOption(f"poll is a positive number of seconds, not {poll!r}")


def check_handling(handle: Callable[[Message], Any], options: Options) -> None:
    """Refuse a way to handle messages that cannot work in any inbox."""
    if inspect.iscoroutinefunction(handle):
        raise errors.InvalidOption(
            "workers are threads: handle a message in a plain def, not in an async one"
        )
    if options.get("hide_key"):
        raise errors.InvalidOption(
            "an inbox keeps the keys of its messages as they are: put s.pseudonym(...) into them instead"
        )
