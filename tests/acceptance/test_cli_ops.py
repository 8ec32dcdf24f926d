"""`semel ls`, `explain`, `stuck`, `act`, `tail` and `top`, as somebody on call types them."""

import functools
import io
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

import semel
from semel.cli.tail import BEGIN_WITH, Follower
from semel.cli.top import quantile
from semel.core.commands import Update, write
from semel.core.drive import drive
from semel.core.events import digest
from semel.errors import StoreUnavailable
from semel.gate import KillSwitch
from semel.model import RECORD_VERSION
from semel.ops.actions import OPERATORS
from semel.ops.facades import Ops
from semel.ops.model import Action, Search
from semel.ops.rates import Rates
from semel.periods import Day
from semel.tables import LEDGER
from semel.testing import FakeClock
from tests.places import NAMES, open_place

SECRET = "a secret of the tests, 32 bytes."
STORES = [name for name in NAMES if name != "memory"]


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'semel.db'}"


@pytest.fixture
def run(url, typed_on):
    return typed_on(url, SECRET)


@pytest.fixture
def read(run):
    """What a command prints as JSON."""

    def read(*words):
        code, out, err = run(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return read


@pytest.fixture
def s(url):
    """A ledger with one record of each status, and of three workers."""
    with semel.connect(url, secret=SECRET.encode(), worker="web-1") as s:
        s.ledger.complete(claim(s, "reply:1", subject="ada"), "a personal answer")
        s.ledger.fail(claim(s, "reply:2", subject="ada"), TimeoutError("the model was slow"))
        s.ledger.fail(claim(s, "charge:2"), ValueError("no such card"))
        s.ledger.release(claim(s, "charge:3"))
        s.ledger.doubt(claim(s, "charge:4", subject="ada"))
        claim(s, "charge:5")
        yield s


def claim(s, key, **options):
    found = s.ledger.claim(key, ttl=3600, **options)
    assert isinstance(found, semel.Claimed)
    return found


def keys(page):
    return {record["key"] for record in page["records"]}


# Searching

EVERYTHING = {"reply:1", "reply:2", "charge:2", "charge:3", "charge:4", "charge:5"}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("", EVERYTHING),
        ("--status failed", {"reply:2", "charge:2"}),
        ("--status FAILED --error TimeoutError", {"reply:2"}),
        ("--prefix reply:", {"reply:1", "reply:2"}),
        ("--doubts", {"charge:4"}),
        ("--worker web", EVERYTHING),
        ("--worker mail", set()),
        ("--subject ada", {"reply:1", "reply:2", "charge:4"}),
        ("--subject ada --doubts", {"charge:4"}),
        ("--since 2h", EVERYTHING),
        ("--since 1.5d --until 1h", set()),
        ("--since 1w", EVERYTHING),
        ("--since 2026-01-31", EVERYTHING),
    ],
)
@pytest.mark.usefixtures("s")
def test_what_is_asked_for_is_found(read, options, wanted):
    assert keys(read("ls", *options.split())) == wanted


def test_the_digest_of_a_log_line_leads_to_its_key(s, read):
    id = s.ledger.get("charge:2").id
    assert keys(read("ls", "--digest", digest(id))) == {"charge:2"}


@pytest.mark.usefixtures("s")
def test_a_moment_may_be_written_in_full(read):
    now = datetime.now(UTC)
    assert keys(read("ls", "--since", (now - timedelta(hours=1)).isoformat())) == EVERYTHING
    assert keys(read("ls", "--since", (now + timedelta(hours=1)).isoformat())) == set()


@pytest.mark.parametrize("when", ["yesterday", "2 weeks", "2026-10-25T08:00 o'clock"])
def test_what_is_no_moment_is_told_with_what_would_be(run, s, when):
    code, _, err = run("ls", "--since", when)
    assert code == 2
    assert f'cannot parse "{when}" as a time: write 30min, 1.5h or 1w' in err


@pytest.mark.usefixtures("s")
def test_a_person_can_be_named_where_nobody_sees_the_command(read, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("ada\n"))
    assert keys(read("ls", "--subject", "-", "--prefix", "reply")) == {"reply:1", "reply:2"}


