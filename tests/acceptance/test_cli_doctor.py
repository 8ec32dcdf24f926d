"""`semel doctor` tells what is wrong with a store and what mends it, and changes nothing."""

import json
import time
from contextlib import closing

import pytest

import semel
from semel.aws.environment import Credentials
from semel.aws.wire import Wire
from semel.cli.doctor import LITTLE_ROOM, MOST_SKEW, skew
from semel.stores.sqlite.file import SQLiteFile
from tests.places import CREDENTIALS, NAMES, open_place

STORES = [name for name in NAMES if name != "memory"]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "semel.db"


@pytest.fixture
def url(file):
    return f"sqlite:///{file}"


@pytest.fixture
def made(url):
    semel.connect(url).close()


@pytest.fixture
def run(url, monkeypatch, typed):
    """Type a command: its exit code, and what it wrote on stdout and stderr."""
    for name in ("SEMEL_ENV", "SEMEL_SCOPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SEMEL_URL", url)
    monkeypatch.setenv("COLUMNS", "120")
    return typed


@pytest.fixture
def examined(run):
    """The exit code, and what was found by each check that was made."""

    def examined(*words):
        code, out, _ = run("doctor", *words, "--json")
        return code, {each["check"]: each for each in json.loads(out)["checks"]}

    return examined


def states(found):
    return {name: each["state"] for name, each in found.items()}


@pytest.mark.usefixtures("made")
def test_where_all_is_well_every_line_says_so(run, examined):
    code, found = examined()
    assert (code, set(states(found).values())) == (0, {"ok"})
    assert list(found) == ["versions", "tables", "store", "clock", "disk"]
    assert semel.__version__ in found["versions"]["what"]
    code, out, _ = run("doctor")
    assert (code, {line.split()[0] for line in out.splitlines()}) == (0, {"ok"})


def test_a_file_that_is_not_there_is_not_made(run, examined, file):
    code, found = examined()
    assert (code, found["tables"]["state"]) == (1, "fail")
    assert found["tables"]["remedy"] == "run semel provision"
    assert not file.exists()
    remedy = run("doctor")[1].splitlines()[-1]
    assert remedy.strip() == "run semel provision"


@pytest.mark.usefixtures("made")
def test_a_store_of_another_environment(examined):
    code, found = examined("--env", "prod")
    assert (code, found["tables"]["remedy"]) == (1, "use --env dev")
    assert found["store"]["state"] == "fail"


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/none", "redis://127.0.0.1:1"])
def test_a_store_that_does_not_answer_is_one_failure(examined, url):
    code, found = examined("--url", url)
    assert (code, states(found)) == (1, {"versions": "ok", "store": "fail"})
    assert "see that the store runs" in found["store"]["remedy"]


@pytest.mark.usefixtures("made")
def test_a_clock_that_is_wrong_is_a_warning(examined, monkeypatch):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 100)
    code, found = examined()
    assert (code, found["clock"]["state"]) == (0, "warn")
    assert "100 s ahead of the store's" in found["clock"]["what"]


@pytest.mark.parametrize(
    ("there", "state"),
    [
        (50.0, "ok"),
        (100.5, "ok"),
        (101 + MOST_SKEW, "ok"),
        (102 + MOST_SKEW, "warn"),
        (40 - MOST_SKEW, "warn"),
    ],
)
def test_how_long_an_answer_takes_is_no_skew(there, state):
    assert skew(there, before=50, after=101).state == state


@pytest.mark.usefixtures("made")
def test_a_disk_that_is_nearly_full_is_a_warning_and_a_full_one_a_failure(examined, monkeypatch):
    monkeypatch.setattr(SQLiteFile, "room", lambda _: LITTLE_ROOM // 2)
    code, found = examined()
    assert (code, found["disk"]["state"]) == (0, "warn")
    monkeypatch.setattr(SQLiteFile, "room", lambda _: 1000)
    code, found = examined()
    assert (code, found["tables"]["state"], "disk" in found) == (1, "fail", False)


@pytest.mark.usefixtures("made")
def test_a_ledger_in_memory_cannot_be_looked_at(run):
    assert run("doctor", "--url", "memory:")[0] == 2


@pytest.fixture
def provisioned(request, run, tmp_path):
    """The options of a store whose tables were made for an environment of its own."""

    def provisioned(name):
        place = open_place(name, request, tmp_path)
        there = ("--url", place.url(), "--env", place.env)
        assert run("provision", *there)[0] == 0
        return place, there

    return provisioned


@pytest.mark.parametrize("name", STORES)
def test_on_every_store(name, provisioned, examined):
    _, there = provisioned(name)
    _, found = examined(*there)
    wanted = {"store": "ok", "clock": "ok"}
    if name in {"dynoxide", "ministack"}:
        wanted["ttl"] = "ok"
    assert {check: states(found)[check] for check in wanted} == wanted


def test_in_dynamodb_ttl_that_is_off_is_a_warning(provisioned, examined, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    place, there = provisioned("dynoxide")
    code, before = examined(*there)
    credentials = Credentials("any", "thing")
    with closing(
        Wire("dynamodb", region="us-east-1", endpoint=place.server, credentials=credentials)
    ) as wire:
        off = {"Enabled": False, "AttributeName": "ttl"}
        request = {"TableName": f"semel-{place.env}-ledger", "TimeToLiveSpecification": off}
        wire.call("UpdateTimeToLive", request, write=False)
    again, found = examined(*there)
    assert (again, before["ttl"]["state"], found["ttl"]["state"]) == (code, "ok", "warn")
    assert found["ttl"]["remedy"] == "run semel provision"
