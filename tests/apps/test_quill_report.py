"""What becomes a fact is the owner's to say: as by default, by settings, or by a function of his own."""

import json
import sqlite3
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

import semel
from semel import errors
from semel.apps.configuration import Configuration, read
from semel.apps.quill import Fact, Received, Settings, from_environment
from semel.apps.quill.powerbi import create_dataset, definition
from semel.apps.quill.schema import FACTS, fitted
from semel.apps.quill.settings import ReportColumn
from semel.doors.queues.messages import Verdict
from semel.testing import FakeClock
from tests.apps.quill_kit import (
    SECRET,
    TOKEN,
    Office,
    Wall,
    call,
    creation,
    dataset_at,
    down,
    told,
)
from tests.standins import powerbi as other_side

Make = Callable[..., Office]


@pytest.fixture
def make(s: semel.Semel, clock: FakeClock, tmp_path: Path) -> Iterator[Make]:
    made: list[Office] = []

    def make(toml: str = "", sink: Any = None, **more: Any) -> Office:
        made.append(Office(s, clock, tmp_path, sink, **declared(toml), **more))
        return made[-1]

    yield make
    for office in made:
        office.close()


def declared(toml: str) -> dict[str, Any]:
    """Settings as the service reads them from its file."""
    given = Configuration(tomllib.loads(toml), "semel.toml")
    values = given.tree.get("apps", {}).get("quill", {})
    chosen = read(Settings, values, ("apps", "quill"), given)
    return {name: getattr(chosen, name) for name in values}


def rows(office: Office, table: str) -> list[tuple[Any, ...]]:
    assert office.app.star is not None
    with closing(sqlite3.connect(str(office.app.settings.star))) as connection:
        return connection.execute(f'SELECT * FROM "{table}"').fetchall()


# The default

# The dataset as it was asked for before anything could be declared.
DATASET = Path(__file__).with_name("quill_dataset.json")


@pytest.mark.seed("Q8")
def test_the_documents_report_is_the_default_to_the_byte(make: Make) -> None:
    assert json.dumps(definition("Quill")) == DATASET.read_text()
    office = make(sink=(wall := Wall()))
    sent: list[Fact] = []
    wall.before = sent.extend
    office.ring(call(7))
    assert json.dumps(sent[0].row) == (
        '{"event_key": "ALOWARE:7", "source": "ALOWARE", "agent": "aloware:123260", "metric": "calls", '
        '"date": "2023-11-14", "occurred_at": "2023-11-14T22:13:20Z"}'
    )
    assert json.dumps(sent[0].dimensions) == (
        '{"dim_agent": {"agent": "aloware:123260", "source": "ALOWARE"}, "dim_date": {"date": "2023-11-14", '
        '"year": 2023, "month": 11, "day": 14, "weekday": "Tuesday"}, '
        '"dim_metric": {"metric": "calls", "title": "Outbound calls"}}'
    )


# By settings

REPORT = """
[apps.quill.events.calls]
source = "aloware"
type = "OutboundPhoneCall*"
where = { "body.talk_time" = "*[1-9]*" }
into = "fact_call"
metric = "talks"
title = "Calls that were answered"

[apps.quill.events.won]
source = "hubspot"
type = "deal.propertyChange"
where = { propertyName = "dealstage", propertyValue = "closedwon" }
into = "fact_deal"

[apps.quill.events.visits]
source = "hubspot"
type = "object.creation"
where = { objectTypeId = "2-*" }
metric = "visits"

[apps.quill.fact_tables.fact_call]
call = "$key"
agent = "$agent"
metric = "$metric"
date = "$date"
line = "body.line.id"
seconds = { path = "body.talk_time", kind = "Int64" }
recorded = { path = "body.has_recording", kind = "bool", default = false }

[apps.quill.fact_tables.fact_deal]
event = "$key"
at = "$occurred_at"
deal = "objectId"
amount = { path = "properties.0.amount", kind = "Double", default = 0 }

[apps.quill.dimensions.dim_line]
line = "body.line.id"
name = { path = "body.line.name", default = "unnamed" }
"""


def deal(number: int, value: str = "closedwon", **more: Any) -> dict[str, Any]:
    changed = {"subscriptionType": "deal.propertyChange", "propertyName": "dealstage", "propertyValue": value}
    return creation(number, "0-3", **changed, **more)