@pytest.mark.usefixtures("s")
def test_a_search_shows_who_and_what_went_wrong_and_no_result(run):
    code, out, _ = run("ls", "--prefix", "reply:")
    assert code == 0
    head, first, second, cost = out.splitlines()
    assert head.split()[:4] == ["key", "status", "attempt", "changed"]
    assert (first.split()[0], first.split()[-1]) == ("reply:1", "web-1")
    assert second.endswith("TimeoutError: the model was slow; web-1")
    assert cost == "2 records, found by key."
    assert "personal" not in out + run("ls", "--json")[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--status failed --error TimeoutError",
            "1 record, found by the index of failures, of 2 keys looked at.",
        ),
        ("--error NoSuchError", "No records, found by reading the whole table."),
        ("--doubts", "1 record, found by the index of doubts."),
        ("--subject ada --status completed", "1 record, found by the index of persons, of 3 keys looked at."),
    ],
)
@pytest.mark.usefixtures("s")
def test_a_search_says_which_way_it_went_and_what_it_cost(run, options, said):
    assert run("ls", *options.split())[1].splitlines()[-1] == said


def test_all_records_are_listed_in_the_order_of_time_once_the_owner_chose_so(s, url, run, read):
    code, _, err = run("ls", "--newest")
    assert code != 0
    assert f"run: semel provision --url {url} --env dev --with recent" in err
    assert run("provision", "--with", "recent")[0] == 0
    records = s.ledger.list().records
    latest = [record.key for record in sorted(records, key=lambda each: each.updated_at)]
    assert [record["key"] for record in read("ls", "--oldest")["records"]] == latest
    page = read("ls", "--newest", "--limit", "4")
    rest = read("ls", "--newest", "--limit", "4", "--after", page["after"])
    assert [record["key"] for record in page["records"] + rest["records"]] == latest[::-1]
    assert run("ls", "--newest")[1].endswith("6 records, found by the index of all records.\n")


@pytest.mark.usefixtures("s")
def test_failures_and_doubts_have_an_order_of_their_own(run, read):
    assert [each["key"] for each in read("ls", "--status", "failed", "--oldest")["records"]] == [
        "reply:2",
        "charge:2",
    ]
    assert keys(read("ls", "--doubts", "--newest")) == {"charge:4"}
    assert "say --newest or --oldest, not both" in run("ls", "--newest", "--oldest")[2]
    assert "there is recent" in run("provision", "--with", "latest")[2]
    both = run("provision", "--with", "recent", "--without", "recent")
    assert "say which you mean" in both[2]


@pytest.fixture
def crowded(typed_on, request, tmp_path, monkeypatch):
    """A Redis whose records and counters take many pages to go over, and a shell that names it."""
    place = open_place("redis", request, tmp_path)
    typed_on(place.url(), SECRET)
    monkeypatch.setenv("SEMEL_ENV", place.env)
    monkeypatch.setattr("semel.ops.questions.EXAMINED", 10)
    monkeypatch.setattr("semel.ops.standing.EXAMINED", 10)
    with semel.connect(place.url(), env=place.env) as s:
        s.ledger.check_and_set_many([f"charge:{number}" for number in range(200)], ttl=3600)
        s.counters.charge("replies:7", per=Day("UTC"), cap=3, token="t")
        yield s


def test_a_search_goes_through_all_keys_where_they_lie_in_no_order(crowded, typed):
    page = crowded.ops.search(Search(prefix="refund:"))
    assert (page.records, page.examined, page.after is None) == ((), 10, False)
    assert typed("ls", "--prefix", "refund:")[1] == "No records, found by reading the whole table.\n"
    found = json.loads(typed("ls", "--prefix", "charge:19", "--json")[1])
    assert keys(found) == {"charge:19", *(f"charge:19{number}" for number in range(10))}
    assert "replies:7" in typed("counter", "list")[1]
    assert typed("counter", "list", "--prefix", "nothing")[1].startswith("No counters in environment ")


