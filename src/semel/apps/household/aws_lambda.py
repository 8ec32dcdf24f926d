"""The helper on AWS Lambda: `ingress` behind an API, and `worker` behind the inbox's queue."""

from typing import Final

from semel.apps.functions import Functions
from semel.apps.household.app import Household

FUNCTIONS = Functions.of("household", Household)
ingress: Final = FUNCTIONS.ingress
worker: Final = FUNCTIONS.worker
