"""How much is tried: what seven minutes allow, all of it with `make slow`, and more with `make proof`."""

import os

import pytest

PROOF = bool(os.environ.get("SEMEL_TEST_PROOF"))
ALL = PROOF or bool(os.environ.get("SEMEL_TEST_ALL"))

# The rules are the same generators sync and async, and every store shows both in its conformance tests. So in
# every run the rules about state are tried on these stores, and async on the second ones; and on another
# engine, or in another way of the same store, the contract is tried sync. Tables that were there first differ
# in their names alone: one of a seed's and Powertools' stand for all.
STATE = {"memory", "sqlite", "postgres", "redis", "dynoxide"}
ASYNC_STATE = {"memory", "sqlite", "dynoxide"}
SYNC_ONLY = {
    *("TestMinistack", "TestBoto3", "TestPostgresPrepared", "TestRedisCluster", "TestWithin"),
    *("TestQuill", "TestPowertools", "TestTheStoreInTheDocs"),
}
NOT_EVERYDAY = {"TestAlchemiser", "TestSupportEvents", "TestProbe"}


def amount(whole: int, everyday: int, proof: int | None = None) -> int:
    if PROOF and proof is not None:
        return proof
    return whole if ALL else everyday


def is_tried(item: pytest.Item) -> bool:
    """Whether a test is tried in this run, by its parameters."""
    params = getattr(getattr(item, "callspec", None), "params", {}).values()
    if ALL or not params:
        return True
    texts = {one for one in params if isinstance(one, str)}
    is_async = any(getattr(one, "__name__", "") in ("Async", "AsyncRunner") for one in params)
    if "tests/state/" in item.path.as_posix() and texts & {*STATE, "ministack"}:
        return bool(texts & (ASYNC_STATE if is_async else STATE))
    kind = getattr(getattr(item, "cls", None), "__name__", "")
    return kind not in NOT_EVERYDAY and not (is_async and kind in SYNC_ONLY)
