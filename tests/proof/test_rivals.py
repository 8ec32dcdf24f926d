"""The suites of `proof.rivals` on the stores that need no server, and what semel does where one differs.

idemkit's suite waits for leases to end. Here a clock that is moved stands in for its waits, so that no test
depends on how long anything takes; `python -m proof.rivals` runs it as it was published.
"""

import asyncio
import json
from collections.abc import Iterator
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import idemkit.backends.memory
import idemkit.conformance.backend
import justonce.stores.base
import pytest
from justonce import Idempotent, KeyReuseError, OperationInFlightError

import semel
from proof.rivals import __main__ as program
from proof.rivals import suites
from proof.rivals.idemkit_backend import SemelBackend
from proof.rivals.justonce_store import SemelStore
from proof.rivals.suites import DIFFERS, STALE, Result, judged, name_of
from semel.testing import FakeClock

KEPT = 60


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def s(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Any) -> Iterator[semel.Semel]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'semel.db'}"
    with semel.connect(url, clock=clock) as ledger:
        yield ledger


@pytest.fixture
def in_memory(clock: FakeClock) -> Iterator[semel.Semel]:
    """A ledger that writes at once: where a thread writes, a clock that is moved runs ahead of it."""
    with semel.connect("memory:", clock=clock) as ledger:
        yield ledger


