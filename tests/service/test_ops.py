"""Operators over HTTP: what they may see, what they may do, and the trace that it leaves."""

import html
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from semel.connect import Semel
from semel.core.clock import Clock
from semel.core.drive import drive
from semel.core.events import digest
from semel.doors.inbox import Message
from semel.model import Claimed
from semel.ops.model import Action
from semel.ops.questions import QuestionSteps
from semel.ops.rates import HOUR, MINUTE, Rates
from semel.provision import ProvisionTarget, provision
from semel.service.runtime import Runtime
from semel.stores.sqlite import SQLiteStore
from semel.tables import OWN, RECENT
from tests.service.kit import (
    ALL_TOKENS,
    OPS_TOKENS,
    Reader,
    bearer,
    client_of,
    opened,
    problem_of,
    register,
)

KEY = "charge:order-7"
SETTINGS = f'[semel]\nurl = "{{url}}"\nsecret = "{"s" * 32}"\n[apps.echo]\n' + ALL_TOKENS + OPS_TOKENS


@pytest.fixture(params=["memory", "sqlite"])
def runtime(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    register(monkeypatch)
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'semel.db'}"
    with opened(SETTINGS.format(url=url), tmp_path) as runtime:
        yield runtime


@pytest.fixture
def client(runtime: Runtime) -> Iterator[Reader]:
    with client_of(runtime) as client:
        yield client


@pytest.fixture
def s(runtime: Runtime) -> Semel:
    """The ledger of the tenant whose operators ask."""
    return runtime.s.scoped("north")


@pytest.fixture
def get(client: Reader) -> Any:
    def ask(path: str, who: str = "oncall", **query: Any) -> Any:
        return client.get(f"/v1/ops/{path}", params=query, headers=bearer(who))

    return ask


@pytest.fixture
def post(client: Reader) -> Any:
    def ask(path: str, body: dict[str, Any], who: str = "oncall", **query: Any) -> Any:
        return client.post(f"/v1/ops/{path}", json=body, params=query, headers=bearer(who))

    return ask


def claim(s: Semel, key: str = KEY, **options: Any) -> Claimed:
    claim = s.ledger.claim(key, lease=30, ttl=3600, **options)
    assert isinstance(claim, Claimed)
    return claim


def fail(s: Semel, key: str = KEY, error: Exception | None = None) -> None:
    s.ledger.fail(claim(s, key), error or ValueError("no account of ann@example.com"))


def status_of(s: Semel, key: str = KEY) -> str:
    record = s.ledger.get(key)
    return "absent" if record is None else record.status.value


def wish(**more: Any) -> dict[str, Any]:
    return {"name": "release", "key": KEY, "why": "ticket 12"} | more


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


# Who may

READS = ("records", f"story?key={KEY}", "journal", "rates", "inboxes", "inboxes/echo/dead")
WRITES = {
    "erasures": {"person": "ann@example.com", "why": "request no. 17"},
    "actions": wish(),
    "actions/bulk": {"search": {"prefix": "charge:"}, "name": "release", "why": "ticket 12"},
    "inboxes/echo/redrive": {"all": True, "why": "mended"},
}
OPERATIONS = [("GET", path, None) for path in READS] + [("POST", path, body) for path, body in WRITES.items()]


@pytest.mark.parametrize(("method", "path", "body"), OPERATIONS, ids=lambda one: str(one)[:20])
def test_nobody_is_answered_who_lacks_the_right(
    client: Reader, s: Semel, method: str, path: str, body: Any
) -> None:
    fail(s)

    def ask(headers: dict[str, str]) -> Any:
        return client.request(method, f"/v1/ops/{path}", json=body, headers=headers)

    for headers in ({}, {"Authorization": "Bearer of-a-token-that-nobody-has"}):
        answer = ask(headers)
        assert (answer.status_code, problem_of(answer)) == (401, "not-authenticated")
    right = "ops:read" if method == "GET" else "ops:write"
    lesser = ["north", "reader", "chief"] + ["watcher"] * (method == "POST")
    for who in lesser:
        answer = ask(bearer(who))
        assert (answer.status_code, problem_of(answer)) == (403, "not-permitted")
        assert answer.json()["scope"] == right
    assert s.ops.journal().entries == ()
    assert ask(bearer("oncall")).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["inboxes", "inboxes/echo/dead", "records?app=echo", f"story?key={KEY}&app=echo", "journal?app=echo"],
)
def test_what_belongs_to_an_application_takes_a_right_of_its_own(client: Reader, path: str) -> None:
    answer = client.get(f"/v1/ops/{path}", headers=bearer("deputy"))
    assert (answer.status_code, answer.json()["scope"]) == (403, "apps:read")


