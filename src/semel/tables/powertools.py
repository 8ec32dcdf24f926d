"""The table of AWS Lambda Powertools' idempotency utility, and its keys."""

import os
from collections.abc import Callable
from typing import Any

from semel.tables import LEDGER, YEAR, attributes_of
from semel.tables.mapping import Column, Form, Same, TableMapping, defaults

POWERTOOLS = TableMapping(
    name="powertools",
    title="IdempotencyTable",
    holds=LEDGER,
    partition="id",
    attributes=attributes_of(
        "status text, expiration number, in_progress_expiration number, data text, validation text"
    ),
    expires="expiration",
    ttl="expiration",
    bare_keys=True,
    longest=YEAR,
    columns=defaults(token="", attempt=1, created_at=0, updated_at=0, encoding="json", version=1)
    | {
        "status": Column(name="status", spelled={"IN_PROGRESS": "INPROGRESS"}),
        "fingerprint": Column(name="validation"),
        # Powertools lets nobody in before the record's end where it did not say when its run would time out.
        "lease_until": Column(
            name="in_progress_expiration", form=Form.MILLISECONDS, default=Same("expires_at")
        ),
        "expires_at": Column(name="expiration", form=Form.SECONDS),
        "result": Column(name="data", form=Form.JSON),
    },
)

TABLES = (POWERTOOLS,)


def powertools_key(function: Callable[..., Any], payload: Any, prefix: str | None = None) -> str:
    """The `id` under which Powertools keeps a call, for payloads that are plain JSON.

    `payload` is what `event_key_jmespath` or `data_keyword_argument` selects. `prefix` is what `key_prefix`
    is there; without one it is made of the Lambda function's name and the Python function's, so both have to
    be called as they were.
    """
    from hashlib import md5

    home = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "test-func")
    named = prefix or f"{home}.{function.__module__}.{function.__qualname__}"
    import json  # which only who calls this needs

    text = json.dumps(payload, sort_keys=True)
    return f"{named}#{md5(text.encode(), usedforsecurity=False).hexdigest()}"
