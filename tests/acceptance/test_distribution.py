"""What is published: the wheel and the sdist are semel and nothing else, the same from every folder."""

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "semel"
UV = Path(sys.executable).with_name("uv")

# What the package consists of; a file of any other kind does not belong into it.
KINDS = {".py", ".typed", ".sql", ".lua", ".html", ".css", ".js", ".svg", ".template"}
# What the backend adds by itself.
PUBLISHED_BESIDE = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}


def uv(*words: str | Path) -> None:
    """Run uv on what it has downloaded before; on the network only where that is not enough."""
    for network in (["--offline"], []):
        command = [UV, "--quiet", *network, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
    pytest.fail(done.stderr)


def build(source: Path, into: Path) -> tuple[Path, Path]:
    """Build the sdist of a folder, and the wheel from the sdist."""
    uv("build", "--build-constraints", ROOT / "constraints.txt", "--out-dir", into, source)
    [wheel], [sdist] = into.glob("*.whl"), into.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


# What is in them


def package() -> set[str]:
    """Every file of the package."""
    files = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(SOURCE.parent).as_posix() for path in files}


def test_the_wheel_is_the_whole_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = {Path(name).name for name in archive.namelist() if name not in names}
    assert names == package()
    assert metadata == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE"}


def test_the_sdist_is_the_package_and_what_builds_it(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - PUBLISHED_BESIDE == {f"src/{name}" for name in package()}


def test_the_package_has_types_sql_lua_templates_and_styles_and_no_other_kind_of_file() -> None:
    assert {Path(name).suffix for name in package()} == KINDS
    assert "semel/py.typed" in package()


# That they are always the same


def copied(into: Path, *, umask: int, time: int) -> Path:
    """A copy of what is published, as another person's clone may have it."""
    beside = [ROOT / name for name in PUBLISHED_BESIDE if (ROOT / name).exists()]
    for path in [*(SOURCE.parent / name for name in package()), *beside]:
        copy = into / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o666 & ~umask)
        os.utime(copy, (time, time))
    return into


def digests(built: tuple[Path, Path]) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in built}


def test_any_folder_at_any_time_under_any_umask_builds_the_same_bytes(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    for name, umask, time in (("a", 0o077, 1_000_000_000), ("b", 0o002, 2_000_000_000)):
        source = copied(tmp_path / name / "source", umask=umask, time=time)
        (source / ".env").write_text(f"PASSWORD={name}", "utf-8")
        before = os.umask(umask)
        try:
            again = build(source, tmp_path / name / "dist")
        finally:
            os.umask(before)
        assert digests(again) == digests(built)
