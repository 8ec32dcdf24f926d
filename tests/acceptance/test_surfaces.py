"""The same change by hand, from the command line, the HTTP API and the dashboard."""

from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest

from semel.connect import Semel
from semel.core.policy import DAY, SETTLED
from semel.model import Claimed
from semel.ops.model import version_of
from tests.service.kit import ALL_TOKENS, OPS_TOKENS, TOKENS, bearer, client_of, opened, register

KEY = "charge:order-7"
SECRET = "a secret of the tests, 32 bytes."
WHY = "ticket 12"

# Each takes the name of an action, and what else it says: whether it was done.
Surface = Callable[..., bool]


class Place(msgspec.Struct):
    """A ledger, and the ways to act on it by hand."""

    s: Semel
    cli: Surface
    api: Surface
    page: Surface


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed_on: Any) -> Iterator[Place]:
    register(monkeypatch)
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    run = typed_on(url, SECRET)
    text = f'[semel]\nurl = "{url}"\nsecret = "{SECRET}"\n[apps.echo]\n' + ALL_TOKENS + OPS_TOKENS
    with opened(text, tmp_path) as runtime, client_of(runtime) as client:

        def cli(name: str, seen: str = "", **more: str) -> bool:
            words = [word for option, value in more.items() for word in (f"--{option}", value)]
            words += ["--seen", seen] if seen else []
            code, _, _ = run("act", name, KEY, "--why", WHY, "--scope", "north", *words)
            return bool(code == 0)

        def api(name: str, seen: str = "", **more: str) -> bool:
            body = {"name": name, "key": KEY, "why": WHY, "seen": seen} | more
            answer = client.post("/v1/ops/actions", json=body, headers=bearer("oncall"))
            return bool(answer.status_code == 200)

        def page(name: str, seen: str = "", **more: str) -> bool:
            address = "/dashboard/~north/key"
            shown = client.get(address, params={"key": KEY}).text
            if "sign-in" in shown and "form_token" in shown and "Sign out" not in shown:
                form = {"form_token": _hidden(shown, "form_token"), "token": TOKENS["oncall"]}
                client.post("/dashboard/sign-in", data=form)
                shown = client.get(address, params={"key": KEY}).text
            fields = {
                field: _hidden(shown, field) for field in ("form_token", "seen", "days") if field in shown
            }
            form = fields | {"action": name, "key": KEY, "why": WHY} | ({"seen": seen} if seen else {})
            return bool(client.post(address, data=form | more).status_code == 200)

        yield Place(runtime.s.scoped("north"), cli, api, page)


def _hidden(text: str, name: str) -> str:
    return unescape(text.partition(f'name="{name}"')[2].partition('value="')[2].partition('"')[0])


SURFACES = ["cli", "api", "page"]


def doubt(s: Semel, key: str = KEY) -> None:
    claim = s.ledger.claim(key, ttl=3600, on_lapsed="hold")
    assert isinstance(claim, Claimed)
    s.ledger.doubt(claim)


@pytest.mark.situation(59)
@pytest.mark.parametrize("name", ["complete", "release", "fail"])
def test_what_is_resolved_by_hand_is_kept_equally_long_from_every_surface(place: Place, name: str) -> None:
    kept = {}
    for surface in SURFACES:
        doubt(place.s)
        assert getattr(place, surface)(name), surface
        record = place.s.ledger.get(KEY)
        assert record is not None
        kept[surface] = record.expires_at - record.updated_at
        place.s.ledger.forget(KEY)
    assert kept == {surface: pytest.approx(SETTLED, abs=60) for surface in SURFACES}


@pytest.mark.situation(59)
@pytest.mark.parametrize("surface", SURFACES)
def test_a_duplicate_does_not_run_on_the_day_after_it_was_resolved(place: Place, surface: str) -> None:
    doubt(place.s)
    assert getattr(place, surface)("complete")
    record = place.s.ledger.get(KEY)
    assert record is not None
    assert record.expires_at > record.updated_at + 29 * DAY


@pytest.mark.situation(59)
@pytest.mark.parametrize("surface", SURFACES)
def test_a_record_that_changed_since_it_was_seen_is_left_alone_from_every_surface(
    place: Place, surface: str
) -> None:
    doubt(place.s)
    record = place.s.ledger.get(KEY)
    assert record is not None
    seen = version_of(record)
    assert place.api("release")
    doubt(place.s)
    assert not getattr(place, surface)("complete", seen=seen)
    now = place.s.ledger.get(KEY)
    assert now is not None
    assert now.status == "UNKNOWN"
    assert getattr(place, surface)("complete", seen=version_of(now))


@pytest.mark.situation(59)
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("name", ["complete", "release", "fail", "forget"])
def test_a_change_by_hand_is_in_the_journal_from_every_surface(place: Place, surface: str, name: str) -> None:
    doubt(place.s)
    assert getattr(place, surface)(name)
    [entry] = place.s.ops.journal().entries
    assert (entry.body["action"], entry.body["about"], entry.body["why"]) == (name, KEY, WHY)
    assert entry.actor


@pytest.mark.situation(59)
@pytest.mark.parametrize("surface", SURFACES)
def test_an_absent_record_is_told_as_absent_from_every_surface(place: Place, surface: str) -> None:
    place.s.ops.note("ann", WHY, "look", KEY)
    assert not getattr(place, surface)("forget")
    assert not getattr(place, surface)("complete")
    assert len(place.s.ops.journal().entries) == 1
