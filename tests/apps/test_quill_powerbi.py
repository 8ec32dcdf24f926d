"""Power BI as quill uses it: tokens, rows within the published limits, and what is told when it fails."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semel
from semel.apps.client import AnswerLost, RequestRefused, Unavailable
from semel.apps.quill import Settings, powerbi
from semel.apps.quill.events import AgentEvent, Metric
from semel.apps.quill.powerbi import PowerBI, create_dataset
from semel.apps.quill.rate_limiter import Rate, RequestCombiner
from semel.apps.quill.schema import DEFAULT, FACTS, Fact, fact_of
from semel.doors.queues.messages import Verdict
from semel.stores.memory import MemoryStore
from semel.tables import DOCUMENTS, LEDGER
from semel.testing import FakeClock, Faulty
from tests.apps.quill_kit import Office, call, creation, told
from tests.servers.running import until
from tests.standins import powerbi as other_side
from tests.standins.powerbi import CLIENT, TENANT, WORKSPACE

# Long enough for a busy machine to answer, and short where an answer never comes.
TIMEOUT = 5.0


@pytest.fixture
def there(clock: FakeClock) -> Iterator[other_side.PowerBI]:
    with other_side.PowerBI(clock=clock) as there:
        yield there


@pytest.fixture
def settings(there: other_side.PowerBI) -> Settings:
    """With the dataset made as quill makes it."""
    settings = Settings(
        powerbi_tenant=TENANT,
        powerbi_client=CLIENT,
        powerbi_secret=other_side.SECRET,
        powerbi_workspace=WORKSPACE,
        powerbi_url=there.url,
        powerbi_login=there.url,
        powerbi_timeout=TIMEOUT,
    )
    dataset = create_dataset(settings)
    there.reset()
    return msgspec.structs.replace(settings, powerbi_dataset=dataset)


@pytest.fixture
def sink(s: semel.Semel, settings: Settings) -> Iterator[PowerBI]:
    sink = PowerBI(s, settings)
    yield sink
    sink.close()


@pytest.fixture
def office(s: semel.Semel, clock: FakeClock, settings: Settings, tmp_path: Path) -> Iterator[Office]:
    with _office(s, clock, settings, tmp_path) as office:
        yield office


@contextmanager
def _office(
    s: semel.Semel, clock: FakeClock, settings: Settings, folder: Path, **more: Any
) -> Iterator[Office]:
    chosen = {name: getattr(settings, name) for name in settings.__struct_fields__ if "powerbi" in name}
    office = Office(s, clock, folder, **chosen | more)
    yield office
    office.close()


TABLES = DEFAULT.tables


def event(number: int, **more: Any) -> Fact:
    made = AgentEvent(
        f"ALOWARE:{number}", "ALOWARE", "aloware:7", Metric.CALLS, "2023-11-14", "2023-11-14T22:13:20Z"
    )
    fact = fact_of(made)
    return msgspec.structs.replace(fact, row=fact.row | more)


def dim(settings: Settings, table: str, name: str) -> semel.Key:
    """What a row of a dimension is remembered by."""
    return semel.Key("DIM", settings.powerbi_workspace, settings.powerbi_dataset, table, name)


def tokens(there: other_side.PowerBI) -> int:
    return sum(each.path.endswith("/token") for each in there.received)


# Rows


def test_a_batch_is_one_request_of_facts(office: Office, there: other_side.PowerBI) -> None:
    """After the rows that they refer to, which are there once for all of them."""
    counts = told(office.deliver(*[creation(number) for number in range(100)]))
    assert counts == {"received": 100, "new": 100, "posted": 100}
    assert [each.path.split("/")[-2] for each in there.posts] == [
        "dim_agent",
        "dim_date",
        "dim_metric",
        FACTS,
    ]
    assert len(there.rows(FACTS)) == 100
    assert there.rows(FACTS)[0] == {
        "event_key": "HUBSPOT:0-49:0:object.creation:1700000000000",
        "source": "HUBSPOT",
        "agent": "hubspot:45678",
        "metric": "emails",
        "date": "2023-11-14",
        "occurred_at": "2023-11-14T22:13:20Z",
    }


def test_a_row_of_a_dimension_is_posted_once_ever(
    s: semel.Semel, clock: FakeClock, settings: Settings, there: other_side.PowerBI, tmp_path: Path
) -> None:
    """Not once a request, nor once a process: the ledger remembers them."""
    for process in range(3):
        with _office(s, clock, settings, tmp_path) as office:
            for number in range(4):
                office.ring(call(process * 10 + number))
    assert {table: len(there.rows(table)) for table in TABLES} == {
        "dim_agent": 1,
        "dim_date": 1,
        "dim_metric": 1,
        FACTS: 12,
    }
    assert len(there.posts) == 3 + 12


@pytest.mark.seed("Q9")
def test_a_new_dataset_gets_its_dimensions_and_none_of_the_old_one_are_taken_for_its_own(
    s: semel.Semel, clock: FakeClock, settings: Settings, there: other_side.PowerBI, tmp_path: Path
) -> None:
    """Where facts go is part of what is remembered. A fact is posted once all the same, wherever that was."""
    other = msgspec.structs.replace(settings, powerbi_dataset=create_dataset(settings))
    for chosen, numbers in ((settings, (1, 2)), (other, (2, 3)), (settings, (3, 4)), (other, (4, 5))):
        with _office(s, clock, chosen, tmp_path) as office:
            for number in numbers:
                office.ring(call(number))

    def found(chosen: Settings) -> dict[str, int]:
        return {table: len(there.rows(table, chosen.powerbi_dataset)) for table in TABLES}

    assert found(settings) == {"dim_agent": 1, "dim_date": 1, "dim_metric": 1, FACTS: 3}
    assert found(other) == {"dim_agent": 1, "dim_date": 1, "dim_metric": 1, FACTS: 2}


@pytest.mark.seed("Q9")
def test_the_local_file_and_power_bi_know_nothing_of_each_others_dimensions(
    s: semel.Semel, clock: FakeClock, settings: Settings, there: other_side.PowerBI, tmp_path: Path
) -> None:
    """Whoever begins with a file and goes on to Power BI, or the other way, finds every row where it is."""
    for number, star in enumerate(["one.db", "", "two.db", ""]):
        if star:
            office = Office(s, clock, tmp_path, star=str(tmp_path / star))
            assert told(office.ring(call(number)))["posted"] == 1
            office.close()
        else:
            with _office(s, clock, settings, tmp_path) as office:
                assert told(office.ring(call(number)))["posted"] == 1
    assert [len(there.rows(table)) for table in TABLES] == [1, 1, 1, 2]


@pytest.mark.parametrize("name", ["a" * 4000, "å" * 400, "two\nlines", "\x00", ""])
def test_a_row_may_have_any_name(sink: PowerBI, there: other_side.PowerBI, name: str) -> None:
    """One out of an event that somebody declared, and that no key could hold."""
    fact = event(1)
    odd = msgspec.structs.replace(fact, dimensions={"dim_agent": {"agent": name, "source": "ALOWARE"}})
    for _ in range(2):
        sink._known.clear()
        sink.ensure([odd])
    assert [row["agent"] for row in there.rows("dim_agent")] == [name]


def test_whoever_needs_a_row_that_another_is_posting_comes_back(
    s: semel.Semel, sink: PowerBI, there: other_side.PowerBI, settings: Settings
) -> None:
    """It does not post it too, and does not refer to what may never come."""
    claim = s.ledger.claim(dim(settings, "dim_agent", "aloware:7"))
    with pytest.raises(semel.Later) as told:
        sink.ensure([event(1)])
    assert (told.value.retry_after, told.value.everyone) == (1.0, False)
    assert there.rows("dim_agent") == []
    s.ledger.complete(claim)  # type: ignore[arg-type]
    sink.ensure([event(1)])
    assert there.rows("dim_agent") == []
    assert len(there.rows("dim_date")) == len(there.rows("dim_metric")) == 1


def test_a_dimension_in_doubt_holds_up_no_facts(
    office: Office, there: other_side.PowerBI, settings: Settings
) -> None:
    """Its row is probably there. The facts wait for one more try, and somebody settles the row."""
    office.app.sink._tokens.get()  # type: ignore[attr-defined]
    there.fail(after_applying=True)
    assert told(office.ring(call(1))) == {"received": 1, "new": 1, "queued": 1}
    assert office.status(dim(settings, "dim_agent", "aloware:123260")) == "UNKNOWN"
    office.clock.advance(powerbi.PAUSE)
    assert [one.verdict for one in office.work()] == [Verdict.DONE]
    assert len(there.rows(FACTS)) == len(there.rows("dim_agent")) == 1
    office.s.ledger.resolve(dim(settings, "dim_agent", "aloware:123260"), semel.NotHappened())
    assert told(office.ring(call(2))) == {"received": 1, "new": 1, "posted": 1}
    assert len(there.rows("dim_agent")) == 2  # as somebody has said that it was not there


def test_a_dimension_that_was_not_taken_is_tried_again(office: Office, there: other_side.PowerBI) -> None:
    office.app.sink._tokens.get()  # type: ignore[attr-defined]
    there.fail(status=408)
    assert told(office.ring(call(1))) == {"received": 1, "new": 1, "queued": 1}
    office.clock.advance(powerbi.PAUSE)
    assert [one.verdict for one in office.work()] == [Verdict.DONE]
    assert [len(there.rows(table)) for table in TABLES] == [1, 1, 1, 1]


# Tokens


def test_a_token_is_used_until_it_ends(sink: PowerBI, clock: FakeClock, there: other_side.PowerBI) -> None:
    """And a little less, so that none ends on its way."""
    for number in range(5):
        sink.post([event(number)])
    assert tokens(there) == 1
    clock.advance(other_side.LASTS - powerbi.MARGIN)
    sink.post([event(5)])
    assert tokens(there) == 2
    assert len(there.rows(FACTS)) == 6


@pytest.mark.parametrize("how", ["expired", "forgotten"])
def test_a_token_that_is_refused_is_replaced_at_once(
    sink: PowerBI, there: other_side.PowerBI, how: str
) -> None:
    """401; or 403, which the documentation shows for one that has expired."""
    sink.post([event(1)])
    if how == "expired":
        there.expire_tokens()
    else:
        there.tokens.clear()
    sink.post([event(2)])
    assert [each.status for each in there.posts] == [200, 403 if how == "expired" else 401, 200]
    assert tokens(there) == 2
    assert len(there.rows(FACTS)) == 2


def test_many_ask_for_one_token(sink: PowerBI, there: other_side.PowerBI) -> None:
    threads = [threading.Thread(target=sink.post, args=([event(number)],)) for number in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert tokens(there) == 1
    assert len(there.rows(FACTS)) == 20


def test_no_membership_in_the_workspace_is_final(sink: PowerBI, there: other_side.PowerBI) -> None:
    there.forbidden = True
    with pytest.raises(RequestRefused) as told:
        sink.post([event(1)])
    assert (told.value.status, tokens(there)) == (403, 2)


def test_a_wrong_secret_is_told_without_showing_it(
    s: semel.Semel, settings: Settings, there: other_side.PowerBI
) -> None:
    sink = PowerBI(s, msgspec.structs.replace(settings, powerbi_secret="guessed"))
    with pytest.raises(RequestRefused, match="Entra ID") as told:
        sink.post([event(1)])
    sink.close()
    assert told.value.status == 401
    assert "guessed" not in str(told.value)
    assert there.posts == []


@pytest.mark.parametrize("how", [{"status": 503}, {}, {"status": 200, "body": {"no": "token"}}])
def test_no_token_leaves_nothing_in_doubt(
    sink: PowerBI, there: other_side.PowerBI, clock: FakeClock, how: dict[str, Any]
) -> None:
    """Whatever became of that request, no row was on its way."""
    there.fail(**how)
    with pytest.raises(Unavailable, match="Entra ID"):
        sink.post([event(1)])
    clock.advance(powerbi.PAUSE)
    sink.post([event(1)])
    assert len(there.rows(FACTS)) == 1


# What it answers


def test_nobody_comes_back_before_it_asks_for_it(office: Office, there: other_side.PowerBI) -> None:
    """429 and Retry-After: not only for whoever was told so, but for all that come meanwhile."""
    office.ring(call(1))
    there.fail(status=429, retry_after=41)
    posts = len(there.posts)
    for number in (2, 3):
        assert told(office.ring(call(number))) == {"received": 1, "new": 1, "queued": 1}
    office.clock.advance(10)
    taken = office.work()
    assert [(one.verdict, one.retry_after) for one in taken] == [(Verdict.LATER, 31.0)] * 2
    assert len(there.posts) == posts + 1
    office.clock.advance(31)
    assert [one.verdict for one in office.work()] == [Verdict.DONE] * 2
    assert len(there.rows(FACTS)) == 3


def test_while_it_is_away_deliveries_are_not_held_up(office: Office, there: other_side.PowerBI) -> None:
    """One has waited in vain and is in doubt; those after it are not even sent, and so in none."""
    office.ring(call(1))
    there.fail(after_applying=True)
    posts = len(there.posts)
    for number in (2, 3, 4):
        assert told(office.ring(call(number))) == {"received": 1, "new": 1, "queued": 1}
    assert len(there.posts) == posts + 1
    assert [office.status(f"ALOWARE:{number}") for number in (2, 3, 4)] == ["UNKNOWN", "RELEASED", "RELEASED"]
    taken = office.work()
    assert [(one.verdict, one.retry_after) for one in taken[1:]] == [(Verdict.LATER, powerbi.PAUSE)] * 2
    office.clock.advance(powerbi.PAUSE)
    assert [one.verdict for one in office.work()] == [Verdict.BUSY, Verdict.DONE, Verdict.DONE]


@pytest.mark.parametrize("status", [400, 404, 413])
def test_what_it_refuses_is_put_aside(office: Office, there: other_side.PowerBI, status: int) -> None:
    office.ring(call(1))
    there.fail(next=2, status=status)
    assert told(office.ring(call(2))) == {"received": 1, "new": 1, "queued": 1}
    assert [one.verdict for one in office.work()] == [Verdict.DEAD]
    assert len(there.rows(FACTS)) == 1


@pytest.mark.parametrize("applied", [True, False])
def test_an_answer_that_does_not_come_leaves_the_events_in_doubt(
    office: Office, there: other_side.PowerBI, applied: bool
) -> None:
    """They are held, and whoever looks them up there settles them: each is there once."""
    office.ring(call(1))
    there.fail(after_applying=applied)
    assert told(office.ring(call(2))) == {"received": 1, "new": 1, "queued": 1}
    assert office.status("ALOWARE:2") == "UNKNOWN"
    assert [one.verdict for one in office.work()] == [Verdict.BUSY]
    posted = "ALOWARE:2" in [row["event_key"] for row in there.rows(FACTS)]
    assert posted == applied
    office.s.ledger.resolve("ALOWARE:2", semel.Happened() if posted else semel.NotHappened())
    office.clock.advance(powerbi.PAUSE)
    office.work()
    assert sorted(row["event_key"] for row in there.rows(FACTS)) == ["ALOWARE:1", "ALOWARE:2"]


def test_a_time_out_is_an_answer_that_does_not_come(sink: PowerBI, there: other_side.PowerBI) -> None:
    sink.post([event(1)])
    sink._client._client.timeout = httpx.Timeout(0.1)
    there.fail(hang=60, after_applying=True)
    with pytest.raises(AnswerLost):
        sink.post([event(2)])
    assert len(there.rows(FACTS)) == 2


def test_an_address_where_nobody_listens_is_unavailable(office: Office, there: other_side.PowerBI) -> None:
    """Nothing was sent, and nothing is in doubt; when it is back the worker posts."""
    office.ring(call(1))
    there.stop()
    assert told(office.ring(call(2))) == {"received": 1, "new": 1, "queued": 1}
    assert office.status("ALOWARE:2") == "RELEASED"
    there.start()
    office.clock.advance(powerbi.PAUSE)
    assert [one.verdict for one in office.work()] == [Verdict.DONE]
    assert len(there.rows(FACTS)) == 2


def test_lost_posts_are_repeated_where_that_is_said(
    s: semel.Semel, clock: FakeClock, settings: Settings, there: other_side.PowerBI, tmp_path: Path
) -> None:
    with _office(s, clock, settings, tmp_path, lost_posts="repeat") as office:
        office.ring(call(1))
        there.fail(after_applying=True)
        office.ring(call(2))
        clock.advance(powerbi.PAUSE)
        assert [one.verdict for one in office.work()] == [Verdict.DONE]
        there.fail(after_applying=True)
        office.ring(call(3, user_id=9))
        clock.advance(powerbi.PAUSE)
        office.work()
    assert [row["event_key"] for row in there.rows(FACTS)] == [
        "ALOWARE:1",
        "ALOWARE:2",
        "ALOWARE:2",
        "ALOWARE:3",
    ]
    assert [row["agent"] for row in there.rows("dim_agent")] == [
        "aloware:123260",
        "aloware:9",
        "aloware:9",
    ]


# Limits


def test_the_limits_are_not_hit(sink: PowerBI, there: other_side.PowerBI, clock: FakeClock) -> None:
    """Posted one by one, as fast as it goes: who comes too early waits, and Power BI never says 429."""
    for number in range(400):
        sink.post([event(number)])
    assert {each.status for each in there.posts} == {200}
    assert len(there.rows(FACTS)) == 400
    assert clock.monotonic() >= (400 - powerbi.REQUESTS_A_MINUTE) / powerbi.REQUESTS_A_MINUTE * 60


def test_without_pacing_they_would_be(there: other_side.PowerBI, settings: Settings) -> None:
    """The stand-in keeps the published limit, or the test above would show nothing."""
    token = httpx.post(
        f"{there.url}/{TENANT}/oauth2/v2.0/token",
        data={
            "grant_type": "client_credentials",
            "client_id": CLIENT,
            "client_secret": other_side.SECRET,
            "scope": powerbi.SCOPE,
        },
    ).json()["access_token"]
    path = f"/v1.0/myorg/groups/{WORKSPACE}/datasets/{settings.powerbi_dataset}/tables/dim_agent/rows"
    with httpx.Client(base_url=there.url, headers={"Authorization": f"Bearer {token}"}) as client:
        many = {"rows": [{"agent": "a", "source": "s"}] * (powerbi.ROWS_A_REQUEST + 1)}
        answers = [client.post(path, json={"rows": []}) for _ in range(powerbi.REQUESTS_A_MINUTE)]
        last = client.post(path, json={"rows": []})
        there.clock.advance(60)  # type: ignore[attr-defined]
        assert client.post(path, json=many).status_code == 413
        assert client.post(path, json={"rows": [{"agent": "a" * 4001}]}).status_code == 400
        assert client.post(path, json={"rows": [{"colour": "red"}]}).status_code == 400
        assert client.post(f"{path}/x", json={"rows": []}).status_code == 404
    assert {each.status_code for each in answers} == {200}
    assert (last.status_code, last.headers["Retry-After"]) == (429, "61")


def test_a_large_batch_goes_out_in_requests_that_it_takes(office: Office, there: other_side.PowerBI) -> None:
    events = [event(number) for number in range(powerbi.ROWS_A_REQUEST + 5)]
    from semel.apps.quill.app import QuillSummary

    counts = QuillSummary(len(events))
    assert office.app.take(events, counts).status == 200
    assert counts.posted == len(events)
    sizes = [len(each.json["rows"]) for each in there.posts if FACTS in each.path]
    assert sizes == [powerbi.ROWS_A_REQUEST, 5]


@given(
    arrivals=st.lists(
        st.tuples(st.floats(0, 30), st.floats(0, 20)),
        min_size=1,
        max_size=200,
    )
)
def test_no_span_has_more_than_the_limit(arrivals: list[tuple[float, float]]) -> None:
    """Wherever a minute begins, and however they come: so much at once, and the rest evenly."""
    most, span, now = 120.0, 60.0, 0.0
    rate = Rate(most, span, most / 4)
    left, gone = rate.burst, list[tuple[float, float]]()
    for pause, amount in arrivals:
        passed = pause + rate.wait(rate.filled(left, pause), amount)
        now += passed
        left = rate.filled(left, passed) - amount
        gone.append((now, amount))
    for begin, _ in gone:
        within = sum(amount for at, amount in gone if begin <= at < begin + span)
        assert within <= most + 1e-6


def used(sink: PowerBI, **more: Any) -> None:
    """So much was used by others."""
    sink._rate_limiter._change(lambda state: msgspec.structs.replace(state, **more))


def test_whoever_would_wait_for_long_is_told_to_come_back(sink: PowerBI, there: other_side.PowerBI) -> None:
    """A million rows an hour: beyond them a thread does not sit and wait."""
    used(sink, rows=powerbi.ROWS.burst - powerbi.ROWS_AN_HOUR)
    for ask in (sink.check, lambda: sink.post([event(1)])):
        with pytest.raises(semel.Later, match="by its limits") as told:
            ask()
        assert 3000 < told.value.retry_after < 4000
        assert told.value.everyone
    assert there.posts == []


def test_no_more_are_under_way_than_are_allowed(sink: PowerBI, there: other_side.PowerBI) -> None:
    """Five; the sixth waits, and comes back after a while."""
    sink._tokens.get()
    sink._rate_limiter._limits = sink._rate_limiter._limits._replace(patience=0.05)
    there.fail(next=powerbi.PENDING, hang=60)
    lost: list[Exception] = []

    def post(number: int) -> None:
        try:
            sink.post([event(number)])
        except AnswerLost as error:
            lost.append(error)

    threads = []
    for number in range(powerbi.PENDING):
        threads.append(threading.Thread(target=post, args=(number,)))
        threads[-1].start()
        assert until(lambda wanted=number + 1: len(there.posts) == wanted)  # type: ignore[misc]
    with pytest.raises(semel.Later, match="5 requests"):
        sink.post([event(9)])
    there.stop()
    for each in threads:
        each.join()
    assert len(lost) == powerbi.PENDING


# The pace of all together


def other_process(s: semel.Semel, settings: Settings, clock: FakeClock) -> PowerBI:
    """The same dataset, as another process has it: nothing in common but the store."""
    return PowerBI(semel.Semel(s.store, clock=clock), settings)


def test_processes_keep_the_limits_together(
    s: semel.Semel, sink: PowerBI, settings: Settings, there: other_side.PowerBI, clock: FakeClock
) -> None:
    """Each as fast as it may: were each at its own pace, Power BI would say 429 to most."""
    sinks = [sink, other_process(s, settings, clock), other_process(s, settings, clock)]
    for number in range(300):
        sinks[number % 3].post([event(number)])
    assert {each.status for each in there.posts} == {200}
    assert clock.monotonic() >= (300 - powerbi.REQUESTS_A_MINUTE) / powerbi.REQUESTS_A_MINUTE * 60
    for each in sinks[1:]:
        each.close()


def test_what_one_process_is_told_holds_for_all(
    s: semel.Semel, sink: PowerBI, settings: Settings, there: other_side.PowerBI, clock: FakeClock
) -> None:
    """429 with Retry-After, and an outage, in which the pauses grow: nobody else asks meanwhile."""
    other = other_process(s, settings, clock)
    sink.post([event(1)])
    there.fail(status=429, retry_after=41)
    with pytest.raises(semel.Later) as told:
        sink.post([event(2)])
    assert (told.value.retry_after, told.value.everyone) == (41, True)
    posts, pauses = len(there.posts), []
    with pytest.raises(semel.Later) as told:
        other.check()
    assert told.value.retry_after == pytest.approx(41)
    clock.advance(41)
    there.fail(next=8, status=503, path="/v1.0")
    for number in range(8):
        with pytest.raises(AnswerLost):
            (sink, other)[number % 2].post([event(2)])
        with pytest.raises(semel.Later) as told:
            (other, sink)[number % 2].post([event(2)])
        pauses.append(round(told.value.retry_after))
        clock.advance(told.value.retry_after)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    assert len(there.posts) == posts + 8
    other.post([event(2)])
    there.fail(status=503, path="/v1.0")
    with pytest.raises(AnswerLost):
        sink.post([event(3)])
    with pytest.raises(semel.Later) as told:
        sink.check()
    assert told.value.retry_after == powerbi.PAUSE
    other.close()


def test_whoever_dies_with_a_request_under_way_gives_up_its_place_when_its_lease_is_over(
    sink: PowerBI, there: other_side.PowerBI, clock: FakeClock, settings: Settings
) -> None:
    used(sink, under_way={f"dead {n}": clock.now() + settings.lease for n in range(powerbi.PENDING)})
    with pytest.raises(semel.Later, match="5 requests"):
        sink.post([event(1)])
    clock.advance(settings.lease)
    sink.post([event(1)])
    assert len(there.rows(FACTS)) == 1


@pytest.mark.parametrize("skew", [-2.0, 2.0])
def test_clocks_that_differ_let_no_more_through(
    s: semel.Semel,
    sink: PowerBI,
    settings: Settings,
    there: other_side.PowerBI,
    clock: FakeClock,
    skew: float,
) -> None:
    """Whose clock is behind adds nothing to the bucket that was not there already."""
    slow = FakeClock(clock.now() + skew)
    other = PowerBI(semel.Semel(s.store, clock=slow), settings)
    for number in range(100):
        before = clock.monotonic()
        (sink, other)[number % 2].post([event(number)])
        passed = clock.monotonic() - before
        slow.advance(passed) if number % 2 == 0 else clock.advance(max(0.0, slow.monotonic() - before))
    assert {each.status for each in there.posts} == {200}
    other.close()


def test_a_clock_that_was_set_back_does_not_stop_anybody(
    sink: PowerBI, there: other_side.PowerBI, clock: FakeClock
) -> None:
    used(sink, requests=-1.5)
    clock.jump(-86400)
    sink.post([event(1)])
    assert clock.monotonic() < 5
    assert len(there.rows(FACTS)) == 1


def test_without_a_table_for_it_each_process_keeps_the_pace_by_itself(
    clock: FakeClock, settings: Settings, there: other_side.PowerBI, caplog: Any
) -> None:
    """A store that was provisioned before there was such a thing; it is said, once."""

    class Older(MemoryStore):
        def execute(self, command: Any) -> Any:
            if getattr(command, "table", LEDGER) is DOCUMENTS:
                raise semel.TableMissing("documents: run semel provision")
            return super().execute(command)

    sink = PowerBI(semel.Semel(Older(clock), clock=clock), settings)
    for number in range(200):
        sink.check()
        sink.post([event(number)])
    sink.close()
    assert {each.status for each in there.posts} == {200}
    assert caplog.text.count("each process keeps the pace of Power BI by itself: TableMissing") == 1


def test_a_post_is_told_as_it_ended_though_its_pace_cannot_be_kept(
    clock: FakeClock, settings: Settings, there: other_side.PowerBI
) -> None:
    """The rows are there: a store that fails afterwards does not make them come again."""
    store = Faulty(MemoryStore(clock))
    sink = PowerBI(semel.Semel(store, clock=clock), settings)
    sink._tokens.get()
    real = sink._client.call

    def call(*args: Any, **kwargs: Any) -> Any:
        answer = real(*args, **kwargs)
        store.refuse()
        return answer

    sink._client.call = call  # type: ignore[method-assign]
    sink.post([event(1)])
    sink.close()
    assert len(there.rows(FACTS)) == 1


# Going out together


def test_those_who_wait_for_their_turn_go_out_together() -> None:
    """Requests are scarce, and rows are not."""
    sent: list[list[int]] = []
    turn = threading.Event()

    @contextmanager
    def waiting() -> Iterator[None]:
        turn.wait()
        yield

    together: RequestCombiner[int, None] = RequestCombiner(
        lambda items, _: sent.append(list(items)), waiting, 100, RuntimeError
    )
    threads = [threading.Thread(target=together.send, args=([number, -number],)) for number in range(10)]
    for each in threads:
        each.start()
    assert until(lambda: together._open is not None and len(together._open.items) == 20)
    turn.set()
    for each in threads:
        each.join()
    assert [sorted(one) for one in sent] == [sorted([*range(10), *(-number for number in range(10))])]


def test_no_more_go_out_together_than_one_request_takes() -> None:
    sent: list[int] = []
    together: RequestCombiner[int, None] = RequestCombiner(
        lambda items, _: sent.append(len(items)), nullcontext, 3, RuntimeError
    )
    for items in ([1, 2], [3, 4], [5]):
        together.send(items)
    assert sent == [2, 2, 1]


@pytest.mark.parametrize("broken_off", [True, False])
def test_all_who_went_out_together_are_told_the_same(broken_off: bool) -> None:
    """Also where whoever led them was broken off: nobody takes that for a success."""
    turn, ends = threading.Event(), []

    @contextmanager
    def waiting() -> Iterator[None]:
        turn.wait()
        yield

    def send(items: Sequence[int], _turn: None) -> None:
        raise SystemExit if broken_off else KeyError(len(items))

    def one(number: int) -> None:
        try:
            together.send([number])
        except BaseException as error:  # noqa: BLE001 - whatever it is
            ends.append(type(error))

    together: RequestCombiner[int, None] = RequestCombiner(send, waiting, 100, LookupError)
    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    assert until(lambda: together._open is not None and len(together._open.items) == 4)
    turn.set()
    for each in threads:
        each.join()
    if broken_off:
        assert sorted(end.__name__ for end in ends) == ["LookupError"] * 3 + ["SystemExit"]
    else:
        assert ends == [KeyError] * 4


def held(sink: PowerBI) -> threading.Event:
    """Nothing goes before this is set."""
    may_go, together = threading.Event(), sink._facts[FACTS]
    turn = together._turn

    @contextmanager
    def waiting() -> Iterator[Any]:
        may_go.wait()
        with turn() as given:
            yield given

    together._turn = waiting
    return may_go


def test_many_deliveries_at_once_are_few_requests(sink: PowerBI, there: other_side.PowerBI) -> None:
    """Fifty calls that come while none may go are one request as soon as one may."""
    may_go = held(sink)
    threads = [threading.Thread(target=sink.post, args=([event(number)],)) for number in range(50)]
    for each in threads:
        each.start()
    assert until(lambda: sink._facts[FACTS]._open is not None and len(sink._facts[FACTS]._open.items) == 50)
    may_go.set()
    for each in threads:
        each.join()
    assert [len(each.json["rows"]) for each in there.posts] == [50]


def test_a_row_that_is_refused_takes_none_down_that_went_out_with_it(
    sink: PowerBI, there: other_side.PowerBI
) -> None:
    """Whose it is nobody knows, and nothing of that request was taken: so each goes alone."""
    refused: list[int] = []

    def post(number: int) -> None:
        try:
            sink.post([event(number, date="no day" if number == 3 else "2023-11-14")])
        except RequestRefused:
            refused.append(number)

    may_go = held(sink)
    threads = [threading.Thread(target=post, args=(number,)) for number in range(5)]
    for each in threads:
        each.start()
    assert until(lambda: sink._facts[FACTS]._open is not None and len(sink._facts[FACTS]._open.items) == 5)
    may_go.set()
    for each in threads:
        each.join()
    assert refused == [3]
    kept = sorted(row["event_key"] for row in there.rows(FACTS))
    assert kept == ["ALOWARE:0", "ALOWARE:1", "ALOWARE:2", "ALOWARE:4"]


@pytest.mark.situation(56)
@pytest.mark.parametrize("status", [500, 502, 503, 504])
@pytest.mark.parametrize("applied", [True, False])
def test_facts_answered_by_a_server_error_are_held_and_never_posted_twice(
    office: Office, there: other_side.PowerBI, status: int, applied: bool
) -> None:
    """Whether Power BI has the rows is for the operator to find out; only those that it lacks are posted."""
    office.ring(call(1))
    there.fail(status=status, after_applying=applied, path="/v1.0")
    assert told(office.ring(call(2)))["queued"] == 1
    assert office.status("ALOWARE:2") == "UNKNOWN"
    office.clock.advance(10)
    office.work()
    assert office.status("ALOWARE:2") == "UNKNOWN"
    office.s.ledger.resolve("ALOWARE:2", semel.Happened() if applied else semel.NotHappened())
    told(office.ring(call(2)))
    assert [row["event_key"] for row in there.rows(FACTS)] == ["ALOWARE:1", "ALOWARE:2"]


def test_an_answer_that_cannot_be_unpacked_is_a_post_in_doubt(
    office: Office, there: other_side.PowerBI
) -> None:
    """The rows are there: posted once more, they would be there twice."""
    office.ring(call(1))
    there.fail(status=200, after_applying=True, body={}, headers={"Content-Encoding": "gzip"}, path="/v1.0")
    assert told(office.ring(call(2)))["queued"] == 1
    assert office.status("ALOWARE:2") == "UNKNOWN"
    office.clock.advance(10)
    office.work()
    assert [row["event_key"] for row in there.rows(FACTS)] == ["ALOWARE:1", "ALOWARE:2"]


@pytest.mark.parametrize("garbage", [[], "a token", {"access_token": "x", "expires_in": None}, 7, None])
def test_a_token_that_is_none_is_asked_for_again(
    office: Office, there: other_side.PowerBI, garbage: Any
) -> None:
    there.fail(status=200, body=garbage, path=f"/{TENANT}")
    assert told(office.ring(call(1)))["queued"] == 1
    record = office.s.ledger.get("ALOWARE:1")
    assert record is not None
    assert "Entra ID gave no token" in str(record.error)
    office.clock.advance(10)
    assert [taken.verdict for taken in office.work()] == [Verdict.DONE]
