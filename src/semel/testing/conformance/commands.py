# ruff: noqa: S101 - these are tests, for whoever writes a store to subclass
"""Writes: what each expects, what it may do, and what the reply says."""

import pytest

from semel.core.commands import (
    ABSENT,
    ANY,
    NOW,
    PRESENT,
    Add,
    After,
    Applied,
    Batch,
    Cancelled,
    Delete,
    Expect,
    Found,
    Get,
    Item,
    Many,
    Put,
    Refused,
    Transact,
    Update,
    Watch,
    Write,
)
from semel.errors import UsageError
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import (
    LONG,
    NOTES,
    THINGS,
    Harness,
    Runner,
    get,
    named,
    present,
    put,
    shown,
    there,
    thing,
)

NFC, NFD = "caf\u00e9", "cafe\u0301"

# Each line: what a write expects, what the item has (None: there is no item), and whether the write is made.
EXPECTATIONS: list[tuple[Expect, Item | None, bool]] = [
    (ANY, None, True),
    (ANY, {}, True),
    (ABSENT, None, True),
    (ABSENT, {}, False),
    (PRESENT, None, False),
    (PRESENT, {}, True),
    ({"text": "a"}, {"text": "a"}, True),
    ({"text": "a"}, {"text": "A"}, False),
    ({"text": "a"}, {"text": "a "}, False),
    ({"text": "a"}, {}, False),
    ({"text": "a"}, None, False),
    ({"text": ""}, {"text": ""}, True),
    ({"text": ""}, {}, False),
    ({"text": NFC}, {"text": NFC}, True),
    ({"text": NFC}, {"text": NFD}, False),
    ({"text": "1"}, {"text": "1.0"}, False),
    ({"count": 0}, {"count": 0}, True),
    ({"count": 0}, {}, False),
    ({"count": 1}, {"count": 1.0}, True),
    ({"count": 0.5}, {"count": 0.5}, True),
    ({"count": 2}, {"count": 3}, False),
    ({"count": 1_700_000_000.123456}, {"count": 1_700_000_000.123456}, True),
    ({"count": 1_700_000_000.123456}, {"count": 1_700_000_000.123457}, False),
    ({"data": b"\x00\xff"}, {"data": b"\x00\xff"}, True),
    ({"data": b""}, {"data": b""}, True),
    ({"data": b""}, {}, False),
    ({"data": b"a"}, {"data": b"b"}, False),
    ({"flag": False}, {"flag": False}, True),
    ({"flag": False}, {"flag": True}, False),
    ({"flag": False}, {}, False),
    ({"text": None}, {}, True),
    ({"text": None}, {"text": ""}, False),
    ({"text": None}, None, False),
    ({"count": None}, {"count": 0}, False),
    ({"data": None, "text": "a"}, {"text": "a"}, True),
    ({"data": None, "text": "a"}, {"text": "b"}, False),
    ({"text": "a", "count": 1}, {"text": "a", "count": 1}, True),
    ({"text": "a", "count": 1}, {"text": "a", "count": 2}, False),
    ({"text": "a", "count": 1}, {"text": "b", "count": 1}, False),
]


def _write(kind: type[Write], clock: FakeClock, expect: Expect) -> Write:
    writes = (
        Put(THINGS, "key", thing(clock, text="new"), expect),
        Update(THINGS, "key", {"text": "new"}, expect),  # type: ignore[arg-type]
        Delete(THINGS, "key", expect),  # type: ignore[arg-type]
    )
    return next(write for write in writes if type(write) is kind)


