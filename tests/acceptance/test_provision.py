"""`semel provision` and `semel cost` as an operator types them, on servers and on files."""

import json
import shlex
import sqlite3
from collections import Counter
from contextlib import closing
from uuid import uuid4

import msgspec
import pytest

import semel
from semel.apps.tables import ACTIVITIES, MESSAGES
from semel.aws.environment import Credentials
from semel.aws.errors import ServiceError
from semel.aws.wire import Transport, Wire
from semel.core.clock import Clock
from semel.core.commands import After, Put, Query
from semel.core.drive import drive
from semel.core.ledger import LedgerSteps
from semel.core.realm import Realm
from semel.errors import WrongEnvironment, WrongSchema
from semel.provision import dynamodb, formats, shape
from semel.provision.cost import NOW, Life, Workload, estimate
from semel.stores.dynamodb import DynamoDBStore
from semel.stores.dynamodb.items import title, value_size
from semel.tables import JOURNAL, LEDGER, OWN, Kind, known
from semel.tables.mapping import mapped
from semel.testing import FakeClock
from tests.servers import dynamodb as servers
from tests.servers.absence import served
from tests.servers.running import until

ENGINES = ["dynoxide", "ministack"]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """Credentials that any local server takes, and tables by their own names."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "thing")
    for name in ("SEMEL_URL", "SEMEL_ENV", *filter(None, (mapped(table).titled_by for table in known()))):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=ENGINES)
def endpoint(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def url(endpoint):
    return f"dynamodb://eu-west-1?endpoint={endpoint}"


@pytest.fixture
def wire(endpoint):
    wire = Wire("dynamodb", region="eu-west-1", endpoint=endpoint, credentials=Credentials("any", "thing"))
    yield wire
    wire.close()


@pytest.fixture
def env():
    """An environment that no other test has, on servers that may outlive it."""
    return f"e{uuid4().hex[:12]}"


@pytest.fixture
def run(monkeypatch, typed):
    monkeypatch.setenv("COLUMNS", "200")
    return typed


def own(table, env):
    """A table under a name of this test's own: the server may be somebody's account, with such a table."""
    return table.titled(f"test-{env}-{table.name}")


def remove(wire, table, env):
    name = title(table, env)
    wire.call("DeleteTable", {"TableName": name}, write=False)
    assert until(lambda: absent(wire, name))


def absent(wire, name):
    try:
        wire.call("DescribeTable", {"TableName": name}, write=False)
    except semel.StoreError:
        return True
    return False


def active(wire, name):
    return wire.call("DescribeTable", {"TableName": name}, write=False)["Table"]["TableStatus"] == "ACTIVE"


def seen(wire, table, env):
    """What the server says of a table, without what differs from one making to the next."""
    name = {"TableName": title(table, env)}
    described = wire.call("DescribeTable", name, write=False)["Table"]
    for each in (described, *described.get("GlobalSecondaryIndexes", ())):
        for passing in ("TableId", "CreationDateTime", "ItemCount", "TableSizeBytes"):
            each.pop(passing, None)
    return {
        "table": described,
        "ttl": wire.call("DescribeTimeToLive", name, write=False)["TimeToLiveDescription"],
        "tags": wire.call("ListTagsOfResource", {"ResourceArn": described["TableArn"]}, write=False)["Tags"],
        "recoverable": recoverable(wire, name),
    }


def recoverable(wire, name):
    try:
        backups = wire.call("DescribeContinuousBackups", name, write=False)["ContinuousBackupsDescription"]
    except semel.StoreError:  # an engine without backups
        return None
    return backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"]


# Making


def test_tables_are_made_once_and_a_second_run_says_that_there_is_nothing_to_do(run, url, env):
    code, out, _ = run("provision", "--url", url, "--env", env)
    assert code == 0
    assert out.splitlines() == [
        line
        for name in (table.name for table in OWN)
        for line in (
            f"Made table semel-{env}-{name}.",
            f"Enabled TTL on ttl of semel-{env}-{name}.",
            f"Stamped semel-{env}-{name} for environment {env}.",
        )
    ]
    code, out, _ = run("provision", "--url", url, "--env", env)
    tables = f"its tables ({', '.join(table.name for table in OWN)})"
    assert (code, out) == (0, f"Nothing to do: environment {env} has {tables} as they should be.\n")


def test_what_was_provisioned_is_what_the_store_works_on(run, url, env):
    run("provision", "--url", url, "--env", env)
    with semel.connect(url, env=env) as s:
        claim = s.ledger.claim("charge:1")
        assert isinstance(claim, semel.Claimed)
        s.ledger.complete(claim, {"receipt": "R-1"})
        again = s.ledger.claim("charge:1")
        assert isinstance(again, semel.Replay)
        assert again.result == {"receipt": "R-1"}
        assert [record.key for record in s.ledger.list().records] == ["charge:1"], "the stamp is no record"


@pytest.mark.seed("R6")
def test_a_store_stamped_for_one_environment_refuses_another(run, url, env, monkeypatch):
    monkeypatch.setenv("IDEMPOTENCY_TABLE_NAME", f"keys-{env}")
    words = ("provision", "--url", url, "--table", "alchemiser", "--env")
    assert run(*words, "prod")[0] == 0
    code, out, err = run(*words, "dev")
    assert (code, out) == (1, "")
    assert err == "semel: this store belongs to environment 'prod' and was opened for 'dev'\n"
    ledger = f"{url.replace('?', f'/keys-{env}?')}&layout=alchemiser"
    with semel.connect(ledger, env="dev") as s, pytest.raises(WrongEnvironment):
        s.ledger.claim("a")


def test_a_url_that_names_a_table_says_which_one_is_the_ledger(run, url, env, wire):
    named = f"{url.replace('?', f'/mine-{env}?')}&layout=quill"
    code, out, _ = run("provision", "--url", named, "--env", env, "--table", "ledger", "--json")
    assert (code, json.loads(out)["done"][0]) == (0, f"made table mine-{env}")
    with semel.connect(named, env=env) as s:
        assert s.ledger.check_and_set("ALOWARE:1") is True
    item = wire.call("GetItem", {"TableName": f"mine-{env}", "Key": {"pk": {"S": "ALOWARE:1"}}}, write=False)
    assert "seenAt" in item["Item"]
    policy = json.loads(run("provision", "--url", named, "--print", "iam", "--table", "ledger")[1])
    assert policy["Statement"][0]["Resource"] == [f"arn:aws:dynamodb:eu-west-1:*:table/mine-{env}"]


@pytest.mark.seed("H9")
@pytest.mark.seed("M6")
@pytest.mark.parametrize("table", [*known()], ids=lambda table: table.name)
def test_a_table_made_from_the_template_is_the_one_that_provisioning_makes(wire, table, env):
    """The template's properties are sent as CloudFormation would send them."""
    table = own(table, env)
    properties = shape.description(table, env)
    ttl = properties.pop("TimeToLiveSpecification", None)
    recovery = properties.pop("PointInTimeRecoverySpecification", None)
    name = {"TableName": properties["TableName"]}
    wire.call("CreateTable", properties, write=False)
    assert until(lambda: active(wire, properties["TableName"]))
    if ttl is not None:
        wire.call("UpdateTimeToLive", name | {"TimeToLiveSpecification": ttl}, write=False)
    if recovery is not None and recoverable(wire, name) is not None:
        request = name | {"PointInTimeRecoverySpecification": recovery}
        wire.call("UpdateContinuousBackups", request, write=False)
    templated = seen(wire, table, env)
    assert dynamodb.provision(wire, [table], env, clock=Clock()) == [
        f"stamped {title(table, env)} for environment {env}"
    ]
    remove(wire, table, env)
    dynamodb.provision(wire, [table], env, clock=Clock())
    assert seen(wire, table, env) == templated
    remove(wire, table, env)


