"""What must hold, checked after every step against what was seen from outside the store.

The rules are written out here once more, by hand, and not taken from `lifecycle` or `ledger`: two accounts of
the same thing that have to agree.

    one result      once a record is COMPLETED, its token and its result stay until it expires or is forgotten
    one holder      nobody writes to a claim but its holder, until its lease is over by the store's clock, and
                    by then its holder knows
    nothing lost    what a caller was given as an answer is not run again, and does not vanish before its time
    same answer     every caller of a key gets the answer of the attempt that won
    payload         another payload gets no answer and changes nothing
    attempts        attempts of one record are numbered 1, 2, 3, ..., each runs once, and the limit is kept
    kept failure    what failed for good stays failed
    unknown         what is UNKNOWN runs again only after somebody settled it, however long that takes
    no silent rerun under `resolve` and `hold`, what may have happened is asked after before it runs again
    own token       whoever finds its own token has won, and whoever finds its own work has done it
    expired         what has expired is no answer, and is replaced
    waiter          a waiter that has patience left takes over, and gives up only once it has none
    progress        when nothing goes wrong any more, every call ends, and of several one runs
    no surprise     no call ends in an error that nothing in this world accounts for
"""

from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from semel import errors
from semel.core.commands import (
    ABSENT,
    TRIES,
    Applied,
    Delete,
    Found,
    Item,
    Put,
    Raised,
    Refused,
    Returned,
    Update,
)
from semel.core.flow import SKIPPED
from semel.core.running import Run
from semel.testing.simulation.operation import SimulatedOperation
from semel.testing.simulation.settings import Declined, Flaky

HELD = ("IN_PROGRESS", "UNKNOWN")
# What somebody else than the holder may do to a record, given what it has come to and who is asking.
BY_OTHERS = {
    ("IN_PROGRESS", "UNKNOWN"): "_hold",
    ("IN_PROGRESS", "FAILED"): "_exhaust",
    ("RELEASED", "FAILED"): "_exhaust",
    ("UNKNOWN", "COMPLETED"): "_settle",
    ("UNKNOWN", "FAILED"): "_settle",
    ("UNKNOWN", "RELEASED"): "_settle",
    ("RELEASED", "COMPLETED"): "_mark",
    ("FAILED", "COMPLETED"): "_mark",
    ("COMPLETED", "COMPLETED"): "_drop",
}
# A wait that ends this little before its time has come to its end: it is a sum of looks.
GIVEN_UP = 0.01
# Which invariant a change breaks that nobody may make, by what the record was before.
BROKEN = {"COMPLETED": "one result", "FAILED": "kept failure", "UNKNOWN": "unknown"}


class Interrupted(BaseException):
    """Work that was stopped in the middle, as by Ctrl-C."""


class RecordLife(msgspec.Struct, eq=False):
    """One record from its birth to its end."""

    item: Item
    payloads: list[str | None]
    """The fingerprints that it was used with, of which the last counts."""
    ended: int | None = None
    over: bool = False
    """Its time was up at some moment; set back, the clock may show it again, or not."""
    lapsed: float | None = None
    """The lease that was over at some moment, also if the clock was set back after that."""
    statuses: list[str] = []
    winner: str | None = None
    """The token of the attempt whose result was accepted."""
    accepted: bytes | None = None
    dropped: bool = False
    """The result was dropped, and the fact kept."""
    answered: bool = False
    doubt: int | None = None
    """The attempt that took over from one that vanished, while nobody has asked what became of that."""

    @property
    def fingerprint(self) -> str | None:
        """The payload that it is used with."""
        return self.payloads[-1]

    def saw(self, item: Item) -> None:
        """The record as it is now."""
        self.item = item
        if item["status"] not in self.statuses:
            self.statuses.append(item["status"])
        if item["status"] == "COMPLETED" and self.winner is None:
            self.winner, self.accepted = item["token"], item.get("result")


