"""A kept failure can be caught, as what it was and as a failure that was kept, whatever its type is like."""

import copy
import dataclasses
import json
import pickle
import subprocess
import traceback

import httpx
import pydantic
import pytest
from botocore.exceptions import ClientError

import semel
from semel.core.policy import policy_of

pytestmark = pytest.mark.situation(46)


class Model(pydantic.BaseModel):
    n: int


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int
    text: str


class Named(Exception):
    """It has a field of ours under a rule of its own, and shows itself otherwise."""

    def __init__(self, *, reason):
        self.reason = reason

    @property
    def key(self):
        return self.reason

    def __str__(self):
        return self.reason.upper()


class Made(Exception):
    def __new__(cls, first, *, second):
        return super().__new__(cls)

    def __init__(self, first, *, second):
        super().__init__(f"{first} {second}")


class Near(Exception):
    pass


class Final(Near):
    def __init_subclass__(cls):
        raise TypeError("nobody derives from this")


def answered(status):
    return httpx.Response(status, request=httpx.Request("POST", "https://bank.example"))


def raising(function):
    try:
        function()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("it did not fail")


FAILURES = [
    raising(lambda: json.loads("{")),
    ClientError({"Error": {"Code": "Throttled", "Message": "slowly"}}, "PutItem"),
    raising(answered(422).raise_for_status),
    raising(lambda: Model(n="x")),  # type: ignore[arg-type]
    subprocess.CalledProcessError(3, ["false"], "out", "err"),
    raising(b"\xff".decode),
    FileNotFoundError(2, "No such file", "there"),
    KeyError("missing"),
    SyntaxError("bad", ("file", 1, 2, "text")),
    Frozen(7, "frozen"),
    Named(reason="named"),
    Made(1, second=2),
    ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_a_kept_failure_can_be_caught(failure):
    kind, runs = type(failure), []
    with semel.connect("memory:") as s:

        @s.once("k", on_error={kind: "keep"})
        def work() -> None:
            runs.append(1)
            raise failure

        assert raising(work) is failure
        again = [raising(work), raising(work)]
    assert runs == [1]
    for error in again:
        assert isinstance(error, kind)
        assert isinstance(error, semel.FailedBefore)
        assert (error.key, error.attempt, error.error_type) == ("k", 1, kind.__qualname__)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_it_can_be_pickled_copied_and_shown(failure):
    kind = type(failure)
    with semel.connect("memory:") as s:

        @s.once("k", on_error={kind: "keep"})
        def work() -> None:
            raise failure

        raising(work)
        error = raising(work)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert isinstance(other, kind)
        assert isinstance(other, semel.FailedBefore)
        assert str(other) == str(error)
        assert (other.key, other.attempt) == ("k", 1)
    assert "failed for good at attempt 1" in str(error)
    error.add_note("and more")
    if kind is not SyntaxError:  # which is shown by the place in a file
        assert "failed for good" in "".join(traceback.format_exception(error))
    assert len({error, error}) == 1


def test_a_type_that_nobody_may_derive_from_gives_way_to_its_nearest_base():
    with semel.connect("memory:") as s:

        @s.once("k", on_error={Final: "keep"})
        def work() -> None:
            raise Final("no")

        assert type(raising(work)) is Final
        again = raising(work)
    assert isinstance(again, semel.FailedBefore)
    assert isinstance(again, Near)
    assert type(pickle.loads(pickle.dumps(again))) is type(again)


def test_a_local_type_is_pickled_without_it():
    class Local(Exception):
        pass

    with semel.connect("memory:") as s:

        @s.once("k", on_error={Local: "keep"})
        def work() -> None:
            raise Local

        raising(work)
        error = raising(work)
    assert isinstance(error, Local)
    assert type(pickle.loads(pickle.dumps(error))) is semel.FailedBefore


def test_two_types_of_one_name_are_told_apart():
    one = type("Declined", (Exception,), {"__module__": "bank"})
    other = type("Declined", (Exception,), {"__module__": "shop"})
    policy = policy_of({"on_error": {one: "keep", other: "keep"}})
    for kind in (one, other):
        assert policy.kind_of(policy.fate_of(kind(), 1)[1]) is kind
    assert policy.kind_of("Declined") is None


def test_a_type_that_moved_to_another_module_is_still_found():
    kind = type("Declined", (Exception,), {"__module__": "bank.errors"})
    policy = policy_of({"on_error": {kind: "keep"}})
    assert policy.kind_of("bank.Declined") is kind
    assert policy.kind_of("Declined") is kind
    assert policy.kind_of("bank.NotDeclined") is None