def test_an_operator_sees_its_tenants_ledger_and_those_of_applications(
    get: Any, s: Semel, runtime: Runtime
) -> None:
    fail(s)
    fail(runtime.s.scoped("south"), "of-south")
    fail(runtime.apps[0].s, "of-echo")

    def keys(**query: Any) -> list[str]:
        return [one["key"] for one in get("records", **query).json()["records"]]

    assert (keys(), keys(app="echo")) == ([KEY], ["of-echo"])
    assert problem_of(get("records", app="south")) == "no-such-app"
    assert problem_of(get("story", key=KEY, app="echo")) == "no-such-record"


# Questions


def test_records_are_searched_by_everything_a_search_has(get: Any, s: Semel) -> None:
    fail(s, "charge:1", TimeoutError("slow"))
    fail(s, "charge:2")
    s.ledger.complete(claim(s, "mail:1", subject="ann@example.com"), "personal result")
    s.ledger.doubt(claim(s, "mail:2"))
    record = s.ledger.get("mail:1")
    assert record is not None
    for query, wanted in (
        ({"status": "FAILED"}, {"charge:1", "charge:2"}),
        ({"prefix": "mail:"}, {"mail:1", "mail:2"}),
        ({"in_doubt": "true"}, {"mail:2"}),
        ({"error": "TimeoutError"}, {"charge:1"}),
        ({"worker": record.worker}, {"charge:1", "charge:2", "mail:1", "mail:2"}),
        ({"worker": "another"}, set()),
        ({"subject": "ann@example.com"}, {"mail:1"}),
        ({"digest": digest(record.id)[:10]}, {"mail:1"}),
        ({"since": iso(record.created_at - 60), "status": "COMPLETED"}, {"mail:1"}),
        ({"since": iso(record.created_at + 3600)}, set()),
        ({"until": iso(record.created_at - 3600)}, set()),
    ):
        answer = get("records", **query)
        assert {one["key"] for one in answer.json()["records"]} == wanted, query
        assert "personal result" not in answer.text


def test_the_message_of_an_error_is_told_where_it_is_asked_for(get: Any, s: Semel) -> None:
    fail(s, error=ValueError("no such account"))
    [found] = get("records").json()["records"]
    assert found["error"] == {"type": "ValueError"}
    [found] = get("records", errors="full").json()["records"]
    assert found["error"] == {"type": "ValueError", "message": "no such account"}


def test_a_search_comes_in_pages_that_have_each_record_once(get: Any, s: Semel) -> None:
    for number in range(5):
        fail(s, f"charge:{number}")
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = get("records", **query).json()
        assert (page["how"], page["unreadable"], len(page["records"]) <= 2) == ("key", [], True)
        seen += [one["key"] for one in page["records"]]
        if page["after"] is None:
            break
        query["after"] = page["after"]
    assert sorted(seen) == [f"charge:{number}" for number in range(5)]


def test_records_come_in_the_order_of_time_where_the_store_has_it(
    get: Any, s: Semel, runtime: Runtime
) -> None:
    for key in "abc":
        s.ledger.complete(claim(s, key), 1)
    s.ledger.drop_result("a")
    store = s.store
    if isinstance(store, SQLiteStore):
        refused = get("records", order="newest")
        assert (refused.status_code, problem_of(refused)) == (400, "invalid-request")
        assert "semel provision --with recent" in refused.json()["detail"]
        assert store.path not in refused.text
        url, env = f"sqlite:///{store.path}", runtime.settings.semel.env
        choose(ProvisionTarget(url=url, env=env, tables=OWN, clock=Clock(), chosen=(RECENT.name,)))
    for order, wanted in (("newest", ["a", "c", "b"]), ("oldest", ["b", "c", "a"])):
        page = get("records", order=order, limit=2).json()
        rest = get("records", order=order, limit=2, after=page["after"]).json()
        assert [one["key"] for one in page["records"] + rest["records"]] == wanted
        assert page["how"] == "recent"
    assert get("records", order="fastest").status_code == 400


def choose(target: ProvisionTarget) -> None:
    provision(target)


