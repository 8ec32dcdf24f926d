# ruff: noqa: S101 - these are tests, for whoever writes a store to subclass
"""Items found by other attributes than their key, and what time it is."""

import pytest

from semel.core.commands import Delete, Found, Query, Time, Update
from semel.errors import UsageError
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import ENTRIES, Harness, Runner, put, thing
from semel.testing.conformance.queries import pages, places

BY_TIME = "text-due"


def by(text: str | float, index: str = BY_TIME, **asked: object) -> Query:
    """A query of an index."""
    return Query(ENTRIES, text, index=index, **asked)  # type: ignore[arg-type]


class IndexTests(Harness):
    """An index leads to the items that have its attributes, and to no others."""

    @pytest.fixture
    def entries(self, runner: Runner, clock: FakeClock) -> None:
        """Entries of several owners, written in no order."""
        rows = [("b", "p3", 30.5), ("a", "p1", 10), ("c", "p2", 20), ("a", "p5", 30.5), ("b", "p4", 40)]
        for owner, place, due in rows:
            put(runner, owner, thing(clock, text="x", due=due, count=7), ENTRIES, place)
        put(runner, "a", thing(clock, text="y", due=15), ENTRIES, "p6")
        put(runner, "a", thing(clock, text="x"), ENTRIES, "p7")
        put(runner, "a", thing(clock, due=5), ENTRIES, "p8")

    @pytest.mark.parametrize("limit", [1, 2, 100])
    def test_order_is_that_of_the_index(self, runner: Runner, entries: None, limit: int) -> None:
        """By its sort attribute, page by page in both directions; equal ones come in any order, each once."""
        for reverse in (False, True):
            found = [item for page in pages(runner, by("x", limit=limit, reverse=reverse)) for item in page]
            assert [item["due"] for item in found] == sorted([10, 20, 30.5, 30.5, 40], reverse=reverse)
            assert sorted(item["place"] for item in found) == ["p1", "p2", "p3", "p4", "p5"]

    def test_range(self, runner: Runner, entries: None) -> None:
        """Both bounds are included."""
        assert sorted(places(runner, by("x", low=20, high=30.5))) == ["p2", "p3", "p5"]
        assert places(runner, by("x", low=30.6)) == ["p4"]
        assert places(runner, by("x", high=9)) == []
        assert places(runner, by("x", low=10, high=20, limit=1, reverse=True)) == ["p2", "p1"]

    def test_numbers_partition_too(self, runner: Runner, entries: None) -> None:
        """A partition may be a number, and a sort attribute a text that many items share."""
        everything = ["p1", "p2", "p3", "p4", "p5"]
        assert sorted(places(runner, by(7, "count-text", limit=2))) == everything
        assert sorted(places(runner, by(7, "count-text", low="x", high="x", limit=3))) == everything
        assert places(runner, by(7, "count-text", low="y")) == []
        assert places(runner, by(8, "count-text")) == []

    def test_index_without_a_sort(self, runner: Runner, entries: None) -> None:
        """It has every item with that value."""
        found = places(runner, by("x", "text", limit=3))
        assert sorted(found) == ["p1", "p2", "p3", "p4", "p5", "p7"]

    def test_filter(self, runner: Runner, entries: None) -> None:
        """What an index finds is filtered as anything else is."""
        assert places(runner, by("x", equal={"owner": "a"}, limit=1)) == ["p1", "p5"]

    def test_items_come_whole(self, runner: Runner, entries: None, clock: FakeClock) -> None:
        """An index that carries everything gives items as they are."""
        [item] = runner.ask(by("y")).items
        assert item == thing(clock, owner="a", place="p6", text="y", due=15)

    def test_only_what_is_wanted(self, runner: Runner, entries: None) -> None:
        """The attributes that are asked for are there, in a partition and in an index."""
        for query in (
            by("y", only=("due", "text")),
            Query(ENTRIES, "a", low="p6", high="p6", only=("due", "text")),
        ):
            [item] = runner.ask(query).items
            assert (item["due"], item["text"]) == (15, "y")

    def test_pages_of_what_is_wanted(self, runner: Runner, entries: None) -> None:
        """Asking for some attributes changes nothing about which items come."""
        query = by("x", only=("due", "owner", "place"), limit=2)
        assert sorted(places(runner, query)) == ["p1", "p2", "p3", "p4", "p5"]

    def test_changes_are_followed(self, runner: Runner, entries: None) -> None:
        """An item that changes the attributes of an index is found where it is now, and only there."""
        runner.ask(Update(ENTRIES, "a", {"due": 99}, sort="p1"))
        runner.ask(Update(ENTRIES, "c", {"text": "z"}, sort="p2"))
        runner.ask(Update(ENTRIES, "b", {"due": None}, sort="p3"))
        runner.ask(Delete(ENTRIES, "b", sort="p4"))
        assert places(runner, by("x")) == ["p5", "p1"]
        assert places(runner, by("z")) == ["p2"]

    def test_what_is_over_is_not_found(self, runner: Runner, entries: None, clock: FakeClock) -> None:
        """Here as everywhere, an item whose time is up does not exist."""
        put(runner, "a", thing(clock, text="x", due=1, gone_at=clock.now() + 5), ENTRIES, "p0")
        assert places(runner, by("x"))[0] == "p0"
        clock.advance(5)
        assert places(runner, by("x"))[0] == "p1"

    def test_names_that_do_not_exist(self, runner: Runner) -> None:
        """A wrong index is the caller's error, and is refused before anything is asked."""
        with pytest.raises(UsageError, match="has no index 'nonsense'; it has text-due"):
            by("x", "nonsense")
        with pytest.raises(UsageError, match="give it as key"):
            Query(ENTRIES, index=BY_TIME)

    @pytest.mark.parametrize("after", ["nonsense", '["a", "p1"]', '[1, "a"]'])
    def test_cursor_of_another_order_is_refused(self, runner: Runner, entries: None, after: str) -> None:
        """A cursor of another order is none of this one."""
        with pytest.raises(UsageError):
            runner.ask(by("x", after=after))

    def test_time(self, runner: Runner, clock: FakeClock) -> None:
        """The store tells its time without being asked for an item."""
        for _ in range(2):
            found = runner.ask(Time())
            assert type(found) is Found
            assert found.item is None
            assert found.now == pytest.approx(clock.now(), abs=1e-3)
            clock.advance(1000)
