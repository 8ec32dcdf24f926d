"""What the keys in a Redis are called, by partition and by scope."""

from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from semel.core.commands import Begins, Delete, Query
from semel.core.keys import prefix
from semel.stores.redis.indexes import keys_of
from semel.stores.redis.keys import KeyNames
from semel.stores.redis.plan import RedisPlan
from semel.testing.conformance import ENTRIES, NOTES, THINGS

THING, NOTE = (RedisPlan(table, "p", scoped=True) for table in (THINGS, NOTES))
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.text("{}%a:/", min_size=1)
names = st.text("ab%}", max_size=3)


@given(texts, texts)
def test_a_name_by_scope_is_found_again_and_no_two_items_share_one(partition, sort):
    name, order = NOTE.keys(Delete(NOTES, partition, sort=sort))
    assert NOTE.place(name.decode()) == (partition, sort)
    assert NOTE.place(order.decode()) is None
    assert THING.place(THING.partition(partition).decode()) == (partition, None)


@given(st.sampled_from(["dev", "%}"]), names, texts, texts, texts)
def test_everything_of_a_scope_lies_in_one_slot(env, scope, one, other, sort):
    """Whatever the table, the key and what is in them."""
    name, order = NOTE.keys(Delete(NOTES, prefix(env, scope) + one, sort=sort))
    assert key_slot(name) == key_slot(order) == key_slot(THING.partition(prefix(env, scope) + other))


def test_names_by_scope_are_readable():
    assert THING.partition("prod/acme/charge:o-1") == b"p:conformance_things:{prod/acme/}{charge:o-1}"
    assert NOTE.keys(Delete(NOTES, "dev//a/b", sort="s"))[0] == b"p:conformance_notes:{dev//}{a/b}:s"
    assert THING.partition("no scope") == b"p:conformance_things:{/}{no scope}"
    assert KeyNames("p", "t").index("i", "dev//ann") == "p:t/i:{dev//ann}"
    assert KeyNames("p", "t", scoped=True).index("i", "dev//ann") == "p:t/i:{dev//}{ann}"
    assert KeyNames("p", "t", scoped=True).index("i", "7f3a") == "p:t/i:{7f3a}"


def test_names_of_others_are_no_items():
    for name in (
        "p:conformance_things:{a}",
        "p:conformance_things:{a}b}{c}",
        "p:conformance_things:{a}{b}:c",
    ):
        assert THING.place(name) is None


def test_a_list_of_a_scope_looks_only_there():
    def pattern(start):
        return THING.pattern(Query(THINGS, where=Begins("id", start)))

    assert pattern("dev/a*/") == rb"p:conformance_things:{dev/a\*/}{*"
    assert pattern("dev/a/charge:") == rb"p:conformance_things:{dev/a/}{charge:*"
    assert pattern("dev/") == rb"p:conformance_things:{*"


@given(st.booleans(), texts | st.just(""), texts | st.just(""))
def test_the_keys_of_an_index_lie_in_one_slot_and_are_no_items(scoped, value, other):
    plan = RedisPlan(ENTRIES, "p", scoped)
    keys = [keys_of(plan.indexes.named("text").key(each)) for each in (value, other)]
    assert len({key_slot(key) for key in keys[0]}) == 1
    assert (keys[0] == keys[1]) is (value == other)
    assert [plan.place(key.decode()) for key in keys[0]] == [None] * 3


@given(names, texts, texts)
def test_an_index_by_what_a_scope_names_lies_with_the_scope(scope, actor, key):
    plan = RedisPlan(ENTRIES, "p", scoped=True)
    index = plan.indexes.named("text").key(prefix("dev", scope) + actor)
    assert key_slot(index) == key_slot(plan.partition(prefix("dev", scope) + key))