class CommandTests(Harness):
    """One item at a time."""

    @pytest.mark.parametrize(("expect", "has", "made"), EXPECTATIONS, ids=named)
    def test_expectation(
        self, runner: Runner, clock: FakeClock, expect: Expect, has: Item | None, made: bool
    ) -> None:
        """A write is made if the item is what it expects, and else refused with the item."""
        before: Item | None = None
        if has is not None:
            before = thing(clock, **has)
            put(runner, "key", before)
        reply = runner.ask(Put(THINGS, "key", thing(clock, text="written"), expect))
        if made:
            assert type(reply) is Applied
            assert there(runner, "key")["text"] == "written"
        else:
            assert type(reply) is Refused
            assert shown(reply.item) == (None if before is None else before | {"id": "key"})
            assert shown(get(runner, "key")) == shown(reply.item)

    def test_expectations_of_one_form_ask_each_for_its_own_attribute(
        self, runner: Runner, clock: FakeClock
    ) -> None:
        """However much two changes are alike, each is made by what it expects."""
        put(runner, "key", thing(clock, text="a", count=1))
        for expect in ({"text": "a"}, {"count": 1}):
            assert type(runner.ask(Update(THINGS, "key", {"due": 5}, expect))) is Applied
        for expect in ({"text": "b"}, {"count": 2}):
            assert type(runner.ask(Update(THINGS, "key", {"due": 6}, expect))) is Refused

    @pytest.mark.parametrize("kind", [Put, Update, Delete])
    @pytest.mark.parametrize("made", [True, False])
    def test_every_write_heeds_what_it_expects(
        self, runner: Runner, clock: FakeClock, kind: type[Write], made: bool
    ) -> None:
        """Put, Update and Delete alike change nothing if the item is another."""
        before = thing(clock, text="old", count=1)
        put(runner, "key", before)
        reply = runner.ask(_write(kind, clock, {"text": "old" if made else "other", "data": None}))
        assert type(reply) is (Applied if made else Refused)
        changed = shown(get(runner, "key")) != before | {"id": "key"}
        assert changed is made

    @pytest.mark.parametrize("kind", [Update, Delete])
    def test_update_and_delete_create_nothing(
        self, runner: Runner, clock: FakeClock, kind: type[Write]
    ) -> None:
        """On an absent item they are refused."""
        for expect in (PRESENT, {"text": None}):
            reply = runner.ask(_write(kind, clock, expect))
            assert type(reply) is Refused
            assert reply.item is None
        assert get(runner, "key") is None

    def test_get_finds_nothing_where_nothing_is(self, runner: Runner, clock: FakeClock) -> None:
        """An absent item is None, and the reply tells the time."""
        assert runner.ask(Get(THINGS, "key")) == Found(clock.now(), None)

    def test_put_replaces_the_whole_item(self, runner: Runner, clock: FakeClock) -> None:
        """Nothing of the earlier item remains."""
        put(runner, "key", thing(clock, text="old", count=7, data=b"old"))
        put(runner, "key", thing(clock, text="new"))
        assert shown(get(runner, "key")) == thing(clock, text="new") | {"id": "key"}

    def test_update_changes_what_it_names(self, runner: Runner, clock: FakeClock) -> None:
        """What it does not name stays; what it sets to None goes."""
        put(runner, "key", thing(clock, text="old", count=7, data=b"old"))
        reply = runner.ask(Update(THINGS, "key", {"text": "new", "data": None}))
        assert type(reply) is Applied
        assert shown(get(runner, "key")) == thing(clock, text="new", count=7) | {"id": "key"}

    def test_add_makes_the_item_and_then_adds(self, runner: Runner, clock: FakeClock) -> None:
        """`set` is written every time, but the end only once; the reply has the item as it then is."""
        end = clock.now() + LONG
        first = runner.ask(Add(THINGS, "key", "count", 2, {"text": "a", "due": 1, "gone_at": end}))
        assert type(first) is Applied
        assert shown(first.item) == {"id": "key", "count": 2, "text": "a", "due": 1, "gone_at": end}
        second = runner.ask(Add(THINGS, "key", "count", 0.5, {"text": "b", "gone_at": end + 9}))
        assert shown(second.item) == {"id": "key", "count": 2.5, "text": "b", "due": 1, "gone_at": end}
        assert shown(get(runner, "key")) == shown(second.item)

    def test_add_counts_from_zero_if_the_number_is_missing(self, runner: Runner, clock: FakeClock) -> None:
        """A missing or removed number counts as zero."""
        put(runner, "key", thing(clock, count=5, text="a"))
        runner.ask(Update(THINGS, "key", {"count": None, "text": None}))
        reply = runner.ask(Add(THINGS, "key", "count", -3, {}))
        assert reply.item["count"] == -3
        assert "text" not in shown(reply.item)  # type: ignore[operator]

    def test_add_stops_at_its_cap(self, runner: Runner, clock: FakeClock) -> None:
        """A quota: it is charged up to its limit, and the refusal shows the count."""
        end = {"gone_at": clock.now() + LONG}
        replies = [runner.ask(Add(THINGS, "key", "count", 1, end, cap=3)) for _ in range(5)]
        assert [type(reply) for reply in replies] == [Applied, Applied, Applied, Refused, Refused]
        assert replies[-1].item["count"] == 3
        assert type(runner.ask(Add(THINGS, "key", "count", 2, end, cap=5))) is Applied
        assert type(runner.ask(Add(THINGS, "key", "count", 1, end, cap=5))) is Refused
        assert runner.ask(Add(THINGS, "new", "count", 4, end, cap=3)) == Refused(clock.now(), None)

    def test_subtracting_needs_an_item(self, runner: Runner, clock: FakeClock) -> None:
        """What was never counted is not taken away."""
        less = Add(THINGS, "key", "count", -1, {"due": 5})
        assert runner.ask(less) == Refused(clock.now(), None)
        put(runner, "key", thing(clock, count=3))
        assert runner.ask(less).item["count"] == 2
        assert there(runner, "key")["due"] == 5

    @pytest.mark.parametrize("kind", [Put, Update, Add])
    def test_an_attribute_that_the_table_lacks_is_refused(
        self, runner: Runner, clock: FakeClock, kind: type[Write]
    ) -> None:
        """It is the caller's error, and nothing is written."""
        put(runner, "key", thing(clock, text="old"))
        unknown: dict[type, Write] = {
            Put: Put(THINGS, "key", thing(clock, colour="red")),
            Update: Update(THINGS, "key", {"text": "new", "colour": "red"}),
            Add: Add(THINGS, "key", "count", 1, {"colour": "red"}),
        }
        with pytest.raises(UsageError, match="colour"):
            runner.ask(unknown[kind])
        assert shown(get(runner, "key")) == thing(clock, text="old") | {"id": "key"}

    def test_delete_removes_the_item(self, runner: Runner, clock: FakeClock) -> None:
        """Once: there is nothing to delete afterwards."""
        put(runner, "key", thing(clock))
        assert type(runner.ask(Delete(THINGS, "key"))) is Applied
        assert get(runner, "key") is None
        assert type(runner.ask(Delete(THINGS, "key"))) is Refused

    def test_after_is_counted_from_the_stores_now(self, runner: Runner, clock: FakeClock) -> None:
        """`After` becomes a moment in every kind of write, and `NOW` the present one."""
        clock.advance(5.25)
        runner.ask(Put(THINGS, "key", {"due": NOW, "gone_at": After(60)}))
        item = there(runner, "key")
        assert item["due"] == pytest.approx(clock.now(), abs=1e-3)
        assert item["gone_at"] == pytest.approx(clock.now() + 60, abs=1e-3)
        clock.advance(10)
        runner.ask(Update(THINGS, "key", {"due": After(1.5)}))
        item = there(runner, "key")
        assert item["due"] == pytest.approx(clock.now() + 1.5, abs=1e-3)
        reply = runner.ask(Add(THINGS, "new", "count", 1, {"due": After(2), "gone_at": After(3)}))
        assert reply.item["due"] == pytest.approx(clock.now() + 2, abs=1e-3)
        assert reply.item["gone_at"] == pytest.approx(clock.now() + 3, abs=1e-3)

    def test_every_reply_tells_the_time(self, runner: Runner, clock: FakeClock) -> None:
        """The store's now is in every reply, also where it has jumped."""
        for jump in (0.0, 3600.0, -1800.0):
            clock.jump(jump)
            write = Put(THINGS, "key", thing(clock), ABSENT)
            replies = [runner.ask(write), runner.ask(write), runner.ask(Get(THINGS, "key"))]
            assert [reply.now for reply in replies] == pytest.approx([clock.now()] * 3, abs=1e-3)
            runner.ask(Delete(THINGS, "key"))

    def test_tables_do_not_share_keys(self, runner: Runner, clock: FakeClock) -> None:
        """A key in another table is another item."""
        put(runner, "key", thing(clock, text="thing"))
        put(runner, "key", thing(clock, text="note"), NOTES, "1")
        assert there(runner, "key")["text"] == "thing"
        runner.ask(Delete(NOTES, "key", PRESENT, "1"))
        assert there(runner, "key")["text"] == "thing"

    def test_sort_key_is_part_of_the_name(self, runner: Runner, clock: FakeClock) -> None:
        """Items of one partition are told apart by it, and no joining of the two makes them meet."""
        names = [("a", "b:c"), ("a:b", "c"), ("a", "b"), ("a", "b/c"), ("a/b", "c"), ("ab", "c"), ("a", "bc")]
        for partition, sort in names:
            put(runner, partition, thing(clock, text=f"{partition}|{sort}"), NOTES, sort)
        for partition, sort in names:
            item = there(runner, partition, NOTES, sort)
            assert (item["owner"], item["place"], item["text"]) == (partition, sort, f"{partition}|{sort}")

    def test_watch_takes_as_long_as_it_was_given(self, runner: Runner, clock: FakeClock) -> None:
        """Where nothing changes it reads after about that time, and says how long it waited."""
        put(runner, "key", thing(clock, text="still"))
        began = clock.monotonic()
        found = runner.ask(Watch(THINGS, "key", 4.0))
        assert found.item["text"] == "still"
        assert found.waited == pytest.approx(clock.monotonic() - began)
        assert 2.0 <= found.waited <= 4.0

    def test_watch_sees_a_change(self, runner: Runner, clock: FakeClock) -> None:
        """A change made while it waits is in what it reads."""
        put(runner, "key", thing(clock, text="old"))
        change = Update(THINGS, "key", {"text": "new"})
        clock.schedule(1.0, lambda: runner.store.execute(change))
        assert runner.ask(Watch(THINGS, "key", 4.0)).item["text"] == "new"

    def test_watch_of_nothing(self, runner: Runner) -> None:
        """What is not there is None after the time."""
        found = runner.ask(Watch(THINGS, "key", 1.0))
        assert found.item is None
        assert found.waited > 0


