"""The ledger over HTTP: the promises of the library, also where answers are lost and holders are zombies."""

import json
import shutil
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from fastapi.testclient import TestClient

import semel
from semel.service.runtime import Runtime
from tests.apps.kit import Place
from tests.servers.absence import served as running
from tests.servers.dynamodb import dynoxide, ministack
from tests.service.kit import ALL_TOKENS, TOKENS, bearer, client_of, problem_of, told

GATES = """
[gates.replies]
rules = [
    {rule = "kill_switch", switch = "stop"},
    {rule = "quiet_hours", start = "03:00", end = "03:01", zone = "Europe/Stockholm"},
    {rule = "cap", counter = "replies:{chat}", cap = 1, per = "month", zone = "Europe/Stockholm"},
    {rule = "varying_fact", fact = "try"},
]
"""
T1, T2, T3 = ("token-of-attempt-1", "token-of-attempt-2", "token-of-attempt-3")


@pytest.fixture(scope="module", params=["sqlite", "dynamodb"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One store for all of these tests; each has keys of its own."""
    folder = tmp_path_factory.mktemp("v1")
    if request.param == "sqlite":
        yield Place("sqlite", folder)
        return
    with running(dynoxide if shutil.which("npm") else ministack) as server:
        yield Place("dynamodb", folder, server)


@pytest.fixture(scope="module")
def runtime(place: Place) -> Iterator[Runtime]:
    runtime = Runtime(told(place.toml() + "[service]\nmax_body_bytes = 4_000_000\n" + ALL_TOKENS + GATES))
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def client(runtime: Runtime) -> Iterator[TestClient]:
    with client_of(runtime) as client:
        yield client


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def post(client: TestClient) -> Any:
    """Ask, and give the answer; `who` is the token it is asked with."""

    def ask(path: str, who: str = "north", **body: Any) -> Any:
        return client.post(f"/v1/{path}", json=body, headers=bearer(who))

    return ask


def claimed(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 201, answer.text
    told: dict[str, Any] = answer.json()
    assert told["outcome"] == "claimed"
    return told


# The life of a key


def test_a_key_is_claimed_completed_and_given_again(post: Any, client: TestClient, key: str) -> None:
    first = claimed(post("claims", key=key, token=T1, payload={"cents": 5}, lease=20, ttl=600))
    assert (first["key"], first["attempt"], first["lapsed"], first["lease"]) == (key, 1, False, 20)
    record = client.get("/v1/records", params={"key": key}, headers=bearer("north")).json()
    assert (record["status"], record["kept"], "result" in record) == ("IN_PROGRESS", False, False)
    assert T1 not in str(record)

    done = post("claims/complete", claim=first["claim"], result={"paid": None})
    assert done.json() == {"outcome": "completed", "kept": True}
    again = post("claims", key=key, token=T2, payload={"cents": 5})
    assert again.status_code == 200
    assert {name: again.json()[name] for name in ("outcome", "kept", "result", "attempt")} == {
        "outcome": "replay",
        "kept": True,
        "result": {"paid": None},
        "attempt": 1,
    }
    record = client.get("/v1/records", params={"key": key}, headers=bearer("north")).json()
    assert (record["status"], record["result"]) == ("COMPLETED", {"paid": None})


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}])
def test_a_result_comes_back_as_it_went_in(post: Any, key: str, result: Any) -> None:
    claim = claimed(post("claims", key=key))["claim"]
    assert post("claims/complete", claim=claim, result=result).status_code == 200
    assert post("claims", key=key).json()["result"] == result


def test_a_result_that_cannot_be_kept_is_completed_without_one_and_told(post: Any, key: str) -> None:
    claim = claimed(post("claims", key=key))["claim"]
    large = b64encode(Random(5).randbytes(1_200_000)).decode()  # which no compression makes much smaller
    for _ in range(2):
        told = post("claims/complete", claim=claim, result=large)
        assert told.json() == {"outcome": "completed", "kept": False}
    again = post("claims", key=key).json()
    assert (again["outcome"], again["kept"], "result" in again) == ("replay", False, False)


def test_a_result_that_could_not_be_kept_is_not_taken_for_another_that_could(
    client: TestClient, post: Any, key: str
) -> None:
    claim = claimed(post("claims", key=key))["claim"]
    body = b'{"claim": "%s", "result": [1e999]}' % claim.encode()  # which JSON can write and not give back
    headers = bearer("north") | {"Content-Type": "application/json"}
    for _ in range(2):
        told = client.post("/v1/claims/complete", content=body, headers=headers)
        assert told.json() == {"outcome": "completed", "kept": False}
    assert problem_of(post("claims/complete", claim=claim, result="another")) == "claim-lost"
    assert post("claims", key=key).json()["kept"] is False


def test_a_result_with_half_a_character_in_it_runs_nothing_again(
    client: TestClient, post: Any, key: str
) -> None:
    claim = claimed(post("claims", key=key))["claim"]
    body = b'{"claim": "%s", "result": "\\ud800"}' % claim.encode()
    headers = bearer("north") | {"Content-Type": "application/json"}
    answer = client.post("/v1/claims/complete", content=body, headers=headers)
    assert answer.json() == {"outcome": "completed", "kept": False}
    assert post("claims", key=key).json()["outcome"] == "replay"


def test_a_held_key_is_busy_and_says_when_to_come_back(post: Any, key: str) -> None:
    claimed(post("claims", key=key, token=T1, lease=30))
    busy = post("claims", key=key, token=T2)
    assert (busy.status_code, problem_of(busy)) == (409, "in-progress")
    assert 1 <= int(busy.headers["retry-after"]) <= 40  # with the margin of clocks
    assert busy.json()["attempt"] == 1


def test_a_changed_payload_is_refused_and_changes_nothing(post: Any, key: str) -> None:
    claim = claimed(post("claims", key=key, token=T1, payload=[1]))["claim"]
    for token in (T1, T2):  # its own token, too
        changed = post("claims", key=key, token=token, payload=[2])
        assert (changed.status_code, problem_of(changed)) == (422, "payload-changed")
    assert post("claims/complete", claim=claim, result=1).status_code == 200
    assert problem_of(post("claims", key=key, payload=[2])) == "payload-changed"


def test_a_clients_own_fingerprint_serves_as_well_but_not_both(post: Any, key: str) -> None:
    claimed(post("claims", key=key, token=T1, fingerprint="abc"))
    assert problem_of(post("claims", key=key, token=T2, fingerprint="abd")) == "payload-changed"
    both = post("claims", key=key, payload=None, fingerprint="abc")
    assert (both.status_code, problem_of(both)) == (400, "invalid-request")


def test_a_payload_without_a_canonical_form_is_refused(post: Any, key: str) -> None:
    refused = post("claims", key=key, payload=2**60)
    assert (refused.status_code, problem_of(refused)) == (400, "invalid-request")
    assert "beyond 2^53" in refused.json()["detail"]


def test_a_failure_is_kept_and_told(post: Any, key: str) -> None:
    claim = claimed(post("claims", key=key))["claim"]
    error = {"type": "CardDeclined", "message": "no money"}
    for _ in range(2):  # a lost answer is asked for again
        assert post("claims/fail", claim=claim, error=error).json() == {"outcome": "failed"}
    failed = post("claims", key=key)
    assert (failed.status_code, problem_of(failed)) == (409, "failed-before")
    assert failed.json()["error"] == error


def test_what_is_given_back_runs_again_as_the_next_attempt(post: Any, key: str) -> None:
    claim = claimed(post("claims", key=key, token=T1))["claim"]
    for _ in range(2):
        released = post("claims/release", claim=claim, error={"type": "Timeout"})
        assert released.json() == {"outcome": "released"}
    second = claimed(post("claims", key=key, token=T2))
    assert (second["attempt"], second["lapsed"]) == (2, False)


def test_a_lease_is_renewed_by_its_holder(post: Any, key: str) -> None:
    first = claimed(post("claims", key=key, lease=20))
    renewed = post("claims/renew", claim=first["claim"]).json()
    assert (renewed["outcome"], renewed["lease"]) == ("renewed", 20)
    assert renewed["lease_until"] >= first["lease_until"]


def test_attempts_are_limited_where_the_caller_says_so(post: Any, key: str) -> None:
    claim = claimed(post("claims", key=key, max_attempts=1))["claim"]
    post("claims/release", claim=claim)
    assert problem_of(post("claims", key=key, max_attempts=1)) == "failed-before"


# Zombies and forgers


def opened_handle(handle: str) -> list[Any]:
    """What is inside a handle, which is nobody's business."""
    made: list[Any] = json.loads(urlsafe_b64decode(handle + "=" * (-len(handle) % 4)))
    return made


def sealed_handle(inside: list[Any]) -> str:
    return urlsafe_b64encode(json.dumps(inside).encode()).decode().rstrip("=")


def lapse(runtime: Runtime, key: str, scope: str = "north") -> None:
    """End the lease of whoever holds a key, as time would."""
    ledger = runtime.s.scoped(scope).ledger
    record = ledger.get(key)
    assert record is not None
    ledger.lapse(semel.Claimed(record.id, record.token, record.attempt, 1, 60))


def test_a_zombie_is_refused_whatever_it_wants(post: Any, runtime: Runtime, key: str) -> None:
    zombie = claimed(post("claims", key=key, token=T1))["claim"]
    lapse(runtime, key)
    heir = claimed(post("claims", key=key, token=T2))
    assert (heir["attempt"], heir["lapsed"]) == (2, True)
    moves: dict[str, dict[str, Any]] = {
        "complete": {"result": "zombie"},
        "fail": {"error": {"type": "E"}},
        "release": {},
        "renew": {},
    }
    for move, body in moves.items():
        refused = post(f"claims/{move}", claim=zombie, **body)
        assert (refused.status_code, problem_of(refused)) == (409, "claim-lost")
    assert post("claims/complete", claim=heir["claim"], result="heir").status_code == 200
    assert problem_of(post("claims/complete", claim=zombie, result="zombie")) == "claim-lost"
    assert post("claims", key=key).json()["result"] == "heir"


@pytest.mark.parametrize(("lease", "ttl"), [(0, 60), (-5, 60), (1e300, 60), (30, -1), (30, 1e300)])
def test_a_claim_with_another_lease_written_into_it_is_refused(
    post: Any, key: str, lease: float, ttl: float
) -> None:
    held = opened_handle(claimed(post("claims", key=key))["claim"])
    refused = post("claims/renew", claim=sealed_handle([*held[:3], lease, ttl]))
    assert (refused.status_code, problem_of(refused)) == (400, "claim-malformed")
    assert problem_of(post("claims", key=key)) == "in-progress"


def test_a_vanished_attempt_is_held_where_the_caller_says_so(post: Any, runtime: Runtime, key: str) -> None:
    claimed(post("claims", key=key))
    lapse(runtime, key)
    for _ in range(2):
        held = post("claims", key=key, on_lapsed="hold")
        assert (held.status_code, problem_of(held)) == (409, "outcome-unknown")
        assert held.json()["attempt"] == 1


# Lost answers


def test_a_claim_whose_answer_was_lost_is_the_same_claim(post: Any, runtime: Runtime, key: str) -> None:
    first = claimed(post("claims", key=key, token=T1, payload=[1]))
    lapse(runtime, key)  # it may have taken long to ask again
    second = claimed(post("claims", key=key, token=T1, payload=[1]))
    assert second["claim"] == first["claim"]
    # Its lease began anew with the second answer, so nobody else takes it over.
    assert problem_of(post("claims", key=key, token=T2)) == "in-progress"
    assert post("claims/complete", claim=first["claim"], result=1).status_code == 200
    assert post("claims", key=key, token=T1, payload=[1]).json()["outcome"] == "replay"


def test_a_claim_without_a_token_of_its_own_waits_for_itself(post: Any, key: str) -> None:
    """Which is why a client makes one."""
    claimed(post("claims", key=key))
    assert problem_of(post("claims", key=key)) == "in-progress"


def test_an_old_copy_of_a_claim_that_was_given_back_takes_nothing(post: Any, key: str) -> None:
    claim = claimed(post("claims", key=key, token=T1))["claim"]
    post("claims/release", claim=claim)
    late = post("claims", key=key, token=T1)
    assert (late.status_code, problem_of(late)) == (409, "claim-over")
    assert claimed(post("claims", key=key, token=T2))["attempt"] == 2


def test_a_claim_that_was_lost_meanwhile_is_not_the_callers_any_more(
    post: Any, runtime: Runtime, key: str
) -> None:
    claimed(post("claims", key=key, token=T1))
    lapse(runtime, key)
    claimed(post("claims", key=key, token=T2))
    assert problem_of(post("claims", key=key, token=T1)) == "in-progress"


def test_a_completion_whose_answer_was_lost_is_done_but_not_with_another_result(post: Any, key: str) -> None:
    claim = claimed(post("claims", key=key))["claim"]
    for _ in range(2):
        done = post("claims/complete", claim=claim, result={"b": 1, "a": [1.5, "é"]})
        assert done.json() == {"outcome": "completed", "kept": True}
    for other in ({"b": 1}, True):
        refused = post("claims/complete", claim=claim, result=other)
        assert (refused.status_code, problem_of(refused)) == (409, "claim-lost")
    assert problem_of(post("claims/fail", claim=claim, error={"type": "E"})) == "claim-lost"


def test_a_repeated_completion_is_no_lost_claim_in_the_metrics(
    post: Any, client: TestClient, key: str
) -> None:
    def lost() -> str:
        text = client.get("/metrics", headers=bearer("chief")).text
        return next((line for line in text.splitlines() if 'door="api",event="claim_lost"' in line), "0")

    claim = claimed(post("claims", key=key))["claim"]
    post("claims/complete", claim=claim, result=1)
    before = lost()
    post("claims/complete", claim=claim, result=1)
    assert lost() == before


def test_a_handle_that_was_not_given_out_here_is_refused(post: Any) -> None:
    for handle in ("abc", "W10", "bnVsbA"):
        refused = post("claims/renew", claim=handle)
        assert (refused.status_code, problem_of(refused)) == (400, "claim-malformed")
        assert problem_of(post("counters/refund", charge=handle)) == "claim-malformed"
        assert problem_of(post("gates/replies/refund", decision=handle)) == "claim-malformed"


# Tenants


def test_tenants_do_not_see_each_other_whatever_they_send(post: Any, client: TestClient, key: str) -> None:
    north = claimed(post("claims", key=key, token=T1))
    south = claimed(post("claims", "south", key=key, token=T2))
    assert (north["attempt"], south["attempt"]) == (1, 1)
    # A handle has no tenant in it: in another's hands it names another key.
    assert problem_of(post("claims/complete", "south", claim=north["claim"], result=1)) == "claim-lost"
    assert post("claims/complete", claim=north["claim"], result="north").status_code == 200
    read = client.get("/v1/records", params={"key": key}, headers=bearer("reader")).json()
    assert read["result"] == "north"
    assert problem_of(post("wait", "south", key=key, timeout=0.01)) == "in-progress"


# Waiting and looking


def test_a_wait_ends_when_the_work_does_or_says_that_it_goes_on(post: Any, key: str) -> None:
    claim = claimed(post("claims", key=key))["claim"]
    going = post("wait", key=key, timeout=0.01)
    assert (going.status_code, problem_of(going)) == (409, "in-progress")
    assert int(going.headers["retry-after"]) >= 1
    post("claims/complete", claim=claim, result=5)
    assert post("wait", key=key, timeout=30).json()["result"] == 5


def test_what_was_never_used_is_told_so(post: Any, client: TestClient, key: str) -> None:
    assert problem_of(post("wait", key=key)) == "no-such-record"
    answer = client.get("/v1/records", params={"key": key}, headers=bearer("north"))
    assert (answer.status_code, problem_of(answer)) == (404, "no-such-record")


@pytest.mark.parametrize("bad", ["", "a\nb", "x" * 1025, "é" * 600])
def test_a_key_that_names_nothing_is_refused(post: Any, bad: str) -> None:
    answer = post("claims", key=bad)
    assert answer.status_code == 400
    assert problem_of(answer) in {"invalid-request", "key-malformed"}


# Marks


def test_the_first_time_is_true_and_the_second_false(post: Any, key: str) -> None:
    assert post("check-and-set", key=key, ttl=60).json() == {"new": True}
    assert post("check-and-set", key=key, ttl=60).json() == {"new": False}
    assert post("is-processed", key=key).json() == {"processed": True}
    assert post("is-processed", key=f"{key}2").json() == {"processed": False}


def test_an_answer_that_was_lost_is_given_again_to_the_same_token(post: Any, key: str) -> None:
    keys = [f"{key}{number}" for number in range(3)]
    assert post("check-and-set", key=keys[0], token=T1).json() == {"new": True}
    assert post("check-and-set", key=keys[0], token=T1).json() == {"new": True}
    assert post("check-and-set", key=keys[0], token=T2).json() == {"new": False}
    for _ in range(2):
        assert post("check-and-set", keys=[*keys, keys[1]], token=T3).json() == {
            "new": [False, True, True, False]
        }
    assert post("check-and-set", keys=keys).json() == {"new": [False, False, False]}


def test_it_takes_one_key_or_several_and_not_both(post: Any, key: str) -> None:
    for body in ({}, {"key": key, "keys": [key]}):
        assert problem_of(post("check-and-set", **body)) == "invalid-request"


def test_what_is_done_elsewhere_is_marked_unless_somebody_is_at_work(post: Any, key: str) -> None:
    assert post("mark-processed", key=key).json() == {"processed": True}
    assert post("mark-processed", key=key).json() == {"processed": True}
    assert post("is-processed", key=key).json() == {"processed": True}
    claimed(post("claims", key=f"{key}2"))
    assert problem_of(post("mark-processed", key=f"{key}2")) == "in-progress"


# Counters


def test_a_charge_counts_once_is_capped_and_given_back_once(post: Any, client: TestClient, key: str) -> None:
    body = {"counter": key, "cap": 2, "per": "month", "zone": "Europe/Stockholm"}
    first = post("counters/charge", token="m1", **body)
    assert first.status_code == 200
    assert post("counters/charge", token="m1", **body).json()["charge"] == first.json()["charge"]
    post("counters/charge", token="m2", **body)
    full = post("counters/charge", token="m3", **body)
    assert (full.status_code, problem_of(full)) == (409, "cap-reached")
    assert (full.json()["used"], full.json()["cap"]) == (2, 2)
    assert full.json()["resets_at"] == first.json()["resets_at"]
    for _ in range(2):
        assert post("counters/refund", charge=first.json()["charge"]).json() == {"refunded": True}
    params = {"counter": key, "per": "month", "zone": "Europe/Stockholm", "cap": "2"}
    tally = client.get("/v1/counters", params=params, headers=bearer("reader")).json()
    assert (tally["used"], tally["remaining"], tally["period"]) == (1, 1, first.json()["period"])
    assert tally["resets_at"] == first.json()["resets_at"]


def test_no_more_is_given_back_than_was_charged(post: Any, client: TestClient, key: str) -> None:
    counter, period, token, by, id, resets_at = opened_handle(
        post("counters/charge", counter=key, token="m1", cap=9).json()["charge"]
    )
    forged = sealed_handle([counter, period, token, by + 50, id, resets_at])
    assert problem_of(post("counters/refund", charge=forged)) == "claim-malformed"
    elsewhen = sealed_handle([counter, "2020-01-01", token, by, id, resets_at])
    assert problem_of(post("counters/refund", charge=elsewhen)) == "claim-malformed"
    tally = client.get("/v1/counters", params={"counter": key}, headers=bearer("reader")).json()
    assert tally["used"] == 1
    made = sealed_handle([counter, period, token, by, id, resets_at])
    assert post("counters/refund", charge=made).json() == {"refunded": True}
    assert problem_of(post("counters/refund", charge=forged)) == "claim-malformed"


def test_a_zone_that_does_not_exist_is_refused(post: Any, key: str) -> None:
    answer = post("counters/charge", counter=key, token="t", cap=1, zone="Mars/Olympus")
    assert (answer.status_code, problem_of(answer)) == (400, "invalid-request")


# Gates and switches


def test_a_gate_decides_once_charges_and_gives_back(post: Any, key: str) -> None:
    facts = {"chat": key}
    first = post("gates/replies/decide", key=f"{key}:1", facts=facts).json()
    assert (first["allowed"], first["reason"]) == (True, None)
    assert post("gates/replies/decide", key=f"{key}:1", facts=facts).json() == first
    refused = post("gates/replies/decide", key=f"{key}:2", facts=facts).json()
    assert (refused["allowed"], refused["decision"]) == (False, None)
    assert refused["reason"].startswith("cap:replies:")
    assert refused["not_before"] is not None
    assert refused["rules"][-1]["saw"].startswith("1 of 1 in ")
    for _ in range(2):
        assert post("gates/replies/refund", decision=first["decision"]).json() == {"refunded": True}
    assert post("gates/replies/decide", key=f"{key}:3", facts=facts).json()["allowed"] is True


def test_a_decision_gives_back_what_it_took_whatever_is_written_into_it(post: Any, key: str) -> None:
    facts = {"chat": key}
    first = post("gates/replies/decide", key=f"{key}:1", facts=facts).json()
    held = opened_handle(first["decision"])
    assert key not in str(held[1:])  # nothing of what it took is there to be changed
    assert post("gates/replies/refund", decision=first["decision"]).json() == {"refunded": True}
    second = post("gates/replies/decide", key=f"{key}:1", facts=facts).json()
    assert second["allowed"] is True
    # An old handle does not give back what the new decision took.
    assert post("gates/replies/refund", decision=first["decision"]).json() == {"refunded": False}
    assert post("gates/replies/decide", key=f"{key}:2", facts=facts).json()["allowed"] is False


@pytest.mark.situation(29)
def test_a_gate_refuses_changed_facts_as_a_claim_refuses_another_payload(post: Any, key: str) -> None:
    facts: dict[str, Any] = {"chat": key, "cents": 1}
    first = post("gates/replies/decide", key=key, facts=facts).json()
    for reconsider in (False, True):
        answer = post("gates/replies/decide", key=key, facts=facts | {"cents": 10**6}, reconsider=reconsider)
        assert (answer.status_code, problem_of(answer)) == (422, "payload-changed")
    assert post("gates/replies/decide", key=key, facts=facts | {"try": 2}).json() == first


def test_a_gate_needs_its_facts_and_none_that_mean_something_else(post: Any, key: str) -> None:
    assert problem_of(post("gates/replies/decide", key=key)) == "invalid-request"
    for name in ("self", "also", "at", "subject"):
        answer = post("gates/replies/decide", key=key, facts={"chat": 1, name: 5})
        assert answer.json()["detail"] == f"no fact can be named {name!r}"
    missing = post("gates/nights/decide", key=key)
    assert (missing.status_code, problem_of(missing)) == (404, "no-such-gate")
    assert missing.json()["detail"] == "there are replies"


def test_a_switch_stops_every_tenant_and_says_why(post: Any, client: TestClient, key: str) -> None:
    def turn(on: bool) -> Any:
        body = {"on": on, "reason": "wrong prices"}
        return client.put("/v1/switches/stop", json=body, headers=bearer("chief"))

    assert turn(True).json()["on"] is True
    [switch] = client.get("/v1/switches", headers=bearer("chief")).json()["switches"]
    assert (switch["name"], switch["on"], switch["reason"]) == ("stop", True, "wrong prices")
    refused = post("gates/replies/decide", "south", key=key, facts={"chat": key}).json()
    assert (refused["allowed"], refused["reason"]) == (False, "kill_switch:stop")
    assert turn(False).json()["on"] is False
    again = post("gates/replies/decide", "south", key=key, facts={"chat": key}, reconsider=True)
    assert again.json()["allowed"] is True


# Privacy


def test_nothing_that_was_sent_stands_in_clear_in_the_files(
    post: Any, place: Place, runtime: Runtime, key: str
) -> None:
    claim = claimed(post("claims", key=key, payload={"mail": "planted-payload@example.com"}))["claim"]
    post("claims/complete", claim=claim, result={"mail": "planted-result@example.com"})
    other = claimed(post("claims", key=f"{key}2"))["claim"]
    post("claims/fail", claim=other, error={"type": "E", "message": "planted-error@example.com is unknown"})
    assert post("claims", key=f"{key}2").json()["error"]["message"] == "***@*** is unknown"
    for name, data in place.files():
        assert b"planted-" not in data, name
    record = runtime.s.scoped("north").ledger.get(key)
    assert b"planted" not in (record.result or b"")


def test_tokens_are_kept_nowhere(place: Place) -> None:
    for name, data in place.files():
        assert not [token for token in TOKENS.values() if token.encode() in data], name
