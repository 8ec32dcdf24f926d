"""Quill on AWS Lambda: `ingress` behind an API, and `worker` behind the inbox's queue.

The ledger is set up by `DYNAMO_TABLE_NAME`, `DYNAMO_TTL_DAYS`, `DYNAMO_REGION` and `DYNAMO_ENDPOINT`, or by
`SEMEL_URL`.
"""

from typing import Final

from semel.apps.functions import Functions
from semel.apps.quill.app import Quill
from semel.apps.quill.settings import Settings, wrong
from semel.connect import Semel
from semel.doors.inbox import Inbox


class QuillOnLambda(Quill):
    """Quill without the local file that it would have elsewhere."""

    def __init__(self, s: Semel, inbox: Inbox, settings: Settings) -> None:
        if not settings.has_powerbi and not settings.star:
            why = "a function has no file that lasts: set it, or star to a file that does, such as one on EFS"
            raise wrong("powerbi_tenant", why)
        super().__init__(s, inbox, settings)


FUNCTIONS = Functions.of("quill", QuillOnLambda)
ingress: Final = FUNCTIONS.ingress
worker: Final = FUNCTIONS.worker
