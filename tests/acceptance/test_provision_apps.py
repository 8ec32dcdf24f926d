"""Applications on AWS: their template as the tools read it, and their functions as it sets them up.

The functions run in a process of their own, with the environment that the template gives them, against
servers that stand for AWS. What they ask of those is written down, and held against their policies.
"""

import hmac
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from semel.apps import registry, settings, stack
from semel.apps.deployment import Deployment, Function, Secret
from semel.apps.household import app as household_app
from semel.apps.registry import APPS as PLACES
from semel.apps.registry import find
from semel.apps.support import app as support_app
from semel.aws.environment import Credentials
from semel.aws.sqs import Queue
from semel.aws.wire import Wire
from semel.core.clock import Clock
from semel.core.keys import Key, prefix
from semel.provision import dynamodb, formats
from semel.stores.dynamodb.items import title
from semel.tables import DOCUMENTS, Table
from semel.tables.mapping import mapped
from tests.apps import household_kit, quill_kit
from tests.doors.lambda_events import batch, http_api, sqs_record
from tests.doors.sqs_kit import make_queue
from tests.places import CREDENTIALS
from tests.servers.absence import served
from tests.servers.dynamodb import dynoxide, ministack
from tests.servers.running import HOST
from tests.standins import powerbi
from tests.standins.base import Reply, Request, StandIn
from tests.standins.richpanel import API_KEY, SHOP_TOKEN, Richpanel, Shop
from tests.standins.telegram import TOKEN as BOT_TOKEN
from tests.standins.telegram import Telegram

ROOT = Path(__file__).parents[2]
# Semel's own, and the example that stands for yours.
EXAMPLE = ROOT / "examples" / "order_notices"
OWN = {"notices": "notices:Notices"}
APPS = (*PLACES, *OWN)
EVERY = [pytest.param((app,), id=app) for app in APPS] + [pytest.param(APPS, id="all")]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region, which SAM's translator asks for, and tables by their own names."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    for app in APPS:
        for table in deployment(app).tables:
            if titled_by := mapped(table).titled_by:
                monkeypatch.delenv(titled_by, raising=False)


def deployment(app: str) -> Deployment:
    return registry.deployment(app, OWN.get(app, ""))


def template(*apps: str, env: str = "prod") -> dict[str, Any]:
    return stack.template([deployment(app) for app in apps], env)


# The text


def lint(text: str) -> list[str]:
    """What cfn-lint has to say, its warnings and hints included."""
    linter = importlib.import_module("cfnlint")
    config = linter.ManualArgs(regions=["eu-west-1"], include_checks=["I"])
    return [f"{match.rule.id} {match.message}" for match in linter.lint(text, config=config)]


@pytest.mark.seed("A5")
@pytest.mark.parametrize("apps", [pytest.param(APPS, id="all"), pytest.param(("probe",), id="probe")])
def test_cfn_lint_has_nothing_to_say_of_what_the_command_prints(
    typed: Callable[..., Any], apps: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLE)  # whose semel.toml says where the example is
    words = [word for app in apps for word in ("--app", app)]
    code, out, _ = typed("provision", *words, "--print", "sam", "--env", "prod")
    assert code == 0
    assert lint(out) == []
    yaml = importlib.import_module("yaml")
    assert yaml.safe_load(out) == json.loads(json.dumps(template(*apps)))
    assert not re.search(r"(?m)[&*]id\d+", out), "CloudFormation knows no aliases"


def test_cfn_lint_would_say_what_is_wrong_with_a_function() -> None:
    text = stack.text([deployment("probe")], "prod")
    assert any(
        "MemorySize" in said or "minimum" in said for said in lint(text.replace("Size: 256", "Size: 1"))
    )


def translated(template: dict[str, Any]) -> dict[str, Any]:
    """What AWS makes of a SAM template, whose code `sam package` has put into a bucket."""
    transform = importlib.import_module("samtranslator.translator.transform").transform
    template["Globals"]["Function"]["CodeUri"] = "s3://bucket/key"

    class Policies:
        def load(self) -> dict[str, str]:
            return {}

    made: dict[str, Any] = transform(template, {}, Policies())
    return made


@pytest.mark.seed("A5")
@pytest.mark.parametrize("apps", EVERY)
def test_sam_makes_functions_apis_and_event_sources_of_it(apps: tuple[str, ...]) -> None:
    made = translated(json.loads(json.dumps(template(*apps))))["Resources"]
    for app in apps:
        told, name = deployment(app), app.capitalize()
        for each, function in told.functions.items():
            properties = made[f"{name}{each}Function"]["Properties"]
            assert properties["Handler"] == function.handler
            assert properties["Runtime"] == "python3.13"
            # SAM would have made a role of its own, which may write to any log.
            assert properties["Role"] == {"Fn::GetAtt": [f"{name}{each}Role", "Arn"]}
            assert f"{name}{each}FunctionRole" not in made
            if function.works and told.queue is not None:
                source = made[f"{name}{each}FunctionMessages"]["Properties"]
                assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
                assert source["BatchSize"] == 10
                assert source["ScalingConfig"] == {"MaximumConcurrency": told.queue.workers}
            if function.paths:
                paths = made[f"{name}Api"]["Properties"]["Body"]["paths"]
                assert {path: list(ways) for path, ways in paths.items()} == {
                    path: ["post"] for path in function.paths
                }


