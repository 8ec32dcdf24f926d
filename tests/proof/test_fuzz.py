"""Bytes that anybody may send: whatever a fuzzer makes of them, what must hold of them holds."""

import random
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from proof.fuzz.targets import TARGETS
from tests.amounts import ALL, amount

# Redacting a text is a hundred times the work of reading a field.
RUNS = dict.fromkeys(TARGETS, amount(10_000, 500, 50_000)) | {"redaction": amount(1_000, 500, 5_000)}
SEED = 58
ALIKE = 200
ROOT = Path(__file__).parents[2]


def altered(seed: bytes, rng: random.Random) -> bytes:
    """A seed with some of its bytes drawn anew, repeated or left out."""
    piece = lambda: seed[slice(*sorted(rng.choices(range(len(seed) + 1), k=2)))]  # noqa: E731
    return b"".join(rng.choice([piece, piece, lambda: rng.randbytes(rng.randrange(3))])() for _ in range(3))


@pytest.mark.parametrize("target", TARGETS)
def test_every_seed_and_what_is_like_it_holds(target: str) -> None:
    rng, (holds, seeds) = random.Random(SEED), TARGETS[target]
    for seed in seeds:
        holds(seed)
        for _ in range(ALIKE // len(seeds)):
            holds(altered(seed, rng))


@pytest.mark.proof("inputs")
@pytest.mark.parametrize("target", TARGETS if ALL else ["fields"])
@pytest.mark.skipif(not find_spec("atheris"), reason="atheris is not made for this machine")
def test_a_fuzzer_finds_nothing_that_does_not_hold(target: str, tmp_path: Path, tried) -> None:
    flags = [f"-runs={RUNS[target]}", f"-seed={SEED}", "-max_len=2048", f"-artifact_prefix={tmp_path}/"]
    program = [sys.executable, "-m", "proof.fuzz", target, *flags]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [runs] = re.findall(r"^Done (\d+) runs", done.stderr, re.MULTILINE)
    assert int(runs) >= RUNS[target]
    tried(int(runs), seed=str(SEED))
