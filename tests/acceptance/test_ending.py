"""What is pending when the interpreter ends keeps no process alive."""

import subprocess
import sys

import pytest

from tests.places import NAMES, open_place

SCRIPT = """
import asyncio, sys
import semel

s = semel.connect(sys.argv[1], env=sys.argv[2])

@s.once("k")
async def work() -> None:
    await asyncio.Event().wait()

loop = asyncio.new_event_loop()
task = loop.create_task(work())
for _ in range(200):
    loop.run_until_complete(asyncio.sleep(0.01))
    if (record := s.ledger.get("k")) is not None:
        break
print(record.status, flush=True)
"""


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ministack"])
def test_a_coroutine_that_is_pending_at_the_end_keeps_no_process_alive(name, request, tmp_path):
    place = open_place(name, request, tmp_path)
    command = [sys.executable, "-c", SCRIPT, place.url(), place.env]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "IN_PROGRESS"
    assert "Traceback" not in done.stderr
