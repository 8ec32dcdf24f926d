"""The state that decides, as an operator types it: `semel` on an SQLite file that the library has filled."""

import functools
import io
import json
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer

import semel
from semel.cli.app import app
from semel.gate import Allowed, Cap, Cooldown, KillSwitch, QuietHours, Shadow
from semel.periods import Day
from semel.state.erasure import erased_key
from semel.state.mailbox import Message
from semel.testing import FakeClock

SECRET = "a secret of the tests, 32 bytes."
PERSON = "ada@example.org"
ROOT = Path(__file__).parents[2]

# Six in the evening in Stockholm, on a day in summer.
NOW = datetime(2026, 7, 1, 16, 0, tzinfo=UTC).timestamp()


@pytest.fixture
def clock():
    return FakeClock(NOW)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'semel.db'}"


@pytest.fixture
def connect(url, clock, monkeypatch):
    """`semel.connect`, with the clock of the test for the library and the command alike."""
    timed = functools.partial(semel.connect, clock=clock)
    monkeypatch.setattr(semel, "connect", timed)
    return timed


@pytest.fixture
def s(connect, url):
    with connect(url, secret=SECRET.encode()) as s:
        yield s


@pytest.fixture
def run(url, typed_on):
    return typed_on(url, SECRET)


@pytest.fixture
def read(run):
    """What a command prints as JSON."""

    def read(*words):
        code, out, err = run(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return read


def one_line(err, *, told):
    """Whether an error is one line that says so."""
    return err.startswith("semel: ") and err.count("\n") == 1 and told in err


# switch


@pytest.mark.seed("R8")
def test_a_switch_stops_every_worker_in_every_scope_until_it_is_off(run, s, clock):
    gate = s.scoped("tenant").gate(KillSwitch("sending"))
    assert run("switch", "on", "sending", "--reason", "wrong prices")[0] == 0
    assert gate.decide("reply:1").reason == "kill_switch:sending"
    clock.advance(1)
    assert run("switch", "off", "sending")[0] == 0
    clock.advance(1)
    assert gate.decide("reply:2").allowed


def test_the_list_of_switches_says_since_when_by_whom_and_why(run, read, s, clock, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    run("switch", "on", "sending", "--reason", "wrong prices")
    run("switch", "off", "lookups")
    code, out, _ = run("switch", "list")
    assert code == 0
    lookups, sending = (line.split(maxsplit=4) for line in out.splitlines()[1:])
    assert lookups[:3] == ["lookups", "off", "2026-07-01T16:00:00.000+00:00"]
    assert [text.strip() for text in sending] == [
        "sending",
        "on",
        "2026-07-01T16:00:00.000+00:00",
        "ann",
        "wrong prices",
    ]
    assert read("switch", "list") == {
        "switches": [
            {
                "name": "lookups",
                "on": False,
                "since": "2026-07-01T16:00:00.000+00:00",
                "reason": "no reason was given",
                "by": "ann",
            },
            {
                "name": "sending",
                "on": True,
                "since": "2026-07-01T16:00:00.000+00:00",
                "reason": "wrong prices",
                "by": "ann",
            },
        ]
    }
    [turn] = read("switch", "history", "sending")["turns"]
    assert (turn["on"], turn["by"], turn["why"]) == (True, "ann", "wrong prices")
    assert run("switch", "history", "sending")[1].splitlines()[1].split()[1:] == [
        "on",
        "ann",
        "wrong",
        "prices",
    ]
    code, out, err = run("switch", "history", "nothing")
    assert (code, out) == (1, "")
    assert one_line(err, told="those that were: lookups, sending")
    assert run("switch", "history", "nothing", "--json")[:2] == (1, "")
    clock.advance(60)
    run("switch", "off", "sending")
    assert [turn["on"] for turn in read("switch", "history", "sending")["turns"]] == [False, True]


@pytest.mark.parametrize("words", [("list",), ("dead",), ("redrive", "--all", "--why", "x", "--yes")])
def test_an_inbox_that_is_not_there_is_told_with_those_that_are(run, s, words):
    s.mailbox("orders").put([Message("m-1", "a")])
    s.scoped("north").mailbox("mails").put([Message("m-1", "a")])
    s.scoped("support").mailbox("support").put([Message("m-1", "a")])
    for more in ((), ("--json",)):
        code, out, err = run("inbox", words[0], "nosuch", *words[1:], *more)
        assert (code, out) == (1, "")
        assert one_line(err, told="there is no inbox 'nosuch' with messages in environment dev, no scope")
        there = "orders, mails (--scope north), support (--app support)"
        assert one_line(err, told=f"inboxes with messages: {there}")
    assert run("inbox", words[0], "orders", *words[1:])[0] == 0
    assert run("inbox", words[0], "mails", *words[1:], "--scope", "north")[0] == 0
    assert s.ops.journal().entries == () or words[0] == "redrive"


def test_an_inbox_of_the_settings_is_there_though_nothing_waits(run, s, tmp_path, monkeypatch):
    (tmp_path / "semel.toml").write_text("[apps.support]\n")
    monkeypatch.chdir(tmp_path)
    assert run("inbox", "list", "support")[:2] == (0, "Nothing waits.\n")


def test_a_switch_that_was_turned_from_another_scope_is_in_its_history(run, read, s):
    s.scoped("support").ops.turn("sending", on=True, by="bob", why="wrong replies")
    [turn] = read("switch", "history", "sending")["turns"]
    assert (turn["by"], turn["why"]) == ("bob", "wrong replies")
    run("switch", "off", "sending", "--reason", "mended")
    assert [one["why"] for one in read("switch", "history", "sending")["turns"]] == [
        "mended",
        "wrong replies",
    ]


def test_counters_are_listed_with_the_ends_of_their_periods(run, read, s):
    s.counters.add("replies:42", 3)
    s.counters.add("mails:7")
    [counter] = read("counter", "list", "--prefix", "replies:")["counters"]
    assert (counter["counter"], counter["used"]) == ("replies:42", 3)
    assert counter["resets_at"] == "2026-07-02T00:00:00.000+00:00"
    assert "mails:7" in run("counter", "list")[1]
    assert run("counter", "list", "--prefix", "nothing")[1] == "No counters in environment dev, no scope.\n"


def test_without_switches_the_list_says_so(run, read, s):
    assert run("switch", "list")[:2] == (0, "No switch was ever turned in environment dev.\n")
    assert read("switch", "list") == {"switches": []}


def test_a_name_that_is_new_is_pointed_out_since_it_may_be_mistyped(run, s):
    _, first, _ = run("switch", "on", "sending")
    _, second, _ = run("switch", "off", "sending")
    assert first.splitlines() == [
        "sending is on for every worker of environment dev.",
        "It was never turned before: see that a gate asks for it by this very name.",
    ]
    assert second == "sending is off for every worker of environment dev.\n"


def test_a_scope_in_the_environment_does_not_narrow_a_switch(run, s, monkeypatch):
    monkeypatch.setenv("SEMEL_SCOPE", "tenant")
    run("switch", "on", "sending")
    assert s.switches.list()["sending"].on


def test_a_switch_needs_a_name(run, s):
    code, _, err = run("switch", "on", "")
    assert code == 2
    assert one_line(err, told="must not be empty")
    assert s.switches.list() == {}


# journal


@pytest.fixture
def chat(s):
    """Five entries of a conversation, a minute apart, and one of another."""
    for minute in range(5):
        actor = "assistant" if minute % 2 else "customer"
        s.journal.append("chat:42", {"text": f"message {minute}"}, at=NOW + 60 * minute, actor=actor)
    s.journal.append("chat:43", {"text": "elsewhere"}, at=NOW + 30, actor="assistant", key="k-1")


def texts(page):
    return [entry["body"]["text"] for entry in page["entries"]]


@pytest.mark.seed("H8")
def test_an_owners_entries_come_in_the_order_of_time(read, chat):
    page = read("journal", "list", "chat:42")
    assert texts(page) == [f"message {minute}" for minute in range(5)]
    assert page["after"] is None
    first = page["entries"][0]
    assert (first["owner"], first["at"], first["actor"], first["key"]) == (
        "chat:42",
        "2026-07-01T16:00:00.000+00:00",
        "customer",
        None,
    )
    assert texts(read("journal", "list", "chat:42", "--reverse")) == [f"message {n}" for n in (4, 3, 2, 1, 0)]


def test_both_ends_of_a_span_are_included_in_whatever_zone_they_are_written(read, chat):
    words = ("--since", "2026-07-01T18:01+02:00", "--until", "2026-07-01T16:03:00Z")
    assert texts(read("journal", "list", "chat:42", *words)) == ["message 1", "message 2", "message 3"]
    assert texts(read("journal", "by", "assistant", *words)) == ["message 1", "message 3"]


@pytest.mark.seed("H8")
def test_what_an_actor_did_comes_from_all_owners(read, chat):
    page = read("journal", "by", "assistant")
    assert texts(page) == ["elsewhere", "message 1", "message 3"]
    assert (page["entries"][0]["owner"], page["entries"][0]["key"]) == ("chat:43", "k-1")
    assert texts(read("journal", "by", "assistant", "--reverse", "--limit", "1")) == ["message 3"]


@pytest.mark.parametrize(
    ("asked", "count"), [(("list", "chat:42"), 5), (("by", "assistant"), 3), (("by", "customer"), 3)]
)
@pytest.mark.parametrize("order", [(), ("--reverse",)], ids=["forward", "reverse"])
def test_pages_together_have_every_entry_once(read, chat, asked, count, order):
    found, after = [], ""
    while after is not None:
        page = read("journal", *asked, *order, "--limit", "2", *(["--after", after] if after else []))
        found += texts(page)
        after = page["after"]
    assert found == texts(read("journal", *asked, *order))
    assert len(set(found)) == count


def test_a_page_that_is_not_the_last_says_how_to_go_on(run, chat):
    *_, last = run("journal", "list", "chat:42", "--limit", "2")[1].splitlines()
    assert last.startswith("There may be more: --after ")
    _, out, _ = run("journal", "list", "chat:42", "--limit", "2", "--after", last.split()[-1].strip("'"))
    assert "message 2" in out
    assert "message 1" not in out


def test_a_long_entry_is_shown_whole(run, s):
    s.journal.append("chat:42", {"text": "ö" * 300}, actor="assistant")
    for words in (("list", "chat:42"), ("by", "assistant")):
        _, out, _ = run("journal", *words)
        assert out.count("ö") == 300


def test_the_table_says_when_who_and_what(run, chat):
    _, listed, _ = run("journal", "list", "chat:42", "--limit", "1")
    assert listed.splitlines()[1].split(maxsplit=2)[:2] == ["2026-07-01T16:00:00.000+00:00", "customer"]
    assert '{"text": "message 0"}' in listed
    _, by, _ = run("journal", "by", "assistant", "--limit", "1")
    assert by.splitlines()[1].split(maxsplit=2)[:2] == ["2026-07-01T16:00:30.000+00:00", "chat:43"]


def test_nobody_elses_entries_are_listed(run, chat):
    code, out, _ = run("journal", "list", "chat:42", "--scope", "tenant")
    assert (code, out) == (0, "No entries in environment dev, scope tenant.\n")
    assert run("journal", "by", "assistant", "--scope", "tenant")[:2] == (code, out)
    assert run("journal", "list", "chat:4")[:2] == (0, "No entries in environment dev, no scope.\n")


@pytest.mark.parametrize("asked", ["list", "by"])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--since", "yesterday"), '--since: cannot parse "yesterday" as a time: write 30min, 1.5h or 1w'),
        (("--limit", "0"), "--limit"),
        (("--after", "nowhere"), "nowhere"),
    ],
)
def test_a_question_that_cannot_be_answered_is_one_line(run, chat, asked, words, told):
    code, out, err = run("journal", asked, "assistant", *words)
    assert (code, out) == (2, "")
    assert one_line(err, told=told)


