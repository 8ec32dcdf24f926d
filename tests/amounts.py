"""How much is tried: in every run as much as ten minutes allow, and all of it with `make slow`."""

import os

import pytest

ALL = bool(os.environ.get("SEMEL_TEST_ALL"))

# The rules are the same generators sync and async, and every store shows both in its conformance tests. So in
# every run the rules about state are tried on these stores, and async on the second ones; and on another
# engine, or in another way of the same store, the contract is tried sync.
STATE = {"memory", "sqlite", "postgres", "redis", "dynoxide"}
ASYNC_STATE = {"memory", "sqlite", "dynoxide"}
SYNC_ONLY = {
    *("TestMinistack", "TestPostgresPrepared", "TestWithin"),
    *("TestQuill", "TestAlchemiser", "TestSupportEvents", "TestProbe", "TestPowertools"),
}


def amount(whole: int, everyday: int) -> int:
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
    kind = getattr(item, "cls", None)
    return not (is_async and kind is not None and kind.__name__ in SYNC_ONLY)
