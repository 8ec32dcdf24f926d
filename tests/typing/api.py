"""The public types, as a type checker sees them; this file is checked and never run."""

from typing import Any, assert_type

import semel

s = semel.connect("memory:", env="dev", scope="acme")


@s.once("charge:{order_id}", ttl=86400, lease=30)
def charge(order_id: str, amount: int) -> dict[str, int]:
    return {"amount": amount}


@s.once(lambda order_id: semel.Key("lookup", order_id))
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
assert_type(s.ledger.check_and_set_many(["a", semel.Key("b", 1)]), list[bool])
assert_type(s.ledger.list(status=semel.Status.UNKNOWN), semel.Listing)


async def main() -> None:
    assert_type(await look_up("o1"), str)
    assert_type(await s.aio.ledger.get("k"), semel.Record | None)
    assert_type(await s.aio.ledger.check_and_set_many(["a"]), list[bool])
    async with s.aio.once.running("charge", 1) as run:
        assert_type(run, semel.Run)