@pytest.mark.seed("Q8")
def test_facts_metrics_dimensions_and_subscriptions_are_declared(make: Make) -> None:
    """Two sources, two tables of facts beside the default one, a dimension, and what none of it fits."""
    office = make(REPORT)
    line = {"id": 4, "name": "Sales"}
    assert told(office.ring(call(1, line=line, has_recording=1))) == {"received": 1, "new": 1, "posted": 1}
    office.ring(call(2, line={"id": 5}))
    assert told(office.ring(call(3, line=line, talk_time=0))) == {"received": 1, "ignored": 1}
    answer = office.deliver(
        deal(1, properties=[{"amount": "12.5"}]),
        deal(2, "closedlost"),
        creation(3, "2-77"),
        creation(4, "0-49"),
        deal(1, properties=[]),
    )
    assert told(answer) == {"received": 5, "new": 2, "duplicates": 1, "ignored": 2, "posted": 2}
    assert rows(office, "fact_call") == [
        ("ALOWARE:1", "aloware:123260", "talks", "2023-11-14", "4", 63, 1),
        ("ALOWARE:2", "aloware:123260", "talks", "2023-11-14", "5", 63, 0),
    ]
    [sold] = rows(office, "fact_deal")
    assert sold[1:] == ("2023-11-14T22:13:20.001000Z", "1", 12.5)
    assert [row[3] for row in rows(office, FACTS)] == ["visits"]
    assert rows(office, "dim_line") == [("4", "Sales"), ("5", "unnamed")]
    assert rows(office, "dim_metric") == [
        ("talks", "Calls that were answered"),
        ("visits", "visits"),
    ]
    star = office.app.star
    assert star is not None
    totals = star.totals(date(2023, 11, 1), date(2023, 11, 30))
    assert [(one.metric, one.count) for one in totals] == [("talks", 2), ("visits", 1)]


@pytest.mark.seed("Q8")
def test_power_bi_is_given_what_is_declared(make: Make, clock: FakeClock) -> None:
    """Its dataset is made of the declarations, and each table of facts is a request of its own."""
    with other_side.PowerBI(clock=clock) as there:
        plain = {name: value for name, value in dataset_at(there).items() if name != "powerbi_dataset"}
        chosen = Settings(aloware_token=TOKEN, hubspot_secret=SECRET, **declared(REPORT), **plain)  # type: ignore[arg-type]
        dataset = create_dataset(chosen)
        office = make(REPORT, powerbi_dataset=dataset, **plain)
        there.reset()
        office.ring(call(1, line={"id": 4}))
        answer = office.deliver(deal(1), deal(2), creation(3, "2-77"))
        assert told(answer) == {"received": 3, "new": 3, "posted": 3}
        tables = {table: there.rows(table, dataset) for table in there.datasets[dataset]}
    assert {table: len(found) for table, found in tables.items()} == {
        "dim_agent": 2,
        "dim_date": 1,
        "dim_metric": 2,
        "dim_line": 1,
        FACTS: 1,
        "fact_call": 1,
        "fact_deal": 2,
    }
    assert tables["fact_call"][0]["seconds"] == 63


def test_the_first_that_fits_counts_and_others_count_beside_it_only_where_they_are_apart(make: Make) -> None:
    """One call is told of several times under one id; what is a fact of its own says so."""
    office = make(
        """
        [apps.quill.events.recordings]
        source = "aloware"
        type = "Recording-*"
        metric = "recordings"
        apart = true
        [apps.quill.events.anything]
        source = "aloware"
        metric = "calls"
        """
    )
    names = ["OutboundPhoneCall", "Recording-Saved", "Call-Disposed", "Recording-Saved"]
    answers = [told(office.ring(call(7, name))) for name in names]
    assert [answer.get("posted", 0) for answer in answers] == [1, 1, 0, 0]
    assert [(row[0], row[3]) for row in rows(office, FACTS)] == [
        ("ALOWARE:7", "calls"),
        ("ALOWARE:7:recordings", "recordings"),
    ]


def test_beside_what_is_declared_the_default_is_kept_where_that_is_said(make: Make) -> None:
    office = make(
        """
        [apps.quill]
        with_default = true
        [apps.quill.events.notes]
        source = "hubspot"
        where = { objectTypeId = "0-46" }
        metric = "notes"
        """
    )
    office.ring(call(1))
    office.deliver(creation(1, "0-46"), creation(2, "0-5"), creation(3, "0-1"))
    assert sorted(row[3] for row in rows(office, FACTS)) == ["calls", "cases", "notes"]


