"""The contract of a store, as tests: subclass `StoreConformance` and let pytest run it.

    class TestMemory(StoreConformance):
        def make_store(self, clock):
            return MemoryStore(clock)

Every behaviour is tested twice, through `drive` and through `adrive`, from the simplest to the whole: with
`pytest -x` the first failure is the next thing to see to. The store has to take its time from
the clock it is given: that is how leases run out here without anybody sleeping. Besides the ledger's table it
has to keep those in `TABLES`.
"""

from pkgutil import iter_modules

import pytest

# Without this the failing asserts would not show their values; it has to come before the imports.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from semel.testing.conformance.basics import BasicTests  # noqa: E402
from semel.testing.conformance.commands import CommandTests, TransactTests  # noqa: E402
from semel.testing.conformance.doubts import DoubtTests  # noqa: E402
from semel.testing.conformance.faults import FaultTests  # noqa: E402
from semel.testing.conformance.flow import FlowTests  # noqa: E402
from semel.testing.conformance.harness import (  # noqa: E402
    ENTRIES,
    LINES,
    NOTES,
    TABLES,
    THINGS,
    Harness,
    Runner,
)
from semel.testing.conformance.indexes import IndexTests  # noqa: E402
from semel.testing.conformance.moves import MoveTests  # noqa: E402
from semel.testing.conformance.queries import QueryTests  # noqa: E402
from semel.testing.conformance.races import RaceTests  # noqa: E402
from semel.testing.conformance.records import LimitTests, MarkTests, RecordTests  # noqa: E402
from semel.testing.conformance.values import ExpiryTests, GlanceTests, ValueTests  # noqa: E402

__all__ = ["ENTRIES", "LINES", "NOTES", "TABLES", "THINGS", "Harness", "Runner", "StoreConformance"]


# From the whole to the simplest: pytest runs the tests of the last base first.
class StoreConformance(
    FlowTests,
    DoubtTests,
    FaultTests,
    LimitTests,
    MarkTests,
    RecordTests,
    MoveTests,
    RaceTests,
    GlanceTests,
    IndexTests,
    QueryTests,
    ExpiryTests,
    TransactTests,
    ValueTests,
    CommandTests,
    BasicTests,
):
    """Everything that is asked of a store. A subclass says how to make one: `make_store(self, clock)`."""
