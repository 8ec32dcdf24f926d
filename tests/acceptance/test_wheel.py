"""The built wheel as `uvx` and `pipx run` start it: in an environment with nothing but what it asks for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv", path=str(Path(sys.executable).parent))


def uv(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run uv as a shell that knows nothing of this repository would."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")
    }
    command = [UV or "uv", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, where its parts can be had: packages come from the index that is configured here."""
    folder = tmp_path_factory.mktemp("wheel")
    if UV is None and not os.environ.get("CI"):
        pytest.skip("uv is not installed beside this Python")
    built = uv("build", "--wheel", "-o", str(folder), str(ROOT), folder=folder)
    if built.returncode and not os.environ.get("CI"):
        pytest.skip(f"the wheel cannot be built here: {built.stderr.splitlines()[-1]}")
    [wheel] = folder.glob("*.whl")
    return wheel


def test_without_the_extra_one_line_says_what_to_install(wheel: Path, tmp_path: Path) -> None:
    run = uv("tool", "run", "--quiet", "--isolated", "--from", str(wheel), "semel", folder=tmp_path)
    assert run.returncode == 2
    assert (run.stdout, run.stderr) == ("", 'semel: typer is not installed: pip install "semel[cli]"\n')


def test_with_the_extra_the_command_works(wheel: Path, tmp_path: Path) -> None:
    words = ("tool", "run", "--quiet", "--isolated", "--from", f"semel[cli] @ {wheel.as_uri()}", "semel")
    said = uv(*words, "--version", folder=tmp_path)
    assert (said.returncode, said.stdout.split()[0], said.stderr) == (0, "semel", "")
    assert uv(*words, "init", folder=tmp_path).returncode == 0
    made = uv(*words, "provision", folder=tmp_path)
    assert (made.returncode, made.stdout) == (0, f"Made the ledger in {tmp_path / 'semel.db'}.\n")


def test_it_has_the_templates_of_an_application(wheel: Path, tmp_path: Path) -> None:
    # Its settings name semel's own encryption and redaction, which the service brings.
    words = ("tool", "run", "--quiet", "--isolated", "--from", f"semel[service] @ {wheel.as_uri()}", "semel")
    made = uv(*words, "new", "app", "late_orders", folder=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert (tmp_path / "late_orders" / "template.yaml").is_file()
