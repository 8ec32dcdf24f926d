"""The tables as text: read by the tools they are for, and the same tables in each."""

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from semel.apps.tables import ACTIVITIES, ALCHEMISER, MESSAGES, PROBE, QUILL, RESPONSE_COUNTERS
from semel.cli.provision import named
from semel.errors import InvalidOption
from semel.provision import formats, shape
from semel.provision.formats import Role, cdk, cloudformation, sam, sam_template, template, terraform
from semel.stores.dynamodb.items import title
from semel.tables import LEDGER, OWN, Index, Kind, known
from semel.tables.mapping import TableMapping, mapped
from tests import statements_page, tables_page

ROOT = Path(__file__).parents[2]
EVERY = tuple(known())
HOUSEHOLD = (ACTIVITIES, RESPONSE_COUNTERS, MESSAGES)
PAID = TableMapping(
    name="paid",
    partition="id",
    attributes={"at": Kind.NUMBER, "raw": Kind.BYTES},
    expires="end",
    capacity=(5, 7),
    indexes=(
        Index(name="by-at", partition="at", sort="raw"),
        Index(name="by-end", partition="at", sort="end", carries=()),
        Index(name="by-raw", partition="raw", carries=("at",)),
    ),
    tags={"cost:center": "a b=c@d", "plain": "x"},
)
SETS = [pytest.param(EVERY, id="every"), pytest.param((PAID,), id="paid")]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """The names that the tables have by themselves, and a region, which SAM's translator asks for."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    for table in EVERY:
        if titled_by := mapped(table).titled_by:
            monkeypatch.delenv(titled_by, raising=False)


# Which tables


def test_without_a_name_the_tables_are_semels_own():
    assert named([]) == OWN
    assert named(["quill", "ledger", "quill"]) == (QUILL, LEDGER)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InvalidOption, match="there is no table 'ledgers'; known are ledger, documents"):
        named(["ledgers"])


@pytest.mark.parametrize("name", formats.TEXTS)
def test_a_text_is_the_same_every_time_and_ends_with_one_line_break(name):
    text = formats.TEXTS[name]
    first = text(EVERY, "prod")
    assert text(iter(EVERY), "prod") == first
    assert first.endswith("\n")
    assert not first.endswith("\n\n")


# CloudFormation and SAM


def lint(text: str) -> list[str]:
    """What cfn-lint has to say of a template, its warnings and hints included."""
    linter = importlib.import_module("cfnlint")
    config = linter.ManualArgs(regions=["eu-west-1"], include_checks=["I"])
    matches = linter.lint(text, config=config)
    return [f"{match.rule.id} {match.message}" for match in matches]


def test_cfn_lint_would_say_what_is_wrong():
    broken = cloudformation((LEDGER,), "prod").replace("KeyType: HASH", "KeyType: HASHED")
    assert any("HASHED" in said for said in lint(broken))


@pytest.mark.seed("A5")
@pytest.mark.seed("H9")
@pytest.mark.parametrize("tables", SETS)
@pytest.mark.parametrize("text", [cloudformation, sam], ids=["cloudformation", "sam"])
def test_cfn_lint_has_nothing_to_say_of_the_templates(text, tables):
    assert lint(text(tables, "prod")) == []


@pytest.mark.seed("A5")
def test_the_template_of_the_idempotency_service_has_what_its_seed_writes_out():
    resource = template((ALCHEMISER,), "prod")["Resources"]["AlchemiserTable"]
    assert resource["Type"] == "AWS::DynamoDB::Table"
    assert resource["Properties"] == {
        "TableName": "alchemiser-idempotency-keys",
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": "idempotency_key", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "idempotency_key", "KeyType": "HASH"}],
        "TimeToLiveSpecification": {"Enabled": True, "AttributeName": "expiry_time"},
        "Tags": [{"Key": "Purpose", "Value": "Idempotency"}],
    }


@pytest.mark.seed("A5")
def test_the_template_has_a_policy_to_create_read_update_and_delete():
    policy = template((ALCHEMISER,), "prod")["Resources"]["WorkerPolicy"]
    [statement] = policy["Properties"]["PolicyDocument"]["Statement"]
    actions = {action.removeprefix("dynamodb:") for action in statement["Action"]}
    assert actions == {"PutItem", "GetItem", "UpdateItem", "DeleteItem"}
    assert statement["Resource"] == [{"Fn::GetAtt": ["AlchemiserTable", "Arn"]}]


@pytest.mark.seed("M6")
def test_the_template_of_the_probe_pays_by_request_and_expires_by_ttl():
    properties = shape.description(PROBE, "prod")
    assert properties["BillingMode"] == "PAY_PER_REQUEST"
    assert properties["TimeToLiveSpecification"] == {"Enabled": True, "AttributeName": "ttl"}
    assert "GlobalSecondaryIndexes" not in properties


def test_a_table_stays_when_its_stack_goes():
    for name, resource in template(EVERY, "prod")["Resources"].items():
        if resource["Type"] == "AWS::DynamoDB::Table":
            assert (resource["DeletionPolicy"], resource["UpdateReplacePolicy"]) == ("Retain", "Retain"), name


def test_the_yaml_is_the_template():
    yaml = importlib.import_module("yaml")
    assert yaml.safe_load(cloudformation(EVERY, "prod")) == template(EVERY, "prod")
    assert yaml.safe_load(sam(EVERY, "prod")) == sam_template(EVERY, "prod")


def translated(template: dict) -> dict:
    """What AWS makes of a SAM template."""
    transform = importlib.import_module("samtranslator.translator.transform").transform

    class Policies:
        def load(self) -> dict[str, str]:
            return {}

    return transform(template, {}, Policies())


@pytest.mark.seed("A5")
def test_sam_translates_into_the_same_tables():
    made = translated(sam_template(EVERY, "prod"))
    expected = template(EVERY, "prod")
    assert made["Resources"] == expected["Resources"]


@pytest.mark.seed("A5")
def test_a_function_added_to_the_sam_template_knows_store_environment_and_tables():
    found = sam_template((ALCHEMISER, QUILL), "prod")
    found["Resources"]["Handler"] = {
        "Type": "AWS::Serverless::Function",
        "Properties": {
            "Runtime": "python3.13",
            "Handler": "app.handler",
            "CodeUri": "s3://bucket/key",
            "Policies": [{"Ref": "WorkerPolicy"}],
        },
    }
    made = translated(found)["Resources"]
    assert made["Handler"]["Properties"]["Environment"]["Variables"] == {
        "SEMEL_URL": {"Fn::Sub": "dynamodb://${AWS::Region}"},
        "SEMEL_ENV": "prod",
        "IDEMPOTENCY_TABLE_NAME": {"Ref": "AlchemiserTable"},
        "DYNAMO_TABLE_NAME": {"Ref": "QuillTable"},
    }
    assert {"Ref": "WorkerPolicy"} in made["HandlerRole"]["Properties"]["ManagedPolicyArns"]


# Terraform


def parsed(text: str) -> dict:
    """HCL as python-hcl2 reads it, with quotes and block markers taken off."""
    import hcl2

    return plain(hcl2.loads(text))


def plain(value):
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items() if key != "__is_block__"}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return json.loads(value) if isinstance(value, str) and value.startswith('"') else value


def resources(text: str, kind: str) -> dict[str, dict]:
    found = [block[kind] for block in parsed(text)["resource"] if kind in block]
    return {name: body for each in found for name, body in each.items()}


def as_request(table: dict) -> dict:
    """A Terraform table as the CreateTable request that it becomes."""
    request = {
        "TableName": table["name"],
        "AttributeDefinitions": [
            {"AttributeName": each["name"], "AttributeType": each["type"]} for each in table["attribute"]
        ],
        "KeySchema": shape.key_schema(table["hash_key"], table.get("range_key")),
        "BillingMode": table["billing_mode"],
        **units(table),
    }
    if "global_secondary_index" in table:
        request["GlobalSecondaryIndexes"] = [
            {
                "IndexName": each["name"],
                "KeySchema": shape.key_schema(each["hash_key"], each.get("range_key")),
                "Projection": projection(each["projection_type"], each.get("non_key_attributes")),
                **units(each),
            }
            for each in table["global_secondary_index"]
        ]
    if "tags" in table:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in table["tags"].items()]
    return request


def projection(kind: str, names: list[str] | None) -> dict:
    return {"ProjectionType": kind} | ({} if names is None else {"NonKeyAttributes": names})


def units(block: dict) -> dict:
    if "read_capacity" not in block:
        return {}
    read, write = block["read_capacity"], block["write_capacity"]
    return {"ProvisionedThroughput": {"ReadCapacityUnits": read, "WriteCapacityUnits": write}}


@pytest.mark.seed("H9")
@pytest.mark.parametrize("tables", SETS)
def test_terraform_makes_the_same_tables(tables):
    made = resources(terraform(tables, "prod"), "aws_dynamodb_table")
    assert len(made) == len(tables)
    for table in tables:
        found = made[formats.local(table)]
        assert as_request(found) == shape.create_request(table, "prod")
        assert found.get("ttl") == ([{"attribute_name": table.ttl, "enabled": True}] if table.ttl else None)
        recovery = [{"enabled": True}] if mapped(table).recoverable else None
        assert found.get("point_in_time_recovery") == recovery
        assert found["lifecycle"] == [{"prevent_destroy": True}]


@pytest.mark.seed("H9")
def test_terraform_has_the_policy_of_the_worker():
    text = terraform(HOUSEHOLD, "prod")
    [data] = parsed(text)["data"]
    statements = data["aws_iam_policy_document"]["semel_worker"]["statement"]
    expected = formats.policy(HOUSEHOLD, "prod", Role.WORKER)["Statement"]
    assert [each["actions"] for each in statements] == [each["Action"] for each in expected]
    assert statements[0]["resources"] == [
        f"${{aws_dynamodb_table.{formats.local(table)}.arn}}" for table in HOUSEHOLD
    ]
    assert statements[1]["resources"] == [
        "${aws_dynamodb_table.household_activities.arn}/index/userId-timestamp-index"
    ]
    assert resources(text, "aws_iam_policy")["semel_worker"]["name"] == "semel-prod-worker"


@pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not installed")
@pytest.mark.parametrize("tables", SETS)
def test_terraform_fmt_would_change_nothing(tables):
    text = terraform(tables, "prod")
    done = subprocess.run(["terraform", "fmt", "-"], input=text, capture_output=True, text=True, check=True)
    assert done.stdout == text


# CDK


def calls(text: str) -> list[tuple[str, list, dict]]:
    """The calls of a module that make something: what is called, and the arguments that are plain values."""
    made = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            named = {each.arg: ast.unparse(each.value) for each in node.keywords}
            made.append((ast.unparse(node.func), [ast.unparse(each) for each in node.args], named))
    return made


@pytest.mark.seed("H9")
@pytest.mark.parametrize("tables", SETS)
def test_the_cdk_stack_compiles_and_makes_every_table_with_its_keys_and_ttl(tables):
    text = cdk(tables, "prod")
    compile(text, "stack.py", "exec")
    made = {ast.literal_eval(args[1]): kw for name, args, kw in calls(text) if name == "dynamodb.Table"}
    assert made.keys() == {formats.logical(table) for table in tables}
    for table in tables:
        found = made[formats.logical(table)]
        assert ast.literal_eval(found["table_name"]) == title(table, "prod")
        assert f"name={table.partition!r}" in found["partition_key"]
        assert ("sort_key" in found) is (table.sort is not None)
        assert found.get("time_to_live_attribute") == (repr(table.ttl) if table.ttl else None)
        assert ("point_in_time_recovery_specification" in found) is mapped(table).recoverable
        assert found["removal_policy"] == "RemovalPolicy.RETAIN"


@pytest.mark.seed("H9")
@pytest.mark.parametrize("tables", SETS)
def test_the_cdk_stack_adds_every_index_with_its_keys_and_what_it_carries(tables):
    text = cdk(tables, "prod")
    made = [kw for name, _, kw in calls(text) if name.endswith(".add_global_secondary_index")]
    expected = [shape.index(table, index) for table in tables for index in table.indexes]
    assert len(made) == len(expected)
    for found, index in zip(made, expected, strict=True):
        assert ast.literal_eval(found["index_name"]) == index["IndexName"]
        keys = [found[word] for word in ("partition_key", "sort_key") if word in found]
        assert len(keys) == len(index["KeySchema"])
        for key, each in zip(keys, index["KeySchema"], strict=True):
            assert f"name={each['AttributeName']!r}" in key
        kind = found["projection_type"].removeprefix("dynamodb.ProjectionType.")
        names = found.get("non_key_attributes")
        assert projection(kind, names and ast.literal_eval(names)) == index["Projection"]


def test_the_cdk_stack_is_written_as_ruff_would_write_it():
    text = cdk(EVERY, "prod")
    for words in (["format", "--diff"], ["check", "--select", "E,F,I,N,RUF,UP"]):
        command = [sys.executable, "-m", "ruff", *words, "--isolated", "--line-length", "110", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.seed("H9")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tables", SETS)
def test_the_cdk_synthesizes_the_same_tables(tables, tmp_path, monkeypatch):
    """aws-cdk-lib runs in Node, and is large: `make slow` installs it."""
    aws_cdk = importlib.import_module("aws_cdk")
    assertions = importlib.import_module("aws_cdk.assertions")
    (tmp_path / "semel_stack.py").write_text(cdk(tables, "prod"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "semel_stack", raising=False)
    stack = importlib.import_module("semel_stack").SemelTables(aws_cdk.App(), "Tables")
    made = assertions.Template.from_stack(stack).to_json()["Resources"]
    found = {
        each["Properties"]["TableName"]: each["Properties"]
        for each in made.values()
        if each["Type"] == "AWS::DynamoDB::Table"
    }
    for table in tables:
        expected = shape.description(table, "prod")
        if mapped(table).capacity is not None:
            del expected["BillingMode"]  # which is what the CDK leaves unsaid
        assert found[expected["TableName"]] == expected


# IAM


@pytest.mark.seed("H9")
def test_the_worker_of_the_household_may_do_its_work_and_no_more():
    pages, indexes = formats.policy(
        HOUSEHOLD, "prod", Role.WORKER, region="eu-north-1", account="123456789012"
    )["Statement"]
    assert pages["Action"] == [
        "dynamodb:DeleteItem",
        "dynamodb:GetItem",
        "dynamodb:PutItem",
        "dynamodb:Query",
        "dynamodb:UpdateItem",
    ]
    home = "arn:aws:dynamodb:eu-north-1:123456789012:table/homeops"
    assert pages["Resource"] == [
        f"{home}-{name}-prod" for name in ("activities", "response-counters", "messages")
    ]
    assert indexes["Action"] == ["dynamodb:Query"]
    assert indexes["Resource"] == [f"{home}-activities-prod/index/userId-timestamp-index"]


@pytest.mark.parametrize("role", list(Role))
def test_no_policy_has_a_wildcard_but_for_region_and_account(role):
    for statement in formats.policy(EVERY, "prod", role)["Statement"]:
        assert statement["Effect"] == "Allow"
        assert not any("*" in action for action in statement["Action"])
        for resource in statement["Resource"]:
            assert re.fullmatch(r"arn:aws:dynamodb:\*:\*:table/[\w.-]+(/index/[\w.-]+)?", resource)


@pytest.mark.parametrize("role", list(Role))
def test_cfn_lint_takes_every_policy_for_one_that_iam_knows(role):
    yaml = importlib.import_module("yaml")
    document = formats.policy(EVERY, "prod", role)
    policy = {"Type": "AWS::IAM::ManagedPolicy", "Properties": {"PolicyDocument": document}}
    assert lint(yaml.safe_dump({"Resources": {"Policy": policy}})) == []


def may(role: Role) -> set[str]:
    statements = formats.policy(EVERY, "prod", role)["Statement"]
    return {action.removeprefix("dynamodb:") for each in statements for action in each["Action"]}


def test_each_role_may_do_what_it_is_for():
    assert may(Role.INGRESS) == {"GetItem", "PutItem"}
    assert may(Role.WORKER) == {"GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query"}
    assert not may(Role.READ_ONLY) & {"PutItem", "UpdateItem", "DeleteItem", "CreateTable", "TagResource"}
    assert may(Role.READ_ONLY) | may(Role.WORKER) < may(Role.OPERATOR)
    assert "DeleteTable" not in may(Role.OPERATOR)


def test_a_table_without_pages_is_not_queried_but_its_indexes_are():
    records, indexes = formats.policy((LEDGER,), "prod", Role.WORKER)["Statement"]
    assert "dynamodb:Query" not in records["Action"]
    assert indexes["Action"] == ["dynamodb:Query"]
    assert indexes["Resource"] == [
        f"arn:aws:dynamodb:*:*:table/semel-prod-ledger/index/{name}"
        for name in ("subject", "doubts", "failures")
    ]
    [alone] = formats.policy((PROBE,), "prod", Role.WORKER)["Statement"]
    assert "dynamodb:Query" not in alone["Action"]


@pytest.mark.seed("H9")
def test_whoever_only_writes_may_not_look_anybody_up():
    """An index of persons is for those who read, and nobody writes to an index."""
    for role in Role:
        statements = {each["Sid"]: each for each in formats.policy(OWN, "prod", role)["Statement"]}
        assert ("Indexes" in statements) is (role is not Role.INGRESS)
        resources = [resource for each in statements.values() for resource in each["Resource"]]
        named = {resource.partition("/index/")[2] for resource in resources} - {""}
        assert named == (set() if role is Role.INGRESS else {"subject", "actor-at", "doubts", "failures"})
        assert statements.get("Indexes", {"Action": ["dynamodb:Query"]})["Action"] == ["dynamodb:Query"]


# The page


def test_the_page_about_the_tables_is_made_from_them():
    written = (ROOT / "docs" / "reference" / "tables.md").read_text("utf-8")
    assert written == tables_page.text(), "python -m tests.tables_page > docs/reference/tables.md"


def test_the_page_about_statements_is_what_the_ledger_runs():
    written = (ROOT / "docs" / "reference" / "statements.md").read_text("utf-8")
    assert written == statements_page.text(), "python -m tests.statements_page > docs/reference/statements.md"


def test_the_page_tells_what_an_index_carries():
    section = tables_page.section(PAID)
    assert "| index `by-at` | `at` (N), `raw` (B), with all attributes |" in section
    assert "| index `by-end` | `at` (N), `end` (N), with the key |" in section
    assert "| index `by-raw` | `raw` (B), with the key, `end`, `at` |" in section


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.name)
def test_the_page_tells_of_every_attribute_the_title_and_the_ttl(table):
    section = tables_page.section(table)
    for name in (*table.kinds, *(column.name for column in mapped(table).columns.values())):
        assert f"| `{name}` |" in section
    assert table.title.replace("{name}", table.name) in section
    assert (f"| TTL | on `{table.ttl}` |" if table.ttl else f"| TTL | none: {table.forever} |") in section
