"""The public types, as a type checker sees them; this file is checked and never run."""

from dataclasses import dataclass
from typing import Any, assert_type

import semel
from semel.apps.tables import ACTIVITIES, RESPONSE_COUNTERS, SUPPORT_STATE
from semel.gate import (
    Allowed,
    Cap,
    Cooldown,
    FastConversation,
    KillSwitch,
    QuietHours,
    Refused,
    RuleResult,
    Shadow,
)
from semel.periods import Day, Span, Window
from semel.redact import Digest, Redactor
from semel.state.counters import Charged, Tally
from semel.state.documents import Document
from semel.state.erasure import Erasure
from semel.state.journal import Book, Entries, Entry
from semel.state.switches import Switch
from semel.state.transaction import Pending, Transaction

s = semel.connect("memory:", env="dev", scope="acme")


@s.once("charge:{order_id}", ttl=86400, lease=30)
def charge(order_id: str, amount: int) -> dict[str, int]:
    return {"amount": amount}


@s.once(key=lambda order_id: semel.Key("lookup", order_id))
async def look_up(order_id: str) -> str:
    return order_id


class Till:
    @s.once("sell:{article}")
    def sell(self, article: str) -> int:
        return 1


assert_type(charge("o1", 5), dict[str, int])
charge("o1")  # type: ignore[call-arg]  # a wrong call is still seen
assert_type(Till().sell("a"), int)
assert_type(s.once.call("k", charge, "o1", 5), dict[str, int])
assert_type(s.once.answer(charge, "o1", 5), semel.Answer[dict[str, int]])
assert_type(s.once.answer(Till().sell, "a").ran, bool)


async def learn_whether_it_ran() -> None:
    assert_type(await s.once.answer(look_up, "o1"), semel.Answer[str])


s.once.answer(charge, "o1")  # type: ignore[call-overload]
s.once("k", on_busy="maybe")  # type: ignore[arg-type]  # policies are words
s.once("k", tll=5)  # type: ignore[call-arg]  # and options are known

with s.once.running("charge", 1) as run:
    assert_type(run, semel.Run)
    assert_type(run.attempt, int)

outcome = s.ledger.claim("k", lease=30)
assert_type(
    outcome,
    semel.Claimed | semel.Replay | semel.Busy | semel.Failed | semel.Mismatch | semel.Unknown,
)
match outcome:
    case semel.Claimed():
        s.ledger.complete(outcome, {"a": 1})
        s.ledger.release(outcome)
    case semel.Replay(record, result):
        assert_type(record, semel.Record)
        assert_type(result, Any)
    case _:
        pass

assert_type(s.ledger.get("k"), semel.Record | None)
assert_type(s.ledger.check_and_set("k", ttl=60), bool)
assert_type(s.ledger.is_processed("k", on_store_error="open"), bool)
s.ledger.is_processed("k", on_store_error="ajar")  # type: ignore[arg-type]
assert_type(s.ledger.check_and_set_many(["a", semel.Key("b", 1)]), list[bool])
assert_type(s.ledger.list(status=semel.Status.UNKNOWN), semel.Listing)

# The state that decides


@dataclass
class Conversation:
    team: str = "sales"


def heard(state: Conversation | None) -> Conversation:
    return state or Conversation()


conversations = s.documents.of(Conversation, ends={"team": 60})
assert_type(s.documents.get("c"), Document[dict[str, Any]] | None)
assert_type(s.documents.put("c", {"a": 1}, version=3), int)
assert_type(s.documents.change("c", {"a": None}, ends={"a": 60}), Document[dict[str, Any]])
assert_type(s.documents.delete("c"), bool)
assert_type(s.documents.prune(), int)
assert_type(conversations.get("c"), Document[Conversation] | None)
assert_type(conversations.update("c", heard), Document[Conversation])
conversations.update("c", len)  # type: ignore[arg-type]  # it makes the new document of the old one
s.documents.on(SUPPORT_STATE).of(Conversation)

