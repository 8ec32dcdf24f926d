"""The running attempt: what a function can find out about itself while it runs."""

from contextvars import ContextVar
from typing import Any

import msgspec

from semel import errors
from semel.core.clock import Clock
from semel.core.codecs import check_details
from semel.core.keys import is_step_of, step_of
from semel.model import MISSING, Claimed

# A third leaves room for two more tries when one renewal is lost.
RENEWALS_PER_LEASE = 3
# After a renewal that failed, the next try comes sooner, while there is still lease left to save.
RETRIES_PER_LEASE = 10


class Run(msgspec.Struct, eq=False):
    """One attempt at the work of one key, while it runs."""

    claim: Claimed
    sent: float
    """When the claim was sent, by the clock of this process."""
    clock: Clock
    deadline: float = 0.0
    due: float = 0.0
    result: Any = MISSING
    details: dict[str, Any] | None = None
    subject: str | None = None
    task: str = ""
    """The function that events about this attempt name, whoever writes its end."""
    outer: "Run | None" = None
    heartbeat: Any = None
    """What renews the lease of async work."""
    begun: bool = False
    over: bool = False
    """The work has ended; a task or a thread that it started may still have it for its context."""
    kept: bool = False
    promised: bool = False
    settling: bool = False
    """A transaction that completes the claim is under way: a renewal that is refused says nothing."""
    interrupted: bool = False
    """Its lease was ended, as nobody knows how far the work came."""
    taken: bool = False
    """The claim is somebody else's."""

    def __post_init__(self) -> None:
        self.deadline = self.sent + self.claim.lease
        self.due = self.sent + self.claim.lease / RENEWALS_PER_LEASE

    def __repr__(self) -> str:
        state = "over" if self.over else "lost" if self.lost else "running"
        return f"<Run of {self.key!r}, attempt {self.attempt}, {state}>"

    @property
    def key(self) -> str:
        """The key, as its caller wrote it."""
        return self.claim.key

    @property
    def attempt(self) -> int:
        """1 for the first attempt, one more with each that follows: a fencing number for other systems."""
        return self.claim.attempt

    @property
    def protected(self) -> bool:
        """False where the store was down and the policy was to run all the same."""
        return self.claim.attempt > 0

    @property
    def lost(self) -> bool:
        """Whether the lease is gone, so that somebody else may be at work on the same key."""
        return not self.kept and (self.taken or self.clock.monotonic() >= self.deadline)

    def check(self) -> None:
        """Raise `ClaimLost` if the lease is gone; call it before every step that cannot be taken back."""
        if self.lost:
            raise errors.ClaimLost(self.key, self.attempt, "go on with")

    def key_for(self, system: str) -> str:
        """An idempotency key for another system: the same at every attempt, and it does not tell the key."""
        from hashlib import sha256

        return sha256(f"{self.claim.id}\0{system}".encode()).hexdigest()

    def step(self, *parts: Any) -> str:
        """The key of one step of this work, such as an action of an event: the same at every attempt."""
        return step_of(self.key, *parts)

    def note(self, **details: Any) -> None:
        """Tell something about this work that is kept in its record, for people to read."""
        check_details(details)
        self.details = {**(self.details or {}), **details}

    def keep(self, result: Any, *, certain: bool) -> None:
        """A transaction completes the claim with this result; the caller's own may still undo that."""
        self.result = result
        self.kept, self.promised = certain, not certain

    # The heartbeat's side

    def sending(self) -> float:
        """A renewal is sent now: the next is due in a third of the lease, even if this one has no answer."""
        now = self.clock.monotonic()
        self.due = now + self.claim.lease / RENEWALS_PER_LEASE
        return now

    def renewed(self, sent: float) -> None:
        """The lease runs anew, counted from before the request was sent."""
        # Of two renewals that were under way together the later one counts.
        self.deadline = max(self.deadline, sent + self.claim.lease)
        self.due = max(self.due, sent + self.claim.lease / RENEWALS_PER_LEASE)

    def missed(self) -> None:
        """A renewal failed; try again soon."""
        self.due = self.clock.monotonic() + self.claim.lease / RETRIES_PER_LEASE

    def lose(self) -> None:
        """The claim is somebody else's."""
        self.taken = True


CURRENT: ContextVar[Run | None] = ContextVar("semel_current_run", default=None)


# Set while a lease is renewed: stores keep a connection for that, as work whose lease expires is repeated.
RENEWING: ContextVar[bool] = ContextVar("semel_renewing", default=False)


def current_run() -> Run:
    """The attempt that this code runs in."""
    run = CURRENT.get()
    if run is None:
        raise LookupError("no function of semel's is running here")
    return run


def refuse_reentry(id: str) -> None:
    """Raise `Reentered` where this very call is already running the key."""
    run = CURRENT.get()
    while run is not None:
        if run.claim.id == id and not run.over:
            raise errors.Reentered(run.key)
        run = run.outer


def subject_of_step(id: str) -> str | None:
    """Whom a step is about: the same person as the work it belongs to."""
    run = CURRENT.get()
    return run.subject if run is not None and is_step_of(id, run.claim.id) else None


def step_of_another_attempt(id: str) -> bool:
    """Whether this is a step of work that an earlier attempt has begun before the running one."""
    run = CURRENT.get()
    return run is not None and run.attempt > 1 and is_step_of(id, run.claim.id)
