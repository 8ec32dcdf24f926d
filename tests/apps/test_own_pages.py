"""The pages that the four applications have in the dashboard, on what one delivery to each has left."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from semel.apps.configuration import Configuration
from semel.ops.blocks import FactsBlock, KeyLink, PageLink, TableBlock, TextBlock
from semel.service import sample_data
from semel.service.runtime import MountedApp, Runtime


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    url = f"sqlite:///{tmp_path_factory.mktemp('own') / 'semel.db'}"
    runtime = Runtime(Configuration(sample_data.settings(url), "the sample"))
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def apps(runtime: Runtime) -> dict[str, MountedApp]:
    apps = {one.name: one for one in runtime.apps}
    for paste in sample_data.pastes(runtime.s.clock.now()):
        delivery, one = paste.delivery, apps[paste.app]
        answer = one.app.hooks[delivery.path].receive(delivery.headers, delivery.body)
        assert answer.status < 300, answer
        if one.works and one.inbox.waiting():
            work(one)
    return apps


def work(one: MountedApp) -> None:
    """Handle one message."""

    def handle(message: Any) -> Any:
        worker.stop()
        return one.app.handle(message)

    worker = one.inbox.worker(handle)
    worker.run()


def shown(one: MountedApp, page: str, **query: str) -> list[Any]:
    return asyncio.run(one.app.pages()[page].make(query))


def table(blocks: list[Any], place: int = 0) -> TableBlock:
    return [block for block in blocks if isinstance(block, TableBlock)][place]


def test_support_tells_of_conversations_and_of_none_of_their_words(apps: dict[str, MountedApp]) -> None:
    [row] = table(shown(apps["support"], "conversations")).rows
    link = row[0]
    assert isinstance(link, PageLink)
    assert row[2:5] == ("order_status", "orders", "ask_order_number")
    one = shown(apps["support"], link.page, **link.query)
    assert {row[0] for row in table(one).rows} >= {"route", "auto_reply"}
    assert all(isinstance(row[1], KeyLink) for row in table(one).rows)
    assert "Where is my order" not in repr(one)
    assert "example.com" not in repr(one)


def test_support_finds_conversations_of_other_processes_in_the_ledger(apps: dict[str, MountedApp]) -> None:
    handled = list(apps["support"].app.handled)
    apps["support"].app.handled.clear()
    try:
        assert len(table(shown(apps["support"], "conversations")).rows) == 1
    finally:
        apps["support"].app.handled.extend(handled)


def test_the_household_tells_what_was_done_and_how_many_replies_are_left(apps: dict[str, MountedApp]) -> None:
    [row] = table(shown(apps["household"], "chats")).rows
    assert (row[0], row[2]) == (PageLink("chats", "7", {"chat": "7"}), 3)
    [facts, done] = shown(apps["household"], "chats", chat="7")[1:]
    assert isinstance(facts, FactsBlock)
    assert len(done.rows) == 1
    assert "I did the dishes" not in repr(done)


@pytest.mark.parametrize("chat", ["<script>", "7; drop", "--", "²"])
def test_what_is_no_chat_is_said_so(apps: dict[str, MountedApp], chat: str) -> None:
    assert isinstance(shown(apps["household"], "chats", chat=chat)[-1], TextBlock)


def test_quill_tells_totals_and_what_waits(apps: dict[str, MountedApp]) -> None:
    blocks = shown(apps["quill"], "facts")
    assert blocks[0].facts["To be posted"] == 0
    assert table(blocks).rows == (("calls", 1),)


def test_the_probe_tells_of_its_operations(apps: dict[str, MountedApp]) -> None:
    blocks = shown(apps["probe"], "operations")
    assert table(blocks).rows[0][:3] == (KeyLink("PRODUCE#mine"), "completed", 1)
    assert table(blocks, 1).rows == ()


@pytest.mark.parametrize(
    ("app", "page", "query"),
    [("support", "conversations", {"conversation": "x"}), ("household", "chats", {"chat": "999"})],
)
def test_what_is_not_known_is_said_so(
    apps: dict[str, MountedApp], app: str, page: str, query: dict[str, str]
) -> None:
    blocks = shown(apps[app], page, **query)
    assert isinstance(blocks[-1], TextBlock) or not blocks[-1].rows