@pytest.fixture(scope="module")
def cloud():
    """ministack with CloudFormation: the URL of an endpoint."""
    with pytest.MonkeyPatch.context() as patch:
        plain = servers.settings
        services = {"SERVICES": "dynamodb,cloudformation,iam,sts,s3"}
        patch.setattr(servers, "settings", lambda port: plain(port) | services)
        patch.delenv("SEMEL_TEST_MINISTACK_URL", raising=False)
        with served(servers.ministack) as url:
            yield url


@pytest.mark.seed("A5")
def test_the_template_is_deployed_and_provisioning_does_what_no_template_can(cloud, run):
    import boto3

    keys = {"aws_access_key_id": "any", "aws_secret_access_key": "thing"}
    client = boto3.client("cloudformation", endpoint_url=cloud, region_name="eu-west-1", **keys)
    with closing(client):
        body = formats.cloudformation(known(), "prod")
        client.create_stack(StackName="semel", TemplateBody=body, Capabilities=["CAPABILITY_IAM"])

        def status():
            return client.describe_stacks(StackName="semel")["Stacks"][0]["StackStatus"]

        assert until(lambda: status() != "CREATE_IN_PROGRESS")
        assert status() == "CREATE_COMPLETE"
    words = ["--url", f"dynamodb://eu-west-1?endpoint={cloud}", "--env", "prod"]
    words += [word for table in known() for word in ("--table", table.name)]
    code, out, _ = run("provision", *words, "--json")
    assert code == 0
    done = json.loads(out)["done"]
    assert not [did for did in done if did.startswith(("made", "tagged"))]
    assert len([did for did in done if did.startswith("stamped")]) == len([*known()])
    assert run("provision", *words, "--check")[0] == 0


