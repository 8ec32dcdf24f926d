"""The docs: every example runs as it stands, every link leads somewhere, every table agrees with the code."""

import ast
import contextlib
import functools
import inspect
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args
from unittest import mock

import msgspec
import pytest

import semel
from semel import errors, gate, periods, redact, state
from semel.cli import app as cli
from semel.core import codecs, commands, keys, lifecycle
from semel.core.clock import Clock
from semel.core.drive import Store
from semel.core.policy import Options, policy_of
from semel.gate import Gate
from semel.state import counters, documents, erasure, journal, switches, transaction
from semel.tables.powertools import POWERTOOLS
from semel.testing import StoreConformance
from tests import draft, seeds, situations
from tests.conformance.dynamodb_kit import REGION, engine
from tests.doors.sqs_kit import make_queue
from tests.pages import blocks, run
from tests.places import CREDENTIALS
from tests.servers.rabbitmq import Broker, declare
from tests.standins.pubsub import PubSub

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def text_of(page: str) -> str:
    return (DOCS / page).read_text("utf-8")


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def rows(page: str, under: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    after = text_of(page).split(f"\n{under}\n", 1)[1]
    table = re.search(r"^\|.*?(?=\n\n|\n*\Z)", after, re.DOTALL | re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[0].splitlines()[2:]]


def code(text: str) -> set[str]:
    """What a text sets in code."""
    return set(re.findall(r"`([^`\n]+)`", text))


# Examples


def close_all(module: ModuleType) -> None:
    """Close what a page left open."""
    for value in vars(module).values():
        if isinstance(value, semel.Semel):
            value.close()


@contextlib.contextmanager
def room(folder: Path) -> Iterator[ModuleType]:
    """A module for a page to run in, in a folder of its own; what it sets is set for itself alone."""
    module = ModuleType("docs_page")
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ):
        patch.setitem(sys.modules, module.__name__, module)
        patch.chdir(folder)
        yield module
        close_all(module)


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    """A module for a page to run in."""
    with room(tmp_path) as module:
        yield module


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.fixture
def queues(sqs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues of a page, on a server that stands for AWS."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", sqs)
    for name in ("orders.fifo", "orders-dead.fifo"):
        make_queue(sqs, name, region="eu-north-1")