def test_a_kind_of_event_may_have_a_column_elsewhere(make: Make) -> None:
    office = make(
        """
        [apps.quill.events.made]
        source = "hubspot"
        into = "fact_object"
        columns = { object = "mergedObjectId" }
        where = { subscriptionType = "object.merge" }
        [apps.quill.events.rest]
        source = "hubspot"
        into = "fact_object"
        [apps.quill.fact_tables.fact_object]
        event = "$key"
        object = { path = "objectId", default = "none" }
        """
    )
    office.deliver(creation(1), creation(2, subscriptionType="object.merge", mergedObjectId=9))
    office.deliver(creation(3, subscriptionType="object.merge"))
    assert sorted(row[1] for row in rows(office, "fact_object")) == ["1", "9", "none"]


def test_an_event_that_lacks_what_is_declared_is_told_without_what_it_says(make: Make, caplog: Any) -> None:
    office = make(REPORT)
    counts = told(office.ring(call(1, line={"id": ["Ada"]})))
    assert counts == {"received": 1, "failed": 1}
    assert "fact_call.line: it is no string, or missing" in caplog.text
    assert "Ada" not in caplog.text
    assert told(office.ring(call(2, talk_time="1 minute", line={"id": 1})))["failed"] == 1
    assert rows(office, "fact_call") == []


@pytest.mark.parametrize(
    ("kind", "value", "as_it_is"),
    [
        ("string", "å" * 5000, "å" * 4000),
        ("string", 7, "7"),
        ("string", True, "true"),
        ("string", None, None),
        ("string", {}, None),
        ("Int64", "12", 12),
        ("Int64", 12.0, 12),
        ("Int64", 12.5, None),
        ("Int64", True, None),
        ("Int64", 2**63 - 1, None),
        ("Double", "0.5", 0.5),
        ("Double", "nan", None),
        ("bool", "False", False),
        ("bool", 1, True),
        ("bool", 2, None),
        ("DateTime", "2023-11-14", "2023-11-14"),
        ("DateTime", 1_700_000_000_000, "2023-11-14T22:13:20Z"),
        ("DateTime", "1700000000000", "2023-11-14T22:13:20Z"),
        ("DateTime", "soon", None),
        ("DateTime", 1e30, None),
    ],
)
def test_a_value_is_as_its_column_has_it_or_it_is_none(kind: Any, value: Any, as_it_is: Any) -> None:
    if as_it_is is None:
        with pytest.raises((ValueError, OverflowError)):
            fitted(kind, value)
    else:
        assert fitted(kind, value) == as_it_is


@pytest.mark.seed("Q8")
def test_declarations_may_come_from_the_environment() -> None:
    """As JSON: a function on Lambda has no file of settings."""
    environ = {
        "SEMEL_APPS__QUILL__ALOWARE_TOKEN": TOKEN,
        "SEMEL_APPS__QUILL__EVENTS": '{"calls": {"source": "aloware", "metric": "calls"}}',
        "SEMEL_APPS__QUILL__FACT_TABLES": '{"f": {"k": "$key", "n": {"path": "body.n", "kind": "Int64"}}}',
    }
    settings = from_environment(environ)
    assert (settings.events["calls"].source, settings.events["calls"].into) == ("aloware", FACTS)
    assert settings.fact_tables["f"]["n"] == ReportColumn(path="body.n", kind="Int64")


CALLS = '[apps.quill.events.calls]\nsource = "aloware"\nmetric = "calls"\n'
TABLE = "[apps.quill.fact_tables.f]\n"
INTO = CALLS + 'into = "f"\n' + TABLE


