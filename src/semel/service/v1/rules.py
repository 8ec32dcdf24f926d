"""What a request means that may have been sent before, because its answer was lost.

A client makes a random token before it claims, and sends the same one whenever it asks again. Whoever finds
its own token in the record has won, as in the library; here the writer is another process than the one that
asks again, so three things are looked after besides:

    the record is still mine            the lease begins anew, so that the answer is as true as the first was
    I have given it back since          the request is an old copy; nobody waits for what it would claim
    I have completed it with this       done, though an encrypted result never has the same bytes twice
"""

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

import msgspec

from semel import errors
from semel.connect import Semel
from semel.core.commands import Get, Refused, Steps, read
from semel.core.keys import check
from semel.core.ledger import LedgerSteps
from semel.core.runtime import random_token
from semel.model import MISSING, Claimed, Outcome, Record
from semel.service.problems import problem_error
from semel.state.counters import CHARGED, Charged
from semel.tables import COUNTERS

T = TypeVar("T")

_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class ClaimedAgain(Exception):
    """Somebody was faster: what stands there now has to be looked at afresh."""


def ledger_with(s: Semel, token: str | None) -> LedgerSteps:
    """The rules of a tenant's ledger, which use the client's own token where it made one."""
    steps = s.ledger.steps
    if token is None:
        return steps
    realm = msgspec.structs.replace(steps.realm, token=_first(token))
    return LedgerSteps(realm, steps.codec, clock=steps.clock, clear_details=steps.clear_details)


def _first(token: str) -> Callable[[], str]:
    given = [token]
    return lambda: given.pop() if given else random_token()


def claim(s: Semel, key: str, token: str | None, terms: dict[str, Any]) -> Steps[Outcome]:
    """Claim a key; asked again with the same token, the claim is the same one."""
    while True:
        ledger = ledger_with(s, token)
        steps = ledger.claim(key, **terms)
        if token is None:
            return (yield from steps)
        try:
            return (yield from _watched(steps, _mine(ledger, token, terms)))
        except ClaimedAgain:
            continue


def _mine(
    ledger: LedgerSteps, token: str, terms: dict[str, Any]
) -> "Callable[[Refused], Steps[Outcome | None]]":
    def seen(reply: Refused) -> "Steps[Outcome | None]":
        item = reply.item
        if item is None or item.get("token") != token:
            return None
        if item["status"] == "RELEASED":
            raise problem_error("claim-over", "claim again with a new token, if it is to be tried again")
        if item["status"] != "IN_PROGRESS":
            return None
        known = item.get("fingerprint"), terms["fingerprint"]
        if None not in known and known[0] != known[1]:
            raise problem_error("payload-changed", "this token has claimed the key with another payload")
        # Whether an earlier attempt vanished is not in the record; it may have, where there was one.
        attempt = item["attempt"]
        claim = Claimed(
            item["id"],
            token,
            attempt,
            terms["lease"],
            terms["ttl"],
            lapsed=attempt > 1,
            on_lapsed=terms["on_lapsed"],
            doubt_ttl=terms["doubt_ttl"],
        )
        try:
            yield from ledger.renew(claim)
        except errors.ClaimLost:
            raise ClaimedAgain from None
        return claim

    return seen


def complete(ledger: LedgerSteps, claim: Claimed, result: Any, *, overflows: bool) -> Steps[bool]:
    """Complete a claim, and tell whether its result is kept; asked again with the same one, it is done."""
    keeps = _keeps(ledger, claim.id, result, overflows=overflows)

    def seen(reply: Refused) -> "Steps[bool | None]":
        item = reply.item
        if item is None or item.get("token") != claim.token or item["status"] != "COMPLETED":
            return None
        stored = yield from ledger.result(msgspec.convert(item, Record))
        # One that could not be kept is the same as any other that cannot, and as none that can.
        same = not keeps if stored is MISSING else _same(stored, result)
        return True if same else None

    yield from _watched(ledger.complete(claim, result), seen)
    return keeps


def _same(stored: Any, result: Any) -> bool:
    try:
        return _sorted(stored) == _sorted(result)
    except (TypeError, ValueError):  # what JSON cannot write was not stored as it is
        return False


def _watched(
    steps: Generator[Any, Any, T], seen: "Callable[[Refused], Generator[Any, Any, Any]]"
) -> Generator[Any, Any, T]:
    """Take these steps, and end as soon as `seen` has an answer to what stands in their way."""
    try:
        command = next(steps)
        while True:
            try:
                reply = yield command
            except BaseException as error:  # noqa: BLE001 - the steps decide, whatever it is
                command = steps.throw(error)
                continue
            if type(reply) is Refused:
                answer = yield from seen(reply)
                if answer is not None:
                    steps.close()
                    return answer  # type: ignore[no-any-return]  # as the steps would have
            command = steps.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _keeps(ledger: LedgerSteps, id: str, result: Any, *, overflows: bool) -> bool:
    """Whether a result can be stored; where not, the fact is, and nothing runs again."""
    encoded = ledger.codec.encode(result, id)
    return encoded.problem is None or (overflows and encoded.oversize is not None)


def check_charge(s: Semel, held: Charged) -> Steps[None]:
    """Why a charge was not given back: refuse one that is not as it was made."""
    steps = s.counters.steps
    found = yield from read(Get(COUNTERS, steps.realm.name(held.counter), check(CHARGED + held.token)))
    item = found.item
    if item is None or item.get("token") != held.id:
        return  # nobody knows it any more
    if (item["by"], item["period"]) != (held.by, held.period):
        raise problem_error("claim-malformed", "give it back as it was given out")