# Checking


def test_a_check_names_each_problem_with_its_remedy_and_changes_nothing(run, url, wire, env):
    code, out, _ = run("provision", "--url", url, "--env", env, "--check")
    assert code == 1
    assert out.splitlines()[:2] == [
        f"there is no table semel-{env}-ledger",
        "  run semel provision with the same options, without --check",
    ]
    assert absent(wire, f"semel-{env}-ledger")
    run("provision", "--url", url, "--env", env)
    code, out, _ = run("provision", "--url", url, "--env", env, "--check")
    tables = f"its tables ({', '.join(table.name for table in OWN)})"
    assert (code, out) == (0, f"All is well: environment {env} has {tables}.\n")


def test_a_check_finds_what_somebody_else_made_otherwise(run, url, wire, env):
    name = f"semel-{env}-ledger"
    request = shape.create_request(msgspec.structs.replace(LEDGER, indexes=()), env)
    request["AttributeDefinitions"] = [{"AttributeName": "key", "AttributeType": "N"}]
    request["KeySchema"] = shape.key_schema("key", None)
    wire.call("CreateTable", request, write=False)
    assert until(lambda: active(wire, name))
    code, out, _ = run("provision", "--url", url, "--env", env, "--table", "ledger", "--check", "--json")
    assert code == 1
    whats = [problem["what"] for problem in json.loads(out)["problems"]]
    assert f"{name} has the key key (N) and should have id (S)" in whats
    code, _, err = run("provision", "--url", url, "--env", env, "--table", "ledger")
    assert code == 1
    assert err.startswith(
        f"semel: {name} has the key key (N) and should have id (S); a key cannot be changed"
    )


