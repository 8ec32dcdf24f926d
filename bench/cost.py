"""What calls are billed on DynamoDB, counted at the wire and held against what `semel cost` says.

The engine says the capacity that each write took; a refused write it does not, and that is taken from the
record which came back with the refusal, as DynamoDB bills it.
"""

import argparse
from collections import Counter
from collections.abc import Generator
from typing import Any

import semel
from bench.recorded import Recorded
from bench.servers import ENV, stores
from bench.timing import Bar, Listing, conclude
from semel.aws.errors import ServiceError
from semel.provision.cost import WRITE_BYTES, Estimate, Workload, estimate, units
from semel.stores.dynamodb.items import size
from semel.stores.dynamodb.service import MILLION

PACKAGES = ("semel",)
REGION = "us-east-1"
# One call in so many is a duplicate.
DUPLICATE = 5
# Below what is compressed, so that a result is stored as large as it is.
RESULTS = (200, 1_500)
KEY_BYTES = 30


class Billing(Recorded):
    """A transport that asks what each request took."""

    def __init__(self, transport: Any) -> None:
        super().__init__(transport, [])
        self.requests, self.units = Counter[str](), Counter[str]()

    def exchange(self, operation: str, request: Any, *, write: bool) -> Generator[Any, Any, Any]:
        request = (request() if callable(request) else request) | {"ReturnConsumedCapacity": "TOTAL"}
        kind = operation
        try:
            response: Any = yield from self._transport.exchange(operation, request, write=write)
            self.units[kind] += response["ConsumedCapacity"]["CapacityUnits"]
        except ServiceError as refusal:
            kind = f"{operation}, refused"
            self.units[kind] += units(size(refusal.body["Item"]), WRITE_BYTES)
            raise
        finally:
            self.requests[kind] += 1
        return response


def billed(url: str, events: int, result_bytes: int) -> Billing:
    """What so many calls are billed, of which every fifth is a duplicate."""
    with semel.connect(url, env=ENV) as s:
        s.ledger.get("warm")
        billing = Billing(s.store._transport)  # type: ignore[attr-defined]
        s.store._operations._transport = billing  # type: ignore[attr-defined]

        @s.once("{key}")
        def work(key: str) -> str:  # noqa: ARG001 - it is the key
            return "r" * (result_bytes - 2)

        for number in range(events):
            kept = number - 1 if number % DUPLICATE == DUPLICATE - 1 else number
            work(f"{result_bytes}-{kept}".zfill(KEY_BYTES))
        return billing


def expected_cost(events: int, result_bytes: int) -> Estimate:
    """What `semel cost` says of them."""
    workload = Workload(
        events=events, duplicates=1 / DUPLICATE, key_bytes=KEY_BYTES, result_bytes=result_bytes, seconds=0
    )
    return estimate(workload, REGION)


def main() -> int:
    """Measure, print, and say which bars were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000, help="calls that are counted")
    parser.add_argument("--json", action="store_true", help="print plain JSON")
    options = parser.parse_args()
    rows, found = [], []
    with stores(["DynamoDB"]) as (urls, absent):
        for url in urls.values():
            for size in RESULTS:
                more, bar = compared(billed(url, options.events, size), expected_cost(options.events, size))
                rows += more
                found.append(bar)
    columns = ("a million calls", "requests", "write units", "dollars")
    listing = Listing("requests and dollars on DynamoDB", columns, tuple(rows))
    return conclude([], found, PACKAGES, options.json, listings=[listing], absent=absent)


def compared(billing: Billing, estimated: Estimate) -> tuple[list[tuple[Any, ...]], Bar]:
    """Two rows, counted and said; and by how much they differ."""
    share = MILLION / estimated.workload.events
    price = estimated.prices.writes / MILLION
    counted = (billing.requests.total() * share, billing.units.total() * share)
    lines = [line for line in estimated.lines if line.what in ("claim", "complete", "replay")]
    expected = (
        sum(line.requests for line in lines) * share,
        sum(line.requests * line.each.writes for line in lines) * share,
    )
    what = f"results of {estimated.workload.result_bytes:,} bytes, a fifth duplicates"
    rows = [
        (f"{what}: counted", *counted, counted[1] * price),
        (f"{what}: semel cost", *expected, expected[1] * price),
    ]
    apart = max(abs(one / other - 1) for one, other in zip(counted, expected, strict=True))
    return rows, Bar(f"what semel cost says, {what}, differs from what is counted by", apart * 100, 0.01, "%")


if __name__ == "__main__":
    raise SystemExit(main())