# document


def test_a_document_is_shown_with_its_version_and_ends(run, read, s):
    s.documents.put("c:1", {"team": "billing", "tags": ["a", "ü"]}, ttl=3600)
    s.documents.change("c:1", {"pending": {"order": 7}}, ends={"pending": 60}, ttl=3600)
    assert read("document", "show", "c:1") == {
        "key": "c:1",
        "version": 2,
        "expires_at": "2026-07-01T17:00:00.000+00:00",
        "ends": {"pending": "2026-07-01T16:01:00.000+00:00"},
        "value": {"team": "billing", "tags": ["a", "ü"], "pending": {"order": 7}},
    }
    code, out, _ = run("document", "show", "c:1")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["version"].split() == ["version", "2"]
    assert '["a", "ü"]' in lines["tags"]
    assert lines["pending"].split()[1] == "2026-07-01T16:01:00.000+00:00"


def test_a_document_without_fields_is_shown(run, read, s):
    s.documents.put("c:1", {})
    assert read("document", "show", "c:1")["value"] == {}
    assert run("document", "show", "c:1")[0] == 0


def test_a_document_that_ends_beyond_the_calendar_is_shown(run, read, s):
    s.documents.put("c:1", {"team": "billing"}, ttl=1e12)
    assert read("document", "show", "c:1")["expires_at"] == f"{NOW + 1e12:.0f} s"
    assert run("document", "show", "c:1")[0] == 0


