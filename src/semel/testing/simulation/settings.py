"""What a simulated world is like: drawn from its seed, before anything happens in it."""

from typing import Any

import msgspec

from semel.core.policy import OnError, Options, Policy, policy_of
from semel.model import OnBusy, OnLapsed
from semel.testing.simulation.rng import SeededRandom


class Declined(Exception):
    """An error that a policy may keep."""


class Flaky(Exception):
    """An error that is worth another attempt."""


def resolver() -> None:
    """Stands for the function that asks the other side; the world answers in its place."""


LEASES = (0.5, 1.0, 2.0)
# How much longer than its lease a record lives: some expire in the middle of things, most never.
LONGER = ((0.25, 1.0), (0.25, 3.0), (0.5, 1000.0))
ON_LAPSED: tuple[tuple[float, OnLapsed], ...] = ((0.5, "rerun"), (0.2, "hold"), (0.3, "resolve"))
ON_BUSY: tuple[tuple[float, OnBusy], ...] = ((0.6, "wait"), (0.25, "raise"), (0.15, "skip"))
ON_ERROR: tuple[tuple[float, OnError], ...] = (
    (0.3, "release"),
    (0.2, "keep"),
    (0.5, {Declined: "keep", Exception: "release"}),
)
MAX_ATTEMPTS = ((0.7, None), (0.1, 1), (0.1, 2), (0.1, 3))
# How often a command meets with a fault.
TROUBLE = ((0.1, 0.0), (0.3, 0.06), (0.4, 0.15), (0.2, 0.3))
JUMPS = ((0.6, 0), (0.2, 1), (0.2, 2))
# In leases: some give up long before an attempt could lapse, some see several lapse.
PATIENCE = ((0.3, 0.4), (0.4, 2.5), (0.3, 8.0))


class WorldSettings(msgspec.Struct, frozen=True):
    """One world: who works, on what, under which policy, and in what weather."""

    keys: tuple[str, ...]
    workers: int
    calls: int
    operations: int
    options: Options
    trouble: float
    jumps: int
    heartbeats: float
    drains: float

    def policy(self, on_busy: OnBusy, patience: float) -> Policy:
        """The world's policy as one worker applies it."""
        return policy_of(self.options | Options(on_busy=on_busy, wait=patience))

    def worker_policy(self, rng: SeededRandom) -> Policy:
        """A worker's policy: what is to happen to a record is the same for all, how to wait is its own."""
        lease: Any = self.options["lease"]
        return self.policy(rng.weighed(ON_BUSY), lease * rng.weighed(PATIENCE))


def draw(rng: SeededRandom) -> WorldSettings:
    """The settings of a seed."""
    lease = rng.among(LEASES)
    on_lapsed = rng.weighed(ON_LAPSED)
    workers = rng.upto(2, 5)
    options = Options(
        lease=lease,
        ttl=lease + rng.weighed(LONGER),
        on_lapsed=on_lapsed,
        resolver=resolver if on_lapsed == "resolve" else None,
        on_error=rng.weighed(ON_ERROR),
        max_attempts=rng.weighed(MAX_ATTEMPTS),
    )
    return WorldSettings(
        keys=("a", "b", "c")[: rng.weighed(((0.5, 1), (0.3, 2), (0.2, 3)))],
        workers=workers,
        calls=rng.upto(3, 10),
        operations=rng.upto(0, 6),
        options=options,
        trouble=rng.weighed(TROUBLE),
        jumps=rng.weighed(JUMPS),
        heartbeats=rng.among((0.0, 0.5, 1.0)),
        drains=0.1 if rng.chance(0.3) else 0.0,
    )
