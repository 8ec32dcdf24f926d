"""The page of the docs about the seeds: `python -m tests.seeds > docs/reference/seeds.md`.

Five systems that were built by hand are where semel comes from. A test that shows a point of theirs says so
with `@pytest.mark.seed("Q3")`; the marks are found in the source, so nothing is imported or run for this.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

HEADER = """\
# The seeds

semel grew from five systems that each built a part of it by hand. This page lists what each of them asks
for, point by point, and the tests that show it. It is made by `python -m tests.seeds` from the marks in the
tests: a point is shown where a test says so, and nowhere else. A test may show a part of a point. Where a
whole file or class is named, every test in it counts.

| | system | points | with a test |
|---|---|---|---|
"""

SYSTEMS = {
    "Q": "Webhook events into a report",
    "A": "An idempotency service",
    "R": "Middleware for customer support",
    "H": "A helper in a household's chat",
    "M": "A probe for message queues",
}

# In our own words; what a line does not begin with a point's name belongs to the one before.
WORDS = """\
Q1  The events that were seen are in `QuillIdempotencyLedger`, or in the table that `DYNAMO_TABLE_NAME`
    names, under the key `pk`; DynamoDB removes them by `expiresAt`
Q2  An item has the source and its event's id for a key, when the server saw it and when it may go; a source
    and notes may stand beside
Q3  Of two writes of one event the first is new and the second a duplicate, by one conditional write
Q4  An event is remembered for `DYNAMO_TTL_DAYS`, 14 unless set; where nothing removes what has expired,
    readers pass over it and a janitor sweeps it out
Q5  Keys are made of the source and the ids it gave: Aloware's body id; HubSpot's object type, object and
    subscription, with the time of occurrence where there is one
Q6  Table, lifetime, endpoint and region come from four environment variables
Q7  A batch first loses its own duplicates, then what earlier requests brought; then the rows of dimensions
    are seen to, and only then are facts posted
Q8  Which events and subscriptions become facts, with which metrics, dimensions and columns, is declared in
    settings or decided by a function of the owner's; the document's report is what happens otherwise
Q9  What is remembered of dimensions says where they are: another workspace or dataset gets rows of its own

A1  One service over a protocol of stores: in memory with an end to everything, on DynamoDB, or on Redis
A2  `check_and_set` is atomic, `is_processed` does not see what has expired, `mark_processed` records a fact
A3  The table is `alchemiser-idempotency-keys`, or what `IDEMPOTENCY_TABLE_NAME` says, with its attributes
    and its TTL, paid for by the request
A4  Whatever goes wrong besides a refused condition reaches the caller; work goes on without the store only
    where the caller said so
A5  A Lambda function is set up from its environment, cold start included; table, tags and policy come as
    CloudFormation or SAM
A6  Hits, misses, throttling and errors are counted, in CloudWatch where that is the place, with alarms
A7  How long to remember has a name: an hour for frequent events, a day for retries and replays
A8  Of many invocations at once, one wins
A9  What a workload costs is printed beforehand: reads and writes per event, dollars per million
A10 A unit test inside moto's `mock_aws` works as it stands, and nothing in it reaches for the network

R1  Events are in `rp_mw_idempotency`, for 30 days, with their mode, their switches, their conversation and
    the payload's hash and size
R2  A conversation's state is in `rp_mw_conversation_state`, for 90 days, with a version; a pending flow
    that holds an identifier ends sooner
R3  Actions are audited in `rp_mw_audit_actions`, for 60 days, in the order of time, redacted
R4  An event's key is made of conversation and message; without a message id, of a hash of the normalised
    text and its time
R5  Every action has a key of its own, made from what does not change
R6  Every item has an end, and a table without one is refused; environments do not share tables, and a store
    of one refuses to be opened for another
R7  No message, address or phone number is stored or logged: hashes, last digits and masks are, and a short
    masked excerpt where it is asked for
R8  Ingress normalises, enqueues by conversation and answers at once; the worker heeds its switches, claims,
    writes state and audit, and then acts, each action under its key
R9  What the other side throttles or leaves unanswered is tried again, as slowly as it asks, and at last
    laid aside
R10 The messages of one conversation are handled in order, with and without a FIFO queue
R11 An environment may do without the audit and its table; the record of an action tells the conversation
    and the mode, as its event's does

H1  Activities are in `homeops-activities` by chat and ULID, found by user and time through an index, with
    point-in-time recovery
