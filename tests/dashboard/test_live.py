"""Live pages: who listens is told of another version, by one reader, until something ends it."""

import asyncio
from contextlib import aclosing
from types import SimpleNamespace

import pytest

from semel.dashboard import live
from semel.dashboard.live import LIFE_SECONDS, MOST_LISTENERS, LiveFeed
from semel.dashboard.views import LedgerView
from semel.doors.inbox import Message, open_inbox
from semel.errors import StoreUnavailable
from tests.dashboard.kit import completed, doubted


class Door:
    """Lets everybody stay until it is told otherwise."""

    stays = True

    def is_still(self, _visit):
        return self.stays


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.01)


@pytest.fixture
def door():
    return Door()


def feed_of(s, door, stopping=lambda: False):
    inbox = open_inbox(s, "orders")
    return LiveFeed(s, LedgerView(s=s, inboxes={"orders": inbox}), door, stopping), inbox


async def listen(feed):
    answer = await feed.stream(SimpleNamespace())
    assert answer.media_type == "text/event-stream"
    return answer.body_iterator


async def version(stream):
    """The next one that is told."""
    async for text in stream:
        if text.startswith("event: version\ndata: "):
            return text.split("data: ")[1].strip()
    raise EOFError


def test_a_listener_is_told_of_every_change_and_of_nothing_else(s, clock, door):
    s.keep_rates()
    feed, inbox = feed_of(s, door)

    async def heard():
        async with aclosing(await listen(feed)) as stream:
            told = [await version(stream)]
            for change in (
                lambda: doubted(s, "charge:1"),
                lambda: completed(s, "charge:2"),
                lambda: s.switches.turn("mail", on=True),
                lambda: inbox.put(Message("order:1", {})),
            ):
                change()
                told.append(await version(stream))
            again = await feed.version()
            return told, again

    told, again = asyncio.run(heard())
    assert len(set(told)) == 5
    assert again == told[-1]


def test_any_number_of_listeners_is_served_by_one_reader(s, door, monkeypatch):
    feed, _ = feed_of(s, door)
    at_once = most = 0
    look = feed.version

    async def counted():
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return await look()
        finally:
            at_once -= 1

    monkeypatch.setattr(feed, "version", counted)

    async def crowd():
        streams = [await listen(feed) for _ in range(MOST_LISTENERS)]
        told = await asyncio.gather(*map(version, streams))
        refused = await feed.stream(SimpleNamespace())
        for stream in streams:
            await stream.aclose()
        return told, refused.status_code, feed.listeners

    told, refused, left = asyncio.run(crowd())
    assert len(set(told)) == 1
    assert (most, refused, left) == (1, 503, 0)


def test_nobody_reads_when_nobody_listens(s, door):
    feed, _ = feed_of(s, door)

    async def leave():
        async with aclosing(await listen(feed)) as stream:
            await version(stream)
        await asyncio.wait_for(feed._task, 10)
        return feed.listeners

    assert asyncio.run(leave()) == 0


@pytest.mark.parametrize("why", ["session", "server", "time"])
def test_a_stream_ends_with_its_session_with_the_server_and_after_a_while(s, clock, door, why):
    stopping: list[bool] = []
    feed, _ = feed_of(s, door, lambda: bool(stopping))

    async def rest():
        stream = await listen(feed)
        await version(stream)
        if why == "session":
            door.stays = False
        elif why == "server":
            stopping.append(True)
        else:
            clock.advance(LIFE_SECONDS)
        return [text async for text in stream]

    assert "event" not in "".join(asyncio.run(rest()))
    assert feed.listeners == 0


def test_a_store_that_is_away_is_told_and_ends_nothing(s, door, monkeypatch):
    feed, _ = feed_of(s, door)
    look = feed.version

    async def away():
        raise StoreUnavailable("gone")

    async def heard():
        async with aclosing(await listen(feed)) as stream:
            monkeypatch.setattr(feed, "version", away)
            first = await version(stream)
            monkeypatch.setattr(feed, "version", look)
            return first, await version(stream)

    first, then = asyncio.run(heard())
    assert (first, then != "trouble") == ("trouble", True)


def test_only_who_is_signed_in_may_listen(stranger):
    assert stranger.get("/live").status_code == 303