@pytest.mark.usefixtures("crowded")
def test_whoever_interrupts_a_search_is_told_how_to_go_on(typed, monkeypatch):
    searched, pages = Ops.search, iter(range(3))

    def interrupted(*args, **options):
        if next(pages, None) is None:
            raise KeyboardInterrupt
        return searched(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Ops, "search", interrupted)
        code, out, _ = typed("ls", "--prefix", "refund:")
    first, more = out.splitlines()
    assert (code, first) == (0, "No records among the 30 keys looked at so far.")
    assert more.startswith("There may be more: --after ")
    [_, _, _, _, _, after] = shlex.split(more)
    assert typed("ls", "--prefix", "refund:", "--after", after)[1].startswith("No records, found by reading")


def test_a_table_that_costs_money_is_read_only_where_somebody_says_so(
    request, tmp_path, monkeypatch, run, read
):
    place = open_place("dynoxide", request, tmp_path)
    monkeypatch.setenv("SEMEL_URL", place.url())
    with semel.connect(place.url(), env=place.env, secret=SECRET.encode()) as s:
        s.ledger.complete(claim(s, "reply:1"), "an answer")
        s.ledger.fail(claim(s, "reply:2"), ValueError("no"))
    code, _, err = run("ls", "--env", place.env)
    assert code == 2
    assert "the whole table is read" in err
    assert "Say --scan" in err
    assert keys(read("ls", "--env", place.env, "--scan")) == {"reply:1", "reply:2"}
    assert keys(read("ls", "--env", place.env, "--status", "failed")) == {"reply:2"}
    assert run("ls", "--newest", "--env", place.env)[0] == 2


@pytest.mark.usefixtures("s")
def test_pages_follow_each_other_to_the_end(read, run):
    found: list[str] = []
    after = None
    while after is not None or not found:
        page = read("ls", "--limit", "2", *([] if after is None else ["--after", after]))
        found += [record["key"] for record in page["records"]]
        after = page["after"]
    assert sorted(found) == sorted(EVERYTHING)
    assert "There may be more: --after" in run("ls", "--limit", "2")[1]


@pytest.mark.usefixtures("s")
def test_where_nothing_is_kept_other_scopes_are_pointed_to(run):
    nothing = "Nothing is kept in environment dev, scope another: --app, --scope and --env name others."
    assert nothing in run("ls", "--scope", "another")[1]
    assert nothing not in run("ls", "--scope", "another", "--prefix", "charge:")[1]
    assert nothing not in run("ls")[1]


def test_a_record_that_cannot_be_read_is_named(s, run):
    drive(write(Update(LEDGER, s.ledger.get("charge:2").id, {"version": RECORD_VERSION + 1})), s.store)
    assert "charge:2 cannot be read" in run("ls")[1]


# The story of one


def test_the_story_of_a_key_is_told_in_words(s, run):
    claim(s, "charge:3")
    code, out, _ = run("explain", "charge:3")
    assert code == 0
    assert out.startswith("charge:3 is IN_PROGRESS: web-1 has been at work for")
    assert "attempt 1 gave the key back" in out
    assert "The next call with this key finds it busy" in out


@pytest.mark.usefixtures("s")
def test_the_story_of_a_key_for_programs(read):
    story = read("explain", "charge:2")
    assert (story["key"], story["status"]) == ("charge:2", "FAILED")
    assert [line["kind"] for line in story["lines"]] == ["claimed", "failed"]
    assert all(datetime.fromisoformat(line["at"]).tzinfo for line in story["lines"])
    assert datetime.fromisoformat(story["until"]) > datetime.now(UTC)
    assert story["decisions"] == story["steps"] == story["actions"] == []


@pytest.mark.usefixtures("s")
def test_the_story_of_a_key_that_nobody_knows(run):
    shown = run("show", "charge:99")
    assert run("explain", "charge:99") == shown
    assert shown[0] == 1


def test_what_belongs_to_a_key_is_told_with_it(s, run, read):
    s.gate(KillSwitch("sending")).decide("reply:1")
    claim(s, "reply:1>send")
    claim(s, "reply:10")
    story = read("explain", "reply:1")
    assert (story["status"], story["decisions"][0]["allowed"]) == ("COMPLETED", True)
    assert [each["key"] for each in story["steps"]] == ["reply:1>send"]
    assert datetime.fromisoformat(story["steps"][0]["began"]).tzinfo
    assert "What gates decided:\n" in run("explain", "reply:1")[1]


