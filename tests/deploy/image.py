"""An image without an engine: a Dockerfile's instructions, carried out in a folder that stands for its root.

Its commands are run as they stand, by the same shell; only paths within the image are led into that folder.
The base image with its Python is a new environment of the Python that runs the tests.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePath

from dockerfile_parse import DockerfileParser

from tests.servers.running import PATIENCE_SECONDS, leashed

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UV = Path(sys.executable).with_name("uv")
# Where the image has its files; everything else in a command is the system's.
INSIDE = re.compile(r"(?<![\w./-])/(?=(?:src|dist|opt/semel|var/lib/semel|etc/semel|run/secrets)\b)")
# What a build has of the machine around it: how packages are reached, and where they are kept.
PRIVATE = ("PYTHON", "SEMEL", "VIRTUAL_ENV")
# Compiling all that is installed takes far longer than what is run here would gain.
UNCOMPILED = {"UV_COMPILE_BYTECODE": "0"}


def instructions(file: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, each with what it says."""
    parser = DockerfileParser(path=str(file), cache_content=True)
    found = [(each["instruction"], each["value"]) for each in parser.structure]
    return [(name, value) for name, value in found if name != "COMMENT"]


def settings_of(file: Path) -> dict[str, str]:
    """The environment that an image gives to what runs in it."""
    steps = instructions(file)
    last = max(number for number, (name, _) in enumerate(steps) if name == "FROM")
    pairs = [pair for name, value in steps[last:] if name == "ENV" for pair in shlex.split(value)]
    return {name: value for name, value in (pair.split("=", 1) for pair in pairs) if name != "PATH"}


def words(value: str) -> list[str]:
    """An instruction in exec form, which no shell reads: the command gets the signals itself."""
    listed: list[str] = json.loads(value)
    return listed


def is_sent(path: PurePath, rules: list[str]) -> bool:
    """Whether a file is part of the build, by the rules of a .dockerignore: the last that fits decides."""
    sent = True
    for rule in rules:
        pattern = rule.removeprefix("!").removeprefix("**/")
        where = [str(each) for each in (path, *path.parents)]
        names = list(path.parts) if "**/" in rule else []
        if any(fnmatch(each, pattern) for each in (*where, *names)):
            sent = rule.startswith("!")
    return sent


def ignore_rules() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@dataclass
class Image:
    """What the instructions so far have made."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = ""
    signal: str = ""
    volumes: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    check: list[str] = field(default_factory=list)

    def inside(self, text: str) -> str:
        """A text with the paths of the image led into its folder."""
        return INSIDE.sub(f"{self.root}/", text)

    def path(self, name: str) -> Path:
        """A file or folder of the image."""
        return self.root / PurePath(self.folder, name).relative_to("/")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands."""
        system = f"{self.root}/usr/local/bin:/usr/bin:/bin"
        return {"PATH": system, "HOME": str(self.root)} | {
            name: self.inside(value).replace("${PATH}", system) for name, value in self.env.items()
        }


def build(file: Path, root: Path) -> Image:
    """Carry out a Dockerfile."""
    image = Image(root)
    for name, value in instructions(file):
        STEPS[name](image, value)
    return image


def _from(image: Image, value: str) -> None:
    """Begin a stage: what the one before has made is set aside, and there is a Python of the base image."""
    if image.root.exists():
        image.root.rename(image.root.with_name("build"))
    image.env, image.folder = {}, "/"
    _run_here([UV, "venv", "--quiet", "--seed", "--python", sys.executable, image.root / "usr" / "local"])


def _arg(image: Image, value: str) -> None:
    name, _, default = value.partition("=")
    image.args[name] = default


def _env(image: Image, value: str) -> None:
    image.env |= dict(pair.split("=", 1) for pair in shlex.split(value))


def _workdir(image: Image, value: str) -> None:
    image.folder = value
    image.path(value).mkdir(parents=True, exist_ok=True)


def _copy(image: Image, value: str) -> None:
    options = [word for word in value.split() if word.startswith("--")]
    *sources, target = [word for word in value.split() if not word.startswith("--")]
    for source in sources:
        place = image.path(target)
        if options == ["--from=build"]:
            place.parent.mkdir(parents=True, exist_ok=True)
            image.root.with_name("build").joinpath(source.lstrip("/")).rename(place)
        else:
            _send(ROOT / source, place / source if target.endswith("/") else place)


def _send(source: Path, target: Path) -> None:
    """Copy what the build is sent of a file or folder."""
    rules, sent = ignore_rules(), 0
    for file in [source] if source.is_file() else source.rglob("*"):
        if file.is_file() and is_sent(file.relative_to(ROOT), rules):
            place = target / file.relative_to(source) if source.is_dir() else target
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
            sent += 1
    assert sent, f".dockerignore keeps {source} out of the build"


def _run(image: Image, value: str) -> None:
    text = image.inside(value)
    if os.geteuid() != 0:  # who is not root owns what it makes already
        text = text.replace("-o 10001", f"-o {os.getuid()}").replace("-g 10001", f"-g {os.getgid()}")
    around = {name: one for name, one in os.environ.items() if not name.startswith(PRIVATE)}
    environment = around | image.args | image.environment | UNCOMPILED | {"HOME": os.environ.get("HOME", "/")}
    _run_here(["/bin/sh", "-c", text], environment, image.path("."))


def _run_here(command: list[str | Path], env: Mapping[str, str] | None = None, folder: Path = ROOT) -> None:
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def _health(image: Image, value: str) -> None:
    image.check = words(value.partition("CMD ")[2])


STEPS: dict[str, Callable[[Image, str], None]] = {
    "ARG": _arg,
    "CMD": lambda image, value: setattr(image, "command", words(value)),
    "COPY": _copy,
    "ENTRYPOINT": lambda image, value: setattr(image, "entrypoint", words(value)),
    "ENV": _env,
    "EXPOSE": lambda *_: None,
    "FROM": _from,
    "HEALTHCHECK": _health,
    "RUN": _run,
    "STOPSIGNAL": lambda image, value: setattr(image, "signal", value),
    "USER": lambda image, value: setattr(image, "user", value),
    "VOLUME": lambda image, value: image.volumes.append(value),
    "WORKDIR": _workdir,
}


class Container:
    """A command that runs as in a container: with an environment and a folder of its own."""

    def __init__(self, command: list[str], env: Mapping[str, str], folder: Path, log: Path) -> None:
        self._env, self._folder, self._log = dict(env), folder, log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                leashed(self._found(command), signal=signal.SIGKILL),
                cwd=folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def _found(self, command: list[str]) -> list[str]:
        program = shutil.which(command[0], path=self._env["PATH"])
        assert program, f"there is no {command[0]} on {self._env['PATH']}"
        return [program, *command[1:]]

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run another command in it, as its engine runs health checks."""
        return subprocess.run(
            self._found(command),
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    def is_running(self) -> bool:
        return self.process.poll() is None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code, after the signal by which it is asked to stop."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def running(command: list[str], env: Mapping[str, str], folder: Path, log: Path) -> Iterator[Container]:
    container = Container(command, env, folder, log)
    try:
        yield container
    finally:
        container.process.kill()
        container.process.wait()