@pytest.mark.parametrize("app", APPS)
def test_its_tables_are_the_ones_that_provisioning_makes(app: str) -> None:
    resources = template(app)["Resources"]
    for table in deployment(app).tables:
        assert resources[formats.logical(table)] == formats.resource(table, "prod")


@pytest.mark.parametrize("app", APPS)
def test_messages_that_nobody_can_handle_go_to_the_dead_letters(app: str) -> None:
    told, resources = deployment(app), template(app)["Resources"]
    queues = {name: one for name, one in resources.items() if one["Type"] == "AWS::SQS::Queue"}
    if told.queue is None:
        assert queues == {}
        return
    waiting = resources[f"{app.capitalize()}Queue"]["Properties"]
    dead = resources[f"{app.capitalize()}DeadLetters"]["Properties"]
    assert waiting["FifoQueue"] is dead["FifoQueue"] is True, "a FIFO queue's dead letters are a FIFO queue"
    assert waiting["RedrivePolicy"]["deadLetterTargetArn"] == {
        "Fn::GetAtt": [f"{app.capitalize()}DeadLetters", "Arn"]
    }
    assert dead["MessageRetentionPeriod"] > waiting["MessageRetentionPeriod"]
    longest = max(function.timeout for function in told.functions.values() if function.works)
    assert waiting["VisibilityTimeout"] >= 6 * longest
    assert {one["DeletionPolicy"] for one in queues.values()} == {"Retain"}


@pytest.mark.seed("A6")
@pytest.mark.parametrize("app", APPS)
def test_there_is_an_alarm_for_what_somebody_has_to_look_at(app: str) -> None:
    told, resources = deployment(app), template(app, env="prod")["Resources"]
    alarms = [one["Properties"] for one in resources.values() if one["Type"] == "AWS::CloudWatch::Alarm"]
    watched: set[tuple[str, str, str]] = set()
    for alarm in alarms:
        assert alarm["TreatMissingData"] == "notBreaching"
        assert alarm["AlarmActions"]["Fn::If"][0] == "HasAlarmTopic"
        plain = [query["MetricStat"]["Metric"] for query in alarm.get("Metrics", []) if "MetricStat" in query]
        for metric in plain or [alarm]:
            about = json.dumps({each["Name"]: each["Value"] for each in metric["Dimensions"]})
            watched.add((metric["Namespace"], metric["MetricName"], about))
    ours = json.dumps({"service": app, "env": "prod"})
    assert {name for space, name, about in watched if (space, about) == ("semel", ours)} >= {
        "Hits",
        "Misses",
        "Throttled",
        "StoreError",
        "Held",
        "ClaimLost",
    }
    for each in told.functions:
        about = json.dumps({"FunctionName": {"Ref": f"{app.capitalize()}{each}Function"}})
        assert {name for space, name, on in watched if (space, on) == ("AWS/Lambda", about)} == {
            "Errors",
            "Throttles",
        }
    for table in told.tables:
        about = json.dumps({"TableName": {"Ref": formats.logical(table)}})
        assert {name for _, name, on in watched if on == about} == {
            "ReadThrottleEvents",
            "WriteThrottleEvents",
        }
    queues = {name for space, name, _ in watched if space == "AWS/SQS"}
    expected = {"ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesVisible"}
    assert queues == (expected if told.queue else set())
    # CloudWatch takes no more than this in one alarm.
    assert all(len(alarm.get("Metrics", [])) <= 11 for alarm in alarms)


def statements(resources: dict[str, Any], function: str) -> list[dict[str, Any]]:
    [policy] = resources[f"{function}Role"]["Properties"]["Policies"]
    found: list[dict[str, Any]] = policy["PolicyDocument"]["Statement"]
    return found


@pytest.mark.parametrize("app", APPS)
def test_nothing_in_it_is_a_wildcard_and_logs_do_not_stay_for_ever(app: str) -> None:
    told, resources = deployment(app), template(app)["Resources"]
    assert "*" not in json.dumps(resources)
    for each in told.functions:
        name = f"{app.capitalize()}{each}"
        for statement in statements(resources, name):
            assert list(statement["Resource"]) == ["Fn::GetAtt"], "one resource of this template"
        logs = resources[f"{name}Logs"]["Properties"]
        assert logs["RetentionInDays"] == {"Ref": "LogDays"}
        config = resources[f"{name}Function"]["Properties"]["LoggingConfig"]
        assert config == {"LogGroup": {"Ref": f"{name}Logs"}}


