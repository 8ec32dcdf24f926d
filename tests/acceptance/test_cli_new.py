"""`semel new app` makes an application that runs and is tested as it is."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from semel.apps.registry import APPS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("SEMEL_URL", raising=False)
    return tmp_path


@pytest.fixture
def made(folder: Path, typed: Any) -> Path:
    """The folder of an application that was made."""
    code, out, err = typed("new", "app", "late_orders")
    sys.modules.pop("late_orders")
    assert (code, err) == (0, "")
    assert out.startswith("Made late_orders/. Next:\n  cd late_orders\n")
    return folder / "late_orders"


def run(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_tests_pass_as_they_are(made: Path) -> None:
    assert "2 passed" in run(made, "pytest", "-q", "-p", "no:cacheprovider")


def test_its_store_is_made_and_is_well(made: Path) -> None:
    run(made, "semel", "provision")
    run(made, "semel", "doctor", "--app", "late_orders")


def test_the_service_runs_it(made: Path) -> None:
    words = [sys.executable, "-m", "semel", "serve", "--port", "0"]
    serving = subprocess.Popen(words, cwd=made, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert serving.stdout is not None
    try:
        lines = iter(serving.stdout.readline, "")
        assert "semel: working for late_orders\n" in lines
    finally:
        serving.terminate()
        serving.communicate()
    assert serving.returncode == 0


def test_its_template_is_what_provision_prints(made: Path) -> None:
    template = (made / "template.yaml").read_text("utf-8")
    words = ("provision", "--app", "late_orders", "--print", "sam", "--env", "prod")
    assert run(made, "semel", *words).rstrip() == template.rstrip()
    assert re.findall(r"^ +Handler: (.+)$", template, re.MULTILINE) == [
        "late_orders.ingress",
        "late_orders.worker",
    ]


def test_its_secret_is_made_and_is_no_part_of_what_is_committed(made: Path) -> None:
    settings = tomllib.loads((made / "semel.toml").read_text("utf-8"))["apps"]["late_orders"]
    assert len(settings["signing_secret"]) >= 32
    assert "semel.toml" in (made / ".gitignore").read_text("utf-8").splitlines()


@pytest.mark.parametrize("name", ["Orders", "late-orders", "9lives", "_x", "class", "a__b", "", "../up"])
def test_what_cannot_name_an_application_is_refused(name: str, folder: Path, typed: Any) -> None:
    code, _, err = typed("new", "app", name)
    assert (code, "names no app" in err) == (2, True)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", [*APPS, "json", "semel", "httpx"])
def test_a_name_that_something_else_has_is_refused(name: str, folder: Path, typed: Any) -> None:
    code, _, err = typed("new", "app", name)
    assert (code, "of its own" in err or "there is a module" in err) == (2, True)
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(folder: Path, typed: Any) -> None:
    (folder / "orders").mkdir()
    code, _, err = typed("new", "app", "orders")
    assert (code, "is there already" in err) == (2, True)
    assert list((folder / "orders").iterdir()) == []