@pytest.mark.seed("Q8")
@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ('[apps.quill.events.calls]\nsource = "zendesk"', "events.calls.source"),
        ('[apps.quill.events.calls]\nsource = "aloware"\nsorce = 1', "events.calls.sorce"),
        (CALLS + 'into = "fact_cal"', "events.calls.into"),
        ('[apps.quill.events.calls]\nsource = "aloware"', "events.calls.metric"),
        ('[apps.quill.events."a b"]\nsource = "aloware"\nmetric = "m"', "events.a b"),
        (CALLS + 'columns = { colour = "body.colour" }', "events.calls.columns.colour"),
        (CALLS + 'columns = { event_key = "body.id" }', "events.calls.columns.event_key"),
        (CALLS + 'columns = { agent = "$date" }', "events.calls.columns.agent"),
        (INTO + 'key = "body.id"', "fact_tables.f.key"),
        (INTO + 'key = "$key"\nwho = "$who"', "fact_tables.f.who"),
        (INTO + 'key = "$key"\nday = { path = "$date", kind = "Int64" }', "fact_tables.f.day"),
        (INTO + 'key = "$key"\nn = { kind = "Int64" }', "fact_tables.f.n"),
        (INTO + 'key = "$key"\nn = { path = "n", kind = "Int64", default = "none" }', "fact_tables.f.n"),
        (INTO + 'key = "$key"\n"a-b" = "body.a"', "fact_tables.f.a-b"),
        (INTO + 'key = "$key"\na = "body.a"\nA = "body.b"', "fact_tables.f"),
        (CALLS + "[apps.quill.fact_tables.f]", "fact_tables.f"),
        (CALLS + '[apps.quill.dimensions.dim_line]\nline = "body.line"', "dimensions.dim_line"),
        (
            INTO + 'key = "$key"\nline = "body.l"\n[apps.quill.dimensions.F]\nline = "body.l"',
            "dimensions.F",
        ),
        (
            INTO
            + 'key = "$key"\nline = "body.l"\n[apps.quill.dimensions.a]\nline = "x"\n'
            + '[apps.quill.dimensions.b]\nline = "x"',
            "dimensions.b.line",
        ),
        (
            INTO
            + 'key = "$key"\nline = "body.l"\n[apps.quill.dimensions.a]\n'
            + 'line = { path = "x", kind = "Int64" }',
            "dimensions.a.line",
        ),
        (TABLE + 'key = "$key"', "fact_tables"),
        ('[apps.quill.dimensions.d]\nkey = "x"', "dimensions"),
        ('[apps.quill]\nfacts = "no_such_module:facts"\n' + TABLE + 'key = "$key"', "facts"),
        ('[apps.quill]\nfacts = "json:dumps"', "fact_tables"),
        (f'[apps.quill]\nfacts = "{__name__}:facts"\n' + CALLS, "facts"),
        ('[apps.quill]\nfacts = "json:dumps"\n' + TABLE + 'key = "$key"\nn = "body.n"', "fact_tables.f.n"),
        (
            INTO + 'key = "$key"\n' + "".join(f'c{n} = "body.c"\n' for n in range(75)),
            "fact_tables.f",
        ),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_at_the_start_and_named(
    make: Make, toml: str, named: str
) -> None:
    with pytest.raises(errors.InvalidOption) as refused:
        make(toml)
    assert str(refused.value).startswith((f"apps.quill.{named}: ", f"apps.quill.{named} in semel.toml: "))


def test_a_source_that_is_not_served_cannot_be_declared(make: Make) -> None:
    with pytest.raises(errors.InvalidOption, match=r"events\.calls\.source: set apps\.quill\.aloware_token"):
        make(CALLS, aloware_token="")


def test_a_file_of_another_report_is_refused(make: Make) -> None:
    """Its rows would not fit, and nobody wants them half converted."""
    make(INTO + 'key = "$key"\na = "body.a"')
    with pytest.raises(
        errors.InvalidOption, match=r"apps\.quill\.star: .* another report: its f has .* key, a"
    ):
        make(INTO + 'key = "$key"\nb = "body.b"')


def test_what_waits_for_a_table_that_is_no_longer_declared_is_put_aside(
    make: Make, s: semel.Semel, tmp_path: Path
) -> None:
    office = make(INTO + 'key = "$key"', sink=(wall := Wall()))
    wall.failures = [down()]
    assert told(office.ring(call(1)))["queued"] == 1
    other = make("", star=str(tmp_path / "other.db"))
    other.box.messages = office.box.messages
    assert [taken.verdict for taken in other.work()] == [Verdict.DEAD]


