"""The page about very many events says what was counted."""

from pathlib import Path

import pytest

from bench.scale import request_rows, shard_rows
from semel.core.policy import DAY
from semel.provision.cost import Workload, estimate

PAGE = (Path(__file__).parents[2] / "docs/explanation/scale.md").read_text()
A_MONTH = 100_000 * 30 * int(DAY)


@pytest.mark.parametrize("rows", [request_rows, shard_rows])
def test_its_tables_are_what_is_counted(rows):
    assert "\n".join(rows()) in PAGE


def test_its_price_is_that_of_semel_cost():
    dollars = sum(line.dollars for line in estimate(Workload(events=A_MONTH), "us-east-1").lines)
    # A record has the name of its process, which is now longer and now shorter.
    assert f"${round(dollars, -3):,.0f} " in PAGE
    assert f"--events {A_MONTH}" in PAGE
