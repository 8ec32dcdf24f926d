"""A ledger as a function's environment variables say, and what must not outlast a snapshot of it."""

import os
from collections.abc import Mapping
from typing import Any

from semel.connect import Semel, connect
from semel.core.runtime import forget_tokens


def from_environment(environ: Mapping[str, str] = os.environ, **settings: Any) -> Semel:
    """Open the store that `SEMEL_URL` names, for `SEMEL_ENV` and `SEMEL_SCOPE`.

    Without a URL it is DynamoDB: the table that `IDEMPOTENCY_TABLE_NAME` names, which has the layout
    `alchemiser`, or else semel's own. Further settings are those of `connect`.
    """
    url = environ.get("SEMEL_URL")
    if not url:
        table = environ.get("IDEMPOTENCY_TABLE_NAME")
        url = f"dynamodb:///{table}?layout=alchemiser" if table else "dynamodb:"
    chosen = {"env": environ.get("SEMEL_ENV"), "scope": environ.get("SEMEL_SCOPE")}
    return connect(url, **{name: value for name, value in chosen.items() if value} | settings)


def forget_at_restore(environ: Mapping[str, str] = os.environ) -> None:
    """Draw new tokens in every copy of a snapshot: two that had the same would both win a claim."""
    if environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start":
        from importlib import import_module

        # Part of Lambda's own Python runtimes, and of nothing else.
        import_module("snapshot_restore_py").register_after_restore(forget_tokens)