def test_a_story_is_told_as_data_and_as_text_and_its_version_is_acted_on(
    get: Any, post: Any, s: Semel
) -> None:
    fail(s)
    told = get("story", key=KEY).json()
    assert (told["key"], told["status"]) == (KEY, "FAILED")
    assert [line["kind"] for line in told["lines"]] == ["claimed", "failed"]
    assert told["text"].startswith(f"{KEY} is FAILED: ")
    assert told["next_call"] in told["text"]
    [found] = get("records").json()["records"]
    assert found["version"] == told["version"]
    assert post("actions", wish(seen=told["version"])).json()["after"] == "RELEASED"
    again = get("story", key=KEY).json()
    assert (again["lines"][-1]["who"], again["version"] != told["version"]) == ("oncall", True)
    absent = get("story", key="never")
    assert (absent.status_code, problem_of(absent)) == (404, "no-such-record")


def test_rates_are_those_of_all_processes(get: Any, s: Semel) -> None:
    now = Clock().now()
    start = int(now // HOUR) * HOUR
    steps = s.ops.steps._rates
    for process, counted in (("one", 2), ("two", 3)):
        rates = Rates(start, {"pay": {"completed": counted}}, {}, {"d1": counted}, {"cap": counted})
        drive(steps.keep(rates, MINUTE, process), s.store)
        drive(steps.keep(rates, HOUR, process), s.store)
    for width in ("minute", "hour"):
        told = get("rates", width=width, since=iso(start), until=iso(now)).json()
        [rates] = told["rates"]
        assert (rates["counts"], rates["duplicates"]) == ({"pay": {"completed": 5}}, {"d1": 5})
        assert rates["reasons"] == {"cap": 5}
        assert datetime.fromisoformat(rates["start"]).timestamp() == start
        assert told["edges"][0] == 0.005
    assert get("rates", until=iso(start - HOUR)).json()["rates"] == []


# Actions


@pytest.mark.parametrize(
    ("name", "status"),
    [("release", "RELEASED"), ("complete", "COMPLETED"), ("fail", "FAILED"), ("forget", "absent")],
)
def test_an_action_is_done_and_told_to_the_journal_under_the_tokens_name(
    get: Any, post: Any, s: Semel, name: str, status: str
) -> None:
    s.ledger.doubt(claim(s))
    before = post("actions", wish(name=name, preview=True)).json()
    assert (before["changed"], before["after"], status_of(s)) == (True, status, "UNKNOWN")
    assert get("journal").json()["entries"] == []
    done = post("actions", wish(name=name, result={"paid": 1})).json()
    assert done == {
        "key": KEY,
        "name": name,
        "before": "UNKNOWN",
        "after": status,
        "changed": True,
        "refused": "",
    }
    assert status_of(s) == status
    [entry] = get("journal").json()["entries"]
    assert (entry["by"], entry["action"], entry["about"], entry["why"]) == ("oncall", name, KEY, "ticket 12")
    assert entry["before"]["status"] == "UNKNOWN"


def test_a_record_that_was_forgotten_is_absent_when_the_action_is_sent_again(
    get: Any, post: Any, s: Semel
) -> None:
    fail(s)
    asked = wish(name="forget", seen=get("story", key=KEY).json()["version"])
    assert post("actions", asked).json()["changed"] is True
    again = post("actions", asked)
    assert (again.status_code, problem_of(again)) == (404, "no-such-record")
    assert len(get("journal").json()["entries"]) == 1


@pytest.mark.parametrize("name", ["release", "complete"])
def test_an_action_that_is_sent_again_is_done_once(get: Any, post: Any, s: Semel, name: str) -> None:
    fail(s)
    asked = wish(name=name, seen=get("story", key=KEY).json()["version"])
    answers = [post("actions", asked).json() for _ in range(2)]
    assert [one["changed"] for one in answers] == [True, False]
    assert len(get("journal").json()["entries"]) == 1


def test_who_wants_an_action_is_not_the_callers_to_say(post: Any, s: Semel) -> None:
    fail(s)
    answer = post("actions", wish(by="somebody else"))
    assert (answer.status_code, problem_of(answer)) == (400, "invalid-request")
    assert answer.json()["errors"][0]["at"] == "body.by"


@pytest.mark.parametrize("preview", [True, False])
def test_what_is_running_or_changed_or_absent_is_refused(
    get: Any, post: Any, s: Semel, preview: bool
) -> None:
    claim(s)
    running = post("actions", wish(preview=preview))
    assert (running.status_code, problem_of(running)) == (409, "action-refused")
    assert "at work" in running.json()["detail"]
    assert running.json()["before"] == "IN_PROGRESS"
    changed = post("actions", wish(seen="0123456789abcdef", force=True, preview=preview))
    assert (changed.status_code, problem_of(changed)) == (409, "action-refused")
    assert "has changed" in changed.json()["detail"]
    absent = post("actions", wish(key="never", preview=preview))
    assert (absent.status_code, problem_of(absent)) == (404, "no-such-record")
    assert get("journal").json()["entries"] == []
    assert post("actions", wish(force=True, preview=preview)).status_code == 200


def test_many_are_shown_first_and_then_done_each_by_itself(get: Any, post: Any, s: Semel) -> None:
    for number in range(3):
        fail(s, f"charge:{number}")
    claim(s, "charge:running")
    asked = {"search": {"prefix": "charge:"}, "name": "release", "why": "the provider is back"}
    shown = post("actions/bulk", asked).json()
    assert (shown["preview"], shown["changed"], len(shown["done"])) == (True, 3, 4)
    assert get("journal").json()["entries"] == []
    done = post("actions/bulk", asked | {"preview": False}).json()
    assert done["done"] == shown["done"]
    by_key = {one["key"]: one for one in done["done"]}
    assert "at work" in by_key.pop("charge:running")["refused"]
    assert {one["after"] for one in by_key.values()} == {"RELEASED"}
    entries = get("journal", limit=2).json()
    assert {one["by"] for one in entries["entries"]} == {"oncall"}
    rest = get("journal", after=entries["after"]).json()
    assert {one["about"] for one in entries["entries"] + rest["entries"]} == set(by_key)


def test_many_are_done_in_pages(post: Any, s: Semel) -> None:
    for number in range(5):
        fail(s, f"charge:{number}")
    asked = {"search": {"status": "FAILED"}, "name": "forget", "why": "test data", "limit": 2}
    for changed in (2, 2, 1, 0):
        page = post("actions/bulk", asked | {"preview": False}).json()
        assert page["changed"] == changed
    assert page["after"] is None


def test_what_changed_after_it_was_found_is_left_as_it_is(
    get: Any, post: Any, s: Semel, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(s)
    page_of = QuestionSteps._page

    def and_then_changed(self: Any, *args: Any) -> Any:
        page = yield from page_of(self, *args)
        yield from self.perform(Action(name="release", key=KEY, by="another", why="was first"))
        return page

    monkeypatch.setattr(QuestionSteps, "_page", and_then_changed)
    asked = {"search": {"prefix": "charge:"}, "name": "complete", "why": "ticket 12", "preview": False}
    [done] = post("actions/bulk", asked).json()["done"]
    assert (done["changed"], "has changed" in done["refused"]) == (False, True)
    assert [one["by"] for one in get("journal").json()["entries"]] == ["another"]


# Inboxes


@pytest.fixture
def dead(runtime: Runtime) -> list[str]:
    """The ids of two messages that nobody could handle, while a third waits."""
    app = runtime.apps[0]
    box = app.s.mailbox("echo")
    app.inbox.put(Message("echo:bad-1", {"name": "bad-1"}), Message("echo:bad-2", {"name": "bad-2"}))
    for letter in box.alone().letters:
        box.bury(letter, "ValueError: it is bad")
    app.inbox.put(Message("echo:good", {"name": "good"}))
    return [one.id for one in app.inbox.dead()]


def test_inboxes_are_told_in_numbers(get: Any, dead: list[str]) -> None:
    [told] = get("inboxes").json()["inboxes"]
    moments = told.pop("oldest"), told.pop("dead_oldest")
    assert all(abs(datetime.fromisoformat(one).timestamp() - Clock().now()) < 60 for one in moments)
    assert told == {
        "app": "echo",
        "waiting": 1,
        "more": False,
        "resting": 0,
        "dead": 2,
        "dead_more": False,
    }


def test_dead_letters_are_told_without_what_they_say_unless_that_is_asked_for(
    get: Any, dead: list[str]
) -> None:
    told = get("inboxes/echo/dead", "watcher").json()
    assert [one["id"] for one in told["letters"]] == dead
    assert {one["key"] for one in told["letters"]} == {"echo:bad-1", "echo:bad-2"}
    assert {one["error"] for one in told["letters"]} == {"ValueError: it is bad"}
    assert not any("body" in one for one in told["letters"])
    assert get("inboxes/echo/dead", "watcher", bodies="true").json()["scope"] == "ops:write"
    for why in ({}, {"why": " "}):
        assert problem_of(get("inboxes/echo/dead", bodies="true", **why)) == "invalid-request"
    assert get("journal", app="echo").json()["entries"] == []
    shown = get("inboxes/echo/dead", bodies="true", why="ticket 12").json()["letters"]
    [entry] = get("journal", app="echo").json()["entries"]
    assert (entry["by"], entry["action"], entry["why"]) == ("oncall", "reveal letters", "ticket 12")
    assert entry["before"] == {"ids": dead}
    assert {one["key"]: one["body"] for one in shown} == {
        f"echo:{name}": {"name": name} for name in ("bad-1", "bad-2")
    }
    assert len(get("inboxes/echo/dead", limit=1).json()["letters"]) == 1
    assert problem_of(get("inboxes/nobody/dead")) == "no-such-app"


def test_dead_letters_are_put_back_one_or_all_and_the_journal_of_the_application_tells_it(
    get: Any, post: Any, dead: list[str]
) -> None:
    gone = post("inboxes/echo/redrive", {"id": "0", "why": "mended"})
    assert (gone.status_code, problem_of(gone)) == (404, "no-such-letter")
    one = post("inboxes/echo/redrive", {"id": dead[0], "why": "mended"}).json()
    assert (one["redriven"], [letter["id"] for letter in one["letters"]], one["refused"]) == (
        1,
        [dead[0]],
        [],
    )
    assert post("inboxes/echo/redrive", {"all": True, "why": "mended"}).json()["redriven"] == 1
    [told] = get("inboxes").json()["inboxes"]
    assert (told["waiting"], told["dead"]) == (3, 0)
    entries = get("journal", app="echo").json()["entries"]
    assert [(one["by"], one["action"], one["about"]) for one in entries] == [
        ("oncall", "redrive", f"inbox echo: {which}") for which in ("all", dead[0], "0")
    ]
    assert problem_of(post("inboxes/nobody/redrive", {"all": True, "why": "mended"})) == "no-such-app"


def test_dead_letters_are_put_back_by_filter_after_a_preview_that_says_which(
    get: Any, post: Any, dead: list[str]
) -> None:
    first, second = (letter["key"] for letter in get("inboxes/echo/dead").json()["letters"])
    assert post("inboxes/echo/redrive", {"error": "OSError", "why": "mended"}).json()["redriven"] == 0
    wanted = {"prefix": second, "until": "2999-01-01T00:00:00Z", "why": "mended"}
    seen = post("inboxes/echo/redrive", wanted | {"preview": True}).json()
    assert (seen["preview"], seen["redriven"], [one["id"] for one in seen["letters"]]) == (True, 1, dead[1:])
    assert "body" not in seen["letters"][0]
    assert get("inboxes").json()["inboxes"][0]["dead"] == 2
    assert post("inboxes/echo/redrive", wanted).json()["redriven"] == 1
    assert [one["key"] for one in get("inboxes/echo/dead").json()["letters"]] == [first]
    assert [one["about"] for one in get("journal", app="echo").json()["entries"]] == [
        f"inbox echo: prefix {second}, until 2999-01-01T00:00:00+00:00",
        "inbox echo: error OSError",
    ]


def test_the_commands_of_the_reference_are_taken_as_they_stand(
    post: Any, client: Reader, dead: list[str]
) -> None:
    page = html.unescape(client.get("/docs").text)
    bodies = dict(re.findall(r"/v1/ops/(\S+)\" [^\n]*--json '(.*?)'", page))
    assert set(bodies) == {"actions", "actions/bulk", "erasures", "inboxes/{app}/redrive"}
    assert post("erasures", json.loads(bodies["erasures"])).json()["rows"] == 0
    assert post("actions/bulk", json.loads(bodies["actions/bulk"])).json()["done"] == []
    assert post("inboxes/echo/redrive", json.loads(bodies["inboxes/{app}/redrive"])).json()["redriven"] == 2
    assert problem_of(post("actions", json.loads(bodies["actions"]))) == "no-such-record"


def test_a_person_is_erased_after_a_preview_and_the_journal_has_a_hash(get: Any, post: Any, s: Semel) -> None:
    s.documents.put("talk", {"said": "hello"}, subject="ann@example.com")
    claim: Any = s.ledger.claim("busy", subject="ann@example.com")
    wanted = {"person": "Ann@Example.com", "why": "request no. 17"}
    seen = post("erasures", wanted).json()
    assert (seen["preview"], seen["tables"], seen["running"]) == (True, {"documents": 1}, ["busy"])
    assert s.documents.get("talk") is not None
    done = post("erasures", wanted | {"preview": False}).json()
    assert (done["rows"], done["running"], done["more"], done["skipped"]) == (1, ["busy"], False, [])
    assert s.documents.get("talk") is None
    s.ledger.complete(claim, "hello")
    assert post("erasures", wanted | {"preview": False}).json()["tables"] == {"ledger": 1}
    entries = get("journal").json()["entries"]
    assert {(one["by"], one["action"]) for one in entries} == {("oncall", "erase")}
    assert [one["about"] for one in entries[:2]] == [f"person {one}" for one in reversed(done["subjects"])]
    assert "ann@" not in str(entries).lower()


# What is wrong with a request

BAD_QUERIES = [
    ("records", {"status": "DONE"}, "status"),
    ("records", {"staus": "FAILED"}, "staus"),
    ("records", {"limit": "0"}, "limit"),
    ("records", {"limit": "501"}, "limit"),
    ("records", {"since": "yesterday"}, "since"),
    ("records", {"since": "2026-03-01T08:00:00"}, "since"),
    ("records", {"after": "nonsense"}, "after"),
    ("records", {"errors": "all"}, "errors"),
    ("story", {}, "key"),
    ("journal", {"limit": "0"}, "limit"),
    ("journal", {"by": "ann"}, "by"),
    ("rates", {"width": "day"}, "width"),
    ("rates", {"since": "2026-03-02T00:00:00Z", "until": "2026-03-01T00:00:00Z"}, "since"),
    ("rates", {"since": "2026-01-01T00:00:00Z", "until": "2026-03-01T00:00:00Z"}, "since"),
    ("inboxes/echo/dead", {"bodies": "perhaps"}, "bodies"),
]
BULK = {"search": {"prefix": "charge:"}, "name": "release", "why": "ticket 12"}
BAD_BODIES = [
    ("actions", wish(name="undo"), "name"),
    ("actions", wish(why="  "), "why"),
    ("actions", {"name": "release", "key": KEY}, "why"),
    ("actions", wish(ttl=0), "ttl"),
    ("actions", wish(force="yes"), "force"),
    ("actions/bulk", BULK | {"search": {}}, "search"),
    ("actions/bulk", BULK | {"search": {"staus": "FAILED"}}, "search.staus"),
    ("actions/bulk", BULK | {"search": {"since": "yesterday"}}, "search.since"),
    ("actions/bulk", BULK | {"limit": 101}, "limit"),
    ("erasures", {"person": " ", "why": "no. 17"}, "person"),
    ("erasures", {"person": "ann"}, "why"),
    ("inboxes/echo/redrive", {"why": "mended"}, "all"),
    ("inboxes/echo/redrive", {"why": "mended", "all": True, "id": "1"}, "all"),
    ("inboxes/echo/redrive", {"why": "mended", "all": True, "error": "OSError"}, "all"),
    ("inboxes/echo/redrive", {"why": "mended", "since": "yesterday"}, "since"),
    ("inboxes/echo/redrive", {"all": True}, "why"),
]


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Reader, Semel]]:
    """One service for all that is refused before any store is asked, and a ledger where a key has failed."""
    folder = tmp_path_factory.mktemp("ops")
    with pytest.MonkeyPatch.context() as patch:
        register(patch)
        with opened(SETTINGS.format(url="memory:"), folder) as runtime, client_of(runtime) as client:
            s = runtime.s.scoped("north")
            fail(s)
            yield client, s


@pytest.mark.parametrize(("path", "query", "named"), BAD_QUERIES, ids=str)
def test_what_is_wrong_with_a_question_is_named(
    refusing: tuple[Reader, Semel], path: str, query: Any, named: str
) -> None:
    answer = refusing[0].get(f"/v1/ops/{path}", params=query, headers=bearer("oncall"))
    assert (answer.status_code, problem_of(answer)) == (400, "invalid-request")
    assert named in str(answer.json().get("errors", answer.json()["detail"]))


@pytest.mark.parametrize(("path", "body", "named"), BAD_BODIES, ids=lambda one: str(one)[:30])
def test_what_is_wrong_with_an_action_is_named_and_nothing_is_done(
    refusing: tuple[Reader, Semel], path: str, body: Any, named: str
) -> None:
    client, s = refusing
    answer = client.post(f"/v1/ops/{path}", json=body, headers=bearer("oncall"))
    assert (answer.status_code, problem_of(answer)) == (400, "invalid-request")
    assert named in str(answer.json().get("errors", answer.json()["detail"]))
    assert (s.ops.journal().entries, status_of(s)) == ((), "FAILED")
