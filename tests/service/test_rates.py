"""The service keeps rates, unless it is told not to, or has no table for them."""

import time
from pathlib import Path

import pytest

import semel
from semel.ops.rates import Rates
from semel.service.runtime import Runtime
from tests.service.kit import ALL_TOKENS, bearer, client_of, opened, register, told


def rates_of(folder: Path, scope: str) -> list[Rates]:
    """What the service left behind for a tenant."""
    with semel.connect(f"sqlite:///{folder / 'semel.db'}", scope=scope) as s:
        return s.ops.rates(0, time.time())


def claim_twice(runtime: Runtime) -> None:
    with client_of(runtime) as client:
        for _ in range(2):
            client.post("/v1/claims", headers=bearer("north"), json={"key": "a", "lease": 60})


def test_the_service_keeps_rates_for_each_tenant(tmp_path: Path) -> None:
    with opened(ALL_TOKENS, tmp_path) as runtime:
        claim_twice(runtime)
    rows = rates_of(tmp_path, "north")
    assert [sum(row.count(what) for row in rows) for what in ("claimed", "busy")] == [1, 1]
    assert rates_of(tmp_path, "south") == []


def test_rates_can_be_turned_off(tmp_path: Path) -> None:
    with opened(f"{ALL_TOKENS}\n[service]\nrates = false", tmp_path) as runtime:
        claim_twice(runtime)
    assert rates_of(tmp_path, "north") == []


def test_the_work_of_apps_is_counted_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    with opened("[apps.echo]", tmp_path) as runtime:
        runtime.apps[0].s.ledger.check_and_set("a")
    assert [row.count("claimed") for row in rates_of(tmp_path, "echo")] == [1]


def test_without_a_table_of_a_journal_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    monkeypatch.setattr(Runtime, "tables", lambda self: [(self.s, ())])
    runtime = Runtime(told("[semel]\nurl = 'memory:'\n[apps.echo]"))
    assert [len(s._shared.rates) for s in runtime.stores()] == [0]
    runtime.close()