@pytest.mark.parametrize("asked", [LEDGER, JOURNAL, ACTIVITIES], ids=lambda table: table.name)
def test_a_table_that_was_made_before_it_had_indexes_is_brought_up_to_date(wire, env, asked):
    """What is in it already is then found by them; and a second run has nothing to do."""
    table = own(asked, env)
    bare = shape.create_request(msgspec.structs.replace(table, indexes=()), env)
    wire.call("CreateTable", bare, write=False)
    assert until(lambda: active(wire, bare["TableName"]))
    store = DynamoDBStore(wire, tables=[table], env=env)
    index = table.indexes[0]
    key, who = f"{env}//key", 7 if table.kinds[index.partition] is Kind.NUMBER else "you"
    item = {table.expires: After(60), index.partition: who} | ({index.sort: 1} if index.sort else {})
    store.execute(Put(asked, key, item, sort=None if table.sort is None else "entry"))
    query = Query(asked, who, index=index.name)
    with pytest.raises(WrongSchema, match=r"does not have the specified index.*run: semel provision"):
        store.execute(query)
    missing = [f"{bare['TableName']} has no index {each.name}" for each in table.indexes]
    found = [problem.what for problem in dynamodb.problems(wire, [table], env)]
    assert [what for what in found if "index" in what] == missing
    done = dynamodb.provision(wire, [table], env, clock=Clock())
    assert [did for did in done if "index" in did] == [
        f"made index {each.name} of {bare['TableName']}" for each in table.indexes
    ]
    assert until(lambda: [each[table.partition] for each in store.execute(query).items] == [key])
    assert dynamodb.provision(wire, [table], env, clock=Clock()) == []
    assert dynamodb.problems(wire, [table], env) == []
    remove(wire, table, env)


def as_aws_does(wire, line):
    """A line for AWS's own command line, sent as that would send it."""
    words = shlex.split(line)
    assert words[:2] == ["aws", "dynamodb"]

    def camel(word):
        return "".join(part.capitalize() for part in word.split("-"))

    def meant(text):
        pairs = dict(pair.split("=") for pair in text.split(",")) if "=" in text else None
        known = {"true": True, "false": False}
        return (
            text
            if pairs is None
            else {name: known.get(v, int(v) if v.isdigit() else v) for name, v in pairs.items()}
        )

    options = {camel(name.removeprefix("--")): meant(value) for name, value in pairwise(words[3:])}
    wire.call(camel(words[2]), options, write=False)


def pairwise(words):
    return zip(words[::2], words[1::2], strict=True)


@pytest.mark.parametrize("endpoint", ["dynoxide"], indirect=True)
def test_what_only_its_owner_may_change_is_changed_by_the_line_that_is_told(run, url, wire, env):
    name = f"semel-{env}-ledger"
    units = {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1}
    request = shape.create_request(LEDGER, env) | {
        "BillingMode": "PROVISIONED",
        "ProvisionedThroughput": units,
    }
    for index in request["GlobalSecondaryIndexes"]:
        index["ProvisionedThroughput"] = units
    wire.call("CreateTable", request, write=False)
    assert until(lambda: active(wire, name))
    wrong = {"Enabled": True, "AttributeName": "gone_at"}
    wire.call("UpdateTimeToLive", {"TableName": name, "TimeToLiveSpecification": wrong}, write=False)
    words = ("provision", "--url", url, "--env", env, "--table", "ledger")
    found = json.loads(run(*words, "--check", "--json")[1])["problems"]
    told = [line for problem in found for line in problem["remedy"].split("; ") if line.startswith("aws ")]
    assert len(told) == 2, found
    for line in told:
        as_aws_does(wire, line)
    assert run(*words)[0] == 0
    assert run(*words, "--check")[0] == 0


def test_a_server_that_is_not_there_is_one_line_that_says_where_it_was_looked_for(run):
    code, _, err = run(
        "provision", "--url", "dynamodb://eu-west-1?endpoint=http://127.0.0.1:9", "--env", "prod"
    )
    assert code == 1
    assert "127.0.0.1" in err
    assert err.count("\n") == 1


def test_credentials_that_nobody_knows_are_one_line_that_says_what_to_do(run, monkeypatch):
    def refused(*_args, **_options):
        raise ServiceError("UnrecognizedClientException", "The security token is invalid", 400, {})

    monkeypatch.setattr(dynamodb, "problems", refused)
    code, _, err = run("provision", "--url", "dynamodb://eu-west-1", "--env", "prod", "--check")
    assert code == 1
    assert "The security token is invalid" in err
    assert err.count("\n") == 1


