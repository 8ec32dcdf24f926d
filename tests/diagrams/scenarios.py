"""The failure modes that have a shape in time, as steps of their callers."""

from typing import Literal, TypeAlias

import msgspec

from semel.core.lifecycle import (
    COMPLETE,
    EXHAUST,
    FAIL,
    HOLD,
    RECLAIM,
    RELEASE,
    SETTLE_DONE,
    TAKE_OVER,
    Move,
)
from semel.model import OnLapsed

Verb: TypeAlias = Literal["claim", "complete", "fail", "release", "settle", "forget"]
Mark: TypeAlias = Literal["crash", "effect", "note"]
Loss: TypeAlias = Literal["", "reply", "request"]

ONE, TWO, THREE, OPERATOR = "worker 1", "worker 2", "worker 3", "operator"


class Asked(msgspec.Struct, frozen=True):
    """What a caller asks of the ledger, and the moves that this makes; no moves where it is refused."""

    at: float
    who: str
    verb: Verb
    moves: tuple[Move, ...] = ()
    lost: Loss = ""
    """What the network loses of it the first time: its reply, or the request itself."""
    payload: str = "A"


class Local(msgspec.Struct, frozen=True):
    """What a caller does without the ledger."""

    at: float
    who: str
    mark: Mark
    text: str


Step: TypeAlias = Asked | Local


class Scenario(msgspec.Struct, frozen=True):
    """A failure mode: its steps in order, what happens in a sentence, and what semel does in another."""

    name: str
    title: str
    situations: tuple[int, ...]
    """Their numbers in docs/explanation/guarantees.md."""
    happens: str
    does: str
    steps: tuple[Step, ...]
    on_lapsed: OnLapsed = "rerun"
    max_attempts: int | None = None


