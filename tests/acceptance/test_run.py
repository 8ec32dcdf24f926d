"""`make run`, as somebody sees it for the first time: the service with all its apps, and made-up traffic."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

import semel
from semel import errors
from semel.cli.serve import serve
from semel.ops.model import Search
from semel.service import sample_data
from semel.service.traffic import sampled
from tests.servers.running import PATIENCE_SECONDS, until

PASTED = ("quill", "support", "household", "probe")


class Running:
    """`semel serve --traffic`, in a session of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._told = folder / "told"
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "TMPDIR": str(folder)}
        # Whatever the environment says, made-up traffic goes nowhere else.
        environment |= {"SEMEL_URL": "sqlite:///not-this.db", "PYTHONUNBUFFERED": "1"}
        with self._told.open("wb") as told:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "semel.cli", "serve", "--traffic", *options],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def told(self) -> str:
        return self._told.read_text()

    def tells(self, words: str) -> bool:
        return until(lambda: words in self.told, still=lambda: self.process.poll() is None)

    def interrupt(self) -> int:
        """Ctrl-C, which every process of the session gets."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def pasted(line: str) -> str:
    """What a shell prints for a line that was pasted into it."""
    shell = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30, check=True)
    return shell.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_each_app_takes_what_is_pasted_and_drops_it_the_second_time(tmp_path: Path) -> None:
    """It also takes another port where its own is in use, and leaves nothing behind when interrupted."""
    with ExitStack() as stack:
        with suppress(OSError):  # somebody else has it: so much the better
            stack.enter_context(socket.create_server(("127.0.0.1", 8000)))
        running = Running(tmp_path)
        stack.callback(running.kill)
        assert running.tells("Ctrl-C stops it"), running.told
        assert running.told.startswith("semel: dashboard at http://127.0.0.1:"), running.told
        assert "port 8000 is in use, so another one is taken" in running.told
        lines = re.findall(r"^  (curl .+)$", running.told, re.MULTILINE)
        sends, looks = lines[: len(PASTED)], lines[len(PASTED) :]
        first = dict(zip(PASTED, map(pasted, sends), strict=True))
        for app in PASTED:
            assert running.tells(f"semel: {app} has handled yours"), running.told
        second = dict(zip(PASTED, map(pasted, sends), strict=True))
        for app in PASTED:
            assert running.tells(f"semel: {app} had yours before: a duplicate, and dropped"), running.told
        assert running.told.count("has handled yours") == len(PASTED)

        # Each answer shows whether it was known.
        assert json.loads(first["quill"])["posted"] == 1
        assert json.loads(second["quill"])["duplicates"] == 1
        for app in ("support", "household"):
            assert (json.loads(first[app])["known"], json.loads(second[app])["known"]) == (0, 1), app
        assert "idempotent-replayed" not in first["probe"]
        assert "idempotent-replayed: true" in second["probe"]
        facts, audit, activities = (json.loads(pasted(line)) for line in looks)
        assert facts["facts"]
        keys = [action["idempotency_key"] for action in audit["actions"]]
        assert keys
        assert sorted(keys) == sorted(set(keys))
        assert [each["activity"] for each in activities["activities"]] == ["dishes"]

        assert running.tells(" received, "), running.told
        assert running.interrupt() == 0, running.told
        with pytest.raises(ProcessLookupError):
            os.killpg(running.process.pid, 0)
        assert "Traceback" not in running.told
        assert "to the traffic" not in running.told  # nothing of it was refused
        assert [each.name for each in tmp_path.iterdir()] == ["told"]


def test_who_interrupts_it_while_it_begins_gets_no_traceback(tmp_path: Path) -> None:
    running = Running(tmp_path, "--port", "0")
    assert running.tells("semel: http://"), running.told
    assert running.interrupt() == 0, running.told
    assert "Traceback" not in running.told


@pytest.mark.parametrize("options", [{"config": "semel.toml"}, {"app": ["quill"]}])
def test_made_up_traffic_does_not_go_to_a_service_with_settings_of_its_own(options: dict[str, Any]) -> None:
    with pytest.raises(errors.UsageError, match="leave out --config, SEMEL_CONFIG and --app"):
        serve(traffic=True, **options)


@pytest.mark.parametrize("url", ["dynamodb://eu-north-1", "memory:"])
def test_made_up_traffic_goes_to_a_file_only(url: str) -> None:
    with pytest.raises(errors.UsageError, match="sqlite:///"), sampled({("semel", "url"): url}, print):
        pass


def test_an_address_that_is_none_is_left_for_the_service_to_complain_of() -> None:
    with sampled({("service", "host"): "nowhere.invalid"}, print) as given:
        assert given.tree["service"]["port"] == 8000


# What is sent


def name(delivery: sample_data.SampleDelivery) -> tuple[str, bytes, str | None]:
    """What tells a delivery from all others."""
    return delivery.path, delivery.body, delivery.headers.get("Idempotency-Key")


def test_about_every_fifth_delivery_is_a_duplicate_and_every_app_gets_some() -> None:
    senders = iter(sample_data.SampleSenders(Random(1), lambda: 1_800_000_000.0))
    sent = [next(senders) for _ in range(1000)]
    assert 150 < 1000 - len(set(map(name, sent))) < 250
    assert {each.path for each in sent} == {
        "/webhooks/aloware",
        "/webhooks/hubspot",
        "/webhooks/richpanel",
        "/webhooks/telegram",
        "/messages/produce",
        "/messages/consume",
    }


def test_nobody_who_is_named_exists() -> None:
    senders = iter(sample_data.SampleSenders(Random(1), lambda: 1_800_000_000.0))
    text = b"\n".join(next(senders).body for _ in range(1000)).decode()
    assert set(re.findall(r"[\w.+-]+@([\w.-]+)", text)) == {"example.com"}
    assert {number[:6] for number in re.findall(r"\d{3}-\d{4}", text)} == {"555-01"}


def test_a_second_run_on_the_same_file_sends_nothing_of_the_first() -> None:
    def sent(now: float) -> set[tuple[str, bytes, str | None]]:
        senders = iter(sample_data.SampleSenders(Random(1), lambda: now))
        return {name(next(senders)) for _ in range(200)}

    assert sent(1.8e9).isdisjoint(sent(1.8e9 + 60))


def test_the_shop_fails_once_for_some_orders_and_always_for_others() -> None:
    with pytest.raises(sample_data.ShopDown):
        sample_data.find_order("40017", "")
    assert sample_data.find_order("40017", "").status == "shipped"
    for _ in range(3):
        with pytest.raises(sample_data.ShopDown):
            sample_data.find_order("40019", "")
    assert sample_data.find_order("40010", "") is None


def test_from_the_start_there_is_a_doubt_a_failure_and_a_switch_that_was_turned() -> None:
    with semel.connect("memory:") as s:
        sample_data.begin(s)
        assert len(s.ops.search(Search(in_doubt=True)).records) == 1
        assert len(s.ops.search(Search(status=semel.Status.FAILED)).records) == 1
        assert {name: switch.on for name, switch in s.switches.list().items()} == {
            "sample_pause": True,
            "sample_maintenance": False,
        }
        assert len(s.ops.journal().entries) == 3
