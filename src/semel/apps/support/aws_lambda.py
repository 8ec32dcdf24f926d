"""Support on AWS Lambda: `ingress` behind an API, and `worker` behind the inbox's FIFO queue."""

from typing import Final

from semel.apps.functions import Functions
from semel.apps.support.app import Support

FUNCTIONS = Functions.of("support", Support)
ingress: Final = FUNCTIONS.ingress
worker: Final = FUNCTIONS.worker