@pytest.mark.parametrize("words", [("show",), ("delete", "--why", "x", "--yes")])
def test_an_absent_document_is_one_line(run, s, words):
    code, out, err = run("document", *words, "c:9")
    assert (code, out) == (1, "")
    assert err == "semel: there is no document 'c:9' in this environment and scope\n"


def test_delete_wants_a_yes(run, s):
    s.documents.put("c:1", {"team": "billing"})
    code, _, err = run("document", "delete", "c:1", "--why", "x")
    assert code == 2
    assert one_line(err, told="say --yes")
    assert s.documents.get("c:1") is not None


def test_delete(run, s):
    s.documents.put("c:1", {"team": "billing"})
    s.documents.put("c:2", {"team": "billing"})
    deleted = run("document", "delete", "c:1", "--why", "ticket 12", "--by", "ann", "--yes")
    assert deleted[:2] == (0, "c:1 is deleted.\n")
    [entry] = s.ops.journal().entries
    assert (entry.actor, entry.body["action"], entry.body["about"]) == ("ann", "delete document", "c:1")
    assert entry.body["why"] == "ticket 12"
    assert s.documents.get("c:1") is None
    assert s.documents.get("c:2") is not None


@pytest.mark.seed("R2")
def test_prune_takes_what_has_ended_from_the_disk_and_leaves_the_rest(run, s, clock, tmp_path):
    s.documents.change("c:1", {"team": "billing", "order": "order-4711"}, ends={"order": 60})
    s.documents.change("c:2", {"order": "order-4712"}, ends={"order": 3600})
    assert run("document", "prune")[:2] == (0, "Pruned 0 documents.\n")
    clock.advance(61)
    assert run("document", "prune")[:2] == (0, "Pruned 1 document.\n")
    assert run("document", "prune")[:2] == (0, "Pruned 0 documents.\n")
    assert s.documents.get("c:1").value == {"team": "billing"}
    assert s.documents.get("c:2").value == {"order": "order-4712"}


