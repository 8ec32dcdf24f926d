"""The ledger's model, searched by Spin: the promises hold, and without any one guard a promise breaks.

docs/explanation/model.md tells what is searched.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

MODEL = Path(__file__).with_name("ledger.pml")
FOLDER = MODEL.parents[2] / "build" / "model"

# What Spin's search may go down to, in statements; it says so where that is not enough.
DEPTH = 12_000_000
DEEP = 20_000_000
# A mutant is searched to the first of these depths at which it breaks a promise, so that its trail is short.
DEPTHS = (60, 120, 250, 500, 1_000, 2_000, 4_000, 8_000, 100_000)


class Absent(Exception):
    """A program is not here; the message says how to install it."""


class NotSearched(Exception):
    """Spin, the compiler or the search stopped before the end; the message has what it said."""


@dataclass(frozen=True)
class Instance:
    """The model with these switches, and the promise that then breaks: none where no guard is taken away."""

    name: str
    switches: tuple[str, ...]
    breaks: str | None = None
    lasting: bool = False
    """What holds in the end is searched for cycles, and not for states."""


@dataclass(frozen=True)
class Finding:
    """What a search found."""

    name: str
    expected: str | None
    broken: str | None
    states: int
    seconds: float

    @property
    def good(self) -> bool:
        return self.broken == self.expected


def policy(name: str, *switches: str) -> tuple[str, ...]:
    return (f"ON_LAPSED={name}", *switches)


SMALL = ("WORKERS=2", "LEASE=1")
CROWDED = ("WORKERS=3", "LEASE=1", "STRAYS")
PROGRESS = (*SMALL, "PROGRESS=2")

WHOLE = [
    Instance("three workers, rerun", policy("RERUN")),
    Instance("three workers, hold", policy("HOLDS")),
    Instance("three workers, resolve", policy("RESOLVE")),
    Instance("two workers and late writes, rerun", policy("RERUN", *SMALL, "STRAYS")),
    Instance("two workers and late writes, hold", policy("HOLDS", *SMALL, "STRAYS")),
    Instance("two workers and late writes, resolve", policy("RESOLVE", *SMALL, "STRAYS")),
    Instance("three workers and late writes, rerun", policy("RERUN", *CROWDED)),
    Instance("three workers and late writes, hold", policy("HOLDS", *CROWDED)),
    Instance("progress, rerun", policy("RERUN", *PROGRESS), lasting=True),
    Instance("progress, hold", policy("HOLDS", *PROGRESS), lasting=True),
    Instance("progress, resolve", policy("RESOLVE", *PROGRESS), lasting=True),
]
EVERYDAY = [Instance("two workers, hold", policy("HOLDS", *SMALL))]

# What is taken away, under which policy it is missed, and the promise that breaks.
GUARDS = {
    "TAKE_OVER_ALIVE": ("RERUN", "one_holder"),
    "EXPIRES_BEFORE_LEASE": ("RERUN", "one_holder"),
    "DEADLINE_FROM_ANSWER": ("RERUN", "one_holder"),
    "BEGINS_PAST_DEADLINE": ("RERUN", "one_holder"),
    "TOKEN_FROM_KEY": ("RERUN", "one_holder"),
    "COMPLETE_WITHOUT_TOKEN": ("RERUN", "zombie_refused"),
    "FAIL_WITHOUT_TOKEN": ("RERUN", "zombie_refused"),
    "RELEASE_WITHOUT_TOKEN": ("RERUN", "zombie_refused"),
    "RENEW_WITHOUT_TOKEN": ("RERUN", "zombie_refused"),
    "RENEW_BRINGS_BACK": ("RERUN", "zombie_refused"),
    "COMPLETE_TWICE": ("HOLDS", "one_result"),
    "FAIL_OVER_RESULT": ("HOLDS", "one_result"),
    "OWN_CLAIM_NOT_KNOWN": ("RERUN", "own_write"),
    "OWN_WORK_NOT_KNOWN": ("RERUN", "own_write"),
    "RESENT_WITHOUT_TOKEN": ("RERUN", "told_accepted"),
    "HOLD_IGNORED": ("HOLDS", "no_silence"),
    "DOUBT_EXPIRES": ("HOLDS", "no_silence"),
    "SETTLE_WITHOUT_TOKEN": ("HOLDS", "no_silence"),
    "UNBEGUN_RELEASED": ("RESOLVE", "no_silence"),
}
MUTANTS = [
    Instance(name, policy(on_lapsed, *SMALL, name), breaks) for name, (on_lapsed, breaks) in GUARDS.items()
]
MUTANTS += [
    Instance(
        "NEVER_TAKEN_OVER", policy("RERUN", *PROGRESS, "NEVER_TAKEN_OVER"), breaks="in_the_end", lasting=True
    )
]


def need(*programs: str) -> str:
    """Where these programs are; say what to install where one of them is not here."""
    places = {name: shutil.which(name) for name in programs}
    if absent := [name for name, place in places.items() if place is None]:
        raise Absent(f"{' and '.join(absent)} cannot be found: apt install spin gcc")
    return ", ".join(filter(None, places.values()))


def check(instance: Instance, folder: Path = FOLDER) -> Finding:
    """Search one instance; the trail of a broken promise stays in the folder."""
    need("spin", "gcc")
    place = folder / instance.name.replace(" ", "-").replace(",", "")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copy(MODEL, place)
    began = time.perf_counter()
    run(place, "spin", "-a", *defined(instance), MODEL.name)
    broken, states = searched(instance, place)
    return Finding(instance.name, instance.breaks, broken, states, time.perf_counter() - began)


def defined(instance: Instance) -> list[str]:
    return [f"-D{switch}" for switch in instance.switches]


def searched(instance: Instance, place: Path) -> tuple[str | None, int]:
    """The promise that breaks, and how many states were seen."""
    if instance.lasting:
        build(place, "-O0", "-DNFAIR=3")
        return verdict(run(place, "./pan", "-a", "-f", "-n", f"-m{DEPTH // 4}"))
    if instance.breaks is None:
        # What is searched in a second is compiled in one.
        build(place, "-O0" if instance in EVERYDAY else "-O2", "-DSAFETY", "-DNOCLAIM")
        depth = DEEP if set(CROWDED) <= set(instance.switches) else DEPTH
        return verdict(run(place, "./pan", "-n", f"-m{depth}", "-w25"))
    build(place, "-O0", "-DSAFETY", "-DNOCLAIM", "-DREACH")
    for depth in DEPTHS:
        broken, states = verdict(run(place, "./pan", "-n", f"-m{depth}"), whole=False)
        if broken:
            return broken, states
    return None, states


def build(place: Path, *switches: str) -> None:
    run(place, "gcc", "-w", "-DCOLLAPSE", "-DMEMLIM=8000", *switches, "-o", "pan", "pan.c")


def run(place: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotSearched(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def verdict(output: str, *, whole: bool = True) -> tuple[str | None, int]:
    """What pan has found, by what it printed."""
    errors, states = re.search(r"errors: (\d+)", output), re.search(r"([\d.e+]+) states, stored", output)
    if errors is None or states is None or (whole and "max search depth too small" in output):
        raise NotSearched(output)
    broken = re.search(r"assertion violated (\w+)|(acceptance cycle)", output)
    if (errors[1] != "0") != (broken is not None):
        raise NotSearched(output)
    name = None if broken is None else broken[1] or "in_the_end"
    return name, int(float(states[1]))


def story(instance: Instance, folder: Path = FOLDER) -> Iterator[str]:
    """The steps by which a checked mutant breaks its promise."""
    place = folder / instance.name
    output = run(place, "spin", "-t", "-B", *defined(instance), MODEL.name)
    for line in output.splitlines():
        if line.startswith(("spin: trail ends", "#processes")):
            return
        if not line.startswith(("ltl ", "Never claim", "spin: warning")):
            yield line.strip()


def line_of(finding: Finding) -> str:
    mark = "ok " if finding.good else "BAD"
    expected, broken = (f"breaks {one}" if one else "holds" for one in (finding.expected, finding.broken))
    came = "as expected" if finding.good else f"but {broken}"
    name, states = f"{finding.name:<38}", f"{finding.states:>12,} states"
    return f"{mark} {name} {expected:<22} {came:<12} {states} {finding.seconds:7.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.model", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    parser.add_argument("--trail", metavar="NAME", help="print how this mutant breaks its promise")
    options = parser.parse_args()
    mutants = {one.name: one for one in MUTANTS}
    if options.trail and options.trail not in mutants:
        parser.error(f"there is no mutant {options.trail}; there are {', '.join(mutants)}")
    try:
        return print_trail(mutants[options.trail]) if options.trail else checked(options.json)
    except Absent as error:
        print(error, file=sys.stderr)
        return 1


def print_trail(mutant: Instance) -> int:
    finding = check(mutant)
    for line in story(mutant) if finding.broken else ():
        print(line)
    print(line_of(finding))
    return 0 if finding.good else 1


def checked(as_json: bool) -> int:
    findings = []
    for instance in (*WHOLE, *MUTANTS):
        findings.append(check(instance))
        if not as_json:
            print(line_of(findings[-1]), flush=True)
    if as_json:
        print(json.dumps([asdict(finding) | {"good": finding.good} for finding in findings], indent=2))
    return 0 if all(finding.good for finding in findings) else 1
