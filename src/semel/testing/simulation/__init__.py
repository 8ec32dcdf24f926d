"""Deterministic simulation: several workers, one store, and a network with faults."""

from semel.testing.simulation.trace import InvariantViolation
from semel.testing.simulation.world import World

__all__ = ["InvariantViolation", "World"]