@pytest.mark.seed("Q8")
def test_what_the_page_declares_works(make: Make) -> None:
    """As it stands there: a reader pastes it."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "run-quill.md").read_text()
    shown = [part.partition("```")[0] for part in page.split("```text\n")[1:]]
    declarations = [toml for toml in shown if "[apps.quill.events" in toml]
    assert len(declarations) == 1
    office = make(declarations[0])
    assert told(office.ring(call(1, line={"id": 4, "name": "Sales"})))["posted"] == 1
    assert told(office.deliver(deal(1), creation(2, "0-5")))["posted"] == 2
    assert [row[-1] for row in rows(office, "fact_call")] == [63]
    assert rows(office, "dim_line") == [("4", "Sales")]
    assert sorted(row[3] for row in rows(office, FACTS)) == ["cases", "won"]


# By a function

OWN = """
[apps.quill]
facts = "tests.apps.test_quill_report:facts"

[apps.quill.fact_tables.fact_call]
call = "$key"
agent = { kind = "string" }
date = { kind = "DateTime" }
line = { kind = "string" }
seconds = { kind = "Int64" }

[apps.quill.dimensions.dim_line]
line = { kind = "string" }
name = { kind = "string" }
"""


def facts(received: Received) -> Fact | None:
    """What the tests have an owner write."""
    if received.source != "aloware" or received.event["event"] == "Contact-Created":
        return None
    match received.event["event"]:
        case "nonsense":
            return {"no": "fact"}  # type: ignore[return-value]
        case "elsewhere":
            return Fact("fact_cal", {})
        case "too much":
            return Fact("fact_call", {"colour": "red"})
        case "words":
            raise KeyError("Ada Lovelace")
    line = received.at("body.line_id")
    row = {
        "agent": received.agent,
        "date": received.date,
        "line": line,
        "seconds": received.at("body.talk_time"),
    }
    apart = "recorded" if received.event["event"] == "Recording-Saved" else ""
    return Fact("fact_call", row, {"dim_line": {"name": f"Line {line}"}}, apart=apart)


@pytest.mark.seed("Q8")
def test_a_function_of_the_owners_says_what_becomes_a_fact(make: Make) -> None:
    """It fills the tables that are declared; what follows from a row, its agent or its day, it need not."""
    office = make(OWN)
    assert told(office.ring(call(1, line_id=3))) == {"received": 1, "new": 1, "posted": 1}
    assert told(office.ring(call(1, "Recording-Saved", line_id=3))) == {"received": 1, "new": 1, "posted": 1}
    assert told(office.ring(call(1, line_id=3))) == {"received": 1, "duplicates": 1}
    assert told(office.ring(call(2, "Contact-Created"))) == {"received": 1, "ignored": 1}
    assert told(office.deliver(creation(1))) == {"received": 1, "ignored": 1}
    row = ("aloware:123260", "2023-11-14", "3", 63)
    assert rows(office, "fact_call") == [("ALOWARE:1", *row), ("ALOWARE:1:recorded", *row)]
    assert rows(office, "dim_line") == [("3", "Line 3")]
    assert rows(office, "dim_agent") == [("aloware:123260", "ALOWARE")]
    assert [found[0] for found in rows(office, "dim_date")] == ["2023-11-14"]


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ("nonsense", "gave a dict, and no Fact"),
        ("elsewhere", "fact_tables has no fact_cal"),
        (
            "too much",
            "fact_call has other columns than the function gave: agent, colour, date, line, seconds",
        ),
    ],
)
def test_what_a_function_does_wrong_is_told_without_what_the_event_says(
    make: Make, caplog: Any, event: str, says: str
) -> None:
    office = make(OWN)
    assert told(office.ring(call(1, event))) == {"received": 1, "failed": 1}
    assert says in caplog.text
    assert "Ada" not in caplog.text


def test_while_a_function_fails_its_events_are_to_come_again(make: Make, caplog: Any) -> None:
    """Once it is mended none is lost. What came with them is taken, and a duplicate then."""
    office = make(OWN, aloware_token=[TOKEN])
    answer = office.ring(call(1, "words"))
    assert (answer.status, "Retry-After" in answer.headers) == (503, True)
    assert "the function of apps.quill.facts has failed: KeyError" in caplog.text
    assert "Ada" not in caplog.text


def test_what_waits_is_a_fact_already(make: Make) -> None:
    """With nothing of its event but what is declared."""
    office = make(REPORT, sink=(wall := Wall()))
    wall.failures = [down()]
    office.ring(call(1, line={"id": 4}))
    [message] = office.box.messages
    assert "Ada" not in json.dumps(msgspec.to_builtins(message.body))
    assert [taken.verdict for taken in office.work()] == [Verdict.DONE]
    assert wall.rows == ["ALOWARE:1"]
