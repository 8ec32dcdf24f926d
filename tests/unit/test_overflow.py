"""Large results in files: complete or absent, and never anybody else's."""

import os
import stat
from typing import Any

import pytest

from semel.core.overflow import FileOverflow
from semel.errors import UsageError

ID = "dev/shop/charge:1"


def test_what_was_put_comes_back_until_it_is_deleted(tmp_path):
    files = FileOverflow(tmp_path / "deep" / "er")
    ref = files.put(ID, b"data")
    assert FileOverflow(str(tmp_path / "deep" / "er")).get(ref) == b"data"
    files.delete(ref)
    files.delete(ref)
    with pytest.raises(FileNotFoundError):
        files.get(ref)


def test_two_results_of_one_name_are_two_files(tmp_path):
    files = FileOverflow(tmp_path)
    one, other = files.put(ID, b"1"), files.put(ID, b"2")
    assert one != other
    assert (files.get(one), files.get(other)) == (b"1", b"2")


def test_a_file_shows_nothing_of_its_key_and_only_its_owner_reads_it(tmp_path):
    ref = FileOverflow(tmp_path).put("prod/shop/../../../etc/mail:olu@example.com", b"1")
    (file,) = tmp_path.iterdir()
    assert file.name == ref
    assert "olu" not in ref  # no hexadecimal digits: a random name never holds it by chance
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace"])
def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, failing):
    def fail(*_):
        raise OSError("disk full")

    files = FileOverflow(tmp_path)
    monkeypatch.setattr(failing, fail)
    with pytest.raises(OSError, match="disk full"):
        files.put(ID, b"data")
    assert list(tmp_path.iterdir()) == []


def test_a_file_has_its_name_only_when_it_is_complete_and_on_disk(tmp_path, monkeypatch):
    seen = []
    real = os.fsync

    def fsync(handle):
        seen.append([(file.name.endswith(".unfinished"), file.read_bytes()) for file in tmp_path.iterdir()])
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    FileOverflow(tmp_path).put(ID, b"data")
    assert seen == [[(True, b"data")], [(False, b"data")]]


@pytest.mark.parametrize(
    "ref",
    ["", ".", "..", "../x", "/etc/passwd", "a/b", "x" * 65, f"{'0' * 32}-{'0' * 32}\n",
     f"{'0' * 32}-{'0' * 32}.unfinished", f"../{'0' * 32}-{'0' * 32}", f"{'A' * 32}-{'0' * 32}", "a\0b"],
)  # fmt: skip
def test_a_reference_of_another_making_is_refused(tmp_path, ref):
    files = FileOverflow(tmp_path / "inside")
    (tmp_path / "x").write_bytes(b"outside")
    for use in (files.get, files.delete):
        with pytest.raises(UsageError, match="not a reference"):
            use(ref)
    assert (tmp_path / "x").exists()


def test_an_overflow_lets_go_of_files_that_outlived_their_records(tmp_path: Any) -> None:
    overflow = FileOverflow(tmp_path)
    old, new = overflow.put("k", b"old"), overflow.put("k", b"new")
    os.utime(tmp_path / old, (0, 0))
    assert overflow.reap(older_than=3600) == 1
    assert overflow.get(new) == b"new"
    with pytest.raises(FileNotFoundError):
        overflow.get(old)