SCENARIOS = (
    Scenario(
        "crash-before-the-claim",
        "A crash before the claim",
        (1,),
        "A worker dies before its claim is written.",
        "There is no record, so the next call is the first, and runs at once.",
        (
            Local(0, ONE, "crash", "dies"),
            Asked(5, TWO, "claim"),
            Local(5, TWO, "effect", "charges the card"),
            Asked(6, TWO, "complete", (COMPLETE,)),
        ),
    ),
    Scenario(
        "crash-after-the-claim",
        "A crash after the claim",
        (2,),
        "A worker claims the key, and dies before its work had an effect.",
        "While its lease runs, others are told that the key is busy; afterwards the next call takes over, "
        "as the next attempt.",
        (
            Asked(0, ONE, "claim"),
            Local(1, ONE, "crash", "dies"),
            Asked(10, TWO, "claim"),
            Asked(31, TWO, "claim", (TAKE_OVER,)),
            Local(31, TWO, "effect", "charges the card"),
            Asked(32, TWO, "complete", (COMPLETE,)),
        ),
    ),
    Scenario(
        "crash-after-the-effect-rerun",
        "A crash after the effect, under `rerun`",
        (3,),
        "A worker dies after its effect, and before it has recorded the result; nobody but the remote "
        "system knows.",
        "With `rerun`, the default, the next attempt runs the work again: it sends the same "
        "`run.key_for(...)`, by which the remote system recognises the repetition.",
        (
            Asked(0, ONE, "claim"),
            Local(1, ONE, "effect", "charges the card"),
            Local(2, ONE, "crash", "dies"),
            Asked(31, TWO, "claim", (TAKE_OVER,)),
            Local(31, TWO, "effect", "asks for it again"),
            Asked(32, TWO, "complete", (COMPLETE,)),
        ),
    ),
    Scenario(
        "crash-after-the-effect-hold",
        "A crash after the effect, under `hold`",
        (3, 44),
        "A worker dies after its effect, where a repetition would do harm and only a person can find out.",
        "With `hold` the record becomes `UNKNOWN` and nothing runs, until somebody finds out what "
        "happened and settles it.",
        (
            Asked(0, ONE, "claim"),
            Local(1, ONE, "effect", "wires the money"),
            Local(2, ONE, "crash", "dies"),
            Asked(31, TWO, "claim", (HOLD,)),
            Local(600, OPERATOR, "note", "asks the bank"),
            Asked(600, OPERATOR, "settle", (SETTLE_DONE,)),
            Asked(610, TWO, "claim"),
        ),
        on_lapsed="hold",
    ),
    Scenario(
        "crash-after-the-effect-resolve",
        "A crash after the effect, under `resolve`",
        (3,),
        "A worker dies after its effect, where the remote system can be asked.",
        "With `resolve` the next call takes over and asks before it does anything: what happened already "
        "is recorded, and not repeated.",
        (
            Asked(0, ONE, "claim"),
            Local(1, ONE, "effect", "charges the card"),
            Local(2, ONE, "crash", "dies"),
            Asked(31, TWO, "claim", (TAKE_OVER,)),
            Local(31, TWO, "note", "asks: it is charged"),
            Asked(32, TWO, "complete", (COMPLETE,)),
        ),
        on_lapsed="resolve",
    ),
    Scenario(
        "crash-after-the-completion",
        "A crash after the completion",
        (4,),
        "A worker dies after it has recorded the result, and before it has acknowledged the message.",
        "The message is delivered again, gets the recorded result, and is acknowledged; nothing runs.",
        (
            Asked(0, ONE, "claim"),
            Local(1, ONE, "effect", "charges the card"),
            Asked(2, ONE, "complete", (COMPLETE,)),
            Local(2, ONE, "crash", "dies"),
            Asked(60, TWO, "claim"),
            Local(60, TWO, "note", "acknowledges"),
        ),
    ),
    Scenario(
        "zombie-completes",
        "A zombie completes",
        (5, 6),
        "A worker hangs for longer than its lease, another takes over, and then the first comes back with "
        "a result.",
        "The takeover has written a new token, so the first worker's completion is refused with "
        "`ClaimLost`, and its result is not stored.",
        (
            Asked(0, ONE, "claim"),
            Local(1, ONE, "note", "hangs"),
            Asked(31, TWO, "claim", (TAKE_OVER,)),
            Local(31, TWO, "effect", "charges the card"),
            Local(33, ONE, "note", "comes back"),
            Asked(33, ONE, "complete"),
            Asked(34, TWO, "complete", (COMPLETE,)),
        ),
    ),
    Scenario(
        "lost-reply-of-a-claim",
        "The reply to a claim is lost",
        (8,),
        "A claim is written, and the connection breaks before its reply arrives.",
        "The claim is sent again and finds its own token in the record: the worker has the key, and runs.",
        (
            Asked(0, ONE, "claim", lost="reply"),
            Asked(1, TWO, "claim"),
            Local(1, ONE, "effect", "charges the card"),
            Asked(2, ONE, "complete", (COMPLETE,)),
        ),
    ),
    Scenario(
        "lost-reply-of-a-completion",
        "The reply to a completion is lost",
        (9,),
        "A result is recorded, and the connection breaks before the reply arrives.",
        "The completion is sent again and finds its own token and its own result there, which is a success.",
        (
            Asked(0, ONE, "claim"),
            Local(1, ONE, "effect", "charges the card"),
            Asked(2, ONE, "complete", (COMPLETE,), lost="reply"),
            Asked(10, TWO, "claim"),
        ),
    ),
    Scenario(
        "store-away-at-the-completion",
        "The store is away when the work ends",
        (45,),
        "The effect happened, and the store cannot be reached for a moment.",
        "The completion is sent again until the lease ends; the effect is not repeated.",
        (
            Asked(0, ONE, "claim"),
            Local(1, ONE, "effect", "charges the card"),
            Asked(2, ONE, "complete", (COMPLETE,), lost="request"),
            Asked(10, TWO, "claim"),
        ),
    ),
    Scenario(
        "failure-that-is-kept",
        "A failure that is kept",
        (46,),
        "The work fails in a way that no retry will change, such as a declined card.",
        'With `on_error="keep"` the failure is recorded, and every later call raises it again; nothing runs.',
        (
            Asked(0, ONE, "claim"),
            Local(1, ONE, "note", "card is declined"),
            Asked(2, ONE, "fail", (FAIL,)),
            Asked(10, TWO, "claim"),
        ),
    ),
    Scenario(
        "failure-that-is-released",
        "A failure that is released",
        (40,),
        "The work fails in a way that may pass, such as a refused connection.",
        "The key is released at once, so that the next call need not wait for the lease; the attempts are "
        "counted.",
        (
            Asked(0, ONE, "claim"),
            Local(1, ONE, "note", "is refused"),
            Asked(2, ONE, "release", (RELEASE,)),
            Asked(5, TWO, "claim", (RECLAIM,)),
            Local(5, TWO, "effect", "charges the card"),
            Asked(6, TWO, "complete", (COMPLETE,)),
        ),
    ),
    Scenario(
        "failure-every-time",
        "It fails every time",
        (40,),
        "The work fails again at every attempt, here under `max_attempts=2`.",
        "When the attempts are used up, the failure is final: nothing runs any more, and operators can "
        "list it.",
        (
            Asked(0, ONE, "claim"),
            Asked(1, ONE, "release", (RELEASE,)),
            Asked(5, TWO, "claim", (RECLAIM,)),
            Asked(6, TWO, "release", (RELEASE,)),
            Asked(10, ONE, "claim", (EXHAUST,)),
        ),
        max_attempts=2,
    ),
    Scenario(
        "payload-changed",
        "The payload has changed",
        (29,),
        "A second call has the key of the first, and another payload, such as another amount.",
        "It is refused as a mismatch, in every state of the record, and nothing changes.",
        (
            Asked(0, ONE, "claim"),
            Local(1, ONE, "effect", "charges 42.00"),
            Asked(2, ONE, "complete", (COMPLETE,)),
            Asked(10, TWO, "claim", payload="B"),
        ),
    ),
    Scenario(
        "deleted-while-in-progress",
        "The record is deleted while its attempt runs",
        (14, 15),
        "Somebody forgets the record of a key on which a worker is at work.",
        "The worker's completion is refused, and does not bring the record back; a new record has a new "
        "token, which no earlier attempt can use.",
        (
            Asked(0, ONE, "claim"),
            Asked(5, OPERATOR, "forget"),
            Asked(6, TWO, "claim"),
            Asked(8, ONE, "complete"),
            Asked(9, TWO, "complete", (COMPLETE,)),
        ),
    ),
    Scenario(
        "waiters-take-over",
        "The first fails while others wait",
        (41, 42),
        "Several callers wait for one key, and the attempt that holds it fails.",
        "Exactly one of them takes over, and the others get its result.",
        (
            Asked(0, ONE, "claim"),
            Asked(1, TWO, "claim"),
            Asked(1, THREE, "claim"),
            Asked(3, ONE, "release", (RELEASE,)),
            Asked(4, TWO, "claim", (RECLAIM,)),
            Asked(4, THREE, "claim"),
            Local(4, TWO, "effect", "charges the card"),
            Asked(5, TWO, "complete", (COMPLETE,)),
            Asked(6, THREE, "claim"),
        ),
    ),
)
