"""What DynamoDB on demand costs, as dated data: AWS's own price list, for each region as of the day given."""

from datetime import date

import msgspec

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
