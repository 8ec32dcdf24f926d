"""What the overview makes of rates."""

import re
from math import inf

import pytest

from semel.dashboard.figures import figures, quantile, took, with_counted
from semel.gate import KillSwitch
from semel.ops.rates import EDGES, HOUR, Rates
from tests.dashboard.kit import completed


@pytest.mark.parametrize(
    ("buckets", "share", "edge"),
    [
        ([], 0.5, None),
        ([0, 0], 0.5, None),
        ([1], 0.95, EDGES[0]),
        ([50, 45, 5], 0.5, EDGES[0]),
        ([50, 45, 5], 0.95, EDGES[1]),
        ([0] * len(EDGES) + [1], 0.5, inf),
    ],
)
def test_a_share_of_all_work_took_no_longer_than_an_edge(buckets, share, edge):
    assert quantile(buckets, share) == edge


def test_times_are_told_as_bounds():
    assert [took(one) for one in (None, 0.025, 2.5, inf)] == ["", "≤ 25 ms", "≤ 2.5 s", "> 30 s"]


def test_duplicates_save_the_time_that_their_work_takes():
    buckets = [0] * 8 + [4] + [0] * 4
    rates = Rates(60, {"pay": {"completed": 4, "replayed": 3}}, {"pay": buckets}, {"d1": 2, "d2": 1})
    told = figures([rates, Rates(120, {"pay": {"replayed": 1}})])
    [pay] = told.names
    assert (pay.counts, told.saved, told.repeated) == ((4, 4, 0, 0, 0), 10.0, (("d1", 2), ("d2", 1)))


def test_what_was_counted_since_is_added_to_the_row_of_its_time():
    [row] = with_counted([Rates(0, {"a": {"failed": 1}})], [Rates(HOUR - 60, {"a": {"failed": 2}})], HOUR)
    assert (row.start, row.count("failed")) == (0, 3)


def test_the_overview_has_what_this_process_counted_before_it_is_written(s, viewer):
    s.keep_rates()
    completed(s, "charge:1")
    s.ledger.claim("charge:1", ttl=3600)
    text = viewer.get("/").text
    assert "<b>1</b> completed" in text
    assert "1 call was answered from the ledger" in text
    digest = re.search(r'/semel/ledger\?digest=([0-9a-f]+)"', text)
    assert digest is not None
    assert "charge:1" in viewer.get(f"/ledger?digest={digest[1]}").text


def test_what_gates_refused_is_told_by_the_kind_of_reason(s, viewer):
    s.keep_rates()
    s.switches.turn("mail", on=True)
    gate = s.gate(KillSwitch("mail"))
    for number in range(2):
        gate.decide(f"send:{number}")
    assert re.search(r"kill switch</bdi>: 2", viewer.get("/").text)