class Model:
    """The history of every key, as far as it matters."""

    def __init__(self, fail: Callable[[str, str], NoReturn], count: Callable[[str], None]) -> None:
        self.fail = fail
        self.count = count
        self.step: int = 0
        self.now: float = 0.0
        """What the store last said the time was."""
        self.jumped = False
        self.lives: dict[str, list[RecordLife]] = {}
        self.claims: dict[str, list[tuple[RecordLife, int]]] = {}
        """Every token that was a claim: in which life, and as which attempt."""
        self.values: dict[str, bytes] = {}
        """What the work under a token came to."""
        self.ran: set[str] = set()
        self.working: dict[str, Run] = {}
        self.interrupted: set[str] = set()
        # Which errors an operation may end with, and what accounts for each.
        self._endings: tuple[tuple[Any, Callable[[SimulatedOperation], bool]], ...] = (
            ((Declined, Flaky, Interrupted), lambda operation: operation.entered),
            (errors.FailedBefore, lambda operation: self._was("FAILED", operation)),
            (errors.OutcomeUnknown, lambda operation: self._was("UNKNOWN", operation)),
            (errors.PayloadChanged, self._mismatched),
            (errors.ResultNotKept, self._without_result),
            (errors.InProgress, self._busy),
            (errors.ClaimLost, self._lost),
            (errors.ShuttingDown, lambda operation: operation.kind == "call"),
            (errors.Refused, lambda operation: operation.kind == "resolve"),
            (errors.StoreUnavailable, self._not_reached),
            (errors.StoreOutcomeUnknown, self._reply_lost),
        )

    def current(self, id: str) -> RecordLife | None:
        """The record's life, unless it has ended."""
        lives = self.lives.get(id)
        return lives[-1] if lives and lives[-1].ended is None else None

    def during(self, operation: SimulatedOperation, id: str | None = None) -> list[RecordLife]:
        """Every life of its key that an operation may have seen."""
        lives = self.lives.get(id or operation.id, ())
        return [life for life in lives if life.ended is None or life.ended >= operation.started]

    # What the store did

    def answered(self, reply: Applied | Refused | Found) -> None:
        """The store replied, and told the time: by then these lives are over, and these leases."""
        self.now = reply.now
        for lives in self.lives.values():
            life = lives[-1]
            if life.item["expires_at"] <= reply.now:
                life.over = True
            if life.item["lease_until"] <= reply.now:
                life.lapsed = life.item["lease_until"]

    def wrote(
        self, operation: SimulatedOperation, command: Put | Update | Delete, now: float, item: Item | None
    ) -> None:
        """A write was made, and this is the item since then."""
        self.step += 1
        life = self.current(command.key)
        if type(command) is Delete:
            self._forgotten(operation, life)
        elif item is None:
            self.fail("nothing lost", "what was just written is not there")
        elif life is None or (
            type(command) is Put and (command.expect is ABSENT or "expires_at" in command.expect)  # type: ignore[operator]
        ):
            self._born(operation, life, item)
        else:
            self._changed(operation, life, item, now)

    def _forgotten(self, operation: SimulatedOperation, life: RecordLife | None) -> None:
        if life is None:
            self.fail("expired", "what was not there was deleted")
        token = life.item["token"]
        # A late copy of the claim, deleted by a late copy of the same deletion, is the life that was meant.
        if operation.forgot not in (None, token):
            self.fail(
                "one holder", "one forget took two lives; the second was not there when it was asked for"
            )
        operation.forgot = token
        life.ended = self.step
        self.working.pop(token, None)
        self.count("forgotten")

    def _born(self, operation: SimulatedOperation, before: RecordLife | None, item: Item) -> None:
        if before is not None:
            if not before.over:
                self.fail("nothing lost", f"{before.item['token']} was written over before its time was up")
            if before.item["status"] in HELD and operation.policy.on_lapsed != "rerun":
                self.fail("unknown", f"{before.item['token']} was in doubt, and ended without being settled")
            self._superseded(before.item["token"])
            before.ended = self.step
            self.count("expiries")
        if item["attempt"] != 1:
            self.fail("attempts", f"a new record begins with attempt {item['attempt']}")
        life = RecordLife(item, [item["fingerprint"]])
        self.lives.setdefault(item["id"], []).append(life)
        if item["status"] == "IN_PROGRESS":
            self._claimed(operation, life, item)
        life.saw(item)

    def _changed(self, operation: SimulatedOperation, life: RecordLife, item: Item, now: float) -> None:
        before = life.item
        if before["expires_at"] <= now:
            # Its author read it, or holds it, and nobody has replaced it since: it is as if it came in time.
            self.count("changed after their end")
        if item["token"] != before["token"]:
            self._claimed_again(operation, life, item, now)
        elif before["token"] in operation.tokens and before["status"] in HELD:
            self._moved_by_holder(operation, life, item)
        else:
            self._moved_by_another(operation, life, item, now)
        if life.answered and item["status"] != "COMPLETED":
            self.fail("nothing lost", "an answer was given, and the record moved on")
        life.saw(item)

    def _claimed(self, operation: SimulatedOperation, life: RecordLife, item: Item) -> None:
        if item["token"] not in operation.tokens:
            self.fail("one holder", f"{operation.name} claimed with {item['token']}, which is not its own")
        if item["fingerprint"] != operation.fingerprint:
            self.fail("payload", "a claim wrote another payload than its own")
        claims = self.claims.setdefault(item["token"], [])
        if claims:
            # A copy that came so late that the record had meanwhile ended. Nothing in a store can tell it
            # from a new claim; where its author has moved on, it is a holder that vanished at once.
            self.count("claims made twice")
        claims.append((life, item["attempt"]))

    def _claimed_again(self, operation: SimulatedOperation, life: RecordLife, item: Item, now: float) -> None:
        before = life.item
        status, token = before["status"], before["token"]
        if status not in ("IN_PROGRESS", "RELEASED"):
            self.fail(BROKEN[status], f"{operation.name} claimed {token}, which is {status}")
        if item["status"] == "COMPLETED":
            return self._marked_anew(operation, life, item)
        if life.fingerprint != operation.fingerprint:
            self.fail("payload", f"{operation.name} claimed a key that was first used with another payload")
        if item["attempt"] != before["attempt"] + 1:
            self.fail("attempts", f"attempt {before['attempt']} is followed by {item['attempt']}")
        limit, on_lapsed = operation.policy.max_attempts, operation.policy.on_lapsed
        asks = on_lapsed == "resolve" and status == "IN_PROGRESS"
        if limit is not None and item["attempt"] > limit and not asks:
            self.fail("attempts", f"attempt {item['attempt']} where {limit} are allowed")
        if status == "IN_PROGRESS":
            self._lapsed(life, now, f"{operation.name} took it over")
            if on_lapsed == "hold":
                self.fail("unknown", f"{operation.name} took over what is to be held")
            life.doubt = item["attempt"]
        return self._claimed(operation, life, item)

    def _marked_anew(self, operation: SimulatedOperation, life: RecordLife, item: Item) -> None:
        if operation.kind not in ("mark", "check") or life.item["status"] != "RELEASED":
            self.fail("one holder", f"{operation.name} marked what somebody may be doing")
        life.payloads.append(item["fingerprint"])

    def _lapsed(self, life: RecordLife, now: float, what: str) -> None:
        left = life.item["lease_until"] - now
        if left > 0 and life.lapsed != life.item["lease_until"]:
            self.fail("one holder", f"{what}, and {life.item['token']} had {left:.3f} s of its lease left")
        self._superseded(life.item["token"])

    def _superseded(self, token: str) -> None:
        run = self.working.get(token)
        if run is not None and not run.lost and not self.jumped:
            self.fail(
                "one holder", f"{token} was taken for dead, and is at work and does not know that it is lost"
            )

    def _moved_by_holder(self, operation: SimulatedOperation, life: RecordLife, item: Item) -> None:
        token, status = item["token"], item["status"]
        if life.item["status"] == "UNKNOWN" and status == "IN_PROGRESS":
            self.fail("unknown", f"{token} is at work again, and nobody settled it")
        if status == "COMPLETED" and item.get("result") != self.values.get(token):
            gave = self.values.get(token)
            self.fail(
                "one result", f"{token} is done with {item.get('result')!r}, and its work gave {gave!r}"
            )
        if status == "RELEASED":
            if token in self.interrupted and operation.policy.on_lapsed != "rerun":
                self.fail(
                    "no silent rerun",
                    f"{token} was stopped in the middle, and released as if it had not begun",
                )
            if token in self.ran:
                life.doubt = None

    def _moved_by_another(
        self, operation: SimulatedOperation, life: RecordLife, item: Item, now: float
    ) -> None:
        before, status = life.item["status"], item["status"]
        rule = BY_OTHERS.get((before, status))
        if rule is None or not getattr(self, rule)(operation, life, item, now):
            invariant = BROKEN.get(before, "one holder")
            self.fail(invariant, f"{operation.name} made {life.item['token']}, which was {before}, {status}")

    def _hold(self, operation: SimulatedOperation, life: RecordLife, item: Item, now: float) -> bool:
        self._lapsed(life, now, f"{operation.name} held it")
        return operation.kind in ("resolve", "mark") or operation.policy.on_lapsed == "hold"

    def _exhaust(self, operation: SimulatedOperation, life: RecordLife, item: Item, now: float) -> bool:
        limit = operation.policy.max_attempts
        if life.item["status"] == "IN_PROGRESS":
            self._lapsed(life, now, f"{operation.name} gave it up")
            if operation.policy.on_lapsed != "rerun":
                return False
        return operation.kind == "call" and limit is not None and item["attempt"] >= limit

    def _settle(self, operation: SimulatedOperation, life: RecordLife, item: Item, now: float) -> bool:
        if operation.kind == "mark":
            return self._mark(operation, life, item, now)
        if item["status"] == "COMPLETED" and item.get("result") != operation.settlement:
            self.fail(
                "one result",
                f"settled with {item.get('result')!r}, and {operation.settlement!r} was found out",
            )
        life.doubt = None
        return operation.kind == "resolve"

    def _mark(self, operation: SimulatedOperation, life: RecordLife, item: Item, now: float) -> bool:
        return operation.kind == "mark" and item.get("result") is None

    def _drop(self, operation: SimulatedOperation, life: RecordLife, item: Item, now: float) -> bool:
        life.dropped = True
        return operation.kind == "drop" and item.get("result") is None

    # What the workers did

    def began(self, operation: SimulatedOperation, run: Run, asking: bool) -> None:
        """The work of a call begins, or its resolver."""
        token = run.claim.token
        claims = self.claims.get(token)
        if not claims:
            self.fail("one holder", f"{operation.name} begins its work without a claim")
        attempt = run.attempt
        lives = [life for life, number in claims if number == attempt]
        if not lives:
            self.fail(
                "attempts", f"{operation.name} takes itself for attempt {attempt}, and is {claims[-1][1]}"
            )
        life = lives[-1]
        if run.lost and not operation.entered:
            self.fail("one holder", f"{operation.name} begins its work after its lease has run out")
        self.working[token] = operation.run = run
        operation.entered = True
        if asking:
            return
        if token in self.ran:
            self.fail("attempts", f"attempt {attempt} runs a second time")
        in_doubt = life.doubt is not None and attempt >= life.doubt
        if in_doubt and operation.policy.on_lapsed == "resolve":
            self.fail(
                "no silent rerun",
                f"{operation.name} runs, and nobody asked what became of the attempt before",
            )
        self.ran.add(token)
        operation.begun = token

    def stopped(self, token: str, value: bytes | None, interrupted: bool) -> None:
        """The work under a token is over, and gave this value if any."""
        self.working.pop(token, None)
        if value is not None:
            self.values[token] = value
        if interrupted:
            self.interrupted.add(token)

    def asked(self, token: str) -> None:
        """The other side said that it did not happen."""
        self.claims[token][-1][0].doubt = None

    # What the callers got

    def ended(self, operation: SimulatedOperation, value: Any) -> None:
        """The steps of an operation came to their end."""
        if operation.kind == "call":
            self._call_ended(operation, value)
        elif operation.kind == "check":
            for id, new in zip(operation.ids or (operation.id,), value, strict=True):
                if new and not any(life.winner in operation.tokens for life in self.during(operation, id)):
                    self.fail(
                        "same answer", f"{operation.name} was told that {id} is new, and did not mark it"
                    )
        elif operation.kind == "mark" and not self._was("COMPLETED", operation):
            self.fail("nothing lost", f"{operation.name} was told that it is marked, and it is not")

    def _call_ended(self, operation: SimulatedOperation, done: Returned | Raised) -> None:
        if isinstance(done, Raised):
            self.failed(operation, done.error)
        elif done.value is SKIPPED:
            if operation.policy.on_busy != "skip":
                self.fail("no surprise", f"{operation.name} skipped, and was not told to")
        else:
            self._given(operation, msgspec.json.encode(done.value))

    def _given(self, operation: SimulatedOperation, answer: bytes) -> None:
        lives = [life for life in self.during(operation) if life.winner]
        if operation.begun and not any(life.winner in operation.tokens for life in lives):
            self.fail(
                "same answer", f"{operation.name} gave its caller {answer!r}, and its result was not accepted"
            )
        right = [life for life in lives if life.accepted == answer]
        if not right:
            self.fail(
                "same answer",
                f"{operation.name} was given {answer!r}; accepted: {[life.accepted for life in lives]}",
            )
        shown, now = operation.shown
        if not operation.begun and shown is not None and shown["expires_at"] <= now:
            self.fail("expired", f"{operation.name} was given {answer!r}, which had expired")
        if not any(life.fingerprint == operation.fingerprint for life in right):
            self.fail("payload", f"{operation.name} was given the answer to another payload")
        right[-1].answered = True

    def failed(self, operation: SimulatedOperation, error: BaseException) -> None:
        """An operation ended with an error."""
        for kind, accounted_for in self._endings:
            if isinstance(error, kind) and accounted_for(operation):
                return
        self.fail("no surprise", f"{operation.name} ended with {type(error).__name__}: {error}")

    def _was(self, status: str, operation: SimulatedOperation) -> bool:
        return any(status in life.statuses for life in self.during(operation))

    def _mismatched(self, operation: SimulatedOperation) -> bool:
        payloads = [payload for life in self.during(operation) for payload in life.payloads]
        return any(payload not in (None, operation.fingerprint) for payload in payloads)

    def _without_result(self, operation: SimulatedOperation) -> bool:
        return any(life.dropped or (life.winner and life.accepted is None) for life in self.during(operation))

    def _busy(self, operation: SimulatedOperation) -> bool:
        left = operation.policy.patience - operation.waited
        if operation.kind == "call" and operation.policy.on_busy == "wait" and left > GIVEN_UP:
            self.fail("waiter", f"{operation.name} gave up, and had patience for another {left:.3f} s")
        return operation.kind in ("wait", "mark") or operation.policy.on_busy != "skip"

    def _lost(self, operation: SimulatedOperation) -> bool:
        if operation.made:
            self.fail("own token", f"{operation.name} was told that it lost, and its own result is there")
        return bool(operation.tokens) or operation.kind == "resolve"

    def _reply_lost(self, operation: SimulatedOperation) -> bool:
        # Once its lease has ended, a holder retries a write only once.
        tries = 2 if operation.run is not None and operation.run.lost else TRIES
        return operation.faults >= tries

    def _not_reached(self, operation: SimulatedOperation) -> bool:
        life = self.current(operation.id)
        holds = (
            life is not None
            and life.item["expires_at"] > self.now
            and life.item["token"] in operation.tokens[-1:]
        )
        if holds and operation.last is Put and not operation.entered:
            self.fail("own token", f"{operation.name} was told that nothing was written, and holds the key")
        return operation.faults > 0