@pytest.fixture
def broker(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues of a page, on a broker of the tests."""
    if not os.environ.get("CI"):
        pytest.importorskip("proton")
    declare_queues(rabbitmq, monkeypatch, "orders")


@pytest.fixture
def rabbit(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues of the page about RabbitMQ's own protocol."""
    declare_queues(rabbitmq, monkeypatch, "shop-orders")


@pytest.fixture
def pubsub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The subscription of the page about Google Pub/Sub."""
    with PubSub() as server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.host)
        server.subscribe("projects/shop/subscriptions/orders", ordered=True)
        yield


def declare_queues(rabbitmq: Broker, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("AMQP_URL", rabbitmq.url)
    declare(rabbitmq.url, f"{name}-dead")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
    declare(rabbitmq.url, name, **dead, **{"x-single-active-consumer": True})


@pytest.fixture
def django_database(module: ModuleType) -> Iterator[None]:
    """The database of a page about Django, whose settings another test may have been first to make."""
    from django.db import connections  # type: ignore[import-untyped]
    from django.db.utils import ConnectionHandler  # type: ignore[import-untyped]

    import tests.doors.django_site  # noqa: F401 - which makes them

    made = {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}
    with mock.patch.dict(connections.settings, ConnectionHandler({"default": made}).settings):
        connections["default"] = connections.create_connection("default")
        yield
        connections["default"].close()
        del connections["default"]


@pytest.fixture
def payments(dynoxide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of a page about Powertools, on a server that stands for AWS."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynoxide)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    table = msgspec.structs.replace(POWERTOOLS, title="payments")
    engine(dynoxide).make([table])
    engine(dynoxide).empty([table])


# The pages that talk to a server, and the fixture that has it ready.
SERVED = {
    "how-to/handle-amqp-messages.md": "broker",
    "how-to/handle-pubsub-messages.md": "pubsub",
    "how-to/handle-rabbitmq-messages.md": "rabbit",
    "how-to/handle-sqs-messages.md": "queues",
    "how-to/move-from-celery-and-django-habits.md": "django_database",
    "how-to/move-from-powertools.md": "payments",
    "how-to/protect-a-flask-or-django-app.md": "django_database",
}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language == "python" for b in blocks(page))], ids=name_of
)
def test_every_example_runs_as_it_stands(
    page: Path, module: ModuleType, request: pytest.FixtureRequest
) -> None:
    if name_of(page) in SERVED:
        request.getfixturevalue(SERVED[name_of(page)])
    run(page, module)


def test_the_page_about_your_own_application_builds_the_example() -> None:
    example = ROOT / "examples" / "order_notices"
    whole = (example / "notices.py").read_text("utf-8")
    shown = [block.text for block in blocks(DOCS / "how-to" / "write-your-own-app.md")]
    assert "\n\n".join(text for text in shown if text in whole) == whole
    [settings] = [text for text in shown if text.startswith("# semel.toml")]
    assert tomllib.loads(settings) == tomllib.loads((example / "semel.toml").read_text("utf-8"))


def test_a_page_leaves_the_environment_as_it_was(tmp_path: Path) -> None:
    before = dict(os.environ)
    with room(tmp_path) as module:
        run(DOCS / "how-to" / "run-on-lambda.md", module)
        assert os.environ["SEMEL_URL"] == "memory:"
    assert os.environ == before


# What a page needs

OPENING = re.compile(r"# .+\n\n(?:.+\n)+\n```console\n\$ pip install (.+)\n")
# What brings a module: an extra, or a package; others are of the standard library, or semel's core.
BRINGS = {
    "aws_durable_execution_sdk_python": "durable",
    "aws_lambda_powertools": "powertools",
    "boto3": "boto",
    "confluent_kafka": "kafka",
    "fastapi.testclient": "httpx",
    "httpx": "apps",
    "idemkit": "idemkit",
    "justonce": "justonce",
    "mcp": "mcp",
    "moto": "moto",
    "prometheus_client": "prometheus",
    "psycopg": "postgres",
    "pydantic": "fastapi",
    "rest_framework": "djangorestframework",
    "aio_pika": "aiopika",
    "pika": "rabbitmq",
    "semel.doors.aio_pika": "aiopika",
    "semel.doors.amqp1": "amqp",
    "google.cloud": "pubsub",
    "semel.doors.pubsub": "pubsub",
    "semel.doors.rabbitmq": "rabbitmq",
    "semel.doors.kafka": "kafka",
    "semel.redact": "privacy",
    "semel.telemetry.otel": "otel",
    "semel.telemetry.prometheus": "prometheus",
} | {
    name: name
    for name in ("celery", "django", "dramatiq", "fastapi", "flask", "litestar", "mcp", "redis", "taskiq")
}


# An extra that brings others.
SERVICE: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]["service"]


def imports(page: Path) -> Iterator[str]:
    """The modules that a page's examples import, and the packages that those are in."""
    for block in blocks(page):
        for node in ast.walk(ast.parse(block.text if block.language == "python" else "")):
            named = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for name in [node.module or ""] if isinstance(node, ast.ImportFrom) else named:
                parts = name.split(".")
                yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").glob("*.md")), ids=name_of)
def test_every_how_to_page_begins_by_installing_what_it_needs(page: Path) -> None:
    opening = OPENING.match(page.read_text("utf-8"))
    assert opening is not None, "after the title and a paragraph: a console block with `$ pip install ...`"
    installed = set(re.findall(r"\w+", opening[1]))
    if "service" in installed:
        installed |= set(re.findall(r"\w+", SERVICE[0]))
    names = set(imports(page))
    assert {name for name in names & BRINGS.keys() if BRINGS[name] not in installed} == set()
    told = {"semel", "msgspec", *sys.stdlib_module_names, *(name.partition(".")[0] for name in BRINGS)}
    assert {name for name in names if "." not in name} - told == set(), (
        "BRINGS does not say what brings these"
    )
    if re.search(r"^\$ semel ", page.read_text("utf-8"), re.MULTILINE):
        assert installed & {"cli", "service"}


@functools.cache
def store_of_the_docs() -> Any:
    """The class that a how-to page writes."""
    module = ModuleType("docs_page")
    run(DOCS / "how-to" / "write-a-store.md", module)
    return module.DictStore


class TestTheStoreInTheDocs(StoreConformance):
    """The store that a how-to page writes keeps the contract of every store."""

    def make_store(self, clock: Clock) -> Store:
        store: Store = store_of_the_docs()(clock)
        return store


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    known = {"python", "pyi", "output", "text", "console", "mermaid", "sql", "typescript", "go"}
    assert {block.language for block in blocks(page)} <= known
    assert page.read_text("utf-8").count("\n```") % 2 == 0


# Links


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and its kin make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)}