H2  An activity's ULID has the message's own time, which is an attribute too, and ULIDs of one millisecond
    keep their order
H3  Replies are counted in `homeops-response-counters` by chat and date, by an atomic addition; the end, a
    week after the date, is set once
H4  Days are Stockholm's, also when its clocks are changed
H5  Three replies a day and no more: looked up consistently before, counted after
H6  Nothing from 22:00 to 07:00 by the clocks there
H7  Nothing while others talk: three messages of theirs in a minute, among the latest ten of
    `homeops-messages`, of which only what is needed is read
H8  Activities are read by chat in the order of time, by user within a range of time, and lead back to the
    message
H9  The tables come as CDK, Terraform or CloudFormation, with the least that the worker may do
H10 The household's variables name its tables, whose own names carry the environment; any application's
    tables can be named
H11 What was done, of which type, with what effort and how surely are attributes of an activity; an item of
    the household's own writer reads back as it is, and what it lacks is not made up

M1  A request is kept in `mq-probe-idempotency` under operation and key, with its status, the hash of all of
    it, the answer and its times
M2  It is put in progress on a condition, and then completed with its answer, or failed
M3  The same key again gives the stored answer, is told to wait, or is refused for another payload
M4  How long an answer is kept is configured, and a header of the request may say otherwise
M5  Messages are produced to and consumed from a real broker over AMQP 1.0, or an embedded queue, and
    reported with their number and the time it took
M6  The table is paid for by the request, has a TTL, and no index
"""
POINTS = {
    id: " ".join(words) for point in re.split(r"\n+(?=[A-Z]\d)", WORDS) for id, *words in [point.split()]
}


def text() -> str:
    """The page."""
    found = shown()
    rows = [_row(letter, name, found) for letter, name in SYSTEMS.items()]
    return "".join([HEADER, *rows, *(_section(letter, found) for letter in SYSTEMS)])


def _row(letter: str, name: str, found: dict[str, list[str]]) -> str:
    points = _of(letter)
    anchor = f"#{letter.lower()}-{_slug(name)}"
    return f"| [{letter}]({anchor}) | {name} | {len(points)} | {sum(id in found for id in points)} |\n"


def _section(letter: str, found: dict[str, list[str]]) -> str:
    rows = [f"| {id} | {POINTS[id]} | {_told(found.get(id, []))} |\n" for id in _of(letter)]
    return (
        f"\n## {letter}: {SYSTEMS[letter]}\n\n| | what it asks | shown by |\n|---|---|---|\n{''.join(rows)}"
    )


def _of(letter: str) -> list[str]:
    return [id for id in POINTS if id[0] == letter]


def _told(tests: list[str]) -> str:
    return ", ".join(f"`{test}`" for test in tests) or "not shown yet"


def _slug(name: str) -> str:
    return "".join(sign for sign in name.lower() if sign.isalnum() or sign == " ").replace(" ", "-")


# Marks


def shown(marker: str = "seed") -> dict[Any, list[str]]:
    """The tests that show each point, by its id, as pytest names them."""
    found: dict[Any, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        source = path.read_text("utf-8")
        for id, test in marks(source, marker) if f"mark.{marker}(" in source else ():
            found[id].add(f"{place}::{test}" if test else place)
    return {id: sorted(tests) for id, tests in found.items()}


def marks(source: str, marker: str = "seed") -> Iterator[tuple[Any, str]]:
    """Every mark of a file: the point, and the test or class that has it; "" for the whole file."""
    return _marks(ast.parse(source).body, (), marker)


def _marks(body: list[ast.stmt], outer: tuple[str, ...], marker: str) -> Iterator[tuple[Any, str]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = (*outer, node.name)
            for decorator in node.decorator_list:
                yield from ((id, "::".join(name)) for id in _named(decorator, marker))
            if isinstance(node, ast.ClassDef):
                yield from _marks(node.body, name, marker)
        elif isinstance(node, ast.Assign) and "pytestmark" in {ast.unparse(each) for each in node.targets}:
            yield from ((id, "::".join(outer)) for id in _named(node.value, marker))


def _named(mark: ast.expr, marker: str) -> Iterator[Any]:
    """The points named anywhere in an expression, as in the marks of one case of a parametrised test."""
    for node in ast.walk(mark):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(f"mark.{marker}"):
            yield from (ast.literal_eval(given) for given in node.args)


if __name__ == "__main__":
    sys.stdout.write(text())
