"""The unit for systemd: systemd finds nothing wrong with it, and it agrees with the service."""

import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from semel.cli.app import app
from semel.service.settings import ServiceSection
from tests.deploy.image import DEPLOY
from tests.servers.absence import served
from tests.servers.systemd import systemd_analyze

UNIT = DEPLOY / "systemd" / "semel.service"
# The name of the whole command, where the page says that it is installed.
INSTALLED = "/opt/semel/bin/semel"


def lines(name: str) -> list[str]:
    """What a setting of the unit is set to, each time that it is."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_it_has_the_form_of_a_unit() -> None:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    assert parser.sections() == ["Unit", "Service", "Install"]


def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    """It looks whether the commands are there, so those of this environment stand for them."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(INSTALLED, str(Path(sys.executable).with_name("semel"))))
    with served(systemd_analyze) as program:
        said = subprocess.run(
            [program, "verify", "--recursive-errors=no", unit], capture_output=True, text=True, check=False
        )
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_systemd_calls_it_hardly_exposed() -> None:
    """By its own measure, on which a unit without any protection has 9.6."""
    with served(systemd_analyze) as program:
        said = subprocess.run(
            [program, "security", "--offline=yes", "--threshold=15", "--no-pager", UNIT],
            capture_output=True,
            text=True,
            check=False,
        )
    assert said.returncode == 0, said.stdout


def test_it_is_given_longer_to_stop_than_it_takes() -> None:
    [grace] = lines("TimeoutStopSec")
    assert int(grace) > ServiceSection().stop_timeout


def test_nobody_waits_for_a_word_that_the_service_never_says() -> None:
    assert lines("Type") == ["exec"]
    assert lines("WatchdogSec") == []


def test_its_commands_are_commands() -> None:
    commands = [command.split() for setting in ("ExecStartPre", "ExecStart") for command in lines(setting)]
    assert commands == [[INSTALLED, "provision"], [INSTALLED, "serve"]]
    assert {"serve", "provision"} <= {command.name for command in app.registered_commands}


def test_it_starts_anew_seldom_enough_to_go_on_for_ever() -> None:
    """More than five starts within ten seconds, and systemd gives up."""
    [pause] = lines("RestartSec")
    assert 10 / int(pause) < 5