@pytest.mark.seed("R8")
@pytest.mark.parametrize("app", ["support", "household"])
def test_ingress_may_send_to_its_queue_and_write_nothing(app: str) -> None:
    name = app.capitalize()
    found = statements(template(app)["Resources"], f"{name}Ingress")
    allowed = {(action, one["Resource"]["Fn::GetAtt"][0]) for one in found for action in one["Action"]}
    assert allowed == {
        ("logs:CreateLogStream", f"{name}IngressLogs"),
        ("logs:PutLogEvents", f"{name}IngressLogs"),
        ("sqs:SendMessage", f"{name}Queue"),
    }


SECRET = re.compile(r"\{\{resolve:secretsmanager:\$\{(\w+)\}:SecretString:(\w+)\}\}")


@pytest.mark.parametrize("app", APPS)
def test_secrets_are_looked_up_and_never_told(app: str) -> None:
    """Whatever the app's settings call a token, a key or a secret is a field of a secret."""
    whole = template(app)
    for name in deployment(app).functions:
        function = whole["Resources"][f"{app.capitalize()}{name}Function"]["Properties"]
        for variable, value in function["Environment"]["Variables"].items():
            if re.search(r"SECRET|TOKEN|_KEY$|BROKER$", variable):
                found = SECRET.search(json.dumps(value))
                assert found, variable
                assert found[1] in whole["Parameters"]
                assert found[2] in whole["Parameters"][found[1]]["Description"]


# What each function has to know, and nothing else: whoever may read its configuration may read these.
USED = {
    "quill": {
        "Ingress": {"secret", "powerbi_secret", "aloware_token", "hubspot_secret"},
        "Worker": {"secret", "powerbi_secret"},
    },
    "support": {
        "Ingress": {"secret", "webhook_token"},
        "Worker": {"secret", "richpanel_key", "shopify_token"},
    },
    "household": {"Ingress": {"secret", "secret_token"}, "Worker": {"secret", "bot_token"}},
    "probe": {"Ingress": {"token", "broker"}},
    "notices": {"Ingress": {"secret", "shop_secret"}, "Worker": {"secret"}},
}


@pytest.mark.parametrize("app", APPS)
def test_each_function_is_told_only_the_secrets_that_it_uses(app: str) -> None:
    """That these are enough, the functions show below: they run with them."""
    resources = template(app)["Resources"]
    for name, used in USED[app].items():
        variables = resources[f"{app.capitalize()}{name}Function"]["Properties"]["Environment"]["Variables"]
        assert {found[2] for found in SECRET.finditer(json.dumps(variables))} == used


# Those for which a function has no use.
LEFT_OUT = {
    "quill": {"ttl_days", "star"},  # DYNAMO_TTL_DAYS says the first; a function has no file that lasts
    "support": {"audit"},  # what is printed is with its table or without it, as semel.toml says
    "probe": {"open"},  # an API is open to the world: its callers show a token
}


@pytest.mark.parametrize("app", APPS)
def test_every_setting_is_a_parameter_or_a_secret(app: str) -> None:
    told, fields = deployment(app), {field.name for field in msgspec.structs.fields(kind_of(app))}
    variables = {one.variable for one in told.settings} | {one.variable for one in told.secrets}
    missing = {name for name in fields if f"SEMEL_APPS__{app}__{name}".upper() not in variables}
    assert missing == LEFT_OUT.get(app, set())


def kind_of(app: str) -> Any:
    return find(app, OWN.get(app, "")).kind.settings_type


@pytest.mark.parametrize("app", APPS)
def test_a_parameter_that_nobody_gives_means_what_a_setting_means_that_nobody_sets(app: str) -> None:
    environ = {one.variable: one.default for one in deployment(app).settings if one.default is not None}
    assert settings.from_environment(kind_of(app), app, environ) == kind_of(app)()


# The command


def test_an_app_that_is_not_there_is_told_with_those_that_are(typed: Callable[..., Any]) -> None:
    code, out, err = typed("provision", "--app", "shop", "--print", "sam")
    assert (code, out) == (2, "")
    assert err == (
        "semel: apps.shop: there is no such app; there are quill, support, household, probe; "
        'one of your own is found by at = "package.module:Class"\n'
    )


def test_an_app_brings_its_own_tables(typed: Callable[..., Any]) -> None:
    code, _, err = typed("provision", "--app", "probe", "--table", "ledger", "--print", "sam")
    assert code == 2
    assert "leave out --table, or --app" in err
    code, out, _ = typed("provision", "--app", "probe", "--print", "cloudformation", "--env", "prod")
    assert (code, out) == (0, formats.cloudformation(deployment("probe").tables, "prod"))


