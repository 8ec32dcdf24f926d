"""Tools for testing: a clock that a test moves, a store that fails on demand, the contract of every store.

    from semel.testing import FakeClock, Faulty, StoreConformance

`StoreConformance` needs pytest; nothing else here does. `python -m semel.testing.simulate` runs thousands of
simulated worlds, and `semel.testing.simulate.run(seed)` one.
"""

from typing import TYPE_CHECKING, Any

from semel.testing.clock import FakeClock
from semel.testing.faulty import Faulty

if TYPE_CHECKING:
    from semel.testing.conformance import StoreConformance

__all__ = ["FakeClock", "Faulty", "StoreConformance"]


def __getattr__(name: str) -> Any:
    if name != "StoreConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Only who subclasses it needs pytest.
    from semel.testing.conformance import StoreConformance

    return StoreConformance