# counter


@pytest.mark.seed("H4")
def test_a_counter_is_shown_as_its_program_counts(run, read, s, clock):
    """At eleven in the evening UTC it is the next day in Stockholm."""
    clock.advance(7 * 3600)
    s.counters.charge("replies:42", 2, cap=3, token="m-1", per=Day("Europe/Stockholm"))
    words = ("counter", "show", "replies:42", "--cap", "3")
    assert read(*words, "--zone", "Europe/Stockholm") == {
        "counter": "replies:42",
        "period": "2026-07-02",
        "used": 2,
        "cap": 3,
        "remaining": 1,
        "resets_at": "2026-07-02T22:00:00.000+00:00",
    }
    assert read(*words)["used"] == 0
    assert run(*words, "--zone", "Europe/Stockholm")[1] == (
        "replies:42: 2 of 3 used in 2026-07-02 (Europe/Stockholm), 1 left; "
        "counts anew from 2026-07-02T22:00:00.000+00:00.\n"
    )


@pytest.mark.parametrize(
    ("per", "period"),
    [("hour", "2026-07-01T16+00:00"), ("day", "2026-07-01"), ("week", "2026-W27"), ("month", "2026-07")],
)
def test_a_counter_may_count_in_any_period(run, read, s, per, period):
    tally = read("counter", "show", "replies:42", "--per", per)
    assert (tally["period"], tally["used"], tally["cap"], tally["remaining"]) == (period, 0, None, None)
    assert run("counter", "show", "replies:42", "--per", per)[1].startswith(f"replies:42: 0 used in {period}")


@pytest.mark.seed("H5")
def test_what_a_gate_has_counted_is_shown(read, s):
    s.gate(Cap("replies:{chat}", 3)).decide("reply:1", chat=42)
    assert read("counter", "show", "replies:42", "--cap", "3")["remaining"] == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--zone", "Europe/Gotham"), "no time zone 'Europe/Gotham'"),
        (("--per", "year"), "--per"),
        (("--cap", "0"), "--cap"),
        (("--cap", "many"), "--cap"),
    ],
)
def test_a_counter_asked_for_wrongly_is_one_line(run, s, words, told):
    code, out, err = run("counter", "show", "replies:42", *words)
    assert (code, out) == (2, "")
    assert one_line(err, told=told)