@pytest.mark.parametrize(
    ("functions", "queue", "why"),
    [
        ({"Ingress": {"sends": True}}, None, "uses a queue, and there is none"),
        ({"Ingress": {"may": {deployment("quill").ledger: ("GetItem",)}}}, None, "uses quill, which is not"),
        ({"the-worker": {}}, None, "cannot stand in a template"),
        ({"Ingress": {"secrets": ("token",)}}, None, "uses token, which is not among its secrets"),
        ({"Ingress": {"settings": ("Zone",)}}, None, "uses Zone, which is not among its settings"),
    ],
)
def test_a_deployment_that_cannot_work_is_refused(functions: dict[str, Any], queue: Any, why: str) -> None:
    table = deployment("probe").ledger
    made = {name: Function(handler="a.b", about="", **more) for name, more in functions.items()}
    with pytest.raises(ValueError, match=why):
        Deployment(app="x", functions=made, ledger=table, tables=(table,), queue=queue, requires="semel")


def test_a_secret_that_no_function_uses_is_refused() -> None:
    table = deployment("probe").ledger
    made = {"Ingress": Function(handler="a.b", about="")}
    secret = Secret(variable="TOKEN", field="token", about="")
    with pytest.raises(ValueError, match="no function of x uses the secret token"):
        Deployment(
            app="x", functions=made, ledger=table, tables=(table,), secrets=(secret,), requires="semel"
        )


# The functions as the template sets them up


class Aws:
    """What stands before the servers: everything that is asked of them is written down."""

    def __init__(self, dynamodb: str, sqs: str, folder: Path) -> None:
        self.folder = folder
        self.asked: set[tuple[str, str]] = set()
        self._servers = {"dynamodb": dynamodb, "sqs": sqs}
        self._doors = {name: _door(self, name) for name in self._servers}

    def url(self, service: str) -> str:
        return f"http://{HOST}:{self._doors[service].server_address[1]}"

    def take(self, service: str, target: str, path: str, body: bytes) -> None:
        operation, request = target.partition(".")[2], json.loads(body or b"{}")
        if service == "sqs":
            operation = operation.removesuffix("Batch")  # which IAM does not tell apart
            self.asked.add((f"sqs:{operation}", request["QueueUrl"].rpartition("/")[2]))
        elif operation in ("TransactWriteItems", "TransactGetItems"):
            for one in request["TransactItems"]:
                for kind, part in one.items():
                    action = "ConditionCheckItem" if kind == "ConditionCheck" else f"{kind}Item"
                    self.asked.add((f"dynamodb:{action}", part["TableName"]))
        else:
            self.asked.add((f"dynamodb:{operation}", request.get("TableName", "?")))

    def server(self, service: str) -> str:
        return self._servers[service]

    def close(self) -> None:
        for door in self._doors.values():
            door.shutdown()
            door.server_close()


