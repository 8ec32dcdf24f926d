"""`semel inbox`, as an operator types it."""

import json
from functools import partial

import pytest

import semel
from semel.doors.inbox import Message, StoreInbox, open_inbox
from tests.doors.inbox_kit import Diary, conversation, failing, running
from tests.doors.sqs_kit import make_queue
from tests.servers.running import until

WHY = ("--why", "the shop is back")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'semel.db'}"


@pytest.fixture
def s(url):
    with semel.connect(url, scope="shop") as s:
        yield s


@pytest.fixture
def inbox(s):
    """Three messages that were put aside, and three that wait: one group of them rests."""
    inbox = StoreInbox(s, "support")
    inbox.put(*conversation("a", 0, 1), Message("x", 0))
    work_off(inbox, failing("a0", "a1", "x", error=ValueError("no such order")), on_error="keep")
    inbox.put(*conversation("b", 0, 1), Message("y", 0))
    worker = inbox.worker(failing("b0"), backoff=lambda _: 3600)
    worker.lanes.add(conversation("b", 0)[0].lane)
    worker.visit(worker.lanes.begin() or "")
    return inbox


def work_off(inbox, work, **options):
    """Handle what waits."""
    with running(inbox.worker(work, poll=0.01, **options)):
        assert until(lambda: inbox.waiting() == 0)


@pytest.fixture
def run(url, monkeypatch, typed):
    """Type a command of `semel inbox`."""
    monkeypatch.setenv("SEMEL_URL", url)
    monkeypatch.setenv("SEMEL_SCOPE", "shop")
    monkeypatch.setenv("COLUMNS", "140")
    return partial(typed, "inbox")


def test_list_tells_how_much_waits(run, inbox):
    code, out, _ = run("list", "support")
    told = dict(line.rstrip().split(None, 1) for line in out.splitlines())
    assert code == 0
    assert told["waiting"] == "3"
    assert told["oldest"].endswith("ago")
    assert told["lanes"].startswith("2 ")
    assert told["resting"].startswith("1 ")
    numbers = json.loads(run("list", "support", "--json")[1])
    assert numbers.pop("oldest").startswith("20")
    assert numbers == {
        "inbox": "support",
        "waiting": 3,
        "lanes": 2,
        "resting": 1,
        "entered": 0,
        "more": False,
    }
    code, _, err = run("list", "another")
    assert (code, "there is no inbox 'another' with messages" in err, "support" in err) == (1, True, True)


def test_dead_tells_what_was_put_aside_and_why_and_not_what_it_says(run, inbox):
    code, out, _ = run("dead", "support")
    assert code == 0
    assert out.splitlines()[0].split() == ["id", "key", "attempts", "since", "error"]
    assert "ValueError: no such order" in out
    page = json.loads(run("dead", "support", "--json")[1])
    assert [dead["key"] for dead in page["dead"]] == ["a0", "a1", "x"]
    [first, *_] = page["dead"]
    assert first["id"] in out
    assert (first["attempts"], first["group"], "body" in first) == (1, "a", False)
    assert run("dead", "support", "--limit", "2")[1].splitlines()[-1] == "There may be more: --limit 20"
    code, _, err = run("dead", "another")
    assert (code, "there is no inbox 'another' with messages" in err) == (1, True)


def test_redrive_puts_one_back_or_all(run, inbox):
    [first, *_] = inbox.dead()
    assert run("redrive", "support", first.id, *WHY) == (0, "Put back 1 message.\n", "")
    assert run("redrive", "support", "--all", "--yes", *WHY) == (0, "Put back 2 messages.\n", "")
    assert (inbox.dead(), inbox.waiting()) == ([], 6)
    diary = Diary()
    with running(inbox.worker(diary, poll=0.01)):
        diary.wait_for(4)
    assert diary.of("a") == ["a0", "a1"]
    assert sorted(diary.of(None)) == ["x", "y"]


def test_redrive_puts_back_what_fits_after_a_preview_and_the_journal_tells_it(run, s, inbox):
    a1 = inbox.dead()[1]
    wanted = (
        "redrive",
        "support",
        "--group",
        "a",
        "--prefix",
        "a1",
        "--error",
        "ValueError",
        "--since",
        "1h",
    )
    code, out, _ = run(*wanted, "--preview", *WHY)
    assert (code, out.splitlines()[-1]) == (0, "1 message would be put back.")
    assert a1.id in out
    assert run(*wanted, *WHY)[0] == 2  # nobody is there to be asked
    assert s.ops.journal().entries == ()
    told = json.loads(run(*wanted, "--yes", "--json", "--by", "ann", *WHY)[1])
    assert (told["preview"], [one["id"] for one in told["redriven"]], told["refused"]) == (False, [a1.id], {})
    assert [dead.key for dead in inbox.dead()] == ["a0", "x"]
    assert "0 messages" in run("redrive", "support", "--error", "OSError", "--yes", *WHY)[1]
    [_, entry] = s.ops.journal().entries
    assert (entry.actor, entry.body["action"], entry.body["why"]) == ("ann", "redrive", "the shop is back")
    assert entry.body["about"].startswith("inbox support: error ValueError, prefix a1, group a, since 20")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("redrive", "support", *WHY), "or say --all"),
        (("redrive", "support", "some-id", "--all", *WHY), "or say --all"),
        (("redrive", "support", "some-id", "--error", "OSError", *WHY), "or say --all"),
        (("redrive", "support", "--all", "--why", " "), "--why is empty"),
        (("redrive", "support", "--all", *WHY), "say --yes"),
        (("redrive", "support", "some-id", *WHY), "no dead letter 'some-id'"),
        (
            ("dead", "support", "--dead-letters", "https://sqs.eu-north-1.amazonaws.com/123456789012/q.fifo"),
            "--dead-letters goes with --queue",
        ),
        (
            ("list", "support", "--queue", "https://sqs.eu-north-1.amazonaws.com/123456789012/q"),
            "ends in .fifo",
        ),
        (("list", "a:b"), "named by one word"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_said_in_one_line(run, inbox, words, says):
    code, out, err = run(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_an_inbox_on_a_queue_is_looked_at_by_its_url(run, s, sqs, monkeypatch):
    monkeypatch.setattr("semel.doors.inbox.sqs.WAIT_SECONDS", 0)
    queue, dead = make_queue(sqs), make_queue(sqs)
    inbox = open_inbox(s, "support", queue=queue, dead_letters=dead)
    inbox.put(Message("x", 0))
    where: tuple[str, ...] = ("--queue", queue)
    told = json.loads(run("list", "support", *where, "--json")[1])
    assert (told["waiting"], told["oldest"], told["lanes"]) == (1, None, None)
    assert "waiting" in run("list", "support", *where)[1]
    with running(inbox.worker(failing("x", error=ValueError("no")), on_error="keep", poll=0)):
        assert until(lambda: inbox.waiting() == 0)
    where += ("--dead-letters", dead)
    [letter] = json.loads(run("dead", "support", *where, "--json")[1])["dead"]
    assert (letter["key"], letter["error"]) == ("x", "ValueError: no")
    assert run("redrive", "support", letter["id"], *where, *WHY)[1] == "Put back 1 message.\n"
    assert inbox.waiting() == 1
    inbox.close()


def test_help_teaches(run):
    assert "semel inbox redrive NAME ID" in " ".join(run("dead", "--help")[1].split())
    for command, example in (
        ("list", "semel inbox list support"),
        ("redrive", "semel inbox redrive support --error TimeoutError"),
    ):
        assert example in run(command, "--help")[1]
