"""The tables of applications by their names: in the service, on Lambda and in provisioning alike."""

import importlib
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.apps import functions as on_lambda
from semel.apps import stack
from semel.apps.configuration import gather
from semel.apps.quill.settings import store_url
from semel.apps.registry import APPS, deployment
from semel.apps.tables import ACTIVITIES, MESSAGES, QUILL, RESPONSE_COUNTERS, SUPPORT_AUDIT
from semel.apps.titles import deployed, located
from semel.aws.environment import Credentials
from semel.aws.wire import Wire
from semel.cli import main
from semel.errors import InvalidOption
from semel.provision.formats import Role, logical, policy
from semel.service.runtime import Runtime
from semel.stores.dynamodb.address import parse, with_titles
from semel.stores.dynamodb.items import title
from semel.tables import DOCUMENTS, JOURNAL, LEDGER, OWN
from semel.tables.mapping import asked
from tests.places import CREDENTIALS

# As the settings call them.
NAMES = {
    "quill": ("ledger",),
    "support": ("events", "state", "audit"),
    "household": ("activities", "messages", "counters"),
    "probe": ("ledger",),
}
VARIABLES = {
    ACTIVITIES: "ACTIVITIES_TABLE_NAME",
    MESSAGES: "MESSAGES_TABLE_NAME",
    RESPONSE_COUNTERS: "RESPONSE_COUNTERS_TABLE_NAME",
}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in (*VARIABLES.values(), "DYNAMO_TABLE_NAME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in CREDENTIALS.items():
        monkeypatch.setenv(variable, value)


def section(app: str) -> dict[str, Any]:
    """Settings that name all of an application's tables."""
    return {"tables": {name: f"our-{app}-{name}-{{env}}" for name in NAMES[app]}}


# By settings


@pytest.mark.seed("H10")
@pytest.mark.parametrize("app", APPS)
def test_every_table_of_an_application_can_be_named(app: str) -> None:
    usual, named = deployment(app), deployed(app, section(app))
    own = [table for table in named.tables if table not in OWN]
    assert [title(table, "prod") for table in own] == [f"our-{app}-{name}-prod" for name in NAMES[app]]
    assert [table.name for table in named.tables] == [table.name for table in usual.tables]
    assert named.ledger in named.tables
    allowed = json.dumps(policy(named.tables, "prod", Role.WORKER))
    for table in usual.tables:
        assert (table in OWN) is (f"/{title(table, 'prod')}" in allowed)


@pytest.mark.seed("H10")
@pytest.mark.parametrize("app", APPS)
def test_a_template_makes_the_tables_under_their_names_and_tells_them_to_the_functions(app: str) -> None:
    told = deployed(app, section(app))
    resources = stack.template([told], "prod")["Resources"]
    for name, table in told.own().items():
        assert resources[logical(table)]["Properties"]["TableName"] == f"our-{app}-{name}-prod"
        for each, function in told.functions.items():
            variables = resources[f"{app.capitalize()}{each}Function"]["Properties"]["Environment"][
                "Variables"
            ]
            variable = f"SEMEL_APPS__{app}__TABLES__{name}".upper()
            assert variables.get(variable) == ({"Ref": logical(table)} if table in function.may else None)


@pytest.mark.seed("H10")
def test_a_setting_counts_more_than_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESSAGES_TABLE_NAME", "by-variable")
    tables = deployed("household", {"tables": {"messages": "by-setting"}}).tables
    assert [title(table, "prod") for table in tables if table.name == MESSAGES.name] == ["by-setting"]
    assert title(MESSAGES, "prod") == "by-variable"


@pytest.mark.parametrize(
    ("app", "named", "why"),
    [
        ("household", {"colours": "x-colours"}, "tables.colours: it has no table of that name; it has activ"),
        ("household", {"documents": "our-documents"}, r"tables\.documents: it has no table of that name"),
        ("quill", {"quill": "our-quill"}, r"apps\.quill\.tables\.quill: it has no table .*; it has ledger"),
        ("support", {"state": "a b"}, r"apps\.support\.tables\.state: a table's name has 3 to 255"),
        ("support", {"state": 7}, r"apps\.support\.tables: Expected `str`"),
        ("probe", "ledger", r"apps\.probe\.tables: "),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_its_setting_named(app: str, named: Any, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        deployed(app, {"tables": named})
    with pytest.raises(InvalidOption, match=why):
        located("sqlite:///semel.db", app, {"tables": named})


@pytest.mark.parametrize(
    "environ",
    [
        {"SEMEL_APPS__HOUSEHOLD__TABLES": '{"messages": "m-1", "counters": "c-1"}'},
        {"SEMEL_APPS__HOUSEHOLD__TABLES__MESSAGES": "m-1", "SEMEL_APPS__HOUSEHOLD__TABLES__COUNTERS": "c-1"},
    ],
)
def test_the_environment_names_tables_one_by_one_or_as_json(environ: dict[str, str]) -> None:
    said = gather(None, environ | {"OTHER": "x"}).tree["apps"]["household"]
    assert located("dynamodb:", "household", said).startswith("dynamodb:?tables=")
    tables = parse(located("dynamodb://eu-north-1", "household", said)).tables
    assert {table.name: title(table, "prod") for table in tables} == {
        MESSAGES.name: "m-1",
        RESPONSE_COUNTERS.name: "c-1",
    }


# By the URL


def test_a_url_names_tables_of_semels_own_and_others() -> None:
    url = (
        "dynamodb://eu-north-1/pay?endpoint=http://127.0.0.1:1&tables=journal:j-{env},household-messages:m-1"
    )
    assert {table.name: title(table, "prod") for table in parse(url).tables} == {
        JOURNAL.name: "j-prod",
        MESSAGES.name: "m-1",
        LEDGER.name: "pay",
    }
    more = parse(with_titles(url, {DOCUMENTS.name: "d-1", MESSAGES.name: "m-2"}))
    assert more.endpoint == "http://127.0.0.1:1"
    assert {title(table, "prod") for table in more.tables} == {"j-prod", "m-2", "d-1", "pay"}
    assert with_titles(url, {}) == url


@pytest.mark.seed("H10")
def test_the_table_that_quill_s_variables_make_a_url_of_may_be_named_otherwise() -> None:
    environ = {"DYNAMO_TABLE_NAME": "by-variable", "SEMEL_APPS__QUILL__TABLES__LEDGER": "by-setting"}
    url = located(store_url(environ), "quill", gather(None, environ).tree["apps"]["quill"])
    assert [title(table, "prod") for table in parse(url).tables] == ["by-setting"]


def test_a_layout_is_named_by_its_own_name() -> None:
    [table] = parse("dynamodb://?layout=quill&tables=quill:our-quill").tables
    assert (asked(table), table.title) == (LEDGER, "our-quill")
    [table] = parse("dynamodb://?layout=quill").tables
    assert table is QUILL
    both = parse("dynamodb://?layout=quill&tables=ledger:our-ledger").tables
    assert both[-1] is QUILL, "the ledger of a store with a layout is the layout"


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ("colours:x-1", "tables='colours': it is one of ledger"),
        ("journal", "'' cannot name a table"),
        ("journal:a/b", "'a/b' cannot name a table"),
        ("quill:our-quill", "add layout=quill"),
    ],
)
def test_a_url_that_names_what_is_not_there_is_refused(tables: str, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        parse(f"dynamodb://?tables={tables}")


# On DynamoDB


class Server:
    """A server with the tables of a test, as their owner sees them."""

    def __init__(self, url: str) -> None:
        self.env = f"t{uuid.uuid4().hex[:8]}"
        self.url = f"dynamodb://us-east-1?endpoint={url}"
        self._wire = Wire(
            "dynamodb", region="us-east-1", endpoint=url, credentials=Credentials("test", "test")
        )

    def tables(self) -> set[str]:
        """The tables of this environment."""
        named: list[str] = []
        after = None
        while True:
            asked: dict[str, Any] = {} if after is None else {"ExclusiveStartTableName": after}
            page = self._wire.call("ListTables", asked, write=False)
            named += page["TableNames"]
            if (after := page.get("LastEvaluatedTableName")) is None:
                return {name for name in named if self.env in name}

    def items(self, name: str) -> list[dict[str, Any]]:
        """What is in a table, but for its stamp."""
        found = self._wire.call("Scan", {"TableName": name, "ConsistentRead": True}, write=False)["Items"]
        return [item for item in found if "semel:environment" not in json.dumps(item)]

    def close(self) -> None:
        self._wire.close()


@pytest.fixture
def server(dynoxide: str) -> Iterator[Server]:
    with closing(Server(dynoxide)) as server:
        yield server


@pytest.fixture
def provision(monkeypatch: pytest.MonkeyPatch, server: Server) -> Callable[..., int]:
    def run(*words: str) -> int:
        program = ["semel", "provision", "--url", server.url, "--env", server.env, *words]
        monkeypatch.setattr(sys, "argv", program)
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0)

    return run


TOML = """
[semel]
url = "{url}"
env = "{env}"
secret = "of the tests, and of nobody else"
[apps.quill]
aloware_token = "a-token-of-the-tests"
[apps.quill.tables]
ledger = "our-quill-ledger-{env}"
[apps.support]
webhook_token = "a-token-of-the-tests"
audit = false
tables = {{events = "our-support-events-{env}", state = "our-support-state-{{env}}"}}
[apps.household]
secret_token = "a-token-of-the-tests"
[apps.household.tables]
messages = "our-household-messages-{env}"
[apps.probe]
token = "a-token-of-the-tests"
[apps.probe.tables]
ledger = "our-probe-ledger-{env}"
"""


@pytest.mark.seed("H10", "R11")
def test_the_service_works_on_the_tables_that_provisioning_made_by_the_same_settings(
    server: Server, provision: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "semel.toml").write_text(TOML.format(url=server.url, env=server.env))
    monkeypatch.setenv("ACTIVITIES_TABLE_NAME", f"homeops-activities-of-old-{server.env}")
    words = [word for app in APPS for word in ("--app", app)]
    assert provision(*words) == 0
    assert provision(*words, "--check") == 0
    assert {name for name in server.tables() if not name.startswith("semel-")} == {
        f"our-quill-ledger-{server.env}",
        f"our-support-events-{server.env}",
        f"our-support-state-{server.env}",
        f"our-household-messages-{server.env}",
        f"our-probe-ledger-{server.env}",
        f"homeops-activities-of-old-{server.env}",
        f"homeops-response-counters-{server.env}",
    }
    with closing(Runtime(gather("semel.toml"))) as runtime:
        apps = {mounted.name: mounted.app for mounted in runtime.apps}
        for s in runtime.stores():
            s.ledger.claim("PRODUCE#1")
        apps["household"].messages.append("-42", {"text": "hi"}, id=1, actor=7)
        apps["household"].activities.append("-42", {"type": "chore"}, actor=7)
    for name in ("quill-ledger", "support-events", "probe-ledger", "household-messages"):
        assert len(server.items(f"our-{name}-{server.env}")) == 1
    assert len(server.items(f"homeops-activities-of-old-{server.env}")) == 1


def test_a_table_that_the_service_cannot_name_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text('[apps.household]\nsecret_token = "x"\ntables = {colours = "abc"}\n')
    with pytest.raises(
        InvalidOption, match=r"apps\.household\.tables\.colours in semel\.toml: it has no table"
    ):
        Runtime(gather("semel.toml"))


@pytest.mark.seed("H10")
@pytest.mark.parametrize("app", APPS)
def test_a_function_works_on_the_tables_that_its_environment_names(
    app: str, server: Server, provision: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same variables lead provisioning there."""
    names = {name: f"our-{app}-{name}-{server.env}" for name in NAMES[app]}
    for name, table in names.items():
        monkeypatch.setenv(f"SEMEL_APPS__{app}__TABLES__{name}".upper(), table)
    assert provision("--app", app) == 0
    layout = deployment(app).ledger.name
    monkeypatch.setenv("SEMEL_URL", server.url + ("" if layout == LEDGER.name else f"&layout={layout}"))
    monkeypatch.setenv("SEMEL_ENV", server.env)
    monkeypatch.setenv("SEMEL_SECRET", "of the tests, and of nobody else")
    functions: on_lambda.Functions = importlib.import_module(f"semel.apps.{app}.aws_lambda").FUNCTIONS
    with closing(functions):
        s: semel.Semel = functions.s
        if app == "household":
            s.journal.on(MESSAGES).append("-42", {"text": "hi"}, id=1, actor=7)
        else:
            s.ledger.claim("PRODUCE#1" if app == "probe" else "SOURCE:1")
    assert sum(len(server.items(table)) for table in names.values()) == 1


# Left out


@pytest.mark.seed("R11")
@pytest.mark.parametrize("off", [False, "false"])
def test_an_environment_without_an_audit_has_no_table_for_it_and_no_permission(off: Any) -> None:
    told = deployed("support", {"audit": off})
    assert SUPPORT_AUDIT in deployment("support").tables
    assert SUPPORT_AUDIT not in told.tables
    template = stack.template([told], "prod")
    assert "rp_mw_audit_actions" not in json.dumps(template)
    assert logical(SUPPORT_AUDIT) not in json.dumps(template)
    for function in ("Ingress", "Worker"):
        properties = template["Resources"][f"Support{function}Function"]["Properties"]
        assert properties["Environment"]["Variables"]["SEMEL_APPS__SUPPORT__AUDIT"] == "false"


def test_a_switch_that_is_neither_on_nor_off_is_named() -> None:
    with pytest.raises(InvalidOption, match=r"apps\.support\.audit: "):
        deployed("support", {"audit": "perhaps"})