assert_type(s.journal.append("c", {"did": "reply"}, actor="bot", key="k", at=1.5), Entry)
assert_type(s.journal.list("c", since=1, reverse=True), Entries)
assert_type(s.journal.by_actor("bot"), Entries)
assert_type(s.journal.get("c", "01J"), Entry | None)
s.journal.on(ACTIVITIES)
s.journal.on(Book(table=ACTIVITIES, at="timestamp"))

charged = s.counters.charge("replies", cap=3, token="m-1", per=Day("Europe/Stockholm"))
assert_type(charged, Charged)
assert_type(s.counters.refund(charged), bool)
assert_type(s.counters.on(RESPONSE_COUNTERS).add("chat"), Tally)
assert_type(s.counters.look("replies", cap=3).remaining, int | None)
s.counters.charge("replies", token="m-1")  # type: ignore[call-arg]  # a charge has a cap
assert_type(Day().span(0), Span)
assert_type(Window("22:00", "07:00").holds(0), bool)

assert_type(s.switches.list(), dict[str, Switch])
s.switches.turn("safe_mode", on=True)

gate = s.gate(
    QuietHours("22:00", "07:00"),
    Cap("replies:{chat}", 3),
    Cooldown("pause:{chat}", 60),
    FastConversation("{chat}", "{me}"),
    KillSwitch("safe_mode"),
    Shadow(),
    trace="{chat}",
)


def also(tx: object, decision: Allowed | Refused) -> None:
    assert_type(decision.allowed, bool)


decision = gate.decide("reply:1", chat=42, also=also)
assert_type(decision, Allowed | Refused)
assert_type(gate.explain("reply:1", chat=42), tuple[RuleResult, ...])
if isinstance(decision, Allowed):
    assert_type(gate.refund(decision), bool)
else:
    assert_type(decision.reason, str)
    gate.refund(decision)  # type: ignore[arg-type]  # what was refused has not been charged
s.gate("cap")  # type: ignore[arg-type]  # rules are values

with s.transaction() as tx, s.once.running("import", 2) as run:
    assert_type(tx, Transaction)
    assert_type(tx.ledger.complete(run, 1), Pending[None])
    assert_type(tx.counters.charge("replies", cap=3, token="m-2"), Pending[Charged])
    assert_type(tx.journal.append("c", {}).value, Entry)
    assert_type(tx.documents.put("c", {}).value, int)

assert_type(s.once.step("reply", charge, "o1", 5), dict[str, int])
assert_type(run.step("tag", 7), str)

assert_type(s.forget_subject("ann"), Erasure)
assert_type(s.digest({"a": 1}), Digest)
assert_type(s.pseudonym("ann"), str)
assert_type(Redactor().text("..."), str)
semel.connect("memory:", redact=Redactor(), secret=b"...")
s.once("k:{a}", subject="{a}", hide_key=True)


async def main() -> None:
    assert_type(await look_up("o1"), str)
    assert_type(await s.aio.ledger.get("k"), semel.Record | None)
    assert_type(await s.aio.ledger.check_and_set_many(["a"]), list[bool])
    async with s.aio.once.running("charge", 1) as run:
        assert_type(run, semel.Run)
    assert_type(await s.aio.documents.of(Conversation).update("c", heard), Document[Conversation])
    assert_type(await s.aio.journal.append("c", {}), Entry)
    assert_type(await s.aio.counters.charge("replies", cap=3, token="m-1"), Charged)
    assert_type(await s.aio.switches.list(), dict[str, Switch])
    assert_type(await s.aio.gate(Shadow()).decide("reply:2"), Allowed | Refused)
    assert_type(await s.aio.forget_subject("ann"), Erasure)
    assert_type(await s.once.step("look", look_up, "o1"), str)
    async with s.aio.transaction() as tx:
        assert_type(tx.documents.change("c", {"a": 1}), Pending[Document[Any]])
