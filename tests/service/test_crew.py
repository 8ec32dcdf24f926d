"""The crew: a worker that fails as a whole begins anew, and a stop is heard wherever it comes."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.errors import TableMissing
from semel.service import crew as crews
from semel.service.crew import Crew
from semel.testing import FakeClock
from tests.servers.running import until
from tests.service.kit import opened, register


class Worker:
    """A worker that does as told when it runs."""

    def __init__(self, run: Callable[["Worker"], None]) -> None:
        self._run = run
        self.stopped = threading.Event()

    def run(self) -> None:
        self._run(self)

    def stop(self) -> None:
        self.stopped.set()


def crew_of(
    runs: list[Callable[[Worker], None]], folder: Path, patch: pytest.MonkeyPatch
) -> tuple[Crew, dict[str, Any]]:
    """A crew whose worker runs in these ways, one after the other, and what it was made with."""
    register(patch)
    made: dict[str, Any] = {"workers": []}
    left = list(runs)

    def worker(_handle: Any, **options: Any) -> Worker:
        made["options"] = options
        made["workers"].append(Worker(left.pop(0)))
        return made["workers"][-1]

    with opened("[service]\nworkers = 3\n[apps.echo]\n[inbox.echo]\nlease = 7\npoll = 0.1", folder) as house:
        patch.setattr(house.apps[0].inbox, "worker", worker)
        return Crew(house), made


def test_an_apps_options_stand_unless_the_settings_say_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew, made = crew_of([lambda _: None], tmp_path, monkeypatch)
    assert crew.names == ["echo"]
    assert made["options"] == {"workers": 3, "max_attempts": 2, "lease": 7.0, "poll": 0.1}


def test_a_worker_that_fails_as_a_whole_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(crews, "FIRST_PAUSE", 0.001)

    def fail(_worker: Worker) -> None:
        raise TableMissing("there is no table")

    def work(worker: Worker) -> None:
        assert worker.stopped.wait(60)

    crew, made = crew_of([fail, work], tmp_path, monkeypatch)
    failing = list[str]()
    make = crew._hands[0]._make

    def make_anew() -> Any:
        failing.append(crew.failing())
        return make()

    monkeypatch.setattr(crew._hands[0], "_make", make_anew)
    with caplog.at_level(logging.WARNING, "semel.service"):
        crew.start()
        assert until(lambda: len(made["workers"]) == 2)
        crew.stop()
        assert crew.join(60)
    told = [record.getMessage() for record in caplog.records if record.name == "semel.service"]
    assert "the worker of echo failed: there is no table" in told
    assert "the worker of echo begins anew" in told
    assert failing == ["the worker of echo failed: TableMissing: there is no table"]
    assert crew.failing() == ""


def test_a_crew_that_was_stopped_before_it_began_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Worker] = []
    crew, _ = crew_of([ran.append], tmp_path, monkeypatch)
    assert crew.join(1)
    crew.stop()
    crew.start()
    assert crew.join(60)
    assert ran == []


def test_work_that_does_not_end_in_time_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def work(_worker: Worker) -> None:
        begun.set()
        go.wait(60)

    crew, _ = crew_of([work], tmp_path, monkeypatch)
    crew.start()
    assert begun.wait(60)
    crew.stop()
    assert not crew.join(0.01)
    go.set()
    assert crew.join(60)


def test_the_time_to_end_counts_from_when_it_was_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests under way are waited for first, and both have to be over in time."""

    def work(worker: Worker) -> None:
        worker.stopped.wait(60)

    crew, _ = crew_of([work], tmp_path, monkeypatch)
    clock, waits = FakeClock(), list[float]()
    monkeypatch.setattr(crew, "_clock", clock)
    with monkeypatch.context() as patch:
        patch.setattr(crews.Hand, "join", lambda _, timeout: waits.append(timeout))
        crew.start()
        crew.stop()
        clock.advance(20)
        crew.stop()  # asking twice gives no more time
        crew.join(30)
    assert waits == [10.0]
    assert crew.join(60)
