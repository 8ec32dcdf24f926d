"""A clock of a machine, which tests of DynamoDB move."""

from semel.testing import FakeClock


class MachineClock(FakeClock):
    """A machine's clock: it can be wrong, and nobody is to take it for the store's own."""

    def imposed(self) -> float | None:  # type: ignore[override]
        return None
