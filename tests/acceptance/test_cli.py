"""`semel`, as an operator types it, on an SQLite file that the library has filled."""

import json
import os
import shlex
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import semel
from semel.core import lifecycle
from semel.core.commands import Update, write
from semel.core.drive import drive
from semel.model import RECORD_VERSION
from semel.tables import LEDGER
from semel.testing import FakeClock
from tests.places import open_place


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'semel.db'}"


@pytest.fixture
def ledger(url):
    """A ledger with one record of each status."""
    with semel.connect(url) as s:
        s.ledger.complete(_claim(s, "charge:1"), {"receipt": "R-1", "cents": 4200})
        s.ledger.complete(_claim(s, "charge:none"), None)
        s.ledger.fail(_claim(s, "charge:2"), ValueError("no such card"))
        s.ledger.release(_claim(s, "charge:3"))
        s.ledger.doubt(_claim(s, "charge:4"))
        _claim(s, "charge:5")
        yield s.ledger


def _claim(s, key):
    claim = s.ledger.claim(key)
    assert isinstance(claim, semel.Claimed)
    return claim


@pytest.fixture
def run(url, monkeypatch, typed):
    monkeypatch.setenv("SEMEL_URL", url)
    monkeypatch.setenv("COLUMNS", "120")
    return typed