# Printing


@pytest.mark.parametrize("word", formats.TEXTS)
def test_a_text_is_printed_without_a_store(run, word):
    assert run("provision", "--print", word, "--env", "prod") == (0, formats.TEXTS[word](OWN, "prod"), "")


def test_a_text_of_chosen_tables(run):
    words = ("--table", "household-activities", "--table", "household-messages")
    code, out, _ = run("provision", "--print", "terraform", "--env", "prod", *words)
    assert (code, out) == (0, formats.terraform((ACTIVITIES, MESSAGES), "prod"))


@pytest.mark.parametrize("role", list(formats.Role))
def test_the_policy_of_a_role_is_printed_for_the_region_of_the_url(run, role):
    words = ("--print", "iam", "--role", role, "--env", "prod", "--url", "dynamodb://eu-north-1")
    code, out, _ = run("provision", *words)
    assert code == 0
    assert json.loads(out) == formats.policy(OWN, "prod", role, region="eu-north-1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "semel: name the store: --url dynamodb://eu-west-1, or set SEMEL_URL\n"),
        (("--table", "nope", "--print", "sam"), "semel: there is no table 'nope'; known are ledger, "),
        (("--url", "memory:"), "semel: 'memory:' names no store that has tables to make; "),
        (("--url", "dynamodb://eu-west-1", "--env", "a/b"), "semel: 'semel-a/b-ledger' cannot name a table"),
    ],
)
def test_a_call_that_is_wrong_in_itself_exits_with_2_and_says_what_to_do(run, words, said):
    code, out, err = run("provision", *words)
    assert (code, out) == (2, "")
    assert err.startswith(said)
    assert err.count("\n") == 1


# SQLite


def test_an_sqlite_file_is_made_by_opening_it(run, tmp_path):
    path = tmp_path / "semel.db"
    words = ("provision", "--url", f"sqlite:///{path}", "--env", "prod")
    code, out, _ = run(*words, "--check")
    assert (code, out.splitlines()[0]) == (1, f"there is no file {path}")
    assert not path.exists(), "looking makes nothing"
    code, out, _ = run(*words)
    assert (code, out) == (0, f"Made the ledger in {path}.\n")
    assert run(*words)[1].startswith("Nothing to do: environment prod")
    assert run(*words, "--check")[0] == 0


def test_an_sqlite_file_of_another_environment_or_version_is_a_problem(run, tmp_path):
    path = tmp_path / "semel.db"
    url = f"sqlite:///{path}"
    run("provision", "--url", url, "--env", "dev")
    code, out, _ = run("provision", "--url", url, "--env", "prod", "--check", "--json")
    assert code == 1
    assert json.loads(out)["problems"] == [
        {"what": f"{path} belongs to environment 'dev'", "remedy": "use --env dev"}
    ]
    code, _, err = run("provision", "--url", url, "--env", "prod")
    assert (code, err) == (1, "semel: this store belongs to environment 'dev' and was opened for 'prod'\n")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE semel_meta SET value = 99 WHERE name = 'schema'")
    _, out, _ = run("provision", "--url", url, "--env", "dev", "--check")
    assert out.splitlines() == [f"{path} was written by a newer semel", "  upgrade semel"]


def test_a_file_that_is_no_ledger_is_a_problem(run, tmp_path):
    path = tmp_path / "semel.db"
    path.write_text("Dear diary, today I learned about ledgers. " * 50)
    code, out, _ = run("provision", "--url", f"sqlite:///{path}", "--check")
    assert code == 1
    assert out.startswith(f"{path} cannot be read")
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (name TEXT)")
    assert run("provision", "--url", f"sqlite:///{path}", "--check")[1].startswith(f"{path} holds no ledger")


# Cost