# gate


def test_a_refusal_is_shown_with_each_rule_and_what_it_saw(run, read, s):
    gate = s.gate(QuietHours("17:00", "07:00", "Europe/Stockholm"), Cap("replies:{chat}", 3))
    gate.decide("reply:42:7", chat=42)
    shown = read("gate", "show", "reply:42:7")
    saw = "quiet from 17:00 to 07:00 in Europe/Stockholm"
    end = "2026-07-02T05:00:00.000+00:00"
    assert shown == {
        "action": "reply:42:7",
        "allowed": False,
        "at": "2026-07-01T16:00:00.000+00:00",
        "reason": "quiet_hours",
        "not_before": end,
        "would_allow": False,
        "rules": [{"rule": "quiet_hours", "passed": False, "saw": saw, "not_before": end}],
    }
    code, out, _ = run("gate", "show", "reply:42:7")
    assert code == 0
    assert "refused: quiet_hours" in out
    assert end in out
    assert saw in out


def test_what_was_allowed_is_shown_with_what_it_used_up_and_without_its_token(run, read, s):
    decision = s.gate(Cap("replies:{chat}", 3), Cooldown("chat:{chat}", 30)).decide("reply:42:7", chat=42)
    shown = read("gate", "show", "reply:42:7")
    assert shown["allowed"]
    assert shown["taken"] == [
        {"counter": "replies:42", "entry": "2026-07-01", "by": 1, "table": "counters", "kind": "cap"},
        {"counter": "chat:42", "entry": "cooldown", "by": 0, "table": "counters", "kind": "cooldown"},
    ]
    assert [(rule["rule"], rule["passed"]) for rule in shown["rules"]] == [
        ("cap:replies:42", True),
        ("cooldown:chat:42", True),
    ]
    code, out, _ = run("gate", "show", "reply:42:7")
    assert code == 0
    assert "1 of replies:42 in 2026-07-01" in out
    assert "cooldown chat:42" in out
    assert decision.token not in out + json.dumps(shown)


def test_a_shadow_says_that_it_would_have_allowed(run, read, s):
    s.gate(Shadow()).decide("reply:1")
    assert read("gate", "show", "reply:1")["would_allow"]
    assert "all other rules would allow it" in run("gate", "show", "reply:1")[1]


def test_a_key_as_the_ledger_lists_it_leads_to_the_same_decision(read, s):
    s.gate(Cap("replies", 3)).decide("reply:1")
    [record] = read("ls")["records"]
    assert read("gate", "show", record["key"]) == read("gate", "show", "reply:1")


def test_looking_for_a_decision_makes_none(run, s):
    code, out, err = run("gate", "show", "reply:1")
    assert (code, out) == (1, "")
    assert err == "semel: there is no decision about 'reply:1' in this environment and scope\n"
    assert s.ledger.list().records == ()


def test_what_was_given_back_is_decided_no_more(run, s):
    gate = s.gate(Cap("replies", 3))
    decision = gate.decide("reply:1")
    assert isinstance(decision, Allowed)
    gate.refund(decision)
    assert run("gate", "show", "reply:1")[0] == 1


def test_a_decision_about_a_forgotten_person_permits_nothing(run, read, s):
    s.gate(Cap("replies", 3)).decide("reply:1", subject=PERSON)
    s.forget_subject(PERSON)
    shown = read("gate", "show", "reply:1")
    assert (shown["allowed"], shown["reason"], shown["rules"]) == (False, "forgotten", [])
    assert run("gate", "show", "reply:1")[0] == 0


# act erase

ERASING = ("act", "erase", "--why", "request no. 17", "--by", "eve")
ALL = "3 rows of ledger, 1 row of documents, 2 rows of journal"


def claim(s, key, person=PERSON):
    claimed = s.ledger.claim(key, subject=person)
    assert isinstance(claimed, semel.Claimed)
    return claimed


