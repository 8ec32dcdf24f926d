"""How much is tried: in every run as much as ten minutes allow, and all of it with `make slow`."""

import os

ALL = bool(os.environ.get("SEMEL_TEST_ALL"))


def amount(whole: int, everyday: int) -> int:
    return whole if ALL else everyday
