"""What the load benchmark says about slow webhooks."""

from bench.stalls import Slow, Stall, slowest, totals

COMMIT = Stall("work", "commit", 1.00, 1.04, 0.001)
TURN = Stall("serve", "turn", 1.01, 1.11)
LATER = Stall("serve", "turn", 2.0, 2.01)


def test_a_slow_webhook_is_explained_by_what_took_long_meanwhile():
    assert Slow(1.03, 1.2).causes([COMMIT, LATER, TURN]) == [TURN, COMMIT]


def test_of_webhooks_that_were_late_together_the_slowest_stands_for_all():
    webhooks = [(1.00, 1.20), (1.01, 1.20), (1.05, 1.21), (3.00, 3.05), (3.04, 3.06), (4.00, 4.01)]
    assert slowest(webhooks, 2) == [Slow(1.00, 1.20), Slow(3.00, 3.05)]


def test_each_cause_is_summed_up_by_process():
    told = totals([TURN, LATER, COMMIT])
    assert list(told) == ["serve: turn", "work: commit"]
    assert " ".join(told["serve: turn"].split()) == "2 times, 110 ms, 0 of them at work; longest 100 ms"
