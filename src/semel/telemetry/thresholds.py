"""What somebody has to look at, and from how much on: for alarms in CloudWatch and in Prometheus alike."""

from typing import Final

from semel.core.events import What

# How many seconds an alarm looks back.
PERIOD: Final = 300

# What somebody has to look at, each time it happens.
ONCE: Final = {
    What.HELD: "Nobody knows whether an effect has happened: find out, and settle it in the ledger.",
    What.CLAIM_LOST: "Work outlived its lease, and may have been done twice.",
    What.RAN_OPEN: "The store was down, and work ran unprotected.",
    What.CORRUPT: "A record of the ledger cannot be read.",
    What.RESULT_NOT_KEPT: "A result was too large to be kept, or is no JSON.",
}
# What the retries mostly make good; so many in five minutes they do not.
OFTEN: Final = {
    What.THROTTLED: (5, "The ledger's table was still too busy after every retry."),
    What.STORE_ERROR: (5, "The ledger did not do as asked."),
    What.FAILED: (5, "Work failed for good."),
}
# More duplicates than news, of more than a handful: somebody sends everything twice, or is never answered.
MOST_DUPLICATES: Final = 0.5
FEW: Final = 20
DUPLICATES: Final = "More duplicates come than news: somebody sends everything twice."