def test_the_sizes_of_tables_are_told(s, run, read):
    claim(s, "late:1")
    [ledger] = [each for each in read("sizes")["tables"] if each["table"] == "ledger"]
    assert ledger["items"] == sum(ledger["by_status"].values())
    code, out, _ = run("sizes")
    assert code == 0
    assert "FAILED 2" in out
    assert re.search(r"^all +\d+ +[\d,]{5,}$", out, re.MULTILINE), (
        "its bytes are told once, of the whole file"
    )
    assert out.endswith("Counted up to 10,000.\nBytes of the whole file.\n")


# What needs somebody


@pytest.fixture
def clock(monkeypatch):
    """The time of the library and the command alike."""
    clock = FakeClock()
    monkeypatch.setattr(semel, "connect", functools.partial(semel.connect, clock=clock))
    return clock


@pytest.fixture
def neglected(clock, url):
    with semel.connect(url, secret=SECRET.encode(), worker="web-1") as s:
        claim(s, "charge:lapsed", lease=30)
        clock.advance(60)
        s.ledger.doubt(claim(s, "charge:doubted"))
        clock.advance(10)
        claim(s, "charge:held", lease=30, on_lapsed="hold")
        clock.advance(100)
        claim(s, "charge:running", lease=30)
        yield s


@pytest.mark.usefixtures("neglected")
def test_what_is_stuck_comes_oldest_first(read):
    told = [(each["key"], each["why"], each["seconds"]) for each in read("stuck")["stuck"]]
    assert told == [
        ("charge:lapsed", "lapsed", 140),
        ("charge:doubted", "in doubt", 110),
        ("charge:held", "in doubt", 70),
    ]


@pytest.mark.usefixtures("neglected")
def test_what_is_stuck_is_counted_beyond_what_is_shown(run, read):
    out = run("stuck", "--limit", "1")[1]
    assert out.splitlines()[1].split()[:4] == ["charge:lapsed", "lapsed", "2", "min"]
    assert "2 in doubt, 1 lapsed; the oldest 1 are shown" in out
    assert read("stuck", "--limit", "1")["of"] == 3


def test_nothing_is_stuck(run, url):
    semel.connect(url).close()
    assert run("stuck")[:2] == (
        0,
        "Nothing is stuck. Looked at 0 keys in environment dev, no scope.\n",
    )


# Acting


class Typed(io.StringIO):
    """What somebody types on a terminal."""

    def isatty(self):
        return True


def status(s, key):
    record = s.ledger.get(key)
    return None if record is None else record.status.value


@pytest.mark.parametrize(
    ("action", "key", "after"),
    [
        ("release", "charge:2", "RELEASED"),
        ("complete", "charge:4", "COMPLETED"),
        ("fail", "charge:3", "FAILED"),
        ("drop", "reply:1", "COMPLETED"),
        ("forget", "reply:1", None),
    ],
)
def test_each_action_is_done_and_told_with_who_and_why(s, run, read, action, key, after):
    before = status(s, key)
    code, out, _ = run("act", action, key, "--why", "ticket 12", "--by", "ann")
    assert (code, out.split(",")[0]) == (0, f"{key} was {before}")
    assert status(s, key) == after
    [entry] = read("act", "journal")["entries"]
    body = entry["body"]
    assert (entry["actor"], body["action"], body["about"], body["why"]) == ("ann", action, key, "ticket 12")
    assert body["before"]["status"] == before


def test_a_result_that_is_known_from_elsewhere_is_kept(s, run):
    assert run("act", "complete", "charge:4", "--why", "seen", "--result", '{"receipt": "R-1"}')[0] == 0
    assert s.ledger.result(s.ledger.get("charge:4")) == {"receipt": "R-1"}


def test_a_result_that_is_no_json_changes_nothing(s, run):
    code, _, err = run("act", "complete", "charge:4", "--why", "seen", "--result", "paid")
    assert (code, err.startswith("semel: --result takes JSON")) == (2, True)
    assert status(s, "charge:4") == "UNKNOWN"


def test_a_dropped_result_is_gone(s, run):
    assert run("act", "drop", "reply:1", "--why", "personal")[0] == 0
    assert s.ledger.get("reply:1").tombstone


def test_whoever_is_logged_in_acts(s, run, read, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "bob")
    run("act", "release", "charge:2", "--why", "ticket 12")
    assert read("act", "journal")["entries"][0]["actor"] == "bob"


