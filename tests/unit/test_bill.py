"""A bill of materials has every package that is installed, with its version, licence and digest."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import bill
from tools.audit import CONSTRAINTS, pins


def part(name: str, version: str = "1.0", **more: Any) -> dict[str, Any]:
    return {"name": name, "version": version, "licenses": [{"expression": "MIT"}]} | more


def report(*names: str) -> dict[str, Any]:
    """What pip tells of an installation."""
    return {
        "install": [
            {
                "metadata": {"name": name, "version": "1.0"},
                "download_info": {"archive_info": {"hashes": {"sha256": f"digest of {name}"}}},
            }
            for name in names
        ]
    }


def listed(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"component": part("semel")}, "components": list(parts)}


def test_a_bill_gets_the_digest_of_each_archive_however_its_name_is_spelled() -> None:
    installed = report("semel", "typing-extensions")
    made = bill.with_digests(listed(part("Typing_Extensions")), installed)
    assert [one["hashes"] for one in bill.parts(made)] == [
        [{"alg": "SHA-256", "content": "digest of semel"}],
        [{"alg": "SHA-256", "content": "digest of typing-extensions"}],
    ]
    assert list(bill.missing(made, installed)) == []


@pytest.mark.parametrize(
    ("parts", "lacks"),
    [
        ([], "a 1.0 is not listed"),
        ([part("a", "2.0")], "a 1.0 is not listed"),
        ([part("a", licenses=[])], "a has no licenses"),
    ],
)
def test_what_a_bill_lacks_is_named(parts: list[dict[str, Any]], lacks: str) -> None:
    installed = report("semel", "a")
    assert list(bill.missing(bill.with_digests(listed(*parts), installed), installed)) == [lacks]


def test_a_part_whose_archive_is_not_known_lacks_a_digest() -> None:
    assert list(bill.missing(listed(), report("semel"))) == ["semel has no hashes"]


@pytest.mark.slow
def test_the_bills_that_are_published_are_whole(tmp_path: Path) -> None:
    options = ("--quiet", "--build-constraints", CONSTRAINTS, "--wheel", "--out-dir", tmp_path)
    bill.run(bill.UV, "build", *options, bill.ROOT)
    [wheel] = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "tools.bill", wheel], cwd=bill.ROOT, check=True)
    small, whole = (json.loads(path.read_text("utf-8")) for path in sorted(tmp_path.glob("*.cdx.json")))
    assert {one["bomFormat"] for one in (small, whole)} == {"CycloneDX"}
    assert {"msgspec", "rfc8785"} <= {one["name"] for one in small["components"]}
    versions = {bill.named(one["name"]): one["version"] for one in whole["components"]}
    assert versions.keys() > {bill.named(one["name"]) for one in small["components"]}
    assert versions.items() <= dict(pins(CONSTRAINTS.read_text("utf-8"))).items()