def links(page: Path) -> list[tuple[Path, str]]:
    """Where a page's relative links lead: a file, and an anchor in it or nothing."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    parts = [target.partition("#") for target in found if "://" not in target]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in parts]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_and_anchor_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), target
        if anchor:
            assert anchor in anchors(target), f"{target.name}#{anchor}"


def test_every_page_is_in_the_index() -> None:
    listed = {target for target, _ in links(DOCS / "index.md")}
    assert set(PAGES) - {DOCS / "index.md"} <= listed


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_one_title_and_no_absolute_path(page: Path) -> None:
    assert len(re.findall(r"^# ", prose(page), re.MULTILINE)) == 1
    assert not re.search(r"(?<![\w:/.])/(?:home|root|tmp|usr|work|Users)/", page.read_text("utf-8"))


# The reference


def test_every_public_name_is_in_the_reference() -> None:
    page = code(text_of("reference/api.md"))
    named = {re.split(r"\W", text.removeprefix("semel."), maxsplit=1)[0] for text in page}
    assert set(semel.__all__) - named == set()


def default_of(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return ""
    known = {id(Any): "Any", id(semel.MISSING): "MISSING", id(semel.ALL): "ALL"}
    known |= {id(journal.OWN): "OWN", id(redact.REGIONS): "REGIONS"}
    return "=" + known.get(id(parameter.default), repr(parameter.default))


def signature_of(name: str, function: Any, skip: int = 1) -> str:
    """How the reference writes a signature: without types, which the text gives where they matter."""
    written: list[str] = []
    for one in list(inspect.signature(function).parameters.values())[skip:]:
        stars = "*" * (one.kind is one.VAR_POSITIONAL) + "**" * (one.kind is one.VAR_KEYWORD)
        if one.kind is one.KEYWORD_ONLY and not any(text.startswith("*") for text in written):
            written.append("*")
        written.append(stars + one.name + default_of(one))
    return f"{name}({', '.join(written)})"


def public_methods(prefix: str, kind: type) -> list[str]:
    methods = {name: one for name, one in vars(kind).items() if inspect.isfunction(one)}
    return [
        signature_of(f"{prefix}.{name}", one) for name, one in methods.items() if not name.startswith("_")
    ]


RULES: tuple[type, ...] = tuple(gate.RULES.values())
PERIODS = (periods.Hour, periods.Day, periods.Week, periods.Month, periods.Window)
# What a transaction offers has other names inside it, and `of` hands on what it is given.
GATHERED = {
    "ledger": transaction.GatheredLedger,
    "documents": transaction.GatheredDocuments,
    "journal": transaction.GatheredJournal,
    "counters": transaction.GatheredCounters,
}


@pytest.mark.parametrize(
    "signature",
    [
        signature_of("semel.connect", semel.connect, skip=0),
        signature_of("semel.current_run", semel.current_run, skip=0),
        signature_of("Semel", semel.Semel.__init__),
        signature_of("Codec", semel.Codec.__init__),
        signature_of("Encryption", semel.Encryption.__init__),
        signature_of("FileOverflow", semel.FileOverflow.__init__),
        signature_of("s.once", semel.Once.__call__),
        *public_methods("s", semel.Semel),
        *public_methods("s.ledger", semel.Ledger),
        *public_methods("s.once", semel.Once),
        *public_methods("overflow", semel.Overflow),
        *public_methods("events", semel.Events),
        *public_methods("clock", semel.Clock),
        *public_methods("s.documents", state.Documents),
        *public_methods("s.journal", state.Journal),
        *public_methods("s.counters", state.Counters),
        *public_methods("s.switches", state.Switches),
        *public_methods("box", state.Mailbox),
        *public_methods("gate", Gate),
        *public_methods("period", periods.Period),
        *public_methods("window", periods.Window),
        *public_methods("redactor", redact.Redactor),
        *[signature_of(kind.__name__, kind, skip=0) for kind in (*RULES, *PERIODS, redact.Redactor)],
        *[
            one
            for name, kind in GATHERED.items()
            for one in public_methods(f"tx.{name}", kind)
            if not one.startswith("tx.documents.of(")
        ],
        "run.check()",
        "run.key_for(system)",
        "run.step(*parts)",
    ],
)
def test_every_signature_is_in_the_reference(signature: str) -> None:
    assert signature in code(text_of("reference/api.md"))


@pytest.mark.parametrize(
    "kind",
    [
        semel.Record,
        semel.Failure,
        semel.Listing,
        semel.Event,
        *get_args(semel.Outcome),
        *get_args(semel.Settlement),
        documents.Document,
        journal.Entry,
        journal.Entries,
        journal.Book,
        counters.Charged,
        counters.Tally,
        periods.Span,
        switches.Switch,
        gate.Allowed,
        gate.Refused,
        gate.RuleResult,
        gate.Taken,
        redact.Digest,
        erasure.Erasure,
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_a_value_is_in_the_reference(kind: Any) -> None:
    lines = text_of("reference/api.md").splitlines()
    [row] = [row for row in lines if row.startswith(f"| `{kind.__name__}(")]
    written = row.partition("(")[2].partition(")")[0].split(", ")
    assert written == list(kind.__struct_fields__) or (written == [""] and not kind.__struct_fields__)


def test_every_option_is_in_the_reference_with_its_default() -> None:
    table = {row[0].strip("`"): row[1].strip("`") for row in rows("reference/options.md", "## The options")}
    assert table.keys() == Options.__annotations__.keys()
    policy = policy_of({})
    defaults = {name: getattr(policy, name, None) for name in Options.__annotations__}
    defaults |= {"wait": policy.patience, "on_error": policy.on_error[Exception]}
    assert {name: ast.literal_eval(default) for name, default in table.items()} == defaults


def test_every_error_is_in_the_reference_and_the_tree_is_the_one_of_the_code() -> None:
    page = text_of("reference/errors.md")
    drawn = (errors.__doc__ or "").split("\n\n", 1)[1].strip()
    assert f"```text\n{drawn}\n```" in page
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and name in semel.__all__}
    described = {
        re.sub(r"\W.*", "", row.removeprefix("| `")) for row in page.splitlines() if row[:3] == "| `"
    }
    assert kinds - {"SemelError"} <= described


def test_every_command_and_reply_is_in_the_reference() -> None:
    page = code(text_of("reference/commands.md"))
    named = {re.split(r"\W", text, maxsplit=1)[0] for text in page}
    kinds = {
        name
        for name, kind in vars(commands).items()
        if inspect.isclass(kind) and kind.__module__ == commands.__name__
    }
    assert kinds - named == set()


def test_the_limits_in_the_reference_are_those_of_the_code() -> None:
    page = text_of("reference/keys-and-fingerprints.md")
    assert f"{keys.MAX_KEY_BYTES} bytes" in page
    assert f"{keys.MAX_NAME_BYTES} bytes" in page
    results = text_of("how-to/keep-large-and-secret-results.md")
    assert f"{codecs.COMPRESS_OVER} bytes" in results
    assert f"{codecs.MAX_BYTES // 1024**2} MiB" in results
    for reason in get_args(codecs.NotKeptReason):
        assert f"`{reason}`" in results


def test_every_event_is_described() -> None:
    described = {row[0].strip("`") for row in rows("how-to/watch-what-happens.md", "## The events")}
    assert described == {what.value for what in semel.What}


def test_every_command_of_the_command_line_is_described() -> None:
    page = text_of("reference/cli.md")
    for command in cli.app.registered_commands:
        assert f"semel {command.name}" in page
    for group in cli.app.registered_groups:
        for command in group.typer_instance.registered_commands:
            name = command.name or command.callback.__name__
            assert f"semel {group.name} {name}" in page


# The seeds

MARKED = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.seed("Q1")]

@pytest.mark.seed("Q2")
@pytest.mark.seed("Q3", "Q4")
async def test_one(): ...

@pytest.mark.seed("R1")
class TestAll:
    pytestmark = pytest.mark.seed("R2")

    @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.seed("R3"))])
    def test_two(self, n): ...

def test_none(): ...
"""


