"""A fleet that moves from justonce to semel, as docs/how-to/move-from-idemkit-or-justonce.md says."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import justonce
from justonce.stores import SqliteStore

import semel
from tests.amounts import amount


def test_old_workers_and_those_with_both_do_each_order_once_and_semel_alone_repeats_none(
    tmp_path: Path,
) -> None:
    """Every order comes four times, in any order; then the old decorator is taken away."""
    orders, chance = amount(500, 50), random.Random(7)
    charged: list[int] = []
    store = SqliteStore(tmp_path / "effects.db")
    old = justonce.Idempotent(store, on_in_flight=justonce.OnInFlight.WAIT, poll_interval=0.001)

    @justonce.idempotent(key=lambda order: justonce.operation_key("charge", str(order)), engine=old)
    def before(order: int) -> str:
        charged.append(order)
        return f"charged {order}"

    with semel.connect(f"sqlite:///{tmp_path / 'semel.db'}") as s:

        @s.once("charge:{order}")
        def both(order: int) -> str:
            answer: str = before(order)
            return answer

        @s.once("charge:{order}", shared=True)
        def after(order: int) -> str:
            charged.append(order)
            return "again"

        calls = [(work, order) for order in range(orders) for work in (before, before, both, both)]
        chance.shuffle(calls)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda call: call[0](call[1]), calls))
        assert answers == [f"charged {order}" for _, order in calls]
        assert [after(order) for order in range(orders)] == [f"charged {order}" for order in range(orders)]
    store.close()
    assert sorted(charged) == list(range(orders))