def test_where_nobody_is_logged_in_a_name_is_asked_for(s, run, monkeypatch):
    def nobody():
        raise OSError("no such user")

    monkeypatch.setattr("getpass.getuser", nobody)
    code, _, err = run("act", "release", "charge:2", "--why", "ticket 12")
    assert (code, "--by" in err) == (2, True)
    assert status(s, "charge:2") == "FAILED"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("charge:2",), "--why"),
        (("charge:2", "--why", " "), "--why is empty"),
        (("--why", "x"), "name the keys, or say --all"),
        (("charge:2", "--all", "--prefix", "charge", "--why", "x"), "name the keys, or say --all"),
        (("--all", "--why", "x"), "--all is never every record"),
        (("charge:2", "--prefix", "charge", "--why", "x"), "nothing is searched for"),
        (("--all", "--prefix", "charge:2", "--why", "x"), "say --yes"),
    ],
)
def test_what_is_not_clear_is_not_done(s, run, words, said):
    code, _, err = run("act", "release", *words)
    assert (code, said in err) == (2, True)
    assert status(s, "charge:2") == "FAILED"


def test_of_several_keys_the_refused_are_told_and_the_others_done(s, run):
    code, out, err = run("act", "release", "charge:2", "reply:1", "charge:99", "charge:5", "--why", "x")
    assert (code, out) == (1, "charge:2 was FAILED, and is released.\n")
    assert [line.split()[0] for line in err.splitlines()] == ["reply:1", "charge:99", "charge:5"]
    assert "somebody is at work on it" in err


def test_work_under_way_is_ended_by_force(s, run):
    assert run("act", "fail", "charge:5", "--why", "x")[0] == 1
    assert run("act", "fail", "charge:5", "--why", "x", "--force")[0] == 0
    assert status(s, "charge:5") == "FAILED"


def test_the_same_command_twice_does_it_once(s, run, read):
    command = ("act", "release", "charge:2", "--why", "x")
    run(*command)
    assert run(*command)[:2] == (0, "charge:2 was released before.\n")
    assert len(read("act", "journal")["entries"]) == 1
    code, _, err = run("act", "forget", "charge:99", "--why", "x")
    assert (code, err) == (1, "charge:99 is not forgotten: there is no record of this key.\n")
    assert (
        json.loads(run("act", "forget", "charge:99", "--why", "x", "--json")[1])["done"][0]["before"]
        == "absent"
    )


@pytest.mark.parametrize("words", [("charge:2",), ("--all", "--prefix", "charge:2")])
def test_a_preview_changes_nothing(s, run, read, words):
    code, out, _ = run("act", "release", *words, "--why", "x", "--preview")
    assert (code, "would be released" in out) == (0, True)
    assert status(s, "charge:2") == "FAILED"
    assert read("act", "journal")["entries"] == []


def test_what_was_done_for_programs(s, run):
    code, out, _ = run("act", "release", "charge:2", "reply:1", "--why", "x", "--by", "ann", "--json")
    told = json.loads(out)
    assert (code, told["action"], told["by"], told["of"], told["preview"]) == (1, "release", "ann", 2, False)
    assert [(each["key"], each["changed"]) for each in told["done"]] == [
        ("charge:2", True),
        ("reply:1", False),
    ]
    assert told["done"][1]["refused"]


def test_a_record_that_cannot_be_read_is_left_to_be_forgotten(s, run):
    drive(write(Update(LEDGER, s.ledger.get("charge:2").id, {"version": RECORD_VERSION + 1})), s.store)
    code, _, err = run("act", "release", "charge:2", "--why", "x")
    assert (code, "cannot be read; semel act forget" in err) == (1, True)
    assert run("act", "forget", "charge:2", "--why", "x")[0] == 0
    assert s.ledger.get("charge:2") is None


# Acting in bulk


@pytest.fixture
def timeouts(s):
    for number in range(30):
        s.ledger.fail(claim(s, f"mail:{number:02}"), TimeoutError("slow"))
    return s


BULK = (
    "act",
    "release",
    "--all",
    "--status",
    "failed",
    "--error",
    "TimeoutError",
    "--why",
    "the relay is back",
)


