"""Tools for testing: a clock that a test moves, a store that fails on demand, the contract of every store.

    from semel.testing import FakeClock, Faulty, FaultProxy, History, StoreConformance, check_items

`StoreConformance` needs pytest; nothing else here does. `python -m semel.testing.simulate` runs thousands of
simulated worlds, and `semel.testing.simulate.run(seed)` one.
"""

from typing import TYPE_CHECKING, Any

from semel.testing.clock import FakeClock
from semel.testing.faulty import Faulty
from semel.testing.linear import History, Operation, Violation, check, check_items
from semel.testing.proxy import FaultProxy

if TYPE_CHECKING:
    from semel.testing.conformance import StoreConformance

__all__ = [
    "FakeClock",
    "FaultProxy",
    "Faulty",
    "History",
    "Operation",
    "StoreConformance",
    "Violation",
    "check",
    "check_items",
]


def __getattr__(name: str) -> Any:
    if name != "StoreConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Only who subclasses it needs pytest.
    from semel.testing.conformance import StoreConformance

    return StoreConformance
