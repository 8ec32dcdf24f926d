"""Support on AWS Lambda: `ingress` behind an API, and `worker` behind the inbox's FIFO queue."""

from semel.apps.functions import Functions
from semel.apps.settings import from_environment
from semel.apps.support.app import Support
from semel.apps.support.settings import Settings

FUNCTIONS = Functions(
    "support",
    lambda s, inbox, environ: Support(s, inbox, from_environment(Settings, "support", environ)),
    needs_secret=True,
)
ingress, worker = FUNCTIONS.ingress, FUNCTIONS.worker