def fill(s, person=PERSON, name="ada"):
    """Three records, a document and two entries about a person."""
    for number in range(3):
        s.ledger.complete(claim(s, f"{name}:{number}", person), {"to": person})
    s.documents.put(f"{name}:state", {"mail": person}, subject=person)
    for number in range(2):
        s.journal.append("audit", {"mail": person, "number": number}, subject=person)


def test_everything_about_a_person_goes_and_what_was_done_is_still_known(run, s, tmp_path):
    fill(s)
    code, out, err = run(*ERASING, PERSON, "--yes")
    assert (code, out, err) == (0, f"Erased: {ALL}.\n", "")
    assert [s.ledger.get(f"ada:{number}").tombstone for number in range(3)] == [True] * 3
    assert isinstance(s.ledger.claim("ada:0"), semel.Replay)
    assert s.documents.get("ada:state") is None
    assert s.journal.list("audit").entries == ()


def test_what_was_erased_is_told_as_json(read, s):
    fill(s)
    none = {"running": [], "more": False, "skipped": [], "overflow": [], "queues": [], "preview": False}
    done, again = (read(*ERASING, PERSON, "--yes") for _ in range(2))
    assert done.pop("subjects") == again.pop("subjects")
    assert done == {"tables": {"ledger": 3, "documents": 1, "journal": 2}} | none
    assert again == {"tables": {}} | none


def test_where_messages_are_on_sqs_it_says_what_is_left_to_do(run, s, monkeypatch):
    """What waits there is only marked, also where nothing else is kept about the person."""
    monkeypatch.setenv("SEMEL_INBOX__SUPPORT__QUEUE", "https://sqs.eu-north-1.amazonaws.com/0/support.fifo")
    code, out, err = run(*ERASING, PERSON, "--preview")
    assert (code, out.startswith("Nothing is kept about this person here.")) == (0, True)
    assert "Its dead letters are left to you" in err
    assert "semel inbox redrive support ID" in err
    assert run(*ERASING, PERSON)[0] == 2, "it has to be said with --yes"
    assert s.ledger.list().records == ()
    assert run(*ERASING, PERSON, "--yes")[0] == 0
    assert [record.key for record in s.ledger.list().records] == [erased_key(s.ledger.steps.subject(PERSON))]
    assert "SQS" not in run(*ERASING, PERSON, "--app", "quill", "--preview")[2]


def test_what_would_go_is_shown_first_and_the_journal_tells_who_erased_it(run, s):
    fill(s)
    assert run(*ERASING, PERSON, "--preview")[:2] == (0, f"Would go: {ALL}.\n")
    assert (s.documents.get("ada:state") is not None, s.ops.journal().entries) == (True, ())
    assert run(*ERASING, PERSON, "--yes")[:2] == (0, f"Erased: {ALL}.\n")
    assert {(entry.actor, entry.body["action"]) for entry in s.ops.journal().entries} == {("eve", "erase")}
    assert PERSON not in str(s.ops.journal().entries)


def test_others_and_other_scopes_are_not_erased(run, s):
    fill(s, "eve@example.org", "eve")
    fill(s.scoped("tenant"))
    assert run(*ERASING, PERSON, "--yes")[1].startswith("Nothing is kept about this person here.")
    assert s.documents.get("eve:state") is not None
    assert s.scoped("tenant").documents.get("ada:state") is not None
    assert "3 rows of ledger" in run(*ERASING, PERSON, "--yes", "--scope", "tenant")[1]
    assert s.scoped("tenant").documents.get("ada:state") is None


def test_after_a_crash_the_same_command_goes_on(read, s):
    fill(s)

    def crash(done):
        if done.records == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        s.forget_subject(PERSON, on_progress=crash)
    done = read(*ERASING, PERSON, "--yes")
    assert done["tables"] == {"ledger": 1, "documents": 1, "journal": 2}


def test_what_is_being_worked_on_is_left_until_it_is_done(run, s):
    running = claim(s, "charge:7")
    fill(s)
    code, out, err = run(*ERASING, PERSON, "--yes")
    assert (code, out) == (1, f"Erased: {ALL}.\n")
    assert one_line(err, told="1 key is being worked on and left alone: charge:7; run the same command again")
    code, out, err = run(*ERASING, PERSON, "--yes", "--json")
    assert (code, json.loads(out)["running"]) == (1, ["charge:7"])
    assert one_line(err, told="charge:7")
    s.ledger.complete(running, {"to": PERSON})
    assert run(*ERASING, PERSON, "--yes")[:2] == (
        0,
        "Erased: 1 row of ledger.\n",
    )


