"""Thousands of worlds in which everything goes wrong, and every promise holds."""

import os
import subprocess
import sys

import pytest

from semel.testing import simulate
from semel.testing.simulation import World
from tests.amounts import amount

CHUNKS, WORLDS = amount(20, 8, 100), 1000

# What a thousand worlds have to have seen, or the simulation proves little: about half of what they see.
EXERCISED = {
    "busy": 1500,
    "clock set back": 100,
    "clock set forward": 100,
    "crash after claim": 80,
    "crash after end": 10,
    "crash after renewal": 5,
    "crash before claim": 80,
    "crash before end": 10,
    "crash before renewal": 5,
    "crash during claim": 30,
    "crash during end": 5,
    "crash during wait": 80,
    "crash during work": 80,
    "delayed": 100,
    "drained": 100,
    "duplicated": 100,
    "exhausted": 10,
    "expiries": 150,
    "failed_before": 600,
    "forgotten": 100,
    "glances": 600,
    "heartbeats": 600,
    "held": 50,
    "lost while at work": 10,
    "mismatch": 1000,
    "own claims recognised": 60,
    "own moves recognised": 40,
    "paused": 150,
    "refused": 200,
    "replayed": 2500,
    "reply lost": 200,
    "request lost": 100,
    "resolved": 50,
    "slow": 80,
    "taken_over": 150,
    "waiters took over": 80,
    "zombies refused": 80,
}


@pytest.mark.proof("worlds")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_promise_holds_in_every_world(chunk, tried):
    """No invariant is broken, and the worlds were as bad as they are meant to be."""
    total = simulate.run_many(range(chunk * WORLDS, (chunk + 1) * WORLDS))
    missing = {what: total.get(what, 0) for what, least in EXERCISED.items() if total.get(what, 0) < least}
    assert missing == {}
    tried(WORLDS, seed=f"{chunk * WORLDS} to {(chunk + 1) * WORLDS - 1}")


def described(seed):
    lines: list[str] = []
    simulate.run(seed, lines.append)
    return lines


@pytest.mark.parametrize("seed", [3, 84, 1056])
def test_a_seed_is_one_world(seed):
    """Run again, it takes the same steps; another seed takes others."""
    assert described(seed) == described(seed)
    assert described(seed) != described(seed + 1)


def test_nothing_hangs_on_the_hash_seed():
    """Another process with other hashes takes the same steps."""
    program = "from semel.testing import simulate; [simulate.run(seed, print) for seed in range(20)]"

    def output(hash_seed):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        return subprocess.check_output([sys.executable, "-c", program], env=environment)

    first, second = output("1"), output("2")
    assert first == second
    assert first.count(b"\n") > 500


def test_the_program_tells_what_happened(capsys):
    """Every step of one world, or a summary of many."""
    assert simulate.main(["--seed", "3", "--trace"]) == 0
    assert "begins call" in capsys.readouterr().out
    assert simulate.main(["--seeds", "20", "--start", "100"]) == 0
    summary = capsys.readouterr().out
    assert summary.startswith("20 worlds, ")
    assert "every invariant held" in summary
    assert "replayed" in summary


def test_the_program_shows_how_a_promise_was_broken(capsys, monkeypatch):
    """The invariant, the steps and the command that replays them; and it fails."""
    monkeypatch.setattr(World, "until_quiet", lambda world: world.fail("progress", "stuck on purpose"))
    assert simulate.main(["--seed", "7"]) == 1
    output = capsys.readouterr().out
    assert output.startswith("progress: stuck on purpose")
    assert "python -m semel.testing.simulate --seed 7" in output
