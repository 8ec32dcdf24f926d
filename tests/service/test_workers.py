"""The worker threads: one that fails as a whole begins anew, and a stop is heard wherever it comes."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.errors import TableMissing
from semel.service import workers as module
from semel.service.workers import AppWorkers
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


def workers_of(
    runs: list[Callable[[Worker], None]], folder: Path, patch: pytest.MonkeyPatch
) -> tuple[AppWorkers, dict[str, Any]]:
    """Worker threads whose worker runs in these ways, one after the other, and what it was made with."""
    register(patch)
    made: dict[str, Any] = {"workers": []}
    left = list(runs)

    def worker(_handle: Any, **options: Any) -> Worker:
        made["options"] = options
        made["workers"].append(Worker(left.pop(0)))
        return made["workers"][-1]

    with opened(
        "[service]\nworkers = 3\n[apps.echo]\n[inbox.echo]\nlease = 7\npoll = 0.1", folder
    ) as runtime:
        patch.setattr(runtime.apps[0].inbox, "worker", worker)
        return AppWorkers(runtime), made


def test_an_apps_options_stand_unless_the_settings_say_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, made = workers_of([lambda _: None], tmp_path, monkeypatch)
    assert workers.names == ["echo"]
    assert made["options"] == {"workers": 3, "max_attempts": 2, "lease": 7.0, "poll": 0.1}


def test_a_worker_that_fails_as_a_whole_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)

    def fail(_worker: Worker) -> None:
        raise TableMissing("there is no table")

    def work(worker: Worker) -> None:
        assert worker.stopped.wait(60)

    workers, made = workers_of([fail, work], tmp_path, monkeypatch)
    failing = list[str]()
    make = workers._threads[0]._make

    def make_anew() -> Any:
        failing.append(workers.failing())
        return make()

    monkeypatch.setattr(workers._threads[0], "_make", make_anew)
    with caplog.at_level(logging.WARNING, "semel.service"):
        workers.start()
        assert until(lambda: len(made["workers"]) == 2)
        workers.stop()
        assert workers.join(60)
    told = [record.getMessage() for record in caplog.records if record.name == "semel.service"]
    assert "the worker of echo failed: there is no table" in told
    assert "the worker of echo begins anew" in told
    assert failing == ["the worker of echo failed: TableMissing: there is no table"]
    assert workers.failing() == ""


def test_a_workers_that_was_stopped_before_it_began_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Worker] = []
    workers, _ = workers_of([ran.append], tmp_path, monkeypatch)
    assert workers.join(1)
    workers.stop()
    workers.start()
    assert workers.join(60)
    assert ran == []


def test_work_that_does_not_end_in_time_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def work(_worker: Worker) -> None:
        begun.set()
        go.wait(60)

    workers, _ = workers_of([work], tmp_path, monkeypatch)
    workers.start()
    assert begun.wait(60)
    workers.stop()
    assert not workers.join(0.01)
    go.set()
    assert workers.join(60)


def test_the_time_to_end_counts_from_when_it_was_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests under way are waited for first, and both have to be over in time."""

    def work(worker: Worker) -> None:
        worker.stopped.wait(60)

    workers, _ = workers_of([work], tmp_path, monkeypatch)
    clock, waits = FakeClock(), list[float]()
    monkeypatch.setattr(workers, "_clock", clock)
    with monkeypatch.context() as patch:
        patch.setattr(module.WorkerThread, "join", lambda _, timeout: waits.append(timeout))
        workers.start()
        workers.stop()
        clock.advance(20)
        workers.stop()  # asking twice gives no more time
        workers.join(30)
    assert waits == [10.0]
    assert workers.join(60)