def test_what_is_found_is_done_at_once_with_yes(timeouts, run, read):
    assert run(*BULK, "--yes")[:2] == (0, "31 of 31 records were released.\n")
    assert status(timeouts, "mail:29") == "RELEASED"
    assert status(timeouts, "charge:2") == "FAILED", "it failed otherwise"
    assert len(read("act", "journal", "--limit", "50")["entries"]) == 31


def test_before_all_are_done_they_are_shown_and_somebody_is_asked(timeouts, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Typed("n\n"))
    code, out, _ = run(*BULK)
    assert code == 1
    assert "and 11 more." in out
    assert "Shall 31 records be released?" in out
    assert "Nothing was done." in out
    assert status(timeouts, "mail:00") == "FAILED"
    monkeypatch.setattr(sys, "stdin", Typed("y\n"))
    assert run(*BULK)[0] == 0
    assert status(timeouts, "mail:00") == "RELEASED"


def test_whoever_goes_away_without_an_answer_has_done_nothing(timeouts, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Typed(""))
    code, out, err = run(*BULK)
    assert (code, "Nothing was done." in out, "Traceback" in err) == (1, True, False)
    assert status(timeouts, "mail:00") == "FAILED"


def test_what_changes_while_somebody_thinks_is_left_alone(timeouts, run, monkeypatch):
    def think(_question):
        s = timeouts
        s.ops.perform(Action(name="release", key="mail:00", by="bob", why="mine"))
        s.ledger.complete(claim(s, "mail:00"), "sent by its worker")
        return True

    monkeypatch.setattr(sys, "stdin", Typed())
    monkeypatch.setattr("typer.confirm", think)
    code, out, err = run(*BULK)
    assert (code, out.splitlines()[-1]) == (1, "30 of 31 records were released.")
    assert "1 record refused, such as mail:00: the record has changed" in err
    assert status(timeouts, "mail:00") == "COMPLETED"


def test_if_the_store_goes_away_half_way_it_is_told_how_far_it_came(timeouts, run, monkeypatch):
    perform, calls = Ops.perform, []

    def failing(self, action, *, preview=False):
        calls.append(preview)
        if calls.count(False) == 4:
            raise StoreUnavailable("the store is away")
        return perform.__get__(self)(action, preview=preview)

    with monkeypatch.context() as patched:
        patched.setattr(Ops, "perform", failing)
        code, out, err = run(*BULK, "--yes")
    assert (code, out, err) == (1, "3 of 31 records were released.\n", "semel: the store is away\n")
    assert run(*BULK, "--yes")[:2] == (0, "28 of 28 records were released.\n")


@pytest.mark.usefixtures("s")
def test_where_nothing_is_found_nothing_is_done(run):
    assert run("act", "forget", "--all", "--prefix", "none", "--why", "x")[:2] == (
        0,
        "0 of 0 records would be forgotten.\n",
    )


def test_a_result_in_an_overflow_that_is_not_reached_is_named(url, run, tmp_path):
    overflow = semel.FileOverflow(tmp_path / "overflow")
    with semel.connect(url, secret=SECRET.encode(), overflow=overflow, max_result_bytes=10) as s:
        s.ledger.complete(claim(s, "reply:1"), "a long answer " * 10)
    code, _, err = run("act", "forget", "reply:1", "--why", "x")
    [left] = (tmp_path / "overflow").iterdir()
    assert (code, left.name in err) == (1, True)


def test_nobody_has_done_anything(s, run):
    assert run("act", "journal")[:2] == (
        0,
        "No operator has changed anything in environment dev, no scope.\n",
    )


def test_what_was_done_is_listed_newest_first(s, run):
    for key in ("charge:2", "reply:2"):
        run("act", "release", key, "--why", "ticket 12", "--by", "ann")
    head, *rows, more = run("act", "journal", "--limit", "1")[1].splitlines()
    assert head.split() == ["at", "about", "action", "by", "why"]
    assert [row.split()[1:] for row in rows] == [["reply:2", "release", "ann", "ticket", "12"]]
    assert more.startswith("There may be more: --after")


# Following


def told(follower):
    return [(news.kind, news.key, news.who) for news in follower.news()]


