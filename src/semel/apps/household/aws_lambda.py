"""The helper on AWS Lambda: `ingress` behind an API, and `worker` behind the inbox's queue."""

from semel.apps.functions import Functions
from semel.apps.household.app import Household
from semel.apps.household.settings import Settings
from semel.apps.settings import from_environment

FUNCTIONS = Functions(
    "household",
    lambda s, inbox, environ: Household(s, inbox, from_environment(Settings, "household", environ)),
)
ingress, worker = FUNCTIONS.ingress, FUNCTIONS.worker
