"""Every place where names are joined into one: whatever they hold, other names never give the same."""

import random
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semel
from semel.connect import Semel
from semel.core.commands import Get
from semel.core.keys import Key, owned, prefix, step_of
from semel.doors.http import ANYONE, Idempotency
from semel.doors.inbox import sqs
from semel.doors.queues.sqs_names import sqs_key
from semel.doors.webhooks.names import hubspot_key, richpanel_key
from semel.gate import RECORD
from semel.gate.rules import SHADOWED
from semel.state.counters import CHARGED
from semel.stores.redis.plan import RedisPlan
from semel.testing import FakeClock
from semel.testing.conformance import NOTES, THINGS

# Short texts of a small alphabet meet often, and this one holds all that joins, escapes or stands for a text.
PIECES = ["a", "b", ":", "%", "/", ">", "#", ".", "}", "{", "%3A", "%25", "%2F", "sha256:", "shadow"]
NAMES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)
MAYBE = st.just("") | NAMES
WORDS = NAMES.filter(lambda name: ":" not in name)

S = semel.connect("memory:", secret=b"a secret of the tests", clock=FakeClock())


def of(scope: str) -> Semel:
    return S.scoped(scope)


def mailbox(scope: str, name: str, key: str) -> str:
    return of(scope).mailbox(name).steps._identity(key)


def policy(scope: str, owner: str) -> str:
    """Where the keys of a caller are; the empty one is none, where callers are not told apart."""
    whose = Idempotency(of(scope), identity=ANYONE if not owner else lambda _: owner)
    return whose._scoped(owner).ledger.steps.prefix


def event(one: str, two: str, three: str) -> str:
    return hubspot_key({"objectTypeId": one, "objectId": two, "subscriptionType": three})


def redis_key(table: str, key: str, sort: str | None = None) -> str:
    plan = RedisPlan(msgspec.structs.replace(THINGS if sort is None else NOTES, name=table), "semel")
    return plan.item_key(Get(plan.table, key, sort)).decode()


JOINED: dict[str, tuple[Callable[..., str], tuple[st.SearchStrategy[str], ...]]] = {
    "parts": (Key, (NAMES, NAMES, NAMES)),
    "a step": (lambda one, two, three: step_of(Key(one), two, three), (NAMES, NAMES, NAMES)),
    "environment, scope, key": (lambda env, scope, key: prefix(env, scope) + key, (NAMES, MAYBE, NAMES)),
    "scope, owner": (owned, (MAYBE, MAYBE)),
    "scope, owner of a policy": (policy, (MAYBE, MAYBE)),
    "scope, person": (lambda one, two: of(one)._realm.subject(two), (MAYBE, NAMES)),
    "scope, inbox, key": (mailbox, (MAYBE, WORDS, NAMES)),
    "queue, group, dedup": (lambda one, two, three: sqs_key(one, "", "", two, three), (NAMES,) * 3),
    "a webhook's event": (event, (NAMES, NAMES, NAMES)),
    "conversation, message": (richpanel_key, (NAMES, NAMES)),
    "redis: table, key": (redis_key, (WORDS, NAMES)),
    "redis: scope, key": (lambda one, two: redis_key("t", prefix("dev", one) + two), (MAYBE, NAMES)),
    "redis: key, sort": (lambda one, two: redis_key("t", one, two), (NAMES, NAMES)),
}


@pytest.mark.situation(51)
@pytest.mark.parametrize("place", JOINED)
@given(data=st.data())
def test_two_different_tuples_of_names_never_give_one_key(place: str, data: st.DataObject) -> None:
    join, kinds = JOINED[place]
    one, other = data.draw(st.tuples(*kinds)), data.draw(st.tuples(*kinds))
    assert (join(*one) == join(*other)) == (one == other)


def drawn(rng: random.Random, many: int, of: int) -> list[tuple[str, ...]]:
    """So many different tuples of so many names, made of few pieces."""
    found: set[tuple[str, ...]] = set()
    while len(found) < many:
        found.add(tuple("".join(rng.choices(PIECES, k=rng.randint(1, 3))) for _ in range(of)))
    return sorted(found)


@pytest.mark.situation(30, 51)
@pytest.mark.proof("tenants")
def test_no_tenant_is_given_the_answer_of_another(tried: Callable[..., None]) -> None:
    """Forty owners in scopes whose names could be joined into each other's, with keys like their names."""
    rng = random.Random(51)
    tenants, keys = drawn(rng, 40, 2), [Key(*parts) for parts in drawn(rng, 30, 2)]
    s = semel.connect("memory:")
    ledgers = {
        names: Idempotency(s.scoped(names[0]), identity=lambda _: None)._scoped(names[1]).ledger
        for names in tenants
    }
    asked = [(who, key) for who in tenants for key in keys]
    for who, key in rng.sample(asked, len(asked)):
        claim = ledgers[who].claim(key)
        assert isinstance(claim, semel.Claimed), (who, key)
        ledgers[who].complete(claim, [*who, key])
    for who, key in asked:
        replay = ledgers[who].claim(key)
        assert isinstance(replay, semel.Replay)
        assert replay.result == [*who, key]
    tried(len(asked), seed="51")


@pytest.mark.situation(51)
@given(st.lists(NAMES, min_size=1, max_size=3), st.lists(NAMES, min_size=1, max_size=3))
def test_no_key_of_parts_is_the_record_of_a_decision_or_counts_in_the_shadow(
    one: list[str], other: list[str]
) -> None:
    for ending in (RECORD, SHADOWED):
        assert Key(*one) != Key(*other) + ending
        assert step_of(Key(*one), *other) != Key(*one) + ending


def test_no_period_of_a_counter_is_the_token_of_a_charge() -> None:
    from semel.periods import Day, Hour, Month, Week

    labels = [kind().label(1_800_000_000.0) for kind in (Hour, Day, Week, Month)]
    assert len(set(labels)) == 4
    assert not any(re.match(CHARGED, label) for label in labels)


@pytest.mark.situation(51)
@given(NAMES | st.text(min_size=1, max_size=200))
def test_a_message_whose_key_is_the_hash_of_another_is_not_dropped_as_its_duplicate(key: str) -> None:
    name = sqs._named(key)
    assert sqs.NAME.fullmatch(name)
    assert name == key or sqs._named(name) != name


@pytest.mark.situation(51)
def test_names_that_were_not_ambiguous_have_the_keys_that_they_had() -> None:
    """What stands in a store today is found again."""
    told: list[tuple[tuple[str, str], Any]] = [
        (("", ""), "dev//"),
        (("", "alice"), "dev/alice/"),
        (("", "alice@example.com"), "dev/alice@example.com/"),
        (("", "a/b>c"), "dev/a%2Fb>c/"),
        (("shop", "alice"), "dev/shop:alice/"),
        (("shop", "a:b"), "dev/shop:a%253Ab/"),
    ]
    assert [policy(*names) for names, _ in told] == [name for _, name in told]
