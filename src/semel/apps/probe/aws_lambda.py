"""The probe on AWS Lambda: `ingress` behind an API, set up by `SEMEL_URL`, `SEMEL_ENV` and its settings."""

from typing import Final

from semel.apps.functions import Functions
from semel.apps.probe.app import Probe

FUNCTIONS = Functions.of("probe", Probe)
ingress: Final = FUNCTIONS.ingress