@pytest.fixture
def waits(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let idemkit's suite wait by the clock that its backend has."""

    async def sleep(seconds: float) -> None:
        await clock.wait_async(asyncio.Event(), seconds)

    by_the_clock = SimpleNamespace(sleep=sleep, gather=asyncio.gather)
    monkeypatch.setattr(idemkit.conformance.backend, "asyncio", by_the_clock)


def test_the_vectors_of_idemkit_pass(in_memory: semel.Semel, waits: None) -> None:
    found = list(suites.idemkit("here", in_memory))
    assert [result for result in found if result.outcome != "passed"] == []
    assert len(found) == 13


def test_the_cases_of_justonce_pass_or_are_known_to_differ(s: semel.Semel) -> None:
    found = list(suites.justonce("here", s))
    assert [result for result in found if result.outcome == "failed"] == []
    assert len(found) == 23
    differing = {(result.suite, result.case) for result in found if result.outcome == "differs"}
    assert differing == DIFFERS.keys()


def test_what_has_expired_is_absent_at_once_and_can_be_claimed_anew(s: semel.Semel, clock: FakeClock) -> None:
    """Instead of being there until somebody sweeps; it is all that DIFFERS lists."""
    assert {case for _, case in DIFFERS} == {"test_sweep_removes_terminal_records_past_their_retention"}
    store = SemelStore(s)
    store.claim("k", "h", KEPT)
    store.complete("k", "done", retention_seconds=KEPT)
    clock.advance(KEPT - 1)
    assert store.lookup("k").response == "done"
    clock.advance(1)
    assert store.lookup("k") is None
    assert store.claim("k", "another", KEPT).won


def test_the_adapter_is_a_store_by_justonces_own_protocol(s: semel.Semel) -> None:
    assert isinstance(SemelStore(s), justonce.stores.base.Store)


# The suites find what they are meant to find, so a pass says something


class Careless(SemelBackend):
    """A backend that takes every completion for the holder's."""

    async def complete(self, *args: Any) -> bool:
        await super().complete(*args)
        return True


def test_the_vectors_find_a_backend_that_does_not_fence(in_memory: semel.Semel, waits: None) -> None:
    found = asyncio.run(suites.vectors("here", Careless(in_memory)))
    failed = {result.case for result in found if result.outcome == "failed"}
    assert failed == {"fencing-wrong-token", "fenced-after-reclaim"}


class Forgetful(SemelStore):
    """A store that lets everybody win."""

    def claim(self, key: str, request_hash: str, ttl_seconds: float) -> Any:
        return justonce.stores.base.Claim(True, super().claim(key, request_hash, ttl_seconds).record)


def test_the_cases_find_a_store_with_two_winners(s: semel.Semel) -> None:
    found = suites.cases("here", lambda: Forgetful(s.scoped(uuid4().hex)))
    failed = {result.case for result in found if result.outcome == "failed"}
    assert {"test_only_one_concurrent_claimer_wins", "test_claim_is_not_check_then_act"} <= failed


def test_what_is_listed_as_different_may_not_pass() -> None:
    [(suite, case)] = DIFFERS
    assert judged(suite, "here", case, "AssertionError").outcome == "differs"
    assert judged(suite, "here", case, None) == Result(suite, "here", case, "failed", STALE)


# What users of justonce rely on, by the table in its README: its engine, on the ledger


def test_justonces_engine_keeps_the_promises_of_its_readme_on_the_ledger(
    s: semel.Semel, clock: FakeClock
) -> None:
    engine = Idempotent(SemelStore(s), ttl_seconds=KEPT)
    assert [engine.run("same", lambda: 7, payload=1).value for _ in range(2)] == [7, 7]
    with pytest.raises(KeyReuseError):
        engine.run("same", lambda: 8, payload=2)
    for retry, again in ((True, 9), (False, None)):
        with pytest.raises(ZeroDivisionError):
            engine.run(f"failed {retry}", lambda: 1 / 0, retry_on_failure=retry)
        assert engine.run(f"failed {retry}", lambda: 9).value == again
    engine.store.claim("died", justonce.fingerprint(None), KEPT)
    with pytest.raises(OperationInFlightError):
        engine.run("died", lambda: 10)
    clock.advance(KEPT + 1)
    assert engine.run("died", lambda: 10).value == 10


def test_justonces_engine_refuses_on_the_ledger_what_it_could_not_record(
    s: semel.Semel, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SemelStore(s)
    engine = Idempotent(store)
    with monkeypatch.context() as patch:
        patch.setattr(store, "complete", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.run("charge", lambda: 7)
    with pytest.raises(OperationInFlightError):
        engine.run("charge", lambda: 7)
    assert [record.key for record in engine.unresolved()] == ["charge"]


# What no suite asks, and where the libraries part: each side is shown


def claimed(s: semel.Semel, **options: Any) -> semel.Claimed:
    claim = s.ledger.claim("k", lease=KEPT, **options)
    assert isinstance(claim, semel.Claimed)
    return claim


def test_a_lapsed_claim_is_taken_over_by_the_same_payload_alone_and_in_idemkit_by_any(
    s: semel.Semel, clock: FakeClock
) -> None:
    claimed(s, fingerprint="one")
    clock.advance(KEPT + 1)
    assert isinstance(s.ledger.claim("k", fingerprint="two"), semel.Mismatch)

    async def theirs() -> Any:
        now = idemkit.backends.memory.ManualClock()
        backend = idemkit.InMemoryBackend(clock=now)
        await backend.claim("k", "one", 1, KEPT)
        now.advance(KEPT + 1)
        return await backend.claim("k", "two", 1, KEPT)

    assert asyncio.run(theirs()).result == "lease_reclaimed"


def test_a_holder_that_was_taken_over_is_refused_and_in_justonce_it_is_not(
    s: semel.Semel, clock: FakeClock
) -> None:
    late = claimed(s)
    clock.advance(KEPT + 1)
    holder = claimed(s)
    with pytest.raises(semel.ClaimLost):
        s.ledger.complete(late, "late")
    s.ledger.complete(holder, "mine")
    assert s.ledger.claim("k").result == "mine"

    store = justonce.stores.SqliteStore()
    assert store.claim("k", "h", ttl_seconds=-1).won
    assert store.claim("k", "h", ttl_seconds=KEPT).won
    store.complete("k", "mine")
    store.complete("k", "late")  # it names the key, and no claim
    assert store.lookup("k").response == "late"
    store.close()


def test_what_was_released_is_for_the_same_payload_and_elsewhere_for_any(s: semel.Semel) -> None:
    s.ledger.release(claimed(s, fingerprint="one"))
    assert isinstance(s.ledger.claim("k", fingerprint="two"), semel.Mismatch)

    store = justonce.stores.SqliteStore()
    store.claim("k", "one", KEPT)
    store.fail("k", terminal=False)
    assert store.claim("k", "two", KEPT).won
    store.close()

    async def theirs() -> Any:
        backend = idemkit.InMemoryBackend()
        first = await backend.claim("k", "one", 1, KEPT)
        await backend.release("k", first.our_claim_token)
        return await backend.claim("k", "two", 1, KEPT)

    assert asyncio.run(theirs()).result == "new_claimed"


def test_a_completion_that_is_sent_again_was_made_and_in_idemkit_it_is_refused(
    in_memory: semel.Semel,
) -> None:
    """Its answer may have been lost: the holder has to be able to find out."""

    async def twice(backend: Any) -> list[bool]:
        first = await backend.claim("k", "h", 1, KEPT)
        token = first.our_claim_token
        return [await backend.complete("k", token, 200, {}, b"done", KEPT) for _ in range(2)]

    assert asyncio.run(twice(SemelBackend(in_memory))) == [True, True]
    assert asyncio.run(twice(idemkit.InMemoryBackend())) == [True, False]


# The program


@pytest.mark.parametrize(("outcome", "code"), [("passed", 0), ("differs", 0), ("failed", 1), ("absent", 1)])
def test_the_program_has_one_line_for_each_suite_and_store(
    outcome: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = {
        name: lambda store, _, name=name: iter([Result(name, store, "a case", outcome, "a reason")])
        for name in suites.SUITES
    }
    monkeypatch.setattr(program, "SUITES", stub)
    monkeypatch.setattr(program, "theirs", lambda: iter([Result("idemkit", "its own", "a case", "passed")]))
    monkeypatch.setattr("logging.disable", lambda _: None)
    assert program.main(["--stores", "memory"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        [*name_of("idemkit").split(), "its", "own", "1", "passed"],
        [*name_of("idemkit").split(), "memory", "1", outcome],
        [*name_of("justonce").split(), "memory", "1", outcome],
    ]
    assert any("a reason" in line for line in lines) == bool(code)
    assert program.main(["--stores", "memory", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["suites"] == {name: version(name) for name in ("idemkit", "justonce")}
    assert [result["outcome"] for result in told["results"]] == ["passed", outcome, outcome]
