"""What DynamoDB on demand costs, as dated data: AWS's own price list, for each region as of the day given."""

from datetime import date
from math import ceil
from typing import Any

import msgspec

from semel.model import ScanCost, TableSize

SOURCE = "https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/AmazonDynamoDB/current/{region}/index.json"


class Prices(msgspec.Struct, frozen=True):
    """US dollars, for tables of the Standard class, without free tiers."""

    region: str
    writes: float
    """A million write request units."""
    reads: float
    """A million read request units."""
    storage: float
    """A gigabyte for a month."""
    published: date

    @property
    def source(self) -> str:
        """Where they stand, and newer ones."""
        return SOURCE.format(region=self.region)


PRICES = {
    prices.region: prices
    for prices in (
        Prices("us-east-1", 0.625, 0.125, 0.25, date(2026, 8, 15)),
        Prices("eu-north-1", 0.67, 0.1345, 0.269, date(2026, 9, 11)),
        Prices("eu-west-1", 0.705, 0.1415, 0.283, date(2026, 8, 15)),
        Prices("eu-central-1", 0.7625, 0.1525, 0.306, date(2026, 9, 11)),
        Prices("ap-south-1", 0.71, 0.1425, 0.285, date(2026, 9, 11)),
        Prices("ap-southeast-2", 0.71, 0.1425, 0.285, date(2026, 8, 13)),
        Prices("ap-northeast-1", 0.715, 0.1425, 0.285, date(2026, 9, 11)),
    )
}

# DynamoDB's read unit, for a read that is never from a replica; and what one Scan reads at most.
READ_BYTES = 4096
SCAN_BYTES = 1024**2
MILLION = 1_000_000
# A first call claims and completes. In an index by when records changed the claim is one write more, and the
# completion two: its entry leaves one place and comes to another.
CALL_UNITS, INDEXED_CALL_UNITS = 2, 5
# Where no price of a region is known, it is told by this one's.
USUAL_REGION = "us-east-1"


def scan_cost(described: dict[str, Any]) -> ScanCost:
    """What it costs to read a whole table, by what `DescribeTable` tells of it."""
    size, region = int(described.get("TableSizeBytes", 0)), _region(described.get("TableArn", ""))
    prices = PRICES.get(region) or PRICES[USUAL_REGION]
    return ScanCost(
        items=int(described.get("ItemCount", 0)),
        bytes=size,
        requests=max(1, ceil(size / SCAN_BYTES)),
        billed=True,
        dollars=ceil(size / READ_BYTES) * prices.reads / MILLION,
        note=f"DynamoDB counts items every six hours; on demand, by the prices of {prices.region} of "
        f"{prices.published}",
    )


def why_no_recent() -> str:
    """Why there is no index over all records here, and what it would cost."""
    prices = PRICES[USUAL_REGION]
    more = INDEXED_CALL_UNITS - CALL_UNITS
    return (
        f"on DynamoDB it would make a first call cost {INDEXED_CALL_UNITS} write units instead of "
        f"{CALL_UNITS}, ${more * prices.writes:,.2f} more for a million of them by the prices of "
        f"{prices.region} of {prices.published}, and one partition of it would take every write"
    )


def table_size(name: str, described: dict[str, Any]) -> TableSize:
    """How large a table is, by what `DescribeTable` tells of it."""
    indexes = described.get("GlobalSecondaryIndexes", [])
    return TableSize(
        table=name,
        items=int(described.get("ItemCount", 0)),
        bytes=int(described.get("TableSizeBytes", 0)),
        indexes={each["IndexName"]: int(each.get("ItemCount", 0)) for each in indexes},
        how="as DynamoDB counted within the last six hours; what has expired is removed by its TTL",
    )


# What is known where the caller may not ask.
UNKNOWN_COST = ScanCost(
    items=0,
    requests=0,
    billed=True,
    note="how large the table is, only a role that may dynamodb:DescribeTable can tell",
)


def _region(arn: str) -> str:
    """The region in the name of a table, such as `arn:aws:dynamodb:eu-west-1:123456789012:table/t`."""
    return arn.split(":")[3] if arn.count(":") > 3 else ""