def test_what_operators_do_and_what_is_in_doubt_is_followed(s):
    follower = Follower(s)
    assert told(follower) == [("in doubt", "charge:4", "")]
    assert told(follower) == []
    s.ops.perform(Action(name="complete", key="charge:4", by="ann", why="the bank has it"))
    s.ledger.doubt(claim(s, "charge:3"))
    [action, doubt, settled] = follower.news()
    assert (action.kind, action.key, action.who) == ("action", "charge:4", "ann")
    assert action.text == "complete: the bank has it"
    assert (doubt.kind, doubt.key, doubt.text) == ("in doubt", "charge:3", "web-1")
    assert (settled.kind, settled.key, settled.text) == ("settled", "charge:4", "it is COMPLETED")
    assert told(follower) == []


def test_of_what_was_done_before_the_last_is_told_and_of_what_comes_everything(s):
    def act(number):
        s.ledger.fail(claim(s, f"mail:{number:03}"), TimeoutError("slow"))
        s.ops.perform(Action(name="release", key=f"mail:{number:03}", by="ann", why="again"))

    for number in range(BEGIN_WITH + 5):
        act(number)
    follower = Follower(s)
    first = [key for kind, key, _ in told(follower) if kind == "action"]
    assert first == [f"mail:{number:03}" for number in range(5, BEGIN_WITH + 5)]
    for number in range(100, 220):
        act(number)
    assert [key for _, key, _ in told(follower)] == [f"mail:{number}" for number in range(100, 220)]


def test_an_action_whose_time_is_told_late_is_not_missed(s):
    """As two processes on DynamoDB, whose time is known to the second, may write them."""
    s.ops.perform(Action(name="release", key="charge:2", by="ann", why="first"))
    follower = Follower(s)
    told(follower)
    body = {"action": "release", "about": "reply:2", "why": "second"}
    s.journal.append(OPERATORS, body, actor="bob", at=time.time() - 60)
    assert told(follower) == [("action", "reply:2", "bob")]


def test_what_is_forgotten_is_no_longer_in_doubt(s):
    follower = Follower(s)
    told(follower)
    s.ledger.forget("charge:4")
    assert [news.text for news in follower.news()] == ["it is gone"]


