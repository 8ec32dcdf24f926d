"""How much is tried: in every run as much as ten minutes allow, and all of it with `make slow`."""

import os
from collections.abc import Mapping
from typing import Any

ALL = bool(os.environ.get("SEMEL_TEST_ALL"))

# The rules are the same generators sync and async, and every store shows both in its conformance tests. So in
# every run the rules about state are tried on each store, and async on these of them.
ASYNC_STATE = ("memory", "sqlite", "dynoxide")


def amount(whole: int, everyday: int) -> int:
    return whole if ALL else everyday


def is_tried(file: str, params: Mapping[str, Any]) -> bool:
    """Whether a test with these parameters is tried in this run."""
    if ALL:
        return True
    ways = {getattr(one, "__name__", "") for one in params.values()}
    if "tests/state/" in file and "Async" in ways:
        return bool({*ASYNC_STATE} & {one for one in params.values() if isinstance(one, str)})
    return not (file.endswith("test_dynamodb_tables.py") and "AsyncRunner" in ways)
