"""The parts of the report: each is a program of its own that prints what it measured as JSON."""

from typing import NamedTuple


class Part(NamedTuple):
    """One program, and its options for the whole report and for a quick try."""

    name: str
    whole: str = ""
    quick: str = ""

    @property
    def module(self) -> str:
        return f"bench.{self.name}"


PARTS = (
    Part("library", "--number 300 --repeat 11", "--number 10 --repeat 3"),
    Part("network", "--number 200 --repeat 9", "--number 15 --repeat 3"),
    Part("http", "--number 1000 --repeat 7", "--number 80 --repeat 3"),
    Part("coldstart", "--repeat 9", "--repeat 1"),
    Part("batches", "--number 3 --repeat 9", "--number 1 --repeat 3"),
    Part("growth", "", "--sqlite 50000 --postgres 50000 --room 5000 --calls 500 --number 50 --repeat 3"),
    Part("hotkey", "", "--waiters 100"),
    Part("cost", "", "--events 100"),
    Part("service", "--seconds 15 --most-seconds 3", "--seconds 1 --most-seconds 0"),
    Part("calls"),
    Part("webhooks", "--number 4000", "--number 100 --repeat 1"),
    Part("profiles", "--number 1000", "--number 20"),
    Part("questions", "--many 100000", "--few 500 --many 2000 --number 1 --repeat 3"),
)