class Counting(Transport):
    """A transport that counts requests, and asks what each is billed."""

    def __init__(self, wire):
        self._wire = wire
        self.time = wire.time
        self.requests: Counter[str] = Counter()
        self.units: list[float] = []

    async def leave(self):
        await self._wire.leave()

    def close(self):
        self._wire.close()

    def perform(self, step):
        return self._wire.perform(step)

    async def aperform(self, step):
        return await self._wire.aperform(step)

    def exchange(self, operation, request, *, write):
        self.requests[operation] += 1
        made = request() if callable(request) else request
        asked = made | {"ReturnConsumedCapacity": "TOTAL"}
        answer = yield from self._wire.exchange(operation, asked, write=write)
        self.units.append(answer["ConsumedCapacity"]["CapacityUnits"])
        return answer

    def count(self):
        """What was counted since the last time."""
        counted, self.requests = self.requests, Counter()
        billed, self.units = self.units, []
        return dict(counted), billed


@pytest.mark.seed("A9")
@pytest.mark.parametrize("result_bytes", [200, 5000])
@pytest.mark.parametrize("read_first", [False, True])
@pytest.mark.parametrize("endpoint", ["dynoxide"], indirect=True)  # which counts units as Amazon does
def test_the_estimate_counts_the_requests_and_units_that_a_server_counts(wire, env, read_first, result_bytes):
    table = own(LEDGER, env)
    dynamodb.provision(wire, [table], "prod", clock=Clock())
    workload = Workload(
        events=2, duplicates=0.5, key_bytes=60, result_bytes=result_bytes, read_first=read_first
    )
    life, predicted = Life(workload), {line.what: line for line in estimate(workload).lines}
    counting = Counting(wire)
    clock = FakeClock(NOW)
    store = DynamoDBStore(
        counting, tables=[table], env="prod", clock=clock, read_first="yes" if read_first else "no"
    )
    codec = semel.Codec(compress_over=result_bytes)
    s = semel.Semel(store, env="prod", clock=clock, codec=codec)
    key = f"{env}{read_first}{result_bytes}".ljust(60, "k")
    s.ledger.get("another")  # looks at the stamp, once for all
    counting.count()

    claim = s.ledger.claim(key, fingerprint=s.fingerprint(None))
    assert isinstance(claim, semel.Claimed)
    s.ledger.complete(claim, "r" * (result_bytes - 2))
    looked, billed = ({"GetItem": 1}, [life.miss.reads]) if read_first else ({}, [])
    assert counting.count() == (
        looked | {"PutItem": 1, "UpdateItem": 1},
        [*billed, life.claim.writes, life.complete.writes],
    )
    assert isinstance(s.ledger.claim(key), semel.Replay)
    if read_first:
        assert counting.count() == ({"GetItem": 1}, [life.look.reads])
    else:
        assert counting.count() == ({"PutItem": 1}, []), "what a refused write is billed no answer tells"
    requests = {what: line.requests for what, line in predicted.items() if line.requests and what != "expire"}
    assert requests == dict.fromkeys(("look", "replay") if read_first else ("replay",), 1) | {
        "claim": 1,
        "complete": 1,
    }
    named = {"TableName": title(table, "prod"), "Key": {"id": {"S": f"prod//{key}"}}}
    item = wire.call("GetItem", named, write=False)["Item"]
    assert sum(len(name) + value_size(value) for name, value in item.items()) == life.bytes


@pytest.mark.seed("A9")
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("endpoint", ["dynoxide"], indirect=True)  # which counts units as Amazon does
def test_the_estimate_counts_what_the_index_of_persons_costs(wire, env, named):
    """Nothing where nobody is named; where somebody is, a write whenever the index sees a change."""
    table = own(LEDGER, env)
    dynamodb.provision(wire, [table], "prod", clock=Clock())
    life, counting, clock = Life(Workload(events=1, subjects=named)), Counting(wire), FakeClock(NOW)
    store = DynamoDBStore(counting, tables=[table], env="prod", clock=clock)
    ledger = LedgerSteps(Realm(env="prod", secret=bytes(32)))
    drive(ledger.get("another"), store)
    counting.count()
    claim = drive(ledger.claim("key", subject="you" if named else None), store)
    assert isinstance(claim, semel.Claimed)
    clock.advance(1)
    drive(ledger.renew(claim), store)
    clock.advance(1)
    drive(ledger.complete(claim, "done"), store)
    assert counting.count()[1] == [life.claim.writes, life.renew.writes, life.complete.writes]


