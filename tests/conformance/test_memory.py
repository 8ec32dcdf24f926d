"""The store in memory keeps the contract."""

import pytest

from semel.core.clock import Clock
from semel.stores.memory import MemoryStore
from semel.testing import StoreConformance


@pytest.mark.seed("A1")
class TestMemory(StoreConformance):
    def make_store(self, clock: Clock) -> MemoryStore:
        return MemoryStore(clock)