def test_marks_are_found_wherever_they_can_stand() -> None:
    assert set(seeds.marks(MARKED)) == {
        ("Q1", ""),
        ("Q2", "test_one"),
        ("Q3", "test_one"),
        ("Q4", "test_one"),
        ("R1", "TestAll"),
        ("R2", "TestAll"),
        ("R3", "TestAll::test_two"),
    }


def test_every_mark_names_a_point_of_a_seed() -> None:
    assert seeds.shown().keys() <= seeds.POINTS.keys()


def test_every_point_of_the_seeds_is_described() -> None:
    counts = {letter: sum(id[0] == letter for id in seeds.POINTS) for letter in seeds.SYSTEMS}
    assert counts == {"Q": 9, "A": 10, "R": 11, "H": 11, "M": 6}
    assert all(len(words) > 20 for words in seeds.POINTS.values())


def test_the_page_of_the_seeds_is_made_from_the_marks() -> None:
    assert text_of("reference/seeds.md") == seeds.text(), "python -m tests.seeds > docs/reference/seeds.md"


# The draft


def test_every_rule_of_the_draft_is_shown_by_a_test_or_is_a_clients() -> None:
    servers = {id for id, rule in draft.RULES.items() if rule.whose == "server"}
    assert servers <= seeds.shown("draft").keys() <= draft.RULES.keys()
    assert all(rule.ours for rule in draft.RULES.values())
    assert {draft.section_of(id) for id in draft.RULES} == draft.SECTIONS.keys()