def test_help_teaches_where_to_begin(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "semel demo" in out
    assert "semel ls --url sqlite:///semel.db" in out


def test_version(run):
    code, out, _ = run("--version")
    assert (code, out.split()[0]) == (0, "semel")


@pytest.mark.parametrize("module", ["semel", "semel.cli"])
def test_python_dash_m_is_the_same_command(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, check=False)
    assert (done.returncode, done.stdout.decode()) == (0, f"semel {semel.__version__}\n")


# Completion


def completed(line, folder, shell="bash"):
    """What a shell offers at the end of a line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_SEMEL_COMPLETE": f"complete_{shell}"}
    done = subprocess.run(
        [sys.executable, "-m", "semel"], env=os.environ | asked, cwd=folder, capture_output=True, check=True
    )
    return done.stdout.decode().split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("semel led", ["ledger"]),
        ("semel ledger re", ["reap"]),
        ("semel ls --st", ["--status"]),
        ("semel ls --app ", ["invoices", "quill", "support", "household", "probe"]),
        ("semel inbox redrive inv", ["invoices"]),
        ("semel serve --app su", ["support"]),
        (
            "semel provision --table house",
            ["household-activities", "household-counters", "household-messages"],
        ),
    ],
)
def test_a_shell_completes_commands_options_and_the_names_of_apps(tmp_path, line, offered):
    (tmp_path / "semel.toml").write_text("[apps.invoices]\n[apps.quill]\n")
    assert sorted(completed(line, tmp_path)) == sorted(offered)


def test_a_shell_is_offered_apps_beside_settings_that_nobody_can_read(tmp_path):
    (tmp_path / "semel.toml").write_text("[apps")
    assert completed("semel ls --app pro", tmp_path) == ["probe"]


def test_a_shell_is_shown_what_would_be_installed_for_it():
    """It is the one that the command is started from; without the exit it would have become the command."""
    line = f"{shlex.quote(str(Path(sys.executable).with_name('semel')))} --show-completion; exit $?"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert b"_SEMEL_COMPLETE=complete_bash" in done.stdout


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_its_extra_it_says_what_to_install(module):
    program = textwrap.dedent(f"""
        import sys
        sys.modules[{module!r}] = None
        from semel.cli import main
        main()
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f'semel: {module} is not installed: pip install "semel[cli]"\n'


# ls


def test_ls_takes_a_status_in_any_case(run, ledger):
    _, out, _ = run("ls", "--status", "unknown", "--json")
    assert [record["key"] for record in json.loads(out)["records"]] == ["charge:4"]


@pytest.mark.situation(44)
def test_doubts_lists_what_waits_for_somebody_oldest_first(run, ledger, url):
    with semel.connect(url) as s:
        lapsed = s.ledger.claim("charge:6", on_lapsed="hold")
        assert isinstance(lapsed, semel.Claimed)
        s.ledger.lapse(lapsed)
    code, out, _ = run("ls", "--doubts", "--json")
    records = json.loads(out)["records"]
    assert (code, [record["key"] for record in records]) == (0, ["charge:4", "charge:6"])
    assert [record["expires_at"] for record in records] == [None, None]
    assert "charge:6" in run("ls", "--doubts")[1]


def test_a_record_that_cannot_be_read_is_named(run, ledger, url):
    with semel.connect(url) as s:
        drive(write(Update(LEDGER, s.ledger.get("charge:1").id, {"version": RECORD_VERSION + 1})), s.store)
    page = json.loads(run("ls", "--json")[1])
    assert (len(page["records"]), page["unreadable"]) == (5, ["charge:1"])
    assert "charge:1 cannot be read; semel act forget removes it for good." in run("ls")[1]


def test_ls_sees_one_environment(run, ledger):
    code, _, err = run("ls", "--env", "prod")
    assert code == 1
    assert err.startswith("semel: this store belongs to environment 'dev'")


def test_an_unknown_status_is_a_usage_error(run, ledger):
    code, _, err = run("ls", "--status", "lost")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("semel: Invalid value for '--status'")


# show

REVEAL = ("--reveal", "--why", "ticket 12", "--by", "ann")


def revealed(run, key):
    code, out, err = run("show", key, *REVEAL, "--json")
    assert code == 0, err
    return json.loads(out)


def journal(run):
    entries = json.loads(run("act", "journal", "--json")[1])["entries"]
    return [
        (one["actor"], one["body"]["action"], one["body"]["about"], one["body"]["why"]) for one in entries
    ]


def test_show_gives_the_record_as_json(run, ledger):
    code, out, _ = run("show", "charge:1", "--json")
    record = json.loads(out)
    assert code == 0
    assert (record["key"], record["status"], record["attempt"]) == ("charge:1", "COMPLETED", 1)
    assert record["created_at"].endswith("+00:00")
    # Programs read these: a name that is here stays. A token is its holder's alone, and is not.
    moments = ["created_at", "updated_at", "lease_until", "expires_at"]
    names = ["key", "id", "status", "attempt", *moments, "fingerprint", "encoding", "subject", "details"]
    last = ["worker", "began_at", "digest", "version"]
    assert list(record) == [*names, *last]
    assert record in json.loads(run("ls", "--json")[1])["records"]
    assert list(json.loads(run("show", "charge:2", "--json")[1])) == [*names, "error", *last]


def test_a_result_is_shown_only_with_a_reason_and_the_journal_has_who_saw_it(run, ledger):
    assert "R-1" not in run("show", "charge:1")[1]
    assert "The result is hidden" in run("show", "charge:1")[1]
    assert journal(run) == []
    assert revealed(run, "charge:1")["result"] == {"receipt": "R-1", "cents": 4200}
    assert journal(run) == [("ann", "reveal", "charge:1", "ticket 12")]
    assert '{"receipt": "R-1", "cents": 4200}' in run("show", "charge:1", *REVEAL)[1]


@pytest.mark.parametrize(
    "words", [("--reveal",), ("--reveal", "--why", " "), ("--why", "x"), ("--by", "ann")]
)
def test_nothing_is_revealed_without_a_reason_or_unasked(run, ledger, words):
    code, out, err = run("show", "charge:1", *words)
    assert (code, out) == (2, "")
    assert "--why" in err
    assert journal(run) == []


def test_a_long_result_is_whole(run, ledger, url):
    with semel.connect(url) as s:
        s.ledger.complete(_claim(s, "long"), "x" * 1000)
    assert revealed(run, "long")["result"] == "x" * 1000


def test_a_result_that_is_null_is_told_from_one_that_was_not_kept(run, ledger):
    assert revealed(run, "charge:none")["result"] is None
    assert run("act", "drop", "charge:none", "--why", "x")[0] == 0
    assert "result" not in revealed(run, "charge:none")


def test_show_for_people(run, ledger):
    code, out, _ = run("show", "charge:2")
    assert code == 0
    assert "FAILED" in out
    assert "no such card" in out


def test_an_absent_key_is_one_line_on_stderr(run, ledger):
    for words in ((), REVEAL):
        code, out, err = run("show", "charge:9", *words)
        assert (code, out) == (1, "")
        assert err == "semel: there is no record of 'charge:9' in this environment and scope\n"
    assert journal(run) == []


# Changes by hand


@pytest.mark.parametrize("name", ["list", "doubts", "show", "resolve", "forget", "drop-result"])
def test_no_command_changes_or_reveals_a_record_beside_the_audited_ones(run, ledger, name):
    code, _, err = run("ledger", name, "charge:1")
    assert code == 2
    assert f"No such command '{name}'" in err


def test_complete_wants_json(run, ledger):
    code, _, err = run("act", "complete", "charge:4", "--result", "done", "--why", "x")
    assert code == 2
    assert err.startswith("semel: --result takes JSON")
    assert ledger.get("charge:4").status is semel.Status.UNKNOWN


# reap


@pytest.mark.seed("Q4")
def test_reap_is_the_janitor_of_an_engine_that_has_none(run, request, tmp_path):
    place = open_place("dynoxide", request, tmp_path)
    with semel.Semel(place.open(FakeClock()), env=place.env) as long_ago:
        long_ago.ledger.check_and_set("ALOWARE:1", ttl=60)
    command = ("ledger", "reap", "--url", place.url(), "--env", place.env)
    assert run(*command)[:2] == (0, "Removed 1 expired record.\n")
    assert run(*command)[:2] == (0, "Removed 0 expired records.\n")


def test_reap_removes_what_has_expired(run, url, clock):
    with semel.connect(url, clock=clock) as s:
        # By the clock of this test these have long expired by the clock of the command.
        for number in range(3):
            s.ledger.mark_processed(f"old:{number}", ttl=60)
    assert run("ledger", "reap")[:2] == (0, "Removed 3 expired records.\n")
    assert run("ledger", "reap")[:2] == (0, "Removed 0 expired records.\n")


def test_diagram_is_drawn_from_the_table_of_moves(run):
    assert run("ledger", "diagram")[:2] == (0, lifecycle.diagram() + "\n")


# Stores that are not there


def test_without_a_url_it_says_how_to_name_one(run, monkeypatch):
    monkeypatch.delenv("SEMEL_URL")
    code, _, err = run("ls")
    assert (code, err) == (
        2,
        "semel: name the store: --url sqlite:///semel.db, or set SEMEL_URL, or stand beside its semel.toml\n",
    )


@pytest.mark.parametrize(
    "words", [("ls",), ("show", "a"), ("act", "forget", "a", "--why", "x"), ("ledger", "reap")], ids=" ".join
)
def test_looking_for_a_file_does_not_make_one(run, tmp_path, words):
    code, _, err = run(*words)
    assert (code, err) == (1, f"semel: there is no file {tmp_path / 'semel.db'}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_a_ledger_is_left_as_it_is(run, tmp_path):
    connection = sqlite3.connect(tmp_path / "semel.db")
    connection.execute("CREATE TABLE theirs (name TEXT)")
    connection.close()
    before = (tmp_path / "semel.db").read_bytes()
    code, _, err = run("ls")
    assert (code, err) == (1, f"semel: {tmp_path / 'semel.db'} holds no ledger\n")
    assert (tmp_path / "semel.db").read_bytes() == before


def test_a_file_that_is_no_database(run, tmp_path):
    (tmp_path / "semel.db").write_text("Dear diary, today I learned about ledgers. " * 50)
    code, _, err = run("ls")
    assert code == 1
    assert err.startswith(f"semel: {tmp_path / 'semel.db'} cannot be read")
    assert err.count("\n") == 1


def test_a_url_that_names_no_store(run):
    code, _, err = run("ls", "--url", "mongodb://here")
    assert code == 2
    assert err.startswith("semel: 'mongodb://here' names no store")


def test_a_ledger_in_memory_cannot_be_looked_at(run):
    code, _, err = run("ls", "--url", "memory:")
    assert code == 2
    assert "gone with its process" in err