@pytest.mark.parametrize("text", [PERSON, f"{PERSON}\n", f"{PERSON}\r\n"])
def test_a_person_may_come_from_stdin_where_no_list_of_processes_shows_it(run, s, monkeypatch, text):
    fill(s)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert run(*ERASING, "-", "--yes")[:2] == (
        0,
        f"Erased: {ALL}.\n",
    )


@pytest.mark.parametrize(
    ("text", "told"), [("", "no person"), (" \n", "no person"), (f"{PERSON}\neve\n", "more than one person")]
)
def test_stdin_names_exactly_one_person(run, s, monkeypatch, text, told):
    fill(s)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    code, out, err = run(*ERASING, "-", "--yes")
    assert (code, out) == (2, "")
    assert one_line(err, told=told)
    assert s.documents.get("ada:state") is not None


def test_stdin_that_is_no_text_is_one_line(run, s, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xffda"), "utf-8"))
    code, _, err = run(*ERASING, "-", "--yes")
    assert code == 2
    assert one_line(err, told="stdin is no text in utf-8")


def test_erasing_a_person_wants_a_yes(run, s):
    fill(s)
    code, out, err = run(*ERASING, PERSON)
    assert (code, out) == (2, "")
    assert one_line(err, told="say --yes")
    assert s.documents.get("ada:state") is not None


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_secret_nobody_is_found_and_it_says_so(run, s, monkeypatch, value):
    fill(s)
    monkeypatch.delenv("SEMEL_SECRET")
    if value is not None:
        monkeypatch.setenv("SEMEL_SECRET", value)
    code, out, err = run(*ERASING, PERSON, "--yes")
    assert (code, out) == (2, "")
    assert one_line(err, told="SEMEL_SECRET is not set")
    assert s.documents.get("ada:state") is not None


def test_the_secret_may_be_in_another_variable(run, s, monkeypatch):
    fill(s)
    monkeypatch.setenv("SEMEL_SECRET", "another one, which finds nothing.")
    _, out, _ = run(*ERASING, PERSON, "--yes")
    assert out.startswith("Nothing is kept about this person here. If that is a surprise: are the secret,")
    monkeypatch.setenv("PSEUDONYMS", SECRET)
    assert "3 rows of ledger" in run(*ERASING, PERSON, "--yes", "--secret-from", "PSEUDONYMS")[1]


def test_no_message_names_the_person(run, s, monkeypatch):
    claim(s, "charge:7")
    fill(s)
    said = [
        run(*ERASING, PERSON),
        run(*ERASING, PERSON, "--yes"),
        run(*ERASING, PERSON, "--yes", "--json"),
        run(*ERASING, PERSON, "--yes", "--scope", "tenant"),
        run(*ERASING, PERSON, "--yes", "--env", "prod"),
        run(*ERASING, PERSON, "--yes", "--secret-from", "NOTHING_HERE"),
    ]
    assert [code for code, _, _ in said] == [2, 1, 1, 0, 1, 2]
    assert not [text for _, *texts in said for text in texts if "ada@" in text]


@pytest.fixture
def stashed(connect, url, tmp_path):
    """A record whose result is in an overflow that the command line knows nothing of; the folder of that."""
    folder = tmp_path / "overflow"
    overflow = semel.FileOverflow(folder)
    with connect(url, secret=SECRET.encode(), overflow=overflow, max_result_bytes=10) as s:
        s.ledger.complete(claim(s, "letter:1"), "Dear Ada, " * 50)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        (*ERASING, PERSON, "--yes"),
        ("act", "drop", "letter:1", "--why", "x"),
        ("act", "forget", "letter:1", "--why", "x"),
    ],
)
def test_what_is_left_in_an_overflow_is_told_by_its_name(run, stashed, words):
    [file] = stashed.iterdir()
    code, _, err = run(*words)
    assert code == 1
    assert one_line(err, told=f"delete it there, by name: {file.name}")