def test_the_page_of_the_draft_is_made_from_the_marks() -> None:
    page = "reference/idempotency-key.md"
    assert text_of(page) == draft.text(), f"python -m tests.draft > docs/{page}"


# The explanations


def test_the_table_of_moves_is_the_one_of_the_code() -> None:
    expected = []
    for move in lifecycle.MOVES:
        asks = ["token", "lease lapsed"] if move.lapsed else ["token"]
        start = ", ".join(f"`{status}`" for status in move.start)
        expected.append([move.name, start, f"`{move.to}`", ", ".join(asks), move.note])
    assert rows("explanation/lifecycle.md", "## The moves") == expected


def named_tests() -> set[tuple[str, str]]:
    """The tests that any page names, as paths and names."""
    named = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
    return {test for page in PAGES for test in named.findall(page.read_text("utf-8"))}


@pytest.mark.parametrize("path", sorted({path for path, _ in named_tests()}))
def test_every_test_that_a_page_names_exists(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert {name for where, name in named_tests() if where == path} <= found


ARCHITECTURE = DOCS / "explanation" / "architecture.md"
SOURCES = sorted((ROOT / "src" / "semel").rglob("*.py"))
PATH = re.compile(r"\.py$|/")


@functools.cache
def sources() -> dict[Path, str]:
    return {path: path.read_text("utf-8") for path in SOURCES}


def parsed(what: str) -> Iterator[ast.AST]:
    """All of the source in whose text this stands."""
    for text in sources().values():
        if what in text:
            yield from ast.walk(ast.parse(text))


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def untyped(function: ast.FunctionDef) -> str:
    """A function's source as the page quotes it: without types and without its docstring."""
    for each in ast.walk(function):
        if isinstance(each, ast.arg):
            each.annotation = None
    function.returns, function.decorator_list = None, []
    if ast.get_docstring(function):
        del function.body[0]
    return ast.unparse(function)


def test_every_function_that_the_architecture_quotes_is_in_the_source() -> None:
    quoted = [block.text for block in blocks(ARCHITECTURE) if block.text.startswith("def ")]
    assert quoted
    for text in quoted:
        [function] = ast.parse(text).body
        assert isinstance(function, ast.FunctionDef)
        found = [node for node in parsed(f"def {function.name}(") if isinstance(node, ast.FunctionDef)]
        assert untyped(function) in map(untyped, found), function.name


def test_every_file_that_the_architecture_names_is_there() -> None:
    written = prose(ARCHITECTURE).split("## The map")[0]  # which is made of the files
    named = {text.rstrip("/") for text in code(written) if PATH.search(text)}
    places = {place.as_posix() for path in SOURCES for place in (path, path.parent)}
    assert {text for text in named if not any(place.endswith(f"/{text}") for place in places)} == set()


def test_every_name_in_the_architecture_is_in_the_source() -> None:
    known = words("".join(sources().values())) | {path.stem for path in SOURCES}
    known |= {path.parent.name for path in SOURCES}
    for text in code(prose(ARCHITECTURE).split("## The map")[0]):
        if PATH.search(text):
            continue
        assert words(text) <= known, text
        owner, _, member = text.partition(".")
        kinds = [node for node in parsed(f"class {owner}") if isinstance(node, ast.ClassDef)]
        bodies = [ast.unparse(node) for node in kinds if node.name == owner]
        assert not member or not bodies or any(words(member) <= words(body) for body in bodies), text


def test_the_way_through_the_source_leads_past_what_it_names() -> None:
    """Each station of the main path is a file, and what the text says of it stands in that file."""
    way = text_of("explanation/architecture.md").split("## The main path in ten minutes")[1].split("\n## ")[0]
    stations = re.findall(r"^\d\. \[`(.+?)`\]\(.+?\):(.*?)(?=^\d\. |^\n)", way, re.DOTALL | re.MULTILINE)
    assert len(stations) == 6
    for file, told in stations:
        assert words(" ".join(code(told))) <= words(sources()[ROOT / "src" / "semel" / file]), file


SITUATIONS = range(1, 66)


def test_the_guarantees_cover_every_situation() -> None:
    table = rows("explanation/guarantees.md", "## The situations")
    assert [int(row[0]) for row in table] == list(SITUATIONS)


def test_the_tests_of_the_situations_are_those_that_carry_their_numbers() -> None:
    assert text_of("explanation/guarantees.md") == situations.text(), "python -m tests.situations"


def test_every_situation_has_a_test_that_carries_its_number() -> None:
    assert seeds.shown("situation").keys() == set(SITUATIONS)


def test_no_page_promises_what_is_not_there() -> None:
    for page in (*PAGES, ROOT / "README.md"):
        assert "not yet" not in page.read_text("utf-8").lower(), page.name