@pytest.fixture
def started(url, s):
    """Start a command whose output is a pipe; it is ended as Ctrl-C ends it, with exit code 0."""
    running = []

    def start(*words):
        process = subprocess.Popen(
            [sys.executable, "-m", "semel", *words, "--url", url], stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.send_signal(signal.SIGINT)
        with process:
            assert process.wait(60) == 0


def test_news_are_printed_as_they_come_until_somebody_stops_it(s, started):
    tail = started("tail", "--every", "0.1", "--json")
    assert json.loads(tail.stdout.readline())["key"] == "charge:4"
    s.ops.perform(Action(name="release", key="charge:2", by="ann", why="the card is good"))
    news = json.loads(tail.stdout.readline())
    assert (news["kind"], news["key"], news["text"]) == ("action", "charge:2", "release: the card is good")


def test_a_line_of_news_for_people(s, started):
    line = started("tail").stdout.readline()
    assert line.split()[1:] == ["in", "doubt", "charge:4", "web-1"]


# Rates

RATES = [
    Rates(60, {"shop.pay": {"claimed": 3, "completed": 2, "failed": 1}}, {"shop.pay": [2] + [0] * 11 + [1]}),
    Rates(
        120,
        {"shop.pay": {"claimed": 1, "replayed": 4, "held": 1}, "": {"taken_over": 1, "released": 1}},
        {"": [0, 0, 0, 0, 1] + [0] * 8},
        {"d389b2e5554a85b0": 4},
    ),
]


@pytest.fixture
def rates(monkeypatch, s):
    """Processes that have told what they did."""
    monkeypatch.setattr(Ops, "rates", lambda _ops, _since, _until: RATES)


@pytest.mark.usefixtures("rates")
def test_the_rates_of_all_minutes_together_for_programs(read):
    found = read("top", "--once", "--minutes", "2")
    assert (found["minutes"], found["duplicates"]) == (2, {"d389b2e5554a85b0": 4})
    pay, other = found["functions"]
    assert pay == {
        "name": "shop.pay",
        "began": 4,
        "completed": 2,
        "failed": 1,
        "released": 0,
        "held": 1,
        "duplicates": 4,
        "p50": 0.005,
        "p95": None,
    }
    assert (other["name"], other["began"], other["released"], other["p95"]) == ("", 1, 1, 0.1)


@pytest.mark.usefixtures("rates")
def test_the_rates_for_people(run):
    code, out, _ = run("top", "--minutes", "2")
    head, names, pay, other, repeated = out.splitlines()
    assert (code, head) == (0, "5 attempts began in the last 2 minutes, 2.5 a minute.")
    assert names.split()[:2] == ["function", "began"]
    assert pay.split() == ["shop.pay", "4", "2", "1", "0", "1", "4", "5", "ms", ">", "30", "s"]
    assert other.startswith("(no name)")
    assert repeated == "4 times again: semel ls --digest d389b2e5554a85b0"


@pytest.mark.usefixtures("s")
def test_where_no_process_tells_its_rates_that_is_said(run):
    said = "No process has reported anything for environment dev, no scope in the last minute.\n"
    assert run("top", "--minutes", "1")[:2] == (0, said)


@pytest.mark.parametrize(
    ("buckets", "share", "edge"),
    [
        ([], 0.5, None),
        ([0] * 13, 0.5, None),
        ([1, 1] + [0] * 11, 0.5, 0.005),
        ([1, 1] + [0] * 11, 0.95, 0.01),
    ],
)
def test_the_edge_below_which_a_share_lies(buckets, share, edge):
    assert quantile(buckets, share) == edge


@pytest.mark.usefixtures("s")
def test_on_a_terminal_the_rates_are_drawn_until_somebody_stops_it(url):
    near, far = pty.openpty()
    with os.fdopen(near, "rb", buffering=0) as terminal:
        words = [sys.executable, "-m", "semel", "top", "--url", url, "--every", "0.1"]
        surroundings = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
        with subprocess.Popen(words, stdin=far, stdout=far, stderr=far, env=surroundings) as process:
            shown = b""
            while shown.count(b"No process has reported") < 2:
                shown += terminal.read(65536)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        os.close(far)


# On every store


@pytest.mark.parametrize("name", STORES)
def test_on_every_store_a_key_is_found_its_story_told_and_put_right(name, request, tmp_path, run, read):
    place = open_place(name, request, tmp_path)
    with semel.Semel(place.open(), env=place.env, worker="web-1") as s:
        s.ledger.fail(claim(s, "reply:1"), TimeoutError("slow"))
        s.ledger.doubt(claim(s, "reply:2"))
        s.gate(KillSwitch("sending")).decide("reply:1")
        follower = Follower(s)
        assert told(follower) == [("in doubt", "reply:2", "")]
        s.ops.perform(Action(name="fail", key="reply:2", by="bob", why="nobody waits for it"))
        assert told(follower) == [("action", "reply:2", "bob"), ("settled", "reply:2", "")]
        s.ledger.doubt(claim(s, "reply:3"))
    there = ("--url", place.url(), "--env", place.env)
    assert keys(read("ls", "--status", "failed", "--error", "TimeoutError", *there)) == {"reply:1"}
    assert [each["key"] for each in read("stuck", *there)["stuck"]] == ["reply:3"]
    code, _, problem = run("ls", "--prefix", "reply:", *there)
    billed = name in ("dynoxide", "ministack")
    assert (code == 0) is not billed
    assert ("the whole table is read" in problem and "--scan" in problem) is billed
    assert keys(read("ls", "--prefix", "reply:", "--scan", *there)) >= {"reply:1", "reply:2", "reply:3"}
    assert read("stuck", *there)["lapsed"] == ("not looked for" if billed else "looked for")
    story = read("explain", "reply:1", *there)
    assert story["lines"][-1]["text"] == "attempt 1 failed for good: TimeoutError: slow"
    assert [each["key"] for each in story["decisions"]] == ["reply:1"]
    assert run("act", "release", "reply:1", "--why", "x", "--by", "ann", *there)[0] == 0
    # DynamoDB tells its time to the second, so within one the entries of two processes have no order.
    assert {each["actor"] for each in read("act", "journal", *there)["entries"]} == {"ann", "bob"}
    assert "released by an operator, ann: x" in run("explain", "reply:1", *there)[1]
