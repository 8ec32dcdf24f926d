"""Who reads a page, and does as it says.

A block that begins with a comment such as `# ship.py` is that file. In a `console` block a line after `$` is
typed into one shell, and what follows it is printed; `...` stands for anything. What does not end by itself,
as a service, runs beside it until it is started again or the page ends.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from tests.pages import Block
from tests.servers.running import PATIENCE_SECONDS, free_port, until

# These run until they are interrupted, as in a terminal of their own.
SERVES = re.compile(r"(?:\w+=\S+ )*(?:semel serve|ministack|uvicorn|celery)\b")
# Whoever reads is slower than what he started: what only looks is tried again until it sees what it should.
LOOKS = ("cat ", "semel ledger ", "semel inbox ")
# Ports that the pages name, and that somebody may be using here.
PORTS = {"8000": ("SEMEL_SERVICE__PORT", "UVICORN_PORT"), "4566": ("GATEWAY_PORT",)}
# What a shell says of its own accord when a child was killed; each does so in its own words.
SHELLS_OWN = re.compile(r".*\bKilled\b.*\n")


class Typed(NamedTuple):
    """A command, and what it prints."""

    line: int
    command: str
    printed: str


def typed(text: str, line: int) -> Iterator[Typed]:
    """The commands of a block; one that ends in a backslash goes on."""
    for part in re.finditer(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        yield Typed(line + text[: part.start()].count("\n") + 1, part[1], part[2])


def fits(printed: str, expected: str) -> bool:
    """Whether this was printed, whatever stands for the dots; blanks at the ends of lines do not count."""
    wanted = _trimmed(expected)
    pattern = re.escape(wanted.removesuffix("\n...")).replace(r"\.\.\.", ".*")
    # Dots at the end are for what may come, sooner or later or not at all.
    pattern += "(?:\n.*)?" if wanted.endswith("\n...") else ""
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in SHELLS_OWN.sub("", text).strip().splitlines())


class Shell:
    """A shell into which one types."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def type(self, command: str) -> tuple[str, bool]:
        """What is printed until the next prompt, and whether all was well."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\nprintf '\\n%s %s\\n' {self._mark} $?\n")
        self._process.stdin.flush()
        printed: list[str] = []
        for line in self._process.stdout:
            if line.startswith(self._mark):
                return "".join(printed), line.split()[1] == "0"
            printed.append(line)
        raise AssertionError(f"the shell has ended at: {command}")

    def close(self) -> None:
        # With everything that was started in the background.
        os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:
            pass


class Beside:
    """A program that runs in a terminal of its own."""

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.command = command
        self._told: list[str] = []
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._told.extend(self._process.stdout)

    def tells(self, expected: str) -> bool:
        return until(lambda: fits("".join(self._told), expected), lambda: self._process.poll() is None)

    @property
    def told(self) -> str:
        return "".join(self._told)

    def stop(self) -> None:
        """Ctrl-C."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise
        finally:
            self._reader.join()
            with self._process:
                pass
        if "semel" in self.command:
            assert self._process.returncode == 0, self.told


def path_with(programs: Path) -> str:
    """Where a shell finds programs: in this folder, and on the system, but not among those of the tests."""
    system = os.environ.get("PATH", os.defpath).split(os.pathsep)
    ours = str(Path(sys.executable).parent)
    return os.pathsep.join([str(programs), *(folder for folder in system if folder != ours)])


class Reader:
    """Who reads a page in a folder, with these programs first, and passes over some commands.

    `places` has what stands where a page names a server that only its reader has.
    """

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        *,
        programs: Path = Path(sys.executable).parent,
        passes_over: Callable[[str], bool] = lambda command: command.startswith("pip install "),
        variables: Mapping[str, str] | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self._stack, self._passes_over = folder, stack, passes_over
        ports = {usual: str(free_port()) for usual in PORTS}
        self._places = dict(places or {}) | ports
        self._environment = {"PATH": path_with(programs), "HOME": str(folder), "PYTHONUNBUFFERED": "1"}
        self._environment |= {name: ports[usual] for usual, names in PORTS.items() for name in names}
        self._environment |= variables or {}
        self._exports: list[str] = []
        self._shell = Shell(folder, self._environment)
        stack.callback(self._shell.close)
        self._beside: dict[str, Beside] = {}

    def read(self, block: Block) -> None:
        """Do what a block says, or save it as the file that it is."""
        if block.language == "console":
            for one in typed(block.text, block.line):
                self.do(one)
        elif block.file:
            (self.folder / block.file).write_text(self._placed(block.text))

    def do(self, one: Typed) -> None:
        command, expected = (self._placed(text) for text in (one.command, one.printed))
        if SERVES.match(command):
            self._start(command, expected)
        elif not self._passes_over(command):
            self._type(one.line, command, expected)

    def _type(self, line: int, command: str, expected: str) -> None:
        printed: list[str] = []

        def seen() -> bool:
            told, well = self._shell.type(command)
            printed.append(told)
            return well and fits(told, expected)

        assert until(seen) if command.startswith(LOOKS) else seen(), f"line {line}: {command}\n{printed[-1]}"
        if command.startswith("export "):
            self._exports.append(command)

    def _start(self, command: str, expected: str) -> None:
        if command in self._beside:
            self._beside.pop(command).stop()
        else:
            self._stack.callback(lambda: self._beside.pop(command).stop())
        # A page that exports something has it exported in every terminal.
        typed_there = "\n".join([*self._exports, f"exec env {command}"])
        beside = self._beside[command] = Beside(typed_there, self.folder, self._environment)
        assert beside.tells(expected), beside.told

    def _placed(self, text: str) -> str:
        for usual, here in self._places.items():
            text = text.replace(usual, here)
        return text