def _door(aws: Aws, service: str) -> ThreadingHTTPServer:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # What is left of an answer would wait until its first part is confirmed.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            aws.take(service, self.headers.get("X-Amz-Target", ""), self.path, body)
            headers = {name: text for name, text in self.headers.items() if name.lower() != "host"}
            request = urllib.request.Request(aws.server(service) + self.path, body, headers)
            try:
                with direct.open(request, timeout=60) as answer:
                    self._pass_on(answer.status, answer.headers, answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    self._pass_on(error.code, error.headers, error.read())

        def _pass_on(self, status: int, headers: Any, body: bytes) -> None:
            self.send_response_only(status)
            for name, text in headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer((HOST, 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


# As Lambda's own: the handler is imported by its path, and is given one event after the other.
RUNTIME = """
import importlib, json, os, sys

class Read(dict):
    names = set()
    def __getitem__(self, name):
        self.names.add(name)
        return super().__getitem__(name)
    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)
    def __contains__(self, name):
        self.names.add(name)
        return super().__contains__(name)
    def copy(self):
        return dict(self)

os.environ = Read(os.environ)
module, _, name = sys.argv[1].rpartition(".")
handler = getattr(importlib.import_module(module), name)

class Context:
    function_name = aws_request_id = "function"
    def get_remaining_time_in_millis(self):
        return 30000

out, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    print(json.dumps(handler(json.loads(line), Context())), file=out, flush=True)
print(json.dumps(sorted(os.environ.names)), file=out, flush=True)
"""


class Stack:
    """A template that was deployed: its tables and its queue are there, and its functions can be invoked."""

    def __init__(
        self, app: str, aws: Aws, scene: ExitStack, parameters: dict[str, str], secrets: dict[str, str]
    ) -> None:
        self._folder = aws.folder
        self.app, self.parameters, self._aws, self._secrets = app, parameters, aws, secrets
        self.env = f"e{uuid.uuid4().hex[:8]}"
        self.told, self.template = deployment(app), template(app, env=self.env)
        self.resources: dict[str, Any] = self.template["Resources"]
        self.read: dict[str, set[str]] = {}
        """The variables that each function has looked at."""
        self.asked: dict[str, set[tuple[str, str]]] = {name: set() for name in self.told.functions}
        """What each function has asked of AWS: the action, and the name within the template."""
        self.logged: dict[str, list[str]] = {name: [] for name in self.told.functions}
        wire = Wire(
            "dynamodb", region=LAMBDA["AWS_REGION"], endpoint=aws.server("dynamodb"), credentials=ANYBODY
        )
        dynamodb.provision(wire, self.told.tables, self.env, clock=Clock())
        wire.close()
        self.queue = self.dead = None
        if self.told.queue is not None:
            self.queue = Queue(make_queue(aws.server("sqs"), f"{app}-{self.env}.fifo", VisibilityTimeout=0))
            self.dead = Queue(make_queue(aws.server("sqs"), f"{app}-{self.env}-dead.fifo"))
            scene.callback(self.queue.close)
            scene.callback(self.dead.close)

    def forget(self, table: Table, key: str) -> None:
        """Remove an item, as DynamoDB does when its time is up."""
        endpoint = self._aws.server("dynamodb")
        wire = Wire("dynamodb", region=LAMBDA["AWS_REGION"], endpoint=endpoint, credentials=ANYBODY)
        name = {table.partition: {"S": f"{prefix(self.env, '')}{key}"}}
        wire.call("DeleteItem", {"TableName": title(table, self.env), "Key": name}, write=True)
        wire.close()

    def records(self) -> list[dict[str, Any]]:
        """The messages that wait, as Lambda gives them to a function."""
        assert self.queue is not None
        asked = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"], "VisibilityTimeout": 0}
        told = self.queue.call("ReceiveMessage", asked).get("Messages") or []
        return [
            sqs_record(one["MessageId"], one["Body"], self.queue.name) | {"attributes": one["Attributes"]}
            for one in told
        ]

    def bury(self, invoke: Callable[[Any], Any]) -> None:
        """Let a worker have a message that nobody can read: it is put aside, and holds up none."""
        nonsense = sqs_record("nonsense", "it is no envelope", f"{self.app}-{self.env}.fifo")
        nonsense["attributes"] |= {"MessageGroupId": "g"}
        assert invoke(batch(nonsense)) == {"batchItemFailures": []}
        assert self.dead is not None
        told = self.dead.call("ReceiveMessage", {"MaxNumberOfMessages": 1})["Messages"]
        assert [one["Body"] for one in told] == ["it is no envelope"]

    def environment(self, function: str) -> dict[str, str]:
        """The variables that the template sets."""
        told = self.variables(function).items()
        return {name: text for name, value in told if (text := self._resolved(value)) is not None}

    def variables(self, function: str) -> dict[str, Any]:
        """The same as they stand in it."""
        properties = self.resources[f"{self.app.capitalize()}{function}Function"]["Properties"]
        found: dict[str, Any] = properties["Environment"]["Variables"]
        return found

    @contextmanager
    def invoking(self, function: str, **more: str) -> Iterator[Callable[[Any], Any]]:
        """An instance of a function, with the template's environment and what the test has to add to it."""
        properties = self.resources[f"{self.app.capitalize()}{function}Function"]["Properties"]
        environ = self.environment(function) | LAMBDA | more
        environ |= {f"AWS_ENDPOINT_URL_{name.upper()}": self._aws.url(name) for name in ("dynamodb", "sqs")}
        program = [sys.executable, "-c", RUNTIME, properties["Handler"]]
        log = self._folder / f"{self.app}-{function}.log"
        with log.open("a") as written:
            process = subprocess.Popen(
                program,
                env=environ,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        self._aws.asked.clear()

        def invoke(event: Any) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps(event), file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, log.read_text()
            return json.loads(answer)

        with process:
            yield invoke
            process.stdin.close()
            self.read.setdefault(function, set()).update(json.loads(process.stdout.readline()))
        assert process.returncode == 0
        self.logged[function] = log.read_text().splitlines()
        self.asked[function] |= {(action, self._logical(name)) for action, name in self._aws.asked}

    def allowed(self, function: str) -> set[tuple[str, str]]:
        """What its policy allows: the action, and the name within the template."""
        found = statements(self.resources, f"{self.app.capitalize()}{function}")
        return {(action, one["Resource"]["Fn::GetAtt"][0]) for one in found for action in one["Action"]}

    def _logical(self, name: str) -> str:
        titles = {title(table, self.env): formats.logical(table) for table in self.told.tables}
        if self.queue is not None:
            titles[self.queue.name] = f"{self.app.capitalize()}Queue"
            titles[self.dead.name] = f"{self.app.capitalize()}DeadLetters"
        return titles.get(name, name)

    def _resolved(self, value: Any) -> str | None:
        """A value as CloudFormation hands it over; None where there is none."""
        match value:
            case str():
                return value
            case {"Ref": "AWS::NoValue"}:
                return None
            case {"Ref": name}:
                return self._named(name)
            case {"Fn::Sub": text}:
                whole = re.sub(r"\$\{([\w:]+)\}", lambda found: self._named(found[1]), text)
                return re.sub(SECRET.pattern.replace(r"\$\{(\w+)\}", "([^:]+)"), self._looked_up, whole)
            case {"Fn::If": [condition, yes, no]}:
                left, right = self.template["Conditions"][condition]["Fn::Equals"]
                return self._resolved(yes if self._resolved(left) == right else no)
        raise AssertionError(value)

    def _looked_up(self, found: re.Match[str]) -> str:
        assert found[1] == f"semel/{self.env}/{self.app}"
        return self._secrets[found[2]]

    def _named(self, name: str) -> str:
        if name == "AWS::Region":
            return LAMBDA["AWS_REGION"]
        if name in self.template["Parameters"]:
            default = self.template["Parameters"][name].get("Default")
            return self.parameters.get(name.removeprefix(self.app.capitalize()), default)
        for queue, kind in ((self.queue, "Queue"), (self.dead, "DeadLetters")):
            if queue is not None and name == f"{self.app.capitalize()}{kind}":
                return queue.url.replace(self._aws.server("sqs"), self._aws.url("sqs"))
        return str(self.resources[name]["Properties"]["TableName"])


ANYBODY = Credentials("test", "test")
LAMBDA = CREDENTIALS | {"PATH": os.environ.get("PATH", os.defpath)}


@pytest.fixture(scope="module")
def aws(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    # A server of its own: some of the seeds' tables have one name, whatever the environment.
    with served(dynoxide if shutil.which("npm") else ministack) as url:
        aws = Aws(url, request.getfixturevalue("sqs"), tmp_path_factory.mktemp("functions"))
        yield aws
        aws.close()


def posted(path: str, body: Any, **headers: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): [text] for name, text in headers.items()}
    return http_api(
        body if isinstance(body, bytes) else json.dumps(body).encode(), named, path=path, caller=None
    )


def support(aws: Aws, scene: ExitStack) -> Stack:
    """Accepted, handled with replies and a look-up, failed and tried again; and once more with an outbox."""
    richpanel, shop = scene.enter_context(Richpanel()), scene.enter_context(Shop())
    shop.add("9087654", "ann@example.com")
    secrets = {
        "secret": "a secret of the tests",
        "webhook_token": "hook-token-of-the-tests",
        "richpanel_key": API_KEY,
        "shopify_token": SHOP_TOKEN,
    }
    parameters = {
        "HasRichpanelKey": "yes",
        "HasShopifyToken": "yes",
        "AutomationEnabled": "true",
        "ShopifyUrl": shop.url,
    }
    made = Stack("support", aws, scene, parameters, secrets)
    ask = {"message": "Where is my order #9087654?", "email": "ann@example.com"}
    with made.invoking("Ingress") as invoke:
        for number in range(3):
            message = ask | {"ticket_id": f"c{number % 2}", "message_id": f"m{number}"}
            event = posted("/webhooks/richpanel", message, Authorization="Bearer hook-token-of-the-tests")
            assert invoke(event)["statusCode"] == 200
    address = {"SEMEL_APPS__SUPPORT__RICHPANEL_URL": richpanel.url}
    richpanel.fail(next=9, status=503)
    with made.invoking("Worker", **address) as invoke:
        assert len(invoke(batch(*made.records()[:1]))["batchItemFailures"]) == 1
        richpanel.fail(next=0)
        for _ in range(2):
            assert invoke(batch(*made.records()[:2]))["batchItemFailures"] == []
        made.bury(invoke)
    assert len(richpanel.replies) == 2
    made.parameters = {"AutomationEnabled": "true"}
    with made.invoking("Worker", **address) as invoke:
        assert invoke(batch(made.records()[2]))["batchItemFailures"] == []
    return made


def quill(aws: Aws, scene: ExitStack) -> Stack:
    """Posted at once; left to the worker; failed there and posted then."""
    there = scene.enter_context(powerbi.PowerBI())
    given = quill_kit.dataset_at(there)
    parameters = {
        "PowerbiTenant": powerbi.TENANT,
        "PowerbiClient": powerbi.CLIENT,
        "PowerbiWorkspace": powerbi.WORKSPACE,
        "PowerbiDataset": given["powerbi_dataset"],
        "HasAloware": "yes",
    }
    secrets = {
        "secret": "a secret of the tests",
        "powerbi_secret": powerbi.SECRET,
        "aloware_token": quill_kit.TOKEN,
    }
    made = Stack("quill", aws, scene, parameters, secrets)
    more = {f"SEMEL_APPS__QUILL__{name.upper()}": there.url for name in ("powerbi_url", "powerbi_login")}
    with made.invoking("Ingress", **more) as invoke:
        for number, fails in ((1, 0), (1, 0), (2, 9)):
            there.fail(next=fails, status=408)
            headers, body = quill_kit.bearer(quill_kit.call(number))
            assert invoke(posted(quill_kit.ALOWARE, body, **headers))["statusCode"] == 200
    with made.invoking("Worker", **more) as invoke:
        assert len(invoke(batch(*made.records()))["batchItemFailures"]) == 1
    there.fail(next=0)
    with made.invoking("Worker", **more) as invoke:
        # A day later what was known of the pace is gone, and so is that Power BI was away.
        made.forget(DOCUMENTS, Key("PACE", powerbi.WORKSPACE, given["powerbi_dataset"]))
        for _ in range(2):
            assert invoke(batch(*made.records()))["batchItemFailures"] == []
        made.bury(invoke)
    return made


def household(aws: Aws, scene: ExitStack) -> Stack:
    """Noted and replied to, refused by the gate, failed and tried again; and once more with an outbox."""
    telegram = scene.enter_context(Telegram())
    shared = household_kit.SECRET_TOKEN
    secrets = {"secret": "a secret of the tests", "secret_token": shared, "bot_token": BOT_TOKEN}
    awake = household_kit.awake()
    made = Stack("household", aws, scene, {"Zone": awake["zone"], "HasBot": "yes"}, secrets)
    shown = {"X_Telegram_Bot_Api_Secret_Token": shared}
    with made.invoking("Ingress") as invoke:
        for number in range(1, 4):
            update = household_kit.update(number, "Jag har diskat", chat=-number)
            assert invoke(posted("/webhooks/telegram", update, **shown))["statusCode"] == 200
    more = {"SEMEL_APPS__HOUSEHOLD__TELEGRAM_URL": telegram.url}
    with made.invoking("Worker", **more) as invoke:
        telegram.fail(next=9, status=429)
        assert len(invoke(batch(made.records()[0]))["batchItemFailures"]) == 1
        telegram.fail(next=0)
        for _ in range(2):
            assert invoke(batch(*made.records()[:2]))["batchItemFailures"] == []
        made.bury(invoke)
    assert len(telegram.sent) == 2
    made.parameters = {"Zone": awake["zone"]}
    with made.invoking("Worker", **more) as invoke:
        assert invoke(batch(made.records()[2]))["batchItemFailures"] == []
    return made


def probe(aws: Aws, scene: ExitStack) -> Stack:
    """Produced, asked again, consumed, failed."""
    made = Stack("probe", aws, scene, {}, {"token": "correct-horse-battery"})
    shown = {"Authorization": "Bearer correct-horse-battery"}
    with made.invoking("Ingress") as invoke:
        for key, operation, order, status in (
            ("a", "produce", {"address": "q", "count": 2}, 200),
            ("a", "produce", {"address": "q", "count": 2}, 200),
            ("a", "produce", {"address": "q", "count": 3}, 422),
            ("b", "produce", {"address": "q", "messages": ["x" * 200_000]}, 200),
            ("a", "consume", {"address": "q", "max": 2, "seconds": 0}, 200),
            ("b", "consume", {"address": "q", "max": 1, "seconds": 0}, 409),
        ):
            event = posted(f"/messages/{operation}", order, Idempotency_Key=key, **shown)
            assert invoke(event)["statusCode"] == status
    return made


class Warehouse(StandIn):
    """Takes notices."""

    def answer(self, request: Request) -> Reply:
        return Reply(200, {"receipt": "r-1"})


def notices(aws: Aws, scene: ExitStack) -> Stack:
    """Accepted, told to the warehouse after it failed once; and once more with an outbox."""
    warehouse = scene.enter_context(Warehouse())
    secrets = {"secret": "a secret of the tests", "shop_secret": "of the shop"}
    made = Stack("notices", aws, scene, {"WarehouseUrl": warehouse.url}, secrets)
    code = {"PYTHONPATH": str(EXAMPLE)}  # which sam build puts there
    with made.invoking("Ingress", **code) as invoke:
        for number in ("1001", "1001", "1002"):
            body = json.dumps({"event": "order.paid", "number": number, "items": 1}).encode()
            signature = hmac.new(b"of the shop", body, "sha256").hexdigest()
            assert invoke(posted("/webhooks/shop", body, X_Shop_Signature=signature))["statusCode"] == 200
    warehouse.fail(next=1, status=503)
    with made.invoking("Worker", **code) as invoke:
        assert len(invoke(batch(*made.records()[:1]))["batchItemFailures"]) == 1
        for _ in range(2):
            assert invoke(batch(*made.records()[:1]))["batchItemFailures"] == []
        made.bury(invoke)
    assert [one.json["number"] for one in warehouse.received if one.applied] == ["1001"]
    made.parameters = {}
    with made.invoking("Worker", **code) as invoke:
        assert invoke(batch(*made.records()[1:]))["batchItemFailures"] == []
    return made


SCENES = {"support": support, "quill": quill, "household": household, "probe": probe, "notices": notices}

# What AWS says itself, what Python and libraries ask for, and what is right on Lambda where it is not said.
ELSEWHERE = re.compile(
    r"AWS_\w+|(?i:(https?|no|all)_proxy)|REQUEST_METHOD|SSL\w+|_?PYTHON\w+|PATH|HOME|NETRC|(?i:prometheus)_\w+|"
    r"SEMEL_SCOPE|SEMEL_SECRET|SEMEL_SECRETS_DIR|DYNAMO_ENDPOINT|DYNAMO_REGION|SEMEL_SERVICE__PUBLIC_URL"
)


@pytest.mark.parametrize("app", APPS)
def test_every_handler_that_a_template_names_is_a_function_of_an_event_and_a_context(app: str) -> None:
    for name, function in deployment(app).functions.items():
        properties = template(app)["Resources"][f"{app.capitalize()}{name}Function"]["Properties"]
        assert properties["Handler"] == function.handler
        module, _, entry = function.handler.rpartition(".")
        handler = getattr(importlib.import_module(module), entry)
        assert len(inspect.signature(handler).parameters) == 2


@pytest.mark.parametrize("app", APPS)
def test_every_address_of_an_application_is_one_that_its_entry_point_answers(app: str) -> None:
    """A hook that no route leads to is as bad as a route that leads nowhere."""
    told = deployment(app)
    routed = [path for function in told.functions.values() for path in function.paths]
    assert sorted(routed) == sorted(HOOKS[app])


HOOKS = {
    "quill": [quill_kit.ALOWARE, quill_kit.HUBSPOT],
    "support": [support_app.PATH],
    "household": [household_app.PATH],
    "probe": ["/messages/produce", "/messages/consume"],
    "notices": ["/webhooks/shop"],
}


def beyond_its_policy(made: Stack, function: str) -> set[tuple[str, str]]:
    """What a function has asked for, and may not."""
    return made.asked[function] - made.allowed(function)


def never_asked_for(made: Stack, function: str) -> set[tuple[str, str]]:
    """What it may, and has not asked for; but for its log, and what Lambda takes from the queue itself."""
    works = made.told.functions[function].works
    lambdas = {(action, f"{made.app.capitalize()}Queue") for action in stack.RECEIVING if works}
    more = made.allowed(function) - made.asked[function] - lambdas
    return {one for one in more if not one[0].startswith("logs:")}


def settings_of(app: str, *, required: bool) -> set[str]:
    """The variables of its settings, or of those that have no default."""
    fields = msgspec.structs.fields(kind_of(app))
    names = [field.name for field in fields if field.required or not required]
    return {f"SEMEL_APPS__{app}__{name}".upper() for name in names}


def read_and_not_set(made: Stack, function: str) -> set[str]:
    """The variables that it has looked for, which nobody sets, and which have no default."""
    optional = settings_of(made.app, required=False) - settings_of(made.app, required=True)
    unset = made.read[function] - made.environment(function).keys() - optional
    return {name for name in unset if not ELSEWHERE.fullmatch(name)}


def set_and_not_known(made: Stack, function: str) -> set[str]:
    """Those that the template sets and nobody looks for: misspelled, they would be without effect."""
    known = made.read[function] | settings_of(made.app, required=False) | COPIED
    return made.variables(function).keys() - known


def counted(made: Stack, function: str) -> set[str]:
    """The metrics that it has written, under the dimensions that the alarms watch."""
    lines = [json.loads(line) for line in made.logged[function] if line.startswith('{"_aws"')]
    mine = [one for one in lines if (one["service"], one["env"]) == (made.app, made.env)]
    return {"Hits", "Misses"} & {name for one in mine for name in one}


# Looked up in a copy of the environment, as there is a default for them in it.
COPIED = {"SEMEL_URL", "SEMEL_ENV", "DYNAMO_TTL_DAYS"}


@pytest.mark.seed("A5", "A6", "H9", "R8")
@pytest.mark.parametrize("app", APPS)
def test_functions_have_what_they_need_and_nothing_else(app: str, aws: Aws) -> None:
    """Their policy allows what they ask for and no more, and they are told what they read and no more."""
    with ExitStack() as scene:
        made = SCENES[app](aws, scene)
    for function, told in made.told.functions.items():
        assert beyond_its_policy(made, function) == set()
        assert never_asked_for(made, function) == set()
        assert read_and_not_set(made, function) == set()
        assert set_and_not_known(made, function) == set()
        if told.works or not made.told.queue:
            assert counted(made, function) == {"Hits", "Misses"}
