"""Backups and restores: the commands of the page, run as they stand there."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

import semel
from semel.core.clock import Clock
from semel.provision import ProvisionTarget, provision
from semel.tables import OWN
from tests.pages import blocks
from tests.servers.postgres import binaries
from tests.servers.redis import node
from tests.servers.redis import url as redis_url
from tests.servers.running import until
from tests.unit.test_docs import DOCS

PAGE = DOCS / "how-to" / "back-up-and-restore.md"


def commands(*words: str) -> list[str]:
    """The commands of the blocks of the page that have one of these words."""
    found = [block.text for block in blocks(PAGE) if block.language == "console"]
    chosen = [text for text in found if any(word in text for word in words)]
    assert len(chosen) >= len(words)
    return [line.removeprefix("$ ") for text in chosen for line in text.splitlines()]


def run(script: list[str], folder: Path, **env: str) -> str:
    """Run commands one after the other, as somebody would who stands in this folder."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    path = env.pop("PATH", "") + os.pathsep + programs
    done = subprocess.run(
        ["bash", "-euc", "\n".join(script)],
        check=False,
        cwd=folder,
        env={"PATH": path, "HOME": str(folder), **env},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def writing(s: semel.Semel) -> Iterator[list[str]]:
    """Keys are marked all the time, and listed once that was answered."""
    marked, over = list[str](), threading.Event()

    def mark() -> None:
        while not over.is_set():
            key = f"event:{len(marked)}"
            s.ledger.mark_processed(key, ttl=semel.DAY)
            s.documents.put("last", {"number": len(marked)})
            marked.append(key)

    thread = threading.Thread(target=mark)
    thread.start()
    try:
        yield marked
    finally:
        over.set()
        thread.join()


def wait_for(marked: list[str], more: int) -> int:
    """How many there are, once so many more were written."""
    enough = len(marked) + more
    assert until(lambda: len(marked) >= enough)
    return enough


@pytest.mark.skipif(not os.environ.get("CI") and shutil.which("sqlite3") is None, reason="no sqlite3 here")
def test_a_backup_of_sqlite_is_whole_though_it_is_written_to_and_is_restored_as_the_page_says(
    tmp_path: Path,
) -> None:
    with semel.connect(f"sqlite:///{tmp_path / 'semel.db'}", env="prod") as s, writing(s) as marked:
        before = wait_for(marked, 50)
        for script in (commands("umask"), commands("python -c")):
            run(script, tmp_path)
        wait_for(marked, 50)
    for name in ("semel-backup.db", "semel-again.db"):
        with closing(sqlite3.connect(tmp_path / name)) as copy:
            assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert stat.S_IMODE((tmp_path / "semel-backup.db").stat().st_mode) == 0o600
    assert "All is well" in run(commands("mkdir damaged"), tmp_path)
    with semel.connect(f"sqlite:///{tmp_path / 'semel.db'}", env="prod") as s:
        known = [s.ledger.is_processed(key) for key in marked]
        assert all(known[:before]), "what was answered before the backup began is in it"
        assert not known[-1], "and it is older than what was there"
        # One moment: what was written later is there only with all that was written before.
        assert known == sorted(known, reverse=True)
        last = s.documents.get("last")
        assert last is not None
        assert sum(known) - 1 <= last.value["number"] + 1 <= sum(known)
    assert (tmp_path / "damaged" / "semel.db").exists()


def test_tables_of_postgresql_are_dumped_and_restored_as_the_page_says(postgres: str, tmp_path: Path) -> None:
    name = f"backup_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    url = urlunsplit(urlsplit(postgres)._replace(path=f"/{name}"))
    provision(ProvisionTarget(url=url, env="prod", tables=OWN, clock=Clock()))
    env = {"DATABASE_URL": url, "PATH": str(binaries(tmp_path))}
    with semel.connect(url, env="prod") as s:
        s.ledger.mark_processed("before", ttl=semel.DAY)
        s.documents.put("a", {"number": 1})
        run(commands("pg_dump"), tmp_path, **env)
        s.ledger.mark_processed("since", ttl=semel.DAY)
        s.documents.put("a", {"number": 2})
    assert "All is well" in run(commands("pg_restore"), tmp_path, **env)
    with semel.connect(url, env="prod") as s:
        assert [s.ledger.is_processed(key) for key in ("before", "since")] == [True, False]
        found = s.documents.get("a")
        assert found is not None
        assert found.value == {"number": 1}


@pytest.mark.skipif(
    not os.environ.get("CI") and shutil.which("redis-cli") is None, reason="no redis-cli here"
)
def test_a_snapshot_of_redis_is_fetched_and_loaded_as_the_page_says(tmp_path: Path) -> None:
    # By default it waits five seconds, for others that may want one too.
    with node("--repl-diskless-sync-delay", "0") as port, semel.connect(redis_url(port)) as s:
        s.ledger.mark_processed("before", ttl=semel.DAY)
        run(commands("--rdb"), tmp_path, REDIS_URL=redis_url(port))
        s.ledger.mark_processed("since", ttl=semel.DAY)
    options = ("--dir", str(tmp_path), "--dbfilename", "semel.rdb", "--appendonly", "no")
    with node(*options) as port, semel.connect(redis_url(port)) as s:
        assert [s.ledger.is_processed(key) for key in ("before", "since")] == [True, False]
