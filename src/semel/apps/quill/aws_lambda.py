"""Quill on AWS Lambda: `ingress` behind an API, and `worker` behind the inbox's queue.

The ledger is set up by `DYNAMO_TABLE_NAME`, `DYNAMO_TTL_DAYS`, `DYNAMO_REGION` and `DYNAMO_ENDPOINT`, or by
`SEMEL_URL`.
"""

from semel.apps.functions import Functions
from semel.apps.quill.app import Quill
from semel.apps.quill.settings import Settings, from_environment, store_url, wrong


def _lasting(settings: Settings) -> Settings:
    if not settings.has_powerbi and not settings.star:
        why = "a function has no file that lasts: set it, or star to a file that does, such as one on EFS"
        raise wrong("powerbi_tenant", why)
    return settings


FUNCTIONS = Functions(
    "quill",
    lambda s, inbox, environ: Quill(s, inbox, _lasting(from_environment(environ))),
    url=store_url,
)
ingress, worker = FUNCTIONS.ingress, FUNCTIONS.worker
