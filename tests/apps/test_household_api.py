"""What was done, as it is read over HTTP."""

import asyncio
from contextlib import closing

import httpx
import pytest
from fastapi import FastAPI

import semel
from semel.apps.household.api import router
from semel.apps.tables import ACTIVITIES, MESSAGES, RESPONSE_COUNTERS
from semel.testing import FakeClock
from tests.apps.household_kit import ANN, BO, CHAT, Home
from tests.places import open_place
from tests.standins.telegram import Telegram
from tests.state.test_documents import Engine

NOON = 1_771_326_000  # 2026-02-17T11:00:00Z
OTHER = 7


@pytest.fixture
def clock():
    return FakeClock(NOON)


@pytest.fixture(params=["memory", "sqlite"])
def home(request, tmp_path, clock):
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'semel.db'}"
    home = Home(semel.connect(url, clock=clock).scoped("household"), clock, Telegram(), bot_token="")
    home.say("Jag har diskat", user=ANN, at=NOON)
    home.say("I vacuumed", user=BO, at=NOON + 60)
    home.say("Took a nap", user=ANN, chat=OTHER, at=NOON + 120)
    home.say("Hej", user=ANN, at=NOON + 180)
    home.say("Tog ut soporna", user=ANN, at=NOON - 3600)  # it comes last, and was first
    home.work()
    yield home
    home.close()


@pytest.fixture
def get(home):
    return asking(home)


def asking(home):
    """What asks a household over HTTP."""
    app = FastAPI()
    app.include_router(router(home.app), prefix="/apps/household")

    def ask(path, **query):
        async def run():
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://house") as client:
                return await client.get(path, params=query)

        return asyncio.run(run())

    return ask


def told(answer):
    assert answer.status_code == 200, answer.text
    return [one["activity"] for one in answer.json()["activities"]]


@pytest.mark.seed("H8")
def test_a_chats_activities_come_in_the_order_of_time(get):
    path = f"/apps/household/chats/{CHAT}/activities"
    assert told(get(path)) == ["trash", "dishes", "cleaning"]
    assert told(get(path, reverse=True)) == ["cleaning", "dishes", "trash"]
    assert told(get("/apps/household/chats/99/activities")) == []


@pytest.mark.seed("H8")
def test_a_range_of_time_includes_both_its_moments(get):
    path = f"/apps/household/chats/{CHAT}/activities"
    span = {"from": "2026-02-17T11:00:00Z", "to": "2026-02-17T12:01:00+01:00"}
    assert told(get(path, **span)) == ["dishes", "cleaning"]
    assert told(get(path, to="2026-02-17T10:59:59Z")) == ["trash"]


@pytest.mark.seed("H8")
def test_activities_come_in_pages(get):
    path = f"/apps/household/chats/{CHAT}/activities"
    first = get(path, limit=2)
    assert told(first) == ["trash", "dishes"]
    rest = get(path, limit=2, after=first.json()["after"])
    assert told(rest) == ["cleaning"]
    assert rest.json()["after"] is None


@pytest.mark.seed("H8")
def test_what_somebody_did_comes_from_all_chats_within_a_range_of_time(get):
    path = f"/apps/household/users/{ANN}/activities"
    assert told(get(path)) == ["trash", "dishes", "rest"]
    assert told(get(path, **{"from": "2026-02-17T11:00:00Z"})) == ["dishes", "rest"]
    assert {one["chat"] for one in get(path).json()["activities"]} == {str(CHAT), str(OTHER)}
    assert told(get(f"/apps/household/users/{BO}/activities")) == ["cleaning"]


@pytest.mark.seed("H8")
def test_an_activity_leads_back_to_its_message(get):
    one = get(f"/apps/household/users/{BO}/activities").json()["activities"][0]
    assert one == {
        "id": one["id"],
        "chat": str(CHAT),
        "user": BO,
        "at": "2026-02-17T11:01:00Z",
        "type": "chore",
        "activity": "cleaning",
        "effort": "medium",
        "confidence": 0.8,
        "message": f"/apps/household/chats/{CHAT}/messages/2",
    }
    assert get(one["message"]).json() == {
        "chat": str(CHAT),
        "message": 2,
        "user": BO,
        "at": "2026-02-17T11:01:00Z",
        "text": "I vacuumed",
    }
    assert get(f"/apps/household/chats/{CHAT}/messages/99").status_code == 404


@pytest.fixture
def there(request, tmp_path):
    """DynamoDB, with the tables of a household."""
    return open_place("dynoxide", request, tmp_path, more=(ACTIVITIES, MESSAGES, RESPONSE_COUNTERS))


@pytest.mark.seed("H8", "H11")
def test_what_the_household_s_own_writer_put_is_shown_as_it_is(there, clock):
    """Raw items, as its own code writes them; what they lack is null, and nothing is made up."""
    chat, ulid = {"S": str(CHAT)}, "01HQJZ7B4Z0J5M3RGT8X4K6N9P"
    whole = {
        "chatId": chat,
        "activityId": {"S": ulid},
        "userId": {"N": str(ANN)},
        "timestamp": {"N": str(NOON * 1000)},
        "messageId": {"N": "5"},
        "type": {"S": "chore"},
        "activity": {"S": "dishes"},
        "effort": {"N": "2"},
        "confidence": {"N": "1"},
    }
    bare = {"chatId": chat, "activityId": {"S": f"{ulid[:-1]}Q"}, "activity": {"S": "trash"}}
    with closing(Engine(there, ACTIVITIES)) as engine:
        engine.put(whole)
        engine.put(bare)
    with closing(Engine(there, MESSAGES)) as engine:
        engine.put({"chatId": chat, "messageId": {"N": "5"}, "userId": {"N": str(ANN)}})
    home = Home(semel.Semel(there.open(clock), env=there.env, clock=clock), clock, Telegram(), bot_token="")
    get = asking(home)
    first, second = get(f"/apps/household/chats/{CHAT}/activities").json()["activities"]
    assert first == {
        "id": ulid,
        "chat": str(CHAT),
        "user": ANN,
        "at": "2026-02-17T11:00:00Z",
        "type": "chore",
        "activity": "dishes",
        "effort": 2,
        "confidence": 1,
        "message": f"/apps/household/chats/{CHAT}/messages/5",
    }
    lacking = dict.fromkeys(("user", "at", "type", "effort", "confidence", "message"))
    assert second == {"id": f"{ulid[:-1]}Q", "chat": str(CHAT), "activity": "trash", **lacking}
    assert get(f"/apps/household/users/{ANN}/activities").json()["activities"] == [first]
    told = {"chat": str(CHAT), "message": 5, "user": ANN, "at": None, "text": None}
    assert get(first["message"]).json() == told
    home.close()


@pytest.mark.parametrize("query", [{"from": "2026-02-17T11:00:00"}, {"limit": "0"}, {"to": "noon"}])
def test_what_cannot_be_asked_is_refused(get, query):
    assert get(f"/apps/household/chats/{CHAT}/activities", **query).status_code == 422
