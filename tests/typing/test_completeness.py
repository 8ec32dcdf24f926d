"""Every public name has a type that all type checkers read in the same way, as `py.typed` promises."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Django has no types of its own; with django-stubs, which our own checks do without, these are known too.
UNTYPED = ("semel.doors.django.", "semel.doors.drf.")


def completeness() -> dict[str, Any]:
    """What Pyright finds of the package as it is installed here; it takes the first Python on the path."""
    binaries = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "pyright", "--verifytypes", "semel", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    return found


@pytest.mark.slow
def test_every_public_name_has_a_type_and_a_docstring() -> None:
    if not shutil.which("node"):  # else Pyright would download one
        assert not os.environ.get("CI"), "Pyright needs node"
        pytest.skip("Pyright needs node")
    found = completeness()
    assert found["exportedSymbolCounts"]["withKnownType"] > 10_000
    unclear = [each for each in found["symbols"] if not each["isTypeKnown"] or each["isTypeAmbiguous"]]
    assert [each["name"] for each in unclear if not each["name"].startswith(UNTYPED)] == []
    assert found["missingFunctionDocStringCount"] == 0
