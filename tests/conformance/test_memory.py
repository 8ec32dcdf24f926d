"""The store in memory keeps the contract."""

from semel.clock import Clock
from semel.stores.memory import MemoryStore
from semel.testing import StoreConformance


class TestMemory(StoreConformance):
    def make_store(self, clock: Clock) -> MemoryStore:
        return MemoryStore(clock)
