# ruff: noqa: S101 - these are tests, for whoever writes a store to subclass
"""Pages of items."""

import msgspec
import pytest

from semel.core.commands import Item, Page, Query, Update
from semel.errors import UsageError
from semel.testing.clock import FakeClock
from semel.testing.conformance.harness import LINES, NOTES, THINGS, Harness, Runner, put, thing

# In the order of their code points, which is the order of their UTF-8 bytes and not that of any language.
PLACES = ["", " ", "0", "10", "9", "Z", "a", "a:b", "aa", "b", "z", "\u00e9", "\uffee", "\U0001f600"]


def pages(runner: Runner, query: Query) -> list[list[Item]]:
    """Every page from this one on."""
    found: list[list[Item]] = []
    while True:
        page = runner.ask(query)
        assert type(page) is Page
        assert len(page.items) <= query.limit
        found.append(list(page.items))
        if page.after is None:
            return found
        assert len(found) < 100, "the pages have no end"
        query = msgspec.structs.replace(query, after=page.after)


def places(runner: Runner, query: Query) -> list[str]:
    """The sort keys of all pages."""
    return [item["place"] for page in pages(runner, query) for item in page]


class QueryTests(Harness):
    """Partitions, ranges, directions, pages, filters."""

    @pytest.fixture
    def notes(self, runner: Runner, clock: FakeClock) -> list[str]:
        """Notes of one owner, and a few of others that must never show."""
        wanted = PLACES[1:]
        for number, place in enumerate(reversed(wanted)):
            put(runner, "mine", thing(clock, text=place, count=number), NOTES, place)
        for owner in ("min", "minex", "MINE", "m_ne"):
            put(runner, owner, thing(clock, text="other"), NOTES, "a")
        return wanted

    def test_partition_in_order(self, runner: Runner, notes: list[str]) -> None:
        """Items of a partition come in the order of their sort keys, and no others come."""
        assert places(runner, Query(NOTES, "mine")) == notes
        assert places(runner, Query(NOTES, "mine", reverse=True)) == notes[::-1]

    @pytest.mark.parametrize("limit", [1, 2, 100])
    def test_numbers_sort_as_numbers(self, runner: Runner, clock: FakeClock, limit: int) -> None:
        """A sort key may be a number: 9 comes before 10, and a range is one of numbers."""
        numbers = [-3, 0, 9, 10, 11, 100]
        for number in reversed(numbers):
            put(runner, "mine", thing(clock), LINES, number)

        def found(query: Query) -> list[int]:
            return [item["number"] for page in pages(runner, query) for item in page]

        assert found(Query(LINES, "mine", limit=limit)) == numbers
        assert found(Query(LINES, "mine", reverse=True, limit=limit)) == numbers[::-1]
        assert found(Query(LINES, "mine", low=9, high=11, limit=limit)) == [9, 10, 11]
        assert found(Query(LINES, "mine", low=9, high=11, reverse=True, limit=limit)) == [11, 10, 9]

    @pytest.mark.parametrize("limit", [1, 2, 5, 100])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_pages_give_each_item_once(
        self, runner: Runner, notes: list[str], limit: int, reverse: bool
    ) -> None:
        """Whatever the limit, all pages together are the partition in order."""
        found = places(runner, Query(NOTES, "mine", reverse=reverse, limit=limit))
        assert found == (notes[::-1] if reverse else notes)

    @pytest.mark.parametrize("more", [0, 1])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_the_last_page_has_no_cursor(
        self, runner: Runner, notes: list[str], more: int, reverse: bool
    ) -> None:
        """Also where it is full: who follows cursors asks for no page that is empty."""
        limit = len(notes) + more
        assert pages(runner, Query(NOTES, "mine", reverse=reverse, limit=limit))[1:] == []
        half = pages(runner, Query(NOTES, "mine", reverse=reverse, limit=(len(notes) + 1) // 2))
        assert [bool(page) for page in half] == [True, True]
        few = Query(NOTES, "mine", equal={"count": 1}, reverse=reverse, limit=1)
        assert pages(runner, few)[1:] == []
        assert len(pages(runner, Query(NOTES, limit=100))) == 1

    @pytest.mark.parametrize("reverse", [False, True])
    def test_range_includes_both_ends(self, runner: Runner, notes: list[str], reverse: bool) -> None:
        """`low` and `high` are both included, and either may be left out."""
        order = -1 if reverse else 1
        for low, high in (("9", "aa"), (None, "Z"), ("z", None), ("a", "a"), ("b", "a"), ("A", "A")):
            expected = [place for place in notes if (low or "") <= place <= (high or "\U0010ffff")][::order]
            found = places(runner, Query(NOTES, "mine", low, high, reverse, limit=2))
            assert found == expected

    def test_equal_filters(self, runner: Runner, clock: FakeClock, notes: list[str]) -> None:
        """Only items with these values come, on as many pages as it takes."""
        for place in notes[::2]:
            runner.ask(Update(NOTES, "mine", {"flag": True, "due": 5}, sort=place))
        assert places(runner, Query(NOTES, "mine", equal={"flag": True, "due": 5}, limit=2)) == notes[::2]
        assert places(runner, Query(NOTES, "mine", equal={"flag": True, "due": 6}, limit=2)) == []
        assert places(runner, Query(NOTES, "mine", equal={"text": "nothing"})) == []

    def test_empty_partition(self, runner: Runner, notes: list[str]) -> None:
        """A partition without items is one empty page."""
        page = runner.ask(Query(NOTES, "nobody"))
        assert page.items == ()
        assert page.after is None

    @pytest.mark.parametrize("limit", [1, 3, 100])
    def test_whole_table(self, runner: Runner, clock: FakeClock, limit: int) -> None:
        """Without a partition every item of the table comes once, and none of another table."""
        names = [f"key-{number}" for number in range(7)]
        for name in names:
            put(runner, name, thing(clock, text=name))
        put(runner, "mine", thing(clock), NOTES, "1")
        found = [item["id"] for page in pages(runner, Query(THINGS, limit=limit)) for item in page]
        assert sorted(found) == names

    @pytest.mark.parametrize("limit", [1, 2, 100])
    def test_whole_table_by_prefix(self, runner: Runner, clock: FakeClock, limit: int) -> None:
        """Of keys that begin so, and have these values: so a ledger lists its own environment."""
        for name in ("a/1", "a/2", "a/3", "A/4", "ab/5", "a_/6", "b/7"):
            put(runner, name, thing(clock))
        query = Query(THINGS, prefix="a/", limit=limit)
        assert sorted(item["id"] for page in pages(runner, query) for item in page) == ["a/1", "a/2", "a/3"]
        for name in ("a/2", "b/7"):
            runner.ask(Update(THINGS, name, {"text": "this"}))
        query = Query(THINGS, prefix="a/", equal={"text": "this"}, limit=limit)
        assert [item["id"] for page in pages(runner, query) for item in page] == ["a/2"]

    @pytest.mark.parametrize("prefix", ["a_", "a%", "a*", "a[", "a\\\\", "\U0001f600", "\uffff", "caf\u00e9"])
    def test_a_prefix_is_no_pattern(self, runner: Runner, clock: FakeClock, prefix: str) -> None:
        """No sign in it stands for another one."""
        for name in (prefix, prefix + "b", prefix.upper() + "B", "a", "abc", "ab%", "cafe\u0301"):
            put(runner, name, thing(clock))
        found = [item["id"] for page in pages(runner, Query(THINGS, prefix=prefix)) for item in page]
        assert set(found) == {prefix, prefix + "b"} | ({prefix + "B"} if prefix.upper() == prefix else set())

    def test_page_tells_the_time(self, runner: Runner, clock: FakeClock) -> None:
        """As every reply does."""
        assert runner.ask(Query(THINGS)).now == pytest.approx(clock.now(), abs=1e-3)

    @pytest.mark.parametrize("after", ["", "nonsense", "{}", "[1]"])
    def test_made_up_cursor_is_refused(self, runner: Runner, clock: FakeClock, after: str) -> None:
        """A cursor that no page gave is the caller's error, not the store's."""
        put(runner, "key", thing(clock))
        with pytest.raises(UsageError):
            runner.ask(Query(THINGS, after=after))
