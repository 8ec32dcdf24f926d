"""`semel bench` measures a store, says what it does there, and leaves nothing behind."""

import json
import signal
import subprocess
import sys

import pytest

import semel
from semel.cli.bench import span_text
from semel.cli.measuring import (
    BATCH,
    CALLERS,
    COUNTER,
    DECISION,
    FIRST,
    HOT,
    KINDS,
    MANY,
    MODES,
    REPLAY,
    SEEN,
    measured,
    percentile,
)
from semel.periods import Hour
from tests.places import NAMES, open_place
from tests.servers.running import until

STORES = [name for name in NAMES if name != "memory"]
SHORT = ("--seconds", "0.01")


@pytest.fixture
def there(request, tmp_path, typed):
    """The options of a store whose tables were made."""

    def there(name):
        place = open_place(name, request, tmp_path)
        options = ("--url", place.url(), "--env", place.env)
        assert typed("provision", *options)[0] == 0
        return place, options

    return there


@pytest.fixture
def file(tmp_path):
    return tmp_path / "semel.db"


@pytest.fixture
def url(file):
    url = f"sqlite:///{file}"
    semel.connect(url).close()
    return url


def left(url, env, scope):
    """What a run has left behind in a store."""
    with semel.connect(url, env=env, scope=scope) as s:
        records = [record.key for record in s.ledger.list(limit=1000).records]
        return records, s.counters.look(COUNTER, per=Hour()).used


@pytest.mark.parametrize("name", STORES)
def test_every_kind_of_call_is_measured_on_every_store_and_nothing_stays(name, there, typed):
    place, options = there(name)
    code, out, _ = typed("bench", *options, *SHORT, "--json")
    told = json.loads(out)
    assert code == 0
    assert [(one["what"], one["mode"]) for one in told["measured"]] == [
        (kind, mode) for mode in MODES for kind in KINDS
    ]
    assert all(0 < one["p50_ms"] <= one["p99_ms"] and one["per_second"] > 0 for one in told["measured"])
    batch = BATCH if name in ("dynoxide", "ministack") else 1
    trips = {one["what"]: one["round_trips"] for one in told["measured"]}
    assert trips == {FIRST: 2, REPLAY: 1, SEEN: 1, MANY: batch, DECISION: 1, HOT: None}
    assert left(place.url(), place.env, told["scope"]) == ([], 0)


def test_it_says_where_it_writes_and_how_much_it_removed(url, typed):
    code, out, err = typed("bench", "--url", url, *SHORT)
    assert code == 0
    assert "under the scope semel-bench-" in err
    assert "of environment dev for about" in err
    assert "Removed " in err
    assert len(out.splitlines()) == 1 + len(KINDS) * len(MODES)


def test_other_records_stay(url, typed):
    with semel.connect(url) as s:
        s.ledger.check_and_set("mine")
    assert typed("bench", "--url", url, *SHORT)[0] == 0
    assert left(url, "dev", "")[0] == ["mine"]


def test_a_file_that_is_not_there_is_not_made(file, typed):
    code, _, err = typed("bench", "--url", f"sqlite:///{file}", *SHORT)
    assert (code, file.exists()) == (1, False)
    assert "there is no file" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_whoever_is_stopped_removes_its_records_first(url, number, code):
    program = [sys.executable, "-m", "semel", "bench", "--url", url, "--seconds", "60"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline()
        scope = said.partition("scope ")[2].split()[0]
        assert until(lambda: bool(left(url, "dev", scope)[0]), lambda: process.poll() is None)
        process.send_signal(number)
        out, err = process.communicate()
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert "Removed " in err
    assert left(url, "dev", scope) == ([], 0)


def test_a_rate_is_of_calls_in_a_row_and_of_a_hot_key_of_all_callers_at_once():
    row = measured(FIRST, "sync", [0.1, 0.2, 0.1], 2)
    assert (row.calls, row.p50, row.p99) == (3, 0.1, 0.2)
    assert row.per_second == pytest.approx(7.5)
    crowd = measured(HOT, "sync", [0.25] * CALLERS, None)
    assert crowd.per_second == CALLERS / 0.25


def test_the_99th_percentile_of_few_calls_is_the_longest():
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([float(number) for number in range(200)], 0.99) == 198.0


def test_a_short_time_is_told_in_microseconds():
    assert [span_text(0.0000042), span_text(0.0123)] == ["4.2 µs", "12.30 ms"]
