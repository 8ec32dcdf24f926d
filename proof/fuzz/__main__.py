"""Let atheris call a target, led by what it reaches in semel: `python -m proof.fuzz keys -runs=100000`."""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["semel"]):
    from proof.fuzz.targets import TARGETS


def main(name: str, *flags: str) -> None:
    holds, seeds = TARGETS[name]
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds):
            (Path(corpus) / f"{number}").write_bytes(seed)
        atheris.Setup([sys.argv[0], *flags, corpus], holds)
        atheris.Fuzz()


main(*sys.argv[1:])