@pytest.mark.seed("A9")
def test_cost_prints_a_table_with_a_total(run):
    code, out, _ = run("cost", "--events", "10000000", "--duplicates", "0.2")
    assert code == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:8]}
    assert rows["claim"] == ["8,000,000", "8,000,000", "5.00", "0.500"]
    assert rows["replay"] == ["2,000,000", "2,000,000", "1.25", "0.125"]
    assert rows["total"][0] == "11.31"
    assert "by the prices of 2026-08-15" in out


@pytest.mark.seed("A9")
def test_cost_prints_json_for_programs(run):
    code, out, _ = run("cost", "--duplicates", "0.5", "--read-first", "--region", "eu-north-1", "--json")
    found = json.loads(out)
    assert (code, found["region"], found["prices"]["published"]) == (0, "eu-north-1", "2026-09-11")
    operations = {each["operation"]: each for each in found["operations"]}
    assert operations["replay"]["read_units"] == 500_000
    assert operations["replay"]["write_units"] == 0
    assert found["dollars"] == pytest.approx(sum(each["dollars"] for each in operations.values()), abs=0.001)


def test_cost_refuses_a_region_without_prices(run):
    code, out, err = run("cost", "--region", "mars-1")
    assert (code, out) == (2, "")
    assert err.startswith("semel: no prices are known for 'mars-1'; known are us-east-1")


# PostgreSQL


@pytest.fixture
def database(postgres, env):
    """A database of this test's own."""
    import psycopg

    with closing(psycopg.connect(postgres, autocommit=True)) as connection:
        connection.execute(f"CREATE DATABASE {env} TEMPLATE template0 ENCODING 'UTF8'".encode())
    return postgres.rpartition("/")[0] + f"/{env}"


def test_a_database_is_migrated_and_checked(run, database, env):
    words = ("provision", "--url", database, "--env", env)
    code, out, _ = run(*words, "--check")
    assert code == 1
    assert "table semel_ledger is missing" in out
    code, out, _ = run(*words, "--table", "household-activities")
    assert code == 0
    assert out.splitlines()[0].startswith("Brought the schema to version")
    assert run(*words, "--table", "household-activities")[1].startswith("Nothing to do: environment")
    assert run(*words, "--check") == (
        0,
        f"All is well: environment {env} has its tables ({', '.join(table.name for table in OWN)}).\n",
        "",
    )
    code, _, err = run(*words[:-1], "another")
    assert (code, err) == (
        1,
        f"semel: this store belongs to environment {env!r} and was opened for 'another'\n",
    )


def test_the_printed_sql_makes_what_the_check_asks_for(run, database, env):
    import psycopg

    code, sql, _ = run("provision", "--print", "sql", "--env", env, "--table", "quill")
    assert code == 0
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        connection.execute(sql.encode())
    words = ("provision", "--url", database, "--env", env, "--table", "quill")
    assert run(*words, "--check")[0] == 0
    assert run(*words)[1].startswith("Nothing to do")


# Redis


def test_a_redis_is_stamped_and_looked_after(run, redis_server, env):
    words = ("provision", "--url", f"{redis_server}?prefix={env}:", "--env", env)
    code, out, _ = run(*words, "--check", "--json")
    assert code == 1
    assert any("not stamped" in problem["what"] for problem in json.loads(out)["problems"])
    code, out, _ = run(*words)
    assert (code, out) == (0, f"Stamped prefix '{env}:' for environment '{env}'.\n")
    assert run(*words)[1].startswith("Nothing to do: environment")
    code, _, err = run(*words[:-1], "another")
    assert code == 1
    assert f"belongs to environment {env!r}" in err
