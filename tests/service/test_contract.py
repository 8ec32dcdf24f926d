"""The OpenAPI document of /v1 is true: what it allows is taken, and what comes back is as it says."""

from collections import Counter
from pathlib import Path

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance, unsupported_method

from semel.service.site import site
from tests.service.kit import TOKENS, opened
from tests.service.test_v1 import GATES

# Enough for every operation to be answered in more than one way; the same requests in every run.
EXAMPLES = 2
PLANNED = settings(
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    max_examples=EXAMPLES,
)
# What is taken depends on more than the form: handles have an inside, zones and gates exist or do not.
LEFT_OUT = [positive_data_acceptance, unsupported_method]
EVERYTHING = f"""
[tokens.all]
token = "{TOKENS["north"]}"
scopes = ["ledger:read", "ledger:write", "admin", "metrics"]
"""


def is_span(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 30


def test_the_document_of_the_ledgers_api_is_true(tmp_path: Path) -> None:
    seen: Counter[tuple[str, int]] = Counter()

    def examine(case: schemathesis.Case) -> None:
        if case.path == "/v1/wait" and isinstance(case.body, dict):
            # Some of the keys are held, by other requests of these.
            case.body |= {"timeout": 0.001} if is_span(case.body.get("timeout", 1)) else {}
        headers = {"Authorization": f"Bearer {TOKENS['north']}"}
        response = case.call_and_validate(headers=headers, excluded_checks=LEFT_OUT)
        seen[case.operation.label, response.status_code] += 1

    with opened(EVERYTHING + GATES, tmp_path) as house:
        schema = schemathesis.openapi.from_asgi("/openapi.json", site(house))
        operations = [found.ok() for found in schema.get_all_operations()]
        for operation in [one for one in operations if one.path.startswith("/v1")]:
            for mode in GenerationMode:
                PLANNED(given(case=operation.as_strategy(generation_mode=mode))(examine))()
    assert len({label for label, _ in seen}) == 17
    assert not [one for one in seen if one[1] >= 500]
    # What these take can be told by its form alone; the others refuse some of what the document allows.
    taken = {label for label, status in seen if status < 300}
    assert {"GET /v1/switches", "PUT /v1/switches/{name}", "POST /v1/is-processed"} <= taken
