"""Runs of write.lua: several writes in one slot, and what is to lead to them from others."""

from collections.abc import Sequence

from semel.stores.redis.asks import Ask
from semel.stores.redis.indexes import KEPT, Entry, keys_of
from semel.stores.redis.orders import ENCODER, Binary, Manner, Order, Orders
from semel.stores.redis.plan import NEVER, Plan, Step
from semel.stores.redis.scripts import WRITE
from semel.stores.redis.slots import key_slot


def write_ask(
    plans: Sequence[Plan],
    steps: Sequence[Step],
    now: float | None,
    manner: Manner,
    *,
    together: bool = False,
    late: float | None = None,
) -> Ask:
    """Writes in one run of the script, and the entries that lie in their slot."""
    binary: Binary = []
    keys: list[bytes] = []
    orders = []
    for plan, step in zip(plans, steps, strict=True):
        keys += plan.keys(step.write)
        order = plan.order(step.write, binary)
        if step.entries:
            order.entered = True
            near = [entry for entry in step.entries if not _apart(entry, keys[0], manner)]
            order.entries = [(len(keys) + 1 + 3 * place, entry.member) for place, entry in enumerate(near)]
            keys += [key for entry in near for key in keys_of(entry.key)]
        if step.still is not None:
            order.still = step.still
            if step.still != NEVER and not step.entries:
                order.gone = (*order.gone, KEPT)  # no index leads to it any more
        orders.append(order)
    told = ENCODER.encode(Orders(orders, manner.publish, now, together, manner.confirm, late))
    return Ask(keys[0], (b"%d" % len(keys), *keys, told, *binary), WRITE)


def enter_asks(
    plans: Sequence[Plan], steps: Sequence[Step], run: Ask, now: float | None, manner: Manner
) -> list[Ask]:
    """The entries that lie in other slots than the writes they lead to, each in a run of its own."""
    asks = []
    for plan, step in zip(plans, steps, strict=True):
        expires = plan.table.expires
        for entry in step.entries:
            if _apart(entry, run.key, manner):
                order = Order("enter", expires, set={expires: step.end}, entries=[(1, entry.member)])
                told = ENCODER.encode(Orders([order], manner.publish, now))
                asks.append(Ask(entry.key, (b"3", *keys_of(entry.key), told), WRITE))
    return asks


def _apart(entry: Entry, key: bytes, manner: Manner) -> bool:
    return manner.cluster and key_slot(entry.key) != key_slot(key)
