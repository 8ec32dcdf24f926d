"""Write the bills of materials of what `pip install semel` and `semel[service]` bring: `make sbom`.

cyclonedx-py lists what is in an environment, with licences and who needs whom; the digests of the archives
come from pip.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
UV = Path(sys.executable).with_name("uv")

# What is installed, by the name of its bill.
INSTALLED = {"semel": "", "semel-service": "[service]"}


def run(*command: str | Path) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def install(what: str, folder: Path) -> Json:
    """Install it into an empty environment; pip's report of what that took."""
    run(UV, "venv", "--quiet", "--python", sys.executable, folder)
    report = folder / "report.json"
    pip = (sys.executable, "-m", "pip", "--quiet", "--quiet", "--disable-pip-version-check", "--no-input")
    options = ("--report", report, "--constraint", CONSTRAINTS)
    run(*pip, "--python", folder / "bin" / "python", "install", *options, what)
    installed: Json = json.loads(report.read_text("utf-8"))
    return installed


def listed(folder: Path) -> Json:
    """The bill of an environment as cyclonedx-py writes it, valid by its schema."""
    tool = (UV, "tool", "run", "--quiet", "--constraints", CONSTRAINTS, "--from", "cyclonedx-bom")
    options = ("--pyproject", ROOT / "pyproject.toml", "--output-reproducible")
    bill: Json = json.loads(run(*tool, "cyclonedx-py", "environment", *options, folder / "bin" / "python"))
    return bill


def named(name: str) -> str:
    """A package's name in the one form that all spellings share."""
    return name.lower().replace("_", "-").replace(".", "-")


def parts(bill: Json) -> list[Json]:
    return [bill["metadata"]["component"], *bill["components"]]


def with_digests(bill: Json, report: Json) -> Json:
    """The bill, with the digest of the archive that each part was installed from."""
    archives = {
        named(one["metadata"]["name"]): one["download_info"]["archive_info"]["hashes"]["sha256"]
        for one in report["install"]
    }
    for part in parts(bill):
        if digest := archives.get(named(part["name"])):
            part["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return bill


def missing(bill: Json, report: Json) -> Iterator[str]:
    """What a bill does not tell of what was installed."""
    listed = {(named(part["name"]), part["version"]): part for part in parts(bill)}
    for one in report["install"]:
        name, version = named(one["metadata"]["name"]), one["metadata"]["version"]
        part = listed.get((name, version))
        if part is None:
            yield f"{name} {version} is not listed"
        else:
            yield from (f"{name} has no {field}" for field in ("licenses", "hashes") if not part.get(field))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bill", description=__doc__)
    parser.add_argument("wheel", type=Path, help="what is published; its bills are written beside it")
    wheel: Path = parser.parse_args().wheel
    version = wheel.name.split("-")[1]
    for name, extras in INSTALLED.items():
        with tempfile.TemporaryDirectory() as folder:
            report = install(f"{wheel}{extras}", Path(folder))
            bill = with_digests(listed(Path(folder)), report)
        if lacks := list(missing(bill, report)):
            print(*lacks, sep="\n", file=sys.stderr)
            return 1
        path = wheel.with_name(f"{name}-{version}.cdx.json")
        path.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n", "utf-8")
        print(f"{path.name}: {len(parts(bill))} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
