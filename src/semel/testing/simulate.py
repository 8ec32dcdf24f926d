"""Run the ledger in thousands of simulated worlds, and see that its promises hold in every one.

    python -m semel.testing.simulate                 # a thousand worlds
    python -m semel.testing.simulate --seeds 20000   # more of them
    python -m semel.testing.simulate --seed 1234     # one of them, told step by step with --trace

In each world a few workers call for a few keys while commands are lost, doubled and delayed, workers crash or
come back as zombies, and the clock jumps. The steps are those of the real code. After each of them the
invariants of `semel.testing.simulation.model` are checked, and an `InvariantViolation` tells how the world
came to break one. The same seed gives the same world, on every machine and every Python.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from semel.testing.simulation.network import FAULTS
from semel.testing.simulation.trace import InvariantViolation
from semel.testing.simulation.world import World

__all__ = ["InvariantViolation", "SimulationCounts", "main", "run", "run_many"]

SimulationCounts: TypeAlias = dict[str, int]
"""How often each thing happened."""

# What befalls a command, and what befalls everybody.
WENT_WRONG = ("clock", "crash", "drained", *(fault for _, fault in FAULTS))


def run(seed: int, listener: Callable[[str], None] | None = None) -> SimulationCounts:
    """Run one world, and count what happened in it; the listener is told every step."""
    return World(seed, listener).run()


def run_many(seeds: Iterable[int]) -> SimulationCounts:
    """Run one world for each seed, and add up what happened in them."""
    total: Counter[str] = Counter()
    for seed in seeds:
        total.update(run(seed))
    return total


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a program; 1 when a promise was broken."""
    options = _parser().parse_args(argv)
    one = options.seed is not None
    worlds = 1 if one else options.seeds
    began = time.perf_counter()
    try:
        if one:
            total = run(options.seed, print if options.trace else None)
        else:
            total = run_many(_shown(range(options.start, options.start + worlds)))
    except InvariantViolation as violation:
        print(violation)
        return 1
    _summarise(total, worlds, time.perf_counter() - began)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m semel.testing.simulate", description="Run the ledger in simulated worlds."
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds to run (%(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--seed", type=int, help="run this world only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every step")
    return parser


def _shown(seeds: Iterable[int]) -> Iterable[int]:
    """The seeds, with a bar that shows how far it has got, where somebody can see it."""
    if not sys.stderr.isatty():
        return seeds
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return seeds
    return track(seeds, "simulating", console=Console(stderr=True), transient=True)


def _summarise(total: SimulationCounts, worlds: int, seconds: float) -> None:
    named = "1 world" if worlds == 1 else f"{worlds:,} worlds"
    print(f"{named}, {total['steps']:,} steps, {seconds:.1f} s: every invariant held")
    faults = [what for what in sorted(total) if what.startswith(WENT_WRONG)]
    others = [what for what in sorted(total) if what not in faults and what != "steps"]
    for heading, names in (("what went wrong", faults), ("what came of it", others)):
        print(f"\n{heading}")
        for name in names:
            print(f"  {name:<28}{total[name]:>12,}")


if __name__ == "__main__":
    sys.exit(main())
