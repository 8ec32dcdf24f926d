"""The ledger's model, searched by Spin: the promises hold, and without any one guard a promise breaks.

docs/explanation/model.md says what is searched.
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

# How deep Spin may search, in statements. It reports if that is not enough.
DEPTH = 12_000_000


class Absent(Exception):
    """A program is not installed; the message says how to install it."""


class NotSearched(Exception):
    """Spin, the compiler or the search stopped before the end; the message is their output."""


@dataclass(frozen=True)
class Instance:
    """The model with these switches, and the promise that breaks if they take a guard away."""

    name: str
    switches: tuple[str, ...]
    breaks: str | None = None
    lasting: bool = False
    """Search for cycles in which `in_the_end` does not hold, and not for states."""


@dataclass(frozen=True)
class Finding:
    """The result of a search."""

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
PROGRESS = (*SMALL, "UNREDUCED", "PROGRESS=2")
POLICIES = {"rerun": "RERUN", "hold": "HOLDS", "resolve": "RESOLVE"}


def each(name: str, *switches: str, lasting: bool = False) -> list[Instance]:
    """Return this instance under each policy."""
    return [
        Instance(f"{name}, {on_lapsed}", policy(spelled, *switches), lasting=lasting)
        for on_lapsed, spelled in POLICIES.items()
    ]


WHOLE = [
    *each("three workers"),
    *each("three workers and late writes", "STRAYS"),
    *each("two workers, late writes and overrides", *SMALL, "STRAYS", "OVERRIDES"),
    *each("two workers and late writes, unreduced", *SMALL, "STRAYS", "UNREDUCED"),
    *each("progress", *PROGRESS, lasting=True),
]
EVERYDAY = [Instance("two workers, hold", policy("HOLDS", *SMALL))]

# What is taken away, under which policy it is missed, and the promise that breaks.
GUARDS = {
    "CLAIM_WITHOUT_ABSENT": ("RERUN", "one_result"),
    "REPLACE_WITHOUT_END": ("RERUN", "one_result"),
    "TAKE_OVER_WITHOUT_LEASE": ("RERUN", "one_holder"),
    "TAKE_OVER_WITHOUT_STATUS": ("RERUN", "one_result"),
    "GIVE_UP_WITHOUT_LEASE": ("HOLDS", "one_holder"),
    "EXPIRES_BEFORE_LEASE": ("RERUN", "one_holder"),
    "DEADLINE_FROM_REPLY": ("RERUN", "one_holder"),
    "BEGINS_PAST_DEADLINE": ("RERUN", "one_holder"),
    "TOKEN_FROM_KEY": ("RERUN", "zombie_refused"),
    "COMPLETE_WITHOUT_TOKEN": ("RERUN", "zombie_refused"),
    "FAIL_WITHOUT_TOKEN": ("RERUN", "zombie_refused"),
    "RELEASE_WITHOUT_TOKEN": ("RERUN", "zombie_refused"),
    "RENEW_WITHOUT_TOKEN": ("RERUN", "zombie_refused"),
    "WITHDRAW_WITHOUT_EXPECTATION": ("RERUN", "one_result"),
    "WITHDRAW_WITHOUT_TOKEN": ("RERUN", "zombie_refused"),
    "RENEW_BRINGS_BACK": ("RERUN", "zombie_refused"),
    "COMPLETE_WITHOUT_STATUS": ("HOLDS", "one_result"),
    "FAIL_WITHOUT_STATUS": ("HOLDS", "one_result"),
    "RELEASE_WITHOUT_STATUS": ("HOLDS", "one_result"),
    "RENEW_WITHOUT_STATUS": ("HOLDS", "one_result"),
    "SETTLE_WITHOUT_STATUS": ("HOLDS", "one_result"),
    "OWN_CLAIM_NOT_KNOWN": ("RERUN", "own_write"),
    "OWN_WORK_NOT_KNOWN": ("RERUN", "own_write"),
    "NOT_SENT_AGAIN": ("HOLDS", "own_write"),
    "RESENT_WITHOUT_TOKEN": ("RERUN", "same_result"),
    "HOLD_IGNORED": ("HOLDS", "no_silent_rerun"),
    "UNKNOWN_EXPIRES": ("HOLDS", "no_silent_rerun"),
    "SETTLE_WITHOUT_TOKEN_AND_LEASE": ("HOLDS", "no_silent_rerun"),
    "SETTLE_WITHOUT_LEASE": ("RESOLVE", "no_silent_rerun"),
    "UNBEGUN_RELEASED": ("RESOLVE", "no_silent_rerun"),
    "WITHDRAWN_AS_RELEASED": ("RESOLVE", "no_silent_rerun"),
}
MUTANTS = [
    Instance(name, policy(on_lapsed, *SMALL, "UNREDUCED", name), breaks)
    for name, (on_lapsed, breaks) in GUARDS.items()
]
MUTANTS += [
    Instance(
        "NEVER_TAKEN_OVER", policy("RERUN", *PROGRESS, "NEVER_TAKEN_OVER"), breaks="in_the_end", lasting=True
    )
]


def need(*programs: str) -> str:
    """Return the paths of these programs; raise `Absent` if one of them is not installed."""
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
    broken, states = search(instance, place)
    return Finding(instance.name, instance.breaks, broken, states, time.perf_counter() - began)


def defined(instance: Instance) -> list[str]:
    return [f"-D{switch}" for switch in instance.switches]


def search(instance: Instance, place: Path) -> tuple[str | None, int]:
    """Return the promise that breaks, if any, and the number of states."""
    if instance.lasting:
        build(place, "-O0", "-DNFAIR=3")
        return verdict(run(place, "./pan", "-a", "-f", "-n", f"-m{DEPTH // 4}"))
    if instance.breaks is None:
        # A search that takes a second is compiled in one.
        build(place, "-O0" if instance in EVERYDAY else "-O1", "-DSAFETY", "-DNOCLAIM")
        return verdict(run(place, "./pan", "-n", f"-m{DEPTH}", "-w25"))
    # Breadth first, a mutant's trail is the shortest one.
    build(place, "-O0", "-DSAFETY", "-DNOCLAIM", "-DBFS")
    return verdict(run(place, "./pan", "-n"))


def build(place: Path, *switches: str) -> None:
    run(place, "gcc", "-w", "-DCOLLAPSE", "-DMEMLIM=8000", *switches, "-o", "pan", "pan.c")


def run(place: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotSearched(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def verdict(output: str) -> tuple[str | None, int]:
    """Return the broken promise, if any, and the number of states, from what pan printed."""
    errors, states = re.search(r"errors: (\d+)", output), re.search(r"([\d.e+]+) states, stored", output)
    if errors is None or states is None or "max search depth too small" in output:
        raise NotSearched(output)
    broken = re.search(r"assertion violated (\w+)|(acceptance cycle)", output)
    if (errors[1] != "0") != (broken is not None):
        raise NotSearched(output)
    name = None if broken is None else broken[1] or "in_the_end"
    return name, int(float(states[1]))


def story(instance: Instance, folder: Path = FOLDER) -> Iterator[str]:
    """Yield the steps by which a mutant that was checked breaks its promise."""
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