class TransactTests(Harness):
    """Several items at a time."""

    def test_transact_makes_every_write(self, runner: Runner, clock: FakeClock) -> None:
        """All four kinds, on two tables."""
        put(runner, "changed", thing(clock, text="old"))
        put(runner, "gone", thing(clock))
        writes = (
            Put(THINGS, "new", thing(clock, text="new"), ABSENT),
            Update(THINGS, "changed", {"text": "new"}, {"text": "old"}),
            Add(NOTES, "count", "count", 1, {"gone_at": After(LONG)}, sort="1"),
            Delete(THINGS, "gone"),
        )
        reply = runner.ask(Transact(writes))
        assert type(reply) is Applied
        assert reply.now == pytest.approx(clock.now(), abs=1e-3)
        assert there(runner, "new")["text"] == "new"
        assert there(runner, "changed")["text"] == "new"
        assert there(runner, "count", NOTES, "1")["count"] == 1
        assert get(runner, "gone") is None

    def test_transact_makes_all_writes_or_none(self, runner: Runner, clock: FakeClock) -> None:
        """One refusal cancels the rest, and each entry says how its write would have fared."""
        put(runner, "taken", thing(clock, text="here"))
        writes = (
            Put(THINGS, "new", thing(clock), ABSENT),
            Put(THINGS, "taken", thing(clock, text="mine"), ABSENT),
            Update(THINGS, "nowhere", {"text": "x"}),
            Add(THINGS, "count", "count", 1, {"gone_at": After(LONG)}),
        )
        reply = runner.ask(Transact(writes))
        assert type(reply) is Cancelled
        assert [refusal is None for refusal in reply.refusals] == [True, False, False, True]
        taken, nowhere = map(present, reply.refusals[1:3])
        assert shown(taken.item) == thing(clock, text="here") | {"id": "taken"}
        assert nowhere.item is None
        assert [get(runner, key) for key in ("new", "nowhere", "count")] == [None, None, None]
        assert there(runner, "taken")["text"] == "here"

    def test_transact_on_an_expired_item(self, runner: Runner, clock: FakeClock) -> None:
        """It is refused with the item, or makes its write if the store has removed the item already."""
        put(runner, "over", thing(clock, text="old") | {"gone_at": clock.now() + 5})
        clock.advance(5)
        write = Put(THINGS, "over", thing(clock, text="new"), ABSENT)
        reply = runner.ask(Transact((write, Put(THINGS, "other", thing(clock)))))
        if type(reply) is Cancelled:
            assert reply.refusals[1] is None
            assert present(present(reply.refusals[0]).item)["text"] == "old"
            end = {"gone_at": clock.now()}
            reply = runner.ask(Transact((Put(THINGS, "over", thing(clock, text="new"), end),)))
        assert type(reply) is Applied
        assert there(runner, "over")["text"] == "new"

    def test_batch_answers_each_write_on_its_own(self, runner: Runner, clock: FakeClock) -> None:
        """One refusal stops none of the others, and the replies come in order."""
        put(runner, "taken", thing(clock, text="here"))
        writes = (
            Put(THINGS, "first", thing(clock), ABSENT),
            Put(THINGS, "taken", thing(clock), ABSENT),
            Update(THINGS, "nowhere", {"text": "x"}),
            Add(THINGS, "count", "count", 3, {"gone_at": After(LONG)}),
            Delete(THINGS, "taken", {"text": "here"}),
        )
        reply = runner.ask(Batch(writes))
        assert type(reply) is Many
        kinds = [type(each) for each in reply.replies]
        assert kinds == [Applied, Refused, Refused, Applied, Applied]
        assert shown(reply.replies[1].item) == thing(clock, text="here") | {"id": "taken"}
        assert reply.replies[2].item is None
        assert present(reply.replies[3].item)["count"] == 3
        assert get(runner, "first") is not None
        assert get(runner, "taken") is None

    def test_writes_of_a_batch_see_each_other(self, runner: Runner, clock: FakeClock) -> None:
        """On the same item they are made one after the other, in their order."""
        writes = (
            Put(THINGS, "key", thing(clock, text="first"), ABSENT),
            Put(THINGS, "key", thing(clock, text="second"), ABSENT),
            Update(THINGS, "key", {"text": "third"}, {"text": "first"}),
            Add(THINGS, "key", "count", 1, {}),
            Add(THINGS, "key", "count", 1, {}, cap=2),
        )
        reply = runner.ask(Batch(writes))
        assert [type(each) for each in reply.replies] == [Applied, Refused, Applied, Applied, Applied]
        assert shown(reply.replies[1].item) == thing(clock, text="first") | {"id": "key"}
        assert shown(get(runner, "key")) == thing(clock, text="third", count=2) | {"id": "key"}

    def test_large_batch(self, runner: Runner, clock: FakeClock) -> None:
        """A batch may be longer than what the store sends at a time."""
        put(runner, "17", thing(clock))
        batch = Batch(tuple(Put(THINGS, str(number), thing(clock), ABSENT) for number in range(250)))
        replies = runner.ask(batch).replies
        assert [number for number, reply in enumerate(replies) if type(reply) is Refused] == [17]
        assert len(replies) == 250
        assert get(runner, "249") is not None