def test_on_a_terminal_it_is_shown_how_far_it_has_come(url):
    with semel.connect(url, secret=SECRET.encode()) as s:
        fill(s)
    surroundings = {"SEMEL_URL": url, "SEMEL_SECRET": SECRET, "SEMEL_ENV": "dev", "SEMEL_SCOPE": ""}
    near, far = pty.openpty()
    with (
        os.fdopen(near, "rb", buffering=0) as terminal,
        subprocess.Popen(
            [sys.executable, "-m", "semel.cli", *ERASING, "-", "--yes", "--json"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=far,
            env=os.environ | surroundings | {"TERM": "xterm", "COLUMNS": "120"},
        ) as process,
    ):
        os.close(far)
        process.stdin.write(PERSON.encode())
        process.stdin.close()
        shown = drained(terminal).decode()
        done = json.loads(drained(process.stdout))
    assert (process.returncode, done["tables"]["ledger"]) == (0, 3)
    assert "Erasing: 3 records, 1 document and 2 journal entries" in shown


def drained(terminal):
    """What was written to a terminal whose other side is closed."""
    shown = b""
    while True:
        try:
            some = terminal.read(65536)
        except OSError:  # so Linux tells the end
            return shown
        if not some:
            return shown
        shown += some


# cost


@pytest.mark.seed("A9")
def test_naming_persons_costs_more_and_says_for_what(run, read):
    without, with_persons = read("cost"), read("cost", "--subjects")
    assert with_persons["dollars"] > without["dollars"]
    assert "its entry in the index of persons" in run("cost", "--subjects")[1].replace("\n", " ")


# All of them

LOOKING = [
    ("switch", "list"),
    ("switch", "on", "sending"),
    ("switch", "off", "sending"),
    ("journal", "list", "chat:42"),
    ("journal", "by", "assistant"),
    ("document", "show", "c:1"),
    ("document", "delete", "c:1", "--why", "x", "--yes"),
    ("document", "prune"),
    ("counter", "show", "replies:42"),
    ("gate", "show", "reply:1"),
    (*ERASING, PERSON, "--yes"),
]


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_looking_for_a_file_does_not_make_one(run, tmp_path, words):
    code, out, err = run(*words)
    assert (code, out, err) == (1, "", f"semel: there is no file {tmp_path / 'semel.db'}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_another_environment_is_refused(run, s, words):
    code, _, err = run(*words, "--env", "prod")
    assert code == 1
    assert one_line(err, told="this store belongs to environment 'dev'")


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_call_that_is_wrong_in_itself_is_one_line_that_says_where_to_read_on(run, s, words):
    code, out, err = run(*words, "--nonsense")
    assert (code, out) == (2, "")
    assert one_line(err, told="--nonsense")
    assert err.rstrip().endswith("--help)")


@pytest.mark.parametrize("group", [(), ("switch",), ("journal",), ("document",), ("counter",), ("gate",)])
def test_a_group_by_itself_says_what_it_offers(run, group):
    code, out, err = run(*group)
    assert code == 2
    assert "Commands" in out + err
    assert "semel: " not in out + err


def commands(command, path):
    """Every command under one, as it is typed."""
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, f"{path} {name}")
    if not hasattr(command, "commands"):
        yield path, command


COMMANDS = dict(commands(typer.main.get_command(app), "semel"))


@pytest.mark.parametrize("path", COMMANDS)
def test_the_reference_names_every_option_of_a_command(path):
    page = (ROOT / "docs/reference/cli.md").read_text("utf-8")
    heading = f"{path}\n"
    sections = [part for part in page.split("\n#") if part.lstrip("# ").startswith(heading)]
    assert len(sections) == 1, f"no section of its own: {path}"
    shared = page.split("\n## Options for the store", 1)[1].split("\n## ", 1)[0]
    options = {name for param in COMMANDS[path].params for name in param.opts if name.startswith("--")}
    named = {word for code in re.findall(r"`([^`\n]+)`", sections[0] + shared) for word in code.split()}
    assert options - {"--help"} - named == set()


@pytest.mark.parametrize("path", COMMANDS)
def test_help_says_what_every_option_is_for(run, path):
    assert run(*path.split()[1:], "--help")[0] == 0
    assert [param.name for param in COMMANDS[path].params if not param.help and param.name != "help"] == []


@pytest.mark.parametrize("path", COMMANDS)
def test_help_shows_the_words_that_it_has_in_brackets(run, path):
    """Rich takes such words for a style, and leaves them out."""
    _, shown, _ = run(*path.split()[1:], "--help")
    texts = [COMMANDS[path].help or "", *[param.help for param in COMMANDS[path].params if param.help]]
    written = {word for text in texts for word in re.findall(r"\[[a-z][\w.]*\]", text)}
    assert {word for word in written if word not in shown} == set()
