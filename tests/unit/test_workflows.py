"""The forge's files: their form is right, what they run exists, and no job may do more than it has to."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.unit.test_contributing import targets

ROOT = Path(__file__).parents[2]
FORGE = ROOT / ".github"
BIN = Path(sys.executable).parent
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.dependabot": [FORGE / "dependabot.yml"],
    "vendor.github-issue-config": [FORGE / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.github-issue-forms": FORMS,
}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read(path)["jobs"]
    return found


def commands(path: Path) -> list[str]:
    """What a workflow has a shell run."""
    steps = [step for job in jobs(path).values() for step in job.get("steps", [])]
    return [step["run"] for step in steps if "run" in step]


def run(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Their form


@pytest.mark.parametrize(("schema", "paths"), SCHEMAS.items(), ids=list(SCHEMAS))
def test_every_file_has_the_form_that_the_forge_expects(schema: str, paths: list[Path]) -> None:
    assert paths
    run(BIN / "check-jsonschema", "--builtin-schema", schema, *paths)


def test_a_reader_of_workflows_finds_nothing_that_could_be_abused() -> None:
    run(BIN / "zizmor", "--offline", "--quiet", "--strict-collection", ROOT / ".github")


# What they may do

# Beyond reading what is in the repository.
MORE = {
    ("release", "publish"): {("id-token", "write")},
    ("release", "announce"): {("contents", "write")},
}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_do_nothing_but_what_a_job_names(path: Path) -> None:
    assert read(path)["permissions"] == {}
    for name, job in jobs(path).items():
        more = {
            (scope, way) for scope, way in job["permissions"].items() if (scope, way) != ("contents", "read")
        }
        assert more == MORE.get((path.stem, name), set())


def test_nothing_is_published_unless_it_was_checked_and_tested() -> None:
    release = jobs(FORGE / "workflows" / "release.yml")
    assert commands(FORGE / "workflows" / "release.yml")[0] == 'TAG="$GITHUB_REF_NAME" make release-check'
    assert release["test"]["uses"] == "./.github/workflows/test.yml"
    assert (release["publish"]["needs"], release["announce"]["needs"]) == (["build", "test"], "publish")
    assert read(FORGE / "workflows" / "release.yml")[True] == {"push": {"tags": ["v*"]}}  # YAML's word "on"


# What they run


def test_the_workflows_run_what_make_has() -> None:
    run_by_make = [
        name for path in WORKFLOWS for line in commands(path) for name in re.findall(r"\bmake (\S+)", line)
    ]
    assert {"test", "lint", "docs", "sbom", "release-check", "audit"} == set(run_by_make)
    assert set(run_by_make) <= targets()


def test_the_tests_run_on_every_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    matrix = jobs(FORGE / "workflows" / "test.yml")["test"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert set(named) <= set(matrix)
    assert project["requires-python"] == f">={matrix[0]}"


def test_before_a_commit_the_same_is_run_as_by_make_lint() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    lint = makefile.split("\nlint:")[1].split("\n\n")[0]
    [local] = read(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = [hook["entry"] for hook in local["hooks"]]
    assert hooks == [f".venv/bin/{command}" for command in re.findall(r"@\$\(BIN\)/(.+)", lint)]
